//! Which keys and certificates are taken of whom, as the order knows it (rows R4, R12).
//!
//! Where the order says nothing, a controller has the key of its settings and an actuator the one that it joined with, and every
//! certificate of the domain's authority counts. Where operators sign what they order, a certificate counts by the word of its owner's
//! identity, which stands in it ([`weir_trust::owner`]): every controller has the authority's key, and so its word says nothing. Certificates that
//! controllers told before that rule count until their owner changes its keys. What the order says stands over that: it is in a table of the store, so it is
//! part of every snapshot and digest, and the same on every replica at the same place.
//!
//! Invariants
//! - A key is changed by its owner only: the change carries both keys' signatures. While it is under way both are taken.
//! - A source that is revoked is refused whole, and none of its keys is ever taken again, of anybody. An actuator comes back by
//!   joining with another key; a controller does not come back.
//! - What one controller says about another one counts only when as many say so as cannot all lie: `believes_one` says whether one
//!   is enough (a group that survives crashes only).

mod spares;

use super::approvals;
use super::group;
use super::operators::{self, By, Operators};
use super::rules::REVOKED_FOR_ALL;
use super::since::Rule;
use super::sources::{SourceKeys, Unauthentic};
use super::tokens;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::codec::{decode, encode};
use weir_model::event::{ActuatorFacts, Event, EventBody, SourceId};
use weir_model::identity::{IdentityEvent, KeyHash, REASON_BYTES_MAX, underlay_problem};
use weir_model::operator::OperatorChange;
use weir_model::signed::Signature;
use weir_model::{Label, Version};
use weir_store::{Rejection, Store, View};
use weir_trust::identity::{verify_rotation, verify_settled};
use weir_trust::owner::verify_owner;

/// Table of what is known; the watch feed leaves it out.
pub const IDENTITIES_TABLE: &str = "identities";
/// Keys of certificates that are taken of a source: the one in use, and one that comes.
const CERTIFICATES_MAX: usize = 2;
/// Keys of a source that are never taken again. One that has more must choose another name.
pub const REFUSED_MAX: usize = 64;
/// Longest name of a source, bytes.
const NAME_BYTES_MAX: usize = 128;

/// A certificate that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Its key.
    pub key: KeyHash,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
    /// Ordered time at which it was told, milliseconds of the Unix epoch.
    pub since_ms: u64,
}

/// What a certificate says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certified {
    /// Its key.
    pub key: KeyHash,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
    /// The word of its owner's identity for the key, if it has one.
    pub owner: Option<Signature>,
}

/// Why nothing of a source is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// In the words of whoever wanted it.
    pub reason: String,
    /// At which version.
    pub version: Version,
    /// Ordered time, milliseconds of the Unix epoch.
    pub at_ms: u64,
}

/// What the order knows of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// A controller's key, where it is not that of the settings.
    pub key: Option<[u8; 32]>,
    /// The key before, while it is taken too.
    pub previous: Option<[u8; 32]>,
    /// Ordered time of the last change of the key, milliseconds of the Unix epoch.
    pub since_ms: u64,
    /// Certificates, the newest last.
    pub certificates: Vec<Certificate>,
    /// Nothing is taken.
    pub revoked: Option<Revocation>,
    /// Keys, and hashes of keys of certificates, that are never taken again.
    pub refused: Vec<[u8; 32]>,
    /// Only certificates that the order knows are taken.
    strict: bool,
    /// Controllers that said something which waits for more of them.
    voices: Vec<([u8; 32], SourceId)>,
}

/// The keys of a source that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// In use.
    pub now: [u8; 32],
    /// The one before, while a change is under way.
    pub before: Option<[u8; 32]>,
}

impl Keys {
    /// The one in use first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8; 32]> {
        std::iter::once(&self.now).chain(&self.before)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    rows: BTreeMap<SourceId, Row>,
}

