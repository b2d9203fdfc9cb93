//! Reads what is on the disk and gives the committed batches to the application again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use weir_base::world::Disk;
use weir_order::log::record::Kind;
use weir_order::log::{Log, LogSettings, Place};
use weir_order::snapshot::SnapshotStore;
use weir_order::{Entry, Error, LogCounters, Position, Recovery, Sink};

use super::links::Links;
use super::{Base, Journal, Ledger, Writer, read_preamble};
use crate::core::{Chained, TERM, Tip, decode_final, of_application};
use crate::lock::locked;
use crate::members::Roster;
use crate::rules::{Admission, Overlay, Tables};
use crate::wire::{Batch, Block, Digest};

/// Digests of committed blocks that a core is given.
const RECENT: usize = 1024;

/// What is in the journal and not committed.
#[derive(Debug, Default)]
pub struct Loose {
    /// Batches with the numbers of their records.
    pub batches: Vec<(u64, Batch)>,
    /// Blocks with the numbers of their records.
    pub blocks: Vec<(u64, Block)>,
}

/// An open journal.
pub struct OpenedJournal {
    /// Reads, and keeps states.
    pub journal: Arc<Journal>,
    /// Writes.
    pub writer: Writer,
    /// Where the order stands: after the last block that has a certificate here.
    pub base: Base,
    /// The last members that the links here lead to.
    pub frontier: Roster,
    /// The last committed blocks and their parents, oldest first.
    pub recent: Vec<(Digest, Option<Digest>)>,
    /// What is not committed.
    pub loose: Loose,
    /// The number of the last record.
    pub last_number: u64,
    /// What opening the log found.
    pub recovery: Recovery,
}

#[derive(Default)]
struct Seen {
    places: BTreeMap<u64, Place>,
    batches: BTreeMap<Digest, u64>,
    blocks: BTreeMap<Digest, (u64, Block)>,
    finals: BTreeMap<u64, (Digest, u64)>,
    /// The last blocks of epochs, by the genesis of the next.
    ends: BTreeMap<Digest, Digest>,
}

impl Seen {
    fn record(&mut self, group: &[u8], number: u64, tag: u8, body: Bytes) -> Result<(), String> {
        match tag {
            0 => {
                let batch = Batch::decode(body).map_err(|error| error.to_string())?;
                self.batches.insert(batch.digest(group), number);
            }
            1 => {
                let block = Block::decode(body).map_err(|error| error.to_string())?;
                if let Some(next) = Roster::behind(group, &block) {
                    self.ends.insert(next.genesis, block.digest());
                }
                self.blocks.insert(block.digest(), (number, block));
            }
            2 => {
                let (height, digest, _) = decode_final(body).map_err(|error| error.to_string())?;
                self.finals.insert(height, (digest, number));
            }
            other => return Err(format!("a record of kind {other}, which this program does not read")),
        }
        Ok(())
    }

