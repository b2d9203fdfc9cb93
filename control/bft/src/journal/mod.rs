//! What a replica keeps on its disk (row B1): one journal of batches, blocks and certificates on the durable log of `weir_order`,
//! and the application's states beside it. The votes have a log of their own ([`crate::votes`]).
//!
//! Invariants
//! - Records are numbered as they are written. A certificate is written behind the blocks that it commits and their batches, so
//!   what a power cut leaves is a prefix: a certificate that is there has all that it needs.
//! - Nothing is voted final before block and batches are durable ([`crate::core`]); the certificate itself need not be, because
//!   2f+1 members can give it again.
//! - What leads from epoch to epoch ([`links`]) is durable before the blocks behind it are forgotten.
//! - A state begins with the engine's own part: the last whole block at or before it and the tables after that block. Both are the same
//!   on every replica, so the states of all after the same batch have the same digest.

mod links;
mod open;
mod snapshots;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use weir_base::world::Disk;
use weir_order::log::{Place, RecordReader};
use weir_order::snapshot::SnapshotStore;
use weir_order::{Error, LogCounters, SnapshotInfo};

pub use open::{Loose, OpenedJournal, open};
pub use snapshots::{Base, read_preamble};
pub use writer::{Write, Writer, Written};

use crate::core::{Chained, Tag};
use crate::lock::locked;
use crate::rules::Admission;
use crate::wire::{Batch, Block, Message, RANGE_BLOCKS_MAX};

/// Bytes of batches in an answer to a replica that is behind, unless one stretch of blocks has more.
const RANGE_BYTES: usize = 1 << 20;

/// Where everything is.
struct Ledger {
    places: BTreeMap<u64, Place>,
    /// Committed blocks behind the older snapshot.
    chain: VecDeque<Chained>,
    /// What the newest snapshot says, or the genesis.
    base: Base,
    /// The height of the older snapshot's block: what is at or below may be forgotten.
    forget_height: u64,
}

/// Reads the journal, and keeps states.
pub struct Journal {
    disk: Arc<dyn Disk>,
    reader: RecordReader,
    admission: Option<Admission>,
    ledger: Mutex<Ledger>,
    /// Locked as long as a state is written or taken over.
    snapshots: Mutex<SnapshotStore>,
    /// The good states. Never locked for long.
    good: Mutex<Vec<SnapshotInfo>>,
    counters: Mutex<LogCounters>,
    links: Mutex<links::Links>,
}

fn damaged(what: impl Into<String>) -> Error {
    Error::Corrupt {
        file: "the journal".to_owned(),
        dir: String::new(),
        offset: 0,
        index: 0,
        what: what.into(),
    }
}

impl Journal {
    /// Counts of its log.
    pub fn counters(&self) -> LogCounters {
        *locked(&self.counters)
    }

    /// Bytes of committed blocks that can be given to others, as a number of blocks.
    pub fn blocks_kept(&self) -> usize {
        locked(&self.ledger).chain.len()
    }

    /// Where records are, once they are written.
    pub fn placed(&self, written: &[(u64, Place)]) {
        locked(&self.ledger).places.extend(written.iter().copied());
    }

    /// A block was committed.
    pub fn chained(&self, chained: Chained) {
        locked(&self.ledger).chain.push_back(chained);
    }

    fn place(&self, number: u64) -> Result<Place, Error> {
        let place = locked(&self.ledger).places.get(&number).copied();
        place.ok_or_else(|| damaged(format!("record {number} is not there")))
    }

    fn read(&self, number: u64, tag: Tag) -> Result<Bytes, Error> {
        let (header, body) = self.reader.read(self.place(number)?)?;
        if header.tag == tag as u8 {
            Ok(body)
        } else {
            Err(damaged(format!("record {number} is no {tag:?}")))
        }
    }

    fn batch(&self, number: u64) -> Result<Batch, Error> {
        Batch::decode(self.read(number, Tag::Batch)?).map_err(|error| damaged(error.0))
    }

    fn block(&self, number: u64) -> Result<Block, Error> {
        Block::decode(self.read(number, Tag::Block)?).map_err(|error| damaged(error.0))
    }

    /// Committed blocks above a height, up to one with a certificate. None when they are not kept here.
    pub fn range(&self, above: u64) -> Result<Option<Message>, Error> {
        let wanted: Vec<Chained> = {
            let ledger = locked(&self.ledger);
            let Some(first) = ledger.chain.front() else { return Ok(None) };
            if above + 1 < first.height {
                return Ok(None);
            }
            let skip = (above + 1 - first.height) as usize;
            let written = |chained: &&Chained| {
                chained
                    .batches
                    .iter()
                    .chain([&chained.block])
                    .all(|number| ledger.places.contains_key(number))
            };
            ledger.chain.iter().skip(skip).take_while(written).take(RANGE_BLOCKS_MAX).cloned().collect()
        };
        let (mut blocks, mut batches, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut good = None;
        for chained in wanted {
            blocks.push(self.block(chained.block)?);
            for number in &chained.batches {
                let batch = self.batch(*number)?;
                bytes += batch.body.len();
                batches.push(batch);
            }
            let certificate = chained.certificate.filter(|number| self.place(*number).is_ok());
            if let Some(number) = certificate {
                good = Some((blocks.len(), batches.len(), number));
            }
            // A certificate proves the blocks of its own epoch.
            if chained.next.is_some() || (certificate.is_some() && bytes >= RANGE_BYTES) {
                break;
            }
        }
        let Some((blocks_count, batches_count, number)) = good else { return Ok(None) };
        blocks.truncate(blocks_count);
        batches.truncate(batches_count);
        let (_, _, certificate) =
            crate::core::decode_final(self.read(number, Tag::Final)?).map_err(|error| damaged(error.0))?;
        Ok(Some(Message::Range { blocks, batches, certificate }))
    }
}
