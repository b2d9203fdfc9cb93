//! Tests of the alarm: what ransomware does raises it, what people do does not.

use super::*;
use crate::policy::Chain;
use crate::policy::tests::{Made, answer, chain, made, try_chain};

const POLICY: &str = "kind: alarm\nfiles: 5\nwindow-s: 60\nact: freeze\nfreeze-s: 600\nexempt-roles: [backup]\n---\n\
                      kind: identities\nusers: {keeper: {uid: 7, roles: [backup]}}\nroles: {backup: {}}\n";

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn write(uid: u32, file: u32, data: &[u8]) -> Made {
    made(uid, Op::Write, |record| {
        record.opaque(&file.to_be_bytes()).u64(0).u32(data.len() as u32).u32(0).opaque(data)
    })
}

fn read(uid: u32, file: u32) -> Made {
    made(uid, Op::Read, |record| record.opaque(&file.to_be_bytes()).u64(0).u32(4096))
}

fn named(uid: u32, op: Op, names: &[&str]) -> Made {
    made(uid, op, |record| {
        names.iter().fold(record, |record, name| record.opaque(b"folder").opaque(name.as_bytes()))
    })
}

fn raised(chain: &Chain) -> u64 {
    chain.rows()[0].details["raised"]
}

#[test]
fn overwriting_what_was_read_with_noise_stops_a_user_on_that_machine() {
    let chain = chain(POLICY);
    for file in 0..4 {
        assert_eq!(answer(&chain, &read(1, file)), None);
        assert_eq!(answer(&chain, &write(1, file, &noise(4096))), None);
    }
    answer(&chain, &read(1, 4));
    assert_eq!(answer(&chain, &write(1, 4, &noise(4096))), Some(Status::Acces), "the fifth file");
    assert_eq!(answer(&chain, &named(1, Op::Remove, &["x"])), Some(Status::Acces));
    assert_eq!(answer(&chain, &read(1, 5)), None, "reading goes on");
    assert_eq!(answer(&chain, &write(2, 5, &noise(4096))), None, "another user");
    let elsewhere = Made { client: [10, 0, 0, 2], ..write(1, 5, b"text") };
    assert_eq!(answer(&chain, &elsewhere), None, "another machine");
    let mut later = write(1, 5, b"text");
    later.now.steady_us = 599_000_000;
    assert_eq!(answer(&chain, &later), Some(Status::Acces));
    later.now.steady_us = 601_000_000;
    assert_eq!(answer(&chain, &later), None, "after the freeze");
    assert_eq!(raised(&chain), 1);
}

#[test]
fn suffixes_and_pairs_of_noise_and_removals_count_too() {
    let suffixes = chain(POLICY);
    let locked = |name: &str| named(1, Op::Rename, &[name, &format!("{name}.locked")]);
    for number in 0..40 {
        let rotated = named(1, Op::Rename, &[&format!("{number}.log"), &format!("{number}.log.1")]);
        assert_eq!(answer(&suffixes, &rotated), None, "logs are rotated");
    }
    (0..4).for_each(|number| assert_eq!(answer(&suffixes, &locked(&format!("f{number}"))), None));
    assert_eq!(answer(&suffixes, &locked("last")), Some(Status::Acces));
    let pairs = chain(POLICY);
    for file in 0..4 {
        assert_eq!(answer(&pairs, &write(1, file, &noise(300))), None);
        assert_eq!(answer(&pairs, &named(1, Op::Remove, &[&format!("original {file}")])), None);
    }
    answer(&pairs, &write(1, 9, &noise(300)));
    assert_eq!(answer(&pairs, &named(1, Op::Remove, &["original"])), Some(Status::Acces));
}

/// SETATTR of a file's length.
fn cut(uid: u32, file: u32) -> Made {
    made(uid, Op::Setattr, |record| {
        let record = record.opaque(&file.to_be_bytes()).u32(0).u32(0).u32(0).u32(1).u64(0);
        record.u32(0).u32(0).u32(0)
    })
}

/// Gives a file another name, over one that is there or not; true if it is denied.
fn renamed(chain: &Chain, uid: u32, file: u32, there: bool) -> bool {
    let Made { mut record, .. } = named(uid, Op::Rename, &["new", &format!("original {file}")]);
    let bytes = record.len();
    let mut reader = crate::wire::xdr::Reader::whole(&record);
    let head = crate::wire::rpc::call_head(&mut reader).unwrap();
    let found = crate::wire::call::arguments(&mut reader, Op::Rename).unwrap();
    let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), uid, 100, &[]);
    let mut call = Call::new(&mut record, bytes, head, found, &caller, crate::message::Now::default());
    loop {
        let outcome = chain.request(&mut call, 0, 0);
        if !matches!(outcome, crate::policy::Outcome::Ask { .. }) {
            return matches!(outcome, crate::policy::Outcome::Answer { .. });
        }
        let probe = *call.probe.take().unwrap();
        let handle = match probe.name.as_deref() {
            Some(b"new") => Handle::new(&file.to_be_bytes()),
            _ => there.then(|| Handle::new(b"the original")).flatten(),
        };
        let status = if handle.is_some() { 0 } else { Status::Noent.number() };
        call.told.push(crate::message::ProbeAnswer { probe, status, handle, attributes: None });
    }
}

