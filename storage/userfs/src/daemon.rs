//! The process that serves one mount. `weir fs mount` starts its keeper, and waits until it answers.

use crate::accelerate::{self, Holder};
use crate::control::{self, Answer, PATIENCE, Question, SOCKET, Status};
use crate::error::Error;
use crate::journal::Journal;
use crate::keeper::line::{self, About, Kept, Line};
use crate::locate::{self, Life, Surroundings};
use crate::mount::{self, Mount, Options};
use crate::segment::Segment;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use weir_intercept::Injector;

/// How long a daemon takes at most to see that its mount is gone, or that it shall end.
const TURN_MS: i64 = 200;

/// What to serve.
#[derive(Debug, Clone)]
pub struct Task {
    /// The backend's text.
    pub backend: String,
    /// Where to mount it.
    pub point: PathBuf,
    /// Where the sockets of daemons are.
    pub state: PathBuf,
    /// How to mount it.
    pub options: Options,
}

struct Daemon {
    task: Task,
    mount: Mount,
    injector: Result<Injector, weir_intercept::Error>,
    line: Option<Line>,
    listener: UnixListener,
    /// Which file the socket is: the next daemon at this place has another.
    socket: Option<(u64, u64)>,
}

/// Mounts and serves until unmounted, or until `end` is set. Returns once nothing is mounted any more.
///
/// When this process dies its mount does too: [`crate::keeper::serve`] is for that.
pub fn serve(task: Task, end: &AtomicBool) -> Result<(), Error> {
    let point = place(&task.point)?;
    begin(Task { point, ..task }, None)?.run(end)
}

/// Where to mount: nothing is left there of daemons that died.
pub(crate) fn place(point: &Path) -> Result<PathBuf, Error> {
    let failed = |error| Error::io(format!("mounting at {}", point.display()), error);
    if mount::clear(&std::path::absolute(point).map_err(failed)?)? {
        tracing::warn!("{}: the mount of a daemon that died was taken away", point.display());
    }
    std::fs::canonicalize(point).map_err(failed)
}

/// The same, with a keeper, who gave us what the daemon before us left. Of a mount that nobody serves yet nothing may be asked here.
pub(crate) fn serve_kept(task: Task, end: &AtomicBool, mut line: Line) -> Result<(), Error> {
    match line.left.take() {
        Some((kept, holder)) => again(task, kept, holder, line)?.run(end),
        None => begin(task, Some(line))?.run(end),
    }
}

/// Folders hold descriptors of files that the kernel knows: as many as the system lets us have, not as many as shells mean for programs.
fn take_all_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!("files that can be in use at once stay {:?}: {error}", limit.current);
    }
}

fn begin(task: Task, line: Option<Line>) -> Result<Daemon, Error> {
    take_all_descriptors();
    let folder = control::mount_directory(&task.state, &task.point);
    control::make_private(&folder)?;
    if control::ask(&task.state, &task.point, &Question::Status).is_ok() {
        let taken = std::io::Error::from(rustix::io::Errno::BUSY);
        return Err(Error::io(
            format!("{} has a file system of weir already; 'weir fs unmount' it", task.point.display()),
            taken,
        ));
    }
    let listener = listen(&folder)?;
    let life = if line.is_some() { Life::Kept } else { Life::Alone };
    let backend = locate::open_in(&task.backend, &Surroundings::from_environment(), life)?;
    let options = Options { source: task.backend.clone(), kept: line.is_some(), ..task.options.clone() };
    let mount = Mount::new(backend, &task.point, &options)?;
    let name = accelerate::name(&mount);
    let holder = match &line {
        Some(line) => hand_over(&mount, &name, line)?,
        None => Holder::own(&mount),
    };
    let injector = accelerate::start_as(&mount, &name, holder);
    Ok(Daemon { injector, mount, task, line, socket: socket_at(&folder), listener })
}

fn socket_at(folder: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(folder.join(SOCKET)).ok().map(|found| (found.dev(), found.ino()))
}

