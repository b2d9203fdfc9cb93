//! Archives, as the programs made for them show them and as a mount does.

use super::accelerated::{Accelerated, PYTHON, Partner, accelerated};
use super::{Mounted, cannot_mount};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use weir_userfs::archive::Archive;

/// Runs a line of shell in `folder`.
fn shell(folder: &Path, line: &str) {
    let ran =
        Command::new("bash").args(["-euo", "pipefail", "-c", line]).current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Files of many kinds in `folder/tree`.
fn make_tree(folder: &Path, only_zip: bool) {
    shell(
        folder,
        "mkdir -p tree/a/b/c tree/empty tree/many\n\
         seq 1 300000 > tree/a/numbers\n\
         head -c 3000000 /dev/urandom > tree/a/b/noise\n\
         : > tree/a/nothing\n\
         printf 'ohne Sorge' > 'tree/a/b/Grüße mit Leerzeichen'\n\
         for i in $(seq 400); do echo $i > tree/many/$i; done\n\
         ln -s ../a/numbers tree/a/link; ln -s /no/where tree/dangling; ln -s loop tree/loop\n\
         chmod 640 tree/a/numbers; chmod 700 tree/empty; touch -d '2001-02-03 04:05:06' tree/a/nothing tree/a",
    );
    if !only_zip {
        shell(
            folder,
            "ln tree/a/numbers tree/a/b/c/again; mkfifo tree/pipe; chown 1234:4321 tree/a/nothing\n\
             truncate -s 20M tree/sparse\n\
             for i in $(seq 1 2 19); do\n\
               printf 'here' | dd of=tree/sparse bs=1M seek=$i conv=notrunc status=none\n\
             done",
        );
    }
}

/// Everything that a tree shows: names, kinds, contents, and what else is asked for.
fn listing(root: &Path, wanted: &str) -> String {
    // Unpacking leaves times of links as they come.
    let line = format!(
        "find . -mindepth 1 -type l -printf '%P %l\\n' -o -mindepth 1 -printf '{wanted}\\n' | sort; find . -type f -exec sha256sum {{}} + | sort"
    );
    let ran = Command::new("bash").args(["-c", &line]).current_dir(root).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

fn first_difference(a: &str, b: &str) -> String {
    let differ = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    format!("{} and {} lines; {differ:?}", a.lines().count(), b.lines().count())
}

fn ready(name: &str, programs: &[&str]) -> bool {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {name}: {reason}");
        return false;
    }
    for program in programs {
        if Command::new(program).arg("--version").output().is_err() {
            println!("NOT RUN {name}: {program} is not installed");
            return false;
        }
    }
    true
}

#[test]
fn a_mounted_tar_is_what_tar_unpacks() {
    if !ready("mounted_tar", &["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path(), false);
    // Names longer than a header has room for; only some formats know them.
    let long = format!("tree/{}/{}", "l".repeat(200), "n".repeat(180));
    for (format, options, long_names) in [
        ("ustar", "", false),
        ("gnu", "", true),
        ("gnu", "--sparse", true),
        ("pax", "", true),
        ("pax", "--sparse --sparse-version=0.0", true),
        ("pax", "--sparse --sparse-version=0.1", true),
        ("pax", "--sparse --sparse-version=1.0", true),
        ("gnu", "--gzip", true),
        ("pax", "--gzip --sparse", true),
    ] {
        println!("{format} {options}");
        let path = folder.path().join(&long);
        if long_names {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "long").unwrap();
        } else if path.parent().unwrap().exists() {
            fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
        shell(
            folder.path(),
            &format!(
                "rm -rf out; mkdir out; tar --create --format={format} {options} --file=archive -C tree .\n\
                 tar --extract --numeric-owner --file=archive -C out"
            ),
        );
        let archive = Archive::open(&folder.path().join("archive")).unwrap();
        let on = Mounted::of("archive", archive);
        // Sizes of directories differ by file system; times have seconds alone in old formats.
        let wanted = "%P %y %m %n %U %G %Ts %l %f";
        let unpacked = listing(&folder.path().join("out"), wanted);
        let mounted = listing(&on.root(), wanted);
        assert!(unpacked.lines().count() > 400);
        assert!(unpacked == mounted, "{}", first_difference(&unpacked, &mounted));
        if options.contains("--sparse") {
            let sparse = fs::File::open(on.root().join("sparse")).unwrap();
            let metadata = sparse.metadata().unwrap();
            assert!(metadata.blocks() * 512 < metadata.len() / 10, "{} blocks", metadata.blocks());
            let mut here = [1; 8];
            sparse.read_exact_at(&mut here, (3 << 20) - 2).unwrap();
            assert_eq!(&here, b"\0\0here\0\0");
        }
        let refused = fs::write(on.root().join("new"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
}

#[test]
fn a_mounted_zip_is_what_unzip_unpacks() {
    if !ready("mounted_zip", &["zip", "unzip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path(), true);
    for level in ["-0", "-6"] {
        shell(
            folder.path(),
            &format!(
                "rm -rf out archive; (cd tree; zip -q -r -y {level} ../archive.zip .); mv archive.zip archive\n\
                 mkdir out; unzip -q archive -d out"
            ),
        );
        let on = Mounted::of("archive", Archive::open(&folder.path().join("archive")).unwrap());
        let wanted = "%P %y %m %Ts %l";
        let (unpacked, mounted) = (listing(&folder.path().join("out"), wanted), listing(&on.root(), wanted));
        assert!(unpacked.lines().count() > 400);
        assert!(unpacked == mounted, "{}", first_difference(&unpacked, &mounted));
    }
}

#[test]
fn a_mounted_gz_is_what_zcat_says() {
    if !ready("mounted_gz", &["gzip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), "seq 1 4000000 > numbers; gzip -k numbers; (seq 3; echo more) | gzip >> numbers.gz");
    let on = Mounted::of("archive", Archive::open(&folder.path().join("numbers.gz")).unwrap());
    shell(folder.path(), &format!("zcat numbers.gz | cmp - {}/numbers", on.root().display()));
    // Any place, first from the end to the beginning.
    let (mounted, plain) = (
        fs::File::open(on.root().join("numbers")).unwrap(),
        fs::File::open(folder.path().join("numbers")).unwrap(),
    );
    let size = plain.metadata().unwrap().len();
    assert_eq!(mounted.metadata().unwrap().len(), size + 11);
    for step in (0..200).rev() {
        let offset = size / 200 * step;
        let (mut a, mut b) = ([0; 300], [1; 300]);
        mounted.read_exact_at(&mut a, offset).unwrap();
        plain.read_exact_at(&mut b, offset).unwrap();
        assert_eq!(a, b, "at {offset}");
    }
}

#[test]
fn an_archive_that_changes_is_not_served() {
    if !ready("archive_changes", &["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    shell(folder.path(), "seq 1 100000 > f; tar cf archive f");
    let on = Mounted::of("archive", Archive::open(&folder.path().join("archive")).unwrap());
    fs::OpenOptions::new()
        .append(true)
        .open(folder.path().join("archive"))
        .unwrap()
        .write_all_at(b"x", 0)
        .unwrap();
    shell(folder.path(), "echo more >> archive");
    assert_eq!(fs::read(on.root().join("f")).unwrap_err().raw_os_error(), Some(libc::ESTALE));
}

/// An archive of what a line of shell leaves in `tree`, mounted for accelerated programs.
fn packed(folder: &Path, line: &str) -> Accelerated {
    shell(folder, &format!("mkdir tree\n{line}\ntar czf archive -C tree ."));
    Accelerated::of(Mounted::of("archive", Archive::open(&folder.join("archive")).unwrap()))
}

/// How often the daemon was asked.
fn asked(on: &mut Accelerated) -> u64 {
    on.on.mount().stats().counts().iter().map(|count| count.calls).sum()
}

#[test]
fn files_of_an_archive_are_opened_without_the_kernel_and_fetched_once() {
    if accelerated("archive_opened").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut on = packed(folder.path(), "mkdir tree/d; for i in $(seq 300); do seq $i > tree/d/$i; done");
    let script = "import os
want = ''
for i in range(1, 301):
    want += '%d\\n' % i
    assert os.stat('d/%d' % i).st_size == len(want)
    f = os.open('d/%d' % i, os.O_RDONLY)
    assert os.fstat(f).st_size == len(want)
    assert os.read(f, 2) == want[:2].encode() and os.pread(f, 9999, 0) == want.encode()
    os.close(f)
    try: os.open('d/none%d' % i, os.O_RDONLY); assert False
    except FileNotFoundError: pass";
    let read = |on: &mut Accelerated| {
        let before = asked(on);
        let output = on.command(PYTHON).args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        asked(on) - before
    };
    let (first, second) = (read(&mut on), read(&mut on));
    assert!((300..340).contains(&first), "each file is asked for once, not {first} times in all");
    assert!(second < 20, "nothing is asked for again, but {second} times");
    // Once the kernel knows them, what is mounted on one must be what is opened.
    assert_eq!(on.shell("cat d/7"), "1\n2\n3\n4\n5\n6\n7\n");
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), "other").unwrap();
    let on_file = on.on.root().join("d/7");
    let bound = Command::new("mount").arg("--bind").args([other.path(), &on_file]).status().unwrap();
    assert!(bound.success());
    assert_eq!(on.shell("cat d/7"), "other");
    rustix::mount::unmount(&on_file, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(on.shell("cat d/7"), "1\n2\n3\n4\n5\n6\n7\n");
}

#[test]
fn an_archive_is_the_same_for_accelerated_programs() {
    if accelerated("archive_same").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let on = packed(
        folder.path(),
        "cd tree; mkdir d; echo one > d/one; ln d/one d/again; ln -s one d/link; : > nothing; seq 300000 > large; mkfifo pipe\n\
         truncate -s 300K hole; printf here | dd of=hole bs=1K seek=200 conv=notrunc status=none\n\
         echo old > old; touch -d '1931-01-01' old; echo none > none; chmod 0 none; chown 7:7 d/one; chmod 2750 d\n\
         head -c 1048576 /dev/urandom > edge; head -c 1048577 /dev/urandom > past; cd ..",
    );
    let same = |line: &str| {
        let plain = Command::new("bash").args(["-c", line]).current_dir(on.on.root()).output().unwrap();
        let ours = on.command("bash").args(["-c", line]).output().unwrap();
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(shown(&ours.stdout), shown(&plain.stdout), "{line}");
        assert_eq!(shown(&ours.stderr), shown(&plain.stderr), "{line}");
        assert_eq!(ours.status, plain.status, "{line}");
    };
    // Ours first: what the kernel knows is shown by it.
    for _ in 0..2 {
        for line in [
            "stat -c '%n %A %h %u %g %s %b %B %x %y %z %i %t %T' d/one d/again d/link nothing large hole old none pipe edge past d .",
            "stat -L -c '%n %i %s' d/link; cat d/one d/again d/link nothing old hole | md5sum; md5sum large edge past; cat < none",
            "cat nowhere; cat d; cat d/one/two; ls -la d; head -c 3 edge > /dev/null; cmp edge edge && test ! -s nothing",
            "echo x > d/one; echo x >> large; : > new; rm d/one; mv d/one d/two; chmod 1 d/one; touch d/one; chown 1 d; mkdir x; ln d/one y",
        ] {
            same(line);
        }
    }
    let mut own = Partner::new(&on);
    for (flags, errno) in
        [("O_RDWR", 30), ("O_WRONLY", 30), ("O_RDONLY | os.O_TRUNC", 30), ("O_CREAT | os.O_EXCL", 17)]
    {
        assert_eq!(own.number(&format!("os.open('d/one', os.{flags})")), -errno, "{flags}");
    }
    assert_eq!(own.number("os.open('new', os.O_CREAT)"), -30);
    let fd = own.number("os.open('d/one', os.O_RDONLY)");
    for changes in
        ["fchmod({}, 0o600)", "fchown({}, 1, 1)", "utime({}, (1, 1))", "ftruncate({}, 0)", "write({}, b'x')"]
    {
        let error = own.number(&format!("os.{}", changes.replace("{}", &fd.to_string())));
        assert!([-30, -22, -9].contains(&error), "{changes}: {error}");
    }
    assert_eq!(own.ask(&format!("os.read({fd}, 9)")), "b'one\\n'");
    assert_eq!(own.ask(&format!("mmap.mmap({fd}, 0, prot=mmap.PROT_READ)[:]")), "b'one\\n'");
}
