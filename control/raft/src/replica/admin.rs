//! Changes of the group and planned moves of its leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::{Inner, RaftOf};
use crate::codec::{ADDRESS_BYTES_MAX, REPLICAS_MAX};
use crate::error::Error;
use crate::net::message::Request;
use crate::net::{Lane, Network};
use crate::runtime::spawn;
use crate::types::{Address, Types};

/// A successor must be at most so many entries behind before leadership is given to it.
const TRANSFER_LAG_MAX: u64 = 1000;

/// One change of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds a replica without a vote, which then catches up.
    AddLearner {
        /// Its number, never used before.
        id: u64,
        /// Where it is reached.
        address: String,
    },
    /// Gives a learner that has caught up a vote.
    Promote {
        /// Its number.
        id: u64,
    },
    /// Gives a learner that has caught up the vote of another, which leaves the group.
    Replace {
        /// The number of who goes.
        out: u64,
        /// The learner's.
        id: u64,
    },
    /// Removes a replica.
    Remove {
        /// Its number.
        id: u64,
    },
}

pub(super) type Reply = oneshot::Sender<Result<(), Error>>;

pub(super) enum Command {
    Initialize { members: BTreeMap<u64, String>, reply: Reply },
    Change { change: Change, reply: Reply },
    Transfer { to: Option<u64>, reply: Reply },
    Saved { purge: Option<u64> },
    Digest { index: u64, digest: [u8; 32] },
    Probe { id: u64, address: String, reply: Reply },
}

/// How long a replica that is to be added may take to answer.
const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// Whether replica `id` of this group answers at an address.
async fn probe(network: &Network, id: u64, address: String) -> Result<(), Error> {
    let client = network.client(id, &Address(address.clone()), Lane::Peers);
    // Whatever it answers, it is there: one that is new hears nothing yet.
    match client.ask(&Request::Tell { bytes: Bytes::new() }, PROBE_LIMIT).await {
        Ok(_) => Ok(()),
        Err(error) => Err(member(format!(
            "replica {id} does not answer at {address} ({error}): look whether it runs, waits to be added and is reached there; nothing was changed"
        ))),
    }
}

pub(super) async fn obey(
    inner: Arc<Inner>,
    raft: RaftOf,
    network: Network,
    mut commands: mpsc::Receiver<Command>,
    digests: mpsc::Sender<(u64, [u8; 32])>,
) {
    while let Some(command) = commands.recv().await {
        let (inner, raft) = (Arc::clone(&inner), raft.clone());
        match command {
            Command::Initialize { members, reply } => {
                spawn(async move { answer(reply, initialize(&raft, members).await) });
            }
            Command::Change { change, reply } => {
                if inner.changing.swap(true, Ordering::AcqRel) {
                    answer(reply, Err(Error::Busy));
                    continue;
                }
                spawn(async move {
                    let changing = Changing(&inner);
                    let result = apply(&inner, &raft, change).await;
                    // Before the answer: whoever hears it may ask for the next.
                    drop(changing);
                    answer(reply, result);
                });
            }
            Command::Transfer { to, reply } => {
                spawn(async move { answer(reply, transfer(&inner, &raft, to).await) });
            }
            Command::Probe { id, address, reply } => {
                let network = network.clone();
                spawn(async move { answer(reply, probe(&network, id, address).await) });
            }
            Command::Saved { purge } => saved(&raft, purge).await,
            Command::Digest { index, digest } => {
                // A full queue loses a digest; the next one makes up for it.
                let _lost = digests.try_send((index, digest));
            }
        }
    }
}

/// Ends a change, however it ends.
pub(super) struct Changing<'i>(&'i Inner);

