//! A member's part in the group's signatures (rows R5, R6, C3, C4, C5): a pure step machine, one a replica.
//!
//! Each member holds a share of the group's key and nothing else that signs. What is decided leaves the core as a header
//! without a signature; every member signs it with its share, and enough shares make the group's signature. An actuator
//! checks one signature a batch and a Merkle path an update, and cannot tell who signed.
//!
//! ```text
//!  core ── Sign(header) ──► share ──► aggregator: lowest live member ──► signature, verified ──► all members ──► core
//!  core ── KeysChanged ───► deal, acknowledge, publish (through the order) ──► own share of the key, on disk
//! ```
//!
//! - [`shares`]: shares to signatures. The aggregator is the lowest member that is not known to be silent or lying. It
//!   combines, checks once, and names who sent a bad share. Whoever gets no signature in time goes to the next one;
//!   whoever gets a wrong one does so at once, and listens to the liar no more in this phase.
//!   With [`Way::SharesAtActuators`] every member sends its share to the actuators of the batch as well, which combine them: two steps
//!   less on the way of an update, for a pairing check at each actuator that it makes anyway. What is sent later or again
//!   goes with the signature that the members put together.
//!   With [`Way::Endorsed`] every member sends them a signature of its own key instead ([`weir_trust::endorsement`]), and
//!   what says whose keys those are is signed with shares at once. All else goes as with shares at actuators, so what is sent
//!   again, to another domain, or kept in the audit log has the group's own signature.
//! - [`dealing`]: the key is made, and reshared when members change or on command, over the order
//!   ([`crate::core::keys`]); deals and acks go between members directly, over their authenticated links.
//! - [`liveness`]: which of the others are there.
//! - [`kept`]: what must be on disk before it is said: the seed of what is dealt, the deals that were acknowledged, the
//!   share.
//!
//! Invariants
//! - A secret leaves a member only in a deal, to the player for whom it is. An ack leaves after the deal is on disk.
//! - A member deals one polynomial a round, also after a restart: it is made from a seed that is on disk first, and
//!   forgotten when the round is over.
//! - A member signs what it decided itself, and nothing else. So no rule gets a signature that fewer than
//!   `threshold` members decided.
//! - Nothing here changes what is decided; without it decisions go on and updates wait.
//!
//! Threshold: 2f+1 of 3f+1 and more than half (`weir_trust::threshold`), whatever engine orders. With raft, which
//! survives crashes only, seven members go on ordering with three gone and signing with two.
//!
//! Departures from Cicero: members sign the root of a batch and not each rule; a member that is absent is skipped when
//! the failure detector says so, or sooner, after a time without signature. Nobody is put out of the group for its silence:
//! that an operator does. The order below is raft's, so a member that lies can still order what it likes while it leads; what it cannot is have
//! something signed that the others did not decide.

pub mod dealing;
pub mod kept;
pub mod liveness;
mod message;
mod proof;
pub mod shares;
#[cfg(test)]
mod tests;

pub use message::PeerMessage;
pub use proof::ShareProof;

use crate::audit::{BadShare, Contradiction, SeenFault};
use crate::core::keys::{GroupKeys, KeyStep};
use crate::core::{BatchName, DecidedHeader};
use dealing::Dealing;
use kept::Kept;
use liveness::Liveness;
use shares::Shares;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use weir_base::codec::decode;
use weir_model::Label;
use weir_model::signed::{BlsSignature, HeaderEndorsement, HeaderShare};
use weir_trust::identity::KeyPair;
use weir_trust::threshold::{Fault, FaultKind};

/// Faults that are remembered, the newest.
pub const FAULTS_MAX: usize = 256;
/// Proofs that are remembered, the newest.
const PROOFS_MAX: usize = 8;

/// What happens to the machine.
pub enum Input {
    /// The core decided a batch.
    Sign(Weak<DecidedHeader>),
    /// The order brought the group's key further.
    Keys(Arc<GroupKeys>),
    /// Who leads, and who is in the group with a vote.
    Group {
        /// The leader.
        leader: Option<u32>,
        /// The members.
        voters: BTreeSet<u32>,
    },
    /// Another member says something; its links make sure that it is this one.
    Peer {
        /// Who.
        from: u32,
        /// What.
        bytes: Vec<u8>,
    },
    /// New shares are wanted, of the same members.
    Refresh,
    /// The order convicted a member by its own votes.
    Contradicted(Box<Contradiction>),
    /// Time passed, on any clock that does not go back.
    Tick {
        /// Its milliseconds.
        now_ms: u64,
    },
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Say something to another member.
    Tell {
        /// To whom.
        to: u32,
        /// What.
        message: PeerMessage,
    },
    /// The group's signature over a batch, verified.
    Signed {
        /// Which.
        batch: BatchName,
        /// The signature.
        signature: BlsSignature,
    },
    /// Send this member's share to the actuators of the batch, which put signatures together themselves.
    Share {
        /// The actuators.
        targets: Vec<Label>,
        /// The share.
        share: Box<HeaderShare>,
    },
    /// Send this member's endorsement of a batch to its actuators.
    Endorsement {
        /// The actuators.
        targets: Vec<Label>,
        /// The endorsement.
        endorsement: Box<HeaderEndorsement>,
    },
    /// Order this; only the leader is asked to.
    Propose(KeyStep),
    /// A member was found out: keep it.
    FoundOut(Box<SeenFault>),
    /// A member contradicted itself in the order.
    Contradicted(Box<Contradiction>),
}

