//! Requests that wait for the approval of several operators.

use crate::problem::ApiError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use weir_model::approval::{Need, Needs, RequestKind};
use weir_model::operator::OperatorRole;

/// Of whom a kind of request needs the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NeedOf {
    /// The kind.
    pub kind: RequestKind,
    /// Of how many operators, the author among them.
    pub approvals: u8,
    /// Of which role each of them is at least.
    pub role: OperatorRole,
}

/// What shall need approvals: all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NeedsRequest {
    /// By kind; a kind that is not here needs its author alone.
    pub kinds: Vec<NeedOf>,
    /// For how long a request waits for them, seconds.
    #[serde(default = "wait_s")]
    pub wait_s: u32,
}

fn wait_s() -> u32 {
    weir_model::approval::WAIT_S
}

impl NeedsRequest {
    /// What is ordered.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn needs(&self) -> Result<Needs, ApiError> {
        let mut kinds = BTreeMap::new();
        for NeedOf { kind, approvals, role } in &self.kinds {
            if kinds.insert(*kind, Need { approvals: *approvals, role: *role }).is_some() {
                return Err(ApiError::invalid(format!("kinds: {kind} is there twice")));
            }
        }
        let needs = Needs { kinds, wait_s: self.wait_s };
        needs.problem().map_or(Ok(needs), |problem| Err(ApiError::invalid(problem)))
    }
}

/// A request that waits for approvals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingView {
    /// What it is known by: SHA-256 of all that its author signed, 64 hexadecimal digits.
    pub id: String,
    /// The request as its author signed it, in the encoding of the order, base64: whoever approves looks whether its id is of this.
    pub said: String,
    /// At which version it was ordered.
    pub version: u64,
    /// When it was ordered, milliseconds of the Unix epoch.
    pub since_ms: u64,
    /// When it waits no longer.
    pub until_ms: u64,
    /// Of how many operators it needs the word, its author among them.
    pub needed: u8,
    /// Of which role each of them is at least.
    pub role: OperatorRole,
    /// Who has said so and counts, by name.
    pub given: Vec<String>,
}

/// The requests that wait, and what needs approvals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalList {
    /// What needs them.
    pub needs: Vec<NeedOf>,
    /// For how long a request waits, seconds.
    pub wait_s: u32,
    /// What waits, the oldest first.
    pub items: Vec<WaitingView>,
}

/// What is said of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRequest {
    /// Whether it shall be done; else it waits no longer.
    pub approve: bool,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalResponse {
    /// At which version it was said.
    pub version: u64,
    /// Whether the request is done with it.
    pub done: bool,
    /// How many have said so, while it waits.
    pub given: u8,
    /// How many it needs, while it waits.
    pub needed: u8,
}
