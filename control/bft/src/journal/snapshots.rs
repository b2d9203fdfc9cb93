//! The application's states: kept, read at a start, offered to others and taken over from them.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use weir_base::world::DiskFile;
use weir_order::snapshot::{self, Decoder, SNAPSHOTS_KEPT, SnapshotReader};
use weir_order::{Error, Position, SnapshotInfo};

use super::{Journal, damaged};
use crate::core::{Chained, TERM, Tip};
use crate::lock::locked;
use crate::rules::{Admission, Tables};
use crate::wire::{CHUNK_BYTES, Malformed, Message, Offer, Reader};

const PREAMBLE_VERSION: u8 = 2;
/// Bytes of the engine's part of a state, at most.
const PREAMBLE_BYTES_MAX: usize = 256 << 20;
const INCOMING: &str = "incoming.tmp";

/// What a state says of the order: the last whole block at or before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The block.
    pub tip: Tip,
    /// The tables after it.
    pub tables: Tables,
    /// The last batch whose effects the state holds; it may be within the next block.
    pub applied: u64,
}

impl Base {
    /// Takes a block that follows, whose batches the tables have.
    pub(super) fn pass(&mut self, chained: &Chained) {
        self.tip = chained.tip();
        if let Some(next) = &chained.next {
            self.tables.enter(next.clone());
        }
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn preamble(base: &Base) -> Bytes {
    let tables = base.tables.encode();
    let mut out = BytesMut::with_capacity(64 + tables.len());
    out.put_u32_le((1 + 8 + 32 + 8 + tables.len()) as u32);
    out.put_u8(PREAMBLE_VERSION);
    out.put_u64_le(base.tip.height);
    out.put_slice(&base.tip.digest);
    out.put_u64_le(base.tip.index);
    out.put_slice(&tables);
    out.freeze()
}

/// Reads the engine's part from the front of a state; what follows is the application's.
pub fn read_preamble(state: &mut dyn Read, at: Position, admission: Option<&Admission>) -> io::Result<Base> {
    let mut length = [0; 4];
    state.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > PREAMBLE_BYTES_MAX {
        return Err(invalid("the engine's part of the state is too long"));
    }
    let mut body = Vec::new();
    state.take(length as u64).read_to_end(&mut body)?;
    let mut from = Reader(Bytes::from(body));
    let mut read = || {
        if from.u8()? != PREAMBLE_VERSION {
            return Err(Malformed("it has a version that this program does not read"));
        }
        let tip = Tip { height: from.u64()?, digest: from.array()?, index: from.u64()? };
        let left = from.0.len();
        let tables = Tables::decode(from.bytes(left)?, admission)?;
        if tip.index > at.index {
            return Err(Malformed("its block is behind its place"));
        }
        Ok(Base { tip, tables, applied: at.index })
    };
    read().map_err(|error| invalid(format!("the engine's part of the state: {error}")))
}

struct FileAt {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl Read for FileAt {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(self.offset, out)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl Journal {
    fn failed(&self, action: &'static str, file: &str, source: io::Error) -> Error {
        Error::Io { action, file: file.to_owned(), dir: self.disk.describe(), source: Arc::new(source) }
    }

    /// Keeps the application's state after `at`. Blocks while it reads; ordering goes on.
    pub fn save(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        let mut snapshots = locked(&self.snapshots);
        let base = self.base_of(at)?;
        let front = preamble(&base);
        let info =
            snapshots.save(Position { term: TERM, index: at.index }, &mut (&front[..]).chain(state))?;
        *locked(&self.good) = snapshots.good().to_vec();
        let mut ledger = locked(&self.ledger);
        if snapshots.good().len() >= SNAPSHOTS_KEPT {
            ledger.forget_height = ledger.base.tip.height;
        }
        ledger.base = base;
        Ok(info)
    }

    /// What a state after `at` must say of the order.
    fn base_of(&self, at: Position) -> Result<Base, Error> {
        let (mut base, path): (Base, Vec<Chained>) = {
            let ledger = locked(&self.ledger);
            let above = ledger.base.tip.height;
            let path = ledger
                .chain
                .iter()
                .filter(|chained| chained.height > above && chained.last_index() <= at.index);
            (ledger.base.clone(), path.cloned().collect())
        };
        let unwritten = {
            let ledger = locked(&self.ledger);
            let batches = path.iter().flat_map(|chained| &chained.batches);
            batches.filter(|number| !ledger.places.contains_key(number)).count() as u64
        };
        if unwritten > 0 {
            // Members may finalize a block before it is on this one's disk.
            let what = "records that the state covers and that are not written yet";
            return Err(Error::Overloaded { what, waiting: unwritten, limit: 0 });
        }
        for chained in path {
            for number in &chained.batches {
                base.tables.ordered(&self.batch(*number)?);
            }
            base.pass(&chained);
        }
        base.applied = at.index;
        Ok(base)
    }

    /// The records of batches above `from`, up to `upto`, with their places; none when one of them is not written yet, or not
    /// kept.
    pub fn batches_between(&self, from: u64, upto: u64) -> Option<Vec<(u64, u64)>> {
        let ledger = locked(&self.ledger);
        let mut found = Vec::new();
        for chained in &ledger.chain {
            found.extend((chained.first_index..).zip(chained.batches.iter().copied()));
        }
        found.retain(|(index, number)| *index > from && *index <= upto && ledger.places.contains_key(number));
        let whole = found.iter().map(|(index, _)| *index).eq(from + 1..=upto);
        whole.then_some(found)
    }

    /// The body of a batch's record.
    pub fn body(&self, number: u64) -> Result<Bytes, Error> {
        Ok(self.batch(number)?.body)
    }

    /// Forgets blocks that the older state covers; gives the lowest record that is still needed by blocks.
    pub fn forget(&self) -> Option<u64> {
        let mut ledger = locked(&self.ledger);
        let height = ledger.forget_height;
        while ledger.chain.front().is_some_and(|chained| chained.height <= height) {
            ledger.chain.pop_front();
        }
        let lowest = ledger
            .chain
            .iter()
            .flat_map(|chained| chained.batches.iter().chain([&chained.block]).chain(&chained.certificate))
            .min()
            .copied();
        (height > 0).then_some(lowest.unwrap_or(u64::MAX))
    }

    /// Records below `number` are gone.
    pub fn forgotten(&self, number: u64) {
        let mut ledger = locked(&self.ledger);
        ledger.places = ledger.places.split_off(&number);
    }

    /// What there is to give to a replica that is too far behind.
    pub fn offers(&self) -> Message {
        let good = locked(&self.good).clone();
        let offers = good.iter().filter_map(|info| {
            let file =
                self.disk.open(&snapshot::file_name(info.at.index)).and_then(|file| file.len()).ok()?;
            let (index, state_bytes, sha256) = (info.at.index, info.bytes, info.sha256);
            Some(Offer { index, state_bytes, sha256, file_bytes: file })
        });
        Message::Offers(offers.collect())
    }

    /// A piece of a state's file; None when there is none.
    pub fn chunk(&self, index: u64, offset: u64) -> Option<Message> {
        let known = locked(&self.good).iter().any(|info| info.at.index == index);
        let file = self.disk.open(&snapshot::file_name(index)).ok().filter(|_| known)?;
        let mut bytes = vec![0; CHUNK_BYTES];
        let mut reader = FileAt { file, offset };
        let mut count = 0;
        while count < bytes.len() {
            match reader.read(&mut bytes[count..]).ok()? {
                0 => break,
                more => count += more,
            }
        }
        bytes.truncate(count);
        (count > 0).then(|| Message::Chunk { index, offset, bytes: Bytes::from(bytes) })
    }

    /// Writes a piece of a state that comes.
    pub fn write_chunk(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let failed = |error| self.failed("writing", INCOMING, error);
        if offset == 0 {
            match self.disk.remove(INCOMING) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            self.disk.create(INCOMING).map_err(failed)?;
        }
        let file = self.disk.open(INCOMING).map_err(failed)?;
        file.write_at(offset, bytes).map_err(failed)
    }

    /// Takes the state that came, when it is what `offer` says. Gives its base and the application's part.
    pub fn adopt(&self, offer: &Offer) -> Result<(Base, SnapshotReader), Error> {
        let failed = |error| self.failed("checking", INCOMING, error);
        let file = self.disk.open(INCOMING).map_err(failed)?;
        let info = Decoder::new(FileAt { file: Arc::clone(&file), offset: 0 })
            .and_then(Decoder::verify)
            .map_err(failed)?;
        let same =
            info.at.index == offer.index && info.bytes == offer.state_bytes && info.sha256 == offer.sha256;
        if !same || info.at.term != TERM {
            return Err(damaged("the state is not the one that was offered"));
        }
        let admission = self.admission.as_ref();
        let mut state = Decoder::new(FileAt { file, offset: 0 }).map_err(failed)?;
        let base = read_preamble(&mut state, info.at, admission).map_err(failed)?;
        let mut snapshots = locked(&self.snapshots);
        snapshots.adopt(INCOMING)?;
        *locked(&self.good) = snapshots.good().to_vec();
        let mut reader = snapshots.read(info.at.index)?;
        read_preamble(&mut reader, info.at, admission).map_err(failed)?;
        let mut ledger = locked(&self.ledger);
        // One who repairs a rotten state has the blocks behind it.
        let height = base.tip.height;
        ledger.chain.retain(|chained| chained.height > height);
        ledger.forget_height = height;
        ledger.base = base.clone();
        Ok((base, reader))
    }
}
