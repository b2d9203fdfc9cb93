//! A whole monitor: the loop in a thread of its own, and a second thread for all that may wait: the audit log, what is
//! shown, cgroups that come and go, boxes that are exported.
//!
//! The two share a bounded queue each way, and a snapshot that the loop fills only when nobody reads it. So the second
//! thread, a full disk or a slow reader cannot hold up the loop.

use crate::audit::{self, Entry, Log, What};
use crate::engine::{self, Engine, NOTES_MAX, Totals};
use crate::error::{Error, Result};
use crate::incident::Note;
use crate::kernel::Kernel;
use crate::levers;
use crate::local::{self, Punctuality, Settings};
use crate::policy::{Action, POLICIES_MAX, Policy};
use crate::query::{Answer, QUERIES_MAX, Queries, Query};
use crate::remote::{Remote, RingFile};
use crate::status::{BoxRow, HostRow, PolicyRow, QueryRow, SensorRow, Status};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_sensor::{Directory, Kind, Registration, View, now_ns};

/// Most entries that are kept for looking at.
pub const RECENT_MAX: usize = 256;
/// Most orders to the loop that wait.
const ORDERS_MAX: usize = 64;
/// Time between two snapshots, ns.
const SNAPSHOT_NS: u64 = 50_000_000;
/// Time between two looks at cgroups and boxes.
const REFRESH: Duration = Duration::from_millis(250);
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
}

/// What the loop shows.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    totals: Totals,
    living: [u64; POLICIES_MAX],
    forks: [u64; POLICIES_MAX],
    answers: [Option<Answer>; QUERIES_MAX],
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot {
            totals: Totals::default(),
            living: [0; POLICIES_MAX],
            forks: [0; POLICIES_MAX],
            answers: [None; QUERIES_MAX],
        }
    }
}

/// What the loop is asked to do.
enum Order {
    Redefine(usize, Vec<u64>),
    Attach(usize, View),
    AttachForQueries(usize, View),
}

struct Shared {
    stop: AtomicBool,
    snapshot: Mutex<Snapshot>,
    punctuality: Arc<Punctuality>,
    recent: Mutex<VecDeque<Entry>>,
    alarms: [AtomicU64; POLICIES_MAX],
    audit_failed: AtomicU64,
    audit_hash: Mutex<String>,
    policies: Vec<Policy>,
    queries: Vec<String>,
    query_kinds: Vec<&'static str>,
    query_boxes: Vec<String>,
    sensors: Directory,
    hosts: Vec<String>,
    /// The part in the ring; taken out at the end, because it holds the queue of notes open.
    remote: Mutex<Option<Remote>>,
    kernel: String,
    degraded: Option<String>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Config { policies, queries, settings, audit, sensors, ring, without_bpf, on_entry } = config;
        let mut log = Log::open(&audit)?;
        let hook = policies.iter().any(|policy| policy.common().action == Action::Hook);
        let kernel = if without_bpf {
            Kernel::open_connector("it was switched off".into())?
        } else {
            Kernel::open(hook)?
        };
        if hook && kernel.way() != crate::kernel::Way::Bpf {
            return Err(Error::Kernel(format!(
                "action hook needs them: {}",
                kernel.degraded.clone().unwrap_or_default()
            )));
        }
        let (notes, heard) = sync_channel(NOTES_MAX);
        let remote = ring.map(|file| Remote::start(&file, settings, notes.clone())).transpose()?;
        let (orders, ordered) = sync_channel(ORDERS_MAX);
        let (spent, returned) = sync_channel(ORDERS_MAX);
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            snapshot: Mutex::default(),
            punctuality: Arc::default(),
            recent: Mutex::new(VecDeque::with_capacity(RECENT_MAX)),
            alarms: Default::default(),
            audit_failed: AtomicU64::new(0),
            audit_hash: Mutex::default(),
            policies: policies.clone(),
            queries: queries.iter().map(|query| query.name.clone()).collect(),
            query_kinds: queries.iter().map(|query| query.when.name()).collect(),
            query_boxes: Queries::new(queries.clone()).boxes().map(str::to_string).collect(),
            sensors,
            hosts: remote.as_ref().map_or(Vec::new(), |remote| remote.names.clone()),
            remote: Mutex::new(remote),
            kernel: kernel.way().name().to_string(),
            degraded: kernel.degraded.clone(),
        });
        let engine = Engine::new(kernel, policies, queries, notes)?;
        let started = What::Started {
            kernel: shared.kernel.clone(),
            degraded: shared.degraded.clone(),
            policies: shared.policies.iter().map(|policy| policy.common().name.clone()).collect(),
        };
        log.write(unix_ms(), None, started)?;
        let loop_thread = start_loop(engine, settings, shared.clone(), ordered, spent)?;
        let mut slow =
            Slow { shared: shared.clone(), log, on_entry, orders, returned, attached: BTreeMap::new() };
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

    /// Ends it: the loop first, then what it told is written.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(lock(&self.shared.remote).take());
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
        Order::Attach(policy, view) => engine.attach(policy, view),
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
    log: Log,
    on_entry: OnEntry,
    orders: SyncSender<Order>,
    returned: Receiver<Order>,
    /// Who was handed which box: its process and time of creation.
    attached: BTreeMap<String, (u64, u64)>,
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
        self.write(None, What::Stopped);
    }

    /// Hands a box to the loop, if it is there and is another than the one that was handed over before.
    fn attach(&mut self, to: &str, name: &str, order: impl FnOnce(View) -> Order) {
        let Ok(view) = self.shared.sensors.discover(name) else { return };
        let which = (view.process(), view.created_ns());
        if !view.closed()
            && self.attached.get(to) != Some(&which)
            && self.orders.try_send(order(view)).is_ok()
        {
            self.attached.insert(to.to_string(), which);
        }
    }

    fn hear(&mut self, note: &Note) {
        if let Note::Incident(incident) = note
            && let Some(alarms) = self.shared.alarms.get(incident.policy)
        {
            alarms.fetch_add(1, Ordering::Relaxed);
        }
        let (policy, what) =
            audit::what(note, &self.shared.policies, &self.shared.queries, &self.shared.hosts);
        self.write(policy, what);
    }

    fn write(&mut self, policy: Option<String>, what: What) {
        match self.log.write(unix_ms(), policy, what) {
            Ok(entry) => {
                tracing::warn!(number = entry.number, policy = entry.policy, event = ?entry.what, "monitor");
                (self.on_entry)(&entry);
                let mut recent = lock(&self.shared.recent);
                if recent.len() == RECENT_MAX {
                    recent.pop_front();
                }
                recent.push_back(entry);
            }
            Err(error) => {
                self.shared.audit_failed.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "an event is not in the audit log");
            }
        }
        lock(&self.shared.audit_hash).clone_from(&self.log.hash().to_string());
    }

    /// Follows cgroups and boxes that come and go. An order that finds no room is given again later.
    fn refresh(&mut self) {
        self.returned.try_iter().for_each(drop);
        for (at, policy) in self.shared.policies.iter().enumerate() {
            if let Some(cgroup) = &policy.common().cgroup
                && let Ok(cgroups) = engine::cgroups_below(&levers::folder(cgroup))
            {
                drop(self.orders.try_send(Order::Redefine(at, cgroups)));
            }
        }
        let shared = self.shared.clone();
        for (at, policy) in shared.policies.iter().enumerate() {
            if let Policy::Stalled(stalled) = policy {
                self.attach(&format!("policy {at}"), &stalled.sensor_box, |view| Order::Attach(at, view));
            }
        }
        for (at, name) in shared.query_boxes.iter().enumerate() {
            self.attach(&format!("query {at}"), name, |view| Order::AttachForQueries(at, view));
        }
    }
}

