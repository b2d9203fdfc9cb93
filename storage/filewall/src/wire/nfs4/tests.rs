use super::arguments::{Argument, Compound, head, operations};
use super::results::{Results4, results};
use super::*;
use crate::wire::xdr::{Wrong, put_opaque, put_u32};

/// A COMPOUND of these bytes for operations.
fn compound(minor: u32, count: u32, bytes: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    put_opaque(&mut record, b"tag");
    put_u32(&mut record, minor);
    put_u32(&mut record, count);
    record.extend_from_slice(bytes);
    record
}

fn read(record: &[u8]) -> Read<Compound> {
    let mut reader = Reader::whole(record);
    let head = head(&mut reader)?;
    let mut found = Compound::default();
    operations(&mut reader, &head, &mut found)?;
    Ok(found)
}

/// Arguments in words, where `-1` stands for an opaque "ab" with its length and padding.
fn words(op: Op4, arguments: &[i64]) -> Vec<u8> {
    let mut bytes = op.number().to_be_bytes().to_vec();
    for word in arguments {
        match word {
            -1 => put_opaque(&mut bytes, b"ab"),
            word => put_u32(&mut bytes, *word as u32),
        }
    }
    bytes
}

const STATE: [i64; 4] = [0; 4];
/// Attributes: a size.
const ATTRIBUTES: [i64; 5] = [1, 16, 8, 0, 5];
const CHANNEL: [i64; 7] = [0; 7];

/// Each operation with arguments as RFC 7530 and RFC 8881 define them.
fn samples() -> Vec<(Op4, Vec<i64>)> {
    let state = |rest: &[i64]| [&STATE[..], rest].concat();
    vec![
        (Op4::Access, vec![63]),
        (Op4::Close, [&[1][..], &STATE].concat()),
        (Op4::Commit, vec![0, 0, 0]),
        (Op4::Create, [&[2, -1][..], &ATTRIBUTES].concat()),
        (Op4::Create, [&[5, -1, -1][..], &ATTRIBUTES].concat()),
        (Op4::Create, [&[4, 1, 2, -1][..], &ATTRIBUTES].concat()),
        (Op4::DelegPurge, vec![0, 0]),
        (Op4::DelegReturn, state(&[])),
        (Op4::GetAttr, vec![2, 16, 0]),
        (Op4::GetFh, vec![]),
        (Op4::Link, vec![-1]),
        (Op4::Lock, [&[2, 0, 0, 0, 0, 9, 1, 1][..], &STATE, &[1, 0, 0, -1]].concat()),
        (Op4::Lock, [&[2, 0, 0, 0, 0, 9, 0][..], &STATE, &[1]].concat()),
        (Op4::LockTest, vec![1, 0, 0, 0, 9, 0, 0, -1]),
        (Op4::Unlock, [&[1, 7][..], &STATE, &[0, 0, 0, 9]].concat()),
        (Op4::Lookup, vec![-1]),
        (Op4::LookupParent, vec![]),
        (Op4::NVerify, ATTRIBUTES.to_vec()),
        (Op4::Open, vec![1, 1, 0, 0, 0, -1, 0, 0, -1]),
        (Op4::Open, [&[1, 2, 0, 0, 0, -1, 1, 0][..], &ATTRIBUTES, &[0, -1]].concat()),
        (Op4::Open, [&[1, 3, 0, 0, 0, -1, 1, 3, 0, 0][..], &ATTRIBUTES, &[0, -1]].concat()),
        (Op4::Open, vec![1, 2, 0, 0, 0, -1, 0, 4]),
        (Op4::Open, vec![1, 1, 0, 0, 0, -1, 0, 1, 0]),
        (Op4::OpenConfirm, state(&[1])),
        (Op4::OpenDowngrade, state(&[1, 1, 0])),
        (Op4::PutFh, vec![-1]),
        (Op4::PutPubFh, vec![]),
        (Op4::PutRootFh, vec![]),
        (Op4::Read, state(&[0, 0, 4096])),
        (Op4::ReadDir, vec![0, 0, 0, 0, 512, 4096, 1, 2]),
        (Op4::ReadLink, vec![]),
        (Op4::Remove, vec![-1]),
        (Op4::Rename, vec![-1, -1]),
        (Op4::Renew, vec![0, 0]),
        (Op4::RestoreFh, vec![]),
        (Op4::SaveFh, vec![]),
        (Op4::SecInfo, vec![-1]),
        (Op4::SetAttr, state(&ATTRIBUTES)),
        (Op4::SetClientId, vec![0, 0, -1, 1, -1, -1, 1]),
        (Op4::SetClientIdConfirm, vec![0; 4]),
        (Op4::Verify, ATTRIBUTES.to_vec()),
        (Op4::Write, state(&[0, 0, 2, -1])),
        (Op4::ReleaseLockOwner, vec![0, 0, -1]),
        (Op4::BindConnection, state(&[3, 0])),
        (Op4::ExchangeId, vec![0, 0, -1, 0, 0, 1, -1, -1, 0, 0, 0]),
        (
            Op4::CreateSession,
            [&[0, 0, 1, 3][..], &CHANNEL, &CHANNEL, &[7, 2, 0, 1, 5, -1, 0, 0, 1, 9]].concat(),
        ),
        (Op4::DestroySession, state(&[])),
        (Op4::FreeState, state(&[])),
        (Op4::SecInfoNoName, vec![0]),
        (Op4::Sequence, state(&[1, 0, 0, 1])),
        (Op4::TestState, [&[2][..], &STATE, &STATE].concat()),
        (Op4::DestroyClientId, vec![0, 0]),
        (Op4::ReclaimComplete, vec![0]),
    ]
}