/// What the machine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumCounters {
    /// Shares made.
    pub shares_made: u64,
    /// Batches endorsed.
    pub endorsed: u64,
    /// Shares of others that were taken.
    pub shares_taken: u64,
    /// Signatures put together here.
    pub aggregated: u64,
    /// Signatures that another member put together.
    pub received: u64,
    /// Signature checks.
    pub checks: u64,
    /// Batches that had no signature in time, so that another aggregator was asked.
    pub passed_on: u64,
    /// Messages that are none, or not for this member now.
    pub malformed: u64,
    /// Shares or signatures dropped because there were too many.
    pub dropped: u64,
    /// Bad shares, wrong signatures, and faults of dealers.
    pub faults: u64,
    /// Times that a member did not answer.
    pub failed: u64,
}

/// What it shows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuorumStatus {
    /// Phase of the share that this member has; 0: none.
    pub share_phase: u64,
    /// Who puts signatures together, as this member sees it.
    pub aggregator: Option<u32>,
    /// Members not asked as aggregators now, and whether because of a lie.
    pub passed_over: BTreeMap<u32, bool>,
    /// How unlikely the silence of each other member is, in thousandths of the accrual level: 1000 is one in ten.
    pub suspicion: BTreeMap<u32, u64>,
    /// Batches that wait for a signature.
    pub waiting: usize,
    /// What members were found to have done here, with the phase, oldest first.
    pub faults: Vec<(u64, Fault)>,
    /// What convinces others of it, of the first share of each member that did not verify in a phase: the newest.
    pub proofs: Vec<ShareProof>,
    /// Counters.
    pub counters: QuorumCounters,
}

/// How actuators get a proof of what the group decided. The same at all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// With the group's signature, which members put together.
    #[default]
    Aggregated,
    /// With shares of it, which they put together themselves. Members do so too, for what is sent again and later.
    SharesAtActuators,
    /// With signatures of enough members' own keys; members put the group's together as above.
    Endorsed,
}

/// Who this is.
pub struct Me {
    /// The domain.
    pub domain: Label,
    /// The member's number.
    pub id: u32,
    /// Its identity, which signs what it says in rounds of dealing, and endorsements.
    pub identity: KeyPair,
    /// What actuators get.
    pub way: Way,
}

/// What all parts share.
struct Common {
    me: Me,
    now_ms: u64,
    leader: Option<u32>,
    voters: BTreeSet<u32>,
    keys: Arc<GroupKeys>,
    /// Messages to this member itself.
    to_self: VecDeque<PeerMessage>,
    faults: VecDeque<(u64, Fault)>,
    /// See [`QuorumStatus::proofs`].
    proofs: VecDeque<ShareProof>,
    /// Faults to be told.
    found_out: Vec<SeenFault>,
    counters: QuorumCounters,
}

impl Common {
    fn leads(&self) -> bool {
        self.leader == Some(self.me.id)
    }

    fn tell(&mut self, to: u32, message: PeerMessage, out: &mut Vec<Output>) {
        if to == self.me.id {
            self.to_self.push_back(message);
        } else {
            out.push(Output::Tell { to, message });
        }
    }

    /// The order has a member's votes that exclude each other.
    fn contradicted(&mut self, votes: Box<Contradiction>, out: &mut Vec<Output>) {
        self.remember(Fault { member: votes.member, what: FaultKind::Equivocated });
        out.push(Output::Contradicted(votes));
    }

    /// A member was found out, with what convinces others of it, where there is such a thing.
    fn fault(&mut self, fault: Fault, proof: Option<BadShare>) {
        let phase = self.keys.phase();
        tracing::warn!(%fault, phase, proven = proof.is_some(), "misbehavior by a controller");
        let (member, what) = (fault.member, fault.what);
        let known = self.proofs.iter().any(|known| (known.phase, known.member) == (phase, member));
        if let Some(share) = proof.clone().filter(|_| !known) {
            if self.proofs.len() == PROOFS_MAX {
                self.proofs.pop_front();
            }
            self.proofs.push_back(ShareProof { phase, member, share });
        }
        self.found_out.push(SeenFault { phase, member, what, proof });
        self.remember(fault);
    }

