//! The bytes of one record; `docs/protocol/log.md` draws them.
//!
//! Header and body have a checksum each, both seeded with the log's id and the segment's number, so a record copied
//! from another log or segment is not one. The header's own checksum lets recovery believe a header (and what
//! it says of durability) even when the body behind it is torn.

/// Bytes before the body.
pub const RECORD_HEADER_BYTES: usize = 48;
/// Bytes after the body.
pub const RECORD_TRAILER_BYTES: usize = 4;
/// Records start at multiples of this.
pub const RECORD_ALIGN_BYTES: usize = 8;

/// No sequence, index or segment number reaches this, so one can be added to each without a check.
pub const NUMBER_LIMIT: u64 = 1 << 63;

const MAGIC: [u8; 4] = *b"WREC";
const HEADER_CRC_AT: usize = 44;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An entry of the order.
    Entry,
    /// No entry: says only that all before it is durable.
    Mark,
    /// No entry: from here on the last entry is the one at this index and term. Below the last one it cuts a suffix
    /// off, above it it leaves a hole that a snapshot fills. Only in logs of replicated engines.
    Last,
    /// No entry: a note of the engine to itself, such as its vote. Only in logs of replicated engines.
    Note,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is.
    pub kind: Kind,
    /// What an entry's body is, as its engine says: 0 for a batch. 0 in other records.
    pub tag: u8,
    /// Bytes of the body, without padding.
    pub length: u32,
    /// 1 for the first record of a log, then without gaps, marks included.
    pub sequence: u64,
    /// The highest sequence that was known to be durable when this record was written.
    pub durable: u64,
    /// The entry's index; for a mark that of the entry before it.
    pub index: u64,
    /// The entry's term; for a mark that of the entry before it.
    pub term: u64,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The segment ends.
    #[error("the segment ends")]
    Short,
    /// There are only zeros where a header could be.
    #[error("no record (zeros)")]
    Zeros,
    /// The magic is wrong.
    #[error("no record header (wrong magic)")]
    Magic,
    /// The header's checksum is wrong.
    #[error("the header's checksum is wrong")]
    HeaderChecksum,
    /// The checksum is right, but a field has an impossible value.
    #[error("the header's fields are impossible")]
    Field,
    /// The body's checksum is wrong.
    #[error("the body's checksum is wrong")]
    BodyChecksum,
    /// A whole record, but not the one that follows the record before.
    #[error("a whole record stands here, but it does not follow the one before")]
    Order,
}

/// The seed of all checksums in a segment.
pub fn seed(log_id: u64, segment: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&log_id.to_le_bytes()), &segment.to_le_bytes())
}

/// Bytes between the body and the trailer.
fn padding_bytes(length: usize) -> usize {
    let bare = RECORD_HEADER_BYTES + length + RECORD_TRAILER_BYTES;
    bare.next_multiple_of(RECORD_ALIGN_BYTES) - bare
}

/// Bytes of a whole record whose body has `length` bytes.
pub fn record_bytes(length: usize) -> usize {
    (RECORD_HEADER_BYTES + length + RECORD_TRAILER_BYTES).next_multiple_of(RECORD_ALIGN_BYTES)
}

/// Appends the record to `out`.
pub fn encode(header: &RecordHeader, body: &[u8], seed: u32, out: &mut Vec<u8>) {
    assert_eq!(header.length as usize, body.len(), "the header describes another body");
    assert!(header.tag == 0 || header.kind == Kind::Entry, "only entries have a tag");
    assert!(header.durable < header.sequence, "a record cannot be durable before it is written");
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&header.length.to_le_bytes());
    for field in [header.sequence, header.durable, header.index, header.term] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    let kind = match header.kind {
        Kind::Entry => 1,
        Kind::Mark => 2,
        Kind::Last => 3,
        Kind::Note => 4,
    };
    out.extend_from_slice(&[kind, header.tag, 0, 0]);
    let header_crc = crc32c::crc32c_append(seed, &out[start..]);
    out.extend_from_slice(&header_crc.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(out.len() + padding_bytes(body.len()), 0);
    let body_crc = crc32c::crc32c_append(header_crc, &out[start + RECORD_HEADER_BYTES..]);
    out.extend_from_slice(&body_crc.to_le_bytes());
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Reads the header at the start of `bytes`.
pub fn decode_header(bytes: &[u8], seed: u32) -> Result<RecordHeader, Flaw> {
    let bytes = bytes.get(..RECORD_HEADER_BYTES).ok_or(Flaw::Short)?;
    if bytes[..4] != MAGIC {
        return Err(if bytes.iter().all(|byte| *byte == 0) { Flaw::Zeros } else { Flaw::Magic });
    }
    if crc32c::crc32c_append(seed, &bytes[..HEADER_CRC_AT]) != u32_at(bytes, HEADER_CRC_AT) {
        return Err(Flaw::HeaderChecksum);
    }
    let (kind, tag) = match bytes[40..44] {
        [1, tag, 0, 0] => (Kind::Entry, tag),
        [2, 0, 0, 0] => (Kind::Mark, 0),
        [3, 0, 0, 0] => (Kind::Last, 0),
        [4, 0, 0, 0] => (Kind::Note, 0),
        _ => return Err(Flaw::Field),
    };
    let header = RecordHeader {
        kind,
        tag,
        length: u32_at(bytes, 4),
        sequence: u64_at(bytes, 8),
        durable: u64_at(bytes, 16),
        index: u64_at(bytes, 24),
        term: u64_at(bytes, 32),
    };
    let body_fits = matches!(kind, Kind::Entry | Kind::Note) || header.length == 0;
    let in_range = header.sequence.max(header.index) < NUMBER_LIMIT;
    if header.durable < header.sequence && body_fits && in_range { Ok(header) } else { Err(Flaw::Field) }
}

/// Reads the record that fills the start of `bytes`, and gives its header and body.
pub fn decode(bytes: &[u8], seed: u32) -> Result<(RecordHeader, &[u8]), Flaw> {
    let header = decode_header(bytes, seed)?;
    let length = header.length as usize;
    let bytes = bytes.get(..record_bytes(length)).ok_or(Flaw::Short)?;
    let (checked, trailer) = bytes.split_at(bytes.len() - RECORD_TRAILER_BYTES);
    let body_crc = crc32c::crc32c_append(u32_at(bytes, HEADER_CRC_AT), &checked[RECORD_HEADER_BYTES..]);
    if body_crc != u32_at(trailer, 0) {
        return Err(Flaw::BodyChecksum);
    }
    Ok((header, &checked[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + length]))
}
