//! How statements get from one domain's order into another's (row C6; decision 0028): what its controllers ask each other, pure.
//!
//! ```text
//!  domain A, which tells                          domain B, which takes
//!  order ─► outbox ◄── ask: "what follows 7?" ─── each controller of B, one of A's at a time
//!                  ─── statements 8, 9 ─────────► under the signature of A's group
//!                                                 one of B's controllers orders them (others when it does not)
//!  order ◄─ words  ◄── "B's order has 9" ──────── each controller of B, to all of A's
//! ```
//!
//! The domain that takes asks, so it sets the pace: it asks for more when what it got is ordered. Nothing is remembered but what the
//! orders have: how far B is, and what A still has to tell ([`crate::core::Outbox`]). So whoever is killed goes on where
//! the orders are.
//!
//! Invariants
//! - What comes from another domain is tried on the present state before it is ordered; a controller that gives what would be
//!   refused is passed over, and counted.
//! - A forgets what B has taken only by the words of more of B's controllers than may lie, which are checked again when it is decided.
//! - A domain asks for everything anew when more of the other's controllers than may lie say that what follows is gone, and not because one of
//!   its own just started again and lags.
//! - One page is under way for each domain, and an event of each at most every [`PAUSE_MS`]: a domain that floods takes no more.
//! - Between two questions that brought nothing there is a pause that doubles, up to [`BACK_OFF_MAX_MS`]: neither a domain that is gone nor
//!   one that says at once that it has nothing is asked in a circle.

use crate::core::OutboxPage;
use std::collections::{BTreeMap, BTreeSet};
use weir_model::Label;
use weir_model::domain::{
    DomainController, DomainEvent, Fetch, SignedFetch, WORD_AGE_MAX_MS, honest_among, statement_of,
};
use weir_trust::identity::verify_fetch;

/// Between two events of one domain at least, milliseconds.
pub const PAUSE_MS: u64 = 20;
/// Longest pause between two questions that brought nothing, milliseconds.
pub const BACK_OFF_MAX_MS: u64 = 2_000;
/// An answer with nothing that took so long did wait for something to tell, milliseconds.
pub const WAITED_MS: u64 = 1_000;
/// An event that was proposed and is not decided is proposed again after so long, milliseconds.
pub const AGAIN_MS: u64 = 2_000;
/// Between two words of how far this domain is, milliseconds.
pub const WORD_MS: u64 = 1_000;
/// Words are ordered at once when they free so many statements, else after [`WORDS_WAIT_MS`].
pub const WORDS_MANY: u64 = 64;
/// How long words wait to be ordered, milliseconds.
pub const WORDS_WAIT_MS: u64 = 5_000;

/// What an asker counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskerCounters {
    /// Answers with statements.
    pub pages: u64,
    /// Answers that did not come.
    pub silent: u64,
    /// Answers with what would be refused: lies, or what was under way twice.
    pub refused: u64,
    /// Events proposed.
    pub proposed: u64,
    /// Events that somebody else had ordered.
    pub spared: u64,
    /// Events that were refused when they were decided.
    pub lost: u64,
}

/// What this domain knows of one that it takes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<'s> {
    /// Its controllers.
    pub controllers: &'s [DomainController],
    /// All statements up to this one are ordered here.
    pub through: u64,
    /// Everything is wanted anew.
    pub anew: bool,
}

struct Waiting {
    last: u64,
    event: DomainEvent,
    since_ms: u64,
    proposed_ms: Option<u64>,
}

/// One controller's part in taking what one other domain tells.
pub struct Asker {
    own: Label,
    controller: u64,
    of: Label,
    turn: usize,
    /// Controllers that say that what follows is gone. It counts when more of them do than may lie.
    behind: BTreeSet<u64>,
    /// Whom was asked last.
    asked: u64,
    waiting: Option<Waiting>,
    pause_until_ms: u64,
    asked_ms: u64,
    /// Questions in a row that brought nothing.
    fruitless: u32,
    worded: Option<(u64, u64)>,
    /// Counters.
    pub counters: AskerCounters,
}

impl Asker {
    /// Of controller `controller` of domain `own`, for what `of` tells. Controllers begin with different ones of the other domain's.
    pub fn new(own: Label, controller: u64, of: Label) -> Asker {
        let turn = usize::try_from(controller).unwrap_or_default();
        Asker {
            own,
            controller,
            of,
            turn,
            behind: BTreeSet::new(),
            asked: 0,
            waiting: None,
            pause_until_ms: 0,
            asked_ms: 0,
            fruitless: 0,
            worded: None,
            counters: AskerCounters::default(),
        }
    }

    /// The domain that it takes from.
    pub fn of(&self) -> &Label {
        &self.of
    }

    /// Whether everything must be told anew.
    fn wants_all(&self, seen: &Seen<'_>) -> bool {
        let says = seen.controllers.iter().filter(|one| self.behind.contains(&one.id)).count();
        seen.anew || (says > 0 && says >= honest_among(seen.controllers.len()))
    }

