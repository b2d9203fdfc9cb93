//! A group of controllers: the replicated order below one of them, who leads, and who is in it (rows B1, R1).
//!
//! Every controller of a group runs the whole loop on the same ordered entries. What is special here is what joins the
//! replica to the controller: it is told to lead when raft says so and all that was ordered is decided; the members and
//! their addresses become what actuators, tools and join tokens are told.
//!
//! Two orders. With `order: raft` one member leads and some may crash ([`order`], [`lead`]); with `order: bft` every member takes what is asked
//! and some may lie ([`everywhere`], [`turns`]).
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
//! - It leads only after a barrier has passed.

mod address;
mod aside;
mod clocks;
mod everywhere;
mod lead;
mod order;
mod signing;
mod spares;
mod start;
mod turns;

pub use address::MemberAddress;
pub use aside::keep;
pub use everywhere::{STATE_EVERY, public as identity, secret};
pub use lead::watch;
pub use start::{BATCH_BYTES_MAX, Founding, found, open};

use bytes::Bytes;
use everywhere::Everywhere;
use order::Replicated;
use spares::Watching;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_admission::Door;
use weir_api::ApiError;
use weir_api::types::{AddMember, GroupMember, GroupStatus};
use weir_controller::driver::{AsideInbox, Members};
use weir_model::domain::DomainController;
use weir_model::join::from_hex;
use weir_raft::{Change, ReplicaStatus, Role};

/// Highest number of a controller: the keys of so many are known in advance.
pub const MEMBER_NUMBER_MAX: u64 = 255;
/// How long a controller that was added may take to catch up.
const CATCH_UP_BOUND: Duration = Duration::from_secs(60);
/// A leader that has not heard of a majority for so long is cut off.
const CUT_OFF_MS: u64 = 2_000;
/// How long a controller that is to be added may take to take a connection.
const REACH_BOUND: Duration = Duration::from_secs(5);
/// A controller that is to be added and is not linked with has a wrong address or key, after so long.
const LINK_BOUND: Duration = Duration::from_secs(15);
/// How often it is looked whether it has.
const CATCH_UP_LOOK: Duration = Duration::from_millis(100);

/// The order below this controller.
#[derive(Clone)]
enum Engine {
    /// Some may crash.
    Raft(Arc<Replicated>),
    /// Some may lie.
    Bft(Arc<Everywhere>),
}

/// This controller's replica of the group.
#[derive(Clone)]
pub struct Group {
    engine: Engine,
    /// Where this controller is.
    own: MemberAddress,
    /// Its part in the group's signatures; none where all have the same key.
    members: Option<Members>,
    /// Where the others come in, if the engine's listener is ours.
    door: Option<Arc<Door>>,
    /// Why this controller waits before an entry, if it does.
    aside: AsideInbox,
    /// What it knows of the others beside the order.
    watching: Arc<Watching>,
}

type Member = (u64, bool, MemberAddress);

fn members(status: &ReplicaStatus) -> impl Iterator<Item = Member> {
    let voters = status.voters.iter().map(|(id, text)| (*id, true, MemberAddress::read(text)));
    voters.chain(status.learners.iter().map(|(id, text)| (*id, false, MemberAddress::read(text))))
}

impl Engine {
    /// All of the group, whether each votes, and where it is.
    fn members(&self) -> Vec<Member> {
        match self {
            Engine::Raft(order) => members(&order.engine().replica_status()).collect(),
            Engine::Bft(order) => {
                order.members().1.into_iter().map(|(id, address)| (id, true, address)).collect()
            }
        }
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.members().into_iter().filter(|(_, voter, _)| *voter).map(|(id, ..)| id).collect()
    }

    /// This member's number.
    fn id(&self) -> u64 {
        match self {
            Engine::Raft(order) => order.engine().replica_status().id,
            Engine::Bft(order) => u64::from(order.engine().replica_status().id),
        }
    }

    fn leader(&self) -> Option<u64> {
        match self {
            Engine::Raft(order) => order.engine().leader().borrow().leader,
            Engine::Bft(order) => order.leader(),
        }
    }

