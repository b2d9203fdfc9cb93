//! A decided update that waits to be sent or acked, and the sums by which what is in force is compared.

use super::Node;
use crate::core::DecidedHeader;
use std::sync::Arc;
use weir_model::signed::ProvenUpdate;
use weir_model::{Change, Dependency, Key, Version};
use weir_trust::gate::{content_digest, state_digest};

/// Where an update stands in the order of decisions: version, then its leaf in the batch.
pub(crate) type Place = (Version, u32);

/// A decided update and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Header of the batch that decided it.
    pub header: Arc<DecidedHeader>,
    /// The update with its proof.
    pub proven: Arc<ProvenUpdate>,
    /// What must be acked first.
    pub after: Arc<[Dependency]>,
    /// Length of its encoding, bytes.
    pub bytes: usize,
}

impl Held {
    /// Its version.
    pub fn version(&self) -> Version {
        self.proven.update.version
    }

    /// Whether it deletes its key.
    pub fn is_delete(&self) -> bool {
        self.proven.update.change == Change::Delete
    }

    /// Whether the group has signed it, so that it can go.
    pub fn is_signed(&self) -> bool {
        self.header.signature().is_some()
    }

    pub(crate) fn node(&self) -> Node {
        (self.proven.update.target.clone(), self.proven.update.key.clone())
    }

    pub(crate) fn place(&self) -> Place {
        (self.version(), self.proven.leaf)
    }

    pub(crate) fn sums(&self) -> Sums {
        let update = &self.proven.update;
        Sums {
            versions: pair_digest(&update.key, update.version),
            contents: content_digest(&update.key, update.version, &update.change),
        }
    }
}

/// Digests of keys, as sums over them: what an actuator says of itself is compared with one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Of keys and versions: what actuators of earlier releases tell.
    pub versions: u128,
    /// Of keys, versions and values.
    pub contents: u128,
}

impl Sums {
    pub(crate) fn add(&mut self, other: Sums) {
        self.versions = self.versions.wrapping_add(other.versions);
        self.contents = self.contents.wrapping_add(other.contents);
    }

    pub(crate) fn take(&mut self, other: Sums) {
        self.versions = self.versions.wrapping_sub(other.versions);
        self.contents = self.contents.wrapping_sub(other.contents);
    }

    /// Whether a digest that an actuator told is one of these.
    pub(crate) fn is(&self, digest: u128) -> bool {
        digest == self.contents || digest == self.versions
    }
}

/// What a key and its version add to a digest of an earlier release.
pub(crate) fn pair_digest(key: &Key, version: Version) -> u128 {
    state_digest(std::iter::once((key, version))).0
}
