//! What is told of tables and processes, by texts as the kernel writes them.

use super::super::Verdict;
use super::*;
use crate::accelerate::Acceleration;

const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
    90 22 0:51 / /mnt/two\\040words rw,nosuid - fuse.weir mem: rw,user_id=0\n\
    91 22 0:52 / /mnt/other rw - fuse.sshfs weir rw\n\
    92 22 0:53 / /mnt/dashed-name rw shared:7 master:1 - fuse weir\\043dir:/srv rw\n\
    93 22 0:54 / /mnt/third rw - fuse dir:/srv rw\n\
    broken\n";

fn status(mount: &str) -> Status {
    Status {
        mount: mount.to_owned(),
        backend: "mem:".to_owned(),
        pid: 4_000_000,
        keeper: None,
        deaths: 0,
        version: crate::version(),
        notes: Vec::new(),
        acceleration: Acceleration::default(),
        operations: Vec::new(),
        segment: None,
        held: None,
    }
}

#[test]
fn mounts_of_ours_are_found_by_their_kind() {
    assert_eq!(mount_points(TABLE), ["/mnt/two words", "/mnt/dashed-name"].map(PathBuf::from));
}

#[test]
fn each_state_of_a_mount_is_told_apart() {
    let (state, point) = (Path::new("/run/x"), Path::new("/mnt/a"));
    let of = |answered: &[Status], answer| of_point(point, state, answered, answer).verdict;
    assert_eq!(of(&[status("/mnt/a")], Some(Ok(()))), Verdict::Good);
    assert_eq!(of(&[status("/mnt/b")], Some(Ok(()))), Verdict::Note);
    assert_eq!(of(&[], Some(Err(rustix::io::Errno::NOTCONN))), Verdict::Wrong);
    assert_eq!(of(&[], Some(Err(rustix::io::Errno::ACCESS))), Verdict::Note);
    assert_eq!(of(&[status("/mnt/a")], None), Verdict::Wrong);
}

#[test]
fn another_version_of_program_or_library_is_wrong() {
    let mut other = status("/mnt/a");
    assert!(versions(&other).iter().all(|finding| finding.verdict == Verdict::Good));
    other.version.library = "0".to_owned();
    assert!(versions(&other)[0].found.contains("library"), "{:?}", versions(&other));
    assert_eq!(versions(&other)[0].verdict, Verdict::Wrong);
    // A daemon from before versions were told.
    other.version = crate::Version::default();
    assert_eq!(versions(&other)[0].verdict, Verdict::Wrong);
}

#[test]
fn daemons_and_memory_are_told_by_what_the_kernel_shows() {
    let process = |id, words: &[&str], maps: &str| Process {
        id,
        command: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        segments: segments(maps),
    };
    let maps = "200000000000-200100000000 rw-s 00000000 00:01 1234    /memfd:weir-userfs (deleted)\n\
                7f0000000000-7f0000001000 r--p 00000000 fe:00 99      /lib/libc.so.6\n";
    // No process has such a number, so nobody serves.
    let of = |id, words: &[&str]| process(id, words, maps);
    let all = [
        of(4_000_000, &["/usr/bin/weir", "fs", "serve", "--backend", "mem:"]),
        process(4_000_001, &["/usr/bin/weir", "fs", "status"], ""),
        process(4_000_002, &["/usr/bin/other", "fs", "serve"], ""),
    ];
    let ids = |findings: Vec<Finding>| findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>();
    assert_eq!(ids(orphans(&all, &[])), ["daemon 4000000"]);
    assert_eq!(ids(orphans(&all, &[status("/mnt/a")])), Vec::<String>::new());
    assert_eq!(all[0].segments.iter().copied().collect::<Vec<_>>(), [1234]);
    let lost = memory_of_nobody(&all);
    assert_eq!((lost.len(), lost[0].verdict), (1, Verdict::Wrong));
    assert!(lost[0].found.contains("4000000"), "{lost:?}");
}
