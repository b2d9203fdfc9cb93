//! Apps: the procedures that decide (DESIGN §1.3; rows B8, R7). They run beside the store on every
//! replica, so they keep no state of their own and see no clock but the ordered one.

use crate::View;
use weir_model::event::Event;
use weir_model::resource::FieldError;
use weir_model::{Plan, Version};

/// What one event leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Updates and their order.
    pub plan: Plan,
}

/// Why an event changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// A field of a resource is wrong.
    #[error("{resource}: {error}")]
    Field {
        /// The resource, as text of its id.
        resource: String,
        /// The field.
        error: FieldError,
    },
    /// A resource has another version than the writer expected.
    #[error("{resource} is at {found}, the change expects {expected}: read it again and repeat the change")]
    Version {
        /// The resource.
        resource: String,
        /// Version expected; zero means it should not exist.
        expected: Version,
        /// Version found; zero means it does not exist.
        found: Version,
    },
    /// Something is used by something else, or needs something that is not there.
    #[error("{resource}: {problem}")]
    Reference {
        /// The resource.
        resource: String,
        /// What is missing or still in use, and what would be right.
        problem: String,
    },
    /// A limit would be passed.
    #[error("{what} of {value} is over the limit of {limit}")]
    Limit {
        /// What.
        what: String,
        /// How much.
        value: usize,
        /// The limit.
        limit: usize,
    },
}

impl Rejection {
    /// A limit would be passed.
    pub fn limit(what: &str, value: usize, limit: usize) -> Rejection {
        Rejection::Limit { what: what.to_string(), value, limit }
    }
}

/// A deterministic, bounded procedure: the same view and event give the same writes and decision.
pub trait App: Send {
    /// Name, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Decides on one event. `version` is where the event is ordered and `now_ms` the ordered time
    /// (milliseconds of the Unix epoch, never going back).
    ///
    /// # Errors
    /// A [`Rejection`]: the caller then drops every write of this decision.
    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        now_ms: u64,
        event: &Event,
    ) -> Result<Decision, Rejection>;
}
