//! `recvmmsg`: many datagrams a call, counted and thrown away.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Room for one datagram; what is longer is cut, since only the count matters.
const SLOT_BYTES: usize = 2048;

/// Buffers for one call.
pub(super) struct Batch {
    slots: Vec<[u8; SLOT_BYTES]>,
}

impl Batch {
    /// Room for `count` datagrams.
    pub(super) fn new(count: usize) -> Self {
        Self { slots: vec![[0; SLOT_BYTES]; count] }
    }

    /// Waits for one datagram (for as long as the socket's timeout) and takes what else is there; how many.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> std::io::Result<usize> {
        let mut vectors: Vec<libc::iovec> = self
            .slots
            .iter_mut()
            .map(|slot| libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT_BYTES })
            .collect();
        let mut headers: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: mmsghdr is a plain C struct of integers and pointers, for which all zeroes is valid.
                #[allow(unsafe_code)]
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        let length = u32::try_from(headers.len()).unwrap_or(u32::MAX);
        // SAFETY: `headers` holds `length` valid entries, each pointing to one vector in `vectors`, which points
        // to a slot of SLOT_BYTES that `self` owns; all outlive the call and nothing else refers to them.
        #[allow(unsafe_code)]
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                length,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| std::io::Error::last_os_error())
    }
}
