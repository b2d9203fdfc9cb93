//! One engine of simplex an epoch, the members as the network must know them, and this replica's part in changing them (row C5).
//!
//! Votes of each epoch have a lane of their own on the three channels of consensus, so an engine hears nothing of another's epoch. Whoever
//! is to come, and who has just gone, may be linked with and ask, but has no vote and no say.

use std::collections::BTreeMap;

use commonware_codec::{Copying, DecodeExt};
use commonware_consensus::simplex;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::utils::mux::{MuxHandle, Muxer};
use commonware_p2p::{Blocker, Receiver, Sender};
use commonware_runtime::{Clock, Handle, Metrics, Spawner};
use commonware_utils::channel::mpsc;
use rand_chacha::rand_core::CryptoRng;
use weir_order::{Error, Position};

use super::{Answer, Channel, Run};
use crate::certificates::{Late, Near, hold};
use crate::consensus::{KeyRing, Mailbox, Question, config, epoch_of};
use crate::core::Output;
use crate::lock::locked;
use crate::members::{Approval, Change, MEMBERS_MAX, Member, SPARES_MAX};
use crate::rest::Pace;
use crate::turns::{Hearing, Turns};
use crate::votes::Keeping;

/// Epochs whose votes are kept: after a power cut the journal may end before the present one.
const EPOCHS_OF_VOTES_MIN: u64 = 4;

/// Is told what became of a change of members that was asked for here.
pub type ChangeDone = Box<dyn FnOnce(Result<(), crate::Error>) + Send>;
/// Is told who may be linked with.
pub type Tracks = Box<dyn FnMut(&Linked) + Send>;

/// Who may be linked with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Linked {
    /// Members, of the epoch here and of the last that is known.
    pub members: BTreeMap<u32, Member>,
    /// Spares, who is to come, and who has just gone.
    pub visitors: BTreeMap<u32, Member>,
}

pub(super) fn no_member(id: u32, epoch: u64) -> crate::Error {
    crate::Error::NoMember { id, epoch }
}

/// Consensus of one epoch.
pub(super) struct Consensus {
    pub epoch: u64,
    pub asked: mpsc::UnboundedReceiver<Question>,
    pub engine: Engine,
    /// So that nobody who asks is not the end.
    _questions: mpsc::UnboundedSender<Question>,
}

/// Its task; none where this replica is no member.
pub(super) struct Engine(Option<Handle<()>>);

impl Engine {
    /// When it ends by itself, which it should not.
    pub async fn ended(&mut self) -> String {
        match &mut self.0 {
            Some(engine) => format!("{:?}", engine.await),
            None => std::future::pending().await,
        }
    }

    /// Ends it.
    pub async fn end(&mut self) {
        if let Some(engine) = self.0.take() {
            engine.abort();
            let _aborted = engine.await;
        }
    }
}

/// The channels of consensus, one lane an epoch on each.
pub(super) struct Lanes<S: Sender>([MuxHandle<S>; 3]);

impl<S: Sender<PublicKey = PublicKey>> Lanes<S> {
    pub fn new<E: Spawner, R: Receiver<PublicKey = PublicKey>>(
        context: &E,
        channels: [Channel<S, R>; 3],
    ) -> Lanes<S> {
        let mut number = 0;
        Lanes(channels.map(|(sender, receiver)| {
            number += 1;
            let (mux, handle) =
                Muxer::new(context.child("lane").with_attribute("number", number), sender, receiver);
            mux.start();
            handle
        }))
    }
}

struct Pending {
    change: Change,
    done: ChangeDone,
    epoch: u64,
    /// This replica's word is on its way.
    open: bool,
    /// It is in the order.
    said: bool,
    asked_ms: u64,
}

/// What a replica knows of the members beside the order.
pub(super) struct Membership {
    by_key: BTreeMap<PublicKey, u32>,
    by_id: BTreeMap<u32, PublicKey>,
    linked: Linked,
    /// To be told to the network, and to consensus.
    pub moved: bool,
    was_member: bool,
    pending: Option<Pending>,
    spares: BTreeMap<u32, Member>,
    guest: Option<(u32, Member)>,
    gone: Option<(u32, Member)>,
}

impl Membership {
    pub fn new(was_member: bool) -> Membership {
        Membership {
            by_key: BTreeMap::new(),
            by_id: BTreeMap::new(),
            linked: Linked::default(),
            moved: false,
            was_member,
            pending: None,
            spares: BTreeMap::new(),
            guest: None,
            gone: None,
        }
    }