    /// Why the replica cannot go on.
    fn failure(&self) -> Option<String> {
        match self {
            Engine::Raft(order) => order.engine().replica_status().failure,
            Engine::Bft(order) => order.engine().replica_status().failure,
        }
    }

    /// Why the replica takes nothing new, when its disk is full.
    fn full(&self) -> Option<String> {
        match self {
            Engine::Raft(order) => order.engine().replica_status().full,
            Engine::Bft(order) => order.engine().replica_status().full,
        }
    }

    /// Members that were cut off for what they sent.
    fn cut_off(&self) -> BTreeSet<u64> {
        match self {
            Engine::Raft(_) => BTreeSet::new(),
            Engine::Bft(order) => {
                order.engine().replica_status().cut_off.into_iter().map(u64::from).collect()
            }
        }
    }

    /// Says something to the upper half of another member; what is lost is said again.
    fn tell(&self, to: u32, bytes: Bytes) {
        match self {
            Engine::Raft(order) => order.engine().tell(u64::from(to), bytes),
            Engine::Bft(order) => order.engine().tell(to, bytes),
        }
    }

    fn status(&self) -> GroupStatus {
        match self {
            Engine::Raft(order) => of_raft(order),
            Engine::Bft(order) => of_bft(order),
        }
    }
}

fn of_raft(order: &Replicated) -> GroupStatus {
    let status = order.engine().replica_status();
    let known = |id: u64| {
        let lag = status.lag.get(&id);
        Known {
            lag: lag.filter(|lag| lag.heard).map(|lag| lag.entries),
            silent_ms: lag.filter(|lag| !lag.heard).and_then(|lag| lag.silent_ms),
            unreached: status.unreached.get(&id).cloned(),
        }
    };
    let needed = clocks::quorum(false, status.voters.len());
    let cut_off = match (status.role, status.quorum_silent_ms) {
        (Role::Leader, Some(silent_ms)) if silent_ms > CUT_OFF_MS => Some(format!(
            "it leads, but has not heard of a majority for {} s: {needed} of {} must answer",
            silent_ms / 1_000,
            status.voters.len()
        )),
        (Role::Follower | Role::Candidate | Role::Learner, _)
            if status.leader.is_none() && !status.voters.is_empty() =>
        {
            Some(format!(
                "it knows of no leader: {needed} of {} must reach each other to have one",
                status.voters.len()
            ))
        }
        _ => None,
    };
    GroupStatus {
        id: status.id,
        order: "raft".to_string(),
        role: role(status.role).to_string(),
        leader: status.leader,
        term: status.term,
        applied: status.applied.index,
        members: shown(members(&status), known),
        fenced: status.fenced,
        failure: status.failure,
        full: status.full,
        cut_off,
        suspicions: Vec::new(),
        replaced: Vec::new(),
        signing: None,
    }
}

fn of_bft(order: &Everywhere) -> GroupStatus {
    let status = order.engine().replica_status();
    let (leader, live, id) = (order.leader(), order.live(), u64::from(status.id));
    let unreached = order.unreached();
    let known = |member: u64| {
        let seen = u32::try_from(member).ok().and_then(|member| status.others.get(&member));
        let lives = live.contains(&member);
        Known {
            lag: seen.filter(|_| lives).map(|seen| seen.behind),
            silent_ms: seen.filter(|_| !lives).map(|seen| seen.silent_ms),
            unreached: match u32::try_from(member).is_ok_and(|member| status.cut_off.contains(&member)) {
                true => Some(
                    "it sent what no honest controller sends, and is cut off here until this controller is started again"
                        .to_string(),
                ),
                false => unreached.get(&member).cloned(),
            },
        }
    };
    let role = match &status.failure {
        Some(_) => Role::Stopped,
        None if leader == Some(id) => Role::Leader,
        None if !status.member => Role::Learner,
        None => Role::Follower,
    };
    let (members, needed) = (status.roster.members.len(), clocks::quorum(true, status.roster.members.len()));
    let cut_off = (status.member && live.len() < needed).then(|| {
        format!(
            "{} of {members} controllers are heard here, itself among them, and {needed} must be",
            live.len()
        )
    });
    GroupStatus {
        id,
        order: "bft".to_string(),
        role: self::role(role).to_string(),
        leader,
        term: status.view,
        applied: status.applied.index,
        members: shown(order.members().1.into_iter().map(|(id, address)| (id, true, address)), known),
        fenced: status.fenced,
        failure: status.failure,
        full: status.full,
        cut_off,
        suspicions: Vec::new(),
        replaced: Vec::new(),
        signing: None,
    }
}

