//! A system call in the code that the kernel itself puts into every process (vDSO), behind which only registers are cleared before it returns.
//!
//! A tracee that is sent there with the program's entry as the place to return to makes one call, and then begins as if nothing had been:
//! also when its tracer dies in between. So no code of the program need be changed for the call. Kernels whose vDSO has no such
//! place (it comes with their zeroing of registers) are served in another way: see `trace`.
#![allow(unsafe_code)]

use std::sync::OnceLock;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Of what is put behind the kernel's code.
const ALIGNMENT: usize = 16;
const RETURN: u8 = 0xc3;
const XOR: u8 = 0x31;
/// Registers by their numbers in code.
const RDX: u8 = 2;
const RSP: u8 = 4;

/// Length of an instruction that clears a register, and which (8 for those from r8 on).
fn clears(code: &[u8]) -> Option<(usize, u8)> {
    let (length, far) = if code.first() == Some(&0x45) { (3, 8) } else { (2, 0) };
    let [XOR, operands] = *code.get(length - 2..length)? else { return None };
    let (one, other) = (operands & 7, operands >> 3 & 7);
    (operands >> 6 == 3 && one == other).then_some((length, if far == 0 { one } else { far }))
}

/// Where there is a call behind which `rdx` is cleared (a static program would take what is in it for a function to call at its end), other
/// registers may be, and nothing else is done.
pub(crate) fn find(code: &[u8]) -> Option<usize> {
    code.windows(SYSCALL.len()).enumerate().filter(|(_, bytes)| *bytes == SYSCALL).map(|(at, _)| at).find(
        |at| {
            let (mut rest, mut is_clean) = (&code[at + SYSCALL.len()..], false);
            while let Some((length, register)) = clears(rest).filter(|(_, register)| *register != RSP) {
                is_clean |= register == RDX;
                rest = &rest[length..];
            }
            is_clean && rest.first() == Some(&RETURN)
        },
    )
}

/// The same in this kernel's code, from where that begins in a process.
pub(crate) fn place() -> Option<u64> {
    static FOUND: OnceLock<Option<u64>> = OnceLock::new();
    *FOUND.get_or_init(|| find(own()?).map(|at| at as u64))
}

/// Where the kernel's code begins in a process, by what its file in `/proc` says.
pub(crate) fn of(process: i32) -> Option<u64> {
    in_auxiliary(words(&std::fs::read(format!("/proc/{process}/auxv")).ok()?))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

fn in_auxiliary(mut words: impl Iterator<Item = u64>) -> Option<u64> {
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == libc::AT_SYSINFO_EHDR {
            return Some(value);
        }
    }
    None
}

/// Where it begins, by the beginning of a new program's stack: behind arguments and environment the kernel says it. Nothing when that is not
/// among these bytes.
pub(crate) fn by_stack(stack: &[u8]) -> Option<u64> {
    let mut words = words(stack);
    let arguments = usize::try_from(words.next()?).ok()?;
    (arguments < stack.len()).then_some(())?;
    words.nth(arguments)?;
    words.find(|word| *word == 0)?;
    in_auxiliary(words)
}

/// Where behind the kernel's code there is room in its last page for so many bytes, from where it begins.
pub(crate) fn room(bytes: usize) -> Option<u64> {
    static FOUND: OnceLock<Option<(usize, usize)>> = OnceLock::new();
    let (from, to) = (*FOUND.get_or_init(|| own().and_then(room_in)))?;
    (bytes <= to - from).then_some(from as u64)
}

/// From where on this file in memory, up to its end, has nothing that anybody uses. Such a place is zero.
pub(crate) fn room_in(code: &[u8]) -> Option<(usize, usize)> {
    let half = |at: usize| Some(u16::from_le_bytes(code.get(at..at + 2)?.try_into().ok()?));
    let sections = u64::from_le_bytes(code.get(40..48)?.try_into().ok()?);
    let sections_end = sections.checked_add(u64::from(half(58)?) * u64::from(half(60)?))?;
    let used = code.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let from = used.max(usize::try_from(sections_end).ok()?).next_multiple_of(ALIGNMENT);
    (from < code.len()).then_some((from, code.len()))
}

/// The kernel's code in this process.
fn own() -> Option<&'static [u8]> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (begin, end) =
        maps.lines().find(|line| line.ends_with("[vdso]"))?.split_once(' ')?.0.split_once('-')?;
    let [begin, end] = [usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?];
    // SAFETY: the kernel maps it for reading as long as the process lives, and nobody writes to it.
    Some(unsafe { std::slice::from_raw_parts(begin as *const u8, end.checked_sub(begin)?) })
}