/// What a daemon that comes after us needs. Where programs find the part of it that they need.
fn hand_over(mount: &Mount, injector: &str, line: &Line) -> Result<Holder, Error> {
    let failed = |error: std::io::Error| Error::io("handing the mount to its keeper", error);
    let kernel = mount.kernel().ok_or_else(|| failed(rustix::io::Errno::NOTCONN.into()))?;
    let (segment, journal) = (mount.backend().segment(), mount.backend().journal());
    let passthrough = mount.passthrough_journal();
    let about = About {
        device: mount.device(),
        injector: injector.to_owned(),
        segment: segment.is_some(),
        journal: journal.is_some(),
        passthrough: passthrough.is_some(),
        counts: mount.stats().memory().is_some(),
    };
    let journals = [journal.map(Journal::files), passthrough.map(Journal::files)];
    let all = line::descriptors(kernel, segment.map(Segment::memory), journals, mount.stats().memory());
    line.keep(about, &all).map_err(failed)
}

/// In place of a daemon that died.
fn again(task: Task, kept: Kept, holder: Holder, line: Line) -> Result<Daemon, Error> {
    take_all_descriptors();
    let folder = control::mount_directory(&task.state, &task.point);
    let listener = listen(&folder)?;
    let life = Life::Again(locate::Left { segment: kept.segment, journal: kept.journal });
    let backend = locate::open_in(&task.backend, &Surroundings::from_environment(), life)?;
    let options = Options { source: task.backend.clone(), kept: true, ..task.options.clone() };
    let left = mount::Left {
        kernel: kept.kernel,
        passthrough: kept.passthrough,
        counts: kept.counts,
        device: kept.about.device,
    };
    let mount = Mount::again(backend, &task.point, &options, left)?;
    let injector = accelerate::start_as(&mount, &kept.about.injector, holder);
    line.serving().map_err(|error| Error::io("telling the keeper of the mount", error))?;
    Ok(Daemon { injector, mount, task, line: Some(line), socket: socket_at(&folder), listener })
}

/// Takes our socket's folder away, unless it is another daemon's by now. What cannot be removed is only an empty name.
fn leave(task: &Task, socket: Option<(u64, u64)>) {
    let folder = control::mount_directory(&task.state, &task.point);
    if socket.is_some() && socket_at(&folder) == socket {
        let _ = std::fs::remove_dir_all(&folder);
    }
}

fn listen(folder: &Path) -> Result<UnixListener, Error> {
    let socket = folder.join(SOCKET);
    let failed = |error| Error::io(format!("listening at {}", socket.display()), error);
    // Left by a daemon that was killed.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl Daemon {
    fn run(mut self, end: &AtomicBool) -> Result<(), Error> {
        while !end.load(Ordering::Relaxed) && self.mount.is_alive() {
            self.turn()?;
        }
        let (task, socket) = (self.task.clone(), self.socket);
        drop(self);
        leave(&task, socket);
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Error> {
        let patience = Timespec { tv_sec: 0, tv_nsec: TURN_MS * 1_000_000 };
        let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Error::io("waiting for questions", error)),
        }
        if let Ok((stream, _)) = self.listener.accept()
            && let Err(error) = self.answer(&stream)
        {
            tracing::debug!("a question was not answered: {error}");
        }
        Ok(())
    }

    fn answer(&mut self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let answer = match control::receive(stream)? {
            Question::Status => Answer::Status(Box::new(self.status())),
            Question::Unmount { lazy } => match self.mount.unmount(lazy) {
                Ok(()) => {
                    if !lazy {
                        // Whoever hears it may mount here at once.
                        leave(&self.task, self.socket.take());
                    }
                    Answer::Done
                }
                Err(error) => Answer::Refused(error.to_string()),
            },
        };
        control::send(stream, &answer)
    }

    fn status(&self) -> Status {
        let segment = self.mount.backend().segment().map(|segment| segment.figures());
        let mut notes = self.mount.backend().notes();
        if let Some(line) = self.line.as_ref().filter(|line| line.deaths > 0) {
            notes.push(format!("daemons of this mount died, and others took their place: {}", line.deaths));
        }
        if let Some(line) = self.line.as_ref().filter(|line| !line.is_kept()) {
            let keeper = line.keeper;
            notes.push(format!("process {keeper}, which kept this mount, is gone: it ends with its daemon"));
        }
        Status {
            mount: self.mount.point().display().to_string(),
            backend: self.task.backend.clone(),
            pid: std::process::id(),
            keeper: self.line.as_ref().map(|line| line.keeper),
            deaths: self.line.as_ref().map_or(0, |line| line.deaths),
            version: crate::version(),
            notes,
            acceleration: accelerate::describe(&self.mount, self.injector.as_ref()),
            operations: self.mount.stats().counts(),
            segment,
            held: self.mount.backend().held(),
        }
    }
}
