//! What travels over the API.

pub use crate::any::{AnyId, AnyResource, PlaneResource};
pub use crate::problem::{ApiError, NOT_LEADER, Problem};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::event::Role;
use weir_model::filewall::PolicyFile;
use weir_model::health::{HealthNote, RepairAction};
use weir_model::join::from_hex;
use weir_model::operator::{OperatorFacts, OperatorRole};
use weir_trust::said::is_key;

/// Most resources of one request.
pub const RESOURCES_MAX: usize = weir_model::event::MUTATIONS_MAX;
/// Largest body of a request, bytes.
pub const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;

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
    /// Changed endpoints that are placed on a host that has not joined: they wait for it. At most 100.
    #[serde(default)]
    pub without_host: Vec<String>,
    /// Changed resources of planes that the plane's process does not have in force within `waitMs`, and why, where that was said:
    /// `filewall/h1/wall: …`. At most 100.
    #[serde(default)]
    pub not_in_force: Vec<String>,
}

/// A resource as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceView {
    /// What was asked for.
    pub resource: AnyResource,
    /// Version of its last change.
    pub version: u64,
    /// What Weir chose for it: `vni`, `mac`, `addresses`.
    #[schema(value_type = Object)]
    pub allocated: serde_json::Value,
}

/// A list of resources.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResourceList {
    /// In order of their ids.
    pub items: Vec<ResourceView>,
    /// Version of the store that was read: watch from here on.
    pub version: u64,
}

/// A device that a learned network has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceView {
    /// Its network.
    pub network: String,
    /// Its number in the network: it never changes.
    pub id: u64,
    /// Its Ethernet address.
    pub mac: String,
    /// IPv4 addresses that it used, ascending.
    pub addresses: Vec<String>,
    /// The host where it was seen last; absent when that host is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When it was seen first, milliseconds of the Unix epoch.
    pub first_ms: u64,
    /// When it was seen last, milliseconds of the Unix epoch.
    pub seen_ms: u64,
}

/// Devices that learned networks have seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceList {
    /// In order of networks and numbers.
    pub items: Vec<DeviceView>,
    /// Whether there are more than these.
    #[serde(default)]
    pub more: bool,
}

/// One change, as a watch tells it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WatchEvent {
    /// Where it was decided. Where nothing more follows of it, give it as `from` to resume after it.
    pub version: u64,
    /// Whether more of the same version follows: it is decided whole, and there is no place inside it to resume from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The resource.
    pub id: AnyId,
    /// What it is now; absent when it is gone.
    pub item: Option<ResourceView>,
}

/// The last line of a watch that the controller ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchEnd {
    /// Why: `too-slow`, `unavailable` (go on at `from`, here or at another controller) or `too-old` (read everything again).
    pub ended: Problem,
    /// All up to this version was told: give it as `from` to go on.
    pub from: u64,
}

/// A line of a watch.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum WatchLine {
    /// It ends here.
    End(WatchEnd),
    /// A resource changed.
    Change(WatchEvent),
}

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
}

/// The controllers' clocks and ordered time, as one of them knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClockStatus {
    /// Ordered time, by which lives of keys end, milliseconds; it only goes on. 0: too few clocks are known yet.
    pub ordered_ms: u64,
    /// Wall time, as the group has it, milliseconds of the Unix epoch.
    pub wall_ms: u64,
    /// By how much the clocks of a majority are ahead of it, milliseconds; absent while too few are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<i64>,
    /// `follows`: they agree. `corrects`: the difference is being made up for. `asks`: it is days, and a person must say what is
    /// right. `alone`: the clocks of too few are known.
    pub state: String,
    /// The clock of each controller that is heard, the one that answers with them.
    pub controllers: Vec<ClockOf>,
}

/// A controller's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClockOf {
    /// Its number; 0: it is alone.
    pub id: u64,
    /// By how much it is ahead of wall time as the group has it, milliseconds.
    pub ahead_ms: i64,
}

