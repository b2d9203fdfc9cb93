//! Guests under watch: one thread for each `kind: guest`, which looks at its memory each period, stimulates it when it stands
//! still, and fences it before anything else is done about it (Bohra, 3.5.1; row O).
//!
//! ```text
//!  looking ──(its kernel is found)──► watching ──(silent)──► stimulated ──(silent still)──► fence ──► act ──► fail over
//!     ▲            │    ▲                 │                                                                  │
//!     └─(reset)────┘    └──(it moves)─────┘◄─────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - A false alarm does no harm: what is not fenced is not failed over, and a fenced guest does nothing more.
//! - A guest that a person has stopped, that begins anew or has shut down is no failure; QEMU tells so (`qmp`).
//! - The fence is QEMU's `stop`; where QEMU does not answer, its cgroup is frozen if the policy names one, else its process is stopped.
//! - The kernel of a guest is looked for by a thread of ordinary priority, since that takes tenths of a second.

use super::Guest;
use super::qmp::{Event, Qmp};
use crate::detector::{Decision, Detector, Settings};
use crate::error::{Error, Result};
use crate::incident::{GuestIncident, Note, Outcome, Reason};
use crate::kernel::Comm;
use crate::levers::{self, Levers};
use crate::local;
use crate::policy::{GuestAction, GuestPolicy, Stimulus};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_sensor::now_ns;

/// Between two looks for a kernel.
const FIND_PAUSE: Duration = Duration::from_millis(200);
/// Between two tries to reach QEMU, and two looks whether the file is still that guest's, ns.
const RETRY_NS: u64 = 500_000_000;
/// Programs whose tasks are counted apart, in one count.
const PROGRAMS_MAX: usize = 64;
/// Tasks are counted each so many periods.
const COUNT_PERIODS: u64 = 4;

/// A guest as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestView {
    /// The release of its kernel; empty while that is not found.
    pub release: String,
    /// Whether it is taken for failed.
    pub failed: bool,
    /// The accrual level.
    pub level: f64,
    /// Tasks at the last count.
    pub tasks: u64,
    /// Times that it was stimulated.
    pub stimuli: u64,
}

/// The watchers of all guests.
#[derive(Debug)]
pub struct Watchers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    views: Vec<(usize, Arc<Mutex<GuestView>>)>,
}

