//! What controllers say of each other, and what follows from it: who is a spare, who is replaced by one (rows C5, R6).
//!
//! Every controller's words are in a row of its own ([`GROUP_TABLE`]), so they are a part of every snapshot and digest. [`Words`] reads them, and
//! [`Words::next`] says what is to be done, from these rows and the members of the group alone: the time that it goes by is the ordered time
//! of the last word, so every member that has the same words and knows the same members comes to the same. It is carried out as any change of
//! members is: in a group of which some may lie, by the approval of as many as decide, each of which looks here first.
//!
//! Invariants
//! - As many as decide ([`Roster::decide`]) must suspect a member at once, each for as long as it wants itself, before it is replaced. So f that lie, or one,
//!   can neither have an honest member replaced nor keep a dead one, as long as the others agree.
//! - A suspicion is over when its author says so, or has not said it again for [`SUSPICION_LIFE_MS`].
//! - By suspicion a member is only ever replaced, by a spare that is not suspected itself, and not within [`REPLACE_EACH_MS`] of the last time.
//!   So there are never fewer members by it.
//! - A member that is convicted goes at once, also without a spare, if enough are left ([`Roster::least`]). Each of as many as decide has checked
//!   the proof by itself: it is a lie signed with the key under which the member is in the group, so nobody is convicted by others' words.
//! - Rows are bounded ([`SUBJECTS_MAX`], [`SPARES_MAX`], [`CONVICTS_MAX`], [`REPLACED_MAX`]).
//!
//! Departure from Cicero, whose failure detector's word is enough (2.6.4) and which removes and adds by the bootstrap controller: nobody's word is.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::codec::{decode as read, encode};
use weir_model::event::{Event, EventBody, SourceId};
use weir_model::group::{Because, GroupWord, Replaced, SPARES_MAX, SUBJECTS_MAX};
use weir_store::{Rejection, Store, View};

/// Table of the words; the watch feed leaves it out.
pub const GROUP_TABLE: &str = "group-words";
/// A suspicion that is not said again for so long is over, milliseconds.
pub const SUSPICION_LIFE_MS: u64 = 180_000;
/// A member is replaced by suspicion at most once in so long, milliseconds.
pub const REPLACE_EACH_MS: u64 = 3_600_000;
/// Convictions of one controller's row.
pub const CONVICTS_MAX: usize = 8;
/// Replacements that a row remembers, the newest.
pub const REPLACED_MAX: usize = 8;

/// A suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Ordered time at which it began, milliseconds.
    pub since_ms: u64,
    /// Ordered time at which it was said last, milliseconds.
    pub said_ms: u64,
    /// For how long it is to last before something follows, milliseconds; 0: for ever.
    pub after_ms: u64,
}

/// A spare as one controller names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spare {
    /// Its key, in a group of which some may lie.
    pub key: Option<[u8; 32]>,
    /// Where it is, as the members' list has it.
    pub address: String,
}

/// What one controller said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Ordered time of its last word, milliseconds.
    pub said_ms: u64,
    /// Whom it suspects.
    pub suspects: BTreeMap<u64, Suspicion>,
    /// Whom it convicts, under which key, and by what; nothing where another's word has it.
    pub convicts: BTreeMap<(u64, [u8; 32]), Vec<u8>>,
    /// Whom it named as a spare; nothing where it took that back.
    pub spares: BTreeMap<u64, Option<Spare>>,
    /// What it said was done, and when it said so.
    pub replaced: Vec<(u64, Replaced)>,
}

/// A member of the group as [`Words::next`] must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Under which name it speaks.
    pub source: SourceId,
    /// Keys under which it is in the group.
    pub keys: BTreeSet<[u8; 32]>,
}

/// The members of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// Those with a vote.
    pub members: BTreeMap<u64, Member>,
    /// As many as decide.
    pub decide: usize,
    /// As many as cannot all lie.
    pub believed: usize,
    /// As many as must be left when one goes without another in its place.
    pub least: usize,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who goes.
    pub out: u64,
    /// Who comes.
    pub by: Option<(u64, Spare)>,
    /// Why.
    pub because: Because,
    /// Who said so, in order.
    pub who: Vec<u64>,
}

/// Somebody whom a member suspects or convicts, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// Who.
    pub member: u64,
    /// Who says so, in order.
    pub who: Vec<u64>,
    /// Ordered time at which the first of them did, milliseconds; 0: it is convicted.
    pub since_ms: u64,
    /// Ordered time from which on it may be replaced, once as many as decide say so; none: it never is.
    pub due_ms: Option<u64>,
    /// Whether it is convicted.
    pub lied: bool,
}

