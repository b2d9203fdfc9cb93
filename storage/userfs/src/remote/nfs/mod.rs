//! `nfs:HOST:PATH`: files of an NFS server, version 3, over TCP, without the kernel's client.
//!
//! The crate `nfs3_client` speaks the protocol; one connection carries one call at a time, so there are several. All calls
//! are made as the user of the daemon (AUTH_UNIX): what a server lets root do is what its export says.
//!
//! - Writes are unstable, and kept here until the server has committed them ([`UNSYNCED_BYTES_MAX`] for a file, then they are
//!   committed at once). A server that was restarted in between tells so by its verifier, and gets them again before `fsync`
//!   or `close` returns.
//! - What can be repeated without harm is repeated for [`PATIENCE`] when the server is away; other calls give EIO.
//! - No locks on the server, no extended attributes.

mod calls;
mod line;

use super::runtime::{self, Fate, PATIENCE};
use super::{Place, Protocol, Remote};
use crate::backend::{Attributes, Inode, New};
use crate::error::{Errno, Error, Result};
use line::{Line, Lines};
use nfs3_client::nfs3_types::nfs3::{
    COMMIT3args, FSINFO3args, Nfs3Option, Nfs3Result, SETATTR3args, WRITE3args, diropargs3, fattr3,
    filename3, ftype3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::{Nfs3Client, Nfs3ConnectionBuilder, RpcError};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Connections that wait for work.
const IDLE_MAX: usize = 8;
/// After so long a connection is tried before something is sent that must not be sent twice.
const TRUSTED: Duration = Duration::from_secs(1);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes of one call, whatever a server offers.
const CALL_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a file that the server has not committed yet.
const UNSYNCED_BYTES_MAX: usize = 8 << 20;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) path: String,
    /// Ports of NFS and MOUNT, where the portmapper need not be asked.
    pub(crate) ports: (Option<u16>, Option<u16>),
}

impl Target {
    /// `host:/path`, or `//host/path?nfsport=2049&mountport=20048`, as libnfs has it.
    pub(crate) fn parse(text: &str) -> Option<Target> {
        let (host, rest) = match text.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/')?),
            None => {
                let end = text.find(":/")?;
                (&text[..end], &text[end + 1..])
            }
        };
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let mut ports = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=')?;
            match key {
                "nfsport" => ports.0 = Some(value.parse().ok()?),
                "mountport" => ports.1 = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then(|| Target { host: host.to_owned(), path: path.to_owned(), ports })
    }
}

type Client = Nfs3Client<Line>;

/// What a file's last writes were, until they are committed.
#[derive(Debug, Default)]
struct Unsynced {
    pieces: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    /// Of the server that took them; several when it was restarted.
    verifiers: Vec<[u8; 8]>,
}

struct Nfs {
    target: Target,
    root: nfs_fh3,
    /// Ports, once the portmapper has told them.
    ports: (u16, u16),
    read_bytes: u32,
    write_bytes: u32,
    idle: Mutex<Vec<(Client, Instant)>>,
    unsynced: Mutex<HashMap<Inode, Unsynced>>,
    fate: Fate,
    runtime: Runtime,
}

/// Opens the export of a server.
pub(crate) fn open(text: &str, target: Target) -> std::result::Result<Remote<impl Protocol>, Error> {
    let wrong = |reason: String| Error::Backend { given: text.to_owned(), reason };
    let runtime = runtime::start("nfs").map_err(|error| Error::io("starting a runtime", error))?;
    let mounted = runtime::wait(&runtime, mount(&target))
        .map_err(|_| wrong(format!("{} has not answered for {PATIENCE:?}", target.host)))?;
    let (client, root, ports) = mounted.map_err(&wrong)?;
    let mut nfs = Nfs {
        target,
        root,
        ports,
        read_bytes: 0,
        write_bytes: 0,
        idle: Mutex::new(vec![(client, Instant::now())]),
        unsynced: Mutex::default(),
        fate: Fate::default(),
        runtime,
    };
    let root = nfs.root.clone();
    let found = nfs
        .ask(true, async |client| client.fsinfo(&FSINFO3args { fsroot: root.clone() }).await)
        .map_err(|error| wrong(format!("asking the server what it can: {error:?}")))?;
    nfs.read_bytes = found.rtmax.clamp(512, CALL_BYTES_MAX);
    nfs.write_bytes = found.wtmax.clamp(512, CALL_BYTES_MAX);
    Remote::new(nfs).map_err(|error| wrong(format!("the root of the export: {error:?}")))
}

