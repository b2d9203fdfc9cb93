//! Whether this replica's state is that of the others, and its repair when it is not (row B1). Pure: it is told what is said
//! and says what to do.
//!
//! Every [`Settings::digest_every`](crate::Settings) batches each member says the digest of its state. Whose digest differs from
//! one that 2f+1 members have serves nothing from then on: its application's state is rotten. Its journal is sound (records have checksums, and
//! blocks the signatures of others), so it goes on voting and following.
//!
//! **Repair.** States are the same byte for byte on all honest members, so one is right when f+1 members offer it. The fenced
//! member names a place that is still to come, everybody keeps the state there, and it brings the order there itself with empty
//! batches when nobody else orders. It takes that state over, gives its application the batches behind it once more, and serves
//! again when the digest that its application then has is the one of 2f+1 members.
//!
//! Invariants
//! - One wish of a member counts at a time, and another only after [`WISH_EVERY_MS`]: a liar costs the others a state now and then.
//! - A digest of before the repair cannot end or begin a fence: only that of the place taken over ends it.

use std::collections::{BTreeMap, BTreeSet};

use weir_order::digests::{Digests, Divergence, StateDigest};

use super::words::Word;

/// Another wish of a member counts after so long, ms.
pub const WISH_EVERY_MS: u64 = 2_000;
/// How long a repair may take before it is begun anew, ms.
const REPAIR_MS: u64 = 15_000;
/// Places that a wish may be ahead, in batches: what is ordered while it is on its way, and more.
const AHEAD_MAX: u64 = 1 << 16;
/// Between two sayings of the same wish, ms.
const AGAIN_MS: u64 = 500;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Do {
    /// Say it to all.
    Say(Word),
    /// Order so many empty batches.
    Pump(u64),
    /// Ask for states after this batch or a later one.
    Fetch(u64),
}

#[derive(Debug)]
struct Repair {
    /// The state that is wanted.
    place: u64,
    since_ms: u64,
    said_ms: u64,
    pumped_ms: u64,
    /// The place of the state that was taken over; its digest ends the fence.
    taken: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Health {
    every: u64,
    voters: BTreeSet<u64>,
    quorum: usize,
    digests: Digests,
    fenced: Option<(Divergence, Option<Repair>)>,
    /// What members wish: the place, and since when.
    wishes: BTreeMap<u32, (u64, u64)>,
    /// Times that this member's state differed.
    pub divergences: u64,
    /// Times that it was repaired.
    pub repairs: u64,
    /// Wishes that were not followed.
    pub wishes_refused: u64,
}

impl Health {
    /// Of member `me`. `every` is 0 where the application says no digests.
    pub fn new(me: u32, members: &[u32], every: u64) -> Health {
        let voters: BTreeSet<u64> = members.iter().copied().map(u64::from).collect();
        let quorum = voters.len() - (voters.len().max(1) - 1) / 3;
        Health {
            every,
            voters,
            quorum,
            digests: Digests::new(u64::from(me)),
            fenced: None,
            wishes: BTreeMap::new(),
            divergences: 0,
            repairs: 0,
            wishes_refused: 0,
        }
    }

    /// The members are others now.
    pub fn set_members(&mut self, members: &[u32]) {
        self.voters = members.iter().copied().map(u64::from).collect();
        self.quorum = self.voters.len() - (self.voters.len().max(1) - 1) / 3;
        self.wishes.retain(|id, _| members.contains(id));
    }

    /// Places that were compared and agreed.
    pub fn agreed(&self) -> u64 {
        self.digests.agreed
    }

    /// Why it serves nothing.
    pub fn fence(&self) -> Option<String> {
        let (divergence, repair) = self.fenced.as_ref()?;
        let doing = match repair {
            Some(Repair { taken: Some(at), .. }) => {
                format!("the state after batch {at} was taken over and is compared")
            }
            Some(Repair { place, .. }) => format!("it waits for a state after batch {place}"),
            None => "it will ask for a state".to_owned(),
        };
        Some(format!(
            "its digest after batch {} is not that of {} members; {doing}",
            divergence.index, self.quorum
        ))
    }

    /// Whether it serves nothing.
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Places of which the state is to be kept.
    pub fn wanted(&self) -> BTreeSet<u64> {
        self.wishes.values().map(|(place, _)| *place).collect()
    }

    fn said(&mut self, from: u64, index: u64, digest: StateDigest) {
        let found = self.digests.heard(from, index, digest, (&self.voters, self.quorum));
        match &self.fenced {
            None => {
                if let Some(divergence) = found {
                    self.divergences += 1;
                    self.fenced = Some((divergence, None));
                }
            }
            Some(_) => self.try_end(),
        }
    }

    /// Ends the fence when the state that was taken over is what the others have.
    fn try_end(&mut self) {
        let Some((_, Some(Repair { taken: Some(at), .. }))) = &self.fenced else { return };
        let agreed = self.digests.agreed_on(*at, &self.voters, self.quorum);
        if agreed.is_some() && agreed == self.digests.own(*at) {
            self.repairs += 1;
            self.fenced = None;
        }
    }

    /// The application says its own digest.
    pub fn own(&mut self, index: u64, digest: StateDigest, out: &mut Vec<Do>) {
        if self.every == 0 {
            return;
        }
        match &self.fenced {
            Some((_, Some(Repair { taken: Some(at), .. }))) if *at != index => return,
            Some((_, Some(Repair { taken: Some(_), .. }))) | None => {
                out.push(Do::Say(Word::Digest { index, digest }));
            }
            // Rotten: nobody needs to hear it.
            Some(_) => return,
        }
        let me = self.digests.own_id();
        self.said(me, index, digest);
    }

