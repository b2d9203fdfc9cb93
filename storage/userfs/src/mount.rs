//! A mounted file system: session with the kernel, thread that tells it what is stale, unmount.

mod again;
mod left;

pub use left::clear;

use crate::backend::{Backend, Consistency, Inode, ROOT};
use crate::error::Error;
use crate::journal::Journal;
use crate::passthrough::Passthrough;
use crate::segment::BLOCK_BYTES;
use crate::server::{Server, Stale};
use crate::stats::Stats;
use fuser::{BackgroundSession, Config, INodeNo, MountOption, Session, SessionACL};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that answer the kernel.
const THREADS: usize = 4;
/// The same where answers come from afar.
const REMOTE_THREADS: usize = 16;

/// Where users have nothing that mounts for them the library only says that a file is missing.
fn without_helper(
    error: std::io::Error,
    is_root: bool,
    failed: impl FnOnce(std::io::Error) -> Error,
) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound && !is_root {
        let what =
            format!("running {HELPER}, by which users other than root mount (install the package fuse3)");
        return Error::io(what, error);
    }
    failed(error)
}

/// How much the kernel reads around a place of a map, and ahead of who reads on. Its own 128 KiB make a question to us of every eighth
/// of a megabyte of a map; one who reads here and there in a large file pays for what is not wanted.
const READ_AROUND_KIB: u32 = 512;

/// How often a backend is asked to tidy up.
const TIDY_EACH: Duration = Duration::from_secs(1);

/// How long a session may take to end once it is unmounted, and how often it is looked at.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const ENDS_TURN: Duration = Duration::from_millis(5);
/// What mounts and unmounts for users other than root.
const HELPER: &str = "fusermount3";

/// By which the kernel asks.
const DEVICE: &str = "/dev/fuse";

/// Why nothing can be mounted where the device is missing; nothing where it is there.
fn without_device(device: &Path) -> Option<Error> {
    let missing = std::io::ErrorKind::NotFound;
    let error = std::fs::metadata(device).err().filter(|error| error.kind() == missing)?;
    let what = format!(
        "{} (load the module fuse, or give the container the device and the right to mount: --device /dev/fuse --cap-add SYS_ADMIN; without it, a \
         tmpfs holds files in memory, and nothing of weir can be used: docs/decisions/0035)",
        device.display()
    );
    Some(Error::io(what, error))
}

/// Where a file of shared memory ends, and with what: so the kernel hears its size, which it does not ask for where it has one. As `tell_size` of
/// `segment/transfer.c`, and like there not where that byte would be a page of its own.
fn last_byte(backend: &dyn Backend, inode: Inode) -> Option<(u64, u8)> {
    let segment = backend.segment().filter(|_| !backend.read_only())?;
    let place = segment.size(inode)?.checked_sub(1).filter(|place| !place.is_multiple_of(BLOCK_BYTES))?;
    let mut last = [0];
    let read = segment.record(inode).ok()?.read(place, &mut last).ok()?;
    (read == 1).then_some((place, last[0]))
}

/// Counters, where a daemon comes after this one in memory that it finds. Without such memory it begins anew.
fn counts(kept: bool) -> Stats {
    let shared = kept.then(Stats::kept).transpose();
    shared
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "a daemon that takes this one's place will count from the beginning");
            None
        })
        .unwrap_or_default()
}

/// What mounts of ours are called.
pub(crate) const SUBTYPE: &str = "weir";

/// How to mount.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What `mount` shows as source.
    pub source: String,
    /// Nothing may be written.
    pub read_only: bool,
    /// Other users than the one who mounts may use it. Root's mounts are for all.
    pub others: bool,
    /// The daemon reads and writes, also where the kernel could do it by itself (`passthrough`). Small files are then opened without
    /// a question, and read from the kernel's cache; writing costs a question each.
    pub cached: bool,
    /// What the kernel is told is written down for a daemon that comes after this one.
    pub kept: bool,
    /// Device files are devices, and set-user-id and set-group-id bits count. Whoever runs a server, or made an archive, could else become root by what it
    /// says that a file is. Only root's mounts can.
    pub devices: bool,
    /// See `devices`.
    pub set_ids: bool,
}

