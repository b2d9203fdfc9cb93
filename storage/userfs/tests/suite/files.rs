//! Files, as programs see them.

use super::{Mounted, cannot_mount, on_all};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use weir_userfs::mem::Limits;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("a system error")
}

#[test]
fn bytes_come_back_as_they_were_written() {
    on_all("bytes_come_back", |on| {
        let path = on.root().join("file");
        let pattern: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 4096) as u8).collect();
        fs::write(&path, &pattern).unwrap();
        assert_eq!(fs::read(&path).unwrap(), pattern);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"in the middle", 1_234_567).unwrap();
        let mut part = [0; 15];
        file.read_exact_at(&mut part, 1_234_566).unwrap();
        assert_eq!(&part[1..14], b"in the middle");
        assert_eq!(part[0], pattern[1_234_566]);
        file.set_len(10).unwrap();
        file.set_len(20).unwrap();
        let mut all = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all, [&pattern[..10], &[0; 10]].concat());
        assert_eq!(file.metadata().unwrap().len(), 20);
    });
}

#[test]
fn names_move_and_go() {
    on_all("names", |on| {
        let root = on.root();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/one"), "1").unwrap();
        fs::hard_link(root.join("a/one"), root.join("a/b/two")).unwrap();
        assert_eq!(fs::metadata(root.join("a/one")).unwrap().nlink(), 2);
        symlink("../one", root.join("a/b/link")).unwrap();
        assert_eq!(fs::read_to_string(root.join("a/b/link")).unwrap(), "1");
        fs::rename(root.join("a/b"), root.join("moved")).unwrap();
        assert_eq!(fs::read_to_string(root.join("moved/two")).unwrap(), "1");
        assert_eq!(errno(fs::read(root.join("moved/link"))), libc::ENOENT);
        assert_eq!(errno(fs::remove_dir(root.join("moved"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::rename(root.join("moved"), root.join("moved/c/d"))), libc::EINVAL);
        fs::remove_file(root.join("a/one")).unwrap();
        assert_eq!(fs::metadata(root.join("moved/two")).unwrap().nlink(), 1);
        fs::write(root.join("x"), "x").unwrap();
        fs::rename(root.join("x"), root.join("moved/two")).unwrap();
        assert_eq!(fs::read_to_string(root.join("moved/two")).unwrap(), "x");
        fs::remove_dir_all(root.join("moved")).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "only 'a' is left");
        assert_eq!(fs::metadata(&root).unwrap().nlink(), 3);
    });
}

#[test]
fn a_file_without_names_stays_while_it_is_open() {
    on_all("unlinked", |on| {
        let path = on.root().join("gone");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"before").unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(b" and after").unwrap();
        fs::write(&path, "another").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut all = String::new();
        file.read_to_string(&mut all).unwrap();
        assert_eq!(all, "before and after");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn a_long_directory_is_listed_once_each() {
    on_all("listing", |on| {
        let root = on.root().join("many");
        fs::create_dir(&root).unwrap();
        let names: BTreeSet<String> = (0..1500).map(|i| format!("a name that is not short {i}")).collect();
        for name in &names {
            File::create(root.join(name)).unwrap();
        }
        let mut listed = BTreeSet::new();
        for entry in fs::read_dir(&root).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // What goes away meanwhile must not make others appear twice or never.
            fs::remove_file(root.join(&name)).unwrap();
            assert!(listed.insert(name), "listed once");
        }
        assert_eq!(listed, names);
    });
}

#[test]
fn appends_of_several_processes_do_not_overlap() {
    on_all("appends", |on| {
        let path = on.root().join("log");
        let script = r#"for i in $(seq 200); do echo "$1 $i" >> "$2"; done"#;
        let writers: Vec<_> = ["one", "two", "three"]
            .iter()
            .map(|name| {
                let mut shell = std::process::Command::new("sh");
                shell.args(["-c", script, "sh", name]).arg(&path).spawn().unwrap()
            })
            .collect();
        for mut writer in writers {
            assert!(writer.wait().unwrap().success());
        }
        let log = fs::read_to_string(&path).unwrap();
        assert_eq!(log.lines().count(), 600);
        for name in ["one", "two", "three"] {
            let numbers: Vec<u32> =
                log.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect();
            assert_eq!(numbers, (1..=200).collect::<Vec<_>>(), "{name}, in order");
        }
    });
}

#[test]
fn attributes_are_kept() {
    on_all("attributes", |on| {
        let path = on.root().join("file");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4751);
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        let seen = fs::metadata(&path).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (1234, 4321));
        let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
        file.set_modified(then).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), then);
        let before = fs::metadata(&path).unwrap().ctime_nsec();
        assert_eq!(fs::metadata(&path).unwrap().ctime_nsec(), before, "looking changes nothing");
    });
}

