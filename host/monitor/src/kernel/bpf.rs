//! Loads `bpf/kernel.bpf.c` and maps its box and its hook.

use crate::error::{Error, Result};
use crate::kernel::{
    BOX, DOOM_PROCESSES, Extras, HOOK_CGROUPS, PROCESSORS_MAX, SENSOR_NAMES, SWITCHES, shape,
};
use crate::sys::SharedWords;
use aya::maps::{Map, MapData};
use aya::programs::{BtfTracePoint, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use weir_sensor::{Kind, SensorBox, View};

include!(concat!(env!("OUT_DIR"), "/object.rs"));

/// Programs, tracepoints, and whether the monitor can do without.
const PROGRAMS: [(&str, &str, bool); 4] = [
    ("on_fork", "sched_process_fork", false),
    ("on_exec", "sched_process_exec", false),
    ("on_exit", "sched_process_exit", false),
    ("on_victim", "mark_victim", true),
];

/// How often the timer of the hook repairs a processor, times a second.
const HOOK_TICKS_PER_S: u64 = 1000;

/// The programs, attached for as long as this lives.
#[derive(Debug)]
pub struct Programs {
    /// The box that they write.
    pub view: View,
    /// The repair hook, if it was asked for.
    pub hook: Option<Hook>,
    /// Processes whose forks come to nothing.
    pub(super) doom: Doom,
    /// What could not be attached and is not needed for repair.
    pub missing: Option<String>,
    /// The writing side of the box: kept, because dropping it closes the box.
    publisher: SensorBox,
    _ebpf: Ebpf,
}

impl Programs {
    /// Loads and attaches them.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn load(extras: Extras) -> Result<Programs> {
        let Some(object) = OBJECT else {
            return Err(Error::Kernel("this was built without clang".into()));
        };
        super::check_numbers()?;
        let refused = |what: &str| {
            let what = what.to_string();
            move |error: &dyn std::fmt::Display| Error::Kernel(format!("{what}: {error}"))
        };
        let btf = Btf::from_sys_fs().map_err(|error| refused("types of the running kernel")(&error))?;
        let mut ebpf =
            EbpfLoader::new().btf(Some(&btf)).load(object).map_err(|error| refused("loading")(&error))?;
        let publisher = SensorBox::over(array(&mut ebpf, "box")?, BOX, shape(), 1_000_000)?;
        for (name, event) in SENSOR_NAMES {
            publisher.add(name, if event { Kind::Event } else { Kind::Counter })?;
        }
        let mut missing = None;
        for (name, tracepoint, optional) in PROGRAMS {
            match attach(&mut ebpf, name, tracepoint, &btf) {
                Ok(()) => {}
                Err(reason) if optional => missing = Some(format!("no events of {tracepoint}: {reason}")),
                Err(reason) => return Err(Error::Kernel(format!("attaching to {tracepoint}: {reason}"))),
            }
        }
        if extras.switches {
            missing = count_switches(&mut ebpf, &publisher, &btf)?.or(missing);
        }
        let hook = if extras.hook { Some(Hook::attach(&mut ebpf)?) } else { None };
        let view = view_of(&publisher)?;
        let doom = Doom(SharedWords::map(&array(&mut ebpf, "doom")?, DOOM_PROCESSES / 64)?);
        Ok(Programs { view, hook, doom, missing, publisher, _ebpf: ebpf })
    }

    /// Another view of the box.
    pub(super) fn view_again(&self) -> Result<View> {
        view_of(&self.publisher)
    }
}

fn view_of(publisher: &SensorBox) -> Result<View> {
    Ok(View::map(BOX, publisher.memory(), 0, shape().bytes() as u64)?)
}

/// Counts the switches of each processor that may come up. Returns why not, where that is refused.
fn count_switches(ebpf: &mut Ebpf, publisher: &SensorBox, btf: &Btf) -> Result<Option<String>> {
    let processors = aya::util::nr_cpus()
        .map_err(|(what, error)| Error::io(format!("counting processors: {what}"), error))?;
    for processor in 0..processors.min(PROCESSORS_MAX) {
        publisher.add(&format!("{SWITCHES}{processor}"), Kind::Counter)?;
    }
    let refused = attach(ebpf, "on_switch", "sched_switch", btf).err();
    Ok(refused.map(|reason| format!("no switches of processors: {reason}")))
}

