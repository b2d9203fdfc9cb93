//! Daemons that die at one moment: when they have come back from a call that changes what the kernel, the journal or a program knows. So each order
//! of these is seen to be one that a successor understands, and not only those that a kill under load happens to meet.
#![allow(unsafe_code)]

use super::crashes::Kept;
use super::mounts::until;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

/// `FUSE_DEV_IOC_BACKING_OPEN` and `_CLOSE`: the kernel gets a file, and gives it up.
const BACKING_OPEN: u64 = 0x4010_e501;
const BACKING_CLOSE: u64 = 0x4004_e502;
/// How often of each the daemon dies: fewer than a keeper gives up at.
const TIMES: usize = 3;
/// Opens of a file after a death.
const OPENS_AFTER: usize = 12;
/// Opens until it has died.
const OPENS_MAX: usize = 20_000;

/// A call after which the daemon dies, and its second argument where that matters.
#[derive(Clone, Copy)]
struct Point {
    call: i64,
    request: Option<u64>,
}

/// What a thread that is traced has stopped for.
enum Stop {
    Begins(i64, u64),
    Ends,
    Other(i32),
}

fn trace(request: libc::c_uint, thread: i32, data: usize) -> std::io::Result<()> {
    // SAFETY: the requests that are made here read and write nothing of ours.
    let done = unsafe { libc::ptrace(request, thread, 0usize, data) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn stop(thread: i32, status: i32) -> Stop {
    let signal = libc::WSTOPSIG(status);
    if signal != libc::SIGTRAP | 0x80 {
        // What stops for us is no signal of its own.
        return Stop::Other(if status >> 16 != 0 { 0 } else { signal });
    }
    let mut said = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let room = std::mem::size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes into `said` at most as many bytes as it has, all of which may be anything.
    let said = unsafe {
        libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, room, said.as_mut_ptr());
        said.assume_init()
    };
    match said.op {
        // SAFETY: this is what it says it is.
        libc::PTRACE_SYSCALL_INFO_ENTRY => unsafe {
            Stop::Begins(said.u.entry.nr as i64, said.u.entry.args[1])
        },
        _ => Stop::Ends,
    }
}

/// Kills a process as soon as one of its threads has come back from such a call; `ready` hears when it is watched. Ends with the process.
fn kill_after(process: i32, point: Point, ready: &Sender<()>) -> std::io::Result<()> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    for thread in threads {
        let thread: i32 = thread?.file_name().to_string_lossy().parse().unwrap();
        trace(libc::PTRACE_SEIZE, thread, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        trace(libc::PTRACE_INTERRUPT, thread, 0)?;
    }
    let mut inside: HashMap<i32, bool> = HashMap::new();
    let _ = ready.send(());
    loop {
        let mut status = 0;
        // SAFETY: writes one number. Only what this thread traces is waited for, no child of another test.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread < 0 {
            return Ok(());
        }
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let signal = match stop(thread, status) {
            Stop::Begins(call, request) => {
                let is_it = call == point.call && point.request.is_none_or(|wanted| wanted == request);
                inside.insert(thread, is_it);
                0
            }
            Stop::Ends if inside.remove(&thread) == Some(true) => {
                // SAFETY: a signal to the process that is watched.
                unsafe { libc::kill(process, libc::SIGKILL) };
                continue;
            }
            Stop::Ends => 0,
            Stop::Other(signal) => signal,
        };
        // One that was killed meanwhile is waited for as all others.
        let _ = trace(libc::PTRACE_SYSCALL, thread, signal as usize);
    }
}

/// Opens a file again and again, for one or for two, until `over` and then some; nothing may fail, nothing may be missing.
fn opens(path: &Path, wanted: &mut Vec<u8>, over: impl Fn() -> bool) {
    let mut after = 0;
    for round in 0..OPENS_MAX {
        let line = format!("{round}\n");
        let mut log = OpenOptions::new().append(true).create(true).open(path).expect("an open to append");
        log.write_all(line.as_bytes()).expect("an append");
        wanted.extend(line.as_bytes());
        let other = (round % 3 == 0).then(|| File::open(path).expect("an open beside it"));
        drop(log);
        assert_eq!(fs::read(path).expect("an open to read"), *wanted);
        drop(other);
        if over() {
            after += 1;
        }
        if after > OPENS_AFTER {
            return;
        }
    }
    panic!("the daemon made no such call");
}

#[test]
fn a_daemon_may_die_at_any_step_of_an_open_and_a_close() {
    if super::passthrough::directory("a_daemon_may_die_at_any_step").is_none() {
        return;
    }
    let kernel = [BACKING_CLOSE, BACKING_OPEN].map(|request| (libc::SYS_ioctl, Some(request)));
    let [journal, reply] = [libc::SYS_pwrite64, libc::SYS_writev].map(|call| (call, None));
    for (call, request) in kernel.into_iter().chain([journal, reply]) {
        let point = Point { call, request };
        let dir = |folder: &Path| format!("dir:{}", folder.join("under").display());
        let Some(kept) = Kept::start("a_daemon_may_die_at_any_step", dir, &[]) else { return };
        let path = kept.root().join("log");
        fs::write(&path, "").unwrap();
        let mut wanted = Vec::new();
        for _ in 0..TIMES {
            let daemon = kept.daemon();
            let (ready, watched) = channel();
            std::thread::scope(|scope| {
                let watch = scope.spawn(move || kill_after(daemon, point, &ready));
                if watched.recv().is_err() {
                    panic!("the daemon cannot be watched: {:?}", watch.join());
                }
                let lives = || Path::new(&format!("/proc/{daemon}")).exists();
                opens(&path, &mut wanted, || !lives());
                watch.join().unwrap().unwrap();
            });
            until("another daemon", || kept.status().is_some_and(|status| status.pid as i32 != daemon));
            assert_eq!(fs::read(&path).unwrap(), wanted);
        }
        kept.end();
    }
}
