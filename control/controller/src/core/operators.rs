//! Operators as the order knows them: by which keys, in which role, and which numbers their requests have used (rows R4, R12). Who may
//! say what is [`weir_model::said`].
//!
//! The rule that requests are signed is in force from the event on that names the first operators. Controllers say it, by what their
//! settings name; where one is not believed, as many must say the same as cannot all lie. Afterwards operators change by requests only.
//! It is an event and not a setting, so that an old log is decided as it was. Until it is ordered, a controller whose settings name
//! operators takes nothing that an operator is to order, and votes for no batch that has such an event ([`awaited`]).
//!
//! Numbers are remembered as those of events are (`dedup`): number `n` of an author uses slot `n % WINDOW`. A slot has a digest of the
//! request, so the same request handed on twice has the answer of the first time, and another one under its number is refused.
//! A request lives ten minutes at most, so whoever has a copy of an older one has nothing.
//!
//! Invariants
//! - Once there was an admin, there is one: the last can neither be removed nor become less.
//! - A key is one operator's.
//! - Rows and numbers are bounded: [`OPERATORS_MAX`] operators, [`WINDOW`] numbers of each. One that was removed keeps row and
//!   numbers until room is needed, and for longer than its requests live.

use super::since::Rule;
use super::sources::Unauthentic;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::codec::{decode, encode};
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::operator::{
    Founders, OPERATOR_KEYS_MAX, OPERATORS_MAX, OperatorChange, OperatorFacts, OperatorRole,
};
use weir_model::said::{AHEAD_MAX_MS, LIFE_MAX_MS, Said, Word, word_of};
use weir_model::{Label, Version};
use weir_store::{Rejection, Store, View};
use weir_trust::said::{is_key, is_signed_by};

/// Table of the operators; the watch feed leaves it out.
pub const OPERATORS_TABLE: &str = "operators";
/// Table of the numbers that their requests used; the watch feed leaves it out.
pub const REQUESTS_TABLE: &str = "operator-requests";
/// How many numbers of an operator are remembered.
pub const WINDOW: u64 = 256;
/// Key of the cell with what controllers said of a first operator, while it waits for more of them. No source has this name.
const VOICES: &[u8] = b"";

/// What the order knows of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRow {
    /// What it may order.
    pub role: OperatorRole,
    /// Its ed25519 keys.
    pub keys: Vec<[u8; 32]>,
    /// Ordered time of the last change, milliseconds of the Unix epoch.
    pub since_ms: u64,
    /// Nothing of it is taken any more.
    pub removed: bool,
}

impl OperatorRow {
    fn new(facts: &OperatorFacts, now_ms: u64) -> OperatorRow {
        OperatorRow { role: facts.role, keys: facts.keys.clone(), since_ms: now_ms, removed: false }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    rows: BTreeMap<SourceId, OperatorRow>,
    in_force: bool,
    owners_certificates: bool,
}

impl Operators {
    /// What a store holds.
    pub fn of_store(store: &Store) -> Operators {
        let row = |(key, cell): (&weir_store::Key, &weir_store::Cell)| {
            Some((decode::<SourceId>(key).ok()?, decode::<OperatorRow>(&cell.value).ok()?))
        };
        let rows = store.range(OPERATORS_TABLE, b"").filter_map(row).collect();
        let owners_certificates = Rule::OwnersCertificates.holds_in(store);
        Operators { rows, in_force: Rule::SignedRequests.holds_in(store), owners_certificates }
    }

    /// Whether a certificate counts by the word of its owner's key, and no controller tells any.
    pub fn owners_certificates(&self) -> bool {
        self.owners_certificates
    }

    /// Whether what an operator is to order must carry an operator's signature.
    pub fn in_force(&self) -> bool {
        self.in_force
    }

    /// An operator whose requests are taken.
    pub fn row(&self, author: &SourceId) -> Option<&OperatorRow> {
        self.rows.get(author).filter(|row| !row.removed)
    }

    /// All whose requests are taken.
    pub fn rows(&self) -> impl Iterator<Item = (&SourceId, &OperatorRow)> {
        self.rows.iter().filter(|(_, row)| !row.removed)
    }

