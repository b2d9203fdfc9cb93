//! Reads a file through a buffer, at any offset.

use std::io;
use std::sync::Arc;

use weir_base::world::DiskFile;

/// How much is read ahead.
const READ_BYTES: usize = 256 * 1024;

/// A buffered view of one file that nobody changes meanwhile below the viewed range's end.
pub struct Window {
    file: Arc<dyn DiskFile>,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    pub fn new(file: Arc<dyn DiskFile>) -> Window {
        Window { file, start: 0, bytes: Vec::new() }
    }

    /// The bytes at `offset`, `length` of them or fewer at the end of the file.
    pub fn view(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let held = offset >= self.start && offset + length as u64 <= self.start + self.bytes.len() as u64;
        if !held {
            self.bytes.resize(length.max(READ_BYTES), 0);
            let count = self.file.read_at(offset, &mut self.bytes)?;
            self.bytes.truncate(count);
            self.start = offset;
        }
        let from = (offset - self.start) as usize;
        let to = (from + length).min(self.bytes.len());
        Ok(&self.bytes[from..to])
    }
}
