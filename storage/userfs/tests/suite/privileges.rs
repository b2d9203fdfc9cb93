//! Rights that a file gives to programs, which end when it is changed: whoever changes it, and however, as on tmpfs.

use super::accelerated::{PYTHON, Partner, accelerated};
use std::path::Path;
use std::process::Command;

/// What `setcap cap_net_raw+ep` sets.
const PRELUDE: &str = "!import ctypes; libc = ctypes.CDLL(None, use_errno=True); off = ctypes.c_long; \
    cap = bytes((1, 0, 0, 2, 0, 32)) + bytes(14); \
    allocate = lambda f, mode, at, n: libc.fallocate(f, mode, off(at), off(n)) and -ctypes.get_errno()";

/// What is done to the file `n`, which is open as `f`. What changes nothing leaves the capabilities.
const ACTIONS: [&str; 28] = [
    "os.write(f, b'one')",
    "os.pwrite(f, b'two', 10)",
    "os.writev(f, [b'thr', b'ee'])",
    "os.pwritev(f, [b'fo', b'ur'], 5)",
    "os.pwrite(f, b'behind the end', 20000)",
    "os.write(f, b'')",
    "os.pwrite(f, b'no', -1)",
    "os.write(os.open(n, os.O_WRONLY | os.O_APPEND), b'appended')",
    "os.write(os.dup(f), b'copied')",
    "open(n, 'r+b', 0).write(b'again')",
    "os.ftruncate(f, 10)",
    "os.ftruncate(f, 9000)",
    "os.ftruncate(f, 30000)",
    "os.ftruncate(f, -1)",
    "os.truncate(n, 10)",
    "os.truncate(n, 30000)",
    "os.close(os.open(n, os.O_WRONLY | os.O_TRUNC))",
    "os.close(os.open(n, os.O_WRONLY | os.O_CREAT))",
    "allocate(f, 0, 0, 50000)",
    "allocate(f, 1, 0, 50000)",
    "allocate(f, 3, 0, 5000)",
    "os.fchown(f, -1, -1)",
    "os.fchown(f, os.getuid(), os.getgid())",
    "os.chown(n, os.getuid(), -1)",
    "os.fchmod(f, 0o600)",
    "os.utime(f, (1, 1))",
    "os.sendfile(f, os.open('from', os.O_RDONLY), 0, 4)",
    "os.copy_file_range(os.open('from', os.O_RDONLY), f, 4)",
];

/// Who sets the attribute, and how it names the file.
const SETTERS: [(bool, &str); 4] = [(true, "f"), (true, "n"), (false, "f"), (false, "n")];

/// Those who work on files in one folder: one changes them, the other sets attributes of them, too.
struct Two {
    changes: Partner,
    other: Partner,
}

impl Two {
    fn new(mut changes: Partner, mut other: Partner) -> Two {
        for partner in [&mut changes, &mut other] {
            assert_eq!(partner.ask(PRELUDE), "None");
        }
        assert_eq!(changes.ask("open('from', 'wb').write(b'from')"), "4");
        Two { changes, other }
    }

    fn both(&mut self, what: &str) {
        for partner in [&mut self.changes, &mut self.other] {
            assert_eq!(partner.ask(what), "None", "{what}");
        }
    }

    /// The file is made, gets capabilities before or after both have opened it, and is changed: what was said, and what is there then.
    fn go(&mut self, case: &Case<'_>) -> [String; 4] {
        let name = case.name;
        let made = format!("!n = '{name}'; f = os.open(n, os.O_RDWR | os.O_CREAT); os.write(f, b'x' * 9000)");
        assert_eq!(self.changes.ask(&made), "None");
        self.other.ask(&format!("!n = '{name}'; f = os.open(n, os.O_RDWR)"));
        let again = "!os.close(f); f = os.open(n, os.O_RDWR); os.pread(f, 9, 0)";
        self.both(again);
        if !case.opened_before {
            self.both("!os.close(f)");
            self.other.ask("!f = os.open(n, os.O_RDWR)");
            self.changes.ask("!f = os.open(n, os.O_RDWR)");
        }
        let setter = if case.by_itself { &mut self.changes } else { &mut self.other };
        let set = format!("os.setxattr({}, 'security.capability', cap)", case.by);
        assert_eq!(setter.ask(&set), "None");
        if !case.opened_before {
            self.both(again);
        }
        let seen = "('security.capability' in os.listxattr(f), os.fstat(f).st_size, os.pread(f, 40, 0))";
        let said = self.changes.ask(case.action);
        [said, self.changes.ask(seen), self.other.ask(seen), self.changes.ask("os.lseek(f, 0, 1)")]
    }
}

