//! Files that accelerated programs open and make without the kernel or the daemon: nobody may tell the difference.

use super::Mounted;
use super::accelerated::{Accelerated, PYTHON, Partner, accelerated};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use weir_userfs::mem::Limits;

const PATIENCE: Duration = Duration::from_secs(20);

fn calls(on: &mut Accelerated, operation: &str) -> u64 {
    let counts = on.on.mount().stats().counts();
    counts.iter().find(|count| count.operation == operation).map_or(0, |count| count.calls)
}

fn python(on: &Accelerated, script: &str) {
    let output = on.command(PYTHON).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn small_files_are_made_written_and_read_without_the_daemon() {
    let Some(mut on) = accelerated("small_files") else { return };
    fs::create_dir(on.on.root().join("d")).unwrap();
    let script = "import os\nfor i in range(3000):\n    f = os.open('d/%d' % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)\n    \
                  assert os.write(f, b'%d' % i) == len(str(i))\n    assert os.fstat(f).st_size == len(str(i))\n    os.close(f)\nfor i \
                  in range(3000):\n    f = os.open('d/%d' % i, os.O_RDONLY)\n    assert os.read(f, 99) == b'%d' % i\n    os.close(f)";
    python(&on, script);
    let (made, opened) = (calls(&mut on, "make"), calls(&mut on, "lookup"));
    assert!(made < 100 && opened < 500, "the daemon made {made} and was asked for {opened}");
    let all: Vec<_> =
        fs::read_dir(on.on.root().join("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(all.len(), 3000);
    for name in all {
        let path = on.on.root().join("d").join(&name);
        assert_eq!(fs::read_to_string(&path).unwrap(), name.to_str().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_640);
    }
}

#[test]
fn names_are_the_same_for_both_sides() {
    let Some(on) = accelerated("names") else { return };
    let (mut own, root) = (Partner::new(&on), on.on.root());
    let path = |name: &str| root.join(name);
    let listed = || {
        let mut names: Vec<_> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names.join(" ")
    };
    // The first one makes the daemon set numbers aside.
    own.ask("os.close(os.open('first', os.O_CREAT | os.O_WRONLY))");
    // Of a directory, how many names it has.
    assert_eq!(fs::metadata(&root).unwrap().size(), 1);
    assert_eq!(listed(), "first");
    let fd = own.number("os.open('a', os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o666)");
    assert_eq!(listed(), "a first");
    assert_eq!(fs::metadata(&root).unwrap().size(), 2, "the kernel was told");
    assert_eq!(own.number("os.open('a', os.O_CREAT | os.O_RDWR | os.O_EXCL)"), -17);
    assert_eq!(own.number("os.open('none', os.O_RDONLY)"), -2);
    // Written by one, seen by the other, while it is open.
    assert_eq!(own.number(&format!("os.write({fd}, b'hello')")), 5);
    assert_eq!(fs::read(path("a")).unwrap(), b"hello");
    assert_eq!(own.number(&format!("os.fstat({fd}).st_size")), 5);
    assert_eq!(own.number(&format!("os.fstat({fd}).st_ino")) as u64, fs::metadata(path("a")).unwrap().ino());
    // Renamed behind its back, then handed on: the right file, where it was.
    fs::rename(path("a"), path("b")).unwrap();
    assert_eq!(own.ask(&format!("os.readlink('/proc/self/fd/{fd}')")), format!("'{}'", path("b").display()));
    assert_eq!(own.number(&format!("os.lseek({fd}, 0, 1)")), 5);
    assert_eq!(own.number("os.open('a', os.O_RDONLY)"), -2);
    // Removed while open, by either side.
    let gone = own.number("os.open('c', os.O_CREAT | os.O_RDWR)");
    assert_eq!(own.number(&format!("os.write({gone}, b'still')")), 5);
    fs::remove_file(path("c")).unwrap();
    assert_eq!(own.number(&format!("os.fstat({gone}).st_nlink")), 0);
    let copy = own.number(&format!("os.dup({gone})"));
    assert_eq!(own.ask(&format!("os.pread({copy}, 9, 0)")), "b'still'");
    assert_eq!(listed(), "b first");
    // Emptied past the kernel, which knew size and data.
    assert_eq!(fs::read(path("b")).unwrap(), b"hello");
    own.ask(&format!("os.close({fd})"));
    own.ask("os.close(os.open('b', os.O_WRONLY | os.O_TRUNC))");
    assert_eq!(fs::metadata(path("b")).unwrap().len(), 0);
    // Hard links, links, directories, long names.
    fs::write(path("l1"), "linked").unwrap();
    fs::hard_link(path("l1"), path("l2")).unwrap();
    fs::remove_file(path("l1")).unwrap();
    assert_eq!(own.ask("os.read(os.open('l2', os.O_RDONLY), 9)"), "b'linked'");
    std::os::unix::fs::symlink("l2", path("s")).unwrap();
    assert_eq!(own.ask("os.read(os.open('s', os.O_RDONLY), 9)"), "b'linked'");
    assert_eq!(own.number("os.open('s', os.O_RDONLY | os.O_NOFOLLOW)"), -40);
    fs::create_dir(path("d")).unwrap();
    assert_eq!(own.number("os.open('d', os.O_RDWR)"), -21);
    assert_eq!(own.number("os.open('b/x', os.O_RDONLY)"), -20);
    let long = "n".repeat(200);
    own.ask(&format!("os.close(os.open('{long}', os.O_CREAT | os.O_WRONLY))"));
    assert!(path(&long).exists());
    // A directory that is gone takes nothing.
    own.ask("!os.chdir('d')");
    fs::remove_dir(path("d")).unwrap();
    assert_eq!(own.number("os.open('x', os.O_CREAT | os.O_WRONLY)"), -2);
}

#[test]
fn rights_are_judged_as_by_the_kernel() {
    let Some(on) = accelerated("rights") else { return };
    let root = on.on.root();
    fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut own = Partner::new(&on);
    own.ask("!os.umask(0o027); os.close(os.open('warm', os.O_CREAT | os.O_WRONLY))");
    own.ask("!os.mkdir('group'); os.chown('group', 0, 33); os.chmod('group', 0o2775)");
    own.ask("!os.close(os.open('group/f', os.O_CREAT | os.O_WRONLY, 0o666))");
    let made = fs::metadata(root.join("group/f")).unwrap();
    assert_eq!((made.mode(), made.uid(), made.gid()), (0o100_640, 0, 33));
    own.ask("!os.close(os.open('secret', os.O_CREAT | os.O_WRONLY, 0o600))");
    own.ask("!os.seteuid(65534)");
    assert_eq!(own.number("os.open('secret', os.O_RDONLY)"), -13);
    own.ask("!os.close(os.open('theirs', os.O_CREAT | os.O_WRONLY, 0o666))");
    assert_eq!(fs::metadata(root.join("theirs")).unwrap().uid(), 65534);
}

#[test]
fn two_that_make_the_same_names_make_each_once() {
    let Some(on) = accelerated("races_for_names") else { return };
    let script = "import os\nn = 0\nfor i in range(2000):\n    try:\n        os.close(os.open('r%d' % i, os.O_CREAT | os.O_EXCL | \
                  os.O_WRONLY)); n += 1\n    except FileExistsError: pass\nprint(n)";
    let mut plain = std::process::Command::new(PYTHON);
    plain.current_dir(on.on.root());
    let begun: Vec<_> = [on.command(PYTHON), on.command(PYTHON), plain]
        .into_iter()
        .map(|mut command| command.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap())
        .collect();
    let made: usize = begun
        .into_iter()
        .map(|child| {
            String::from_utf8(child.wait_with_output().unwrap().stdout)
                .unwrap()
                .trim()
                .parse::<usize>()
                .unwrap()
        })
        .sum();
    assert_eq!(made, 2000);
    assert_eq!(fs::read_dir(on.on.root()).unwrap().count(), 2000);
}

#[test]
fn what_a_killed_process_held_is_given_back() {
    let Some(mut on) = accelerated("held") else { return };
    let root = on.on.root();
    let mut own = Partner::new(&on);
    own.ask("os.close(os.open('warm', os.O_CREAT | os.O_WRONLY))");
    let fd = own.number("os.open('big', os.O_CREAT | os.O_RDWR)");
    assert_eq!(own.number(&format!("os.write({fd}, b'x' * 4000000)")), 4_000_000);
    fs::remove_file(root.join("big")).unwrap();
    let used = |on: &mut Accelerated| on.on.mount().backend().segment().unwrap().figures().blocks_used;
    assert!(used(&mut on) > 900, "it is there as long as it is open");
    drop(own);
    let begun = Instant::now();
    while used(&mut on) > 100 {
        assert!(begun.elapsed() < PATIENCE, "{} blocks are still used", used(&mut on));
        std::thread::sleep(Duration::from_millis(20));
        // Any question to the daemon about names.
        fs::write(root.join("other"), "x").unwrap();
    }
}

#[test]
fn programs_that_fork_and_exec_hand_on_what_they_made() {
    let Some(on) = accelerated("handed_on") else { return };
    python(
        &on,
        r"
import os, fcntl, mmap, subprocess
os.close(os.open('warm', os.O_CREAT | os.O_WRONLY))
f = os.open('f', os.O_CREAT | os.O_RDWR)
os.write(f, b'0123456789')
os.lseek(f, 3, 0)
if os.fork() == 0:
    assert os.read(f, 2) == b'34'
    g = os.open('child', os.O_CREAT | os.O_RDWR); os.write(g, b'c'); os.close(g)
    os._exit(0)
assert os.wait()[1] == 0
assert os.read(f, 1) == b'5' and open('child').read() == 'c'
h = os.open('h', os.O_CREAT | os.O_RDWR)
os.write(h, b'abc')
os.set_inheritable(h, True)
assert subprocess.run(['sh', '-c', f'echo def >&{h}'], close_fds=False).returncode == 0
assert os.pread(h, 9, 0) == b'abcdef\n'
k = os.open('k', os.O_CREAT | os.O_RDWR)
fcntl.flock(k, fcntl.LOCK_EX)
assert subprocess.run(['flock', '-n', 'k', 'true']).returncode == 1
os.write(k, b'x' * 4096)
m = mmap.mmap(k, 4096)
assert m[0:2] == b'xx'
w = os.open('w', os.O_CREAT | os.O_WRONLY)
try:
    os.read(w, 1); assert False
except OSError as e: assert e.errno == 9
os.close(w)
assert subprocess.run(['sh', '-c', 'echo out > redirected; cat redirected'], capture_output=True).stdout == b'out\n'
p = os.open('p', os.O_CREAT | os.O_RDWR)
os.ftruncate(p, 100); os.fchmod(p, 0o600); os.utime(p, (1, 1))
s = os.fstat(p)
assert (s.st_size, s.st_mode, s.st_mtime) == (100, 0o100600, 1)
many = [os.open('m%d' % i, os.O_CREAT | os.O_RDWR) for i in range(700)]
for i, x in enumerate(many): os.write(x, b'%d' % i)
for x in many: os.close(x)
assert all(open('m%d' % i).read() == str(i) for i in range(700))
",
    );
}

#[test]
fn nothing_is_made_past_a_mount_that_is_read_only() {
    let Some(_) = accelerated("read_only") else { return };
    let on = Accelerated::of(Mounted::read_only_memory(Limits::default()));
    let mut own = Partner::new(&on);
    for _ in 0..2 {
        assert_eq!(own.number("os.open('f', os.O_CREAT | os.O_WRONLY)"), -30);
        assert_eq!(own.number("os.open('f', os.O_RDONLY)"), -2);
        for changes in ["os.unlink('f')", "os.rename('f', 'g')", "os.chmod('.', 0o700)", "os.utime('.')"] {
            // Which of both errors it is, the kernel decides.
            let error = own.number(changes);
            assert!([-30, -2].contains(&error), "{changes}: {error}");
        }
    }
}

#[test]
fn what_is_mounted_on_a_file_is_what_is_opened() {
    let Some(mut on) = accelerated("mounted_on_a_file") else { return };
    let (mut own, root) = (Partner::new(&on), on.on.root());
    own.ask("os.close(os.open('warm', os.O_CREAT | os.O_WRONLY))");
    let other = tempfile::NamedTempFile::new().unwrap();
    let put = |text: &str| {
        format!(
            "(lambda f: (os.write(f, b'{text}'), os.close(f)))(os.open('f', os.O_CREAT | os.O_WRONLY | os.O_TRUNC))"
        )
    };
    const GET: &str = "(lambda f: (os.read(f, 99), os.close(f))[0])(os.open('f', os.O_RDONLY))";
    own.ask(&put("below"));
    fs::write(root.join("second"), "second").unwrap();
    assert_eq!(own.ask(GET), "b'below'");
    let mount = |what: &std::path::Path| {
        let done = std::process::Command::new("mount").arg("--bind").arg(what).arg(root.join("f")).status();
        assert!(done.unwrap().success());
    };
    let unmount = || rustix::mount::unmount(root.join("f"), rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::write(other.path(), "above").unwrap();
    mount(other.path());
    assert_eq!(own.ask(GET), "b'above'");
    own.ask(&put("new"));
    assert_eq!(fs::read(other.path()).unwrap(), b"new");
    unmount();
    assert_eq!(own.ask(GET), "b'below'", "it was neither emptied nor written");
    // Another file of the same mount.
    mount(&root.join("second"));
    assert_eq!(own.ask(GET), "b'second'");
    unmount();
    assert_eq!(own.ask(GET), "b'below'");
    // The kernel knows it, nothing is mounted on it: it is opened without the kernel all the same.
    fs::metadata(root.join("f")).unwrap();
    let passed =
        |on: &mut Accelerated| on.on.mount().stats().counts().iter().map(|count| count.calls).sum::<u64>();
    let before = passed(&mut on);
    for round in 0..100 {
        // A first byte of a page the kernel writes.
        own.ask(&put(&format!("{round:03}")));
        assert_eq!(own.ask(GET), format!("b'{round:03}'"));
    }
    // But for the size of what became shorter, which the kernel then has from the daemon.
    let asked = passed(&mut on) - before;
    assert!(asked <= 110, "the daemon was asked {asked} times");
}

/// Numbers of descriptors come again: what was known of a folder by its number ends with it, however the number was given.
#[test]
fn a_folders_number_that_another_folder_has_now_is_that_ones() {
    let Some(on) = accelerated("numbers_of_folders") else { return };
    python(
        &on,
        r#"
import fcntl, os, subprocess
for name in ('one', 'two'):
    os.makedirs(f'{name}/below-{name}')
    open(f'{name}/in-{name}', 'w').write(name)
given = {
    'fcntl': lambda f: fcntl.fcntl(f, fcntl.F_DUPFD_CLOEXEC, 40),
    'dup2': lambda f: os.dup2(f, 41),
    'dup': os.dup,
}
for way, copy in given.items():
    for turn in range(3):
        for name in ('one', 'two'):
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
            number = copy(opened)
            os.close(opened)
            assert os.read(os.open(f'in-{name}', os.O_RDONLY, dir_fd=number), 9) == name.encode(), (way, name)
            below = os.open(f'below-{name}', os.O_RDONLY | os.O_DIRECTORY, dir_fd=number)
            assert os.listdir(below) == [], (way, name)
            os.stat(f'below-{name}', dir_fd=number, follow_symlinks=False)
            os.close(os.open(f'new-{way}-{turn}', os.O_CREAT | os.O_WRONLY, dir_fd=number))
            assert f'new-{way}-{turn}' in os.listdir(name), (way, name)
            os.close(below)
            os.close(number)
# What walks trees this way.
for tree in 'abcd':
    for folder in 'xyz':
        os.makedirs(f'tree/{tree}/{folder}/deep-{tree}')
        for file in 'fgh':
            open(f'tree/{tree}/{folder}/deep-{tree}/{file}', 'w').write(file)
            open(f'tree/{tree}/{folder}/{file}', 'w').write(file)
found = subprocess.run(['find', 'tree', '-type', 'f'], capture_output=True, text=True)
assert found.stderr == '' and len(found.stdout.split()) == 72, (found.stderr, len(found.stdout.split()))
"#,
    );
}
