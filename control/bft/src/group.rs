//! What a group is to everything in it: who its members are, what its votes and names are bound to, what they are about.

use std::collections::BTreeMap;

use commonware_cryptography::sha256;

/// A digest as consensus knows it.
pub type Payload = sha256::Digest;

/// The members of a group and their keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members(pub BTreeMap<u32, [u8; 32]>);

/// What votes and names of a group are bound to.
pub(crate) fn namespace(group: &str) -> Vec<u8> {
    [b"weir bft ", group.as_bytes()].concat()
}