/// A copy of the descriptor of an array.
fn array(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd> {
    let map: Option<&MapData> = match ebpf.map(name) {
        Some(Map::Array(data)) => Some(data),
        _ => None,
    };
    let data = map.ok_or_else(|| Error::Kernel(format!("the object has no array named {name}")))?;
    data.fd().as_fd().try_clone_to_owned().map_err(|error| Error::io("keeping an array of the kernel", error))
}

fn attach(ebpf: &mut Ebpf, name: &str, tracepoint: &str, btf: &Btf) -> std::result::Result<(), String> {
    let program = ebpf.program_mut(name).ok_or("the object has no such program")?;
    let program: &mut BtfTracePoint = program.try_into().map_err(|error| format!("{error}"))?;
    // The log of the verifier is long; its last line says what it minds.
    let last = |text: String| text.trim_end().lines().last().unwrap_or("").to_string();
    program.load(tracepoint, btf).map_err(|error| last(error.to_string()))?;
    program.attach().map_err(|error| error.to_string())?;
    Ok(())
}

/// Cgroups that the kernel kills by itself (Bohra, 3.3: repair hooks): the monitor writes a word, and whatever process of
/// that cgroup next makes a system call or is hit by the timer gets SIGKILL.
#[derive(Debug)]
pub struct Hook(SharedWords);

impl Hook {
    fn attach(ebpf: &mut Ebpf) -> Result<Hook> {
        let words = SharedWords::map(&array(ebpf, "hook")?, HOOK_CGROUPS + 1)?;
        let refused =
            |error: &dyn std::fmt::Display| Error::Kernel(format!("attaching the repair hook: {error}"));
        let missing = || Error::Kernel("the object has no repair hook".into());
        let calls: &mut RawTracePoint = ebpf
            .program_mut("hook_call")
            .ok_or_else(missing)?
            .try_into()
            .map_err(|error: aya::programs::ProgramError| refused(&error))?;
        calls.load().map_err(|error| refused(&error))?;
        calls.attach("sys_enter").map_err(|error| refused(&error))?;
        tick::attach(ebpf, HOOK_TICKS_PER_S).map_err(|error| refused(&error))?;
        Ok(Hook(words))
    }

    /// Names a cgroup. Returns whether there was room.
    pub fn set(&self, cgroup: u64) -> bool {
        (0..HOOK_CGROUPS).any(|slot| {
            let word = self.0.word(slot);
            word.load(Ordering::Acquire) == cgroup
                || word.compare_exchange(0, cgroup, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a cgroup out.
    pub fn clear(&self, cgroup: u64) {
        for slot in 0..HOOK_CGROUPS {
            let free = self.0.word(slot).compare_exchange(cgroup, 0, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                return;
            }
        }
    }

    /// Signals sent since the start.
    pub fn signals(&self) -> u64 {
        self.0.word(HOOK_CGROUPS).load(Ordering::Relaxed)
    }
}

/// Processes by number, one bit each.
#[derive(Debug)]
pub(super) struct Doom(SharedWords);

impl Doom {
    /// Sets or clears the bit of a process. Returns whether there is one.
    pub(super) fn set(&self, process: u32, doomed: bool) -> bool {
        let (at, bit) = (process as usize / 64, 1 << (process % 64));
        if process as usize >= DOOM_PROCESSES {
            return false;
        }
        match doomed {
            true => self.0.word(at).fetch_or(bit, Ordering::AcqRel),
            false => self.0.word(at).fetch_and(!bit, Ordering::AcqRel),
        };
        true
    }
}

mod tick {
    //! The timer of the hook: without it a process that makes no system call would live.

    use aya::Ebpf;
    use aya::programs::perf_event::{
        PerfEvent, PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent,
    };

    pub(super) fn attach(ebpf: &mut Ebpf, per_s: u64) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let program = ebpf.program_mut("hook_tick").ok_or("the object has no timer")?;
        let program: &mut PerfEvent =
            program.try_into().map_err(|error: aya::programs::ProgramError| text(&error))?;
        program.load().map_err(|error| text(&error))?;
        for cpu in aya::util::online_cpus().map_err(|(what, error)| format!("{what}: {error}"))? {
            program
                .attach(
                    PerfEventConfig::Software(SoftwareEvent::CpuClock),
                    PerfEventScope::AllProcessesOneCpu { cpu },
                    SamplePolicy::Frequency(per_s),
                    false,
                )
                .map_err(|error| text(&error))?;
        }
        Ok(())
    }
}
