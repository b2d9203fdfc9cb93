//! The system calls of the engine that no safe wrapper covers as we need them: messages with control data,
//! several at once, on sockets; scattered writes; epoll.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `UDP_SEGMENT` of linux/udp.h.
const UDP_SEGMENT: libc::c_int = 103;
/// `UDP_GRO` of linux/udp.h.
pub const UDP_GRO: libc::c_int = 104;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn checked_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets an integer option of a socket.
///
/// # Errors
/// What the kernel says.
pub fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointer and size are those of a live integer.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), size) };
    checked(result).map(drop)
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Default for RawAddress {
    fn default() -> RawAddress {
        // SAFETY: all zeros is a valid `sockaddr_in6`.
        #[allow(unsafe_code)]
        unsafe {
            std::mem::zeroed()
        }
    }
}

impl RawAddress {
    /// Of an address and port.
    pub fn new(address: SocketAddr) -> RawAddress {
        let mut raw = RawAddress::default();
        match address {
            SocketAddr::V4(v4) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(v6) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                }
            }
        }
        raw
    }

    /// Length that the kernel wants with it.
    pub fn length(&self) -> libc::socklen_t {
        // SAFETY: every variant starts with the family.
        #[allow(unsafe_code)]
        let family = unsafe { self.family };
        if i32::from(family) == libc::AF_INET {
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        } else {
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }

    /// The address in the standard library's form.
    pub fn get(&self) -> SocketAddr {
        // SAFETY: the family says which variant was written, by `new` or by the kernel; both are
        // plain numbers for which any bytes are valid.
        #[allow(unsafe_code)]
        unsafe {
            if i32::from(self.family) == libc::AF_INET {
                let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)))
            } else {
                let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                SocketAddr::V6(SocketAddrV6::new(
                    ip,
                    u16::from_be(self.v6.sin6_port),
                    0,
                    self.v6.sin6_scope_id,
                ))
            }
        }
    }

    /// The IP address alone.
    pub fn ip(&self) -> IpAddr {
        self.get().ip()
    }
}

/// The UDP port that a socket is bound to.
///
/// # Errors
/// What the kernel says.
pub fn own_port(socket: BorrowedFd<'_>) -> io::Result<u16> {
    let name = rustix::net::getsockname(socket)?;
    let address = SocketAddr::try_from(name).map_err(io::Error::from)?;
    Ok(address.port())
}

/// Room for the control data of one message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Control([u8; Control::BYTES]);

impl Default for Control {
    fn default() -> Control {
        Control([0; Control::BYTES])
    }
}

impl Control {
    const BYTES: usize = 128;

    /// Appends an item to the `length` bytes that are there; returns the new length.
    fn put<T: Copy>(&mut self, length: usize, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
        // SAFETY: CMSG_SPACE and CMSG_LEN only calculate.
        #[allow(unsafe_code)]
        let (space, len) = unsafe {
            let size = size_of::<T>() as libc::c_uint;
            (libc::CMSG_SPACE(size) as usize, libc::CMSG_LEN(size) as usize)
        };
        assert!(length + space <= Control::BYTES);
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        let data_offset = len - size_of::<T>();
        // SAFETY: both writes are inside the array (asserted above); unaligned writes are used.
        #[allow(unsafe_code)]
        unsafe {
            let at = self.0.as_mut_ptr().add(length);
            at.cast::<libc::cmsghdr>().write_unaligned(header);
            at.add(data_offset).cast::<T>().write_unaligned(value);
        }
        length + space
    }

    /// Writes what a send needs: the size of a segment, and the ECN bits of the outer header. Returns the
    /// number of bytes, zero if nothing is needed.
    pub fn for_send(&mut self, segment_bytes: Option<u16>, ecn: u8, is_v6: bool) -> usize {
        let mut length = 0;
        if let Some(size) = segment_bytes {
            length = self.put(length, libc::SOL_UDP, UDP_SEGMENT, size);
        }
        if ecn != 0 {
            let (level, kind) = if is_v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            length = self.put(length, level, kind, libc::c_int::from(ecn));
        }
        length
    }

    /// Reads what a receive gave: the size of a segment, if the kernel joined several datagrams, and the ECN
    /// bits of the outer header.
    pub fn of_receive(&self, length: usize) -> (Option<usize>, u8) {
        let (mut segment, mut ecn) = (None, 0);
        let mut at = 0;
        let header_bytes = size_of::<libc::cmsghdr>();
        while at + header_bytes <= length.min(Control::BYTES) {
            // SAFETY: the header is inside the array; any bytes are a valid `cmsghdr`.
            #[allow(unsafe_code)]
            let header: libc::cmsghdr =
                unsafe { self.0.as_ptr().add(at).cast::<libc::cmsghdr>().read_unaligned() };
            let end = at + header.cmsg_len;
            if header.cmsg_len < header_bytes || end > length.min(Control::BYTES) {
                break;
            }
            let data = &self.0[at + header_bytes..end];
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_UDP, UDP_GRO) => {
                    segment = data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes).max(0) as usize)
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => ecn = data.first().map_or(0, |tos| tos & 3),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    ecn = data.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes) as u8 & 3)
                }
                _ => {}
            }
            at = end.next_multiple_of(8);
        }
        (segment, ecn)
    }
}

/// A message header that names nothing.
pub fn empty_message() -> libc::mmsghdr {
    // SAFETY: all zeros is a valid `mmsghdr`: null pointers with zero lengths.
    #[allow(unsafe_code)]
    unsafe {
        std::mem::zeroed()
    }
}

