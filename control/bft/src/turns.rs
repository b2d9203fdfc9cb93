//! Leader timeouts (rows C4, R11): what a member's failed turns as leader cost the others is counted, and the votes of one that costs
//! too much are ignored for a while.
//!
//! A member that lies without breaking a rule that convicts it — it proposes what nobody can vote for, other blocks to each half, or nothing
//! at all while it votes in the turns of others — costs each of its turns a timeout of consensus. Consensus passes over whoever is *silent*
//! without a wait; so the votes of a member that costs too much are dropped here, and to the engine of consensus it is silent.
//!
//! - Each member has an account, of the time that its turns took and that came to nothing: all of a turn that was passed over, or what is
//!   beyond twice [`Timers::idle`] where the leader itself asked for that. It is forgiven a fiftieth of the time that passes.
//! - Who owes more than twice [`Timers::certification`] is not heard for a pause, which is longer each time ([`PAUSES`] of it, doubled
//!   up to [`LEVEL_MAX`] times) and shorter again for who kept quiet long enough. So a liar costs the group some hundredths of its time.
//! - As long as it is not heard, its batches alone are no reason to begin a block ([`crate::core::Core::put_off`]): else one that always has
//!   something to order would have each block begun a moment before those of the others come, who then wait for the next.
//!
//! Invariants
//! - Never more than f members are not heard, so that a quorum can be.
//! - When nothing is certified for twice [`Timers::certification`], all are heard again at once, and for [`GRACE`] times of it nobody is left
//!   unheard: an honest member that was slow is not missed for longer than two turns of a liar take.
//! - Nothing but time rests on it: a vote that is dropped is one that the network lost.
//! - Who is silent by itself owes nothing: consensus passes it over already, and it is heard as soon as it is back.
//!
//! Departure: the papers' failure detector removes such a controller from the group. Here that is for the operator, who sees the counter
//! and the warning; whom to remove for ever is no question of time.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use commonware_consensus::simplex::elector::{Config as _, Elector as _, RoundRobin, RoundRobinElector};
use commonware_consensus::simplex::scheme::ed25519::Scheme;
use commonware_consensus::simplex::types::{Activity, Attributable as _};
use commonware_consensus::types::{Epoch, Round, View};
use commonware_consensus::{Epochable as _, Viewable as _};
use commonware_cryptography::certificate::Scheme as _;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{Message, Receiver};

use crate::collecting::Certified;
use crate::group::Payload;
use crate::lock::locked;
use crate::settings::Timers;

/// What is forgiven: one part in so many of the time that passes.
const FORGIVEN: u64 = 50;
/// The first pause, in times of [`Timers::certification`].
const PAUSES: u64 = 16;
/// How often a pause is doubled at most.
const LEVEL_MAX: u32 = 4;
/// How long nobody is left unheard after all were heard again, in times of [`Timers::certification`].
const GRACE: u64 = 32;

/// How a view ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Certified,
    PassedOver,
}

/// What is known of a member.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    owes_us: u64,
    /// Up to when it was forgiven.
    forgiven_us: u64,
    heard_us: Option<u64>,
    unheard_until_us: Option<u64>,
    /// How often it was not heard, less what it was forgiven.
    level: u32,
    /// When its level changed.
    since_us: u64,
}

/// The accounts of an epoch's members, by their numbers in consensus. Times are in microseconds since 1970.
#[derive(Debug)]
struct Accounts {
    timers: Timers,
    faults_max: usize,
    members: Vec<Account>,
    /// The view that goes on, and since when, if that is known.
    view: (u64, Option<u64>),
    /// The leader of that view asked to be passed over.
    gave_up: bool,
    certified_us: Option<u64>,
    grace_until_us: u64,
    unheard: u64,
}

fn us(duration: std::time::Duration) -> u64 {
    duration.as_micros() as u64
}

impl Accounts {
    fn new(timers: Timers, members: usize) -> Accounts {
        Accounts {
            timers,
            faults_max: members.saturating_sub(1) / 3,
            members: vec![Account::default(); members],
            view: (0, None),
            gave_up: false,
            certified_us: None,
            grace_until_us: 0,
            unheard: 0,
        }
    }

