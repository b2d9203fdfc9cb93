//! The same calls, in the same order, by several processes on a mount and beside it on a file system of the kernel's own: results, errors, bytes,
//! attributes and locks must be equal. Of three processes two are accelerated, and one goes through the kernel.
//!
//! Locks have seeds of their own: with few files and places, so that they meet, and a look at all of them after each step.
//!
//! A seed of the others takes few kinds of calls, and many reads and writes between them: what goes wrong goes wrong after one call, and is seen by another.

use super::Mounted;
use super::accelerated::{Accelerated, Partner, accelerated};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_base::seeds::Seeds;

const SEEDS: u64 = 32;
const LOCK_SEEDS: u64 = 24;
const FOLDER_SEEDS: u64 = 16;
const FOLDER_LOCK_SEEDS: u64 = 4;
const STEPS: usize = 120;
const LOCK_STEPS: usize = 100;
/// So many places of a file are looked at for locks, and one far behind them.
const LOCK_PLACES: u64 = 60;
/// How often of ten a step is followed by a look at all locks or sizes by another process.
const LOOKED_AT: u64 = 6;
const DESCRIPTORS: u64 = 3;
const FILES: u64 = 3;

struct Random(u64);

impl Random {
    /// As splitmix64.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }

    /// Bytes, often few and sometimes more than a page.
    fn length(&mut self) -> u64 {
        let end = [9, 300, 5000, 9000][self.below(4) as usize];
        1 + self.below(end)
    }

    fn place(&mut self) -> u64 {
        let end = [1, 200, 4100, 20_000][self.below(4) as usize];
        self.below(end)
    }
}

type Kind = fn(&mut Random, u64) -> String;

fn moves(random: &mut Random, s: u64) -> String {
    let (c, n, at) = (65 + random.below(26), random.length(), random.place());
    match random.below(7) {
        0 | 1 => format!("op_write({s}, {c}, {n})"),
        2 => format!("op_pwrite({s}, {c}, {n}, {at})"),
        3 => format!("op_read({s}, {n})"),
        4 => format!("op_pread({s}, {n}, {at})"),
        5 => format!("op_seek({s}, {at}, 0)"),
        _ => format!("op_seek({s}, {}, {})", random.below(50), random.one_of(&["1", "2"])),
    }
}

fn opens(random: &mut Random, s: u64) -> String {
    let flags =
        ["os.O_RDWR | os.O_CREAT", "os.O_RDWR | os.O_CREAT", "os.O_RDONLY", "os.O_WRONLY | os.O_CREAT"];
    let more = ["0", "0", "os.O_TRUNC", "os.O_APPEND", "os.O_EXCL", "os.O_NOFOLLOW"];
    let (flags, more) = (random.one_of(&flags), random.one_of(&more));
    // Truncating without writing is nobody's business.
    let flags = if more == "os.O_TRUNC" { "os.O_RDWR | os.O_CREAT" } else { flags };
    format!("op_open({s}, 'f{}', {flags} | {more})", random.below(FILES))
}

