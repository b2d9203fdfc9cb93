//! Programs that are not accelerated, and why; and what is known of code.

use super::Finding;
use crate::control::Status;
use std::path::Path;

/// Programs that began accelerated, from which on something should be known of their code.
const BEGUN_MANY: u64 = 16;

/// Of a mount whose daemon answers.
pub(super) fn of_mount(status: &Status) -> Vec<Finding> {
    let acceleration = &status.acceleration;
    let what = format!("programs at {}", status.mount);
    let mut all = Vec::new();
    if acceleration.by_kernel.is_some() {
        all.push(Finding::good(what, "the kernel has the files itself: there is nothing to accelerate"));
        return all;
    }
    if let Some(reason) = &acceleration.why_not {
        all.push(Finding::note(what, reason, "all programs use it through the kernel"));
        return all;
    }
    all.push(known_code(status));
    for (reason, programs) in &acceleration.refused {
        all.push(Finding::note(&*what, format!("{programs} not accelerated: {reason}"), right_of(reason)));
    }
    for process in acceleration.processes.iter().filter(|process| process.state != "accelerated") {
        all.push(Finding::note(
            format!("process {} ({})", process.id, process.name),
            format!("{}; {} places could not be changed", process.state, process.sites_left),
            "it uses the mount through the kernel, which is right and slower",
        ));
    }
    all
}

/// Where system calls of files are is found once, and kept: else each program that begins looks for itself.
fn known_code(status: &Status) -> Finding {
    let acceleration = &status.acceleration;
    let what = format!("known code at {}", status.mount);
    let found = format!(
        "of {} parts of programs and libraries; {} were shown by {} programs",
        acceleration.known, acceleration.shown, acceleration.injected
    );
    if acceleration.known == 0 && acceleration.injected >= BEGUN_MANY {
        return Finding::note(
            what,
            found,
            "each program looks through its code when it begins: the daemon must be able to read the files, and they must be older \
             than two seconds",
        );
    }
    Finding::good(what, found)
}

/// What would be right, by the injector's words.
fn right_of(reason: &str) -> &'static str {
    let rights: [(&str, &str); 6] = [
        ("traces it", "it is accelerated when it begins without strace, gdb and their like"),
        ("seccomp", "it is accelerated where it begins without a filter"),
        ("set-user-id", "it keeps its rights, and uses the mount through the kernel"),
        ("capabilities", "it keeps its rights, and uses the mount through the kernel"),
        ("another user", "mount as root, or as its user"),
        ("ptrace", "the daemon must be allowed to trace it: see 'ptrace' above, or mount as root"),
    ];
    let found = rights.into_iter().find(|(word, _)| reason.contains(word));
    found.map_or("it uses the mount through the kernel", |(_, right)| right)
}

/// Of a program's file.
pub(super) fn of_file(program: &Path) -> Finding {
    let what = format!("program {}", program.display());
    match weir_intercept::examine(program) {
        Err(error) => Finding::wrong(what, error.to_string(), "name the file of a program"),
        Ok(found) => match found.refused {
            Some(reason) => {
                let right = right_of(&reason);
                Finding::note(what, format!("it would not be accelerated: {reason}"), right)
            }
            None if found.left > 0 => Finding::note(
                what,
                format!(
                    "{} places of its own make system calls, {} of them in ways that are not known",
                    found.places, found.left
                ),
                "it is accelerated unless these might change descriptors or threads: 'weir fs status' says so while it runs",
            ),
            None => Finding::good(
                what,
                format!("it can be accelerated; {} places of its own make system calls", found.places),
            ),
        },
    }
}
