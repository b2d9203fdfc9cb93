//! An actuator without its sockets: what it does with frames, and what it keeps.

use crate::{Actuator, ActuatorError};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_base::contain::contain;
use weir_base::numbers::Numbers;
use weir_base::world::RealDisk;
use weir_model::event::{Event, EventBody, SignedEvent, SourceId};
use weir_model::local::PLANE_NAMES_MAX;
use weir_model::plane::{PlaneReport, REPORTS_MAX};
use weir_model::signed::{GroupKey, SignedAcks, SignedHeader, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Label, Update, Version};
use weir_planes::Plane;
use weir_trust::batch::Verifier;
use weir_trust::gate::{Gate, Verdict};
use weir_trust::identity::{KeyPair, sign_acks, sign_event};

/// Numbers reserved at once.
const NUMBERS_STEP: u64 = 1024;
/// Longest reason of a refusal that is told, bytes.
const REASON_BYTES_MAX: usize = 1024;

/// Reads the key that the host signs with. It is asked each time something is signed, because the host changes it.
pub type ReadKey = Box<dyn Fn() -> Result<KeyPair, String> + Send>;

/// Whose actuator it is, and whom it believes.
pub struct Identity {
    /// Name of the host.
    pub actuator: Label,
    /// The domain.
    pub domain: Label,
    /// The key of its group of controllers.
    pub group: GroupKey,
    /// Reads the host's key.
    pub read_key: ReadKey,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("actuator", &self.actuator).finish_non_exhaustive()
    }
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Specifications put in force or taken away.
    pub applied: u64,
    /// Updates that the actuator refused.
    pub refused: u64,
    /// Panics of the actuator that were contained.
    pub faults: u64,
    /// Updates that were applied and not kept, because the journal could not be written.
    pub unkept: u64,
    /// Frames that were not acked, because the host's key could not be read.
    pub unsigned: u64,
    /// Reports that were signed.
    pub reports: u64,
    /// Reports left out, because there were too many or one was over a limit.
    pub reports_dropped: u64,
}

/// A write of the journal, as [`Machine::watch_writes`] is asked about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It comes: the actuator has applied what is written.
    Before,
    /// It is done: what was written is not acked yet.
    After,
}

type Watch = Box<dyn FnMut(Write) -> io::Result<()> + Send>;

/// See the module.
pub struct Machine<A: Actuator> {
    plane: Label,
    identity: Identity,
    actuator: A,
    journal: PathBuf,
    gate: Gate,
    /// The journal failed: the gate is opened anew before anything else.
    is_broken: bool,
    numbers: Numbers,
    /// What the journal holds and the actuator has not, and why.
    unapplied: BTreeMap<Key, String>,
    told: BTreeMap<String, Vec<u8>>,
    watch: Option<Watch>,
    /// Counters.
    pub counters: Counters,
}

fn open(identity: &Identity, journal: &Path) -> io::Result<Gate> {
    let verifier = Verifier::new(identity.domain.clone(), identity.group.clone());
    Gate::open(identity.actuator.clone(), verifier, journal)
}

fn cut(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        reason.truncate(end);
    }
    reason
}

impl<A: Actuator> Machine<A> {
    /// Opens what it kept in a folder, and applies it.
    ///
    /// # Errors
    /// [`ActuatorError`]; that the actuator refuses what was kept is none, see [`Machine::problems`].
    pub fn open(identity: Identity, folder: &Path, actuator: A) -> Result<Machine<A>, ActuatorError> {
        let name = A::Plane::NAME;
        let plane = Label::new(name).map_err(|_| ActuatorError::Name(name.to_string()))?;
        let shown = || folder.display().to_string();
        std::fs::create_dir_all(folder).map_err(ActuatorError::io(shown()))?;
        (identity.read_key)().map_err(ActuatorError::Key)?;
        let journal = folder.join("gate");
        let gate =
            open(&identity, &journal).map_err(ActuatorError::io(format!("the journal in {}", shown())))?;
        let disk = RealDisk::open(folder).map_err(ActuatorError::io(shown()))?;
        // Without its file the numbers go on from the clock, as a switch's do.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let numbers = Numbers::open(Arc::new(disk), "numbers", NUMBERS_STEP, since.as_millis() as u64)
            .map_err(ActuatorError::io(format!("the numbers in {}", shown())))?;
        let mut machine = Machine {
            plane,
            identity,
            actuator,
            journal,
            gate,
            is_broken: false,
            numbers,
            unapplied: BTreeMap::new(),
            told: BTreeMap::new(),
            watch: None,
            counters: Counters::default(),
        };
        machine.apply_all();
        Ok(machine)
    }