/// What the controllers have said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    rows: BTreeMap<SourceId, Row>,
    /// Ordered time of the last word, milliseconds.
    at_ms: u64,
}

fn refused(source: &SourceId, problem: impl Into<String>) -> Rejection {
    Rejection::Reference { resource: source.0.clone(), problem: problem.into() }
}

/// Takes a controller's word in; `controllers` are those that are registered. Gives a spare's number and key when as many name it with this as cannot all lie.
pub(super) fn decide(
    view: &mut View<'_>,
    controllers: &BTreeSet<&SourceId>,
    believes_one: bool,
    now_ms: u64,
    event: &Event,
) -> Result<Option<(u64, [u8; 32])>, Rejection> {
    let EventBody::Group(word) = &event.body else { return Ok(None) };
    let by = &event.source;
    if !by.is_controller() {
        return Err(refused(by, "only controllers say something of each other"));
    }
    if let Some(problem) = word.problem() {
        return Err(refused(by, problem));
    }
    let cell = encode(by);
    let row = view.get(GROUP_TABLE, &cell).and_then(|bytes| read::<Row>(&bytes).ok());
    let mut row = row.unwrap_or_default();
    row.said_ms = now_ms;
    take(&mut row, word, now_ms)?;
    view.put(GROUP_TABLE, &cell, encode(&row))?;
    let GroupWord::Spare { id, key: Some(key), address } = &**word else { return Ok(None) };
    let needed = if believes_one { 1 } else { controllers.len().saturating_sub(1) / 3 + 1 };
    let same = Some(Spare { key: Some(*key), address: address.clone() });
    let says = |source: &&&SourceId| {
        let row = view.get(GROUP_TABLE, &encode(**source)).and_then(|bytes| read::<Row>(&bytes).ok());
        row.is_some_and(|row| row.spares.get(id) == Some(&same))
    };
    Ok((controllers.iter().filter(says).count() >= needed).then_some((*id, *key)))
}

fn room(what: &str, there: usize, is_new: bool, limit: usize) -> Result<(), Rejection> {
    if is_new && there >= limit { Err(Rejection::limit(what, there + 1, limit)) } else { Ok(()) }
}

fn take(row: &mut Row, word: &GroupWord, now_ms: u64) -> Result<(), Rejection> {
    match word {
        GroupWord::Suspects { member, after_ms } => {
            row.suspects.retain(|_, suspicion| suspicion.stands(now_ms));
            let is_new = !row.suspects.contains_key(member);
            room("controllers that one suspects", row.suspects.len(), is_new, SUBJECTS_MAX)?;
            let begins = Suspicion { since_ms: now_ms, said_ms: now_ms, after_ms: *after_ms };
            let suspicion = row.suspects.entry(*member).or_insert(begins);
            (suspicion.said_ms, suspicion.after_ms) = (now_ms, *after_ms);
        }
        GroupWord::Trusts { member } => drop(row.suspects.remove(member)),
        GroupWord::Convicts { member, key, proof } => {
            let is_new = !row.convicts.contains_key(&(*member, *key));
            room("controllers that one convicts", row.convicts.len(), is_new, CONVICTS_MAX)?;
            row.convicts.entry((*member, *key)).or_insert_with(|| proof.clone());
        }
        GroupWord::Spare { id, key, address } => {
            let named = row.spares.values().flatten().count();
            let is_new = !row.spares.get(id).is_some_and(Option::is_some);
            room("spares of a group", named, is_new, SPARES_MAX)?;
            row.name(*id, Some(Spare { key: *key, address: address.clone() }));
        }
        GroupWord::NoSpare { id } => row.name(*id, None),
        GroupWord::Replaced(replaced) => {
            if !row.replaced.iter().any(|(_, known)| known == replaced) {
                row.replaced.push((now_ms, replaced.clone()));
                let surplus = row.replaced.len().saturating_sub(REPLACED_MAX);
                row.replaced.drain(..surplus);
            }
        }
    }
    Ok(())
}

impl Suspicion {
    fn stands(&self, now_ms: u64) -> bool {
        now_ms <= self.said_ms.saturating_add(SUSPICION_LIFE_MS)
    }

    /// Ordered time from which on something follows.
    fn due_ms(&self) -> Option<u64> {
        (self.after_ms > 0).then(|| self.since_ms.saturating_add(self.after_ms))
    }
}

impl Row {
    /// Names a spare, or takes that back; what was taken back longest ago by number is forgotten.
    fn name(&mut self, id: u64, spare: Option<Spare>) {
        self.spares.insert(id, spare);
        if self.spares.len() > SUBJECTS_MAX
            && let Some(old) = self.spares.iter().find(|(_, spare)| spare.is_none()).map(|(id, _)| *id)
        {
            self.spares.remove(&old);
        }
    }
}

