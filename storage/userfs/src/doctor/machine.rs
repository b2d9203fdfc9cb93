//! What mounting and intercepting need of the machine.

use super::Finding;
use std::path::Path;

/// Where Yama says who may trace whom; it is not on every machine.
const TRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const FUSE_SETTINGS: &str = "/etc/fuse.conf";

pub(super) fn findings() -> Vec<Finding> {
    let mut all = vec![device(), right_to_mount(), shared_memory()];
    all.extend(others());
    all.extend(interception());
    all.extend([ssh(), store()]);
    all
}

fn device() -> Finding {
    let what = "FUSE";
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::good(what, "/dev/fuse opens"),
        Err(error) => Finding::wrong(
            what,
            format!("/dev/fuse: {error}"),
            "load the module fuse, or let the container have the device",
        ),
    }
}

fn right_to_mount() -> Finding {
    let what = "right to mount";
    if rustix::process::geteuid().is_root() {
        return Finding::good(what, "root mounts by itself");
    }
    let found =
        ["/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(|path| Path::new(path).exists());
    match found {
        Some(path) => Finding::good(what, format!("by {path}")),
        None => Finding::wrong(what, "there is no fusermount3", "install fuse3, or be root"),
    }
}

/// Only of interest to those who are not root.
fn others() -> Option<Finding> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let what = "mounts for others";
    let settings = std::fs::read_to_string(FUSE_SETTINGS).unwrap_or_default();
    let allowed = settings.lines().any(|line| line.trim() == "user_allow_other");
    Some(if allowed {
        Finding::good(what, format!("{FUSE_SETTINGS} has user_allow_other"))
    } else {
        Finding::note(
            what,
            "'--allow-others' is for root only",
            format!("put user_allow_other into {FUSE_SETTINGS}"),
        )
    })
}

fn shared_memory() -> Finding {
    let what = "shared memory";
    match crate::segment::Segment::create(16, 1 << 20) {
        Ok(_) => Finding::good(what, "memfd works"),
        Err(error) => {
            Finding::wrong(what, format!("memfd: {error}"), "'mem:' and 'archive:' need memfd_create")
        }
    }
}

/// Who may trace whom, and whether interception really works: a program is intercepted.
fn interception() -> Vec<Finding> {
    let scope = std::fs::read_to_string(TRACE_SCOPE).ok();
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let filtered = own.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|is| is.trim() != "0"));
    let mut all: Vec<Finding> = scope.iter().map(|scope| tracing(scope.trim())).collect();
    if filtered {
        all.push(Finding::note(
            "seccomp",
            "a filter is on this process, and on all that it starts: they are not accelerated",
            "start them where there is none (for a container: its seccomp profile 'unconfined')",
        ));
    }
    let what = "interception";
    all.push(match weir_intercept::try_out() {
        Ok(()) => Finding::good(what, "a program was intercepted"),
        Err(error) => {
            Finding::note(what, error.to_string(), "programs use mounts through the kernel, which is slower")
        }
    });
    all
}

/// What Yama's setting means to a daemon, which is no ancestor of the programs that it accelerates.
fn tracing(scope: &str) -> Finding {
    let what = "ptrace";
    let found = format!("{TRACE_SCOPE} is {scope}");
    let root = rustix::process::geteuid().is_root();
    match scope {
        "0" => Finding::good(what, found),
        "1" | "2" if root => Finding::good(what, format!("{found}: root's daemons may trace")),
        "3" => Finding::note(what, format!("{found}: nobody may trace"), "boot again with another setting"),
        _ => Finding::note(
            what,
            format!("{found}: a daemon may not trace the programs that it should accelerate"),
            "set kernel.yama.ptrace_scope=0 by sysctl, or mount as root",
        ),
    }
}

fn ssh() -> Finding {
    let what = "SFTP";
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|folder| folder.join("ssh")).find(|file| file.exists()) {
        Some(file) => Finding::good(what, format!("'sftp:' uses {}", file.display())),
        None => {
            Finding::note(what, "there is no ssh", "install openssh-client, or name a command in WEIR_FS_SSH")
        }
    }
}

fn store() -> Finding {
    let what = "S3";
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("AWS_ACCESS_KEY_ID") && set("AWS_SECRET_ACCESS_KEY") {
        return Finding::good(what, "'s3:' has keys in the environment");
    }
    Finding::note(
        what,
        "there are no keys in the environment (public buckets need none)",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;

    #[test]
    fn what_yama_allows_is_told_apart() {
        for (scope, root, other) in [
            ("0", Verdict::Good, Verdict::Good),
            ("1", Verdict::Good, Verdict::Note),
            ("2", Verdict::Good, Verdict::Note),
            ("3", Verdict::Note, Verdict::Note),
        ] {
            let wanted = if rustix::process::geteuid().is_root() { root } else { other };
            let finding = super::tracing(scope);
            assert_eq!(finding.verdict, wanted, "{finding:?}");
            assert_eq!(finding.right.is_none(), wanted == Verdict::Good, "{finding:?}");
        }
    }
}
