//! Modules that work, and modules that do not.

use crate::message::Now;
use crate::policy::tests::{Made, answer, ask, made};
use crate::policy::{Chain, Outcome, load};
use crate::wire::nfs3::{Op, Status};
use crate::wire::rpc::Credential;

fn chain_of(module: &str, more: &str) -> Result<(Chain, tempfile::TempDir), String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.wat"), module).unwrap();
    let text = format!("kind: module\nfile: m.wat\nops: [all]\n{more}");
    std::fs::write(folder.path().join("policy.yaml"), text).unwrap();
    load(folder.path(), None).map(|chain| (chain, folder)).map_err(|error| error.to_string())
}

fn remove() -> Made {
    made(5000, Op::Remove, |record| record.opaque(b"folder").opaque(b"name"))
}

const IMPORTS: &str = r#"
  (import "filewall" "number" (func $number (param i32) (result i64)))
  (import "filewall" "set_number" (func $set (param i32 i64)))
  (import "filewall" "text" (func $text (param i32 i32 i32) (result i32)))
  (import "filewall" "store" (func $store (param i32 i32 i64)))
  (import "filewall" "results" (func $results (param i32 i32)))
  (memory (export "memory") 1)"#;

fn request(body: &str) -> String {
    format!("(module {IMPORTS} (func (export \"request\") (result i32) {body}))")
}

#[test]
fn a_module_sees_changes_answers_and_generates() {
    let (chain, _folder) =
        chain_of(include_str!("../../../../../docs/operate/filewall/modules/remap.wat"), "").unwrap();
    let (outcome, uid) = ask(&chain, &remove(), |call| {
        let Credential::Sys(sys) = &call.head.credential else { panic!() };
        call.word(sys.uid_at)
    });
    assert_eq!((outcome, uid), (Outcome::Forward { handled: 1 }, 1001));
    // Denies what is called "name".
    let body = r#"(if (result i32) (i32.and (i32.eq (call $text (i32.const 0) (i32.const 0) (i32.const 64)) (i32.const 4))
        (i32.eq (i32.load (i32.const 0)) (i32.const 0x656d616e))) (then (i32.const 13)) (else (i32.const 0)))"#;
    let (chain, _folder) = chain_of(&request(body), "").unwrap();
    assert_eq!(answer(&chain, &remove()), Some(Status::Acces));
    // Results of a REMOVE: success, and no attributes.
    let (chain, _folder) =
        chain_of(&request("(call $results (i32.const 0) (i32.const 12)) (i32.const -1)"), "").unwrap();
    let (outcome, results) = ask(&chain, &remove(), |call| call.results.clone());
    assert_eq!((outcome, results), (Outcome::Reply { handled: 0 }, vec![0; 12]));
}

#[test]
fn time_is_what_the_message_says_and_counts_are_kept() {
    let (chain, _folder) =
        chain_of(include_str!("../../../../../docs/operate/filewall/modules/closed.wat"), "").unwrap();
    for (hour, expected) in [(12, None), (23, Some(Status::Acces)), (5, Some(Status::Acces)), (6, None)] {
        let call = Made { now: Now { unix_ms: hour * 3_600_000, steady_us: 0 }, ..remove() };
        assert_eq!(answer(&chain, &call), expected, "{hour}");
    }
    let module = include_str!("../../../../../docs/operate/filewall/modules/statistics.wat");
    let (chain, folder) = chain_of(module, "").unwrap();
    assert_eq!(answer(&chain, &remove()), None);
    let chain = load(folder.path(), Some(&chain)).unwrap();
    assert_eq!(chain.rows()[0].details["keys"], 1, "the context survives a reload");
}

#[test]
fn a_module_that_loops_traps_or_grows_is_cut_off_and_the_next_call_is_served() {
    let only_for_name = |body: &str| {
        let test = "(i32.eq (call $text (i32.const 0) (i32.const 0) (i32.const 64)) (i32.const 4))";
        request(&format!("(if {test} (then {body})) (i32.const 0)"))
    };
    for (body, why) in [
        ("(loop $again (br $again))", "a loop"),
        ("unreachable", "a trap"),
        ("(drop (i32.load (i32.const 0x7fffffff)))", "out of memory's bounds"),
        ("(drop (memory.grow (i32.const 1000)))", "more memory than allowed"),
        ("(drop (call $number (i32.const 99)))", "a number that is none"),
        ("(call $set (i32.const 0) (i64.const 1))", "a number that cannot be set"),
        ("(call $store (i32.const 0) (i32.const 100000) (i64.const 1))", "a key that is too long"),
        ("(call $results (i32.const 60000) (i32.const 60000))", "results beyond the memory"),
    ] {
        let (chain, _folder) = chain_of(&only_for_name(body), "").unwrap();
        assert_eq!(answer(&chain, &remove()), Some(Status::ServerFault), "{why}");
        assert_eq!(chain.rows()[0].details["cut_off"], 1, "{why}");
        let other = made(1, Op::Getattr, |record| record.opaque(b"handle"));
        assert_eq!(answer(&chain, &other), None, "{why}: the next call");
    }
}

#[test]
fn a_module_that_is_none_is_refused_when_it_is_loaded() {
    for (module, reason) in [
        ("(module".to_string(), "module"),
        ("(module (memory (export \"memory\") 1))".to_string(), "request"),
        ("(module (func (export \"request\") (result i32) (i32.const 0)))".to_string(), "memory"),
        (request("(i32.const 0)").replace("\"number\"", "\"open\""), "open"),
        (request("(drop (f32.add (f32.const 1) (f32.const 1))) (i32.const 0)"), "float"),
    ] {
        let error = chain_of(&module, "").map(|_| ()).unwrap_err();
        assert!(error.contains(reason), "{module}: {error}");
    }
    assert!(
        chain_of(&request("(i32.const 0)"), "memory-bytes: 100\n").is_err(),
        "less memory than it begins with"
    );
}
