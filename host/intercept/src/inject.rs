//! Putting the blob into a process that stands before the first instruction of a new program.
//!
//! In one stop: a few instructions are written where the kernel's own code in the process leaves room at its end, what they need below the
//! program's stack, and the process is let go to begin there. It maps the blob itself. Nobody uses either place, and if we die meanwhile the
//! program begins as ever. Where there is no such room, or too much to be told, memory for both is made by a call of the process first.

use crate::blob::Blob;
use crate::error::Error;
use crate::kernel_code;
use crate::memory::Memory;
use crate::trace::Tracee;

const ALL: u64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

/// Where the blob is mapped, if there is room: far from libraries, whose trampolines belong right in front of them. `OWN_PLACE` of
/// `blob/weir.h` comes behind it.
const PLACE: u64 = 0x2010_0000_0000;
/// Bytes of `struct told` of `blob/weir.h`.
const TOLD_BYTES: u64 = 272;
/// Bytes of the stack that the blob begins on, below what it is told.
const STACK_BYTES: u64 = 32 << 10;
/// Bytes below the stack that the kernel gives to every new program.
const BELOW_BYTES: u64 = 128 << 10;
/// Bytes of it that stay free for the program's first pushes: those of `weir_boot`.
const PUSHED_BYTES: u64 = 64;
/// Bytes of a new program's stack that are looked through first, and at most.
const STACK_READ_BYTES: usize = 4 << 10;
const STACK_READ_BYTES_MAX: usize = 128 << 10;
const ALIGNMENT: u64 = 16;
const PAGE_BYTES: u64 = 4096;

/// What a process is given.
pub(crate) struct Given<'a> {
    pub(crate) blob: &'a Blob,
    /// The blob's memory.
    pub(crate) memory: &'a Memory,
    /// What is known of files.
    pub(crate) table: Option<&'a Memory>,
    /// What the program is, as in `struct part` of `blob/weir.h`.
    pub(crate) program: [u64; 5],
    /// What the program before said.
    pub(crate) stash: &'a [u8],
    /// Of `struct told`.
    pub(crate) flags: u64,
    /// Name of the injector's socket.
    pub(crate) socket: &'a str,
}

impl Given<'_> {
    /// As in `struct told` of `blob/weir.h`, and what follows it.
    fn told(&self, entry: u64, [memory, memory_bytes]: [u64; 2]) -> Vec<u8> {
        let both = |low: i32, high: i32| u64::from(low as u32) | u64::from(high as u32) << 32;
        let table =
            self.table.map_or([0; 3], |table| [both(table.descriptor(), 0), table.inode, table.bytes]);
        let [d, i, s, m, c] = self.program;
        let words = [
            both(std::process::id() as i32, self.memory.descriptor()),
            self.memory.device,
            self.memory.inode,
            PLACE,
            self.memory.bytes,
            self.blob.begin(),
            entry,
            self.flags,
            table[0],
            table[1],
            table[2],
            d,
            i,
            s,
            m,
            c,
            memory,
            memory_bytes,
            self.stash.len() as u64,
            // The family, and the zero in front of an abstract name.
            (size_of::<u16>() + 1 + self.socket.len()) as u64,
        ];
        let mut told: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        told.extend((libc::AF_UNIX as u16).to_le_bytes().iter().chain(&[0]).chain(self.socket.as_bytes()));
        // The name fits: `Blob::configure`.
        told.resize(TOLD_BYTES as usize, 0);
        told.extend(self.stash);
        told
    }

    fn told_bytes(&self) -> u64 {
        TOLD_BYTES + self.stash.len() as u64
    }
}

/// The tracee is in its stop at exec. Afterwards it begins with the blob, which begins the program; or with the program
/// itself if this fails before the last step.
pub(crate) fn inject(tracee: &mut Tracee, given: &Given<'_>) -> Result<(), Error> {
    let registers = tracee.registers()?;
    let (entry, stack, boot) = (registers.rip, registers.rsp, given.blob.boot());
    let below = given.told_bytes() + PUSHED_BYTES + STACK_BYTES + ALIGNMENT;
    let kernels = if below <= BELOW_BYTES { kernel_code::room(boot.len()) } else { None };
    if let Some(room) = kernels.and_then(|room| Some(room + kernels_code(tracee, stack)?)) {
        let at = (stack - PUSHED_BYTES - given.told_bytes()) & !(ALIGNMENT - 1);
        if tracee.write([(at, &given.told(entry, [0; 2]))]).is_ok() && tracee.write_code(room, boot).is_ok() {
            return tracee.begin_with(&registers, room, at);
        }
    }
    let bytes = (PAGE_BYTES + STACK_BYTES + given.told_bytes()).next_multiple_of(PAGE_BYTES);
    let base = tracee.call(&registers, libc::SYS_mmap as u32, [0, bytes, ALL, PRIVATE, u64::MAX, 0])?;
    let at = base + PAGE_BYTES + STACK_BYTES;
    let written = tracee.write([(base, boot), (at, &given.told(entry, [base, bytes]))]);
    match written {
        Ok(()) => tracee.begin_with(&registers, base, at),
        Err(_) => tracee.begin_at(&registers, entry).and(written),
    }
}

/// Where the kernel's code begins in the tracee.
fn kernels_code(tracee: &Tracee, stack: u64) -> Option<u64> {
    let mut bytes = STACK_READ_BYTES;
    while bytes <= STACK_READ_BYTES_MAX {
        let read = tracee.read(stack, bytes)?;
        let is_all = read.len() < bytes;
        if let Some(found) = kernel_code::by_stack(&read) {
            return Some(found);
        }
        if is_all {
            return None;
        }
        bytes *= 4;
    }
    kernel_code::of(tracee.thread)
}
