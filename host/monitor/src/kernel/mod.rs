//! What the kernel tells: processes that fork, exec and exit, victims of the out-of-memory killer, and, where it is asked for, how
//! often each processor has switched between tasks (Bohra, 3.5.2: the sensors `NPROCS`, `FORK_REC`, `OOM_RUNNING`; 3.7.1: the
//! counter of context switches; row O).
//!
//! Two ways, of which [`Kernel::open`] takes the first that works and says why when it is not the best:
//! 1. [`bpf`]: programs in the kernel write into a mapped sensor box; reading costs no system call.
//! 2. [`connector`]: the kernel's process connector, a socket. Degraded: a system call for each event, no cgroups (a child
//!    is taken to be in that of its parent, and the policies' own cgroups are asked who is in them), no names of new
//!    programs, no victims.
//!
//! Either is preceded by a look at [`proc`], which gives the processes that are there already, and which also mends what
//! was lost.

pub mod bpf;
pub mod connector;
pub mod proc;

use crate::error::Result;
use weir_sensor::{Fetched, Record, Shape, View};

/// Slots of the kernel's box, as in `bpf/shape.h`.
pub const SENSORS: u64 = 128;
/// Records of the kernel's box, as in `bpf/shape.h`.
pub const RECORDS: u64 = 16_384;
/// Slots of the repair hook, as in `bpf/shape.h`.
pub const HOOK_CGROUPS: usize = 8;

/// Numbers that a process may have, as in `bpf/shape.h`.
pub const DOOM_PROCESSES: usize = 1 << 22;

/// The sensors of the kernel's box: name, whether it is an event; in the order of their slots.
pub const SENSOR_NAMES: [(&str, bool); 5] =
    [("fork", true), ("exec", true), ("exit", true), ("victim", true), ("threads", false)];

/// The name of the kernel's box, which only policies and queries of this monitor can read.
pub const BOX: &str = "kernel";
/// How the sensors of the processors' switches begin; the number of the processor follows.
pub const SWITCHES: &str = "switches-";
/// Slot of the first processor's, as in `bpf/shape.h`.
pub const SWITCHES_AT: usize = SENSOR_NAMES.len();
/// Processors whose switches are counted.
pub const PROCESSORS_MAX: usize = SENSORS as usize - SWITCHES_AT;

/// What is attached only where it is asked for: each costs something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// The repair hook: some nanoseconds for each system call.
    pub hook: bool,
    /// The switches of each processor: some tens of nanoseconds for each.
    pub switches: bool,
}

/// The name of a program, zero-padded, as the kernel keeps it.
pub type Comm = [u8; 16];

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A process made another.
    Fork {
        /// The process that forked.
        parent: u32,
    },
    /// A process became another program.
    Exec,
    /// A process ended.
    Exit {
        /// How, as `wait` tells its parent: the signal, 128 more if it left a core, or 256 times the exit code.
        status: u32,
    },
    /// The out-of-memory killer chose a process.
    Victim,
}

/// An event of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, ns of the monotonic clock.
    pub time_ns: u64,
    /// What happened.
    pub what: What,
    /// The process: the child of a fork.
    pub process: u32,
    /// The user; 0 where it is not known.
    pub user: u32,
    /// The cgroup (version 2) of the process that acted; 0 where it is not known.
    pub cgroup: u64,
    /// The program; empty where it is not known.
    pub comm: Comm,
}

impl Event {
    /// Decodes a record of the kernel's box. Nothing for a sensor that is not known.
    pub fn decode(record: &Record) -> Option<Event> {
        let [pids, user, cgroup, comm_low, comm_high] = record.words;
        let what = match record.sensor {
            0 => What::Fork { parent: pids as u32 },
            1 => What::Exec,
            2 => What::Exit { status: pids as u32 },
            3 => What::Victim,
            _ => return None,
        };
        let mut comm = [0; 16];
        comm[..8].copy_from_slice(&comm_low.to_ne_bytes());
        comm[8..].copy_from_slice(&comm_high.to_ne_bytes());
        let process = (pids >> 32) as u32;
        Some(Event { time_ns: record.time_ns, what, process, user: user as u32, cgroup, comm })
    }
}

/// A name as text.
pub fn comm_text(comm: &Comm) -> String {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    comm[..end]
        .iter()
        .map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '?' })
        .collect()
}

/// Which way the kernel is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Programs in the kernel.
    Bpf,
    /// The process connector.
    Connector,
}