    /// The plane.
    pub fn plane(&self) -> &Label {
        &self.plane
    }

    /// The actuator.
    pub fn actuator(&mut self) -> &mut A {
        &mut self.actuator
    }

    /// Asks this around each write of the journal; an error of it is one of the journal. For tests of what a disk that fails, or
    /// a process that ends there, leaves.
    pub fn watch_writes(&mut self, watch: impl FnMut(Write) -> io::Result<()> + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// The names that it takes.
    pub fn names(&self) -> Option<Vec<String>> {
        self.actuator.names().map(|mut names| {
            names.truncate(PLANE_NAMES_MAX);
            names
        })
    }

    /// Whether a key is of this plane.
    pub fn is_own(&self, key: &Key) -> bool {
        matches!(key, Key::Plane { plane, .. } if *plane == self.plane)
    }

    /// Applies all that the journal holds.
    fn apply_all(&mut self) {
        self.unapplied.clear();
        let kept: Vec<(Key, Version, Entry)> = self
            .gate
            .iter()
            .filter(|(key, _)| self.is_own(key))
            .filter_map(|(key, known)| Some((key.clone(), known.version, known.entry.clone()?)))
            .collect();
        for (key, version, entry) in kept {
            if let Err(reason) = self.try_apply(&key, Some(&entry), version) {
                tracing::error!(%key, %version, reason, "what was kept is not in force");
                self.unapplied.insert(key, reason);
            }
        }
    }

    /// Has the actuator apply something; a panic of it is contained.
    fn try_apply(&mut self, key: &Key, entry: Option<&Entry>, version: Version) -> Result<(), String> {
        let Key::Plane { name, .. } = key else { return Err("no entry of a plane".into()) };
        let spec = match entry {
            Some(Entry::Plane(bytes)) => {
                Some(weir_planes::read::<A::Plane>(name, bytes).map_err(|problem| problem.to_string())?)
            }
            Some(_) => return Err("no entry of a plane".into()),
            None => None,
        };
        let actuator = &mut self.actuator;
        match contain(|| actuator.apply(name, spec.as_ref(), version)) {
            Ok(result) => result.map_err(cut),
            Err(fault) => {
                self.counters.faults += 1;
                Err(cut(format!("a fault of the program: {}", fault.message)))
            }
        }
    }

    /// After a refusal what was in force must be: after a panic nobody knows, so it is applied again.
    fn restore(&mut self, key: &Key) {
        let before = self.gate.get(key).map(|known| (known.version, known.entry.clone()));
        let (version, entry) = before.unwrap_or((Version::ZERO, None));
        if let Err(reason) = self.try_apply(key, entry.as_ref(), version) {
            tracing::error!(%key, reason, "what was in force cannot be put in force again");
            self.unapplied.insert(key.clone(), reason);
        }
    }

    /// Takes a frame, and answers each update of it, signed. None: nothing may be acked, because the journal or the key
    /// failed; the updates come again.
    pub fn take(&mut self, frame: &SignedUpdates) -> Option<SignedAcks> {
        if self.is_broken {
            match open(&self.identity, &self.journal) {
                Ok(gate) => {
                    self.gate = gate;
                    self.is_broken = false;
                    // What was applied and not kept is not in force.
                    self.apply_all();
                }
                Err(error) => {
                    self.counters.unkept += frame.updates.len() as u64;
                    tracing::error!(%error, "the journal cannot be opened: nothing is acked until it can");
                    return None;
                }
            }
        }
        let mut acks = Vec::with_capacity(frame.updates.len());
        for number in 0..frame.updates.len() {
            match self.take_one(frame, number) {
                Ok(ack) => acks.push(ack),
                Err(error) => {
                    self.is_broken = true;
                    self.counters.unkept += 1;
                    tracing::error!(%error, "the journal cannot be written: nothing is acked until it can");
                    break;
                }
            }
        }
        self.sign(acks)
    }

    fn take_one(&mut self, frame: &SignedUpdates, number: usize) -> io::Result<Ack> {
        let update = &frame.updates[number].update;
        let result = match self.gate.admit(frame, number) {
            Verdict::Refuse(refusal) => Err(refusal),
            Verdict::InForce if !self.unapplied.contains_key(&update.key) => Ok(()),
            Verdict::InForce => {
                let entry = self.gate.get(&update.key).and_then(|known| known.entry.clone());
                let applied = self.try_apply(&update.key, entry.as_ref(), update.version);
                if applied.is_ok() {
                    self.unapplied.remove(&update.key);
                }
                applied.map_err(Refusal::Failed)
            }
            Verdict::Admit => match self.admitted(update) {
                Ok(()) => {
                    if let Err(error) = self.commit(frame, number) {
                        // Without its place in the journal it is not in force.
                        self.restore(&update.key);
                        return Err(error);
                    }
                    self.unapplied.remove(&update.key);
                    self.counters.applied += 1;
                    Ok(())
                }
                Err(refusal) => Err(refusal),
            },
        };
        self.counters.refused += u64::from(result.is_err());
        Ok(Ack { key: update.key.clone(), version: update.version, result })
    }

    fn commit(&mut self, frame: &SignedUpdates, number: usize) -> io::Result<()> {
        if let Some(watch) = &mut self.watch {
            watch(Write::Before)?;
        }
        self.gate.commit(frame, &[number])?;
        self.watch.as_mut().map_or(Ok(()), |watch| watch(Write::After))
    }

    fn admitted(&mut self, update: &Update) -> Result<(), Refusal> {
        let Key::Plane { plane, name } = &update.key else {
            return Err(Refusal::Failed(format!(
                "{} is for the switch, not for plane {}",
                update.key, self.plane
            )));
        };
        if *plane != self.plane {
            return Err(Refusal::Failed(format!("this process is of plane {}, not of {plane}", self.plane)));
        }
        if let Some(names) = self.actuator.names().filter(|names| !names.contains(name)) {
            return Err(Refusal::Failed(format!("no '{name}' here: this process has {}", names.join(", "))));
        }
        let entry = match &update.change {
            Change::Put(entry) => Some(entry),
            Change::Delete => None,
        };
        let is_new = self.gate.get(&update.key).is_none_or(|known| known.entry.is_none());
        if entry.is_some() && is_new && self.entries().count() >= A::Plane::ORDERS_MAX {
            return Err(Refusal::Full { limit: A::Plane::ORDERS_MAX as u64 });
        }
        let faults = self.counters.faults;
        self.try_apply(&update.key, entry, update.version).map_err(|reason| {
            if self.counters.faults > faults {
                self.restore(&update.key);
            }
            Refusal::Failed(reason)
        })
    }

    fn sign(&mut self, acks: Vec<Ack>) -> Option<SignedAcks> {
        if acks.is_empty() {
            return None;
        }
        match (self.identity.read_key)() {
            Ok(key) => Some(sign_acks(&key, &self.identity.actuator, acks)),
            Err(error) => {
                self.counters.unsigned += 1;
                tracing::error!(error, "the host's key cannot be read: nothing is acked until it can");
                None
            }
        }
    }

    /// The public key that it signs with now.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn public_key(&self) -> Result<[u8; 32], String> {
        (self.identity.read_key)().map(|key| key.public())
    }

