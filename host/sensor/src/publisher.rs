//! The publisher's side: a box of its own, whose sensors it updates without a system call.
//!
//! Any thread may update any sensor. A record's place is claimed by one addition; if the thread that claimed the same
//! place a whole ring earlier is still writing there, the new record is given up and counted, because waiting is no
//! choice in a sensor and mixing two records would be a lie.

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::layout::{
    BOX_NAME_BYTES, Kind, MAGIC, SENSOR_NAME_BYTES, Shape, VALUE_BYTES, VALUE_WORDS, VERSION, check_name,
    header, record, sensor,
};
use crate::memory::Memory;
use crate::now_ns;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sensor of the box that gave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SensorId(u32);

impl SensorId {
    /// Its slot, which records name.
    pub fn slot(self) -> u32 {
        self.0
    }
}

/// A box that this process publishes.
#[derive(Debug)]
pub struct SensorBox {
    name: String,
    shape: Shape,
    memory: Memory,
    file: OwnedFd,
    /// Where it is registered. Also what makes adding and removing one at a time.
    registered: Mutex<Option<PathBuf>>,
}

impl SensorBox {
    /// Makes a box. `period_ns` is how often its slowest sensor is updated: how long a monitor must wait before it may
    /// call a counter that stands still a sign of trouble.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`], [`Error::Io`].
    #[doc(alias = "sbcreate")]
    pub fn create(name: &str, shape: Shape, period_ns: u64) -> Result<SensorBox> {
        check_name("sensor box", name, BOX_NAME_BYTES)?;
        let shape = shape.checked()?;
        let file = rustix::fs::memfd_create(
            format!("weir-sensor:{name}"),
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(|error| Error::io("making the memory of a sensor box", error))?;
        rustix::fs::ftruncate(&file, shape.bytes() as u64)
            .map_err(|error| Error::io(format!("a sensor box of {} bytes", shape.bytes()), error))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|error| Error::io("sealing a sensor box", error))?;
        let memory = Memory::map(&file, 0, shape.bytes(), true)?;
        let made = SensorBox { name: name.to_string(), shape, memory, file, registered: Mutex::new(None) };
        made.write_header(period_ns);
        Ok(made)
    }

    /// Makes a box in memory that somebody else writes the records of: an array that programs in the kernel share with
    /// this process. The memory must be as long as the shape says.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`], [`Error::Io`].
    pub fn over(file: OwnedFd, name: &str, shape: Shape, period_ns: u64) -> Result<SensorBox> {
        check_name("sensor box", name, BOX_NAME_BYTES)?;
        let shape = shape.checked()?;
        let memory = Memory::map(&file, 0, shape.bytes(), true)?;
        let made = SensorBox { name: name.to_string(), shape, memory, file, registered: Mutex::new(None) };
        made.write_header(period_ns);
        Ok(made)
    }

    fn write_header(&self, period_ns: u64) {
        let process = rustix::process::getpid().as_raw_nonzero().get() as u64;
        self.memory.set_text(header::NAME * 8, 8, &self.name);
        for (word, value) in [
            (header::VERSION, VERSION),
            (header::BYTES, self.shape.bytes() as u64),
            (header::SENSORS, self.shape.sensors),
            (header::RECORDS, self.shape.records),
            (header::PERIOD, period_ns),
            (header::PROCESS, process),
            (header::CREATED, now_ns()),
        ] {
            self.header(word).store(value, Ordering::Relaxed);
        }
        self.header(header::MAGIC).store(MAGIC, Ordering::Release);
    }

    fn header(&self, word: usize) -> &AtomicU64 {
        self.memory.cell(word * 8)
    }

