//! What FileWall asks the server itself in the words of NFSv4.0, which needs neither a client's number nor a session for it:
//! COMPOUNDs that change nothing, as root, on the connection of the session whose call is held meanwhile.

use super::asked::Question4;
use super::walk::put_failing;
use crate::identity::{Identities, NOBODY};
use crate::message::{Probe, ProbeAnswer};
use crate::proxy::server::Server;
use crate::wire::build::{Caller, Record};
use crate::wire::make::{Attributes, Made};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, ftype};
use crate::wire::nfs4::results::{Known, Results4};
use crate::wire::nfs4::{
    ATTRIBUTE_ERROR, ATTRIBUTE_FILEID, ATTRIBUTE_FSID, ATTRIBUTE_GROUP, ATTRIBUTE_HANDLE, ATTRIBUTE_KIND,
    ATTRIBUTE_MODE, ATTRIBUTE_OWNER, ATTRIBUTE_SIZE, COMPOUND, Op4, VERSION, status,
};
use crate::wire::rpc::program;
use crate::wire::xdr::{put_opaque, put_u32};

/// Who asks.
const FILEWALL: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[] };
/// Longest listing that is asked for, bytes; also the room that it needs at least.
const LISTING_BYTES: (u32, u32) = (1024, 64 << 10);

/// Words of the bitmap of the attributes that are asked for.
const WANTED: [u32; 2] = [
    1 << ATTRIBUTE_KIND | 1 << ATTRIBUTE_SIZE | 1 << ATTRIBUTE_FSID | 1 << ATTRIBUTE_FILEID,
    1 << (ATTRIBUTE_MODE - 32) | 1 << (ATTRIBUTE_OWNER - 32) | 1 << (ATTRIBUTE_GROUP - 32),
];

/// An answer.
#[derive(Debug)]
pub enum Answer4 {
    /// To a probe.
    Probe(ProbeAnswer),
    /// The handle of a folder's parent, or the status.
    Parent(Result<Handle, u32>),
    /// The root and its file system, or the status.
    Root(Result<Root, u32>),
    /// A listing, as results of READDIRPLUS in NFSv3.
    Listed(u32, Vec<u8>),
    /// Status of what was to fail.
    UsedUp(u32),
}

/// The root of the export.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Its handle.
    pub handle: Handle,
    /// Its file system.
    pub fsid: (u64, u64),
}

/// Operations one after another.
#[derive(Default)]
struct Ops {
    count: u32,
    bytes: Vec<u8>,
}

impl Ops {
    fn op(mut self, op: Op4) -> Ops {
        put_u32(&mut self.bytes, op.number());
        self.count += 1;
        self
    }

    fn with(mut self, op: Op4, argument: &[u8]) -> Ops {
        self = self.op(op);
        put_opaque(&mut self.bytes, argument);
        self
    }

    fn words(mut self, words: &[u32]) -> Ops {
        words.iter().for_each(|word| put_u32(&mut self.bytes, *word));
        self
    }

    fn attributes(self) -> Ops {
        self.op(Op4::GetAttr).words(&[2]).words(&WANTED)
    }
}

impl Question4 {
    /// The record that asks, with its mark.
    pub fn record(&self, xid: u32, server: &Server) -> Vec<u8> {
        let ops = match self {
            Question4::Probe(Probe { handle, name: None }) => {
                Ops::default().with(Op4::PutFh, handle.as_bytes()).attributes()
            }
            Question4::Probe(Probe { handle, name: Some(name) }) => Ops::default()
                .with(Op4::PutFh, handle.as_bytes())
                .with(Op4::Lookup, name)
                .op(Op4::GetFh)
                .attributes(),
            Question4::Parent(handle) => Ops::default()
                .with(Op4::PutFh, handle.as_bytes())
                .op(Op4::LookupParent)
                .op(Op4::GetFh)
                .attributes(),
            Question4::Root => {
                let down = |ops: Ops, name: &[u8]| ops.with(Op4::Lookup, name);
                server.way().fold(Ops::default().op(Op4::PutRootFh), down).op(Op4::GetFh).attributes()
            }
            Question4::List { handle, cookie, bytes } => {
                let bytes = (*bytes).clamp(LISTING_BYTES.0, LISTING_BYTES.1);
                let first = WANTED[0] | 1 << ATTRIBUTE_HANDLE | 1 << ATTRIBUTE_ERROR;
                Ops::default().with(Op4::PutFh, handle.as_bytes()).op(Op4::ReadDir).words(&[
                    (cookie >> 32) as u32,
                    *cookie as u32,
                    0,
                    0,
                    bytes,
                    bytes,
                    2,
                    first,
                    WANTED[1],
                ])
            }
            Question4::UseUp { handle, owner, seqid } => {
                let mut ops =
                    Ops::default().with(Op4::PutFh, handle.as_bytes()).op(Op4::Open).words(&[*seqid]);
                put_failing(&mut ops.bytes, owner);
                ops
            }
        };
        let record = Record::call(xid, program::NFS, VERSION, COMPOUND, &FILEWALL);
        let record = record.opaque(b"").u32(0).u32(ops.count);
        record.raw(&ops.bytes).finish()
    }

