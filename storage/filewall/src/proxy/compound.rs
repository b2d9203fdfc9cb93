//! COMPOUNDs of NFSv4.0 and 4.1 on their way to the server; their results are in [`super::compound_replies`].
//!
//! The operations are walked through with a cursor for the current and the saved handle, so that each of them has its place
//! also where no handle was sent for it. Those that have their like in NFSv3 are shown to the policies as such. Handles are
//! replaced; what stands behind the last one goes out from where it was received.
//!
//! A client of NFSv4 does not mount: it walks down from the server's root. On the way to the export nothing else can be
//! reached, and the step into it is what MOUNT is in NFSv3.
//!
//! - [`asked`]: what is kept of one. - [`walk`]: from operation to operation. - [`judged`]: the same where objects must be known: resolving names, OPEN, whose
//!   credentials. - [`made_up`]: operations on objects that a policy makes up; [`states`]: what is open of them.
//! - [`question`]: what FileWall asks the server itself, which holds the client's call meanwhile. - [`slots`]: which call has which
//!   place in a session. - [`owners`]: whose sessions are.
//!
//! Invariants
//! - The first operation that is denied, or not served, ends the COMPOUND: the server gets those before it, and its reply is
//!   completed with the refusal. So a sequence number or slot is used up as the client expects.
//! - Where a policy must know objects ([`crate::policy::Policy::judges_objects`]), each operation is judged with the handle that it
//!   is about: names are asked for first, and the server gets the handle that was judged in place of the name.
//! - A session is used and ended by the address that it was given to.
//! - What the server has answered to one call reaches no other that names the same place in a session.
//! - No way leads from the server to the client past the policies: there are no callbacks, hence no delegations; no layouts;
//!   no addresses of other servers; LOOKUPP leads to folders of the export, and up the way that leads down to it.

pub mod asked;
mod judged;
mod made_up;
mod owners;
mod question;
mod slots;
mod states;
mod stopped;
mod walk;

pub use asked::{CompoundAsked, Course, Cursor, OpAsked, Position, Sent};
pub(super) use asked::{Edit, Piece, Question4};
pub(super) use owners::Owned;
pub(super) use question::{Answer4, fattr3, keeps_sequence};
pub use states::Shared4;

use super::env::Env;
use super::flow::Source;
use super::known::{Done, Passed, known};
use super::outcome::Parts;
use super::pending::{Entry, Met, Print, Question};
use super::retransmit::{Key, Look, Retransmits, Waiter};
use super::session::{Held, Session};
use crate::identity::Principal;
use crate::message::Counted;
use crate::metrics::Totals;
use crate::wire::nfs3::Op;
use crate::wire::nfs4::arguments::{self, Argument, CompoundHead};
use crate::wire::nfs4::{COMPOUND, MINOR_MAX, Op4, status};
use crate::wire::rpc::{CallHead, Credential, Refusal, mark_of, put_success};
use crate::wire::xdr::{Reader, get_u32, put_opaque, put_u32, set_u32};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use stopped::Stopped;
use walk::Walk;

/// Bytes behind the tag by which calls in one place of a session are told apart.
const NAMED_BYTES_MAX: usize = 4096;

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
    put_region(record, 4..end, edits, out);
}

/// Appends a part of a record with the edits in it.
pub(super) fn put_region(record: &[u8], region: Range<usize>, edits: &[Edit], out: &mut Vec<u8>) {
    let mut from = region.start;
    for edit in edits.iter().filter(|edit| edit.range.start >= region.start && edit.range.end <= region.end) {
        out.extend_from_slice(&record[from..edit.range.start]);
        match &edit.new {
            Piece::Nothing => {}
            Piece::Handle(handle) => put_opaque(out, handle.as_bytes()),
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        from = edit.range.end;
    }
    out.extend_from_slice(&record[from..region.end]);
}

/// Appends the result of an operation that is not carried out.
pub(super) fn put_refused(out: &mut Vec<u8>, number: u32, status: u32) {
    put_u32(out, if status == status::ILLEGAL { status::ILLEGAL } else { number });
    put_u32(out, status);
    if number == Op4::SetAttr.number() {
        put_u32(out, 0);
    }
}

/// Appends a whole reply: `results` are `count` of them, and the last one may be a refusal.
fn put_answer(
    out: &mut Vec<u8>,
    xid: u32,
    tag: &[u8],
    (count, results): (u32, &[u8]),
    (status, refused): (u32, Option<u32>),
) {
    let mut bytes = Vec::with_capacity(results.len() + tag.len() + 32);
    put_u32(&mut bytes, status);
    put_opaque(&mut bytes, tag);
    put_u32(&mut bytes, count + u32::from(refused.is_some()));
    bytes.extend_from_slice(results);
    if let Some(number) = refused {
        put_refused(&mut bytes, number, status);
    }
    put_success(out, xid, bytes.len());
    out.extend_from_slice(&bytes);
}

/// Everything of a COMPOUND that is under way but its record.
struct Way<'s> {
    head: CallHead,
    compound: &'s CompoundHead,
    caller: Arc<Principal>,
    chain: Arc<crate::policy::Chain>,
    once: Option<Key>,
    unknown: bool,
    print: Print,
}

