//! The core as bytes: what a snapshot of the order carries.
//!
//! Format 5: a postcard header (format, epoch, ordered time, own number, length of the store, the group's threshold
//! key), the store's own snapshot, then actuators, batch headers with their signatures, where there is one yet, every
//! held update with the number of its header, and behind their number what other domains are told in the same way. Acks
//! are not in it: actuators tell what is in force when they return. Then comes whether controllers endorse batches, and last by which
//! rules entries are carried out. Format 4, which is written as long as these are the first ones, ends before that, format 3 before
//! the endorsements, and format 2 with the held updates; all are read: a controller of this release goes on where one of the
//! last has ended.

use super::dedup;
use super::header::DecidedHeader;
use super::identities::Identities;
use super::keys::{GroupKeys, KeptKeys};
use super::operators::Operators;
use super::outbox::Outbox;
use super::scheduler::{Held, Scheduler, SchedulerSettings};
use super::{Core, CoreSettings, SharedApp, Signer};
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::event::ActuatorFacts;
use weir_model::signed::{BatchHeader, GroupSignature, ProvenUpdate, SignedHeader};
use weir_model::{Dependency, Label, Version};
use weir_store::Store;

const FORMAT: u32 = 5;
/// What is written where the rules are the first ones.
const FORMAT_WITHOUT_RULES: u32 = 4;
/// The oldest that is read.
const FORMAT_MIN: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    domain: Label,
    epoch: u64,
    now_ms: u64,
    own_sequence: u64,
    store_bytes: u64,
    actuators: u64,
    targets: u64,
    headers: u64,
    held: u64,
    keys: KeptKeys,
}

/// A core at one moment. Taking it is cheap; [`CoreSnapshot::to_bytes`] may run elsewhere.
pub struct CoreSnapshot {
    head: (Label, u64, u64, u64),
    keys: Arc<GroupKeys>,
    rules: u32,
    store: Store,
    actuators: Vec<ActuatorFacts>,
    targets: Vec<Label>,
    held: Vec<Held>,
    told: Vec<Held>,
    /// Whether headers go with their signatures.
    signed: bool,
}

impl CoreSnapshot {
    /// Version of its store.
    pub fn version(&self) -> Version {
        self.store.version()
    }

    /// The snapshot as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut numbers: BTreeMap<*const DecidedHeader, u64> = BTreeMap::new();
        let mut headers: Vec<&DecidedHeader> = Vec::new();
        for held in self.held.iter().chain(&self.told) {
            numbers.entry(Arc::as_ptr(&held.header)).or_insert_with(|| {
                headers.push(&held.header);
                headers.len() as u64 - 1
            });
        }
        let store = self.store.to_snapshot();
        let (domain, epoch, now_ms, own_sequence) = self.head.clone();
        let mut bytes = encode(&Head {
            format: if self.rules == 0 { FORMAT_WITHOUT_RULES } else { FORMAT },
            domain,
            epoch,
            now_ms,
            own_sequence,
            store_bytes: store.len() as u64,
            actuators: self.actuators.len() as u64,
            targets: self.targets.len() as u64,
            headers: headers.len() as u64,
            held: self.held.len() as u64,
            keys: self.keys.to_kept(),
        });
        bytes.extend_from_slice(&store);
        self.actuators.iter().for_each(|facts| bytes.extend_from_slice(&encode(facts)));
        self.targets.iter().for_each(|target| bytes.extend_from_slice(&encode(target)));
        let signature = |decided: &DecidedHeader| decided.signature().filter(|_| self.signed).cloned();
        let headers = headers.iter().map(|decided| (&decided.header, signature(decided)));
        headers.for_each(|header| bytes.extend_from_slice(&encode(&header)));
        let write = |bytes: &mut Vec<u8>, held: &Held| {
            let number = numbers[&Arc::as_ptr(&held.header)];
            bytes.extend_from_slice(&encode(&(number, &*held.proven, &held.after[..])));
        };
        self.held.iter().for_each(|held| write(&mut bytes, held));
        bytes.extend_from_slice(&encode(&(self.told.len() as u64)));
        self.told.iter().for_each(|held| write(&mut bytes, held));
        bytes.extend_from_slice(&encode(&self.keys.endorses()));
        if self.rules > 0 {
            bytes.extend_from_slice(&encode(&self.rules));
        }
        bytes
    }
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::SnapshotDamaged(error.to_string())
}

fn take<T: for<'a> Deserialize<'a>>(rest: &mut &[u8]) -> Result<T, Error> {
    let (value, after) = postcard::take_from_bytes::<T>(rest).map_err(damaged)?;
    *rest = after;
    Ok(value)
}

impl Core {
    /// The core as it is now.
    pub fn snapshot(&self) -> CoreSnapshot {
        CoreSnapshot {
            head: (self.domain.clone(), self.epoch, self.now_ms, self.own_sequence),
            keys: self.group_keys.clone(),
            rules: self.rules,
            store: self.store.clone(),
            actuators: self.joined.values().cloned().collect(),
            targets: self.scheduler.target_names().cloned().collect(),
            held: self.scheduler.held().cloned().collect(),
            told: self.outbox.held().cloned().collect(),
            signed: true,
        }
    }

    /// The core as it is now, but only what is a function of the order: the same bytes on every replica. Left out are
    /// signatures, which the group makes again; updates that only this replica still waits with; and keys that were
    /// deleted, which actuators that still have them tell.
    pub fn agreed_snapshot(&self) -> CoreSnapshot {
        let held = self.scheduler.desired_held().filter(|held| !held.is_delete());
        CoreSnapshot {
            head: (self.domain.clone(), self.epoch, self.now_ms, 0),
            held: held.cloned().collect(),
            signed: false,
            ..self.snapshot()
        }
    }

