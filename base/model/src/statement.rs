//! Statements: what one domain tells another, one after the other ([`crate::domain`] says how they travel).

use crate::Label;
use crate::location::LocationEntry;
use crate::vni::Vni;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A controller, as other domains know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainController {
    /// Its number in the group; 0 for one that is alone.
    pub id: u64,
    /// Public key that signs its events and what it asks other domains, ed25519.
    pub key: [u8; 32],
    /// Where people, tools and other domains reach it, `ADDRESS:PORT`.
    pub api: String,
}

/// What a domain tells another, with the number of the statement before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Number of the statement that the receiver must have taken before; 0: none, for what follows is everything anew.
    pub after: u64,
    /// What is told.
    pub body: StatementBody,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatementBody {
    /// These are the origin's controllers now.
    Controllers(Vec<DomainController>),
    /// Where an address of a network is that is in both domains; none: nobody of the origin's has it any more.
    Location {
        /// The network.
        network: Label,
        /// Its identifier on the wire, which must be the same in both.
        vni: Vni,
        /// The address.
        address: IpAddr,
        /// The origin's host that has it.
        at: Option<LocationEntry>,
    },
    /// All that the origin has to tell was told since this number: what was told before and not again is void.
    Complete {
        /// The number.
        since: u64,
    },
}
