//! Crashes at any byte: what is found afterwards is what was acknowledged and some first part of what was not.

use std::collections::BTreeMap;

use openraft::vote::RaftLeaderId;
use tokio::sync::oneshot;
use weir_base::world::{DiskFile, LockOutcome, Rng};

use super::*;
use crate::log::writer::Pending;

/// What a log holds, as a reader sees it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Held {
    entries: BTreeMap<u64, RaftEntry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
}

/// One step that may reach the disk without the next.
#[derive(Debug, Clone)]
enum Step {
    Append(RaftEntry),
    Cut(Option<LogId>),
    Purge(LogId),
    Vote(Vote),
}

impl Held {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(entry) => {
                self.entries.insert(entry.log_id.index(), entry.clone());
            }
            Step::Cut(last) => {
                let end = last.map_or(0, |id| id.index() + 1);
                self.entries.retain(|index, _| *index < end);
            }
            Step::Purge(upto) => {
                self.entries.retain(|index, _| *index > upto.index());
                self.purged = Some(*upto);
            }
            Step::Vote(vote) => self.vote = Some(*vote),
        }
    }

    fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }
}

fn read(store: &LogStore) -> Held {
    let entries = store.shared().read(0, u64::MAX, u64::MAX).unwrap();
    let view = store.shared().view();
    let (purged, vote, last) = (view.purged, view.vote, view.last());
    let held = Held { entries: entries.into_iter().map(|e| (e.log_id.index(), e)).collect(), purged, vote };
    assert_eq!(held.last(), last);
    held
}

/// A disk whose syncs say Ok and do nothing: the canary.
struct Lying(Arc<dyn Disk>);
struct LyingFile(Arc<dyn DiskFile>);

impl DiskFile for LyingFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_at(offset, bytes)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
}

