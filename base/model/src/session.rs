//! Frames between an actuator's agent and the controller, on one mutually authenticated stream.
//!
//! The agent opens the stream and says `Hello` with the digest of what is in force. When it equals
//! what the controller expects, nothing is sent; else the controller asks for the state and sends
//! only the differences (row A6). Frames are postcard (`weir_base::codec`).

use crate::entry::Key;
use crate::event::{Role, UsageReport};
use crate::local::{Answer, Question};
use crate::signed::{SignedAcks, SignedUpdates};
use crate::{Label, Version};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Number of this protocol; the two sides must have the same.
pub const PROTOCOL: u32 = 1;
/// Most keys in one `State` frame.
pub const STATE_CHUNK_KEYS: usize = 4096;

/// A digest over all (key, version) pairs in force, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateDigest(pub u128);

/// From the agent to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToController {
    /// First frame.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Name of the actuator; must be the name in its certificate.
        actuator: Label,
        /// What it is.
        role: Role,
        /// Release of the software.
        software: String,
        /// Public key that signs its acks.
        identity: [u8; 32],
        /// Address on the underlay.
        underlay: IpAddr,
        /// What is in force.
        digest: StateDigest,
    },
    /// Part of the state in force, after [`ToActuator::SendState`].
    State {
        /// Keys with their versions; deleted keys whose version is remembered are included.
        entries: Vec<(Key, Version)>,
        /// Whether this is the last part.
        last: bool,
    },
    /// Answers to updates.
    Acks(SignedAcks),
    /// What was sent to whom.
    Usage(UsageReport),
    /// Answer to a question.
    Answer {
        /// The question's number.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// Answer to a ping.
    Pong {
        /// The ping's number.
        id: u64,
    },
}

/// From the controller to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToActuator {
    /// Answer to `Hello`.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Epoch in force.
        epoch: u64,
    },
    /// The stream is refused; the text says why and what would be right.
    Refused(String),
    /// Send the state in force.
    SendState,
    /// Updates to apply.
    Updates(SignedUpdates),
    /// A question to the switch.
    Ask {
        /// Number of the question.
        id: u64,
        /// The question.
        question: Question,
    },
    /// Are you there?
    Ping {
        /// Number of the ping.
        id: u64,
    },
}
