//! Who waits for an answer of the core.

use std::collections::BTreeMap;

use commonware_cryptography::sha256;
use commonware_utils::channel::oneshot;
use weir_order::Completion;

/// One who waits.
pub(super) enum Answer {
    Propose(oneshot::Sender<sha256::Digest>),
    Verdict(oneshot::Sender<bool>),
    /// A proposer, and since when it waits.
    Done(Completion, u64),
    /// Those who wait for an empty batch, and since when.
    Barrier(Vec<Completion>, u64),
    /// Nobody: the batch only brings the order on.
    Pumped,
    /// This replica's own word for a change of members.
    Approval,
}

/// Who waits for what. Whoever waits when the replica ends is told so by the end of its channel or completion.
#[derive(Default)]
pub(super) struct Answers {
    next: u64,
    pub(super) waiting: BTreeMap<u64, Answer>,
}

impl Answers {
    pub(super) fn add(&mut self, answer: Answer) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, answer);
        self.next
    }

    pub(super) fn is_gone(&self, ticket: u64) -> bool {
        match self.waiting.get(&ticket) {
            Some(Answer::Propose(answer)) => answer.is_closed(),
            Some(Answer::Verdict(answer)) => answer.is_closed(),
            Some(Answer::Done(..) | Answer::Barrier(..) | Answer::Pumped | Answer::Approval) => false,
            None => true,
        }
    }
}