/// The group of controllers, as one of them knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// The one that answers.
    pub id: u64,
    /// What the order survives: `raft`, that some crash; `bft`, that some lie. There every controller takes changes, and the
    /// leader is the one that sends to switches.
    #[serde(default)]
    pub order: String,
    /// What it is: `leader`, `follower`, `candidate`, `learner` or `stopped`.
    pub role: String,
    /// Who leads, when known.
    pub leader: Option<u64>,
    /// The term; with `bft` the view.
    pub term: u64,
    /// The last batch of the order that it has.
    pub applied: u64,
    /// Why it serves nothing, when its state differs from the majority's.
    pub fenced: Option<String>,
    /// Why it has stopped, when it could not go on.
    pub failure: Option<String>,
    /// Why it takes nothing new, when its disk is full: it goes on by itself when there is room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<String>,
    /// Why it can neither order nor read anew, when too few of the others are heard: what it shows is what it knew last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<String>,
    /// All of the group, spares with them.
    pub members: Vec<GroupMember>,
    /// Who is suspected, or proven to have lied, by whom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspicions: Vec<GroupSuspicion>,
    /// Members that were replaced, or removed, by the word of others, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<GroupReplaced>,
    /// How the group signs with shares of a key; absent where all members have the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<GroupSigning>,
}

/// Some links of a controller's audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditPage {
    /// The controller that answers, as a source of events.
    pub controller: String,
    /// Number of the first link below; 0 when there is none.
    pub from: u64,
    /// The links in their order, base64 of the bytes that are hashed (`docs/protocol/audit.md`).
    pub links: Vec<String>,
    /// Number of the oldest link that is left.
    pub first: u64,
    /// Number of the newest.
    pub last: u64,
    /// Hash of the newest, hexadecimal.
    pub head: String,
    /// Whether writing failed, so that nothing is kept of what happens now.
    pub failed: bool,
}

/// A group's threshold key, as one of its controllers knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSigning {
    /// The group's public key, hexadecimal; absent before the members have made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Number of the dealing that gave the shares in force; 0: none.
    pub phase: u64,
    /// How many shares make a signature.
    pub threshold: u64,
    /// Who has a share.
    pub members: Vec<u32>,
    /// Number of the dealing that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dealing: Option<u64>,
    /// Phase of the share that the controller which answers has; 0: none.
    pub own_share: u64,
    /// Who puts signatures together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregator: Option<u32>,
    /// Members that are not asked to, and why.
    pub passed_over: Vec<String>,
    /// Batches without a signature.
    pub waiting: u64,
    /// What members were found to have done, the newest last.
    pub faults: Vec<String>,
}

/// A controller of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// Its number.
    pub id: u64,
    /// Whether it votes; one without a vote is catching up.
    pub voter: bool,
    /// Where the other controllers reach it.
    pub replica: String,
    /// Where people and tools reach it.
    pub api: String,
    /// Where hosts and gateways reach it.
    pub session: String,
    /// Entries that it is behind, as the leader knows; absent elsewhere, and when it has not answered of late.
    pub lag: Option<u64>,
    /// For how long it has not been heard, milliseconds, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Why the controller that answers does not reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreached: Option<String>,
    /// Whether it is kept without a vote, to take the place of one that is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
}

/// A controller that others suspect, or that is proven to have lied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSuspicion {
    /// Its number.
    pub member: u64,
    /// Whether it is proven to have lied; else it is not heard.
    pub lied: bool,
    /// Who says so.
    pub by: Vec<u64>,
    /// Ordered time at which the first of them did, milliseconds of the Unix epoch; 0 where it is proven.
    pub since_ms: u64,
    /// For how long that has been so, milliseconds.
    pub for_ms: u64,
    /// In how long it may be replaced, if as many as decide say so and a spare is there, milliseconds; absent: never by silence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_in_ms: Option<u64>,
}

/// A controller that was replaced, or removed, by the word of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupReplaced {
    /// Its number.
    pub member: u64,
    /// The spare in its place; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<u64>,
    /// `silent` or `lied`.
    pub because: String,
    /// Whose word it was.
    pub by: Vec<u64>,
    /// Ordered time, milliseconds of the Unix epoch.
    pub at_ms: u64,
    /// How long ago that was, milliseconds.
    pub ago_ms: u64,
}

/// A controller to add to a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddMember {
    /// Its number, from 1: none that the group has, or had and lost without removing it.
    pub id: u64,
    /// Where the other controllers reach it, `ADDRESS:PORT`.
    pub replica: String,
    /// Where people and tools reach it, `ADDRESS:PORT`.
    pub api: String,
    /// Where hosts and gateways reach it, `ADDRESS:PORT`.
    pub session: String,
    /// The key by which the others know it, 64 hexadecimal digits; in a group of which some may lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether it is to follow without a vote, and to take the place of one that is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
}

