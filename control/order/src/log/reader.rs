//! Reads single records by their place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use weir_base::world::{Disk, DiskFile};

use super::Place;
use super::record::{self, RecordHeader, record_bytes};
use super::segment;
use crate::error::Error;

/// Open files that are kept for the next reading.
const FILES_MAX: usize = 64;

/// Reads records of a log by their place. Safe beside the thread that writes the log, for records that it has written.
pub struct RecordReader {
    disk: Arc<dyn Disk>,
    log_id: u64,
    files: Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>,
}

impl RecordReader {
    pub(super) fn new(disk: Arc<dyn Disk>, log_id: u64) -> RecordReader {
        RecordReader { disk, log_id, files: Mutex::default() }
    }

    /// The record at `place`, checked.
    pub fn read(&self, place: Place) -> Result<(RecordHeader, Bytes), Error> {
        let name = segment::file_name(place.segment);
        let io = |error| Error::io("reading", &name, &self.disk.describe(), error);
        let file = self.file(place.segment).map_err(io)?;
        let mut bytes = vec![0; record_bytes(place.length as usize)];
        let count = file.read_at(place.offset, &mut bytes).map_err(io)?;
        let seed = record::seed(self.log_id, place.segment);
        match record::decode(&bytes[..count], seed) {
            Ok((header, _)) => {
                let end = record::RECORD_HEADER_BYTES + header.length as usize;
                Ok((header, Bytes::from(bytes).slice(record::RECORD_HEADER_BYTES..end)))
            }
            Err(flaw) => {
                let (dir, what) = (self.disk.describe(), flaw.to_string());
                Err(Error::Corrupt { file: name.clone(), dir, offset: place.offset, index: 0, what })
            }
        }
    }

    fn file(&self, number: u64) -> std::io::Result<Arc<dyn DiskFile>> {
        // A panic elsewhere leaves a map of open files, which is whole.
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = self.disk.open(&segment::file_name(number))?;
        if files.len() >= FILES_MAX {
            files.pop_first();
        }
        files.insert(number, Arc::clone(&file));
        Ok(file)
    }
}
