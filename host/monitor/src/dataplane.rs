//! The dataplane context (Bohra, table 3.1: the monitor on the network card; row O): a reader that runs in idle slots of a packet
//! core, which goes on when the host can neither start a process nor give a thread its time.
//!
//! ```text
//!  boxes of applications ──(loads)──► Reader::slot ──(stores)──► box `weir-dataplane` ──(loads)──► monitor: audit, repair
//!  probes and reads of other hosts ──(socket)─► Reader::answer ──► answers: a responder on the packet core
//! ```
//!
//! A slot is some loads and stores to memory for each policy of `kind: stalled` with `context: dataplane`: no system call, no
//! allocation. Boxes are found, and let go of, by an ordinary thread that hands them over. What the reader finds it publishes; the
//! monitor acts on it, and looks itself while no reader publishes ([`fresh`]).
//!
//! The other way round, the packet core shows by its own box `switch-NAME` that it goes on ([`Pulse`]): a monitor that sees the
//! counter stand still knows that no packet is moved, also when the process as a whole still answers.
//!
//! The responder makes the remote context of the ring (`responder: dataplane`): it is pinned where the packets are, but it is not
//! one-sided, since a processor of the target answers.

use crate::detector::{Decision, Detector, Settings};
use crate::error::Result;
use crate::policy::{self, Action, Common, Context, NAME_CHARS_MAX, Policy, Stalled};
use crate::remote::{Responder, RingFile};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use weir_sensor::{Directory, Kind, SensorBox, SensorId, Shape, View, now_ns};

/// The box in which the reader publishes.
pub const BOX: &str = "weir-dataplane";
/// Its counter of slots.
pub const SLOTS: &str = "slots";
/// Time between two slots.
const PERIOD: Duration = Duration::from_millis(10);
/// Time between two looks for boxes.
const REFRESH: Duration = Duration::from_millis(250);
/// So many periods of a pulse without progress are reported by the policy that is built in: a switch that was killed is back sooner.
const PERIODS: u32 = 20;
/// Policies that one reader takes.
const ROWS_MAX: usize = 64;
/// A reader that gave no sign for so long is none, ns.
const STALE_NS: u64 = 1_000_000_000;

/// The name of the sensor for a policy: it counts failures and recoveries, so it is odd while the application is taken for failed.
pub fn sensor(policy: usize) -> String {
    format!("failed-{policy}")
}

/// Whether a reader publishes here and now.
pub fn fresh(view: &View, slots: u32, now_ns: u64) -> bool {
    !view.closed() && view.time_ns(slots).is_some_and(|time_ns| now_ns.saturating_sub(time_ns) < STALE_NS)
}

/// The progress of a packet core: a counter that grows with each of its idle slots, which it gives also when it is never idle.
#[derive(Debug)]
pub struct Pulse {
    own: SensorBox,
    slots: SensorId,
}

impl Pulse {
    /// Time between two slots.
    pub const PERIOD: Duration = Duration::from_millis(20);
    /// A core that is never idle gives its slots so much later; the box says that as its period.
    const PERIOD_BUSY: Duration = Duration::from_millis(100);

    /// The box of the switch of a name.
    pub fn name(of: &str) -> String {
        format!("switch-{of}")
    }

    /// Publishes the box.
    ///
    /// # Errors
    /// What is wrong with the name, the folder or the machine.
    pub fn new(of: &str, sensors: &Directory) -> Result<Pulse> {
        let shape = Shape { sensors: 1, records: 16 };
        let own = SensorBox::create(&Pulse::name(of), shape, Pulse::PERIOD_BUSY.as_nanos() as u64)?;
        let slots = own.add(SLOTS, Kind::Counter)?;
        own.export(sensors)?;
        Ok(Pulse { own, slots })
    }

    /// One slot.
    pub fn beat(&self) {
        self.own.count(self.slots, 1);
    }

    /// The policy by which a host's own monitor reports a packet core that stands still, where nobody wrote another one.
    pub fn policy(of: &str) -> Policy {
        let name = format!("builtin-{}", Pulse::name(of));
        Policy::Stalled(Stalled {
            common: Common {
                name: name.chars().take(NAME_CHARS_MAX).collect(),
                cgroup: None,
                whitelist: Vec::new(),
                action: Action::Report,
                dry_run: true,
                cooldown_ms: 1000,
            },
            sensor_box: Pulse::name(of),
            sensor: SLOTS.to_string(),
            periods: PERIODS,
            period_ms: None,
            context: Context::Local,
        })
    }
}

struct Row {
    period_ms: Option<u64>,
    periods: u32,
    attached: Option<(View, u32, Detector)>,
    told: SensorId,
    failed: bool,
}

