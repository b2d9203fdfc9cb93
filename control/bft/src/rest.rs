//! A group that has nothing to order rests: its consensus runs on a clock that is slowed down.
//!
//! Each view costs every member votes, certificates and syncs, and a group of which nobody wants anything went through dozens of views a
//! second. A leader may hold a view for longer only when the others wait for longer before they pass it by, and must not wait for longer when
//! there is something to order. So all waits of consensus follow one clock ([`Pace`]), which is that of the runtime while anything is to be
//! ordered, and was of late, and else goes slower by [`Timers::rest`](crate::Timers::rest) over [`Timers::idle`](crate::Timers::idle). What is to
//! be ordered goes to all members at once, and with it each is awake: a leader that holds its view proposes, and one that is gone is waited for
//! no longer than by a group that never rests.
//!
//! Members rest each by itself. One that does not passes a resting leader by, which is one vote of those that it takes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use commonware_runtime::Clock;

use crate::lock::locked;
use crate::settings::Timers;

/// A group rests when nothing was to be ordered for so long.
pub(crate) const REST_AFTER_MS: u64 = 2_000;
/// At least so often a resting member looks whether it still rests.
const LOOK: Duration = Duration::from_millis(20);

struct State {
    /// A moment of the runtime's clock, and which moment it was here.
    real: SystemTime,
    paced: SystemTime,
    rests: bool,
}

/// Whether this replica rests, and since when.
pub(crate) struct Rest {
    slower: u32,
    state: Mutex<State>,
}

impl Rest {
    /// Awake; time is that of the runtime until it rests.
    pub fn new(timers: &Timers) -> Rest {
        let slower = (timers.rest.as_millis() / timers.idle.as_millis().max(1)).clamp(1, 10_000) as u32;
        let begin = SystemTime::UNIX_EPOCH;
        Rest { slower, state: Mutex::new(State { real: begin, paced: begin, rests: false }) }
    }

    fn now(&self, real: SystemTime) -> (SystemTime, bool) {
        let state = locked(&self.state);
        let passed = real.duration_since(state.real).unwrap_or_default();
        let passed = if state.rests { passed / self.slower } else { passed };
        (state.paced.checked_add(passed).unwrap_or(state.paced), state.rests)
    }

    /// Begins or ends to rest at a moment of the runtime's clock.
    pub fn set(&self, rests: bool, real: SystemTime) {
        let (paced, rested) = self.now(real);
        if rested != rests {
            *locked(&self.state) = State { real, paced, rests };
        }
    }

    /// How long a wait is by the runtime's clock, at most until it is looked again; nothing when it is over.
    fn left(&self, deadline: SystemTime, real: SystemTime) -> Option<Duration> {
        let (now, rests) = self.now(real);
        let left = deadline.duration_since(now).ok().filter(|left| !left.is_zero())?;
        Some(if rests { left.saturating_mul(self.slower).min(LOOK) } else { left })
    }
}

/// The clock of consensus.
pub(crate) struct Pace<E> {
    clock: Arc<E>,
    rest: Arc<Rest>,
}

impl<E> Clone for Pace<E> {
    fn clone(&self) -> Pace<E> {
        Pace { clock: self.clock.clone(), rest: self.rest.clone() }
    }
}

impl<E: Clock> Pace<E> {
    /// `clock`, slowed down while `rest` says so.
    pub fn new(clock: E, rest: Arc<Rest>) -> Pace<E> {
        Pace { clock: Arc::new(clock), rest }
    }

    /// The time here.
    pub fn current(&self) -> SystemTime {
        self.rest.now(self.clock.current()).0
    }

    /// Returns at a time here.
    pub async fn sleep_until(self, deadline: SystemTime) {
        while let Some(left) = self.rest.left(deadline, self.clock.current()) {
            self.clock.sleep(left).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonware_runtime::{Runner as _, Spawner as _, Supervisor as _, deterministic};

    fn timers() -> Timers {
        Timers { idle: Duration::from_millis(40), rest: Duration::from_secs(4), ..Timers::LAN }
    }

    fn since(context: &deterministic::Context, begun: SystemTime) -> Duration {
        context.current().duration_since(begun).unwrap_or_default()
    }

    #[test]
    fn waits_are_as_long_as_they_say_awake_and_a_hundred_times_as_long_at_rest() {
        deterministic::Runner::timed(Duration::from_secs(3_600)).start(|context| async move {
            let rest = Arc::new(Rest::new(&timers()));
            let pace = Pace::new(context.child("clock"), rest.clone());
            let (begun, wait) = (context.current(), Duration::from_millis(120));
            pace.clone().sleep_until(pace.current() + wait).await;
            assert_eq!(since(&context, begun).as_millis(), 120);
            rest.set(true, context.current());
            let begun = context.current();
            pace.clone().sleep_until(pace.current() + wait).await;
            let rested = since(&context, begun);
            assert!(rested >= 99 * wait && rested <= 101 * wait, "{rested:?}");
        });
    }

    #[test]
    fn who_wakes_goes_on_with_what_is_left_of_a_wait() {
        deterministic::Runner::timed(Duration::from_secs(3_600)).start(|context| async move {
            let rest = Arc::new(Rest::new(&timers()));
            rest.set(true, context.current());
            let pace = Pace::new(context.child("clock"), rest.clone());
            let begun = context.current();
            let deadline = pace.current() + Duration::from_millis(120);
            let waits = context.child("waits").spawn(move |_| pace.sleep_until(deadline));
            context.sleep(Duration::from_secs(5)).await;
            // 50 of its 120 ms have passed.
            rest.set(false, context.current());
            waits.await.unwrap();
            let waited = since(&context, begun).as_millis();
            assert!((5_050..=5_120).contains(&waited), "{waited}");
        });
    }

    #[test]
    fn time_never_goes_back_or_jumps_when_a_member_rests_and_wakes() {
        let (rest, begin) = (Rest::new(&timers()), SystemTime::UNIX_EPOCH);
        let mut before = rest.now(begin).0;
        for step in 1..1_000u64 {
            let real = begin + Duration::from_millis(step * 7);
            let now = rest.now(real).0;
            assert!(now >= before && now <= before + Duration::from_millis(7));
            rest.set(step % 5 < 3, real);
            assert_eq!(rest.now(real).0, now);
            before = now;
        }
    }
}