const ALL: [Kind; 16] = [
    |random, s| {
        format!("op_send({s}, {}, {}, {})", random.below(DESCRIPTORS), random.length(), random.place())
    },
    |random, s| {
        let (t, n) = (random.below(DESCRIPTORS), random.length());
        format!("op_copy({s}, {t}, {n}, {}, {})", random.place(), random.place())
    },
    |random, s| format!("op_splice({s}, {}, {})", random.length().min(60_000), random.place()),
    |random, s| {
        if random.below(2) == 0 {
            return format!("op_lock_here({s}, {}, {})", random.below(60), 1 + random.below(9));
        }
        let kind = random.one_of(&["fcntl.F_WRLCK", "fcntl.F_WRLCK", "fcntl.F_RDLCK", "fcntl.F_UNLCK"]);
        let (whence, length) = (random.below(3), random.below(40));
        let start = if whence == 2 { format!("-{}", random.below(9)) } else { random.below(60).to_string() };
        format!("op_lock({s}, {kind}, {whence}, {start}, {length})")
    },
    |random, s| format!("op_ofd_lock({s}, fcntl.F_WRLCK, {}, {}, 9)", random.below(2), random.below(60)),
    |random, s| match random.below(4) {
        0 => format!("op_close({})", (s + random.below(2)) % DESCRIPTORS),
        1 => format!("op_lock_here({s}, {}, 5)", random.below(60)),
        _ => format!("op_glance('f{}')", random.below(FILES)),
    },
    |random, s| format!("op_proc_chmod({s}, {})", random.one_of(&["0o600", "0o640", "0o755"])),
    |random, s| format!("op_proc_truncate({s}, {})", random.place()),
    |random, s| random.one_of(&["op_proc_utime(S)", "op_proc_attribute(S)"]).replace('S', &s.to_string()),
    |random, s| match random.below(2) {
        0 => format!("op_proc_link({s}, 'l{}')", random.below(2)),
        _ => format!("op_proc_by_link({s}, 0o700)"),
    },
    // O_APPEND comes and goes, and what is written in between must be where it is then.
    |random, s| {
        let at = random.place();
        match random.below(4) {
            0 => format!("op_open({s}, 'f{}', os.O_RDWR | os.O_CREAT | os.O_APPEND)", random.below(FILES)),
            1 => format!("op_flags({s}, True)"),
            2 => format!("op_flags({s}, False)"),
            _ => format!("op_flags({s}, False) and op_pwrite({s}, 97, 3, {at}) and op_write({s}, 98, 2)"),
        }
    },
    |random, s| match random.below(3) {
        0 => format!("op_dup({s}, {})", random.below(DESCRIPTORS)),
        1 => format!("op_dup2({s}, {})", random.below(DESCRIPTORS)),
        _ => format!("op_reopen({s}, {}, os.O_RDWR)", random.below(DESCRIPTORS)),
    },
    |random, s| format!("op_child({s}, {}, {})", 65 + random.below(26), random.length()),
    |random, s| format!("op_threads({s}, {}, {})", 65 + random.below(20), random.length()),
    |random, s| match random.below(2) {
        0 => format!("op_truncate({s}, {})", random.place()),
        _ => format!("op_writev({s}, {}, {})", 65 + random.below(20), random.length()),
    },
    |random, _| match random.below(3) {
        0 => format!("os.unlink('f{}')", random.below(FILES)),
        1 => format!("os.rename('f{}', 'f{}')", random.below(FILES), random.below(FILES)),
        _ => format!("os.link('f{}', 'f{}')", random.below(FILES), random.below(FILES)),
    },
];

/// What a step changed, or left, for all to see.
fn looks(random: &mut Random, s: u64, at_all: &str) -> String {
    match random.below(5) {
        0 => format!("op_stat({s})"),
        1 => format!("op_stat_name('f{}')", random.below(FILES)),
        2 => format!("op_locked({s}, {}, {})", random.below(80), 1 + random.below(20)),
        3 => at_all.to_owned(),
        _ => format!("op_whole('f{}')", random.below(FILES)),
    }
}

fn step(random: &mut Random, kinds: &[Kind], at_all: &str) -> String {
    let s = random.below(DESCRIPTORS);
    match random.below(20) {
        0..=2 => opens(random, s),
        3..=8 => moves(random, s),
        9..=12 => looks(random, s, at_all),
        _ => kinds[random.below(kinds.len() as u64) as usize](random, s),
    }
}

pub fn prelude(partner: &mut Partner) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/partner.py");
    assert_eq!(partner.ask(&format!("!exec(open({source:?}).read()); r = None")), "None");
}

/// A process that is not accelerated.
fn plain() -> Partner {
    Partner::by(Command::new(super::accelerated::PYTHON))
}

/// The same processes in a folder of the mount, and in one beside it.
struct Both<'a> {
    seed: u64,
    here: Vec<Partner>,
    there: Vec<Partner>,
    said: Vec<String>,
    folders: &'a str,
}

