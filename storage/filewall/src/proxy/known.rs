//! What was done with a call, and what is known of one that must happen once.

use super::env::Env;
use super::retransmit::{self, Known, Look, Waiter};
use crate::metrics::Totals;

/// What was done with a call.
pub(super) enum Done {
    /// More of it must be received first.
    More,
    /// It is dealt with; nothing of it goes out.
    Skip,
    /// Its head was queued up to here; the rest goes out as it is.
    Forward(usize),
    /// It stays where it is.
    Hold,
    /// It stays where it is until another call of its number is answered: the client could not tell the answers apart.
    Wait,
}

/// What is to be done with a call that must happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// It goes on.
    New,
    /// It was sent to the server before, and nobody knows what became of it.
    Unknown,
    /// It was carried out before, or is pending: it was answered from memory, or waits.
    Dealt,
}

/// Looks a call up that must happen once. What was carried out before, or is pending, is not for policies to judge again (a name
/// that it has removed is gone).
pub(super) fn known(
    once: Option<retransmit::Key>,
    look: Look,
    waiter: Waiter,
    answers: &mut Vec<u8>,
    env: &Env<'_>,
) -> Passed {
    let Some(once) = once else { return Passed::New };
    match env.shared.retransmits.known(once, look, waiter, env.now.steady_us) {
        Known::New => return Passed::New,
        Known::Unknown => return Passed::Unknown,
        Known::Answered(reply) => {
            Totals::count(&env.shared.totals.replayed_total);
            retransmit::put_again(&reply, waiter.xid, answers);
        }
        Known::Pending | Known::Crowded => Totals::count(&env.shared.totals.retransmissions_total),
    }
    Passed::Dealt
}
