//! Tests of the freeze.

use crate::message::Now;
use crate::policy::tests::{answer, ask, chain, made};
use crate::policy::time::parse_unix_ms;
use crate::wire::nfs3::{CHANGES, Handle, Op, Status, access};

fn of(op: Op) -> crate::policy::tests::Made {
    made(1, op, |record| match op {
        Op::Write => record.opaque(b"root").u64(0).u32(0).u32(0).opaque(b""),
        Op::Commit => record.opaque(b"root").u64(0).u32(0),
        Op::Setattr => [0; 7].into_iter().fold(record.opaque(b"root"), |record, word| record.u32(word)),
        Op::Access => record.opaque(b"root").u32(0x3f),
        _ => record.opaque(b"root").opaque(b"name"),
    })
}

#[test]
fn nothing_changes_while_frozen() {
    let chain = chain("kind: read-only");
    for op in [Op::Write, Op::Setattr, Op::Remove, Op::Rmdir] {
        assert!(CHANGES & op.bit() != 0);
        assert_eq!(answer(&chain, &of(op)), Some(Status::Rofs), "{op}");
    }
    assert_eq!(answer(&chain, &of(Op::Commit)), None, "what was written becomes durable");
    assert_eq!(answer(&chain, &of(Op::Lookup)), None);
    let bits = ask(&chain, &of(Op::Access), |call| call.word(call.arguments.access_at.unwrap())).1;
    assert_eq!(bits, access::READ | access::LOOKUP | access::EXECUTE);
}

#[test]
fn folders_and_windows_narrow_it() {
    let chain =
        chain("kind: read-only\npaths: [/old]\ntimezone: UTC\ntime: [{from: \"00:00\", to: \"12:00\"}]");
    chain.knows_mount(&Handle::new(b"root").unwrap(), b"/");
    let remove = |name: &'static [u8], time: &str| {
        let mut made = made(1, Op::Remove, move |record| record.opaque(b"root").opaque(name));
        made.now = Now { unix_ms: parse_unix_ms(time).unwrap(), steady_us: 0 };
        made
    };
    assert_eq!(answer(&chain, &remove(b"old", "2026-11-21T11:59:59Z")), Some(Status::Rofs));
    assert_eq!(answer(&chain, &remove(b"new", "2026-11-21T11:59:59Z")), None);
    assert_eq!(answer(&chain, &remove(b"old", "2026-11-21T12:00:00Z")), None);
}
