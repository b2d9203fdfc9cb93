//! Our decoder beside an independent one (`nfs3_types`): what that one writes, ours reads with the same values; what ours
//! accepts of arbitrary bytes, that one reads too.

use super::call::{Arguments, arguments};
use super::nfs3::{Op, PAYLOAD_BYTES_MAX};
use super::reply::{Results, results};
use super::rpc::{Credential, Refusal, call_head, put_refusal, reply_head};
use super::xdr::{Reader, Wrong};
use super::{answer, build, mount, nfs3, portmap};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack};
use proptest::collection::vec;
use proptest::prelude::*;

pub(crate) fn pack(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).unwrap();
    bytes
}

fn fh(bytes: &[u8]) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(bytes.to_vec()) }
}

fn place<'a>(handle: &[u8], name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: fh(handle), name: name.into() }
}

pub(crate) fn attributes(uid: u32) -> fattr3 {
    let time = nfstime3 { seconds: 1, nseconds: 2 };
    fattr3 {
        type_: ftype3::NF3REG,
        mode: 0o644,
        nlink: 1,
        uid,
        gid: uid + 1,
        size: 3,
        used: 4,
        rdev: specdata3 { specdata1: 5, specdata2: 6 },
        fsid: 7,
        fileid: 8,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn settable(mask: u8) -> sattr3 {
    let some = |bit: u8, value: u32| if mask & bit != 0 { Nfs3Option::Some(value) } else { Nfs3Option::None };
    sattr3 {
        mode: some(1, 0o6755),
        uid: some(2, 1001),
        gid: some(4, 1002),
        size: if mask & 8 != 0 { Nfs3Option::Some(9) } else { Nfs3Option::None },
        atime: if mask & 16 != 0 {
            set_atime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 2 })
        } else {
            set_atime::SET_TO_SERVER_TIME
        },
        mtime: set_mtime::DONT_CHANGE,
    }
}

/// Fields from which arguments of every operation are made.
#[derive(Clone, Debug)]
struct Fields {
    handle: Vec<u8>,
    other: Vec<u8>,
    name: Vec<u8>,
    name_to: Vec<u8>,
    data: Vec<u8>,
    number: u32,
    mask: u8,
}

fn fields() -> impl Strategy<Value = Fields> {
    let bytes = |most: usize| vec(any::<u8>(), 0..=most);
    (bytes(64), bytes(64), bytes(255), bytes(255), bytes(3000), any::<u32>(), any::<u8>()).prop_map(
        |(handle, other, name, name_to, data, number, mask)| Fields {
            handle,
            other,
            name,
            name_to,
            data,
            number,
            mask,
        },
    )
}

