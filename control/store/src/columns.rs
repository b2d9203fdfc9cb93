//! Columns of a value (row B7): names and bytes inside one opaque value.
//!
//! A value of a column table is the encoding below, whole. So who does not know the columns reads and
//! writes it as bytes, who knows one reads and writes this one, and every entry has the columns that
//! it has.
//!
//! Format: the byte 0xC1, then for each column, names ascending: length of the name (1 byte, 1 to 63),
//! the name, length of the bytes (4 bytes, little-endian), the bytes. There is one encoding for one
//! set of columns, and [`Columns::read`] accepts no other.
//!
//! Departure from Botelho §IV-C: a table says once that it has columns, instead of there being a
//! second kind of table with calls of its own.

use crate::Refusal;
use crate::name::check_word;
use std::collections::BTreeMap;

/// The first byte of a value with columns.
const MARK: u8 = 0xC1;
/// Most columns of one value.
pub const COLUMNS_MAX: usize = 1024;

/// The columns of one value, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns<'a> {
    cells: BTreeMap<&'a str, &'a [u8]>,
}

impl<'a> Columns<'a> {
    /// No columns.
    pub fn new() -> Columns<'a> {
        Columns::default()
    }

    /// Reads a value; `None` when it is no encoding of columns.
    pub fn read(value: &'a [u8]) -> Option<Columns<'a>> {
        let mut columns = Columns::new();
        let mut last: Option<&str> = None;
        for cell in cells(value)? {
            let (name, bytes) = cell?;
            if check_word(name).is_err() || last >= Some(name) || columns.cells.len() >= COLUMNS_MAX {
                return None;
            }
            last = Some(name);
            columns.cells.insert(name, bytes);
        }
        Some(columns)
    }

    /// Sets a column.
    ///
    /// # Errors
    /// A bad name, or [`Refusal::TooLarge`] for too many columns.
    pub fn set(&mut self, name: &'a str, bytes: &'a [u8]) -> Result<(), Refusal> {
        check_word(name)?;
        self.cells.insert(name, bytes);
        if self.cells.len() > COLUMNS_MAX {
            return Err(Refusal::too_large("number of columns", self.cells.len(), COLUMNS_MAX));
        }
        Ok(())
    }

    /// Removes a column.
    pub fn remove(&mut self, name: &str) {
        self.cells.remove(name);
    }

    /// A column.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.cells.get(name).copied()
    }

    /// All, names ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + '_ {
        self.cells.iter().map(|(name, bytes)| (*name, *bytes))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The value.
    pub fn to_value(&self) -> Vec<u8> {
        let bytes = self.cells.iter().map(|(name, bytes)| 5 + name.len() + bytes.len()).sum::<usize>();
        let mut value = Vec::with_capacity(1 + bytes);
        value.push(MARK);
        for (name, bytes) in &self.cells {
            // Names have at most 63 bytes and values at most a mebibyte: both checked before they get here.
            value.push(name.len() as u8);
            value.extend_from_slice(name.as_bytes());
            value.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            value.extend_from_slice(bytes);
        }
        value
    }
}

/// One column of a value, without reading the rest into a map.
pub fn column<'a>(value: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    cells(value)?.map_while(|cell| cell).find(|(name, _)| *name == wanted).map(|(_, bytes)| bytes)
}

/// The cells as they stand in the bytes; an inner `None` where they are damaged.
fn cells(value: &[u8]) -> Option<impl Iterator<Item = Option<(&str, &[u8])>>> {
    let mut rest = value.strip_prefix(&[MARK])?;
    Some(std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cell = next(rest);
        rest = cell.map_or(&[][..], |(_, _, rest)| rest);
        Some(cell.map(|(name, bytes, _)| (name, bytes)))
    }))
}

fn next(rest: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (length, rest) = rest.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((std::str::from_utf8(name).ok()?, bytes, rest))
}
