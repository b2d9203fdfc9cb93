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
//! - An emulator that gets no processor is given more time ([`super::starved`]): that is the host's failure.
//! - A guest that a person has stopped, that begins anew or has shut down is no failure; QEMU tells so (`qmp`).
//! - The fence is QEMU's `stop`; where QEMU does not answer, its cgroup is frozen if the policy names one, else its process is stopped.
//! - The kernel of a guest is looked for by a thread of ordinary priority, since that takes tenths of a second ([`super::finder`]).

use super::finder::{Candidates, Finder, inode};
use super::hook::{self, Asked};
use super::qmp::{Event, Qmp};
use super::starved::{GRANTS_MAX, Share};
use super::{Guest, TASKS_MAX, Task, blame};
use crate::controls::{self, Controls};
use crate::detector::{Decision, Detector, Settings, State};
use crate::error::{Error, Result};
use crate::incident::{GuestIncident, Note, Outcome, Reason};
use crate::kernel::Comm;
use crate::local;
use crate::policy::{GuestAction, GuestPolicy, Stimulus};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_sensor::now_ns;

/// Between two tries to reach QEMU, and two looks whether the file is still that guest's, ns.
const RETRY_NS: u64 = 500_000_000;
/// Programs whose tasks are counted apart, in one count.
const PROGRAMS_MAX: usize = 64;
/// The room for tasks is not kept from one count to the next above so many.
const TASKS_KEPT: usize = 4096;
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
    /// Times that it was given more time, because its emulator got no processor.
    pub starved: u64,
    /// A person has stopped it, or it has shut down.
    pub stopped: bool,
    /// Periods that it was watched in.
    pub looks: u64,
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

/// Who is behind too many tasks.
#[derive(Clone, Copy, Debug, Default)]
struct Blamed {
    program: Comm,
    process: u32,
}