fn packed(op: Op, f: &Fields) -> Vec<u8> {
    let (dir, sattr) = (place(&f.handle, &f.name), settable(f.mask));
    match op {
        Op::Null => Vec::new(),
        Op::Getattr | Op::Readlink | Op::Fsstat | Op::Fsinfo | Op::Pathconf => pack(&fh(&f.handle)),
        Op::Setattr => {
            let guard = if f.mask & 32 != 0 {
                Nfs3Option::Some(nfstime3 { seconds: 3, nseconds: 4 })
            } else {
                Nfs3Option::None
            };
            pack(&SETATTR3args { object: fh(&f.handle), new_attributes: sattr, guard })
        }
        Op::Lookup | Op::Remove | Op::Rmdir => pack(&dir),
        Op::Access => pack(&ACCESS3args { object: fh(&f.handle), access: f.number }),
        Op::Read => pack(&READ3args { file: fh(&f.handle), offset: 1 << 40, count: f.number }),
        Op::Commit => pack(&COMMIT3args { file: fh(&f.handle), offset: 1 << 40, count: f.number }),
        Op::Write => pack(&WRITE3args {
            file: fh(&f.handle),
            offset: 1 << 40,
            count: f.data.len() as u32,
            stable: stable_how::UNSTABLE,
            data: Opaque::borrowed(&f.data),
        }),
        Op::Create => pack(&CREATE3args {
            where_: dir,
            how: match f.number % 3 {
                0 => createhow3::UNCHECKED(sattr),
                1 => createhow3::GUARDED(sattr),
                _ => createhow3::EXCLUSIVE(createverf3([7; 8])),
            },
        }),
        Op::Mkdir => pack(&MKDIR3args { where_: dir, attributes: sattr }),
        Op::Symlink => pack(&SYMLINK3args {
            where_: dir,
            symlink: symlinkdata3 {
                symlink_attributes: sattr,
                symlink_data: nfspath3(Opaque::borrowed(&f.data)),
            },
        }),
        Op::Mknod => {
            let device = devicedata3 {
                dev_attributes: settable(f.mask),
                spec: specdata3 { specdata1: 1, specdata2: 2 },
            };
            let what = match f.number % 4 {
                0 => mknoddata3::NF3CHR(device),
                1 => mknoddata3::NF3BLK(device),
                2 => mknoddata3::NF3SOCK(sattr),
                _ => mknoddata3::NF3FIFO(sattr),
            };
            pack(&MKNOD3args { where_: dir, what })
        }
        Op::Rename => pack(&RENAME3args { from: dir, to: place(&f.other, &f.name_to) }),
        Op::Link => pack(&LINK3args { file: fh(&f.other), link: dir }),
        Op::Readdir => pack(&READDIR3args {
            dir: fh(&f.handle),
            cookie: 5,
            cookieverf: cookieverf3([1; 8]),
            count: f.number,
        }),
        Op::Readdirplus => pack(&READDIRPLUS3args {
            dir: fh(&f.handle),
            cookie: 5,
            cookieverf: cookieverf3([1; 8]),
            dircount: 6,
            maxcount: f.number,
        }),
    }
}

fn check_values(op: Op, f: &Fields, bytes: &[u8], found: &Arguments) {
    let (first, second) = if op == Op::Link { (&f.other, &f.handle) } else { (&f.handle, &f.other) };
    let handles: Vec<&[u8]> = found.handles[..found.handle_count].iter().map(|span| span.of(bytes)).collect();
    assert!(op == Op::Null || handles[0] == first.as_slice());
    assert!(handles.len() < 2 || handles[1] == second.as_slice());
    let names: Vec<&[u8]> = found.names[..found.name_count].iter().map(|span| span.of(bytes)).collect();
    assert!(names.is_empty() || names[0] == f.name.as_slice());
    assert!(names.len() < 2 || names[1] == f.name_to.as_slice());
    if matches!(op, Op::Read | Op::Write | Op::Commit) {
        assert_eq!(found.offset, 1 << 40);
    }
    if let Some(payload) = found.payload {
        assert_eq!(payload.of(bytes), f.data.as_slice());
    }
    let word = |at: usize| super::xdr::get_u32(bytes, at);
    assert_eq!(found.set.mode_at.map(word).unwrap_or(0o6755), 0o6755);
    assert_eq!(found.set.uid_at.map(word).unwrap_or(1001), 1001);
    assert_eq!(found.set.gid_at.map(word).unwrap_or(1002), 1002);
    if matches!(op, Op::Setattr | Op::Mkdir | Op::Symlink) {
        assert_eq!(found.set.mode_at.is_some(), f.mask & 1 != 0);
        assert_eq!(found.set.uid_at.is_some(), f.mask & 2 != 0);
        assert_eq!(found.set.gid_at.is_some(), f.mask & 4 != 0);
    }
    if matches!(op, Op::Read | Op::Commit | Op::Readdir | Op::Readdirplus) {
        assert_eq!(found.count, f.number);
    }
}

/// Bytes of names in listings: seldom one that no name has.
fn listed_byte() -> impl Strategy<Value = u8> {
    prop_oneof![1 => any::<u8>(), 9 => 1u8..b'/', 9 => b'/' + 1..=255]
}

