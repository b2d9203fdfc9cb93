//! Killed processes that end soon.
//!
//! A process that was sent SIGKILL ends itself: it must be given a processor once, and among 1,400 that spin, beside whatever else
//! computes on the host, that takes a while. So the monitor gives each that it has killed the lowest real-time priority. It runs
//! no instruction of its program any more, only its way out, so nobody can use that priority for anything else; and the host's other
//! programs lose no more than what these ends cost, sooner instead of later. (Android's lmkd and the kernel's own out-of-memory
//! killer have raised their victims for the same reason.) Only its first thread is raised: a bomb's processes have no others.
//!
//! A number of a process may pass to another in between, and `sched_setscheduler` knows no descriptors. So it is looked whether the
//! held process still has its number afterwards; if not, whoever has it gets back what it had.
#![allow(unsafe_code)]

use rustix::fd::OwnedFd;
use rustix::process::{Signal, pidfd_send_signal};

/// Below every monitor: its own is higher.
const PRIORITY: i32 = 1;
/// For machines that grant no real-time priority inside a cgroup.
const NICE: i32 = -20;

/// Hurries a process that was sent SIGKILL. `held` is its descriptor. Returns whether it was done.
pub(crate) fn hurry(held: &OwnedFd, process: u32) -> bool {
    let Ok(process) = libc::pid_t::try_from(process) else { return false };
    let (Some(before), Some(nice)) = (schedule_of(process), nice_of(process)) else { return false };
    let raised = set_schedule(process, (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, PRIORITY))
        || set_nice(process, NICE);
    // A second SIGKILL does nothing, but is refused once the process is reaped: only then is its number free.
    if raised && pidfd_send_signal(held, Signal::KILL).is_err() {
        set_schedule(process, before);
        set_nice(process, nice);
        return false;
    }
    raised
}

/// Policy and real-time priority.
type Schedule = (i32, i32);

fn schedule_of(process: libc::pid_t) -> Option<Schedule> {
    // SAFETY: the call takes a number and touches no memory.
    let policy = unsafe { libc::sched_getscheduler(process) };
    // SAFETY: an all-zero sched_param is a valid value of that plain C structure.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives for the call, which fills it.
    let found = unsafe { libc::sched_getparam(process, &raw mut parameters) };
    (policy >= 0 && found == 0).then_some((policy, parameters.sched_priority))
}

fn set_schedule(process: libc::pid_t, (policy, priority): Schedule) -> bool {
    // SAFETY: an all-zero sched_param is a valid value of that plain C structure.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: the structure lives for the call, which only reads it.
    unsafe { libc::sched_setscheduler(process, policy, &raw const parameters) == 0 }
}

fn nice_of(process: libc::pid_t) -> Option<i32> {
    let process = libc::id_t::try_from(process).ok()?;
    // SAFETY: the place of errno is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: the call takes numbers and touches no memory.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, process) };
    // -1 is a nice value, too.
    (nice != -1 || std::io::Error::last_os_error().raw_os_error() == Some(0)).then_some(nice)
}

fn set_nice(process: libc::pid_t, nice: i32) -> bool {
    let Ok(process) = libc::id_t::try_from(process) else { return false };
    // SAFETY: the call takes numbers and touches no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, process, nice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::Command;

    fn held(child: &std::process::Child) -> OwnedFd {
        let process = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        pidfd_open(process, PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn a_killed_process_is_raised_and_nobody_else() {
        if !rustix::process::geteuid().is_root() {
            return println!("NOT RUN a_killed_process_is_raised_and_nobody_else: it needs root");
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let descriptor = held(&child);
        let number = child.id();
        pidfd_send_signal(&descriptor, Signal::KILL).unwrap();
        assert!(hurry(&descriptor, number), "it waits to be reaped, so the number is its own");
        let place = number.cast_signed();
        let raised = (schedule_of(place), nice_of(place));
        let by_policy = raised.0 == Some((libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, PRIORITY));
        assert!(by_policy || raised.1 == Some(NICE), "{raised:?}");
        child.wait().unwrap();
        // The number is somebody else's now: the descriptor says so, and the other keeps what it had.
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let of = |child: &std::process::Child| {
            (schedule_of(child.id().cast_signed()), nice_of(child.id().cast_signed()))
        };
        let before = of(&other);
        assert!(before.0.is_some() && before.1.is_some());
        assert!(!hurry(&descriptor, other.id()));
        assert_eq!(of(&other), before);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
