//! What the loop tells the rest: fixed-size notes, so that telling costs no allocation.

use crate::kernel::Comm;
use crate::query::Value;
use crate::restart::Next;

/// Most processes that a note lists by number.
pub const LISTED_MAX: usize = 32;

/// Why an alarm was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// So many living processes were born in the window.
    Living {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// So many processes were forked in the window.
    Forks {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// So many more lived than there were at some time of a long window.
    Growth {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// A chain of young processes was so long.
    Depth {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// A process had so many living children.
    Breadth {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// So many bytes were used.
    MemoryUsed {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// So many bytes were left.
    MemoryLeft {
        /// Found.
        found: u64,
        /// Needed.
        limit: u64,
    },
    /// A counter stood still for so many nanoseconds.
    Silent {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
    /// A guest's kernel has panicked.
    Panic,
    /// A guest had so many tasks.
    Tasks {
        /// Found.
        found: u64,
        /// Allowed.
        limit: u64,
    },
}

impl Reason {
    /// What was measured: name, found, limit.
    pub fn parts(self) -> (&'static str, u64, u64) {
        match self {
            Reason::Living { found, limit } => ("living", found, limit),
            Reason::Forks { found, limit } => ("forks", found, limit),
            Reason::Growth { found, limit } => ("growth", found, limit),
            Reason::Depth { found, limit } => ("depth", found, limit),
            Reason::Breadth { found, limit } => ("breadth", found, limit),
            Reason::MemoryUsed { found, limit } => ("memory-used-bytes", found, limit),
            Reason::MemoryLeft { found, limit } => ("memory-left-bytes", found, limit),
            Reason::Silent { found, limit } => ("silent-ns", found, limit),
            Reason::Panic => ("panic", 1, 1),
            Reason::Tasks { found, limit } => ("tasks", found, limit),
        }
    }
}

/// A process that is named in a note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspect {
    /// Its number; 0 if there is none.
    pub process: u32,
    /// Its program.
    pub comm: Comm,
    /// Its user.
    pub user: u32,
    /// Whether it lived at that time; a joint that had ended stands for its tree.
    pub alive: bool,
}

/// What came of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was only reported: by a dry run, or by the action `report`.
    Reported,
    /// It was acted on.
    Acted,
    /// Nobody could be blamed: whoever is behind it is protected, or no process holds half of it.
    NobodyToBlame,
    /// The cgroup cannot do what the action needs.
    Unable,
}

impl Outcome {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Reported => "reported",
            Outcome::Acted => "acted",
            Outcome::NobodyToBlame => "nobody-to-blame",
            Outcome::Unable => "unable",
        }
    }
}

/// An alarm and what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Which policy, in the order of the files.
    pub policy: usize,
    /// When the limit was seen to be passed, ns.
    pub time_ns: u64,
    /// When the oldest process of the culprit's tree was forked, ns; 0 if that is not known.
    pub first_ns: u64,
    /// Why.
    pub reason: Reason,
    /// Who is behind it.
    pub culprit: Suspect,
    /// Who forked the culprit.
    pub parent: Suspect,
    /// Weight of the culprit's tree: processes, or resident pages.
    pub weight: u64,
    /// Living processes of the culprit's tree in the scope.
    pub members: u32,
    /// Of these, protected ones.
    pub spared: u32,
    /// Of these, processes that a signal was sent to.
    pub signalled: u32,
    /// The first of the processes that were or would be killed.
    pub listed: [u32; LISTED_MAX],
    /// What came of it.
    pub outcome: Outcome,
    /// Whether it was frozen meanwhile.
    pub frozen: bool,
    /// From seeing it to having it frozen, ns.
    pub freeze_ns: u64,
    /// From seeing it to the last signal and the thaw, ns.
    pub act_ns: u64,
}

/// An alarm about a guest and what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestIncident {
    /// Which policy, in the order of the files.
    pub policy: usize,
    /// Why.
    pub reason: Reason,
    /// The program with the most tasks, where tasks were counted.
    pub comm: Comm,
    /// The process whose tree holds half of them; 0 if there is none.
    pub process: u32,
    /// Whether it was fenced; nothing if that was not tried.
    pub fenced: Option<bool>,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether the program of the fail-over succeeded; nothing if there is none.
    pub failed_over: Option<bool>,
    /// From the alarm to the fence, ns.
    pub fence_ns: u64,
    /// From the alarm to the end of it all, ns.
    pub act_ns: u64,
}

/// The end of a process of a service, by a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Which policy, in the order of the files.
    pub policy: usize,
    /// Who.
    pub process: Suspect,
    /// How, as `wait` tells; nothing if events were lost and nobody saw it.
    pub status: Option<u32>,
    /// Whether it was the main process: the service is down.
    pub main: bool,
    /// From its fork to its end, ns; nothing if it was there before the monitor.
    pub lived_ns: Option<u64>,
    /// Crashes of other processes of the service that were not told each.
    pub more: u64,
    /// What comes next.
    pub next: Next,
}

/// Why a service did not come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotUp {
    /// The command could not be run.
    NotRun,
    /// The command ended so, as `wait` tells.
    Command(u32),
    /// No main process was seen in time.
    Late,
}

/// What the loop tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Note {
    /// A process of a service crashed.
    Crashed(Crash),
    /// A service that was started again is up.
    Restarted {
        /// Which policy.
        policy: usize,
        /// The attempt, counted from 1.
        attempt: u32,
        /// From the command to the main process, ns.
        took_ns: u64,
        /// The main process.
        process: u32,
    },
    /// A service that was started again is not up.
    NotRestarted {
        /// Which policy.
        policy: usize,
        /// The attempt.
        attempt: u32,
        /// Why.
        why: NotUp,
        /// What comes next.
        next: Next,
    },
    /// An alarm.
    Incident(Incident),
    /// The culprit's tree of the newest incident of a policy is gone.
    Settled {
        /// Which policy.
        policy: usize,
        /// From seeing it to the end of its last process, ns.
        took_ns: u64,
        /// Processes that were signalled again because they were born meanwhile.
        again: u32,
    },
    /// It is not gone after the time that the monitor follows it.
    Unsettled {
        /// Which policy.
        policy: usize,
        /// Processes that still live.
        left: u32,
    },
    /// A counter that stood still moves again.
    Recovered {
        /// Which policy.
        policy: usize,
    },
    /// A host of the ring failed.
    HostFailed {
        /// Which, in the order of the names.
        host: u16,
        /// Whether it was fenced; nothing if there is no program that fences.
        fenced: Option<bool>,
    },
    /// A host of the ring that had failed answers again.
    HostRecovered {
        /// Which, in the order of the names.
        host: u16,
    },
    /// A query fired.
    Query {
        /// Which query, in the order of the file.
        query: usize,
        /// Its value.
        value: Value,
    },
    /// Events of the kernel were lost, and the tree was compared with `/proc`.
    Resynced {
        /// Events lost, as far as is known.
        lost: u64,
    },
    /// A guest hangs, or has too many tasks.
    Guest(GuestIncident),
}