impl Way {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Bpf => "bpf",
            Way::Connector => "connector",
        }
    }
}

/// An open source of the kernel's events.
#[derive(Debug)]
pub struct Kernel {
    inner: Inner,
    /// Why it is not the best way, if it is not.
    pub degraded: Option<String>,
}

/// Inode of the first pid namespace (`PROC_PID_INIT_INO` of linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The kernel tells of processes by their numbers in the first pid namespace: elsewhere these name others, or nobody.
///
/// # Errors
/// [`crate::Error::Kernel`] in another one.
fn check_numbers() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(namespace) if namespace.ino() != FIRST_PID_NAMESPACE => Err(crate::Error::Kernel(
            "this is a pid namespace of its own, and the kernel tells the numbers that processes have outside it: \
             run it on the host"
                .into(),
        )),
        _ => Ok(()),
    }
}

#[derive(Debug)]
enum Inner {
    Bpf(Box<bpf::Programs>),
    Connector(connector::Connector),
}

impl Kernel {
    /// Opens the best way that works, without extras.
    ///
    /// # Errors
    /// That of the last way tried.
    pub fn open() -> Result<Kernel> {
        Kernel::open_with(Extras::default())
    }

    /// Opens the best way that works. Extras are only had with programs in the kernel.
    ///
    /// # Errors
    /// That of the last way tried.
    pub fn open_with(extras: Extras) -> Result<Kernel> {
        match bpf::Programs::load(extras) {
            Ok(programs) => {
                let degraded = programs.missing.clone();
                Ok(Kernel { inner: Inner::Bpf(Box::new(programs)), degraded })
            }
            Err(reason) => Kernel::open_connector(reason.to_string()),
        }
    }

    /// Opens the process connector, for `reason`.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn open_connector(reason: String) -> Result<Kernel> {
        check_numbers()?;
        let connector = connector::Connector::open()?;
        Ok(Kernel { inner: Inner::Connector(connector), degraded: Some(reason) })
    }

    /// Which way it is.
    pub fn way(&self) -> Way {
        match &self.inner {
            Inner::Bpf(_) => Way::Bpf,
            Inner::Connector(_) => Way::Connector,
        }
    }

    /// Hands out what happened since the last fetch. Never blocks, never allocates.
    pub fn fetch(&mut self, mut each: impl FnMut(&Event)) -> Fetched {
        match &mut self.inner {
            Inner::Bpf(programs) => programs.view.fetch(|record| {
                if let Some(event) = Event::decode(record) {
                    each(&event);
                }
            }),
            Inner::Connector(connector) => connector.fetch(each),
        }
    }

    /// Names a cgroup whose processes the kernel kills by itself from now on, each when it next runs. Returns whether
    /// there is a hook and a free slot in it.
    pub fn hook(&self, cgroup: u64) -> bool {
        match &self.inner {
            Inner::Bpf(programs) => programs.hook.as_ref().is_some_and(|hook| hook.set(cgroup)),
            Inner::Connector(_) => false,
        }
    }

    /// Takes a cgroup out of the hook.
    pub fn unhook(&self, cgroup: u64) {
        if let Inner::Bpf(programs) = &self.inner
            && let Some(hook) = &programs.hook
        {
            hook.clear(cgroup);
        }
    }

    /// Dooms a process: if it forks it is killed, and its child is doomed before it runs; so a tree that is doomed does not grow. That
    /// ends with the process, or when it becomes another program. One write to memory. Returns whether there is a way.
    pub fn doom(&self, process: u32) -> bool {
        match &self.inner {
            Inner::Bpf(programs) => programs.doom.set(process, true),
            Inner::Connector(_) => false,
        }
    }

    /// Takes that back.
    pub fn pardon(&self, process: u32) {
        if let Inner::Bpf(programs) = &self.inner {
            programs.doom.set(process, false);
        }
    }

    /// Another view of the kernel's box; none where there is no box.
    ///
    /// # Errors
    /// [`crate::Error::Sensor`] when it cannot be mapped again.
    pub fn view(&self) -> Result<Option<View>> {
        match &self.inner {
            Inner::Bpf(programs) => programs.view_again().map(Some),
            Inner::Connector(_) => Ok(None),
        }
    }
}

/// The shape of the kernel's box.
pub fn shape() -> Shape {
    Shape { sensors: SENSORS, records: RECORDS }
}

#[cfg(test)]
mod tests;
