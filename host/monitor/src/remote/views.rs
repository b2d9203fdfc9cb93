//! Views of other hosts' boxes (Bohra, 3.4.1: the monitor fetches a box and keeps a local copy of it; table 3.1: the remote context).
//!
//! Each sensor of a view is read once a period, by a packet that the other host's responder answers. The values are kept in a box of
//! this host, `HOST.BOX`, with the time at which they came; so policies, queries and `weir monitor top` read it like any other. When a
//! publisher destroys its box the copy is destroyed, too; when it hangs, or its host does not answer, the copy stands still.
//!
//! A step machine but for the box that it writes: times and answers come in, reads go out.

use super::shelf::{Reading, key};
use crate::error::Result;
use crate::ring::Host;
use serde::Deserialize;
use weir_sensor::{Directory, Kind, SensorBox, SensorId, Shape};

/// Most sensors of other hosts that one host reads.
pub const SENSORS_MAX: usize = 64;
/// Shortest time between two reads of a sensor, ms.
pub const EVERY_MS_MIN: u64 = 10;

/// A view, in a ring's file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ViewFile {
    /// The host whose box it is.
    pub host: String,
    /// The box.
    #[serde(rename = "box")]
    pub sensor_box: String,
    /// Its sensors that are read.
    pub sensors: Vec<String>,
    /// Time between two reads, ms; the period of the copy.
    #[serde(default = "every_ms")]
    pub every_ms: u64,
}

fn every_ms() -> u64 {
    100
}

impl ViewFile {
    /// The box of this host in which the values are kept.
    pub fn copy(&self) -> String {
        format!("{}.{}", self.host, self.sensor_box)
    }
}

/// A read that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whom.
    pub host: Host,
    /// Different for each.
    pub nonce: u64,
    /// The sensor.
    pub key: u64,
}

#[derive(Debug)]
struct Sensor {
    name: String,
    key: u64,
    /// Of the newest read, until it is answered.
    nonce: Option<u64>,
}

#[derive(Debug)]
struct One {
    host: Host,
    copy: String,
    every_ns: u64,
    due_ns: u64,
    sensors: Vec<Sensor>,
    /// The copy, and its sensors in their order.
    kept: Option<(SensorBox, Vec<SensorId>)>,
}

/// The views of a host.
#[derive(Debug)]
pub struct Views {
    all: Vec<One>,
    nonce: u64,
    directory: Directory,
}

impl Views {
    /// From the file; `names` are those of the hosts, by number.
    ///
    /// # Errors
    /// [`crate::Error::Sensor`] for names that a box cannot have.
    pub fn new(files: &[ViewFile], names: &[String], directory: &Directory, now_ns: u64) -> Result<Views> {
        let mut all = Vec::new();
        for file in files {
            let Some(host) = names.iter().position(|name| *name == file.host) else { continue };
            let sensor =
                |name: &String| Sensor { name: name.clone(), key: key(&file.sensor_box, name), nonce: None };
            let every_ns = file.every_ms.saturating_mul(1_000_000);
            let sensors = file.sensors.iter().map(sensor).collect();
            let one =
                One { host: host as Host, copy: file.copy(), every_ns, due_ns: now_ns, sensors, kept: None };
            // Names that are no good are told at the start.
            drop(one.make()?);
            all.push(one);
        }
        Ok(Views { all, nonce: now_ns, directory: directory.clone() })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Hands out the reads that are due.
    pub fn due(&mut self, now_ns: u64, mut ask: impl FnMut(Ask)) {
        for one in &mut self.all {
            if now_ns < one.due_ns {
                continue;
            }
            one.due_ns = now_ns.saturating_add(one.every_ns);
            for sensor in &mut one.sensors {
                self.nonce = self.nonce.wrapping_add(1);
                sensor.nonce = Some(self.nonce);
                ask(Ask { host: one.host, nonce: self.nonce, key: sensor.key });
            }
        }
    }

    /// Takes an answer. Only that of the newest read of a sensor counts, from the host that was asked, once.
    pub fn take(&mut self, host: Host, nonce: u64, reading: Reading) {
        let Views { all, directory, .. } = self;
        for one in all.iter_mut().filter(|one| one.host == host) {
            let Some(at) = one.sensors.iter().position(|sensor| sensor.nonce == Some(nonce)) else {
                continue;
            };
            one.sensors[at].nonce = None;
            match reading {
                // A responder that began anew has to find the box first.
                Reading::Unknown => {}
                Reading::Closed => one.kept = None,
                Reading::Value(value) => {
                    if let Err(error) = one.keep(at, value, directory) {
                        tracing::warn!(%error, copy = one.copy, "a box of another host is not kept");
                    }
                }
            }
            return;
        }
    }
}

impl One {
    fn make(&self) -> Result<(SensorBox, Vec<SensorId>)> {
        let shape = Shape { sensors: self.sensors.len().max(1) as u64, records: 16 };
        let made = SensorBox::create(&self.copy, shape, self.every_ns)?;
        let add = |sensor: &Sensor| made.add(&sensor.name, Kind::Gauge);
        let ids = self.sensors.iter().map(add).collect::<weir_sensor::Result<_>>()?;
        Ok((made, ids))
    }

    fn keep(&mut self, at: usize, value: u64, directory: &Directory) -> Result<()> {
        if let Some((kept, ids)) = &self.kept {
            kept.set(ids[at], value);
            return Ok(());
        }
        let (made, ids) = self.make()?;
        // Who discovers it finds a value in it.
        made.set(ids[at], value);
        made.export(directory)?;
        self.kept = Some((made, ids));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
