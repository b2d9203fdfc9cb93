//! Votes by way of the leader, in larger groups: who leads a view collects its votes into one certificate, and sends that to all.
//!
//! Simplex has every member send each vote to all others, so a view of ten members costs each of them eighteen votes sent and eighteen
//! received. Here a vote goes to the leader of its view alone, whose certificate goes to all at once ([`crate::certificates`] holds those of
//! others): two votes sent and two certificates received, and one hop more for each of the two.
//!
//! Nothing but time rests on it. A vote that brought no certificate within [`patience`] goes to all, as it would have at first; and a leader that
//! kept one back is not trusted with votes for a while ([`PAUSES`] of it, doubled up to [`LEVEL_MAX`] times): those of its views go to
//! all at once. So a leader that withholds certificates costs the group a moment, once in a while.
//!
//! Always to all go: what the leader itself votes for (it is the proposal), what the leader of the next view does (the others would send it the
//! block else, as one that seems not to have it), votes to pass a view over, and one vote in a while
//! ([`Timers::skip`] divided by [`SAID_PARTS`]), for consensus passes over a leader of which it heard nothing. So an idle group does as ever.
//!
//! Groups below [`MEMBERS_MIN`] do as ever: three hops are worth more there than a few messages.
//!
//! Evidence: votes that exclude each other are seen by whom both reach. A member that votes twice and is asked for a certificate shows them to
//! leaders only; each of them keeps what convicts it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use commonware_actor::{Feedback, Unreliable};
use commonware_codec::ReadExt;
use commonware_consensus::types::Round;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{CheckedSender, LimitedSender, Recipients, Sender};
use commonware_runtime::{Clock, IoBuf, IoBufs, Spawner};
use commonware_utils::channel::mpsc;

use crate::lock::locked;
use crate::settings::Timers;
use crate::turns::Turns;

/// From so many members on.
pub(crate) const MEMBERS_MIN: usize = 7;
/// How simplex begins the bytes of a vote.
const NOTARIZE: u8 = 0;
const FINALIZE: u8 = 2;
/// Every so many parts of [`Timers::skip`] a vote goes to all.
const SAID_PARTS: u32 = 4;
/// How long a leader that kept a certificate back is not trusted, in times of [`Timers::certification`].
const PAUSES: u32 = 64;
/// How often that is doubled at most.
const LEVEL_MAX: u32 = 4;
/// Votes that wait for a certificate, at most; the oldest goes to all when there are more.
const WAITING_MAX: usize = 64;

/// How long a vote waits for its certificate.
pub(crate) fn patience(timers: &Timers) -> Duration {
    timers.idle / 2
}

/// What a vote says: whether it is a finalizing one, and its view; nothing for votes that go to all in any case.
fn says(bytes: &IoBuf) -> Option<(bool, u64)> {
    let mut reader = bytes.clone();
    let kind = u8::read(&mut reader).ok()?;
    let round = Round::read(&mut reader).ok()?;
    [NOTARIZE, FINALIZE].contains(&kind).then(|| (kind == FINALIZE, round.view().get()))
}

/// Up to which views there are certificates here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Certified {
    /// Notarized, finalized or passed over.
    pub ended: u64,
    /// Finalized.
    pub finalized: u64,
}

impl Certified {
    fn has(&self, finalizes: bool, view: u64) -> bool {
        view <= self.finalized || (!finalizes && view <= self.ended)
    }
}

/// Where a vote goes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    All,
    Leader,
    /// Its leader is this member, which has it.
    Nobody,
}

/// A vote that waits for its certificate.
struct Waiting {
    since: SystemTime,
    finalizes: bool,
    view: u64,
    leader: PublicKey,
    bytes: IoBuf,
}

/// The pure part.
struct Ways {
    timers: Timers,
    own: PublicKey,
    waiting: VecDeque<Waiting>,
    /// When something went to all last.
    said: Option<SystemTime>,
    /// Until when a leader is not trusted, and how often it was not.
    distrusted: BTreeMap<PublicKey, (SystemTime, u32)>,
}

