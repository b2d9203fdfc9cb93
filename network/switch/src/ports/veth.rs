//! Veth pairs: one end is a container's, the other is in the host's namespace, where the switch has its frames by AF_XDP
//! ([`super::xdp`]) or AF_PACKET ([`super::packet`]).
//!
//! AF_XDP has no word for what the kernel may leave to be done on a frame, AF_PACKET has: so the container's end offers checksums and
//! segmentation to the latter alone ([`set_offloads`]). A container that turns them on again sends frames with wrong checksums, which its
//! peers drop; they are lost to nobody else.

use super::xdp::program;
use super::{PortError, netlink};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `ETHTOOL_STXCSUM`: whether a device may leave checksums to be done.
const CHECKSUMS: u32 = 0x17;
/// `ETHTOOL_GCHANNELS`: how many queues a device has.
const CHANNELS: u32 = 0x3c;
/// `ETHTOOL_STSO`, `ETHTOOL_SGSO`: segmentation, which needs the former. The kernel has fixed them where the other end has an XDP program.
const SEGMENTATION: [u32; 2] = [0x1f, 0x24];

#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    rest: Rest,
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
union Rest {
    flags: libc::c_short,
    data: *mut Value,
    channels: *mut Channels,
    all: [u8; 24],
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct Value {
    command: u32,
    data: u32,
}

/// `ethtool_channels`: most of each kind, then as many as there are.
#[repr(C)]
#[allow(dead_code)] // the kernel reads and writes them
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

fn request(name: &str, rest: Rest) -> Result<Request, PortError> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(PortError::BadDevice(name.to_string()));
    }
    let mut request = Request { name: [0; libc::IFNAMSIZ], rest };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(request)
}

fn any_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketType, socket};
    socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(io::Error::from)
}

fn ask(name: &str, doing: &'static str, code: libc::c_ulong, request: &mut Request) -> Result<(), PortError> {
    let refused = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENODEV) => PortError::NoDevice(name.to_string()),
        _ => PortError::Refused { device: name.to_string(), doing, source },
    };
    let socket = any_socket().map_err(refused)?;
    // SAFETY: a live request of the kernel's size; what it points to lives in the caller.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) };
    if result < 0 { Err(refused(io::Error::last_os_error())) } else { Ok(()) }
}

/// Makes a device of the thread's namespace one that nobody but a switch has frames of, and sets it up.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn prepare(name: &str) -> Result<(), PortError> {
    let doing = "keeping it and the host's own stack apart";
    program::wall_off(netlink::index_of(name)?).map_err(|source| PortError::Refused {
        device: name.to_string(),
        doing,
        source,
    })?;
    set_up(name, true)
}

/// Lets a device of the thread's namespace leave checksums and segmentation to whoever gets its frames, or not.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn set_offloads(name: &str, on: bool) -> Result<(), PortError> {
    let set = |command: u32| {
        let mut value = Value { command, data: u32::from(on) };
        let mut request = request(name, Rest { data: &raw mut value })?;
        ask(name, "setting its offloads", libc::SIOCETHTOOL, &mut request)
    };
    set(CHECKSUMS)?;
    for command in SEGMENTATION {
        match set(command) {
            Err(PortError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Sets a device of the thread's namespace up or down. The other end of a pair sees a carrier while this one is up.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn set_up(name: &str, up: bool) -> Result<(), PortError> {
    let mut request = request(name, Rest { all: [0; 24] })?;
    ask(name, "reading its flags", libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has just written the flags; any bytes are a number.
    #[allow(unsafe_code)]
    let flags = unsafe { request.rest.flags };
    let is_up = libc::IFF_UP as libc::c_short;
    request.rest.flags = if up { flags | is_up } else { flags & !is_up };
    ask(name, "setting its flags", libc::SIOCSIFFLAGS, &mut request)
}

/// How many queues a device of the thread's namespace receives by; one, if its driver does not say.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn queues(name: &str) -> Result<u32, PortError> {
    let mut channels =
        Channels { command: CHANNELS, most: [0; 4], receive: 0, transmit: 0, other: 0, combined: 0 };
    let mut request = request(name, Rest { channels: &raw mut channels })?;
    match ask(name, "reading its queues", libc::SIOCETHTOOL, &mut request) {
        Ok(()) => Ok(channels.receive.saturating_add(channels.combined).max(1)),
        Err(PortError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(error),
    }
}
