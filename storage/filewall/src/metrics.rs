//! Counters: by operation, by principal and by policy; and what they look like to people. What Prometheus gets is in [`exposition`].
//!
//! Counters are atomics that sessions add to without a lock; a reader may see one call counted in one place and not yet in
//! another.

mod exposition;

use crate::wire::nfs3::{OPS, Op};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of latency classes: class `n` counts what took less than `2^n` µs, the last one everything longer.
pub const CLASSES: usize = 24;

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Counters by operation.
#[derive(Debug, Default)]
struct ByOp {
    calls: [AtomicU64; OPS],
    denied: [AtomicU64; OPS],
    replies: [AtomicU64; OPS],
    latency_us: [AtomicU64; OPS],
}

impl ByOp {
    fn reply(&self, op: Op, latency_us: u64) {
        add(&self.replies[op.index()], 1);
        add(&self.latency_us[op.index()], latency_us);
    }

    /// The name and the counters of each operation that was called.
    fn rows(&self) -> impl Iterator<Item = (Op, OpRow)> {
        let row = |op: &Op| {
            let at = op.index();
            let row = OpRow {
                calls: get(&self.calls[at]),
                denied: get(&self.denied[at]),
                replies: get(&self.replies[at]),
                latency_us: get(&self.latency_us[at]),
            };
            (*op, row)
        };
        Op::ALL.iter().map(row).filter(|(_, row)| row.calls + row.denied > 0)
    }
}

/// What one principal has done, by operation.
#[derive(Debug, Default)]
pub struct Usage {
    by_op: ByOp,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Usage {
    /// A call has come (the paper's `reqstats`).
    pub fn call(&self, op: Op) {
        add(&self.by_op.calls[op.index()], 1);
    }

    /// A call was answered by a policy.
    pub fn denied(&self, op: Op) {
        add(&self.by_op.denied[op.index()], 1);
    }

    /// A reply has come (the paper's `rspstats`).
    pub fn reply(&self, op: Op, latency_us: u64, bytes: u64) {
        self.by_op.reply(op, latency_us);
        match op {
            Op::Read => add(&self.read_bytes, bytes),
            Op::Write => add(&self.written_bytes, bytes),
            _ => {}
        }
    }

    /// The counters of the operations that were called.
    pub fn snapshot(&self) -> UsageRow {
        UsageRow {
            ops: self.by_op.rows().map(|(op, row)| (op.name().to_string(), row)).collect(),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
        }
    }
}

/// Counters of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRow {
    /// Calls.
    pub calls: u64,
    /// Calls that a policy answered.
    pub denied: u64,
    /// Replies of the server.
    pub replies: u64,
    /// Sum of the times from call to reply, µs.
    pub latency_us: u64,
}

/// Counters of one principal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// By operation.
    pub ops: BTreeMap<String, OpRow>,
    /// Data read, bytes.
    pub read_bytes: u64,
    /// Data written, bytes.
    pub written_bytes: u64,
}

/// What one policy has done.
#[derive(Debug, Default)]
pub struct PolicyCounters {
    /// Calls seen.
    pub seen: AtomicU64,
    /// Calls answered in place of the server.
    pub answered: AtomicU64,
    /// Calls delayed.
    pub delayed: AtomicU64,
}

/// What a policy has done, to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Calls seen.
    pub seen: u64,
    /// Calls answered in place of the server.
    pub answered: u64,
    /// Calls delayed.
    pub delayed: u64,
    /// What else it tells.
    pub details: BTreeMap<String, u64>,
}

