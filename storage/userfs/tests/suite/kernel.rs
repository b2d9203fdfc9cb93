//! What the kernel keeps of a descriptor and answers by itself is true for accelerated files: sizes, positions, locks, names, and who may use it.

use super::Mounted;
use super::accelerated::{Accelerated, Partner, accelerated};
use super::beside::prelude;
use std::path::Path;
use std::process::Command;

fn partner(on: &Accelerated) -> Partner {
    let mut partner = Partner::new(on);
    prelude(&mut partner);
    partner
}

fn plain(on: &Accelerated) -> Partner {
    let mut partner = Partner::plain(on);
    prelude(&mut partner);
    partner
}

/// A file that the kernel knows, of `bytes` bytes, open in the partner as descriptor 1.
fn known_file(on: &Accelerated, partner: &mut Partner, bytes: usize) {
    std::fs::write(on.on.root().join("f"), vec![b'a'; bytes]).unwrap();
    assert_eq!(partner.ask("op_open(1, 'f', os.O_RDWR)"), "None");
}

#[test]
fn the_kernel_knows_a_size_before_it_is_asked() {
    let Some(mut on) = accelerated("the_kernel_knows_a_size") else { return };
    let (mut own, mut other) = (partner(&on), plain(&on));
    known_file(&on, &mut own, 0);
    assert_eq!(other.ask("op_open(2, 'f', os.O_RDWR)"), "None");
    assert_eq!(other.ask("op_open(3, 'g', os.O_RDWR | os.O_CREAT)"), "None");
    // Each grows past the kernel, some by a page and a byte.
    let mut size = 0;
    for more in [5000, 1, 3191, 1, 4096, 9, 70_000] {
        assert_eq!(own.number(&format!("op_pwrite(1, 66, {more}, {size})")), more);
        size += more;
        assert_eq!(
            other.number(&format!("op_send(2, 3, 1000000, {})", size - more)),
            more,
            "sendfile at {size}"
        );
        assert_eq!(
            other.number(&format!("op_copy(2, 3, 1000000, {}, 0)", size - more)),
            more,
            "copy at {size}"
        );
        let spliced = other.ask(&format!("op_splice(2, 1000, {})", size - 1));
        assert!(spliced.starts_with("(1, "), "{spliced} at {size}");
        // From the end on, which is the kernel's to know.
        assert_eq!(other.ask("op_lock(2, fcntl.F_WRLCK, 2, -1, 1)"), "None");
        assert_eq!(own.ask("op_locked(1, 0, 0)"), format!("(1, {}, 1)", size - 1));
        assert_eq!(other.ask("op_lock(2, fcntl.F_UNLCK, 0, 0, 0)"), "None");
    }
    let (_, writes) = on.served();
    assert!(writes >= 5, "{writes} writes were served");
    // By appending, and by the same process.
    assert_eq!(own.ask("op_open(4, 'f', os.O_WRONLY | os.O_APPEND)"), "None");
    assert_eq!(own.number("op_write(4, 67, 500)"), 500);
    assert_eq!(other.number(&format!("op_send(2, 3, 1000000, {size})")), 500);
    assert_eq!(own.ask("op_open(5, 'h', os.O_RDWR | os.O_CREAT)"), "None");
    assert_eq!(own.number("op_write(5, 68, 700)"), 700);
    assert_eq!(own.ask("op_open(6, 'i', os.O_RDWR | os.O_CREAT)"), "None");
    assert_eq!(own.number("op_copy(5, 6, 5000, 0, 0)"), 700);
    assert_eq!(own.number("op_send(5, 6, 5000, 0)"), 700);
    // A file that is emptied as it is opened, twice.
    for _ in 0..2 {
        assert_eq!(own.ask("op_open(5, 'h', os.O_RDWR | os.O_CREAT | os.O_TRUNC)"), "None");
        assert_eq!(own.number("op_write(5, 69, 300)"), 300);
        assert_eq!(other.ask("op_open(7, 'h', os.O_RDONLY)"), "None");
        assert_eq!(other.ask("op_lock(7, fcntl.F_RDLCK, 2, -1, 1)"), "None");
        assert_eq!(own.ask("op_locked(5, 0, 0)"), "(0, 299, 1)");
        assert_eq!(other.number("op_send(7, 3, 5000, 0)"), 300);
    }
}