/// What is registered when an event is decided on.
#[derive(Clone, Copy)]
pub struct Registered<'a> {
    /// Keys by configuration.
    pub keys: &'a SourceKeys,
    /// Actuators that joined.
    pub joined: &'a BTreeMap<Label, ActuatorFacts>,
    /// What the order says.
    pub identities: &'a Identities,
    /// Whose requests are taken.
    pub operators: &'a Operators,
}

impl Registered<'_> {
    fn first_key(&self, source: &SourceId) -> Option<[u8; 32]> {
        let joined = || {
            let name = Label::new(source.actuator()?).ok()?;
            self.joined.get(&name).map(|facts| facts.identity)
        };
        self.keys.get(source).copied().or_else(joined)
    }

    /// The keys that are taken of a source.
    ///
    /// # Errors
    /// Why none is.
    pub fn keys_of(&self, source: &SourceId) -> Result<Keys, Unauthentic> {
        if let Some((actuator, _)) = source.plane() {
            return self.keys_of(&SourceId::of_actuator(&actuator));
        }
        let row = self.identities.rows.get(source);
        if row.is_some_and(|row| row.revoked.is_some()) {
            return Err(Unauthentic::Revoked);
        }
        let now = row.and_then(|row| row.key).or_else(|| self.first_key(source));
        let now = now.ok_or(Unauthentic::UnknownSource)?;
        Ok(Keys { now, before: row.and_then(|row| row.previous) })
    }

    /// Whether a certificate that the domain's authority signed is taken of a source. Of who has not joined it is: whoever asks
    /// looks at that.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn takes_certificate(
        &self,
        domain: &Label,
        source: &SourceId,
        shown: &Certified,
    ) -> Result<(), Unauthentic> {
        if !self.operators.owners_certificates() {
            return self.identities.takes_told_certificate(source, &shown.key);
        }
        let row = self.identities.rows.get(source);
        if row.is_some_and(|row| row.revoked.is_some() || row.refused.contains(&shown.key)) {
            return Err(Unauthentic::Revoked);
        }
        let keys = match self.keys_of(source) {
            Err(Unauthentic::UnknownSource) => return Ok(()),
            keys => keys?,
        };
        let is_told = |row: &Row| row.certificates.iter().any(|known| known.key == shown.key);
        let owns = |word: &Signature| {
            keys.iter().any(|key| verify_owner(key, domain, source, &shown.key, word).is_ok())
        };
        match &shown.owner {
            Some(word) if owns(word) => Ok(()),
            _ if row.is_some_and(is_told) => Ok(()),
            _ => Err(Unauthentic::Unowned),
        }
    }

    /// Whether a source is registered otherwise than by joining.
    pub fn is_configured(&self, source: &SourceId) -> bool {
        let row = self.identities.rows.get(source);
        self.keys.contains_key(source) || source.is_controller() && row.is_some_and(|row| row.key.is_some())
    }

    /// Controllers that are registered and not revoked.
    pub fn controllers(&self) -> BTreeSet<&SourceId> {
        let told = self.identities.rows.keys().filter(|source| self.is_configured(source));
        let all = self.keys.keys().chain(told).filter(|source| source.is_controller());
        all.filter(|source| self.identities.rows.get(*source).is_none_or(|row| row.revoked.is_none()))
            .collect()
    }
}

impl Identities {
    /// What a store holds.
    pub fn of_store(store: &Store) -> Identities {
        let cells = store.range(IDENTITIES_TABLE, b"");
        let row = |(key, cell): (&weir_store::Key, &weir_store::Cell)| {
            Some((decode::<SourceId>(key).ok()?, decode::<Row>(&cell.value).ok()?))
        };
        Identities { rows: cells.filter_map(row).collect() }
    }

    /// What is known of a source.
    pub fn row(&self, source: &SourceId) -> Option<&Row> {
        self.rows.get(source)
    }

