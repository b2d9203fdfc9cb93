//! TAP devices: the ioctls of linux/if_tun.h.

use super::PortError;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETSNDBUF: libc::c_ulong = 0x4004_54d4;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
const TUNSETCARRIER: libc::c_ulong = 0x4004_54e2;
const TUNGETDEVNETNS: libc::c_ulong = 0x54e3;

const IFF_TAP: libc::c_short = 0x0002;
const IFF_NO_PI: libc::c_short = 0x1000;
const IFF_VNET_HDR: libc::c_short = 0x4000;

const OFFLOAD_CHECKSUM: libc::c_ulong = 0x01;
const OFFLOAD_TSO4: libc::c_ulong = 0x02;
const OFFLOAD_TSO6: libc::c_ulong = 0x04;
const OFFLOAD_TSO_ECN: libc::c_ulong = 0x08;
const OFFLOAD_USO4: libc::c_ulong = 0x20;
const OFFLOAD_USO6: libc::c_ulong = 0x40;

/// Bytes that may wait in the endpoint's stack before a write is refused.
const SEND_BUFFER_BYTES: libc::c_int = 64 * 1024 * 1024;
/// Longest name of a device, bytes.
const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str, flags: libc::c_short) -> InterfaceRequest {
        let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], flags, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request
    }
}

fn refused(device: &str, doing: &'static str) -> PortError {
    PortError::Refused { device: device.to_string(), doing, source: io::Error::last_os_error() }
}

fn check_name(name: &str) -> Result<(), PortError> {
    let bad = |byte: u8| byte == b'/' || byte == 0 || byte.is_ascii_whitespace();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.bytes().any(bad) {
        return Err(PortError::BadDevice(name.to_string()));
    }
    Ok(())
}

/// Whether there is a device of this name in the thread's namespace.
fn exists(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: a live, terminated string.
    #[allow(unsafe_code)]
    unsafe {
        libc::if_nametoindex(name.as_ptr()) != 0
    }
}

/// Opens a TAP of the thread's namespace, made when `create` is set, with all offloads. It does not block.
///
/// # Errors
/// [`PortError`].
pub fn open(name: &str, create: bool) -> Result<OwnedFd, PortError> {
    check_name(name)?;
    if !create && !exists(name) {
        return Err(PortError::NoDevice(name.to_string()));
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").map_err(|source| {
        PortError::Refused { device: name.to_string(), doing: "opening /dev/net/tun", source }
    })?;
    let device = OwnedFd::from(file);
    let mut request = InterfaceRequest::new(name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR);
    // SAFETY: a live `ifreq` of the kernel's size.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EBUSY) => PortError::Busy(name.to_string()),
            source => PortError::Refused { device: name.to_string(), doing: "attaching", source },
        });
    }
    set_number(&device, name, TUNSETVNETHDRSZ, 10, "setting the virtio header's size")?;
    set_number(&device, name, TUNSETSNDBUF, SEND_BUFFER_BYTES, "setting the send buffer")?;
    set_offloads(&device, name)?;
    rustix::io::ioctl_fionbio(&device, true).map_err(|error| PortError::Refused {
        device: name.to_string(),
        doing: "making it non-blocking",
        source: error.into(),
    })?;
    Ok(device)
}

fn set_number(
    device: &OwnedFd,
    name: &str,
    request: libc::c_ulong,
    value: libc::c_int,
    doing: &'static str,
) -> Result<(), PortError> {
    // SAFETY: the request reads one live integer.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), request, &raw const value) };
    if result < 0 { Err(refused(name, doing)) } else { Ok(()) }
}

/// Asks for all offloads; a kernel without USO gets the others.
fn set_offloads(device: &OwnedFd, name: &str) -> Result<(), PortError> {
    let tcp = OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_TSO_ECN;
    for offloads in [tcp | OFFLOAD_USO4 | OFFLOAD_USO6, tcp] {
        // SAFETY: the request takes a number, no pointer.
        #[allow(unsafe_code)]
        let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETOFFLOAD, offloads) };
        if result >= 0 {
            return Ok(());
        }
    }
    Err(refused(name, "setting offloads"))
}

/// Lets a device outlive its users, or not.
///
/// # Errors
/// [`PortError::Refused`].
pub fn set_persistent(device: BorrowedFd<'_>, name: &str, persistent: bool) -> Result<(), PortError> {
    // SAFETY: the request takes a number, no pointer.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETPERSIST, libc::c_ulong::from(persistent)) };
    if result < 0 { Err(refused(name, "making it persistent")) } else { Ok(()) }
}

/// Shows the endpoint a carrier, or none.
///
/// # Errors
/// What the kernel says.
pub fn set_carrier(device: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: the request reads one live integer.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETCARRIER, &raw const value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The Ethernet address of a TAP.
///
/// # Errors
/// [`PortError::Refused`].
pub fn mac(device: BorrowedFd<'_>, name: &str) -> Result<[u8; 6], PortError> {
    let mut request = InterfaceRequest::new(name, 0);
    // SAFETY: a live `ifreq` of the kernel's size, which the kernel fills.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) };
    if result < 0 {
        return Err(refused(name, "reading the Ethernet address"));
    }
    // The address follows the family, which lies where the flags are.
    let mut mac = [0; 6];
    mac.copy_from_slice(&request.rest[..6]);
    Ok(mac)
}

/// Whether the device behind the descriptor is still there, under its name and in its namespace; of one that was renamed or moved, who made
/// it makes another.
pub fn is_at(device: BorrowedFd<'_>, netns: Option<&str>, name: &str) -> bool {
    let mut request = InterfaceRequest::new("", 0);
    // SAFETY: a live `ifreq` of the kernel's size, which the kernel fills.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNGETIFF, &raw mut request) };
    let end = request.name.iter().position(|byte| *byte == 0).unwrap_or(request.name.len());
    result >= 0 && request.name[..end] == *name.as_bytes() && is_in(device, netns).unwrap_or(true)
}

/// Whether a device is in a namespace; `None` where the kernel does not say.
fn is_in(device: BorrowedFd<'_>, netns: Option<&str>) -> Option<bool> {
    // SAFETY: the request takes nothing, and returns a new descriptor or an error.
    #[allow(unsafe_code)]
    let namespace = unsafe {
        let number = libc::ioctl(device.as_raw_fd(), TUNGETDEVNETNS, 0);
        (number >= 0).then(|| OwnedFd::from_raw_fd(number))?
    };
    let wanted: OwnedFd = match netns {
        // One that is gone is no other's.
        Some(name) => match super::open_namespace(name) {
            Ok(wanted) => wanted,
            Err(_) => return Some(false),
        },
        None => std::fs::File::open("/proc/thread-self/ns/net").ok()?.into(),
    };
    let identity = |file: &OwnedFd| rustix::fs::fstat(file).map(|status| (status.st_dev, status.st_ino)).ok();
    Some(identity(&namespace)? == identity(&wanted)?)
}