    /// Whether a request may be decided on at this wall time, but for its number.
    ///
    /// # Errors
    /// Why it is to be dropped.
    pub fn admit(&self, domain: &Label, wall_ms: u64, said: &Said) -> Result<(), Unauthentic> {
        let row = self.row(said.author()).ok_or(Unauthentic::NoOperator)?;
        if said.time_problem(wall_ms).is_some() {
            return Err(Unauthentic::NotInTime);
        }
        if !row.role.may_order(said.body()) {
            return Err(Unauthentic::BeyondRole);
        }
        match is_signed_by(&row.keys, domain, said) {
            true => Ok(()),
            false => Err(Unauthentic::Forged),
        }
    }
}

/// What is wrong with the first operators of a domain.
pub fn problem(founders: &Founders) -> Option<String> {
    if founders.len() > OPERATORS_MAX {
        return Some(format!("{} operators are named: at most {OPERATORS_MAX}", founders.len()));
    }
    if founders.values().all(|facts| facts.role != OperatorRole::Admin) {
        return Some("none of the operators is an admin: the first must be".into());
    }
    let mut seen = BTreeSet::new();
    founders.iter().find_map(|(name, facts)| {
        let twice = facts.keys.iter().any(|key| !seen.insert(*key));
        let problem =
            keys_problem(&facts.keys).or(twice.then_some("a key is one operator's, and named once"));
        problem.map(|problem| format!("operator '{name}': {problem}"))
    })
}

fn keys_problem(keys: &[[u8; 32]]) -> Option<&'static str> {
    match keys {
        [] => Some("it has no key: 1 to 4 are wanted"),
        keys if keys.len() > OPERATOR_KEYS_MAX => Some("it has more than 4 keys: 1 to 4 are wanted"),
        keys if !keys.iter().all(is_key) => Some("a key is not the public key of an ed25519 key pair"),
        keys if keys.iter().collect::<BTreeSet<_>>().len() < keys.len() => Some("a key is named twice"),
        _ => None,
    }
}

fn refused(whose: &SourceId, problem: impl Into<String>) -> Rejection {
    Rejection::Reference { resource: whose.0.clone(), problem: problem.into() }
}

/// Who says that an operator changes: the operator who signed it, or a controller where the rule is not in force.
pub(super) struct By<'a> {
    pub source: &'a SourceId,
    /// The controllers of which enough must say it where one is not believed; none where one is.
    pub controllers: Option<BTreeSet<&'a SourceId>>,
    pub now_ms: u64,
}

/// Decides on what becomes of an operator.
pub(super) fn decide(
    view: &mut View<'_>,
    by: &By<'_>,
    whose: &SourceId,
    change: &OperatorChange,
) -> Result<(), Rejection> {
    if whose.operator().is_none() {
        return Err(refused(whose, "this is no operator's name: 'operator/' and a label are wanted"));
    }
    let in_force = Rule::SignedRequests.holds(view);
    let facts = match change {
        OperatorChange::Founded(_) if in_force => {
            return Err(refused(
                whose,
                "the first operators are known: an admin changes who the operators are",
            ));
        }
        OperatorChange::Founded(founders) => return found(view, by, whose, founders),
        _ if !in_force => {
            return Err(refused(
                whose,
                "this domain has no operators: its controllers' settings name the first",
            ));
        }
        OperatorChange::Added(facts) | OperatorChange::Changed(facts) => Some(facts),
        OperatorChange::Removed => None,
    };
    let rows = rows(view);
    let row = rows.get(whose).filter(|row| !row.removed);
    match (change, row) {
        (OperatorChange::Added(_), Some(_)) => {
            return Err(refused(whose, "there is such an operator already: change or remove it"));
        }
        (OperatorChange::Changed(_) | OperatorChange::Removed, None) => {
            return Err(refused(whose, "there is no such operator: 'weir operator list' shows them"));
        }
        _ => {}
    }
    let new = match (facts, row) {
        (Some(facts), _) => {
            if let Some(problem) = keys_problem(&facts.keys) {
                return Err(refused(whose, problem));
            }
            let has = |row: &OperatorRow| row.keys.iter().any(|key| facts.keys.contains(key));
            let mut others = rows.iter().filter(|(other, row)| *other != whose && !row.removed);
            if let Some((other, _)) = others.find(|(_, row)| has(row)) {
                return Err(refused(whose, format!("one of its keys is that of {}", other.0)));
            }
            OperatorRow::new(facts, by.now_ms)
        }
        (None, Some(row)) => OperatorRow { since_ms: by.now_ms, removed: true, ..row.clone() },
        (None, None) => return Ok(()),
    };
    let is_admin = |row: &OperatorRow| row.role == OperatorRole::Admin && !row.removed;
    let another = rows.iter().any(|(other, row)| other != whose && is_admin(row));
    if row.is_some_and(is_admin) && !is_admin(&new) && !another {
        return Err(refused(whose, "it is the last admin: add another one first"));
    }
    if !rows.contains_key(whose) && rows.len() >= OPERATORS_MAX {
        make_room(view, &rows, by.now_ms)?;
    }
    view.put(OPERATORS_TABLE, &encode(whose), encode(&new))
}

/// The first operators, when enough controllers say so.
fn found(view: &mut View<'_>, by: &By<'_>, whose: &SourceId, founders: &Founders) -> Result<(), Rejection> {
    if let Some(problem) = problem(founders) {
        return Err(refused(whose, problem));
    }
    let named = whose.operator().and_then(|name| founders.get(&name));
    if named.is_none_or(|facts| facts.role != OperatorRole::Admin) {
        return Err(refused(whose, "it is not an admin among the first operators"));
    }
    if !enough(view, by, founders)? {
        return Ok(());
    }
    for (name, facts) in founders {
        let row = OperatorRow::new(facts, by.now_ms);
        view.put(OPERATORS_TABLE, &encode(&SourceId::of_operator(name)), encode(&row))?;
    }
    Rule::SignedRequests.put(view)
}