struct Watch {
    number: usize,
    policy: GuestPolicy,
    finder: Finder,
    notes: SyncSender<Note>,
    shown: Arc<Mutex<GuestView>>,
    /// It, and the file that it was found in.
    guest: Option<(Guest, u64)>,
    /// Kernels of which it is not known yet which one runs.
    candidates: Option<Candidates>,
    /// It began anew while it was watched: an earlier kernel of it may still be in its memory.
    anew: bool,
    detector: Detector,
    /// What the emulator had of the processors when it was stimulated, or given more time.
    share: Option<Share>,
    /// How often in a row it was given more time.
    grants: u32,
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
    /// The tasks at the last count.
    tasks: Vec<Task>,
    /// Questions to the guest's hook.
    asked: u64,
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
            candidates: None,
            anew: false,
            detector,
            share: None,
            grants: 0,
            qmp: None,
            qmp_due_ns: 0,
            console: None,
            socket: None,
            halted: false,
            fenced: false,
            panicked: false,
            quiet_until_ns: 0,
            view: GuestView::default(),
            tasks: Vec::new(),
            asked: 0,
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
                false => self.take_found(now),
            }
            self.view.failed = self.fenced || self.panicked || self.detector.state() == State::Failed;
            self.view.level = self.detector.level(now);
            self.view.stopped = self.halted && !self.fenced;
            self.view.looks += 1;
            if let Ok(mut shown) = self.shown.try_lock() {
                shown.clone_from(&self.view);
            }
            std::thread::sleep(period);
        }
    }

    fn take_found(&mut self, now: u64) {
        if let Some(found) = self.finder.take() {
            self.candidates = Some(Candidates::new(found, now));
        }
        let Some(candidates) = &mut self.candidates else { return };
        if let Some(found) = candidates.running(self.anew) {
            self.view.release.clone_from(&found.0.release);
            self.guest = Some(found);
            self.candidates = None;
            self.panicked = false;
            self.detector = detector(&self.policy);
        } else if candidates.expired(now) {
            self.forget();
        }
    }

    /// Its kernel is another one from now on.
    fn forget(&mut self) {
        self.guest = None;
        self.candidates = None;
        self.view.release.clear();
        self.finder.look_again();
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
            (self.fenced, self.anew) = (false, false);
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
                Event::Reset => {
                    self.anew = true;
                    self.forget();
                }
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
            return self.act(now, Reason::Panic, Blamed::default());
        }
        if self.view.looks.is_multiple_of(COUNT_PERIODS) && self.policy.tasks.is_some() {
            self.count_tasks(now);
        }
        self.bear_with(now);
        match self.detector.observe(now, progress) {
            Decision::Nothing => {}
            Decision::Stimulate => {
                self.view.stimuli += 1;
                self.share = self.share();
                self.stimulate();
                self.detector.stimulated(now_ns());
            }
            Decision::Failed => {
                let limit = self.detector.silence_ns_max();
                let found = self.detector.silent_ns(now);
                self.act(now, Reason::Silent { found, limit }, Blamed::default());
            }
            Decision::Recovered => self.tell(Note::Recovered { policy: self.number }),
        }
    }

    /// What the emulator had of the processors up to now.
    fn share(&self) -> Option<Share> {
        Share::of(self.qmp.as_ref().and_then(Qmp::process)?.1)
    }

    /// Gives a guest more time that would fail now because its emulator gets no processor.
    fn bear_with(&mut self, now: u64) {
        let watch_ns = self.policy.watch_ms.saturating_mul(1_000_000);
        let State::Watched { since_ns } = self.detector.state() else {
            self.grants = 0;
            return;
        };
        if now.saturating_sub(since_ns) < watch_ns || self.grants == GRANTS_MAX {
            return;
        }
        let share = self.share();
        if share.zip(self.share).is_some_and(|(share, before)| share.is_starved(before, watch_ns)) {
            self.grants += 1;
            self.view.starved += 1;
            self.share = share;
            self.detector.stimulated(now);
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
        self.tasks.clear();
        self.tasks.shrink_to(TASKS_KEPT);
        let tasks = &mut self.tasks;
        guest.tasks(|task| {
            // What has ended is no danger, and nobody is to blame for it any more.
            if !task.ended {
                tasks.push(*task);
            }
        });
        debug_assert!(tasks.len() <= TASKS_MAX, "a walk is bounded");
        let found = tasks.len() as u64;
        self.view.tasks = found;
        if found >= limit && now >= self.quiet_until_ns {
            let cooldown_ns = self.policy.common.cooldown_ms.saturating_mul(1_000_000);
            self.quiet_until_ns = now.saturating_add(cooldown_ns);
            let culprit = blame::culprit(&self.tasks);
            let blamed =
                Blamed { program: most_frequent(&self.tasks), process: culprit.map_or(0, |task| task.tgid) };
            self.act(now, Reason::Tasks { found, limit }, blamed);
        }
    }

    fn tell(&self, note: Note) {
        if self.notes.try_send(note).is_err() {
            tracing::error!(policy = self.policy.common.name, "an event of a guest found the queue full");
        }
    }

    fn act(&mut self, now: u64, reason: Reason, blamed: Blamed) {
        let action = self.policy.action;
        let mut incident = GuestIncident {
            policy: self.number,
            reason,
            comm: blamed.program,
            process: blamed.process,
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
            let done = fenced
                && match action {
                    GuestAction::Hook => self.ask_hook(&incident),
                    _ => self.carry_out(action),
                };
            incident.outcome = if done { Outcome::Acted } else { Outcome::Unable };
            if fenced && action.fences() {
                incident.failed_over = self.fail_over();
            }
        }
        incident.act_ns = now_ns().saturating_sub(now);
        self.tell(Note::Guest(incident));
    }

    /// Has the guest's own hook repair it.
    fn ask_hook(&mut self, incident: &GuestIncident) -> bool {
        let Some(path) = &self.policy.hook else { return false };
        self.asked += 1;
        let (measure, ..) = incident.reason.parts();
        let asked = Asked { number: self.asked, measure, process: incident.process, program: incident.comm };
        let done = hook::ask(path, &asked, Duration::from_millis(self.policy.hook_ms));
        done.inspect_err(|error| tracing::warn!(policy = self.policy.common.name, %error, "a repair")).is_ok()
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
        Controls::open(&controls::folder(cgroup)).is_ok_and(|controls| controls.freeze())
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
            GuestAction::Report | GuestAction::Pause | GuestAction::Hook => true,
            GuestAction::Nmi => run("inject-nmi", Value::Null),
            GuestAction::OomKill => {
                let key = |name: &str| json!({ "type": "qcode", "data": name });
                run("send-key", json!({ "keys": [key("alt"), key("sysrq"), key("f")] }))
            }
            GuestAction::Reset => {
                let done = run("system_reset", Value::Null) && run("cont", Value::Null);
                if done {
                    (self.fenced, self.halted, self.anew) = (false, false, true);
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

/// The program of the most tasks; those beyond [`PROGRAMS_MAX`] different ones are not counted.
fn most_frequent(tasks: &[Task]) -> Comm {
    let mut programs: Vec<(Comm, u64)> = Vec::with_capacity(PROGRAMS_MAX);
    for task in tasks {
        match programs.iter().position(|(comm, _)| *comm == task.comm) {
            Some(at) => programs[at].1 += 1,
            None if programs.len() < PROGRAMS_MAX => programs.push((task.comm, 1)),
            None => {}
        }
    }
    programs.iter().max_by_key(|(_, count)| *count).map_or([0; 16], |(comm, _)| *comm)
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
    super::state(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}