proptest! {
    #[test]
    fn arguments_of_the_other_codec_are_read_with_the_same_values(f in fields(), number in 0u32..22) {
        let op = Op::from_number(number).unwrap();
        let bytes = packed(op, &f);
        let found = arguments(&mut Reader::whole(&bytes), op).unwrap();
        check_values(op, &f, &bytes, &found);
        // A record that ends early is refused; one that has not come yet is waited for.
        for end in (0..bytes.len()).step_by(4) {
            let short = arguments(&mut Reader::whole(&bytes[..end]), op);
            prop_assert!(short.is_err() && short != Err(Wrong::Incomplete), "{op} of {end} bytes: {short:?}");
            let early = arguments(&mut Reader::new(&bytes[..end], bytes.len()), op);
            let head_is_there = found.payload.is_some_and(|payload| end >= payload.start);
            let as_expected = if head_is_there { early.is_ok() } else { early == Err(Wrong::Incomplete) };
            prop_assert!(as_expected);
        }
        let mut long = bytes.clone();
        long.extend([0; 4]);
        prop_assert!(arguments(&mut Reader::whole(&long), op).is_err());
    }

    #[test]
    fn listings_of_the_other_codec_are_read_with_the_same_values(
        names in vec((vec(listed_byte(), 1..40), any::<bool>(), any::<bool>()), 0..20), eof in any::<bool>(),
    ) {
        // What is no name in a listing is refused with its place.
        let sound = |(name, ..): &(Vec<u8>, bool, bool)| super::name::check(name, super::name::Use::Look).is_ok();
        let all_sound = names.iter().all(sound);
        let entries: Vec<entryplus3> = names.iter().enumerate().map(|(number, (name, with_attributes, with_handle))| entryplus3 {
            fileid: number as u64,
            name: name.as_slice().into(),
            cookie: number as u64 + 1,
            name_attributes: if *with_attributes { Nfs3Option::Some(attributes(number as u32)) } else { Nfs3Option::None },
            name_handle: if *with_handle { Nfs3Option::Some(fh(&[number as u8; 28])) } else { Nfs3Option::None },
        }).collect();
        let listing = READDIRPLUS3resok {
            dir_attributes: Nfs3Option::Some(attributes(9)),
            cookieverf: cookieverf3([3; 8]),
            reply: dirlistplus3 { entries: List(entries), eof },
        };
        let bytes = pack(&READDIRPLUS3res::Ok(listing));
        let mut found = Results::default();
        let read = results(&mut Reader::whole(&bytes), Op::Readdirplus, &mut found);
        if !all_sound {
            prop_assert!(matches!(read, Err(Wrong::Name { .. })), "{read:?}");
            return Ok(());
        }
        prop_assert_eq!(read, Ok(()));
        prop_assert_eq!(found.entries.len(), names.len());
        for (entry, (number, (name, with_attributes, with_handle))) in found.entries.iter().zip(names.iter().enumerate()) {
            prop_assert_eq!(entry.name.of(&bytes), name.as_slice());
            prop_assert_eq!(entry.handle.map(|span| span.of(&bytes).to_vec()), with_handle.then(|| vec![number as u8; 28]));
            let uid = entry.attributes.map(|at| super::xdr::get_u32(&bytes, at + 12));
            prop_assert_eq!(uid, with_attributes.then_some(number as u32));
        }
        for end in (0..bytes.len()).step_by(4) {
            let early = results(&mut Reader::new(&bytes[..end], bytes.len()), Op::Readdirplus, &mut found);
            prop_assert_eq!(early, Err(Wrong::Incomplete));
        }
    }
}

fn some(uid: u32) -> post_op_attr {
    Nfs3Option::Some(attributes(uid))
}

fn wcc(uid: u32) -> wcc_data {
    let time = nfstime3 { seconds: 1, nseconds: 2 };
    wcc_data { before: Nfs3Option::Some(wcc_attr { size: 1, mtime: time, ctime: time }), after: some(uid) }
}

