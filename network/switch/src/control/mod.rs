//! The local sockets of a switch, in its run directory (row A16).
//!
//! - `control.sock`: a stream of `weir_model::local` frames, for the agent and for tools ([`clients`]). A thread of its
//!   own reads and writes them, so that a slow or broken client costs forwarding nothing.
//! - `punt.sock`: datagrams with frames for DHCP and DNS and their answers ([`punt`]).
//!
//! Both sockets can be reached only by the user that runs the switch (mode 0600): who may write to
//! them may see tenants' frames, though not change what is in force without the group's signature.

pub mod clients;
pub mod punt;

use crate::engine::sys::{Poller, Wakeup};
use clients::{Client, ControlCounters, Request};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Instant;
use weir_base::codec::{decode, frame_length};
use weir_model::local::ToSwitch;

/// Name of the stream socket.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Name of the datagram socket.
pub const PUNT_SOCKET: &str = "punt.sock";
/// Clients at the same time.
pub const CLIENTS_MAX: usize = 32;
/// Requests that may wait for the slow thread; clients wait with theirs when there are so many.
pub const REQUESTS_MAX: usize = 64;
/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// How long to wait before a full queue of requests is tried again, milliseconds.
const RETRY_MS: i32 = 1;

/// How long to wait before new clients are looked for again, milliseconds.
const PAUSED_MS: i32 = 10;

const TOKEN_WAKE: u64 = u64::MAX;
const TOKEN_LISTENER: u64 = u64::MAX - 1;

struct Connection {
    stream: UnixStream,
    client: Arc<Client>,
    /// Bytes of frames that are not whole yet.
    input: Vec<u8>,
    /// Bytes of the frame that is being written.
    output: Vec<u8>,
    written: usize,
    /// A request that the slow thread had no room for.
    stalled: Option<Request>,
    wants_output: bool,
}

/// The control thread.
pub struct Control {
    listener: UnixListener,
    poller: Poller,
    wake: Arc<Wakeup>,
    requests: SyncSender<Request>,
    slow: Arc<crate::engine::Shared>,
    counters: Arc<ControlCounters>,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// New clients are left to another process, for now.
    paused: bool,
}

/// Binds a listening socket in place of an old one, for this user only.
///
/// # Errors
/// I/O errors.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Control {
    /// Opens the control socket.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(
        run_dir: &Path,
        requests: SyncSender<Request>,
        slow: Arc<crate::engine::Shared>,
        counters: Arc<ControlCounters>,
    ) -> io::Result<Control> {
        Control::on(listen(&run_dir.join(CONTROL_SOCKET))?, requests, slow, counters)
    }

    /// On a socket that listens.
    ///
    /// # Errors
    /// I/O errors.
    pub fn on(
        listener: UnixListener,
        requests: SyncSender<Request>,
        slow: Arc<crate::engine::Shared>,
        counters: Arc<ControlCounters>,
    ) -> io::Result<Control> {
        let poller = Poller::new()?;
        let wake = Arc::new(Wakeup::new()?);
        poller.add(wake.fd(), TOKEN_WAKE)?;
        poller.add(listener.as_fd(), TOKEN_LISTENER)?;
        let connections = HashMap::new();
        Ok(Control { listener, poller, wake, requests, slow, counters, connections, next: 0, paused: false })
    }

    /// Wakes the thread; it looks at `stop` then.
    pub fn waker(&self) -> Arc<Wakeup> {
        Arc::clone(&self.wake)
    }

    /// Serves clients until `stop` is set.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; CLIENTS_MAX + 2];
        while !stop.load(Relaxed) {
            let stalled = self.connections.values().any(|connection| connection.stalled.is_some());
            let wait_ms = match (stalled, self.paused) {
                (true, _) => RETRY_MS,
                (false, true) => PAUSED_MS,
                (false, false) => -1,
            };
            let count = self.poller.wait(&mut events, wait_ms)?;
            if self.paused && !self.counters.paused.load(Relaxed) {
                self.paused = false;
                self.poller.add(self.listener.as_fd(), TOKEN_LISTENER)?;
            }
            for event in &events[..count] {
                match event.u64 {
                    TOKEN_WAKE => self.wake.clear(),
                    TOKEN_LISTENER => self.accept(),
                    number => self.serve(number),
                }
            }
            self.retry_stalled();
            self.write_all();
        }
        Ok(())
    }

    fn accept(&mut self) {
        if self.counters.paused.load(Relaxed) {
            self.paused = true;
            self.poller.remove(self.listener.as_fd());
            return;
        }
        while let Ok((stream, _)) = self.listener.accept() {
            if self.connections.len() >= CLIENTS_MAX || stream.set_nonblocking(true).is_err() {
                self.counters.clients_refused.fetch_add(1, Relaxed);
                continue;
            }
            self.next += 1;
            if self.poller.add(stream.as_fd(), self.next).is_err() {
                continue;
            }
            let client = Arc::new(Client::new(Arc::clone(&self.wake), Arc::clone(&self.counters)));
            let connection = Connection {
                stream,
                client,
                input: Vec::new(),
                output: Vec::new(),
                written: 0,
                stalled: None,
                wants_output: false,
            };
            self.connections.insert(self.next, connection);
        }
    }

    fn serve(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.stalled.is_some() {
            return;
        }
        let open = read_some(connection).is_ok_and(|open| open);
        let parsed = take_frames(connection, &self.requests, &self.slow, &self.counters);
        if !open || !parsed {
            self.close(number);
        }
    }

    fn retry_stalled(&mut self) {
        let mut broken = Vec::new();
        for (number, connection) in &mut self.connections {
            let Some(request) = connection.stalled.take() else { continue };
            if !send(connection, request, &self.requests, &self.slow)
                || !take_frames(connection, &self.requests, &self.slow, &self.counters)
            {
                broken.push(*number);
            }
        }
        for number in broken {
            self.close(number);
        }
    }

    fn write_all(&mut self) {
        let mut broken = Vec::new();
        for (number, connection) in &mut self.connections {
            let ok = write_some(connection).is_ok() && connection.client.is_alive();
            let wants_output = connection.written < connection.output.len();
            if ok && wants_output != connection.wants_output {
                connection.wants_output = wants_output;
                let _ = self.poller.modify(connection.stream.as_fd(), *number, wants_output);
            }
            if !ok {
                broken.push(*number);
            }
        }
        for number in broken {
            self.close(number);
        }
    }

    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            self.poller.remove(connection.stream.as_fd());
            connection.client.end();
        }
    }
}

