//! The monitor's side: reads a box without a system call and without trusting it.

use crate::error::{Error, Result};
use crate::layout::{
    HEADER_BYTES, Kind, MAGIC, Shape, VALUE_BYTES, VALUE_WORDS, VERSION, header, record, sensor,
};
use crate::memory::Memory;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use std::sync::atomic::{Ordering, fence};

/// How many fetches in a row wait for one record whose writer has not finished, before it is given up as lost.
pub const PATIENCE_FETCHES: u32 = 3;

/// A record as it was copied out of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number: records are numbered from the creation of the box on.
    pub number: u64,
    /// Time, ns; what the publisher says.
    pub time_ns: u64,
    /// Slot of the sensor.
    pub sensor: u32,
    /// Bytes of the value that count.
    pub length: u32,
    /// The value.
    pub words: [u64; VALUE_WORDS],
}

impl Record {
    /// The value as bytes: what [`crate::SensorBox::record`] was given.
    pub fn value(&self) -> impl Iterator<Item = u8> {
        let words = self.words;
        words.into_iter().flat_map(u64::to_ne_bytes).take(self.length as usize)
    }
}

/// A sensor as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensor {
    /// Its slot.
    pub slot: u32,
    /// Its name; bytes that are not printable are shown as `?`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its value.
    pub value: u64,
    /// Time of its last update, ns.
    pub time_ns: u64,
    /// Number of updates.
    pub updates: u64,
}

/// What one fetch found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Records handed out.
    pub records: u64,
    /// Records that were published but not seen: overwritten, or given up by their writer.
    pub lost: u64,
    /// Times that the box said something impossible.
    pub lies: u64,
}

/// A view of a box.
#[derive(Debug)]
pub struct View {
    memory: Memory,
    /// All memory of the publisher's process, where that is known to be the one that registered the box.
    target: Option<OwnedFd>,
    /// The process that the kernel says holds its memory.
    publisher: Option<u32>,
    shape: Shape,
    name: String,
    period_ns: u64,
    /// Number of the next record to read.
    next: u64,
    /// Fetches that have waited for `next`.
    waited: u32,
}

impl View {
    /// Reads a box of another process, which must have sealed its memory against shrinking.
    ///
    /// # Errors
    /// [`Error::NotABox`], [`Error::Io`].
    pub fn of_process(name: &str, file: impl AsFd) -> Result<View> {
        let wrong = |reason: String| Error::NotABox { name: name.to_string(), reason };
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|error| {
            wrong(format!("its memory cannot be sealed ({error}): make it with memfd_create"))
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(wrong("its memory may shrink under a reader: seal it with F_SEAL_SHRINK".into()));
        }
        let status =
            rustix::fs::fstat(&file).map_err(|error| Error::io(format!("looking at {name}"), error))?;
        View::map(name, file, 0, u64::try_from(status.st_size).unwrap_or(0))
    }

    /// Reads a box in memory whose size this caller vouches for: an array of the kernel's programs, or a part of a
    /// guest's memory.
    ///
    /// # Errors
    /// [`Error::NotABox`], [`Error::Io`].
    pub fn map(name: &str, file: impl AsFd, offset: u64, bytes: u64) -> Result<View> {
        let wrong = |reason: String| Error::NotABox { name: name.to_string(), reason };
        if bytes < HEADER_BYTES as u64 {
            return Err(wrong(format!("{bytes} bytes are less than the header of {HEADER_BYTES}")));
        }
        let shape = {
            let head = Memory::map(&file, offset, HEADER_BYTES, false)?;
            let word = |index: usize| head.load(index * 8, Ordering::Acquire);
            if word(header::MAGIC) != MAGIC {
                return Err(wrong(format!("it begins with {:016x}, not with the mark of a box", word(0))));
            }
            if word(header::VERSION) != VERSION {
                let version = word(header::VERSION);
                return Err(wrong(format!(
                    "it has version {version} of the layout, this reader reads {VERSION}"
                )));
            }
            Shape { sensors: word(header::SENSORS), records: word(header::RECORDS) }.checked()?
        };
        if shape.bytes() as u64 > bytes {
            return Err(wrong(format!("it says that it has {} bytes, but has {bytes}", shape.bytes())));
        }
        let memory = Memory::map(&file, offset, shape.bytes(), false)?;
        let said = memory.text(header::NAME * 8, 8);
        let period_ns = memory.load(header::PERIOD * 8, Ordering::Relaxed);
        Ok(View { memory, target: None, publisher: None, shape, name: said, period_ns, next: 0, waited: 0 })
    }