/// What one member knows of another.
#[derive(Default)]
struct Known {
    lag: Option<u64>,
    silent_ms: Option<u64>,
    unreached: Option<String>,
}

fn shown(members: impl Iterator<Item = Member>, known: impl Fn(u64) -> Known) -> Vec<GroupMember> {
    let show = |(id, voter, address): Member| {
        let Known { lag, silent_ms, unreached } = known(id);
        let MemberAddress { replica, api, session } = address;
        GroupMember { id, voter, replica, api, session, lag, silent_ms, unreached, spare: false }
    };
    let mut all: Vec<GroupMember> = members.map(show).collect();
    all.sort_by_key(|member| member.id);
    all
}

impl Group {
    /// Where the others come in, if the engine's listener is ours.
    pub fn door(&self) -> Option<Arc<Door>> {
        self.door.clone()
    }

    /// Why it takes nothing new, when its disk is full.
    pub fn full(&self) -> Option<String> {
        self.engine.full()
    }

    /// What the replica knows of itself and of the others.
    pub fn status(&self) -> GroupStatus {
        let mut status = self.engine.status();
        (status.suspicions, status.replaced) = self.watched(&mut status.members);
        let held = self.aside.held().map(|held| (*held).clone());
        status.failure = status.failure.or(held);
        status
    }

    /// Whose promises count must not change while an entry is waited for.
    fn is_free_to_change(&self) -> Result<(), ApiError> {
        match self.aside.held() {
            Some(held) => Err(ApiError::unavailable((*held).clone())),
            None => Ok(()),
        }
    }

    /// Where people and tools reach a member, `ADDRESS:PORT`.
    pub fn api_of(&self, id: u64) -> Option<String> {
        self.engine.members().into_iter().find(|(member, ..)| *member == id).map(|(.., address)| address.api)
    }

    /// Where people and tools reach the members, `ADDRESS:PORT`; this controller first, also before it is a member.
    pub fn apis(&self) -> Vec<String> {
        self.addresses(|address| &address.api)
    }

    /// Where hosts and gateways reach the members.
    pub fn sessions(&self) -> Vec<String> {
        self.addresses(|address| &address.session)
    }

    /// Numbers of the members, spares with them, by where hosts reach them.
    pub fn numbers_by_session(&self) -> BTreeMap<String, u64> {
        self.engine.members().into_iter().map(|(id, _, address)| (address.session, id)).collect()
    }

    /// The members with a vote as other domains know them, by number; `key` is what signs a member's events where some may crash only.
    pub fn controllers(&self, key: impl Fn(u64) -> [u8; 32]) -> Vec<DomainController> {
        let keys = match &self.engine {
            Engine::Raft(_) => None,
            Engine::Bft(order) => Some(order.keys()),
        };
        let known = |id: u64| match &keys {
            None => Some(key(id)),
            Some(keys) => keys.get(&id).copied(),
        };
        let voters = self.engine.members().into_iter().filter(|(_, voter, _)| *voter);
        let mut all: Vec<DomainController> = voters
            .filter_map(|(id, _, address)| Some(DomainController { id, key: known(id)?, api: address.api }))
            .collect();
        all.sort_by_key(|one| one.id);
        all
    }

    fn addresses(&self, which: impl Fn(&MemberAddress) -> &String) -> Vec<String> {
        let mut found = vec![which(&self.own).clone()];
        for (.., address) in self.engine.members() {
            if !found.contains(which(&address)) {
                found.push(which(&address).clone());
            }
        }
        found
    }

