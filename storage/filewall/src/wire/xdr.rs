//! A strict reader of XDR (RFC 4506) that copies nothing, and the few writers that answers need.

use std::ops::Range;

/// Where some bytes lie in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset from the beginning of the record, bytes.
    pub start: usize,
    /// Length, bytes, without padding.
    pub bytes: usize,
}

impl Span {
    /// As an index.
    #[inline]
    pub fn range(self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// The bytes in their record.
    #[inline]
    pub fn of(self, record: &[u8]) -> &[u8] {
        &record[self.range()]
    }

    /// End, with the padding to four bytes.
    #[inline]
    pub fn padded_end(self) -> usize {
        self.start + padded(self.bytes)
    }
}

/// Why bytes are no sound record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The bytes at hand end before the head does, but the record goes on: read more, then try again.
    #[error("the record goes on behind the bytes at hand")]
    Incomplete,
    /// The record ends inside a field.
    #[error("the record ends inside a field at byte {at}")]
    Short {
        /// Where the field begins.
        at: usize,
    },
    /// Bytes are left behind the last field.
    #[error("{bytes} bytes are left behind the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A length is above its limit.
    #[error("a field of {bytes} bytes at byte {at}; at most {limit} are allowed")]
    Long {
        /// Where its length stands.
        at: usize,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A value that the type does not have.
    #[error("invalid enum value {value} at byte {at}")]
    Value {
        /// Where it stands.
        at: usize,
        /// What it is.
        value: u32,
    },
    /// Padding that is not zero.
    #[error("padding at byte {at} is not zero")]
    Padding {
        /// Where it stands.
        at: usize,
    },
    /// A name in a listing that is none.
    #[error("the name at byte {at} is none: {why}")]
    Name {
        /// Where it stands.
        at: usize,
        /// Why.
        why: super::name::Misnamed,
    },
    /// A list with more members than allowed.
    #[error("more than {limit} members in a list")]
    Many {
        /// The limit.
        limit: usize,
    },
}

/// Result of decoding.
pub type Read<T> = Result<T, Wrong>;

/// `bytes` rounded up to a multiple of four.
#[inline]
pub fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// Walks over the beginning of a record whose full length is known.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    record_bytes: usize,
}

impl<'a> Reader<'a> {
    /// A reader over `bytes`, the beginning of a record of `record_bytes`.
    pub fn new(bytes: &'a [u8], record_bytes: usize) -> Self {
        let at_hand = bytes.len().min(record_bytes);
        Self { bytes: &bytes[..at_hand], at: 0, record_bytes }
    }

    /// A reader over a whole record.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self::new(bytes, bytes.len())
    }

    /// Where the next field begins.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// What is at hand from the next field on.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at.min(self.bytes.len())..]
    }

    /// Steps over `bytes` bytes and returns them.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Read<&'a [u8]> {
        let at = self.at;
        let end = at.checked_add(bytes).filter(|end| *end <= self.record_bytes).ok_or(Wrong::Short { at })?;
        let taken = self.bytes.get(at..end).ok_or(Wrong::Incomplete)?;
        self.at = end;
        Ok(taken)
    }

    /// The bytes of a field that was read.
    pub fn slice(&self, span: Span) -> &'a [u8] {
        &self.bytes[span.range()]
    }

    /// An unsigned integer.
    #[inline]
    pub fn u32(&mut self) -> Read<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// An unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self) -> Read<u64> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// A boolean.
    #[inline]
    pub fn bool(&mut self) -> Read<bool> {
        Ok(self.one_of(1)? == 1)
    }

    /// An enumeration with the values 0 to `last`.
    #[inline]
    pub fn one_of(&mut self, last: u32) -> Read<u32> {
        let at = self.at;
        let value = self.u32()?;
        if value > last { Err(Wrong::Value { at, value }) } else { Ok(value) }
    }

    /// The length of a variable field, at most `limit`.
    #[inline]
    pub fn length(&mut self, limit: usize) -> Read<usize> {
        let at = self.at;
        let bytes = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if bytes > limit { Err(Wrong::Long { at, bytes, limit }) } else { Ok(bytes) }
    }

    /// A variable field of at most `limit` bytes, with its padding checked.
    #[inline]
    pub fn opaque(&mut self, limit: usize) -> Read<Span> {
        let bytes = self.length(limit)?;
        let start = self.at;
        self.take(bytes)?;
        self.padding(bytes)?;
        Ok(Span { start, bytes })
    }

    /// A variable field that must be the record's last and whose bytes need not be at hand. Its padding is not
    /// looked at, for it may not have come yet; only zeros can follow from a client, and none are interpreted.
    pub fn last_opaque(&mut self, limit: usize) -> Read<Span> {
        let bytes = self.length(limit)?;
        let start = self.at;
        let end = start + padded(bytes);
        if end > self.record_bytes {
            return Err(Wrong::Short { at: start });
        }
        self.at = end;
        Ok(Span { start, bytes })
    }

    /// The padding behind a field of `bytes` bytes.
    #[inline]
    fn padding(&mut self, bytes: usize) -> Read<()> {
        let at = self.at;
        let pad = self.take(padded(bytes) - bytes)?;
        if pad.iter().any(|byte| *byte != 0) { Err(Wrong::Padding { at }) } else { Ok(()) }
    }

    /// A name in a listing of a server: what policies go by when they learn where its handle is.
    #[inline]
    pub fn entry_name(&mut self, limit: usize) -> Read<Span> {
        let span = self.opaque(limit)?;
        match super::name::check(self.slice(span), super::name::Use::Look) {
            // How long names may be is for the server to say.
            Ok(()) | Err(super::name::Misnamed::Long) => Ok(span),
            Err(why) => Err(Wrong::Name { at: span.start, why }),
        }
    }

    /// Says that the record must end here.
    #[inline]
    pub fn end(&self) -> Read<()> {
        match self.record_bytes - self.at {
            0 => Ok(()),
            bytes => Err(Wrong::Trailing { bytes }),
        }
    }
}

/// Appends an unsigned integer.
#[inline]
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends an unsigned hyper integer.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a variable field with its length and padding.
///
/// The field must be shorter than 4 GiB, which all of ours are by far.
#[inline]
pub fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(bytes);
    out.extend_from_slice(&[0; 3][..padded(bytes.len()) - bytes.len()]);
}

/// Overwrites the integer at `at`, which must be inside the record.
#[inline]
pub fn set_u32(record: &mut [u8], at: usize, value: u32) {
    record[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Reads the integer at `at`, which must be inside the record.
#[inline]
pub fn get_u32(record: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}