#[test]
fn a_map_of_another_program_grows_with_the_file() {
    let Some(on) = accelerated("a_map_of_another_program") else { return };
    let (mut own, mut other) = (partner(&on), plain(&on));
    known_file(&on, &mut own, 4096);
    assert_eq!(other.ask("op_mapped('f', 50000)"), "None");
    assert_eq!(own.number("op_pwrite(1, 87, 100000, 4096)"), 100_000);
    assert_eq!(other.ask("op_touched()"), "(b'W', 0)");
}

#[test]
fn names_of_descriptors_are_the_files() {
    let Some(on) = accelerated("names_of_descriptors") else { return };
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let calls = [
        "op_proc_chmod(1, 0o600)",
        "op_proc_by_link(1, 0o611)",
        "op_proc_truncate(1, 3)",
        "op_proc_utime(1)",
        "op_proc_attribute(1)",
        "op_proc_link(1, 'other')",
        "os.chown(by_proc(1), 7, 8) or (os.fstat(fd(1)).st_uid, os.stat('.').st_uid)",
        "os.statvfs(by_proc(1)).f_namemax",
        "os.access(by_proc(1), os.W_OK), os.access(by_proc(1), os.X_OK)",
        "os.readlink(by_proc(1)).split('/')[-1]",
        "op_reopen(1, 2, os.O_RDWR) or op_pread(2, 9, 0)",
        "os.open('//proc/self/fd/%d' % fd(1), os.O_RDWR) > 0",
        "os.chdir('/proc/self/fd') or os.chmod('%d' % fd(1), 0o644) or op_stat(1)",
        "os.chmod('/dev/fd/%d' % fd(1), 0o633) or op_stat(1)",
    ];
    for call in calls {
        // A file that nobody but the process knows, for each.
        let ask = |partner: &mut Partner, folder: &Path| {
            prelude(partner);
            partner.ask(&format!("os.chdir({folder:?})"));
            assert_eq!(partner.ask("op_open(1, 'own', os.O_RDWR | os.O_CREAT | os.O_TRUNC)"), "None");
            assert_eq!(partner.number("op_write(1, 65, 10)"), 10);
            let answer = partner.ask(call);
            partner.ask(&format!("os.chdir({folder:?}) or os.unlink('own')"));
            answer
        };
        let is = ask(&mut Partner::new(&on), &on.on.root());
        assert_eq!(is, ask(&mut Partner::plain(&on), folder.path()), "{call}");
    }
}

#[test]
fn locks_are_where_the_position_is_and_go_when_they_must() {
    let Some(on) = accelerated("locks_are_where") else { return };
    let (mut own, mut other) = (partner(&on), plain(&on));
    assert_eq!(own.ask("op_open(1, 'f', os.O_RDWR | os.O_CREAT)"), "None");
    assert_eq!(own.number("op_write(1, 65, 1000)"), 1000);
    for place in [100, 200, 300] {
        assert_eq!(own.number(&format!("op_seek(1, {place}, 0)")), place);
        assert_eq!(own.ask("op_lock(1, fcntl.F_WRLCK, 1, 0, 10)"), "None");
    }
    assert_eq!(other.ask("op_open(1, 'f', os.O_RDWR)"), "None");
    for place in [0, 100, 200, 300] {
        let right = if place == 0 { "'free'".to_owned() } else { format!("(1, {place}, 10)") };
        assert_eq!(other.ask(&format!("op_locked(1, {place}, 10)")), right);
    }
    assert_eq!(own.number("op_seek(1, 0, 1)"), 300);
    // Of one's own description they stay.
    assert_eq!(own.ask("op_seek(1, 700, 0) and op_ofd_lock(1, fcntl.F_WRLCK, 1, 0, 5)"), "None");
    // Another descriptor of the file is closed: whenever it was opened.
    assert_eq!(own.ask("op_open(2, 'f', os.O_RDONLY) or op_close(2)"), "None");
    assert_eq!(other.ask("op_locked(1, 0, 400)"), "'free'");
    assert_eq!(other.ask("op_locked(1, 0, 0)"), "(1, 700, 5)");
    assert_eq!(own.ask("op_open(2, 'g', os.O_RDWR | os.O_CREAT) or op_open(3, 'g', os.O_RDWR)"), "None");
    assert_eq!(own.ask("op_lock(2, fcntl.F_WRLCK, 0, 0, 0)"), "None");
    assert_eq!(other.ask("op_open(2, 'g', os.O_RDWR) or op_locked(2, 0, 0)"), "(1, 0, 0)");
    assert_eq!(own.ask("op_close(3)"), "None");
    assert_eq!(other.ask("op_locked(2, 0, 0)"), "'free'");
}

