//! Walks the records of one segment.

use std::io;
use std::sync::Arc;

use weir_base::world::DiskFile;

use super::record::{self, Flaw, Kind, RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use super::window::Window;
use crate::position::Position;

/// Reads records one after the other and checks that each follows the one before.
pub struct Scanner {
    window: Window,
    segment_bytes: u64,
    seed: u32,
    /// Where the next record begins.
    pub offset: u64,
    /// The sequence the next record must have.
    pub next_sequence: u64,
    /// The last entry so far.
    pub last: Position,
}

/// What a scan says of the bytes behind the last record it accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remains {
    /// Bytes up to the last one that is not zero.
    pub bytes: u64,
    /// Record headers among them.
    pub headers: u64,
    /// The highest sequence that one of them says was durable when it was written, and where it stands.
    pub proof: Option<(u64, u64)>,
}

impl Scanner {
    pub fn new(file: Arc<dyn DiskFile>, header: &SegmentHeader) -> Scanner {
        Scanner {
            window: Window::new(file),
            segment_bytes: header.segment_bytes,
            seed: record::seed(header.log_id, header.number),
            offset: SEGMENT_HEADER_BYTES as u64,
            next_sequence: header.first_sequence,
            last: Position { term: header.term, index: header.first_index - 1 },
        }
    }

    /// The next record and its body, or why there is none here.
    pub fn next(&mut self) -> io::Result<Result<(RecordHeader, &[u8]), Flaw>> {
        let header_view = self.window.view(self.offset, RECORD_HEADER_BYTES)?;
        let header = match record::decode_header(header_view, self.seed) {
            Ok(header) => header,
            Err(flaw) => return Ok(Err(flaw)),
        };
        if !self.follows(&header) {
            return Ok(Err(Flaw::Order));
        }
        let bytes = record::record_bytes(header.length as usize) as u64;
        if bytes > self.segment_bytes.saturating_sub(self.offset) {
            return Ok(Err(Flaw::Short));
        }
        let view = self.window.view(self.offset, bytes as usize)?;
        match record::decode(view, self.seed) {
            Ok((header, body)) => {
                self.offset += bytes;
                self.next_sequence += 1;
                self.last = Position { term: header.term, index: header.index };
                Ok(Ok((header, body)))
            }
            Err(flaw) => Ok(Err(flaw)),
        }
    }

    fn follows(&self, header: &RecordHeader) -> bool {
        let next = match header.kind {
            Kind::Entry => header.index == self.last.index + 1 && header.term >= self.last.term,
            Kind::Mark => header.index == self.last.index && header.term >= self.last.term,
            Kind::Last => true,
            Kind::Note => header.index == self.last.index && header.term == self.last.term,
        };
        header.sequence == self.next_sequence && next
    }

    /// Looks at everything from the scanner's place to the end of the segment.
    pub fn remains(&mut self) -> io::Result<Remains> {
        let end = self.end_of_bytes()?;
        let mut remains = Remains { bytes: end - self.offset, headers: 0, proof: None };
        for at in (self.offset..end).step_by(RECORD_ALIGN_BYTES) {
            let view = self.window.view(at, RECORD_HEADER_BYTES)?;
            if let Ok(header) = record::decode_header(view, self.seed) {
                remains.headers += 1;
                if remains.proof.is_none_or(|(durable, _)| durable < header.durable) {
                    remains.proof = Some((header.durable, at));
                }
            }
        }
        Ok(remains)
    }

    /// Just after the last byte that is not zero, or the scanner's place when all are.
    fn end_of_bytes(&mut self) -> io::Result<u64> {
        const STEP_BYTES: u64 = 64 * 1024;
        let (mut at, mut end) = (self.offset, self.offset);
        while at < self.segment_bytes {
            let length = STEP_BYTES.min(self.segment_bytes - at);
            let view = self.window.view(at, length as usize)?;
            if let Some(last) = view.iter().rposition(|byte| *byte != 0) {
                end = at + last as u64 + 1;
            }
            at += length;
        }
        Ok(end)
    }
}
