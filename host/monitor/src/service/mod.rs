//! A whole monitor: the loop in a thread of its own, and a second thread for all that may wait: the audit log, what is
//! shown, cgroups that come and go, boxes that are exported.
//!
//! The two share a bounded queue each way, and a snapshot that the loop fills only when nobody reads it. So the second
//! thread, a full disk or a slow reader cannot hold up the loop.

mod shown;

use crate::audit::{self, Entry, Log, What};
use crate::controls;
use crate::dataplane;
use crate::engine::{self, Engine, NOTES_MAX, Totals};
use crate::error::{Error, Result};
use crate::explain;
use crate::guest::watch::Watchers;
use crate::incident::Note;
use crate::kernel::{self, Extras, Kernel};
use crate::local::{self, Punctuality, Settings};
use crate::ordered::{self, OrderError, Ordered};
use crate::policy::{Action, Context, GuestPolicy, Main, POLICIES_MAX, Policy};
use crate::query::{Answer, QUERIES_MAX, Queries, Query};
use crate::remote::{Remote, RingFile};
use crate::runner::{self, Work};
use crate::status::Status;
use crate::webhook::Webhook;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_sensor::{Directory, View, now_ns};

/// Most entries that are kept for looking at.
pub const RECENT_MAX: usize = 256;
/// Most orders to the loop that wait.
const ORDERS_MAX: usize = 64;
/// Time between two snapshots, ns.
const SNAPSHOT_NS: u64 = 50_000_000;
/// Time between two looks at cgroups and boxes.
const REFRESH: Duration = Duration::from_millis(250);
/// So much of a pid file is read.
const PID_FILE_BYTES_MAX: u64 = 64;
/// Most boxes that are shown.
pub const BOXES_MAX: usize = 256;

/// Called with each entry of the audit log; it must not take long.
pub type OnEntry = Box<dyn FnMut(&Entry) + Send>;

/// What to run.
pub struct Config {
    /// The policies.
    pub policies: Vec<Policy>,
    /// The queries.
    pub queries: Vec<Query>,
    /// How the loop runs.
    pub settings: Settings,
    /// The audit log.
    pub audit: PathBuf,
    /// Where boxes are registered.
    pub sensors: Directory,
    /// The ring that this host is part of.
    pub ring: Option<RingFile>,
    /// Do not use programs in the kernel.
    pub without_bpf: bool,
    /// Who is told of entries.
    pub on_entry: OnEntry,
    /// Where alarms are sent; it is told of entries too.
    pub webhook: Option<Arc<Webhook>>,
}

/// What the loop shows.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    totals: Totals,
    living: [u64; POLICIES_MAX],
    forks: [u64; POLICIES_MAX],
    mains: [u32; POLICIES_MAX],
    levels: [Option<f64>; POLICIES_MAX],
    answers: [Option<Answer>; QUERIES_MAX],
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot {
            totals: Totals::default(),
            living: [0; POLICIES_MAX],
            forks: [0; POLICIES_MAX],
            mains: [0; POLICIES_MAX],
            levels: [None; POLICIES_MAX],
            answers: [None; QUERIES_MAX],
        }
    }
}

/// What the loop is asked to do.
enum Order {
    Redefine(usize, Vec<u64>),
    Refit(usize, engine::Fitted),
    /// Back from the loop, which was acting: to be given again.
    NotRefitted(usize, engine::Fitted),
    Attach(usize, View),
    AttachReader(usize, View),
    AttachForQueries(usize, View),
    Claim(usize, u32),
}

/// The audit log, and who is told of its entries.
struct Writer {
    log: Log,
    on_entry: OnEntry,
}

