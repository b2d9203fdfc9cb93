//! A client of NFSv3 that does nothing but call: one call at a time, or many at once on a connection.

use super::place::CALLER;
use super::{Failure, failed};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use weir_filewall::wire::build::Record;
use weir_filewall::wire::nfs3::{Handle, Op};
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::{record_mark, reply_head};
use weir_filewall::wire::xdr::{Reader, get_u32};

const BUFFER_BYTES: usize = 4 << 20;
/// Bound on every reply.
const BOUND: Duration = Duration::from_secs(20);

/// A connection.
pub struct Connection {
    pub stream: TcpStream,
    received: Vec<u8>,
    start: usize,
    end: usize,
    xid: u32,
    /// The part of a load that is under way.
    pub part: &'static str,
    /// Calls that were asked one by one.
    pub timed: Vec<Timed>,
}

/// A call that was asked alone.
#[derive(Clone, Copy)]
pub struct Timed {
    /// The part of the load that it belongs to.
    pub part: &'static str,
    /// Operation.
    pub op: u32,
    /// How long it took, µs.
    pub time_us: f64,
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(address).map_err(failed(format!("connect to {address}")))?;
        stream.set_nodelay(true).map_err(failed("no delay"))?;
        stream.set_read_timeout(Some(BOUND)).map_err(failed("time-out"))?;
        Ok(Connection {
            stream,
            received: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            xid: 1,
            part: "",
            timed: Vec::new(),
        })
    }

    /// A reply that has come as a whole, without its mark.
    pub fn at_hand(&mut self) -> Option<&[u8]> {
        let have = &self.received[self.start..self.end];
        if have.len() < 4 {
            return None;
        }
        let (bytes, _) = record_mark(get_u32(have, 0));
        if have.len() < 4 + bytes {
            return None;
        }
        let at = self.start + 4;
        self.start = at + bytes;
        Some(&self.received[at..at + bytes])
    }

    /// Reads once, what there is.
    pub fn receive(&mut self) -> std::io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.received.len() - self.end < BUFFER_BYTES / 2 {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.stream.read(&mut self.received[self.end..])? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.end += bytes;
                Ok(())
            }
        }
    }

    /// One call and its reply.
    pub fn ask(&mut self, call: &mut [u8]) -> Result<Vec<u8>, Failure> {
        self.xid = self.xid.wrapping_add(1);
        call[4..8].copy_from_slice(&self.xid.to_be_bytes());
        let begin = Instant::now();
        self.stream.write_all(call).map_err(failed("send a call"))?;
        loop {
            if let Some(reply) = self.at_hand() {
                let reply = reply.to_vec();
                let time_us = begin.elapsed().as_nanos() as f64 / 1000.0;
                self.timed.push(Timed { part: self.part, op: get_u32(call, 24), time_us });
                done(&reply)?;
                return Ok(reply);
            }
            self.receive().map_err(failed("receive a reply"))?;
        }
    }

    /// One call under a transaction number of choice, and its reply.
    pub fn again(&mut self, call: &[u8], xid: u32) -> Result<(), Failure> {
        self.xid = xid.wrapping_sub(1);
        self.ask(&mut call.to_vec()).map(drop)
    }

    /// One call at a time for so long; how long each took, µs.
    pub fn latencies_us(&mut self, call: &mut [u8], window: Duration) -> Result<Vec<f64>, Failure> {
        let since = Instant::now();
        let mut all = Vec::new();
        while since.elapsed() < window {
            let begin = Instant::now();
            self.xid = self.xid.wrapping_add(1);
            call[4..8].copy_from_slice(&self.xid.to_be_bytes());
            self.stream.write_all(call).map_err(failed("send a call"))?;
            loop {
                if let Some(reply) = self.at_hand() {
                    done(reply)?;
                    break;
                }
                self.receive().map_err(failed("receive a reply"))?;
            }
            all.push(begin.elapsed().as_nanos() as f64 / 1000.0);
        }
        Ok(all)
    }

    /// `depth` calls at once for so long; replies a second.
    pub fn rate(&mut self, call: &[u8], depth: usize, window: Duration) -> Result<f64, Failure> {
        let mut out = Vec::new();
        let (mut due, mut pending, mut replies) = (depth, 0usize, 0u64);
        let since = Instant::now();
        loop {
            out.clear();
            for _ in 0..due {
                self.xid = self.xid.wrapping_add(1);
                out.extend_from_slice(&call[..4]);
                out.extend_from_slice(&self.xid.to_be_bytes());
                out.extend_from_slice(&call[8..]);
            }
            pending += due;
            self.stream.write_all(&out).map_err(failed("send calls"))?;
            self.receive().map_err(failed("receive replies"))?;
            due = 0;
            while let Some(reply) = self.at_hand() {
                done(reply)?;
                due += 1;
            }
            replies += due as u64;
            pending -= due;
            if since.elapsed() > window {
                break;
            }
        }
        let per_s = replies as f64 / since.elapsed().as_secs_f64();
        while pending > 0 {
            self.receive().map_err(failed("receive replies"))?;
            while self.at_hand().is_some() {
                pending -= 1;
            }
        }
        Ok(per_s)
    }

    /// A call that brings a handle.
    pub fn handle(&mut self, op: Op, directory: &Handle, name: &str) -> Result<Handle, Failure> {
        let record = Record::nfs3(0, op, &CALLER).opaque(directory.as_bytes()).opaque(name.as_bytes());
        let record = match op {
            // Unchecked, mode 0644, nothing else set.
            Op::Create => attributes(record.u32(0), 0o644),
            Op::Mkdir => attributes(record, 0o755),
            _ => record,
        };
        let reply = self.ask(&mut record.finish())?;
        let mut reader = Reader::whole(&reply);
        let mut found = Results::default();
        let read = reply_head(&mut reader).and_then(|_| results(&mut reader, op, &mut found));
        read.map_err(|wrong| Failure(format!("{op} of '{name}': {wrong}")))?;
        found
            .handle
            .and_then(|span| Handle::new(span.of(&reply)))
            .ok_or_else(|| Failure(format!("{op} of '{name}' brought no handle")))
    }
}

/// Settable attributes of which only the mode is set.
fn attributes(record: Record, mode: u32) -> Record {
    record.u32(1).u32(mode).u32(0).u32(0).u32(0).u32(0).u32(0)
}

/// A reply must say that the call was carried out.
pub fn done(reply: &[u8]) -> Result<(), Failure> {
    let wrong = |what: String| Err(Failure(what));
    if reply.len() < 28 || get_u32(reply, 8) != 0 || get_u32(reply, 20) != 0 {
        return wrong("a call was refused".to_string());
    }
    match get_u32(reply, 24) {
        0 => Ok(()),
        status => wrong(format!("a call was answered with status {status}")),
    }
}
