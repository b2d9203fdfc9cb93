//! A member of a group, and its bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};

use crate::codec::{Malformed, Reader};

/// Members of a group, at most.
pub const MEMBERS_MAX: usize = 16;
/// Bytes of a member's address.
pub const ADDRESS_BYTES_MAX: usize = 512;

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// Its ed25519 key.
    pub key: [u8; 32],
    /// Where it is, in the words of those above; empty for a founder, whose address is in the settings.
    pub address: String,
}

/// Appends a list of members.
pub(crate) fn put_members(out: &mut BytesMut, members: &BTreeMap<u32, Member>) {
    out.put_u32_le(members.len() as u32);
    for (id, member) in members {
        put_member(out, *id, member);
    }
}

pub(crate) fn put_member(out: &mut BytesMut, id: u32, member: &Member) {
    out.put_u32_le(id);
    out.put_slice(&member.key);
    out.put_u32_le(member.address.len() as u32);
    out.put_slice(member.address.as_bytes());
}

pub(crate) fn take_member(from: &mut Reader) -> Result<(u32, Member), Malformed> {
    let (id, key) = (from.u32()?, from.array()?);
    let length = from.count(ADDRESS_BYTES_MAX, "a member's address is too long")?;
    let address = String::from_utf8(from.bytes(length)?.to_vec());
    Ok((id, Member { key, address: address.map_err(|_| Malformed("a member's address is no text"))? }))
}

/// Reads a list of members, which must be in order.
pub(crate) fn take_members(from: &mut Reader) -> Result<BTreeMap<u32, Member>, Malformed> {
    let count = from.count(MEMBERS_MAX, "too many members")?;
    let mut members = BTreeMap::new();
    for _ in 0..count {
        let (id, member) = take_member(from)?;
        if members.last_key_value().is_some_and(|(last, _)| *last >= id) {
            return Err(Malformed("members are not in order"));
        }
        members.insert(id, member);
    }
    Ok(members)
}
