//! One machine on a simulated disk: the engine's core, log and snapshots, driven without threads from a seeded plan.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

use weir_base::world::{Disk, Rng, SimDisk};
use weir_order::local::{Input, Local, LocalSettings, Output};
use weir_order::log::{Log, LogSettings, prepare_spare};
use weir_order::snapshot::SnapshotStore;
use weir_order::{Entry, Error, Position};

use super::witness::{Witness, id_of, payload};

pub const LOG: LogSettings = LogSettings { segment_bytes: 8192, batch_bytes_max: 2048, log_id_if_new: 11 };
const LOCAL: LocalSettings = LocalSettings { batch_bytes_max: 2048, waiting_max: 16, write_bytes_max: 3000 };

/// How the machine is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Not at all.
    No,
    /// It answers before it syncs.
    AnswersBeforeSync,
    /// It keeps the log only above the newest snapshot.
    TruncatesBelowNewest,
    /// It takes a failed sync for a good one.
    IgnoresFailedSync,
}

/// Wraps a disk whose failed syncs are not reported.
pub struct Hushed(pub Arc<dyn Disk>);

struct HushedFile(Arc<dyn weir_base::world::DiskFile>);

impl weir_base::world::DiskFile for HushedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        // The second call says Ok, as it does after a failed sync.
        self.0.sync_data().or_else(|_| self.0.sync_data())
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl Disk for Hushed {
    fn create(&self, name: &str) -> io::Result<Arc<dyn weir_base::world::DiskFile>> {
        Ok(Arc::new(HushedFile(self.0.create(name)?)))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn weir_base::world::DiskFile>> {
        Ok(Arc::new(HushedFile(self.0.open(name)?)))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }
    fn lock(&self, name: &str, holder: &str) -> io::Result<weir_base::world::LockOutcome> {
        self.0.lock(name, holder)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Why a run ended.
#[derive(Debug)]
pub enum Stop {
    /// The disk is dead or refuses: open again.
    Reopen(Error),
    /// The checker objects.
    Caught(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Reopen(error)
    }
}

pub struct Machine {
    disk: Arc<dyn Disk>,
    log: Log,
    core: Local<u64>,
    snapshots: SnapshotStore,
    broken: Broken,
}

impl Machine {
    /// Opens and shows the whole history to the witness.
    pub fn open(disk: &SimDisk, broken: Broken, witness: &mut Witness) -> Result<Machine, Stop> {
        let disk: Arc<dyn Disk> = match broken {
            Broken::IgnoresFailedSync => Arc::new(Hushed(Arc::new(disk.restart()))),
            _ => Arc::new(disk.restart()),
        };
        let snapshots = SnapshotStore::open(Arc::clone(&disk))?;
        let mut state = Vec::new();
        if let Some(mut reader) = snapshots.read_newest()? {
            reader.read_to_end(&mut state).map_err(|error| Stop::Caught(error.to_string()))?;
        }
        let mut history: Vec<u64> =
            state.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap())).collect();
        let base = history.len() as u64;
        let (log, _) = Log::open(Arc::clone(&disk), LOG, base)?;
        for entry in log.replay(base + 1)? {
            let entry = entry?;
            if entry.position.index != history.len() as u64 + 1 {
                return Err(Stop::Caught(format!("index {} after {}", entry.position.index, history.len())));
            }
            history.push(id_of(&entry.batch).map_err(Stop::Caught)?);
        }
        witness.judge(&history).map_err(Stop::Caught)?;
        let core = Local::new(LOCAL, log.last());
        Ok(Machine { disk, log, core, snapshots, broken })
    }

    fn write(&mut self, entries: &[Entry], rng: &mut Rng) -> Result<usize, Error> {
        let count = self.log.append(entries)?;
        if self.broken != Broken::AnswersBeforeSync || rng.chance(1, 3) {
            self.log.sync()?;
        }
        Ok(count)
    }

    fn propose(&mut self, count: u64, rng: &mut Rng, witness: &mut Witness) -> Result<(), Stop> {
        let mut out = Vec::new();
        for _ in 0..count {
            let ticket = witness.propose();
            self.core.step(Input::Propose { ticket, batch: payload(ticket) }, &mut out);
        }
        let mut outputs: VecDeque<Output<u64>> = out.into();
        let mut failure = None;
        while let Some(output) = outputs.pop_front() {
            let input = match output {
                Output::Write { entries } => match self.write(&entries, rng) {
                    Ok(count) => Input::Written { count },
                    Err(error) => Input::WriteFailed { error },
                },
                Output::Committed { .. } => continue,
                Output::Done { ticket, result: Ok(at) } => {
                    witness.acknowledged(ticket, at.index).map_err(Stop::Caught)?;
                    continue;
                }
                Output::Done { ticket, result: Err(error) } => {
                    if error.is_definite() {
                        witness.refused(ticket);
                    } else {
                        failure = Some(error);
                    }
                    continue;
                }
            };
            let mut out = Vec::new();
            self.core.step(input, &mut out);
            outputs.extend(out);
        }
        failure.map_or(Ok(()), |error| Err(Stop::Reopen(error)))
    }

    pub fn snapshot(&mut self, witness: &Witness) -> Result<(), Error> {
        let at: Position = self.log.last();
        if self.snapshots.newest().map_or(0, |info| info.at.index) >= at.index {
            return Ok(());
        }
        let state: Vec<u8> = witness.state().iter().flat_map(|id| id.to_le_bytes()).collect();
        match self.snapshots.save(at, &mut &state[..]) {
            // No room: the older ones do.
            Ok(_) | Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        let keep_above = match self.broken {
            Broken::TruncatesBelowNewest => self.snapshots.newest().map(|info| info.at.index),
            _ => self.snapshots.log_needed_above(),
        };
        keep_above.map_or(Ok(()), |index| self.log.truncate_below(index))
    }

    pub fn close(&mut self) -> Result<(), Error> {
        self.log.close()
    }
}

/// A whole life: a plan of `steps` steps drawn from `seed`, with kills, power cuts, failing syncs and writes, and a
/// disk that is full for a while. After whatever stops it, the machine is opened again and judged.
pub struct Life {
    pub disk: SimDisk,
    pub witness: Witness,
    broken: Broken,
    rng: Rng,
    machine: Option<Machine>,
    cut_at: Option<u64>,
}

impl Life {
    pub fn new(seed: u64, broken: Broken) -> Life {
        let (disk, rng) = (SimDisk::new(seed), Rng::new(seed ^ 0x5eed));
        Life { disk, witness: Witness::default(), broken, rng, machine: None, cut_at: None }
    }

    /// Lets the power go during the change after `changes` of them.
    pub fn cut_at(&mut self, changes: u64) {
        self.cut_at = Some(changes);
    }

    /// Lives `steps` steps; the error is the checker's.
    pub fn run(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.ensure_open()?;
            match self.step() {
                Ok(()) => {}
                Err(Stop::Caught(what)) => return Err(what),
                Err(Stop::Reopen(error)) => self.expect_excuse(&error)?,
            }
        }
        self.machine = None;
        self.ensure_open()
    }

    /// An error must have been caused by the disk.
    fn expect_excuse(&mut self, error: &Error) -> Result<(), String> {
        self.machine = None;
        match error {
            Error::Io { .. } | Error::Poisoned { .. } | Error::DiskFull { .. } => Ok(()),
            other => Err(format!("without the disk's fault: {other}")),
        }
    }

    /// Opens, again and again while power goes during recovery.
    fn ensure_open(&mut self) -> Result<(), String> {
        // Each try moves the cut on, so recovery gets through at last.
        for attempt in 0..200 {
            if self.machine.is_some() {
                return Ok(());
            }
            self.disk.kill();
            self.disk.set_capacity_bytes(u64::MAX);
            self.arm(attempt < 100);
            match Machine::open(&self.disk, self.broken, &mut self.witness) {
                Ok(machine) => self.machine = Some(machine),
                Err(Stop::Caught(what)) => return Err(what),
                Err(Stop::Reopen(error)) => self.expect_excuse(&error)?,
            }
        }
        Err("recovery never ends".to_owned())
    }

    /// Arms the next power cut: one during recovery, if `early` and drawn, or the one that was asked for.
    fn arm(&mut self, early: bool) {
        let asked = self.cut_at.and_then(|at| at.checked_sub(self.disk.changes()));
        let drawn = (early && self.rng.chance(1, 2)).then(|| self.rng.below(6));
        if let Some(changes) = asked.into_iter().chain(drawn).min() {
            self.disk.cut_power_after(changes);
        }
    }

    fn step(&mut self) -> Result<(), Stop> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let (rng, witness) = (&mut self.rng, &mut self.witness);
        match rng.below(32) {
            0..16 => machine.propose(1 + rng.below(6), rng, witness)?,
            16..20 => machine.log.mark(),
            20..24 => machine.snapshot(witness)?,
            24 => prepare_spare(&*machine.disk, LOG.segment_bytes).unwrap_or_default(),
            25 => {
                machine.close()?;
                self.machine = None;
            }
            26 => self.machine = None,
            27 => {
                self.machine = None;
                self.disk.cut_power();
            }
            28 => self.disk.fail_syncs(1),
            29 => self.disk.fail_writes(1 + rng.below(3), io::ErrorKind::StorageFull),
            30 => self.disk.set_capacity_bytes(self.disk.used_bytes() + rng.below(12_000)),
            _ => self.disk.set_capacity_bytes(u64::MAX),
        }
        Ok(())
    }

    /// Damages the newest snapshot, if there is one, and opens the machine without it.
    pub fn rot_newest_snapshot(&mut self) -> Result<(), String> {
        self.settle()?;
        let names = self.disk.restart().list().unwrap();
        let Some(newest) = names.iter().rfind(|name| name.ends_with(".snap")) else { return Ok(()) };
        self.disk.flip_bit(newest, 44, 3).unwrap();
        match Machine::open(&self.disk, self.broken, &mut self.witness) {
            Ok(_) => Ok(()),
            Err(Stop::Caught(what)) => Err(what),
            Err(Stop::Reopen(error)) => self.expect_excuse(&error),
        }
    }

    /// Opens the machine, until all is durable and marked, and closes it.
    pub fn settle(&mut self) -> Result<(), String> {
        self.machine = None;
        self.disk.kill();
        self.disk.set_capacity_bytes(u64::MAX);
        let opened = Machine::open(&self.disk, self.broken, &mut self.witness);
        let mut machine = opened.map_err(|stop| format!("{stop:?}"))?;
        machine.close().map_err(|error| error.to_string())?;
        self.disk.kill();
        Ok(())
    }
}
