//! From operation to operation of a COMPOUND: what each of them does to the cursors, and what policies say of it.

pub use super::asked::Given;

use super::{Course, Cursor, Edit, OpAsked, Piece, Position, Question4, Sent, Way};
use crate::message::{Asked, Call, InCompound, Seen};
use crate::metrics::Totals;
use crate::places::{Place, ROOT};
use crate::policy::{Chain, Mount, Outcome};
use crate::proxy::env::Env;
use crate::proxy::flow::RECORD_BYTES_MAX;
use crate::wire::call::{Arguments, SetSpans};
use crate::wire::nfs3::{Handle, LISTING_BYTES_MAX, Op, Status};
use crate::wire::nfs4::arguments::Argument;
use crate::wire::nfs4::results::Found;
use crate::wire::nfs4::{
    ATTRIBUTE_GROUP, ATTRIBUTE_MODE, ATTRIBUTE_OWNER, ATTRIBUTE_SIZE, Op4, has_bit, status,
};
use crate::wire::xdr::{Span, get_u32, padded, put_opaque, put_u32, set_u32};

/// Flag of CREATE_SESSION that asks for callbacks on the same connection.
const FLAG_CALLBACKS: u32 = 2;
/// BIND_CONN_TO_SESSION: calls of the client only, or callbacks only.
const DIRECTION_FORE: u32 = 1;
const DIRECTION_BACK: u32 = 2;
/// Most questions for one COMPOUND.
pub const QUESTIONS_MAX: usize = 256;

/// Why a walk does not go on.
#[derive(Debug)]
pub enum Stop {
    /// This operation is answered with that, and nothing behind it is carried out.
    Cut(u32),
    /// A policy delays it by so many µs.
    Wait(u64),
    /// The server must be asked first.
    Ask(Box<Question4>),
    /// The server must carry out first what stands before, up to that byte of the record.
    Flush(usize),
    /// There is no more, up to that byte of the record.
    End(usize),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Stop {
        Stop::Cut(status.number())
    }
}

impl Course {
    /// Counts a question; false if there were too many.
    pub fn may_ask(&mut self) -> bool {
        self.questions += 1;
        self.questions <= QUESTIONS_MAX
    }

    /// The operation at hand cannot be carried out.
    pub(in crate::proxy) fn fail(&mut self, status: u32) {
        self.failing = Some(status);
    }

    /// True if something is to be sent.
    pub fn sends(&self) -> bool {
        self.ops.iter().any(|op| !matches!(op.sent, Sent::Made(_)))
    }

    /// Tells the policies of the operation at hand, which they let go on, that it is not carried out.
    pub(in crate::proxy) fn give_up_now(&mut self, chain: &Chain) {
        let now = self.now.drain(..).map(|given| given.asked);
        for (asked, handled) in now.chain(self.waiting.take()) {
            chain.undone(&asked, handled);
        }
    }

    /// Tells them the same of what was to be sent, too.
    pub(in crate::proxy) fn give_up(&mut self, chain: &Chain) {
        self.give_up_now(chain);
        let sent = self.ops.iter_mut().filter(|op| !matches!(op.sent, Sent::Made(_)));
        for (asked, handled) in sent.flat_map(|op| op.asked.drain(..)) {
            chain.undone(&asked, handled);
        }
    }

    /// Takes over the results of what was made, when nothing before it is to be sent.
    fn take_over(&mut self) {
        self.edits.clear();
        for op in self.ops.drain(..) {
            if let Sent::Made(bytes) = op.sent {
                self.results.extend_from_slice(&bytes);
                self.count += 1;
            }
        }
    }
}

/// What policies are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Operation of NFSv3.
    pub rule: Op,
    /// Handles.
    pub handles: [Option<Handle>; 2],
    /// Their places.
    pub places: [Option<Place>; 2],
    /// Names.
    pub names: [Span; 2],
    /// Number of names.
    pub name_count: usize,
    /// It may take a file that is there.
    pub takes: bool,
    /// What it does besides, as bits.
    pub also: u32,
}

impl Subject {
    /// An operation on an object itself.
    pub fn of(rule: Op, handle: Option<Handle>, place: Option<Place>) -> Subject {
        Subject {
            rule,
            handles: [handle, None],
            places: [place, None],
            names: [Span::default(); 2],
            name_count: 0,
            takes: false,
            also: 0,
        }
    }
}