impl Words {
    /// What a store holds.
    pub fn of_store(store: &Store) -> Words {
        let cells = store.range(GROUP_TABLE, b"");
        let row = |(key, cell): (&weir_store::Key, &weir_store::Cell)| {
            Some((read::<SourceId>(key).ok()?, read::<Row>(&cell.value).ok()?))
        };
        let rows: BTreeMap<SourceId, Row> = cells.filter_map(row).collect();
        let at_ms = rows.values().map(|row| row.said_ms).max().unwrap_or_default();
        Words { rows, at_ms }
    }

    /// Takes in a word, as the order does.
    #[cfg(test)]
    pub(crate) fn hear(&mut self, by: &SourceId, word: &GroupWord, now_ms: u64) -> Result<(), Rejection> {
        let mut row = self.rows.get(by).cloned().unwrap_or_default();
        row.said_ms = now_ms;
        take(&mut row, word, now_ms)?;
        self.rows.insert(by.clone(), row);
        self.at_ms = self.at_ms.max(now_ms);
        Ok(())
    }

    /// Ordered time of the last word, milliseconds: what is decided goes by it.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// What a controller said.
    pub fn row(&self, source: &SourceId) -> Option<&Row> {
        self.rows.get(source)
    }

    /// What the members said, with their numbers.
    fn of<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = (u64, &'a Row)> {
        roster.members.iter().filter_map(|(id, member)| Some((*id, self.rows.get(&member.source)?)))
    }

    /// Spares: controllers that as many members name as decide, with the same key and address, and that are no members.
    pub fn spares(&self, roster: &Roster) -> BTreeMap<u64, Spare> {
        self.named(roster, roster.spare_words())
            .into_iter()
            .filter(|(id, _)| !roster.members.contains_key(id))
            .collect()
    }

    /// Controllers that at least so many members name as spares.
    fn named(&self, roster: &Roster, least: usize) -> BTreeMap<u64, Spare> {
        let mut votes: BTreeMap<(u64, &Spare), usize> = BTreeMap::new();
        for (_, row) in self.of(roster) {
            for (id, spare) in row.spares.iter().filter_map(|(id, spare)| Some((*id, spare.as_ref()?))) {
                *votes.entry((id, spare)).or_default() += 1;
            }
        }
        let enough = votes.into_iter().filter(|(_, count)| *count >= least);
        enough.map(|((id, spare), _)| (id, spare.clone())).collect()
    }

    /// Spares that a member has said nothing of and that as many name as cannot all lie: it says so too.
    pub fn to_adopt(&self, roster: &Roster, own: &SourceId) -> BTreeMap<u64, Spare> {
        let mut named = self.named(roster, roster.believed);
        let said = self.rows.get(own);
        named.retain(|id, _| {
            !said.is_some_and(|row| row.spares.contains_key(id)) && !roster.members.contains_key(id)
        });
        named
    }

    /// Members whose suspicion of somebody stands, and is due if `due`.
    fn suspecting(&self, roster: &Roster, whom: u64, due: bool) -> Vec<u64> {
        let suspects = |row: &Row| {
            row.suspects.get(&whom).is_some_and(|suspicion| {
                let is_due = suspicion.due_ms().is_some_and(|due_ms| due_ms <= self.at_ms);
                suspicion.stands(self.at_ms) && (is_due || !due)
            })
        };
        self.of(roster).filter(|(id, row)| *id != whom && suspects(row)).map(|(id, _)| id).collect()
    }

    /// Members that convict somebody under a key that it has.
    fn convicting(&self, roster: &Roster, whom: u64, keys: &BTreeSet<[u8; 32]>) -> Vec<u64> {
        let convicts =
            |row: &Row| row.convicts.keys().any(|(member, key)| *member == whom && keys.contains(key));
        self.of(roster).filter(|(id, row)| *id != whom && convicts(row)).map(|(id, _)| id).collect()
    }