    /// Adds a controller: without a vote until it has caught up, then with one.
    pub async fn add(&self, member: AddMember) -> Result<(), ApiError> {
        self.is_free_to_change()?;
        let key = member.key;
        let address = MemberAddress { replica: member.replica, api: member.api, session: member.session };
        address.check().map_err(ApiError::invalid)?;
        if !(1..=MEMBER_NUMBER_MAX).contains(&member.id) {
            let text = format!("id: '{}' is not allowed: use 1 to {MEMBER_NUMBER_MAX}", member.id);
            return Err(ApiError::invalid(text));
        }
        let id = member.id;
        self.is_free(id, &address)?;
        if member.spare {
            return self.add_as_spare(id, key.as_deref(), &address).await;
        }
        self.no_spare(id).await?;
        let order = match &self.engine {
            Engine::Raft(order) => order,
            Engine::Bft(order) => {
                let member = known_by(key.as_deref(), &address)?;
                let id = u32::try_from(id).map_err(|error| ApiError::invalid(error.to_string()))?;
                reach(id, &address).await?;
                return change_everywhere(order, weir_bft::Change::Add { id, member }).await;
            }
        };
        let status = self.status();
        match status.members.iter().find(|known| known.id == id) {
            // A repetition of a request whose answer was lost.
            Some(known) if known.api == address.api && known.replica == address.replica && !known.voter => {}
            known => {
                order.engine().probe(id, address.to_string()).await.map_err(|error| self.refused(error))?;
                if known.is_some_and(|known| !known.voter) {
                    // It was added with another address before, and never got a vote.
                    self.change(Change::Remove { id }).await?;
                }
                self.change(Change::AddLearner { id, address: address.to_string() }).await?;
            }
        }
        let until = Instant::now() + CATCH_UP_BOUND;
        // The leader gives it its vote by itself.
        loop {
            let status = order.engine().replica_status();
            if status.voters.contains_key(&id) {
                return Ok(());
            }
            if status.leader != Some(status.id) {
                return Err(ApiError::uncertain(format!(
                    "controller {id} is in the group, and another controller leads now, which gives it its vote when it has caught up: 'weir group \
                     list' shows how far it is"
                )));
            }
            if Instant::now() >= until {
                return Err(self.still_behind(order, id).await);
            }
            tokio::time::sleep(CATCH_UP_LOOK).await;
        }
    }

    /// Whether nobody else has an address, and the number is not that of a member elsewhere.
    fn is_free(&self, id: u64, address: &MemberAddress) -> Result<(), ApiError> {
        for (other, voter, known) in self.engine.members() {
            let same = [
                ("replica", &known.replica, &address.replica),
                ("api", &known.api, &address.api),
                ("session", &known.session, &address.session),
            ];
            if let Some((field, taken, _)) =
                same.into_iter().find(|(_, known, wanted)| other != id && known == wanted)
            {
                return Err(ApiError::conflict(format!(
                    "{field}: '{taken}' is where controller {other} is: give the one where controller {id} is reached"
                )));
            }
            if other == id && voter && known != *address {
                return Err(ApiError::conflict(format!(
                    "id: controller {id} is in the group, at {}: to move it, 'weir group remove {id}' first",
                    known.replica
                )));
            }
        }
        Ok(())
    }

    /// What became of a controller that has no vote after a while: one that is silent is taken out again, so that nothing is left of a
    /// wrong address.
    async fn still_behind(&self, order: &Replicated, id: u64) -> ApiError {
        let seconds = CATCH_UP_BOUND.as_secs();
        let status = order.engine().replica_status();
        if let Some((sent, bytes)) = status.sending.get(&id) {
            return ApiError::uncertain(format!(
                "controller {id} is in the group and has no vote yet, because the state is on its way ({} of {} MiB after {seconds} s): it goes on and \
                 gets its vote by itself ('weir group list' shows how far it is)",
                sent >> 20,
                bytes >> 20
            ));
        }
        if status.lag.get(&id).is_some_and(|lag| lag.heard) {
            return ApiError::uncertain(format!(
                "controller {id} is in the group and answers, and has no vote yet, because it has not caught up within {seconds} s: it goes \
                 on and gets its vote by itself ('weir group list' shows how far it is)"
            ));
        }
        let why = status.unreached.get(&id).cloned().unwrap_or_else(|| "it does not answer".to_string());
        match self.change(Change::Remove { id }).await {
            Ok(()) => ApiError::unavailable(format!(
                "controller {id} did not answer within {seconds} s ({why}), and is not in the group: look whether it runs with \
                 --join-group, and add it again"
            )),
            Err(_) => ApiError::unavailable(format!(
                "controller {id} did not answer within {seconds} s ({why}), and is in the group without a vote: 'weir group remove {id}'"
            )),
        }
    }

