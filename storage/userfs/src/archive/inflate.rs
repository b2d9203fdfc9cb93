//! Reading at any place of a deflated stream (RFC 1951), alone as in a zip, or as the members of a gzip file (RFC 1952).
//!
//! A deflated stream can only be read from its beginning. So while it is read for the first time, the state of the
//! decompressor is copied each so many bytes (a restart point: 43 KiB of tables and window), and a later read begins at
//! the nearest one before its place. What was inflated last is kept in blocks for all streams of an archive.
//!
//! Bounds: restart points of a stream ([`Inflated::new`]; beyond them every second one goes and their distance doubles),
//! blocks ([`CACHED_BLOCKS`]), decompressors that stand where somebody reads on ([`LIVE_MAX`]). Nothing is ever inflated
//! as a whole, so what a bomb would grow to costs no memory.
//!
//! Invariant: whoever runs through the end of a member has compared its length and checksum.

use super::source::{Source, damaged, read_all};
use crc32fast::Hasher;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, TINFL_LZ_DICT_SIZE, decompress_with_limit};
use std::collections::HashMap;
use std::io::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 128 * 1024;
/// Blocks kept for all streams of an archive.
const CACHED_BLOCKS: usize = 64;
/// Blocks before the one that was asked for which are worth keeping.
const BLOCKS_BEFORE: u64 = 8;
/// Blocks between two restart points, at first.
const POINT_DISTANCE_BLOCKS: u64 = 8;
/// Decompressors of a stream that stand where somebody may read on.
const LIVE_MAX: usize = 8;
/// Compressed bytes read at once.
const INPUT_BYTES: usize = 64 * 1024;
/// Bytes of one text of a gzip header (name or comment).
const HEADER_TEXT_MAX: u64 = 64 * 1024;

/// Blocks that were inflated last, of all streams of an archive.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    kept: Mutex<Kept>,
}

/// Stream and number of a block.
type BlockKey = (u32, u64);

#[derive(Debug, Default)]
struct Kept {
    /// With the moment of the last use.
    blocks: HashMap<BlockKey, (Arc<[u8]>, u64)>,
    clock: u64,
}

impl Blocks {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, stream: u32, block: u64) -> Option<Arc<[u8]>> {
        let mut kept = self.kept();
        kept.clock += 1;
        let now = kept.clock;
        let found = kept.blocks.get_mut(&(stream, block))?;
        found.1 = now;
        Some(found.0.clone())
    }

    fn put(&self, stream: u32, block: u64, bytes: Arc<[u8]>) {
        let mut kept = self.kept();
        kept.clock += 1;
        let now = kept.clock;
        kept.blocks.insert((stream, block), (bytes, now));
        if kept.blocks.len() > CACHED_BLOCKS
            && let Some(oldest) = kept.blocks.iter().min_by_key(|(_, block)| block.1).map(|(key, _)| *key)
        {
            kept.blocks.remove(&oldest);
        }
    }
}

/// How a deflated stream is wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Members, one behind the other, each with a header, length and checksum.
    Gzip,
    /// Bare; what it must be is known from elsewhere.
    Bare {
        /// Bytes.
        size: u64,
        /// CRC-32 of them.
        checksum: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Header,
    Body,
    End,
}

/// A decompressor at a place.
#[derive(Clone)]
struct Cursor {
    state: Box<DecompressorOxide>,
    window: Box<[u8]>,
    /// Where in the window the next byte goes.
    place: usize,
    phase: Phase,
    /// Next compressed byte, in the archive.
    input: u64,
    /// Next inflated byte.
    output: u64,
    /// Where this member began.
    member: u64,
    checksum: Hasher,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} at {} from {}", self.phase, self.output, self.input)
    }
}

impl Cursor {
    fn new(input: u64, framing: Framing) -> Cursor {
        Cursor {
            state: Box::default(),
            window: vec![0; TINFL_LZ_DICT_SIZE].into_boxed_slice(),
            place: 0,
            phase: if framing == Framing::Gzip { Phase::Header } else { Phase::Body },
            input,
            output: 0,
            member: 0,
            checksum: Hasher::new(),
        }
    }

    /// Fills `to`; fewer bytes only at the end of the stream.
    fn fill(&mut self, stream: &Inflated, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() && self.phase != Phase::End {
            if self.phase == Phase::Header {
                self.input = skip_gzip_header(stream.source.as_ref(), self.input)?;
                self.phase = Phase::Body;
            }
            done += self.inflate(stream, &mut to[done..])?;
        }
        Ok(done)
    }