    /// What the server has answered; `found` are the results that were read from `record`, if they could be.
    pub fn answer(self, record: &[u8], found: Option<&Results4>, identities: &Identities) -> Answer4 {
        let failed = found.map_or(status::SERVERFAULT, |found| found.status);
        let last = found.and_then(|found| found.outcomes.last());
        let handle = found.and_then(|found| {
            let found = found.outcomes.iter().find(|outcome| outcome.op == Op4::GetFh)?.found?;
            Handle::new(found.handle.of(record))
        });
        let known = last.and_then(|outcome| outcome.known);
        match self {
            Question4::Probe(probe) => {
                let attributes = known.and_then(|known| fattr3(&known, record, identities));
                let status = match (failed, attributes) {
                    (status::OK, None) => status::SERVERFAULT,
                    (status, _) => status,
                };
                Answer4::Probe(ProbeAnswer { probe, status, handle, attributes })
            }
            Question4::Parent(_) => Answer4::Parent(match (failed, handle) {
                (status::OK, Some(handle)) => Ok(handle),
                (status::OK, None) => Err(status::SERVERFAULT),
                (status, _) => Err(status),
            }),
            Question4::Root => Answer4::Root(match (failed, handle, known) {
                (status::OK, Some(handle), Some(known)) => Ok(Root { handle, fsid: known.fsid }),
                (status::OK, ..) => Err(status::SERVERFAULT),
                (status, ..) => Err(status),
            }),
            Question4::List { .. } => match (failed, found) {
                (status::OK, Some(found)) => Answer4::Listed(status::OK, listing(record, found, identities)),
                (status, _) => Answer4::Listed(status, Vec::new()),
            },
            Question4::UseUp { .. } => Answer4::UsedUp(match (failed, last) {
                (status::OK, _) => status::SERVERFAULT,
                // What keeps its sequence number is the client's to know.
                (status, Some(outcome)) if outcome.op == Op4::Open && !keeps_sequence(status) => status::OK,
                (status, _) => status,
            }),
        }
    }
}

/// True for a status with which an owner's sequence number is not used up (RFC 7530, 9.1.7), and for those that say that it is
/// not yet time.
pub fn keeps_sequence(status: u32) -> bool {
    matches!(
        status,
        status::STALE_CLIENTID
            | status::STALE_STATEID
            | status::BAD_STATEID
            | status::BAD_SEQID
            | status::BADXDR
            | status::RESOURCE
            | status::NOFILEHANDLE
            | status::EXPIRED
            | status::GRACE
            | status::DELAY
            | status::SERVERFAULT
    )
}

/// A number that a server writes as text, or the name of somebody that the policies know.
fn number(text: &[u8], named: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let name = text.split('@').next().unwrap_or_default();
    name.parse().ok().or_else(|| named(name))
}

/// What a server says of an object, as `fattr3`; `None` if nobody knows its owner.
pub fn fattr3(known: &Known, record: &[u8], identities: &Identities) -> Option<[u8; ATTRIBUTES_BYTES]> {
    let owner = known.owner.of(record);
    let uid = number(owner, |name| match name {
        "nobody" => Some(NOBODY),
        "root" => Some(identities.uid(name).unwrap_or(0)),
        name => identities.uid(name),
    });
    if uid.is_none() {
        tracing::warn!(
            owner = %String::from_utf8_lossy(owner),
            "the server names an owner that 'identities' does not know: let it send numbers, or add the user"
        );
    }
    let gid = number(known.group.of(record), |name| identities.gid(name)).unwrap_or(NOBODY);
    let attributes = Attributes {
        folder: known.kind == ftype::DIRECTORY,
        mode: known.mode & 0o7777,
        uid: uid?,
        gid,
        size: known.size,
        // File systems have other numbers in NFSv3.
        fsid: 0,
        fileid: known.fileid,
        time: (0, 0),
    };
    Some(attributes.bytes())
}

/// Entries as those of READDIRPLUS.
fn listing(record: &[u8], found: &Results4, identities: &Identities) -> Vec<u8> {
    let Some(outcome) = found.outcomes.last() else { return Vec::new() };
    let mut made = Made::ok().after(None).u64(0);
    for entry in &found.entries[outcome.entries.0..outcome.entries.1] {
        let handle = entry.found.map(|found| found.handle.of(record));
        let attributes = entry.known.and_then(|known| fattr3(&known, record, identities));
        let (Some(handle), Some(attributes)) = (handle, attributes) else { continue };
        let cookie = entry.start + 4;
        let word = |at: usize| u64::from(crate::wire::xdr::get_u32(record, at));
        made = made.u32(1).u64(entry.known.map_or(0, |known| known.fileid)).opaque(entry.name.of(record));
        made = made.u64(word(cookie) << 32 | word(cookie + 4)).after(Some(&attributes)).u32(1).opaque(handle);
    }
    let ends = crate::wire::xdr::get_u32(record, outcome.entries_end_at + 4);
    made.u32(0).u32(ends).0
}
