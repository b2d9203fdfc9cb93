//! What goes into one entry of a group's order (row R9): at most so many events and bytes, and how long it may wait to fill.
//!
//! A batch that may go goes at once, and what comes meanwhile makes the next one, so batches grow with the load by themselves. A wait makes
//! them larger where rounds are dear, and every change slower, a lone one too. Each member may have its own: the order does not depend on it.

use super::wrong;
use crate::failure::Failure;
use serde::Deserialize;
use std::ops::RangeInclusive;
use weir_order::BatcherSettings;

/// Events of a batch that are allowed.
const EVENTS: RangeInclusive<usize> = 1..=10_000;
/// Bytes of a batch that are allowed.
const BYTES: RangeInclusive<usize> = 4 << 10..=8 << 20;
/// The longest wait, microseconds.
const WAIT_MAX_US: u64 = 1_000_000;

/// The part `batch` of the part `group`. What is absent is as it is by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GivenBatch {
    /// Events, at most.
    pub events: Option<u64>,
    /// Bytes, at most, unless one event alone is larger.
    pub bytes: Option<u64>,
    /// How long an event may wait for its batch to fill: a number with `us`, `ms` or `s`.
    pub wait: Option<String>,
}

/// The same, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Events, at most.
    pub events: usize,
    /// Bytes, at most, unless one event alone is larger.
    pub bytes: usize,
    /// How long an event may wait for its batch to fill, microseconds.
    pub wait_us: u64,
}

impl Default for Batch {
    fn default() -> Batch {
        let usual = BatcherSettings::default();
        Batch { events: usual.operations_max, bytes: usual.batch_bytes_max, wait_us: usual.linger_ns / 1_000 }
    }
}

impl Batch {
    /// Tells a controller's batcher.
    pub fn tell(&self, batcher: &mut BatcherSettings) {
        batcher.operations_max = self.events;
        batcher.batch_bytes_max = self.bytes;
        batcher.linger_ns = self.wait_us * 1_000;
    }
}

impl GivenBatch {
    pub(super) fn check(&self) -> Result<Batch, Failure> {
        let usual = Batch::default();
        let one_of = |field: &str, given: Option<u64>, usual: usize, allowed: RangeInclusive<usize>| {
            let Some(given) = given else { return Ok(usual) };
            let fits = usize::try_from(given).ok().filter(|given| allowed.contains(given));
            fits.ok_or_else(|| wrong(field, given, format!("use {} to {}", allowed.start(), allowed.end())))
        };
        Ok(Batch {
            events: one_of("group.batch.events", self.events, usual.events, EVENTS)?,
            bytes: one_of("group.batch.bytes", self.bytes, usual.bytes, BYTES)?,
            wait_us: self.wait.as_deref().map_or(Ok(usual.wait_us), wait_us)?,
        })
    }
}

/// Reads a time such as `500us`, `2ms`, `1s` or `0`.
fn wait_us(text: &str) -> Result<u64, Failure> {
    let digits = text.len() - text.trim_start_matches(|one: char| one.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "us" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        "" if number.trim_start_matches('0').is_empty() => Some(1),
        _ => None,
    };
    let us = factor.and_then(|factor: u64| number.parse::<u64>().ok()?.checked_mul(factor));
    us.filter(|us| *us <= WAIT_MAX_US).ok_or_else(|| {
        wrong(
            "group.batch.wait",
            text,
            "use a whole number with us, ms or s, at most 1s, such as 2ms; 0ms: it waits for nothing",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<Batch, String> {
        let given: GivenBatch = weir_document::read(text).map_err(|error| error.to_string())?;
        given.check().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_absent_is_as_the_batcher_has_it_and_what_is_said_is_told() {
        let (mut told, usual) = (BatcherSettings::default(), BatcherSettings::default());
        Batch::default().tell(&mut told);
        assert_eq!(format!("{told:?}"), format!("{usual:?}"));
        let batch = given("events: 1000\nwait: 100ms\n").unwrap();
        assert_eq!((batch.events, batch.bytes, batch.wait_us), (1_000, usual.batch_bytes_max, 100_000));
        batch.tell(&mut told);
        assert_eq!((told.operations_max, told.linger_ns), (1_000, 100_000_000));
        for (text, us) in [("0", 0), ("0ms", 0), ("250us", 250), ("1s", 1_000_000)] {
            assert_eq!(given(&format!("wait: '{text}'\n")).unwrap().wait_us, us);
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        for (text, parts) in [
            ("events: 0", ["group.batch.events: '0'", "1 to 10000"]),
            ("events: 10001", ["group.batch.events: '10001'", "1 to 10000"]),
            ("bytes: 100", ["group.batch.bytes: '100'", "4096 to 8388608"]),
            ("wait: '2'", ["group.batch.wait: '2'", "us, ms or s"]),
            ("wait: 2s", ["group.batch.wait: '2s'", "at most 1s"]),
            ("wait: -1ms", ["group.batch.wait: '-1ms'", "such as 2ms"]),
            ("wait: 99999999999999999999s", ["group.batch.wait", "at most 1s"]),
            ("linger: 2ms", ["linger", "no field"]),
        ] {
            let error = given(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
