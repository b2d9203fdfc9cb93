//! The target's side of reads over the network: sensors of this host's boxes, found by a key and read by some loads.
//!
//! A read makes no system call and allocates nothing, so a packet core can do it. A key that is not known yet is given to an ordinary
//! thread, which looks for it among the boxes that are registered, and hands over the box; it also follows boxes that are made anew.
//!
//! Only who has the ring's key can ask, and only for numbers: a reference is not followed, which would take a system call.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use weir_sensor::{Directory, Kind, View};

/// Most sensors that other hosts read here; more are unknown to them.
pub const SENSORS_MAX: usize = 64;
/// Time between two looks at what is registered.
const REFRESH: Duration = Duration::from_millis(250);

/// What a sensor is asked for by: the first 8 bytes of SHA-256 over `box/sensor`.
pub fn key(sensor_box: &str, sensor: &str) -> u64 {
    let hash = Sha256::digest(format!("{sensor_box}/{sensor}").as_bytes());
    hash.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// No such sensor is known here (yet).
    Unknown,
    /// Its publisher has destroyed the box.
    Closed,
    /// The value of a counter or gauge; of events their number.
    Value(u64),
}

/// A sensor that was asked for, in its box.
#[derive(Debug)]
struct Found {
    key: u64,
    view: View,
    slot: u32,
    event: bool,
}

/// Sensors that were asked for.
#[derive(Debug)]
pub struct Shelf {
    rows: Vec<Found>,
    asked: SyncSender<u64>,
    found: Receiver<Found>,
    spent: SyncSender<Found>,
}

impl Shelf {
    /// Starts looking for boxes. That ends with it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(sensors: &Directory) -> Result<Shelf> {
        let (asked, wanted) = sync_channel(SENSORS_MAX);
        let (tell, found) = sync_channel(SENSORS_MAX);
        let (spent, returned) = sync_channel(SENSORS_MAX);
        let mut finder = Finder { sensors: sensors.clone(), wanted, tell, returned, keys: BTreeMap::new() };
        std::thread::Builder::new()
            .name("monitor-shelf".into())
            .spawn(move || finder.run())
            .map_err(|error| Error::io("starting the thread that finds boxes", error))?;
        Ok(Shelf { rows: Vec::with_capacity(SENSORS_MAX), asked, found, spent })
    }

    /// Reads a sensor.
    pub fn read(&mut self, key: u64) -> Reading {
        while let Ok(found) = self.found.try_recv() {
            match self.rows.iter().position(|row| row.key == found.key) {
                // If there is no room, the old box is let go of here.
                Some(at) => drop(self.spent.try_send(std::mem::replace(&mut self.rows[at], found))),
                None if self.rows.len() < SENSORS_MAX => self.rows.push(found),
                None => {}
            }
        }
        let Some(row) = self.rows.iter().find(|row| row.key == key) else {
            let _ = self.asked.try_send(key);
            return Reading::Unknown;
        };
        if row.view.closed() {
            return Reading::Closed;
        }
        let value = if row.event { row.view.updates(row.slot) } else { row.view.value(row.slot) };
        value.map_or(Reading::Unknown, Reading::Value)
    }
}

/// A box: its process and time of creation; and a slot of it.
type Which = (u64, u64, u32);

struct Finder {
    sensors: Directory,
    wanted: Receiver<u64>,
    tell: SyncSender<Found>,
    returned: Receiver<Found>,
    /// What was asked for, and what was handed over for it last.
    keys: BTreeMap<u64, Option<Which>>,
}

impl Finder {
    /// Until nobody can ask any more.
    fn run(&mut self) {
        use std::sync::mpsc::TryRecvError;
        loop {
            if self.keys.is_empty() {
                // Where nobody ever asks, it costs nothing.
                let Ok(key) = self.wanted.recv() else { return };
                self.keys.insert(key, None);
            }
            loop {
                match self.wanted.try_recv() {
                    Ok(key) if self.keys.len() < SENSORS_MAX => {
                        self.keys.entry(key).or_default();
                    }
                    Ok(_) => {}
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.returned.try_iter().for_each(drop);
            self.look();
            std::thread::sleep(REFRESH);
        }
    }

    /// Hands over what is there and was not handed over before.
    fn look(&mut self) {
        for registration in self.sensors.list().unwrap_or_default() {
            let Ok(view) = registration.open() else { continue };
            if view.closed() {
                continue;
            }
            for sensor in view.sensors().into_iter().filter(|sensor| sensor.kind != Kind::Reference) {
                let key = key(&registration.name, &sensor.name);
                let which = Some((view.process(), view.created_ns(), sensor.slot));
                let Some(known) = self.keys.get_mut(&key).filter(|known| **known != which) else { continue };
                let Ok(own) = registration.open() else { continue };
                own.populate();
                let event = sensor.kind == Kind::Event;
                if self.tell.try_send(Found { key, view: own, slot: sensor.slot, event }).is_ok() {
                    *known = which;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
