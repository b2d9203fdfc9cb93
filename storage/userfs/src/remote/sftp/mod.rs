//! `sftp:USER@HOST:PATH`: files of an SFTP server (version 3 of the protocol, with OpenSSH's extensions).
//!
//! The transport is the system's `ssh`, as a process, as with sshfs, scp and rsync: keys, agents, known hosts, jumps and
//! all else that `ssh_config` can say are used as everywhere. The crate `russh-sftp` speaks the protocol over its pipes. The
//! variable `WEIR_FS_SSH` names another command in place of `ssh`, with arguments.
//!
//! - Pieces of a large read or write are on their way at once.
//! - A lost connection is made again; what can be repeated without harm is, once. Other operations then give EIO.
//! - The server tells most errors as "failure"; which one it was is found out by looking.
//! - `fsync` is the server's, by `fsync@openssh.com`; a server without it gives EINVAL. Directories cannot be synced.

mod calls;
#[cfg(test)]
mod tests;

use super::runtime::{self, Fate};
use super::{Place, Protocol, Remote};
use crate::backend::{Attributes, Inode};
use crate::error::{Errno, Error, Result};
use russh_sftp::client::error::Error as SftpError;
use russh_sftp::client::rawsession::{Limits, SftpResult};
use russh_sftp::client::{Config, RawSftpSession};
use russh_sftp::protocol::{FileAttributes, OpenFlags, StatusCode};
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Bytes of a piece when the server does not say how many it takes: all servers take these.
const PIECE_BYTES: u64 = 32 * 1024;
/// Largest packet taken from a server.
const PACKET_BYTES_MAX: u32 = 1 << 20;
/// Answers in which a server may give one piece.
const ANSWERS_MAX: usize = 256;
/// Handles kept for open files.
const HANDLES_MAX: usize = 64;
/// How long nobody tries again after a connection could not be made.
const PAUSE: Duration = Duration::from_secs(1);
/// What is kept of what ssh says.
const WORDS_MAX: usize = 4096;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host, with the user if one was given, as ssh takes it.
    pub(crate) destination: String,
    pub(crate) port: Option<u16>,
    /// Folder; empty for the one in which the user begins.
    pub(crate) path: String,
}

impl Target {
    /// `user@host:/path`, or `//user@host:port/path`.
    pub(crate) fn parse(text: &str) -> Option<Target> {
        let (destination, port, path) = if let Some(rest) = text.strip_prefix("//") {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            match host.rsplit_once(':') {
                Some((host, port)) if !host.ends_with(':') && !port.contains(']') => {
                    (host, Some(port.parse().ok()?), path)
                }
                _ => (host, None, path),
            }
        } else {
            let end = text.find("]:").map_or_else(|| text.find(':'), |at| Some(at + 1))?;
            (&text[..end], None, &text[end + 1..])
        };
        let host = destination.rsplit('@').next().unwrap_or_default();
        // What begins with a dash would be an option of ssh.
        if host.is_empty() || host.starts_with('-') || destination.starts_with('-') {
            return None;
        }
        let destination = destination.replace(['[', ']'], "");
        Some(Target { destination, port, path: path.to_owned() })
    }
}

struct Live {
    session: RawSftpSession,
    /// Extensions that the server offers.
    offers: HashSet<String>,
    read_bytes: u64,
    write_bytes: u64,
    number: u64,
    /// Ends with this.
    _ssh: Child,
}

/// An open file of the server. It is closed there when nobody uses it any more and not before: a server gives names of closed handles
/// to other files.
struct Handle {
    live: Arc<Live>,
    name: String,
    writable: bool,
    used: AtomicU64,
    runtime: tokio::runtime::Handle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (live, name) = (self.live.clone(), std::mem::take(&mut self.name));
        // In the background: nothing depends on it.
        self.runtime.spawn(async move { live.session.close(name).await });
    }
}

#[derive(Default)]
struct Connection {
    live: Option<Arc<Live>>,
    failed: Option<Instant>,
}

struct Sftp {
    target: Target,
    ssh: Vec<String>,
    /// Absolute path of the folder, without `/` at its end.
    root: String,
    connection: Mutex<Connection>,
    handles: Mutex<HashMap<Inode, Arc<Handle>>>,
    clock: AtomicU64,
    fate: Fate,
    skipped: AtomicU64,
    runtime: Runtime,
}