impl Watchers {
    /// Starts one for each policy, which comes with its number.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start(
        policies: Vec<(usize, GuestPolicy)>,
        settings: local::Settings,
        notes: &SyncSender<Note>,
    ) -> Result<Watchers> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watchers = Watchers { stop, threads: Vec::new(), views: Vec::new() };
        for (number, policy) in policies {
            let view = Arc::new(Mutex::new(GuestView::default()));
            let (finder, thread) = Finder::start(policy.memory_file.clone(), watchers.stop.clone())?;
            watchers.threads.push(thread);
            let (stop, notes, shown) = (watchers.stop.clone(), notes.clone(), view.clone());
            let run = move || {
                // What the machine refuses has been told by the loop.
                drop(local::settle(&local::Settings { lock_memory: false, ..settings }));
                Watch::new(number, policy, finder, notes, shown).run(&stop);
            };
            let thread = std::thread::Builder::new().name("monitor-guest".into()).spawn(run);
            watchers.threads.push(thread.map_err(|error| Error::io("starting a guest's watcher", error))?);
            watchers.views.push((number, view));
        }
        Ok(watchers)
    }

    /// The guests as they are seen now, by the number of their policy.
    pub fn views(&self) -> Vec<(usize, GuestView)> {
        let of = |(number, view): &(usize, Arc<Mutex<GuestView>>)| {
            (*number, view.lock().unwrap_or_else(PoisonError::into_inner).clone())
        };
        self.views.iter().map(of).collect()
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// A guest, and the file that it was found in.
type Found = (Guest, u64);

/// What looks for a kernel, for as long as one is wanted.
#[derive(Debug)]
struct Finder {
    wanted: Arc<AtomicBool>,
    found: Receiver<Found>,
}

impl Finder {
    fn start(memory: PathBuf, stop: Arc<AtomicBool>) -> Result<(Finder, JoinHandle<()>)> {
        let wanted = Arc::new(AtomicBool::new(true));
        let (tell, found) = sync_channel(1);
        let asked = wanted.clone();
        let look = move || {
            while !stop.load(Ordering::Acquire) {
                let file = inode(&memory).filter(|_| asked.load(Ordering::Acquire));
                if let Some(file) = file
                    && let Ok(guest) = Guest::find(&memory)
                {
                    asked.store(false, Ordering::Release);
                    if tell.send((guest, file)).is_err() {
                        return;
                    }
                }
                std::thread::sleep(FIND_PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("monitor-finder".into()).spawn(look);
        let thread = thread.map_err(|error| Error::io("starting a finder of guests", error))?;
        Ok((Finder { wanted, found }, thread))
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|status| status.ino())
}

struct Watch {
    number: usize,
    policy: GuestPolicy,
    finder: Finder,
    notes: SyncSender<Note>,
    shown: Arc<Mutex<GuestView>>,
    guest: Option<Found>,
    detector: Detector,
    qmp: Option<Qmp>,
    qmp_due_ns: u64,
    console: Option<UnixStream>,
    socket: Option<UdpSocket>,
    /// A person has stopped it, or it has shut down.
    halted: bool,
    /// It is fenced by this watcher, and stays so.
    fenced: bool,
    /// Its panic was told.
    panicked: bool,
    quiet_until_ns: u64,
    view: GuestView,
    looks: u64,
}

impl Watch {
    fn new(
        number: usize,
        policy: GuestPolicy,
        finder: Finder,
        notes: SyncSender<Note>,
        shown: Arc<Mutex<GuestView>>,
    ) -> Watch {
        let detector = detector(&policy);
        Watch {
            number,
            policy,
            finder,
            notes,
            shown,
            guest: None,
            detector,
            qmp: None,
            qmp_due_ns: 0,
            console: None,
            socket: None,
            halted: false,
            fenced: false,
            panicked: false,
            quiet_until_ns: 0,
            view: GuestView::default(),
            looks: 0,
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        let period = Duration::from_millis(self.policy.period_ms);
        while !stop.load(Ordering::Acquire) {
            let now = now_ns();
            self.keep_connected(now);
            self.hear();
            match self.guest.is_some() {
                true if !self.halted && !self.fenced => self.look(now),
                true => {}
                false => self.take_found(),
            }
            self.view.failed =
                self.fenced || self.panicked || self.detector.state() == crate::detector::State::Failed;
            self.view.level = self.detector.level(now);
            if let Ok(mut shown) = self.shown.try_lock() {
                shown.clone_from(&self.view);
            }
            std::thread::sleep(period);
        }
    }

    fn take_found(&mut self) {
        if let Ok(found) = self.finder.found.try_recv() {
            self.view.release.clone_from(&found.0.release);
            self.guest = Some(found);
            self.panicked = false;
            self.detector = detector(&self.policy);
        }
    }

    /// Its kernel is another one from now on.
    fn forget(&mut self) {
        self.guest = None;
        self.view.release.clear();
        // One that was found meanwhile may be the old one.
        while self.finder.found.try_recv().is_ok() {}
        self.finder.wanted.store(true, Ordering::Release);
    }

    /// Connects to QEMU, the console and the network again where that is due.
    fn keep_connected(&mut self, now: u64) {
        if now < self.qmp_due_ns {
            return;
        }
        self.qmp_due_ns = now.saturating_add(RETRY_NS);
        if let Some((_, file)) = &self.guest
            && inode(&self.policy.memory_file) != Some(*file)
        {
            self.forget();
            self.fenced = false;
        }
        if let Some(path) = &self.policy.qmp
            && self.qmp.is_none()
            && let Ok(mut qmp) = Qmp::connect(path)
        {
            self.halted = !self.fenced && qmp.running().is_ok_and(|running| !running);
            self.qmp = Some(qmp);
        }
        if let Stimulus::Console(path) = &self.policy.stimulus
            && self.console.is_none()
        {
            self.console =
                UnixStream::connect(path).ok().filter(|stream| stream.set_nonblocking(true).is_ok());
        }
    }

    /// Takes what QEMU tells.
    fn hear(&mut self) {
        let Some(qmp) = &mut self.qmp else { return };
        let Ok(events) = qmp.events() else {
            self.qmp = None;
            self.qmp_due_ns = now_ns().saturating_add(RETRY_NS);
            return;
        };
        for event in events {
            match event {
                Event::Stopped | Event::Shutdown => self.halted = true,
                Event::Resumed => (self.halted, self.fenced) = (false, false),
                Event::Reset => self.forget(),
            }
        }
        if self.guest.is_some() && self.halted {
            // When it goes on, its silence begins anew.
            self.detector = detector(&self.policy);
        }
    }

    fn look(&mut self, now: u64) {
        let Some((guest, _)) = &self.guest else { return };
        // Memory that can no longer be understood is another kernel's.
        let Some(progress) = guest.progress() else { return self.forget() };
        let panicked = guest.panicked() == Some(true);
        if panicked && !self.panicked {
            self.panicked = true;
            return self.act(now, Reason::Panic, [0; 16]);
        }
        self.looks += 1;
        if self.looks.is_multiple_of(COUNT_PERIODS) && self.policy.tasks.is_some() {
            self.count_tasks(now);
        }
        match self.detector.observe(now, progress) {
            Decision::Nothing => {}
            Decision::Stimulate => {
                self.view.stimuli += 1;
                self.stimulate();
                self.detector.stimulated(now_ns());
            }
            Decision::Failed => {
                let limit = self.detector.silence_ns_max();
                self.act(now, Reason::Silent { found: self.detector.silent_ns(now), limit }, [0; 16]);
            }
            Decision::Recovered => self.tell(Note::Recovered { policy: self.number }),
        }
    }

    fn stimulate(&mut self) {
        match &self.policy.stimulus {
            Stimulus::None => {}
            Stimulus::Key => {
                // The key goes down and up: two interrupts. Whoever sits at the guest sees nothing.
                let shift = json!({ "keys": [{ "type": "qcode", "data": "shift" }] });
                let sent = self.qmp.as_mut().map(|qmp| qmp.start("send-key", shift));
                if matches!(sent, Some(Err(_))) {
                    self.qmp = None;
                }
            }
            Stimulus::Console(_) => {
                // A zero byte is no key, and the serial port interrupts for it as for any other.
                let sent = self.console.as_mut().map(|stream| stream.write(&[0]));
                if matches!(sent, Some(Err(error)) if error.kind() != std::io::ErrorKind::WouldBlock) {
                    self.console = None;
                }
            }
            Stimulus::Packet(address) => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                if self.socket.is_none() {
                    self.socket = UdpSocket::bind(any).ok();
                }
                if let Some(socket) = &self.socket {
                    // That nobody listens there is an answer of the guest, too.
                    drop(socket.send_to(b"weir", address));
                }
            }
        }
    }

    fn count_tasks(&mut self, now: u64) {
        let (Some((guest, _)), Some(limit)) = (&self.guest, self.policy.tasks) else { return };
        let mut programs: Vec<(Comm, u64)> = Vec::with_capacity(PROGRAMS_MAX);
        let mut found = 0;
        guest.tasks(|task| {
            found += 1;
            match programs.iter().position(|(comm, _)| *comm == task.comm) {
                Some(at) => programs[at].1 += 1,
                None if programs.len() < PROGRAMS_MAX => programs.push((task.comm, 1)),
                None => {}
            }
        });
        self.view.tasks = found;
        if found >= limit && now >= self.quiet_until_ns {
            let cooldown_ns = self.policy.common.cooldown_ms.saturating_mul(1_000_000);
            self.quiet_until_ns = now.saturating_add(cooldown_ns);
            let most = programs.iter().max_by_key(|(_, count)| *count).map_or([0; 16], |(comm, _)| *comm);
            self.act(now, Reason::Tasks { found, limit }, most);
        }
    }

    fn tell(&self, note: Note) {
        if self.notes.try_send(note).is_err() {
            tracing::error!(policy = self.policy.common.name, "an event of a guest found the queue full");
        }
    }

    fn act(&mut self, now: u64, reason: Reason, comm: Comm) {
        let action = self.policy.action;
        let mut incident = GuestIncident {
            policy: self.number,
            reason,
            comm,
            fenced: None,
            outcome: Outcome::Reported,
            failed_over: None,
            fence_ns: 0,
            act_ns: 0,
        };
        if !self.policy.common.dry_run && action != GuestAction::Report {
            let fenced = !action.fences() || self.fence();
            incident.fence_ns = now_ns().saturating_sub(now);
            if action.fences() {
                incident.fenced = Some(fenced);
            }
            let done = fenced && self.carry_out(action);
            incident.outcome = if done { Outcome::Acted } else { Outcome::Unable };
            if fenced && action.fences() {
                incident.failed_over = self.fail_over();
            }
        }
        incident.act_ns = now_ns().saturating_sub(now);
        self.tell(Note::Guest(incident));
    }

    /// Makes sure that the guest does no more.
    fn fence(&mut self) -> bool {
        self.fenced = self.stop_by_qmp() || self.freeze_cgroup() || self.stop_process();
        self.fenced
    }

    fn stop_by_qmp(&mut self) -> bool {
        let Some(qmp) = &mut self.qmp else { return false };
        qmp.command("stop", Value::Null).is_ok() && qmp.running().is_ok_and(|running| !running)
    }

    fn freeze_cgroup(&self) -> bool {
        let Some(cgroup) = &self.policy.common.cgroup else { return false };
        Levers::open(&levers::folder(cgroup)).is_ok_and(|levers| levers.freeze())
    }

    fn stop_process(&self) -> bool {
        let Some((process, number)) = self.qmp.as_ref().and_then(Qmp::process) else { return false };
        let stopped = |state: Option<char>| matches!(state, None | Some('T' | 't' | 'Z' | 'X'));
        if pidfd_send_signal(process, Signal::STOP).is_err() {
            // It is gone.
            return true;
        }
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            stopped(state_of(number))
        })
    }

    /// Does what the policy says, after the fence where it wants one.
    fn carry_out(&mut self, action: GuestAction) -> bool {
        let process =
            self.qmp.as_ref().and_then(Qmp::process).and_then(|(process, _)| process.try_clone().ok());
        let Some(qmp) = &mut self.qmp else { return action == GuestAction::Pause };
        let mut run = |name: &str, arguments: Value| qmp.command(name, arguments).is_ok();
        match action {
            GuestAction::Report | GuestAction::Pause => true,
            GuestAction::Nmi => run("inject-nmi", Value::Null),
            GuestAction::OomKill => {
                let key = |name: &str| json!({ "type": "qcode", "data": name });
                run("send-key", json!({ "keys": [key("alt"), key("sysrq"), key("f")] }))
            }
            GuestAction::Reset => {
                let done = run("system_reset", Value::Null) && run("cont", Value::Null);
                if done {
                    (self.fenced, self.halted) = (false, false);
                    self.forget();
                }
                done
            }
            GuestAction::Quit => {
                run("quit", Value::Null)
                    || process.is_some_and(|process| pidfd_send_signal(process, Signal::KILL).is_ok())
            }
        }
    }

    fn fail_over(&self) -> Option<bool> {
        let program = self.policy.fail_over.as_ref()?;
        let status = Command::new(program).arg(&self.policy.common.name).status();
        Some(status.is_ok_and(|status| status.success()))
    }
}

fn detector(policy: &GuestPolicy) -> Detector {
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    Detector::new(Settings {
        period_ns: ns(policy.period_ms),
        periods: policy.periods,
        watch_ns: ns(policy.watch_ms),
    })
}

/// The state letter of a process; nothing when it is gone.
fn state_of(process: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit(')').next()?.trim_start().chars().next()
}