    pub fn id_of(&self, key: &PublicKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    pub fn key_of(&self, id: u32) -> Option<&PublicKey> {
        self.by_id.get(&id)
    }

    pub fn linked(&self) -> Linked {
        self.linked.clone()
    }
}

impl Run {
    /// Takes in who the members are.
    pub(super) fn know_members(&mut self) {
        let (roster, latest) = (self.core.roster(), self.core.latest());
        let before = locked(&self.inner.seen).status.roster.members.clone();
        if let Some((id, member)) = before.into_iter().find(|(id, _)| !roster.members.contains_key(id)) {
            self.membership.gone = Some((id, member));
        }
        // A number that changed hands between the two is the later one's, and so is room.
        let mut members = latest.members.clone();
        for (id, member) in &roster.members {
            if members.len() < MEMBERS_MAX {
                members.entry(*id).or_insert_with(|| member.clone());
            }
        }
        let others = self.membership.guest.iter().chain(&self.membership.gone).cloned();
        let spares = self.membership.spares.iter().map(|(id, spare)| (*id, spare.clone()));
        // Who is to come is last: where a spare is at another address now, that is where it is.
        let visitors = spares.chain(others).filter(|(id, _)| !members.contains_key(id)).collect();
        let linked = Linked { members, visitors };
        let all = linked.visitors.iter().chain(&linked.members);
        let keys = all.filter_map(|(id, member)| Some((*id, PublicKey::decode(Copying(&member.key)).ok()?)));
        self.membership.by_id = keys.collect();
        self.membership.by_key = self.membership.by_id.iter().map(|(id, key)| (key.clone(), *id)).collect();
        self.membership.was_member |= latest.members.contains_key(&self.inner.id);
        self.membership.linked = linked;
        self.health.set_members(&roster.ids());
        let member = self.core.is_member();
        let mut seen = locked(&self.inner.seen);
        (seen.status.roster, seen.status.member) = (roster.clone(), member);
    }

    /// Whether it may go on.
    pub(super) fn still_member(&self) -> Result<(), String> {
        let latest = self.core.latest();
        let gone = self.membership.was_member || !self.inner.settings.follows;
        if gone && !latest.members.contains_key(&self.inner.id) {
            return Err(no_member(self.inner.id, latest.epoch).to_string());
        }
        Ok(())
    }

    /// Starts consensus of the epoch that the core is in.
    pub(super) async fn begin_epoch<E, S, B>(
        &mut self,
        context: &E,
        lanes: &mut Lanes<S>,
        blocker: B,
    ) -> Result<Consensus, String>
    where
        E: Clock + CryptoRng + Spawner + Metrics,
        S: Sender<PublicKey = PublicKey>,
        B: Blocker<PublicKey = PublicKey>,
    {
        let roster = self.core.roster();
        let epoch = roster.epoch;
        let (questions, asked) = mpsc::unbounded_channel();
        let mut consensus = Consensus { epoch, asked, engine: Engine(None), _questions: questions.clone() };
        if !self.core.is_member() {
            return Ok(consensus);
        }
        let mut seed = [0; 32];
        let mut rng = context.child("seed").with_attribute("epoch", epoch);
        rng.fill_bytes(&mut seed);
        let keys = KeyRing::new(&self.inner.settings.group, &self.identity, roster, seed);
        self.keys = keys.map_err(|error| error.to_string())?;
        let clock = context.child("pace").with_attribute("epoch", epoch);
        let pace = Pace::new(clock, self.rest.clone());
        let paced = pace.clone();
        let now = Box::new(move || paced.current());
        let turns = Turns::new(self.inner.settings.timers, self.keys.scheme.clone(), self.keys.epoch, now);
        self.turns_before += self.turns.replace(turns.clone()).map_or(0, |before| before.unheard());
        let mailbox = Mailbox { questions, view: self.inner.view.clone(), turns: turns.clone() };
        // Views are counted anew.
        self.inner.view.store(0, std::sync::atomic::Ordering::Relaxed);
        let config = config(&self.inner.settings, &self.keys, mailbox, blocker);
        self.votes
            .retain(|partition| epoch_of(partition).is_some_and(|voted| voted + EPOCHS_OF_VOTES_MIN > epoch));
        let late = context.child("certificates").with_attribute("epoch", epoch);
        let clock = context.child("near").with_attribute("epoch", epoch);
        let consensus_context = context.child("consensus").with_attribute("epoch", epoch);
        let context = Keeping::new(consensus_context, self.votes.clone(), pace);
        let engine = simplex::Engine::new(context, config);
        let closed = |error: commonware_p2p::utils::mux::Error| format!("a lane for votes: {error}");
        let [votes, certificates, fetches] = &mut lanes.0;
        let (vote_sender, vote_receiver) = votes.register(epoch).await.map_err(closed)?;
        let (sender, receiver) = certificates.register(epoch).await.map_err(closed)?;
        let timers = &self.inner.settings.timers;
        let sender = Late::new(late, sender, hold(timers));
        let now = Box::new(move || clock.current());
        let (view, left_out) = (self.inner.view.clone(), self.far_certificates.clone());
        let receiver = Near::new(receiver, view, timers, now, left_out);
        consensus.engine = Engine(Some(engine.start(
            (vote_sender, Hearing::new(vote_receiver, turns)),
            (sender, receiver),
            fetches.register(epoch).await.map_err(closed)?,
        )));
        tracing::info!(replica = self.inner.id, epoch, members = ?self.keys.ids(), "entering epoch");
        Ok(consensus)
    }