    fn sensor(&self, id: SensorId, word: usize) -> &AtomicU64 {
        self.memory.cell(self.shape.sensor_at(u64::from(id.0)) + word * 8)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its memory, for a monitor in this process or one that is handed the descriptor.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Lets monitors find the box by its name. A box that is exported twice is registered in the newest place.
    ///
    /// # Errors
    /// [`Error::Io`].
    #[doc(alias = "sbexport")]
    pub fn export(&self, directory: &Directory) -> Result<()> {
        let mut registered = self.registered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let path = directory.register(&self.name, &self.file)?;
        if let Some(old) = registered.replace(path.clone())
            && old != path
        {
            drop(std::fs::remove_file(old));
        }
        Ok(())
    }

    /// Adds a sensor.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Full`].
    #[doc(alias = "addsensor")]
    pub fn add(&self, name: &str, kind: Kind) -> Result<SensorId> {
        check_name("sensor", name, SENSOR_NAME_BYTES)?;
        let _one_at_a_time = self.registered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for slot in 0..self.shape.sensors {
            let at = self.shape.sensor_at(slot);
            if self.memory.load(at + sensor::KIND * 8, Ordering::Acquire) != 0 {
                continue;
            }
            self.memory.set_text(at + sensor::NAME * 8, 6, name);
            for word in [sensor::VALUE, sensor::TIME, sensor::UPDATES] {
                self.memory.cell(at + word * 8).store(0, Ordering::Relaxed);
            }
            self.memory.cell(at + sensor::KIND * 8).store(kind as u64, Ordering::Release);
            return Ok(SensorId(slot as u32));
        }
        Err(Error::Full { name: self.name.clone(), sensors: self.shape.sensors })
    }

    /// Adds a sensor whose value lies elsewhere in the target's memory and is fetched from there (the paper's implicit
    /// update): `address` is that of a word of this process, which must stay where it is for as long as the sensor is there.
    /// See [`crate::View::follow`].
    ///
    /// # Errors
    /// As [`SensorBox::add`].
    pub fn refer(&self, name: &str, address: u64) -> Result<SensorId> {
        let id = self.add(name, Kind::Reference)?;
        self.sensor(id, sensor::VALUE).store(address, Ordering::Release);
        Ok(id)
    }

    /// Removes a sensor; its slot can be used again.
    #[doc(alias = "rmsensor")]
    pub fn remove(&self, id: SensorId) {
        let _one_at_a_time = self.registered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.sensor(id, sensor::KIND).store(0, Ordering::Release);
    }

    fn touched(&self, id: SensorId) {
        self.sensor(id, sensor::TIME).store(now_ns(), Ordering::Relaxed);
        self.sensor(id, sensor::UPDATES).fetch_add(1, Ordering::Release);
    }

    /// Adds to a counter.
    #[doc(alias = "updatesensor")]
    pub fn count(&self, id: SensorId, add: u64) {
        self.sensor(id, sensor::VALUE).fetch_add(add, Ordering::Relaxed);
        self.touched(id);
    }

    /// Sets a gauge.
    #[doc(alias = "updatesensor")]
    pub fn set(&self, id: SensorId, value: u64) {
        self.sensor(id, sensor::VALUE).store(value, Ordering::Relaxed);
        self.touched(id);
    }

    /// Publishes an event. Returns whether it was written: it is given up, and counted, when a writer that is a whole
    /// ring behind holds its place, and when it is longer than [`VALUE_BYTES`].
    #[doc(alias = "updatesensor")]
    pub fn record(&self, id: SensorId, value: &[u8]) -> bool {
        if value.len() > VALUE_BYTES {
            self.header(header::DROPPED).fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let number = self.header(header::HEAD).fetch_add(1, Ordering::AcqRel);
        let at = self.shape.record_at(number);
        let sequence = self.memory.cell(at + record::SEQUENCE * 8);
        let before = sequence.load(Ordering::Relaxed);
        let writing = number * 2 + 1;
        let free = before.is_multiple_of(2) && before < writing;
        if !free || sequence.compare_exchange(before, writing, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.header(header::DROPPED).fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // What follows must not be seen before the claim.
        std::sync::atomic::fence(Ordering::Release);
        let now = now_ns();
        self.memory.cell(at + record::TIME * 8).store(now, Ordering::Relaxed);
        let who = u64::from(id.0) | (value.len() as u64) << 32;
        self.memory.cell(at + record::SENSOR * 8).store(who, Ordering::Relaxed);
        for index in 0..VALUE_WORDS {
            let mut word = [0_u8; 8];
            let part = value.get(index * 8..).unwrap_or_default();
            let length = part.len().min(8);
            word[..length].copy_from_slice(&part[..length]);
            let word_at = at + (record::VALUE + index) * 8;
            self.memory.cell(word_at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        sequence.store(writing + 1, Ordering::Release);
        self.sensor(id, sensor::TIME).store(now, Ordering::Relaxed);
        self.sensor(id, sensor::UPDATES).fetch_add(1, Ordering::Release);
        true
    }

    /// Ends the box: monitors see that it ended of its own will.
    #[doc(alias = "sbdestroy")]
    pub fn destroy(self) {
        drop(self);
    }
}

impl Drop for SensorBox {
    fn drop(&mut self) {
        self.header(header::CLOSED).store(1, Ordering::Release);
        let registered = self.registered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Another box may have taken the name meanwhile: its registration stays.
        if let Some(path) = registered.as_ref()
            && Directory::says(path, &self.file)
        {
            drop(std::fs::remove_file(path));
        }
    }
}
