//! The header of a decided batch, with the group's signature once there is one.
//!
//! A controller that is alone signs when it decides. In a group a signature is put together from the shares of several
//! (see [`crate::quorum`]) and comes later; until then no update of the batch is sent. The signature is a function of
//! header and key, so replicas that get it from different shares get the same bytes.

use std::sync::OnceLock;
use weir_model::signed::{BatchHeader, Digest, GroupSignature, SignedHeader};
use weir_model::{Label, Version};

/// Names a decided batch: its last version, and the root over its updates.
pub type BatchName = (Version, Digest);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedHeader {
    /// What is signed.
    pub header: BatchHeader,
    /// Actuators that it has updates for; none when the header comes from a snapshot.
    pub targets: Vec<Label>,
    /// Whether only the group's key can prove it: it says whose endorsements count. Not known of one from a snapshot, which
    /// has no targets and so is endorsed to nobody.
    pub by_key: bool,
    signature: OnceLock<GroupSignature>,
}

impl DecidedHeader {
    /// A header without a signature yet.
    pub fn unsigned(header: BatchHeader, targets: Vec<Label>) -> DecidedHeader {
        DecidedHeader { header, targets, by_key: false, signature: OnceLock::new() }
    }

    /// A header with its signature.
    pub fn signed(signed: SignedHeader) -> DecidedHeader {
        DecidedHeader {
            header: signed.header,
            targets: Vec::new(),
            by_key: false,
            signature: OnceLock::from(signed.signature),
        }
    }

    /// Its name.
    pub fn name(&self) -> BatchName {
        (self.header.index, self.header.root)
    }

    /// The group's signature, once there is one.
    pub fn signature(&self) -> Option<&GroupSignature> {
        self.signature.get()
    }

    /// Sets the signature, which was verified. A second one changes nothing: it is the same.
    pub fn set_signature(&self, signature: GroupSignature) {
        let _known = self.signature.set(signature);
    }

    /// Both, once both are there.
    pub fn to_signed(&self) -> Option<SignedHeader> {
        let signature = self.signature.get()?.clone();
        Some(SignedHeader { header: self.header.clone(), signature })
    }
}