/// As fcntl15 of the Linux Test Project: descriptors that were opened before the first lock, and are used by calls that need the file's own after it.
#[test]
fn locks_stay_when_another_descriptor_becomes_the_files_own() {
    let Some(on) = accelerated("locks_stay_when") else { return };
    let (mut own, mut other) = (partner(&on), plain(&on));
    let opened =
        "op_open(1, 'f', os.O_RDWR | os.O_CREAT) or op_open(2, 'f', os.O_RDWR) or op_open(3, 'f', os.O_RDWR)";
    assert_eq!(own.ask(opened), "None");
    assert_eq!(own.number("op_write(1, 65, 100)"), 100);
    assert_eq!(other.ask("op_open(1, 'f', os.O_RDWR)"), "None");
    // By one, then by another, which stood in until then.
    assert_eq!(own.ask("op_lock(1, fcntl.F_WRLCK, 0, 0, 5)"), "None");
    assert_eq!(own.ask("op_lock(2, fcntl.F_WRLCK, 0, 10, 5)"), "None");
    assert_eq!(other.ask("op_locked(1, 0, 8)"), "(1, 0, 5)");
    assert_eq!(other.ask("op_locked(1, 10, 5)"), "(1, 10, 5)");
    // A lock of another process beside them stays its own.
    assert_eq!(other.ask("op_lock(1, fcntl.F_WRLCK, 0, 20, 5)"), "None");
    assert_eq!(own.ask("op_locked(3, 20, 5)"), "(1, 20, 5)");
    assert_eq!(other.ask("op_locked(1, 0, 8)"), "(1, 0, 5)");
    // They go when the process closes any of them, and the other's stays.
    assert_eq!(own.ask("op_close(3)"), "None");
    assert_eq!(other.ask("op_locked(1, 0, 15)"), "'free'");
    assert_eq!(own.ask("op_locked(1, 20, 5)"), "(1, 20, 5)");
}