/// The reader.
pub struct Reader {
    rows: Vec<Row>,
    own: SensorBox,
    slots: SensorId,
    boxes: Receiver<(usize, View, u32)>,
    spent: SyncSender<View>,
    responder: Option<Responder>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    /// Reads the files; nothing when they leave nothing to be done here.
    ///
    /// # Errors
    /// What is wrong with a file, or with the machine.
    pub fn open(policies: Option<&Path>, ring: Option<&Path>, sensors: &Directory) -> Result<Option<Reader>> {
        let policies = policies.map_or(Ok(Vec::new()), policy::load)?;
        let ring = ring.map(RingFile::load).transpose()?;
        Reader::new(&policies, ring.as_ref(), sensors)
    }

    /// A reader for the policies that want one, whose numbers are those of the monitor's; nothing when there is nothing to do.
    ///
    /// # Errors
    /// What is wrong with the machine.
    pub fn new(policies: &[Policy], ring: Option<&RingFile>, sensors: &Directory) -> Result<Option<Reader>> {
        let wanted: Vec<(usize, &Stalled)> = policies
            .iter()
            .enumerate()
            .filter_map(|(at, policy)| match policy {
                Policy::Stalled(stalled) if stalled.context == Context::Dataplane => Some((at, stalled)),
                _ => None,
            })
            .take(ROWS_MAX)
            .collect();
        let responder = ring.map(|ring| Responder::open(ring, sensors)).transpose()?.flatten();
        if wanted.is_empty() && responder.is_none() {
            return Ok(None);
        }
        let shape = Shape { sensors: 1 + ROWS_MAX as u64, records: 16 };
        let own = SensorBox::create(BOX, shape, PERIOD.as_nanos() as u64)?;
        let slots = own.add(SLOTS, Kind::Counter)?;
        let mut rows = Vec::new();
        let mut names = Vec::new();
        for (at, stalled) in wanted {
            let told = own.add(&sensor(at), Kind::Counter)?;
            names.push((stalled.sensor_box.clone(), stalled.sensor.clone()));
            rows.push(Row {
                period_ms: stalled.period_ms,
                periods: stalled.periods,
                attached: None,
                told,
                failed: false,
            });
        }
        own.export(sensors)?;
        let (tell, boxes) = sync_channel(ROWS_MAX);
        let (spent, returned) = sync_channel(ROWS_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, sensors) = (stop.clone(), sensors.clone());
        let find = move || find_boxes(&names, &sensors, &tell, &returned, &stopped);
        std::thread::Builder::new()
            .name("reader-boxes".into())
            .spawn(find)
            .map_err(|error| crate::Error::io("starting the thread that finds boxes", error))?;
        Ok(Some(Reader { rows, own, slots, boxes, spent, responder, stop }))
    }

    /// Time between two slots.
    pub fn period(&self) -> Duration {
        PERIOD
    }

    /// The socket of the responder, if there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.responder.as_ref().map(Responder::socket)
    }

    /// Answers the probes and reads that wait, at most a burst.
    pub fn answer(&mut self) {
        if let Some(responder) = &mut self.responder {
            responder.answer();
        }
    }

    /// One slot.
    pub fn slot(&mut self) {
        let now = now_ns();
        self.own.count(self.slots, 1);
        if let Ok((at, view, slot)) = self.boxes.try_recv() {
            let row = &mut self.rows[at];
            let period_ns = row.period_ms.map_or(view.period_ns(), |ms| ms.saturating_mul(1_000_000));
            let detector = Detector::new(Settings { period_ns, periods: row.periods, watch_ns: 0 });
            if std::mem::take(&mut row.failed) {
                // Another process has taken its place, and has not failed.
                self.own.count(row.told, 1);
            }
            if let Some((old, ..)) = row.attached.replace((view, slot, detector)) {
                // If there is no room, it is let go of here.
                drop(self.spent.try_send(old));
            }
        }
        for row in &mut self.rows {
            let Some((view, slot, detector)) = &mut row.attached else { continue };
            // Who has closed a box has stopped of its own will.
            if view.closed() {
                continue;
            }
            let decision = detector.observe(now, view.value(*slot).unwrap_or(0));
            if matches!(decision, Decision::Failed | Decision::Recovered) {
                row.failed = decision == Decision::Failed;
                self.own.count(row.told, 1);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("policies", &self.rows.len()).finish_non_exhaustive()
    }
}

/// Hands over boxes as they come.
fn find_boxes(
    names: &[(String, String)],
    sensors: &Directory,
    tell: &SyncSender<(usize, View, u32)>,
    returned: &Receiver<View>,
    stop: &AtomicBool,
) {
    let mut known: Vec<Option<(u64, u64)>> = vec![None; names.len()];
    while !stop.load(Ordering::Acquire) {
        returned.try_iter().for_each(drop);
        for (at, (name, sensor)) in names.iter().enumerate() {
            let Ok(view) = sensors.discover(name) else { continue };
            let which = Some((view.process(), view.created_ns()));
            // To follow a reference takes a system call, which a packet core makes none of.
            let Some(slot) = view.find(sensor).filter(|slot| !view.is_reference(*slot)) else { continue };
            if !view.closed() && known[at] != which && tell.try_send((at, view, slot)).is_ok() {
                known[at] = which;
            }
        }
        std::thread::sleep(REFRESH);
    }
}

#[cfg(test)]
mod tests;
