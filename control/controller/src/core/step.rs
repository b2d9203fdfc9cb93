//! What the core is made with, what happens to it, and what its driver must do.

use super::admission::{SourceKeys, Unauthentic, UnauthenticCounters};
use super::batch::Item;
use super::feed::CommittedChange;
use super::header::{BatchName, DecidedHeader};
use super::scheduler::SchedulerSettings;
use std::sync::Arc;
use weir_model::event::{SignedEvent, SourceId};
use weir_model::session::StateDigest;
use weir_model::signed::{GroupSignature, ProvenUpdate, SignedAcks, SignedUpdates, UnsignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Key, Label, Version};
use weir_store::Rejection;
use weir_trust::batch::GroupSigner;

/// How decided batches are signed.
pub enum Signer {
    /// With one key, at once.
    Key(Box<dyn GroupSigner + Send>),
    /// By enough members of the group, elsewhere and later.
    Shares,
    /// The same; in a domain that was converted, by this key until the group has its own.
    SharesAfter(Box<dyn GroupSigner + Send>),
}

impl<S: GroupSigner + Send + 'static> From<Box<S>> for Signer {
    fn from(signer: Box<S>) -> Signer {
        Signer::Key(signer)
    }
}

/// What the core is made with.
pub struct CoreSettings {
    /// The domain.
    pub domain: Label,
    /// Epoch of the group, when there is no snapshot that says it.
    pub epoch: u64,
    /// Under which name this controller sends events of its own.
    pub source: SourceId,
    /// Keys of the sources that need not join: this controller and the others of its group. The same on every
    /// replica.
    pub keys: SourceKeys,
    /// Whether one controller's word about another one is enough: none of them lies.
    pub believes_one: bool,
    /// The scheduler.
    pub scheduler: SchedulerSettings,
}

/// What happens to the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// The order committed a batch.
    Ordered(Vec<Item>),
    /// An actuator opened a session.
    Connected {
        /// Its name.
        actuator: Label,
        /// Number of the session, never used twice in the core's life.
        session: u64,
        /// What is in force there.
        digest: StateDigest,
    },
    /// A session is over.
    Disconnected {
        /// The actuator.
        actuator: Label,
        /// Number of the session.
        session: u64,
    },
    /// Part of an actuator's state, asked for by [`Output::AskState`].
    State {
        /// The actuator.
        actuator: Label,
        /// Number of the session.
        session: u64,
        /// Keys and versions, tombstones included.
        entries: Vec<(Key, Version)>,
        /// Whether it is the last part.
        last: bool,
    },
    /// A plane's process at an actuator came or went, while a session lasts.
    Plane {
        /// The actuator.
        actuator: Label,
        /// Number of the session.
        session: u64,
        /// The plane.
        plane: Label,
        /// Keys and versions there, tombstones included; none when the process is away.
        entries: Option<Vec<(Key, Version)>>,
        /// Whether it is the last part.
        last: bool,
    },
    /// Acks came on a session.
    Acks {
        /// Number of the session.
        session: u64,
        /// The acks.
        acks: SignedAcks,
    },
    /// The group's signature over a batch, verified.
    Signed {
        /// Which batch.
        batch: BatchName,
        /// The signature.
        signature: GroupSignature,
    },
    /// This replica of a group begins or ceases to lead. It begins after it decided all that was ordered.
    Lead(bool),
    /// Time passed, on any clock that does not go back.
    Tick {
        /// Its milliseconds.
        now_ms: u64,
    },
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// An event was decided: answer who proposed it.
    Decided {
        /// The event.
        event: Box<SignedEvent>,
        /// How it ended.
        outcome: Outcome,
    },
    /// Keys of an actuator were decided anew.
    Repaired {
        /// The actuator.
        target: Label,
        /// At which version.
        version: Version,
        /// How many.
        keys: u64,
    },
    /// Updates of a batch were decided, those under one root, in its order. The header may have no signature yet.
    Prepared {
        /// What is signed.
        header: Arc<DecidedHeader>,
        /// The updates.
        updates: Vec<Arc<ProvenUpdate>>,
    },
    /// Acks came with the signature of their actuator.
    Acked(Box<SignedAcks>),
    /// Acks came in a session, and are not their actuator's.
    Forged {
        /// In whose session.
        actuator: Label,
        /// Why they do not count.
        reason: Unauthentic,
        /// How many such frames came of this actuator.
        count: u64,
    },
    /// The store changed.
    Committed(Arc<CommittedChange>),
    /// Send updates.
    Send {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// The updates.
        updates: SignedUpdates,
    },
    /// Send updates that the actuator applies when shares of their batch's signature have come.
    SendUnsigned {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// The updates.
        updates: UnsignedUpdates,
    },
    /// Ask for the state.
    AskState {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
    },
    /// Close a session; the core has forgotten it.
    Close {
        /// The actuator.
        target: Label,
        /// Number of the session.
        session: u64,
        /// Why, for the peer and the log.
        reason: String,
    },
    /// Propose [`Item::Repair`].
    Repair {
        /// The actuator.
        target: Label,
        /// Keys with the versions found there.
        found: Vec<(Key, Version)>,
    },
    /// Propose [`EventBody::Refused`](weir_model::event::EventBody::Refused) as an event of this controller.
    Refused {
        /// The actuator.
        target: Label,
        /// The key.
        key: Key,
        /// The version that it refused.
        version: Version,
        /// Why.
        refusal: Refusal,
    },
    /// Operations of a client were applied: answer who proposed them.
    Applied {
        /// Which process proposed them.
        origin: u64,
        /// Under which number they wait there.
        ticket: u64,
        /// One for each request.
        outcomes: Vec<weir_store::Outcome>,
    },
    /// All updates of a version are acked.
    Finished(Version),
    /// The group must sign this; answered by [`Input::Signed`].
    Sign(Arc<DecidedHeader>),
    /// The group's threshold key went a step further: see [`Core::group_keys`](super::Core::group_keys).
    KeysChanged,
}

/// How an event ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was decided at this version.
    Committed(Version),
    /// It had been decided before, at this version.
    Duplicate(Version),
    /// Its number is so old that nobody knows whether it was decided; it was not decided now.
    TooOld,
    /// The apps rejected it; nothing changed.
    Rejected(Rejection),
    /// It is not its source's; nothing changed.
    Unauthentic(Unauthentic),
}

/// What the core counted since it began (a replay counts too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Batches of the order.
    pub batches: u64,
    /// Events decided.
    pub committed: u64,
    /// Operations of clients of the store.
    pub operations: u64,
    /// Events seen before.
    pub duplicates: u64,
    /// Events rejected.
    pub rejected: u64,
    /// Events that are not their source's.
    pub unauthentic: UnauthenticCounters,
    /// Requests of operators decided.
    pub requests: u64,
    /// Requests that had been decided, handed on again.
    pub requests_again: u64,
    /// Batches signed.
    pub signatures: u64,
    /// Updates replaced by a later one of the same batch before they were signed.
    pub merged: u64,
    /// Updates that repaired an actuator.
    pub repairs: u64,
    /// Dependencies on a later version or in a circle, which no order can satisfy; they are dropped.
    pub dependencies_invalid: u64,
    /// Ack frames whose signature does not verify.
    pub acks_forged: u64,
    /// Ack frames of actuators that were revoked.
    pub acks_revoked: u64,
    /// What stood behind the entry that ended the order, and was not carried out.
    pub behind_the_end: u64,
}
