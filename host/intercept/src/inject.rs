//! Putting the blob into a process that stands before the first instruction of a new program.

use crate::blob::Blob;
use crate::error::Error;
use crate::trace::Tracee;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

/// The tracee is in its stop at exec. Afterwards it begins with the blob, which begins the program; or with the program
/// itself if this fails before the last step.
pub(crate) fn inject(tracee: &mut Tracee, blob: &Blob, places: &[u8]) -> Result<(), Error> {
    tracee.leave_exec()?;
    let mut registers = tracee.registers()?;
    let bytes = blob.bytes() + places.len() as u64;
    let base = tracee.call(libc::SYS_mmap, [0, bytes, READ_WRITE, PRIVATE, u64::MAX, 0])?;
    let at = base + blob.bytes();
    tracee.write(base, &blob.image_for(registers.rip, at, places.len() as u64))?;
    if !places.is_empty() {
        tracee.write(at, places)?;
    }
    tracee.call(libc::SYS_mprotect, [base, blob.data(), READ_EXECUTE, 0, 0, 0])?;
    registers.rip = base + blob.begin();
    registers.orig_rax = u64::MAX;
    tracee.set_registers(&registers)
}
