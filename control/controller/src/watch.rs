//! A member's watch over the others: what it says of them, and which change of members it agrees to (rows C5, R6). Pure: it is told how long each
//! has been silent and what was proven, and says which words to order. What follows from the words is in [`crate::core::group`].
//!
//! Invariants
//! - It suspects only who was not heard of for [`Watch::silent_at_ms`], and says so again at most once in [`AGAIN_MS`], mostly once in [`RENEW_MS`].
//! - It convicts nobody by another's word: it has checked each proof by itself, each once.
//! - It agrees to no change while a replacement that it has seen done is not in the order by its own word: so it agrees to at most one an hour.
//! - A process that was stopped itself knows nothing of who was silent meanwhile: its driver begins anew then.

use crate::core::group::{Roster, Spare, Step, Words};
use std::collections::{BTreeMap, BTreeSet};
use weir_model::event::SourceId;
use weir_model::group::{GroupWord, Replaced};

/// The same word is said again after so long, milliseconds.
pub const AGAIN_MS: u64 = 2_000;
/// A suspicion that lasts is said again after so long, milliseconds: several times in its life.
pub const RENEW_MS: u64 = 45_000;
/// A silence that makes suspect, milliseconds: a quarter of what is waited in all, and within these.
const SILENT_MS: std::ops::RangeInclusive<u64> = 3_000..=10_000;
/// Proofs that are checked at one look.
const CHECKS_MAX: usize = 4;
/// A change that was agreed to is waited for so long, milliseconds.
const WANTED_LIFE_MS: u64 = 120_000;

/// A proof that a member lies: of whom, under which key, and the bytes.
pub type Proof = (u64, [u8; 32], Vec<u8>);
/// Whether a proof convicts somebody under a key.
pub type Convicts<'a> = dyn Fn(u64, &[u8; 32], &[u8]) -> bool + 'a;

/// What is known at a look.
pub struct Look<'a> {
    /// Time on a clock that only goes on, milliseconds.
    pub now_ms: u64,
    /// Ordered time, milliseconds.
    pub ordered_ms: u64,
    /// What was said.
    pub words: &'a Words,
    /// Who is a member.
    pub roster: &'a Roster,
    /// Number of that list.
    pub number: u64,
    /// For how long others, members and spares, have not been heard, milliseconds. Who is missing is not suspected.
    pub silent_ms: &'a BTreeMap<u64, u64>,
    /// Proofs that this member found itself: of whom, under which key, and the bytes.
    pub proofs: &'a [Proof],
    /// Whether a proof convicts somebody under a key.
    pub convicts: &'a Convicts<'a>,
}

/// What is to be done after a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Act {
    /// To be ordered.
    pub say: Vec<GroupWord>,
    /// The change that this member agrees to.
    pub step: Option<Step>,
    /// What it saw done.
    pub done: Option<Replaced>,
}

/// See the module.
pub struct Watch {
    own: u64,
    source: SourceId,
    /// After how long a silent member is replaced, milliseconds; 0: never.
    after_ms: u64,
    /// By the settings.
    spares: BTreeMap<u64, Spare>,
    /// When something was said last, by what it is about.
    said: BTreeMap<(u8, u64), u64>,
    /// Proofs of others that were looked at: by whom, of whom, under which key.
    checked: BTreeSet<(u64, u64, [u8; 32])>,
    /// Who is convicted by a proof that was looked at.
    proven: BTreeSet<(u64, [u8; 32])>,
    /// The change that was agreed to last, and when.
    wanted: Option<(u64, Step)>,
    /// Seen done, and not in the order yet.
    owed: Vec<Replaced>,
}

impl Watch {
    /// Of member `own`, which speaks as `source`.
    pub fn new(own: u64, source: SourceId, after_ms: u64, spares: BTreeMap<u64, Spare>) -> Watch {
        Watch {
            own,
            source,
            after_ms,
            spares,
            said: BTreeMap::new(),
            checked: BTreeSet::new(),
            proven: BTreeSet::new(),
            wanted: None,
            owed: Vec::new(),
        }
    }

    /// A silence that makes suspect, milliseconds.
    pub fn silent_at_ms(&self) -> u64 {
        (self.after_ms / 4).clamp(*SILENT_MS.start(), *SILENT_MS.end())
    }

    /// Looks at the others.
    pub fn look(&mut self, look: &Look<'_>) -> Act {
        let mut act = Act::default();
        if !look.roster.members.contains_key(&self.own) {
            // Whoever is no member has no say.
            self.wanted = None;
            return act;
        }
        self.name_spares(look, &mut act);
        self.suspect(look, &mut act);
        self.convict(look, &mut act);
        self.see_done(look, &mut act);
        if self.owed.is_empty() {
            // Where some may lie, nobody is asked about itself.
            let may_agree = |step: &Step| step.out != self.own || look.roster.believed == 1;
            act.step = look.words.next(look.roster, &self.source).filter(may_agree);
        }
        if let Some(step) = &act.step {
            self.wanted = Some((look.now_ms, step.clone()));
        }
        act
    }

    /// Says something, unless that was said a moment ago.
    fn say(
        &mut self,
        look: &Look<'_>,
        (kind, about, again_ms): (u8, u64, u64),
        word: GroupWord,
        act: &mut Act,
    ) {
        let said_ms = self.said.get(&(kind, about)).copied();
        if said_ms.is_none_or(|said_ms| look.now_ms >= said_ms + again_ms) {
            self.said.insert((kind, about), look.now_ms);
            act.say.push(word);
        }
    }

