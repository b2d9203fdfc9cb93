//! Calls that come whether or not the server keeps up, as those of many clients do.

use super::client::{Connection, done};
use super::{Failure, failed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections that the calls are spread over.
const CONNECTIONS: usize = 8;
/// Calls without a reply on one connection above which the next ones are left out: a client's own limit.
const PENDING_MAX: usize = 64;

struct Lane {
    connection: Connection,
    out: Vec<u8>,
    sent: usize,
    pending: usize,
}

impl Lane {
    fn send(&mut self) -> Result<(), Failure> {
        while self.sent < self.out.len() {
            match self.connection.stream.write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(failed("send calls")(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes the replies that have come.
    fn replies(&mut self) -> Result<usize, Failure> {
        let mut count = 0;
        loop {
            match self.connection.receive() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(failed("receive replies")(error)),
            }
            while let Some(reply) = self.connection.at_hand() {
                done(reply)?;
                count += 1;
            }
        }
        self.pending -= count;
        Ok(count)
    }
}

/// Offers `per_s` calls a second for so long; how many were answered a second.
pub fn offer(address: SocketAddr, mix: &[Vec<u8>], per_s: f64, window: Duration) -> Result<f64, Failure> {
    let mut lanes = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = Connection::open(address)?;
        connection.stream.set_nonblocking(true).map_err(failed("no blocking"))?;
        lanes.push(Lane { connection, out: Vec::new(), sent: 0, pending: 0 });
    }
    let (mut offered, mut answered, mut xid) = (0usize, 0usize, 0u32);
    let since = Instant::now();
    while since.elapsed() < window {
        let due = (since.elapsed().as_secs_f64() * per_s) as usize;
        while offered < due {
            let lane = &mut lanes[offered % CONNECTIONS];
            offered += 1;
            if lane.pending >= PENDING_MAX {
                continue;
            }
            let call = &mix[offered % mix.len()];
            xid = xid.wrapping_add(1);
            lane.out.extend_from_slice(&call[..4]);
            lane.out.extend_from_slice(&xid.to_be_bytes());
            lane.out.extend_from_slice(&call[8..]);
            lane.pending += 1;
        }
        for lane in &mut lanes {
            lane.send()?;
        }
        let mut polled: Vec<PollFd<'_>> = lanes
            .iter()
            .map(|lane| {
                let out = if lane.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::new(&lane.connection.stream, PollFlags::IN | out)
            })
            .collect();
        let pause = Timespec { tv_sec: 0, tv_nsec: 200_000 };
        poll(&mut polled, Some(&pause)).map_err(failed("poll"))?;
        let ready: Vec<bool> = polled.iter().map(|one| one.revents().contains(PollFlags::IN)).collect();
        for (lane, _) in lanes.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            answered += lane.replies()?;
        }
    }
    Ok(answered as f64 / since.elapsed().as_secs_f64())
}