    /// One piece of input.
    fn inflate(&mut self, stream: &Inflated, to: &mut [u8]) -> Result<usize> {
        let left = stream.end.saturating_sub(self.input);
        let mut input = vec![0; (left.min(INPUT_BYTES as u64)) as usize];
        read_all(stream.source.as_ref(), self.input, &mut input)?;
        let more = if left > input.len() as u64 { TINFL_FLAG_HAS_MORE_INPUT } else { 0 };
        let (mut used, mut done) = (0, 0);
        while done < to.len() && self.phase == Phase::Body {
            let room = (to.len() - done).min(self.window.len() - self.place);
            let (status, took, made) = decompress_with_limit(
                &mut self.state,
                &input[used..],
                &mut self.window,
                self.place,
                room,
                more,
            );
            let new = &self.window[self.place..self.place + made];
            to[done..done + made].copy_from_slice(new);
            self.checksum.update(new);
            used += took;
            done += made;
            self.place = (self.place + made) % self.window.len();
            self.input += took as u64;
            self.output += made as u64;
            match status {
                TINFLStatus::Done => self.end_member(stream)?,
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if took > 0 || made > 0 || used > 0 => break,
                TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => {
                    return Err(damaged("a compressed stream ends in the middle"));
                }
                _ => {
                    return Err(damaged(format!(
                        "a compressed stream is damaged near byte {} of the file",
                        self.input
                    )));
                }
            }
        }
        Ok(done)
    }

    fn end_member(&mut self, stream: &Inflated) -> Result<()> {
        let (bytes, checksum) = (self.output - self.member, self.checksum.clone().finalize());
        let expected = match stream.framing {
            Framing::Bare { size, checksum } => {
                self.phase = Phase::End;
                (size, checksum)
            }
            Framing::Gzip => {
                let mut trailer = [0; 8];
                read_all(stream.source.as_ref(), self.input, &mut trailer)?;
                self.input += trailer.len() as u64;
                let word = |at: usize| {
                    u32::from_le_bytes([trailer[at], trailer[at + 1], trailer[at + 2], trailer[at + 3]])
                };
                // What follows and is no member is padding, which gzip passes over too.
                let mut magic = [0; 2];
                let more = stream.source.read_at(self.input, &mut magic)? == 2 && magic == GZIP_MAGIC;
                self.phase = if more { Phase::Header } else { Phase::End };
                (bytes >> 32 << 32 | u64::from(word(4)), word(0))
            }
        };
        if (bytes, checksum) != expected {
            return Err(damaged(format!(
                "a compressed stream gives {bytes} bytes with checksum {checksum:08x}, where the archive says \
                 {} and {:08x}",
                expected.0, expected.1
            )));
        }
        self.state.init();
        self.checksum = Hasher::new();
        self.member = self.output;
        Ok(())
    }
}

/// First bytes of a gzip member.
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Where the body of the gzip member at `at` begins.
fn skip_gzip_header(from: &dyn Source, at: u64) -> Result<u64> {
    const TEXT_FLAGS: [u8; 2] = [8, 16]; // name, comment
    let mut fixed = [0; 10];
    read_all(from, at, &mut fixed)?;
    if fixed[..2] != GZIP_MAGIC || fixed[2] != 8 || fixed[3] & 0xe0 != 0 {
        return Err(damaged("a member of the gzip file has a header that RFC 1952 does not know"));
    }
    let flags = fixed[3];
    let mut at = at + fixed.len() as u64;
    if flags & 4 != 0 {
        let mut length = [0; 2];
        read_all(from, at, &mut length)?;
        at += 2 + u64::from(u16::from_le_bytes(length));
    }
    for flag in TEXT_FLAGS {
        if flags & flag != 0 {
            at = skip_text(from, at)?;
        }
    }
    Ok(if flags & 2 != 0 { at + 2 } else { at })
}

fn skip_text(from: &dyn Source, start: u64) -> Result<u64> {
    let mut piece = [0; 256];
    let mut at = start;
    while at - start < HEADER_TEXT_MAX {
        let bytes = from.read_at(at, &mut piece)?;
        if let Some(end) = piece[..bytes].iter().position(|byte| *byte == 0) {
            return Ok(at + end as u64 + 1);
        }
        if bytes == 0 {
            return Err(damaged("it ends in the header of a gzip member"));
        }
        at += bytes as u64;
    }
    Err(damaged(format!("a name in a gzip header is longer than {HEADER_TEXT_MAX} bytes")))
}

#[derive(Debug)]
struct Progress {
    /// By place; the first is the beginning.
    points: Vec<Cursor>,
    distance_blocks: u64,
    live: Vec<Cursor>,
    /// Bytes in all, once known.
    size: Option<u64>,
}

/// A deflated stream, read at any place.
#[derive(Debug)]
pub(crate) struct Inflated {
    source: Arc<dyn Source>,
    end: u64,
    framing: Framing,
    blocks: Arc<Blocks>,
    stream: u32,
    points_max: usize,
    progress: Mutex<Progress>,
}