    /// What is in force, deleted keys whose version is remembered included, in the order of the keys.
    pub fn state(&self) -> Vec<(Key, Version)> {
        let kept = self.gate.iter().filter(|(key, _)| self.is_own(key) && !self.unapplied.contains_key(*key));
        kept.map(|(key, known)| (key.clone(), known.version)).collect()
    }

    /// The same with what each key adds to the digest of the host's state.
    pub fn contents(&self) -> Vec<(Key, Version, u128)> {
        let own = self.gate.iter().filter(|(key, _)| self.is_own(key) && !self.unapplied.contains_key(*key));
        own.map(|(key, known)| (key.clone(), known.version, known.content())).collect()
    }

    /// The same of one key; version zero where it has none in force.
    pub fn content_of(&self, key: &Key) -> (Key, Version, u128) {
        let known = self.gate.get(key).filter(|_| self.is_own(key) && !self.unapplied.contains_key(key));
        let (version, content) = known.map_or((Version::ZERO, 0), |known| (known.version, known.content()));
        (key.clone(), version, content)
    }

    /// What is in force, with the header that proves who signed it, in the order of the keys.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, Version, &Entry, &SignedHeader)> {
        let own = self.gate.iter().filter(|(key, _)| self.is_own(key));
        own.filter_map(|(key, known)| Some((key, known.version, known.entry.as_ref()?, &known.header)))
    }

    /// What was kept and is not in force, and why.
    pub fn problems(&self) -> &BTreeMap<Key, String> {
        &self.unapplied
    }

    /// Asks the actuator for its reports, and signs those that changed; `all` signs the others too.
    pub fn reports(&mut self, all: bool) -> Vec<SignedEvent> {
        let Ok(reports) = contain(|| self.actuator.report()) else {
            self.counters.faults += 1;
            return Vec::new();
        };
        let mut events = Vec::new();
        for (at, (name, report)) in reports.into_iter().enumerate() {
            let bytes = serde_json::to_vec(&report).unwrap_or_default();
            let (plane, actuator) = (self.plane.clone(), self.identity.actuator.clone());
            let report = PlaneReport { plane, actuator, name, bytes };
            if at >= REPORTS_MAX || report.problem().is_some() {
                self.counters.reports_dropped += 1;
                continue;
            }
            if !all && self.told.get(&report.name) == Some(&report.bytes) {
                continue;
            }
            let (name, bytes) = (report.name.clone(), report.bytes.clone());
            match self.sign_report(report) {
                Ok(event) => {
                    self.told.insert(name, bytes);
                    self.counters.reports += 1;
                    events.push(event);
                }
                Err(error) => {
                    self.counters.reports_dropped += 1;
                    tracing::warn!(error, "a report is not told");
                }
            }
        }
        events
    }

    fn sign_report(&mut self, report: PlaneReport) -> Result<SignedEvent, String> {
        let key = (self.identity.read_key)()?;
        let sequence = self.numbers.take().map_err(|error| error.to_string())?;
        let source = SourceId::of_plane(&self.identity.actuator, &self.plane);
        let event = Event { source, sequence, body: EventBody::Report(report) };
        Ok(sign_event(&key, &self.identity.domain, event, None))
    }

    /// All counters, by name with labels: its own, and those of the actuator.
    pub fn metrics(&self) -> Vec<(String, u64)> {
        let Counters { applied, refused, faults, unkept, unsigned, reports, reports_dropped } = self.counters;
        let gate = self.gate.counters;
        let plane = &self.plane;
        let numbers = [
            ("updates_total", "what=\"applied\"", applied),
            ("updates_total", "what=\"repeated\"", gate.repeated),
            ("updates_total", "what=\"forged\"", gate.forged),
            ("updates_total", "what=\"refused\"", refused),
            ("updates_total", "what=\"unkept\"", unkept),
            ("updates_total", "what=\"unsigned\"", unsigned),
            ("faults_total", "", faults),
            ("reports_total", "what=\"sent\"", reports),
            ("reports_total", "what=\"dropped\"", reports_dropped),
            ("journal_cut_bytes_total", "", gate.journal_cut_bytes),
            ("entries", "", self.entries().count() as u64),
            ("entries_not_applied", "", self.unapplied.len() as u64),
        ];
        let named = |(name, label, value): &(&str, &str, u64)| {
            let more = if label.is_empty() { String::new() } else { format!(",{label}") };
            (format!("plane_{name}{{plane=\"{plane}\"{more}}}"), *value)
        };
        let mut all: Vec<(String, u64)> = numbers.iter().map(named).collect();
        all.extend(self.actuator.metrics());
        all
    }
}
