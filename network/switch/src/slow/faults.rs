//! Frames whose handling failed: kept for whoever looks for the fault, counted, and told of.
//!
//! The newest [`FAULTS_KEPT`] are in a file of the state directory that any reader of captures opens; it is written anew with each of
//! them, at most once a [`WRITE_INTERVAL`]. The log names the first [`FAULTS_LOGGED`], then one in a thousand.

use super::Slow;
use super::mind::Mind;
use crate::engine::contained::{FAULTS_TO_QUARANTINE, Fault};
use crate::engine::{Command, EXTERNAL};
use crate::flow::{Ingress, PortIndex};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Name of the file in the state directory.
pub const FAULTS_FILE: &str = "switch.faults.pcap";
/// Frames that are kept.
pub const FAULTS_KEPT: usize = 16;
/// Faults that the log names one by one.
const FAULTS_LOGGED: u64 = 16;
/// Of those behind it names one in so many.
const FAULTS_PER_LOG: u64 = 1000;
/// The file is written at most so often.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Ports whose faults here are remembered.
const PORTS_MAX: usize = 256;

/// The faults of this process.
#[derive(Debug, Default)]
pub struct Faults {
    /// Where the frames are written; `None`: nowhere.
    path: Option<PathBuf>,
    kept: VecDeque<(Duration, Vec<u8>)>,
    unwritten: bool,
    written: Option<Instant>,
    /// How many frames of a port failed in this thread.
    of_ports: HashMap<PortIndex, u32>,
    /// Faults at all.
    pub count: u64,
    /// Faults of this thread.
    pub own: u64,
    /// Times that the file could not be written.
    pub write_errors: u64,
}

impl Faults {
    /// With a file in a state directory.
    pub fn in_directory(directory: &Path) -> Faults {
        Faults { path: Some(directory.join(FAULTS_FILE)), ..Faults::default() }
    }

    fn keep(&mut self, frame: Vec<u8>) {
        self.count += 1;
        if frame.is_empty() {
            return;
        }
        if self.kept.len() >= FAULTS_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), frame));
        self.unwritten = true;
    }

    /// Whether the log is to name the newest.
    fn is_told(&self) -> bool {
        self.count <= FAULTS_LOGGED || self.count.is_multiple_of(FAULTS_PER_LOG)
    }

    /// Writes the file if there is something new and it is time.
    pub fn write_if_due(&mut self) {
        let is_due = self.written.is_none_or(|at| at.elapsed() >= WRITE_INTERVAL);
        let Some(path) = self.path.as_ref().filter(|_| self.unwritten && is_due) else { return };
        (self.unwritten, self.written) = (false, Some(Instant::now()));
        if let Err(error) = write(path, &self.kept) {
            self.write_errors += 1;
            tracing::warn!(path = %path.display(), %error, "frames whose handling failed cannot be kept");
        }
    }
}

fn write(path: &Path, frames: &VecDeque<(Duration, Vec<u8>)>) -> io::Result<()> {
    let header = PcapHeader { snaplen: 128 * 1024, ..PcapHeader::default() };
    let wrong = |error: pcap_file::PcapError| io::Error::other(error.to_string());
    let mut writer = PcapWriter::with_header(Vec::new(), header).map_err(wrong)?;
    for (time, frame) in frames {
        let length = frame.len() as u32;
        let packet = PcapPacket { timestamp: *time, orig_len: length, data: Cow::Borrowed(frame) };
        writer.write_packet(&packet).map_err(wrong)?;
    }
    weir_base::file::replace(path, &writer.into_writer(), 0o600)
}

impl<M: Mind> Slow<M> {
    /// Takes in a fault of the engine.
    pub(super) fn engine_fault(&mut self, fault: Fault) {
        let port = PortIndex::try_from(fault.class).ok().filter(|_| fault.class < EXTERNAL);
        self.note_fault(port, &fault.frame, &fault.message);
        if let Some(port) = port.filter(|_| fault.quarantined) {
            self.quarantine(port);
        }
    }

    /// Does what is to be done about one frame. A panic in it costs that frame.
    pub(super) fn with_frame<T>(
        &mut self,
        ingress: &Ingress,
        frame: &[u8],
        work: impl FnOnce(&mut Slow<M>) -> T,
    ) -> Option<T> {
        let contained = match weir_base::contain::contain(|| work(self)) {
            Ok(done) => return Some(done),
            Err(contained) => contained,
        };
        let port = if let Ingress::Port(port) = *ingress { Some(port) } else { None };
        self.faults.own += 1;
        self.note_fault(port, frame, &contained.message);
        let port = port?;
        if self.faults.of_ports.len() >= PORTS_MAX && !self.faults.of_ports.contains_key(&port) {
            self.faults.of_ports.clear();
        }
        let count = self.faults.of_ports.entry(port).or_default();
        *count = count.saturating_add(1);
        if *count >= FAULTS_TO_QUARANTINE {
            self.quarantine(port);
            let _ = self.command(Command::SetUp(usize::from(port), false));
        }
        None
    }

    fn note_fault(&mut self, port: Option<PortIndex>, frame: &[u8], message: &str) {
        self.faults.keep(frame.to_vec());
        if !self.faults.is_told() {
            return;
        }
        let of = match port {
            Some(port) => self.ports.key(port).map_or_else(|| format!("port {port}"), ToString::to_string),
            None => "the outside, or another switch".to_string(),
        };
        tracing::error!(
            of,
            bytes = frame.len(),
            faults = self.faults.count,
            message,
            "a fault of the program at one frame, which is lost; it is kept in {FAULTS_FILE} of the state directory"
        );
    }
}

#[cfg(test)]
mod tests;
