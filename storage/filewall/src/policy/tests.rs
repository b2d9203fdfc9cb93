//! Shared by the tests of policies: calls through a chain that was loaded from text.

use super::*;
use crate::wire::build::{Caller, Record};
use crate::wire::call::arguments;
use crate::wire::rpc::call_head;
use crate::wire::xdr::Reader;

/// A chain from the text of a policy file.
pub(crate) fn chain(text: &str) -> Chain {
    try_chain(text, None).unwrap()
}

pub(crate) fn try_chain(text: &str, before: Option<&Chain>) -> crate::Result<Chain> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("policy.yaml"), text).unwrap();
    load(folder.path(), before)
}

/// A call for tests.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) uid: u32,
    pub(crate) client: [u8; 4],
    pub(crate) now: Now,
    pub(crate) record: Vec<u8>,
}

pub(crate) fn made(uid: u32, op: Op, write: impl FnOnce(Record) -> Record) -> Made {
    let caller = Caller { uid, gid: 100, groups: &[] };
    let record = write(Record::nfs3(1, op, &caller)).datagram();
    Made { uid, client: [10, 0, 0, 1], now: Now::default(), record }
}

/// Shows a call to a chain, and returns what becomes of it and what `look` sees of the call then.
pub(crate) fn ask<T>(chain: &Chain, made: &Made, look: impl FnOnce(&Call<'_>) -> T) -> (Outcome, T) {
    let mut record = made.record.clone();
    let bytes = record.len();
    let mut reader = Reader::whole(&record);
    let head = call_head(&mut reader).unwrap();
    let found = arguments(&mut reader, Op::from_number(head.procedure).unwrap()).unwrap();
    let caller = chain.principals().get(chain.identities(), made.client.into(), made.uid, 100, &[]);
    let mut call = Call::new(&mut record, bytes, head, found, &caller, made.now);
    let outcome = chain.request(&mut call, 0, 0);
    (outcome, look(&call))
}

pub(crate) fn answer(chain: &Chain, made: &Made) -> Option<Status> {
    match ask(chain, made, |_| ()).0 {
        Outcome::Answer { status, .. } => Some(status),
        _ => None,
    }
}

#[test]
fn the_shipped_examples_are_sound() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/filewall");
    let mut count = 0;
    for file in std::fs::read_dir(&examples).unwrap() {
        let file = file.unwrap().path();
        if file.is_dir() {
            continue;
        }
        // A copy, so that no key or log is made beside the examples.
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("policy.yaml");
        std::fs::copy(&file, &copy).unwrap();
        load(&copy, None).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        count += 1;
    }
    assert!(count >= 4, "{count} examples");
}

#[test]
fn logs_of_who_did_what_are_their_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind: identities\nusers: {bob: {uid: 7, roles: [user]}}\nroles: {user: {}}\n---\n\
                kind: audit\nfile: audit.log\nops: [all]\noutcome: all\n---\n\
                kind: rbac\nstate-file: rbac.state\nlog-file: rbac.log\ninitial: [user]\n\
                rules: permit (principal in Role::\"user\", action, resource);\n";
    std::fs::write(folder.path().join("policy.yaml"), text).unwrap();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    // One log is new, the other was made open to everybody.
    let old = folder.path().join("rbac.log");
    std::fs::write(&old, "{}\n").unwrap();
    std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
    drop(load(folder.path(), None).unwrap());
    assert_eq!((mode("audit.log"), mode("rbac.log")), (0o600, 0o600));
    std::fs::remove_file(&old).unwrap();
    std::fs::set_permissions(folder.path().join("audit.log"), Permissions::from_mode(0o666)).unwrap();
    drop(load(folder.path(), None).unwrap());
    assert_eq!((mode("audit.log"), mode("rbac.log")), (0o600, 0o600));
}