    /// A vote came from a member; tells whether to take it.
    fn hears(&mut self, member: usize, now_us: u64) -> bool {
        let stuck = 2 * us(self.timers.certification);
        if self.certified_us.is_some_and(|at| at + stuck < now_us)
            && self.members.iter().any(|one| one.unheard_until_us.is_some())
        {
            // Somebody of them may be needed.
            self.members.iter_mut().for_each(|one| one.unheard_until_us = None);
            self.grace_until_us = now_us + GRACE * us(self.timers.certification);
            tracing::info!("no progress: counting the votes of all controllers again");
        }
        let Some(account) = self.members.get_mut(member) else { return true };
        match account.unheard_until_us {
            Some(until) if now_us < until => false,
            _ => {
                account.unheard_until_us = None;
                account.heard_us = Some(now_us);
                true
            }
        }
    }

    /// The leader of a view asked to be passed over.
    fn gives_up(&mut self, view: u64) {
        self.gave_up |= view == self.view.0;
    }

    /// A view is over; gives its leader when that is not heard from now on.
    fn ends(&mut self, view: u64, leader: usize, end: End, now_us: u64) -> Option<usize> {
        if view < self.view.0 {
            return None;
        }
        let began_us = self.view.1.filter(|_| view == self.view.0);
        let gave_up = std::mem::take(&mut self.gave_up);
        self.view = (view + 1, Some(now_us));
        self.certified_us = Some(now_us);
        let took_us = now_us.saturating_sub(began_us?);
        let free_us = match end {
            // What is late here may be so for a reason of this replica's own.
            End::Certified => return None,
            End::PassedOver if gave_up => 2 * us(self.timers.idle),
            End::PassedOver => 0,
        };
        let skip_us = us(self.timers.skip);
        let account = self.members.get(leader)?;
        let silent = account.heard_us.is_none_or(|at| at + skip_us < now_us);
        if silent || account.unheard_until_us.is_some() {
            return None;
        }
        // A turn that took longer than the others wait for one did not do so because of its leader alone.
        let took_us = took_us.min(us(self.timers.certification));
        self.owes(leader, took_us.saturating_sub(free_us), now_us)
    }

    fn owes(&mut self, member: usize, more_us: u64, now_us: u64) -> Option<usize> {
        let certification_us = us(self.timers.certification);
        let unheard = self.members.iter().filter(|one| one.unheard_until_us.is_some()).count();
        let account = self.members.get_mut(member)?;
        let forgiven_us = now_us.saturating_sub(account.forgiven_us) / FORGIVEN;
        // What one owes is bounded, so that it is forgiven in bounded time.
        account.owes_us = (account.owes_us.saturating_sub(forgiven_us) + more_us).min(4 * certification_us);
        account.forgiven_us = now_us;
        if account.owes_us <= 2 * certification_us
            || unheard >= self.faults_max
            || now_us < self.grace_until_us
        {
            return None;
        }
        let pause_us = |level: u32| (PAUSES * certification_us) << level.min(LEVEL_MAX);
        // A level less for each time of the longest pause that it kept quiet.
        let quiet = now_us.saturating_sub(account.since_us) / (2 * pause_us(LEVEL_MAX));
        account.level = account.level.saturating_sub(quiet.min(u64::from(u32::MAX)) as u32);
        account.unheard_until_us = Some(now_us + pause_us(account.level));
        (account.level, account.since_us) = ((account.level + 1).min(LEVEL_MAX), now_us);
        // Who is heard again has little left.
        account.owes_us = certification_us;
        self.unheard += 1;
        Some(member)
    }
}

pub(crate) type Now = Box<dyn Fn() -> SystemTime + Send>;

struct Kept {
    accounts: Accounts,
    scheme: Scheme,
    elector: RoundRobinElector<Scheme>,
    epoch: Epoch,
    now: Now,
    certified: Certified,
}

impl Kept {
    fn now_us(&self) -> u64 {
        (self.now)().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
    }

    fn leader(&self, view: View) -> usize {
        self.elector.elect(Round::new(self.epoch, view), ()).get() as usize
    }
}

/// The turns of an epoch. Clones are the same.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Mutex<Kept>>);

