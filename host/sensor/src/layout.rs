//! The bytes of a box, version 1. `docs/protocol/sensor-box.md` and `include/weir_sensor.h` say the same.
//!
//! Everything is a 64-bit word in the byte order of the machine, so that each can be read and written atomically.
//!
//! ```text
//! header, 512 words          sensor, 16 words each        record, 8 words each
//!   0 magic                    0 kind (0: free)             0 sequence: 2n+1 while record n is written, 2n+2 when it is
//!   1 version                  1 (zero)                     1 time, ns
//!   2 bytes of the box         2..7 name                    2 sensor | length in bytes << 32
//!   3 slots for sensors        8 value                      3..7 value
//!   4 records of the ring      9 time of last update, ns
//!   5 update period, ns       10 number of updates
//!   6 process of the publisher
//!   7 time of creation, ns
//!   8..15 name
//!  16 head: number of the next record
//!  24 records given up because a slow writer held their place
//!  32 1 once the box is destroyed
//! ```

use crate::error::{Error, Result};
pub use crate::limits::{RECORDS_MAX, RECORDS_MIN, SENSORS_MAX};

/// First word: `WEIRBOX` and a newline, which a transfer as text would spoil.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WEIRBOX\n");
/// The version that this crate writes and reads.
pub const VERSION: u64 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a sensor.
pub const SENSOR_BYTES: usize = 128;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Most bytes of a record's value.
pub const VALUE_BYTES: usize = 40;
/// Words of a record's value.
pub const VALUE_WORDS: usize = VALUE_BYTES / 8;
/// Longest name of a box, bytes; one zero follows it.
pub const BOX_NAME_BYTES: usize = 63;
/// Longest name of a sensor, bytes; one zero follows it.
pub const SENSOR_NAME_BYTES: usize = 47;
/// Words of the header, by index.
pub mod header {
    /// See the module's table.
    pub const MAGIC: usize = 0;
    /// Version of the layout.
    pub const VERSION: usize = 1;
    /// Bytes of the box.
    pub const BYTES: usize = 2;
    /// Slots for sensors.
    pub const SENSORS: usize = 3;
    /// Records of the ring.
    pub const RECORDS: usize = 4;
    /// Update period, ns.
    pub const PERIOD: usize = 5;
    /// Process of the publisher.
    pub const PROCESS: usize = 6;
    /// Time of creation, ns.
    pub const CREATED: usize = 7;
    /// First word of the name.
    pub const NAME: usize = 8;
    /// Number of the next record.
    pub const HEAD: usize = 16;
    /// Records given up by writers.
    pub const DROPPED: usize = 24;
    /// 1 once the box is destroyed.
    pub const CLOSED: usize = 32;
}

/// Words of a sensor, by index.
pub mod sensor {
    /// [`super::Kind`] as a number, 0 when the slot is free.
    pub const KIND: usize = 0;
    /// First word of the name.
    pub const NAME: usize = 2;
    /// The value of a counter, a gauge, a reference.
    pub const VALUE: usize = 8;
    /// Time of the last update, ns.
    pub const TIME: usize = 9;
    /// Number of updates.
    pub const UPDATES: usize = 10;
}

/// Words of a record, by index.
pub mod record {
    /// See the module's table.
    pub const SEQUENCE: usize = 0;
    /// Time, ns.
    pub const TIME: usize = 1;
    /// Sensor and length.
    pub const SENSOR: usize = 2;
    /// First word of the value.
    pub const VALUE: usize = 3;
}

/// What a sensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows: its slope is progress.
    Counter = 1,
    /// A number that goes up and down.
    Gauge = 2,
    /// Records in the ring; the value is unused.
    Event = 3,
    /// Where else in the target's memory the value is: it is fetched without an update (the paper's implicit update).
    Reference = 4,
}

impl Kind {
    /// The kind of a number; nothing for a free slot and for what this version does not know.
    pub fn of(number: u64) -> Option<Kind> {
        match number {
            1 => Some(Kind::Counter),
            2 => Some(Kind::Gauge),
            3 => Some(Kind::Event),
            4 => Some(Kind::Reference),
            _ => None,
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Event => "event",
            Kind::Reference => "reference",
        }
    }
}

/// How large a box is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots for sensors.
    pub sensors: u64,
    /// Records of the ring: a power of two.
    pub records: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { sensors: 64, records: 1024 }
    }
}

impl Shape {
    /// Checks the limits.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn checked(self) -> Result<Shape> {
        let good = (1..=SENSORS_MAX).contains(&self.sensors)
            && (RECORDS_MIN..=RECORDS_MAX).contains(&self.records)
            && self.records.is_power_of_two();
        if good { Ok(self) } else { Err(Error::Shape { sensors: self.sensors, records: self.records }) }
    }

    /// Bytes of a box of this shape.
    pub fn bytes(self) -> usize {
        self.ring_at() + self.records as usize * RECORD_BYTES
    }

    /// Where a sensor begins, bytes.
    pub(crate) fn sensor_at(self, slot: u64) -> usize {
        debug_assert!(slot < self.sensors);
        HEADER_BYTES + slot as usize * SENSOR_BYTES
    }

    /// Where the ring begins, bytes.
    pub(crate) fn ring_at(self) -> usize {
        HEADER_BYTES + self.sensors as usize * SENSOR_BYTES
    }

    /// Where record number `number` lies, bytes.
    pub(crate) fn record_at(self, number: u64) -> usize {
        self.ring_at() + (number & (self.records - 1)) as usize * RECORD_BYTES
    }
}

/// Checks a name: letters, digits, `.`, `_`, `-`, beginning with a letter.
pub(crate) fn check_name(of: &'static str, name: &str, limit: usize) -> Result<()> {
    let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits && name.len() <= limit && name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        Ok(())
    } else {
        Err(Error::Name { of, name: name.chars().take(80).collect(), limit })
    }
}
