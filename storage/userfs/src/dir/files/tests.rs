//! More files than descriptors, opened again by handle and by name.

use super::*;
use crate::backend::{Backend, Change, New, Replace};
use crate::dir::Directory;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Descriptors of the folder in these tests, and files.
const FEW: usize = 16;
const FILES: usize = 200;

fn folder(at: &Path, by_handle: bool) -> Directory {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(at, flags, Mode::empty()).unwrap();
    let handles = by_handle.then(|| Handles::of(&root)).flatten();
    Directory { files: Files::with(root, handles, FEW).unwrap() }
}

/// Runs a test by handle, where this process and the file system can, and by name.
fn both_ways(name: &str, test: impl Fn(&Path, &Directory)) {
    for by_handle in [true, false] {
        let below = tempfile::tempdir().unwrap();
        let of = folder(below.path(), by_handle);
        if of.files.held().by_handle != by_handle {
            println!("NOT RUN {name} by handle: neither this process nor its file system can");
            continue;
        }
        test(below.path(), &of);
        let held = of.files.held();
        assert!(held.descriptors <= FEW as u64, "{held:?}");
        let ring = of.files.nodes().ring.len();
        assert!(ring <= 2 * held.files as usize + RING_SLACK + 1, "{ring} entries of {held:?}");
    }
}

fn new(mode: u32) -> New {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    New { mode, device: 0, user, group }
}

fn name(k: usize) -> String {
    format!("file-{k}")
}

fn look(of: &Directory, parent: Inode, name: &str) -> Inode {
    of.lookup(parent, OsStr::new(name)).unwrap().inode
}

fn text(of: &Directory, inode: Inode) -> String {
    let mut seen = [0; 64];
    let bytes = of.read(inode, 0, &mut seen).unwrap();
    String::from_utf8(seen[..bytes].to_vec()).unwrap()
}

/// Makes others give way.
fn crowd(of: &Directory, at: &Path) {
    let away = at.join("crowd");
    fs::create_dir_all(&away).unwrap();
    let crowd = look(of, ROOT, "crowd");
    for k in 0..4 * FEW {
        fs::write(away.join(name(k)), "").unwrap();
        look(of, crowd, &name(k));
    }
}

fn is_put_away(of: &Directory, inode: Inode) -> bool {
    of.files.nodes().of[&inode].path.is_none()
}

#[test]
fn more_files_than_descriptors_are_read_and_written() {
    both_ways("more_files", |at, of| {
        let deep = of.make_directory(ROOT, OsStr::new("deep"), new(0o755)).unwrap().inode;
        let all: Vec<Inode> = (0..FILES)
            .map(|k| of.make(deep, OsStr::new(&name(k)), new(libc::S_IFREG | 0o644)).unwrap().inode)
            .collect();
        for (k, inode) in all.iter().enumerate() {
            of.write(*inode, 0, name(k).as_bytes(), false).unwrap();
            of.write(*inode, 0, b"+", true).unwrap();
        }
        for (k, inode) in all.iter().enumerate() {
            assert_eq!(text(of, *inode), format!("{}+", name(k)));
            let below = fs::metadata(at.join("deep").join(name(k))).unwrap();
            assert_eq!(of.attributes(*inode).unwrap().size, below.len());
            assert_eq!(look(of, deep, &name(k)), *inode, "the same number as long as it is known");
        }
        let held = of.files.held();
        assert_eq!(held.files as usize, FILES + 2);
        assert!(held.reopened > 0 && held.lost == 0 && held.short == 0, "{held:?}");
        for inode in &all {
            of.forget(*inode, 2);
        }
        of.forget(deep, 1);
        assert_eq!((of.files.held().files, of.files.held().descriptors), (1, 1));
    });
}

