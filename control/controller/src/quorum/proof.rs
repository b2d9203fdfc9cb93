//! A share that did not verify, as bytes that convince the other members: what the audit calls proven (row R12).

use crate::audit::BadShare;
use crate::core::keys::GroupKeys;
use serde::{Deserialize, Serialize};
use weir_base::codec::{decode, encode};

/// A share of a signature that does not verify, with the statement of the member that it is its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareProof {
    /// Phase of the shares.
    pub phase: u64,
    /// Whose it is.
    pub member: u32,
    /// The share and the statement.
    pub share: BadShare,
}

impl ShareProof {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Whom it convicts and under which key, by the shares that are in force; nobody where it is of others, or no proof.
    pub fn convicts(bytes: &[u8], keys: &GroupKeys) -> Option<(u32, [u8; 32])> {
        let ShareProof { phase, member, share } = decode(bytes).ok()?;
        let (group, made_by) = (keys.group()?, keys.made_by()?);
        let members = made_by.round().players();
        let holds = phase == keys.phase() && share.convinces(phase, member, members, group);
        holds.then(|| members.get(&member).map(|key| (member, *key))).flatten()
    }
}
