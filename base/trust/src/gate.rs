//! The gate: what every actuator passes updates through before it applies them (DESIGN §1.7).
//!
//! It knows what is in force, by key and version, refuses what is forged, for somebody else, of an
//! epoch that is over, or not newer than what is in force, and keeps the whole in a journal, so
//! that a restarted actuator is where it was without any controller (row A9).
//!
//! Invariants
//! - The version of a key never goes back, also not through a delete: deleted keys leave a
//!   tombstone. When there are more than [`TOMBSTONES_MAX`] of them the oldest half is dropped and
//!   the `floor` rises to their highest version; an absent key accepts nothing at or below it.
//! - An ack says `Ok` only after the update is in the journal.
//! - Admitting is idempotent: the update that is in force already is acked, not applied again. Another change at a version that
//!   is in force is refused: it is of an order that was restored from a backup and went on differently.
//! - The digest is over contents, not over versions alone, for the same reason.
//! - A frame costs one signature check at most, and none where it is wrong by itself or says what is in force (attack ii of the
//!   paper's 2.7.6: forgeries at line rate).
//! - A key that the trusted one named takes its place with the first update under it, for good: the journal has it. From its epoch on the key
//!   before signs nothing here ([`weir_model::conversion`]).
//! - A batch is proven by the group's key, or by enough of the controllers in force here, each with its own key
//!   ([`crate::endorsement`]). Who these are only the group's key says.
//!
//! Use: [`Gate::admit`] for each update; apply the admitted ones; [`Gate::commit`] them; ack.

use crate::batch::Verifier;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use weir_base::codec::{decode, encode};
use weir_base::journal::Journal;
use weir_model::conversion::Succession;
use weir_model::session::StateDigest;
use weir_model::signed::{BatchHeader, GroupSignature, SignedHeader, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Label, Update, Version};

/// Most deleted keys whose versions are remembered one by one.
pub const TOMBSTONES_MAX: usize = 65_536;
/// Most entries in force.
pub const ENTRIES_MAX: usize = 2_000_000;
/// The journal is compacted when it is over this size and over twice what compaction left, bytes.
const COMPACT_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// An entry in force, with the proof of who signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Its version.
    pub version: Version,
    /// Its value; `None` for a tombstone.
    pub entry: Option<Entry>,
    /// Header of the batch that decided it.
    pub header: SignedHeader,
    /// [`content_digest`] of it.
    content: u128,
}

impl InForce {
    /// What it adds to [`Gate::digest`].
    pub fn content(&self) -> u128 {
        self.content
    }

    fn is(&self, change: &Change) -> bool {
        match change {
            Change::Put(entry) => self.entry.as_ref() == Some(entry),
            Change::Delete => self.entry.is_none(),
        }
    }
}

/// What to do with one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Apply it, then commit it.
    Admit,
    /// It is in force: ack it.
    InForce,
    /// Refuse it.
    Refuse(Refusal),
}

/// What the gate has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Updates applied.
    pub applied: u64,
    /// Updates that were in force already.
    pub repeated: u64,
    /// Updates refused because signature or path did not verify.
    pub forged: u64,
    /// Of the forged ones, those under endorsements that do not count here: of another phase, where there is no list of
    /// controllers, wrong ones, or a list of controllers under them.
    pub endorsed_badly: u64,
    /// Updates applied because enough controllers endorsed them.
    pub endorsed: u64,
    /// Updates refused for any other reason.
    pub refused: u64,
    /// Bytes of the journal that were cut off at open.
    pub journal_cut_bytes: u64,
    /// Compactions of the journal.
    pub compactions: u64,
}

impl std::ops::AddAssign for GateCounters {
    fn add_assign(&mut self, other: GateCounters) {
        self.applied += other.applied;
        self.repeated += other.repeated;
        self.forged += other.forged;
        self.endorsed_badly += other.endorsed_badly;
        self.endorsed += other.endorsed;
        self.refused += other.refused;
        self.journal_cut_bytes += other.journal_cut_bytes;
        self.compactions += other.compactions;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    actuator: Label,
    verifier: Verifier,
    epoch: u64,
    floor: Version,
    in_force: BTreeMap<Key, InForce>,
    tombstones: usize,
    digest: StateDigest,
    journal: Journal,
    compacted_bytes: u64,
    /// Counters.
    pub counters: GateCounters,
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Record {
    /// An update that was applied, with its batch's header.
    Applied(SignedHeader, Update),
    /// State that compaction keeps besides the entries.
    Floor { floor: Version, epoch: u64 },
    /// The same of a key that took the place of the one that the actuator was given.
    Succeeded(Succession),
}

fn is_endorsed(header: &SignedHeader) -> bool {
    matches!(header.signature, GroupSignature::Members { .. })
}

fn digest_of(bytes: &[u8]) -> u128 {
    let hash: [u8; 32] = Sha256::digest(bytes).into();
    let mut low = [0; 16];
    low.copy_from_slice(&hash[..16]);
    u128::from_le_bytes(low)
}

fn pair_digest(key: &Key, version: Version) -> u128 {
    digest_of(&encode(&(key, version)))
}

/// What one key adds to [`Gate::digest`].
pub fn content_digest(key: &Key, version: Version, change: &Change) -> u128 {
    digest_of(&encode(&(key, version, change)))
}

/// Digest of a set of keys and versions, as releases before this one told it: the sum of their hashes, so that order does not matter.
pub fn state_digest<'a>(entries: impl Iterator<Item = (&'a Key, Version)>) -> StateDigest {
    StateDigest(entries.fold(0, |sum, (key, version)| sum.wrapping_add(pair_digest(key, version))))
}