/// What is left of a mount whose daemon died: the kernel's side waits.
#[derive(Debug)]
pub struct Left {
    /// The connection.
    pub kernel: OwnedFd,
    /// What the kernel has by itself, where it has.
    pub passthrough: Option<[OwnedFd; 2]>,
    /// What it counted.
    pub counts: Option<OwnedFd>,
    /// `st_dev` of all files.
    pub device: u64,
}

/// A file system that is mounted until this is dropped.
pub struct Mount {
    point: PathBuf,
    backend: Arc<dyn Backend>,
    stats: Arc<Stats>,
    device: u64,
    read_only: bool,
    /// There once it is served.
    kernel: Option<OwnedFd>,
    session: Option<BackgroundSession>,
    stale: Arc<Stale>,
    passthrough: Option<Arc<Passthrough>>,
    teller: Option<JoinHandle<()>>,
    /// It is over, though its session may not be yet: what is at its place by now may be another's.
    unmounted: bool,
}

impl Mount {
    /// Mounts `backend` at `point`, an existing directory.
    pub fn new(backend: Arc<dyn Backend>, point: &Path, options: &Options) -> Result<Mount, Error> {
        let failed = |error| Error::io(format!("mounting at {}", point.display()), error);
        let point = std::fs::canonicalize(point).map_err(failed)?;
        // The kernel lets only the administrator give it files.
        let wanted = !options.cached && rustix::process::geteuid().is_root() && backend.local(ROOT).is_some();
        let passthrough = match (wanted, options.kept) {
            (false, _) => None,
            (true, false) => Some(Passthrough::default()),
            (true, true) => Some(Passthrough::kept().map_err(failed)?),
        };
        let mut mount = Mount::unserved(backend, point, (passthrough, counts(options.kept)), options);
        let config = mount.config(options);
        let session = Session::new(mount.server(), &mount.point, &config).map_err(|error| {
            let is_root = rustix::process::geteuid().is_root();
            without_device(Path::new(DEVICE)).unwrap_or_else(|| without_helper(error, is_root, failed))
        })?;
        mount.kernel = Some(session.as_fd().try_clone_to_owned().map_err(failed)?);
        mount.serve(session).map_err(failed)?;
        mount.device =
            rustix::fs::stat(&mount.point).map_err(|error| Error::io("looking at the mount", error))?.st_dev;
        if mount.is_own() {
            mount.read_around();
        }
        Ok(mount)
    }

    /// Serves what another daemon mounted at `point` and served until it died.
    pub fn again(
        backend: Arc<dyn Backend>,
        point: &Path,
        options: &Options,
        left: Left,
    ) -> Result<Mount, Error> {
        let failed = |error| Error::io(format!("serving {} again", point.display()), error);
        let passthrough = left.passthrough.map(Passthrough::again).transpose().map_err(failed)?;
        let stats = left.counts.map(Stats::again).transpose().map_err(failed)?.unwrap_or_default();
        let mut mount = Mount::unserved(backend, point.to_owned(), (passthrough, stats), options);
        mount.device = left.device;
        let config = mount.config(options);
        let session = again::session(mount.server(), &left.kernel, config, mount.passthrough.is_some());
        let kernel = mount.kernel.insert(left.kernel);
        let kernel = kernel.try_clone().map_err(failed)?;
        // What the daemon before was about to tell the kernel is not known.
        mount.backend.known().into_iter().for_each(|inode| mount.stale.push(inode));
        mount.serve(session.map_err(failed)?).map_err(failed)?;
        again::resend(&kernel).map_err(failed)?;
        Ok(mount)
    }