impl Ways {
    fn new(timers: Timers, own: PublicKey) -> Ways {
        Ways { timers, own, waiting: VecDeque::new(), said: None, distrusted: BTreeMap::new() }
    }

    fn trusts(&self, leader: &PublicKey, now: SystemTime) -> bool {
        self.distrusted.get(leader).is_none_or(|(until, _)| now >= *until)
    }

    /// Where a vote for a view of `leader` goes; `is_next`: this member leads the view after it.
    fn way(&mut self, (finalizes, is_next): (bool, bool), leader: &PublicKey, now: SystemTime) -> Way {
        let quiet = |said: SystemTime| now.duration_since(said).unwrap_or_default();
        let is_due = self.said.is_none_or(|said| quiet(said) >= self.timers.skip / SAID_PARTS);
        let is_own = *leader == self.own;
        // The leader's own is the proposal.
        let is_for_all = !finalizes && (is_own || is_next);
        if is_due || is_for_all || !self.trusts(leader, now) {
            self.said = Some(now);
            return Way::All;
        }
        if is_own { Way::Nobody } else { Way::Leader }
    }

    /// Remembers a vote until its certificate comes; gives one for which there is no room any more.
    fn waits(&mut self, one: Waiting) -> Option<Waiting> {
        let oldest = if self.waiting.len() >= WAITING_MAX { self.waiting.pop_front() } else { None };
        self.waiting.push_back(one);
        oldest
    }

    /// Those that waited too long, and when the next one has.
    fn due(&mut self, certified: Certified, now: SystemTime) -> (Vec<IoBuf>, Option<Duration>) {
        let patience = patience(&self.timers);
        self.waiting.retain(|one| !certified.has(one.finalizes, one.view));
        let waited = |one: &Waiting| now.duration_since(one.since).unwrap_or_default();
        let mut due = Vec::new();
        while let Some(one) = self.waiting.pop_front_if(|one| waited(one) >= patience) {
            self.keeps_back(&one.leader, now);
            due.push(one.bytes);
        }
        if !due.is_empty() {
            self.said = Some(now);
        }
        (due, self.waiting.front().map(|one| patience.saturating_sub(waited(one))))
    }

    /// A leader sent no certificate.
    fn keeps_back(&mut self, leader: &PublicKey, now: SystemTime) {
        if *leader == self.own || !self.trusts(leader, now) {
            return;
        }
        let level = self.distrusted.get(leader).map_or(0, |(_, level)| (level + 1).min(LEVEL_MAX));
        let pause = PAUSES * self.timers.certification * (1 << level);
        self.distrusted.insert(leader.clone(), (now + pause, level));
    }
}

/// A sender of votes.
pub(crate) struct Collecting<E: Clock, S: Sender> {
    clock: Arc<E>,
    sender: S,
    /// None in a small group.
    ways: Option<Arc<Mutex<Ways>>>,
    turns: Turns,
    wake: mpsc::UnboundedSender<()>,
}

