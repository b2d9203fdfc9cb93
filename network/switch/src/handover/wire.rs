//! Messages with descriptors on a local socket that keeps their bounds (`SOCK_SEQPACKET`, `SCM_RIGHTS`).
//!
//! A message is one datagram: `u16` kind, `u16` flags, body (postcard); little-endian. Bit 0 of the flags says that whoever
//! does not know the kind must refuse the hand-over; a kind without it is passed over, and its descriptors closed. Bits that
//! this release does not know are zero.

use super::message::Message;
use super::{HandoverError, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Messages that may wait to be accepted.
const BACKLOG: i32 = 4;

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, in place of whoever did before; for this user only.
///
/// # Errors
/// I/O errors.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = socket()?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// One end of a hand-over.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Nothing is sent after it.
    deadline: Option<Instant>,
    /// Messages of kinds that this release does not know, passed over.
    pub passed_over: u64,
}

impl Channel {
    /// Of a connected socket.
    pub fn new(socket: OwnedFd) -> Channel {
        Channel { socket, deadline: None, passed_over: 0 }
    }

    /// Sends nothing after `deadline`.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Connects to whoever listens at `path`.
    ///
    /// # Errors
    /// I/O errors; `ConnectionRefused` or `NotFound` when nobody does.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel::new(socket))
    }

    /// The process at the other end, and its user.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn peer(&self) -> io::Result<rustix::net::UCred> {
        Ok(sockopt::socket_peercred(&self.socket)?)
    }

    /// How long one send or receive may take.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_limit(&self, limit: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(limit))?;
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Send, Some(limit))?;
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`HandoverError`]; the other end is to be given up then.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), HandoverError> {
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Err(HandoverError::TooSlow);
        }
        let bytes = message.encode();
        if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > MESSAGE_FDS_MAX {
            return Err(HandoverError::TooLarge { bytes: bytes.len(), descriptors: fds.len() });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            // There is room for as many as are allowed.
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed);
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        sent.map(drop).map_err(|error| failed(error.into()))
    }

    /// The next message that this release knows, with its descriptors.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn receive(&mut self) -> Result<(Message, Vec<OwnedFd>), HandoverError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received =
                match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                    Err(rustix::io::Errno::INTR) => continue,
                    other => other.map_err(|error| failed(error.into()))?,
                };
            let mut fds = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
            if received.bytes == 0 && fds.is_empty() {
                return Err(HandoverError::Gone);
            }
            if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                return Err(HandoverError::Nonsense(
                    "a message was cut: it, or its descriptors, are too many".into(),
                ));
            }
            match Message::decode(&bytes[..received.bytes])? {
                Some(message) => return Ok((message, fds)),
                None => self.passed_over += 1,
            }
        }
    }

    /// To wait for it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failed(error: io::Error) -> HandoverError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HandoverError::TooSlow,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
            HandoverError::Gone
        }
        _ => HandoverError::Socket(error),
    }
}
