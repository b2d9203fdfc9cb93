//! The program of the underlay's device: whole UDP datagrams to our address and to the ports of Geneve and VXLAN come to the socket of
//! their queue, all else goes the kernel's way: other addresses and ports, fragments, IP options, IPv6 extension headers, VLAN tags,
//! and frames of queues without a socket. So the host's stack, and our own UDP sockets, get what they would get without us.
//!
//! It is attached by a link that we hold: when the process ends, however it ends, the kernel takes the program off, and every datagram
//! goes to the UDP sockets from then on. While the process lives, [`Filter::rest`] has the same effect and leaves the program where it is: many drivers
//! stop their queues for a moment when one comes or goes.

use super::program::{self, Instruction, REDIRECT_MAP, Step};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `XDP_PASS`: on to the kernel.
const PASS: i32 = 2;
/// `MEMBARRIER_CMD_GLOBAL`.
const BARRIER_GLOBAL: libc::c_int = 1;
const UDP: i32 = 17;
/// Bits of an IPv4 header's third word that only fragments have set: the place, and that more follow.
const FRAGMENT: u16 = 0x3fff;

/// The program with its map of sockets; see the module.
#[derive(Debug)]
pub struct Filter {
    map: Arc<OwnedFd>,
    program: OwnedFd,
    device: u32,
    queues: u32,
    link: Option<OwnedFd>,
    /// Its map is empty.
    rests: bool,
}

impl Filter {
    /// A program for a device of so many queues: not attached, and with no socket.
    ///
    /// # Errors
    /// The step that failed, and what the kernel says of it.
    pub fn new(device: u32, queues: u32, own: IpAddr, ports: [u16; 2]) -> Result<Filter, Step> {
        let map = program::map_of_sockets(queues).map_err(|error| ("making a map of sockets", error))?;
        let code = code(own, ports, std::os::fd::AsRawFd::as_raw_fd(&map));
        let program = program::load_xdp(&code).map_err(|error| ("loading the XDP program", error))?;
        Ok(Filter { map: Arc::new(map), program, device, queues, link: None, rests: false })
    }

    /// The map of sockets.
    pub fn map(&self) -> &Arc<OwnedFd> {
        &self.map
    }

    /// Has datagrams of a queue come to a socket that is bound to it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        program::put_socket(self.map.as_fd(), queue, socket)
    }

    /// Has datagrams come, from now on.
    ///
    /// # Errors
    /// What the kernel says: `EBUSY` and `EEXIST` where the device has another program, `EOPNOTSUPP` where its driver takes none.
    pub fn attach(&mut self) -> io::Result<()> {
        if self.link.is_none() {
            self.link = Some(program::attach(self.device, self.program.as_fd())?);
        }
        Ok(())
    }

    /// Whether datagrams come.
    pub fn is_on(&self) -> bool {
        self.link.is_some() && !self.rests
    }

    /// Leaves all datagrams to the kernel, until the sockets are added again. None comes to them after this has returned; those that have
    /// come wait in the rings.
    ///
    /// # Errors
    /// What the kernel says: then datagrams may still come.
    pub fn rest(&mut self) -> io::Result<()> {
        self.rests = true;
        for queue in 0..self.queues {
            match program::take_socket(self.map.as_fd(), queue) {
                // Some are not bound.
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
                _ => {}
            }
        }
        wait_for_looks();
        Ok(())
    }

    /// Has datagrams come again after [`Filter::rest`], to the sockets of the queues in their order.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn go_on<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
        for (queue, socket) in sockets.enumerate() {
            self.add(queue as u32, socket)?;
        }
        self.rests = false;
        Ok(())
    }

    /// Takes the program off.
    pub fn detach(&mut self) {
        if let Some(link) = self.link.take() {
            // It fails for a device that is gone, of which nothing comes anyway.
            let _ = program::detach(link.as_fd());
        }
    }
}

/// A processor may be in the midst of a look at the device's queue, with what the program found before: waits until each has been through.
fn wait_for_looks() {
    // SAFETY: no memory is handed over.
    #[allow(unsafe_code)]
    unsafe {
        libc::syscall(libc::SYS_membarrier, BARRIER_GLOBAL, 0, 0);
    }
}

/// A program of which a jump may lead to the end, where the frame is passed on.
struct Code(Vec<Instruction>);

