//! The members of a group tell each other what their clocks say, so that none of them leads ordered time alone.

use super::{Engine, Group};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use weir_base::ordered_time::State;
use weir_controller::driver::TimeKeeper;

/// How often a member tells its clock.
const TELL: Duration = Duration::from_secs(1);
/// The same, while too few clocks are known.
const TELL_FIRST: Duration = Duration::from_millis(200);

/// How many clocks must be known to correct by them: as many members as decide.
pub fn quorum(order_survives_lies: bool, members: usize) -> usize {
    match order_survives_lies {
        true => members - members.saturating_sub(1) / 3,
        false => members / 2 + 1,
    }
}

/// Before the members are known, no clock is followed, not even the own.
pub fn nobody_yet(time: &TimeKeeper) {
    time.set_members(BTreeSet::new(), usize::MAX);
}

/// Tells the others this member's clock. Never ends.
pub async fn tell(group: &Group, time: &TimeKeeper) {
    let own = group.engine.id();
    loop {
        let members = group.engine.members();
        let voters: BTreeSet<u64> =
            members.iter().filter(|(_, voter, _)| *voter).map(|(id, ..)| *id).collect();
        match voters.is_empty() {
            true => nobody_yet(time),
            false => {
                let quorum = quorum(matches!(group.engine, Engine::Bft(_)), voters.len());
                time.set_members(voters, quorum);
            }
        }
        let reading = Bytes::copy_from_slice(&time.reading().encode());
        for (id, ..) in members {
            if let Some(to) = u32::try_from(id).ok().filter(|_| id != own) {
                group.engine.tell(to, reading.clone());
            }
        }
        let known = time.view().0.state != State::Alone;
        tokio::time::sleep(if known { TELL } else { TELL_FIRST }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::quorum;

    #[test]
    fn as_many_clocks_are_needed_as_members_decide() {
        assert_eq!([3, 4, 5].map(|members| quorum(false, members)), [2, 3, 3]);
        assert_eq!([1, 4, 5, 7].map(|members| quorum(true, members)), [1, 3, 4, 5]);
    }
}