/// Reads what is there, at most a few reads; returns whether the stream is still open.
fn read_some(connection: &mut Connection) -> io::Result<bool> {
    let mut bytes = [0; READ_BYTES];
    match connection.stream.read(&mut bytes) {
        Ok(0) => Ok(false),
        Ok(read) => {
            connection.input.extend_from_slice(&bytes[..read]);
            Ok(true)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// The first whole frame of the input, as its body's range.
///
/// # Errors
/// The frame is over the limit.
fn whole_frame(input: &[u8]) -> Result<Option<std::ops::Range<usize>>, ()> {
    let Some(header) = input.first_chunk::<4>() else { return Ok(None) };
    let length = frame_length(*header).map_err(|_| ())?;
    Ok((input.len() >= 4 + length).then_some(4..4 + length))
}

/// Hands whole frames on; false when the client must go.
fn take_frames(
    connection: &mut Connection,
    requests: &SyncSender<Request>,
    slow: &crate::engine::Shared,
    counters: &ControlCounters,
) -> bool {
    let mut used = 0;
    while connection.stalled.is_none() {
        let body = match whole_frame(&connection.input[used..]) {
            Ok(Some(body)) => used + body.start..used + body.end,
            Ok(None) => break,
            Err(()) => {
                counters.clients_malformed.fetch_add(1, Relaxed);
                return false;
            }
        };
        let end = body.end;
        match decode::<ToSwitch>(&connection.input[body]) {
            Ok(body) => {
                let client = Arc::clone(&connection.client);
                let request = Request { client, body, received: Instant::now() };
                if !send(connection, request, requests, slow) {
                    return false;
                }
            }
            Err(error) => {
                counters.clients_malformed.fetch_add(1, Relaxed);
                tracing::warn!(%error, "a client of the control socket speaks nonsense: closed");
                return false;
            }
        }
        used = end;
    }
    connection.input.drain(..used);
    true
}

/// Hands a request to the slow thread, or keeps it until there is room; false when that thread is gone.
fn send(
    connection: &mut Connection,
    request: Request,
    requests: &SyncSender<Request>,
    slow: &crate::engine::Shared,
) -> bool {
    match requests.try_send(request) {
        Ok(()) => {
            slow.slow_wake.wake();
            true
        }
        Err(TrySendError::Full(request)) => {
            connection.stalled = Some(request);
            true
        }
        Err(TrySendError::Disconnected(_)) => false,
    }
}

fn write_some(connection: &mut Connection) -> io::Result<()> {
    loop {
        if connection.written == connection.output.len() {
            match connection.client.next_frame() {
                Some(frame) => connection.output = frame,
                None => {
                    connection.output = Vec::new();
                    connection.written = 0;
                    return Ok(());
                }
            }
            connection.written = 0;
        }
        match connection.stream.write(&connection.output[connection.written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => connection.written += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
