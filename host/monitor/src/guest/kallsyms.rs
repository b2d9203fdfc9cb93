//! The kernel's own table of symbols, in the compressed form that it keeps in memory.
//!
//! Names are runs of tokens; a table gives the text of each of 256 tokens; the first letter of a name is the symbol's kind.
//! Addresses are 32-bit offsets: from 0 on they are absolute, negative ones count down from a base that randomisation has
//! moved.

use super::memory::{GuestMemory, Space};
use super::vmcoreinfo::VmCoreInfo;
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// Most symbols.
const SYMBOLS_MAX: u64 = 2_000_000;
/// Bytes of a name are read in runs of so many.
const RUN_BYTES: usize = 64 * 1024;
const TOKENS: usize = 256;
/// Longest text of all tokens together, bytes.
const TOKEN_BYTES: usize = 8192;
/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Where the tables are.
pub(super) struct Kallsyms<'a> {
    memory: &'a GuestMemory,
    space: &'a Space,
    names: u64,
    offsets: u64,
    base: u64,
    count: u64,
    tokens: Tokens,
}

/// The texts of the tokens.
pub(super) struct Tokens {
    text: Vec<u8>,
    index: Vec<u16>,
}

impl Tokens {
    pub(super) fn new(text: Vec<u8>, index: Vec<u16>) -> Tokens {
        Tokens { text, index }
    }

    /// Appends the text of a token; one that is not there is nothing.
    fn expand(&self, token: u8, to: &mut Vec<u8>) {
        let start = self.index.get(usize::from(token)).map_or(usize::MAX, |index| usize::from(*index));
        let text = self.text.get(start..).unwrap_or_default();
        to.extend(text.iter().take_while(|byte| **byte != 0).take(NAME_BYTES_MAX.saturating_sub(to.len())));
    }

    /// Reads a name: its kind's letter first. Returns also how many bytes it took.
    pub(super) fn name(&self, bytes: &[u8], to: &mut Vec<u8>) -> Option<usize> {
        to.clear();
        let first = *bytes.first()?;
        let (length, skip) = match first & 0x80 {
            0 => (usize::from(first), 1),
            _ => (usize::from(first & 0x7f) | usize::from(*bytes.get(1)?) << 7, 2),
        };
        for token in bytes.get(skip..skip + length)? {
            self.expand(*token, to);
        }
        Some(skip + length)
    }
}

impl<'a> Kallsyms<'a> {
    pub(super) fn find(memory: &'a GuestMemory, space: &'a Space, info: &VmCoreInfo) -> Result<Kallsyms<'a>> {
        let symbol = |name: &str| info.number(&format!("SYMBOL(kallsyms_{name})"));
        let unreadable = |what: &str| Error::Guest(format!("its table of symbols ({what}) cannot be read"));
        let mut count = [0; 4];
        if !memory.read(space, symbol("num_syms")?, &mut count) {
            return Err(unreadable("their number"));
        }
        let count = u64::from(u32::from_le_bytes(count));
        if count == 0 || count > SYMBOLS_MAX {
            return Err(Error::Guest(format!("its table has {count} symbols")));
        }
        let mut text = vec![0; TOKEN_BYTES];
        let mut index = [0; TOKENS * 2];
        if !memory.read(space, symbol("token_table")?, &mut text)
            || !memory.read(space, symbol("token_index")?, &mut index)
        {
            return Err(unreadable("tokens"));
        }
        let index = index.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let base = memory.word(space, symbol("relative_base")?).ok_or_else(|| unreadable("base"))?;
        let tokens = Tokens::new(text, index);
        Ok(Kallsyms {
            memory,
            space,
            names: symbol("names")?,
            offsets: symbol("offsets")?,
            base,
            count,
            tokens,
        })
    }

    /// The addresses of these names, as far as they are there.
    pub(super) fn addresses(&self, wanted: &[&str]) -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        let mut name = Vec::with_capacity(NAME_BYTES_MAX);
        let mut run: Vec<u8> = Vec::new();
        let (mut run_at, mut at) = (self.names, 0);
        for number in 0..self.count {
            // A name and its length take fewer bytes than this.
            if run.len() - at < NAME_BYTES_MAX * 2 {
                run_at = run_at.wrapping_add(at as u64);
                at = 0;
                run = self.run(run_at)?;
            }
            let Some(length) = self.tokens.name(&run[at..], &mut name) else {
                return Err(Error::Guest(format!("symbol {number} of {} cannot be read", self.count)));
            };
            at += length;
            let text = name.get(1..).unwrap_or_default();
            if let Some(which) = wanted.iter().find(|which| which.as_bytes() == text) {
                found.insert((*which).to_string(), self.address(number)?);
            }
        }
        Ok(found)
    }

    /// Bytes of names from an address on: as many as are memory, up to a run.
    fn run(&self, from: u64) -> Result<Vec<u8>> {
        let mut run = vec![0; RUN_BYTES];
        let mut length = RUN_BYTES;
        while !self.memory.read(self.space, from, &mut run[..length]) {
            length /= 2;
            if length < 16 {
                return Err(Error::Guest(format!("names of symbols at {from:x} cannot be read")));
            }
        }
        Ok(run)
    }

    fn address(&self, number: u64) -> Result<u64> {
        let mut bytes = [0; 4];
        if !self.memory.read(self.space, self.offsets.wrapping_add(number * 4), &mut bytes) {
            return Err(Error::Guest(format!("the address of symbol {number} cannot be read")));
        }
        let offset = i64::from(i32::from_le_bytes(bytes));
        Ok(match offset {
            0.. => offset as u64,
            _ => self.base.wrapping_sub(1).wrapping_sub(offset as u64),
        })
    }
}
