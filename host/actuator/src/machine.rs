//! An actuator without its sockets: what it does with frames, and what it keeps.

use crate::metrics::{self, Metric};
use crate::{Actuator, ActuatorError};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use weir_base::contain::contain;
use weir_base::numbers::Numbers;
use weir_base::world::RealDisk;
use weir_model::event::{EventBody, SignedEvent, SourceId};
use weir_model::local::PLANE_NAMES_MAX;
use weir_model::plane::{PlaneReport, REPORTS_MAX};
use weir_model::signed::{GroupKey, SignedAcks, SignedHeader, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Label, Update, Version};
use weir_planes::Plane;
use weir_trust::batch::Verifier;
use weir_trust::gate::{Gate, InForce};
use weir_trust::kept::{self, Cursor, Kept, Write};
use weir_trust::signer::{HostSigner, Unsigned};

pub use weir_trust::signer::ReadKey;

/// The journal, in the folder of what an actuator keeps.
pub(crate) const JOURNAL_FILE: &str = "gate";
/// Numbers reserved at once.
const NUMBERS_STEP: u64 = 1024;
/// Longest reason of a refusal that is told, bytes.
const REASON_BYTES_MAX: usize = 1024;

/// Whose actuator it is, and whom it believes.
pub struct Identity {
    /// Name of the host.
    pub actuator: Label,
    /// The domain.
    pub domain: Label,
    /// The key of its group of controllers.
    pub group: GroupKey,
    /// Reads the host's key, each time something is signed: the host changes it.
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

/// See the module.
pub struct Machine<A: Actuator> {
    hands: Hands<A>,
    kept: Kept,
    signer: HostSigner,
    told: BTreeMap<String, Vec<u8>>,
}

/// The actuator, and what is known of what it has.
struct Hands<A: Actuator> {
    plane: Label,
    actuator: A,
    /// What the journal holds and the actuator has not, and why.
    unapplied: BTreeMap<Key, String>,
    counters: Counters,
}

impl Identity {
    /// Opens the gate of this actuator on its journal in a folder.
    fn opener(&self, folder: &Path) -> kept::OpenGate {
        let (actuator, domain, group) = (self.actuator.clone(), self.domain.clone(), self.group.clone());
        let journal = folder.join(JOURNAL_FILE);
        Box::new(move || Gate::open(actuator.clone(), Verifier::new(domain.clone(), group.clone()), &journal))
    }
}

fn cut(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        reason.truncate(end);
    }
    reason
}

/// Whether a key is of a plane.
fn is_of(key: &Key, plane: &Label) -> bool {
    matches!(key, Key::Plane { plane: of, .. } if of == plane)
}

/// What a gate has of a plane, deleted keys whose version is remembered included.
fn own<'g>(gate: &'g Gate, plane: &'g Label) -> impl Iterator<Item = (&'g Key, &'g InForce)> {
    gate.iter().filter(|(key, _)| is_of(key, plane))
}

impl<A: Actuator> Hands<A> {
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

    /// Puts in force under a key what the gate has there; what cannot be is noted.
    fn restore(&mut self, gate: &Gate, key: &Key) {
        let before = gate.get(key).map(|known| (known.version, known.entry.clone()));
        let (version, entry) = before.unwrap_or((Version::ZERO, None));
        match self.try_apply(key, entry.as_ref(), version) {
            Ok(()) => drop(self.unapplied.remove(key)),
            Err(reason) => {
                tracing::error!(%key, %version, reason, "what was kept is not in force");
                self.unapplied.insert(key.clone(), reason);
            }
        }
    }

    fn admitted(&mut self, gate: &Gate, update: &Update) -> Result<(), Refusal> {
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
        let is_new = gate.get(&update.key).is_none_or(|known| known.entry.is_none());
        let count = || own(gate, &self.plane).filter(|(_, known)| known.entry.is_some()).count();
        if entry.is_some() && is_new && count() >= A::Plane::ORDERS_MAX {
            return Err(Refusal::Full { limit: A::Plane::ORDERS_MAX as u64 });
        }
        let faults = self.counters.faults;
        self.try_apply(&update.key, entry, update.version).map_err(|reason| {
            if self.counters.faults > faults {
                // After a panic nobody knows what is in force.
                self.restore(gate, &update.key);
            }
            Refusal::Failed(reason)
        })
    }
}

impl<A: Actuator> kept::Hands for Hands<A> {
    fn apply(&mut self, gate: &Gate, update: &Update) -> Result<(), Refusal> {
        if update.key == Key::Controllers {
            // The gate reads it itself.
            return Ok(());
        }
        self.admitted(gate, update)?;
        self.unapplied.remove(&update.key);
        Ok(())
    }