/// Opens the folder of a server.
pub(crate) fn open(
    text: &str,
    target: Target,
    ssh: &str,
) -> std::result::Result<Remote<impl Protocol>, Error> {
    let wrong = |reason: String| Error::Backend { given: text.to_owned(), reason };
    let mut sftp = Sftp {
        target,
        ssh: ssh.split_whitespace().map(str::to_owned).collect(),
        root: String::new(),
        connection: Mutex::default(),
        handles: Mutex::default(),
        clock: AtomicU64::new(0),
        fate: Fate::default(),
        skipped: AtomicU64::new(0),
        runtime: runtime::start("sftp").map_err(|error| Error::io("starting a runtime", error))?,
    };
    let live = sftp.runtime.block_on(sftp.connect()).map_err(&wrong)?;
    let path = if sftp.target.path.is_empty() { "." } else { &sftp.target.path };
    let found = sftp.runtime.block_on(live.session.realpath(path));
    let real = found.ok().and_then(|name| name.files.into_iter().next());
    let real = real.ok_or_else(|| wrong(format!("the server does not know '{path}'")))?;
    sftp.root = real.filename.trim_end_matches('/').to_owned();
    sftp.connection().live = Some(live);
    let given = sftp.root.clone();
    Remote::new(sftp).map_err(|error| wrong(format!("{given}/ on the server: {error:?}")))
}

fn errno(code: StatusCode) -> Errno {
    match code {
        StatusCode::NoSuchFile => Errno::NOT_FOUND,
        StatusCode::PermissionDenied => Errno(libc::EACCES),
        StatusCode::OpUnsupported => Errno::UNSUPPORTED,
        _ => Errno::IO,
    }
}

fn time(seconds: Option<u32>) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.unwrap_or(0).into())
}

/// Nothing where a server does not say what kind of file it is, or how long.
fn shown(of: &FileAttributes) -> Option<Attributes> {
    let mode = of.permissions?;
    let size = if mode & libc::S_IFMT == libc::S_IFREG { of.size? } else { of.size.unwrap_or(0) };
    Some(Attributes {
        inode: 0,
        mode,
        links: 1,
        user: of.uid.unwrap_or(0),
        group: of.gid.unwrap_or(0),
        device: 0,
        size,
        blocks: size.div_ceil(512),
        accessed: time(of.atime),
        modified: time(of.mtime),
        changed: time(of.mtime),
    })
}

/// As the protocol has times: 32 bits since 1970. The kernel shortens others likewise, for file systems that cannot have them.
fn seconds(time: SystemTime) -> u32 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}

fn text(bytes: &[u8]) -> Result<&str> {
    // The protocol's names are text.
    std::str::from_utf8(bytes).map_err(|_| Errno(libc::EILSEQ))
}

/// Two strings, as extensions take them.
fn two(one: &str, other: &str) -> Vec<u8> {
    let counted = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    [counted(one), counted(other)].concat()
}

impl Sftp {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<Inode, Arc<Handle>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, or what ssh says about why not.
    async fn connect(&self) -> std::result::Result<Arc<Live>, String> {
        let (program, arguments) = self.ssh.split_first().ok_or("WEIR_FS_SSH is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).args(["-oBatchMode=yes", "-oConnectTimeout=15"]);
        command.args(["-oServerAliveInterval=15", "-oServerAliveCountMax=2"]);
        if let Some(port) = self.target.port {
            command.arg(format!("-p{port}"));
        }
        command.args(["-s", "--", &self.target.destination, "sftp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut ssh = command.spawn().map_err(|error| format!("starting {program}: {error}"))?;
        let pipes = ssh.stdout.take().zip(ssh.stdin.take()).zip(ssh.stderr.take());
        let Some(((from, to), mut errors)) = pipes else { return Err("ssh has no pipes".to_owned()) };
        let config = Config {
            max_packet_len: PACKET_BYTES_MAX,
            request_timeout_secs: runtime::PATIENCE.as_secs(),
            ..Config::default()
        };
        let mut session = RawSftpSession::new_with_config(tokio::io::join(from, to), config);
        let version = match session.init().await {
            Ok(version) => version,
            Err(error) => {
                let mut words = vec![0; WORDS_MAX];
                let read = tokio::time::timeout(PAUSE, errors.read(&mut words)).await;
                words.truncate(read.ok().and_then(std::result::Result::ok).unwrap_or(0));
                let words = String::from_utf8_lossy(&words).trim().to_owned();
                let destination = &self.target.destination;
                return Err(if words.is_empty() {
                    format!(
                        "{destination} gave no SFTP session: {error}; 'sftp {destination}' must work without a password"
                    )
                } else {
                    format!("ssh to {destination}: {words}")
                });
            }
        };
        // ssh must not wait for somebody to read what it says.
        tokio::spawn(async move { tokio::io::copy(&mut errors, &mut tokio::io::sink()).await });
        let offers: HashSet<String> = version.extensions.into_keys().collect();
        let (mut read_bytes, mut write_bytes) = (PIECE_BYTES, PIECE_BYTES);
        if offers.contains("limits@openssh.com")
            && let Ok(limits) = session.limits().await
        {
            let limits = Limits::from(limits);
            read_bytes = limits.read_len.unwrap_or(PIECE_BYTES).min(u64::from(PACKET_BYTES_MAX) / 2);
            write_bytes = limits.write_len.unwrap_or(PIECE_BYTES).min(u64::from(PACKET_BYTES_MAX) / 2);
            session.set_limits(Limits { open_handles: None, ..limits });
        }
        let number = self.fate.connected.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Live { session, offers, read_bytes, write_bytes, number, _ssh: ssh }))
    }

    fn live(&self) -> Result<Arc<Live>> {
        let mut connection = self.connection();
        if let Some(live) = &connection.live {
            return Ok(live.clone());
        }
        if connection.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(Errno::IO);
        }
        match runtime::wait(&self.runtime, self.connect()) {
            Ok(Ok(live)) => {
                connection.live = Some(live.clone());
                connection.failed = None;
                Ok(live)
            }
            other => {
                tracing::warn!("no connection: {other:?}", other = other.map(|made| made.err()));
                connection.failed = Some(Instant::now());
                Err(Errno::IO)
            }
        }
    }

