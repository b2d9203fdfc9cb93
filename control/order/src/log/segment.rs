//! The first block of a segment file, and the names of files.

use super::record::NUMBER_LIMIT;

/// Bytes of the first block; records follow it.
pub const SEGMENT_HEADER_BYTES: usize = 4096;
/// The version of the log's format.
pub const LOG_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"WEIRLOG\0";
const CRC_AT: usize = SEGMENT_HEADER_BYTES - 4;

/// What the first block of a segment says. Everything before the segment was durable when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The same in all segments of a log, and drawn when the log was made.
    pub log_id: u64,
    /// 1 for the first segment of a log, then without gaps.
    pub number: u64,
    /// The size of the file.
    pub segment_bytes: u64,
    /// The sequence of the first record in it.
    pub first_sequence: u64,
    /// The index of the first entry in it.
    pub first_index: u64,
    /// The term of the entry before it; 0 when there is none.
    pub term: u64,
}

/// The whole first block.
pub fn encode(header: &SegmentHeader) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&LOG_VERSION.to_le_bytes());
    out.extend_from_slice(&(SEGMENT_HEADER_BYTES as u32).to_le_bytes());
    let SegmentHeader { log_id, number, segment_bytes, first_sequence, first_index, term } = *header;
    for field in [log_id, number, segment_bytes, first_sequence, first_index, term] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.resize(CRC_AT, 0);
    out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
    out
}

/// What is wrong with the first block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// It is not whole.
    #[error("the file has {0} bytes, less than its first block")]
    Short(usize),
    /// It is of another kind of file.
    #[error("it does not begin as a log segment does")]
    Magic,
    /// It is damaged.
    #[error("the checksum of its first block is wrong")]
    Checksum,
    /// Another release wrote it.
    #[error("its format has version {found} and this program reads {LOG_VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// It was never written by this program.
    #[error("a number in its first block is impossible")]
    Number,
}

/// Reads the first block.
///
/// # Errors
/// What is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, BadHeader> {
    let Some(bytes) = bytes.get(..SEGMENT_HEADER_BYTES) else {
        return Err(BadHeader::Short(bytes.len()));
    };
    if bytes[..8] != MAGIC {
        return Err(BadHeader::Magic);
    }
    let mut words = [0; 8];
    for (word, chunk) in words.iter_mut().zip(bytes[..64].chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    let mut crc = [0; 4];
    crc.copy_from_slice(&bytes[CRC_AT..]);
    if crc32c::crc32c(&bytes[..CRC_AT]) != u32::from_le_bytes(crc) {
        return Err(BadHeader::Checksum);
    }
    let version = words[1] as u32;
    if version != LOG_VERSION || (words[1] >> 32) as usize != SEGMENT_HEADER_BYTES {
        return Err(BadHeader::Version { found: version });
    }
    let [_, _, log_id, number, segment_bytes, first_sequence, first_index, term] = words;
    if [number, first_sequence, first_index].iter().any(|field| !(1..NUMBER_LIMIT).contains(field)) {
        return Err(BadHeader::Number);
    }
    Ok(SegmentHeader { log_id, number, segment_bytes, first_sequence, first_index, term })
}

/// The file of segment `number`.
pub fn file_name(number: u64) -> String {
    format!("log-{number:016x}.seg")
}

/// The number in a segment's file name.
pub fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name).then_some(number)
}