    /// What could not be applied again is tried again when it comes again.
    fn again(&mut self, gate: &Gate, update: &Update) -> Result<(), Refusal> {
        if !self.unapplied.contains_key(&update.key) {
            return Ok(());
        }
        let entry = gate.get(&update.key).and_then(|known| known.entry.as_ref());
        self.try_apply(&update.key, entry, update.version).map_err(Refusal::Failed)?;
        self.unapplied.remove(&update.key);
        Ok(())
    }

    fn put_back(&mut self, gate: &Gate, keys: &BTreeSet<Key>) {
        for key in keys {
            if is_of(key, &self.plane) {
                self.restore(gate, key);
            }
        }
    }
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
        let kept = Kept::open(identity.opener(folder));
        let kept = kept.map_err(ActuatorError::io(format!("the journal in {}", shown())))?;
        let disk = RealDisk::open(folder).map_err(ActuatorError::io(shown()))?;
        // Without its file the numbers go on from the clock, as a switch's do.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let numbers = Numbers::open(Arc::new(disk), "numbers", NUMBERS_STEP, since.as_millis() as u64)
            .map_err(ActuatorError::io(format!("the numbers in {}", shown())))?;
        let mut hands = Hands { plane, actuator, unapplied: BTreeMap::new(), counters: Counters::default() };
        let of_plane = own(kept.gate(), &hands.plane).filter(|(_, known)| known.entry.is_some());
        let keys: Vec<Key> = of_plane.map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| hands.restore(kept.gate(), key));
        let Identity { actuator: host, domain, read_key, .. } = identity;
        let source = SourceId::of_plane(&host, &hands.plane);
        let signer = HostSigner::new(host, domain, source, read_key, numbers);
        Ok(Machine { hands, kept, signer, told: BTreeMap::new() })
    }

    /// The plane.
    pub fn plane(&self) -> &Label {
        &self.hands.plane
    }

    /// The actuator.
    pub fn actuator(&mut self) -> &mut A {
        &mut self.hands.actuator
    }

    /// See [`Kept::watch_writes`].
    pub fn watch_writes(&mut self, watch: impl FnMut(Write) -> io::Result<()> + Send + 'static) {
        self.kept.watch_writes(watch);
    }

    /// The names that it takes.
    pub fn names(&self) -> Option<Vec<String>> {
        self.hands.actuator.names().map(|mut names| {
            names.truncate(PLANE_NAMES_MAX);
            names
        })
    }

    /// Whether a key is of this plane.
    pub fn is_own(&self, key: &Key) -> bool {
        is_of(key, &self.hands.plane)
    }

    /// Takes a frame, and answers each update of it, signed. None: nothing may be acked, because the journal or the key
    /// failed; the updates come again.
    pub fn take(&mut self, frame: &SignedUpdates) -> Option<SignedAcks> {
        let hands = &mut self.hands;
        if let Err(error) = self.kept.mend(hands) {
            hands.counters.unkept += frame.updates.len() as u64;
            tracing::error!(%error, "the journal cannot be opened: nothing is acked until it can");
            return None;
        }
        // One at a time: how many a plane has decides whether it has room for the next.
        let mut taken = self.kept.take(frame, 1, hands);
        if let Some(error) = taken.failure {
            hands.counters.unkept += 1;
            tracing::error!(%error, "the journal cannot be written: nothing is acked until it can");
        }
        hands.counters.refused += taken.acks.iter().filter(|ack| ack.result.is_err()).count() as u64;
        // Whether that is in force on the host the switch says.
        taken.acks.retain(|ack| ack.key != Key::Controllers);
        self.sign(taken.acks)
    }

    /// The list of those whose endorsements of batches it takes, and its version.
    pub fn controllers(&self) -> Option<(Version, Option<Entry>)> {
        self.kept.gate().get(&Key::Controllers).map(|known| (known.version, known.entry.clone()))
    }

    fn sign(&mut self, acks: Vec<Ack>) -> Option<SignedAcks> {
        if acks.is_empty() {
            return None;
        }
        let signed = self.signer.acks(acks);
        signed
            .inspect_err(|error| {
                self.hands.counters.unsigned += 1;
                tracing::error!(%error, "nothing is acked until it can");
            })
            .ok()
    }

    /// The public key that it signs with now.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn public_key(&self) -> Result<[u8; 32], Unsigned> {
        self.signer.public_key()
    }

    fn in_force(&self) -> impl Iterator<Item = (&Key, &InForce)> {
        let own = own(self.kept.gate(), &self.hands.plane);
        own.filter(|(key, _)| !self.hands.unapplied.contains_key(*key))
    }

    /// What is in force, deleted keys whose version is remembered included, in the order of the keys.
    pub fn state(&self) -> Vec<(Key, Version)> {
        self.in_force().map(|(key, known)| (key.clone(), known.version)).collect()
    }

    /// The next part of the same, with what each key adds to the digest of the host's state, and whether it is the last.
    pub fn contents(&self, cursor: &mut Cursor, most: usize) -> (Vec<(Key, Version, u128)>, bool) {
        cursor.part(self.kept.gate(), most, |key, known| {
            let is_in_force = self.is_own(key) && !self.hands.unapplied.contains_key(key);
            is_in_force.then(|| (key.clone(), known.version, known.content()))
        })
    }

    /// The same of one key; version zero where it has none in force.
    pub fn content_of(&self, key: &Key) -> (Key, Version, u128) {
        let is_in_force = self.is_own(key) && !self.hands.unapplied.contains_key(key);
        let known = self.kept.gate().get(key).filter(|_| is_in_force);
        let (version, content) = known.map_or((Version::ZERO, 0), |known| (known.version, known.content()));
        (key.clone(), version, content)
    }

    /// What is in force, with the header that proves who signed it, in the order of the keys.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, Version, &Entry, &SignedHeader)> {
        let own = own(self.kept.gate(), &self.hands.plane);
        own.filter_map(|(key, known)| Some((key, known.version, known.entry.as_ref()?, &known.header)))
    }

    /// What was kept and is not in force, and why.
    pub fn problems(&self) -> &BTreeMap<Key, String> {
        &self.hands.unapplied
    }

    /// Asks the actuator for its reports, and signs those that changed; `all` signs the others too.
    pub fn reports(&mut self, all: bool) -> Vec<SignedEvent> {
        let Ok(reports) = contain(|| self.hands.actuator.report()) else {
            self.hands.counters.faults += 1;
            return Vec::new();
        };
        let mut events = Vec::new();
        for (at, (name, report)) in reports.into_iter().enumerate() {
            let bytes = serde_json::to_vec(&report).unwrap_or_default();
            let (plane, actuator) = (self.plane().clone(), self.signer.host().clone());
            let report = PlaneReport { plane, actuator, name, bytes };
            if at >= REPORTS_MAX || report.problem().is_some() {
                self.hands.counters.reports_dropped += 1;
                continue;
            }
            if !all && self.told.get(&report.name) == Some(&report.bytes) {
                continue;
            }
            let (name, bytes) = (report.name.clone(), report.bytes.clone());
            match self.signer.event(EventBody::Report(report)) {
                Ok(event) => {
                    self.told.insert(name, bytes);
                    self.hands.counters.reports += 1;
                    events.push(event);
                }
                Err(error) => {
                    self.hands.counters.reports_dropped += 1;
                    tracing::warn!(%error, "a report is not told");
                }
            }
        }
        events
    }

    /// What was counted since the start.
    pub fn counters(&self) -> Counters {
        Counters { applied: self.kept.gate().counters.applied, ..self.hands.counters }
    }

    fn all_metrics(&self) -> Vec<Metric> {
        let Counters { applied, refused, faults, unkept, unsigned, reports, reports_dropped } =
            self.counters();
        let gate = self.kept.gate().counters;
        let updates = |what, value| {
            Metric::counter("updates_total", "Updates that came, by what became of them.", value).of(what)
        };
        let reports_of = |what, value| {
            Metric::counter("reports_total", "Reports, by what became of them.", value).of(what)
        };
        let mut all = vec![
            updates("applied", applied),
            updates("repeated", gate.repeated),
            updates("forged", gate.forged),
            updates("endorsed", gate.endorsed),
            updates("refused", refused),
            updates("unkept", unkept),
            updates("unsigned", unsigned),
            Metric::counter("faults_total", "Panics of the actuator that were contained.", faults),
            reports_of("sent", reports),
            reports_of("dropped", reports_dropped),
            Metric::counter(
                "journal_cut_bytes_total",
                "Bytes of the journal that were cut off when it was opened.",
                gate.journal_cut_bytes,
            ),
            Metric::gauge("entries", "What it is to have, by its journal.", self.entries().count() as u64),
            Metric::gauge(
                "entries_not_applied",
                "Of that, what it could not put in force.",
                self.problems().len() as u64,
            ),
        ];
        all.extend(self.hands.actuator.metrics());
        all
    }

    /// All that is counted, by name with labels: its own, and that of the actuator.
    pub fn metrics(&self) -> Vec<(String, u64)> {
        metrics::counters(self.plane(), &self.all_metrics())
    }

    /// The same as Prometheus text.
    pub fn metrics_text(&self) -> String {
        metrics::text(self.plane(), &self.all_metrics())
    }
}