    /// Somebody who may wants other members.
    pub(super) fn change(&mut self, change: Change, done: ChangeDone) {
        let roster = self.core.roster();
        if roster.has(&change) {
            return done(Ok(()));
        }
        if !self.core.is_member() {
            return done(Err(crate::Error::Order(Error::NotLeader { leader: None })));
        }
        if let Err(refused) = roster.after(&change) {
            return done(Err(refused.into()));
        }
        let epoch = roster.epoch;
        if let Change::Add { id, member } | Change::Replace { id, member, .. } = &change {
            self.membership.guest = Some((*id, member.clone()));
            self.membership.moved = true;
        }
        let pending = Pending { change, done, epoch, open: false, said: false, asked_ms: 0 };
        if let Some(before) = self.membership.pending.replace(pending) {
            (before.done)(Err(crate::Error::Overtaken));
        }
    }

    /// Who is kept as a spare.
    pub(super) fn set_spares(&mut self, spares: BTreeMap<u32, Member>) {
        let spares: BTreeMap<u32, Member> = spares.into_iter().take(SPARES_MAX).collect();
        if self.membership.spares != spares {
            self.membership.spares = spares;
            self.membership.moved = true;
        }
    }

    /// What was asked for is not wanted any more.
    pub(super) fn give_up_change(&mut self) {
        let Some(pending) = self.membership.pending.take_if(|pending| !pending.said && !pending.open) else {
            return;
        };
        self.membership.guest = None;
        self.membership.moved = true;
        (pending.done)(Err(crate::Error::Overtaken));
    }

    /// Whether the guest has all that was ordered, as far as it says: whoever lies about that hurts the members that want it.
    fn guest_is_there(&self, change: &Change) -> bool {
        let (Change::Add { id, .. } | Change::Replace { id, .. }) = change else { return true };
        let silent_ms = 10 * self.inner.settings.timers.ask.as_millis() as u64;
        self.core
            .seen(self.now_ms)
            .get(id)
            .is_some_and(|seen| seen.behind == 0 && seen.silent_ms <= silent_ms)
    }

    /// Brings a change of members on that was asked for here.
    pub(super) fn look_after_change(&mut self, out: &mut Vec<Output>) {
        let Some(mut pending) = self.membership.pending.take() else { return };
        let roster = self.core.roster();
        if roster.has(&pending.change) {
            return (pending.done)(Ok(()));
        }
        if roster.epoch != pending.epoch {
            return (pending.done)(Err(crate::Error::Overtaken));
        }
        let again_ms = pending.asked_ms + self.inner.settings.timers.patience.as_millis() as u64;
        if !pending.open && !pending.said && again_ms <= self.now_ms && self.guest_is_there(&pending.change) {
            pending.open = true;
            pending.asked_ms = self.now_ms;
            let body = Approval { epoch: roster.epoch, change: pending.change.clone() }.encode();
            let ticket = self.answers.add(Answer::Approval);
            self.membership.pending = Some(pending);
            self.core.propose(ticket, body, self.now_ms, out);
        } else {
            self.membership.pending = Some(pending);
        }
    }

    /// What became of this replica's own word.
    pub(super) fn approved(&mut self, result: Result<Position, Error>) {
        if let Some(pending) = &mut self.membership.pending {
            (pending.open, pending.said) = (false, result.is_ok());
        }
    }
}
