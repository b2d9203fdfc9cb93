//! The kernel's process connector: events of processes over a netlink socket, for kernels or builds without our programs.

use crate::error::{Error, Result};
use crate::kernel::{Event, What};
use rustix::fd::OwnedFd;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use weir_sensor::Fetched;

/// The group and the kind of the process events.
const PROCESSES: u32 = 1;
const LISTEN: u32 = 1;
/// `nlmsghdr` and `cn_msg`.
const HEADERS_BYTES: usize = 16 + 20;
/// Bytes that the kernel may hold for us.
const QUEUE_BYTES: usize = 8 << 20;
/// Most messages that one fetch takes, so that its time has a bound.
pub const MESSAGES_MAX: usize = 16_384;

/// The socket.
#[derive(Debug)]
pub struct Connector {
    socket: OwnedFd,
}

impl Connector {
    /// Opens and subscribes; it needs root.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open() -> Result<Connector> {
        let failed =
            |error: rustix::io::Errno| Error::io("listening to the kernel's process connector", error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(CONNECTOR)).map_err(failed)?;
        // A larger queue is a help, not a need.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES);
        bind(&socket, &SocketAddrNetlink::new(0, PROCESSES)).map_err(failed)?;
        send(&socket, &subscription(), SendFlags::empty()).map_err(failed)?;
        Ok(Connector { socket })
    }

    /// Hands out what came.
    pub fn fetch(&mut self, mut each: impl FnMut(&Event)) -> Fetched {
        let mut found = Fetched::default();
        let mut buffer = [0_u8; 256];
        for _ in 0..MESSAGES_MAX {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    if let Some(event) = parse(&buffer[..length]) {
                        each(&event);
                        found.records += 1;
                    }
                }
                // The queue overflowed: how many were lost is not told.
                Err(rustix::io::Errno::NOBUFS) => found.lost += 1,
                Err(_) => break,
            }
        }
        found
    }
}

/// `nlmsghdr`, `cn_msg`, the wish to listen.
fn subscription() -> [u8; HEADERS_BYTES + 4] {
    let mut message = [0; HEADERS_BYTES + 4];
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&3_u16.to_ne_bytes()); // NLMSG_DONE
    message[16..20].copy_from_slice(&PROCESSES.to_ne_bytes());
    message[20..24].copy_from_slice(&PROCESSES.to_ne_bytes());
    message[32..34].copy_from_slice(&4_u16.to_ne_bytes());
    message[36..40].copy_from_slice(&LISTEN.to_ne_bytes());
    message
}

/// Reads a message. Nothing for threads and for what is not used.
pub fn parse(message: &[u8]) -> Option<Event> {
    const FORK: u32 = 1;
    const EXEC: u32 = 2;
    const EXIT: u32 = 0x8000_0000;
    let body = message.get(HEADERS_BYTES..)?;
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let time_ns = u64::from_ne_bytes(body.get(8..16)?.try_into().ok()?);
    let event = |what, process| Event { time_ns, what, process, user: 0, cgroup: 0, comm: [0; 16] };
    match word(0)? {
        // Thread and process of the parent, then of the child.
        FORK => {
            let (parent, child_thread, child) = (word(20)?, word(24)?, word(28)?);
            (child_thread == child).then(|| event(What::Fork { parent }, child))
        }
        EXEC => Some(event(What::Exec, word(20)?)),
        EXIT => {
            let (thread, process, status) = (word(16)?, word(20)?, word(24)?);
            (thread == process).then(|| event(What::Exit { status }, process))
        }
        _ => None,
    }
}
