//! Clients that mean harm, and policies that do: real processes against a real server behind FileWall. Each is denied or cut off
//! with a reason; memory stays bounded; the server and everybody else go on.

use super::{BOUND, Place, case_study, scenario};
use std::io::{BufRead, Write};
use std::process::Stdio;
use weir_lab::system;

pub const GOOD: &str = "10.9.1.2";
pub const BAD: &str = "10.9.1.3";
/// What FileWall may have in memory with a client that asks for all it can and takes nothing, KiB.
const MEMORY_KIB_MAX: u64 = 256 << 10;

pub fn adversary(place: &Place, source: &str, uid: u32, arguments: &[&str]) -> std::process::Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs_adversary.py");
    let mut command = place.client.command("python3");
    command.args(["-u", script, "10.9.1.1", "/vfs", source, &uid.to_string()]).args(arguments);
    command
}

/// The lines that an attempt prints.
fn attempt(place: &Place, source: &str, uid: u32, arguments: &[&str]) -> Vec<String> {
    let output = system::run_output(adversary(place, source, uid, arguments), BOUND).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

/// A second machine, as far as FileWall can tell.
pub fn second_client(place: &Place) {
    place.client.ip(&["address", "add", "10.9.1.3/24", "dev", "c0"]).unwrap();
}

fn memory_kib(place: &Place, name: &str) -> u64 {
    let record = place.scope.programs().into_iter().find(|(known, _)| known == name).unwrap().1;
    let status = std::fs::read_to_string(format!("/proc/{}/status", record.pid)).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn handles_that_are_forged_or_somebody_elses_are_refused() {
    scenario("handles_that_are_forged_or_somebody_elses_are_refused", |place| {
        second_client(place);
        std::fs::write(place.path("file"), b"content").unwrap();
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let mut wall = place.start_wall("wall", &policy);
        // 10001 is BADHANDLE. What has no handle's length is no call.
        let forged = attempt(place, GOOD, 0, &["forge", "file"]);
        let only_bad =
            |line: &str| line.split(' ').all(|one| one.starts_with("10001:") || one.starts_with("rpc 4:"));
        assert!(only_bad(&forged[0]) && only_bad(&forged[1]), "{forged:?}");
        assert_eq!(forged[2], "0", "the good one");
        let handle = attempt(place, GOOD, 0, &["handle", "file"]).remove(0);
        assert_eq!(attempt(place, GOOD, 0, &["use", &handle]), ["0 0"]);
        assert_eq!(attempt(place, BAD, 0, &["use", &handle]), ["10001 10001"], "another machine's");
        // Taken down on the wire, used after FileWall has got another key: refused too.
        let details = place.status().unwrap()["policies"][0]["details"].clone();
        assert!(details["forged"].as_u64() > Some(200), "{details}");
        wall.kill().unwrap();
        std::fs::remove_file(place.folder.path().join("policies/key")).unwrap();
        place.start_wall("wall-again", &policy);
        assert_eq!(attempt(place, GOOD, 0, &["use", &handle]), ["10001 10001"], "a handle of yesterday");
        assert_eq!(std::fs::read(place.path("file")).unwrap(), b"content");
    });
}

#[test]
fn records_and_numbers_that_lie_are_cut_off_or_answered_once() {
    scenario("records_and_numbers_that_lie_are_cut_off_or_answered_once", |place| {
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        let wall = place.start_wall("wall", &policy);
        let said = attempt(place, GOOD, 0, &["records"]);
        // 4 is GARBAGE_ARGS of RPC.
        let expected = ["cut off", "cut off", "cut off", "cut off", "rpc 4 rpc 4", "rpc 4", "rpc 4", "0"];
        assert_eq!(said, expected);
        // Made, its copy answered from memory, removed, its copy answered from memory; then both copies on another connection.
        assert_eq!(attempt(place, GOOD, 0, &["reuse", "name"]), ["0 0 0 0", "0 0", "2"]);
        assert!(!std::path::Path::new(&place.path("name")).exists());
        let counters = place.status().unwrap()["totals"]["counters"].clone();
        assert_eq!(counters["replayed_total"].as_u64(), Some(4));
        assert!(counters["bad_records_total"].as_u64() >= Some(4), "{counters}");
        assert!(wall.alive());
    });
}

#[test]
fn compounds_that_lie_and_handles_and_sessions_of_others_lead_nowhere() {
    scenario("compounds_that_lie_and_handles_and_sessions_of_others_lead_nowhere", |place| {
        second_client(place);
        std::fs::write(place.path("file"), b"public").unwrap();
        std::fs::write(place.path("private"), b"secret").unwrap();
        let rules =
            "kind: access\ndefault: allow\nrules:\n- {deny: [all], paths: [/private], clients: [10.9.1.3]}\n";
        let policy = place.write_policy(&format!("kind: handles\nkey-file: key\n---\n{rules}"));
        let wall = place.start_wall("wall", &policy);
        let handle = attempt(place, GOOD, 0, &["handle4", "private"]).remove(0);
        assert_eq!(attempt(place, GOOD, 0, &["use4", &handle]), ["0"]);
        assert_eq!(attempt(place, BAD, 0, &["use4", &handle]), ["10001"], "another machine's");
        // 10018 is RESOURCE, 2 is NOENT: above the export there is the way to it and nothing else.
        let said = attempt(place, GOOD, 0, &["compounds", &handle]);
        let garbage = ["rpc 4"; 6].join(", ");
        assert_eq!(said, ["10001:64", &garbage, "10018 2 2", "0"]);
        // What a server remembers of a place in a session, for copies, it would tell whoever asks there.
        let said = attempt(place, GOOD, 0, &["read-once", "private"]).remove(0);
        let (session, read) = said.split_once(' ').unwrap();
        assert_eq!(read, "0 secret");
        assert_eq!(
            attempt(place, BAD, 0, &["steal", session, "file"]),
            ["10052 "],
            "BADSESSION: it is another's"
        );
        assert!(place.counter("foreign_sessions_total") >= Some(1));
        assert_eq!(attempt(place, GOOD, 0, &["steal", session, "file"]), ["10076 "], "SEQ_FALSE_RETRY");
        // nfs-ganesha remembers that it was read, but not the data.
        assert!(attempt(place, GOOD, 0, &["steal", session, "private"])[0].starts_with("0 "), "a copy");
        assert_eq!(place.counter("false_retries_total"), Some(1));
        assert!(wall.alive());
    });
}

#[test]
fn who_says_to_be_somebody_else_has_no_role_where_that_one_is_not_at_home() {
    scenario("who_says_to_be_somebody_else_has_no_role_where_that_one_is_not_at_home", |place| {
        second_client(place);
        for (name, uid) in [("bob", 1002), ("charles", 1003)] {
            std::fs::write(place.path(name), name).unwrap();
            std::os::unix::fs::chown(place.path(name), Some(uid), Some(uid)).unwrap();
        }
        // charles is a developer at home, whom bob, another one, says to be.
        let homes = "machines: {bob: [10.9.1.2], charles: [10.9.1.3]}\nthreat: {role";
        let policy = place.write_policy(&case_study().replace("threat: {role", homes));
        place.start_wall("wall", &policy);
        assert_eq!(attempt(place, GOOD, 1002, &["spoof", "bob", "1003"]), ["0 13"]);
        assert_eq!(attempt(place, BAD, 1003, &["spoof", "charles", "1002"]), ["0 13"]);
        let log = std::fs::read_to_string(place.folder.path().join("policies/rbac.log")).unwrap();
        let alarm = |user: &str, client: &str| {
            let fits = |line: &&str| {
                line.contains("\"permission\":\"alarm\"") && line.contains(user) && line.contains(client)
            };
            log.lines().any(|line| fits(&line))
        };
        assert!(alarm("charles", GOOD) && alarm("bob", BAD), "{log}");
    });
}

#[test]
fn a_client_that_takes_no_replies_stalls_only_itself() {
    scenario("a_client_that_takes_no_replies_stalls_only_itself", |place| {
        std::fs::write(place.path("large"), vec![7; 1 << 20]).unwrap();
        let policy = place.write_policy("kind: handles\nkey-file: key\n");
        place.start_wall("wall", &policy);
        let floods: Vec<_> = (0..4)
            .map(|_| {
                let mut command = adversary(place, GOOD, 0, &["flood", "large", "100000"]);
                let mut flood = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                let mut said = String::new();
                std::io::BufReader::new(flood.stdout.take().unwrap()).read_line(&mut said).unwrap();
                assert_eq!(said, "stalled\n");
                flood
            })
            .collect();
        // Everybody else is served meanwhile, and what it costs is bounded.
        assert_eq!(place.client(0, &["create", "/other", "served"]), Ok(String::new()));
        assert_eq!(place.client(0, &["read", "/other"]), Ok("served".to_string()));
        let counters = place.status().unwrap()["totals"]["counters"].clone();
        assert!(counters["pending"].as_u64() <= Some(4 * 1024), "{counters}");
        assert!(memory_kib(place, "wall") < MEMORY_KIB_MAX, "{} KiB", memory_kib(place, "wall"));
        for mut flood in floods {
            flood.stdin.take().unwrap().flush().unwrap();
            assert!(flood.wait().unwrap().success());
        }
        assert!(place.list(super::SERVER, "").is_some(), "the server is unharmed");
    });
}

#[test]
fn a_policy_that_loops_or_traps_denies_the_call_and_hurts_no_other() {
    scenario("a_policy_that_loops_or_traps_denies_the_call_and_hurts_no_other", |place| {
        std::fs::write(place.path("file"), b"content").unwrap();
        let wall_policy = |body: &str| {
            let text = format!(
                "(module (memory (export \"memory\") 1) (func (export \"request\") (result i32) {body} (i32.const 0)))"
            );
            let policy = place.write_policy("kind: module\nfile: policy.wat\nops: [REMOVE]\n");
            std::fs::write(place.folder.path().join("policies/policy.wat"), text).unwrap();
            policy
        };
        for (number, body) in ["(loop $again (br $again))", "unreachable"].into_iter().enumerate() {
            let policy = wall_policy(body);
            let mut wall = place.start_wall(&format!("wall-{number}"), &policy);
            // libnfs says of SERVERFAULT what it is.
            assert!(place.client(0, &["remove", "/file"]).is_err(), "{body}");
            assert_eq!(place.client(0, &["read", "/file"]), Ok("content".to_string()));
            let details = place.status().unwrap()["policies"][0].clone();
            assert!(details["details"]["cut_off"].as_u64() >= Some(1), "{details}");
            wall.kill().unwrap();
        }
        assert_eq!(std::fs::read(place.path("file")).unwrap(), b"content");
    });
}
