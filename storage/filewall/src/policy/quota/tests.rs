//! Tests of quotas: limits, corrections by replies, and counts that outlive the process.

use super::*;
use crate::policy::tests::{Made, answer, ask, chain, made, try_chain};
use std::net::IpAddr;

fn quota(folder: &Path, bytes: Option<u64>, names: Option<u64>, period: Period) -> Quota {
    let file = QuotaFile { per: Per::User, bytes, names, period, state_file: PathBuf::from("counts.json") };
    Quota::compile(&file, Home::kept(folder), None).unwrap()
}

fn write(uid: u32, bytes: usize) -> Made {
    made(uid, Op::Write, |record| {
        record.opaque(b"file").u64(0).u32(bytes as u32).u32(0).opaque(&vec![0; bytes])
    })
}

#[test]
fn what_is_above_is_refused_and_others_are_not() {
    let chain = chain("kind: quota\nper: user\nbytes: 1000\nnames: 2\nperiod: day\nstate-file: counts\n");
    assert_eq!(answer(&chain, &write(1, 600)), None);
    assert_eq!(answer(&chain, &write(1, 600)), Some(Status::Dquot));
    assert_eq!(answer(&chain, &write(1, 400)), None, "what still fits");
    assert_eq!(answer(&chain, &write(2, 1000)), None, "another user");
    let make = || {
        made(1, Op::Mkdir, |record| {
            record.opaque(b"folder").opaque(b"name").u32(0).u32(0).u32(0).u32(0).u32(0).u32(0)
        })
    };
    assert_eq!([0; 3].map(|_| answer(&chain, &make())), [None, None, Some(Status::Dquot)]);
    let mut tomorrow = write(1, 600);
    tomorrow.now.unix_ms = 24 * 3_600_000;
    assert_eq!(answer(&chain, &tomorrow), None, "a new day");
}

#[test]
fn counts_outlive_the_process_and_a_damaged_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [Key::User(7), Key::Client(IpAddr::from([10, 0, 0, 1])), Key::All];
    {
        let first = quota(folder.path(), Some(1000), None, Period::Ever);
        assert!(keys.iter().all(|key| first.take(*key, 900, 0, 5)));
        first.give_back(Key::All, 900, 0, 5);
    }
    let second = quota(folder.path(), Some(1000), None, Period::Ever);
    assert_eq!(keys.map(|key| second.take(key, 200, 0, 9)), [false, false, true]);
    drop(second);
    let path = folder.path().join("counts.json");
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    let file = QuotaFile {
        per: Per::All,
        bytes: Some(1),
        names: None,
        period: Period::Ever,
        state_file: path.clone(),
    };
    let wrong = Quota::compile(&file, Home::kept(folder.path()), None).unwrap_err().to_string();
    assert!(wrong.contains("counts.json") && wrong.contains("delete it"), "{wrong}");
    let nowhere = QuotaFile { state_file: PathBuf::from("missing/counts"), ..file };
    assert!(
        Quota::compile(&nowhere, Home::kept(folder.path()), None).is_err(),
        "known at once, not after a day"
    );
}

#[test]
fn changed_counts_are_written_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let quota = quota(folder.path(), Some(1000), None, Period::Ever);
    assert!(quota.take(Key::User(3), 123, 0, 0));
    let begin = std::time::Instant::now();
    let saved = || std::fs::read_to_string(folder.path().join("counts.json")).unwrap_or_default();
    while !saved().contains("123") {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", saved());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(saved().contains("user 3"));
}

#[test]
fn counts_are_bounded_and_survive_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let quota = quota(folder.path(), None, Some(1), Period::Ever);
    for uid in 0..COUNTED_MAX as u32 + 5 {
        quota.take(Key::User(uid), 0, 1, 0);
    }
    assert_eq!(lock(&quota.memory.counts).all.len(), COUNTED_MAX + 1, "those who came last share one");
    let text = "kind: quota\nper: all\nbytes: 10\nperiod: ever\nstate-file: ";
    let text = format!("{text}{}\n", folder.path().join("other").display());
    let before = chain(&text);
    assert_eq!(answer(&before, &write(1, 10)), None);
    let after = try_chain(&text, Some(&before)).unwrap();
    drop(before);
    assert_eq!(answer(&after, &write(1, 1)), Some(Status::Dquot));
    assert!(try_chain("kind: quota\nper: all\nperiod: ever\nstate-file: x\n", None).is_err());
}