impl Disk for Lying {
    fn create(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(LyingFile(self.0.open(name)?)))
    }
    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> std::io::Result<Vec<String>> {
        self.0.list()
    }
    fn sync_dir(&self) -> std::io::Result<()> {
        self.0.sync_dir()
    }
    fn lock(&self, name: &str, holder: &str) -> std::io::Result<LockOutcome> {
        self.0.lock(name, holder)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

struct Life {
    rng: Rng,
    disk: SimDisk,
    lying: bool,
    /// What was acknowledged, and what was asked since.
    sure: Held,
    open: Vec<Step>,
    term: u64,
}

/// What is owed for a group of writes.
type Answers = Vec<oneshot::Receiver<std::io::Result<()>>>;

impl Life {
    fn new(seed: u64, lying: bool) -> Life {
        let disk = SimDisk::new(seed);
        Life { rng: Rng::new(seed), disk, lying, sure: Held::default(), open: Vec::new(), term: 1 }
    }

    fn now(&self) -> Held {
        let mut held = self.sure.clone();
        self.open.iter().for_each(|step| held.step(step));
        held
    }

    fn draw(&mut self) -> Vec<Step> {
        let now = self.now();
        let last = now.last();
        let next = last.map_or(0, |id| id.index() + 1);
        match self.rng.below(20) {
            0..11 => {
                let count = 1 + self.rng.below(5);
                let sizes: Vec<usize> = (0..count).map(|_| self.rng.below(2500) as usize).collect();
                (next..)
                    .zip(sizes)
                    .map(|(index, bytes)| Step::Append(entry(self.term, index, bytes)))
                    .collect()
            }
            11..14 => {
                self.term += 1;
                let vote =
                    Vote { leader_id: RaftLeaderId::new(self.term, 1), committed: self.rng.chance(1, 2) };
                vec![Step::Vote(vote)]
            }
            14..16 if !now.entries.is_empty() => {
                // A new leader has other entries.
                self.term += 1;
                let low = now.purged.map_or(0, |id| id.index() + 1);
                let keep = low + self.rng.below(next - low);
                let before = keep.checked_sub(1);
                let last = before
                    .map(|index| now.entries.get(&index).map_or_else(|| now.purged.unwrap(), |e| e.log_id));
                vec![Step::Cut(last)]
            }
            16..18 if !now.entries.is_empty() => {
                let indices: Vec<u64> = now.entries.keys().copied().collect();
                let index = indices[self.rng.below(indices.len() as u64) as usize];
                vec![Step::Purge(now.entries[&index].log_id)]
            }
            18 => {
                // Another replica's snapshot runs ahead.
                self.term += 1;
                vec![Step::Purge(log_id(self.term, next + self.rng.below(20)))]
            }
            _ => Vec::new(),
        }
    }

    fn ask(&mut self, store: &LogStore, steps: Vec<Step>, writes: &mut Vec<Write>, answers: &mut Answers) {
        let mut pending = Vec::new();
        for step in &steps {
            match step {
                Step::Append(entry) => {
                    let (tag, body) = crate::codec::payload_parts(&entry.payload);
                    let stamp = store.shared().view().push(entry.clone(), body.len() as u64 + 48);
                    pending.push(Pending { at: position_of(Some(&entry.log_id)), tag, body, stamp });
                }
                Step::Cut(last) => {
                    store.shared().view().set_last(*last);
                    writes.push(Write::Cut { last: *last });
                }
                Step::Purge(upto) => {
                    store.shared().view().purge(*upto);
                    writes.push(Write::Purge { upto: *upto });
                }
                Step::Vote(vote) => {
                    let (done, answer) = oneshot::channel();
                    writes.push(Write::Vote { vote: *vote, done });
                    answers.push(answer);
                }
            }
        }
        if !pending.is_empty() {
            writes.push(Write::Append { entries: pending, done: IOFlushed::noop() });
        }
        self.open.extend(steps);
    }

    /// One life of the process; gives why the log was not what it should be.
    fn live(&mut self, rounds: u64) -> Result<(), String> {
        // A handle is dead after its machine's crash.
        self.disk = self.disk.restart();
        let mut disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        if self.lying {
            disk = Arc::new(Lying(disk));
        }
        if self.rng.chance(1, 2) {
            self.disk.cut_power_after(self.rng.below(60));
        }
        // Power may go while it is opened, too: that is no life.
        let opened = match open(disk, SETTINGS, 3000, false) {
            _ if self.disk.is_dead() => return Ok(()),
            Ok(opened) => opened,
            Err(error) => return Err(format!("refused: {error}")),
        };
        let OpenedLog { store, mut writer, .. } = opened;
        self.settle(read(&store))?;
        for _ in 0..rounds {
            let (mut writes, mut answers) = (Vec::new(), Vec::new());
            for _ in 0..1 + self.rng.below(4) {
                let steps = self.draw();
                self.ask(&store, steps, &mut writes, &mut answers);
            }
            if self.rng.chance(1, 25) && !self.disk.is_dead() {
                self.disk.fail_writes(1, std::io::ErrorKind::StorageFull);
            }
            writer.drain(&mut writes);
            if writer.is_waiting() {
                // There is room again.
                writer.drain(&mut Vec::new());
            }
            let acked = writer.is_healthy();
            assert!(answers.into_iter().all(|mut answer| answer.try_recv().unwrap().is_ok() == acked));
            if !acked {
                break;
            }
            self.sure = self.now();
            self.open.clear();
            if self.rng.chance(1, 3) {
                writer.idle();
            }
            assert!(self.disk.is_dead() || read(&store).entries == self.sure.entries, "read while it runs");
        }
        match self.rng.below(4) {
            _ if self.disk.is_dead() => {}
            0 => self.disk.kill(),
            1 => {
                let (closed, dead) = (writer.close(), self.disk.is_dead());
                self.disk.kill();
                closed.or_else(
                    |error| {
                        if writer.is_healthy() && !dead { Err(error.to_string()) } else { Ok(()) }
                    },
                )?;
            }
            _ => self.disk.cut_power(),
        }
        Ok(())
    }

    /// What is there must be what was sure and a first part of what was not.
    fn settle(&mut self, found: Held) -> Result<(), String> {
        let mut held = self.sure.clone();
        let mut matches = held == found;
        for step in std::mem::take(&mut self.open) {
            if matches {
                break;
            }
            held.step(&step);
            matches = held == found;
        }
        if !matches {
            let brief = |held: &Held| (held.last(), held.purged, held.vote, held.entries.len());
            return Err(format!("found {:?}, sure was {:?}", brief(&found), brief(&self.sure)));
        }
        self.sure = found;
        Ok(())
    }
}

fn lives(seed: u64, lying: bool) -> Result<(), String> {
    let mut life = Life::new(seed, lying);
    (0..6).try_for_each(|_| life.live(12))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_cut_comes_back() {
    for seed in 0..1500 {
        lives(seed, false).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn syncs_that_lie_are_caught() {
    let caught = (0..200).filter(|seed| lives(*seed, true).is_err()).count();
    assert!(caught > 20, "only {caught} of 200 lives noticed");
}
