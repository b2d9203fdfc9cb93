//! One server of a group: connections to it, and calls on them.

use super::doubt::Doubt;
use super::missed::Missed;
use crate::proxy::server::Server;
use crate::proxy::server::{Deadline, random};
use crate::wire::build::{Caller, Record};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op};
use crate::wire::reply::{Results, results};
use crate::wire::rpc::{record_mark, reply_head};
use crate::wire::xdr::{Reader, get_u32, set_u32};
use std::io::{Error, ErrorKind, Result};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who speaks when nobody in particular does.
pub const ROOT: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[] };
/// How long a server may take to answer a call, from its first byte to the last of the reply, before it counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections kept for later.
const IDLE_MAX: usize = 32;
/// Longest reply, bytes.
const REPLY_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// What a server is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It has everything.
    Live,
    /// It cannot be reached, or has missed something: it must be rebuilt first.
    Behind,
}

/// A server and its connections.
#[derive(Debug)]
pub struct Member {
    /// Number, over all groups.
    pub number: usize,
    /// Its address.
    pub server: Server,
    state: AtomicU8,
    why: Mutex<String>,
    missed: Mutex<Missed>,
    verifier: Mutex<Option<u64>>,
    doubt: Mutex<Doubt>,
    timeout: Duration,
    idle: Mutex<Vec<TcpStream>>,
}

/// A reply: the record without its mark, and where its fields are.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The record.
    pub record: Vec<u8>,
    /// Its results.
    pub results: Results,
}

impl Answer {
    /// The handle of the object that was found or made.
    pub fn handle(&self) -> Option<&[u8]> {
        self.results.handle.map(|span| span.of(&self.record))
    }

    /// Attributes of the object.
    pub fn attributes(&self) -> Option<&[u8]> {
        self.results.object.map(|at| &self.record[at..at + ATTRIBUTES_BYTES])
    }
}

impl Member {
    /// A server that was not spoken to yet.
    pub fn new(number: usize, server: Server, timeout: Duration) -> Member {
        Member {
            number,
            server,
            state: AtomicU8::new(State::Live as u8),
            why: Mutex::default(),
            missed: Mutex::default(),
            verifier: Mutex::default(),
            doubt: Mutex::new(Doubt::new(timeout)),
            timeout,
            idle: Mutex::default(),
        }
    }

    /// What it is good for.
    pub fn state(&self) -> State {
        if self.state.load(Ordering::SeqCst) == State::Live as u8 { State::Live } else { State::Behind }
    }

    /// It has everything again; true if that is new.
    pub(super) fn set_live(&self) -> bool {
        let before = self.state.swap(State::Live as u8, Ordering::SeqCst);
        self.set_why(String::new());
        *self.missed() = Missed::default();
        // What it has was made durable when it was compared.
        *self.verifier() = None;
        self.doubt().is_over();
        if before == State::Behind as u8 {
            tracing::warn!(server = %self.server.nfs(), "a replica is live");
        }
        before == State::Behind as u8
    }

    /// It is behind, and why; true if that is new.
    pub(super) fn set_behind(&self, why: &str) -> bool {
        let before = self.state.swap(State::Behind as u8, Ordering::SeqCst);
        if before == State::Live as u8 {
            tracing::warn!(server = %self.server.nfs(), why, "a replica is behind");
        }
        self.set_why(why.to_string());
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        before == State::Live as u8
    }

    /// Why it stays behind.
    pub(super) fn set_why(&self, why: String) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why it is behind; empty if it is not.
    pub fn why(&self) -> String {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it has missed.
    pub(super) fn missed(&self) -> MutexGuard<'_, Missed> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The verifier of its last WRITE or COMMIT: another one says that it has begun anew.
    pub(super) fn verifier(&self) -> MutexGuard<'_, Option<u64>> {
        self.verifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it may still carry out.
    pub(super) fn doubt(&self) -> MutexGuard<'_, Doubt> {
        self.doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its address and export, for people and for what is written down.
    pub fn name(&self) -> String {
        format!("{}{}", self.server.nfs(), self.server.path)
    }

    /// The handle of its root.
    ///
    /// # Errors
    /// What the system or the server says.
    pub fn mount(&self) -> Result<Handle> {
        let mounted = self.server.mount(self.server.path.as_bytes(), &ROOT)?;
        mounted.map_err(|status| Error::other(format!("the server refuses the mount with {status}")))
    }

    fn connection(&self) -> Result<(TcpStream, bool)> {
        if let Some(stream) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok((stream, true));
        }
        let stream = self.server.connect()?;
        Ok((stream, false))
    }

    /// Makes a call: `record` has its mark, its number is replaced.
    ///
    /// # Errors
    /// What the system says; nobody knows then whether the call was carried out, or will be ([`super::doubt`]).
    pub fn call(&self, op: Op, record: &[u8]) -> Result<Answer> {
        let mut record = record.to_vec();
        let xid = random();
        set_u32(&mut record, 4, xid);
        let deadline = Deadline::after(self.timeout);
        loop {
            let (mut stream, used) = self.connection()?;
            match exchange(&mut stream, &record, xid, deadline) {
                Ok(reply) => {
                    let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                    if idle.len() < IDLE_MAX {
                        idle.push(stream);
                    }
                    drop(idle);
                    return understood(op, reply);
                }
                // A connection that was kept may have been closed since; what only looks may be asked once more, within its time.
                Err(_) if used && !op.changes() && !deadline.is_over() => {}
                Err(error) => {
                    // What it has read of this connection it may carry out yet, what it has not, no more.
                    drop(stream);
                    // A COMMIT that comes late does no harm.
                    if op.changes() && op != Op::Commit {
                        self.doubt().unanswered(Instant::now(), &error);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// GETATTR or LOOKUP, as root.
    ///
    /// # Errors
    /// As [`Member::call`].
    pub fn look(&self, folder: &Handle, name: Option<&[u8]>) -> Result<Answer> {
        let op = if name.is_some() { Op::Lookup } else { Op::Getattr };
        let record = Record::nfs3(0, op, &ROOT).opaque(folder.as_bytes());
        self.call(op, &name.iter().fold(record, |record, name| record.opaque(name)).finish())
    }
}

fn exchange(stream: &mut TcpStream, call: &[u8], xid: u32, deadline: Deadline) -> Result<Vec<u8>> {
    deadline.write(stream, call)?;
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        deadline.read(stream, &mut mark)?;
        let (bytes, last) = record_mark(u32::from_be_bytes(mark));
        let begin = record.len();
        if begin + bytes > REPLY_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidData, "a reply that is too long"));
        }
        record.resize(begin + bytes, 0);
        deadline.read(stream, &mut record[begin..])?;
        if last {
            break;
        }
    }
    if record.len() < 4 || get_u32(&record, 0) != xid {
        return Err(Error::new(ErrorKind::InvalidData, "a reply to another call"));
    }
    Ok(record)
}

fn understood(op: Op, record: Vec<u8>) -> Result<Answer> {
    let invalid = |reason: String| Error::new(ErrorKind::InvalidData, reason);
    let mut reader = Reader::whole(&record);
    let head = reply_head(&mut reader).map_err(|wrong| invalid(wrong.to_string()))?;
    let at = head.results_at.ok_or_else(|| invalid("the server refuses the call".to_string()))?;
    let mut found = Results::default();
    let mut reader = Reader::whole(&record);
    reader
        .take(at)
        .and_then(|_| results(&mut reader, op, &mut found))
        .map_err(|wrong| invalid(wrong.to_string()))?;
    Ok(Answer { record, results: found })
}

#[cfg(test)]
mod tests;
