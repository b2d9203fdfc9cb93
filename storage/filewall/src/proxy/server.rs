//! The server behind FileWall: its address, and connections to it.

use crate::error::{Error, Result};
use crate::wire::build::{Caller, Record};
use crate::wire::nfs3::{Handle, Op, Status, ftype};
use crate::wire::rpc::{self, program};
use crate::wire::xdr::{Reader, get_u32};
use crate::wire::{make, mount, name, reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Port of NFS where none is said.
const NFS_PORT: u16 = 2049;
const PORTMAP_PORT: u16 = 111;
/// Longest record that a helper protocol may answer with, bytes.
const HELPER_RECORD_BYTES_MAX: usize = 4096;
/// How long one call of a helper protocol may take.
const HELPER_TIMEOUT: Duration = Duration::from_secs(5);
/// Ports that servers take for a sign that root is calling.
const RESERVED_PORTS: std::ops::Range<u16> = 600..1024;
/// Reserved ports tried before another is taken.
const RESERVED_TRIES: u32 = 32;

/// A server and what of it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub address: IpAddr,
    /// Port of NFS.
    pub nfs_port: u16,
    /// Port of MOUNT; asked of its portmapper if there is none.
    pub mount_port: Option<u16>,
    /// The export, as its clients would mount it.
    pub path: String,
}

impl std::str::FromStr for Server {
    type Err = Error;

    /// Reads `nfs://ADDRESS/PATH?nfsport=N&mountport=N`, as libnfs and QEMU write it.
    fn from_str(text: &str) -> Result<Server> {
        let wrong = |reason: &str| Error::Server { text: text.to_string(), reason: reason.to_string() };
        let rest = text.strip_prefix("nfs://").ok_or_else(|| wrong("it does not begin with nfs://"))?;
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = place.find('/').map_or((place, "/"), |at| place.split_at(at));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut found = (host, 0u16).to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
        let address = found.next().ok_or_else(|| wrong("its name has no address"))?.ip();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        name::of_path(path.as_bytes()).map_err(|why| wrong(&format!("its export: {why}")))?;
        let mut server = Server { address, nfs_port: NFS_PORT, mount_port: None, path: path.to_string() };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let port: u16 = value.parse().map_err(|_| wrong(&format!("'{value}' is no port")))?;
            match key {
                "nfsport" => server.nfs_port = port,
                "mountport" => server.mount_port = Some(port),
                other => return Err(wrong(&format!("'{other}' is no option"))),
            }
        }
        Ok(server)
    }
}

impl Server {
    /// Address of NFS.
    pub fn nfs(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.nfs_port)
    }

    /// The names on the way from the server's root to the export.
    pub fn way(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes)
    }

    /// What of a mounted path lies below the export; `None` if it is outside.
    pub fn below<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        if self.path == "/" {
            return Some(path);
        }
        let rest = path.strip_prefix(self.path.as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
    }

    /// Begins a connection to NFS, without waiting for it.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin_connect(&self) -> std::io::Result<TcpStream> {
        begin_connect(self.nfs())
    }

    /// Connects to NFS, waiting.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(&self) -> std::io::Result<TcpStream> {
        connect_reserved(self.nfs())
    }

    /// Asks the server for the handle of a path, waiting. The inner error is the status that it refuses with.
    ///
    /// # Errors
    /// What the system says, or [`std::io::ErrorKind::InvalidData`].
    pub fn mount(
        &self,
        path: &[u8],
        caller: &Caller<'_>,
    ) -> std::io::Result<std::result::Result<Handle, u32>> {
        let port = match self.mount_port {
            Some(port) => port,
            None => self.port_of(program::MOUNT, mount::VERSION)?,
        };
        let call = Record::call(1, program::MOUNT, mount::VERSION, 1, caller).opaque(path).finish();
        let record = exchange(SocketAddr::new(self.address, port), &call)?;
        let mut reader = Reader::whole(&record);
        results(&mut reader)?;
        match mount::mount_results(&mut reader).map_err(invalid)? {
            Err(status) => Ok(Err(status)),
            Ok(span) => {
                Handle::new(span.of(&record)).map(Ok).ok_or_else(|| invalid("a handle above 64 bytes"))
            }
        }
    }

    /// Asks the server for the handle of a folder below the export, waiting, as [`Server::mount`]. The way there is gone down name
    /// by name: a server that is asked to mount the whole path may follow links on it, or not look at it at all, and
    /// then policies would take one folder for another.
    ///
    /// # Errors
    /// As [`Server::mount`].
    pub fn mount_below(
        &self,
        below: &[u8],
        caller: &Caller<'_>,
    ) -> std::io::Result<std::result::Result<Handle, u32>> {
        let mut found = self.mount(self.path.as_bytes(), caller)?;
        let Ok(names) = name::of_path(below) else { return Ok(Err(mount::DENIED)) };
        for name in names {
            let Ok(folder) = found else { break };
            found = self.lookup_folder(&folder, name, caller)?;
        }
        Ok(found)
    }

    fn lookup_folder(
        &self,
        folder: &Handle,
        name: &[u8],
        caller: &Caller<'_>,
    ) -> std::io::Result<std::result::Result<Handle, u32>> {
        let call = Record::nfs3(1, Op::Lookup, caller).opaque(folder.as_bytes()).opaque(name).finish();
        let record = exchange(self.nfs(), &call)?;
        let mut reader = Reader::whole(&record);
        results(&mut reader)?;
        let mut found = reply::Results::default();
        reply::results(&mut reader, Op::Lookup, &mut found).map_err(invalid)?;
        let kind = found.object.map(|at| get_u32(&record, at + make::at::KIND));
        match Status::of(found.status) {
            Status::Ok => {}
            Status::Perm
            | Status::Noent
            | Status::Io
            | Status::Acces
            | Status::Notdir
            | Status::Inval
            | Status::Nametoolong => return Ok(Err(found.status)),
            // MOUNT has no other numbers.
            _ => return Ok(Err(mount::FAULT)),
        }
        if kind.is_some_and(|kind| kind != ftype::DIRECTORY) {
            return Ok(Err(mount::NOT_A_FOLDER));
        }
        let handle = found.handle.and_then(|span| Handle::new(span.of(&record)));
        handle.map(Ok).ok_or_else(|| invalid("a LOOKUP without a handle"))
    }

    fn port_of(&self, program_number: u32, version: u32) -> std::io::Result<u16> {
        let caller = Caller { uid: 0, gid: 0, groups: &[] };
        let call = Record::call(1, program::PORTMAP, 2, 3, &caller);
        let call = call.u32(program_number).u32(version).u32(6).u32(0).finish();
        let record = exchange(SocketAddr::new(self.address, PORTMAP_PORT), &call)?;
        let mut reader = Reader::whole(&record);
        results(&mut reader)?;
        let port = reader.u32().map_err(invalid)?;
        u16::try_from(port).ok().filter(|port| *port != 0).ok_or_else(|| {
            invalid(format!(
                "the server's portmapper knows no program {program_number} version {version} over TCP"
            ))
        })
    }
}

