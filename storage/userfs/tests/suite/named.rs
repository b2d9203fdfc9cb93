//! Names and attributes that accelerated programs change without the daemon, in every order with programs that do not: both sides see what an
//! ordinary file system would show.

use super::accelerated::{Accelerated, PYTHON, Partner, accelerated};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Before what is asked: descriptors that stay open, and what is shown of a file.
const PRELUDE: &str = "!import ctypes, stat; f = {}; libc = ctypes.CDLL(None, use_errno=True); \
    shown = lambda s: (oct(s.st_mode), s.st_nlink, s.st_size, min(s.st_mtime_ns, 10 ** 18)) if stat.S_ISREG(s.st_mode) else (oct(s.st_mode), s.st_nlink, min(s.st_mtime_ns, 10 ** 18)); \
    folder = lambda p: os.open(p, os.O_PATH | os.O_DIRECTORY)";

/// Numbers that look random, and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % limit
    }

    fn path(&mut self) -> String {
        let folder = ["", "", "d/", "e/"][self.below(4)];
        format!("'{folder}{}'", ["a", "b", "c"][self.below(3)])
    }

    /// What a program does; `side` has descriptors of its own.
    fn step(&mut self, side: usize) -> String {
        let (path, other, kept) = (self.path(), self.path(), 10 * side + self.below(2));
        let folder = ["'.'", "'d'", "'e'"][self.below(3)];
        match self.below(26) {
            0..=2 => format!(
                "os.close(os.open({path}, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o6{}0))",
                self.below(8)
            ),
            3 => format!(
                "os.write(os.open({path}, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), b'{}')",
                "x".repeat(self.below(9000))
            ),
            4..=6 => format!("os.rename({path}, {other})"),
            7 => format!("os.rename({path}[-1], {other}, src_dir_fd=folder(os.path.dirname({path}) or '.'))"),
            8 => format!(
                "libc.renameat2(-100, {path}.encode(), -100, {other}.encode(), 1) and -ctypes.get_errno()"
            ),
            9 | 10 => format!("os.unlink({path})"),
            11 => format!(
                "os.utime({path}, ns=({0}, {0}), follow_symlinks=False)",
                1_000_000_007 * self.below(1000)
            ),
            12 => format!("os.chmod({path}, 0o6{}4)", self.below(8)),
            13 => format!("os.link({path}, {other})"),
            14 => format!("!f[{kept}] = os.open({path}, os.O_RDWR)"),
            15 => format!(
                "f.get({kept}) and (shown(os.fstat(f[{kept}]))[:3], os.pread(f[{kept}], 9999, 0), os.pwrite(f[{kept}], b'y', 5))"
            ),
            16 => ["os.rmdir('e')", "os.mkdir('e')"][self.below(2)].to_owned(),
            17 => format!("open({path}, 'rb').read()"),
            19 => format!("os.utime({folder}, ns=({0}, {0}))", 1_000_000_007 * self.below(1000)),
            20 => format!("os.chmod({folder}, 0o7{}5)", self.below(8)),
            21 => format!("os.chmod('/proc/self/fd/%d' % folder({folder}), 0o7{}0)", self.below(8)),
            22 => format!("os.fchmod(os.open({folder}, os.O_RDONLY), 0o7{}1)", self.below(8)),
            23 => format!("os.chown({folder}, 0, 0), os.fchmod(folder({folder}), 0o700)"),
            24 => format!("shown(os.stat({folder})), shown(os.fstat(folder({folder})))"),
            18 => "sorted(os.listdir('.')), sorted(os.listdir('d'))".to_owned(),
            _ => format!(
                "shown(os.stat({path}[-1], dir_fd=folder(os.path.dirname({path}) or '.'), follow_symlinks=False))"
            ),
        }
    }
}

#[test]
fn two_sides_see_an_ordinary_file_system() {
    let Some(on) = accelerated("two_sides") else { return };
    // The first one makes the daemon set numbers aside.
    let mut own = Partner::new(&on);
    own.ask("os.close(os.open('first', os.O_CREAT | os.O_WRONLY))");
    for seed in 1..=16u64 {
        let ordinary = tempfile::tempdir_in("/dev/shm").unwrap();
        let mounted = on.on.root().join(format!("seed{seed}"));
        for root in [ordinary.path(), &mounted] {
            fs::create_dir_all(root.join("d")).unwrap();
            fs::create_dir(root.join("e")).unwrap();
        }
        let mut reference = Partner::by(std::process::Command::new(PYTHON).current_dir(ordinary.path()));
        let (mut own, mut plain) = (Partner::new(&on), Partner::plain(&on));
        let enter = format!("!os.chdir('seed{seed}')");
        own.ask(&enter);
        plain.ask(&enter);
        for partner in [&mut own, &mut plain, &mut reference] {
            partner.ask(PRELUDE);
        }
        let (mut dice, mut done) = (Dice(seed * 7919), Vec::new());
        for _ in 0..400 {
            // Some seeds are of few turns, so that much is done before the daemon looks.
            let side = usize::from(dice.below(if seed % 2 == 0 { 12 } else { 2 }) == 0);
            let step = dice.step(side);
            let seen = if side == 0 { &mut own } else { &mut plain }.ask(&step);
            done.push(format!("{side} {step}"));
            assert_eq!(seen, reference.ask(&step), "seed {seed}: {}", done.join("\n"));
        }
    }
}

