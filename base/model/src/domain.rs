//! Domains: what one group of controllers tells another (row C6; decision 0028).
//!
//! A domain is a set of hosts and gateways under one group with one order and one key. Two domains that know each other forward
//! what concerns the other as *statements*. A statement is an [`crate::Update`] whose target is the other domain and whose key is
//! [`crate::Key::Statement`]: so it is decided in the order of its origin, under the root of a decided batch, and carries the
//! signature of the origin's group like what a switch gets.
//!
//! Statements of one domain to another are numbered without gaps: each names the one before it. The receiver takes each in turn and
//! once, whoever of the origin's controllers hands it over, and whoever of its own orders it.
//!
//! Here are only shapes. The origin decides what it tells in `weir_apps::fabric::domains`, which is also where a receiver decides
//! what it believes.

use crate::signed::{GroupKey, Signature, SignedUpdates};
use crate::{Entry, Label, Update};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use crate::statement::{DomainController, Statement, StatementBody};

/// Most other domains that a domain knows.
pub const DOMAINS_MAX: usize = 64;
/// Most prefixes of hosts' addresses of one domain.
pub const UNDERLAYS_MAX: usize = 64;
/// Most statements of one forwarded event.
pub const STATEMENTS_MAX: usize = 1_024;
/// Most batches that the statements of one forwarded event are of: each costs the check of a group's signature.
pub const BATCHES_MAX: usize = 8;
/// Highest number of a statement: whatever somebody says, there is room behind it.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Longest authority's certificate, bytes of PEM.
pub const AUTHORITY_BYTES_MAX: usize = 8 * 1024;
/// How old what a controller asked may be when it counts as its word, milliseconds.
pub const WORD_AGE_MAX_MS: u64 = 300_000;

/// A domain, as another one is told of it by its operator: the root of all trust in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainRecord {
    /// Its name.
    pub name: Label,
    /// Its group's public key. It stays the same when controllers come and go.
    pub group_key: GroupKey,
    /// Certificate of the authority that its controllers' certificates are of, PEM.
    pub authority_pem: String,
    /// Its controllers, as they were then.
    pub controllers: Vec<DomainController>,
    /// Where its hosts are, as the receiver grants it: it may tell of no other addresses on the underlay.
    pub underlays: Vec<IpNet>,
}

/// A controller of one domain asks another domain for its statements. What it has taken is its word that its domain has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Who asks: its domain.
    pub domain: Label,
    /// The number of the controller in it.
    pub controller: u64,
    /// Who is asked.
    pub of: Label,
    /// The last statement that was ordered here.
    pub through: u64,
    /// What follows cannot be taken: everything is wanted anew.
    pub begin: bool,
    /// The asker's time, milliseconds of the Unix epoch.
    pub now_ms: u64,
}

/// A [`Fetch`] with its controller's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedFetch {
    /// What is asked.
    pub fetch: Fetch,
    /// The controller's signature over it.
    pub signature: Signature,
}

/// A [`SignedFetch`] on its way to a controller of another domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// What is asked.
    pub signed: SignedFetch,
    /// How long the answer may wait for something to tell, milliseconds; 0: nothing is wanted, for this is only a word of how far
    /// the asker's domain is.
    pub wait_ms: u64,
}

/// What an order carries about other domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DomainEvent {
    /// An operator makes another domain known, or known by other addresses.
    Known(DomainRecord),
    /// An operator lets a domain be unknown: what it told is void.
    Forgotten {
        /// Its name.
        domain: Label,
    },
    /// A controller says who the controllers of its own domain are.
    Controllers(Vec<DomainController>),
    /// Statements of another domain.
    Forwarded {
        /// Whose.
        origin: Label,
        /// Under the origin's signatures, in order.
        statements: Vec<SignedUpdates>,
    },
    /// Controllers of another domain say how far it is: more of them than may lie.
    Heard {
        /// The domain.
        domain: Label,
        /// It has taken all statements up to this one.
        through: u64,
        /// It wants everything anew.
        begin: bool,
        /// Their words.
        words: Vec<SignedFetch>,
    },
}

/// The statement in an update, with its number and for whom it is.
pub fn statement_of(update: &Update) -> Option<(&Label, u64, &Statement)> {
    match (&update.key, &update.change) {
        (crate::Key::Statement { to, sequence }, crate::Change::Put(Entry::Statement(statement)))
            if *to == update.target =>
        {
            Some((to, *sequence, statement))
        }
        _ => None,
    }
}

/// Of how many controllers one at least tells the truth, where fewer than a third may lie.
pub fn honest_among(controllers: usize) -> usize {
    controllers.saturating_sub(1) / 3 + 1
}