/// A controller that is alone is to become the first member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConvertRequest {
    /// The group's order: `raft`.
    pub order: String,
    /// The controller's number in the group, from 1.
    pub id: u64,
    /// Where the other controllers are to connect, `ADDRESS:PORT`.
    pub listen: String,
    /// Whether the controllers are in different places.
    #[serde(default)]
    pub wide: bool,
    /// The others, which run and wait to be added: two at least.
    pub members: Vec<AddMember>,
    /// Only say whether it can be done, and what would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// What becomes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConvertResponse {
    /// Where the other controllers will reach this one, `ADDRESS:PORT`.
    pub replica: String,
    /// Size of the state that the group begins with, bytes.
    pub state_bytes: u64,
    /// Hosts and gateways that go on with it.
    pub actuators: u64,
    /// The version of the last entry of this order; none where it was only said what would be.
    pub version: Option<u64>,
}

/// What the order knows of who takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityList {
    /// Hosts, gateways and controllers.
    pub items: Vec<IdentityView>,
    /// The certificate that the controller shows which answers.
    pub own: CertificateView,
}

/// By what one who takes part is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityView {
    /// As a source of events: `actuator/h1`, `controller/controller-2`.
    pub source: String,
    /// `host`, `gateway` or `controller`.
    pub kind: String,
    /// SHA-256 of the ed25519 key that signs what it says, hex; none where nothing of it is taken.
    pub key: Option<String>,
    /// The same of the key before, while it is taken too.
    pub previous: Option<String>,
    /// Ordered time of the last change of its key, milliseconds of the Unix epoch; 0: never changed.
    pub since_ms: u64,
    /// Certificates that are taken, the newest last; none: every one of the authority.
    pub certificates: Vec<CertificateView>,
    /// Why nothing of it is taken.
    pub revoked: Option<RevokedView>,
    /// Keys that are never taken again.
    pub refused: usize,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateView {
    /// SHA-256 of its public key (SubjectPublicKeyInfo, DER), hex.
    pub key: String,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
}

/// A revocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevokedView {
    /// Why.
    pub reason: String,
    /// Version at which it was decided.
    pub version: u64,
    /// Ordered time, milliseconds of the Unix epoch.
    pub at_ms: u64,
}

/// What to revoke, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeRequest {
    /// As a source of events.
    pub source: String,
    /// Why; at most 256 bytes.
    pub reason: String,
}

/// Whose keys shall change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotateRequest {
    /// Name of the host or gateway.
    pub name: String,
}

/// A change of a controller's key, with the signatures that it needs: what that controller gives and any other one orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyChange {
    /// Postcard, base64.
    pub event: String,
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

/// What to trace: a described packet, or a whole frame.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceRequest {
    /// The network.
    pub network: String,
    /// The endpoint that sends.
    pub endpoint: String,
    /// Destination: an address, or the name of an endpoint of the network.
    #[serde(default)]
    pub to: String,
    /// `tcp`, `udp` or `icmp`. Default `icmp`.
    #[serde(default)]
    pub protocol: String,
    /// Source port. Default 40000.
    #[serde(default)]
    pub source_port: u16,
    /// Destination port.
    #[serde(default)]
    pub port: u16,
    /// A whole Ethernet frame in hexadecimal, instead of the description.
    #[serde(default)]
    pub frame: String,
}

/// One step of a trace.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceLine {
    /// The switch.
    pub switch: String,
    /// The stage.
    pub stage: String,
    /// What it found.
    pub detail: String,
    /// The rule or route that decided.
    pub rule: Option<String>,
    /// The entry looked at.
    pub entry: Option<String>,
    /// Its version.
    pub version: Option<u64>,
    /// Who signed it: domain, epoch and index of the batch, and the group's key.
    pub signed_by: Option<String>,
}

/// A packet's way.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TraceResponse {
    /// Each step of each switch.
    pub steps: Vec<TraceLine>,
    /// How it ends.
    pub verdict: String,
    /// Whether the packet reaches an endpoint, the outside, or a service that answers it. An error
    /// message to its sender is no arrival.
    pub delivered: bool,
}