    /// With the memory of the process that references lead into.
    pub(crate) fn with_target(self, target: Option<OwnedFd>) -> View {
        View { target, ..self }
    }

    /// Of a process that is known to hold its memory.
    pub(crate) fn of_publisher(self, process: u32) -> View {
        View { publisher: Some(process), ..self }
    }

    /// Makes its memory present, so that reading it faults no page in: for readers that must not wait.
    pub fn populate(&self) {
        self.memory.populate();
    }

    /// What the box calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How often its slowest sensor is updated, ns; what the publisher said when the box was mapped.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Whether its publisher has destroyed it.
    pub fn closed(&self) -> bool {
        self.memory.load(header::CLOSED * 8, Ordering::Acquire) != 0
    }

    /// Process of the publisher: of a box that was found by its registration the one that holds its memory, whatever the box says; of
    /// another what it says.
    pub fn process(&self) -> u64 {
        self.publisher.map_or_else(|| self.memory.load(header::PROCESS * 8, Ordering::Relaxed), u64::from)
    }

    /// When it was made, ns, as it says.
    pub fn created_ns(&self) -> u64 {
        self.memory.load(header::CREATED * 8, Ordering::Relaxed)
    }

    /// Records that writers have given up, as the box says.
    pub fn dropped(&self) -> u64 {
        self.memory.load(header::DROPPED * 8, Ordering::Relaxed)
    }

    /// The value of a slot, one load: nothing for a slot that the box does not have.
    pub fn value(&self, slot: u32) -> Option<u64> {
        let slot = u64::from(slot);
        (slot < self.shape.sensors)
            .then(|| self.memory.load(self.shape.sensor_at(slot) + sensor::VALUE * 8, Ordering::Acquire))
    }

    /// The value of a slot; that of a reference is the word which it leads to in its publisher's memory, read without the
    /// publisher's help (the paper's implicit update). Nothing if it leads nowhere. A reference costs one system call.
    pub fn follow(&self, slot: u32) -> Option<u64> {
        let value = self.value(slot)?;
        if !self.is_reference(slot) {
            return Some(value);
        }
        let mut word = [0; 8];
        let read = rustix::io::pread(self.target.as_ref()?, &mut word[..], value).ok()?;
        (read == word.len()).then(|| u64::from_ne_bytes(word))
    }

    /// Whether a slot is a reference.
    pub fn is_reference(&self, slot: u32) -> bool {
        let slot = u64::from(slot);
        slot < self.shape.sensors
            && self.memory.load(self.shape.sensor_at(slot) + sensor::KIND * 8, Ordering::Acquire)
                == Kind::Reference as u64
    }

    /// Time of a slot's last update, ns, as its publisher says.
    pub fn time_ns(&self, slot: u32) -> Option<u64> {
        let slot = u64::from(slot);
        (slot < self.shape.sensors)
            .then(|| self.memory.load(self.shape.sensor_at(slot) + sensor::TIME * 8, Ordering::Acquire))
    }

    /// Number of updates of a slot.
    pub fn updates(&self, slot: u32) -> Option<u64> {
        let slot = u64::from(slot);
        (slot < self.shape.sensors)
            .then(|| self.memory.load(self.shape.sensor_at(slot) + sensor::UPDATES * 8, Ordering::Acquire))
    }

    /// The sensor in a slot, if one is there.
    pub fn sensor(&self, slot: u32) -> Option<Sensor> {
        if u64::from(slot) >= self.shape.sensors {
            return None;
        }
        let at = self.shape.sensor_at(u64::from(slot));
        let word = |index: usize| self.memory.load(at + index * 8, Ordering::Acquire);
        let kind = Kind::of(word(sensor::KIND))?;
        Some(Sensor {
            slot,
            name: self.memory.text(at + sensor::NAME * 8, 6),
            kind,
            value: word(sensor::VALUE),
            time_ns: word(sensor::TIME),
            updates: word(sensor::UPDATES),
        })
    }

    /// All sensors, by slot.
    pub fn sensors(&self) -> Vec<Sensor> {
        (0..self.shape.sensors as u32).filter_map(|slot| self.sensor(slot)).collect()
    }