/// Sends messages without waiting; returns how many were taken.
///
/// # Errors
/// Why the first was not taken.
///
/// # Safety
/// Every pointer in the headers must be to live memory of the length beside it.
#[allow(unsafe_code)]
pub unsafe fn send_messages(socket: BorrowedFd<'_>, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as libc::c_uint,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    checked(result).map(|sent| sent as usize)
}

/// Receives messages without waiting; returns how many there are.
///
/// # Errors
/// `WouldBlock` when there is none.
///
/// # Safety
/// Every pointer in the headers must be to live memory of the length beside it that nothing else uses.
#[allow(unsafe_code)]
pub unsafe fn receive_messages(socket: BorrowedFd<'_>, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    checked(result).map(|received| received as usize)
}

/// Writes pieces as one frame.
///
/// # Errors
/// What the device says.
///
/// # Safety
/// Every piece must be live memory.
#[allow(unsafe_code)]
pub unsafe fn write_pieces(device: BorrowedFd<'_>, pieces: &[libc::iovec]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    checked_size(unsafe { libc::writev(device.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) })
}

/// An iovec of a slice. It is a raw pointer: whoever uses it keeps the slice alive.
#[inline]
pub fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Reads one frame.
///
/// # Errors
/// `WouldBlock` when there is none.
#[inline]
pub fn read(device: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length are those of the slice.
    #[allow(unsafe_code)]
    let result = unsafe { libc::read(device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    checked_size(result)
}

/// Reads one frame into pieces, one behind the other.
///
/// # Errors
/// `WouldBlock` when there is none.
///
/// # Safety
/// Every piece must be memory that nobody else uses during the call.
#[inline]
#[allow(unsafe_code)]
pub unsafe fn read_pieces(device: BorrowedFd<'_>, pieces: &[libc::iovec]) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    checked_size(unsafe { libc::readv(device.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) })
}

/// Writes one frame.
///
/// # Errors
/// What the device says.
#[inline]
pub fn write(device: BorrowedFd<'_>, frame: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length are those of the slice.
    #[allow(unsafe_code)]
    let result = unsafe { libc::write(device.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
    checked_size(result)
}

/// Waits until a socket takes data again, at most so long.
pub fn wait_writable(socket: BorrowedFd<'_>, timeout_ms: libc::c_int) {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live `pollfd`.
    #[allow(unsafe_code)]
    unsafe {
        libc::poll(&raw mut wanted, 1, timeout_ms);
    }
}

/// Waits until a descriptor has input, at most so long.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout_ms: libc::c_int) {
    let mut wanted = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live `pollfd`.
    #[allow(unsafe_code)]
    unsafe {
        libc::poll(&raw mut wanted, 1, timeout_ms);
    }
}

/// A set of descriptors to wait for, level triggered.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; a new descriptor is owned by nobody else.
        #[allow(unsafe_code)]
        unsafe {
            let fd = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            Ok(Poller(OwnedFd::from_raw_fd(fd)))
        }
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: one live event.
        #[allow(unsafe_code)]
        let result =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        checked(result).map(drop)
    }

    /// Watches a descriptor for input.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, token)
    }

    /// Watches a descriptor for further input: each that comes is told once, and need not be read.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_edges(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, (libc::EPOLLIN | libc::EPOLLET) as u32, token)
    }

    /// Watches a descriptor for input, and for output too if `output`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, output: bool) -> io::Result<()> {
        let output = if output { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, fd, (libc::EPOLLIN | output) as u32, token)
    }

    /// Forgets a descriptor; one that is not watched is no error.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits; `timeout_ms` below zero means for ever. A signal ends the wait with no event.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self, events: &mut [libc::epoll_event], timeout_ms: libc::c_int) -> io::Result<usize> {
        // SAFETY: pointer and length are those of the slice.
        #[allow(unsafe_code)]
        let result = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as libc::c_int, timeout_ms)
        };
        match checked(result) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other.map(|count| count as usize),
        }
    }
}

/// Wakes a thread that waits in a [`Poller`].
#[derive(Debug)]
pub struct Wakeup(OwnedFd);

impl Wakeup {
    /// A new one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Wakeup> {
        // SAFETY: no pointers; a new descriptor is owned by nobody else.
        #[allow(unsafe_code)]
        unsafe {
            let fd = checked(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            Ok(Wakeup(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Wakes.
    #[inline]
    pub fn wake(&self) {
        // It fails only when a wakeup is pending 2^64 times.
        let _ = write(self.fd(), &1_u64.to_ne_bytes());
    }

    /// Takes pending wakeups.
    #[inline]
    pub fn clear(&self) {
        let _ = read(self.fd(), &mut [0; 8]);
    }

    /// To watch it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}

/// Binds the calling thread to a processor.
///
/// # Errors
/// `InvalidInput` for a processor that is not there.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}")));
    }
    // SAFETY: a zeroed set is valid, the number is inside it, and the kernel reads it during the call.
    #[allow(unsafe_code)]
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    checked(result).map(drop)
}

/// SIGTERM and SIGINT, taken one by one and by nobody else.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them for this thread and those that it starts from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn block() -> io::Result<Signals> {
        // SAFETY: the set is initialised by `sigemptyset` before anything reads it.
        #[allow(unsafe_code)]
        let (set, result) = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            (set, libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))
        };
        if result == 0 { Ok(Signals(set)) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// Waits for one, at most so long; tells whether there was one.
    pub fn wait(&self, timeout: std::time::Duration) -> bool {
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: a live set and a live time.
        #[allow(unsafe_code)]
        let result = unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const time) };
        result > 0
    }
}

#[cfg(test)]
mod tests;
