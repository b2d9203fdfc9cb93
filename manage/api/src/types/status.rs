//! The state of a domain: hosts, gateways, planes.

use super::group::{ClockStatus, GroupStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::event::Role;
use weir_model::health::{HealthNote, RepairAction};

/// A host or a gateway.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActuatorStatus {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its address on the underlay.
    pub underlay: String,
    /// Whether its session is open.
    pub connected: bool,
    /// Entries that it shall have.
    pub desired_entries: usize,
    /// Highest version among them.
    pub desired_version: u64,
    /// Entries that it has acked at the version desired.
    pub acked_entries: usize,
    /// Version up to which everything is acked.
    pub acked_version: u64,
    /// Version in force up to which its switch has everything, as it last said itself; absent when not connected.
    pub in_force_version: Option<u64>,
    /// Updates that wait, and for what; at most 20.
    pub waiting: Vec<String>,
    /// Its last refusals; at most 20.
    pub refused: Vec<String>,
    /// How many are kept in all.
    #[serde(default)]
    pub refused_total: usize,
    /// Ports of endpoints that are wanted up and carry no traffic, and why; at most 100.
    #[serde(default)]
    pub ports_down: Vec<PortDown>,
    /// How many there are in all; absent when it was not asked, or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports_down_total: Option<usize>,
    /// What its planes are to have, and what they told last.
    #[serde(default)]
    pub planes: Vec<PlaneStatus>,
    /// What its monitor told last; absent when it never told anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthView>,
    /// Controllers whose sessions it ended in the last day for what came on them, by its own word, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conduct: Vec<ConductView>,
}

/// A host ended the session of a controller for what came on it. It is the host's word, and proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConductView {
    /// Where the host has its session with the controller.
    pub address: String,
    /// The controller there, as far as the one that answers knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<u64>,
    /// What it sent, in words.
    pub sent: String,
    /// Sessions with it that the host ended so, as it last said.
    pub ended: u64,
    /// Forgeries of it that the host counted.
    pub forgeries: u64,
    /// How long ago the host said so, milliseconds.
    pub ago_ms: u64,
}

/// What a plane of a host is to have, and what it told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaneStatus {
    /// The plane.
    pub plane: String,
    /// What it is to have, in words; at most 20 lines.
    pub ordered: Vec<String>,
    /// How many there are in all.
    pub ordered_total: usize,
    /// What it told, in words, what matters most first; at most 20 lines.
    pub told: Vec<String>,
    /// How many there are in all.
    pub told_total: usize,
}

/// A port that is wanted up and carries no traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortDown {
    /// The endpoint: `NETWORK/NAME`.
    pub endpoint: String,
    /// Why.
    pub reason: String,
}

/// What the monitor of a host told last.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthView {
    /// How it hears the kernel, and why not better.
    pub kernel: String,
    /// Alarms since it started.
    pub alarms: u64,
    /// When that was ordered, milliseconds of the Unix epoch.
    pub told_ms: u64,
    /// The newest notes, oldest first; at most 16.
    pub notes: Vec<HealthNote>,
    /// Repairs that are in force.
    pub repairs: Vec<RepairView>,
}

/// A repair that is in force.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepairView {
    /// The cgroup.
    pub cgroup: String,
    /// What is done with it.
    pub action: RepairAction,
    /// The version at which it was ordered.
    pub version: u64,
}

/// State of the domain.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusResponse {
    /// The domain.
    pub domain: String,
    /// Version of the store.
    pub version: u64,
    /// Digest of the store, hexadecimal.
    pub digest: String,
    /// Release of the controller.
    pub software: String,
    /// The group's public key, hexadecimal; empty before the controllers of a group have made it.
    pub group_key: String,
    /// Epoch of the group.
    pub epoch: u64,
    /// Resources by kind.
    pub resources: Vec<KindCount>,
    /// Hosts and gateways.
    pub actuators: Vec<ActuatorStatus>,
    /// The group of controllers, as the one that answers knows it; absent for a single controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupStatus>,
    /// The controllers' clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockStatus>,
    /// With `consistency: linear`: what holds the line of updates; absent when nothing waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<LineView>,
}

/// With `consistency: linear`: the line of updates, and what holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LineView {
    /// The host or gateway whose update is the first that is not in force.
    pub actuator: String,
    /// The update, and why it is not in force.
    pub update: String,
    /// For how long it has been the first, milliseconds.
    pub for_ms: u64,
    /// Updates in the line.
    pub length: usize,
    /// Of these, older ones of entries that were decided anew since.
    pub older: usize,
}

/// How many resources of a kind there are.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KindCount {
    /// The kind.
    #[schema(value_type = String)]
    pub kind: Label,
    /// How many.
    pub count: usize,
}
