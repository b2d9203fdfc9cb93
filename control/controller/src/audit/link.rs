//! Links of the chain: postcard, `docs/protocol/audit.md`.

use super::record::Record;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_base::codec::{CodecError, decode, encode};
use weir_model::signed::Digest;

/// Hash of a link: SHA-256 over a tag, its number (8 bytes, little-endian) and its bytes.
pub type LinkHash = Digest;

/// What stands before the first link.
pub const GENESIS: LinkHash = [0; 32];

/// Some records, with the hash of the link before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Hash of the link before; [`GENESIS`] for the first.
    pub previous: LinkHash,
    /// The controller's clock when it was written, milliseconds of the Unix epoch.
    pub wall_ms: u64,
    /// The records, in the order in which they happened.
    pub records: Vec<Record>,
}

/// The hash of a link.
pub fn hash(number: u64, bytes: &[u8]) -> LinkHash {
    let number = number.to_le_bytes();
    Sha256::new().chain_update(b"weir/audit/1\0").chain_update(number).chain_update(bytes).finalize().into()
}

impl Link {
    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// The link of these bytes.
    ///
    /// # Errors
    /// They are none, or of another release.
    pub fn from_bytes(bytes: &[u8]) -> Result<Link, CodecError> {
        decode(bytes)
    }
}