fn credential() -> opaque_auth<'static> {
    let groups = rustix::process::getgroups().unwrap_or_default();
    opaque_auth::auth_unix(&auth_unix {
        stamp: std::process::id(),
        machinename: Opaque::borrowed(b"weir"),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        // The protocol has room for 16.
        gids: groups.into_iter().take(16).map(rustix::fs::Gid::as_raw).collect(),
    })
}

async fn address(target: &Target) -> std::result::Result<IpAddr, String> {
    let host = &target.host;
    let mut found = tokio::net::lookup_host((host.as_str(), 0))
        .await
        .map_err(|error| format!("looking up '{host}': {error}"))?;
    found.next().map(|found| found.ip()).ok_or_else(|| format!("'{host}' has no address"))
}

/// Most servers want root's ports.
fn from_root(address: IpAddr) -> bool {
    rustix::process::geteuid().is_root() && address.is_ipv4()
}

type Mounted = (Client, nfs_fh3, (u16, u16));

async fn mount(target: &Target) -> std::result::Result<Mounted, String> {
    let address = address(target).await?;
    let mut builder = Nfs3ConnectionBuilder::new(Lines, address.to_string(), &target.path)
        .connect_from_privileged_port(from_root(address))
        .credential(credential());
    if let Some(port) = target.ports.0 {
        builder = builder.nfs3_port(port);
    }
    if let Some(port) = target.ports.1 {
        builder = builder.mount_port(port);
    }
    let connection = builder
        .mount()
        .await
        .map_err(|error| format!("mounting {} of {}: {error}", target.path, target.host))?;
    let (root, ports) = (connection.root_nfs_fh3(), (connection.nfs3_port, connection.mount_port));
    Ok((connection.into_nfs3_client(), root, ports))
}

fn errno(status: nfsstat3) -> Errno {
    Errno(match status {
        nfsstat3::NFS3ERR_NAMETOOLONG => libc::ENAMETOOLONG,
        nfsstat3::NFS3ERR_NOTEMPTY => libc::ENOTEMPTY,
        nfsstat3::NFS3ERR_DQUOT => libc::EDQUOT,
        nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_BADHANDLE => libc::ESTALE,
        nfsstat3::NFS3ERR_REMOTE => libc::EREMOTE,
        nfsstat3::NFS3ERR_NOTSUPP => libc::EOPNOTSUPP,
        nfsstat3::NFS3ERR_JUKEBOX => libc::ETIMEDOUT,
        // The others have Unix's numbers.
        other if (1..=31).contains(&(other as i32)) => other as i32,
        _ => libc::EIO,
    })
}

fn shown(of: &fattr3) -> Attributes {
    let kind = match of.type_ {
        ftype3::NF3REG => libc::S_IFREG,
        ftype3::NF3DIR => libc::S_IFDIR,
        ftype3::NF3BLK => libc::S_IFBLK,
        ftype3::NF3CHR => libc::S_IFCHR,
        ftype3::NF3LNK => libc::S_IFLNK,
        ftype3::NF3SOCK => libc::S_IFSOCK,
        ftype3::NF3FIFO => libc::S_IFIFO,
    };
    Attributes {
        inode: 0,
        mode: kind | of.mode & 0o7777,
        links: of.nlink,
        user: of.uid,
        group: of.gid,
        device: rustix::fs::makedev(of.rdev.specdata1, of.rdev.specdata2) as u32,
        size: of.size,
        blocks: of.used.div_ceil(512),
        accessed: (&of.atime).into(),
        modified: (&of.mtime).into(),
        changed: (&of.ctime).into(),
    }
}