    fn fetch(&self, seen: &Seen<'_>, now_ms: u64) -> Fetch {
        let (domain, of) = (self.own.clone(), self.of.clone());
        let begin = self.wants_all(seen);
        Fetch { domain, controller: self.controller, of, through: seen.through, begin, now_ms }
    }

    /// Whom to ask now, and what; nothing while what came is not ordered, and in a pause. `now_ms` is of any clock that does not go
    /// back; who asks puts its own time into the question.
    pub fn ask(&mut self, seen: &Seen<'_>, now_ms: u64) -> Option<(DomainController, Fetch)> {
        self.settled(seen);
        if self.waiting.is_some() || now_ms < self.pause_until_ms || seen.controllers.is_empty() {
            return None;
        }
        let whom = seen.controllers[self.turn % seen.controllers.len()].clone();
        (self.asked_ms, self.asked) = (now_ms, whom.id);
        Some((whom, self.fetch(seen, now_ms)))
    }

    /// The next controller is asked, after a pause.
    fn back_off(&mut self, now_ms: u64) {
        self.turn = self.turn.wrapping_add(1);
        let pause_ms = BACK_OFF_MAX_MS.min(PAUSE_MS << self.fruitless.min(16));
        self.fruitless = self.fruitless.saturating_add(1);
        self.pause_until_ms = self.pause_until_ms.max(now_ms + pause_ms);
    }

    /// An answer came, and what it brings would be taken; or it did not come, or would not.
    pub fn answered(&mut self, seen: &Seen<'_>, answer: Answer, now_ms: u64) {
        let page = match answer {
            Answer::Silent => {
                self.counters.silent += 1;
                return self.back_off(now_ms);
            }
            Answer::Refused => {
                self.counters.refused += 1;
                return self.back_off(now_ms);
            }
            Answer::Page(page) => page,
        };
        match page.behind {
            true => self.behind.insert(self.asked),
            false => self.behind.remove(&self.asked),
        };
        let Some(last) = last_of(&page).filter(|last| *last > seen.through) else {
            // One that keeps something back is not asked for ever.
            if now_ms.saturating_sub(self.asked_ms) < WAITED_MS {
                return self.back_off(now_ms);
            }
            self.turn = self.turn.wrapping_add(1);
            self.fruitless = 0;
            return;
        };
        self.fruitless = 0;
        self.behind.clear();
        self.counters.pages += 1;
        let event = DomainEvent::Forwarded { origin: self.of.clone(), statements: page.statements };
        self.waiting = Some(Waiting { last, event, since_ms: now_ms, proposed_ms: None });
    }

    /// What to order now. `mine` says whether it is this controller's turn, for something that waits since so many
    /// milliseconds.
    pub fn due(
        &mut self,
        seen: &Seen<'_>,
        now_ms: u64,
        mine: impl FnOnce(u64) -> bool,
    ) -> Option<DomainEvent> {
        self.settled(seen);
        let waiting = self.waiting.as_mut()?;
        let again = waiting.proposed_ms.is_none_or(|at| now_ms.saturating_sub(at) >= AGAIN_MS);
        if !again || !mine(now_ms.saturating_sub(waiting.since_ms)) {
            return None;
        }
        waiting.proposed_ms = Some(now_ms);
        self.pause_until_ms = now_ms + PAUSE_MS;
        self.counters.proposed += 1;
        Some(waiting.event.clone())
    }

    /// What was proposed was refused when it was decided, as the state had moved on: it is asked for anew, elsewhere.
    pub fn lost(&mut self, now_ms: u64) {
        self.waiting = None;
        self.counters.lost += 1;
        self.back_off(now_ms);
    }

    /// The word of how far this domain is, to be told to all controllers of the other one, when there is something new to say.
    pub fn word(&mut self, seen: &Seen<'_>, now_ms: u64) -> Option<Fetch> {
        let wants_all = self.wants_all(seen);
        let new = match self.worded {
            Some((through, at)) => {
                let changed = through != seen.through || wants_all;
                changed && now_ms.saturating_sub(at) >= WORD_MS
            }
            None => seen.through > 0 || wants_all,
        };
        new.then(|| {
            self.worded = Some((seen.through, now_ms));
            self.fetch(seen, now_ms)
        })
    }

    fn settled(&mut self, seen: &Seen<'_>) {
        if let Some(waiting) = &self.waiting
            && waiting.last <= seen.through
        {
            self.counters.spared += u64::from(waiting.proposed_ms.is_none());
            self.waiting = None;
        }
    }
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing came.
    Silent,
    /// What came would be refused.
    Refused,
    /// This.
    Page(OutboxPage),
}

/// Whether a domain that has taken all up to `through` lacks what is not here any more, and must be told everything anew. It is known to
/// have taken all up to the first number of `lane`, and was told all up to the second: so it has less than it had, because it forgot this
/// domain meanwhile, or more than it was told, because this domain lost what it did.
///
/// One that lags may not say the second, and who lags itself may not believe the first.
pub fn is_behind(page: &OutboxPage, through: u64, lane: (u64, u64)) -> bool {
    page.behind || page.statements.is_empty() && !(lane.0..=lane.1).contains(&through)
}