impl Inflated {
    /// The stream at `start..end` of `source`, which is number `stream` among those that share `blocks`, with at most
    /// `points_max` restart points.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        (start, end): (u64, u64),
        framing: Framing,
        (blocks, stream): (Arc<Blocks>, u32),
        points_max: usize,
    ) -> Inflated {
        let progress = Progress {
            points: vec![Cursor::new(start, framing)],
            distance_blocks: POINT_DISTANCE_BLOCKS,
            live: Vec::new(),
            size: None,
        };
        Inflated { source, end, framing, blocks, stream, points_max, progress: Mutex::new(progress) }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs through all that was not read yet. Bytes in all.
    pub(crate) fn measure(&self) -> Result<u64> {
        loop {
            let known = {
                let progress = self.progress();
                if let Some(size) = progress.size {
                    return Ok(size);
                }
                let all = progress.points.iter().chain(&progress.live);
                all.map(|cursor| cursor.output).max().unwrap_or(0)
            };
            self.block(known / BLOCK_BYTES as u64)?;
        }
    }

    /// Restart points that there are now.
    #[cfg(test)]
    pub(crate) fn points(&self) -> usize {
        self.progress().points.len()
    }

    /// Block `wanted`; shorter only at the end.
    fn block(&self, wanted: u64) -> Result<Arc<[u8]>> {
        if let Some(block) = self.blocks.get(self.stream, wanted) {
            return Ok(block);
        }
        let mut progress = self.progress();
        // Another thread may just have been there.
        if let Some(block) = self.blocks.get(self.stream, wanted) {
            return Ok(block);
        }
        if progress.size.is_some_and(|size| wanted * BLOCK_BYTES as u64 >= size) {
            return Ok(Arc::new([]));
        }
        let mut cursor = progress.nearest(wanted * BLOCK_BYTES as u64);
        loop {
            let number = cursor.output / BLOCK_BYTES as u64;
            let mut bytes = vec![0; BLOCK_BYTES];
            let filled = cursor.fill(self, &mut bytes)?;
            bytes.truncate(filled);
            self.check_end(&mut cursor)?;
            if cursor.phase == Phase::End {
                progress.size = Some(cursor.output);
            }
            let ended = cursor.phase == Phase::End;
            if !ended {
                progress.note(&cursor, self.points_max);
            }
            let bytes: Arc<[u8]> = bytes.into();
            if wanted - number < BLOCKS_BEFORE {
                self.blocks.put(self.stream, number, bytes.clone());
            }
            if number == wanted {
                if !ended {
                    progress.keep(cursor);
                }
                return Ok(bytes);
            }
            if ended {
                return Ok(Arc::new([]));
            }
        }
    }

    /// A stream of known size ends there, not later, and its checksum is looked at although nobody reads past the end.
    fn check_end(&self, cursor: &mut Cursor) -> Result<()> {
        let Framing::Bare { size, .. } = self.framing else { return Ok(()) };
        if cursor.output >= size && cursor.phase != Phase::End {
            let more = cursor.fill(self, &mut [0])?;
            if more > 0 || cursor.output > size {
                return Err(damaged(format!(
                    "a member is longer than the {size} bytes that the archive says"
                )));
            }
        }
        Ok(())
    }
}

impl Progress {
    /// The decompressor that has the shortest way to `place`.
    fn nearest(&mut self, place: u64) -> Cursor {
        let behind = self.points.partition_point(|point| point.output <= place);
        let point = &self.points[behind.max(1) - 1];
        let live = self.live.iter().enumerate().filter(|(_, live)| live.output <= place);
        match live.max_by_key(|(_, live)| live.output) {
            Some((index, live)) if live.output >= point.output => self.live.remove(index),
            _ => point.clone(),
        }
    }

    fn note(&mut self, cursor: &Cursor, points_max: usize) {
        let last = self.points.last().map_or(0, |point| point.output);
        let distance = self.distance_blocks * BLOCK_BYTES as u64;
        if cursor.output < last + distance || !cursor.output.is_multiple_of(distance) {
            return;
        }
        self.points.push(cursor.clone());
        if self.points.len() > points_max {
            self.distance_blocks *= 2;
            let distance = self.distance_blocks * BLOCK_BYTES as u64;
            self.points.retain(|point| point.output.is_multiple_of(distance));
        }
    }

    fn keep(&mut self, cursor: Cursor) {
        if self.live.len() >= LIVE_MAX {
            self.live.remove(0);
        }
        self.live.push(cursor);
    }
}

impl Source for Inflated {
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            let Some(place) = offset.checked_add(done as u64) else { break };
            let block = self.block(place / BLOCK_BYTES as u64)?;
            let from = block.get((place % BLOCK_BYTES as u64) as usize..).unwrap_or_default();
            let bytes = from.len().min(to.len() - done);
            to[done..done + bytes].copy_from_slice(&from[..bytes]);
            done += bytes;
            if block.len() < BLOCK_BYTES {
                break;
            }
        }
        Ok(done)
    }
}
