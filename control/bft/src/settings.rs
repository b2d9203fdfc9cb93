//! What an operator may set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_order::log::LogSettings;
use weir_order::{BatcherSettings, Error};

use crate::members::Approval;
use crate::rules::{Admission, is_admissible};
use crate::wire::REFS_MAX;

/// How long replicas wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// How long a leader may hold a view when nothing is there to order; then it says so and the next one leads.
    pub idle: Duration,
    /// The same in a group that has had nothing to order for a while and rests: all other waits of consensus grow in step.
    pub rest: Duration,
    /// How long the others wait for a leader's proposal before they pass it by.
    pub leader: Duration,
    /// How long they wait for the proposal to be agreed on.
    pub certification: Duration,
    /// How long a leader may be silent, while the others are not, before its views are passed by without a wait.
    pub skip: Duration,
    /// How long a replica waits for an answer before it asks another.
    pub ask: Duration,
    /// After how long a proposal that is not ordered is told to the others again.
    pub patience: Duration,
}

impl Timers {
    /// Replicas in one room.
    pub const LAN: Timers = Timers {
        idle: Duration::from_millis(40),
        rest: Duration::from_secs(10),
        leader: Duration::from_millis(120),
        certification: Duration::from_millis(240),
        skip: Duration::from_millis(500),
        ask: Duration::from_millis(100),
        patience: Duration::from_millis(250),
    };
    /// Replicas in different places, or on machines that are busy with something else.
    pub const WAN: Timers = Timers {
        idle: Duration::from_millis(200),
        rest: Duration::from_secs(10),
        leader: Duration::from_millis(800),
        certification: Duration::from_millis(1600),
        skip: Duration::from_millis(4000),
        ask: Duration::from_millis(500),
        patience: Duration::from_millis(1000),
    };
}

/// What suits this engine in a batcher in front of it (row R9): a round takes several syncs on several machines, so it pays to wait a
/// little for those who are answered together.
pub fn batcher() -> BatcherSettings {
    BatcherSettings {
        linger_ns: 1_000_000,
        linger_above_operations: 3,
        in_flight_max: 4,
        ..BatcherSettings::default()
    }
}

/// Judges a batch; may look at this machine's clock, as votes need not be the same everywhere.
pub type Reasonable = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Settings of a replica.
#[derive(Clone)]
pub struct Settings {
    /// The group's name; votes and links of other groups are refused.
    pub group: String,
    /// How long to wait.
    pub timers: Timers,
    /// The journal's layout. `batch_bytes_max` bounds a proposal.
    pub log: LogSettings,
    /// Bytes of a segment of the log of votes: some thousands of views fit.
    pub votes_segment_bytes: u64,
    /// Batches in a block.
    pub block_batches_max: usize,
    /// Bytes of the batches in a block, unless one alone is larger.
    pub block_bytes_max: usize,
    /// Proposals of this replica whose fate may be open.
    pub proposals_max: usize,
    /// Batches of one other replica that are kept before they are ordered.
    pub held_batches_max: usize,
    /// Bytes of them.
    pub held_bytes_max: usize,
    /// What operations must be; without, anything that the proposer calls a batch.
    pub admission: Option<Admission>,
    /// Whether this replica, now, would have a batch ordered: it refuses by its vote what it would not. The empty batch, which
    /// only brings the order on, is never asked about.
    pub reasonable: Option<Reasonable>,
    /// After how many batches the application tells its digest (`Replica::report_digest`); 0: never.
    pub digest_every: u64,
    /// Bytes of a state that this replica would take over.
    pub state_bytes_max: u64,
    /// Whether a replica that is no member follows the members until it is one; else it says so and ends.
    pub follows: bool,
}

impl Settings {
    /// The defaults for a replica of `group`.
    pub fn new(group: &str) -> Settings {
        Settings {
            group: group.to_owned(),
            timers: Timers::LAN,
            log: LogSettings { batch_bytes_max: 1 << 20, ..LogSettings::default() },
            votes_segment_bytes: 4 << 20,
            block_batches_max: 128,
            block_bytes_max: 1 << 20,
            proposals_max: 1024,
            held_batches_max: 1024,
            held_bytes_max: 32 << 20,
            admission: None,
            reasonable: None,
            digest_every: 0,
            state_bytes_max: 16 << 30,
            follows: false,
        }
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |name, value, right: &str| Err(Error::Setting { name, value, right: right.to_owned() });
        let timers = &self.timers;
        let ms = |duration: Duration| duration.as_millis() as u64;
        if self.group.is_empty() || self.group.len() > 256 {
            return refuse("group", self.group.len() as u64, "a name of 1 to 256 bytes");
        }
        if timers.idle.is_zero() || timers.leader < 2 * timers.idle {
            return refuse("leader", ms(timers.leader), "at least twice idle, of 1 ms or more");
        }
        if timers.rest < timers.idle || timers.rest > Duration::from_secs(60) {
            return refuse("rest", ms(timers.rest), "idle to 60000 ms");
        }
        if timers.certification <= timers.leader || timers.skip <= timers.certification {
            return refuse("skip", ms(timers.skip), "leader < certification < skip");
        }
        if timers.ask.is_zero() || timers.patience.is_zero() {
            return refuse("ask or patience", 0, "1 ms or more");
        }
        if !(1..=REFS_MAX).contains(&self.block_batches_max) {
            return refuse("block_batches_max", self.block_batches_max as u64, "1 to 256");
        }
        if self.log.batch_bytes_max < 64 << 10 || self.log.batch_bytes_max > 16 << 20 {
            return refuse("batch_bytes_max", self.log.batch_bytes_max, "65536 to 16777216");
        }
        if self.block_bytes_max > 16 << 20 {
            return refuse("block_bytes_max", self.block_bytes_max as u64, "at most 16777216");
        }
        if self.proposals_max == 0 || self.held_batches_max == 0 || self.held_bytes_max == 0 {
            return refuse("proposals_max, held_batches_max or held_bytes_max", 0, "at least 1");
        }
        Ok(())
    }

    /// Whether a batch is one that this replica votes for.
    pub fn is_admissible(&self, body: &Bytes) -> bool {
        if Approval::is_one(body) {
            // Whether it can be is judged where it stands.
            return Approval::decode(body.clone()).is_ok();
        }
        is_admissible(self.admission.as_ref(), body)
            && (body.is_empty() || self.reasonable.as_ref().is_none_or(|judge| judge(body)))
    }

    /// Bytes of a proposal, at most: what a record of the journal takes beside it does not count.
    pub fn proposal_bytes_max(&self) -> u64 {
        self.log.batch_bytes_max - (32 << 10)
    }
}