    /// Asks the server; once more on a new connection if that does no harm.
    fn ask<T, F>(&self, again: bool, asked: impl Fn(Arc<Live>) -> F) -> Result<T>
    where
        F: Future<Output = SftpResult<T>>,
    {
        let mut tries = if again { 2 } else { 1 };
        loop {
            let live = self.live()?;
            let error = match self.runtime.block_on(asked(live.clone())) {
                Ok(answer) => return Ok(answer),
                Err(SftpError::Status(status))
                    if !matches!(
                        status.status_code,
                        StatusCode::NoConnection | StatusCode::ConnectionLost
                    ) =>
                {
                    return Err(errno(status.status_code));
                }
                Err(error) => error,
            };
            tracing::warn!("{}: {error}", self.target.destination);
            self.fate.lost.fetch_add(1, Ordering::Relaxed);
            {
                let mut connection = self.connection();
                if connection.live.as_ref().is_some_and(|now| now.number == live.number) {
                    connection.live = None;
                }
            }
            // They would keep the lost connection's process.
            self.handles().retain(|_, handle| handle.live.number != live.number);
            tries -= 1;
            if tries == 0 {
                let timeout = matches!(error, SftpError::Timeout);
                return Err(if timeout { Errno(libc::ETIMEDOUT) } else { Errno::IO });
            }
        }
    }

    fn absolute(&self, path: &[u8]) -> Result<String> {
        let path = text(path)?;
        Ok(match (path.is_empty(), self.root.is_empty()) {
            (true, true) => "/".to_owned(),
            (true, false) => self.root.clone(),
            _ => format!("{}/{path}", self.root),
        })
    }

    fn path(&self, of: &Place) -> Result<String> {
        self.absolute(of.path()?)
    }

    fn stat(&self, path: &str) -> Result<Attributes> {
        self.ask(true, |live| {
            let path = path.to_owned();
            async move { live.session.lstat(path).await }
        })
        .and_then(|found| shown(&found.attrs).ok_or(Errno::IO))
    }

    /// What a "failure" of a call that makes `path` means.
    fn make_failed(&self, error: Errno, path: &str) -> Errno {
        if error == Errno::IO && self.stat(path).is_ok() { Errno::EXISTS } else { error }
    }

    /// What a "failure" of a write means.
    fn write_failed(&self, error: Errno) -> Errno {
        let full = || self.space().is_ok_and(|space| space.blocks_free == 0);
        if error == Errno::IO && full() { Errno::NO_SPACE } else { error }
    }