struct Case<'a> {
    name: &'a str,
    opened_before: bool,
    by_itself: bool,
    by: &'a str,
    action: &'a str,
}

fn plain(root: &Path) -> Partner {
    Partner::by(Command::new(PYTHON).current_dir(root))
}

#[test]
fn capabilities_end_with_the_first_write() {
    let Some(mut on) = accelerated("capabilities") else { return };
    let ordinary = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut model = Two::new(plain(ordinary.path()), plain(ordinary.path()));
    let root = on.on.root();
    let mut sides = [
        ("not accelerated", Two::new(plain(&root), plain(&root))),
        ("accelerated, both", Two::new(Partner::new(&on), Partner::new(&on))),
        ("accelerated", Two::new(Partner::new(&on), plain(&root))),
        ("beside an accelerated one", Two::new(plain(&root), Partner::new(&on))),
    ];
    let (mut number, mut wrong) = (0, Vec::new());
    for (by_itself, by) in SETTERS {
        for opened_before in [true, false] {
            for action in ACTIONS {
                number += 1;
                let name = format!("f{number}");
                let case = Case { name: &name, opened_before, by_itself, by, action };
                let mut wanted = model.go(&case);
                for (side, two) in &mut sides {
                    let name = format!("{name} {side}");
                    let seen = two.go(&Case { name: &name, ..case });
                    if side == &"not accelerated" && action.starts_with("allocate") {
                        // Kernels got this one file system after the other: what this one does by FUSE is what is wanted.
                        wanted.clone_from(&seen);
                    }
                    let set = if by_itself { "itself" } else { "the other" };
                    if seen != wanted {
                        let order = if opened_before { "then" } else { "before it was opened" };
                        wrong.push(format!(
                            "{side}, {by} set by {set} {order}: {action}: {seen:?} instead of {wanted:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    let (_, writes) = on.served();
    assert!(writes > 400, "{writes} writes were served");
}

#[test]
fn set_user_id_bits_end_with_the_first_write_by_a_program_that_may_not_keep_them() {
    let Some(on) = accelerated("set_user_id_bits") else { return };
    let ordinary = tempfile::tempdir_in("/dev/shm").unwrap();
    let (root, mut model) = (on.on.root(), plain(ordinary.path()));
    let mut sides = [
        ("not accelerated", plain(&root), plain(&root)),
        ("accelerated, both", Partner::new(&on), Partner::new(&on)),
        ("accelerated", Partner::new(&on), plain(&root)),
    ];
    let writes = ["os.write(f, b'one')", "os.pwrite(f, b'two', 10)", "os.ftruncate(f, 10)"];
    for (number, write) in writes.into_iter().enumerate() {
        for user in [0, 65534] {
            let name = format!("f{number} {user}");
            let make =
                format!("!f = os.open('{name}', os.O_RDWR | os.O_CREAT, 0o755); os.write(f, b'x' * 9000)");
            let set = format!("os.chmod('{name}', 0o6755)");
            let change = format!("(os.seteuid({user}), {write}, os.seteuid(0), oct(os.fstat(f).st_mode))");
            model.ask(&make);
            model.ask(&set);
            let wanted = model.ask(&change);
            for (side, changes, other) in &mut sides {
                for by_itself in [true, false] {
                    assert_eq!(changes.ask(&make), "None");
                    assert_eq!(if by_itself { &mut *changes } else { &mut *other }.ask(&set), "None");
                    let seen = changes.ask(&change);
                    assert_eq!(seen, wanted, "{side}: {write} by {user}, set by itself: {by_itself}");
                    changes.ask(&format!("os.unlink('{name}')"));
                }
            }
        }
    }
}
