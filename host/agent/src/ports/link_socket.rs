//! The socket on which the kernel tells of the devices of a namespace.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::fd::OwnedFd;

/// Of devices of a namespace (`RTMGRP_LINK`).
const GROUP_LINKS: u32 = 1;

/// Opens a socket in the namespace of this thread, on which the kernel tells of its devices.
///
/// # Errors
/// What the kernel says.
pub fn listen() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINKS))?;
    Ok(socket)
}
