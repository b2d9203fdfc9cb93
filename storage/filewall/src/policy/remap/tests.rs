//! Tests of remapping.

use crate::policy::tests::{ask, chain, made, try_chain};
use crate::wire::nfs3::Op;
use crate::wire::rpc::Credential;

const MAP: &str = "kind: remap\nusers: {1001: 2001, 0: 65534}\ngroups: {100: 200}\nclear-mode: \"6022\"";

#[test]
fn callers_and_what_they_set_are_mapped() {
    let chain = chain(MAP);
    // Mode, owner and group are set, size and times are not; there is no guard.
    let set = made(1001, Op::Setattr, |record| {
        [1, 0o6777, 1, 0, 1, 77, 0, 0, 0, 0]
            .into_iter()
            .fold(record.opaque(b"file"), |record, word| record.u32(word))
    });
    let seen = ask(&chain, &set, |call| {
        let Credential::Sys(sys) = call.head.credential else { panic!() };
        let set = call.arguments.set;
        [sys.uid_at, sys.uid_at + 4, set.mode_at.unwrap(), set.uid_at.unwrap(), set.gid_at.unwrap()]
            .map(|at| call.word(at))
    });
    assert_eq!(seen.1, [2001, 200, 0o755, 65534, 77]);
}

#[test]
fn two_maps_after_each_other_compose() {
    let chain = chain("kind: remap\nname: a\nusers: {1: 2}\n---\nkind: remap\nname: b\nusers: {2: 3}");
    let seen = ask(&chain, &made(1, Op::Getattr, |record| record.opaque(b"file")), |call| {
        let Credential::Sys(sys) = call.head.credential else { panic!() };
        call.word(sys.uid_at)
    });
    assert_eq!(seen.1, 3);
}

#[test]
fn a_mode_that_is_none_is_refused() {
    let wrong = try_chain("kind: remap\nclear-mode: \"99\"", None).unwrap_err().to_string();
    assert!(wrong.contains("clear-mode '99'"), "{wrong}");
}

#[test]
fn a_chain_says_which_policy_keeps_nfsv4_out() {
    let said = chain("kind: remap\nname: office\nusers: {1: 2}\n---\nkind: statistics\n").refuses_nfs4();
    assert!(said.as_deref().is_some_and(|said| said.contains("'office' (kind: remap)")), "{said:?}");
    assert_eq!(chain("kind: statistics\n").refuses_nfs4(), None);
}