fn minor_of(op: Op4) -> u32 {
    u32::from(!op.only_first())
}

#[test]
fn every_operation_is_read_to_its_end_and_not_without_it() {
    let mut seen = Vec::new();
    for (op, arguments) in samples() {
        let bytes = words(op, &arguments);
        let twice = compound(minor_of(op), 2, &[bytes.clone(), bytes.clone()].concat());
        let found = read(&twice).unwrap_or_else(|wrong| panic!("{op:?}: {wrong}"));
        let ends: Vec<(usize, usize)> = found.ops.iter().map(|one| (one.start, one.end)).collect();
        let begin = twice.len() - 2 * bytes.len();
        assert_eq!(ends, [(begin, begin + bytes.len()), (begin + bytes.len(), twice.len())], "{op:?}");
        if !arguments.is_empty() {
            let short = compound(minor_of(op), 1, &bytes[..bytes.len() - 4]);
            assert!(matches!(read(&short), Err(Wrong::Short { .. })), "{op:?} cut short");
        }
        let long = compound(minor_of(op), 1, &[bytes, vec![0; 4]].concat());
        assert!(matches!(read(&long), Err(Wrong::Trailing { bytes: 4 })), "{op:?} with a tail");
        seen.push(op);
    }
    assert!(Op4::ALL.iter().all(|op| seen.contains(op)), "a sample of each");
}

#[test]
fn an_open_is_to_rules_what_it_is_for() {
    let rules: Vec<_> = samples()
        .into_iter()
        .filter(|(op, _)| *op == Op4::Open)
        .map(|(op, arguments)| read(&compound(1, 1, &words(op, &arguments))).unwrap().ops[0].rule)
        .collect();
    assert_eq!(rules, [Op::Lookup, Op::Create, Op::Create, Op::Write, Op::Getattr].map(Some));
}

#[test]
fn what_is_not_served_ends_the_list() {
    let lookup = words(Op4::Lookup, &[-1]);
    let refused = |minor, number: u32| {
        let bytes = [lookup.clone(), number.to_be_bytes().to_vec(), vec![0xff; 40]].concat();
        let found = read(&compound(minor, 3, &bytes)).unwrap();
        (found.ops.len(), found.refused.map(|(number, status, _)| (number, status)))
    };
    assert_eq!(refused(1, 50), (1, Some((50, status::NOTSUPP))));
    assert_eq!(refused(0, 53), (1, Some((53, status::NOTSUPP))), "SEQUENCE is none of 4.0");
    assert_eq!(refused(1, 35), (1, Some((35, status::NOTSUPP))), "SETCLIENTID is none of 4.1");
    assert_eq!(refused(0, 9999), (1, Some((9999, status::ILLEGAL))));
    let many = compound(0, 70, &lookup.repeat(70));
    let found = read(&many).unwrap();
    assert_eq!((found.ops.len(), found.refused.unwrap().1), (OPS_MAX, status::RESOURCE));
}

#[test]
fn a_handle_is_found_behind_all_attributes_that_may_stand_before_it() {
    let mut values = Vec::new();
    // Supported attributes, type, expiry, change, size, three booleans, file system, a boolean, lease, error.
    [2u32, 1, 2, 1, 0, 0, 7, 0, 9].iter().for_each(|word| put_u32(&mut values, *word));
    [0u32; 3 + 4 + 1 + 1 + 1].iter().for_each(|word| put_u32(&mut values, *word));
    // One entry of an access list, and the seven words behind it.
    [1u32, 0, 0, 0].iter().for_each(|word| put_u32(&mut values, *word));
    put_opaque(&mut values, b"OWNER@");
    [0u32; 6].iter().for_each(|word| put_u32(&mut values, *word));
    let at = values.len();
    put_opaque(&mut values, b"the handle");
    put_u32(&mut values, 4711);
    let mut record = Vec::new();
    put_u32(&mut record, 0);
    put_opaque(&mut record, b"");
    [1, Op4::GetAttr.number(), 0, 1, 0x1f_ffff].iter().for_each(|word| put_u32(&mut record, *word));
    let length_at = record.len();
    put_opaque(&mut record, &values);
    let mut found = Results4::default();
    results(&mut Reader::whole(&record), &mut found).unwrap();
    let handle = found.outcomes[0].found.unwrap();
    assert_eq!((handle.handle.of(&record), handle.length_at), (&b"the handle"[..], Some(length_at)));
    assert_eq!(handle.handle.start, length_at + 4 + at + 4);
}