struct Shared {
    stop: AtomicBool,
    snapshot: Mutex<Snapshot>,
    punctuality: Arc<Punctuality>,
    recent: Mutex<VecDeque<Entry>>,
    alarms: [AtomicU64; POLICIES_MAX],
    crashes: [AtomicU64; POLICIES_MAX],
    restarts: [AtomicU64; POLICIES_MAX],
    audit_failed: AtomicU64,
    writer: Mutex<Writer>,
    policies: Vec<Policy>,
    queries: Vec<String>,
    query_kinds: Vec<&'static str>,
    query_boxes: Vec<String>,
    sensors: Directory,
    hosts: Vec<String>,
    /// The guests' watchers; taken out at the end for the same reason.
    guests: Mutex<Option<Watchers>>,
    /// The part in the ring; taken out at the end, because it holds the queue of notes open.
    remote: Mutex<Option<Remote>>,
    kernel_box: Option<View>,
    kernel: String,
    degraded: Option<String>,
    /// Shown with the rest.
    webhook: Option<Arc<Webhook>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sensors of the kernel's box that policies and queries read.
fn asked_of_kernel<'a>(policies: &'a [Policy], queries: &'a [Query]) -> impl Iterator<Item = &'a str> {
    let of_policies = policies.iter().filter_map(|policy| match policy {
        Policy::Stalled(stalled) => Some((stalled.sensor_box.as_str(), stalled.sensor.as_str())),
        _ => None,
    });
    let all = of_policies.chain(queries.iter().flat_map(Query::sensors));
    all.filter(|(of, _)| *of == kernel::BOX).map(|(_, sensor)| sensor)
}

/// Gives the kernel's box to those who read it. It is registered nowhere, so that nobody can take its name.
fn attach_kernel(engine: &mut Engine, shared: &Shared) -> Result<()> {
    for (at, policy) in shared.policies.iter().enumerate() {
        if let Policy::Stalled(stalled) = policy
            && stalled.sensor_box == kernel::BOX
        {
            match engine.kernel().view()?.filter(|view| view.find(&stalled.sensor).is_some()) {
                Some(view) => engine.attach(at, view),
                None => tracing::warn!(
                    policy = stalled.common.name,
                    sensor = stalled.sensor,
                    "DEGRADED: the kernel's box has no such sensor"
                ),
            }
        }
    }
    for (at, _) in shared.query_boxes.iter().enumerate().filter(|(_, name)| *name == kernel::BOX) {
        if let Some(view) = engine.kernel().view()? {
            drop(engine.attach_for_queries(at, view));
        }
    }
    Ok(())
}

/// A running monitor.
pub struct Monitor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Monitor {
    /// Starts one. It runs when this returns.
    ///
    /// # Errors
    /// What is wrong with a policy, the audit log or the machine.
    pub fn start(config: Config) -> Result<Monitor> {
        let Config { policies, queries, settings, audit, sensors, ring, without_bpf, on_entry, webhook } =
            config;
        let log = Log::open(&audit)?;
        let hook = policies.iter().any(|policy| policy.common().action == Action::Hook);
        let kernel = if without_bpf {
            Kernel::open_connector("it was switched off".into())?
        } else {
            let switches =
                asked_of_kernel(&policies, &queries).any(|sensor| sensor.starts_with(kernel::SWITCHES));
            Kernel::open_with(Extras { hook, switches })?
        };
        if hook && kernel.way() != crate::kernel::Way::Bpf {
            return Err(Error::Kernel(format!(
                "action hook needs them: {}",
                kernel.degraded.clone().unwrap_or_default()
            )));
        }
        let (notes, heard) = sync_channel(NOTES_MAX);
        let guests: Vec<(usize, GuestPolicy)> = policies
            .iter()
            .enumerate()
            .filter_map(|(at, policy)| match policy {
                Policy::Guest(guest) => Some((at, guest.clone())),
                _ => None,
            })
            .collect();
        let guests = Watchers::start(guests, settings, &notes)?;
        let remote = ring.map(|file| Remote::start(&file, settings, &sensors, notes.clone())).transpose()?;
        let (orders, ordered) = sync_channel(ORDERS_MAX);
        let (spent, returned) = sync_channel(ORDERS_MAX);
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            snapshot: Mutex::default(),
            punctuality: Arc::default(),
            recent: Mutex::new(VecDeque::with_capacity(RECENT_MAX)),
            alarms: Default::default(),
            crashes: Default::default(),
            restarts: Default::default(),
            audit_failed: AtomicU64::new(0),
            writer: Mutex::new(Writer { log, on_entry }),
            policies: policies.clone(),
            queries: queries.iter().map(|query| query.name.clone()).collect(),
            query_kinds: queries.iter().map(|query| query.when.name()).collect(),
            query_boxes: Queries::new(queries.clone()).boxes().map(str::to_string).collect(),
            sensors,
            hosts: remote.as_ref().map_or(Vec::new(), |remote| remote.names.clone()),
            guests: Mutex::new(Some(guests)),
            remote: Mutex::new(remote),
            kernel_box: kernel.view()?,
            kernel: kernel.way().name().to_string(),
            degraded: kernel.degraded.clone(),
            webhook,
        });
        let (commands, ran) = runner::start(policies.len(), works(&policies))?;
        let mut engine = Engine::new(kernel, policies, queries, notes)?
            .with_runners(commands, ran)
            .with_hurry(settings.priority.is_some());
        attach_kernel(&mut engine, &shared)?;
        let started = What::Started {
            kernel: shared.kernel.clone(),
            degraded: shared.degraded.clone(),
            policies: shared.policies.iter().map(|policy| policy.common().name.clone()).collect(),
        };
        let started = lock(&shared.writer).log.write(unix_ms(), None, started)?;
        if let Some(webhook) = &shared.webhook {
            webhook.tell(&started);
        }
        let loop_thread = start_loop(engine, settings, shared.clone(), ordered, spent)?;
        let mut slow = Slow {
            shared: shared.clone(),
            orders,
            returned,
            attached: BTreeMap::new(),
            claims: BTreeMap::new(),
            fitted: BTreeMap::new(),
        };
        let slow_thread = spawn("monitor-log", move || slow.run(&heard))?;
        Ok(Monitor { shared, threads: vec![loop_thread, slow_thread] })
    }

    /// What it shows now.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// The newest entries of the audit log, oldest first.
    pub fn recent(&self) -> Vec<Entry> {
        lock(&self.shared.recent).iter().cloned().collect()
    }

    /// Carries out what somebody above the host orders, and writes down what came of it.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn carry_out(
        &self,
        version: u64,
        cgroup: &str,
        what: Ordered,
    ) -> std::result::Result<(), OrderError> {
        let outcome = ordered::carry_out(cgroup, what);
        let (order, problem) = (what.name().to_string(), outcome.as_ref().err().map(ToString::to_string));
        self.shared.write(None, What::Ordered { cgroup: cgroup.to_string(), order, version, problem });
        outcome
    }

    /// Ends it: the loop first, then what it told is written.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(lock(&self.shared.remote).take());
        drop(lock(&self.shared.guests).take());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so itself.
            drop(thread.join());
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
        .map_err(|error| Error::io(format!("starting the thread {name}"), error))
}