/// Successful results of every operation but listings, with user 10 on the object and 20 on directories.
fn results_of_all() -> Vec<(Op, Vec<u8>)> {
    let made = || (Nfs3Option::Some(fh(&[1; 32])), some(10), wcc(20));
    let verf = writeverf3([5; 8]);
    let ok = |value: Vec<u8>| [vec![0; 4], value].concat();
    vec![
        (Op::Getattr, ok(pack(&GETATTR3resok { obj_attributes: attributes(10) }))),
        (Op::Setattr, ok(pack(&SETATTR3resok { obj_wcc: wcc(10) }))),
        (
            Op::Lookup,
            ok(pack(&LOOKUP3resok {
                object: fh(&[1; 32]),
                obj_attributes: some(10),
                dir_attributes: some(20),
            })),
        ),
        (Op::Access, ok(pack(&ACCESS3resok { obj_attributes: some(10), access: 31 }))),
        (
            Op::Readlink,
            ok(pack(&READLINK3resok {
                symlink_attributes: some(10),
                data: nfspath3(Opaque::borrowed(b"to")),
            })),
        ),
        (
            Op::Read,
            ok(pack(&READ3resok {
                file_attributes: some(10),
                count: 5,
                eof: true,
                data: Opaque::borrowed(b"hello"),
            })),
        ),
        (
            Op::Write,
            ok(pack(&WRITE3resok { file_wcc: wcc(10), count: 5, committed: stable_how::FILE_SYNC, verf })),
        ),
        (Op::Create, {
            let (obj, obj_attributes, dir_wcc) = made();
            ok(pack(&CREATE3resok { obj, obj_attributes, dir_wcc }))
        }),
        (Op::Mkdir, {
            let (obj, obj_attributes, dir_wcc) = made();
            ok(pack(&MKDIR3resok { obj, obj_attributes, dir_wcc }))
        }),
        (Op::Symlink, {
            let (obj, obj_attributes, dir_wcc) = made();
            ok(pack(&SYMLINK3resok { obj, obj_attributes, dir_wcc }))
        }),
        (Op::Mknod, {
            let (obj, obj_attributes, dir_wcc) = made();
            ok(pack(&MKNOD3resok { obj, obj_attributes, dir_wcc }))
        }),
        (Op::Remove, ok(pack(&REMOVE3resok { dir_wcc: wcc(20) }))),
        (Op::Rmdir, ok(pack(&RMDIR3resok { dir_wcc: wcc(20) }))),
        (Op::Rename, ok(pack(&RENAME3resok { fromdir_wcc: wcc(20), todir_wcc: wcc(20) }))),
        (Op::Link, ok(pack(&LINK3resok { file_attributes: some(10), linkdir_wcc: wcc(20) }))),
        (Op::Commit, ok(pack(&COMMIT3resok { file_wcc: wcc(10), verf: writeverf3([5; 8]) }))),
    ]
}

#[test]
fn results_of_the_other_codec_are_read() {
    for (op, bytes) in results_of_all() {
        let mut found = Results::default();
        results(&mut Reader::whole(&bytes), op, &mut found).unwrap_or_else(|wrong| panic!("{op}: {wrong}"));
        for at in &found.attributes {
            let uid = super::xdr::get_u32(&bytes, at + 12);
            assert!(uid == 10 || uid == 20, "{op}: attributes at {at} are none");
        }
        assert!(!found.attributes.is_empty(), "{op}");
        let has_handle = matches!(op, Op::Lookup | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod);
        assert_eq!(found.handle.is_some(), has_handle, "{op}");
        assert_eq!(found.payload.map(|span| span.of(&bytes)), (op == Op::Read).then_some(&b"hello"[..]));
    }
}