#[test]
fn what_did_not_happen_is_given_back_to_its_own_period_alone() {
    const HOUR_MS: u64 = 3_600_000;
    let folder = tempfile::tempdir().unwrap();
    let quota = quota(folder.path(), Some(1000), Some(10), Period::Hour);
    let user = Key::User(1);
    let used = || *lock(&quota.memory.counts).all.get(&user).unwrap();
    assert!(quota.take(user, 900, 3, HOUR_MS - 1));
    quota.give_back(user, 400, 1, HOUR_MS - 1);
    assert_eq!(used(), Count { period: 0, bytes: 500, names: 2 }, "in its own");
    // The hour ends while the call is with the server.
    assert!(quota.take(user, 1000, 9, HOUR_MS));
    quota.give_back(user, 500, 2, HOUR_MS - 1);
    assert_eq!(used(), Count { period: 1, bytes: 1000, names: 9 }, "nothing of the new one");
    assert!(!quota.take(user, 1, 0, HOUR_MS + 1));
    // Nor does it begin anew for a worker that has read its clock before.
    assert!(!quota.take(user, 1, 0, HOUR_MS - 1));
    assert_eq!(used().bytes, 1000);
    assert!(quota.take(user, 1000, 0, 3 * HOUR_MS), "a later one");
    assert!(quota.take(user, 1000, 0, HOUR_MS), "a clock that was wrong by hours is set back");
}

#[test]
fn who_shares_a_count_gets_back_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let quota = quota(folder.path(), None, Some(1), Period::Day);
    for uid in 0..COUNTED_MAX as u32 {
        assert!(quota.take(Key::User(uid), 0, 1, 0));
    }
    let (one, other) = (Key::User(COUNTED_MAX as u32), Key::User(COUNTED_MAX as u32 + 1));
    assert!(quota.take(one, 0, 1, 0) && !quota.take(other, 0, 1, 0));
    quota.give_back(one, 0, 1, 0);
    assert!(quota.take(other, 0, 1, 0));
}

#[test]
fn a_call_that_the_server_never_came_to_gives_nothing_to_a_new_day() {
    use crate::policy::Outcome;
    const DAY_MS: u64 = 24 * 3_600_000;
    let chain = chain("kind: quota\nper: user\nbytes: 1000\nperiod: day\nstate-file: counts\n");
    let late = |unix_ms: u64| {
        let mut made = write(1, 600);
        made.now.unix_ms = unix_ms;
        made
    };
    let (outcome, asked) = ask(&chain, &late(DAY_MS - 1), |call| Asked {
        op: call.op(),
        caller: call.caller.clone(),
        counted: call.counted,
        ..Asked::getattr(call.caller.clone())
    });
    let Outcome::Forward { handled } = outcome else { panic!("{outcome:?}") };
    assert_eq!(answer(&chain, &late(DAY_MS)), None, "a new day");
    chain.undone(&asked, handled);
    assert_eq!(chain.rows()[0].details["bytes"], 600);
    assert_eq!(answer(&chain, &late(DAY_MS)), Some(Status::Dquot), "600 of 1000 are used");
}

#[test]
fn what_a_later_policy_denies_is_not_counted() {
    let text =
        "kind: quota\nper: user\nbytes: 1000\nperiod: ever\nstate-file: counts\n---\nkind: read-only\n";
    let chain = chain(text);
    for _ in 0..5 {
        assert_eq!(answer(&chain, &write(1, 900)), Some(Status::Rofs));
    }
    assert_eq!(chain.rows()[0].details["bytes"], 0);
}

#[test]
fn a_length_that_is_set_counts_as_what_the_file_grows_by() {
    use crate::message::ProbeAnswer;
    use crate::policy::Outcome;
    let chain = chain("kind: quota\nper: user\nbytes: 1000\nperiod: day\nstate-file: counts\n");
    let grow = |size: u64| {
        made(1, Op::Setattr, |record| {
            let record = record.opaque(b"file").u32(0).u32(0).u32(0).u32(1).u64(size);
            record.u32(0).u32(0).u32(0)
        })
    };
    let attributes = |size: u64| {
        let none = (0, 0);
        let (folder, mode, uid, gid, fsid, fileid) = (false, 0o644, 1, 1, 1, 1);
        crate::wire::make::Attributes { folder, mode, uid, gid, size, fsid, fileid, time: none }.bytes()
    };
    // The server is asked how long it is; what it is made longer by counts.
    let told = |size: u64, now: u64| {
        let Made { mut record, .. } = grow(size);
        let bytes = record.len();
        let mut reader = crate::wire::xdr::Reader::whole(&record);
        let head = crate::wire::rpc::call_head(&mut reader).unwrap();
        let found = crate::wire::call::arguments(&mut reader, Op::Setattr).unwrap();
        let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), 1, 100, &[]);
        let mut call = Call::new(&mut record, bytes, head, found, &caller, crate::message::Now::default());
        assert!(matches!(chain.request(&mut call, 0, 0), Outcome::Ask { .. }));
        let probe = *call.probe.take().unwrap();
        call.told.push(ProbeAnswer { probe, status: 0, handle: None, attributes: Some(attributes(now)) });
        matches!(chain.request(&mut call, 0, 0), Outcome::Forward { .. })
    };
    assert!(told(900, 100), "800 more");
    assert!(!told(1200, 900), "300 more are too many");
    assert!(told(1100, 900), "200 are not");
    assert_eq!(answer(&chain, &grow(0)), None, "nobody need be asked");
}