/// Starts the loop; returns once its thread has its priority, or with the reason why it does not get it.
fn start_loop(
    mut engine: Engine,
    settings: Settings,
    shared: Arc<Shared>,
    ordered: Receiver<Order>,
    spent: SyncSender<Order>,
) -> Result<JoinHandle<()>> {
    let (tell, told) = sync_channel(1);
    let thread = spawn("monitor-loop", move || {
        let settled = local::settle(&settings);
        let good = settled.is_ok();
        if tell.send(settled).is_err() || !good {
            return;
        }
        let mut shown_ns = 0;
        local::run(&mut engine, &settings, &shared.stop, &shared.punctuality, |engine, now| {
            for order in ordered.try_iter() {
                obey(engine, order, &spent);
            }
            if now.saturating_sub(shown_ns) >= SNAPSHOT_NS {
                shown_ns = now;
                show(engine, now, &shared);
            }
        });
        show(&engine, now_ns(), &shared);
    })?;
    match told.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::io("starting the loop", std::io::Error::other("its thread ended"))),
    }
}

fn obey(engine: &mut Engine, order: Order, spent: &SyncSender<Order>) {
    match order {
        Order::Redefine(policy, cgroups) => {
            engine.redefine(policy, &cgroups);
            // The memory is freed by the other thread, if there is room in the queue.
            drop(spent.try_send(Order::Redefine(policy, cgroups)));
        }
        Order::Refit(policy, fitted) => {
            let back = match engine.refit(policy, fitted) {
                Ok(old) => Order::Refit(policy, old),
                Err(kept) => Order::NotRefitted(policy, kept),
            };
            drop(spent.try_send(back));
        }
        // It goes the other way only.
        Order::NotRefitted(..) => {}
        Order::Attach(policy, view) => engine.attach(policy, view),
        Order::AttachReader(policy, view) => engine.attach_reader(policy, view),
        Order::Claim(policy, process) => engine.claim(policy, process),
        Order::AttachForQueries(at, view) => {
            if let Some(old) = engine.attach_for_queries(at, view) {
                drop(spent.try_send(Order::AttachForQueries(at, old)));
            }
        }
    }
}

