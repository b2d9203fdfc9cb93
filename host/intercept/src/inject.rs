//! Putting the blob into a process that stands before the first instruction of a new program.

use crate::blob::Blob;
use crate::error::Error;
use crate::trace::Tracee;

const ALL: u64 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
/// Its pages are there when they are written: all of them are.
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE) as u64;

/// Where the blob is mapped, if there is room: far from libraries, whose trampolines belong right in front of them. `OWN_PLACE` of
/// `blob/weir.h` comes behind it.
const PLACE: u64 = 0x2010_0000_0000;

/// The tracee is in its stop at exec. Afterwards it begins with the blob, which begins the program; or with the program
/// itself if this fails before the last step. The blob takes the rights away that it does not need, before anything of the program
/// runs: that costs a call of its own, and not one more stop.
pub(crate) fn inject(tracee: &mut Tracee, blob: &Blob, images: &[u8], stash: &[u8]) -> Result<(), Error> {
    let registers = tracee.registers()?;
    let [image, known, said] = [blob.bytes(), images.len() as u64, stash.len() as u64];
    let mapped = [PLACE, image + known + said, ALL, PRIVATE, u64::MAX, 0];
    let base = tracee.call(&registers, libc::SYS_mmap as u32, mapped)?;
    let [images_at, stash_at] = [base + image, base + image + known];
    let told = blob.told(registers.rip, [images_at, known, stash_at, said]);
    let [entry, tables] = told.each_ref().map(|(at, bytes)| (base + at, &bytes[..]));
    let written = tracee.write([(base, blob.image()), entry, tables, (images_at, images), (stash_at, stash)]);
    tracee.begin_at(&registers, if written.is_ok() { base + blob.begin() } else { registers.rip })?;
    written
}
