//! The monitor of a host in the one loop (row O): what it sees becomes events of its switch, which signs them for the
//! controllers; what the controllers order comes as entries that the switch's gate has verified.
//!
//! ```text
//!  monitor ── Health ──► switch ── signed event ──► agent ──► controllers ──► order ──► table ──► `weir status`
//!  monitor ◄─ Changed ── switch ◄─ signed update ── agent ◄── controllers ◄── order ◄── `weir monitor repair`
//! ```
//!
//! Invariants
//! - An order is carried out once for each version: what was done is written down before it is done.
//! - What an order froze is thawed when the order is withdrawn, also when that happened while no monitor ran.
//! - Nothing here is needed for repair by policy: without a switch the monitor goes on, and tells later.

use crate::failure::Failure;
use crate::roles::told::Teller;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weir_api::types::{HealthView, RepairView};
use weir_apps::fabric;
use weir_base::codec::{CodecError, decode, encode_frame, frame_length};
use weir_model::entry::Vni;
use weir_model::health::{
    HealthNote, HealthReport, NOTES_MAX, POLICY_BYTES_MAX, RepairAction, RepairEntry, Severity,
    TEXT_BYTES_MAX,
};
use weir_model::local::{Answer, CONTROL_SOCKET, FromSwitch, Question, ToSwitch};
use weir_model::{Entry, Key, Label};
use weir_monitor::audit;
use weir_monitor::explain;
use weir_monitor::ordered::Ordered;
use weir_monitor::service::Monitor;
use weir_monitor::webhook;
use weir_store::Store;

/// Where the policies of a host's monitor are, unless told otherwise.
pub const POLICIES: &str = "/etc/weir/monitor";
/// What was done of what was ordered, beside the audit log.
const DONE_FILE: &str = "ordered.json";
/// Between two reports.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// A report is told again after so long: the first may have been lost for want of a session. Later ones are told in the last pace.
const AGAIN: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(300)];
/// Between two tries to reach the switch.
const RETRY: Duration = Duration::from_millis(500);
/// How long a read of the switch's socket waits.
const READ_PAUSE: Duration = Duration::from_millis(100);
/// A switch takes a frame within this.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// What the monitor of an actuator told, and what it is ordered to do; for the API.
pub fn view(store: &Store, name: &Label) -> Option<HealthView> {
    let repairs: Vec<RepairView> = fabric::repairs_of(store, name)
        .map(|(cgroup, entry)| RepairView { cgroup, action: entry.action, version: entry.version.0 })
        .collect();
    let known = fabric::health(store, name);
    if known.is_none() && repairs.is_empty() {
        return None;
    }
    let (told_ms, report) = known.map_or((0, None), |health| (health.told_ms, Some(health.report)));
    let (kernel, alarms, notes) =
        report.map_or_else(Default::default, |report| (report.kernel, report.alarms, report.notes));
    Some(HealthView { kernel, alarms, told_ms, notes, repairs })
}

/// Why no monitor can run on this machine, if none can.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root");
    }
    weir_monitor::levers::mount().is_none().then_some("no cgroups of version 2 are mounted")
}

/// A note for the controllers from an entry of the audit log; nothing for what is of no interest to them. They are told
/// of faults and repairs only: a query that fires says what somebody asked this host for, and one that fires often would
/// push all faults out of the few notes that are kept.
pub fn note(entry: &audit::Entry) -> Option<HealthNote> {
    if matches!(entry.what, audit::What::Query { .. }) {
        return None;
    }
    let severity = match webhook::severity(entry) {
        Some("critical") => Severity::Critical,
        Some("warning") => Severity::Warning,
        Some(_) => Severity::Info,
        None if webhook::is_end(entry) => Severity::Info,
        None => return None,
    };
    let cut = |text: String, most: usize| match text.char_indices().find(|(at, c)| at + c.len_utf8() > most) {
        Some((at, _)) => text[..at].to_string(),
        None => text,
    };
    Some(HealthNote {
        number: entry.number,
        unix_ms: entry.unix_ms,
        severity,
        policy: cut(entry.policy.clone().unwrap_or_default(), POLICY_BYTES_MAX),
        text: cut(explain::line(entry), TEXT_BYTES_MAX),
    })
}