    fn name_spares(&mut self, look: &Look<'_>, act: &mut Act) {
        let Look { words, roster, .. } = look;
        let known = words.row(&self.source).map(|row| row.spares.clone()).unwrap_or_default();
        let mut named = words.to_adopt(roster, &self.source);
        let of_settings = self.spares.iter().filter(|(id, _)| !known.contains_key(id));
        named.extend(of_settings.map(|(id, spare)| (*id, spare.clone())));
        named.retain(|id, _| !roster.members.contains_key(id));
        for (id, Spare { key, address }) in named {
            self.say(look, (0, id, AGAIN_MS), GroupWord::Spare { id, key, address }, act);
        }
        // One that took a place is none any more.
        let taken = known.iter().filter(|(id, spare)| spare.is_some() && roster.members.contains_key(id));
        for id in taken.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.say(look, (0, id, AGAIN_MS), GroupWord::NoSpare { id }, act);
        }
    }

    fn suspect(&mut self, look: &Look<'_>, act: &mut Act) {
        let Look { words, roster, .. } = look;
        let suspects = words.row(&self.source).map(|row| row.suspects.clone()).unwrap_or_default();
        let spares = words.spares(roster);
        let others = roster.members.keys().chain(spares.keys()).copied().filter(|id| *id != self.own);
        for member in others.collect::<Vec<_>>() {
            let is_spare = !roster.members.contains_key(&member);
            // Of a spare it is always worth knowing, and never has an effect but that another is taken.
            let (silent_at_ms, after_ms) = match is_spare {
                true => (*SILENT_MS.end(), 0),
                false => (self.silent_at_ms(), self.after_ms),
            };
            let silent_ms = look.silent_ms.get(&member).copied().unwrap_or_default();
            let is_silent = silent_ms >= silent_at_ms && (is_spare || self.after_ms > 0);
            match (suspects.get(&member), is_silent) {
                (None, true) => {
                    self.say(look, (1, member, AGAIN_MS), GroupWord::Suspects { member, after_ms }, act);
                }
                (Some(suspicion), true) => {
                    let due_ms = suspicion.since_ms + after_ms;
                    // The decision is made by the time of a word: one that says that it is due.
                    let is_due = after_ms > 0 && due_ms <= look.ordered_ms && words.at_ms() < due_ms;
                    let again_ms = if is_due { AGAIN_MS } else { RENEW_MS };
                    self.say(look, (1, member, again_ms), GroupWord::Suspects { member, after_ms }, act);
                }
                (Some(_), false) => {
                    self.say(look, (2, member, AGAIN_MS), GroupWord::Trusts { member }, act);
                    // When it falls silent again that is said at once.
                    self.said.remove(&(1, member));
                }
                (None, false) => {}
            }
        }
    }

    fn convict(&mut self, look: &Look<'_>, act: &mut Act) {
        let Look { words, roster, .. } = look;
        let convicted = words.row(&self.source).map(|row| row.convicts.clone()).unwrap_or_default();
        let spares = words.spares(roster);
        let has = |member: u64, key: &[u8; 32]| match (roster.members.get(&member), spares.get(&member)) {
            (Some(known), _) => known.keys.contains(key),
            (None, spare) => spare.is_some_and(|spare| spare.key == Some(*key)),
        };
        let is_new = |member: u64, key: &[u8; 32]| {
            member != self.own && has(member, key) && !convicted.contains_key(&(member, *key))
        };
        let mut found: Vec<(u64, [u8; 32], Vec<u8>)> =
            look.proofs.iter().filter(|(member, key, _)| is_new(*member, key)).cloned().collect();
        let fresh = words.proofs(roster).filter(|(by, member, key, _)| {
            !self.checked.contains(&(*by, *member, **key)) && is_new(*member, key)
        });
        let fresh: Vec<_> = fresh.take(CHECKS_MAX).collect();
        for (by, member, key, proof) in fresh {
            self.checked.insert((by, member, *key));
            match (look.convicts)(member, key, proof) {
                true => drop(self.proven.insert((member, *key))),
                false => {
                    tracing::warn!(
                        by,
                        member,
                        "what is said to prove a lie of a controller proves none here"
                    );
                }
            }
        }
        let proven = self.proven.iter().filter(|(member, key)| is_new(*member, key));
        found.extend(proven.map(|(member, key)| (*member, *key, Vec::new())));
        for (member, key, proof) in found {
            self.say(look, (3, member, AGAIN_MS), GroupWord::Convicts { member, key, proof }, act);
        }
    }

    fn see_done(&mut self, look: &Look<'_>, act: &mut Act) {
        let Look { words, roster, number, .. } = look;
        if let Some((at_ms, step)) = self.wanted.take() {
            let by = step.by.as_ref().map(|(id, _)| *id);
            let is_in = by.is_none_or(|by| roster.members.contains_key(&by));
            if !roster.members.contains_key(&step.out) && is_in {
                let Step { out, because, who, .. } = step;
                let done = Replaced { out, by, number: *number, because, who };
                self.owed.push(done.clone());
                act.done = Some(done);
            } else if look.now_ms < at_ms + WANTED_LIFE_MS {
                self.wanted = Some((at_ms, step));
            }
        }
        let said = words.row(&self.source).map(|row| row.replaced.as_slice()).unwrap_or_default();
        self.owed.retain(|owed| !said.iter().any(|(_, known)| known == owed));
        let mut all = self.owed.clone();
        all.extend(words.to_repeat(roster, &self.source));
        for one in all {
            self.say(look, (4, one.number, AGAIN_MS), GroupWord::Replaced(one), act);
        }
    }
}

#[cfg(test)]
mod tests;