impl Turns {
    /// Nothing is known yet. `now` tells the time.
    pub fn new(timers: Timers, scheme: Scheme, epoch: Epoch, now: Now) -> Turns {
        let members = scheme.participants().len();
        let elector = RoundRobin::<commonware_cryptography::Sha256>::default().build(scheme.participants());
        let accounts = Accounts::new(timers, members);
        Turns(Arc::new(Mutex::new(Kept {
            accounts,
            scheme,
            elector,
            epoch,
            now,
            certified: Certified::default(),
        })))
    }

    /// Consensus reports something.
    pub fn reported(&self, activity: &Activity<Scheme, Payload>) {
        let (view, end) = match activity {
            Activity::Nullify(nullify) => {
                let mut kept = locked(&self.0);
                if nullify.epoch() == kept.epoch
                    && nullify.signer().get() as usize == kept.leader(nullify.view())
                {
                    kept.accounts.gives_up(nullify.view().get());
                }
                return;
            }
            Activity::Nullification(nullification) => (nullification.view(), End::PassedOver),
            Activity::Notarization(notarization) => (notarization.view(), End::Certified),
            Activity::Finalization(finalization) => (finalization.view(), End::Certified),
            _ => return,
        };
        let mut kept = locked(&self.0);
        let (leader, now_us) = (kept.leader(view), kept.now_us());
        kept.certified.ended = kept.certified.ended.max(view.get());
        if matches!(activity, Activity::Finalization(_)) {
            kept.certified.finalized = kept.certified.finalized.max(view.get());
        }
        if let Some(member) = kept.accounts.ends(view.get(), leader, end, now_us) {
            let controller = kept.scheme.participants().get(member).map(ToString::to_string);
            let until_us = kept.accounts.members.get(member).and_then(|one| one.unheard_until_us);
            let pause_ms = until_us.map_or(0, |until| until.saturating_sub(now_us) / 1_000);
            tracing::warn!(
                controller = controller.unwrap_or_default(),
                pause_ms,
                "controller repeatedly timed out as leader: ignoring its votes for a while"
            );
        }
    }

    /// Members of the epoch.
    pub fn members(&self) -> usize {
        locked(&self.0).scheme.participants().len()
    }

    /// Who leads a view.
    pub fn leader_of(&self, view: u64) -> Option<PublicKey> {
        let kept = locked(&self.0);
        kept.scheme.participants().get(kept.leader(View::new(view))).cloned()
    }

    /// Up to which views there are certificates here.
    pub fn certified(&self) -> Certified {
        locked(&self.0).certified
    }

    /// How often somebody was not heard any more.
    pub fn unheard(&self) -> u64 {
        locked(&self.0).accounts.unheard
    }

    /// Who is not heard now.
    pub fn not_heard(&self) -> Vec<PublicKey> {
        let kept = locked(&self.0);
        let now_us = kept.now_us();
        let members = kept.accounts.members.iter().zip(kept.scheme.participants());
        let not_heard = members.filter(|(one, _)| one.unheard_until_us.is_some_and(|until| now_us < until));
        not_heard.map(|(_, key)| key.clone()).collect()
    }

    fn hears(&self, from: &PublicKey) -> bool {
        let mut kept = locked(&self.0);
        let Some(member) = kept.scheme.participants().position(from) else { return true };
        let now_us = kept.now_us();
        kept.accounts.hears(member, now_us)
    }
}

/// A receiver of votes that leaves out those of members that are not heard.
pub(crate) struct Hearing<R> {
    inner: R,
    turns: Turns,
}

impl<R> Hearing<R> {
    /// Of what `inner` receives.
    pub fn new(inner: R, turns: Turns) -> Hearing<R> {
        Hearing { inner, turns }
    }
}

impl<R: fmt::Debug> fmt::Debug for Hearing<R> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(to)
    }
}

impl<R: Receiver<PublicKey = PublicKey>> Receiver for Hearing<R> {
    type Error = R::Error;
    type PublicKey = PublicKey;

    async fn recv(&mut self) -> Result<Message<PublicKey>, R::Error> {
        loop {
            let message = self.inner.recv().await?;
            if self.turns.hears(&message.0) {
                return Ok(message);
            }
        }
    }

    fn capacity(&self) -> NonZeroUsize {
        self.inner.capacity()
    }
}

#[cfg(test)]
mod tests;