impl Gate {
    /// Opens the gate of an actuator on its journal.
    ///
    /// # Errors
    /// I/O errors of the journal; `InvalidData` when a record is not ours.
    pub fn open(actuator: Label, verifier: Verifier, path: &Path) -> io::Result<Gate> {
        let (journal, records) = Journal::open(path)?;
        Gate::of(actuator, verifier, journal, &records)
    }

    /// A gate on the journal of another process that still uses it (row A30): to be brought up to date by [`Gate::more`],
    /// and made one's own by [`Gate::own`] when that process has stopped. Before that nothing can be committed.
    ///
    /// # Errors
    /// As of [`Gate::open`].
    pub fn follow(actuator: Label, verifier: Verifier, path: &Path) -> io::Result<Gate> {
        let (journal, records) = Journal::follow(path)?;
        Gate::of(actuator, verifier, journal, &records)
    }

    /// Takes in what the other process committed since the last call; returns it, in order.
    ///
    /// # Errors
    /// I/O errors; `InvalidData` when the journal was compacted meanwhile, or a record is not ours.
    pub fn more(&mut self) -> io::Result<Vec<Update>> {
        let mut updates = Vec::new();
        for record in self.journal.more()? {
            if let Some(update) = self.take_record(&record)? {
                updates.push(update);
            }
        }
        Ok(updates)
    }

