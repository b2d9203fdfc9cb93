//! What a listing costs in the box alone: processor time of a reply to READDIRPLUS, from its first byte to the record that goes out.

use super::place::CALLER;
use super::{ENTRIES, Failure, OFFICE, RBAC, RULES, chain, failed, median};
use std::net::{IpAddr, Ipv4Addr};
use weir_filewall::message::{Asked, Counted, EntryHandles, Now, Reply};
use weir_filewall::places::ROOT;
use weir_filewall::policy::{self, Mount};
use weir_filewall::wire::make::Attributes;
use weir_filewall::wire::nfs3::{Handle, Op};
use weir_filewall::wire::reply::{Results, results};
use weir_filewall::wire::rpc::{put_success, reply_head};
use weir_filewall::wire::xdr::{Reader, put_opaque, put_u32, put_u64};

const REPLIES: usize = 4000;
const WINDOWS: usize = 9;
/// Longest listing that the client of the bench asks for, bytes.
const LISTING_BYTES_MAX: u32 = 32_768;

/// A listing with handles as long as those of nfs-ganesha.
fn listing() -> Vec<u8> {
    let attributes = |fileid: u64| {
        let time = (1_700_000_000, 5);
        Attributes {
            folder: false,
            mode: 0o644,
            uid: CALLER.uid,
            gid: CALLER.gid,
            size: 100,
            fsid: 7,
            fileid,
            time,
        }
        .bytes()
    };
    let mut record = Vec::new();
    put_success(&mut record, 5, 0);
    put_u32(&mut record, 0);
    put_u32(&mut record, 1);
    record.extend_from_slice(&attributes(1));
    put_u64(&mut record, 3);
    for number in 0..ENTRIES as u64 {
        put_u32(&mut record, 1);
        put_u64(&mut record, number + 2);
        put_opaque(&mut record, format!("entry-{number}").as_bytes());
        put_u64(&mut record, number + 1);
        put_u32(&mut record, 1);
        record.extend_from_slice(&attributes(number + 2));
        put_u32(&mut record, 1);
        let mut handle = [0x43; 28];
        handle[12..20].copy_from_slice(&number.to_le_bytes());
        put_opaque(&mut record, &handle);
    }
    put_u32(&mut record, 0);
    put_u32(&mut record, 1);
    record.split_off(4)
}

/// Processor time a reply under some policies, µs.
fn one(text: &str, replies: usize) -> Result<f64, Failure> {
    let wrong = |what: &str| Failure(format!("{what} of the bench's own listing"));
    let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
    std::fs::write(folder.path().join("policy.yaml"), text).map_err(failed("write a file"))?;
    let chain = policy::load(folder.path(), None).map_err(|error| Failure(error.to_string()))?;
    let address = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let caller = chain.principals().get(chain.identities(), address, CALLER.uid, CALLER.gid, &[]);
    let handle = Handle::new(&[7; 28]).ok_or_else(|| wrong("the folder"))?;
    let now = Now { unix_ms: 1_800_000_000_000, steady_us: 1 };
    let mount = Mount { caller: caller.clone(), path: b"/".to_vec(), place: ROOT, now };
    chain.mounted(&mount, &mut handle.clone());
    let asked = Asked {
        op: Op::Readdirplus,
        caller,
        handle,
        handle_to: None,
        place: None,
        name: None,
        name_to: None,
        maxcount: LISTING_BYTES_MAX,
        datagram: false,
        note: 0,
        counted: Counted::default(),
        seen: Default::default(),
    };
    let handled = (1 << chain.entries().len()) - 1;
    let (mut record, mut windows) = (listing(), Vec::new());
    let bytes = record.len();
    let (mut found, mut handles, mut out) = (Results::default(), EntryHandles::default(), Vec::new());
    for _ in 0..WINDOWS {
        let before = chain::thread_ns();
        for _ in 0..replies {
            let mut reader = Reader::whole(&record);
            let head = reply_head(&mut reader).map_err(|_| wrong("the head"))?;
            results(&mut reader, Op::Readdirplus, &mut found).map_err(|_| wrong("the results"))?;
            let at = head.results_at.ok_or_else(|| wrong("the results"))?;
            let mut reply = Reply::new(&mut record, bytes, &mut found, &mut handles);
            chain.reply(&asked, &mut reply, handled, 1);
            out.clear();
            if reply.put(6, at, LISTING_BYTES_MAX as usize, &mut out) {
                return Err(wrong("the length"));
            }
        }
        windows.push((chain::thread_ns() - before) as f64 / replies as f64 / 1000.0);
    }
    Ok(median(&windows))
}

/// Prints what listings cost; `replies` a window.
pub fn cost(replies: Option<usize>) -> Result<(), Failure> {
    let replies = replies.unwrap_or(REPLIES);
    let none = one("kind: identities\n", replies)?;
    for (name, text) in [("rules", RULES), ("weir", RBAC)] {
        let cost = one(&format!("{OFFICE}{text}"), replies)?;
        println!(
            "RESULT filewall listing_of_{ENTRIES}_cpu {name}={cost:.2}us without_policies={none:.2}us ratio={:.2}",
            cost / none
        );
    }
    Ok(())
}