    fn unserved(
        backend: Arc<dyn Backend>,
        point: PathBuf,
        (passthrough, stats): (Option<Passthrough>, Stats),
        options: &Options,
    ) -> Mount {
        let stats = Arc::new(stats);
        Mount {
            point,
            read_only: options.read_only || backend.read_only(),
            backend,
            passthrough: passthrough.map(|passthrough| Arc::new(passthrough.counting(stats.clone()))),
            stats,
            device: 0,
            kernel: None,
            session: None,
            stale: Arc::default(),
            teller: None,
            unmounted: false,
        }
    }

    fn server(&self) -> Server {
        Server::new(self.backend.clone(), self.stats.clone(), self.stale.clone(), self.passthrough.clone())
    }

    fn is_own(&self) -> bool {
        self.backend.consistency() == Consistency::Own
    }

    fn config(&self, options: &Options) -> Config {
        let mut config = Config::default();
        // Where root mounts by itself there is no kind but "fuse": the name then begins with ours, as is usual.
        let root = rustix::process::geteuid().is_root();
        let source = if root { format!("{SUBTYPE}#{}", options.source) } else { options.source.clone() };
        config.mount_options = vec![
            MountOption::FSName(source),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::DefaultPermissions,
        ];
        if self.read_only {
            config.mount_options.push(MountOption::RO);
        }
        if root {
            config.mount_options.extend(options.devices.then_some(MountOption::Dev));
            config.mount_options.extend(options.set_ids.then_some(MountOption::Suid));
        }
        config.acl = if options.others { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(if self.is_own() { THREADS } else { REMOTE_THREADS });
        config
    }

    /// Threads that answer the kernel, and one that tells it what is stale.
    fn serve(&mut self, session: Session<Server>) -> std::io::Result<()> {
        let notifier = session.notifier();
        self.stale.tell_by(session.notifier());
        self.session = Some(session.spawn()?);
        let waiting = self.stale.clone();
        let backend = self.backend.clone();
        let tell = move || {
            let mut tidied = Instant::now();
            while let Some(inodes) = waiting.take(TIDY_EACH) {
                for inode in inodes {
                    // An inode that the kernel no longer knows needs nothing.
                    let _ = notifier.inval_inode(INodeNo(inode), 0, 0);
                    if let Some((place, last)) = last_byte(backend.as_ref(), inode) {
                        let _ = notifier.store(INodeNo(inode), place, &[last]);
                        let _ = notifier.inval_inode(INodeNo(inode), place as i64, 1);
                    }
                }
                if tidied.elapsed() >= TIDY_EACH {
                    backend.tidy();
                    tidied = Instant::now();
                }
            }
        };
        self.teller = Some(std::thread::Builder::new().name("stale".to_owned()).spawn(tell)?);
        Ok(())
    }

    /// Only the administrator may say so, and nothing depends on it.
    fn read_around(&self) {
        let (major, minor) = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&setting, READ_AROUND_KIB.to_string()) {
            tracing::debug!("{setting}: {error}");
        }
    }

    /// Where.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// What is mounted.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Opens whose data the kernel reads and writes by itself, and those that it would not take; nothing where it never
    /// does.
    pub fn by_kernel(&self) -> Option<(u64, u64)> {
        self.passthrough.as_ref().filter(|passthrough| passthrough.is_on()).map(|_| self.stats.by_kernel())
    }

    /// Counters of operations.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// `st_dev` of all files.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The connection to the kernel, for processes that tell it what they changed.
    pub fn kernel(&self) -> Option<&OwnedFd> {
        self.kernel.as_ref()
    }

    /// What the kernel has by itself, for a daemon that comes after this one.
    pub fn passthrough_journal(&self) -> Option<&Journal> {
        self.passthrough.as_ref()?.journal()
    }

    /// Whether the session still answers; it ends when somebody else unmounts.
    pub fn is_alive(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// Whether the kernel still has the file system: the number of its device is another's at once when it has not.
    fn is_connected(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(kernel) = &self.kernel else { return self.is_alive() };
        let mut polled = [PollFd::new(kernel, PollFlags::empty())];
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
            Err(_) => self.is_alive(),
        }
    }

