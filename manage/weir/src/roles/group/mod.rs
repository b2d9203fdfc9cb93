//! A group of controllers: the replicated order below one of them, who leads, and who is in it (rows B1, R1).
//!
//! Every controller of a group runs the whole loop on the same ordered entries. What is special here is what joins the
//! replica to the controller: it is told to lead when raft says so and all that was ordered is decided; the members and
//! their addresses become what actuators, tools and join tokens are told.
//!
//! Trust. Switches trust the group and not a member: several members must sign what is decided, each with its share of a
//! key that nobody has ([`signing`], `weir_controller::quorum`), and the key stays when members come and go. What
//! members still share ([`super::state::Keys`]) is the domain's authority, from which each makes certificates for itself.
//! With `signatures: shared-key` all have one key for batches instead: then one controller alone can sign, and the group
//! survives crashes only.
//!
//! Invariants
//! - A controller founds a group only with an empty log, and only the first of the founders does. One that was a member
//!   and has lost its log does not start: its votes are lost too. It comes back by being removed and added again.
//! - It leads only after a barrier in its own term has passed.

mod address;
mod lead;
mod order;
mod signing;
mod start;

pub use address::MemberAddress;
pub use lead::watch;
pub use start::{Founding, found, open};

use order::Replicated;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_api::ApiError;
use weir_api::types::{AddMember, GroupMember, GroupStatus};
use weir_controller::driver::Members;
use weir_raft::{Change, ReplicaStatus, Role};

/// Highest number of a controller: the keys of so many are known in advance.
pub const MEMBER_NUMBER_MAX: u64 = 255;
/// How long a controller that was added may take to catch up.
const CATCH_UP_BOUND: Duration = Duration::from_secs(60);
/// How often it is looked whether it has.
const CATCH_UP_LOOK: Duration = Duration::from_millis(100);

/// This controller's replica of the group.
#[derive(Clone)]
pub struct Group {
    order: Arc<Replicated>,
    /// Where this controller is.
    own: MemberAddress,
    /// Its part in the group's signatures; none where all have the same key.
    members: Option<Members>,
}

fn members(status: &ReplicaStatus) -> impl Iterator<Item = (u64, bool, MemberAddress)> {
    let voters = status.voters.iter().map(|(id, text)| (*id, true, MemberAddress::read(text)));
    voters.chain(status.learners.iter().map(|(id, text)| (*id, false, MemberAddress::read(text))))
}

impl Group {
    /// What the replica knows of itself and of the others.
    pub fn status(&self) -> GroupStatus {
        let status = self.order.engine().replica_status();
        let mut all: Vec<GroupMember> = members(&status)
            .map(|(id, voter, address)| GroupMember {
                id,
                voter,
                replica: address.replica,
                api: address.api,
                session: address.session,
                lag: status.lag.get(&id).filter(|lag| lag.heard).map(|lag| lag.entries),
            })
            .collect();
        all.sort_by_key(|member| member.id);
        GroupStatus {
            id: status.id,
            role: role(status.role).to_string(),
            leader: status.leader,
            term: status.term,
            applied: status.applied.index,
            fenced: status.fenced,
            failure: status.failure,
            members: all,
            signing: None,
        }
    }

    /// Where people and tools reach a member, `ADDRESS:PORT`.
    pub fn api_of(&self, id: u64) -> Option<String> {
        let status = self.order.engine().replica_status();
        members(&status).find(|(member, ..)| *member == id).map(|(.., address)| address.api)
    }

    /// Where people and tools reach the members, `ADDRESS:PORT`; this controller first, also before it is a member.
    pub fn apis(&self) -> Vec<String> {
        self.addresses(|address| &address.api)
    }

    /// Where hosts and gateways reach the members.
    pub fn sessions(&self) -> Vec<String> {
        self.addresses(|address| &address.session)
    }

    fn addresses(&self, which: impl Fn(&MemberAddress) -> &String) -> Vec<String> {
        let status = self.order.engine().replica_status();
        let mut found = vec![which(&self.own).clone()];
        for (.., address) in members(&status) {
            if !found.contains(which(&address)) {
                found.push(which(&address).clone());
            }
        }
        found
    }

    /// Adds a controller: without a vote until it has caught up, then with one.
    pub async fn add(&self, member: AddMember) -> Result<(), ApiError> {
        let address = MemberAddress { replica: member.replica, api: member.api, session: member.session };
        address.check().map_err(ApiError::invalid)?;
        if !(1..=MEMBER_NUMBER_MAX).contains(&member.id) {
            let text = format!("id: '{}' is not allowed: use 1 to {MEMBER_NUMBER_MAX}", member.id);
            return Err(ApiError::invalid(text));
        }
        let id = member.id;
        let status = self.status();
        match status.members.iter().find(|known| known.id == id) {
            // A repetition of a request whose answer was lost.
            Some(known) if known.api == address.api && known.replica == address.replica && !known.voter => {}
            _ => self.change(Change::AddLearner { id, address: address.to_string() }).await?,
        }
        let until = Instant::now() + CATCH_UP_BOUND;
        loop {
            match self.order.engine().change(Change::Promote { id }).await {
                Ok(()) => return Ok(()),
                Err(weir_raft::Error::Behind { .. } | weir_raft::Error::Busy) if Instant::now() < until => {
                    tokio::time::sleep(CATCH_UP_LOOK).await;
                }
                Err(weir_raft::Error::Behind { .. }) => {
                    return Err(ApiError::unavailable(format!(
                        "controller {id} is in the group and has no vote yet, because it has not caught up within {} s: \
                         look whether it runs and is reached at {}; then add it again, or remove it",
                        CATCH_UP_BOUND.as_secs(),
                        address.replica
                    )));
                }
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    /// Removes a controller.
    pub async fn remove(&self, id: u64) -> Result<(), ApiError> {
        self.change(Change::Remove { id }).await
    }

    async fn change(&self, change: Change) -> Result<(), ApiError> {
        self.order.engine().change(change).await.map_err(|error| self.refused(error))
    }

    /// That another controller leads.
    pub fn not_leader(&self, leader: Option<u64>) -> ApiError {
        let api = leader.and_then(|leader| self.api_of(leader));
        ApiError::not_leader(api.map(|api| format!("https://{api}")))
    }

    fn refused(&self, error: weir_raft::Error) -> ApiError {
        let message = error.to_string();
        match error {
            weir_raft::Error::NotLeader { leader }
            | weir_raft::Error::Order(weir_order::Error::NotLeader { leader }) => self.not_leader(leader),
            weir_raft::Error::Unknown => ApiError::uncertain(message),
            weir_raft::Error::Order(order) if !order.is_definite() => ApiError::uncertain(message),
            weir_raft::Error::Busy => ApiError::overloaded(message),
            _ => ApiError::conflict(message),
        }
    }

    /// Gives leadership away, if it is here and another can take it: then nobody has to wait for an election.
    pub async fn resign(&self) {
        if self.order.engine().transfer_leadership(None).await.is_ok() {
            tracing::info!("another controller leads");
        }
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Stopped => "stopped",
    }
}
