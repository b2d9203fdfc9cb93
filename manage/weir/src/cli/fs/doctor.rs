//! `weir fs doctor`: what this machine offers for user-space file systems.

use crate::cli::{NO, output};
use std::path::Path;
use std::process::ExitCode;

struct Finding {
    what: &'static str,
    /// What is there, or what to do.
    answer: Result<String, String>,
    needed: bool,
}

fn device() -> Result<String, String> {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    open.map(|_| "/dev/fuse opens".to_owned()).map_err(|error| {
        format!("/dev/fuse: {error}; load the module fuse, or let the container have the device")
    })
}

fn right() -> Result<String, String> {
    if rustix::process::geteuid().is_root() {
        return Ok("root mounts by itself".to_owned());
    }
    let found =
        ["/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(|path| Path::new(path).exists());
    found.map(|path| format!("by {path}")).ok_or_else(|| "install fuse3 (fusermount3), or be root".to_owned())
}

fn shared_memory() -> Result<String, String> {
    weir_userfs::segment::Segment::create(16, 1 << 20)
        .map(|_| "memfd works".to_owned())
        .map_err(|error| format!("memfd: {error}"))
}

fn interception() -> Result<String, String> {
    weir_intercept::possible()
        .map(|()| "programs can be accelerated".to_owned())
        .map_err(|error| error.to_string())
}

fn ssh() -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("ssh")).find(|file| file.exists());
    found
        .map(|file| format!("'sftp:' uses {}", file.display()))
        .ok_or_else(|| "install openssh-client for 'sftp:', or name a command in WEIR_FS_SSH".to_owned())
}

fn store() -> Result<String, String> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if set("AWS_ACCESS_KEY_ID") && set("AWS_SECRET_ACCESS_KEY") {
        return Ok("'s3:' has keys in the environment".to_owned());
    }
    Err("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for 's3:' (public buckets need none)".to_owned())
}

/// Runs the command.
pub fn run() -> ExitCode {
    let findings = [
        Finding { what: "FUSE", answer: device(), needed: true },
        Finding { what: "right to mount", answer: right(), needed: true },
        Finding { what: "shared memory", answer: shared_memory(), needed: false },
        Finding { what: "interception", answer: interception(), needed: false },
        Finding { what: "SFTP", answer: ssh(), needed: false },
        Finding { what: "S3", answer: store(), needed: false },
    ];
    let mut table = output::table(&["", "WHAT", "FOUND"]);
    for finding in &findings {
        let (mark, words) = match &finding.answer {
            Ok(words) => ("ok", words),
            Err(words) => ("missing", words),
        };
        table.add_row([mark, finding.what, words]);
    }
    println!("{table}");
    let possible = findings.iter().all(|finding| finding.answer.is_ok() || !finding.needed);
    if possible { ExitCode::SUCCESS } else { ExitCode::from(NO) }
}
