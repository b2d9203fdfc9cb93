//! What is kept of a COMPOUND until its reply comes, or while its call is held.

use super::slots;
use crate::identity::Principal;
use crate::message::{Asked, Probe, ProbeAnswer, Seen};
use crate::places::Place;
use crate::proxy::retransmit::Key;
use crate::wire::nfs3::Handle;
use crate::wire::nfs4::Op4;
use crate::wire::xdr::padded;
use std::ops::Range;
use std::sync::Arc;

/// Where the cursor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// There is no current handle.
    #[default]
    Nowhere,
    /// Somewhere in the export.
    Unknown,
    /// So many steps below the server's root, on the way to the export.
    Above(usize),
    /// In the export.
    Inside(Place),
}

impl Position {
    pub(in crate::proxy) fn place(self) -> Option<Place> {
        if let Position::Inside(place) = self { Some(place) } else { None }
    }
}

/// A current or saved handle.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// Where it is.
    pub position: Position,
    /// The handle, if the client has sent it; an earlier operation has found it otherwise.
    pub handle: Option<Handle>,
    /// The directory that it was found in, if its handle is known, and its name there.
    pub name: Option<(Option<Handle>, Box<[u8]>)>,
    /// True if it is that of an object that a policy makes up: the server never gets it.
    pub made_up: bool,
}

/// What the server gets for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The operation.
    Same,
    /// Another one whose result has the same form: a name that was looked up is not looked up again.
    As(Op4),
    /// It is one of ours, before the client's next one.
    Hidden,
    /// One that must fail, so that its owner's sequence number is used up; the client gets this status.
    Refused(u32),
    /// The operation, which shall make a file where there was none; it is asked for again if there is one meanwhile.
    Guarded,
    /// Nothing: this is its result.
    Made(Vec<u8>),
}

/// What must be known of an operation when its result comes.
#[derive(Debug)]
pub struct OpAsked {
    /// Which one.
    pub op: Op4,
    /// What policies were shown, and which of them let it go on, as bits.
    pub asked: Vec<(Asked, u64)>,
    /// What the server gets.
    pub sent: Sent,
    /// The cursor, for operations whose results bring handles.
    pub cursor: Option<Box<Cursor>>,
    /// `maxcount` of READDIR as the client gave it, bytes.
    pub maxcount: u32,
    /// Words of the bitmap of the attributes that a READDIR asks for.
    pub wanted: Box<[u8]>,
}

/// What must be known of a COMPOUND when its reply comes.
#[derive(Debug)]
pub struct CompoundAsked {
    /// The operations that were forwarded.
    pub ops: Vec<OpAsked>,
    /// Number and status of the operation at which it was cut.
    pub cut: Option<(u32, u32)>,
    /// Who called.
    pub caller: Arc<Principal>,
    /// True if the COMPOUND goes on when these are done; its call is held.
    pub segment: bool,
    /// Its place in a session, and its name there (NFSv4.1).
    pub place: Option<(slots::Place, Key)>,
}

/// Bytes that are replaced in a record.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct Edit {
    /// Which ones.
    pub range: Range<usize>,
    /// By what.
    pub new: Piece,
}

/// New bytes.
#[derive(Clone, Debug)]
pub(in crate::proxy) enum Piece {
    /// None: they are left out.
    Nothing,
    /// A handle with its length.
    Handle(Handle),
    /// These.
    Bytes(Vec<u8>),
}

impl Piece {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Piece::Nothing => 0,
            Piece::Handle(handle) => 4 + padded(handle.as_bytes().len()),
            Piece::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A question of FileWall's own to the server.
#[derive(Clone, Debug)]
pub enum Question4 {
    /// What an object, or a name, is.
    Probe(Probe),
    /// The folder that a folder is in.
    Parent(Handle),
    /// The root of the export.
    Root,
    /// Entries of a folder.
    List {
        /// The folder.
        handle: Handle,
        /// Behind which entry.
        cookie: u64,
        /// Longest answer, bytes.
        bytes: u32,
    },
    /// Uses up a sequence number of an owner for an OPEN or CLOSE that the server has nothing to do with.
    UseUp {
        /// A folder.
        handle: Handle,
        /// The owner, as in OPEN.
        owner: Vec<u8>,
        /// The number.
        seqid: u32,
    },
}

/// What policies said of an operation that they let go on, or answer.
#[derive(Clone, Debug)]
pub struct Given {
    /// What they were shown, and which of them let it go on, as bits.
    pub asked: (Asked, u64),
    /// Who the server shall think is calling.
    pub user: Option<(u32, u32)>,
    /// Results of NFSv3 that a policy has made.
    pub results: Option<Vec<u8>>,
}

/// A COMPOUND between two operations: what is kept of it while its call is held.
#[derive(Debug, Default)]
pub struct Course {
    /// Number of the operation at hand.
    pub next: usize,
    /// What policies have said of it so far.
    pub now: Vec<Given>,
    /// Where the policies go on with it.
    pub(super) from: usize,
    pub(super) handled: u64,
    pub(super) counted: bool,
    /// What policies were shown when one of them had it wait, and which of them let it go on.
    pub(super) waiting: Option<(Asked, u64)>,
    /// What the server has answered for it.
    pub told: Vec<ProbeAnswer>,
    /// What had changed before it was asked.
    pub seen: Seen,
    /// The parent of the current folder, or the status of asking for it.
    pub parent: Option<Result<Handle, u32>>,
    /// A listing that it has answered, as results of NFSv3.
    pub listed: Option<(u32, Vec<u8>)>,
    /// Status of the operation that used up an owner's sequence number.
    pub used_up: Option<u32>,
    pub(super) questions: usize,
    pub(super) failing: Option<u32>,
    /// Current handle.
    pub current: Cursor,
    /// Saved handle.
    pub saved: Cursor,
    /// What is replaced in the operations below.
    pub(in crate::proxy) edits: Vec<Edit>,
    /// Operations that the server has not seen yet, and those between them whose results are made.
    pub ops: Vec<OpAsked>,
    /// Results that are known.
    pub results: Vec<u8>,
    /// Their number.
    pub count: u32,
    /// Status of the last one.
    pub status: u32,
    /// Where it is cut: operation and status.
    pub cut: Option<(u32, u32)>,
    /// Whose credentials the operations need, and whether they cannot do with others.
    pub user: Option<(Option<(u32, u32)>, bool)>,
}