/// What was done of what was ordered, by cgroup: kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Done(BTreeMap<String, (u64, RepairAction)>);

/// What came of an order: nothing to add, or why it was not carried out.
type Outcome = Result<(), String>;

/// What came of orders that were done, or begun, before this start, by cgroup.
fn unsaid(done: &Done, log: &[(String, audit::Entry)]) -> BTreeMap<String, (u64, Outcome)> {
    let outcome = |cgroup: &str, version: u64, action: RepairAction| {
        let order = match action {
            RepairAction::Freeze => Ordered::Freeze,
            RepairAction::Kill => Ordered::Kill,
        };
        let told = log.iter().rev().find_map(|(_, entry)| match &entry.what {
            audit::What::Ordered { cgroup: of, order: what, version: at, problem }
                if of == cgroup && *at == version && what == order.name() =>
            {
                Some(problem.clone().map_or(Ok(()), Err))
            }
            _ => None,
        });
        told.unwrap_or_else(|| {
            Err("the monitor ended meanwhile, and whether it was done is not known: order it again".into())
        })
    };
    let said = |(cgroup, (version, action)): (&String, &(u64, RepairAction))| {
        (cgroup.clone(), (*version, outcome(cgroup, *version, *action)))
    };
    done.0.iter().map(said).collect()
}

/// The relay. See the module.
pub struct Relay {
    /// Not held: that it ends must not wait for this.
    monitor: Weak<Monitor>,
    socket: PathBuf,
    actuator: Label,
    kernel: String,
    entries: Receiver<audit::Entry>,
    notes: VecDeque<HealthNote>,
    done_file: PathBuf,
    done: Done,
    /// Of what was done before this start: what came of it, as far as the audit log tells.
    unsaid: BTreeMap<String, (u64, Outcome)>,
    teller: Teller,
    /// When to report next, and how often the present report was told.
    due: Instant,
    told: usize,
}

