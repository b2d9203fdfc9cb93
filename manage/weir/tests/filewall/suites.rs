//! Suites of tests that others wrote for NFS servers, with FileWall and without it: the same set must pass.

use super::{Place, SERVER, WALL, scenario};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_lab::system;

const LIBNFS: &str = "/var/cache/weir/libnfs-suite";
const PYNFS: &str = "/var/cache/weir/pynfs";
/// For a whole suite on a loaded machine.
const BOUND: Duration = Duration::from_secs(1500);
/// All of them are run where this is set: `make suites`.
const WHOLE: &str = "WEIR_SUITES";

/// Which tests passed.
type Passed = BTreeMap<String, bool>;

fn script(name: &str) -> String {
    format!("{}/../../scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn whole() -> bool {
    std::env::var_os(WHOLE).is_some()
}

/// Runs a script of a suite on the client; its lines `PASS name` and `FAIL name: reason`.
fn told(place: &Place, program: &str, arguments: &[&str]) -> Passed {
    let mut command: Command = place.client.command(program);
    command.args(arguments);
    let output = system::run_output(command, BOUND).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let (verdict, rest) = line.split_once(' ')?;
        let name = rest.split(':').next()?.to_string();
        matches!(verdict, "PASS" | "FAIL").then_some((name, verdict == "PASS"))
    };
    text.lines().filter_map(line).collect()
}

/// What passes with FileWall is what passes without but for those that are known to differ, all of which do; and that is not nothing.
fn compare(what: &str, without: &Passed, with: &Passed, known: &[(&str, &str)], least: usize) {
    let differ: Vec<_> = without
        .iter()
        .filter(|(name, passed)| with.get(*name) != Some(*passed))
        .map(|(name, _)| name)
        .collect();
    let passed = without.values().filter(|passed| **passed).count();
    println!("{what}: {passed} of {} pass without FileWall, with it {differ:?} differ", without.len());
    assert_eq!(without.len(), with.len(), "{what}");
    let known: Vec<_> = known.iter().map(|(name, _)| name).collect();
    assert_eq!(differ, known, "{what}");
    assert!(passed >= least, "{what}: only {passed} of {} pass on the server itself", without.len());
}

/// Handles, roles and the control folder. All users of the suites are administrators, so that what is refused is refused by the
/// server.
const POLICY: &str = "
kind: identities
users: {root: {uid: 0, roles: [admin]}, other: {uid: 3912, roles: [admin]}, daemon: {uid: 1, roles: [admin]}}
roles: {admin: {}}
---
kind: handles
key-file: key
---
kind: rbac
state-file: rbac.state
control: .control
initial: [admin]
administrators: [admin]
rules: permit (principal in Role::\"admin\", action, resource);
";

/// Where FileWall answers otherwise, and why: pynfs's codes. `docs/operate/filewall.md` says it to people.
const DIFFERENT_4_0: [(&str, &str); 2] = [
    ("OPEN20", "another administrator opens the file as its owner would"),
    ("WRT19", "likewise, and writes it"),
];
const DIFFERENT_4_1: [(&str, &str); 3] = [
    ("CSID3", "under roles, what is made is not written to in the same COMPOUND"),
    ("CSID5", "likewise, nor looked up in"),
    ("CSID8", "likewise, nor changed"),
];

#[test]
fn the_tests_of_libnfs_pass_with_and_without_filewall() {
    let name = "the_tests_of_libnfs_pass_with_and_without_filewall";
    if !Path::new(LIBNFS).join("tests/prog_stat").exists() {
        return println!("NOT RUN {name}: its tests are not here: run scripts/libnfs-suite build");
    }
    scenario(name, |place| {
        place.start_wall("wall", &place.write_policy(POLICY));
        // Those under valgrind look for leaks of the client, those of time-outs at a client that is cut off.
        let pattern = if whole() { "*" } else { "!(*valgrind*|*timeout*|*rpm*)" };
        let suite = |url: &str, version: &str| {
            let export = place.export();
            told(place, &script("libnfs-suite"), &["run", url, &export, version, LIBNFS, pattern])
        };
        for version in ["3", "4"] {
            let both = || (suite(SERVER, version), suite(WALL, version));
            let mut ran = both();
            // Some compare a file's times with what it was a moment ago, and fail at the turn of a second, with FileWall or without.
            for _ in 0..2 {
                if ran.0 != ran.1 {
                    ran = both();
                }
            }
            compare(&format!("libnfs, NFSv{version}"), &ran.0, &ran.1, &[], 30);
        }
        place.all_was_understood();
    });
}

#[test]
fn the_tests_of_pynfs_pass_with_and_without_filewall() {
    let name = "the_tests_of_pynfs_pass_with_and_without_filewall";
    if !Path::new(PYNFS).join("nfs4.0/testserver.py").exists() {
        return println!(
            "NOT RUN {name}: there is no pynfs in {PYNFS}, and no registry has it: make suites PYNFS=ARCHIVE-OR-FOLDER"
        );
    }
    if !whole() {
        return println!("NOT RUN {name}: it takes a quarter of an hour: make suites");
    }
    scenario(name, |place| {
        place.start_wall("wall", &place.write_policy(POLICY));
        for (version, known, least) in [("4.0", &DIFFERENT_4_0[..], 100), ("4.1", &DIFFERENT_4_1, 30)] {
            let suite = |server: &str| told(place, &script("pynfs-suite"), &["run", server, version, PYNFS]);
            let (without, with) = (suite("10.9.0.2:/vfs"), suite("10.9.1.1:/vfs"));
            compare(&format!("pynfs {version}"), &without, &with, known, least);
        }
    });
}
