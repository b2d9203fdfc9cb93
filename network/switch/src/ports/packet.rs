//! AF_PACKET: the frames of a network device through a socket, one system call each, with virtio headers in front. So super-frames and
//! partial checksums pass whole, as through a TAP, and the engine reads and writes such a socket as it does a TAP.

use super::PortError;
use crate::engine::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Bytes that may wait in either direction: as many super-frames as a TAP's queue has frames at most.
const BUFFER_BYTES: libc::c_int = 64 * 1024 * 1024;
/// `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`: whether the kernel took a VLAN tag out of the frame.
const HAS_TAG: u32 = (-0x1000_i32 + 48) as u32;

/// Frames that a socket lost because its buffer was full, since the last time that it was asked.
pub fn lost(socket: BorrowedFd<'_>) -> u64 {
    #[repr(C)]
    #[allow(dead_code)] // the kernel writes them
    struct Statistics {
        packets: u32,
        drops: u32,
    }
    let (mut counted, mut size) =
        (Statistics { packets: 0, drops: 0 }, size_of::<Statistics>() as libc::socklen_t);
    // SAFETY: pointer and size are those of a live value, of which the kernel writes at most so much.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            std::ptr::from_mut(&mut counted).cast(),
            &raw mut size,
        )
    };
    if result < 0 { 0 } else { u64::from(counted.drops) }
}

/// Opens a socket for the frames that come in from a device of the thread's namespace.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn open(name: &str) -> Result<OwnedFd, PortError> {
    let device = super::netlink::index_of(name)?;
    let refused = |doing: &'static str| {
        move |source: io::Error| PortError::Refused { device: name.to_string(), doing, source }
    };
    let socket = new_socket().map_err(refused("opening an AF_PACKET socket"))?;
    for (level, option, value, doing) in [
        (libc::SOL_PACKET, PACKET_VNET_HDR, 1, "asking AF_PACKET for virtio headers"),
        (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, "asking AF_PACKET for incoming frames only"),
        // Past what keeps the host's stack away.
        (libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1, "asking AF_PACKET to send directly"),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_BYTES, "setting the receive buffer"),
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER_BYTES, "setting the send buffer"),
    ] {
        sys::set_option(socket.as_fd(), level, option, value).map_err(refused(doing))?;
    }
    refuse_tags(socket.as_fd()).map_err(refused("setting the filter of tagged frames"))?;
    bind(socket.as_fd(), device).map_err(refused("binding the AF_PACKET socket"))?;
    Ok(socket)
}

/// The number of the device that a socket is bound to.
///
/// # Errors
/// It is no such socket.
pub fn device(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: all zeros is a valid address, which the kernel writes over.
    #[allow(unsafe_code)]
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a live address and its length, of which the kernel writes at most so much.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::getsockname(socket.as_raw_fd(), std::ptr::from_mut(&mut address).cast(), &raw mut size)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if libc::c_int::from(address.sll_family) != libc::AF_PACKET {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no AF_PACKET socket"));
    }
    // One whose device is gone has -1.
    u32::try_from(address.sll_ifindex).map_err(|_| io::ErrorKind::NotFound.into())
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a new descriptor is owned by nobody else. It gets no frame before it is bound.
    #[allow(unsafe_code)]
    unsafe {
        match libc::socket(libc::AF_PACKET, kind, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Tagged frames are lost: their tag would be, and they would pass for others.
fn refuse_tags(socket: BorrowedFd<'_>) -> io::Result<()> {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, HAS_TAG),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a live filter with live steps, which the kernel copies.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bind(socket: BorrowedFd<'_>, device: u32) -> io::Result<()> {
    // SAFETY: all zeros is a valid address, which is filled in below.
    #[allow(unsafe_code)]
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = device as i32;
    // SAFETY: a live address of the length beside it.
    #[allow(unsafe_code)]
    let result = unsafe {
        let size = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