macro_rules! totals {
    ($(#[doc = $doc:literal] $name:ident,)*) => {
        /// Names of what [`TotalsRow::counters`] has, and what each is.
        const TOTALS: &[(&str, &str)] = &[$((stringify!($name), $doc),)*];

        /// Counters of the whole process.
        #[derive(Debug, Default)]
        pub struct Totals {
            $(#[doc = $doc] pub $name: AtomicU64,)*
            by_op: ByOp,
            classes: [[AtomicU64; CLASSES]; OPS],
        }

        impl Totals {
            fn plain(&self) -> BTreeMap<String, u64> {
                [$((stringify!($name).to_string(), get(&self.$name)),)*].into()
            }
        }
    };
}

totals! {
    /// Sessions begun, TCP and UDP.
    sessions_total,
    /// Sessions now.
    sessions,
    /// Connections refused because there were too many sessions.
    sessions_refused_total,
    /// Sessions from which no call had come, ended so that others could begin.
    sessions_displaced_total,
    /// Sessions ended because no call had come from them in time.
    sessions_silent_total,
    /// Calls pending now.
    pending,
    /// Calls whose reply did not come in time.
    timeouts_total,
    /// Replies that nobody waited for any more.
    late_replies_total,
    /// Copies of a call that was still pending.
    retransmissions_total,
    /// Calls answered from memory because they had been carried out before.
    replayed_total,
    /// Copies of calls of which it was found out that they had been carried out before.
    settled_total,
    /// Reloads after which a kind of policy that protects something was in force no more.
    policy_kinds_lost_total,
    /// Calls, and operations of COMPOUNDs, with a name that is none.
    misnamed_total,
    /// Calls that could not be decoded.
    bad_calls_total,
    /// Replies of the server that could not be decoded.
    bad_replies_total,
    /// Sessions ended because a record was too long or had too many fragments.
    bad_records_total,
    /// COMPOUNDs of NFSv4.
    compounds_total,
    /// COMPOUNDs that were cut at an operation that is denied or not served.
    compounds_cut_total,
    /// COMPOUNDs of NFSv4.1 refused because another one had their place in the session.
    false_retries_total,
    /// Operations of NFSv4.1 refused because the session or the client's number is another address's.
    foreign_sessions_total,
    /// COMPOUNDs refused because a policy cannot do with them what it does with calls of NFSv3.
    nfs4_refused_total,
    /// WRITEs that were set aside so that others could go first.
    set_aside_total,
    /// WRITEs that were set aside for as long as the policy lets them be.
    set_aside_expired_total,
    /// Calls that went before a WRITE that had come first.
    overtaken_total,
    /// Files of control folders that were open over NFSv4 and forgotten because there were too many.
    control_opens_forgotten_total,
    /// Calls of programs and versions that are not served.
    unserved_total,
    /// Calls with credentials that are not taken.
    credentials_refused_total,
    /// Connections to the server that were lost.
    server_lost_total,
    /// Attempts to connect to the server that failed.
    server_unreachable_total,
    /// READDIRPLUS replies cut because handles made them longer.
    listings_cut_total,
    /// Times a session stopped reading because its client or server was slow or its pending map full.
    stalls_total,
    /// Mounts granted.
    mounts_total,
    /// Mounts refused.
    mounts_refused_total,
    /// Policy files put in force.
    policy_loads_total,
    /// Policy files refused.
    policy_refusals_total,
}

impl Totals {
    /// Counts one up.
    pub fn count(counter: &AtomicU64) {
        add(counter, 1);
    }

    /// A gauge goes down.
    pub fn down(counter: &AtomicU64, by: u64) {
        counter.fetch_sub(by, Ordering::Relaxed);
    }

    /// A call has come.
    pub fn call(&self, op: Op) {
        add(&self.by_op.calls[op.index()], 1);
    }

    /// A policy has answered a call.
    pub fn denied(&self, op: Op) {
        add(&self.by_op.denied[op.index()], 1);
    }

    /// A reply has come.
    pub fn reply(&self, op: Op, latency_us: u64) {
        self.by_op.reply(op, latency_us);
        let class = usize::try_from(u64::BITS - latency_us.leading_zeros()).unwrap_or(0).min(CLASSES - 1);
        add(&self.classes[op.index()][class], 1);
    }

    /// Everything, to be shown.
    pub fn snapshot(&self) -> TotalsRow {
        let classes = |op: Op| self.classes[op.index()].iter().map(get).collect();
        let row = |(op, row): (Op, OpRow)| (op.name().to_string(), OpTotals { row, classes: classes(op) });
        TotalsRow { counters: self.plain(), ops: self.by_op.rows().map(row).collect() }
    }
}

/// Counters of one operation over all principals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpTotals {
    /// Sums.
    pub row: OpRow,
    /// Replies by latency class.
    pub classes: Vec<u64>,
}

impl OpTotals {
    /// The upper bound of the class in which the `share` (0 to 1) of replies lies, µs.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let all: u64 = self.classes.iter().sum();
        let mut left = (all as f64 * share).ceil() as u64;
        for (class, count) in self.classes.iter().enumerate() {
            left = left.saturating_sub(*count);
            if left == 0 {
                return 1 << class;
            }
        }
        0
    }
}

/// Counters of the whole process, to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsRow {
    /// By name.
    pub counters: BTreeMap<String, u64>,
    /// By operation.
    pub ops: BTreeMap<String, OpTotals>,
}

/// A principal, to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalRow {
    /// Address of the machine.
    pub client: String,
    /// Name or number of the user.
    pub user: String,
    /// Roles.
    pub roles: Vec<String>,
    /// What it has done.
    pub usage: UsageRow,
}

/// Everything that `weir filewall top` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the policy chain in force: 1 for the first since the start.
    pub policy_epoch: u64,
    /// Version of the controllers' order that they come from; 0 for files that a person has put there.
    #[serde(default)]
    pub policy_order: u64,
    /// Why the newest policy files are not in force, if they are not.
    pub policy_error: Option<String>,
    /// Replicas, where there are several servers, and whether they are live.
    #[serde(default)]
    pub replicas: Vec<(String, bool)>,
    /// Why replicas are behind, by server.
    #[serde(default)]
    pub replicas_behind: BTreeMap<String, String>,
    /// Handles whose place is known.
    pub places: usize,
    /// Policies in the order of requests.
    pub policies: Vec<PolicyRow>,
    /// Principals.
    pub principals: Vec<PrincipalRow>,
    /// Sums.
    pub totals: TotalsRow,
}

#[cfg(test)]
mod tests;
