//! COMPOUNDs of NFSv4.0 and 4.1 on their way to the server; their results are in [`super::compound_replies`].
//!
//! The operations are walked through with a cursor for the current and the saved handle, so that each of them has its place
//! also where no handle was sent for it. Those that have their like in NFSv3 are shown to the policies as such. Handles are
//! replaced; what stands behind the last one goes out from where it was received.
//!
//! A client of NFSv4 does not mount: it walks down from the server's root. On the way to the export nothing else can be
//! reached, and the step into it is what MOUNT is in NFSv3.
//!
//! Invariants
//! - The first operation that is denied, or not served, ends the COMPOUND: the server gets those before it, and its reply is
//!   completed with the refusal. So a sequence number or slot is used up as the client expects.
//! - No way leads from the server to the client past the policies: there are no callbacks, hence no delegations; no layouts;
//!   no addresses of other servers; LOOKUPP is not served.

use super::calls::{Done, Passed, known};
use super::flow::{RECORD_BYTES_MAX, Source};
use super::pending::{Entry, Question};
use super::session::{Held, Session};
use super::worker::Env;
use crate::identity::Principal;
use crate::message::{Asked, Call, Now};
use crate::metrics::Totals;
use crate::places::{Place, ROOT};
use crate::policy::{Chain, Mount, Outcome};
use crate::wire::call::Arguments;
use crate::wire::nfs3::{Handle, NAME_BYTES_MAX, Op, Status};
use crate::wire::nfs4::arguments::{self, Argument, CompoundHead};
use crate::wire::nfs4::{COMPOUND, MINOR_MAX, Op4, status};
use crate::wire::rpc::{CallHead, Refusal, mark_of, put_success};
use crate::wire::xdr::{Reader, get_u32, padded, put_opaque, put_u32, set_u32};
use std::ops::Range;
use std::sync::Arc;

/// Flag of CREATE_SESSION that asks for callbacks on the same connection.
const FLAG_CALLBACKS: u32 = 2;
/// BIND_CONN_TO_SESSION: calls of the client only, or callbacks only.
const DIRECTION_FORE: u32 = 1;
const DIRECTION_BACK: u32 = 2;

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
    fn place(self) -> Option<Place> {
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
}

/// What must be known of an operation when its result comes.
#[derive(Debug)]
pub struct OpAsked {
    /// Which one.
    pub op: Op4,
    /// What policies were shown, and which of them let it go on, as bits.
    pub asked: Option<(Asked, u64)>,
    /// The cursor, for operations whose results bring handles.
    pub cursor: Option<Box<Cursor>>,
    /// `maxcount` of READDIR as the client gave it, bytes.
    pub maxcount: u32,
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
}

/// Bytes that are replaced in a record.
#[derive(Debug)]
pub(super) struct Edit {
    /// Which ones.
    pub range: Range<usize>,
    /// By what.
    pub new: Piece,
}