impl<E: Clock, S: Sender> Clone for Collecting<E, S> {
    fn clone(&self) -> Self {
        Collecting {
            clock: self.clock.clone(),
            sender: self.sender.clone(),
            ways: self.ways.clone(),
            turns: self.turns.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<E: Clock + Spawner, S: Sender<PublicKey = PublicKey>> Collecting<E, S> {
    /// Sends the votes of `own` over `sender`. Its task ends when nobody has this any more.
    pub fn new(context: E, sender: S, turns: Turns, own: PublicKey, timers: Timers) -> Collecting<E, S> {
        let (wake, mut woken) = mpsc::unbounded_channel();
        let ways = (turns.members() >= MEMBERS_MIN).then(|| Arc::new(Mutex::new(Ways::new(timers, own))));
        let clock = Arc::new(context.child("clock"));
        let collecting = Collecting { clock, sender, ways, turns, wake };
        let (ways, turns, mut sender) =
            (collecting.ways.clone(), collecting.turns.clone(), collecting.sender.clone());
        context.spawn(move |context| async move {
            let Some(ways) = ways else { return };
            while woken.recv().await.is_some() {
                let mut next = Some(patience(&timers));
                while let Some(wait) = next {
                    context.sleep(wait).await;
                    let (due, later) = locked(&ways).due(turns.certified(), context.current());
                    for bytes in due {
                        sender.send(Recipients::All, bytes, true);
                    }
                    next = later;
                }
            }
        });
        collecting
    }
}

impl<E: Clock, S: Sender<PublicKey = PublicKey>> Collecting<E, S> {
    /// Sends one vote that consensus has for all.
    fn vote(&mut self, bytes: IoBuf, priority: bool) -> bool {
        let leader_of = |view| self.turns.leader_of(view);
        let said = says(&bytes).and_then(|(finalizes, view)| Some((finalizes, view, leader_of(view)?)));
        let (Some(ways), Some((finalizes, view, leader))) = (self.ways.clone(), said) else {
            self.sender.send(Recipients::All, bytes, priority);
            return true;
        };
        let now = self.clock.current();
        let mut plan = locked(&ways);
        let is_next = leader_of(view + 1).as_ref() == Some(&plan.own);
        let way = plan.way((finalizes, is_next), &leader, now);
        let mut crowded_out = None;
        if way != Way::All {
            let one = Waiting { since: now, finalizes, view, leader: leader.clone(), bytes: bytes.clone() };
            crowded_out = plan.waits(one);
        }
        drop(plan);
        match way {
            Way::All => drop(self.sender.send(Recipients::All, bytes, priority)),
            Way::Leader => drop(self.sender.send(Recipients::One(leader), bytes, priority)),
            Way::Nobody => {}
        }
        if let Some(oldest) = crowded_out {
            self.sender.send(Recipients::All, oldest.bytes, priority);
        }
        way == Way::All || self.wake.send(()).is_ok()
    }
}

impl<E: Clock, S: Sender<PublicKey = PublicKey>> LimitedSender for Collecting<E, S> {
    type PublicKey = PublicKey;
    type Checked<'a>
        = Checked<'a, E, S>
    where
        Self: 'a;

    fn check(&mut self, to: Recipients<PublicKey>) -> Result<Checked<'_, E, S>, SystemTime> {
        Ok(Checked { collecting: self, to })
    }
}

/// Takes one vote; limits are looked at when it goes.
pub(crate) struct Checked<'a, E: Clock, S: Sender> {
    collecting: &'a mut Collecting<E, S>,
    to: Recipients<S::PublicKey>,
}

impl<E: Clock, S: Sender<PublicKey = PublicKey>> CheckedSender for Checked<'_, E, S> {
    type PublicKey = PublicKey;

    fn recipients(&self) -> Vec<PublicKey> {
        match &self.to {
            // Who that is shows when it goes.
            Recipients::All => Vec::new(),
            Recipients::Some(to) => to.to_vec(),
            Recipients::One(to) => vec![to.clone()],
        }
    }