#[test]
fn every_operation_has_an_answer_in_its_own_shape() {
    for op in Op::ALL {
        let mut bytes = Vec::new();
        answer::put(&mut bytes, 77, op, nfs3::Status::Acces);
        let mut reader = Reader::whole(&bytes[4..]);
        let head = reply_head(&mut reader).unwrap();
        assert_eq!(
            (head.xid, bytes.len() - 4),
            (77, super::rpc::record_mark(super::xdr::get_u32(&bytes, 0)).0)
        );
        let mut found = Results::default();
        results(&mut reader, op, &mut found).unwrap_or_else(|wrong| panic!("{op}: {wrong}"));
        assert_eq!(found.status, if op == Op::Null { 0 } else { 13 });
    }
}

#[test]
fn a_call_says_who_calls() {
    let caller = build::Caller { uid: 1001, gid: 1002, groups: &[3, 4] };
    let record = build::Record::nfs3(5, Op::Getattr, &caller).opaque(&[1; 28]).datagram();
    let head = call_head(&mut Reader::whole(&record)).unwrap();
    let Credential::Sys(sys) = head.credential else { panic!("{head:?}") };
    assert_eq!((head.xid, head.program, head.version, head.procedure), (5, 100_003, 3, 1));
    assert_eq!((sys.uid, sys.gid, sys.groups()), (1001, 1002, &[3, 4][..]));
    assert_eq!(super::xdr::get_u32(&record, sys.uid_at), 1001);
    assert_eq!(super::xdr::get_u32(&record, sys.uid_at + 12), 3);
}

#[test]
fn refusals_are_replies_that_carry_nothing() {
    for refusal in [
        Refusal::ProgramUnavailable,
        Refusal::VersionMismatch { low: 3, high: 3 },
        Refusal::ProcedureUnavailable,
        Refusal::GarbageArguments,
        Refusal::SystemError,
        Refusal::RpcMismatch,
        Refusal::BadCredential,
        Refusal::CredentialTooWeak,
    ] {
        let mut bytes = Vec::new();
        put_refusal(&mut bytes, 9, refusal);
        let head = reply_head(&mut Reader::whole(&bytes[4..]))
            .unwrap_or_else(|wrong| panic!("{refusal:?}: {wrong}"));
        assert_eq!((head.xid, head.results_at), (9, None));
    }
}

#[test]
fn the_portmapper_names_its_own_ports() {
    let ports = portmap::Ports { tcp: 2049, udp: 0, portmap: 111 };
    let ask = |version: u32, procedure: u32, words: &[u32]| {
        let caller = build::Caller { uid: 0, gid: 0, groups: &[] };
        let record = build::Record::call(1, 100_000, version, procedure, &caller);
        let record = words.iter().fold(record, |record, word| record.u32(*word)).datagram();
        let mut reader = Reader::whole(&record);
        let head = call_head(&mut reader).unwrap();
        let mut out = Vec::new();
        portmap::answer(&mut reader, &head, &ports, [10, 0, 0, 5].into(), &mut out).unwrap();
        out
    };
    let last = |bytes: Vec<u8>| super::xdr::get_u32(&bytes, bytes.len() - 4);
    assert_eq!(last(ask(2, 3, &[100_003, 3, 6, 0])), 2049);
    assert_eq!(last(ask(2, 3, &[100_003, 3, 17, 0])), 0, "UDP is not served");
    assert_eq!(last(ask(2, 3, &[100_005, 3, 6, 0])), 2049);
    assert_eq!(last(ask(2, 3, &[100_021, 4, 6, 0])), 0, "there is no lock manager");
    let address = ask(4, 3, &[100_003, 3, 3, u32::from_be_bytes(*b"tcp\0"), 0, 0]);
    assert!(address.windows(12).any(|bytes| bytes == b"10.0.0.5.8.1"), "{address:?}");
    assert_eq!(ask(2, 5, &[]).len(), 28, "CALLIT is not there");
}

#[test]
fn a_payload_above_the_limit_is_refused() {
    let bytes = pack(&WRITE3args {
        file: fh(&[1; 28]),
        offset: 0,
        count: PAYLOAD_BYTES_MAX as u32 + 4,
        stable: stable_how::UNSTABLE,
        data: Opaque::owned(vec![0; PAYLOAD_BYTES_MAX + 4]),
    });
    assert!(matches!(arguments(&mut Reader::whole(&bytes), Op::Write), Err(Wrong::Long { .. })));
}

