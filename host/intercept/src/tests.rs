//! The patcher, on bytes: what it finds, what it writes, and that it touches nothing else.
#![allow(unsafe_code)]

const NONE: u32 = 0;
const AFTER_SYSCALL: u32 = 2; // pattern B
const MOVES_BETWEEN: u32 = 4; // pattern D
const OTHER_REGISTER: u32 = 5; // pattern E
const POPPED: u32 = 6; // pattern F
const TRAMPOLINE_BYTES: usize = 56;

use crate::images::CALLS_MAX;
use crate::images::{self, Wanted};

unsafe extern "C" {
    fn weir_next_call(code: *const u8, from: u64, bytes: u64) -> u64;
    fn weir_site_kind(syscall: *const u8, before: u64, behind: u64) -> u32;
    fn weir_write_site(syscall: *mut u8, kind: u32, before: u64, trampoline: *mut u8);
}

fn kind(code: &[u8], at: usize) -> u32 {
    // SAFETY: looks at no more than the bytes before and behind that we say there are.
    unsafe { weir_site_kind(code[at..].as_ptr(), at as u64, (code.len() - at) as u64) }
}

/// Where the jump at `at` of `memory` leads, as a place in `memory`.
fn target(memory: &[u8], at: usize) -> usize {
    assert_eq!(memory[at], 0xe9, "a jump at {at}");
    let distance = i32::from_le_bytes(memory[at + 1..at + 5].try_into().unwrap());
    (at as i64 + 5 + i64::from(distance)) as usize
}

/// Patches the syscall at `at`; gives code and trampoline in one piece of memory.
fn patched(code: &[u8], at: usize) -> Vec<u8> {
    let mut memory = [code, &[0; TRAMPOLINE_BYTES]].concat();
    let base = memory.as_mut_ptr();
    // SAFETY: all places lie in `memory`; the trampoline has the room that the patcher needs.
    unsafe {
        weir_write_site(base.add(at), kind(code, at), at as u64, base.add(code.len()));
    }
    memory
}

/// Checks that only the site changed, and that its trampoline goes on by the thread's block, makes the call and goes back.
fn check(code: &[u8], at: usize) {
    let memory = patched(code, at);
    let kind = kind(code, at);
    let length = match kind {
        AFTER_SYSCALL => 8,
        POPPED => 4,
        _ => 2,
    };
    let begin = (0..code.len()).find(|i| code[*i] != memory[*i]).expect("a change");
    let end = if matches!(kind, AFTER_SYSCALL | OTHER_REGISTER | POPPED) { at + length } else { begin + 5 };
    assert_eq!(code[end..], memory[end..code.len()], "nothing behind the site changes");
    assert_eq!(target(&memory, begin), code.len(), "the site leads to its trampoline");
    let trampoline = &memory[code.len()..];
    let find = |bytes: &[u8]| trampoline.windows(bytes.len()).position(|found| found == bytes);
    let load =
        find(&[0x48, 0x8d, 0x0d, 8, 0, 0, 0, 0x65, 0xff, 0x24, 0x25, 56, 0, 0, 0]).expect("lea and jmp");
    let call = load + 15;
    assert_eq!(trampoline[call..call + 2], [0x0f, 0x05], "its own call");
    let back = call + length;
    assert_eq!(trampoline[call + 2..back], code[at + 2..at + length], "the compare is repeated");
    assert_eq!(target(&memory, code.len() + back), at + length, "back behind the site");
    if !matches!(kind, AFTER_SYSCALL | MOVES_BETWEEN | OTHER_REGISTER | POPPED) {
        assert_eq!(trampoline[1..5], code[at - 4..at], "the same number");
    }
}

#[test]
fn each_pattern_is_found_and_patched() {
    let sites: [(&str, &[u8], usize, u32); 6] = [
        ("mov $1,%eax; syscall", &[0x90, 0x90, 0xb8, 1, 0, 0, 0, 0x0f, 5, 0x90], 7, 1),
        ("syscall; cmp", &[0x31, 0xc0, 0x0f, 5, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77], 2, 2),
        ("mov $1,%rax; syscall", &[0x90, 0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0x0f, 5, 0x90], 8, 3),
        ("mov; mov; syscall", &[0x90, 0xb8, 3, 0, 0, 0, 0x8b, 0x7d, 0xa0, 0x0f, 5, 0x90], 9, 4),
        ("pop; syscall; push", &[0x90, 0x41, 0x5c, 0x0f, 5, 0x41, 0x54, 0x48, 0x3d, 1, 0xf0], 3, 6),
        ("mov %r9d,%eax; syscall", &[0x90, 0x90, 0x44, 0x89, 0xc8, 0x0f, 5, 0x48, 0x83], 5, 5),
    ];
    for (name, code, at, wanted) in sites {
        assert_eq!(kind(code, at), wanted, "{name}");
        check(code, at);
    }
}

