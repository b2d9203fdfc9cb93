//! The bytes of a snapshot file; `docs/protocol/log.md` draws them.
//!
//! A header, chunks with a checksum each, a footer with length and SHA-256 of the whole state, and then the end of
//! the file. Every chunk is checked before its bytes are given out.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::position::Position;

/// The version of the snapshot's format.
pub const SNAPSHOT_VERSION: u32 = 1;
/// State bytes in a chunk, at most.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

const MAGIC: [u8; 8] = *b"WEIRSNP\0";
const HEADER_BYTES: usize = 40;
const FOOTER_BYTES: usize = 48;

/// A snapshot that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The last entry whose effects it holds.
    pub at: Position,
    /// Bytes of state.
    pub bytes: u64,
    /// SHA-256 of the state.
    pub sha256: [u8; 32],
}

/// Who failed while a snapshot was written.
#[derive(Debug)]
pub enum EncodeError {
    /// The state could not be read.
    Source(io::Error),
    /// The file could not be written.
    Output(io::Error),
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn header(at: Position) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(CHUNK_BYTES_MAX as u32).to_le_bytes());
    out[16..24].copy_from_slice(&at.index.to_le_bytes());
    out[24..32].copy_from_slice(&at.term.to_le_bytes());
    let crc = crc32c::crc32c(&out[..36]);
    out[36..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Each checksum is seeded with the one before, so that chunks cannot change places.
fn chunk_crc(before: u32, length: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &length.to_le_bytes()), bytes)
}

/// Reads up to `bytes.len()` bytes; fewer only at the end.
fn read_full(reader: &mut (impl Read + ?Sized), bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match reader.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes the state after `at` through `output`, piece by piece.
pub fn encode(
    at: Position,
    state: &mut dyn Read,
    mut output: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<SnapshotInfo, EncodeError> {
    let head = header(at);
    output(&head).map_err(EncodeError::Output)?;
    let mut crc = crc32c::crc32c(&head);
    let (mut bytes, mut chunks, mut digest) = (0, 0_u64, Sha256::new());
    let mut piece = vec![0; 8 + CHUNK_BYTES_MAX];
    loop {
        let count = read_full(state, &mut piece[8..]).map_err(EncodeError::Source)?;
        let length = count as u32;
        crc = chunk_crc(crc, length, &piece[8..8 + count]);
        piece[..4].copy_from_slice(&length.to_le_bytes());
        piece[4..8].copy_from_slice(&crc.to_le_bytes());
        digest.update(&piece[8..8 + count]);
        output(&piece[..8 + count]).map_err(EncodeError::Output)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        chunks += 1;
    }
    let sha256: [u8; 32] = digest.finalize().into();
    let mut foot = Vec::with_capacity(FOOTER_BYTES + 4);
    foot.extend_from_slice(&bytes.to_le_bytes());
    foot.extend_from_slice(&chunks.to_le_bytes());
    foot.extend_from_slice(&sha256);
    foot.extend_from_slice(&crc32c::crc32c_append(crc, &foot).to_le_bytes());
    output(&foot).map_err(EncodeError::Output)?;
    Ok(SnapshotInfo { at, bytes, sha256 })
}

/// Reads the state out of a snapshot's bytes. Gives `InvalidData` at the first thing that is wrong.
pub struct Decoder<R> {
    input: R,
    at: Position,
    crc: u32,
    bytes: u64,
    chunks: u64,
    digest: Sha256,
    chunk: Vec<u8>,
    given: usize,
    info: Option<SnapshotInfo>,
}

impl<R: Read> Decoder<R> {
    /// Reads the header.
    pub fn new(mut input: R) -> io::Result<Decoder<R>> {
        let mut head = [0; HEADER_BYTES];
        if read_full(&mut input, &mut head)? < HEADER_BYTES {
            return Err(invalid("the file ends within its header"));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let at = Position { index: word(16), term: word(24) };
        if head[..8] != MAGIC {
            return Err(invalid("it does not begin as a snapshot does"));
        }
        if head != header(at) {
            return Err(invalid("its header is damaged, or of a version this program does not read"));
        }
        Ok(Decoder {
            input,
            at,
            crc: crc32c::crc32c(&head),
            bytes: 0,
            chunks: 0,
            digest: Sha256::new(),
            chunk: Vec::new(),
            given: 0,
            info: None,
        })
    }

    /// The last entry whose effects the snapshot holds.
    pub fn at(&self) -> Position {
        self.at
    }

    /// How many bytes from the beginning of a snapshot's file are whole chunks: where a transfer that was cut off may
    /// go on. All of them, with true, when the snapshot is whole.
    pub fn whole_prefix(mut self) -> io::Result<(u64, bool)> {
        loop {
            if self.info.is_some() {
                return Ok((self.file_bytes() + FOOTER_BYTES as u64 + 12, true));
            }
            let before = self.file_bytes();
            match self.next_chunk() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok((before, false)),
                Err(error) => return Err(error),
            }
        }
    }

    fn file_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.bytes + 8 * self.chunks
    }

    /// Reads and checks all that is left.
    pub fn verify(mut self) -> io::Result<SnapshotInfo> {
        loop {
            if let Some(info) = self.info {
                return Ok(info);
            }
            self.next_chunk()?;
        }
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let mut head = [0; 8];
        if read_full(&mut self.input, &mut head)? < head.len() {
            return Err(invalid(format!("the file ends after {} bytes of state", self.bytes)));
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if length as usize > CHUNK_BYTES_MAX {
            return Err(invalid(format!("chunk {} says it has {length} bytes", self.chunks)));
        }
        self.given = 0;
        self.chunk.resize(length as usize, 0);
        let count = read_full(&mut self.input, &mut self.chunk)?;
        if count < self.chunk.len() || chunk_crc(self.crc, length, &self.chunk) != crc {
            self.chunk.clear();
            return Err(invalid(format!("the checksum of chunk {} is wrong", self.chunks)));
        }
        self.crc = crc;
        if length == 0 {
            return self.footer();
        }
        self.digest.update(&self.chunk);
        self.bytes += u64::from(length);
        self.chunks += 1;
        Ok(())
    }

    fn footer(&mut self) -> io::Result<()> {
        // One byte more than there should be, to see that the file ends.
        let mut foot = [0; FOOTER_BYTES + 5];
        let count = read_full(&mut self.input, &mut foot)?;
        let sha256: [u8; 32] = self.digest.clone().finalize().into();
        let mut right = Vec::with_capacity(FOOTER_BYTES + 4);
        right.extend_from_slice(&self.bytes.to_le_bytes());
        right.extend_from_slice(&self.chunks.to_le_bytes());
        right.extend_from_slice(&sha256);
        right.extend_from_slice(&crc32c::crc32c_append(self.crc, &right).to_le_bytes());
        if foot[..count] != right {
            return Err(invalid("its footer does not fit its content, or bytes follow it"));
        }
        self.info = Some(SnapshotInfo { at: self.at, bytes: self.bytes, sha256 });
        Ok(())
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() && self.info.is_none() && !out.is_empty() {
            self.next_chunk()?;
        }
        let left = &self.chunk[self.given..];
        let count = left.len().min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        self.given += count;
        Ok(count)
    }
}
