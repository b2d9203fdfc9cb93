//! BTF: the kernel's description of its own types. Only what is needed: the offsets of a structure's fields.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

const MAGIC: u16 = 0xeb9f;
/// Deepest nesting of nameless structures.
const DEPTH_MAX: usize = 8;
/// Most fields of a structure that are kept.
const FIELDS_MAX: usize = 4096;

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_ENUM64: u32 = 19;

/// Parsed BTF.
pub(super) struct Btf<'a> {
    strings: &'a [u8],
    types: &'a [u8],
    /// Where each type begins, bytes; type 1 is the first.
    places: Vec<u32>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl<'a> Btf<'a> {
    /// Parses a blob.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Btf<'a>> {
        Btf::try_parse(bytes).ok_or_else(|| Error::Guest("its BTF is damaged".into()))
    }

    fn try_parse(bytes: &'a [u8]) -> Option<Btf<'a>> {
        if u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let part = |offset: u32, length: u32| {
            let start = header.checked_add(offset as usize)?;
            bytes.get(start..start.checked_add(length as usize)?)
        };
        let types = part(word(bytes, 8)?, word(bytes, 12)?)?;
        let strings = part(word(bytes, 16)?, word(bytes, 20)?)?;
        let mut places = Vec::new();
        let mut at = 0;
        while at < types.len() {
            places.push(at as u32);
            at += 12 + extra_bytes(word(types, at + 4)?)?;
        }
        (at == types.len()).then_some(Btf { strings, types, places })
    }

    fn name(&self, at: u32) -> &'a [u8] {
        let text = self.strings.get(at as usize..).unwrap_or_default();
        text.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// The offsets of the fields of a structure, bytes; those of nameless structures in it count as its own. Bit fields are
    /// left out.
    pub(super) fn members(&self, name: &str) -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        let is_it = |at: &&u32| {
            let at = **at as usize;
            let kind = word(self.types, at + 4).unwrap_or(0) >> 24 & 0x1f;
            kind == KIND_STRUCT && self.name(word(self.types, at).unwrap_or(0)) == name.as_bytes()
        };
        let at =
            self.places.iter().find(is_it).ok_or_else(|| Error::Guest(format!("its BTF has no {name}")))?;
        self.collect(*at as usize, 0, 0, &mut found);
        Ok(found)
    }

    fn collect(&self, at: usize, base: u64, depth: usize, found: &mut BTreeMap<String, u64>) -> Option<()> {
        let info = word(self.types, at + 4)?;
        let bit_fields = info >> 31 == 1;
        for number in 0..(info & 0xffff) as usize {
            let member = at + 12 + number * 12;
            let (name, kind, offset) =
                (word(self.types, member)?, word(self.types, member + 4)?, word(self.types, member + 8)?);
            let (bits, width) = if bit_fields { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            let offset = base + u64::from(bits / 8);
            let name = self.name(name);
            if name.is_empty() {
                let inner = *self.places.get((kind as usize).checked_sub(1)?)? as usize;
                let inner_kind = word(self.types, inner + 4)? >> 24 & 0x1f;
                if depth < DEPTH_MAX && (inner_kind == KIND_STRUCT || inner_kind == KIND_UNION) {
                    self.collect(inner, offset, depth + 1, found);
                }
            } else if width == 0 && bits % 8 == 0 && found.len() < FIELDS_MAX {
                found.entry(String::from_utf8_lossy(name).into_owned()).or_insert(offset);
            }
        }
        Some(())
    }
}

/// Bytes that follow the first twelve of a type.
fn extra_bytes(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => count * 12,
        KIND_ENUM | KIND_FUNC_PROTO => count * 8,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}