#[test]
fn what_only_looks_like_a_site_is_left() {
    // mov $1,%r8d sets another register; a number that is none; too little behind.
    for (code, at) in [
        (&[0x90u8, 0x41, 0xb8, 1, 0, 0, 0, 0x0f, 5][..], 7),
        (&[0x90, 0x90, 0xb8, 1, 2, 3, 0, 0x0f, 5], 7),
        (&[0x0f, 5, 0x48, 0x3d, 0, 0xf0], 0),
    ] {
        assert_eq!(kind(code, at), NONE, "{code:x?}");
    }
}

#[test]
fn a_place_relative_to_code_is_mended_in_the_trampoline() {
    // mov $1,%eax; lea 0x100(%rip),%rsi; syscall
    let code = [0x90, 0xb8, 1, 0, 0, 0, 0x48, 0x8d, 0x35, 0, 1, 0, 0, 0x0f, 5, 0x90];
    check(&code, 13);
    let memory = patched(&code, 13);
    let at = code.len() + 5;
    let distance = i32::from_le_bytes(memory[at + 3..at + 7].try_into().unwrap());
    assert_eq!(at as i64 + 7 + i64::from(distance), 6 + 7 + 0x100);
}

#[test]
fn random_code_is_only_changed_where_a_call_is() {
    bolero::check!().with_type::<(Vec<u8>, u8, u16)>().with_iterations(20_000).for_each(
        |(bytes, shape, number)| {
            let [low, high] = (number % 512).to_le_bytes();
            let site: Vec<u8> = match shape % 5 {
                0 => vec![0xb8, low, high, 0, 0, 0x0f, 5],
                1 => vec![0x48, 0xc7, 0xc0, low, high, 0, 0, 0x0f, 5],
                2 => vec![0x0f, 5, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff],
                3 => vec![0xb8, low, high, 0, 0, 0x31, 0xff, 0x48, 0x89, 0xde, 0x0f, 5],
                _ => vec![0x0f, 5],
            };
            let half = bytes.len() / 2;
            let code = [&bytes[..half], &site, &bytes[half..]].concat();
            for at in 0..code.len() - 1 {
                if code[at..at + 2] == [0x0f, 5] && kind(&code, at) != NONE {
                    check(&code, at);
                }
            }
        },
    );
}

#[test]
fn calls_are_found_as_byte_by_byte() {
    bolero::check!().with_type::<(Vec<u8>, Vec<u16>)>().with_iterations(20_000).for_each(
        |(bytes, places)| {
            let mut code = bytes.clone();
            for place in places {
                if let Some(pair) = code.len().checked_sub(1).filter(|room| *room > 0) {
                    let at = usize::from(*place) % pair;
                    code[at..at + 2].copy_from_slice(&[0x0f, 5]);
                }
            }
            let wanted: Vec<usize> =
                (0..code.len().saturating_sub(1)).filter(|at| code[*at..at + 2] == [0x0f, 5]).collect();
            let mut found = Vec::new();
            loop {
                let from = found.last().map_or(0, |last| last + 1);
                // SAFETY: reads inside `code` only.
                let at = unsafe { weir_next_call(code.as_ptr(), from as u64, code.len() as u64) } as usize;
                if at >= code.len() {
                    break;
                }
                found.push(at);
            }
            assert_eq!(found, wanted);
        },
    );
}

#[test]
fn only_what_is_wanted_is_changed_and_what_is_left_is_counted() {
    const OPEN: u8 = 2;
    const CLONE: u8 = 56;
    let mut all = Wanted { classes: [0; CALLS_MAX], unseen: [0; CALLS_MAX] };
    // mov $2,%eax; syscall. mov $57,%eax; syscall. mov $56,%eax; (something that is not repeated) syscall.
    let code = [
        &[0x90, 0xb8, OPEN, 0, 0, 0, 0x0f, 5][..],
        &[0x90, 0xb8, 57, 0, 0, 0, 0x0f, 5],
        &[0x90, 0xb8, CLONE, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3, 0x90, 0x0f, 5, 0x90],
    ]
    .concat();
    assert_eq!(images::sites(&code, &all).0, Vec::<u32>::new());
    all.classes[usize::from(OPEN)] = 1;
    let (found, figures) = images::sites(&code, &all);
    assert_eq!((found, figures.left), (vec![6], 1));
}

