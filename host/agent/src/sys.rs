//! The few system calls that no safe wrapper offers: making a TAP device that outlives us, and waiting for a descriptor.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Longest name of a device, bytes, without the final zero.
pub(crate) const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// A new TAP device in the namespace of the calling thread. It goes away when this is dropped
/// before [`Tap::persist`].
pub(crate) struct Tap(File);

impl Tap {
    /// Makes the device, with the flags that the switch opens it with. The name must be free.
    pub(crate) fn create(name: &str) -> io::Result<Tap> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.bytes().any(|b| b == 0 || b == b'%') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the descriptor is open for the call, and TUNSETIFF reads and writes one ifreq at
        // the address given, which lives until the call returns.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Tap(file)) }
    }

    /// Lets the device live on.
    pub(crate) fn persist(self) -> io::Result<()> {
        // SAFETY: the descriptor is open for the call, and TUNSETPERSIST takes an integer by value.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETPERSIST, 1) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Has the runtime watch a descriptor for input; `None` if it cannot.
pub(crate) fn watch(descriptor: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    // SAFETY: what is watched owns the descriptor, gives no way to close it, and is taken out before it is closed.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.ok()
}
