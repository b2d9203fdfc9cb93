//! What a change of many resources asks, and what it does.

use crate::any::{AnyId, AnyResource};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of many resources, all or nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplyRequest {
    /// Resources that shall be as given.
    #[schema(value_type = Vec<AnyResource>)]
    #[serde(default)]
    pub resources: Vec<serde_json::Value>,
    /// Resources that shall be gone.
    #[serde(default)]
    pub delete: Vec<AnyId>,
    /// Versions that resources must have now; 0 means that it must not exist.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// Delete every resource that is not named, also what planes of hosts have: a full update.
    #[serde(default)]
    pub replace_all: bool,
    /// Only tell what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// Wait up to so long until every switch has applied it, milliseconds; at most 60000.
    #[serde(default)]
    pub wait_ms: u32,
}

/// A version that a resource must have.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The resource.
    pub id: AnyId,
    /// Its version.
    pub version: u64,
}

/// What a change does to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It is new.
    Create,
    /// It differs.
    Update,
    /// It goes.
    Delete,
    /// It is as wanted already.
    Unchanged,
}

/// What happens to one resource.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResourceChange {
    /// The resource.
    pub id: AnyId,
    /// What happens.
    pub effect: Effect,
    /// The version that it has before, 0 when it is not there: what `expected` takes. Absent from older controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// For an update: the fields that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

/// A field that a change gives another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FieldChange {
    /// Path of the field, such as `dhcp.leaseS`.
    pub field: String,
    /// What it is; absent when it has no value.
    #[schema(value_type = Option<Object>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<serde_json::Value>,
    /// What it will be; absent when it has no value then.
    #[schema(value_type = Option<Object>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<serde_json::Value>,
}

/// An update of one entry of one switch.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlannedEntry {
    /// The switch.
    pub target: String,
    /// The entry, such as `port/red/web`.
    pub key: String,
    /// `put` or `delete`.
    pub change: String,
    /// What it waits for, and why.
    pub after: Vec<String>,
}

/// Result of a change.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyResponse {
    /// Where the change is in the order; absent for a dry run.
    pub version: Option<u64>,
    /// What happens to each resource.
    pub changes: Vec<ResourceChange>,
    /// Updates of switches that follow, at most 1000 of them.
    pub updates: Vec<PlannedEntry>,
    /// How many follow in all.
    pub updates_total: usize,
    /// How many switches they touch.
    pub switches: usize,
    /// How many hosts and gateways have joined.
    #[serde(default)]
    pub joined: usize,
    /// Whether all were in force within `waitMs`.
    pub in_force: bool,
    /// Changed endpoints whose port does not carry traffic within `waitMs`, and why: `red/web at h1: …`. At most 100.
    #[serde(default)]
    pub not_ready: Vec<String>,
    /// Changed endpoints that are placed on a host that has not joined, which they wait for, or where there is no switch, and why. At
    /// most 100.
    #[serde(default)]
    pub without_host: Vec<String>,
    /// Changed resources of planes that the plane's process does not have in force within `waitMs`, and why, where that was said:
    /// `filewall/h1/wall: …`. At most 100.
    #[serde(default)]
    pub not_in_force: Vec<String>,
}
