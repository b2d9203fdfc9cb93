//! What is left alone, and runs as ever.

use super::{injector, intercept, run, text};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn set_user_id_programs_keep_their_rights() {
    let Some(injector) = injector("set_user_id") else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("NOT RUN set_user_id: needs root to make such a program");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(1234), None).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let script = format!("{} -u", program.display());
    assert_eq!(text(&run(&injector, &["bash"], &script)), "1234\n");
    assert_eq!(injector.figures().injected, 1, "the shell only");
    // Asked for directly, the injector looks too.
    let output = intercept(Command::new(&program).arg("-u"), &injector).output().unwrap();
    assert_eq!(text(&output), "1234\n");
    let figures = injector.figures();
    assert_eq!(figures.injected, 1);
    assert_eq!(figures.refused.get("it is set-user-id or set-group-id"), Some(&1), "{figures:?}");
}

#[test]
fn traced_programs_stay_their_tracers() {
    let Some(injector) = injector("traced") else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return println!("NOT RUN traced: strace is not installed");
    }
    let output = run(&injector, &["bash"], "strace -f -o /dev/null bash -c '/bin/echo one; /bin/echo two'");
    assert_eq!(text(&output), "one\ntwo\n");
    let figures = injector.figures();
    assert!(figures.refused.keys().any(|reason| reason.contains("traces it")), "{figures:?}");
}

#[test]
fn without_an_injector_programs_run() {
    let Some(injector) = injector("without_an_injector") else { return };
    let mut command = Command::new("bash");
    command.args(["-c", "read wait; /bin/echo alone"]).stdin(std::process::Stdio::piped());
    let mut child = intercept(&mut command, &injector).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(injector);
    drop(child.stdin.take());
    assert_eq!(text(&child.wait_with_output().unwrap()), "alone\n");
}
