//! Folders with more files than the daemon may have descriptors: programs see what they see on the kernel's own folder beside it.

use super::accelerated::PYTHON;
use super::crashes::Kept;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// As many descriptors as the daemon may have, hard.
const DESCRIPTORS: u64 = 256;
/// Who mounts without rights.
const NOBODY: u32 = 65_534;

/// What a program does there, and prints of it. No inode numbers: they are each file system's own.
const WALK: &str = r#"
import os, stat
N = 900
def walk():
    count = size = 0
    for folder, _, names in os.walk('.'):
        for name in names:
            found = os.lstat(os.path.join(folder, name))
            count, size = count + 1, size + found.st_size
    return count, size
for k in range(N):
    folder = 'tree/%d/%d' % (k % 7, k % 3)
    os.makedirs(folder, exist_ok=True)
    with open('%s/file-%d' % (folder, k), 'w') as f:
        f.write('text %d' % k)
print(walk())
def path(k):
    return 'tree/%d/%d/file-%d' % (k % 7, k % 3, k)
print(all(open(path(k)).read() == 'text %d' % k for k in range(N)))
# Open, over walks of all others.
held = {k: os.open(path(k), os.O_RDWR) for k in range(0, N, 3)}
walk()
print(all(os.pread(f, 64, 0) == b'text %d' % k for k, f in held.items()))
# Renamed, with the folders above.
os.rename(path(0), 'moved')
os.rename('tree/3', 'elsewhere')
os.rename('elsewhere/0', 'tree/1/inside')
walk()
print(os.pread(held[0], 64, 0), os.fstat(held[0]).st_ino == os.stat('moved').st_ino)
print(all(os.pread(f, 64, 0) == b'text %d' % k and os.pwrite(f, b'TEXT', 0) == 4 for k, f in held.items()))
print(walk(), open('tree/1/inside/file-3').read(), os.path.exists(path(3)))
# Two names of one file.
os.link(path(1), 'second')
os.link(path(1), 'tree/third')
walk()
first = os.stat(path(1))
print(first.st_nlink, len({os.stat(name).st_ino for name in (path(1), 'second', 'tree/third')}))
os.unlink(path(1))
walk()
os.utime('second', (100, 200))
print(open('tree/third').read(), os.stat('tree/third').st_mtime, os.stat('second').st_nlink)
os.rename('second', 'tree/third')
print(os.path.exists('second'), os.stat('tree/third').st_nlink)
# Removed and replaced while they are open, and a folder that somebody is in.
gone = [k for k in held if k % 7 == 2]
for k in gone:
    os.unlink(path(k))
over = [k for k in held if k % 7 == 4][0]
os.rename('moved', path(over))
os.mkdir('room')
room = os.open('room', os.O_RDONLY)
os.rmdir('room')
walk()
print(all(os.pread(held[k], 64, 0) == b'TEXT %d' % k for k in gone))
print(all(os.pwrite(held[k], b'gone', 0) == 4 and os.pread(held[k], 4, 0) == b'gone' for k in gone))
os.ftruncate(held[gone[0]], 2)
print(os.fstat(held[gone[0]]).st_size, os.fstat(held[gone[0]]).st_nlink, os.fstat(room).st_nlink)
print(os.pread(held[over], 64, 0), open(path(over)).read(), os.listdir(room))
# Names that are used again, for other files.
for k in gone:
    with open(path(k), 'w') as f:
        f.write('new %d' % k)
walk()
print(all(open(path(k)).read() == 'new %d' % k and os.pread(held[k], 64, 0)[:2] == b'go' for k in gone))
for k, f in held.items():
    os.fsync(f)
    os.close(f)
# Attributes of files that were not looked at for long.
os.chmod(path(5), 0o640)
os.setxattr(path(8), 'user.color', b'red')
os.symlink('file-8', 'tree/link')
walk()
print(oct(os.stat(path(5)).st_mode), os.getxattr(path(8), 'user.color'), os.readlink('tree/link'))
# One that may not be written, by who makes it.
f = os.open('readonly', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
walk()
print(os.write(f, b'written'), oct(os.fstat(f).st_mode))
os.close(f)
print(open('readonly').read(), walk())
"#;

fn ran(folder: &Path, user: Option<u32>) -> String {
    let mut command = Command::new(PYTHON);
    command.args(["-c", WALK]).current_dir(folder);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn a_folder_may_have_more_files_than_its_daemon_descriptors() {
    let beside = tempfile::tempdir_in("/dev/shm").unwrap();
    let right = ran(beside.path(), None);
    for (user, cached) in [(None, false), (None, true), (Some(NOBODY), false)] {
        let name = format!("more_files_than_descriptors of {user:?}, cached: {cached}");
        let Some(kept) = Kept::of_few(&name, user, cached, DESCRIPTORS) else { continue };
        println!("{name}");
        assert_eq!(ran(&kept.root(), user), right, "{name}");
        let held = kept.status().unwrap().held.unwrap();
        assert!(held.descriptors <= held.descriptors_max && held.descriptors_max < DESCRIPTORS, "{held:?}");
        assert!(held.put_away > 0 && held.reopened > 0, "{name}: {held:?}");
        assert_eq!((held.lost, held.short), (0, 0), "{name}: {held:?}");
        assert!(user.is_none() || !held.by_handle, "{name}: {held:?}");
        kept.end();
    }
}

/// What is forgotten gives all back.
#[test]
fn what_the_kernel_forgets_is_held_no_more() {
    let Some(kept) = Kept::of_few("what_the_kernel_forgets", None, false, DESCRIPTORS) else { return };
    for k in 0..2 * DESCRIPTORS {
        std::fs::write(kept.root().join(format!("file-{k}")), "text").unwrap();
    }
    let files = || kept.status().unwrap().held.unwrap().files;
    assert!(files() > 1);
    for k in 0..2 * DESCRIPTORS {
        std::fs::remove_file(kept.root().join(format!("file-{k}"))).unwrap();
    }
    super::mounts::until("all to be forgotten", || files() == 1);
    let held = kept.status().unwrap().held.unwrap();
    assert!(held.descriptors <= 1 && held.journal_bytes < 16 << 20, "{held:?}");
    kept.end();
}