fn handle(of: &Place) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(of.key.clone()) }
}

fn named(parent: &Place, name: &OsStr) -> diropargs3<'static> {
    diropargs3 { dir: handle(parent), name: filename3::from(name.as_bytes().to_vec()) }
}

fn mode_of(new: New) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(new.mode & 0o7777), ..sattr3::default() }
}

impl Nfs {
    fn idle(&self) -> MutexGuard<'_, Vec<(Client, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<(Client, Instant)> {
        self.idle().pop()
    }

    fn unsynced(&self) -> MutexGuard<'_, HashMap<Inode, Unsynced>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection. File handles outlive servers, so nothing is mounted again.
    async fn connect(&self) -> std::result::Result<Client, String> {
        let address = address(&self.target).await?;
        let credential = credential();
        let failed = |error: std::io::Error| format!("connecting to {}: {error}", self.target.host);
        let stream = if from_root(address) {
            privileged(address, self.ports.0).await.map_err(failed)?
        } else {
            TcpStream::connect((address, self.ports.0)).await.map_err(failed)?
        };
        // A failure costs waiting only.
        let _ = stream.set_nodelay(true);
        self.fate.connected.fetch_add(1, Ordering::Relaxed);
        Ok(Nfs3Client::new_with_auth(Line(stream), credential, opaque_auth::default()))
    }

    /// A connection; one that answers, if what follows must not be sent twice.
    fn client(&self, again: bool) -> Result<Client> {
        while let Some((mut client, used)) = self.take_idle() {
            if again || used.elapsed() < TRUSTED {
                return Ok(client);
            }
            if let Ok(Ok(())) = runtime::wait(&self.runtime, client.null()) {
                return Ok(client);
            }
        }
        match runtime::wait(&self.runtime, self.connect())? {
            Ok(client) => Ok(client),
            Err(reason) => {
                tracing::warn!("{reason}");
                Err(Errno::IO)
            }
        }
    }

    /// Asks the server; for [`PATIENCE`] again and again if that does no harm, or if the server says that it needs time.
    fn ask<T, E>(
        &self,
        again: bool,
        asked: impl AsyncFn(&mut Client) -> std::result::Result<Nfs3Result<T, E>, RpcError>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            let answer = self.client(again).and_then(|mut client| {
                let answer = runtime::wait(&self.runtime, asked(&mut client));
                Ok((client, answer?))
            });
            let (error, repeat) = match answer {
                Ok((client, Ok(answer))) => {
                    let mut idle = self.idle();
                    if idle.len() < IDLE_MAX {
                        idle.push((client, Instant::now()));
                    }
                    drop(idle);
                    match answer {
                        Nfs3Result::Ok(told) => return Ok(told),
                        Nfs3Result::Err((nfsstat3::NFS3ERR_JUKEBOX, _)) => {
                            (errno(nfsstat3::NFS3ERR_JUKEBOX), true)
                        }
                        Nfs3Result::Err((status, _)) => return Err(errno(status)),
                    }
                }
                Ok((_, Err(error))) => {
                    tracing::warn!("{}: {error}", self.target.host);
                    self.fate.lost.fetch_add(1, Ordering::Relaxed);
                    // Asked again, such a server says it again.
                    let lies =
                        matches!(&error, RpcError::Io(error) if error.kind() == ErrorKind::InvalidData);
                    (Errno::IO, again && !lies)
                }
                Err(error) => {
                    self.fate.lost.fetch_add(1, Ordering::Relaxed);
                    (error, again)
                }
            };
            if !repeat || begun.elapsed() >= PATIENCE {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn set(&self, of: &Place, new: &sattr3) -> Result<()> {
        let file = handle(of);
        self.ask(true, async |client| {
            let object = file.clone();
            let new_attributes = new.clone();
            client.setattr(&SETATTR3args { object, new_attributes, guard: Nfs3Option::None }).await
        })
        .map(drop)
    }

    /// Gives what was just made to whom it belongs, if the server lets us.
    fn hand_over(&self, parent: &Place, name: &OsStr, new: New) -> Result<()> {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if (new.user, new.group) == own {
            return Ok(());
        }
        let found = self.lookup(parent, name)?;
        let place = Place { inode: 0, path: None, key: found.key, open: false };
        let group = (found.attributes.group == own.1).then_some(new.group);
        let owner = sattr3 {
            uid: Nfs3Option::Some(new.user),
            gid: group.map_or(Nfs3Option::None, Nfs3Option::Some),
            ..sattr3::default()
        };
        match self.set(&place, &owner) {
            Err(Errno(libc::EPERM | libc::EACCES)) => Ok(()),
            other => other,
        }
    }

    /// Writes; what was written and is not stable yet, and by which server.
    fn send(&self, of: &Place, offset: u64, from: &[u8], stable: stable_how) -> Result<Option<[u8; 8]>> {
        let file = handle(of);
        let (mut done, mut verifier) = (0, None);
        while done < from.len() {
            let piece = &from[done..from.len().min(done + self.write_bytes as usize)];
            let told = self.ask(true, async |client| {
                let arguments = WRITE3args {
                    file: file.clone(),
                    offset: offset + done as u64,
                    count: piece.len() as u32,
                    stable,
                    data: Opaque::borrowed(piece),
                };
                client.write(&arguments).await
            })?;
            let bytes = told.count as usize;
            if bytes == 0 || bytes > piece.len() {
                return Err(Errno::IO);
            }
            done += bytes;
            if told.committed == stable_how::UNSTABLE {
                if stable != stable_how::UNSTABLE {
                    return Err(Errno::IO);
                }
                // Two servers within one write: the older verifier makes the commit differ.
                verifier = verifier.or(Some(told.verf.0));
            }
        }
        Ok(verifier)
    }

    /// Has the server make what was written stable, and writes again what a restarted one may have lost.
    fn commit(&self, of: &Place) -> Result<()> {
        let Some(unsynced) = self.unsynced().remove(&of.inode) else { return Ok(()) };
        let committed = self.commit_taken(of, &unsynced);
        if committed.is_err() {
            let mut all = self.unsynced();
            let later = all.remove(&of.inode).unwrap_or_default();
            let mut kept = unsynced;
            kept.bytes += later.bytes;
            kept.pieces.extend(later.pieces);
            kept.verifiers.extend(later.verifiers);
            all.insert(of.inode, kept);
        }
        committed
    }

    fn commit_taken(&self, of: &Place, unsynced: &Unsynced) -> Result<()> {
        let file = handle(of);
        let told = self.ask(true, async |client| {
            client.commit(&COMMIT3args { file: file.clone(), offset: 0, count: 0 }).await
        })?;
        if unsynced.verifiers.iter().all(|verifier| *verifier == told.verf.0) {
            return Ok(());
        }
        tracing::info!("{} was restarted: writing {} bytes again", self.target.host, unsynced.bytes);
        for (offset, bytes) in &unsynced.pieces {
            self.send(of, *offset, bytes, stable_how::FILE_SYNC)?;
        }
        Ok(())
    }
}

/// A connection from a port that only root may use.
async fn privileged(address: IpAddr, port: u16) -> std::io::Result<TcpStream> {
    const PORTS: std::ops::RangeInclusive<u16> = 665..=1023;
    let start = std::process::id() as u16 % 300;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    for number in 0..PORTS.len() as u16 {
        let own = PORTS.start() + (start + number) % PORTS.len() as u16;
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        let bound = socket.bind(([0, 0, 0, 0], own).into());
        let connected = match bound {
            Ok(()) => socket.connect((address, port).into()).await,
            Err(error) => Err(error),
        };
        match connected {
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::AddrInUse | std::io::ErrorKind::AddrNotAvailable
                ) =>
            {
                last = error;
            }
            other => return other,
        }
    }
    Err(last)
}