    fn send(self, message: impl Into<IoBufs> + Send, priority: bool) -> Unreliable<Feedback> {
        let bytes = message.into().coalesce();
        let goes_on = match self.to {
            Recipients::All => self.collecting.vote(bytes, priority),
            to => {
                self.collecting.sender.send(to, bytes, priority);
                true
            }
        };
        Unreliable::Outcome(if goes_on { Feedback::Ok } else { Feedback::Closed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonware_codec::Encode;
    use commonware_consensus::types::{Epoch, View};
    use commonware_cryptography::Signer as _;
    use commonware_cryptography::ed25519::PrivateKey;

    fn key(number: u64) -> PublicKey {
        PrivateKey::from_seed(number).public_key()
    }

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }

    fn one(finalizes: bool, view: u64, leader: u64, since_ms: u64) -> Waiting {
        let bytes = IoBuf::from(vec![view as u8]);
        Waiting { since: at(since_ms), finalizes, view, leader: key(leader), bytes }
    }

    #[test]
    fn votes_go_to_the_leader_and_once_in_a_while_to_all() {
        let mut ways = Ways::new(Timers::LAN, key(1));
        assert_eq!(ways.way((false, false), &key(2), at(0)), Way::All, "nobody has heard of it yet");
        assert_eq!(ways.way((true, false), &key(2), at(1)), Way::Leader);
        assert_eq!(ways.way((false, false), &key(1), at(2)), Way::All, "a proposal");
        assert_eq!(ways.way((true, false), &key(1), at(3)), Way::Nobody, "it has it");
        ways.said = Some(at(2));
        assert_eq!(ways.way((true, true), &key(2), at(3)), Way::Leader);
        assert_eq!(ways.way((false, true), &key(2), at(2)), Way::All, "it leads next");
        let quiet = (Timers::LAN.skip / SAID_PARTS).as_millis() as u64;
        assert_eq!(ways.way((true, false), &key(2), at(2 + quiet - 1)), Way::Leader);
        assert_eq!(ways.way((true, false), &key(2), at(2 + quiet)), Way::All);
    }

    #[test]
    fn a_vote_without_a_certificate_goes_to_all_and_its_leader_is_not_trusted_for_a_while() {
        let mut ways = Ways::new(Timers::LAN, key(1));
        ways.said = Some(at(0));
        let patience_ms = patience(&Timers::LAN).as_millis() as u64;
        for waiting in [one(false, 5, 2, 0), one(true, 5, 2, 1), one(false, 6, 3, 2), one(true, 6, 3, 3)] {
            assert!(ways.waits(waiting).is_none());
        }
        // View 5 is notarized, and 6 is not: a finalizing vote waits on.
        let certified = Certified { ended: 5, finalized: 4 };
        let (due, next) = ways.due(certified, at(patience_ms));
        assert_eq!((due.len(), next), (0, Some(Duration::from_millis(1))));
        let (due, _) = ways.due(certified, at(patience_ms + 2));
        let views: Vec<u8> = due.iter().map(|bytes| bytes.as_ref()[0]).collect();
        assert_eq!(views, [5, 6]);
        assert_eq!(ways.due(Certified { ended: 6, finalized: 6 }, at(patience_ms + 9)), (Vec::new(), None));
        let now_ms = patience_ms + 10;
        assert_eq!(ways.way((false, false), &key(2), at(now_ms)), Way::All);
        assert_eq!(ways.way((false, false), &key(3), at(now_ms)), Way::All);
        assert_eq!(ways.way((false, false), &key(4), at(now_ms)), Way::Leader);
        let pause_ms = (PAUSES * Timers::LAN.certification).as_millis() as u64;
        ways.said = Some(at(now_ms + pause_ms));
        assert_eq!(
            ways.way((false, false), &key(2), at(now_ms + pause_ms)),
            Way::Leader,
            "it is tried again"
        );
        // Each time for longer.
        ways.keeps_back(&key(2), at(now_ms + pause_ms));
        assert!(!ways.trusts(&key(2), at(now_ms + 2 * pause_ms + 1)));
        assert!(ways.trusts(&key(2), at(now_ms + 3 * pause_ms + 1)));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut ways = Ways::new(Timers::LAN, key(1));
        let crowded_out =
            (0..3 * WAITING_MAX as u64).filter_map(|view| ways.waits(one(true, view, 2, 0))).count();
        assert_eq!((crowded_out, ways.waiting.len()), (2 * WAITING_MAX, WAITING_MAX));
    }

    #[test]
    fn what_a_vote_says_is_read_and_other_votes_go_to_all() {
        let round = Round::new(Epoch::new(3), View::new(7)).encode();
        let of = |kind: u8| says(&IoBuf::from([&[kind][..], &round].concat()));
        assert_eq!((of(0), of(2), of(1), of(9)), (Some((false, 7)), Some((true, 7)), None, None));
        assert_eq!(says(&IoBuf::from(vec![0])), None);
    }
}
