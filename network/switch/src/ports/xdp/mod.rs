//! AF_XDP: the frames of a network device in memory that we share with the kernel, before its stack has seen them and without a
//! system call for each (rows A19, A20). The device is one end of a veth pair whose other end is a container's.
//!
//! - [`program`]: has the device give its frames to us. [`rings`]: what we share with the kernel.
//! - [`filter`], [`wire`]: the underlay's device, of whose frames we have those for us ([`crate::underlay`]).
//!
//! What it cannot carry is negotiated away: such a frame says nothing of checksums and segmentation, so the container's end is told to
//! offer neither ([`super::veth`]), and what is left to do on a frame for it is done here ([`Socket::send`]). So TCP goes in segments, each of
//! which costs the kernel and us as much as a super-frame would. Frames larger than a chunk take several of them.
//!
//! Memory: [`CHUNKS`] chunks to receive in and as many to send from, which belong to the port for as long as it is attached; for a queue
//! of the underlay [`UNDERLAY_CHUNKS`].
//!
//! A socket goes on in another process (row A30) with three descriptors ([`Parts`]): its own, that of the memory, and that of the program's
//! link. Where the rings stand is in the rings, and which chunks are free follows from them once the kernel has sent all that it took.
//!
//! Invariants
//! - A chunk is in exactly one place: the kernel's (to fill, to be sent), a ring on its way to us, or our list of free ones.
//! - A frame is copied out once and never looked at again: the kernel may fill its chunk anew.

pub mod filter;
pub mod program;
pub mod rings;
pub mod wire;

use super::PortError;
use crate::engine::forward::Checked;
use crate::engine::sys;
use rings::{Mapping, Ring};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use weir_packet::checksum;
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{
    FLAG_NEEDS_CSUM, MAX_SEGMENT_HEADER_BYTES, Offload, Segmentation, VirtioNetHeader,
};

/// Chunks of each direction, and entries of each ring, of a port.
pub const CHUNKS: u32 = 1024;
/// The same of a queue of the underlay: what may come while the engine has no processor.
pub const UNDERLAY_CHUNKS: u32 = 4096;
/// Bytes of a chunk. Half a page holds a frame of the usual MTU with the room that the kernel leaves in front.
pub const CHUNK_BYTES: usize = 2048;
/// Chunks that one frame may take: what the kernel makes one packet of.
const FRAME_CHUNKS_MAX: usize = 17;
/// Descriptors that the kernel sends at one call.
const SENT_AT_ONCE: u32 = 32;
/// Room that the kernel leaves in front of a frame.
const KERNEL_HEADROOM: usize = 256;
/// How often, and for how long each time, a socket that goes on waits for the kernel to have sent what it took.
const SENT_LOOKS: u32 = 50;
const SENT_LOOK: Duration = Duration::from_micros(100);

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no free chunk, or no room in the ring.
    Full,
    /// It is larger than a frame may be.
    TooLarge,
}

/// What was lost of a frame that was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Segments.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the kernel counts of a socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that were lost because a ring was full, or had no chunk for them.
    pub lost: u64,
}

/// A frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes of it were copied.
    Frame(usize),
    /// It did not fit.
    TooLarge,
    /// There is none.
    Nothing,
}

/// What another process needs to go on with a socket.
#[derive(Clone, Debug)]
pub struct Parts {
    // First, so that no frame comes to a socket that is being closed.
    /// What has frames come to the socket: the link by which the device's program is attached. Of the underlay it is the map
    /// of sockets, and the link is [`crate::underlay`]'s.
    pub program: Arc<OwnedFd>,
    /// The socket.
    pub socket: Arc<OwnedFd>,
    /// The memory.
    pub memory: Arc<OwnedFd>,
    /// The number of the device in its namespace.
    pub device: u32,
}

/// The four rings of a socket.
struct Rings {
    received: Ring<libc::xdp_desc>,
    to_fill: Ring<u64>,
    to_send: Ring<libc::xdp_desc>,
    sent: Ring<u64>,
}