fn calls(on: &mut Accelerated, operation: &str) -> u64 {
    let counts = on.on.mount().stats().counts();
    counts.iter().find(|count| count.operation == operation).map_or(0, |count| count.calls)
}

/// As rsync does it.
const COPY: &str = "import os\nd = os.open('d', os.O_PATH | os.O_DIRECTORY)\nfor i in range(2000):\n    n, t = 'f%d' % i, '.f%d.tmp' % i\n    \
    try:\n        os.stat(n, dir_fd=d, follow_symlinks=False)\n        raise SystemExit('it is there')\n    except FileNotFoundError:\n        pass\n    \
    f = os.open(t, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=d)\n    os.write(f, b'%d' % i)\n    os.close(f)\n    \
    os.utime(t, ns=(i, i * 10 ** 9), dir_fd=d, follow_symlinks=False)\n    os.chmod(t, 0o640, dir_fd=d)\n    \
    assert os.stat(t, dir_fd=d, follow_symlinks=False).st_mode == 0o100640\n    os.rename(t, n, src_dir_fd=d, dst_dir_fd=d)\n    \
    if i % 3 == 0:\n        os.unlink(n, dir_fd=d)";

#[test]
fn files_are_copied_under_another_name_without_the_daemon() {
    let Some(mut on) = accelerated("copied") else { return };
    fs::create_dir(on.on.root().join("d")).unwrap();
    let output = on.command(PYTHON).args(["-c", COPY]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for operation in ["make", "lookup", "attributes", "change", "rename", "unlink"] {
        let asked = calls(&mut on, operation);
        assert!(asked < 100, "the daemon was asked {asked} times for {operation}");
    }
    let listed = fs::read_dir(on.on.root().join("d")).unwrap();
    let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut wanted: Vec<_> = (0..2000).filter(|i| i % 3 != 0).map(|i| format!("f{i}")).collect();
    wanted.sort();
    assert_eq!(names, wanted);
    for i in (0..2000).filter(|i| i % 3 != 0) {
        let path = on.on.root().join(format!("d/f{i}"));
        let shown = fs::metadata(&path).unwrap();
        assert_eq!((shown.mode(), shown.mtime(), shown.nlink()), (0o100_640, i, 1));
        assert_eq!(fs::read_to_string(path).unwrap(), i.to_string());
    }
    // What was removed is given back.
    let blocks = on.on.mount().backend().segment().unwrap().figures().blocks_used;
    assert_eq!(blocks, wanted.len() as u64);
}

#[test]
fn what_the_kernel_knows_is_left_to_it() {
    let Some(on) = accelerated("known_names") else { return };
    let (root, mut own) = (on.on.root(), Partner::new(&on));
    own.ask("os.close(os.open('a', os.O_CREAT | os.O_WRONLY))");
    own.ask("os.close(os.open('b', os.O_CREAT | os.O_WRONLY))");
    // Known by its name: it must not keep it.
    assert_eq!(fs::metadata(root.join("a")).unwrap().size(), 0);
    own.ask("os.rename('a', 'c')");
    assert!(fs::metadata(root.join("a")).is_err());
    assert!(fs::metadata(root.join("c")).is_ok());
    own.ask("os.rename('b', 'c')");
    assert_eq!(own.ask("sorted(os.listdir('.'))"), "['c']");
    // Open in a program that asks the kernel: it stays that file.
    let kept = fs::File::open(root.join("c")).unwrap();
    own.ask("os.unlink('c')");
    assert_eq!(kept.metadata().unwrap().nlink(), 0);
    // A file that is mounted over is the other one.
    own.ask("os.close(os.open('m', os.O_CREAT | os.O_WRONLY))");
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), "other").unwrap();
    rustix::mount::mount_bind(other.path(), root.join("m")).unwrap();
    assert_eq!(own.ask("os.stat('m').st_size"), "5");
    assert_eq!(own.number("os.unlink('m')"), -16);
    rustix::mount::unmount(root.join("m"), rustix::mount::UnmountFlags::empty()).unwrap();
    // Rights are those of the directory.
    own.ask("!os.mkdir('sticky'); os.chmod('sticky', 0o1777); os.close(os.open('sticky/f', os.O_CREAT | os.O_WRONLY))");
    own.ask("!os.mkdir('closed'); os.close(os.open('closed/f', os.O_CREAT | os.O_WRONLY)); os.chmod('closed', 0o755)");
    own.ask("!os.seteuid(65534)");
    for call in ["os.unlink('closed/f')", "os.rename('closed/f', 'closed/g')", "os.chmod('closed/f', 0o777)"]
    {
        assert!(own.number(call) < 0, "{call}");
    }
    assert_eq!(own.number("os.unlink('sticky/f')"), -1);
}