    /// Whose key this was, where it was revoked: then it is never taken again, of anybody.
    pub fn refused_of(&self, key: &[u8; 32]) -> Option<&SourceId> {
        self.rows.iter().find(|(_, row)| row.refused.contains(key)).map(|(source, _)| source)
    }

    /// All that something is known of.
    pub fn rows(&self) -> impl Iterator<Item = (&SourceId, &Row)> {
        self.rows.iter()
    }

    /// Takes in what an event changed.
    pub(super) fn changed(&mut self, store: &Store, source: &SourceId) {
        let cell = store.get(IDENTITIES_TABLE, &encode(source));
        match cell.and_then(|cell| decode::<Row>(&cell.value).ok()) {
            Some(row) => drop(self.rows.insert(source.clone(), row)),
            None => drop(self.rows.remove(source)),
        }
    }

    /// Whether a certificate with this key, signed by the domain's authority, is taken of a source, where a controller's word for it counts.
    ///
    /// # Errors
    /// Why it is refused.
    fn takes_told_certificate(&self, source: &SourceId, key: &KeyHash) -> Result<(), Unauthentic> {
        let Some(row) = self.rows.get(source) else { return Ok(()) };
        if row.revoked.is_some() || row.refused.contains(key) {
            return Err(Unauthentic::Revoked);
        }
        let known = row.certificates.iter().any(|certificate| certificate.key == *key);
        if known || row.certificates.is_empty() && !row.strict { Ok(()) } else { Err(Unauthentic::Replaced) }
    }
}

fn refused(source: &SourceId, problem: impl Into<String>) -> Rejection {
    Rejection::Reference { resource: source.0.clone(), problem: problem.into() }
}

/// A row in the making.
struct Work<'w, 'v> {
    view: &'w mut View<'v>,
    source: SourceId,
    row: Row,
}

impl<'w, 'v> Work<'w, 'v> {
    fn of(view: &'w mut View<'v>, source: &SourceId) -> Work<'w, 'v> {
        let cell = view.get(IDENTITIES_TABLE, &encode(source));
        let row = cell.and_then(|cell| decode(&cell).ok()).unwrap_or_default();
        Work { view, source: source.clone(), row }
    }

    fn put(self) -> Result<SourceId, Rejection> {
        let key = encode(&self.source);
        match self.row == Row::default() {
            true => self.view.delete(IDENTITIES_TABLE, &key),
            false => self.view.put(IDENTITIES_TABLE, &key, encode(&self.row))?,
        }
        Ok(self.source)
    }

    fn refuse(&mut self, key: [u8; 32]) -> Result<(), Rejection> {
        if !self.row.refused.contains(&key) {
            if self.row.refused.len() >= REFUSED_MAX {
                return Err(Rejection::limit("keys that were revoked", REFUSED_MAX + 1, REFUSED_MAX));
            }
            self.row.refused.push(key);
        }
        Ok(())
    }
}

/// What decisions on identities are about.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The domain.
    pub domain: &'a Label,
    /// Whether the word of one controller is enough.
    pub believes_one: bool,
    /// By which rules the entry is carried out.
    pub rules: u32,
}

/// Who was revoked and comes back by an event, if it is committed: another machine, or the same with other keys.
pub(super) fn comes_back<'e>(
    context: &Context<'_>,
    known: Registered<'_>,
    event: &'e Event,
) -> Option<&'e Label> {
    let EventBody::Joined(facts) = &event.body else { return None };
    let row = known.identities.row(&SourceId::of_actuator(&facts.name));
    let is_back = context.rules >= REVOKED_FOR_ALL && row.is_some_and(|row| row.revoked.is_some());
    is_back.then_some(&facts.name)
}