pub(super) fn rows(view: &View<'_>) -> BTreeMap<SourceId, OperatorRow> {
    let cells = view.scan(OPERATORS_TABLE, b"").into_iter();
    cells.filter_map(|(key, value)| Some((decode(&key).ok()?, decode(&value).ok()?))).collect()
}

type Voices = Vec<([u8; 32], SourceId)>;

fn digest_of(founders: &Founders) -> [u8; 32] {
    Sha256::digest(encode(founders)).into()
}

/// Whether enough controllers say that these are the first operators; notes this one's word when not.
fn enough(view: &mut View<'_>, by: &By<'_>, founders: &Founders) -> Result<bool, Rejection> {
    let Some(controllers) = &by.controllers else { return Ok(true) };
    let said = digest_of(founders);
    let cell = view.get(OPERATORS_TABLE, VOICES);
    let mut voices: Voices = cell.and_then(|cell| decode(&cell).ok()).unwrap_or_default();
    voices.retain(|(_, voice)| voice != by.source && controllers.contains(voice));
    voices.push((said, by.source.clone()));
    let needed = controllers.len().saturating_sub(1) / 3 + 1;
    if voices.iter().filter(|(other, _)| *other == said).count() >= needed {
        view.delete(OPERATORS_TABLE, VOICES);
        return Ok(true);
    }
    view.put(OPERATORS_TABLE, VOICES, encode(&voices))?;
    Ok(false)
}

/// Whether a controller has still to say that these are the first operators.
pub fn awaits_word(store: &Store, of: &SourceId, founders: &Founders) -> bool {
    let voices: Option<Voices> = store.get(OPERATORS_TABLE, VOICES).and_then(|cell| decode(&cell.value).ok());
    let said = digest_of(founders);
    !Rule::SignedRequests.holds_in(store)
        && !voices.unwrap_or_default().iter().any(|(other, voice)| *other == said && voice == of)
}

/// The event that names the first operators.
pub fn founding(founders: &Founders) -> Option<IdentityEvent> {
    let (name, _) = founders.iter().find(|(_, facts)| facts.role == OperatorRole::Admin)?;
    let (whose, change) = (SourceId::of_operator(name), OperatorChange::Founded(founders.clone()));
    Some(IdentityEvent::Operator { whose, change })
}

/// Whether an event is no controller's to say where there are operators, and so comes too early where the order has yet to name them.
pub fn awaited(body: &EventBody) -> bool {
    matches!(word_of(body), Word::Operator(_) | Word::Known | Word::Nobody)
}

/// Forgets one that was removed so long ago that none of its requests is in time.
fn make_room(
    view: &mut View<'_>,
    rows: &BTreeMap<SourceId, OperatorRow>,
    now_ms: u64,
) -> Result<(), Rejection> {
    let over_ms = now_ms.saturating_sub(LIFE_MAX_MS + AHEAD_MAX_MS);
    let gone = rows.iter().filter(|(_, row)| row.removed && row.since_ms < over_ms);
    let Some((gone, _)) = gone.min_by_key(|(_, row)| row.since_ms) else {
        return Err(Rejection::limit("operators", rows.len() + 1, OPERATORS_MAX));
    };
    for number in 0..WINDOW {
        let slot = slot(gone, number);
        if view.get(REQUESTS_TABLE, &slot).is_some() {
            view.delete(REQUESTS_TABLE, &slot);
        }
    }
    view.delete(OPERATORS_TABLE, &encode(gone));
    Ok(())
}

/// Whether a request was decided before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Its number is free.
    Never,
    /// The very same was decided at this version.
    At(Version),
    /// Its number was used by another one, by one that was rejected, or is too old to tell.
    Used,
}

fn slot(author: &SourceId, number: u64) -> Vec<u8> {
    encode(&(author, number % WINDOW))
}

/// Whether a request with this digest was decided before.
pub fn asked(store: &Store, said: &Said, digest: &[u8; 32]) -> Asked {
    let cell = store.get(REQUESTS_TABLE, &slot(said.author(), said.number()));
    let known = cell.and_then(|cell| decode::<(u64, Version, [u8; 32])>(&cell.value).ok());
    match known {
        Some((number, version, same)) if number == said.number() && same == *digest => match version {
            Version::ZERO => Asked::Used,
            version => Asked::At(version),
        },
        Some((number, ..)) if number >= said.number() => Asked::Used,
        _ => Asked::Never,
    }
}

/// Remembers that a request was decided at a version; [`Version::ZERO`]: rejected.
pub(super) fn record(
    view: &mut View<'_>,
    said: &Said,
    digest: [u8; 32],
    version: Version,
) -> Result<(), Rejection> {
    let slot = slot(said.author(), said.number());
    view.put(REQUESTS_TABLE, &slot, encode(&(said.number(), version, digest)))
}

#[cfg(test)]
mod tests;
