//! The socket for punted frames. The agent binds a known name beside it and sends an empty datagram to say that
//! it is there; whoever sent last gets the frames, and before anybody did the known name.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use weir_base::codec::{CodecError, decode, encode};
use weir_model::local::{PUNT_AGENT_SOCKET, PUNT_BYTES_MAX, Punt};

/// Largest datagram: a frame, and room for the key.
const DATAGRAM_BYTES_MAX: usize = PUNT_BYTES_MAX + 256;

/// See the module.
pub struct PuntSocket {
    socket: UnixDatagram,
    agent: Option<SocketAddr>,
    buffer: Box<[u8]>,
}

impl PuntSocket {
    /// Binds the socket in place of an old one, for this user only.
    ///
    /// # Errors
    /// I/O errors.
    pub fn bind(path: &Path) -> io::Result<PuntSocket> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        PuntSocket::on(socket, path)
    }

    /// On a socket that is bound to `path`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn on(socket: UnixDatagram, path: &Path) -> io::Result<PuntSocket> {
        socket.set_nonblocking(true)?;
        // An agent that outlived a switch is told from the first frame on; it says where it is only now and then.
        let agent = SocketAddr::from_pathname(path.with_file_name(PUNT_AGENT_SOCKET)).ok();
        Ok(PuntSocket { socket, agent, buffer: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice() })
    }

    /// The socket, for another process.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }

    /// To wait for it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a frame to the agent; false when there is none, or it does not read, or the frame is too long.
    pub fn send(&self, punt: &Punt) -> bool {
        let Some(agent) = &self.agent else { return false };
        punt.frame.len() <= PUNT_BYTES_MAX && self.socket.send_to_addr(&encode(punt), agent).is_ok()
    }

    /// The next frame of the agent; `None` when there is none.
    ///
    /// # Errors
    /// The datagram was no punted frame.
    pub fn receive(&mut self) -> Result<Option<Punt>, CodecError> {
        loop {
            let Ok((length, from)) = self.socket.recv_from(&mut self.buffer) else { return Ok(None) };
            if !from.is_unnamed() {
                self.agent = Some(from);
            }
            if length > 0 {
                return decode(&self.buffer[..length]).map(Some);
            }
        }
    }
}
