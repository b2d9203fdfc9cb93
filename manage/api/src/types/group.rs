//! The group of controllers: members, clocks, signatures, audit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