impl Way<'_> {
    fn hold(self, until_us: u64, course: Course) -> Held {
        Held {
            until_us,
            from: 0,
            handled: 0,
            chain: self.chain,
            caller: self.caller,
            handles: [None; 2],
            maxcount: 0,
            told: Vec::new(),
            note: 0,
            counted: Counted::default(),
            seen: crate::message::Seen::default(),
            once: self.once,
            unknown: self.unknown,
            unless: None,
            asked: None,
            course: Some(Box::new(course)),
        }
    }

    fn entry(&self, asked: Question, since_us: u64, once: Option<Key>) -> Entry {
        let chain = self.chain.clone();
        let print = Some(self.print);
        Entry { client_xid: self.head.xid, print, asked, resent: false, chain, since_us, once }
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
            Totals::count(&env.shared.totals.nfs4_refused_total);
            return self.refuse(head.xid, Refusal::VersionMismatch { low: 3, high: 3 }, env);
        }
        let (record, record_bytes, _) = self.c2s.record(source);
        match self.pending.meets(head.xid, record, record_bytes) {
            Met::Nobody => {}
            Met::Copy => {
                Totals::count(&env.shared.totals.retransmissions_total);
                return Done::Skip;
            }
            Met::Another => return Done::Wait,
        }
        let mut reader = Reader::new(record, record_bytes);
        let read = reader.take(head.arguments_at).and_then(|_| arguments::head(&mut reader));
        let Ok(compound) = read else { return self.refuse(head.xid, Refusal::GarbageArguments, env) };
        if compound.minor > MINOR_MAX {
            let tag = compound.tag.of(record).to_vec();
            let mismatch = (status::MINOR_VERSION_MISMATCH, None);
            put_answer(&mut self.answers, head.xid, &tag, (0, &[]), mismatch);
            return Done::Skip;
        }
        if arguments::operations(&mut reader, &compound, env.compound).is_err() {
            return self.refuse(head.xid, Refusal::GarbageArguments, env);
        }
        if self.held.is_none() {
            Totals::count(&env.shared.totals.compounds_total);
        }
        self.compound(source, head, &compound, env)
    }

    fn compound(
        &mut self,
        source: Source,
        head: CallHead,
        compound: &CompoundHead,
        env: &mut Env<'_>,
    ) -> Done {
        let mut held = self.held.take();
        let Session { c2s, callers, chain, pending, address, key, answers, asides, .. } = self;
        let (record, record_bytes, output) = c2s.record(source);
        asides.release(output);
        let caller = match &held {
            Some(held) => Some(held.caller.clone()),
            None => Session::caller(chain, callers, address.ip(), record, &head),
        };
        let Some(caller) = caller else { return self.refuse(head.xid, Refusal::CredentialTooWeak, env) };
        let chain = held.as_ref().map_or_else(|| chain.clone(), |held| held.chain.clone());
        // Nobody can say where LOOKUPP leads, or what REMOVE removes, but who knows what it is about.
        let has = |op: Op4| env.compound.ops.iter().any(|argument| argument.op == op);
        let judges = chain.judges_objects()
            || has(Op4::LookupParent)
            || chain.tells_removals() && has(Op4::Remove)
            || chain.knows_files() && finds_files(&env.compound.ops);
        if let (Some(first), None) = (env.compound.ops.first(), &held)
            && first.op == Op4::Sequence
            && let Some(refused) = foreign(first, record, address.ip(), env)
        {
            let tag = compound.tag.of(record).to_vec();
            put_answer(answers, head.xid, &tag, (0, &[]), (refused, Some(first.op.number())));
            return Done::Skip;
        }
        let once = match &held {
            Some(held) => held.once,
            None => {
                let name = copies(compound, &env.compound.ops, record, judges);
                name.map(|parts| env.shared.retransmits.key(address.ip(), &parts))
            }
        };
        let place = slots::Place::of(env.compound.ops.first(), record)
            .map(|place| (place, name_in_place(compound, record, address.ip(), &env.shared.retransmits)));
        if let (Some((place, call)), None) = (place, &held)
            && !env.shared.four.slots.take(place, call)
        {
            Totals::count(&env.shared.totals.false_retries_total);
            let tag = compound.tag.of(record).to_vec();
            let refused = (status::SEQ_FALSE_RETRY, Some(Op4::Sequence.number()));
            put_answer(answers, head.xid, &tag, (0, &[]), refused);
            return Done::Skip;
        }
        let waiter = Waiter { worker: env.worker, session: *key, xid: head.xid };
        let mut unknown = held.as_ref().is_some_and(|held| held.unknown);
        if held.is_none() && judges {
            match known(once, Look::Before, waiter, answers, env) {
                Passed::New => {}
                Passed::Unknown => unknown = true,
                Passed::Dealt => return Done::Skip,
            }
        }
        let tag = compound.tag.of(record).to_vec();
        let course =
            held.as_mut().and_then(|held| held.course.take()).map_or_else(Course::default, |course| *course);
        let print = Print::of(record, record_bytes);
        let way = Way { head, compound, caller, chain, once, unknown, print };
        let mut walk = Walk::new((&mut *record, record_bytes), &way, env, course, judges);
        let stopped = walk.run(&env.compound.ops, env.compound.refused);
        let Walk { course, .. } = walk;
        let stopped_at = Stopped { way, course, record, record_bytes, place, tag, waiter };
        let parts = Parts { pending, answers, asides, output, held: &mut self.held };
        stopped_at.go_on(stopped, parts, env)
    }
}