impl Both<'_> {
    /// In folders of their own below these two.
    fn new<'a>(seed: u64, folders: &'a str, roots: [&Path; 2], here: Vec<Partner>) -> Both<'a> {
        let there = here.iter().map(|_| plain()).collect();
        let mut both = Both { seed, here, there, said: Vec::new(), folders };
        for (root, partners) in roots.into_iter().zip([&mut both.here, &mut both.there]) {
            let folder: PathBuf = root.join(format!("{folders}{seed}"));
            std::fs::create_dir(&folder).unwrap();
            for partner in partners {
                prelude(partner);
                assert_eq!(partner.ask(&format!("os.chdir({folder:?})")), "None");
            }
        }
        both
    }

    fn ask(&mut self, who: usize, what: &str) {
        let (is, right) = (self.here[who].ask(what), self.there[who].ask(what));
        self.said.push(format!("{who}: {what} -> {right}"));
        let from = self.said.len().saturating_sub(25);
        assert_eq!(
            is,
            right,
            "{}, seed {}, process {who}: {what}, after\n{}",
            self.folders,
            self.seed,
            self.said[from..].join("\n")
        );
    }
}

fn run(both: &mut Both<'_>, kinds: &[Kind], at_all: &str, random: &mut Random) {
    for _ in 0..STEPS {
        let who = random.below(3) as usize;
        both.ask(who, &step(random, kinds, at_all));
        if random.below(10) < LOOKED_AT {
            let other = (who + 1 + random.below(2) as usize) % 3;
            both.ask(other, at_all);
        }
    }
}

/// By one seed, on a mount at `root`, and beside it.
fn run_seed(on: &Accelerated, root: &Path, seed: u64, beside: &Path, name: &str) {
    let here = vec![Partner::new(on), Partner::new(on), plain()];
    let mut both = Both::new(seed, name, [root, beside], here);
    let mut random = Random(seed);
    let kinds = [ALL[seed as usize % ALL.len()], ALL[random.below(ALL.len() as u64) as usize]];
    // One of both: a splice makes positions the kernel's, and would hide what is wrong with them.
    let at_all =
        if (seed as usize / ALL.len()).is_multiple_of(2) { "op_look_locks()" } else { "op_look_sizes()" };
    run(&mut both, &kinds, at_all, &mut random);
}

/// A lock of ranges by this process or by the description, or what moves where it is: few places, so that they meet.
fn locks(random: &mut Random, s: u64) -> String {
    let kind = random.one_of(&["fcntl.F_WRLCK", "fcntl.F_WRLCK", "fcntl.F_RDLCK", "fcntl.F_UNLCK"]);
    let (whence, length) = (random.below(3), random.below(12));
    let start = if whence == 2 { -(random.below(9) as i64) } else { random.below(40) as i64 };
    // Also backwards from there.
    let length = if random.below(6) == 0 { -(length as i64) } else { length as i64 };
    match random.below(8) {
        0..=2 => format!("op_lock({s}, {kind}, {whence}, {start}, {length})"),
        3 => format!("op_lock_here({s}, {}, {})", random.below(40), 1 + random.below(9)),
        4 => format!("op_lockf({s}, {}, {length})", random.one_of(&["0", "2", "2", "3"])),
        5 => format!("op_ofd_lock({s}, {kind}, {whence}, {start}, {length})"),
        _ => format!(
            "op_flock({s}, {})",
            random.one_of(&["fcntl.LOCK_EX", "fcntl.LOCK_EX", "fcntl.LOCK_SH", "fcntl.LOCK_UN"])
        ),
    }
}

