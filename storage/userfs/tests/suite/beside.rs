//! The same calls, in the same order, by several processes on a mount and beside it on a file system of the kernel's own: results, errors, bytes,
//! attributes and locks must be equal. Of three processes two are accelerated, and one goes through the kernel.
//!
//! A seed takes few kinds of calls, and many reads and writes between them: what goes wrong goes wrong after one call, and is seen by another.

use super::accelerated::{Accelerated, Partner, accelerated};
use std::path::{Path, PathBuf};
use std::process::Command;

const SEEDS: u64 = 32;
const STEPS: usize = 120;
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
    |random, s| format!("op_flags({s}, {})", random.one_of(&["True", "False"])),
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

/// A process below a folder of the kernel's own.
fn plain_in(folder: &Path) -> Partner {
    let mut command = Command::new(super::accelerated::PYTHON);
    command.current_dir(folder);
    Partner::by(command)
}

fn in_folder(partner: &mut Partner, folder: &Path) {
    prelude(partner);
    assert_eq!(partner.ask(&format!("os.chdir({folder:?})")), "None");
}

fn run(on: &Accelerated, seed: u64, plain: &Path) {
    let own: PathBuf = on.on.root().join(format!("seed{seed}"));
    let beside = plain.join(format!("seed{seed}"));
    for folder in [&own, &beside] {
        std::fs::create_dir(folder).unwrap();
    }
    let mut here = [Partner::new(on), Partner::new(on), Partner::plain(on)];
    let mut there = [plain_in(plain), plain_in(plain), plain_in(plain)];
    here.iter_mut().for_each(|partner| in_folder(partner, &own));
    there.iter_mut().for_each(|partner| in_folder(partner, &beside));
    let mut random = Random(seed);
    let kinds = [ALL[seed as usize % ALL.len()], ALL[random.below(ALL.len() as u64) as usize]];
    // One of both: a splice makes positions the kernel's, and would hide what is wrong with them.
    let at_all =
        if (seed as usize / ALL.len()).is_multiple_of(2) { "op_look_locks()" } else { "op_look_sizes()" };
    let mut said = Vec::new();
    let mut both = |who: usize, what: &str| {
        let (is, right) = (here[who].ask(what), there[who].ask(what));
        said.push(format!("{who}: {what} -> {right}"));
        let from = said.len().saturating_sub(25);
        assert_eq!(is, right, "seed {seed}, process {who}: {what}, after\n{}", said[from..].join("\n"));
    };
    for _ in 0..STEPS {
        let who = random.below(3) as usize;
        both(who, &step(&mut random, &kinds, at_all));
        if random.below(10) < LOOKED_AT {
            let other = (who + 1 + random.below(2) as usize) % 3;
            both(other, at_all);
        }
    }
}

#[test]
fn calls_of_several_processes_are_the_kernels() {
    let Some(on) = accelerated("calls_of_several_processes") else { return };
    let Ok(plain) = tempfile::tempdir_in("/dev/shm") else {
        return println!("NOT RUN calls_of_several_processes: there is no /dev/shm");
    };
    let of =
        |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let first = of("WEIR_BESIDE_SEED", 1);
    for seed in first..first + of("WEIR_BESIDE_SEEDS", SEEDS) {
        run(&on, seed, plain.path());
    }
}
