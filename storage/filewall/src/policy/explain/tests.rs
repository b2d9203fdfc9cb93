//! What is explained is what happens.

use super::*;
use crate::message::Now;
use crate::policy::access::tests::RULES;
use crate::policy::tests::{Made, answer, chain, made};
use crate::policy::time::parse_unix_ms;
use crate::wire::nfs3::Handle;

/// Before the rules of the tests of `access`.
const FROZEN: &str = "
kind: read-only
paths: [/src/old]
timezone: UTC
time: [{from: \"00:00\", to: \"12:00\"}]
---";

/// An operation on an object, or on the name `x` in it.
fn call(op: Op, uid: u32, handle: &'static [u8]) -> Made {
    made(uid, op, |record| match op {
        Op::Read => record.opaque(handle).u64(0).u32(4),
        Op::Write => record.opaque(handle).u64(0).u32(4).u32(0).opaque(b"data"),
        Op::Commit => record.opaque(handle).u64(0).u32(4),
        Op::Setattr => [0; 7].into_iter().fold(record.opaque(handle), |record, word| record.u32(word)),
        Op::Mkdir => {
            [0; 6].into_iter().fold(record.opaque(handle).opaque(b"x"), |record, word| record.u32(word))
        }
        Op::Lookup | Op::Rmdir => record.opaque(handle).opaque(b"x"),
        _ => record.opaque(handle),
    })
}

#[test]
fn what_is_explained_is_what_is_done() {
    let chain = chain(&format!("{FROZEN}{RULES}"));
    let context = chain.context();
    chain.knows_mount(&Handle::new(b"root").unwrap(), b"/");
    let folders: [(&'static [u8], &[u8]); 4] =
        [(b"root", b"/"), (b"src", b"/src"), (b"old", b"/src/old"), (b"in-old", b"/src/old/in")];
    for (handle, path) in folders {
        context.places.learn(handle, context.zones.place(path).unwrap(), b"root", None);
    }
    let times =
        ["2026-11-21T08:59:59Z", "2026-11-21T11:59:59Z", "2026-11-21T12:00:00Z", "2026-11-21T17:00:00Z"];
    let ops = [
        Op::Getattr,
        Op::Setattr,
        Op::Lookup,
        Op::Readlink,
        Op::Read,
        Op::Write,
        Op::Mkdir,
        Op::Rmdir,
        Op::Commit,
    ];
    let (mut asked, mut denied) = (0, 0);
    for (uid, client, time) in [1001, 1002, 1003]
        .into_iter()
        .flat_map(|uid| [[10, 0, 0, 1], [10, 0, 9, 5]].map(|client| (uid, client)))
        .flat_map(|(uid, client)| times.map(|time| (uid, client, time)))
    {
        let unix_ms = parse_unix_ms(time).unwrap();
        let caller = chain.principals().get(chain.identities(), client.into(), uid, 100, &[]);
        for ((handle, path), op) in folders.into_iter().flat_map(|folder| ops.map(|op| (folder, op))) {
            let mut made = call(op, uid, handle);
            (made.client, made.now) = (client, Now { unix_ms, steady_us: 0 });
            let path = if matches!(op, Op::Mkdir | Op::Rmdir | Op::Lookup) {
                [path, b"/x"].concat()
            } else {
                path.to_vec()
            };
            let place = context.zones.place(&path).unwrap();
            let question = Question { caller: caller.clone(), op, place, unix_ms };
            let steps = explain(&chain, &question, &context);
            let said = steps.last().and_then(|step| step.step.answer);
            let path = String::from_utf8_lossy(&path);
            assert_eq!(said, answer(&chain, &made), "{uid} at {client:?} {op} {path} at {time}: {steps:?}");
            asked += 1;
            denied += usize::from(said.is_some());
        }
    }
    assert!(denied > asked / 5 && denied < asked * 4 / 5, "{denied} of {asked} are denied: both are tried");
}