/// See the module.
pub struct Socket {
    parts: Parts,
    received: Ring<libc::xdp_desc>,
    to_fill: Ring<u64>,
    to_send: Ring<libc::xdp_desc>,
    sent: Ring<u64>,
    memory: Mapping,
    /// Chunks of each direction.
    chunks: u32,
    /// Whether a frame may take several of them.
    takes_pieces: bool,
    /// Chunks to send from.
    free: Vec<u64>,
    /// A frame of which something is left to do.
    scratch: Vec<u8>,
    is_zero_copy: bool,
    /// Something was put that the kernel was not told of.
    pub dirty: bool,
}

fn option<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and size are those of a live value.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, std::ptr::from_ref(value).cast(), size)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn read_option<T: Copy>(fd: BorrowedFd<'_>, name: libc::c_int, empty: T) -> io::Result<T> {
    let (mut value, mut size) = (empty, size_of::<T>() as libc::socklen_t);
    // SAFETY: pointer and size are those of a live value, of which the kernel writes at most so much.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut size,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

impl Rings {
    /// Maps what was made before.
    fn map(fd: BorrowedFd<'_>, chunks: u32) -> io::Result<Rings> {
        let offsets = read_option(fd, libc::XDP_MMAP_OFFSETS, zeroed_offsets())?;
        let (fill_at, sent_at) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        Ok(Rings {
            received: Ring::map(fd, chunks, &offsets.rx, libc::XDP_PGOFF_RX_RING)?,
            to_fill: Ring::map(fd, chunks, &offsets.fr, fill_at as libc::off_t)?,
            to_send: Ring::map(fd, chunks, &offsets.tx, libc::XDP_PGOFF_TX_RING)?,
            sent: Ring::map(fd, chunks, &offsets.cr, sent_at as libc::off_t)?,
        })
    }
}

fn place(chunk: u32) -> u64 {
    u64::from(chunk) * CHUNK_BYTES as u64
}

/// Bytes of all chunks.
fn memory_bytes(chunks: u32) -> usize {
    2 * chunks as usize * CHUNK_BYTES
}

fn new_memory(chunks: u32) -> io::Result<OwnedFd> {
    let file = memfd_create("weir-af-xdp", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, memory_bytes(chunks) as u64)?;
    Ok(file)
}

fn refusal(name: &str, doing: &'static str, source: io::Error) -> PortError {
    match source.raw_os_error() {
        Some(libc::EBUSY) => PortError::Busy(name.to_string()),
        _ => PortError::Refused { device: name.to_string(), doing, source },
    }
}

fn zeroed_offsets() -> libc::xdp_mmap_offsets {
    // SAFETY: plain numbers, for which zero is a value.
    #[allow(unsafe_code)]
    unsafe {
        std::mem::zeroed()
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a new descriptor is owned by nobody else.
    #[allow(unsafe_code)]
    unsafe {
        match libc::socket(libc::AF_XDP, kind, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Binds to a queue of a device: with frames of several chunks where the kernel has them, which is returned.
fn bind(fd: BorrowedFd<'_>, device: u32, queue: u32) -> io::Result<bool> {
    let mut last = None;
    for flags in [libc::XDP_USE_SG, 0] {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: device,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: a live address of the length beside it.
        #[allow(unsafe_code)]
        let result = unsafe {
            let size = size_of_val(&address) as libc::socklen_t;
            libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), size)
        };
        if result == 0 {
            return Ok(flags == libc::XDP_USE_SG);
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) {
            return Err(error);
        }
        last = Some(error);
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("device", &self.parts.device).finish_non_exhaustive()
    }
}

impl Socket {
    /// Takes over the frames of a device of the thread's namespace.
    ///
    /// # Errors
    /// [`PortError::Busy`] while another process has them, [`PortError::NoDevice`], [`PortError::Refused`].
    pub fn open(name: &str) -> Result<Socket, PortError> {
        let device = super::netlink::index_of(name)?;
        Socket::bound(name, device, 0, CHUNKS, |socket| program::redirect(device, socket).map(Arc::new))
    }

    /// Takes over what the underlay's filter leaves us of a queue of a device, once the socket is put into its map.
    ///
    /// # Errors
    /// As [`Socket::open`].
    pub fn open_queue(name: &str, device: u32, queue: u32, map: &Arc<OwnedFd>) -> Result<Socket, PortError> {
        Socket::bound(name, device, queue, UNDERLAY_CHUNKS, |_| Ok(Arc::clone(map)))
    }

    fn bound(
        name: &str,
        device: u32,
        queue: u32,
        chunks: u32,
        program: impl FnOnce(BorrowedFd<'_>) -> Result<Arc<OwnedFd>, (&'static str, io::Error)>,
    ) -> Result<Socket, PortError> {
        let refused = |doing: &'static str| move |error: io::Error| refusal(name, doing, error);
        let file = new_memory(chunks).map_err(refused("AF_XDP memory"))?;
        let memory = Mapping::shared(file.as_fd(), memory_bytes(chunks), 0);
        let memory = memory.map_err(refused("AF_XDP memory"))?;
        let fd = new_socket().map_err(refused("opening an AF_XDP socket"))?;
        let lent = libc::xdp_umem_reg {
            addr: memory.start() as u64,
            len: memory.bytes() as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        option(fd.as_fd(), libc::XDP_UMEM_REG, &lent).map_err(refused("lending memory to AF_XDP"))?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            option(fd.as_fd(), ring, &chunks).map_err(refused("making AF_XDP rings"))?;
        }
        let mut rings = Rings::map(fd.as_fd(), chunks).map_err(refused("mapping AF_XDP rings"))?;
        (0..chunks).for_each(|chunk| rings.to_fill.put(place(chunk)));
        rings.to_fill.publish();
        let takes_pieces = bind(fd.as_fd(), device, queue).map_err(refused("binding the AF_XDP socket"))?;
        let program = program(fd.as_fd()).map_err(|(doing, error)| refusal(name, doing, error))?;
        let free = (chunks..2 * chunks).map(place).collect();
        let parts = Parts { program, socket: Arc::new(fd), memory: Arc::new(file), device };
        let socket = Socket::of(parts, rings, memory, chunks, free);
        let mut socket = socket.map_err(refused("asking for AF_XDP options"))?;
        socket.takes_pieces = takes_pieces;
        Ok(socket)
    }

    /// The largest frame that can be sent and received, bytes.
    pub fn frame_bytes_max(&self) -> usize {
        match self.takes_pieces {
            true => FRAME_CHUNKS_MAX * (CHUNK_BYTES - KERNEL_HEADROOM),
            false => CHUNK_BYTES - KERNEL_HEADROOM,
        }
    }

    fn of(parts: Parts, rings: Rings, memory: Mapping, chunks: u32, free: Vec<u64>) -> io::Result<Socket> {
        let options = read_option(parts.socket.as_fd(), libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
        let Rings { received, to_fill, to_send, sent } = rings;
        Ok(Socket {
            parts,
            received,
            to_fill,
            to_send,
            sent,
            memory,
            chunks,
            takes_pieces: true,
            free,
            scratch: Vec::new(),
            is_zero_copy: options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
            dirty: false,
        })
    }

    /// Goes on with what another process had, which works with it no more.
    ///
    /// # Errors
    /// A descriptor is not what it should be, or the kernel does not send what it took.
    pub fn resume(parts: Parts) -> io::Result<Socket> {
        let bytes = fstat(&parts.memory)?.st_size;
        let wanted = memory_bytes(CHUNKS);
        if usize::try_from(bytes) != Ok(wanted) {
            let text = format!("{bytes} bytes of AF_XDP memory, and not {wanted}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let memory = Mapping::shared(parts.memory.as_fd(), wanted, 0)?;
        let rings = Rings::map(parts.socket.as_fd(), CHUNKS)?;
        let mut socket = Socket::of(parts, rings, memory, CHUNKS, Vec::new())?;
        socket.go_on()?;
        Ok(socket)
    }

    /// Goes on where the rings stand: another process may have worked with them.
    ///
    /// # Errors
    /// The kernel does not send what it took.
    pub fn go_on(&mut self) -> io::Result<()> {
        self.wait_sent()?;
        self.received.go_on_reading();
        self.sent.go_on_reading();
        self.to_fill.go_on_writing();
        self.to_send.go_on_writing();
        let waiting = (0..self.sent.waiting()).map(|ahead| self.sent.peek(ahead));
        let shown = (0..self.to_send.untaken()).map(|ahead| self.to_send.shown(ahead).addr);
        let mut is_free = vec![true; 2 * self.chunks as usize];
        for at in waiting.chain(shown) {
            if let Some(is_free) = is_free.get_mut(at as usize / CHUNK_BYTES) {
                *is_free = false;
            }
        }
        let free = (self.chunks..2 * self.chunks).filter(|chunk| is_free[*chunk as usize]);
        self.free = free.map(place).collect();
        Ok(())
    }

    /// Waits until the kernel has sent what it took.
    ///
    /// # Errors
    /// It does not.
    fn wait_sent(&self) -> io::Result<()> {
        let mut looks = 0;
        // Each chunk that it takes to send it gives back once.
        while self.to_send.taken() != self.sent.given() {
            if looks == SENT_LOOKS {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "AF_XDP does not send what it took"));
            }
            looks += 1;
            std::thread::sleep(SENT_LOOK);
        }
        Ok(())
    }

    /// What another process needs to go on with it.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// To wait for frames, and to ask for [`statistics`].
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.parts.socket
    }

    /// Whether the device writes into our memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Copies the next frame into `room`, and gives its chunks back ([`Socket::give_back`] shows that).
    #[inline]
    pub fn receive(&mut self, room: &mut [u8]) -> Received {
        let waiting = self.received.waiting();
        let (mut length, mut fits) = (0, true);
        for ahead in 0..waiting {
            let piece = self.received.peek(ahead);
            let (at, bytes) = (piece.addr as usize, piece.len as usize);
            if at.checked_add(bytes).is_some_and(|end| end <= self.memory.bytes())
                && length + bytes <= room.len()
            {
                // SAFETY: inside of our memory and of the room, checked just now; the kernel is done with the chunk.
                #[allow(unsafe_code)]
                unsafe {
                    let from = self.memory.start().add(at);
                    std::ptr::copy_nonoverlapping(from, room.as_mut_ptr().add(length), bytes);
                }
                length += bytes;
            } else {
                fits = false;
            }
            if piece.options & libc::XDP_PKT_CONTD == 0 {
                for chunk in 0..=ahead {
                    let at = self.received.peek(chunk).addr;
                    // There are as many places as chunks.
                    self.to_fill.put(at & !(CHUNK_BYTES as u64 - 1));
                }
                self.received.take(ahead + 1);
                return if fits { Received::Frame(length) } else { Received::TooLarge };
            }
        }
        Received::Nothing
    }

    /// Has the kernel fill anew what was received from.
    #[inline]
    pub fn give_back(&self) {
        self.to_fill.publish();
    }

    /// Sends a frame: completed, or cut, as its header asks. It leaves with [`Socket::kick`].
    ///
    /// # Errors
    /// Why it does not go.
    ///
    /// # Safety
    /// The pieces must be live memory.
    #[allow(unsafe_code)]
    pub unsafe fn send(&mut self, header: &VirtioNetHeader, pieces: &[libc::iovec]) -> Result<Lost, Refused> {
        self.dirty = true;
        if header.flags & FLAG_NEEDS_CSUM == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.put(pieces) }.map(|()| Lost::default());
        }
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        for piece in pieces {
            // SAFETY: the caller's promise.
            frame.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), piece.iov_len)
            });
        }
        let result = self.send_completed(header, &mut frame);
        self.scratch = frame;
        result
    }

    fn send_completed(&mut self, header: &VirtioNetHeader, frame: &mut [u8]) -> Result<Lost, Refused> {
        // The engine made header and frame, so they fit.
        let packet = Checked::new(frame, header).map_err(|_| Refused::TooLarge)?;
        match packet.offload {
            Offload::Segment(cut) => return self.cut(frame, &packet, &cut),
            Offload::Checksum { start, field } => {
                // The places were checked against the frame.
                let _ = checksum::complete(frame, start, field, packet.parsed.payload_end);
            }
            Offload::Complete => {}
        }
        self.put_slices(&[&*frame]).map(|()| Lost::default())
    }

    fn cut(&mut self, frame: &[u8], packet: &Checked, cut: &Segmentation) -> Result<Lost, Refused> {
        let mut segmenter = Segmenter::new(frame, &packet.parsed, cut).map_err(|_| Refused::TooLarge)?;
        let mut headers = [0; MAX_SEGMENT_HEADER_BYTES];
        let headers = &mut headers[..packet.parsed.payload_offset];
        let mut lost = Lost::default();
        while let Some(payload) = segmenter.next_into(headers) {
            let payload = &frame[payload];
            if self.put_slices(&[&*headers, payload]).is_err() {
                lost.packets += 1;
                lost.bytes += (headers.len() + payload.len()) as u64;
            }
        }
        Ok(lost)
    }

    fn put_slices(&mut self, pieces: &[&[u8]]) -> Result<(), Refused> {
        let mut both = [sys::piece(&[]); 2];
        for (piece, bytes) in both.iter_mut().zip(pieces) {
            *piece = sys::piece(bytes);
        }
        // SAFETY: the pieces are borrowed during this call.
        #[allow(unsafe_code)]
        unsafe {
            self.put(&both[..pieces.len()])
        }
    }

    /// Copies a frame into chunks and puts them into the ring.
    ///
    /// # Safety
    /// The pieces must be live memory.
    #[allow(unsafe_code)]
    unsafe fn put(&mut self, pieces: &[libc::iovec]) -> Result<(), Refused> {
        let total: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let chunks = total.div_ceil(CHUNK_BYTES);
        if chunks == 0 || chunks > FRAME_CHUNKS_MAX {
            return Err(Refused::TooLarge);
        }
        if self.free.len() < chunks || (self.to_send.room() as usize) < chunks {
            // What was sent gives chunks back.
            self.kick().map_err(|_| Refused::Full)?;
            if self.free.len() < chunks || (self.to_send.room() as usize) < chunks {
                return Err(Refused::Full);
            }
        }
        let (mut piece, mut offset, mut left) = (0, 0, total);
        while left > 0 {
            let Some(chunk) = self.free.pop() else { return Err(Refused::Full) };
            let now = left.min(CHUNK_BYTES);
            let mut done = 0;
            while done < now {
                let from = &pieces[piece];
                let bytes = (from.iov_len - offset).min(now - done);
                // SAFETY: a free chunk of our memory, and live memory of the caller's; `bytes` is inside of both.
                unsafe {
                    let to = self.memory.start().add(chunk as usize + done);
                    std::ptr::copy_nonoverlapping(from.iov_base.cast::<u8>().add(offset), to, bytes);
                }
                (done, offset) = (done + bytes, offset + bytes);
                if offset == from.iov_len {
                    (piece, offset) = (piece + 1, 0);
                }
            }
            left -= now;
            let options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            self.to_send.put(libc::xdp_desc { addr: chunk, len: now as u32, options });
        }
        Ok(())
    }

    /// Has the kernel send what was put, and takes back what it has sent.
    ///
    /// # Errors
    /// The device is gone.
    pub fn kick(&mut self) -> io::Result<()> {
        self.to_send.publish();
        let mut calls = self.to_send.untaken().div_ceil(SENT_AT_ONCE) + 1;
        while calls > 0 && self.to_send.untaken() > 0 {
            calls -= 1;
            // SAFETY: no memory is handed over.
            #[allow(unsafe_code)]
            let result = unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::sendto(self.parts.socket.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0)
            };
            if result >= 0 {
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // There is more than the kernel sends at one call.
                Some(libc::EAGAIN) => {}
                Some(libc::ENXIO | libc::ENETDOWN | libc::ENODEV | libc::EBADF) => return Err(error),
                // It has no memory, or the device is busy: with the next turn.
                _ => break,
            }
        }
        let sent = self.sent.waiting();
        for ahead in 0..sent {
            self.free.push(self.sent.peek(ahead) & !(CHUNK_BYTES as u64 - 1));
        }
        self.sent.take(sent);
        Ok(())
    }
}

/// What the kernel counts of a socket.
pub fn statistics(fd: BorrowedFd<'_>) -> Statistics {
    let empty = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    // It fails for no socket of ours.
    let counted = read_option(fd, libc::XDP_STATISTICS, empty).unwrap_or(empty);
    // A frame without a chunk is among the dropped ones, and counted once more as an empty fill ring.
    Statistics { lost: counted.rx_dropped + counted.rx_ring_full }
}