    /// Makes the journal one's own, when nobody else uses it any more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn own(&mut self) -> io::Result<()> {
        self.journal.own()?;
        self.counters.journal_cut_bytes += self.journal.cut_bytes;
        Ok(())
    }

    fn of(actuator: Label, verifier: Verifier, journal: Journal, records: &[Vec<u8>]) -> io::Result<Gate> {
        let mut gate = Gate {
            actuator,
            verifier,
            epoch: 0,
            floor: Version::ZERO,
            in_force: BTreeMap::new(),
            tombstones: 0,
            digest: StateDigest::default(),
            compacted_bytes: 0,
            counters: GateCounters { journal_cut_bytes: journal.cut_bytes, ..GateCounters::default() },
            journal,
        };
        for record in records {
            gate.take_record(record)?;
        }
        gate.assert_sums();
        Ok(gate)
    }

    /// What is counted as it changes is what counting it anew gives: asserted where all of it was read, and where all of it is written.
    fn assert_sums(&self) {
        let all = self.in_force.values();
        debug_assert_eq!(self.tombstones, all.clone().filter(|known| known.entry.is_none()).count());
        debug_assert_eq!(self.digest.0, all.fold(0, |sum: u128, known| sum.wrapping_add(known.content)));
    }

    /// Takes in a record of the journal; returns the update that it holds, if it holds one.
    fn take_record(&mut self, record: &[u8]) -> io::Result<Option<Update>> {
        let record = decode::<Record>(record).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the checkpoint: {error}"))
        })?;
        match record {
            Record::Applied(header, update) => {
                self.install(header, update.clone());
                Ok(Some(update))
            }
            Record::Floor { floor, epoch } => {
                self.floor = self.floor.max(floor);
                self.epoch = self.epoch.max(epoch);
                Ok(None)
            }
            Record::Succeeded(succession) => {
                self.verifier.follow(&succession);
                Ok(None)
            }
        }
    }

    /// Name of the actuator.
    pub fn actuator(&self) -> &Label {
        &self.actuator
    }

    /// Checks one update of a frame. Changes nothing but counters.
    pub fn admit(&mut self, frame: &SignedUpdates, number: usize) -> Verdict {
        let verdict = self.judge(frame, number);
        match &verdict {
            Verdict::Admit => {}
            Verdict::InForce => self.counters.repeated += 1,
            Verdict::Refuse(Refusal::Forged) => {
                self.counters.forged += 1;
                self.counters.endorsed_badly += u64::from(is_endorsed(&frame.header));
            }
            Verdict::Refuse(_) => self.counters.refused += 1,
        }
        verdict
    }

    /// Whether who signed a header may do so here. What is right is remembered, so that updates of the batch that come later are
    /// not kept waiting for it.
    pub fn proves(&mut self, header: &SignedHeader) -> bool {
        let controllers = match self.in_force.get(&Key::Controllers).and_then(|known| known.entry.as_ref()) {
            Some(Entry::Controllers(controllers)) => Some(controllers),
            _ => None,
        };
        self.verifier.verify_header_by(header, controllers).is_ok()
    }

    fn judge(&mut self, frame: &SignedUpdates, number: usize) -> Verdict {
        let header = &frame.header.header;
        let proven = &frame.updates[number];
        let update = &proven.update;
        // A pairing takes a millisecond, and anybody can send what costs one: what is wrong without it comes first.
        if update.version > header.index
            || (update.key == Key::Controllers && is_endorsed(&frame.header))
            || self.verifier.verify_path(header, proven).is_err()
        {
            return Verdict::Refuse(Refusal::Forged);
        }
        if let Some(verdict) = self.known_already(header, update) {
            return verdict;
        }
        if !self.proves(&frame.header) {
            return Verdict::Refuse(Refusal::Forged);
        }
        if header.epoch < self.epoch {
            return Verdict::Refuse(Refusal::StaleEpoch { given: header.epoch, current: self.epoch });
        }
        if update.target != self.actuator {
            return Verdict::Refuse(Refusal::WrongTarget);
        }
        if let Change::Put(entry) = &update.change
            && !entry.fits(&update.key)
        {
            return Verdict::Refuse(Refusal::Misfit);
        }
        let known = self.in_force.get(&update.key).map(|known| known.version);
        let in_force = known.unwrap_or(self.floor);
        if let Some(found) = self.in_force.get(&update.key).filter(|found| found.version == update.version) {
            return match found.is(&update.change) {
                true => Verdict::InForce,
                false => Verdict::Refuse(Refusal::Stale { in_force }),
            };
        }
        if update.version <= in_force {
            return Verdict::Refuse(Refusal::Stale { in_force });
        }
        if known.unwrap_or(Version::ZERO) < update.expected {
            return Verdict::Refuse(Refusal::Expected { expected: update.expected, in_force });
        }
        if known.is_none() && self.in_force.len() - self.tombstones >= ENTRIES_MAX {
            return Verdict::Refuse(Refusal::Full { limit: ENTRIES_MAX as u64 });
        }
        Verdict::Admit
    }

    /// The verdict on an update of which that much is true whoever sent it: it is what is in force, or older. A batch that is sent again
    /// costs no proof.
    fn known_already(&self, header: &BatchHeader, update: &Update) -> Option<Verdict> {
        let found = self.in_force.get(&update.key)?;
        if header.domain != *self.verifier.domain()
            || header.epoch < self.epoch
            || update.target != self.actuator
        {
            return None;
        }
        let in_force = found.version;
        match update.version.cmp(&in_force) {
            std::cmp::Ordering::Less => Some(Verdict::Refuse(Refusal::Stale { in_force })),
            std::cmp::Ordering::Equal => found.is(&update.change).then_some(Verdict::InForce),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Makes admitted and applied updates of a frame part of what is in force, durably.
    ///
    /// # Errors
    /// I/O errors of the journal; nothing is in force then that was not before, and nothing may be
    /// acked.
    pub fn commit(&mut self, frame: &SignedUpdates, numbers: &[usize]) -> io::Result<()> {
        let updates = numbers.iter().map(|&number| &frame.updates[number].update);
        // The other side of `judge`: only what it admitted is kept, and a version never goes back.
        debug_assert!(
            updates.clone().all(|update| {
                let known = self.in_force.get(&update.key).map_or(self.floor, |known| known.version);
                update.target == self.actuator && update.version > known
            }),
            "what was not admitted is to be kept"
        );
        let records: Vec<Vec<u8>> = updates
            .clone()
            .map(|update| encode(&Record::Applied(frame.header.clone(), update.clone())))
            .collect();
        self.journal.append(&records)?;
        for update in updates {
            self.install(frame.header.clone(), update.clone());
            self.counters.applied += 1;
            self.counters.endorsed += u64::from(is_endorsed(&frame.header));
        }
        self.collect()
    }

    fn install(&mut self, header: SignedHeader, update: Update) {
        self.epoch = self.epoch.max(header.header.epoch);
        if let GroupSignature::Succeeded(by) = &header.signature {
            self.verifier.follow(&by.succession);
        }
        let content = content_digest(&update.key, update.version, &update.change);
        let entry = match update.change {
            Change::Put(entry) => Some(entry),
            Change::Delete => None,
        };
        self.tombstones += usize::from(entry.is_none());
        self.digest.0 = self.digest.0.wrapping_add(content);
        let new = InForce { version: update.version, entry, header, content };
        if let Some(old) = self.in_force.insert(update.key, new) {
            self.digest.0 = self.digest.0.wrapping_sub(old.content);
            self.tombstones -= usize::from(old.entry.is_none());
        }
    }

    /// Bounds tombstones and the journal.
    fn collect(&mut self) -> io::Result<()> {
        if self.tombstones > TOMBSTONES_MAX {
            let mut versions: Vec<Version> =
                self.in_force.values().filter(|v| v.entry.is_none()).map(|v| v.version).collect();
            versions.sort_unstable();
            self.floor = self.floor.max(versions[versions.len() / 2]);
            let floor = self.floor;
            let digest = &mut self.digest;
            self.in_force.retain(|_, value| {
                let keep = value.entry.is_some() || value.version > floor;
                if !keep {
                    digest.0 = digest.0.wrapping_sub(value.content);
                }
                keep
            });
            self.tombstones = self.in_force.values().filter(|v| v.entry.is_none()).count();
        } else if self.journal.length_bytes < COMPACT_BYTES_MIN.max(2 * self.compacted_bytes) {
            return Ok(());
        }
        self.compact()
    }

    fn compact(&mut self) -> io::Result<()> {
        self.assert_sums();
        let floor = encode(&Record::Floor { floor: self.floor, epoch: self.epoch });
        let succeeded =
            self.verifier.successor().map(|succession| encode(&Record::Succeeded(succession.clone())));
        let records: Vec<Vec<u8>> = std::iter::once(floor)
            .chain(succeeded)
            .chain(self.in_force.iter().map(|(key, value)| {
                let change = value.entry.clone().map_or(Change::Delete, Change::Put);
                let update = Update {
                    target: self.actuator.clone(),
                    key: key.clone(),
                    version: value.version,
                    expected: Version::ZERO,
                    change,
                };
                encode(&Record::Applied(value.header.clone(), update))
            }))
            .collect();
        self.journal.rewrite(records.iter().map(Vec::as_slice))?;
        self.compacted_bytes = self.journal.length_bytes;
        self.counters.compactions += 1;
        Ok(())
    }

    /// What is in force for a key, tombstones included.
    pub fn get(&self, key: &Key) -> Option<&InForce> {
        self.in_force.get(key)
    }

    /// All that is in force in order of the keys, tombstones included.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &InForce)> {
        self.in_force.iter()
    }

    /// What is in force behind a key, tombstones included.
    pub fn iter_after(&self, key: &Key) -> impl Iterator<Item = (&Key, &InForce)> {
        self.in_force.range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded))
    }

    /// Digest of all that is in force: the sum of [`content_digest`] over all keys, tombstones included.
    pub fn digest(&self) -> StateDigest {
        self.digest
    }

    /// Highest epoch seen.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// Takes a whole frame through the gate: judges each update, lets `apply` try the admitted ones in