fn invalid(reason: impl ToString) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, reason.to_string())
}

fn results(reader: &mut Reader<'_>) -> std::io::Result<()> {
    let head = rpc::reply_head(reader).map_err(invalid)?;
    head.results_at.map(|_| ()).ok_or_else(|| invalid("the server refuses the call"))
}

/// The end of a call's time, whatever the pieces are in which its reply comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// From now on.
    pub(crate) fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    fn left(self) -> std::io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// True if there is no time left.
    pub(crate) fn is_over(self) -> bool {
        self.left().is_err()
    }

    /// Writes all bytes.
    pub(crate) fn write(self, stream: &mut TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            stream.set_write_timeout(Some(self.left()?))?;
            match stream.write(bytes) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills all bytes.
    pub(crate) fn read(self, stream: &mut TcpStream, mut bytes: &mut [u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            stream.set_read_timeout(Some(self.left()?))?;
            match stream.read(bytes) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// One call and its reply over a connection of its own.
fn exchange(address: SocketAddr, call: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect_reserved(address)?;
    let deadline = Deadline::after(HELPER_TIMEOUT);
    deadline.write(&mut stream, call)?;
    let mut record = Vec::new();
    loop {
        let mut word = [0; 4];
        deadline.read(&mut stream, &mut word)?;
        let (bytes, last) = rpc::record_mark(u32::from_be_bytes(word));
        let begin = record.len();
        if begin + bytes > HELPER_RECORD_BYTES_MAX {
            return Err(invalid(format!("a reply above {HELPER_RECORD_BYTES_MAX} bytes")));
        }
        record.resize(begin + bytes, 0);
        deadline.read(&mut stream, &mut record[begin..])?;
        if last {
            return Ok(record);
        }
    }
}

fn connect_reserved(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = begin_connect(address)?;
    let mut polled = [rustix::event::PollFd::new(&stream, rustix::event::PollFlags::OUT)];
    let timeout = rustix::event::Timespec { tv_sec: HELPER_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    if rustix::event::poll(&mut polled, Some(&timeout))? == 0 {
        return Err(std::io::ErrorKind::TimedOut.into());
    }
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Begins a connection from a reserved port if we may have one, as NFS clients do, else from any.
fn begin_connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    if rustix::process::geteuid().is_root() {
        for _ in 0..RESERVED_TRIES {
            let span = u32::from(RESERVED_PORTS.end - RESERVED_PORTS.start);
            let port = RESERVED_PORTS.start + u16::try_from(random() % span).unwrap_or(0);
            match begin_connect_from(address, Some(port)) {
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::AddrInUse | std::io::ErrorKind::AddrNotAvailable
                    ) => {}
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => break,
                other => return other,
            }
        }
    }
    begin_connect_from(address, None)
}

fn begin_connect_from(address: SocketAddr, port: Option<u16>) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    if let Some(port) = port {
        sockopt::set_socket_reuseaddr(&fd, true)?;
        let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        bind(&fd, &SocketAddr::new(any, port))?;
    }
    match connect(&fd, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A random number; only spread matters.
pub fn random() -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers the ports are tried in one order, which works too.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;
