//! Tables of the engine, and what the keys and values of all deciders' tables are made of.
//!
//! A name in the middle of a key ends with a zero byte, and a name at the end has no terminator. Values are postcard unless said
//! otherwise.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use weir_base::codec::{decode, encode};
use weir_model::event::{ActuatorFacts, SPEAKS_TABLE};
use weir_model::{Entry, Key, Label, Version};
use weir_store::TableName;

/// `name` -> `Member`: the facts and when they last changed.
pub const ACTUATORS: TableName = "actuator";
/// `name` -> `Load`: how many entries and tombstones.
pub const LOADS: TableName = "actuator-load";
/// `name` -> list of [`super::Refused`], oldest first.
pub const STATUS: TableName = "actuator-status";
/// `actuator 0 key` (the key as postcard) -> eight bytes little-endian version, then the entry as
/// `Option<Entry>`: none is a tombstone.
pub const DESIRED: TableName = "desired";
/// What is counted (a byte), then of what -> number, absent when zero.
pub const COUNTERS: TableName = "counter";

/// Every table of the engine.
pub const ALL: [TableName; 6] = [ACTUATORS, LOADS, STATUS, DESIRED, COUNTERS, SPEAKS_TABLE];

/// An actuator that joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub facts: ActuatorFacts,
    /// When the facts last changed.
    pub version: Version,
}

/// How full an actuator's table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Entries, but those that a decider does not count.
    pub entries: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
}

/// Reads a value that we wrote.
pub(crate) fn read<T: DeserializeOwned>(table: TableName, bytes: &[u8]) -> T {
    match decode(bytes) {
        Ok(value) => value,
        Err(error) => unreachable!("table {table} cannot be read by this release: {error}"),
    }
}

pub(crate) fn name0(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 16);
    key.extend_from_slice(name.as_bytes());
    key.push(0);
    key
}

pub(crate) fn joined(mut key: Vec<u8>, rest: &[u8]) -> Vec<u8> {
    key.extend_from_slice(rest);
    key
}

/// A name that we wrote.
pub(crate) fn label(bytes: &[u8]) -> Label {
    let name = std::str::from_utf8(bytes).ok().and_then(|text| Label::new(text).ok());
    match name {
        Some(name) => name,
        None => unreachable!("a stored name is no label: {bytes:?}"),
    }
}

/// A key that we wrote.
pub(crate) fn decode_key(bytes: &[u8]) -> Key {
    match decode(bytes) {
        Ok(key) => key,
        Err(error) => unreachable!("a desired key cannot be read by this release: {error}"),
    }
}

/// Key of a number in [`COUNTERS`]; with an empty `of`, what the keys of all of `what` begin with.
pub(crate) fn counter_key(what: impl Into<u8>, of: &[u8]) -> Vec<u8> {
    let mut key = vec![what.into()];
    key.extend_from_slice(of);
    key
}

pub(crate) fn desired_key(actuator: &Label, key: &Key) -> Vec<u8> {
    joined(name0(actuator.as_str()), &encode(key))
}

pub(crate) fn desired_value(version: Version, tail: &[u8]) -> Arc<[u8]> {
    let mut value = Vec::with_capacity(8 + tail.len());
    value.extend_from_slice(&version.0.to_le_bytes());
    value.extend_from_slice(tail);
    value.into()
}

/// Version of a desired value, and the entry still encoded.
pub(crate) fn split_desired(value: &[u8]) -> (Version, &[u8]) {
    let Some((version, tail)) = value.split_first_chunk::<8>() else {
        unreachable!("a desired value of {} bytes", value.len())
    };
    (Version(u64::from_le_bytes(*version)), tail)
}

pub(crate) fn read_desired(value: &[u8]) -> (Version, Option<Entry>) {
    let (version, tail) = split_desired(value);
    (version, read(DESIRED, tail))
}

/// Whether an encoded entry is a tombstone.
pub(crate) fn is_tombstone(tail: &[u8]) -> bool {
    tail == [0]
}