#[test]
fn a_file_that_was_put_away_is_followed_through_renames() {
    both_ways("renames", |at, of| {
        for part in ["a", "b"] {
            of.make_directory(ROOT, OsStr::new(part), new(0o755)).unwrap();
        }
        let (a, b) = (look(of, ROOT, "a"), look(of, ROOT, "b"));
        for part in ["one", "two"] {
            fs::write(at.join("a").join(part), part).unwrap();
        }
        let (one, two) = (look(of, a, "one"), look(of, a, "two"));
        let inside = {
            fs::create_dir(at.join("a/folder")).unwrap();
            fs::write(at.join("a/folder/inside"), "inside").unwrap();
            let folder = look(of, a, "folder");
            look(of, folder, "inside")
        };
        crowd(of, at);
        assert!([one, two, inside].iter().all(|inode| is_put_away(of, *inode)));
        let name = OsStr::new;
        of.rename((a, name("one")), (b, name("moved")), Replace::Yes).unwrap();
        of.rename((a, name("folder")), (b, name("elsewhere")), Replace::Yes).unwrap();
        crowd(of, at);
        assert_eq!(
            (text(of, one), text(of, two), text(of, inside)),
            ("one".into(), "two".into(), "inside".into())
        );
        assert_eq!(look(of, b, "moved"), one);
        of.rename((b, name("moved")), (a, name("two")), Replace::Exchange).unwrap();
        crowd(of, at);
        assert_eq!((text(of, one), text(of, two)), ("one".into(), "two".into()));
        assert_eq!((look(of, a, "two"), look(of, b, "moved")), (one, two));
        // One takes the other's place, which somebody has open.
        of.rename((a, name("two")), (b, name("moved")), Replace::Yes).unwrap();
        crowd(of, at);
        assert_eq!((text(of, one), text(of, two)), ("one".into(), "two".into()));
        assert_eq!(of.files.held().lost, 0);
    });
}

#[test]
fn a_removed_file_stays_until_it_is_forgotten() {
    both_ways("removed", |at, of| {
        for k in 0..4 {
            fs::write(at.join(name(k)), name(k)).unwrap();
        }
        let all: Vec<Inode> = (0..4).map(|k| look(of, ROOT, &name(k))).collect();
        fs::hard_link(at.join(name(3)), at.join("again")).unwrap();
        assert_eq!(look(of, ROOT, "again"), all[3], "one file, one number");
        crowd(of, at);
        assert!(all.iter().all(|inode| is_put_away(of, *inode)));
        for k in [0, 1, 3] {
            of.unlink(ROOT, OsStr::new(&name(k))).unwrap();
        }
        crowd(of, at);
        for (k, inode) in all.iter().enumerate() {
            assert_eq!(text(of, *inode), name(k));
        }
        of.write(all[0], 0, b"still", false).unwrap();
        let longer = Change { size: Some(7), ..Change::default() };
        assert_eq!(of.change(all[0], &longer).unwrap().size, 7);
        crowd(of, at);
        assert_eq!(text(of, all[0]), "still0\0");
        of.forget(all[0], 1);
        assert_eq!(of.attributes(all[0]), Err(GONE));
        assert_eq!((of.attributes(all[1]).unwrap().links, of.attributes(all[3]).unwrap().links), (0, 1));
    });
}

#[test]
fn a_number_underneath_that_is_used_again_is_another_file() {
    both_ways("reused", |at, of| {
        let mut reused = 0;
        for round in 0..50 {
            let path = at.join(name(round));
            fs::write(&path, "old").unwrap();
            let (old, below) = (look(of, ROOT, &name(round)), fs::metadata(&path).unwrap().ino());
            crowd(of, at);
            // By somebody else, as the mount would keep it open.
            fs::remove_file(&path).unwrap();
            let mut others = Vec::new();
            for k in 0..20 {
                let other = at.join(format!("other-{round}-{k}"));
                fs::write(&other, "new").unwrap();
                others.push((fs::metadata(&other).unwrap().ino(), other));
            }
            let Some((_, same)) = others.into_iter().find(|(number, _)| *number == below) else { continue };
            reused += 1;
            let found = look(of, ROOT, same.file_name().unwrap().to_str().unwrap());
            assert_ne!(found, old);
            assert_eq!(text(of, found), "new");
            assert_eq!(of.attributes(old), Err(GONE));
            assert_eq!(of.read(old, 0, &mut [0; 3]), Err(GONE));
        }
        if reused == 0 {
            println!("NOT RUN reused: this file system did not use a number again");
        }
    });
}

#[test]
fn a_limit_leaves_room_for_all_else() {
    for (limit, most) in [
        (Some(0), 16),
        (Some(64), 32),
        (Some(256), 192),
        (Some(1024), 768),
        (Some(1 << 20), HELD_MAX),
        (None, HELD_MAX),
    ] {
        assert_eq!(most_of(limit), most, "{limit:?}");
    }
}