impl Relay {
    /// Starts a thread that relays for as long as `entries` are sent.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn start(
        monitor: &Arc<Monitor>,
        run_dir: &Path,
        actuator: Label,
        audit: &Path,
        entries: Receiver<audit::Entry>,
    ) -> Result<(), Failure> {
        let done_file = audit.with_file_name(DONE_FILE);
        // What was seen before this start is still worth knowing.
        let known = audit::read_all(audit).unwrap_or_default();
        let notes: Vec<HealthNote> =
            known.iter().rev().filter_map(|(_, entry)| note(entry)).take(NOTES_MAX).collect();
        let done = match std::fs::read(&done_file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Failure::Input(format!("{}: {error}", done_file.display())))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Done::default(),
            Err(error) => return Err(Failure::io(done_file.display().to_string())(error)),
        };
        let status = monitor.status();
        let kernel = match &status.degraded {
            Some(reason) => format!("{} (degraded: {reason})", status.kernel),
            None => status.kernel,
        };
        let unsaid = unsaid(&done, &known);
        let relay = Relay {
            teller: Teller::new(actuator.clone()),
            unsaid,
            monitor: Arc::downgrade(monitor),
            socket: run_dir.join(CONTROL_SOCKET),
            actuator,
            kernel: kernel.chars().take(TEXT_BYTES_MAX / 4).collect(),
            entries,
            notes: notes.into_iter().rev().collect(),
            done_file,
            done,
            due: Instant::now(),
            told: 0,
        };
        let thread = std::thread::Builder::new().name("monitor-relay".into());
        thread.spawn(move || relay.run()).map(drop).map_err(Failure::io("starting the relay to the switch"))
    }

    fn run(mut self) {
        let mut complained = false;
        loop {
            match Switch::connect(&self.socket) {
                Ok(mut switch) => {
                    complained = false;
                    self.due = Instant::now();
                    self.told = 0;
                    match self.serve(&mut switch) {
                        Ok(()) => return,
                        Err(error) => tracing::warn!(%error, "the switch is gone; the monitor goes on"),
                    }
                }
                Err(error) if !complained => {
                    complained = true;
                    tracing::info!(socket = %self.socket.display(), %error, "waiting for the switch");
                }
                Err(_) => {}
            }
            std::thread::sleep(RETRY);
            if !self.listen() {
                return;
            }
        }
    }

    /// Relays over one connection; returns when the monitor has ended.
    fn serve(&mut self, switch: &mut Switch) -> Result<(), CodecError> {
        self.teller.connected();
        switch.send(&ToSwitch::Subscribe)?;
        switch.send(&ask_after(last_of_others()))?;
        let mut listed: BTreeMap<String, RepairEntry> = BTreeMap::new();
        let mut whole = false;
        loop {
            while let Some(frame) = switch.receive()? {
                match frame {
                    FromSwitch::Answer { answer: Answer::Entries { entries, last }, .. } => {
                        let newest = entries.last().map(|(key, ..)| key.clone());
                        for (key, _, entry, _) in entries {
                            if let (Some(cgroup), Entry::Repair(repair)) = (self.cgroup(key), entry) {
                                listed.insert(cgroup, repair);
                            }
                        }
                        whole |= last;
                        match newest {
                            Some(key) if !last => switch.send(&ask_after(key))?,
                            _ => {}
                        }
                        if whole {
                            self.reconcile(&listed);
                        }
                    }
                    FromSwitch::Changed { key, entry, .. } => {
                        let Some(cgroup) = self.cgroup(key) else { continue };
                        match entry {
                            Some(Entry::Repair(repair)) => listed.insert(cgroup, repair),
                            _ => listed.remove(&cgroup),
                        };
                        if whole {
                            self.reconcile(&listed);
                        }
                    }
                    _ => {}
                }
            }
            if !self.listen() {
                return Ok(());
            }
            if let Some(frame) = self.teller.due() {
                switch.send(&frame)?;
            }
            if Instant::now() >= self.due {
                let Some(monitor) = self.monitor.upgrade() else { return Ok(()) };
                switch.send(&ToSwitch::Health(self.report(&monitor)))?;
                self.due = Instant::now() + AGAIN[self.told.min(AGAIN.len() - 1)];
                self.told += 1;
            }
        }
    }

    /// The cgroup of a key that is a repair of this host.
    fn cgroup(&self, key: Key) -> Option<String> {
        match key {
            Key::Repair { host, cgroup } if host == self.actuator => Some(cgroup),
            _ => None,
        }
    }

    /// Takes what the monitor told; false when it has ended.
    fn listen(&mut self) -> bool {
        loop {
            match self.entries.try_recv() {
                Ok(entry) => {
                    let Some(note) = note(&entry) else { continue };
                    // One that was written while this started is known from the log.
                    if self.notes.back().is_some_and(|newest| newest.number >= note.number) {
                        continue;
                    }
                    if self.notes.len() == NOTES_MAX {
                        self.notes.pop_front();
                    }
                    self.notes.push_back(note);
                    // The first is told at once, those that follow closely together.
                    self.due = self
                        .due
                        .min(Instant::now() + if self.told == 0 { Duration::ZERO } else { REPORT_PAUSE });
                    self.told = 1;
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn report(&self, monitor: &Monitor) -> HealthReport {
        HealthReport {
            actuator: self.actuator.clone(),
            kernel: self.kernel.clone(),
            alarms: monitor.status().alarms,
            notes: self.notes.iter().cloned().collect(),
        }
    }

    /// Makes what was done what is ordered.
    fn reconcile(&mut self, ordered: &BTreeMap<String, RepairEntry>) {
        let withdrawn: Vec<String> =
            self.done.0.keys().filter(|cgroup| !ordered.contains_key(*cgroup)).cloned().collect();
        for cgroup in withdrawn {
            let Some((version, action)) = self.done.0.remove(&cgroup) else { continue };
            self.keep_done();
            if action == RepairAction::Freeze {
                // Nobody waits for that: it is in the audit log.
                let _ = self.carry_out(version, &cgroup, Ordered::Thaw);
            }
        }
        for (cgroup, repair) in ordered {
            let before = self.done.0.get(cgroup).copied();
            if before.is_some_and(|(version, _)| version >= repair.version.0) {
                match self.unsaid.remove(cgroup) {
                    Some((version, outcome)) if version == repair.version.0 => {
                        self.say(version, cgroup, repair.action, &outcome);
                    }
                    _ => {}
                }
                continue;
            }
            self.unsaid.remove(cgroup);
            self.done.0.insert(cgroup.clone(), (repair.version.0, repair.action));
            self.keep_done();
            let what = match repair.action {
                RepairAction::Freeze => Ordered::Freeze,
                RepairAction::Kill => Ordered::Kill,
            };
            if what == Ordered::Kill && before.is_some_and(|(_, action)| action == RepairAction::Freeze) {
                // The kill reaches who is frozen, too.
                let _ = self.carry_out(repair.version.0, cgroup, Ordered::Thaw);
            }
            let outcome = self.carry_out(repair.version.0, cgroup, what);
            self.say(repair.version.0, cgroup, repair.action, &outcome);
        }
    }

    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered) -> Outcome {
        let monitor = self.monitor.upgrade().ok_or("the monitor was ending: order it again")?;
        monitor.carry_out(version, cgroup, what)
    }

    /// Has it said what became of an order.
    fn say(&mut self, version: u64, cgroup: &str, action: RepairAction, outcome: &Outcome) {
        let order = match action {
            RepairAction::Freeze => "freeze",
            RepairAction::Kill => "kill",
        };
        match outcome {
            Ok(()) => self.teller.say(version, Ok(&format!("{order} of cgroup {cgroup} was carried out"))),
            Err(why) => {
                self.teller
                    .say(version, Err(&format!("{order} of cgroup {cgroup} was NOT carried out: {why}")));
            }
        }
    }

    fn keep_done(&self) {
        let text = serde_json::to_vec(&self.done).map_err(std::io::Error::other);
        let written = text.and_then(|text| weir_base::file::replace(&self.done_file, &text, 0o600));
        if let Err(error) = written {
            tracing::error!(file = %self.done_file.display(), %error, "what was repaired by order is not kept");
        }
    }
}

/// The last key that sorts before those of repairs and of FileWalls' policies.
pub(super) fn last_of_others() -> Key {
    Key::Location { vni: Vni(u32::MAX), address: IpAddr::V6(Ipv6Addr::from(u128::MAX)) }
}

pub(super) fn ask_after(key: Key) -> ToSwitch {
    ToSwitch::Ask { id: 1, question: Question::Entries { after: Some(key) } }
}

/// A connection to the switch's socket.
pub(super) struct Switch {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Switch {
    pub(super) fn connect(socket: &Path) -> std::io::Result<Switch> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(READ_PAUSE))?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        Ok(Switch { stream, input: Vec::new() })
    }

    pub(super) fn send(&mut self, frame: &ToSwitch) -> Result<(), CodecError> {
        Ok(self.stream.write_all(&encode_frame(frame)?)?)
    }

    /// The next frame, if one comes within the read's pause.
    pub(super) fn receive(&mut self) -> Result<Option<FromSwitch>, CodecError> {
        loop {
            if let Some(header) = self.input.first_chunk::<4>() {
                let end = 4 + frame_length(*header)?;
                if self.input.len() >= end {
                    let frame = decode(&self.input[4..end])?;
                    self.input.drain(..end);
                    return Ok(Some(frame));
                }
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(CodecError::Closed),
                Ok(length) => self.input.extend_from_slice(&bytes[..length]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