/// Frames of a port.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaptureRequest {
    /// The host or gateway.
    pub actuator: String,
    /// `network/endpoint`; absent means the underlay.
    #[serde(default)]
    pub port: Option<String>,
    /// Stop after so many frames; at most 10000.
    pub frames: u32,
    /// Stop after so long, milliseconds; at most 60000.
    pub duration_ms: u32,
    /// Bytes kept of each frame.
    pub snap_bytes: u32,
}

/// A captured frame.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturedFrame {
    /// Nanoseconds of the Unix epoch.
    pub time_ns: u64,
    /// Length on the wire, bytes.
    pub length: u32,
    /// The bytes kept, hexadecimal.
    pub bytes: String,
}

/// A join token to make: for one name in one role, good once.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// Name that its bearer gets.
    #[schema(value_type = String, pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    pub name: Label,
    /// What its bearer is.
    pub role: Role,
    /// How long it is good for, seconds. Default one hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 60, maximum = 604_800)]
    pub valid_s: Option<u32>,
    /// Where the bearer's address on the underlay may be, an address or a prefix; absent means only where it speaks from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<String>,
    /// What its maker gives it, who has the other half of its key: wanted where requests are signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TokenKey>,
}

/// Life of a token unless another one is asked for, seconds.
pub const TOKEN_VALID_S: u32 = 3_600;

impl TokenRequest {
    /// Where its bearer's address on the underlay may be.
    ///
    /// # Errors
    /// It is no address and no prefix.
    pub fn underlay(&self) -> Result<Option<IpNet>, ApiError> {
        let read = |text: &String| {
            let address = || text.parse::<IpAddr>().map(Into::into);
            text.parse().or_else(|_| address()).map_err(|_| {
                ApiError::invalid(format!(
                    "underlay: '{text}' is not allowed: an address or a prefix, such as 192.0.2.7 or 192.0.2.0/24"
                ))
            })
        };
        self.underlay.as_ref().map(read).transpose()
    }
}

/// The key of a join token, whose seed only its bearer has: who joins by it signs with that, so that no controller can let somebody join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenKey {
    /// What the token is called, 32 hexadecimal digits by chance.
    pub id: String,
    /// The ed25519 public key, 64 hexadecimal digits.
    pub key: String,
    /// When the token is over, seconds of the Unix epoch; it takes the place of `validS`.
    pub until_s: u64,
}

/// An operator, as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorRequest {
    /// What it may order.
    pub role: OperatorRole,
    /// Its ed25519 public keys, 64 hexadecimal digits each: all that are taken.
    pub keys: Vec<String>,
}

impl OperatorRequest {
    /// What is ordered of it.
    ///
    /// # Errors
    /// Which key is none.
    pub fn facts(&self) -> Result<OperatorFacts, ApiError> {
        let wrong = |key: &String| {
            ApiError::invalid(format!(
                "keys: '{key}' is not allowed: 64 hexadecimal digits of an ed25519 key, as 'weir operator key' prints them"
            ))
        };
        let key = |text: &String| from_hex::<32>(text).filter(is_key).ok_or_else(|| wrong(text));
        Ok(OperatorFacts { role: self.role, keys: self.keys.iter().map(key).collect::<Result<_, _>>()? })
    }
}

/// An operator whose requests are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorView {
    /// Its name.
    pub name: String,
    /// What it may order.
    pub role: OperatorRole,
    /// Its ed25519 public keys, hexadecimal.
    pub keys: Vec<String>,
}

/// The operators of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorList {
    /// Whether what operators order must be signed here.
    pub signed: bool,
    /// By name.
    pub items: Vec<OperatorView>,
}

/// A join token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenResponse {
    /// Give it to `weir host` or `weir gateway` as `WEIR_JOIN_TOKEN`. It is a secret.
    pub token: String,
    /// What it is called: no secret.
    pub id: String,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
}

/// A join token that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// What it is called.
    pub id: String,
    /// Name that its bearer gets.
    pub name: String,
    /// What its bearer is.
    pub role: Role,
    /// When it was made, milliseconds of the Unix epoch.
    pub made_ms: u64,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
    /// `open`, `used`, `voided` or `over`.
    pub state: String,
    /// Where the bearer's address on the underlay may be, if not only where it speaks from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<String>,
}

/// Join tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Newest first.
    pub items: Vec<TokenView>,
}