    /// The core that [`CoreSnapshot::to_bytes`] wrote.
    ///
    /// # Errors
    /// One of [`Error`]'s snapshot variants.
    pub fn from_snapshot(
        settings: CoreSettings,
        signer: impl Into<Signer>,
        apps: Vec<SharedApp>,
        bytes: &[u8],
    ) -> Result<Core, Error> {
        let mut core = Core::new(settings, signer, apps);
        core.install(bytes)?;
        Ok(core)
    }

    /// Takes the state of a snapshot instead of its own. Sessions are forgotten: whoever has some opens them anew. It
    /// leads as it did.
    ///
    /// # Errors
    /// One of [`Error`]'s snapshot variants; then it is as it was.
    pub fn install(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let leads = self.scheduler.leads();
        let read = Read::whole(&self.domain, self.scheduler.settings(), bytes)?;
        (self.epoch, self.now_ms) = (read.epoch, read.now_ms);
        // A state that another replica took says nothing of this one's numbers, but what it said is in it.
        self.own_sequence = read.own_sequence.max(dedup::highest(&read.store, &self.source));
        (self.store, self.joined, self.scheduler) = (read.store, Arc::new(read.joined), read.scheduler);
        (self.group_keys, self.outbox) = (Arc::new(read.keys), read.outbox);
        self.rules = read.rules;
        self.know_conversion();
        self.name_principals();
        self.identities = Arc::new(Identities::of_store(&self.store));
        self.operators = Arc::new(Operators::of_store(&self.store));
        self.scheduler.lead(leads, &mut Vec::new());
        Ok(())
    }
}

/// What a snapshot holds.
struct Read {
    epoch: u64,
    now_ms: u64,
    own_sequence: u64,
    keys: GroupKeys,
    rules: u32,
    store: Store,
    joined: BTreeMap<Label, ActuatorFacts>,
    scheduler: Scheduler,
    outbox: Outbox,
}

impl Read {
    fn whole(domain: &Label, settings: SchedulerSettings, bytes: &[u8]) -> Result<Read, Error> {
        let mut rest = bytes;
        let format = postcard::take_from_bytes::<u32>(rest).map_err(damaged)?.0;
        if !(FORMAT_MIN..=FORMAT).contains(&format) {
            return Err(Error::SnapshotFormat { found: format, known: FORMAT });
        }
        let head: Head = take(&mut rest)?;
        if head.domain != *domain {
            return Err(Error::SnapshotDomain { found: head.domain, wanted: domain.clone() });
        }
        let length = usize::try_from(head.store_bytes).map_err(damaged)?;
        let store = rest.get(..length).ok_or_else(|| damaged("it ends in the store"))?;
        rest = &rest[length..];
        let mut read = Read {
            epoch: head.epoch,
            now_ms: head.now_ms,
            own_sequence: head.own_sequence,
            keys: GroupKeys::of_kept(head.keys)?,
            rules: 0,
            store: Store::from_snapshot(store)?,
            joined: BTreeMap::new(),
            scheduler: Scheduler::new(settings),
            outbox: Outbox::default(),
        };
        read.scheduler.decided(read.store.version());
        for _ in 0..head.actuators {
            let facts: ActuatorFacts = take(&mut rest)?;
            read.joined.insert(facts.name.clone(), facts);
        }
        for _ in 0..head.targets {
            read.scheduler.add_target(&take(&mut rest)?);
        }
        let mut headers: Vec<Arc<DecidedHeader>> = Vec::new();
        for _ in 0..head.headers {
            let (header, signature): (BatchHeader, Option<GroupSignature>) = take(&mut rest)?;
            headers.push(Arc::new(match signature {
                Some(signature) => DecidedHeader::signed(SignedHeader { header, signature }),
                None => DecidedHeader::unsigned(header, Vec::new()),
            }));
        }
        for _ in 0..head.held {
            read.restore(&headers, &mut rest)?;
        }
        let told: u64 = if format >= 3 { take(&mut rest)? } else { 0 };
        for _ in 0..told {
            let held = read.held(&headers, &mut rest)?;
            let told = read.outbox.insert(held);
            told.map_err(|held| damaged(format!("{} is told to nobody", held.proven.update.key)))?;
        }
        if format >= 4 {
            read.keys.set_endorses(take(&mut rest)?);
        }
        if format >= 5 {
            read.rules = take(&mut rest)?;
        }
        if rest.is_empty() { Ok(read) } else { Err(damaged(format!("{} bytes are left over", rest.len()))) }
    }

    fn held(&self, headers: &[Arc<DecidedHeader>], rest: &mut &[u8]) -> Result<Held, Error> {
        let (number, proven, after): (u64, ProvenUpdate, Vec<Dependency>) = take(rest)?;
        let header = usize::try_from(number).ok().and_then(|number| headers.get(number));
        let header = header.ok_or_else(|| damaged(format!("there is no header {number}")))?.clone();
        let bytes = encode(&proven.update).len();
        Ok(Held { header, proven: Arc::new(proven), after: after.into(), bytes })
    }

    fn restore(&mut self, headers: &[Arc<DecidedHeader>], rest: &mut &[u8]) -> Result<(), Error> {
        let held = self.held(headers, rest)?;
        let update = &held.proven.update;
        let older = self.scheduler.desired(&update.target, &update.key).map(Held::version);
        if older >= Some(update.version) || update.version > self.store.version() {
            return Err(damaged(format!("{} of {} is out of place", update.key, update.target)));
        }
        self.scheduler.restore(held);
        Ok(())
    }
}