/// Refuses a key, or the hash of one, that was revoked, of whoever it was.
fn never_revoked(
    context: &Context<'_>,
    known: Registered<'_>,
    of: &Work<'_, '_>,
    key: &[u8; 32],
) -> Result<(), Rejection> {
    let taken = match context.rules >= REVOKED_FOR_ALL {
        true => known.identities.refused_of(key).filter(|whose| **whose != of.source),
        false => None,
    };
    match taken {
        Some(whose) => {
            Err(refused(&of.source, format!("this key was revoked as that of {}: make a new one", whose.0)))
        }
        None => Ok(()),
    }
}

/// Decides on what an event does to identities; gives whose changed. `known` is what is so before the event.
pub(super) fn decide(
    view: &mut View<'_>,
    known: Registered<'_>,
    context: Context<'_>,
    now_ms: u64,
    event: &Event,
) -> Result<Option<SourceId>, Rejection> {
    match &event.body {
        EventBody::Joined(facts) => {
            let changed = joined(view, &context, known, facts)?;
            Ok(changed)
        }
        EventBody::Removed { actuator } => {
            let source = SourceId::of_actuator(actuator);
            tokens::void_all(view, now_ms, &source)?;
            removed(view, &source)
        }
        EventBody::Identity(about) => {
            let version = view.version();
            let mut decision = Decision { known, context, now_ms, version };
            decision.about(view, &event.source, about)
        }
        EventBody::Group(_) => {
            let controllers = known.controllers();
            match group::decide(view, &controllers, context.believes_one, now_ms, event)? {
                Some((id, key)) => spares::introduced(view, &context, known, now_ms, (id, key)),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// A key that was revoked does not come back by joining; one that was changed is not changed so.
fn joined(
    view: &mut View<'_>,
    context: &Context<'_>,
    known: Registered<'_>,
    facts: &ActuatorFacts,
) -> Result<Option<SourceId>, Rejection> {
    let source = SourceId::of_actuator(&facts.name);
    let row = known.identities.row(&source);
    let before = known.joined.get(&facts.name).map(|known| known.identity);
    if before.is_some_and(|before| before != facts.identity) && row.is_none_or(|row| row.revoked.is_none()) {
        return Err(refused(
            &source,
            "it has joined with another key: it changes that itself, or is forgotten first",
        ));
    }
    if Rule::UnderlaysApart.holds(view) {
        has_its_own_address(known, facts).map_err(|problem| refused(&source, problem))?;
    }
    never_revoked(context, known, &Work::of(view, &source), &facts.identity)?;
    let Some(row) = row else { return Ok(None) };
    if row.refused.contains(&facts.identity) {
        let problem = "this key was revoked: begin with an empty state directory and a new token";
        return Err(refused(&source, problem));
    }
    if row.revoked.is_none() {
        return Ok(None);
    }
    // It is another machine, or the same with other keys: what was taken before is not.
    let mut work = Work::of(view, &source);
    work.row.revoked = None;
    work.put().map(Some)
}

/// An actuator's address on the underlay is one that a switch can have, and no other's that is taken still.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn has_its_own_address(known: Registered<'_>, facts: &ActuatorFacts) -> Result<(), String> {
    let address = facts.underlay;
    if known.joined.get(&facts.name).is_some_and(|known| known.underlay == address) {
        return Ok(());
    }
    if let Some(problem) = underlay_problem(address) {
        return Err(format!(
            "{address} cannot be its address on the underlay: {problem}; a unicast address of its own is wanted"
        ));
    }
    let revoked = |name: &Label| {
        let row = known.identities.row(&SourceId::of_actuator(name));
        row.is_some_and(|row| row.revoked.is_some())
    };
    let other = known.joined.values().find(|other| {
        other.underlay.to_canonical() == address.to_canonical()
            && other.name != facts.name
            && !revoked(&other.name)
    });
    match other {
        Some(other) => Err(format!(
            "{address} is the address of '{0}' on the underlay: use another one, or 'weir forget {0}' first if it is gone",
            other.name
        )),
        None => Ok(()),
    }
}

/// A source that is forgotten leaves the keys that are never taken again.
fn removed(view: &mut View<'_>, source: &SourceId) -> Result<Option<SourceId>, Rejection> {
    let mut work = Work::of(view, source);
    let refused = std::mem::take(&mut work.row.refused);
    let strict = !refused.is_empty();
    work.row = Row { refused, strict, ..Row::default() };
    work.put().map(Some)
}

struct Decision<'a> {
    known: Registered<'a>,
    context: Context<'a>,
    now_ms: u64,
    version: Version,
}

impl Decision<'_> {
    fn about(
        &mut self,
        view: &mut View<'_>,
        by: &SourceId,
        about: &IdentityEvent,
    ) -> Result<Option<SourceId>, Rejection> {
        let whose = about.whose();
        if whose.0.len() > NAME_BYTES_MAX {
            return Err(Rejection::limit("name of a source, bytes,", whose.0.len(), NAME_BYTES_MAX));
        }
        if let IdentityEvent::Token { id, change, .. } = about {
            return tokens::decide(view, self.now_ms, whose, id, change).map(|()| None);
        }
        if let IdentityEvent::Operator { change, .. } = about {
            let controllers = (!self.context.believes_one).then(|| self.known.controllers());
            let by = By { source: by, controllers, now_ms: self.now_ms };
            operators::decide(view, &by, whose, change)?;
            if let OperatorChange::Changed(_) | OperatorChange::Removed = change {
                approvals::operator_changed(view, whose)?;
            }
            return Ok(Some(whose.clone()));
        }
        if let IdentityEvent::Revoked { .. } = about {
            tokens::void_all(view, self.now_ms, whose)?;
        }
        let work = Work::of(view, whose);
        match about {
            // They are decided above: they change no row.
            IdentityEvent::Token { .. } | IdentityEvent::Operator { .. } => work.put(),
            IdentityEvent::Certified { key, until_s, .. } => self.certified(work, *key, *until_s),
            IdentityEvent::Rotated(rotation) => {
                verify_rotation(self.context.domain, rotation)
                    .map_err(|_| refused(whose, "the change of its key is not signed by both keys"))?;
                self.rotated(work, rotation.old, rotation.new)
            }
            IdentityEvent::Settled { key, by_key, .. } => {
                verify_settled(self.context.domain, whose, key, by_key)
                    .map_err(|_| refused(whose, "this is not signed by the key that it says it uses"))?;
                self.settled(work, *key)
            }
            IdentityEvent::Revoked { reason, .. } => {
                if reason.len() > REASON_BYTES_MAX {
                    return Err(Rejection::limit("reason, bytes,", reason.len(), REASON_BYTES_MAX));
                }
                self.revoked(work, by, about, reason)
            }
            IdentityEvent::Introduced { key, .. } => self.introduced(work, by, about, *key),
        }
        .map(Some)
    }

    fn alive(&self, row: &Row, whose: &SourceId) -> Result<(), Rejection> {
        match row.revoked {
            Some(_) => Err(refused(whose, "it was revoked")),
            None => Ok(()),
        }
    }

    fn certified(&self, mut work: Work<'_, '_>, key: KeyHash, until_s: u64) -> Result<SourceId, Rejection> {
        self.alive(&work.row, &work.source)?;
        if work.row.refused.contains(&key) {
            return Err(refused(&work.source, "the key of this certificate was revoked"));
        }
        never_revoked(&self.context, self.known, &work, &key)?;
        work.row.certificates.retain(|known| known.key != key);
        work.row.certificates.push(Certificate { key, until_s, since_ms: self.now_ms });
        let surplus = work.row.certificates.len().saturating_sub(CERTIFICATES_MAX);
        work.row.certificates.drain(..surplus);
        work.put()
    }

    fn rotated(&self, mut work: Work<'_, '_>, old: [u8; 32], new: [u8; 32]) -> Result<SourceId, Rejection> {
        let keys = self.known.keys_of(&work.source).map_err(|why| refused(&work.source, why.to_string()))?;
        if keys.now == new && keys.before == Some(old) {
            // Said again.
            return work.put();
        }
        if keys.now != old || new == old {
            return Err(refused(&work.source, "the key that is to be changed is not the one in use"));
        }
        if work.row.refused.contains(&new) {
            return Err(refused(&work.source, "the new key was revoked"));
        }
        never_revoked(&self.context, self.known, &work, &new)?;
        work.row.previous = Some(old);
        work.row.since_ms = self.now_ms;
        if self.known.is_configured(&work.source) {
            work.row.key = Some(new);
        }
        work.put()
    }

    fn settled(&self, mut work: Work<'_, '_>, key: [u8; 32]) -> Result<SourceId, Rejection> {
        let keys = self.known.keys_of(&work.source).map_err(|why| refused(&work.source, why.to_string()))?;
        if keys.now != key {
            return Err(refused(&work.source, "the key that is to stay is not the one in use"));
        }
        if Rule::OwnersCertificates.holds(work.view) {
            // It has one by its own word now.
            work.row.previous = None;
            work.row.certificates.clear();
            return work.put();
        }
        if work.row.previous.take().is_some() {
            let surplus = work.row.certificates.len().saturating_sub(1);
            work.row.certificates.drain(..surplus);
        }
        work.put()
    }

    /// Whether enough controllers say something; notes this one's word when not.
    fn enough(&self, row: &mut Row, by: &SourceId, about: &IdentityEvent) -> bool {
        if self.context.believes_one || !by.is_controller() {
            return true;
        }
        let controllers = self.known.controllers();
        let needed = controllers.len().saturating_sub(1) / 3 + 1;
        let said: [u8; 32] = Sha256::digest(encode(about)).into();
        row.voices.retain(|(_, voice)| voice != by && controllers.contains(voice));
        row.voices.push((said, by.clone()));
        let enough = row.voices.iter().filter(|(other, _)| *other == said).count() >= needed;
        if enough {
            row.voices.clear();
        }
        enough
    }

    fn revoked(
        &self,
        mut work: Work<'_, '_>,
        by: &SourceId,
        about: &IdentityEvent,
        reason: &str,
    ) -> Result<SourceId, Rejection> {
        if work.row.revoked.is_some() {
            return work.put();
        }
        let keys = self.known.keys_of(&work.source).map_err(|why| refused(&work.source, why.to_string()))?;
        if work.source.is_controller() {
            if self.known.controllers().len() <= 1 {
                return Err(refused(&work.source, "it is the only controller"));
            }
            if !self.enough(&mut work.row, by, about) {
                return work.put();
            }
        }
        for key in keys.iter() {
            work.refuse(*key)?;
        }
        for certificate in std::mem::take(&mut work.row.certificates) {
            work.refuse(certificate.key)?;
        }
        let (version, at_ms) = (self.version, self.now_ms);
        work.row.revoked = Some(Revocation { reason: reason.to_owned(), version, at_ms });
        work.row.previous = None;
        work.row.strict = true;
        work.put()
    }

    fn introduced(
        &self,
        mut work: Work<'_, '_>,
        by: &SourceId,
        about: &IdentityEvent,
        key: [u8; 32],
    ) -> Result<SourceId, Rejection> {
        if !work.source.is_controller() {
            return Err(refused(&work.source, "only controllers are introduced: hosts and gateways join"));
        }
        self.alive(&work.row, &work.source)?;
        if work.row.refused.contains(&key) {
            return Err(refused(&work.source, "this key was revoked"));
        }
        never_revoked(&self.context, self.known, &work, &key)?;
        if self.known.keys_of(&work.source).is_ok_and(|known| known.now == key) {
            return work.put();
        }
        if self.enough(&mut work.row, by, about) {
            work.row.key = Some(key);
            work.row.previous = None;
            work.row.since_ms = self.now_ms;
        }
        work.put()
    }
}

#[cfg(test)]
mod tests;
