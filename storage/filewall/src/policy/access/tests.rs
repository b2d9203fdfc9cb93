//! Tests of access rules.

use super::*;
use crate::message::Now;
use crate::policy::tests::{answer, ask, chain, made, try_chain};
use crate::policy::time::parse_unix_ms;
use crate::wire::nfs3::Handle;

pub(crate) const RULES: &str = "
kind: identities
users:
  alice: {uid: 1001, roles: [user]}
  bob: {uid: 1002, roles: [developer]}
roles:
  user: {}
  developer: {inherits: [user]}
---
kind: access
default: deny
timezone: UTC
rules:
- deny: [changes]
  clients: [10.0.9.0/24]
  answer: rofs
- allow: [all]
  roles: [developer]
  paths: [/src]
- deny: [reads]
  users: [alice]
  time: [{from: \"17:00\", to: \"09:00\"}]
- allow: [looks, reads]
  roles: [user]
";

/// A chain that knows the handles `root`, `src` and `file` (in `src`).
fn rules() -> crate::policy::Chain {
    let chain = chain(RULES);
    let zones = chain.context().zones;
    let places = chain.context().places;
    chain.knows_mount(&Handle::new(b"root").unwrap(), b"/");
    places.learn(b"src", zones.place(b"/src").unwrap(), b"root", None);
    places.learn(b"file", zones.place(b"/src/file").unwrap(), b"src", None);
    chain
}

fn at(text: &str) -> Now {
    Now { unix_ms: parse_unix_ms(text).unwrap(), steady_us: 0 }
}

fn write(uid: u32, handle: &[u8]) -> crate::policy::tests::Made {
    made(uid, Op::Write, |record| record.opaque(handle).u64(0).u32(4).u32(0).opaque(b"data"))
}

fn read(uid: u32, time: &str) -> crate::policy::tests::Made {
    let mut made = made(uid, Op::Read, |record| record.opaque(b"root").u64(0).u32(4));
    made.now = at(time);
    made
}

#[test]
fn the_first_rule_that_fits_decides() {
    let chain = rules();
    assert_eq!(answer(&chain, &write(1002, b"file")), None, "a developer below /src");
    assert_eq!(answer(&chain, &write(1002, b"root")), Some(Status::Acces), "a developer elsewhere");
    assert_eq!(answer(&chain, &write(1001, b"file")), Some(Status::Acces), "a user");
    assert_eq!(answer(&chain, &write(1003, b"file")), Some(Status::Acces), "nobody that is known");
    let mut away = write(1002, b"file");
    away.client = [10, 0, 9, 5];
    assert_eq!(answer(&chain, &away), Some(Status::Rofs), "a developer on the wrong subnet");
}

#[test]
fn windows_open_and_close_also_for_what_is_remembered() {
    let chain = rules();
    for (time, denied) in [
        ("2026-11-21T16:59:59Z", None),
        ("2026-11-21T17:00:00Z", Some(Status::Acces)),
        ("2026-11-22T08:59:59Z", Some(Status::Acces)),
        ("2026-11-22T09:00:00Z", None),
    ] {
        assert_eq!(answer(&chain, &read(1001, time)), denied, "{time}");
        assert_eq!(answer(&chain, &read(1002, time)), None, "a developer at {time}");
    }
}

#[test]
fn a_name_has_the_place_that_its_directory_gives_it() {
    let chain = rules();
    let create = |handle: &'static [u8], name: &'static [u8]| {
        made(1002, Op::Remove, move |record| record.opaque(handle).opaque(name))
    };
    assert_eq!(answer(&chain, &create(b"src", b"x")), None);
    assert_eq!(answer(&chain, &create(b"root", b"x")), Some(Status::Acces));
    assert_eq!(answer(&chain, &create(b"root", b"src")), None, "the folder itself belongs to the rule");
}

#[test]
fn a_handle_that_is_not_known_is_looked_up_again() {
    assert_eq!(answer(&rules(), &write(1002, b"unknown")), Some(Status::Stale));
}

#[test]
fn nothing_moves_between_two_zones() {
    let chain = chain("kind: access\ndefault: allow\nrules: [{deny: [WRITE], paths: [/src]}]");
    let places = chain.context().places;
    chain.knows_mount(&Handle::new(b"root").unwrap(), b"/");
    places.learn(b"src", chain.context().zones.place(b"/src").unwrap(), b"root", None);
    let rename = |from: &'static [u8], to: &'static [u8]| {
        made(1, Op::Rename, move |record| record.opaque(from).opaque(b"a").opaque(to).opaque(b"b"))
    };
    assert_eq!(answer(&chain, &rename(b"src", b"root")), Some(Status::Xdev));
    assert_eq!(answer(&chain, &rename(b"root", b"src")), Some(Status::Xdev));
    assert_eq!(answer(&chain, &rename(b"src", b"src")), None);
    let whole =
        made(1, Op::Rename, |record| record.opaque(b"root").opaque(b"src").opaque(b"root").opaque(b"b"));
    assert_eq!(answer(&chain, &whole), Some(Status::Xdev), "the folder of the rule itself");
}

#[test]
fn access_tells_what_the_rules_leave() {
    let chain = rules();
    let asked = |uid: u32| {
        let mut made = made(uid, Op::Access, |record| record.opaque(b"root").u32(0x3f));
        made.now = at("2026-11-21T12:00:00Z");
        ask(&chain, &made, |call| call.word(call.arguments.access_at.unwrap())).1
    };
    assert_eq!(asked(1001) & (access::MODIFY | access::EXTEND | access::DELETE), 0);
    assert_ne!(asked(1001) & access::READ, 0);
}

#[test]
fn what_is_wrong_is_named_with_its_rule() {
    let wrong = |rule: &str| {
        try_chain(&format!("kind: access\ndefault: allow\nrules: [{{deny: [WRITE]}}, {rule}]"), None)
            .unwrap_err()
            .to_string()
    };
    for (rule, words) in [
        ("{deny: [WRYTE]}", "rule 2: 'WRYTE' is no operation"),
        ("{deny: [WRITE], allow: [READ]}", "rule 2: write either"),
        ("{deny: [WRITE], users: [zoe]}", "rule 2: user 'zoe'"),
        ("{deny: [WRITE], roles: [boss]}", "rule 2: role 'boss'"),
        ("{deny: [WRITE], clients: [10.0.0]}", "rule 2: '10.0.0' is no address"),
        ("{deny: [WRITE], paths: [x]}", "rule 2: path 'x'"),
        ("{deny: [WRITE], color: red}", "there is no field 'color'"),
    ] {
        assert!(wrong(rule).contains(words), "{rule}: {}", wrong(rule));
    }
}

#[test]
fn fifty_thousand_decisions_are_remembered_and_no_more() {
    let chain = chain("kind: access\ndefault: allow\nrules: []");
    let policy = Access::compile(
        &AccessFile { default: super::Default::Allow, timezone: None, rules: Vec::new() },
        chain.identities(),
        &mut Zones::default(),
    )
    .unwrap();
    for uid in 0..DECISIONS_MAX as u32 + 10 {
        let principal = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), uid, 1, &[]);
        policy.remembered(&principal, 0, chain.context().zones, 0);
    }
    assert!(policy.decisions.lock().unwrap().len() <= 10);
}

/// A CREATE of `new` in the root that sets the length, or not, in one of its ways.
fn create(uid: u32, how: u32, size: Option<u64>) -> crate::policy::tests::Made {
    made(uid, Op::Create, |record| {
        let record = record.opaque(b"root").opaque(b"new").u32(how).u32(0).u32(0).u32(0);
        let record = match size {
            Some(size) => record.u32(1).u64(size),
            None => record.u32(0),
        };
        record.u32(0).u32(0)
    })
}

#[test]
fn a_create_that_empties_a_file_is_a_change_of_it() {
    let chain = chain("kind: access\ndefault: allow\nrules:\n- {deny: [SETATTR], users: [\"1001\"]}\n");
    assert_eq!(answer(&chain, &create(1001, 0, None)), None);
    assert_eq!(answer(&chain, &create(1001, 1, Some(0))), None, "there is none yet");
    assert_eq!(answer(&chain, &create(1001, 0, Some(0))), Some(Status::Acces));
    assert_eq!(answer(&chain, &create(1002, 0, Some(0))), None);
}
