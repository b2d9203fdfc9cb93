//! What the requests of one entry of the order may cost, so that no entry can end or hold up those who carry it out.
//!
//! A [`Meter`] runs along while an entry is carried out. Whatever an operation does is charged before it is done: fuel
//! of procedures, bytes read and written, bytes answered, entries touched. What passes a bound is refused as
//! [`Refusal::TooLarge`], and nothing of it is done.
//!
//! Two bounds stand over each other: [`BATCH`] for the requests of one client, and [`ENTRY`] for all that are in one
//! entry. What one client takes must not refuse its neighbours' plain requests, so each batch has [`FLOOR`] however much the
//! others took, for [`FLOORS_MAX`] batches.
//!
//! Invariant: charges are functions of the state and of the order, so every replica refuses the same.
//!
//! Entries that were ordered before a group had these bounds were carried out without them, and must be again
//! ([`Meter::unbounded`]); there only the depth of calls is bounded, above what any such entry can have had.

use crate::Refusal;
use std::collections::BTreeSet;

/// What may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Fuel of procedures, what compiling them costs included.
    pub fuel: u64,
    /// Bytes of keys and values that are read, hashed or written.
    pub bytes: u64,
    /// Bytes of what is answered, as it lies in memory.
    pub answered: u64,
    /// Entries looked at, passed or written.
    pub entries: u64,
}

/// Of the requests of one client in an entry, or of one read.
pub const BATCH: Bounds = Bounds { fuel: 50_000_000, bytes: 64 << 20, answered: 12 << 20, entries: 1 << 20 };
/// Of all requests in an entry.
pub const ENTRY: Bounds = Bounds {
    fuel: 2 * BATCH.fuel,
    bytes: 4 * BATCH.bytes,
    answered: 4 * BATCH.answered,
    entries: 2 * BATCH.entries,
};
/// What a batch may use whatever the others in its entry used.
pub const FLOOR: Bounds = Bounds { fuel: 50_000, bytes: 64 << 10, answered: 8 << 10, entries: 256 };
/// Most batches of an entry that have a floor.
pub const FLOORS_MAX: u32 = 1_024;
/// Most calls of procedures within each other: a host function that calls the module, which asks the host again.
pub const DEPTH_MAX: u32 = 8;
/// The same where nothing else is bounded. More than a stack of 2 MiB can have held; who carries such entries out has
/// [`STACK_BYTES`].
const DEPTH_UNBOUNDED: u32 = 4_096;
/// Stack of a thread that carries out entries without bounds.
pub const STACK_BYTES: usize = 256 << 20;
/// Most different modules that one entry may call: each may have to be compiled.
pub const MODULES_MAX: usize = 64;
/// What calling costs besides the module's own fuel: an instance is made.
pub const FUEL_PER_CALL: u64 = 5_000;
/// What compiling a byte of a module costs.
pub const FUEL_PER_MODULE_BYTE: u64 = 16;

/// One of the things that are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Fuel,
    Bytes,
    Answered,
    Entries,
}

impl What {
    fn words(self) -> &'static str {
        match self {
            What::Fuel => "fuel of all calls",
            What::Bytes => "bytes read and written",
            What::Answered => "bytes answered",
            What::Entries => "entries touched",
        }
    }
}

impl Bounds {
    const NOTHING: Bounds = Bounds { fuel: 0, bytes: 0, answered: 0, entries: 0 };

    fn of(&self, what: What) -> u64 {
        match what {
            What::Fuel => self.fuel,
            What::Bytes => self.bytes,
            What::Answered => self.answered,
            What::Entries => self.entries,
        }
    }

