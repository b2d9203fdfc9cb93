//! The process that serves one mount: `weir fs mount` starts it and waits until it answers.

use crate::accelerate;
use crate::control::{self, Answer, PATIENCE, Question, SOCKET, Status};
use crate::error::Error;
use crate::locate;
use crate::mount::{Mount, Options};
use rustix::event::{PollFd, PollFlags, Timespec};
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
}

/// Mounts and serves until unmounted, or until `end` is set. Returns once nothing is mounted any more.
pub fn serve(task: Task, end: &AtomicBool) -> Result<(), Error> {
    let point = std::fs::canonicalize(&task.point)
        .map_err(|error| Error::io(format!("mounting at {}", task.point.display()), error))?;
    let folder = control::mount_directory(&task.state, &point);
    control::make_private(&folder)?;
    if control::ask(&task.state, &point, &Question::Status).is_ok() {
        let taken = std::io::Error::from(rustix::io::Errno::BUSY);
        return Err(Error::io(
            format!("{} has a file system of weir already; 'weir fs unmount' it", point.display()),
            taken,
        ));
    }
    let listener = listen(&folder)?;
    let backend = locate::open(&task.backend)?;
    let options = Options { source: task.backend.clone(), ..task.options.clone() };
    let mount = Mount::new(backend, &point, &options)?;
    let injector = accelerate::start(&mount);
    let mut daemon = Daemon { injector, mount, task };
    while !end.load(Ordering::Relaxed) && daemon.mount.is_alive() {
        daemon.turn(&listener)?;
    }
    drop(daemon.mount);
    // What cannot be removed is only an empty name.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
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
    fn turn(&mut self, listener: &UnixListener) -> Result<(), Error> {
        let patience = Timespec { tv_sec: 0, tv_nsec: TURN_MS * 1_000_000 };
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Error::io("waiting for questions", error)),
        }
        if let Ok((stream, _)) = listener.accept()
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
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused(error.to_string()),
            },
        };
        control::send(stream, &answer)
    }

    fn status(&self) -> Status {
        let segment = self.mount.backend().segment().map(|segment| segment.figures());
        Status {
            mount: self.mount.point().display().to_string(),
            backend: self.task.backend.clone(),
            pid: std::process::id(),
            version: crate::version(),
            notes: self.mount.backend().notes(),
            acceleration: accelerate::describe(&self.mount, self.injector.as_ref()),
            operations: self.mount.stats().counts(),
            segment,
        }
    }
}