/// A step of what locks are about: descriptors that come and go, positions, sizes, and locks themselves.
fn lock_step(random: &mut Random) -> String {
    let (s, file) = (random.below(DESCRIPTORS), random.below(2));
    let flags = ["os.O_RDWR | os.O_CREAT", "os.O_RDWR | os.O_CREAT", "os.O_RDONLY", "os.O_WRONLY"];
    match random.below(24) {
        0..=3 => format!("op_open({s}, 'f{file}', {})", random.one_of(&flags)),
        4 | 5 => format!("op_close({s})"),
        6 | 7 => format!("op_glance('f{file}')"),
        8 | 9 => format!("op_write({s}, 65, {})", 1 + random.below(9)),
        10 => format!("op_seek({s}, {}, 0)", random.below(40)),
        11 => format!("op_truncate({s}, {})", random.below(40)),
        12 => match random.below(4) {
            0 => format!("op_dup({s}, {})", random.below(DESCRIPTORS)),
            1 => format!("op_dup2({s}, {})", random.below(DESCRIPTORS)),
            2 => format!("op_child_closes({s})"),
            _ => format!("op_reopen({s}, {}, os.O_RDWR)", random.below(DESCRIPTORS)),
        },
        13 => match random.below(3) {
            0 => format!("os.rename('f{file}', 'f{}')", random.below(2)),
            1 => format!("os.unlink('f{file}')"),
            _ => format!("os.lockf(fd({s}), os.F_TEST, 9)"),
        },
        _ => locks(random, s),
    }
}

/// After each step somebody who has both files open, and locks nothing, says what is locked: through the kernel in half of the seeds.
fn run_locks(on: &Accelerated, root: &Path, seed: u64, beside: &Path, name: &str) {
    let watcher = if seed.is_multiple_of(2) { plain() } else { Partner::new(on) };
    let here = vec![Partner::new(on), Partner::new(on), plain(), watcher];
    let mut both = Both::new(seed, name, [root, beside], here);
    let mut random = Random(seed.wrapping_mul(0x1001));
    for file in 0..2 {
        both.ask(0, &format!("op_open({file}, 'f{file}', os.O_RDWR | os.O_CREAT)"));
        both.ask(0, &format!("op_write({file}, 65, {})", random.below(40)));
        both.ask(3, &format!("op_open({file}, 'f{file}', os.O_RDWR)"));
    }
    for _ in 0..LOCK_STEPS {
        let who = random.below(3) as usize;
        both.ask(who, &lock_step(&mut random));
        both.ask(3, &format!("op_locks_of_all({LOCK_PLACES})"));
    }
}

/// The seeds of a test (`WEIR_BESIDE_SEED`, `WEIR_BESIDE_SEEDS`).
fn seeds(test: &str, usual: u64) -> Seeds {
    Seeds::of(env!("CARGO_MANIFEST_DIR"), test, "WEIR_BESIDE", usual)
}

fn plain_folder(test: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok();
    if folder.is_none() {
        println!("NOT RUN {test}: there is no /dev/shm");
    }
    folder
}

#[test]
fn calls_of_several_processes_are_the_kernels() {
    let Some(on) = accelerated("calls_of_several_processes") else { return };
    let Some(beside) = plain_folder("calls_of_several_processes") else { return };
    seeds("calls", SEEDS).each(|seed| run_seed(&on, &on.on.root(), seed, beside.path(), "mem"));
}

#[test]
fn locks_of_several_processes_are_the_kernels() {
    let Some(on) = accelerated("locks_of_several_processes") else { return };
    let Some(beside) = plain_folder("locks_of_several_processes") else { return };
    seeds("locks", LOCK_SEEDS).each(|seed| run_locks(&on, &on.on.root(), seed, beside.path(), "mem"));
}

/// Of folders, where the kernel reads and writes by itself, and where the daemon does. Programs are accelerated, for another mount.
#[test]
fn calls_on_folders_are_the_kernels() {
    let Some(on) = accelerated("calls_on_folders") else { return };
    let Some(beside) = plain_folder("calls_on_folders") else { return };
    for mounted in [Mounted::directory(), Mounted::cached_directory()] {
        let calls = seeds(&format!("calls-{}", mounted.name), FOLDER_SEEDS);
        calls.each(|seed| run_seed(&on, &mounted.root(), seed, beside.path(), mounted.name));
        let locks = seeds(&format!("locks-{}", mounted.name), FOLDER_LOCK_SEEDS);
        let name = format!("locks on {}", mounted.name);
        locks.each(|seed| run_locks(&on, &mounted.root(), seed, beside.path(), &name));
    }
}