impl<'i> Changing<'i> {
    /// Begins one, unless another is under way.
    pub(super) fn begin(inner: &'i Inner) -> Option<Changing<'i>> {
        (!inner.changing.swap(true, Ordering::AcqRel)).then_some(Changing(inner))
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.changing.store(false, Ordering::Release);
    }
}

/// Gives those learners a vote that have caught up, where no other change is under way. Gives whom.
pub(super) async fn promote_ready(inner: &Inner, raft: &RaftOf) -> Result<Option<u64>, Error> {
    if inner.leadership.borrow().leader != Some(inner.settings.id) {
        return Ok(None);
    }
    let now = members(raft);
    let limit = inner.settings.promote_lag_max;
    let demoted = super::locked(&inner.demoted).clone();
    let lost = inner.contacts.lost();
    let spares = super::locked(&inner.spares).clone();
    let is_to_vote = |id: &u64| spares.as_ref().is_some_and(|spares| !spares.contains(id));
    let ready = |id: &u64| {
        let wanted = (inner.settings.promotes && is_to_vote(id)) || demoted.contains(id);
        let has_all = now.lag.get(id).is_some_and(|lag| *lag <= limit) && !lost.contains(id);
        wanted && has_all && !now.voters.contains(id)
    };
    let Some(id) = now.nodes.keys().copied().find(ready) else { return Ok(None) };
    let Some(_changing) = Changing::begin(inner) else { return Ok(None) };
    apply(inner, raft, Change::Promote { id }).await?;
    super::locked(&inner.demoted).remove(&id);
    Ok(Some(id))
}

fn answer(reply: Reply, result: Result<(), Error>) {
    // Whoever asked may have stopped waiting.
    let _unheard = reply.send(result);
}

/// Tells openraft of the snapshot that the application had made, and purges the log below the older one.
async fn saved(raft: &RaftOf, purge: Option<u64>) {
    let trigger = raft.trigger();
    // An error means that openraft has ended, which the watch over the leader tells.
    if trigger.snapshot().await.is_ok()
        && let Some(upto) = purge
    {
        let _ended = trigger.purge_log(upto).await;
    }
}

fn member(what: impl Into<String>) -> Error {
    Error::Member { what: what.into() }
}

async fn initialize(raft: &RaftOf, members: BTreeMap<u64, String>) -> Result<(), Error> {
    if members.is_empty() || members.len() > REPLICAS_MAX {
        return Err(member(format!("a group has 1 to {REPLICAS_MAX} replicas, not {}", members.len())));
    }
    for address in members.values() {
        check_address(address)?;
    }
    let nodes: BTreeMap<u64, Address> =
        members.into_iter().map(|(id, address)| (id, Address(address))).collect();
    match raft.initialize(nodes).await {
        Ok(()) => Ok(()),
        Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Err(Error::Exists),
        Err(RaftError::APIError(InitializeError::NotInMembers(_))) => {
            Err(member("the replica that founds a group must be one of its members"))
        }
        Err(RaftError::Fatal(_)) => Err(Error::Order(weir_order::Error::Stopped)),
    }
}

fn check_address(address: &str) -> Result<(), Error> {
    if address.len() > ADDRESS_BYTES_MAX {
        return Err(member(format!(
            "an address has {} bytes and may have {ADDRESS_BYTES_MAX}",
            address.len()
        )));
    }
    Ok(())
}

fn failed(error: RaftError<Types, ClientWriteError<Types>>) -> Error {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            Error::NotLeader { leader: to.leader_id }
        }
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => Error::Unknown,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => match error {
            openraft::errors::ChangeMembershipError::InProgress(_) => Error::Busy,
            other => member(other.to_string()),
        },
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => Error::Busy,
        RaftError::Fatal(_) => Error::Order(weir_order::Error::Stopped),
    }
}

/// What a change looks at first, so that its refusal says what is wrong.
pub(super) struct Members {
    pub(super) voters: BTreeSet<u64>,
    nodes: BTreeMap<u64, String>,
    joint: bool,
    /// Entries that each replica lacks; only what has answered this leader.
    pub(super) lag: BTreeMap<u64, u64>,
}

impl Members {
    /// Whether a replica is a learner that has caught up.
    fn may_vote(&self, inner: &Inner, id: u64) -> Result<(), Error> {
        if self.voters.contains(&id) || !self.nodes.contains_key(&id) {
            return Err(member(format!("replica {id} is no learner: add it as one first")));
        }
        let limit = inner.settings.promote_lag_max;
        match self.lag.get(&id) {
            Some(lag) if *lag <= limit => Ok(()),
            lag => Err(Error::Behind { id, lag: lag.copied().unwrap_or(u64::MAX), limit }),
        }
    }
}

