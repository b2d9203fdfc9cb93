//! Plans, updates and acks: from a decision to a fact.

use crate::entry::{Entry, Key};
use crate::{Label, Version};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A change of one key at one actuator.
///
/// Entries are whole values, so an actuator accepts any version above the one in force. `expected`
/// is the lowest version in force that the update may replace: zero for most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The actuator.
    pub target: Label,
    /// The key.
    pub key: Key,
    /// Where it was decided; it becomes the key's version.
    pub version: Version,
    /// Lowest version in force that it may replace.
    pub expected: Version,
    /// The change.
    pub change: Change,
}

/// Put or delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The key's value shall be this.
    Put(Entry),
    /// The key shall be gone.
    Delete,
}

/// Why one update waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A port needs its network's parameters.
    NetworkBeforePort,
    /// No packet of a port before its policy is in force (pain 8).
    PolicyBeforePort,
    /// A policy that selects by tag needs the members of the tag.
    MembersBeforePolicy,
    /// Nobody sends to an endpoint before its host knows it: no black hole.
    PortBeforeLocation,
    /// Nobody sends to an endpoint that its host has forgotten: no black hole.
    LocationGoneBeforePort,
    /// A network's parameters outlive its ports.
    PortGoneBeforeNetwork,
    /// Hosts learn of a gateway when it knows the networks.
    GatewayFilledBeforeUse,
    /// The members of a tag outlive the policy that selects by it.
    PolicyBeforeMembersGone,
    /// The switches behind one on a new way know it before packets are sent there: no loop, no black hole.
    NextSwitchFirst,
    /// Packets on the way from an old rule to a new one keep to the policy.
    PolicyOnTheWay,
    /// A link has room before more is sent over it.
    RoomOnLink,
    /// Every switch knows a version of rules before packets carry it.
    VersionKnown,
    /// A turn needs its virtual address.
    VirtualBeforeTurn,
    /// An address or a device has one port at a host: the older port lets go of it first. No plan names it, the scheduler
    /// adds it.
    PortLetsGo,
    /// Whoever receives knows that the sender is a switch before it sends. Nobody waits for one that has no session: it is told
    /// when it is back.
    ReceiverFirst,
    /// The list of switches is whole before it counts.
    ListBeforeUse,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NetworkBeforePort => "a port needs its network's parameters",
            Reason::PolicyBeforePort => "no packet before the policy is in force",
            Reason::MembersBeforePolicy => "the policy selects by a tag whose members must be known",
            Reason::PortBeforeLocation => "nobody sends to an endpoint before its host knows it",
            Reason::LocationGoneBeforePort => "nobody sends to an endpoint that its host has forgotten",
            Reason::PortGoneBeforeNetwork => "a network's parameters outlive its ports",
            Reason::GatewayFilledBeforeUse => "a gateway must know the networks before hosts use it",
            Reason::PolicyBeforeMembersGone => "the members of a tag outlive the policy that selects by it",
            Reason::NextSwitchFirst => {
                "switches behind it must know the new way before packets are sent there"
            }
            Reason::PolicyOnTheWay => "packets between an old rule and a new one must keep to the policy",
            Reason::RoomOnLink => "the link must have room before more is sent over it",
            Reason::VersionKnown => "every switch must know the version before packets carry it",
            Reason::VirtualBeforeTurn => "a turn is one of a virtual address that must be known",
            Reason::PortLetsGo => "the port that has the address or the device must let go of it first",
            Reason::ReceiverFirst => "who receives must know that the sender is a switch",
            Reason::ListBeforeUse => "the list of switches must be whole before it counts",
        })
    }
}

/// What must be acked first: the target has the key at this version or a later one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dependency {
    /// The actuator.
    pub target: Label,
    /// The key.
    pub key: Key,
    /// The version.
    pub version: Version,
    /// Why.
    pub reason: Reason,
}

/// An update and what it waits for (row C1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedUpdate {
    /// The update.
    pub update: Update,
    /// What must be acked first.
    pub after: Vec<Dependency>,
}

/// What one decision wants done: updates and their partial order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// At most one update for each target and key.
    pub updates: Vec<PlannedUpdate>,
}

/// Why an actuator did not apply an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The signature or the Merkle path does not verify.
    #[error("the signature does not verify")]
    Forged,
    /// It is signed for an epoch that is over.
    #[error("the epoch {given} is over, {current} is in force")]
    StaleEpoch {
        /// Epoch of the batch.
        given: u64,
        /// Epoch in force here.
        current: u64,
    },
    /// It is for somebody else.
    #[error("the update is for another actuator")]
    WrongTarget,
    /// The key has this or a later version.
    #[error("{in_force} is in force already")]
    Stale {
        /// Version in force.
        in_force: Version,
    },
    /// The key has an older version than the update may replace.
    #[error("the update replaces {expected} or later, but {in_force} is in force")]
    Expected {
        /// Lowest version that it may replace.
        expected: Version,
        /// Version in force.
        in_force: Version,
    },
    /// The entry makes no sense for its key.
    #[error("the entry does not fit its key")]
    Misfit,
    /// The table has no room.
    #[error("the table of {limit} entries is full")]
    Full {
        /// Its limit.
        limit: u64,
    },
    /// The actuator tried and could not.
    #[error("it could not be applied: {0}")]
    Failed(String),
}

/// What an actuator answers to one update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The key.
    pub key: Key,
    /// Version of the update.
    pub version: Version,
    /// `Ok` when that version or a later one is in force.
    pub result: Result<(), Refusal>,
}