/// order, commits those that it could apply, and returns an ack for each. For benches and tests; what
/// acts has [`crate::kept::Kept`]. As there, the second of two updates of one key is judged when the
/// first is kept, so that no version goes back.
///
/// # Errors
/// I/O errors of the journal: then nothing of the frame may be acked.
pub fn take(
    gate: &mut Gate,
    frame: &SignedUpdates,
    mut apply: impl FnMut(&Update) -> Result<(), Refusal>,
) -> io::Result<Vec<Ack>> {
    let mut acks = Vec::with_capacity(frame.updates.len());
    let mut applied = Vec::new();
    // Keys of what is applied and not committed yet.
    let mut pending = std::collections::HashSet::new();
    for (number, proven) in frame.updates.iter().enumerate() {
        if pending.contains(&proven.update.key) {
            gate.commit(frame, &applied)?;
            applied.clear();
            pending.clear();
        }
        let result = match gate.admit(frame, number) {
            Verdict::InForce => Ok(()),
            Verdict::Refuse(refusal) => Err(refusal),
            Verdict::Admit => apply(&proven.update).map(|()| {
                applied.push(number);
                pending.insert(&proven.update.key);
            }),
        };
        acks.push(Ack { key: proven.update.key.clone(), version: proven.update.version, result });
    }
    gate.commit(frame, &applied)?;
    Ok(acks)
}

#[cfg(test)]
mod tests;
