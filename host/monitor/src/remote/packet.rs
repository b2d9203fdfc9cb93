//! The ring's packet.

use super::shelf::Reading;
use crate::ring::Host;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MAGIC: u32 = u32::from_le_bytes(*b"WRNG");
const VERSION: u16 = 1;
const TAG_BYTES: usize = 16;
const BODY_BYTES: usize = 40;
/// Bytes of a packet.
pub const PACKET_BYTES: usize = BODY_BYTES + TAG_BYTES;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How far are you?
    Probe,
    /// So far.
    Answer,
    /// I suspect a host, or no longer.
    Opinion,
    /// What is in the sensor whose key is in `progress`?
    Read,
    /// This, in `progress`; `about` says whether there is such a sensor ([`Packet::reading`]).
    Value,
    /// I have fenced a host (`suspects`), or cannot.
    Fenced,
    /// I am here: of a host whose probes are answered by a switch, so that its monitor's neighbours hear it.
    Here,
}

/// `about` of a [`Kind::Value`].
const UNKNOWN: u16 = 0;
const CLOSED: u16 = 1;
const VALUE: u16 = 2;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What it is.
    pub kind: Kind,
    /// Who sent it.
    pub from: Host,
    /// About whom; of a [`Kind::Value`] whether there is one.
    pub about: Host,
    /// Whether that one is suspected.
    pub suspects: bool,
    /// The probe, or the read, that an answer is for.
    pub nonce: u64,
    /// The sender's counter of progress; a sensor's key, or its value.
    pub progress: u64,
    /// The sender's clock, ns.
    pub time: u64,
}

fn mac(key: &[u8], body: &[u8]) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(body);
    Some(mac)
}

impl Packet {
    /// The answer to a read.
    pub fn value(from: Host, nonce: u64, reading: Reading, time: u64) -> Packet {
        let (about, progress) = match reading {
            Reading::Unknown => (UNKNOWN, 0),
            Reading::Closed => (CLOSED, 0),
            Reading::Value(value) => (VALUE, value),
        };
        Packet { kind: Kind::Value, from, about, suspects: false, nonce, progress, time }
    }

    /// What a [`Kind::Value`] says.
    pub fn reading(&self) -> Reading {
        match self.about {
            VALUE => Reading::Value(self.progress),
            CLOSED => Reading::Closed,
            _ => Reading::Unknown,
        }
    }

    /// As bytes.
    pub fn encode(&self, key: &[u8]) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        let kind: u16 = match self.kind {
            Kind::Probe => 1,
            Kind::Answer => 2,
            Kind::Opinion => 3,
            Kind::Read => 4,
            Kind::Value => 5,
            Kind::Fenced => 6,
            Kind::Here => 7,
        };
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.from.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.about.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.suspects).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.progress.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.time.to_le_bytes());
        if let Some(mac) = mac(key, &bytes[..BODY_BYTES]) {
            bytes[BODY_BYTES..].copy_from_slice(&mac.finalize().into_bytes()[..TAG_BYTES]);
        }
        bytes
    }

    /// From bytes; nothing when they are no packet of this ring.
    pub fn decode(bytes: &[u8], key: &[u8]) -> Option<Packet> {
        let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
        mac(key, &bytes[..BODY_BYTES])?.verify_truncated_left(&bytes[BODY_BYTES..]).ok()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        if bytes[..4] != MAGIC.to_le_bytes() || half(4) != VERSION {
            return None;
        }
        let kind = match half(6) {
            1 => Kind::Probe,
            2 => Kind::Answer,
            3 => Kind::Opinion,
            4 => Kind::Read,
            5 => Kind::Value,
            6 => Kind::Fenced,
            7 => Kind::Here,
            _ => return None,
        };
        Some(Packet {
            kind,
            from: half(8),
            about: half(10),
            suspects: half(12) != 0,
            nonce: word(16),
            progress: word(24),
            time: word(32),
        })
    }
}