/// The highest number in a page.
fn last_of(page: &OutboxPage) -> Option<u64> {
    let updates = page.statements.iter().flat_map(|batch| &batch.updates);
    updates.filter_map(|proven| statement_of(&proven.update)).map(|(_, sequence, _)| sequence).max()
}

/// Why a request of another domain is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unheard {
    /// The domain is not known.
    #[error("this domain does not know yours: its operator must make it known")]
    Unknown,
    /// It asks for something else.
    #[error("this is another domain than the one that is asked")]
    OtherDomain,
    /// No controller of it asks.
    #[error("the request does not carry the signature of a controller that its domain has")]
    NoController,
    /// It is old.
    #[error("the request is more than 5 minutes old, or of a clock that differs as much")]
    Old,
}

/// What one controller heard of others' controllers about how far they are.
#[derive(Debug, Default)]
pub struct Words {
    heard: BTreeMap<Label, BTreeMap<u64, SignedFetch>>,
    /// Since when something could be ordered for a domain.
    since: BTreeMap<Label, u64>,
    /// Requests that were not answered.
    pub unheard: u64,
}

impl Words {
    /// Checks a request against what is known of its domain, and remembers it as a word.
    ///
    /// # Errors
    /// Why it is not answered.
    pub fn hear(
        &mut self,
        own: &Label,
        controllers: Option<&[DomainController]>,
        signed: &SignedFetch,
        now_ms: u64,
    ) -> Result<(), Unheard> {
        let checked = check(own, controllers, signed, now_ms);
        match checked {
            Ok(()) => {
                let fetch = &signed.fetch;
                let heard = self.heard.entry(fetch.domain.clone()).or_default();
                // One that is repeated by somebody else, later, takes nothing back.
                if heard.get(&fetch.controller).is_none_or(|known| known.fetch.now_ms <= fetch.now_ms) {
                    heard.insert(fetch.controller, signed.clone());
                }
            }
            Err(_) => self.unheard += 1,
        }
        checked
    }

    /// What to order about a domain that has `acked` and was told up to `last`, and for how long that could be ordered,
    /// milliseconds.
    pub fn due(
        &mut self,
        domain: &Label,
        controllers: &[DomainController],
        lane: (u64, u64, bool),
        now_ms: u64,
    ) -> Option<(DomainEvent, u64)> {
        let (acked, last, cut) = lane;
        let heard = self.heard.get_mut(domain)?;
        heard.retain(|id, word| {
            controllers.iter().any(|one| one.id == *id)
                && now_ms.abs_diff(word.fetch.now_ms) < WORD_AGE_MAX_MS / 2
        });
        let needed = honest_among(controllers.len());
        let begin = heard.values().filter(|word| word.fetch.begin).count() >= needed;
        let mut words: Vec<&SignedFetch> = heard.values().filter(|word| word.fetch.begin == begin).collect();
        words.sort_by_key(|word| std::cmp::Reverse(word.fetch.through));
        words.truncate(needed);
        let through = words.last().filter(|_| words.len() == needed).map(|word| word.fetch.through);
        let wanted = through.filter(|through| begin || (*through <= last && (*through > acked || cut)));
        let Some(through) = wanted else {
            self.since.remove(domain);
            return None;
        };
        let since = self.since.entry(domain.clone()).or_insert(now_ms);
        // A clock that was put back must not make anybody wait.
        *since = now_ms.min(*since);
        let since = *since;
        let many = begin || cut || through.saturating_sub(acked) >= WORDS_MANY;
        let wait_ms = if many { 0 } else { WORDS_WAIT_MS };
        let overdue = now_ms.saturating_sub(since).checked_sub(wait_ms)?;
        let words = words.into_iter().cloned().collect();
        Some((DomainEvent::Heard { domain: domain.clone(), through, begin, words }, overdue))
    }

    /// Forgets what was heard of domains that are not known any more.
    pub fn keep(&mut self, known: impl Fn(&Label) -> bool) {
        self.heard.retain(|domain, _| known(domain));
        self.since.retain(|domain, _| known(domain));
    }

    /// Something was ordered about a domain: words for a beginning are used up.
    pub fn ordered(&mut self, domain: &Label) {
        self.since.remove(domain);
        if let Some(heard) = self.heard.get_mut(domain) {
            heard.retain(|_, word| !word.fetch.begin);
        }
    }
}

fn check(
    own: &Label,
    controllers: Option<&[DomainController]>,
    signed: &SignedFetch,
    now_ms: u64,
) -> Result<(), Unheard> {
    let controllers = controllers.ok_or(Unheard::Unknown)?;
    let fetch = &signed.fetch;
    if fetch.of != *own {
        return Err(Unheard::OtherDomain);
    }
    if fetch.now_ms.abs_diff(now_ms) > WORD_AGE_MAX_MS {
        return Err(Unheard::Old);
    }
    let key = controllers.iter().find(|one| one.id == fetch.controller).map(|one| &one.key);
    match key.is_some_and(|key| verify_fetch(key, signed).is_ok()) {
        true => Ok(()),
        false => Err(Unheard::NoController),
    }
}

#[cfg(test)]
mod tests;
