//! Orders of releases before, which stand at hosts that were upgraded since: they came as entries of the host's switch, whose gate
//! has verified them, and are read there. New ones are orders of the plane; what is left here is done once, and undone when it is
//! withdrawn.
//!
//! Invariants
//! - An order is carried out once for each version: what was done is written down before it is done.
//! - What an order froze is thawed when it is withdrawn, also when that happened while no monitor ran, unless an order of
//!   the plane holds it frozen now.

use super::Place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;
use weir_base::codec::{CodecError, decode, encode_frame, frame_length};
use weir_model::entry::Vni;
use weir_model::health::{RepairAction, RepairEntry};
use weir_model::local::{Answer, CONTROL_SOCKET, FromSwitch, Question, ToSwitch};
use weir_model::{Entry, Key, Label};
use weir_monitor::ordered::Ordered;
use weir_monitor::plane::Frozen;
use weir_monitor::service::Monitor;

/// What was done of what was ordered, beside the audit log.
const DONE_FILE: &str = "ordered.json";
/// Between two tries to reach the switch.
const RETRY: Duration = Duration::from_millis(500);
/// How long a read of the switch's socket waits.
const READ_PAUSE: Duration = Duration::from_millis(500);
/// A switch takes a frame within this.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// Who carries orders out.
trait Hands {
    fn is_up(&self) -> bool;
    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered);
}

impl Hands for Weak<Monitor> {
    fn is_up(&self) -> bool {
        self.strong_count() > 0
    }

    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered) {
        // What came of it is in the audit log, and so in the report.
        let _logged = self.upgrade().map(|monitor| monitor.carry_out(version, cgroup, what));
    }
}

/// What was done of what was ordered, by cgroup: kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Done(BTreeMap<String, (u64, RepairAction)>);

struct Follower<H> {
    hands: H,
    actuator: Label,
    done_file: PathBuf,
    done: Done,
    frozen: Frozen,
}

/// Follows the orders of a host's switch for as long as the monitor runs.
pub(super) fn follow(monitor: Weak<Monitor>, place: &Place, frozen: Frozen) {
    let done_file = place.audit.with_file_name(DONE_FILE);
    let done = match read(&done_file) {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(file = %done_file.display(), %error, "orders of releases before are not obeyed");
            return;
        }
    };
    let socket = place.host.run().join(CONTROL_SOCKET);
    let mut follower = Follower { hands: monitor, actuator: place.name.clone(), done_file, done, frozen };
    let mut complained = false;
    while follower.hands.is_up() {
        match Switch::connect(&socket).map_err(CodecError::from).and_then(|mut switch| {
            complained = false;
            follower.serve(&mut switch)
        }) {
            Ok(()) => return,
            Err(error) if !complained => {
                complained = true;
                tracing::info!(socket = %socket.display(), %error, "waiting for the switch");
            }
            Err(_) => {}
        }
        std::thread::sleep(RETRY);
    }
}

fn read(path: &Path) -> std::io::Result<Done> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(std::io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Done::default()),
        Err(error) => Err(error),
    }
}

impl<H: Hands> Follower<H> {
    /// Follows over one connection; returns when the monitor has ended.
    fn serve(&mut self, switch: &mut Switch) -> Result<(), CodecError> {
        switch.send(&ToSwitch::Subscribe)?;
        switch.send(&ask_after(last_of_others()))?;
        let mut listed: BTreeMap<String, RepairEntry> = BTreeMap::new();
        let mut whole = false;
        while self.hands.is_up() {
            match switch.receive()? {
                Some(FromSwitch::Answer { answer: Answer::Entries { entries, last }, .. }) => {
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
                }
                Some(FromSwitch::Changed { key, entry, .. }) => {
                    let Some(cgroup) = self.cgroup(key) else { continue };
                    match entry {
                        Some(Entry::Repair(repair)) => drop(listed.insert(cgroup, repair)),
                        _ => drop(listed.remove(&cgroup)),
                    }
                }
                _ => continue,
            }
            if whole {
                self.reconcile(&listed);
            }
        }
        Ok(())
    }

    /// The cgroup of a key that is a repair of this host.
    fn cgroup(&self, key: Key) -> Option<String> {
        match key {
            Key::Repair { host, cgroup } if host == self.actuator => Some(cgroup),
            _ => None,
        }
    }

    /// Makes what was done what is ordered.
    fn reconcile(&mut self, ordered: &BTreeMap<String, RepairEntry>) {
        let withdrawn: Vec<String> =
            self.done.0.keys().filter(|cgroup| !ordered.contains_key(*cgroup)).cloned().collect();
        for cgroup in withdrawn {
            let Some((version, action)) = self.done.0.remove(&cgroup) else { continue };
            self.keep_done();
            if action == RepairAction::Freeze && !self.frozen.has(&cgroup) {
                self.hands.carry_out(version, &cgroup, Ordered::Thaw);
            }
        }
        for (cgroup, repair) in ordered {
            let before = self.done.0.get(cgroup).copied();
            if before.is_some_and(|(version, _)| version >= repair.version.0) {
                continue;
            }
            self.done.0.insert(cgroup.clone(), (repair.version.0, repair.action));
            self.keep_done();
            let what = match repair.action {
                RepairAction::Freeze => Ordered::Freeze,
                RepairAction::Kill => Ordered::Kill,
            };
            if what == Ordered::Kill && before.is_some_and(|(_, action)| action == RepairAction::Freeze) {
                // The kill reaches who is frozen, too.
                self.hands.carry_out(repair.version.0, cgroup, Ordered::Thaw);
            }
            self.hands.carry_out(repair.version.0, cgroup, what);
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

/// The last key that sorts before those of repairs.
fn last_of_others() -> Key {
    Key::Location { vni: Vni(u32::MAX), address: IpAddr::V6(Ipv6Addr::from(u128::MAX)) }
}

fn ask_after(key: Key) -> ToSwitch {
    ToSwitch::Ask { id: 1, question: Question::Entries { after: Some(key) } }
}

/// A connection to the switch's socket.
struct Switch {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Switch {
    fn connect(socket: &Path) -> std::io::Result<Switch> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(READ_PAUSE))?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        Ok(Switch { stream, input: Vec::new() })
    }

    fn send(&mut self, frame: &ToSwitch) -> Result<(), CodecError> {
        Ok(self.stream.write_all(&encode_frame(frame)?)?)
    }

    /// The next frame, if one comes within the read's pause.
    fn receive(&mut self) -> Result<Option<FromSwitch>, CodecError> {
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