#[test]
fn threads_that_are_not_seen_have_the_program_left_alone() {
    let Some(mut on) = accelerated("threads_that_are_not_seen") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("threads");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/threads_unseen.c");
    let flags =
        ["-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fcf-protection=none"];
    assert!(Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let before = on.served();
    for _ in 0..3 {
        let output = on.command(program.to_str().unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(on.served(), before, "nothing of it was served");
}

#[test]
fn descriptors_in_arguments_of_ioctl_are_files() {
    let Some(on) = accelerated("descriptors_in_arguments") else { return };
    let ask = |partner: &mut Partner| {
        assert_eq!(partner.ask("op_open(1, 'f', os.O_RDWR | os.O_CREAT)"), "None");
        assert_eq!(partner.ask("op_open(2, 'g', os.O_RDWR | os.O_CREAT)"), "None");
        partner.ask("op_clone_of(1, 2)")
    };
    let is = ask(&mut partner(&on));
    assert_ne!(is, "-9");
    assert_eq!(is, ask(&mut plain(&on)));
}

#[test]
fn lengths_limits_and_rights_are_judged_as_elsewhere() {
    let Some(on) = accelerated("lengths_limits_and_rights") else { return };
    let calls = [
        ("op_write_all_memory(1)", "(-1, 14)"),
        ("op_limited(1, False)", "(10000, 27)"),
        ("op_limited(1, True)", "(10000, 27)"),
        ("op_as_nobody(1)", "(1, 33188, b'AAA')"),
        ("fcntl.fcntl(fd(1), fcntl.F_GETFL) & (os.O_NOFOLLOW | os.O_APPEND)", "0"),
        ("os.setresuid(65534, 65534, -1) or fcntl.fcntl(fd(1), fcntl.F_GETFL) & os.O_NOFOLLOW", "0"),
        ("op_statx(1, 0x6000, 0x7ff)", "(-1, 22)"),
        ("op_statx(1, 0, 0x80000000)", "(-1, 22)"),
        ("op_statx(1, 0, 0x7ff)", "(0, 2047)"),
        (
            "os.utime(fd(1), ns=(-100000000005, -1)) or (os.fstat(fd(1)).st_atime_ns, os.fstat(fd(1)).st_mtime_ns)",
            "(-100000000005, -1)",
        ),
    ];
    for (call, right) in calls {
        for mut partner in [partner(&on), plain(&on)] {
            assert_eq!(partner.ask("op_open(1, 'f', os.O_RDWR | os.O_CREAT | os.O_TRUNC)"), "None");
            let bytes = if call.starts_with("op_limited") { 0 } else { 3 };
            assert_eq!(partner.number(&format!("op_write(1, 65, {bytes})")), bytes);
            assert_eq!(partner.ask(call), right, "{call}");
            std::fs::remove_file(on.on.root().join("f")).unwrap();
        }
    }
}

#[test]
fn a_file_knows_its_mount_and_an_open_what_it_made() {
    let Some(mut on) = accelerated("a_file_knows_its_mount") else { return };
    for mut partner in [partner(&on), plain(&on)] {
        assert_eq!(partner.ask("op_open(1, 'm', os.O_RDWR | os.O_CREAT | os.O_TRUNC)"), "None");
        assert_eq!(partner.number("op_write(1, 65, 3)"), 3);
        assert_eq!(partner.ask("op_mount_ids(1, b'm')"), "True");
        // Kernels before 6.12 do not know the question.
        match partner.ask("op_created(2, 3)").as_str() {
            "-22" => println!("NOT RUN a_file_knows_what_it_made: this kernel has no F_CREATED_QUERY"),
            answer => assert_eq!(answer, "((1, 0), (1, 0), 0, None)"),
        }
    }
    assert!(on.served().1 >= 2, "writes were served");
}

#[test]
fn times_before_1970_and_kinds_of_attributes() {
    super::on_all("times_before_1970", |mounted: &Mounted| {
        let path = mounted.root().join("f");
        std::fs::write(&path, "x").unwrap();
        let script = "import os, sys\np = sys.argv[1]\nos.utime(p, ns=(-100000000005, -1))\nprint(os.stat(p).st_atime_ns, os.stat(p).st_mtime_ns)\n\
                      try: os.setxattr(p, 'nobody.k', b'v'); print('taken')\nexcept OSError as e: print(e.errno)";
        let output =
            Command::new(super::accelerated::PYTHON).args(["-c", script]).arg(&path).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "-100000000005 -1\n95\n",
            "{}: {output:?}",
            mounted.name
        );
    });
}

#[test]
fn every_call_of_the_kernel_is_in_the_table() {
    let header = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let Some(text) = header.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        return println!("NOT RUN every_call_of_the_kernel: there are no headers of the kernel");
    };
    let table = include_str!("../../segment/calls.h");
    let entry = |line: &str| {
        let rest = line.trim().strip_prefix('X').or_else(|| line.trim().strip_prefix('Y'))?;
        let (number, rest) = rest.strip_prefix('(')?.split_once(", ")?;
        let name = rest.split([',', ')']).next()?;
        Some((number.parse::<u32>().ok()?, name.to_owned()))
    };
    let known: std::collections::HashMap<u32, String> =
        table.split_inclusive(") ").flat_map(str::lines).filter_map(entry).collect();
    let mut calls = 0;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("#define __NR_") else { continue };
        let (name, number) = rest.split_once(' ').unwrap();
        let number: u32 = number.trim().parse().unwrap();
        assert_eq!(known.get(&number).map(String::as_str), Some(name), "call {number}");
        calls += 1;
    }
    assert!(calls > 300, "{calls} calls are in the header");
}
