//! Folders whose files the kernel reads and writes by itself.

use super::mounts::until;
use super::{Mounted, cannot_mount};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_userfs::backend::{Attributes, Backend, Change, Entry, Inode, New, ROOT, Replace, Space, Written};
use weir_userfs::dir::Directory;
use weir_userfs::error::{Errno, Result};

/// A folder, where the kernel can read and write its files by itself.
pub fn directory(test: &str) -> Option<Mounted> {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {test}: {reason}");
        return None;
    }
    let mut on = Mounted::directory();
    if on.mount().by_kernel().is_none() {
        println!("NOT RUN {test}: this kernel has no FUSE passthrough");
        return None;
    }
    Some(on)
}

fn calls(on: &mut Mounted, operation: &str) -> u64 {
    let counts = on.mount().stats().counts();
    counts.iter().find(|count| count.operation == operation).map_or(0, |count| count.calls)
}

#[test]
fn data_of_a_folder_need_no_daemon() {
    let Some(mut on) = directory("passthrough") else { return };
    let path = on.root().join("file");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let mut seen = [0; 128];
    for i in 0..1000u64 {
        file.write_all_at(&[i as u8; 128], i * 128).unwrap();
        file.read_exact_at(&mut seen, i * 128).unwrap();
        assert_eq!(seen, [i as u8; 128]);
    }
    assert_eq!(file.metadata().unwrap().len(), 128_000);
    drop(file);
    assert_eq!(fs::read(&path).unwrap().len(), 128_000);
    assert_eq!((calls(&mut on, "read"), calls(&mut on, "write")), (0, 0));
    let (opens, refused) = on.mount().by_kernel().unwrap();
    assert!(opens >= 2 && refused == 0, "{opens} opens, {refused} refused");
}