    fn of_mut(&mut self, what: What) -> &mut u64 {
        match what {
            What::Fuel => &mut self.fuel,
            What::Bytes => &mut self.bytes,
            What::Answered => &mut self.answered,
            What::Entries => &mut self.entries,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Meter {
    bounded: bool,
    /// The bounds, of a batch and of the entry.
    bounds: (Bounds, Bounds),
    /// What is left of them.
    batch: Bounds,
    entry: Bounds,
    floor: Bounds,
    floors: u32,
    depth: u32,
    modules: BTreeSet<[u8; 32]>,
    exceeded: Option<Refusal>,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

impl Meter {
    /// Of one entry.
    pub fn new() -> Meter {
        Meter::of(BATCH, ENTRY)
    }

    /// Of one entry with other bounds.
    pub fn of(batch: Bounds, entry: Bounds) -> Meter {
        Meter {
            bounded: true,
            bounds: (batch, entry),
            batch,
            entry,
            floor: Bounds::NOTHING,
            floors: 0,
            depth: 0,
            modules: BTreeSet::new(),
            exceeded: None,
        }
    }

    /// Of an entry that was ordered before there were bounds.
    pub fn unbounded() -> Meter {
        Meter { bounded: false, ..Meter::new() }
    }

    /// Whether it bounds.
    pub fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// What was used of the entry so far; floors that stood in for it are not in it.
    pub fn used(&self) -> Bounds {
        let used = |what| self.bounds.1.of(what) - self.entry.of(what);
        Bounds {
            fuel: used(What::Fuel),
            bytes: used(What::Bytes),
            answered: used(What::Answered),
            entries: used(What::Entries),
        }
    }

    /// The next batch of the entry begins.
    pub(crate) fn begin_batch(&mut self) {
        self.batch = self.bounds.0;
        self.floor = if self.floors < FLOORS_MAX { FLOOR } else { Bounds::NOTHING };
        self.floors = self.floors.saturating_add(1);
    }

    /// The next request of the batch begins.
    pub(crate) fn begin_request(&mut self) {
        self.exceeded = None;
    }

    /// Why the request is refused, when it passed a bound.
    pub(crate) fn exceeded(&self) -> Option<&Refusal> {
        self.exceeded.as_ref()
    }

    fn refuse(&mut self, what: &str, value: u64, limit: u64) -> Refusal {
        let refusal = Refusal::TooLarge { what: what.to_owned(), value, limit };
        self.exceeded.get_or_insert(refusal).clone()
    }

    /// Uses up some of it.
    pub(crate) fn charge(&mut self, what: What, amount: u64) -> Result<(), Refusal> {
        if !self.bounded {
            return Ok(());
        }
        let left = self.batch.of(what);
        if amount > left {
            let limit = self.bounds.0.of(what);
            *self.batch.of_mut(what) = 0;
            // Fuel was burnt before it is charged: it is the entry's too.
            let of_entry = self.entry.of_mut(what);
            *of_entry = of_entry.saturating_sub(left);
            let value = (limit - left).saturating_add(amount);
            return Err(self.refuse(&format!("the requests' {}", what.words()), value, limit));
        }
        *self.batch.of_mut(what) -= amount;
        let left = self.entry.of(what);
        if amount <= left {
            *self.entry.of_mut(what) -= amount;
            return Ok(());
        }
        *self.entry.of_mut(what) = 0;
        if amount <= self.floor.of(what) {
            *self.floor.of_mut(what) -= amount;
            return Ok(());
        }
        *self.floor.of_mut(what) = 0;
        let limit = self.bounds.1.of(what);
        let words = format!("{}, with what others asked in the same moment (ask again),", what.words());
        let value = (limit - left).saturating_add(amount);
        Err(self.refuse(&words, value, limit))
    }

    /// Fuel that is left to a call.
    pub(crate) fn fuel_left(&self) -> u64 {
        if !self.bounded {
            return u64::MAX;
        }
        self.batch.fuel.min(self.entry.fuel.max(self.floor.fuel))
    }

    /// A module is called.
    pub(crate) fn call(&mut self, module: [u8; 32], bytes: usize) -> Result<(), Refusal> {
        if !self.bounded {
            return Ok(());
        }
        self.charge(What::Fuel, FUEL_PER_CALL)?;
        if self.modules.contains(&module) {
            return Ok(());
        }
        if self.modules.len() >= MODULES_MAX {
            let count = self.modules.len() as u64 + 1;
            return Err(self.refuse("number of modules that one entry calls", count, MODULES_MAX as u64));
        }
        self.compile(bytes)?;
        self.modules.insert(module);
        Ok(())
    }

    /// A module is compiled.
    pub(crate) fn compile(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.charge(What::Fuel, FUEL_PER_MODULE_BYTE * bytes as u64)
    }

    /// The host calls the module that called it.
    pub(crate) fn enter(&mut self) -> Result<(), Refusal> {
        let limit = if self.bounded { DEPTH_MAX } else { DEPTH_UNBOUNDED };
        if self.depth >= limit {
            return Err(self.refuse("depth of calls within each other", self.depth.into(), limit.into()));
        }
        self.depth += 1;
        Ok(())
    }

    /// And is back.
    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
