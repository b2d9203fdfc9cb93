//! What an operator may set.

use std::time::Duration;

use weir_order::Error;
use weir_order::log::LogSettings;

/// How fast a group notices that its leader is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// Between two signs of life of the leader.
    pub heartbeat_ms: u64,
    /// The least silence after which a replica wants to lead.
    pub election_min_ms: u64,
    /// The most. It is the leader's lease too.
    pub election_max_ms: u64,
}

impl Timers {
    /// Replicas in one room: fail-over in about 300 ms.
    pub const LAN: Timers = Timers { heartbeat_ms: 20, election_min_ms: 80, election_max_ms: 160 };
    /// Replicas in different places.
    pub const WAN: Timers = Timers { heartbeat_ms: 100, election_min_ms: 500, election_max_ms: 1000 };

    /// The longest silence.
    pub fn election_max(&self) -> Duration {
        Duration::from_millis(self.election_max_ms)
    }
}

/// Settings of a replica.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This replica's number, from 1. It must never be given to another replica of the group.
    pub id: u64,
    /// The group's name; replicas of other groups are refused.
    pub group: String,
    /// When to elect.
    pub timers: Timers,
    /// The log's layout.
    pub log: LogSettings,
    /// Bytes of the newest entries that are kept in memory for replicas that are a little behind.
    pub cache_bytes_max: u64,
    /// Proposals that may be on their way.
    pub proposals_max: usize,
    /// Reads that may wait for a barrier.
    pub reads_max: usize,
    /// Barrier checks on their way at once; waiting reads share one.
    pub read_checks_max: usize,
    /// Allows reads by the leader's lease, which trusts that clocks run at about the same speed. A replica that starts then
    /// grants no vote for one lease.
    pub lease_reads: bool,
    /// Bytes in a chunk of a snapshot on its way.
    pub snapshot_chunk_bytes: usize,
    /// How fast a snapshot is sent, at most. 0 is without limit.
    pub snapshot_bytes_per_s: u64,
    /// Entries behind its leader up to which a learner may be promoted.
    pub promote_lag_max: u64,
    /// Whether a leader gives every learner that has caught up a vote by itself: where nobody is added who is not to have one.
    pub promotes: bool,
    /// Whether it waits with that until it is told which learners are spares, and are to have none ([`Replica::set_spares`](crate::Replica::set_spares)).
    pub awaits_spares: bool,
    /// After how many batches the application tells its digest, for replicas to compare (`Replica::report_digest`).
    /// The engine compares what it is told and does not count batches itself. 0: never.
    pub digest_every: u64,
}

impl Settings {
    /// The defaults for replica `id` of `group`.
    pub fn new(id: u64, group: &str) -> Settings {
        Settings {
            id,
            group: group.to_owned(),
            timers: Timers::LAN,
            log: LogSettings::default(),
            cache_bytes_max: 64 << 20,
            proposals_max: 1024,
            reads_max: 65_536,
            read_checks_max: 2,
            lease_reads: false,
            snapshot_chunk_bytes: 256 << 10,
            snapshot_bytes_per_s: 64 << 20,
            promote_lag_max: 1000,
            promotes: false,
            awaits_spares: false,
            digest_every: 0,
        }
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |name, value, right: &str| Err(Error::Setting { name, value, right: right.to_owned() });
        let timers = &self.timers;
        if self.id == 0 {
            return refuse("id", 0, "replicas are numbered from 1");
        }
        if timers.heartbeat_ms == 0 || timers.election_min_ms < 2 * timers.heartbeat_ms {
            return refuse(
                "election_min_ms",
                timers.election_min_ms,
                "at least twice the heartbeat, of 1 or more",
            );
        }
        if timers.election_max_ms <= timers.election_min_ms {
            return refuse("election_max_ms", timers.election_max_ms, "above election_min_ms");
        }
        if self.proposals_max == 0 || self.reads_max == 0 || self.read_checks_max == 0 {
            return refuse("proposals_max, reads_max or read_checks_max", 0, "at least 1");
        }
        if !(1024..=4 << 20).contains(&self.snapshot_chunk_bytes) {
            let value = self.snapshot_chunk_bytes as u64;
            return refuse("snapshot_chunk_bytes", value, "1024 to 4194304");
        }
        Ok(())
    }

    /// What openraft is told.
    pub(crate) fn config(&self) -> Result<openraft::Config, Error> {
        let timers = &self.timers;
        let config = openraft::Config {
            cluster_name: self.group.clone(),
            heartbeat_interval: timers.heartbeat_ms,
            election_timeout_min: timers.election_min_ms,
            election_timeout_max: timers.election_max_ms,
            enable_pre_vote: Some(true),
            // Safe only with a state machine that is durable at once, which ours is not.
            enable_leader_restore: Some(false),
            // Snapshots are made when the application gives its state; the purge keeps to the older of the two.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX / 2,
            // One chunk has its own time limit; the whole transfer may take as long as it makes progress.
            install_snapshot_timeout: 3_600_000,
            // How far a follower may be behind before it gets a snapshot although the log has what it lacks.
            replication_lag_threshold: u64::MAX / 2,
            backoff: format!("{}ms ...{}ms", timers.heartbeat_ms, timers.election_max_ms * 2),
            ..openraft::Config::default()
        };
        config.validate().map_err(|error| Error::Setting {
            name: "timers",
            value: timers.election_min_ms,
            right: error.to_string(),
        })
    }
}
