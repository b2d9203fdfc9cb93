//! The programs of a veth pair's end, and what all programs need: a few instructions each, made here and loaded by system call, so that neither a compiler nor a
//! library for them is needed.
//!
//! - [`redirect`] gives a device's frames to our socket. It is attached by a link, whose descriptor we hold: when the process ends,
//!   however it ends, the kernel takes the program off.
//! - [`wall_off`] keeps the device and the host's own stack apart, both ways. It stays for as long as the device does: a container must
//!   not reach its host while no switch runs. AF_PACKET and AF_XDP have frames before it, and send theirs past it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_QUERY: libc::c_long = 16;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;
const MAP_DELETE: libc::c_long = 3;

const MAP_TYPE_SOCKETS: u32 = 17;
const PROG_TYPE_CLASSIFIER: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
const ATTACH_STACK: [u32; 2] = [46, 47];
/// `TC_ACT_SHOT`.
const SHOT: i32 = 2;
/// `BPF_XDP`, as expected at load and as attached.
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: frames of several pieces, as those of large MTUs are.
const HAS_FRAGS: u32 = 1 << 5;
/// `XDP_FLAGS_DRV_MODE`: in the driver, before the kernel has made anything of a frame.
const DRIVER_MODE: u32 = 1 << 2;
/// `BPF_FUNC_redirect_map`.
pub(super) const REDIRECT_MAP: i32 = 51;
/// `XDP_DROP`: what becomes of a frame of a queue that no socket is bound to.
const DROP: i32 = 1;

/// An instruction: operation, registers (destination low, source high), offset, number.
#[repr(C)]
#[allow(dead_code)] // the kernel reads them
pub(super) struct Instruction(pub(super) u8, pub(super) u8, pub(super) i16, pub(super) i32);

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct MapUpdate {
    map: u32,
    _gap: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attach: u32,
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct Attach {
    device: u32,
    program: u32,
    attach: u32,
    flags: u32,
    rest: [u64; 2],
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct Query {
    device: u32,
    attach: u32,
    rest: [u64; 7],
}

#[repr(C)]
#[allow(dead_code)] // the kernel reads them
struct LinkCreate {
    program: u32,
    device: u32,
    attach: u32,
    flags: u32,
    rest: [u64; 4],
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: a live structure of the size beside it, which the kernel takes as the attributes of this command; what it points to
    // lives in the caller for as long.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: a new descriptor that nobody else has.
    #[allow(unsafe_code)]
    unsafe {
        OwnedFd::from_raw_fd(fd)
    }
}

/// Has all frames of the first queue of a device go to a socket, until what is returned is closed.
///
/// # Errors
/// The step that failed, and what the kernel says of it.
pub fn redirect(device: u32, socket: BorrowedFd<'_>) -> Result<OwnedFd, Step> {
    let map = map_of_sockets(1).map_err(|error| ("making a map of sockets", error))?;
    put_socket(map.as_fd(), 0, socket).map_err(|error| ("putting the socket into the map", error))?;
    let program = load_redirect(&map).map_err(|error| ("loading the XDP program", error))?;
    attach(device, program.as_fd()).map_err(|error| ("attaching the XDP program", error))
}

/// The step that failed, and what the kernel says of it.
pub type Step = (&'static str, io::Error);

/// A map of so many sockets, by the numbers of their queues.
pub(super) fn map_of_sockets(entries: u32) -> io::Result<OwnedFd> {
    let (kind, key_bytes, value_bytes) = (MAP_TYPE_SOCKETS, 4, 4);
    bpf(MAP_CREATE, &mut MapCreate { kind, key_bytes, value_bytes, entries_max: entries, flags: 0 })
        .map(owned)
}

/// Puts the socket of a queue into a map.
pub(super) fn put_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (queue, socket.as_raw_fd() as u32);
    let mut update = MapUpdate {
        map: map.as_raw_fd() as u32,
        _gap: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_ref(&value) as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE, &mut update).map(drop)
}

/// Takes the socket of a queue out of a map.
pub(super) fn take_socket(map: BorrowedFd<'_>, queue: u32) -> io::Result<()> {
    let map = map.as_raw_fd() as u32;
    let mut delete = MapUpdate { map, _gap: 0, key: std::ptr::from_ref(&queue) as u64, value: 0, flags: 0 };
    bpf(MAP_DELETE, &mut delete).map(drop)
}

/// Attaches a program to a device's driver, until what is returned is closed or detached.
pub(super) fn attach(device: u32, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut link = LinkCreate {
        program: program.as_raw_fd() as u32,
        device,
        attach: ATTACH_XDP,
        flags: DRIVER_MODE,
        rest: [0; 4],
    };
    bpf(LINK_CREATE, &mut link).map(owned)
}

/// Takes a program off, whoever else has the link open.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &mut (link.as_raw_fd() as u32)).map(drop)
}

/// Loads a program for a device's driver that takes frames of several pieces.
pub(super) fn load_xdp(code: &[Instruction]) -> io::Result<OwnedFd> {
    load(PROG_TYPE_XDP, ATTACH_XDP, HAS_FRAGS, code)
}

/// Keeps a device and the host's stack apart, if they are not yet.
///
/// # Errors
/// What the kernel says: one before 6.6 has no such programs.
pub fn wall_off(device: u32) -> io::Result<()> {
    let code = [Instruction(0xb7, 0, 0, SHOT), Instruction(0x95, 0, 0, 0)];
    for attach in ATTACH_STACK {
        let mut query = Query { device, attach, rest: [0; 7] };
        bpf(PROG_QUERY, &mut query)?;
        // Behind flags and the place for identities: how many there are.
        let attached = query.rest[2] as u32;
        if attached > 0 {
            continue;
        }
        let program = load(PROG_TYPE_CLASSIFIER, 0, 0, &code)?;
        let program = program.as_raw_fd() as u32;
        bpf(PROG_ATTACH, &mut Attach { device, program, attach, flags: 0, rest: [0; 2] })?;
    }
    Ok(())
}

fn load_redirect(map: &OwnedFd) -> io::Result<OwnedFd> {
    let code = [
        // r2 = rx_queue_index of the frame (r1).
        Instruction(0x61, 0x12, 16, 0),
        // r1 = the map (two halves).
        Instruction(0x18, 0x11, 0, map.as_raw_fd()),
        Instruction(0, 0, 0, 0),
        // r3 = what to do when nobody is in the map.
        Instruction(0xb7, 0x03, 0, DROP),
        Instruction(0x85, 0, 0, REDIRECT_MAP),
        Instruction(0x95, 0, 0, 0),
    ];
    load_xdp(&code)
}

fn load(kind: u32, attach: u32, flags: u32, code: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"weir_prt");
    let mut load = ProgLoad {
        kind,
        count: code.len() as u32,
        instructions: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name,
        device: 0,
        attach,
    };
    bpf(PROG_LOAD, &mut load).map(owned)
}