#[test]
fn other_ways_of_encrypting_are_seen_too() {
    // Not from the first byte on, and far behind it.
    for offset in [1, 8 << 20] {
        let behind = chain(POLICY);
        let mut last = None;
        for file in 0..5 {
            answer(&behind, &read(1, file));
            let data = noise(4096);
            let record = |record: crate::wire::build::Record| {
                record.opaque(&file.to_be_bytes()).u64(offset).u32(4096).u32(0).opaque(&data)
            };
            last = answer(&behind, &made(1, Op::Write, record));
        }
        assert_eq!(last, Some(Status::Acces), "{offset}");
    }
    // A new file takes the place of the original.
    let over = chain(POLICY);
    let denied = (0..5).map(|file| {
        answer(&over, &write(1, file, &noise(300)));
        renamed(&over, 1, file, true)
    });
    assert_eq!(denied.collect::<Vec<_>>(), [false, false, false, false, true]);
    // Downloads that get their name when they are complete take no original's place.
    let downloads = chain(POLICY);
    assert!((0..50).all(|file| {
        answer(&downloads, &write(1, file, &noise(300)));
        !renamed(&downloads, 1, file, false)
    }));
    // The original is cut to nothing.
    let cuts = chain(POLICY);
    let mut last = None;
    for file in 0..5 {
        answer(&cuts, &write(1, 100 + file, &noise(300)));
        last = answer(&cuts, &cut(1, file));
    }
    assert_eq!(last, Some(Status::Acces));
    // A machine whose users are many: four times as many files.
    let many = chain(POLICY);
    for file in 0..20 {
        answer(&many, &read(1000 + file, file));
        last = answer(&many, &write(1000 + file, file, &noise(300)));
        assert_eq!(last.is_some(), file == 19);
    }
    assert_eq!(answer(&many, &write(5000, 99, b"text")), Some(Status::Acces), "the machine is stopped");
}

#[test]
fn what_people_do_raises_nothing() {
    let chain = chain(POLICY);
    let text = "Every call passes an ordered chain of policies before it reaches the server. ".repeat(20);
    for file in 0..50 {
        answer(&chain, &read(1, file));
        assert_eq!(answer(&chain, &write(1, file, text.as_bytes())), None, "text is no noise");
        assert_eq!(answer(&chain, &write(1, 1000 + file, &noise(4096))), None, "photographs are unpacked");
        assert_eq!(answer(&chain, &named(1, Op::Rename, &["draft.txt", "final.txt"])), None);
        assert_eq!(answer(&chain, &write(1, file, &noise(100))), None, "too short to say anything");
        answer(&chain, &read(7, file));
        assert_eq!(answer(&chain, &write(7, file, &noise(4096))), None, "a backup may");
    }
    // Slowly enough, each window sees too little.
    for file in 0..20u32 {
        let mut slow = [read(2, file), write(2, file, &noise(1024))];
        slow.iter_mut().for_each(|made| made.now.steady_us = u64::from(file) * 20_000_000);
        assert!(slow.iter().all(|made| answer(&chain, made).is_none()), "file {file}");
    }
    assert_eq!(raised(&chain), 0);
}

#[test]
fn a_reload_forgets_nothing_and_memory_is_bounded() {
    let before = chain(POLICY);
    for file in 0..4 {
        answer(&before, &read(1, file));
        answer(&before, &write(1, file, &noise(1024)));
    }
    let after = try_chain(POLICY, Some(&before)).unwrap();
    answer(&after, &read(1, 4));
    assert_eq!(answer(&after, &write(1, 4, &noise(1024))), Some(Status::Acces));
    for uid in 0..WATCHED_MAX as u32 + 10 {
        answer(&after, &read(100 + uid, 1));
    }
    assert!(after.rows()[0].details["watched"] <= WATCHED_MAX as u64);
    assert_eq!(answer(&after, &write(1, 9, b"text")), Some(Status::Acces), "who is stopped stays stopped");
    // Who reads many files in between forgets what he has read, and is not forgotten himself.
    let reader = chain(POLICY);
    for file in 0..4u32 {
        assert_eq!(answer(&reader, &read(1, file)).or(answer(&reader, &write(1, file, &noise(300)))), None);
    }
    for other in 0..FILES_MAX as u32 + 1 {
        answer(&reader, &read(1, 100 + other));
    }
    answer(&reader, &read(1, 4));
    assert_eq!(answer(&reader, &write(1, 4, &noise(300))), Some(Status::Acces));
    let wrong =
        try_chain("kind: alarm\nfiles: 5\nfolder-files: 4\nwindow-s: 60", None).unwrap_err().to_string();
    assert!(wrong.contains("folder-files 4"), "{wrong}");
    let wrong = try_chain("kind: alarm\nfiles: 1\nwindow-s: 60", None).unwrap_err().to_string();
    assert!(wrong.contains("files 1"), "{wrong}");
}
