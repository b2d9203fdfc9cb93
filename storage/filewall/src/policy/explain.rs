//! What a chain would do with a call that nobody has made: `weir filewall explain`.
//!
//! The real policies are asked with their real tables, so the answer and what happens cannot differ. What depends on what
//! happened before (rates, machines in use) is told as it is for a client that comes for the first time.

use super::{Chain, Context};
use crate::identity::Principal;
use crate::places::Place;
use crate::wire::nfs3::{Op, Status};
use std::sync::Arc;

/// A call to be explained.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who would call.
    pub caller: Arc<Principal>,
    /// Operation.
    pub op: Op,
    /// Place of the object, or of the name.
    pub place: Place,
    /// When, milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

/// What one policy does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the call is answered with; `None` if it goes on.
    pub answer: Option<Status>,
    /// Why, for people; empty if there is nothing to say.
    pub reason: String,
}

impl Step {
    /// The policy does not look at such calls.
    pub fn silent() -> Step {
        Step { answer: None, reason: String::new() }
    }

    /// The call goes on.
    pub fn forward(reason: impl Into<String>) -> Step {
        Step { answer: None, reason: reason.into() }
    }

    /// The call is answered.
    pub fn answer(status: Status, reason: impl Into<String>) -> Step {
        Step { answer: Some(status), reason: reason.into() }
    }
}

/// What a policy of a chain does, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Name of the policy.
    pub policy: String,
    /// Its kind.
    pub kind: &'static str,
    /// What it does.
    pub step: Step,
}

/// Asks each policy of the chain, up to the one that answers.
pub fn explain(chain: &Chain, question: &Question, context: &Context<'_>) -> Vec<Explained> {
    let mut steps = Vec::new();
    for entry in chain.entries() {
        let step = entry.policy.explain(question, context);
        let ends = step.answer.is_some();
        steps.push(Explained { policy: entry.name.clone(), kind: entry.policy.kind(), step });
        if ends {
            break;
        }
    }
    steps
}

#[cfg(test)]
mod tests;
