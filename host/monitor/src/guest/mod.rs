//! The hypervisor context: a guest watched through its memory, which QEMU keeps in a file that is mapped here (Bohra, 3.4.2
//! and 3.5.1: the monitor reads the target's own structures; row O). No agent, no symbol file, no help of the guest, and
//! none of its processor time; it works with address randomisation on and on a guest that has crashed.
//!
//! ```text
//!  guest memory ──► vmcoreinfo (the note that Linux keeps for crash dumps) ──► page tables, kernel's offset, kallsyms
//!                   kallsyms ──► init_task, jiffies_64, total_forks, where BTF is
//!                   BTF ──► offsets of task_struct's fields ──► the list of tasks, counters of progress
//! ```
//!
//! Everything that is read is written by the guest and so believed in nothing: addresses outside its memory, lists without
//! end and names without length give errors or short lists, never harm. A list that changes while it is walked may show a
//! task twice or miss one; [`Guest::tasks`] says when it could not follow it to its end.
//!
//! Only x86-64 guests with `CONFIG_KALLSYMS_ALL`, BTF and vmcoreinfo with kallsyms (Linux 6.0 and later; Debian's kernels have all).

mod blame;
mod btf;
mod finder;
mod hook;
mod kallsyms;
mod memory;
pub mod qmp;
mod starved;
mod vmcoreinfo;
pub mod watch;

pub use memory::GuestMemory;

use crate::error::{Error, Result};
use crate::kernel::Comm;
use btf::Btf;
use kallsyms::Kallsyms;
use memory::Space;
use std::path::Path;
use vmcoreinfo::VmCoreInfo;

/// Most tasks that one walk follows.
pub const TASKS_MAX: usize = 65_536;
/// Largest BTF that is read, bytes.
const BTF_BYTES_MAX: u64 = 64 << 20;

/// A task of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Where its `task_struct` is, a virtual address of the guest's kernel.
    pub address: u64,
    /// Its number.
    pub pid: u32,
    /// Its process.
    pub tgid: u32,
    /// The number of its parent's task; 0 for the first ones.
    pub parent: u32,
    /// Its program.
    pub comm: Comm,
    /// Times that it gave the processor away or lost it.
    pub switches: u64,
    /// Whether it has ended, and waits only for its parent to ask for its status.
    pub ended: bool,
}

/// Where fields of `task_struct` are, bytes.
#[derive(Clone, Copy, Debug)]
struct Fields {
    tasks: u64,
    pid: u64,
    tgid: u64,
    comm: u64,
    parent: u64,
    switches: [u64; 2],
    exit_state: u64,
}

/// A guest whose kernel was found.
#[derive(Debug)]
pub struct Guest {
    memory: GuestMemory,
    space: Space,
    fields: Fields,
    init_task: u64,
    jiffies: u64,
    forks: u64,
    /// Where the number of the processor that panics is, in kernels that have it.
    panic_cpu: Option<u64>,
    /// The release of its kernel.
    pub release: String,
    /// How far its kernel was moved by address randomisation, bytes.
    pub kernel_offset: u64,
}

impl Guest {
    /// Finds the kernel in a guest's memory; to be done once after each boot, it takes some tenths of a second. In memory
    /// in which several have run it may be one that is gone: see [`Guest::find_all`].
    ///
    /// # Errors
    /// [`Error::Guest`] when there is no Linux kernel (yet) that can be understood.
    pub fn find(path: &Path) -> Result<Guest> {
        Ok(Guest::find_all(path)?.swap_remove(0))
    }