fn show(engine: &Engine, now: u64, shared: &Shared) {
    let Ok(mut snapshot) = shared.snapshot.try_lock() else { return };
    snapshot.totals = engine.totals;
    for at in 0..shared.policies.len() {
        let scope = engine.tree().scope(at);
        snapshot.living[at] = scope.living(now);
        snapshot.forks[at] = scope.forks(now);
        snapshot.mains[at] = engine.main_process(at);
        snapshot.levels[at] = engine.level(at, now);
    }
    for at in 0..engine.queries().len() {
        snapshot.answers[at] = engine.queries().answer(at);
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The thread that may wait.
struct Slow {
    shared: Arc<Shared>,
    orders: SyncSender<Order>,
    returned: Receiver<Order>,
    /// Who was handed which box: its process and time of creation.
    attached: BTreeMap<String, (u64, u64)>,
    /// What pid files said last: the process, and when they were written.
    claims: BTreeMap<usize, (u32, SystemTime)>,
    /// The number of each policy's cgroup, as the loop has it; 0: none.
    fitted: BTreeMap<usize, u64>,
}

impl Slow {
    fn run(&mut self, heard: &Receiver<Note>) {
        let mut refreshed = std::time::Instant::now();
        self.refresh();
        loop {
            match heard.recv_timeout(REFRESH) {
                Ok(note) => self.hear(&note),
                Err(RecvTimeoutError::Timeout) => {}
                // The loop has ended, and all that it told was heard.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if refreshed.elapsed() >= REFRESH {
                self.refresh();
                refreshed = std::time::Instant::now();
            }
        }
        self.shared.write(None, What::Stopped);
    }

    /// Hands a box to the loop, if it is there and is another than the one that was handed over before.
    fn attach(&mut self, to: &str, found: Option<View>, order: impl FnOnce(View) -> Order) {
        let Some(view) = found else { return };
        let which = (view.process(), view.created_ns());
        if view.closed() || self.attached.get(to) == Some(&which) {
            return;
        }
        // The loop does not wait for its pages.
        view.populate();
        if self.orders.try_send(order(view)).is_ok() {
            self.attached.insert(to.to_string(), which);
        }
    }

    /// Opens what a policy has of its cgroup anew, when that is another than before: the loop opens nothing.
    fn refit(&mut self, at: usize, policy: &Policy) {
        let Some(folder) = policy.common().cgroup.as_ref().map(|cgroup| controls::folder(cgroup)) else {
            return;
        };
        let now = std::fs::metadata(folder).map_or(0, |status| std::os::unix::fs::MetadataExt::ino(&status));
        if self.fitted.get(&at) == Some(&now) {
            return;
        }
        match engine::Fitted::open(policy) {
            Ok(fitted) if fitted.cgroup() == now => {
                if self.orders.try_send(Order::Refit(at, fitted)).is_ok() {
                    self.fitted.insert(at, now);
                }
            }
            // It was made anew meanwhile: the next time.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(policy = policy.common().name, %error, "DEGRADED: the policy cannot act on its cgroup, which was made anew");
                self.fitted.insert(at, now);
            }
        }
    }

    fn hear(&mut self, note: &Note) {
        let count = |of: &[AtomicU64; POLICIES_MAX], policy: usize, more: u64| {
            if let Some(counter) = of.get(policy) {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        };
        let alarm = match note {
            Note::Incident(incident) => Some(incident.policy),
            Note::Guest(incident) => Some(incident.policy),
            Note::Crashed(crash) => {
                count(&self.shared.crashes, crash.policy, 1 + crash.more);
                crash.main.then_some(crash.policy)
            }
            Note::Restarted { policy, .. } => {
                count(&self.shared.restarts, *policy, 1);
                None
            }
            _ => None,
        };
        if let Some(policy) = alarm {
            count(&self.shared.alarms, policy, 1);
        }
        let (policy, what) =
            audit::what(note, &self.shared.policies, &self.shared.queries, &self.shared.hosts);
        self.shared.write(policy, what);
    }

    /// Follows cgroups and boxes that come and go. An order that finds no room is given again later.
    fn refresh(&mut self) {
        for back in self.returned.try_iter() {
            if let Order::NotRefitted(policy, kept) = back {
                drop(kept);
                self.fitted.remove(&policy);
            }
        }
        for (at, policy) in self.shared.policies.iter().enumerate() {
            if let Some(cgroup) = &policy.common().cgroup
                && let Ok(cgroups) = engine::cgroups_below(&controls::folder(cgroup))
            {
                drop(self.orders.try_send(Order::Redefine(at, cgroups)));
            }
        }
        let shared = self.shared.clone();
        for (at, policy) in
            shared.policies.iter().enumerate().filter(|(_, policy)| policy.common().cgroup.is_some())
        {
            self.refit(at, policy);
        }
        for (at, policy) in shared.policies.iter().enumerate() {
            if let Policy::Stalled(stalled) = policy
                && stalled.sensor_box != kernel::BOX
            {
                // A publisher may add its sensors after it has exported the box.
                let has = |view: &View| view.find(&stalled.sensor).is_some();
                let found = shared.sensors.discover(&stalled.sensor_box).ok().filter(has);
                self.attach(&format!("policy {at}"), found, |view| Order::Attach(at, view));
                if stalled.context == Context::Dataplane {
                    // Anybody may register a name; only a reader of this user is believed.
                    let found = shared.sensors.discover_own(dataplane::BOX).ok();
                    self.attach(&format!("reader {at}"), found, |view| Order::AttachReader(at, view));
                }
            }
        }
        for (at, policy) in shared.policies.iter().enumerate() {
            if let Policy::Service(service) = policy
                && let Main::PidFile(path) = &service.main
                && let Some(claim) = read_pid_file(path)
                && self.claims.get(&at) != Some(&claim)
                && self.orders.try_send(Order::Claim(at, claim.0)).is_ok()
            {
                self.claims.insert(at, claim);
            }
        }
        for (at, name) in shared.query_boxes.iter().enumerate().filter(|(_, name)| *name != kernel::BOX) {
            let found = shared.sensors.discover(name).ok();
            self.attach(&format!("query {at}"), found, |view| Order::AttachForQueries(at, view));
        }
    }
}

/// The process that a file names, and when that was written. The file may be a user's, who may name only its own processes, and must not
/// keep the monitor waiting.
fn read_pid_file(path: &Path) -> Option<(u32, SystemTime)> {
    use rustix::fs::{Mode, OFlags};
    use std::os::unix::fs::MetadataExt;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let status = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = String::new();
    file.take(PID_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let process: u32 = text.split_whitespace().next()?.parse().ok().filter(|process| *process > 1)?;
    let is_theirs = |user: u32| status.uid() == 0 || user == status.uid();
    is_theirs(std::fs::metadata(format!("/proc/{process}")).ok()?.uid()).then_some(())?;
    Some((process, status.modified().ok()?))
}

/// The commands that start services again, of policies that act.
fn works(policies: &[Policy]) -> Vec<Work> {
    let work = |(policy, of): (usize, &Policy)| match of {
        Policy::Service(service) if !service.common.dry_run => {
            let restart = service.restart.as_ref()?;
            let cgroup = service.common.cgroup.as_ref().filter(|_| restart.enters);
            let cgroup = cgroup.map(|cgroup| controls::folder(cgroup));
            Some(Work { policy, command: restart.command.clone(), cgroup })
        }
        _ => None,
    };
    policies.iter().enumerate().filter_map(work).collect()
}

impl Shared {
    /// Writes an entry, and tells who listens.
    fn write(&self, policy: Option<String>, what: What) {
        let mut writer = lock(&self.writer);
        match writer.log.write(unix_ms(), policy, what) {
            Ok(entry) => {
                tracing::warn!(
                    event = entry.number,
                    policy = entry.policy,
                    "{}",
                    explain::line(&entry).replace('\n', ", ")
                );
                (writer.on_entry)(&entry);
                if let Some(webhook) = &self.webhook {
                    webhook.tell(&entry);
                }
                let mut recent = lock(&self.recent);
                if recent.len() == RECENT_MAX {
                    recent.pop_front();
                }
                recent.push_back(entry);
            }
            Err(error) => {
                self.audit_failed.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "an event is not in the audit log");
            }
        }
    }
}
