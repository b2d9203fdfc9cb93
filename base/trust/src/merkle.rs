//! Merkle trees over the updates of a batch: SHA-256, leaves and nodes told apart by a prefix
//! (RFC 6962), an odd node moves up unchanged. The number of leaves is under the signature, so a
//! path's shape is fixed by (leaf, count) and cannot be chosen by a liar.

use sha2::{Digest as _, Sha256};
use weir_model::signed::{Digest, PATH_MAX};

/// Hash of a leaf's bytes.
pub fn leaf_hash(bytes: &[u8]) -> Digest {
    Sha256::new().chain_update([0]).chain_update(bytes).finalize().into()
}

fn node_hash(left: &Digest, right: &Digest) -> Digest {
    Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
}

/// A tree; levels from the leaves up.
#[derive(Debug)]
pub struct Tree {
    levels: Vec<Vec<Digest>>,
}

impl Tree {
    /// Builds the tree over at least one leaf.
    ///
    /// # Panics
    /// On no leaf, or more than 2^20: the caller bounds its batches.
    pub fn new(leaves: Vec<Digest>) -> Tree {
        assert!(!leaves.is_empty() && leaves.len() <= 1 << PATH_MAX, "a tree has 1 to 2^20 leaves");
        let mut levels = vec![leaves];
        while let Some(level) = levels.last().filter(|level| level.len() > 1) {
            let next = level
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => node_hash(left, right),
                    [odd] => *odd,
                    _ => unreachable!("chunks of two"),
                })
                .collect();
            levels.push(next);
        }
        Tree { levels }
    }

    /// The root.
    pub fn root(&self) -> Digest {
        self.levels[self.levels.len() - 1][0]
    }

    /// The siblings on the way from a leaf to the root.
    pub fn path(&self, leaf: usize) -> Vec<Digest> {
        let mut at = leaf;
        let mut path = Vec::new();
        for level in &self.levels[..self.levels.len() - 1] {
            if let Some(sibling) = level.get(at ^ 1) {
                path.push(*sibling);
            }
            at /= 2;
        }
        path
    }
}

/// Whether a leaf with this hash is at this place under the root of a tree of `count` leaves.
pub fn is_under(root: &Digest, count: u32, leaf: u32, hash: Digest, path: &[Digest]) -> bool {
    if leaf >= count || path.len() > PATH_MAX {
        return false;
    }
    let (mut at, mut width, mut hash, mut siblings) = (leaf, count, hash, path.iter());
    while width > 1 {
        if at ^ 1 < width {
            let Some(sibling) = siblings.next() else { return false };
            hash = if at & 1 == 0 { node_hash(&hash, sibling) } else { node_hash(sibling, &hash) };
        }
        at /= 2;
        width = width.div_ceil(2);
    }
    siblings.next().is_none() && hash == *root
}

#[cfg(test)]
mod tests;
