//! Who sends to switches where no member is believed: the first that is there, and whoever sees that nothing moves.
//!
//! Every member hears the acks of every switch and knows what each should have. When a switch that it reaches lacks something for
//! longer than the members before it had time to send it, it sends it itself. So a member that is silent, or says that it
//! is there and sends nothing, costs each update a second and no more.

use super::everywhere::Everywhere;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_controller::core::Core;
use weir_controller::driver::ControllerHandle;
use weir_model::{Label, Version};

/// How long each member before this one has to move a switch.
const TURN: Duration = Duration::from_secs(1);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);

/// How far a switch is: keys that are not in force, and up to where everything is.
type Progress = (usize, Version);

/// Switches that this member reaches and that lack something.
fn lacking(core: &Core) -> BTreeMap<Label, Progress> {
    let scheduler = core.scheduler();
    let all = scheduler.target_names().filter_map(|name| scheduler.target_status(name));
    let lacking = all.filter(|one| one.connected && one.synced && one.lag > one.refused);
    lacking.map(|one| (one.target, (one.lag, one.acked))).collect()
}

/// Since when each switch has not moved.
#[derive(Debug, Default)]
pub struct Stalls(BTreeMap<Label, (Progress, Instant)>);

impl Stalls {
    /// Takes in how far switches are; gives how long the slowest has not moved.
    pub fn look(&mut self, lacking: BTreeMap<Label, Progress>, now: Instant) -> Duration {
        self.0.retain(|label, (progress, _)| lacking.get(label) == Some(progress));
        for (label, progress) in lacking {
            self.0.entry(label).or_insert((progress, now));
        }
        let longest = self.0.values().map(|(_, since)| now.duration_since(*since)).max();
        longest.unwrap_or_default()
    }
}

/// Whether a member with so many live ones before it sends now.
pub fn sends(rank: Option<usize>, stalled: Duration) -> bool {
    rank.is_some_and(|rank| rank == 0 || stalled >= TURN * u32::try_from(rank).unwrap_or(u32::MAX))
}

/// Tells the controller when to send, and when no more. Never ends.
pub async fn follow(order: &Everywhere, handle: &ControllerHandle, tell_members: impl Fn()) {
    let mut stalls = Stalls::default();
    loop {
        tell_members();
        // A core that is too busy to be looked at moves something.
        let stalled = match handle.inspect(lacking).await {
            Ok(lacking) => stalls.look(lacking, Instant::now()),
            Err(_) => Duration::ZERO,
        };
        let sends = sends(order.rank(), stalled);
        if sends && !handle.leads() {
            // Whoever begins has decided all that was ever ordered.
            if handle.barrier().await.is_ok() {
                tracing::info!(
                    rank = order.rank(),
                    stalled_ms = stalled.as_millis() as u64,
                    "this controller leads"
                );
                let _stops = handle.lead(true).await;
            }
        } else if !sends && handle.leads() {
            tracing::info!(leader = order.leader(), "this controller follows");
            let _stops = handle.lead(false).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sends_at_once_and_the_others_when_nothing_moves() {
        let (ms, never) = (Duration::from_millis, Duration::ZERO);
        assert!(sends(Some(0), never) && !sends(Some(1), never) && !sends(None, ms(60_000)));
        assert!(sends(Some(1), ms(1000)) && !sends(Some(2), ms(1000)) && sends(Some(2), ms(2000)));
    }

    #[test]
    fn a_switch_that_moves_is_not_stalled() {
        let (mut stalls, begin) = (Stalls::default(), Instant::now());
        let lack =
            |lag: usize, acked: u64| BTreeMap::from([(Label::new("h1").unwrap(), (lag, Version(acked)))]);
        assert_eq!(stalls.look(lack(3, 1), begin), Duration::ZERO);
        assert_eq!(stalls.look(lack(3, 1), begin + TURN), TURN);
        assert_eq!(stalls.look(lack(2, 1), begin + TURN), Duration::ZERO);
        assert_eq!(stalls.look(BTreeMap::new(), begin + 3 * TURN), Duration::ZERO);
    }
}
