//! QEMU's monitor protocol (QMP): JSON lines over a Unix socket. Only what repair needs: commands with their answers, and
//! those events that say why a guest stands still without having failed.
//!
//! What QEMU says is read with limits on length and time: it may hang too.

use crate::error::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest line that is read, bytes.
const LINE_BYTES_MAX: usize = 1 << 20;
/// An answer must come within this.
pub const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// What QEMU told by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest was stopped by somebody.
    Stopped,
    /// It runs again.
    Resumed,
    /// It begins anew: its kernel must be found anew.
    Reset,
    /// It has shut down.
    Shutdown,
}

/// A connection.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    input: Vec<u8>,
    events: Vec<Event>,
    /// The process of QEMU, held so that its number cannot become another's.
    process: Option<OwnedFd>,
    /// Its number.
    pid: Option<u32>,
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |error| Error::Guest(format!("QMP, {what}: {error}"))
}

impl Qmp {
    /// Connects and greets.
    ///
    /// # Errors
    /// [`Error::Guest`].
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(path).map_err(failed("connecting"))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT)).map_err(failed("setting a limit"))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok();
        let pid = peer.map(|peer| peer.pid);
        let process: Option<OwnedFd> = pid.and_then(|pid: Pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let number = pid.map(|pid| pid.as_raw_nonzero().get() as u32);
        let mut qmp = Qmp { stream, input: Vec::new(), events: Vec::new(), process, pid: number };
        let greeting = qmp.line(Instant::now() + ANSWER_LIMIT)?;
        if greeting.get("QMP").is_none() {
            return Err(Error::Guest("what listens at the socket does not greet as QMP does".into()));
        }
        qmp.command("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// The process of QEMU.
    pub fn process(&self) -> Option<(&OwnedFd, u32)> {
        self.process.as_ref().zip(self.pid)
    }

    /// Runs a command; returns its answer.
    ///
    /// # Errors
    /// [`Error::Guest`] when it fails, or no answer comes in time.
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value> {
        self.start(name, arguments)?;
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            let mut line = self.line(until)?;
            if let Some(error) = line.get("error") {
                return Err(Error::Guest(format!("QMP refuses {name}: {}", error["desc"])));
            }
            if let Some(answer) = line.get_mut("return") {
                return Ok(answer.take());
            }
            self.take_event(&line);
        }
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Errors
    /// [`Error::Guest`].
    pub fn start(&mut self, name: &str, arguments: Value) -> Result<()> {
        let mut command = json!({ "execute": name });
        if !arguments.is_null() {
            command["arguments"] = arguments;
        }
        self.stream.write_all(format!("{command}\n").as_bytes()).map_err(failed("writing"))
    }

    /// What QEMU has told since the last look. Waits for nothing; answers that nobody waited for are dropped.
    ///
    /// # Errors
    /// [`Error::Guest`] when QEMU has closed the connection.
    pub fn events(&mut self) -> Result<Vec<Event>> {
        loop {
            match self.line(Instant::now()) {
                Ok(line) => self.take_event(&line),
                Err(Error::Guest(reason)) if reason == LATE => break,
                Err(error) => return Err(error),
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    /// Whether the guest's processors run.
    ///
    /// # Errors
    /// As [`Qmp::command`].
    pub fn running(&mut self) -> Result<bool> {
        Ok(self.command("query-status", Value::Null)?["running"] == Value::Bool(true))
    }

    fn take_event(&mut self, line: &Value) {
        let event = match line["event"].as_str() {
            Some("STOP") => Event::Stopped,
            Some("RESUME") => Event::Resumed,
            Some("RESET") => Event::Reset,
            Some("SHUTDOWN") => Event::Shutdown,
            _ => return,
        };
        // A chatty QEMU cannot fill memory: only what changed last counts.
        if self.events.len() == 64 {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    fn line(&mut self, until: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| Error::Guest(format!("QMP, reading: {error}")));
            }
            if self.input.len() > LINE_BYTES_MAX {
                return Err(Error::Guest(format!("QMP sent a line of more than {LINE_BYTES_MAX} bytes")));
            }
            let left = until.saturating_duration_since(Instant::now());
            let wait = left.max(Duration::from_micros(1));
            self.stream.set_nonblocking(left.is_zero()).map_err(failed("reading"))?;
            if !left.is_zero() {
                self.stream.set_read_timeout(Some(wait)).map_err(failed("setting a limit"))?;
            }
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes);
            self.stream.set_nonblocking(false).map_err(failed("reading"))?;
            match read {
                Ok(0) => return Err(Error::Guest("QEMU has closed its QMP socket".into())),
                Ok(length) => self.input.extend_from_slice(&bytes[..length]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(Error::Guest(LATE.into()));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("reading")(error)),
            }
        }
    }
}

/// Why a line did not come.
const LATE: &str = "QMP does not answer";

#[cfg(test)]
mod tests;