/// Operations: 64-bit moves and sums; loads of 4, 2 and 1 bytes; 32-bit comparisons with a number that lead to the end where they hold.
const MOVE: u8 = 0xbf;
const MOVE_NUMBER: u8 = 0xb7;
const ADD_NUMBER: u8 = 0x07;
const LOAD_4: u8 = 0x61;
const LOAD_2: u8 = 0x69;
const LOAD_1: u8 = 0x71;
const LOAD_MAP: u8 = 0x18;
const IF_GREATER: u8 = 0x2d;
const IF_EQUAL: u8 = 0x16;
const IF_OTHER: u8 = 0x56;
const IF_BITS: u8 = 0x46;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// A jump to the end, until the end is known.
const TO_END: i16 = i16::MAX;

/// Registers: the frame's context, its first byte, its end, what is compared.
const CONTEXT: u8 = 6;
const START: u8 = 2;
const END: u8 = 3;
const PLACE: u8 = 4;
const VALUE: u8 = 5;

impl Code {
    fn add(&mut self, operation: u8, to: u8, from: u8, offset: usize, number: i32) {
        self.0.push(Instruction(operation, from << 4 | to, offset as i16, number));
    }

    fn end_if(&mut self, operation: u8, to: u8, from: u8, number: i32) {
        self.0.push(Instruction(operation, from << 4 | to, TO_END, number));
    }

    /// Passes the frame on if bytes of it are not these, in the order in which they stand there: 1, 2 or 4 of them.
    fn end_unless(&mut self, at: usize, bytes: &[u8]) {
        let (operation, number) = match *bytes {
            [a] => (LOAD_1, i32::from(a)),
            [a, b] => (LOAD_2, i32::from(u16::from_ne_bytes([a, b]))),
            [a, b, c, d] => (LOAD_4, i32::from_ne_bytes([a, b, c, d])),
            _ => unreachable!("bytes of no word"),
        };
        self.add(operation, VALUE, START, at, 0);
        self.end_if(IF_OTHER, VALUE, 0, number);
    }

    /// Has the jumps to the end lead there.
    fn finish(mut self) -> Vec<Instruction> {
        let end = self.0.len();
        for (at, instruction) in self.0.iter_mut().enumerate() {
            if instruction.2 == TO_END {
                instruction.2 = (end - at - 1) as i16;
            }
        }
        self.add(MOVE_NUMBER, 0, 0, 0, PASS);
        self.add(EXIT, 0, 0, 0, 0);
        self.0
    }
}

fn code(own: IpAddr, ports: [u16; 2], map: i32) -> Vec<Instruction> {
    let mut code = Code(Vec::new());
    let headers = 14 + weir_packet::outer::overhead(own.is_ipv6());
    code.add(MOVE, CONTEXT, 1, 0, 0);
    code.add(LOAD_4, START, 1, 0, 0);
    code.add(LOAD_4, END, 1, 4, 0);
    code.add(MOVE, PLACE, START, 0, 0);
    code.add(ADD_NUMBER, PLACE, 0, 0, headers as i32);
    code.end_if(IF_GREATER, PLACE, END, 0);
    let port_at = match own {
        IpAddr::V4(own) => {
            code.end_unless(12, &[8, 0]);
            code.end_unless(14, &[0x45]);
            code.add(LOAD_2, VALUE, START, 20, 0);
            code.end_if(IF_BITS, VALUE, 0, i32::from(FRAGMENT.to_be()));
            code.end_unless(23, &[UDP as u8]);
            code.end_unless(30, &own.octets());
            36
        }
        IpAddr::V6(own) => {
            code.end_unless(12, &[0x86, 0xdd]);
            code.end_unless(20, &[UDP as u8]);
            for (number, bytes) in own.octets().as_chunks::<4>().0.iter().enumerate() {
                code.end_unless(38 + 4 * number, bytes);
            }
            56
        }
    };
    let of = |port: u16| i32::from(port.to_be());
    code.add(LOAD_2, VALUE, START, port_at, 0);
    code.add(IF_EQUAL, VALUE, 0, 1, of(ports[0]));
    code.end_if(IF_OTHER, VALUE, 0, of(ports[1]));
    // The socket of the queue that the frame came by; where there is none, it is passed on.
    code.add(LOAD_4, 2, CONTEXT, 16, 0);
    code.add(LOAD_MAP, 1, 1, 0, map);
    code.add(0, 0, 0, 0, 0);
    code.add(MOVE_NUMBER, 3, 0, 0, PASS);
    code.add(CALL, 0, 0, 0, REDIRECT_MAP);
    code.add(EXIT, 0, 0, 0, 0);
    code.finish()
}
