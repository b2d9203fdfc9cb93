//! A system call in the code that the kernel itself puts into every process (vDSO), behind which only registers are cleared before it returns.
//!
//! A tracee that is sent there with the program's entry as the place to return to makes one call, and then begins as if nothing had been:
//! also when its tracer dies in between. So no code of the program need be changed for the call. Kernels whose vDSO has no such
//! place (it comes with their zeroing of registers) are served in another way: see `trace`.
#![allow(unsafe_code)]

use std::sync::OnceLock;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
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
    *FOUND.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let (begin, end) =
            maps.lines().find(|line| line.ends_with("[vdso]"))?.split_once(' ')?.0.split_once('-')?;
        let [begin, end] = [usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?];
        // SAFETY: the kernel maps it for reading as long as the process lives.
        let code = unsafe { std::slice::from_raw_parts(begin as *const u8, end.checked_sub(begin)?) };
        find(code).map(|at| at as u64)
    })
}

/// Where the kernel's code begins in a process.
pub(crate) fn of(process: i32) -> Option<u64> {
    let auxiliary = std::fs::read(format!("/proc/{process}/auxv")).ok()?;
    let mut words =
        auxiliary.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == libc::AT_SYSINFO_EHDR {
            return Some(value);
        }
    }
    None
}