    /// Finds all kernels that can be understood, at least one. Which of them runs shows only in that it moves: what ran
    /// before a reset stays in memory until something else is written there.
    ///
    /// # Errors
    /// As [`Guest::find`].
    pub fn find_all(path: &Path) -> Result<Vec<Guest>> {
        let (mut guests, mut problem) = (Vec::new(), None);
        for info in VmCoreInfo::find(&GuestMemory::open(path)?)? {
            match Guest::read(GuestMemory::open(path)?, &info) {
                Ok(guest) => guests.push(guest),
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(problem) if guests.is_empty() => Err(problem),
            _ => Ok(guests),
        }
    }

    fn read(memory: GuestMemory, info: &VmCoreInfo) -> Result<Guest> {
        let mut space = info.space()?;
        let symbols = Kallsyms::find(&memory, &space, info)?.addresses(&[
            "init_task",
            "jiffies_64",
            "total_forks",
            "panic_cpu",
            "page_offset_base",
            "__start_BTF",
            "__stop_BTF",
        ])?;
        let need = |name: &str| {
            symbols.get(name).copied().ok_or_else(|| Error::Guest(format!("its kernel has no symbol {name}")))
        };
        let base = memory.word(&space, need("page_offset_base")?);
        space.direct_map = base.ok_or_else(|| Error::Guest("page_offset_base cannot be read".into()))?;
        let (start, stop) = (need("__start_BTF")?, need("__stop_BTF")?);
        let length = stop.checked_sub(start).filter(|length| *length <= BTF_BYTES_MAX);
        let length = length.ok_or_else(|| Error::Guest(format!("BTF from {start:x} to {stop:x}")))?;
        let mut bytes = vec![0; length as usize];
        if !memory.read(&space, start, &mut bytes) {
            return Err(Error::Guest("its BTF cannot be read".into()));
        }
        let fields = fields(&Btf::parse(&bytes)?)?;
        Ok(Guest {
            memory,
            space,
            fields,
            init_task: need("init_task")?,
            jiffies: need("jiffies_64")?,
            forks: need("total_forks")?,
            panic_cpu: symbols.get("panic_cpu").copied(),
            release: info.release.clone(),
            kernel_offset: info.kernel_offset,
        })
    }

    /// Ticks since the boot, if they can be read. They stand still in an idle guest.
    pub fn jiffies(&self) -> Option<u64> {
        self.memory.word(&self.space, self.jiffies)
    }

    /// Forks since the boot.
    pub fn forks(&self) -> Option<u64> {
        self.memory.word(&self.space, self.forks)
    }

    /// A number that changes when the guest does anything: for a [`crate::detector::Detector`]. In an idle guest it moves when
    /// an interrupt comes, because Linux then catches up with its ticks.
    pub fn progress(&self) -> Option<u64> {
        Some(self.jiffies()?.wrapping_add(self.forks()?))
    }

    /// Whether its kernel has panicked, where that can be read. A kernel that has may go on ticking, and does nothing else.
    pub fn panicked(&self) -> Option<bool> {
        const NOBODY: u32 = u32::MAX;
        Some(self.number(self.panic_cpu?)? != NOBODY)
    }

    /// The physical address of a virtual one of its kernel, if it is mapped.
    pub fn physical(&self, address: u64) -> Option<u64> {
        self.memory.physical(&self.space, address)
    }

    fn number(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(&self.space, address, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }

    fn task(&self, at: u64) -> Option<Task> {
        let fields = &self.fields;
        let mut comm = [0; 16];
        if !self.memory.read(&self.space, at.wrapping_add(fields.comm), &mut comm) {
            return None;
        }
        let parent = self.memory.word(&self.space, at.wrapping_add(fields.parent))?;
        let switches =
            fields.switches.map(|field| self.memory.word(&self.space, at.wrapping_add(field)).unwrap_or(0));
        Some(Task {
            address: at,
            pid: self.number(at.wrapping_add(fields.pid))?,
            tgid: self.number(at.wrapping_add(fields.tgid))?,
            parent: self.number(parent.wrapping_add(fields.tgid)).unwrap_or(0),
            comm,
            switches: switches[0].wrapping_add(switches[1]),
            ended: self.number(at.wrapping_add(fields.exit_state))? != 0,
        })
    }

    /// Calls `each` for each process, the idle one first. Returns whether the list could be followed to its end. It
    /// allocates nothing.
    pub fn tasks(&self, mut each: impl FnMut(&Task)) -> bool {
        let mut at = self.init_task;
        for _ in 0..TASKS_MAX {
            let Some(task) = self.task(at) else { return false };
            each(&task);
            let Some(next) = self.memory.word(&self.space, at.wrapping_add(self.fields.tasks)) else {
                return false;
            };
            at = next.wrapping_sub(self.fields.tasks);
            if at == self.init_task {
                return true;
            }
        }
        false
    }
}

fn fields(btf: &Btf<'_>) -> Result<Fields> {
    let offsets = btf.members("task_struct")?;
    let need = |name: &str| {
        offsets.get(name).copied().ok_or_else(|| Error::Guest(format!("its task_struct has no field {name}")))
    };
    Ok(Fields {
        tasks: need("tasks")?,
        pid: need("pid")?,
        tgid: need("tgid")?,
        comm: need("comm")?,
        parent: need("real_parent")?,
        switches: [need("nvcsw")?, need("nivcsw")?],
        exit_state: need("exit_state")?,
    })
}

/// The state letter in `/proc/PID/stat`.
fn state(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[cfg(test)]
mod tests;