    /// Removes a controller.
    pub async fn remove(&self, id: u64) -> Result<(), ApiError> {
        self.is_free_to_change()?;
        if self.is_spare(id) {
            return self.remove_spare(id).await;
        }
        match &self.engine {
            Engine::Raft(_) => self.change(Change::Remove { id }).await,
            Engine::Bft(order) => {
                let id = u32::try_from(id).map_err(|error| ApiError::invalid(error.to_string()))?;
                change_everywhere(order, weir_bft::Change::Remove { id }).await
            }
        }
    }

    async fn change(&self, change: Change) -> Result<(), ApiError> {
        let Engine::Raft(order) = &self.engine else { return Ok(()) };
        order.engine().change(change).await.map_err(|error| self.refused(error))
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
        // Where all take what is asked nobody waits for an election.
        if let Engine::Raft(order) = &self.engine
            && order.engine().transfer_leadership(None).await.is_ok()
        {
            tracing::info!("another controller leads");
        }
    }
}

/// Whether somebody takes connections where a new controller is to be.
pub(super) async fn reach(id: u32, address: &MemberAddress) -> Result<(), ApiError> {
    let connects = tokio::net::TcpStream::connect(&address.replica);
    let problem = match tokio::time::timeout(REACH_BOUND, connects).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", REACH_BOUND.as_secs()),
    };
    Err(ApiError::unavailable(format!(
        "controller {id} is not reached at {} ({problem}): start it with --join-group first; nothing was changed",
        address.replica
    )))
}

/// A controller as the members of a group of which some may lie know it.
fn known_by(key: Option<&str>, address: &MemberAddress) -> Result<weir_bft::Member, ApiError> {
    let key = key.and_then(from_hex::<32>).ok_or_else(|| {
        ApiError::invalid(
            "key: a controller of a group with order: bft needs the 64 hexadecimal digits that 'weir group identity' prints on its \
             machine",
        )
    })?;
    Ok(weir_bft::Member { key, address: address.to_string() })
}

/// Gives this member's word for a change; returns when enough others have given theirs.
async fn change_everywhere(order: &Everywhere, change: weir_bft::Change) -> Result<(), ApiError> {
    let added = match &change {
        weir_bft::Change::Add { member, .. } => Some(MemberAddress::replica_of(&member.address).to_string()),
        _ => None,
    };
    let refused = |error: weir_bft::Error| match error {
        weir_bft::Error::Change(refused) => ApiError::conflict(refused.to_string()),
        error @ weir_bft::Error::Overtaken => ApiError::conflict(error.to_string()),
        error => ApiError::unavailable(error.to_string()),
    };
    let not_linked = async {
        tokio::time::sleep(LINK_BOUND).await;
        loop {
            let why = added.as_ref().and_then(|at| order.unreached_at(at));
            match why {
                Some(why) => return why,
                None => tokio::time::sleep(CATCH_UP_LOOK).await,
            }
        }
    };
    tokio::select! {
        changed = order.change(change) => changed.map_err(refused),
        why = not_linked => {
            order.give_up_change();
            Err(ApiError::unavailable(format!(
                "the new controller is not linked with at {} ({why}): look whether it runs there with --join-group and whether \
                 'weir group identity' prints the key that was given; nothing was changed",
                added.unwrap_or_default()
            )))
        }
        () = tokio::time::sleep(CATCH_UP_BOUND) => Err(ApiError::unavailable(format!(
            "after {} s the change is not in force: this controller agrees to it, and waits for a new one that has not caught up (look \
             whether it runs with --join-group and is reached), or for the word of others ('weir group add' and 'remove' ask \
             all of them). It goes on when they are there; ask again",
            CATCH_UP_BOUND.as_secs()
        ))),
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