    /// The slot of the first sensor of a name. It allocates nothing.
    pub fn find(&self, name: &str) -> Option<u32> {
        (0..self.shape.sensors as u32).find(|slot| {
            let at = self.shape.sensor_at(u64::from(*slot));
            let kind = self.memory.load(at + sensor::KIND * 8, Ordering::Acquire);
            Kind::of(kind).is_some() && self.memory.is_text(at + sensor::NAME * 8, 6, name)
        })
    }

    /// The value of the first sensor of a name; references are followed.
    pub fn value_of(&self, name: &str) -> Option<u64> {
        self.follow(self.find(name)?)
    }

    /// Hands out the records that came since the last fetch, oldest first, each exactly once. At most a whole ring is
    /// read, so the time of a fetch has a bound whatever the publisher does.
    #[doc(alias = "sbfetch")]
    pub fn fetch(&mut self, mut each: impl FnMut(&Record)) -> Fetched {
        let mut found = Fetched::default();
        let head = self.memory.load(header::HEAD * 8, Ordering::Acquire);
        if head < self.next {
            // A head never goes back: what was told before cannot be believed either.
            found.lies += 1;
            self.next = head;
            self.waited = 0;
            return found;
        }
        let behind = head - self.next;
        if behind > self.shape.records {
            found.lost += behind - self.shape.records;
            self.next = head - self.shape.records;
            self.waited = 0;
        }
        while self.next < head {
            match self.read(self.next) {
                Read::Whole(record) if record.length as usize <= VALUE_BYTES => {
                    each(&record);
                    found.records += 1;
                }
                Read::Whole(_) => found.lies += 1,
                Read::Gone => found.lost += 1,
                Read::Pending if self.waited < PATIENCE_FETCHES => {
                    self.waited += 1;
                    return found;
                }
                Read::Pending => found.lost += 1,
            }
            self.waited = 0;
            self.next += 1;
        }
        found
    }

    fn read(&self, number: u64) -> Read {
        let at = self.shape.record_at(number);
        let word = |index: usize| self.memory.load(at + index * 8, Ordering::Relaxed);
        // Numbers that would not fit are a publisher's lie: no sequence can match then.
        let Some(whole) = number.checked_mul(2).and_then(|double| double.checked_add(2)) else {
            return Read::Gone;
        };
        let before = self.memory.load(at + record::SEQUENCE * 8, Ordering::Acquire);
        if before != whole {
            return if before > whole { Read::Gone } else { Read::Pending };
        }
        let mut words = [0; VALUE_WORDS];
        for (index, value) in words.iter_mut().enumerate() {
            *value = word(record::VALUE + index);
        }
        let (time_ns, who) = (word(record::TIME), word(record::SENSOR));
        fence(Ordering::Acquire);
        if self.memory.load(at + record::SEQUENCE * 8, Ordering::Relaxed) != whole {
            return Read::Gone;
        }
        Read::Whole(Record { number, time_ns, sensor: who as u32, length: (who >> 32) as u32, words })
    }

    /// Forgets what was published up to now. Returns how many records were not read.
    #[doc(alias = "sbflush")]
    pub fn flush(&mut self) -> u64 {
        let head = self.memory.load(header::HEAD * 8, Ordering::Acquire);
        let skipped = head.saturating_sub(self.next);
        self.next = head;
        self.waited = 0;
        skipped
    }
}

enum Read {
    Whole(Record),
    /// Overwritten by a later record.
    Gone,
    /// Claimed, but not written yet.
    Pending,
}

type Handler<'a> = Box<dyn FnMut(&Record) + 'a>;

/// Functions to call for the records of sensors.
#[derive(Default)]
pub struct Handlers<'a> {
    by_slot: Vec<(u32, Handler<'a>)>,
    /// Records of sensors that have no handler.
    pub unhandled: u64,
}

impl<'a> Handlers<'a> {
    /// Calls `handler` for each record of a sensor; the newest association of a sensor holds.
    #[doc(alias = "sbassociate")]
    pub fn associate(&mut self, slot: u32, handler: impl FnMut(&Record) + 'a) {
        self.by_slot.retain(|(other, _)| *other != slot);
        self.by_slot.push((slot, Box::new(handler)));
    }

    /// Fetches, and calls the handlers in the order of the records.
    pub fn dispatch(&mut self, view: &mut View) -> Fetched {
        view.fetch(|record| match self.by_slot.iter_mut().find(|(slot, _)| *slot == record.sensor) {
            Some((_, handler)) => handler(record),
            None => self.unhandled += 1,
        })
    }
}