pub(super) fn members(raft: &RaftOf) -> Members {
    let metrics = raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership();
    let end = metrics.last_log_index.map_or(0, |index| index + 1);
    let matched = metrics.replication.iter().flatten();
    Members {
        voters: membership.voter_ids().collect(),
        nodes: membership.nodes().map(|(id, address)| (*id, address.0.clone())).collect(),
        joint: membership.get_joint_config().len() > 1,
        lag: matched
            .filter_map(|(id, matched)| Some((*id, end.saturating_sub(matched.as_ref()?.index() + 1))))
            .collect(),
    }
}

async fn apply(inner: &Inner, raft: &RaftOf, change: Change) -> Result<(), Error> {
    let own = inner.settings.id;
    let leader = inner.leadership.borrow().leader;
    if leader != Some(own) {
        return Err(Error::NotLeader { leader });
    }
    let now = members(raft);
    if now.joint {
        // A leader was lost between the two steps of a change: end that one first.
        let even = ChangeMembers::AddVoterIds(BTreeSet::new());
        raft.change_membership(even, true).await.map_err(failed)?;
    }
    let written = match change {
        Change::AddLearner { id, address } => {
            check_address(&address)?;
            if let Some(there) = now.nodes.get(&id) {
                return Err(member(format!(
                    "replica {id} is a member already, at {there}: to move it, remove it first"
                )));
            }
            if now.nodes.len() >= REPLICAS_MAX {
                return Err(member(format!("a group has at most {REPLICAS_MAX} replicas: remove one first")));
            }
            inner.contacts.begins(id);
            raft.add_learner(id, Address(address), false).await
        }
        Change::Promote { id } => {
            now.may_vote(inner, id)?;
            raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
        }
        Change::Replace { out, id } => {
            if !now.voters.contains(&out) {
                return Err(member(format!("replica {out} has no vote: it cannot be replaced")));
            }
            now.may_vote(inner, id)?;
            let others = now.voters.iter().copied().filter(|voter| *voter != out);
            let voters = others.chain([id]).collect();
            raft.change_membership(ChangeMembers::ReplaceAllVoters(voters), false).await
        }
        Change::Remove { id } => {
            if !now.nodes.contains_key(&id) {
                return Err(member(format!("replica {id} is not a member")));
            }
            let set = BTreeSet::from([id]);
            if !now.voters.contains(&id) {
                raft.change_membership(ChangeMembers::RemoveNodes(set), false).await
            } else if now.voters.len() == 1 {
                return Err(member("the last voter cannot be removed"));
            } else {
                raft.change_membership(ChangeMembers::RemoveVoters(set), false).await
            }
        }
    };
    written.map(|_| ()).map_err(failed)
}

/// Gives leadership away and waits until another leads.
pub(super) async fn transfer(inner: &Inner, raft: &RaftOf, to: Option<u64>) -> Result<(), Error> {
    let own = inner.settings.id;
    let before = *inner.leadership.borrow();
    if before.leader != Some(own) {
        return Err(Error::NotLeader { leader: before.leader });
    }
    let now = members(raft);
    let fit = now
        .lag
        .iter()
        .filter(|(id, lag)| **id != own && **lag <= TRANSFER_LAG_MAX && now.voters.contains(id));
    let chosen = match to {
        Some(to) => fit.map(|(id, _)| *id).find(|id| *id == to),
        None => fit.min_by_key(|(_, lag)| **lag).map(|(id, _)| *id),
    };
    let Some(chosen) = chosen else { return Err(Error::NoSuccessor) };
    let until = Instant::now() + 4 * inner.settings.timers.election_max();
    while Instant::now() < until {
        raft.trigger().transfer_leader(chosen).await.map_err(|_| Error::Order(weir_order::Error::Stopped))?;
        let attempt = Instant::now() + inner.settings.timers.election_max();
        while Instant::now() < attempt {
            let now = *inner.leadership.borrow();
            if now.leader.is_some_and(|leader| leader != own) {
                return Ok(());
            }
            sleep(Duration::from_millis(inner.settings.timers.heartbeat_ms.div_ceil(4))).await;
        }
    }
    Err(Error::NoSuccessor)
}
