//! Signals that come all the time, in programs of which known calls are seen, and every one.

use super::{built, injector, intercept_for, text};
use std::path::Path;
use std::process::Command;
use weir_intercept::Calls;

const STRESS: &str = "/usr/bin/stress-ng";
/// How often each storm comes: what it looks for takes a moment of some ten nanoseconds.
const STORMS: usize = 10;
/// Storms of `stress-ng`, of one second each: a signal for each write to a pipe, queued ones, ones that are waited for, nested ones, faults.
const STRESSORS: [&str; 6] = ["sigio", "sigrt", "sigsuspend", "signest", "sigsegv", "itimer"];

#[test]
fn each_signal_of_a_storm_is_handled_once() {
    let Some(injector) = injector("each_signal") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = built(folder.path(), "storm", linking);
        for calls in [Calls::Known, Calls::Every] {
            for _ in 0..STORMS {
                let output = intercept_for(&mut Command::new(&program), &injector, calls).output().unwrap();
                assert_eq!(text(&output), "fine\n", "{linking} {calls:?}");
            }
        }
    }
}

#[test]
fn what_lies_on_an_alternate_stack_stays() {
    let Some(injector) = injector("alternate_stack") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = built(folder.path(), "alternate", linking);
        for calls in [Calls::Known, Calls::Every] {
            let output = intercept_for(&mut Command::new(&program), &injector, calls).output().unwrap();
            assert_eq!(text(&output), "fine\n", "{linking} {calls:?}");
        }
    }
}

#[test]
fn bad_pointers_are_errors_whatever_is_blocked() {
    let Some(injector) = injector("bad_pointers") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = built(folder.path(), "blocked", linking);
        for calls in [Calls::Known, Calls::Every] {
            let output = intercept_for(&mut Command::new(&program), &injector, calls).output().unwrap();
            assert_eq!(text(&output), "fine\n", "{linking} {calls:?}");
        }
    }
}

#[test]
fn pieces_that_are_told_by_signals_all_arrive() {
    let Some(injector) = injector("pieces") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = built(folder.path(), "unknown", "-pie");
    for _ in 0..2 * STORMS {
        let mut command = Command::new(&program);
        let output = intercept_for(command.arg("storm"), &injector, Calls::Every).output().unwrap();
        assert_eq!(text(&output), "fine\n");
    }
}

#[test]
fn storms_of_stress_ng_end() {
    let Some(injector) = injector("storms_of_stress_ng") else { return };
    if !Path::new(STRESS).exists() {
        return println!("NOT RUN storms_of_stress_ng_end: stress-ng is not installed");
    }
    for calls in [Calls::Known, Calls::Every] {
        for stressor in STRESSORS {
            let mut command = Command::new(STRESS);
            command.args([&format!("--{stressor}"), "2", "-t", "1", "--temp-path", "/tmp"]);
            let output = intercept_for(&mut command, &injector, calls).output().unwrap();
            assert!(output.status.success(), "{stressor} {calls:?}: {output:?}");
        }
    }
}
