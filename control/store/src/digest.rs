//! What each part of a store adds to its running digest.

use crate::cell::Cell;
use sha2::{Digest as _, Sha256};

/// Kinds of parts, so that no two kinds hash alike.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Table = 1,
    Namespace = 2,
    Procedure = 3,
    Client = 4,
    Reply = 5,
    Head = 6,
}

fn low(hash: [u8; 32]) -> u128 {
    let mut low = [0; 16];
    low.copy_from_slice(&hash[..16]);
    u128::from_le_bytes(low)
}

/// Of an entry.
pub(crate) fn of_cell(table: &str, key: &[u8], cell: &Cell) -> u128 {
    let mut head = [0; 33];
    head[1..9].copy_from_slice(&(table.len() as u64).to_le_bytes());
    head[9..17].copy_from_slice(&(key.len() as u64).to_le_bytes());
    head[17..25].copy_from_slice(&cell.version.0.to_le_bytes());
    head[25..].copy_from_slice(&cell.expires_ms.to_le_bytes());
    let hash = Sha256::new().chain_update(head).chain_update(table).chain_update(key);
    low(hash.chain_update(&cell.value).finalize().into())
}

/// Of anything else: its kind and its encoding.
pub(crate) fn of_part(part: Part, encoding: &[u8]) -> u128 {
    low(Sha256::new().chain_update([part as u8]).chain_update(encoding).finalize().into())
}