/// True if operations are about a file whose handle the client has not sent: an operation before them finds it. Kernels' clients send
/// handles.
fn finds_files(ops: &[Argument]) -> bool {
    let (mut sent, mut saved) = (false, false);
    ops.iter().any(|argument| {
        match argument.op {
            Op4::PutFh => sent = true,
            Op4::SaveFh => saved = sent,
            Op4::RestoreFh => sent = saved,
            Op4::Read | Op4::Write | Op4::SetAttr | Op4::Remove => return !sent,
            Op4::Rename => return !(sent && saved),
            Op4::Open if argument.open.is_some_and(|open| open.empties()) && !sent => return true,
            Op4::Open | Op4::Create | Op4::Lookup | Op4::LookupParent | Op4::PutRootFh | Op4::PutPubFh => {
                sent = false;
            }
            _ => {}
        }
        false
    })
}

/// What makes two records copies of one COMPOUND that must happen once; `None` for one that may happen again.
///
/// In NFSv4.0 it is the whole record. From 4.1 on the server's own sessions see to it, by the place in the slot that SEQUENCE names.
/// But where policies look for names first, a copy would be judged by what the first one has left, and the server would get
/// another COMPOUND in the same place: what the client wants kept is kept here. Its transaction number and its tag are free
/// to differ then.
fn copies<'r>(
    head: &CompoundHead,
    ops: &[Argument],
    record: &'r [u8],
    judges: bool,
) -> Option<[&'r [u8]; 2]> {
    let once = || ops.iter().any(|argument| argument.rule.is_some_and(Op::once));
    if head.minor == 0 {
        return once().then_some([record, &[]]);
    }
    // Its last argument says whether the reply is to be kept.
    let kept = |first: &Argument| first.op == Op4::Sequence && get_u32(record, first.end - 4) != 0;
    (judges && (once() || ops.first().is_some_and(kept))).then(|| untagged(head, record))
}

/// A record before and behind its tag, without its transaction number: what a copy has in NFSv4.1.
fn untagged<'r>(head: &CompoundHead, record: &'r [u8]) -> [&'r [u8]; 2] {
    [&record[4..head.tag.start], &record[head.tag.padded_end()..]]
}

/// The name of a call that takes a place in a session. Of what is written its length and its beginning count.
fn name_in_place(head: &CompoundHead, record: &[u8], client: IpAddr, memory: &Retransmits) -> Key {
    let [before, behind] = untagged(head, record);
    let begin = &behind[..behind.len().min(NAMED_BYTES_MAX)];
    memory.key(client, &[before, begin, &behind.len().to_be_bytes()])
}

/// The status of an operation that names another address's session or client, if it does.
pub(super) fn foreign(argument: &Argument, record: &[u8], client: IpAddr, env: &Env<'_>) -> Option<u32> {
    let owned = Owned::of_argument(argument, record)?;
    env.shared.four.owners.is_foreign(owned, client).then(|| {
        Totals::count(&env.shared.totals.foreign_sessions_total);
        owned.refusal()
    })
}

/// Changes who the server shall think is calling.
fn set_user(record: &mut [u8], head: &CallHead, user: Option<(u32, u32)>) {
    if let (Some((uid, gid)), Credential::Sys(sys)) = (user, &head.credential) {
        set_u32(record, sys.uid_at, uid);
        set_u32(record, sys.uid_at + 4, gid);
    }
}