#[test]
fn extended_attributes_are_kept() {
    on_all("extended_attributes", |on| {
        let path = on.root().join("file");
        fs::write(&path, "").unwrap();
        let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.colour", value, flags);
        set(b"red", rustix::fs::XattrFlags::CREATE).unwrap();
        assert_eq!(set(b"blue", rustix::fs::XattrFlags::CREATE).unwrap_err(), rustix::io::Errno::EXIST);
        set(b"green", rustix::fs::XattrFlags::empty()).unwrap();
        let mut value = [0; 16];
        let bytes = rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap();
        assert_eq!(&value[..bytes], b"green");
        rustix::fs::removexattr(&path, "user.colour").unwrap();
        assert_eq!(
            rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap_err(),
            rustix::io::Errno::NODATA
        );
        // The beginning of a name is none.
        for (name, error) in [
            ("user.", rustix::io::Errno::INVAL),
            ("security.", rustix::io::Errno::INVAL),
            ("nobody.k", rustix::io::Errno::OPNOTSUPP),
        ] {
            let flags = rustix::fs::XattrFlags::empty();
            let said = [
                rustix::fs::setxattr(&path, name, b"v", flags).unwrap_err(),
                rustix::fs::getxattr(&path, name, &mut value).unwrap_err(),
                rustix::fs::removexattr(&path, name).unwrap_err(),
            ];
            assert_eq!(said, [error; 3], "{name:?} on {}", on.name);
        }
    });
}

/// As a package manager does it: what was not there a moment ago is, for whoever asked for it.
#[test]
fn names_that_were_not_there_are_when_a_folder_is_renamed_into_place() {
    on_all("names_that_were_not_there", |on| {
        let root = on.root();
        let missing = |path: &str| fs::metadata(root.join(path)).unwrap_err().kind();
        for round in 0..3 {
            let place = format!("modules{round}");
            for path in [place.clone(), format!("{place}/a"), format!("{place}/a/b/c")] {
                assert_eq!(missing(&path), std::io::ErrorKind::NotFound);
            }
            fs::create_dir_all(root.join("new/a/b")).unwrap();
            assert_eq!(missing("new/a/b/c"), std::io::ErrorKind::NotFound);
            fs::write(root.join("new/a/b/c"), "bytes").unwrap();
            fs::rename(root.join("new"), root.join(&place)).unwrap();
            assert_eq!(missing("new/a"), std::io::ErrorKind::NotFound);
            assert_eq!(fs::read(root.join(&place).join("a/b/c")).unwrap(), b"bytes");
            fs::rename(root.join(&place).join("a/b/c"), root.join("moved")).unwrap();
            assert_eq!(missing(&format!("{place}/a/b/c")), std::io::ErrorKind::NotFound);
            fs::rename(root.join("moved"), root.join(&place).join("a/b/c")).unwrap();
            assert_eq!(fs::metadata(root.join(&place).join("a/b/c")).unwrap().len(), 5);
        }
    });
}

#[test]
fn holes_take_no_space() {
    on_all("holes", |on| {
        let path = on.root().join("sparse");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(b"far", 5 << 30).unwrap();
        file.write_all_at(b"near", 8192).unwrap();
        assert!(file.metadata().unwrap().blocks() < 1000, "{} blocks", file.metadata().unwrap().blocks());
        let seek = |place| rustix::fs::seek(&file, place).unwrap();
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), 8192);
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(8192)), 12288);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(12288)), 5 << 30);
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 8192, 4096).unwrap();
        let mut there = [1; 4];
        file.read_exact_at(&mut there, 8192).unwrap();
        assert_eq!(there, [0; 4]);
    });
}

#[test]
fn maps_and_files_are_one() {
    on_all("maps", |on| {
        let path = on.root().join("mapped");
        fs::write(&path, vec![7u8; 10_000]).unwrap();
        // The page cache's maps, looked at by a program of its own.
        let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,10000)\n\
                      assert m[9999]==7\nm[5000:5004]=b'here'\nm.flush()\nassert os.pread(f,4,5000)==b'here'\n\
                      os.pwrite(f,b'there',0)\nassert m[0:5]==b'there'";
        let ran = std::process::Command::new("/usr/bin/python3").args(["-c", script]).arg(&path).status();
        match ran {
            Ok(status) => assert!(status.success()),
            Err(error) => return println!("NOT RUN maps: python3: {error}"),
        }
        assert_eq!(&fs::read(&path).unwrap()[5000..5004], b"here");
    });
}

#[test]
fn memory_that_is_full_says_so_and_goes_on() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN memory_that_is_full: {reason}");
    }
    let on = Mounted::memory(Limits { bytes_max: 1 << 20, files_max: 16 });
    let path = on.root().join("big");
    let mut file = File::create(&path).unwrap();
    let error = file.write_all(&vec![1; 2 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let taken = file.metadata().unwrap().len();
    assert!(taken > 900_000 && taken < 1 << 20, "{taken} bytes fitted");
    drop(file);
    fs::remove_file(&path).unwrap();
    let wrote = || fs::write(on.root().join("again"), vec![2; 900_000]);
    // The kernel forgets the removed file a moment after its last descriptor is closed.
    assert!((0..1000).any(|_| wrote().is_ok() || {
        std::thread::yield_now();
        false
    }));
    let made = (0..32).map(|i| File::create(on.root().join(i.to_string()))).filter(Result::is_ok).count();
    assert!(made < 16, "{made} files");
}