fn reads<T: Unpack>(bytes: &[u8]) -> bool {
    T::unpack(&mut &*bytes).is_ok_and(|(_, used)| used == bytes.len())
}

/// What our decoder accepts, the independent one must read to the same end.
fn other_reads(op: Op, bytes: &[u8]) -> bool {
    match op {
        Op::Lookup | Op::Remove | Op::Rmdir => reads::<diropargs3>(bytes),
        Op::Setattr => reads::<SETATTR3args>(bytes),
        Op::Write => reads::<WRITE3args>(bytes),
        Op::Create => reads::<CREATE3args>(bytes),
        Op::Mkdir => reads::<MKDIR3args>(bytes),
        Op::Rename => reads::<RENAME3args>(bytes),
        Op::Link => reads::<LINK3args>(bytes),
        Op::Readdirplus => reads::<READDIRPLUS3args>(bytes),
        Op::Read => reads::<READ3args>(bytes),
        _ => true,
    }
}

#[test]
fn fuzz_calls() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(number, bytes)| {
        let op = Op::ALL[usize::from(*number) % Op::ALL.len()];
        if let Ok(found) = arguments(&mut Reader::whole(bytes), op) {
            assert!(found.handles.iter().chain(&found.names).all(|span| span.range().end <= bytes.len()));
            assert!(other_reads(op, bytes), "{op}");
        }
        let mut reader = Reader::whole(bytes);
        if let Ok(head) = call_head(&mut reader) {
            assert!(head.arguments_at <= bytes.len());
            let ports = portmap::Ports { tcp: 1, udp: 1, portmap: 1 };
            let _ = portmap::answer(&mut reader, &head, &ports, [127, 0, 0, 1].into(), &mut Vec::new());
        }
        let _ = mount::call(&mut Reader::whole(bytes), u32::from(*number) % 7);
    });
}

#[test]
fn fuzz_replies() {
    let mut found = Results::default();
    let mut seeds = results_of_all();
    seeds.push((Op::Readdirplus, vec![0; 40]));
    bolero::check!().with_type::<(u8, Vec<u8>, Vec<(u16, u8)>)>().for_each(|(number, bytes, changes)| {
        // Bytes from nothing, and sound results with a few bytes changed.
        let (op, mut sound) = seeds[usize::from(*number) % seeds.len()].clone();
        for (at, value) in changes {
            let at = usize::from(*at) % sound.len();
            sound[at] = *value;
        }
        for bytes in [bytes, &sound] {
            if results(&mut Reader::whole(bytes), op, &mut found.clone()).is_ok() {
                results(&mut Reader::whole(bytes), op, &mut found).unwrap();
                assert!(found.attributes.iter().all(|at| at + nfs3::ATTRIBUTES_BYTES <= bytes.len()));
                assert!(found.handle.is_none_or(|span| span.range().end <= bytes.len()));
                assert!(found.entries.iter().all(|entry| entry.end <= bytes.len()));
            }
            let _ = reply_head(&mut Reader::whole(bytes));
            let _ = mount::mount_results(&mut Reader::whole(bytes));
        }
    });
}

#[test]
fn every_status_of_the_other_codec_is_known_by_its_number() {
    for number in (0..200u32).chain(10_000..10_100) {
        let theirs = nfsstat3::unpack(&mut &number.to_be_bytes()[..]).is_ok();
        let ours = nfs3::Status::ALL.iter().any(|status| status.number() == number);
        let of_nfsv4 = matches!(number, 10_029 | 10_040 | 10_041);
        assert_eq!(theirs || of_nfsv4, ours, "{number}");
        let expected = if ours { number } else { nfs3::Status::ServerFault.number() };
        assert_eq!(nfs3::Status::of(number).number(), expected);
    }
}
