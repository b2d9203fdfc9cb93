//! Every call that takes descriptors or paths, with odd arguments too, on every backend, accelerated and not, beside tmpfs: results, errors, and what the file
//! is then.

use super::Mounted;
use super::accelerated::{Accelerated, accelerated};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cases: `WEIR_ODD` is the last one.
const CASES: u64 = 4000;

/// What differs by design: the call, what it says on a tmpfs, and here.
const BY_DESIGN: [(&str, &str, &str); 9] = [
    // What no memory and no disk has.
    ("truncate", "0 ", "-1 EFBIG"),
    ("ftruncate", "0 ", "-1 EFBIG"),
    // Of bytes that are there only in part nothing is written; a tmpfs writes a part, or makes the file longer and writes none.
    ("pwrite64", "", "-1 EFAULT, then 36 bytes"),
    // The kernel looks at the place first where the daemon reads (O_APPEND), also behind the end.
    ("read", "0 ", "-1 EFAULT"),
    ("pread64", "0 ", "-1 EFAULT"),
    // The kernel's side of FUSE fetches what such a command points to before it finds that nobody knows it.
    ("ioctl", "-1 ENOTTY", "-1 EFAULT"),
    // `chattr` and seals, which there are not.
    ("file_getattr", "", "-1 EOPNOTSUPP"),
    ("file_setattr", "", "-1 EOPNOTSUPP"),
    ("fcntl", "-1 EPERM", "-1 EINVAL"),
];

fn program(folder: &Path) -> PathBuf {
    let program = folder.join("odd");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/odd.c");
    assert!(Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    program
}

/// A line each, below `root`.
fn lines(mut command: Command, root: &Path) -> Vec<String> {
    let folder = tempfile::tempdir_in(root).unwrap();
    let last = std::env::var("WEIR_ODD").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    command.args(["1", &format!("{last}")]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn is_by_design(right: &str, is: &str) -> bool {
    BY_DESIGN.iter().any(|(call, there, here)| {
        let says = |line: &str, what: &str| line.contains(&format!(" {call}: {what}"));
        says(right, there) && says(is, here)
    })
}

#[test]
fn odd_calls_are_answered_as_elsewhere() {
    let Some(mut on) = accelerated("odd_calls") else { return };
    let Ok(beside) = tempfile::tempdir_in("/dev/shm") else {
        return println!("NOT RUN odd_calls: there is no /dev/shm");
    };
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let right = lines(Command::new(&program), beside.path());
    assert!(right.len() > 2000, "{} cases", right.len());
    let name = program.to_str().unwrap();
    let (directory, cached) = (Mounted::directory(), Mounted::cached_directory());
    let plain = || Command::new(&program);
    let before = on.served().1;
    let sides: [(&str, Vec<String>); 4] = [
        ("mem", lines(plain(), &on.on.root())),
        ("mem, accelerated", lines(Accelerated::command(&on, name), &on.on.root())),
        ("dir", lines(plain(), &directory.root())),
        ("dir --cached", lines(plain(), &cached.root())),
    ];
    assert!(on.served().1 - before > 2000, "writes were served");
    let mut wrong = Vec::new();
    for (side, is) in &sides {
        assert_eq!(is.len(), right.len(), "{side}");
        for (is, right) in is.iter().zip(&right).filter(|(is, right)| is != right) {
            if !is_by_design(right, is) {
                wrong.push(format!("{side}: {is}\n    instead of {right}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), 4 * right.len(), wrong.join("\n"));
}
