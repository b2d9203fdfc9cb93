//! Records that are written anew are read by the independent codec.

use super::*;
use crate::identity::{Identities, Principals};
use crate::wire::build::{Caller, Record};
use crate::wire::call::arguments;
use crate::wire::reply::results;
use crate::wire::rpc::{call_head, reply_head};
use crate::wire::tests::{attributes, pack};
use crate::wire::xdr::Reader;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{List, Opaque, Unpack};

const CALLER: Caller<'static> = Caller { uid: 1001, gid: 100, groups: &[100, 200] };

fn caller() -> Arc<Principal> {
    Principals::default().get(&Identities::default(), [10, 0, 0, 1].into(), 1001, 100, &[])
}

/// Decodes a call, lets `work` change it, and returns what goes out.
fn through(mut record: Vec<u8>, work: impl FnOnce(&mut Call<'_>)) -> Vec<u8> {
    let bytes = record.len();
    let mut reader = Reader::whole(&record);
    let head = call_head(&mut reader).unwrap();
    let found = arguments(&mut reader, Op::from_number(head.procedure).unwrap()).unwrap();
    let caller = caller();
    let mut call = Call::new(&mut record, bytes, head, found, &caller, Now::default());
    work(&mut call);
    let (mut out, end) = (Vec::new(), call.head_end());
    call.put(4711, &mut out);
    out.extend_from_slice(&record[end..]);
    assert_eq!(out.len() - 4, crate::wire::rpc::record_mark(get_u32(&out, 0)).0);
    out[4..].to_vec()
}

fn decoded(record: &[u8]) -> (u32, Vec<u8>) {
    let head = call_head(&mut Reader::whole(record)).unwrap();
    (head.xid, record[head.arguments_at..].to_vec())
}

#[test]
fn handles_of_another_length_take_the_place_of_two() {
    let record =
        Record::nfs3(1, Op::Rename, &CALLER).opaque(&[1; 64]).opaque(b"from").opaque(&[2; 64]).opaque(b"to5");
    let out = through(record.datagram(), |call| {
        call.set_handle(0, Handle::new(&[8; 13]).unwrap());
        call.set_handle(1, Handle::new(&[9; 28]).unwrap());
    });
    let (xid, arguments) = decoded(&out);
    let (found, used) = RENAME3args::unpack(&mut arguments.as_slice()).unwrap();
    assert_eq!((xid, used), (4711, arguments.len()));
    assert_eq!((found.from.dir.data.as_ref(), found.from.name.0.as_ref()), (&[8; 13][..], &b"from"[..]));
    assert_eq!((found.to.dir.data.as_ref(), found.to.name.0.as_ref()), (&[9; 28][..], &b"to5"[..]));
}

#[test]
fn a_payload_follows_a_new_head() {
    let data: Vec<u8> = (0..=255).collect();
    let record = Record::nfs3(1, Op::Write, &CALLER).opaque(&[1; 64]).u64(7).u32(256).u32(0).opaque(&data);
    let out = through(record.datagram(), |call| {
        call.set_handle(0, Handle::new(&[8; 28]).unwrap());
        call.set_user(65534, 65533);
        call.map_groups(|group| group + 1);
    });
    let head = call_head(&mut Reader::whole(&out)).unwrap();
    let crate::wire::rpc::Credential::Sys(sys) = head.credential else { panic!() };
    assert_eq!((sys.uid, sys.gid, sys.groups()), (65534, 65533, &[101, 201][..]));
    let (found, _) = WRITE3args::unpack(&mut &out[head.arguments_at..]).unwrap();
    assert_eq!(
        (found.file.data.as_ref(), found.offset, found.data.as_ref()),
        (&[8; 28][..], 7, data.as_slice())
    );
}

fn listing(entries: usize) -> Vec<u8> {
    let entry = |number: usize| entryplus3 {
        fileid: number as u64,
        name: format!("file-{number}").into_bytes().into(),
        cookie: number as u64 + 1,
        name_attributes: Nfs3Option::Some(attributes(7)),
        name_handle: Nfs3Option::Some(nfs_fh3 { data: Opaque::owned(vec![number as u8; 28]) }),
    };
    let listing = READDIRPLUS3resok {
        dir_attributes: Nfs3Option::Some(attributes(7)),
        cookieverf: cookieverf3([3; 8]),
        reply: dirlistplus3 { entries: List((0..entries).map(entry).collect()), eof: true },
    };
    let mut record = Vec::new();
    crate::wire::rpc::put_success(&mut record, 5, 0);
    record.extend(pack(&READDIRPLUS3res::Ok(listing)));
    record[4..].to_vec()
}

type NameAndHandle = (Vec<u8>, Vec<u8>);

/// Decodes a listing and replaces handles in it; whether it was cut to `limit` bytes, and its results then.
fn rewritten(entries: usize, limit: usize, replace: impl FnOnce(&mut Reply<'_>)) -> (bool, Vec<u8>) {
    let mut record = listing(entries);
    let bytes = record.len();
    let mut reader = Reader::whole(&record);
    let results_at = reply_head(&mut reader).unwrap().results_at.unwrap();
    let (mut found, mut scratch, mut out) = (Results::default(), EntryHandles::default(), Vec::new());
    results(&mut reader, Op::Readdirplus, &mut found).unwrap();
    let mut reply = Reply::new(&mut record, bytes, &mut found, &mut scratch);
    replace(&mut reply);
    let cut = reply.put(6, results_at, limit, &mut out);
    assert_eq!(out.len() - 4, crate::wire::rpc::record_mark(get_u32(&out, 0)).0);
    (cut, out.split_off(4 + results_at))
}

/// Replaces all handles of a listing, and returns what the client decodes.
fn replaced(entries: usize, limit: usize) -> (bool, usize, Vec<NameAndHandle>, bool) {
    let (cut, results) = rewritten(entries, limit, |reply| {
        (0..entries).for_each(|number| reply.set_entry_handle(number, &[number as u8; 64]));
    });
    let (decoded, used) = READDIRPLUS3res::unpack(&mut &*results).unwrap();
    assert_eq!(used, results.len());
    let Nfs3Result::Ok(listing) = decoded else { panic!() };
    let entry = |entry: &entryplus3<'_>| {
        let Nfs3Option::Some(handle) = &entry.name_handle else { panic!() };
        (entry.name.0.as_ref().to_vec(), handle.data.as_ref().to_vec())
    };
    (cut, results.len(), listing.reply.entries.0.iter().map(entry).collect(), listing.reply.eof)
}

#[test]
fn a_listing_with_longer_handles_is_whole_where_it_fits() {
    let (cut, _, entries, eof) = replaced(20, 1 << 20);
    assert!(!cut && eof);
    assert_eq!(entries.len(), 20);
    assert!(entries.iter().enumerate().all(|(number, (_, handle))| *handle == [number as u8; 64]));
}

#[test]
fn a_listing_that_would_be_too_long_is_cut_and_says_so() {
    let limit = 2000;
    let (cut, bytes, entries, eof) = replaced(20, limit);
    assert!(cut && !eof && bytes <= limit, "{bytes}");
    assert!(!entries.is_empty() && entries.len() < 20);
    let (_, more, _, _) = replaced(entries.len() + 1, 1 << 20);
    assert!(more > limit, "one more entry would have fit");
    let (_, _, entries, _) = replaced(20, 10);
    assert_eq!(entries.len(), 1, "a client must always get on");
}

#[test]
fn a_handle_that_was_replaced_may_be_replaced_again() {
    let (cut, results) = rewritten(3, usize::MAX, |reply| {
        reply.set_entry_handle(1, &[9; 5]);
        reply.map_entry_handles(|handle, out| out.extend(handle.iter().rev().chain(&[handle.len() as u8])));
    });
    assert!(!cut);
    let (decoded, _) = READDIRPLUS3res::unpack(&mut &*results).unwrap();
    let Nfs3Result::Ok(listing) = decoded else { panic!() };
    let handles: Vec<Vec<u8>> = listing
        .reply
        .entries
        .0
        .iter()
        .map(|entry| match &entry.name_handle {
            Nfs3Option::Some(handle) => handle.data.as_ref().to_vec(),
            Nfs3Option::None => panic!("a handle is lost"),
        })
        .collect();
    let own = |number: u8| [vec![number; 28], vec![28]].concat();
    assert_eq!(handles, [own(0), vec![9, 9, 9, 9, 9, 5], own(2)]);
}
