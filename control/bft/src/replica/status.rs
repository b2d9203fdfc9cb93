//! What a replica says of itself.

use std::collections::{BTreeMap, BTreeSet};

use weir_order::Position;

use crate::core::{CoreCounters, Seen as SeenMember};
use crate::members::Roster;

/// What a replica says of itself, beside [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// This replica.
    pub id: u32,
    /// The group's epoch.
    pub epoch: u64,
    /// The members of that epoch.
    pub roster: Roster,
    /// Whether this replica is one of them.
    pub member: bool,
    /// The highest view of consensus that this replica knows of.
    pub view: u64,
    /// The last committed block.
    pub height: u64,
    /// The last batch that the sink saw.
    pub applied: Position,
    /// What is known of the other members.
    pub others: BTreeMap<u32, SeenMember>,
    /// Members that this one has nothing to do with any more, because of what they sent; until it is started again.
    pub cut_off: BTreeSet<u32>,
    /// Why it serves nothing, when its state differs from that of the others.
    pub fenced: Option<String>,
    /// Why it takes nothing new, when its disk is full.
    pub full: Option<String>,
    /// Why it has stopped, when it could not go on.
    pub failure: Option<String>,
}

/// Counts of a replica since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCounters {
    /// Its core's counts.
    pub core: CoreCounters,
    /// Messages that are none.
    pub malformed: u64,
    /// Messages that were too large to send.
    pub unsendable: u64,
    /// Pairs of votes of one member that exclude each other.
    pub faults: u64,
    /// Barriers passed.
    pub reads: u64,
    /// Empty batches for them.
    pub read_checks: u64,
    /// Digests that agreed with those of 2f+1 members.
    pub digests_agreed: u64,
    /// Times that its state differed.
    pub divergences: u64,
    /// Times that it was repaired.
    pub repairs: u64,
    /// Wishes for a state that were not followed.
    pub wishes_refused: u64,
    /// Times that something to order came when nothing was, until all of it was committed.
    pub agreements: u64,
    /// Times that the votes of a member were not heard any more, because its turns to lead came to nothing.
    pub unheard: u64,
    /// Proposals refused because its disk was full.
    pub room_refusals: u64,
    /// Certificates of views far ahead that were left out while a finalization was waited for.
    pub far_certificates: u64,
    /// Processor time of the thread of consensus in them, nanoseconds: the rest of its time nobody waits for.
    pub agreement_cpu_ns: u64,
}