impl Shared {
    fn query_rows(&self, snapshot: &Snapshot) -> Vec<QueryRow> {
        let named = self.queries.iter().zip(&self.query_kinds).zip(&snapshot.answers);
        let row = |((name, kind), answer): ((&String, &&str), &Option<Answer>)| QueryRow {
            name: name.clone(),
            kind: (*kind).to_string(),
            value: answer.as_ref().map_or(String::new(), |answer| answer.value.text()),
            fired: answer.map_or(0, |answer| answer.fired),
        };
        named.map(row).collect()
    }

    fn host_rows(&self) -> Vec<HostRow> {
        let view = lock(&self.remote).as_ref().map_or(Vec::new(), Remote::view);
        view.into_iter()
            .map(|host| HostRow { name: host.name, failed: host.failed, level: host.level })
            .collect()
    }

    fn status(&self) -> Status {
        let snapshot = *lock(&self.snapshot);
        let totals = snapshot.totals;
        let policies = self.policies.iter().enumerate().map(|(at, policy)| PolicyRow {
            name: policy.common().name.clone(),
            kind: policy.kind().to_string(),
            action: policy.common().action.name().to_string(),
            dry_run: policy.common().dry_run,
            living: snapshot.living[at],
            forks: snapshot.forks[at],
            alarms: self.alarms[at].load(Ordering::Relaxed),
        });
        Status {
            kernel: self.kernel.clone(),
            degraded: self.degraded.clone(),
            steps: totals.steps,
            step_us: totals.step_ns / 1000,
            step_us_max: totals.step_ns_max / 1000,
            late_us_max: self.punctuality.late_ns_max.load(Ordering::Relaxed) / 1000,
            skipped: self.punctuality.skipped.load(Ordering::Relaxed),
            processes: totals.tree.living,
            forks: totals.tree.forks,
            exits: totals.tree.exits,
            execs: totals.tree.execs,
            victims: totals.tree.victims,
            refused: totals.tree.refused,
            events: totals.events,
            lost: totals.lost,
            resyncs: totals.resyncs,
            alarms: totals.alarms,
            signals: totals.signals,
            notes_lost: totals.notes_lost,
            audit: lock(&self.audit_hash).clone(),
            audit_failed: self.audit_failed.load(Ordering::Relaxed),
            policies: policies.collect(),
            boxes: boxes(&self.sensors),
            queries: self.query_rows(&snapshot),
            hosts: self.host_rows(),
        }
    }
}

/// The boxes that are registered now.
fn boxes(sensors: &Directory) -> Vec<BoxRow> {
    let registered = sensors.list().unwrap_or_default();
    registered.iter().take(BOXES_MAX).map(box_row).collect()
}

fn box_row(registration: &Registration) -> BoxRow {
    let mut row = BoxRow {
        name: registration.name.clone(),
        process: registration.process,
        user: registration.user,
        ..BoxRow::default()
    };
    match registration.open() {
        Ok(view) => row.sensors = sensor_rows(&view),
        Err(error) => row.error = Some(error.to_string()),
    }
    row
}

/// The sensors of a box as they are shown.
fn sensor_rows(view: &View) -> Vec<SensorRow> {
    let now = now_ns();
    let row = |sensor: weir_sensor::Sensor| SensorRow {
        value: if sensor.kind == Kind::Event { sensor.updates } else { sensor.value },
        age_ms: (sensor.updates > 0).then(|| now.saturating_sub(sensor.time_ns) / 1_000_000),
        kind: sensor.kind.name().to_string(),
        updates: sensor.updates,
        name: sensor.name,
    };
    view.sensors().into_iter().map(row).collect()
}