    /// Whether what is mounted at the place is this: somebody else may have taken it away, and mounted another there. What the kernel knows
    /// without asking is enough, for nobody may answer.
    fn is_there(&self) -> bool {
        use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
        if !self.is_connected() {
            return false;
        }
        // Of one that could not be begun as a whole the number is not known.
        if self.device == 0 {
            return true;
        }
        match statx(CWD, &self.point, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
            Ok(stat) => makedev(stat.stx_dev_major, stat.stx_dev_minor) == self.device,
            // It cannot be looked at: what unmounting says of it is said.
            Err(_) => true,
        }
    }

    /// Unmounts. With files still in use it fails with EBUSY, unless `lazy`: then it goes out of sight at once, and ends
    /// when the last file is closed.
    pub fn unmount(&mut self, lazy: bool) -> Result<(), Error> {
        if !self.unmounted && self.is_there() {
            let flags =
                if lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
            match rustix::mount::unmount(&self.point, flags) {
                Err(rustix::io::Errno::PERM) => self.unmount_by_helper(lazy)?,
                other => {
                    other.map_err(|error| Error::io(format!("unmounting {}", self.point.display()), error))?
                }
            }
            self.unmounted = true;
        }
        Ok(())
    }

    /// What is still mounted in another namespace, or open, ends with the process that serves it: nobody waits for it.
    ///
    /// The library unmounts the place of a session that is dropped, though that was unmounted before, and so takes away what somebody has mounted there
    /// since. So its session is never dropped; what is kept of it is a descriptor.
    fn join(&self, session: BackgroundSession) {
        let begun = Instant::now();
        while !session.guard.is_finished() && begun.elapsed() < ENDS_WITHIN {
            std::thread::sleep(ENDS_TURN);
        }
        if !session.guard.is_finished() {
            tracing::warn!(
                "{} is still used, or mounted in another namespace: it ends with this process",
                self.point.display()
            );
            std::mem::forget(session);
            return;
        }
        let mut session = std::mem::ManuallyDrop::new(session);
        let Ok(nothing) = std::thread::Builder::new().spawn(|| Ok(())) else { return };
        match std::mem::replace(&mut session.guard, nothing).join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("serving {}: {error}", self.point.display()),
            Err(_) => tracing::warn!("the threads that serve {} panicked", self.point.display()),
        }
    }

    fn unmount_by_helper(&self, lazy: bool) -> Result<(), Error> {
        left::unmount_by_helper(&self.point, lazy)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(true) {
            tracing::warn!("{error}");
        }
        if let Some(session) = self.session.take() {
            self.join(session);
        }
        self.stale.close();
        if let Some(teller) = self.teller.take()
            && teller.join().is_err()
        {
            tracing::warn!("the thread that tells the kernel what is stale panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_helper_is_named_to_users() {
        let said = |kind: std::io::ErrorKind, is_root| {
            without_helper(kind.into(), is_root, |error| Error::io("mounting at /m", error)).to_string()
        };
        let missing = std::io::ErrorKind::NotFound;
        let to_users = said(missing, false);
        assert!(
            to_users.contains("fusermount3") && to_users.contains("install the package fuse3"),
            "{to_users}"
        );
        // Root mounts by itself, and other failures are what they are.
        for told in [said(missing, true), said(std::io::ErrorKind::PermissionDenied, false)] {
            assert!(told.contains("mounting at /m") && !told.contains("fuse3"), "{told}");
        }
    }

    #[test]
    fn a_missing_device_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("fuse");
        let said = without_device(&device).unwrap().to_string();
        assert!(said.contains("--device /dev/fuse") && said.contains("No such file"), "{said}");
        std::fs::write(&device, "").unwrap();
        assert!(without_device(&device).is_none());
    }
}