/// New bytes.
#[derive(Debug)]
pub(super) enum Piece {
    /// None: they are left out.
    Nothing,
    /// A handle with its length.
    Handle(Handle),
    /// These.
    Bytes(Vec<u8>),
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Piece::Nothing => 0,
            Piece::Handle(handle) => 4 + padded(handle.as_bytes().len()),
            Piece::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Appends the mark of a record of `record_bytes` before the edits, and the record up to `end` with `xid` and the edits,
/// which are in order.
pub(super) fn put_edited(
    record: &[u8],
    record_bytes: usize,
    end: usize,
    xid: u32,
    edits: &[Edit],
    out: &mut Vec<u8>,
) {
    let removed: usize = edits.iter().map(|edit| edit.range.len()).sum();
    let added: usize = edits.iter().map(|edit| edit.new.bytes()).sum();
    put_u32(out, mark_of(record_bytes + added - removed));
    put_u32(out, xid);
    let mut from = 4;
    for edit in edits {
        out.extend_from_slice(&record[from..edit.range.start]);
        match &edit.new {
            Piece::Nothing => {}
            Piece::Handle(handle) => put_opaque(out, handle.as_bytes()),
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        from = edit.range.end;
    }
    out.extend_from_slice(&record[from..end]);
}

/// Appends the result of an operation that is not carried out.
pub(super) fn put_refused(out: &mut Vec<u8>, number: u32, status: u32) {
    put_u32(out, if status == status::ILLEGAL { status::ILLEGAL } else { number });
    put_u32(out, status);
    if number == Op4::SetAttr.number() {
        put_u32(out, 0);
    }
}

/// Appends a whole reply whose only result, if any, is a refusal.
fn put_answer(out: &mut Vec<u8>, xid: u32, tag: &[u8], status: u32, refused: Option<u32>) {
    let mut results = Vec::new();
    put_u32(&mut results, status);
    put_opaque(&mut results, tag);
    put_u32(&mut results, u32::from(refused.is_some()));
    if let Some(number) = refused {
        put_refused(&mut results, number, status);
    }
    put_success(out, xid, results.len());
    out.extend_from_slice(&results);
}

/// What becomes of one operation.
enum Step {
    On,
    Cut(u32),
    Wait { wait_us: u64, from: usize, handled: u64 },
}

impl From<Status> for Step {
    fn from(status: Status) -> Step {
        Step::Cut(status.number())
    }
}

struct Walk<'w, 'e> {
    record: &'w mut [u8],
    record_bytes: usize,
    head: CallHead,
    caller: &'w Arc<Principal>,
    chain: &'w Chain,
    env: &'w Env<'e>,
    /// From the policies that a call was delayed by: what was passed before.
    held: Option<Held>,
    current: Cursor,
    saved: Cursor,
    edits: Vec<Edit>,
    ops: Vec<OpAsked>,
}

impl Walk<'_, '_> {
    fn step(&mut self, argument: &Argument) -> Step {
        for (at, bit) in argument.locations() {
            let word = get_u32(self.record, at);
            set_u32(self.record, at, word & !bit);
        }
        let mut asked = None;
        if let Position::Above(level) = self.current.position
            && (argument.rule.is_some() || argument.op == Op4::Open)
        {
            match self.above(argument, level) {
                Step::On => {}
                other => return other,
            }
        } else if let Some(rule) = argument.rule {
            match self.ask(argument, rule) {
                Ok(answer) => asked = Some(answer),
                Err(step) => return step,
            }
            if matches!(argument.op, Op4::Lookup | Op4::Open | Op4::Create) && argument.name_count > 0 {
                self.descend(argument);
            }
        } else if let Step::Cut(status) = self.other(argument) {
            return Step::Cut(status);
        }
        let cursor = matches!(argument.op, Op4::GetFh | Op4::GetAttr | Op4::ReadDir)
            .then(|| Box::new(self.current.clone()));
        self.ops.push(OpAsked { op: argument.op, asked, cursor, maxcount: argument.count });
        Step::On
    }

    /// An operation above the export: it can look, and go down to the export.
    fn above(&mut self, argument: &Argument, level: usize) -> Step {
        match argument.op {
            Op4::GetAttr | Op4::Access | Op4::ReadDir | Op4::Verify | Op4::NVerify => Step::On,
            Op4::Lookup | Op4::SecInfo => {
                let name = argument.names[0].of(self.record);
                if self.env.shared.server.way().nth(level) != Some(name) {
                    return Step::Cut(match name.len() {
                        0 => status::INVAL,
                        1..=NAME_BYTES_MAX => status::NOENT,
                        _ => status::NAMETOOLONG,
                    });
                }
                if argument.op == Op4::SecInfo {
                    return Step::On;
                }
                self.current = Cursor::default();
                self.enter(level + 1)
            }
            _ => Step::Cut(status::ACCES),
        }
    }

    /// The cursor is so many steps below the server's root; where the export begins, policies are asked as for a mount.
    fn enter(&mut self, level: usize) -> Step {
        if level < self.env.shared.server.way().count() {
            self.current.position = Position::Above(level);
            return Step::On;
        }
        let mount = Mount { caller: self.caller.clone(), path: Vec::new(), place: ROOT, now: self.env.now };
        if let Err(status) = self.chain.mount(&mount) {
            Totals::count(&self.env.shared.totals.mounts_refused_total);
            return status.into();
        }
        self.current.position = Position::Inside(ROOT);
        Step::On
    }

    /// Operations that rules do not speak of.
    fn other(&mut self, argument: &Argument) -> Step {
        match argument.op {
            Op4::PutRootFh => {
                self.current = Cursor::default();
                return self.enter(0);
            }
            Op4::PutFh => return self.put_handle(argument),
            Op4::SaveFh => self.saved = self.current.clone(),
            Op4::RestoreFh => self.current = self.saved.clone(),
            _ => {}
        }
        for at in argument.sizes_at.into_iter().flat_map(|at| [at, at + 4]) {
            let bytes = u32::try_from(RECORD_BYTES_MAX).unwrap_or(u32::MAX);
            set_u32(self.record, at, get_u32(self.record, at).min(bytes));
        }
        let Some(at) = argument.callback_at else { return Step::On };
        let word = get_u32(self.record, at);
        let word = match argument.op {
            Op4::SetClientId => 0,
            Op4::CreateSession => word & !FLAG_CALLBACKS,
            _ if word == DIRECTION_BACK => return Step::Cut(status::NOTSUPP),
            _ => DIRECTION_FORE,
        };
        set_u32(self.record, at, word);
        Step::On
    }

    fn put_handle(&mut self, argument: &Argument) -> Step {
        let Some(span) = argument.handle else { return Step::On };
        let Some(handle) = Handle::new(span.of(self.record)) else { return Status::BadHandle.into() };
        let open = match self.chain.open_handle(handle, self.caller.address) {
            Ok(open) => open,
            Err(status) => return status.into(),
        };
        let context = self.chain.context();
        let bytes = open.handle.as_bytes();
        let position = match (context.places.above(bytes), open.above) {
            (Some(level), _) => Position::Above(level),
            // It leads down to the export, but nobody knows any more from where.
            (None, true) => return Status::Stale.into(),
            (None, false) if context.zones.trivial() => Position::Inside(ROOT),
            (None, false) => context.places.get(bytes).map_or(Position::Unknown, Position::Inside),
        };
        if open.handle != handle {
            let range = span.start - 4..span.padded_end();
            self.edits.push(Edit { range, new: Piece::Handle(open.handle) });
        }
        self.current = Cursor { position, handle: Some(open.handle), name: None };
        Step::On
    }

    fn descend(&mut self, argument: &Argument) {
        let name = argument.names[0].of(self.record);
        let place =
            self.current.position.place().and_then(|place| self.chain.context().zones.step(place, name));
        let from = (self.current.handle, Box::from(name));
        self.current = Cursor {
            position: place.map_or(Position::Unknown, Position::Inside),
            handle: None,
            name: Some(from),
        };
    }

    /// Shows an operation to the policies, as the one of NFSv3 that it is like.
    fn ask(&mut self, argument: &Argument, rule: Op) -> Result<(Asked, u64), Step> {
        let number = self.ops.len();
        let (mut from, mut handled) = (0, 0);
        if let Some(held) = &self.held {
            match held.passed.get(number) {
                Some(passed) => (from, handled) = (usize::MAX, *passed),
                None if held.passed.len() == number => (from, handled) = (held.from, held.handled),
                None => {}
            }
        }
        let two = matches!(rule, Op::Rename | Op::Link);
        let nowhere = Cursor::default();
        let cursors = if two { [&self.saved, &self.current] } else { [&self.current, &nowhere] };
        let handles = cursors.map(|cursor| cursor.handle);
        let places = cursors.map(|cursor| cursor.position.place());
        let arguments = Arguments {
            names: argument.names,
            name_count: argument.name_count,
            access_at: argument.access_at,
            maxcount_at: argument.maxcount_at,
            offset: argument.offset,
            count: argument.count,
            payload: argument.payload,
            ..Arguments::new(rule)
        };
        let now: Now = self.env.now;
        let mut call = Call::new(self.record, self.record_bytes, self.head, arguments, self.caller, now);
        call.restore_handles(handles.map(|handle| Some(handle.unwrap_or(Handle::EMPTY))));
        call.places = Some(places);
        if self.held.is_none() {
            self.env.shared.totals.call(rule);
        }
        let outcome = if from == usize::MAX {
            Outcome::Forward { handled }
        } else {
            self.chain.request(&mut call, from, handled)
        };
        match outcome {
            Outcome::Wait { wait_us, from, handled } => Err(Step::Wait { wait_us, from, handled }),
            // No policy that serves NFSv4 asks or makes results.
            Outcome::Ask { .. } | Outcome::Reply { .. } => Err(Status::ServerFault.into()),
            Outcome::Answer { status, .. } => {
                self.env.shared.totals.denied(rule);
                Err(status.into())
            }
            Outcome::Forward { handled } => {
                let names = self.chain.needs_names();
                let name = |number: usize| {
                    (names && number < argument.name_count).then(|| Box::from(call.name(number)))
                };
                let asked = Asked {
                    op: rule,
                    caller: self.caller.clone(),
                    handle: handles[0].unwrap_or(Handle::EMPTY),
                    handle_to: if two { Some(handles[1].unwrap_or(Handle::EMPTY)) } else { None },
                    name: name(0),
                    name_to: name(1),
                    maxcount: argument.count,
                    datagram: false,
                    note: call.note,
                };
                Ok((asked, handled))
            }
        }
    }
}

impl Session {
    /// Deals with a call of NFSv4, all of which must be at hand.
    pub(super) fn nfs4(&mut self, source: Source, head: CallHead, env: &mut Env<'_>) -> Done {
        match head.procedure {
            0 => {
                put_success(&mut self.answers, head.xid, 0);
                return Done::Skip;
            }
            COMPOUND => {}
            _ => return self.refuse(head.xid, Refusal::ProcedureUnavailable, env),
        }
        if !self.c2s.is_whole(source) {
            return Done::More;
        }
        if self.held.is_none() {
            self.renew_chain(env);
        }
        if !self.chain.serves_nfs4() {
            return self.refuse(head.xid, Refusal::VersionMismatch { low: 3, high: 3 }, env);
        }
        if self.pending.has_client_xid(head.xid) {
            Totals::count(&env.shared.totals.retransmissions_total);
            return Done::Skip;
        }
        let (record, record_bytes, _) = self.c2s.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let read = reader.take(head.arguments_at).and_then(|_| arguments::head(&mut reader));
        let Ok(compound) = read else { return self.refuse(head.xid, Refusal::GarbageArguments, env) };
        if compound.minor > MINOR_MAX {
            let tag = compound.tag.of(record).to_vec();
            put_answer(&mut self.answers, head.xid, &tag, status::MINOR_VERSION_MISMATCH, None);
            return Done::Skip;
        }
        if arguments::operations(&mut reader, &compound, env.compound).is_err() {
            return self.refuse(head.xid, Refusal::GarbageArguments, env);
        }
        Totals::count(&env.shared.totals.compounds_total);
        self.compound(source, head, &compound, env)
    }

    fn compound(
        &mut self,
        source: Source,
        head: CallHead,
        compound: &CompoundHead,
        env: &mut Env<'_>,
    ) -> Done {
        let held = self.held.take();
        let Session { c2s, callers, chain, pending, address, key, answers, .. } = self;
        let (record, record_bytes, output) = c2s.record(source);
        let caller = match &held {
            Some(held) => Some(held.caller.clone()),
            None => Session::caller(chain, callers, address.ip(), record, &head),
        };
        let Some(caller) = caller else { return self.refuse(head.xid, Refusal::CredentialTooWeak, env) };
        let chain = held.as_ref().map_or_else(|| chain.clone(), |held| held.chain.clone());
        let once = match &held {
            Some(held) => held.once,
            // From 4.1 on the server's sessions see to it.
            None => (compound.minor == 0
                && env.compound.ops.iter().any(|argument| argument.rule.is_some_and(Op::once)))
            .then(|| env.shared.retransmits.key(address.ip(), record)),
        };
        let tag = compound.tag.of(record).to_vec();
        let mut walk = Walk {
            record,
            record_bytes,
            head,
            caller: &caller,
            chain: &chain,
            env,
            held,
            current: Cursor::default(),
            saved: Cursor::default(),
            edits: Vec::new(),
            ops: Vec::with_capacity(env.compound.ops.len()),
        };
        let mut cut = None;
        for argument in &env.compound.ops {
            match walk.step(argument) {
                Step::On => {}
                Step::Cut(status) => {
                    cut = Some((argument.op.number(), status, argument.start));
                    break;
                }
                Step::Wait { wait_us, from, handled } => {
                    let passed =
                        walk.ops.iter().map(|op| op.asked.as_ref().map_or(0, |asked| asked.1)).collect();
                    self.held = Some(Held {
                        until_us: env.now.steady_us + wait_us,
                        from,
                        handled,
                        chain: chain.clone(),
                        caller: caller.clone(),
                        handles: [None; 2],
                        maxcount: 0,
                        told: Vec::new(),
                        note: 0,
                        once,
                        unknown: false,
                        unless: None,
                        passed,
                    });
                    return Done::Hold;
                }
            }
        }
        let cut = cut.or(env.compound.refused);
        let Walk { record, edits, ops, .. } = walk;
        if cut.is_some() {
            Totals::count(&env.shared.totals.compounds_cut_total);
        }
        if let (Some((number, status, _)), true) = (cut, ops.is_empty()) {
            put_answer(answers, head.xid, &tag, status, Some(number));
            return Done::Skip;
        }
        // A COMPOUND of which nobody knows what became goes to the server once more, as without FileWall.
        if known(once, *key, answers, env) == Passed::Dealt {
            return Done::Skip;
        }
        let forwarded = ops.len();
        let asked = CompoundAsked {
            ops,
            cut: cut.map(|(number, status, _)| (number, status)),
            caller: caller.clone(),
        };
        let entry = Entry {
            client_xid: head.xid,
            asked: Question::Compound(Box::new(asked)),
            resent: false,
            chain: chain.clone(),
            since_us: env.now.steady_us,
            once,
        };
        let xid = pending.insert(entry);
        env.shared.totals.pending.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Some((_, _, end)) = cut {
            set_u32(record, compound.count_at, u32::try_from(forwarded).unwrap_or(0));
            output.head(|out| put_edited(record, end, end, xid, &edits, out));
            return Done::Skip;
        }
        let head_end = edits.last().map_or(4, |edit| edit.range.end);
        output.head(|out| put_edited(record, record_bytes, head_end, xid, &edits, out));
        Done::Forward(head_end)
    }
}
