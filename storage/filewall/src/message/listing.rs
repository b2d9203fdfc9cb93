//! The entries of a listing on their way to the client: new handles in place of the server's, and a record that is written in one
//! pass. Nothing is allocated for an entry.

use super::{Extra, Reply};
use crate::wire::rpc::mark_of;
use crate::wire::xdr::{get_u32, padded, put_opaque, put_u32};

/// New handles of entries, one behind the other; reused from reply to reply.
#[derive(Debug, Default)]
pub struct EntryHandles {
    /// Where that of an entry lies, by its number; empty where no entry has one.
    places: Vec<Option<(u32, u8)>>,
    bytes: Vec<u8>,
}

impl EntryHandles {
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.bytes.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&[u8]> {
        let (start, bytes) = (*self.places.get(number)?)?;
        self.bytes.get(start as usize..start as usize + usize::from(bytes))
    }

    /// Puts what `put` appends in place of the handle of an entry. Handles longer than 255 bytes exist in no version of NFS, nor
    /// listings of 4 GiB.
    #[inline]
    pub(super) fn put(&mut self, number: usize, entries: usize, put: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        put(&mut self.bytes);
        let place = u32::try_from(start).ok().zip(u8::try_from(self.bytes.len() - start).ok());
        if self.places.len() < entries {
            self.places.resize(entries, None);
        }
        self.places[number] = place;
    }
}

impl Extra {
    fn put(&self, plus: bool, out: &mut Vec<u8>) {
        put_u32(out, 1);
        out.extend_from_slice(&self.fileid.to_be_bytes());
        put_opaque(out, &self.name);
        out.extend_from_slice(&self.cookie.to_be_bytes());
        if plus {
            put_u32(out, 1);
            out.extend_from_slice(&self.attributes);
            put_u32(out, 1);
            put_opaque(out, self.handle.as_bytes());
        }
    }
}

impl Reply<'_> {
    /// The entries as they came.
    pub fn entries(&self) -> &[u8] {
        let begin = self.results.entries.first().map(|entry| entry.start);
        let range = begin.zip(self.results.entries_end_at).map_or(0..0, |(begin, end)| begin..end);
        self.record.get(range).unwrap_or_default()
    }

    /// Name of the `number`th entry.
    #[inline]
    pub fn entry_name(&self, number: usize) -> &[u8] {
        self.results.entries[number].name.of(self.record)
    }

    /// Handle of the `number`th entry, if it has one.
    #[inline]
    pub fn entry_handle(&self, number: usize) -> Option<&[u8]> {
        match self.entry_handles.get(number) {
            Some(handle) => Some(handle),
            None => self.results.entries[number].handle.map(|span| span.of(self.record)),
        }
    }

    /// Attributes of the `number`th entry, if it has any.
    #[inline]
    pub fn entry_attributes(&self, number: usize) -> Option<&[u8]> {
        let at = self.results.entries[number].attributes?;
        self.record.get(at..at + crate::wire::nfs3::ATTRIBUTES_BYTES)
    }

    /// Takes attributes and handle out of the `number`th entry: the client gets its name, number and cookie.
    pub fn hide_entry(&mut self, number: usize) {
        let entry = &mut self.results.entries[number];
        if self.results.plus {
            (entry.attributes, entry.handle, entry.hidden) = (None, None, true);
            self.hides = true;
        }
    }

    /// Puts another handle into the `number`th entry; nothing happens if it has none.
    pub fn set_entry_handle(&mut self, number: usize, handle: &[u8]) {
        if self.results.entries[number].handle.is_some() {
            let entries = self.results.entries.len();
            self.entry_handles.put(number, entries, |out| out.extend_from_slice(handle));
        }
    }

    /// Puts what `put` appends for it in place of the handle of each entry that has one.
    pub fn map_entry_handles(&mut self, mut put: impl FnMut(&[u8], &mut Vec<u8>)) {
        let entries = self.results.entries.len();
        for (number, entry) in self.results.entries.iter().enumerate() {
            let Some(span) = entry.handle else { continue };
            match self.entry_handles.get(number).map(<[u8]>::to_vec) {
                None => self.entry_handles.put(number, entries, |out| put(span.of(self.record), out)),
                Some(replaced) => self.entry_handles.put(number, entries, |out| put(&replaced, out)),
            }
        }
    }

    pub(super) fn put_entries(
        &self,
        xid: u32,
        results_at: usize,
        results_bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let begin = out.len();
        // The two handles of an entry are never both in the record, so this is enough for all that follows but the extra entry.
        out.reserve(self.record_bytes + 4 + self.entry_handles.bytes.len() + 4 * self.results.entries.len());
        put_u32(out, 0);
        put_u32(out, xid);
        // Only listings have entries.
        let end_at = self.results.entries_end_at.unwrap_or(self.record_bytes);
        let too_long = |out: &Vec<u8>| out.len() - begin - 4 - results_at + 8 > results_bytes_max;
        // What was not yet copied begins here: behind what is said of the folder, if that is hidden.
        let mut from = 4;
        for (range, _) in self.replaced() {
            out.extend_from_slice(&self.record[from..range.start]);
            put_u32(out, 0);
            from = range.end;
        }
        let mut cut = false;
        for (number, entry) in self.results.entries.iter().enumerate() {
            let before = out.len() + entry.start - from;
            if let (Some(old), Some(new)) = (entry.handle, self.entry_handles.get(number)) {
                out.extend_from_slice(&self.record[from..old.start - 4]);
                put_opaque(out, new);
                from = old.padded_end();
            }
            if entry.hidden {
                out.extend_from_slice(&self.record[from..entry.name.padded_end() + 8]);
                [0, 0].into_iter().for_each(|absent| put_u32(out, absent));
                from = entry.end;
            }
            // Behind the entries two booleans must fit. One entry always goes out, else the client cannot get on.
            let bytes = out.len() + entry.end - from - begin - 4 - results_at + 8;
            if number > 0 && bytes > results_bytes_max {
                if before > out.len() {
                    out.extend_from_slice(&self.record[from..entry.start]);
                }
                out.truncate(before);
                (from, cut) = (end_at, true);
                break;
            }
        }
        out.extend_from_slice(&self.record[from..end_at]);
        let mut ends = !cut && end_at + 8 <= self.record_bytes && get_u32(self.record, end_at + 4) != 0;
        if let (Some(extra), true) = (&self.extra, ends) {
            let before = out.len();
            extra.put(self.results.plus, out);
            if !self.results.entries.is_empty() && too_long(out) {
                out.truncate(before);
                ends = false;
            }
        }
        put_u32(out, 0);
        put_u32(out, u32::from(ends));
        let bytes = out.len() - begin - 4;
        out[begin..begin + 4].copy_from_slice(&mark_of(bytes).to_be_bytes());
        debug_assert_eq!(bytes, padded(bytes), "a listing is whole words");
        cut
    }
}
