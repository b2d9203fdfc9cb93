//! From records to links: pure. Links of a decision before its last say the place in the order before it, so that all of
//! it comes again when a crash keeps only these.

use super::link::{Link, LinkHash, hash};
use super::record::Record;
use bytes::Bytes;
use weir_base::codec::encoded_bytes;
use weir_model::{Update, Version};
use weir_order::{Entry, Position};

/// Bytes of records in a link, about: a larger decision becomes several links.
pub const LINK_BYTES: usize = 1 << 20;
/// Bytes of one record, at most; of a larger one only the digest is kept.
pub const RECORD_BYTES_MAX: usize = 3 << 20;

/// Links that are being made.
pub struct Links {
    /// The last link that is whole, and the place in the order up to which the chain is complete with it.
    last: Position,
    head: LinkHash,
    wall_ms: u64,
    open: Vec<Record>,
    open_bytes: usize,
    whole: Vec<Entry>,
    records: u64,
    /// Bytes of all records, about.
    pub bytes: usize,
}

impl Links {
    /// Links behind the last one and its hash.
    pub fn after(last: Position, head: LinkHash, wall_ms: u64) -> Links {
        let (open, whole) = (Vec::new(), Vec::new());
        Links { last, head, wall_ms, open, open_bytes: 0, whole, records: 0, bytes: 0 }
    }

    /// Adds a record.
    pub fn add(&mut self, record: Record) {
        let (record, size) = record.bounded(RECORD_BYTES_MAX);
        if self.open_bytes + size > LINK_BYTES {
            self.close();
        }
        self.open.push(record);
        self.open_bytes += size;
        self.records += 1;
        self.bytes += size;
    }

    /// Adds the records of an entry of the order, unless the chain has them.
    pub fn ordered(&mut self, index: u64, records: Vec<Record>) {
        if index <= self.last.term {
            return;
        }
        records.into_iter().for_each(|record| self.add(record));
        self.complete(index);
    }

    /// The order was followed up to a place.
    pub fn reached(&mut self, index: u64) {
        if index > self.last.term {
            self.add(Record::Reached { index });
            self.complete(index);
        }
    }

    /// A state was taken over.
    pub fn took_over(&mut self, index: u64, version: Version) {
        if index > self.last.term {
            self.add(Record::TookOver { after: self.last.term, index, version });
            self.complete(index);
        }
    }

    /// The chain has everything up to a place in the order with what is open. Links of a decision before its last say the
    /// place before it: if a crash keeps only these, all of the decision comes again.
    fn complete(&mut self, index: u64) {
        self.last.term = index;
        self.close();
    }

    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.open_bytes = 0;
        let link =
            Link { previous: self.head, wall_ms: self.wall_ms, records: std::mem::take(&mut self.open) };
        self.last.index += 1;
        let batch = Bytes::from(link.to_bytes());
        self.head = hash(self.last.index, &batch);
        self.whole.push(Entry { position: self.last, batch });
    }

    /// The links, how many records are in them, and the hash of the last.
    pub fn finish(mut self) -> (Vec<Entry>, u64, LinkHash) {
        self.close();
        (self.whole, self.records, self.head)
    }
}

/// Records of a batch's updates, in parts that fit into links.
pub fn batch_records<'u>(
    index: u64,
    header: &weir_model::signed::BatchHeader,
    updates: impl Iterator<Item = &'u Update>,
) -> Vec<Record> {
    let mut records = Vec::new();
    let (mut part, mut bytes, mut first_leaf): (Vec<Update>, usize, u32) = (Vec::new(), 0, 0);
    let whole = |first_leaf, updates| Record::Batch { index, header: header.clone(), first_leaf, updates };
    for update in updates {
        let size = encoded_bytes(update);
        if !part.is_empty() && bytes + size > LINK_BYTES / 2 {
            let count = part.len() as u32;
            records.push(whole(first_leaf, std::mem::take(&mut part)));
            (bytes, first_leaf) = (0, first_leaf + count);
        }
        bytes += size;
        part.push(update.clone());
    }
    records.push(whole(first_leaf, part));
    records
}