#[test]
fn a_number_is_no_call() {
    // mov $2,%eax; pop; ret; mov $0x50f,%esi: 0f 05 lies in a number. Before other bytes it may be a call.
    let mut code = vec![0x90, 0xb8, 2, 0, 0, 0, 0x5b, 0xc3, 0xbe, 0x0f, 5, 0, 0, 0x90, 0x90, 0x90];
    let all = Wanted { classes: [1; CALLS_MAX], unseen: [1; CALLS_MAX] };
    assert_eq!(images::sites(&code, &all).1.confusing, 0);
    code[11] = 0x48;
    assert_eq!(images::sites(&code, &all).1.confusing, 1);
    // test $0x5b20050f,%eax; jne. Without the jump it may be a call.
    let mut code = vec![0xb8, 1, 0, 0, 0, 0x48, 0xd3, 0xe0, 0xa9, 0x0f, 5, 0x20, 0x5b, 0x0f, 0x85, 0x4b];
    code.insert(0, 0x90);
    assert_eq!(images::sites(&code, &all).1.confusing, 0);
    code[15] = 0x10;
    assert_eq!(images::sites(&code, &all).1.confusing, 1);
}

#[test]
fn a_call_of_the_kernels_code_only_clears_registers() {
    let call = [0x0f, 0x05];
    let (rdx, rsi, r8, rsp) =
        (&[0x31, 0xd2][..], &[0x31, 0xf6][..], &[0x45, 0x31, 0xc0][..], &[0x31, 0xe4][..]);
    let of = |parts: &[&[u8]]| crate::kernel_code::find(&parts.concat());
    assert_eq!(of(&[&[0x90], &call, rdx, rsi, r8, &[0xc3]]), Some(1));
    // The first that fits.
    assert_eq!(of(&[&call, &[0xc3], &call, r8, rdx, &[0xc3], &call, rdx, &[0xc3]]), Some(3));
    // Registers that a program takes something from stay; the stack would be lost; something else is done; it ends too early.
    assert_eq!(of(&[&call, rsi, &[0xc3]]), None);
    assert_eq!(of(&[&call, rdx, rsp, &[0xc3]]), None);
    assert_eq!(of(&[&call, rdx, &[0x31, 0xc8, 0xc3]]), None);
    assert_eq!(of(&[&call, rdx, &[0x5b, 0xc3]]), None);
    assert_eq!(of(&[&call, rdx]), None);
    assert_eq!(of(&[&call]), None);
    // It is found by what the kernel puts onto a new program's stack, as far as that is there.
    let stack: Vec<u8> = [2, 11, 12, 0, 21, 22, 23, 0, 6, 4096, 33, 0x7000, 0, 0]
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect();
    assert_eq!(crate::kernel_code::by_stack(&stack), Some(0x7000));
    for bytes in [0, 7, 40, 64, 88] {
        assert_eq!(crate::kernel_code::by_stack(&stack[..bytes]), None, "{bytes} bytes");
    }
    assert_eq!(crate::kernel_code::by_stack(&[0xff; 64]), None);
    // Room begins behind the last byte and behind the headers of sections, which may be zero.
    let mut file = vec![0; 4096];
    file[100] = 1;
    assert_eq!(crate::kernel_code::room_in(&file), Some((112, 4096)));
    (file[40], file[58], file[60]) = (200, 64, 2);
    assert_eq!(crate::kernel_code::room_in(&file), Some((336, 4096)));
    file[4095] = 1;
    assert_eq!(crate::kernel_code::room_in(&file), None);
    // The kernel's code is found in a process, and in this one it begins as a program's file does.
    let begins = crate::kernel_code::of(std::process::id() as i32).expect("there is code of the kernel's");
    // SAFETY: the kernel maps at least a page there.
    assert_eq!(unsafe { std::slice::from_raw_parts(begins as *const u8, 4) }, b"\x7fELF");
}