    /// The committed blocks above `base`, lowest first.
    fn chain(&self, group: &[u8], base: &Tip) -> Vec<Chained> {
        'finals: for (_, (digest, _)) in
            self.finals.iter().rev().take_while(|(height, _)| **height > base.height)
        {
            let (mut path, mut at) = (Vec::new(), *digest);
            while at != base.digest {
                at = self.ends.get(&at).copied().unwrap_or(at);
                // Records from before a state was taken over may lack what is below.
                let Some((number, block)) = self.blocks.get(&at) else { continue 'finals };
                let batches: Option<Vec<u64>> =
                    block.refs.iter().map(|named| self.batches.get(&named.digest).copied()).collect();
                let Some(batches) = batches.filter(|_| block.height > base.height) else { continue 'finals };
                let own = self.finals.get(&block.height).filter(|(digest, _)| *digest == at);
                path.push(Chained {
                    height: block.height,
                    digest: at,
                    first_index: block.first_index,
                    block: *number,
                    batches,
                    certificate: own.map(|(_, number)| *number),
                    next: Roster::behind(group, block),
                });
                at = block.parent;
            }
            path.reverse();
            return path;
        }
        Vec::new()
    }
}

/// Opens the journal in `disk`, or makes one, and gives `sink` the newest state and every committed batch behind it.
pub fn open(
    disk: &Arc<dyn Disk>,
    settings: LogSettings,
    group: &[u8],
    founding: &Roster,
    admission: Option<Admission>,
    sink: &mut dyn Sink,
) -> Result<OpenedJournal, Error> {
    let snapshots = SnapshotStore::open(Arc::clone(disk))?;
    let mut seen = Seen::default();
    let mut visit =
        |header: &weir_order::log::record::RecordHeader, place: Place, body: &[u8]| match header.kind {
            Kind::Entry => {
                seen.places.insert(header.index, place);
                seen.record(group, header.index, header.tag, Bytes::copy_from_slice(body))
            }
            Kind::Mark => Ok(()),
            _ => Err("a record of another engine's log, which this engine does not read".to_owned()),
        };
    let (log, recovery) = Log::open_visited(Arc::clone(disk), settings, 0, &mut visit)?;
    let (reader, last_number) = (log.reader(), log.last().index);
    let genesis = Tip { height: 0, digest: founding.genesis, index: 0 };
    let tables = Tables::new(admission.as_ref(), founding.clone());
    let mut base = Base { tip: genesis, tables, applied: 0 };
    let links = Links::open(disk, group, founding)?;
    if let Some(info) = snapshots.newest() {
        let mut state = snapshots.read(info.at.index)?;
        let failed = |source| Error::Io {
            action: "reading",
            file: "the newest state".to_owned(),
            dir: disk.describe(),
            source: Arc::new(source),
        };
        base = read_preamble(&mut state, info.at, admission.as_ref()).map_err(failed)?;
        sink.install(info.at, &mut state).map_err(failed)?;
    }
    let mut oldest = base.tip;
    if snapshots.good().len() > 1 {
        let info = snapshots.good()[0];
        let older = read_preamble(&mut snapshots.read(info.at.index)?, info.at, admission.as_ref());
        oldest = older.map_or(oldest, |older| older.tip);
    }
    let kept = seen.chain(group, &oldest);
    let above = if kept.last().is_some_and(|last| last.height > base.tip.height) {
        kept.iter().filter(|chained| chained.height > base.tip.height).cloned().collect()
    } else {
        seen.chain(group, &base.tip)
    };
    let chain = if kept.len() > above.len() { kept } else { above.clone() };
    let ledger = Ledger {
        places: std::mem::take(&mut seen.places),
        chain: VecDeque::from(chain),
        base: base.clone(),
        forget_height: oldest.height,
    };
    let journal = Arc::new(Journal {
        disk: Arc::clone(disk),
        reader,
        admission,
        ledger: Mutex::new(ledger),
        good: Mutex::new(snapshots.good().to_vec()),
        snapshots: Mutex::new(snapshots),
        counters: Mutex::new(LogCounters::default()),
        links: Mutex::new(links),
    });
    let mut recent = vec![(base.tip.digest, None)];
    for chained in &above {
        replay(&journal, chained, &mut base, sink)?;
        let parent = seen.blocks.get(&chained.digest).map(|(_, block)| block.parent);
        recent.push((chained.digest, parent));
    }
    journal.mend_links()?;
    if recent.last().is_none_or(|(digest, _)| *digest != base.tip.digest) {
        // An epoch ended: the next stands on its genesis.
        recent.push((base.tip.digest, None));
    }
    let recent = recent.split_off(recent.len().saturating_sub(RECENT));
    let loose = loose(&journal, &seen, &base)?;
    let writer = Writer::new(log);
    let frontier = locked(&journal.links).frontier().clone();
    Ok(OpenedJournal { journal, writer, base, frontier, recent, loose, last_number, recovery })
}

fn replay(journal: &Journal, chained: &Chained, base: &mut Base, sink: &mut dyn Sink) -> Result<(), Error> {
    for (index, number) in (chained.first_index..).zip(&chained.batches) {
        let batch = journal.batch(*number)?;
        base.tables.ordered(&batch);
        if index > base.applied {
            base.applied = index;
            let position = Position { term: TERM, index };
            sink.committed(&Entry { position, batch: of_application(batch.body) });
        }
    }
    base.pass(chained);
    Ok(())
}

fn loose(journal: &Journal, seen: &Seen, base: &Base) -> Result<Loose, Error> {
    let mut loose = Loose::default();
    let none = Overlay::default();
    for number in seen.batches.values() {
        let batch = journal.batch(*number)?;
        if !base.tables.is_passed(&none, &batch.name) {
            loose.batches.push((*number, batch));
        }
    }
    for (number, block) in seen.blocks.values().filter(|(_, block)| block.height > base.tip.height) {
        loose.blocks.push((*number, block.clone()));
    }
    Ok(loose)
}

impl Journal {
    /// Takes the log's counts over.
    pub fn count(&self, counters: LogCounters) {
        *locked(&self.counters) = counters;
    }
}