    /// A handle of an open file, on the connection that there is.
    fn handle(&self, of: &Place, live: &Arc<Live>, write: bool) -> Result<Arc<Handle>> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some(handle) = self.handles().get(&of.inode)
            && handle.live.number == live.number
            && (handle.writable || !write)
        {
            handle.used.store(now, Ordering::Relaxed);
            return Ok(handle.clone());
        }
        let path = self.path(of)?;
        let open = |flags| {
            let asked = live.session.open(path.clone(), flags, FileAttributes::empty());
            self.runtime.block_on(asked)
        };
        let mut writable = true;
        let mut opened = open(OpenFlags::READ | OpenFlags::WRITE);
        if !write && matches!(opened, Err(SftpError::Status(_))) {
            writable = false;
            opened = open(OpenFlags::READ);
        }
        // Some may write what they may not read.
        if write && matches!(opened, Err(SftpError::Status(_))) {
            opened = open(OpenFlags::WRITE);
        }
        let name = match opened {
            Ok(handle) => handle.handle,
            Err(SftpError::Status(status)) => return Err(errno(status.status_code)),
            Err(_) => return Err(Errno::IO),
        };
        let (used, runtime) = (AtomicU64::new(now), self.runtime.handle().clone());
        let handle = Arc::new(Handle { live: live.clone(), name, writable, used, runtime });
        let mut handles = self.handles();
        handles.insert(of.inode, handle.clone());
        let used = |entry: &(&Inode, &Arc<Handle>)| entry.1.used.load(Ordering::Relaxed);
        if handles.len() > HANDLES_MAX
            && let Some(oldest) = handles.iter().min_by_key(used).map(|(key, _)| *key)
        {
            handles.remove(&oldest);
        }
        Ok(handle)
    }

    /// Does something with a handle of the file; once more on a new connection.
    fn with_handle<T, F>(&self, of: &Place, write: bool, asked: impl Fn(Arc<Live>, String) -> F) -> Result<T>
    where
        F: Future<Output = SftpResult<T>>,
    {
        let mut last = Errno::IO;
        for _ in 0..2 {
            // A connection that is dead is noticed, and made again, by a question about the file.
            let live = self.live()?;
            let handle = match self.handle(of, &live, write) {
                Err(Errno::IO) => {
                    self.stat(&self.path(of)?)?;
                    continue;
                }
                handle => handle?,
            };
            let number = live.number;
            match self.ask(false, |now| {
                let (handle, same) = (handle.name.clone(), now.number == number);
                let asked = same.then(|| asked(now, handle));
                async move {
                    match asked {
                        Some(asked) => asked.await,
                        None => Err(SftpError::UnexpectedBehavior("a new connection".to_owned())),
                    }
                }
            }) {
                Err(error @ (Errno::IO | Errno(libc::ETIMEDOUT))) => last = error,
                other => return other,
            }
            let lost = self.connection().live.as_ref().is_none_or(|now| now.number != number);
            if !lost {
                return Err(last);
            }
        }
        Err(last)
    }

    fn set(&self, of: &Place, attributes: &FileAttributes) -> Result<()> {
        let path = self.path(of)?;
        self.ask(true, |live| {
            let (path, attributes) = (path.clone(), attributes.clone());
            async move { live.session.setstat(path, attributes).await }
        })
        .map(drop)
    }
}

/// Reads pieces of `bytes` from `offset`, all at once; what is behind the first short one, where the server says that the file ends, is cut off. An
/// answer that is longer than was asked, or empty, is none.
async fn read_pieces(live: Arc<Live>, handle: String, offset: u64, bytes: usize) -> SftpResult<Vec<u8>> {
    let mut pieces = JoinSet::new();
    let step = live.read_bytes as usize;
    for (number, start) in (0..bytes).step_by(step).enumerate() {
        let (live, handle) = (live.clone(), handle.clone());
        let wanted = step.min(bytes - start);
        pieces.spawn(async move {
            let mut piece: Vec<u8> = Vec::with_capacity(wanted);
            for _ in 0..ANSWERS_MAX {
                if piece.len() == wanted {
                    return Ok((number, wanted, piece));
                }
                let at = offset + (start + piece.len()) as u64;
                match live.session.read(handle.clone(), at, (wanted - piece.len()) as u32).await {
                    Ok(data) if data.data.is_empty() || data.data.len() > wanted - piece.len() => {
                        let reason = format!("{} bytes for {}", data.data.len(), wanted - piece.len());
                        return Err(SftpError::UnexpectedBehavior(reason));
                    }
                    Ok(data) => piece.extend_from_slice(&data.data),
                    Err(SftpError::Status(status)) if status.status_code == StatusCode::Eof => {
                        return Ok((number, wanted, piece));
                    }
                    Err(error) => return Err(error),
                }
            }
            if piece.len() == wanted {
                return Ok((number, wanted, piece));
            }
            Err(SftpError::UnexpectedBehavior("a piece in too many answers".to_owned()))
        });
    }
    let mut all = Vec::new();
    while let Some(done) = pieces.join_next().await {
        all.push(done.map_err(|error| SftpError::IO(error.to_string()))??);
    }
    all.sort_by_key(|piece| piece.0);
    let mut data = Vec::with_capacity(bytes);
    for (_, wanted, piece) in all {
        data.extend_from_slice(&piece);
        if piece.len() < wanted {
            break;
        }
    }
    Ok(data)
}

async fn write_pieces(live: Arc<Live>, handle: String, offset: u64, from: Vec<u8>) -> SftpResult<()> {
    let mut pieces = JoinSet::new();
    let step = live.write_bytes as usize;
    for (number, piece) in from.chunks(step).enumerate() {
        let (live, handle, piece) = (live.clone(), handle.clone(), piece.to_vec());
        let at = offset + (number * step) as u64;
        pieces.spawn(async move { live.session.write(handle, at, piece).await });
    }
    while let Some(done) = pieces.join_next().await {
        done.map_err(|error| SftpError::IO(error.to_string()))??;
    }
    Ok(())
}