#[test]
fn whoever_uses_the_file_sees_the_same() {
    let Some(on) = directory("passthrough_coherent") else { return };
    let (path, below) = (on.root().join("file"), on.under().join("file"));
    fs::write(&path, vec![b'a'; 8192]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let under = OpenOptions::new().read(true).write(true).open(&below).unwrap();
    let read = |of: &File, at: u64, bytes: usize| {
        let mut seen = vec![0; bytes];
        let got = of.read_at(&mut seen, at).unwrap();
        String::from_utf8(seen[..got].to_vec()).unwrap()
    };
    assert_eq!(read(&file, 0, 3), "aaa");
    under.write_all_at(b"bbb", 0).unwrap();
    assert_eq!(read(&file, 0, 4), "bbba");
    file.write_all_at(b"ccc", 1).unwrap();
    assert_eq!(read(&under, 0, 5), "bccca");
    // Extended below: what is behind the end that the mount was told is read too.
    under.write_all_at(b"end", 8192).unwrap();
    assert_eq!(read(&file, 8190, 100), "aaend");
    // Appends go to where the end really is.
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    under.write_all_at(b"!", 8195).unwrap();
    log.write_all(b"more").unwrap();
    assert_eq!(read(&under, 8192, 100), "end!more");
    // A map is the same memory; its writes show times too once it is closed.
    let before = fs::metadata(&path).unwrap();
    let script = "import mmap, sys\nf = open(sys.argv[1], 'r+b')\nm = mmap.mmap(f.fileno(), 8192)\nassert m[0:5] == b'bccca'\n\
                  m[0:5] = b'mmaps'\nassert open(sys.argv[2], 'rb').read(5) == b'mmaps'";
    let ran = Command::new("/usr/bin/python3").args(["-c", script]).arg(&path).arg(&below).status().unwrap();
    assert!(ran.success());
    assert_eq!(read(&file, 0, 5), "mmaps");
    let changed = || fs::metadata(&path).unwrap();
    let begun = std::time::Instant::now();
    while (changed().mtime(), changed().mtime_nsec()) == (before.mtime(), before.mtime_nsec()) {
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(60),
            "the time of the map's write does not show"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Truncated by either.
    file.set_len(3).unwrap();
    assert_eq!(read(&under, 0, 10), "mma");
    under.set_len(1).unwrap();
    assert_eq!(read(&file, 0, 10), "m");
    // Renamed and without names.
    fs::rename(&path, on.root().join("other")).unwrap();
    fs::remove_file(on.root().join("other")).unwrap();
    file.write_all_at(b"still", 0).unwrap();
    assert_eq!(read(&under, 0, 10), "still");
}

/// A folder that cannot give the kernel a file now and then: no descriptor is left.
struct Short {
    folder: Directory,
    gives: Arc<AtomicBool>,
}

impl Backend for Short {
    fn local(&self, inode: Inode) -> Option<OwnedFd> {
        (inode == ROOT || self.gives.load(Ordering::Relaxed)).then(|| self.folder.local(inode))?
    }
    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Attributes> {
        self.folder.lookup(parent, name)
    }
    fn forget(&self, inode: Inode, times: u64) {
        self.folder.forget(inode, times);
    }
    fn attributes(&self, inode: Inode) -> Result<Attributes> {
        self.folder.attributes(inode)
    }
    fn change(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        self.folder.change(inode, change)
    }
    fn make(&self, parent: Inode, name: &OsStr, new: New) -> Result<Attributes> {
        self.folder.make(parent, name, new)
    }
    fn read(&self, inode: Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.folder.read(inode, offset, to)
    }
    fn write(&self, inode: Inode, offset: u64, from: &[u8], append: bool) -> Result<Written> {
        self.folder.write(inode, offset, from, append)
    }
    fn sync(&self, inode: Inode, data_only: bool) -> Result<()> {
        self.folder.sync(inode, data_only)
    }
    fn space(&self) -> Result<Space> {
        self.folder.space()
    }
    fn read_link(&self, _inode: Inode) -> Result<Vec<u8>> {
        Err(Errno::UNSUPPORTED)
    }
    fn make_directory(&self, _parent: Inode, _name: &OsStr, _new: New) -> Result<Attributes> {
        Err(Errno::UNSUPPORTED)
    }
    fn make_link(&self, _parent: Inode, _name: &OsStr, _target: &OsStr, _new: New) -> Result<Attributes> {
        Err(Errno::UNSUPPORTED)
    }
    fn link(&self, _inode: Inode, _parent: Inode, _name: &OsStr) -> Result<Attributes> {
        Err(Errno::UNSUPPORTED)
    }
    fn unlink(&self, _parent: Inode, _name: &OsStr) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn remove_directory(&self, _parent: Inode, _name: &OsStr) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn rename(&self, _from: (Inode, &OsStr), _to: (Inode, &OsStr), _replace: Replace) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn list(&self, _inode: Inode, _after: u64, _entry: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn seek(&self, _inode: Inode, _offset: u64, _hole: bool) -> Result<u64> {
        Err(Errno::UNSUPPORTED)
    }
    fn allocate(&self, _inode: Inode, _offset: u64, _bytes: u64, _mode: i32) -> Result<()> {
        Err(Errno::UNSUPPORTED)
    }
}

/// The kernel refuses to mix what it reads by itself with what the daemon reads, for one file at one time.
#[test]
fn a_file_that_the_kernel_could_not_take_is_the_daemons_until_it_is_closed() {
    if directory("could_not_take").is_none() {
        return;
    }
    let gives = Arc::new(AtomicBool::new(false));
    let mut on = Mounted::new("short", |under| {
        Arc::new(Short { folder: Directory::open(under).unwrap(), gives: gives.clone() })
    });
    let path = on.root().join("file");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let first = open().unwrap();
    first.write_all_at(b"first", 0).unwrap();
    gives.store(true, Ordering::Relaxed);
    let second = open().expect("an open beside one that the daemon serves");
    second.write_all_at(b"second", 5).unwrap();
    let mut seen = [0; 11];
    first.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"firstsecond");
    assert_eq!(on.mount().by_kernel(), Some((0, 2)));
    drop((first, second));
    until("an open that the kernel serves", || {
        let again = open().unwrap();
        again.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(&seen, b"firstsecond");
        on.mount().by_kernel().is_some_and(|(opened, _)| opened > 0)
    });
    let held = open().unwrap();
    gives.store(false, Ordering::Relaxed);
    drop(open().expect("one more of a file that the kernel has"));
    drop(held);
}

/// What `fcntl` changes of a descriptor, and who is not the file's owner.
const FLAGS: &str = r#"
import fcntl, mmap, os, sys
def flags(f, add, remove=0):
    fcntl.fcntl(f, fcntl.F_SETFL, (fcntl.fcntl(f, fcntl.F_GETFL) | add) & ~remove)
def seen(*of):
    print(*of, open('a', 'rb').read(), os.stat('a').st_size)
A = os.O_APPEND
f = os.open('a', os.O_RDWR | os.O_CREAT | A)
seen(os.write(f, b'0123456789'), os.lseek(f, 0, 1), os.pwrite(f, b'end', 2))
flags(f, 0, A)
seen(os.pwrite(f, b'XY', 1), os.lseek(f, 3, 0), os.write(f, b'Z'), os.lseek(f, 0, 1))
flags(f, A)
seen(os.lseek(f, 0, 0), os.write(f, b'app'), os.lseek(f, 0, 1), os.pread(f, 4, 0))
flags(f, 0, A)
seen(os.pwrite(f, b'!', 0), os.writev(f, [b'+', b'-']), os.lseek(f, 0, 1))
g = os.open('a', os.O_RDWR)
flags(g, A)
seen(os.write(g, b'later'), os.lseek(g, 0, 1))
flags(g, 0, A)
seen(os.lseek(g, 1, 0), os.write(g, b'..'), os.pwrite(f, b'both', 4))
m = mmap.mmap(f, 0)
m[0:3] = b'map'
seen(os.pread(g, 3, 0), m[4:8])
os.ftruncate(f, 5)
seen(os.lseek(f, 0, 2))
h = os.open('s', os.O_RDWR | os.O_CREAT, 0o777)
os.write(h, b'program')
w = os.open('s', os.O_WRONLY | A)
for user in 0, 65534:
    os.fchmod(h, 0o6777)
    os.seteuid(user)
    os.write(w, b'more')
    print(oct(os.stat('s').st_mode), os.stat('s').st_size)
    os.seteuid(0)
os.setxattr('s', 'security.capability', bytes((1, 0, 0, 2, 0, 32)) + bytes(14))
os.write(w, b'more')
print(os.listxattr('s'))
"#;

#[test]
fn flags_that_fcntl_changes_are_the_descriptors() {
    let beside = tempfile::tempdir_in("/dev/shm").unwrap();
    let ran = |folder: &std::path::Path| {
        let output =
            Command::new("/usr/bin/python3").args(["-c", FLAGS]).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let right = ran(beside.path());
    super::on_all("flags_that_fcntl_changes", |mounted| {
        assert_eq!(ran(&mounted.root()), right, "{}", mounted.name);
    });
}

/// `dd` clears O_DIRECT for the last part, which is no whole block.
#[test]
fn what_was_opened_for_direct_input_and_output_may_go_on_without() {
    let Some(on) = directory("passthrough_direct") else { return };
    let from = on.under().parent().unwrap().join("from");
    fs::write(&from, [7; 10_000]).unwrap();
    let copy = |to: &std::path::Path| {
        let (from, to) = (format!("if={}", from.display()), format!("of={}", to.display()));
        Command::new("dd").args([&from, &to, "bs=4096", "oflag=direct"]).output().unwrap()
    };
    // Not every file system has it.
    let below = copy(&on.under().join("below"));
    if !below.status.success() {
        return println!("NOT RUN passthrough_direct: {}", String::from_utf8_lossy(&below.stderr));
    }
    let ran = copy(&on.root().join("above"));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(fs::read(on.under().join("above")).unwrap(), [7; 10_000]);
}

#[test]
fn locks_hold_between_all_who_use_the_mount() {
    let Some(on) = directory("passthrough_locks") else { return };
    let path = on.root().join("locked");
    let script = "exec 9>\"$1\"; flock 9; ! flock -n \"$1\" true; flock -u 9; flock -n \"$1\" true";
    let ran = Command::new("bash").args(["-ec", script, "bash"]).arg(&path).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn rights_are_the_callers_and_links_lead_nowhere_else() {
    let Some(on) = directory("passthrough_rights") else { return };
    let root = on.root();
    for above in root.ancestors().take(2) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(root.join("own"), "own").unwrap();
    fs::set_permissions(root.join("own"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(root.join("all"), "all").unwrap();
    let outside = on.under().parent().unwrap().join("outside");
    fs::write(&outside, "outside").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    // Relative to the mount such a link leads to a file beside it, not to one beside the folder below.
    symlink("../outside", root.join("link")).unwrap();
    let as_nobody = |script: &str| {
        let mut shell = Command::new("sh");
        let ran = shell.args(["-c", script]).current_dir(&root).uid(65_534).gid(65_534).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    assert_eq!(as_nobody("cat own || echo no"), "no\n");
    assert_eq!(as_nobody("cat all; echo x > all || echo no"), "allno\n");
    assert_eq!(as_nobody("cat link || echo no"), "no\n", "the caller's rights, at the end of the link");
    assert_eq!(fs::read_to_string(root.join("link")).unwrap(), "outside");
}