    fn remember(&mut self, fault: Fault) {
        self.counters.faults += 1;
        if self.faults.len() == FAULTS_MAX {
            self.faults.pop_front();
        }
        self.faults.push_back((self.keys.phase(), fault));
    }
}

/// See the module.
pub struct Quorum {
    common: Common,
    shares: Shares,
    dealing: Dealing,
    liveness: Liveness,
}

impl Quorum {
    /// A member with what it has on disk.
    pub fn new(me: Me, kept: Kept, randomness: Box<RandomnessSource>) -> Quorum {
        let common = Common {
            me,
            now_ms: 0,
            leader: None,
            voters: BTreeSet::new(),
            keys: Arc::default(),
            to_self: VecDeque::new(),
            faults: VecDeque::new(),
            proofs: VecDeque::new(),
            found_out: Vec::new(),
            counters: QuorumCounters::default(),
        };
        Quorum {
            common,
            shares: Shares::default(),
            dealing: Dealing::new(kept, randomness),
            liveness: Liveness::default(),
        }
    }

    /// The next step.
    ///
    /// # Errors
    /// The disk's: nothing was said that rests on it, and the member must not go on.
    pub fn step(&mut self, input: Input, out: &mut Vec<Output>) -> std::io::Result<()> {
        let Quorum { common, shares, dealing, liveness } = self;
        match input {
            Input::Sign(header) => shares.decided(common, header, dealing.share(), out),
            Input::Keys(keys) => {
                common.keys = keys;
                dealing.keys_changed(common, out)?;
                shares.phase(common, dealing.share(), out);
            }
            Input::Group { leader, voters } => {
                let began = common.leader != leader && leader == Some(common.me.id);
                (common.leader, common.voters) = (leader, voters);
                if began {
                    shares.check_claims(common, dealing.share(), shares::CHECKED_MAX, out);
                }
                dealing.group_changed(common, out);
            }
            Input::Peer { from, bytes } => match decode::<PeerMessage>(&bytes) {
                Ok(message) => self.heard(from, message, out)?,
                Err(_) => common.counters.malformed += 1,
            },
            Input::Refresh => dealing.refresh(common, out),
            Input::Contradicted(votes) => common.contradicted(votes, out),
            Input::Tick { now_ms } => {
                common.now_ms = common.now_ms.max(now_ms);
                for failed in liveness.tick(common, out) {
                    shares.failed(failed);
                }
                shares.tick(common, dealing.share(), out);
                dealing.tick(common, out)?;
            }
        }
        while let Some(message) = self.common.to_self.pop_front() {
            let own = self.common.me.id;
            self.heard(own, message, out)?;
        }
        out.extend(self.common.found_out.drain(..).map(|fault| Output::FoundOut(Box::new(fault))));
        Ok(())
    }

    fn heard(&mut self, from: u32, message: PeerMessage, out: &mut Vec<Output>) -> std::io::Result<()> {
        let Quorum { common, shares, dealing, liveness } = self;
        shares.heard_of(from);
        liveness.heard_of(from);
        match message {
            PeerMessage::Identity { key, phase } => dealing.identity(common, from, (key, phase), out),
            PeerMessage::Deal(deal) if deal.dealer == from => dealing.dealt(common, *deal, out)?,
            PeerMessage::DealAck(ack) if ack.player == from => dealing.acked(common, &ack, out),
            PeerMessage::DealLog(log) if log.dealer == from => {
                if common.leads() {
                    out.push(Output::Propose(KeyStep::Log(*log)));
                }
            }
            PeerMessage::Share { phase, header, share, statement } if share.member == from => {
                shares.share(common, phase, header, (share, statement), out);
            }
            PeerMessage::Alive { ask } => Liveness::asked(common, from, ask, out),
            PeerMessage::Want { batch } => shares.want(common, from, batch, out),
            PeerMessage::Signature { batch, signature } => {
                shares.signature(common, (from, dealing.share()), (batch, signature), out);
            }
            PeerMessage::Deal(_)
            | PeerMessage::DealAck(_)
            | PeerMessage::DealLog(_)
            | PeerMessage::Share { .. } => common.counters.malformed += 1,
        }
        Ok(())
    }

    /// What it shows of itself.
    pub fn status(&self) -> QuorumStatus {
        let common = &self.common;
        QuorumStatus {
            share_phase: self.dealing.share().map_or(0, |(phase, _)| phase),
            aggregator: self.shares.aggregator(common),
            passed_over: self.shares.passed_over().clone(),
            suspicion: self.liveness.suspicion(common.now_ms),
            waiting: self.shares.waiting(),
            faults: common.faults.iter().cloned().collect(),
            proofs: common.proofs.iter().cloned().collect(),
            counters: common.counters,
        }
    }
}

/// Where a member's secret randomness comes from.
pub type RandomnessSource = dyn FnMut(&mut [u8]) + Send;
