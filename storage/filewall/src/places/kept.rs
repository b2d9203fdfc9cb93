//! Places that outlive the process: what was learnt is written down before the reply that told it goes to the client, so that a client's
//! open files stay good when another FileWall takes over, also where policies speak of paths.
//!
//! A record has the keys of handles, not the handles, and the seed that keys are made under is kept with them. What was
//! written down under other paths is worth nothing, for an object's place is a node of their tree; then it begins anew.
//!
//! Invariants
//! - A place is in the kernel's hands before a client can have the handle: it survives a kill, not a loss of power.
//! - The file has at most [`RECORDS_MAX`] entries: then what is still known is written anew.

use super::keys::{Key, Seed};
use super::{Place, Zones};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use weir_base::journal::Journal;

/// Entries above which the journal is written anew.
pub const RECORDS_MAX: usize = 2 * super::PLACES_MAX;
/// Entries of a record.
const BATCH: usize = 1024;
/// Key, node, and whether it is that node itself.
const ENTRY_BYTES: usize = 16 + 2 + 1;

/// What is written down at once.
#[derive(Debug, Default)]
pub struct Batch(Vec<u8>);

impl Batch {
    /// Adds the place of a handle.
    pub(super) fn push(&mut self, key: Key, place: Place) {
        for word in [key.0, key.1] {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self.0.extend_from_slice(&place.node.to_le_bytes());
        self.0.push(u8::from(place.exact));
    }

    /// True if there is nothing to write down.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn entries(record: &[u8]) -> impl Iterator<Item = (Key, Place)> {
        record.chunks_exact(ENTRY_BYTES).map(|entry| {
            let word =
                |at: usize| entry[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let node = u16::from_le_bytes([entry[16], entry[17]]);
            ((word(0), word(8)), Place { node, exact: entry[18] != 0 })
        })
    }
}

#[derive(Debug)]
struct Open {
    journal: Journal,
    /// The number of the keys whose places it holds.
    owner: u64,
    entries: usize,
    /// False once the disk has refused something.
    sound: bool,
}

/// The journal of places.
#[derive(Debug)]
pub struct Kept(Mutex<Open>);

/// What a journal holds.
#[derive(Debug)]
pub struct Found {
    /// The journal.
    pub kept: Kept,
    /// The seed of its keys, and the places, if they are those of the same paths.
    pub places: Option<(Seed, Vec<(Key, Place)>)>,
}

/// The first record: the seed, and the paths that nodes are numbered by.
fn head(seed: Seed, zones: &Zones) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for node in 0..zones.nodes.len() {
        bytes.extend_from_slice(zones.path(node as u16).as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

impl Kept {
    /// Opens the journal, or makes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, zones: &Zones) -> std::io::Result<Found> {
        let (journal, records) = Journal::open(path)?;
        let mut records = records.into_iter();
        let found = records.next().and_then(|first| {
            let seed: Seed = first.get(..16)?.try_into().ok()?;
            (first == head(seed, zones)).then_some(seed)
        });
        let places = found.map(|seed| {
            let places: Vec<_> =
                records.flat_map(|record| Batch::entries(&record).collect::<Vec<_>>()).collect();
            (seed, places)
        });
        let entries = places.as_ref().map_or(0, |(_, places)| places.len());
        Ok(Found { kept: Kept(Mutex::new(Open { journal, owner: 0, entries, sound: true })), places })
    }

    /// What is written down from now on are places under these keys; everything that was is replaced by `places`.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(
        &self,
        (owner, seed): (u64, Seed),
        zones: &Zones,
        places: impl Iterator<Item = (Key, Place)>,
    ) -> std::io::Result<()> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut records, mut batch, mut entries) = (vec![head(seed, zones)], Batch::default(), 0);
        for (key, place) in places {
            batch.push(key, place);
            entries += 1;
            if batch.0.len() >= BATCH * ENTRY_BYTES {
                records.push(std::mem::take(&mut batch).0);
            }
        }
        records.push(batch.0);
        open.journal.rewrite(records.iter().map(Vec::as_slice))?;
        (open.owner, open.entries, open.sound) = (owner, entries, true);
        Ok(())
    }

    /// The journal goes on as it is, with places under these keys.
    pub fn go_on(&self, owner: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).owner = owner;
    }

    /// Writes down what the `owner` of the journal has learnt; true if it has become too long.
    pub fn append(&self, owner: u64, batch: Batch) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.owner != owner || !open.sound {
            return false;
        }
        open.entries += batch.0.len() / ENTRY_BYTES;
        let records: Vec<Vec<u8>> = batch.0.chunks(BATCH * ENTRY_BYTES).map(<[u8]>::to_vec).collect();
        if let Err(error) = open.journal.append(&records) {
            tracing::error!(%error, "places cannot be written down: open files do not outlive this process");
            open.sound = false;
        }
        open.entries > RECORDS_MAX
    }
}

#[cfg(test)]
mod tests;