/// A walk.
pub struct Walk<'w, 'e> {
    /// The record.
    pub record: &'w mut [u8],
    record_bytes: usize,
    /// What is known of the call.
    pub way: &'w Way<'w>,
    /// What all share.
    pub env: &'w Env<'e>,
    /// Where it is.
    pub course: Course,
    /// How often policies were asked for the operation at hand.
    turn: usize,
    judges: bool,
    /// The server's handle for the one among the attributes that the operation at hand compares.
    compared: Option<Handle>,
}

impl<'w, 'e> Walk<'w, 'e> {
    /// A walk that goes on where `course` is.
    pub fn new(
        (record, record_bytes): (&'w mut [u8], usize),
        way: &'w Way<'w>,
        env: &'w Env<'e>,
        course: Course,
        judges: bool,
    ) -> Self {
        Walk { record, record_bytes, way, env, course, turn: 0, judges, compared: None }
    }

    /// Walks until something stops it. `refused` is what stands behind the last operation that is served.
    pub fn run(&mut self, all: &[Argument], refused: Option<(u32, u32, usize)>) -> Stop {
        while let Some(argument) = all.get(self.course.next).filter(|_| !self.course.is_over()) {
            self.turn = 0;
            let failing = self.course.failing.take().map(Stop::Cut);
            match failing.map_or_else(|| self.step(argument), Err) {
                // What goes to the server behind what was answered here would need a COMPOUND of its own.
                Ok(()) if self.course.count > 0 && self.course.sends() => {
                    self.course.give_up(&self.way.chain);
                    self.course.ops.retain(|op| matches!(op.sent, Sent::Made(_)));
                    let minor = self.way.compound.minor;
                    let status = if minor == 0 { status::RESOURCE } else { status::TOO_MANY_OPS };
                    self.course.cut = Some((argument.op.number(), status));
                    return self.finish(argument.start);
                }
                Ok(()) => {}
                Err(Stop::Cut(status)) => match self.use_up(argument, status) {
                    true => return Stop::End(argument.end),
                    false => {
                        self.course.cut = Some((argument.op.number(), status));
                        return self.finish(argument.start);
                    }
                },
                Err(Stop::Flush(_)) => return Stop::Flush(argument.start),
                Err(other) => return other,
            }
            self.course.next += 1;
            self.course.now.clear();
            self.course.told.clear();
            self.course.seen = Seen::default();
            self.course.parent = None;
            self.course.listed = None;
            self.course.used_up = None;
        }
        if !self.course.is_over()
            && let Some((number, status, _)) = refused
        {
            self.course.cut = Some((number, status));
        }
        let end = match (all.get(self.course.next), refused) {
            (Some(argument), _) => argument.start,
            (None, Some((_, _, start))) => start,
            (None, None) => self.record_bytes,
        };
        self.finish(end)
    }

    /// Where results were made, what is between them goes to the server before the answer is put together here.
    fn finish(&mut self, end: usize) -> Stop {
        let made = self.course.ops.iter().any(|op| matches!(op.sent, Sent::Made(_)));
        if made || self.course.count > 0 {
            if self.course.sends() {
                return Stop::Flush(end);
            }
            self.course.take_over();
        }
        Stop::End(end)
    }

    /// Sees to it that the server has carried out what stands before.
    pub fn flushed(&mut self) -> Result<(), Stop> {
        if self.course.sends() {
            return Err(Stop::Flush(0));
        }
        self.course.take_over();
        Ok(())
    }

    /// An OPEN of NFSv4.0 that is refused must use up its owner's sequence number at the server too, else the next one is
    /// answered with BAD_SEQID. The server gets one that fails in its place: of a name that there is not.
    fn use_up(&mut self, argument: &Argument, status: u32) -> bool {
        let real = self.course.current.handle.is_some() || !self.judges;
        let Some(open) = argument.open else { return false };
        if self.way.compound.minor > 0 || !real || self.course.current.made_up || self.course.count > 0 {
            return false;
        }
        if matches!(self.course.current.position, Position::Nowhere | Position::Above(_)) {
            return false;
        }
        let mut bytes = Vec::new();
        put_u32(&mut bytes, Op4::Open.number());
        put_u32(&mut bytes, get_u32(self.record, argument.start + 4));
        put_failing(&mut bytes, open.owner.of(self.record));
        let range = argument.start..argument.end;
        self.course.edits.push(Edit { range, new: Piece::Bytes(bytes) });
        self.push(argument, Sent::Refused(status));
        true
    }

    /// Notes what becomes of the operation at hand.
    pub fn push(&mut self, argument: &Argument, mut sent: Sent) {
        if sent == Sent::Same {
            sent = self.translated(argument);
        }
        if matches!(sent, Sent::Made(_)) {
            self.course.edits.push(Edit { range: argument.start..argument.end, new: Piece::Nothing });
        }
        let asked = std::mem::take(&mut self.course.now).into_iter().map(|given| given.asked).collect();
        let keeps = matches!(argument.op, Op4::GetFh | Op4::GetAttr | Op4::ReadDir)
            || self.judges && argument.op == Op4::SetAttr;
        let cursor = keeps.then(|| Box::new(self.course.current.clone()));
        let lists = argument.op == Op4::ReadDir;
        let wanted = argument.wanted.filter(|_| lists).unwrap_or_default().of(self.record).into();
        let op = OpAsked { op: argument.op, asked, sent, cursor, maxcount: argument.count, wanted };
        self.course.ops.push(op);
    }

    /// What the server gets for an operation that goes to it as it is, but for what only FileWall knows.
    fn translated(&mut self, argument: &Argument) -> Sent {
        if argument.op == Op4::PutPubFh {
            let range = argument.start..argument.start + 4;
            let root = Piece::Bytes(Op4::PutRootFh.number().to_be_bytes().to_vec());
            self.course.edits.push(Edit { range, new: root });
            return Sent::As(Op4::PutRootFh);
        }
        if let (Some(Found { handle, length_at: Some(at) }), Some(own)) =
            (argument.compared, self.compared.take())
        {
            let bytes =
                get_u32(self.record, at) as usize + padded(own.as_bytes().len()) - padded(handle.bytes);
            let length = Piece::Bytes(u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes().to_vec());
            self.course.edits.push(Edit { range: at..at + 4, new: length });
            let range = handle.start - 4..handle.padded_end();
            self.course.edits.push(Edit { range, new: Piece::Handle(own) });
        }
        Sent::Same
    }

    fn step(&mut self, argument: &Argument) -> Result<(), Stop> {
        if let Some(refused) = super::foreign(argument, self.record, self.way.caller.address, self.env) {
            return Err(Stop::Cut(refused));
        }
        if let Some(misnamed) = argument.misnamed {
            Totals::count(&self.env.shared.totals.misnamed_total);
            return Err(Stop::Cut(misnamed.status4()));
        }
        if let Some(refused) = argument.open.and_then(|open| open.refusal()) {
            return Err(Stop::Cut(refused));
        }
        self.compared = match argument.compared {
            Some(found) => {
                let handle = Handle::new(found.handle.of(self.record)).ok_or(Stop::Cut(status::BADXDR))?;
                Some(self.way.chain.open_handle(handle, self.way.caller.address)?.handle)
            }
            None => None,
        };
        // A server that gives what is asked for must not give more than fits into a record.
        for at in argument.maxcount_at.into_iter().flat_map(|at| [at - 4, at]) {
            let most = u32::try_from(LISTING_BYTES_MAX).unwrap_or(u32::MAX);
            set_u32(self.record, at, get_u32(self.record, at).min(most));
        }
        for (at, bit) in argument.locations() {
            let word = get_u32(self.record, at);
            set_u32(self.record, at, word & !bit);
        }
        if argument.op == Op4::LookupParent {
            return self.parent(argument);
        }
        let rules = argument.rule.is_some() || argument.op == Op4::Open;
        if let (Position::Above(level), true) = (self.course.current.position, rules) {
            self.above(argument, level)?;
            self.push(argument, Sent::Same);
            return Ok(());
        }
        // Only where owners count is it of interest whose file is unlocked.
        let judged = rules || self.course.current.made_up || argument.op == Op4::Unlock;
        if self.judges && judged {
            return self.judged(argument);
        }
        self.unjudged(argument)
    }

    /// An operation whose object nobody need know: it goes to the server as it is.
    pub(super) fn unjudged(&mut self, argument: &Argument) -> Result<(), Stop> {
        if argument.rule.is_some() {
            // It may be a folder, for all that is known here.
            let also = if argument.op == Op4::Remove { Op::Rmdir.bit() } else { 0 };
            let mut asked = 0;
            for rule in Self::uses_of(argument) {
                if asked & rule.bit() == 0 {
                    self.ask(argument, Subject { also, ..self.subject(argument, rule) })?;
                }
                asked |= rule.bit();
            }
            if matches!(argument.op, Op4::Lookup | Op4::Open | Op4::Create) && argument.name_count > 0 {
                self.course.current = self.below(argument);
            }
        } else if self.other(argument)? {
            self.push(argument, Sent::Made(crate::wire::nfs4::made::result(argument.op, status::OK)));
            return Ok(());
        }
        self.push(argument, Sent::Same);
        Ok(())
    }

    /// An operation above the export: it can look, and go down to the export.
    fn above(&mut self, argument: &Argument, level: usize) -> Result<(), Stop> {
        match argument.op {
            Op4::GetAttr | Op4::Access | Op4::ReadDir | Op4::Verify | Op4::NVerify => Ok(()),
            Op4::Lookup | Op4::SecInfo => {
                let name = argument.names[0].of(self.record);
                if self.env.shared.server.way().nth(level) != Some(name) {
                    return Err(Stop::Cut(status::NOENT));
                }
                if argument.op == Op4::SecInfo {
                    return Ok(());
                }
                self.enter(level + 1)
            }
            _ => Err(Stop::Cut(status::ACCES)),
        }
    }

    /// The cursor is so many steps below the server's root; where the export begins, policies are asked as for a mount.
    fn enter(&mut self, level: usize) -> Result<(), Stop> {
        if level < self.env.shared.server.way().count() {
            self.course.current = Cursor { position: Position::Above(level), ..Cursor::default() };
            return Ok(());
        }
        let root = if self.judges { Some(self.root()?) } else { None };
        let caller = self.way.caller.clone();
        let mount = Mount { caller, path: Vec::new(), place: ROOT, now: self.env.now };
        if let Err(status) = self.way.chain.mount(&mount) {
            Totals::count(&self.env.shared.totals.mounts_refused_total);
            return Err(status.into());
        }
        self.course.current = Cursor { position: Position::Inside(ROOT), handle: root, ..Cursor::default() };
        Ok(())
    }

    /// Operations that rules do not speak of; true if the server has nothing to do for it.
    pub(super) fn other(&mut self, argument: &Argument) -> Result<bool, Stop> {
        match argument.op {
            // A server may let any handle be the public one; ours is the root's, as RFC 8881 (4.1.2) proposes.
            Op4::PutRootFh | Op4::PutPubFh => return self.enter(0).map(|()| false),
            Op4::PutFh => return self.put_handle(argument),
            Op4::SaveFh => self.course.saved = self.course.current.clone(),
            Op4::RestoreFh => {
                self.course.current = self.course.saved.clone();
                return Ok(self.course.current.made_up);
            }
            _ => {}
        }
        for at in argument.sizes_at.into_iter().flat_map(|at| [at, at + 4]) {
            let bytes = u32::try_from(RECORD_BYTES_MAX).unwrap_or(u32::MAX);
            set_u32(self.record, at, get_u32(self.record, at).min(bytes));
        }
        let Some(at) = argument.callback_at else { return Ok(false) };
        let word = get_u32(self.record, at);
        let word = match argument.op {
            Op4::SetClientId => 0,
            Op4::CreateSession => word & !FLAG_CALLBACKS,
            _ if word == DIRECTION_BACK => return Err(Stop::Cut(status::NOTSUPP)),
            _ => DIRECTION_FORE,
        };
        set_u32(self.record, at, word);
        Ok(false)
    }

    pub(super) fn put_handle(&mut self, argument: &Argument) -> Result<bool, Stop> {
        let Some(span) = argument.handle else { return Ok(false) };
        let Some(handle) = Handle::new(span.of(self.record)) else { return Err(Status::BadHandle.into()) };
        let chain = &self.way.chain;
        let open = chain.open_handle(handle, self.way.caller.address)?;
        let context = chain.context();
        let bytes = open.handle.as_bytes();
        if chain.makes_up(bytes) {
            let position = Position::Inside(Place { node: ROOT.node, exact: false });
            self.course.current = Cursor { position, handle: Some(open.handle), name: None, made_up: true };
            return Ok(true);
        }
        let position = match (context.places.above(bytes), open.above) {
            (Some(level), _) => Position::Above(level),
            // It leads down to the export, but nobody knows any more from where.
            (None, true) => return Err(Status::Stale.into()),
            (None, false) if context.zones.trivial() => Position::Inside(ROOT),
            (None, false) => context.places.get(bytes).map_or(Position::Unknown, Position::Inside),
        };
        if open.handle != handle {
            let range = span.start - 4..span.padded_end();
            self.course.edits.push(Edit { range, new: Piece::Handle(open.handle) });
        }
        self.course.current = Cursor { position, handle: Some(open.handle), name: None, made_up: false };
        Ok(false)
    }

    /// The cursor below the current one, under the operation's name.
    pub(super) fn below(&self, argument: &Argument) -> Cursor {
        let name = argument.names[0].of(self.record);
        let current = &self.course.current;
        let place =
            current.position.place().and_then(|place| self.way.chain.context().zones.step(place, name));
        Cursor {
            position: place.map_or(Position::Unknown, Position::Inside),
            handle: None,
            name: Some((current.handle, Box::from(name))),
            made_up: false,
        }
    }

    /// What an operation is about.
    pub fn subject(&self, argument: &Argument, rule: Op) -> Subject {
        let two = matches!(rule, Op::Rename | Op::Link);
        let nowhere = Cursor::default();
        let Course { current, saved, .. } = &self.course;
        let cursors = if two { [saved, current] } else { [current, &nowhere] };
        Subject {
            rule,
            handles: cursors.map(|cursor| cursor.handle),
            places: cursors.map(|cursor| cursor.position.place()),
            names: argument.names,
            name_count: argument.name_count,
            takes: rule == Op::Create && argument.open.is_some_and(|open| open.takes()),
            also: 0,
        }
    }

    /// The length that an operation sets: of those attributes that can be set it is the first.
    fn set_size(&self, argument: &Argument) -> Option<u64> {
        let set = argument.set.filter(|set| has_bit(set.of(self.record), ATTRIBUTE_SIZE))?;
        let at = set.start + set.bytes + 4;
        let bytes = self.record.get(at..at + 8)?;
        Some(u64::from(get_u32(bytes, 0)) << 32 | u64::from(get_u32(bytes, 4)))
    }

    /// All that an operation is for, where policies judge names: they are asked for each. An OPEN that makes a file by a name, or takes the
    /// one that is there and cuts it, is one CREATE; any other by a name looks it up.
    fn uses_of(argument: &Argument) -> impl Iterator<Item = Op> + use<> {
        let wants = |bit: u32| argument.open.is_some_and(|open| open.access & bit != 0);
        let makes = argument.open.is_some_and(|open| open.how_at.is_some());
        let looks = argument.open.is_some() && !makes && argument.name_count > 0;
        let further = [(looks, Op::Lookup), (true, argument.rule.unwrap_or(Op::Null))];
        let further = further.into_iter().chain([(wants(1), Op::Read), (wants(2), Op::Write)]);
        further.filter(|(wanted, _)| *wanted).map(|(_, op)| op)
    }

    /// Shows an operation to the policies, as the one of NFSv3 that it is like.
    pub fn ask(&mut self, argument: &Argument, subject: Subject) -> Result<Given, Stop> {
        let number = self.turn;
        self.turn += 1;
        if let Some(given) = self.course.now.get(number) {
            return Ok(given.clone());
        }
        let Subject { rule, handles, places, names, name_count, takes, also } = subject;
        let two = matches!(rule, Op::Rename | Op::Link);
        let sets = |attribute: u32| {
            let set = argument.set.filter(|set| has_bit(set.of(self.record), attribute))?;
            Some(set.start)
        };
        let set = SetSpans {
            mode_at: sets(ATTRIBUTE_MODE),
            uid_at: sets(ATTRIBUTE_OWNER),
            gid_at: sets(ATTRIBUTE_GROUP),
            size: self.set_size(argument),
        };
        let arguments = Arguments {
            names,
            name_count,
            set,
            takes,
            also,
            target: argument.target,
            access_at: argument.access_at.filter(|_| rule == Op::Access),
            maxcount_at: argument.maxcount_at,
            offset: argument.offset,
            count: argument.count,
            payload: argument.payload,
            ..Arguments::new(rule)
        };
        let (from, handled) =
            (std::mem::take(&mut self.course.from), std::mem::take(&mut self.course.handled));
        let open = self.course.current.made_up
            && handles[0].is_some_and(|handle| self.env.shared.four.is_open(&handle));
        let Way { head, caller, chain, unknown, .. } = self.way;
        let mut call = Call::new(self.record, self.record_bytes, *head, arguments, caller, self.env.now);
        call.restore_handles(handles.map(|handle| Some(handle.unwrap_or(Handle::EMPTY))));
        call.places = Some(places);
        call.compound = Some(InCompound { cookie: argument.cookie, open, user: None });
        call.told = self.course.told.clone();
        call.seen = self.course.seen;
        call.unknown = *unknown;
        call.passed = self.course.now.iter().fold(0, |passed, given| passed | given.asked.1);
        if let Some((asked, _)) = self.course.waiting.take() {
            (call.note, call.counted) = (asked.note, asked.counted);
        }
        if !std::mem::replace(&mut self.course.counted, true) {
            self.env.shared.totals.call(rule);
        }
        let outcome = chain.request(&mut call, from, handled);
        let keeps = chain.needs_names();
        let name = |number: usize| (keeps && number < name_count).then(|| Box::from(call.name(number)));
        let asked = Asked {
            op: rule,
            caller: caller.clone(),
            handle: Handle::new(call.handle(0)).unwrap_or(Handle::EMPTY),
            handle_to: if two { Some(handles[1].unwrap_or(Handle::EMPTY)) } else { None },
            place: places[0],
            name: name(0),
            name_to: name(1),
            maxcount: argument.count,
            datagram: false,
            note: call.note,
            counted: call.counted,
            seen: call.seen,
        };
        if let Outcome::Wait { handled, .. } | Outcome::Ask { handled, .. } = outcome {
            self.course.seen = call.seen;
            self.course.waiting = Some((asked.clone(), handled));
        }
        let (handled, results) = match outcome {
            Outcome::Wait { wait_us, from, handled } => {
                (self.course.from, self.course.handled) = (from, handled);
                return Err(Stop::Wait(wait_us));
            }
            Outcome::Ask { from, handled } => {
                (self.course.from, self.course.handled) = (from, handled);
                let probe = call.probe.take().filter(|probe| !probe.handle.as_bytes().is_empty());
                let probe = probe.ok_or(Stop::Cut(status::SERVERFAULT))?;
                return Err(Stop::Ask(Box::new(Question4::Probe(*probe))));
            }
            Outcome::Reply { handled } if self.judges => (handled, Some(std::mem::take(&mut call.results))),
            Outcome::Reply { .. } => return Err(Status::ServerFault.into()),
            Outcome::Answer { status, .. } => {
                self.course.counted = false;
                self.env.shared.totals.denied(rule);
                return Err(status.into());
            }
            Outcome::Forward { handled } => (handled, None),
        };
        self.course.counted = false;
        let user = call.compound.and_then(|compound| compound.user);
        let given = Given { asked: (asked, handled), user, results };
        self.course.now.push(given.clone());
        Ok(given)
    }
}

impl Course {
    /// True if the answer is known: it was cut, or an operation has failed at the server.
    fn is_over(&self) -> bool {
        self.cut.is_some() || self.status != status::OK
    }
}

/// Appends an OPEN, from its access on, that must fail: of a name that there is not.
pub fn put_failing(out: &mut Vec<u8>, owner: &[u8]) {
    [1, 0].into_iter().for_each(|word| put_u32(out, word));
    out.extend_from_slice(owner);
    [0, 0].into_iter().for_each(|word| put_u32(out, word));
    let random = crate::proxy::server::random;
    put_opaque(out, format!(".weir-{:08x}{:08x}{:08x}", random(), random(), random()).as_bytes());
}