    /// Convictions of anybody with a proof, as members said them: by whom, of whom, under which key, and by what.
    pub fn proofs<'a>(
        &'a self,
        roster: &'a Roster,
    ) -> impl Iterator<Item = (u64, u64, &'a [u8; 32], &'a [u8])> {
        self.of(roster).flat_map(|(by, row)| {
            let whole = row.convicts.iter().filter(|(_, proof)| !proof.is_empty());
            whole.map(move |((member, key), proof)| (by, *member, key, proof.as_slice()))
        })
    }

    /// The first spare that may take a place: no member suspects it in such a number that one of them is honest, and it is not convicted.
    fn candidate(&self, roster: &Roster) -> Option<(u64, Spare)> {
        self.spares(roster).into_iter().find(|(id, spare)| {
            let keys = spare.key.into_iter().collect();
            self.suspecting(roster, *id, false).len() < roster.believed
                && self.convicting(roster, *id, &keys).len() < roster.decide
        })
    }

    /// Replacements that members say were done, as many as cannot all lie or `own` itself, with the time, oldest first.
    pub fn replaced(&self, roster: &Roster, own: &SourceId) -> Vec<(u64, Replaced)> {
        let mut said: BTreeMap<&Replaced, Vec<u64>> = BTreeMap::new();
        for (at_ms, replaced) in self.of(roster).flat_map(|(_, row)| &row.replaced) {
            said.entry(replaced).or_default().push(*at_ms);
        }
        let of_own = self.rows.get(own).map(|row| row.replaced.as_slice()).unwrap_or_default();
        let mut done: Vec<(u64, Replaced)> = said
            .into_iter()
            .filter_map(|(replaced, mut times)| {
                times.sort_unstable();
                // Liars that said it too early, or say it now, move nothing.
                let by_others = times.get(roster.believed - 1).copied();
                let by_own = of_own.iter().find(|(_, known)| known == replaced).map(|(at_ms, _)| *at_ms);
                Some((by_others.or(by_own)?, replaced.clone()))
            })
            .collect();
        done.sort();
        done
    }

    /// What `own` says too, because as many say it as cannot all lie.
    pub fn to_repeat(&self, roster: &Roster, own: &SourceId) -> Vec<Replaced> {
        let said = self.rows.get(own).map(|row| row.replaced.as_slice()).unwrap_or_default();
        let done = self.replaced(roster, own).into_iter().rev().take(REPLACED_MAX / 2);
        done.map(|(_, replaced)| replaced).filter(|one| !said.iter().any(|(_, known)| known == one)).collect()
    }

    /// Ordered time from which on a member may be replaced by suspicion again; 0: at once.
    pub fn rests_until_ms(&self, roster: &Roster, own: &SourceId) -> u64 {
        let silent = self.replaced(roster, own).into_iter().filter(|(_, one)| one.because == Because::Silent);
        silent.map(|(at_ms, _)| at_ms + REPLACE_EACH_MS).max().unwrap_or_default()
    }

    /// What is to be done now, as `own` knows it.
    pub fn next(&self, roster: &Roster, own: &SourceId) -> Option<Step> {
        let spare = self.candidate(roster);
        for (out, member) in &roster.members {
            let who = self.convicting(roster, *out, &member.keys);
            if who.len() >= roster.decide && (spare.is_some() || roster.members.len() > roster.least) {
                return Some(Step { out: *out, by: spare, because: Because::Lied, who });
            }
        }
        let by = Some(spare?);
        if self.at_ms < self.rests_until_ms(roster, own) {
            return None;
        }
        roster.members.keys().find_map(|out| {
            let who = self.suspecting(roster, *out, true);
            let step = Step { out: *out, by: by.clone(), because: Because::Silent, who };
            (step.who.len() >= roster.decide).then_some(step)
        })
    }

    /// Who is suspected or convicted by anybody, members and spares.
    pub fn suspected(&self, roster: &Roster) -> Vec<Suspected> {
        let spares = self.spares(roster);
        let keys_of = |id: u64| match (roster.members.get(&id), spares.get(&id)) {
            (Some(member), _) => member.keys.clone(),
            (None, Some(spare)) => spare.key.into_iter().collect(),
            (None, None) => BTreeSet::new(),
        };
        let all: BTreeSet<u64> = roster.members.keys().chain(spares.keys()).copied().collect();
        let mut found = Vec::new();
        for member in all {
            let who = self.convicting(roster, member, &keys_of(member));
            if !who.is_empty() {
                found.push(Suspected { member, who, since_ms: 0, due_ms: None, lied: true });
            }
            let who = self.suspecting(roster, member, false);
            let of = |(id, row): (u64, &Row)| {
                who.contains(&id).then(|| row.suspects.get(&member).copied()).flatten()
            };
            let standing: Vec<Suspicion> = self.of(roster).filter_map(of).collect();
            if let Some(since_ms) = standing.iter().map(|one| one.since_ms).min() {
                let mut due: Vec<u64> = standing.iter().filter_map(Suspicion::due_ms).collect();
                due.sort_unstable();
                let due_ms = due.get(roster.decide - 1).or(due.last()).copied();
                found.push(Suspected { member, who, since_ms, due_ms, lied: false });
            }
        }
        found
    }
}

impl Roster {
    /// How many must name a spare.
    fn spare_words(&self) -> usize {
        // Where none lies, the one that was asked says so for all.
        if self.believed == 1 { 1 } else { self.decide }
    }
}

#[cfg(test)]
mod tests;