    /// Another member says its digest.
    pub fn heard(&mut self, from: u32, index: u64, digest: StateDigest) {
        if self.every > 0 && index.is_multiple_of(self.every) {
            self.said(u64::from(from), index, digest);
        }
    }

    /// Another member wishes for a state.
    pub fn wish(&mut self, from: u32, index: u64, committed: u64, now_ms: u64) {
        let fits = self.every > 0
            && index.is_multiple_of(self.every)
            && index > committed
            && index <= committed.saturating_add(AHEAD_MAX);
        let known = self.wishes.get(&from).copied();
        if known.is_some_and(|(place, _)| place == index) {
            return;
        }
        if !fits || known.is_some_and(|(_, since_ms)| now_ms < since_ms + WISH_EVERY_MS) {
            self.wishes_refused += 1;
            return;
        }
        self.wishes.insert(from, (index, now_ms));
    }

    /// Time passed; `committed` is the last batch that was ordered.
    pub fn tick(&mut self, committed: u64, now_ms: u64, out: &mut Vec<Do>) {
        // A place that is long gone is of no use.
        self.wishes.retain(|_, (place, _)| *place + AHEAD_MAX > committed);
        let (every, Some((_, repair))) = (self.every, &mut self.fenced) else { return };
        if repair.as_ref().is_some_and(|repair| repair.since_ms + REPAIR_MS <= now_ms) {
            *repair = None;
        }
        let repair = repair.get_or_insert_with(|| Repair {
            // One whole stretch for the wish to reach everybody.
            place: (committed / every + 2) * every,
            since_ms: now_ms,
            said_ms: 0,
            pumped_ms: now_ms,
            taken: None,
        });
        if repair.taken.is_some() {
            return;
        }
        if committed < repair.place {
            if repair.said_ms + AGAIN_MS <= now_ms {
                repair.said_ms = now_ms;
                out.push(Do::Say(Word::WantState { index: repair.place }));
            }
            // Others may bring it there; if not, this member does.
            if repair.pumped_ms + AGAIN_MS <= now_ms {
                repair.pumped_ms = now_ms;
                out.push(Do::Pump(repair.place - committed));
            }
        } else {
            out.push(Do::Fetch(repair.place));
        }
    }

    /// The application was given the state after `at`, and the batches behind it.
    pub fn taken(&mut self, at: u64) {
        self.digests.forget_own();
        if let Some((_, Some(repair))) = &mut self.fenced {
            repair.taken = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: StateDigest = [1; 32];
    const BAD: StateDigest = [2; 32];

    fn fenced() -> Health {
        let (mut health, mut out) = (Health::new(1, &[1, 2, 3, 4], 64), Vec::new());
        health.own(64, BAD, &mut out);
        assert_eq!(out, [Do::Say(Word::Digest { index: 64, digest: BAD })]);
        health.heard(2, 64, GOOD);
        health.heard(3, 64, GOOD);
        assert!(!health.is_fenced(), "two of four are not enough");
        health.heard(4, 64, GOOD);
        assert!(health.is_fenced() && health.divergences == 1);
        health
    }

    #[test]
    fn who_differs_is_fenced_asks_for_a_state_and_serves_again_when_it_agrees() {
        let mut health = fenced();
        let mut out = Vec::new();
        health.tick(70, 1000, &mut out);
        assert_eq!(out, [Do::Say(Word::WantState { index: 192 })]);
        out.clear();
        health.tick(71, 1500, &mut out);
        assert_eq!(out, [Do::Say(Word::WantState { index: 192 }), Do::Pump(121)]);
        out.clear();
        health.tick(192, 1600, &mut out);
        assert_eq!(out, [Do::Fetch(192)]);
        out.clear();
        [2, 3, 4].into_iter().for_each(|who| health.heard(who, 192, GOOD));
        health.own(192, BAD, &mut out);
        assert!(health.is_fenced() && out.is_empty(), "what is rotten is not said");
        health.taken(192);
        health.own(128, BAD, &mut out);
        assert!(health.is_fenced() && out.is_empty(), "nor what was on its way");
        health.own(192, GOOD, &mut out);
        assert!(!health.is_fenced() && health.repairs == 1);
    }

    #[test]
    fn a_state_that_does_not_agree_is_asked_for_again() {
        let (mut health, mut out) = (fenced(), Vec::new());
        health.tick(70, 1000, &mut out);
        health.taken(192);
        [2, 3, 4].into_iter().for_each(|who| health.heard(who, 192, GOOD));
        health.own(192, BAD, &mut out);
        out.clear();
        health.tick(200, 1000 + REPAIR_MS, &mut out);
        assert_eq!(out, [Do::Say(Word::WantState { index: 320 })]);
    }

    #[test]
    fn wishes_are_few_and_near() {
        let mut health = Health::new(1, &[1, 2, 3, 4], 64);
        health.wish(2, 128, 70, 1000);
        health.wish(3, 100, 70, 1000);
        health.wish(3, 64, 70, 1000);
        health.wish(3, 64 * 10_000, 70, 1000);
        health.wish(2, 192, 70, 1001);
        assert_eq!((health.wanted(), health.wishes_refused), (BTreeSet::from([128]), 4));
        health.wish(2, 192, 70, 1000 + WISH_EVERY_MS);
        assert_eq!(health.wanted(), BTreeSet::from([192]));
    }
}
