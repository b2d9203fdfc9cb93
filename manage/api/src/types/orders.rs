//! Short forms that push something to a host: repairs of its monitor, policies of a FileWall.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_model::filewall::PolicyFile;
use weir_model::health::RepairAction;

/// Order the monitor of a host to repair something, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepairRequest {
    /// Path of the cgroup (version 2) below the mount, such as `machines/web`.
    pub cgroup: String,
    /// What to do; absent withdraws the order, and thaws what it froze.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RepairAction>,
    /// Which order it is: letters, digits, `-`, `_` or `.`. One that comes again with the same id is carried out no second time;
    /// without one each is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Wait for the signed update to be in force at the host for so long, milliseconds.
    #[serde(default)]
    pub wait_ms: u32,
}

/// What became of an order at its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderOutcome {
    /// Whether it is in force there; otherwise it was refused, or it has failed.
    pub done: bool,
    /// What the program that carries it out says of it, in words.
    pub text: String,
}

/// A repair was ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepairResponse {
    /// The version at which it was decided.
    pub version: u64,
    /// Whether the host had it within `waitMs`.
    pub in_force: bool,
    /// What the monitor has done; absent if it has said nothing within `waitMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<OrderOutcome>,
}

/// Order the policies of a FileWall, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileWallRequest {
    /// All its files, in the order of their names; absent withdraws the order, and the FileWall keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<PolicyFile>>,
    /// Wait for the signed update to be in force at the host for so long, milliseconds.
    #[serde(default)]
    pub wait_ms: u32,
}

/// Policies were ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileWallResponse {
    /// The version at which it was decided.
    pub version: u64,
    /// Whether the host had it within `waitMs`.
    pub in_force: bool,
    /// What the FileWall has done; absent if it has said nothing within `waitMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<OrderOutcome>,
}