#[test]
fn limits_are_found_among_the_attributes_of_a_file_system() {
    let mut record = Vec::new();
    put_u32(&mut record, 0);
    put_opaque(&mut record, b"");
    // Locations, greatest size, longest link and name, longest READ and WRITE; the lease is before, an owner behind.
    let words = [1 << 10 | 1 << 24 | 1 << 27 | 1 << 29 | 1 << 30 | 1 << 31u32, 1 << 4];
    [1, Op4::GetAttr.number(), 0, 2].iter().chain(&words).for_each(|word| put_u32(&mut record, *word));
    let mut values = Vec::new();
    [90u32, 1].iter().for_each(|word| put_u32(&mut values, *word));
    put_opaque(&mut values, b"root");
    [1u32, 1].iter().for_each(|word| put_u32(&mut values, *word));
    put_opaque(&mut values, b"elsewhere");
    [0u32, 9, 9, 255, 0, 1 << 30, 0, 1 << 29].iter().for_each(|word| put_u32(&mut values, *word));
    put_opaque(&mut values, b"ann");
    put_opaque(&mut record, &values);
    let mut found = Results4::default();
    results(&mut Reader::whole(&record), &mut found).unwrap();
    let limits = found.outcomes[0].limits_at.map(|at| crate::wire::xdr::get_u32(&record, at.unwrap() + 4));
    assert_eq!(limits, [1 << 30, 1 << 29]);
}

/// What holds of whatever was read: operations lie one behind the other, and fields inside them.
fn sound(record: &[u8], ops: &[Argument]) {
    for pair in ops.windows(2) {
        assert_eq!(pair[0].end, pair[1].start);
    }
    for op in ops {
        let spans = op
            .handle
            .into_iter()
            .chain(op.payload)
            .chain(op.wanted)
            .chain(op.names[..op.name_count].to_vec());
        for span in spans {
            assert!(op.start < span.start && span.start + span.bytes <= op.end && op.end <= record.len());
        }
        let words = op.access_at.into_iter().chain(op.maxcount_at).chain(op.callback_at).chain(op.sizes_at);
        assert!(words.into_iter().all(|at| op.start < at && at + 4 <= op.end));
        assert!(op.locations().all(|(at, _)| at + 4 <= op.end));
    }
}

#[test]
fn arbitrary_compounds_are_read_or_refused() {
    let samples: Vec<Vec<u8>> = samples().iter().map(|(op, arguments)| words(*op, arguments)).collect();
    bolero::check!().with_type::<(u8, Vec<u8>, Vec<(u16, u8)>)>().for_each(|(minor, chosen, changes)| {
        let ops: Vec<u8> = chosen
            .iter()
            .take(8)
            .flat_map(|number| samples[usize::from(*number) % samples.len()].clone())
            .collect();
        let mut record = compound(u32::from(minor % 3), chosen.len().min(8) as u32, &ops);
        for (at, value) in changes.iter().take(4) {
            let at = usize::from(*at) % record.len();
            record[at] = *value;
        }
        if let Ok(found) = read(&record) {
            sound(&record, &found.ops);
        }
    });
}

#[test]
fn arbitrary_results_are_read_or_refused() {
    bolero::check!().with_type::<(Vec<(u8, bool)>, Vec<u8>)>().for_each(|(ops, bytes)| {
        let mut record = Vec::new();
        put_u32(&mut record, 0);
        put_opaque(&mut record, b"tag");
        put_u32(&mut record, ops.len() as u32);
        for (number, done) in ops {
            put_u32(&mut record, Op4::ALL[usize::from(*number) % Op4::ALL.len()].number());
            put_u32(&mut record, u32::from(!done));
            record.extend_from_slice(&bytes[..bytes.len() & !3]);
        }
        let mut found = Results4::default();
        if results(&mut Reader::whole(&record), &mut found).is_ok() {
            for handle in found.outcomes.iter().filter_map(|outcome| outcome.found) {
                assert!(handle.handle.start + handle.handle.bytes <= record.len());
            }
            assert!(found.entries.iter().all(|entry| entry.start < entry.end && entry.end <= record.len()));
        }
    });
}
