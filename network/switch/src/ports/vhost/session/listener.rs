//! The socket at which a virtual machine is met: one that the switch listens on, or one that a monitor listens on.

use super::{RETRY_MAX, Stop};
use crate::ports::vhost::Socket;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Mode of the socket that the switch listens on: its own user and group, which a folder with the set-group-ID bit gives.
const SOCKET_MODE: u32 = 0o660;

/// The socket that a switch listens on. It removes the file that it made, and no other.
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    pub(super) path: std::path::PathBuf,
    /// Device and number of the file that it made.
    pub(super) file: (u64, u64),
    /// Another process listens on it.
    pub(super) left: bool,
}

impl Listener {
    fn new(path: &Path) -> io::Result<Listener> {
        remove_stale(path)?;
        let socket = UnixListener::bind(path)?;
        socket.set_nonblocking(true)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        let made = std::fs::symlink_metadata(path)?;
        Ok(Listener { socket, path: path.to_path_buf(), file: (made.dev(), made.ino()), left: false })
    }

    fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.left && self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens on, which a process that was killed leaves behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other(
                "there is a file that is no socket: remove it, or choose another path",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::other("another process listens there: end it, or choose another path")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// A connection; `None` when there is none yet.
pub(super) fn meet(
    socket: &Socket,
    listener: &mut Option<Listener>,
    stop: &Stop,
) -> io::Result<Option<UnixStream>> {
    if !socket.listens {
        return UnixStream::connect(&socket.path).map(Some);
    }
    if listener.as_ref().is_some_and(|listener| !listener.is_there()) {
        // Somebody removed it, and nobody could find it any more.
        *listener = None;
    }
    let listener = match listener {
        Some(listener) => listener,
        None => listener.insert(Listener::new(&socket.path)?),
    };
    // Whoever comes when this is over is met by the process that goes on.
    if !stop.wait(Some(listener.socket.as_fd()), RETRY_MAX) || stop.is_ended() {
        return Ok(None);
    }
    match listener.socket.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
