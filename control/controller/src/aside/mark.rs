//! How far a controller has carried the order out, as its disk knows it.
//!
//! Whoever has carried an entry out must not promise that it never does, so this must be known for certain, and must not cost each entry a
//! sync. What a process wrote is there when it ends, however it ends; only a machine that goes down loses what was not synced. So the
//! highest entry that was carried out is written after each, and how high that may have become is synced in advance, [`RESERVED`] entries
//! at a time. In the same life of a machine, or after an end in good order, the first is exact. After a machine went down
//! without a word, it is not known of what lies between.
//!
//! Invariant: what was carried out is at most what is written, or is below what was reserved and another life of the machine has begun.

/// How many entries are reserved with one sync.
pub const RESERVED: u64 = 1024;
/// Bytes of a mark.
pub const MARK_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"weirdon1";

/// Whether an entry was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It was.
    Yes,
    /// It was not.
    No,
    /// Nobody knows.
    Unknown,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The life of the machine in which it was written.
    boot: [u8; 16],
    done: u64,
    reserved: u64,
    /// Up to here it is not known.
    unsure_to: u64,
    /// The process ended in good order.
    ended: bool,
}

impl Mark {
    /// Of a controller that has carried out nothing.
    pub fn new(boot: [u8; 16]) -> Mark {
        Mark { boot, done: 0, reserved: 0, unsure_to: 0, ended: false }
    }

    /// Of a controller of which nothing is known: a release before kept no mark, or it is damaged.
    pub fn unknown(boot: [u8; 16]) -> Mark {
        Mark { unsure_to: u64::MAX, ..Mark::new(boot) }
    }

    /// The next life of the process, in this life of the machine.
    pub fn next(self, boot: [u8; 16]) -> Mark {
        // All zeros: the system does not say which life it is.
        let exact = self.ended || self.boot == boot && boot != [0; 16];
        let unsure_to = if exact { self.unsure_to } else { self.unsure_to.max(self.reserved) };
        Mark { boot, unsure_to, ended: false, ..self }
    }

    /// Before an entry is carried out. Whether the mark must be synced first.
    pub fn begin(&mut self, index: u64) -> bool {
        let beyond = index > self.reserved;
        if beyond {
            self.reserved = index.saturating_add(RESERVED);
        }
        beyond
    }

    /// An entry was carried out, or the state after it taken over. Whether that is new.
    pub fn done(&mut self, index: u64) -> bool {
        let new = index > self.done;
        self.done = self.done.max(index);
        self.reserved = self.reserved.max(index);
        new
    }

    /// The process ends in good order.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// All that was ever carried out here was carried out in this life of the process: it is known from here on.
    pub fn settle(&mut self) -> bool {
        let was = self.unsure_to;
        self.unsure_to = was.min(self.done);
        was != self.unsure_to
    }

    /// Whether an entry was carried out.
    pub fn carried(&self, index: u64) -> Carried {
        match index {
            _ if index <= self.done => Carried::Yes,
            _ if index <= self.unsure_to => Carried::Unknown,
            _ => Carried::No,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.boot);
        bytes[24..32].copy_from_slice(&self.done.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.reserved.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.unsure_to.to_le_bytes());
        bytes[48] = u8::from(self.ended);
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one; none: it is damaged.
    pub fn decode(bytes: &[u8; MARK_BYTES]) -> Option<Mark> {
        let number = |from: usize| Some(u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let boot = bytes.get(8..24)?.try_into().ok()?;
        let (done, reserved, unsure_to) = (number(24)?, number(32)?, number(40)?);
        let mark = Mark { boot, done, reserved, unsure_to, ended: bytes[48] != 0 };
        (mark.encode() == *bytes).then_some(mark)
    }
}
