//! Results of COMPOUNDs on their way to the client: handles are replaced, what they tell of places is learnt, policies see
//! what they have let go on, and a COMPOUND that was cut gets the result that is missing.

use super::compound::{
    Answer4, CompoundAsked, Cursor, Edit, OpAsked, Owned, Piece, Position, Sent, fattr3, keeps_sequence,
    put_edited, put_refused, put_region,
};
use super::env::Env;
use super::flow::Source;
use super::pending::{Entry, Question};
use super::replies::{Done, tell_waiters};
use super::session::{Client, Session};
use crate::identity::Principal;
use crate::message::{Extra, Reply, Seen};
use crate::metrics::Totals;
use crate::places::ROOT;
use crate::policy::chain::Hidden;
use crate::policy::{Chain, OpenHandle};
use crate::wire::nfs3::{Handle, PAYLOAD_BYTES_MAX};
use crate::wire::nfs4::made::{Object4, failed};
use crate::wire::nfs4::results::{Entry4, Found, Outcome4, Results4, results};
use crate::wire::nfs4::{Op4, status};
use crate::wire::rpc::{Refusal, ReplyHead, put_refusal};
use crate::wire::xdr::{Reader, get_u32, padded, put_opaque, put_u32, put_u64, set_u32};
use std::net::IpAddr;

/// Flags of SEQUENCE that say that callbacks do not reach the client, which it would try to mend.
const FLAGS_CALLBACKS_DOWN: u32 = 0x1 | 0x200;
/// Flags of EXCHANGE_ID about layouts, and the one that says that there are none.
const FLAGS_LAYOUTS: u32 = 0x7_0000;
const FLAG_NO_LAYOUTS: u32 = 0x1_0000;

/// What is needed to rewrite the results of one COMPOUND.
struct Rewrite<'r> {
    record: &'r mut [u8],
    chain: &'r Chain,
    client: IpAddr,
    caller: &'r Principal,
    way: Vec<&'r [u8]>,
    edits: Vec<Edit>,
    /// Entries that policies add to listings, by the number of their result.
    extras: Vec<(usize, Box<Extra>)>,
    fsid: (u64, u64),
    /// Status of the last result, as the client gets it.
    status: u32,
    /// Results that the client does not get.
    hidden: u32,
}

impl Rewrite<'_> {
    /// The result of what the server got in place of an operation becomes that of the operation.
    fn translate(&mut self, outcome: &Outcome4, asked: &OpAsked, next: Option<&OpAsked>) {
        let mut says = outcome.status;
        match &asked.sent {
            Sent::As(_) => set_u32(self.record, outcome.start, asked.op.number()),
            Sent::Hidden if says == status::OK => {
                self.edits.push(Edit { range: outcome.start..outcome.end, new: Piece::Nothing });
                self.hidden += 1;
            }
            Sent::Hidden => {
                let op = next.map_or(asked.op, |next| next.op);
                set_u32(self.record, outcome.start, op.number());
            }
            Sent::Guarded if says == status::EXIST => says = status::DELAY,
            Sent::Refused(_) if says == status::OK => {
                says = status::SERVERFAULT;
                let new = Piece::Bytes(failed(asked.op, says));
                self.edits.push(Edit { range: outcome.start..outcome.end, new });
            }
            Sent::Refused(with) if !keeps_sequence(says) => says = *with,
            _ => {}
        }
        if says != outcome.status {
            set_u32(self.record, outcome.start + 4, says);
        }
        self.status = says;
    }

    fn outcome(&mut self, number: usize, outcome: &Outcome4, asked: &OpAsked, all: &Results4) {
        if let Some(at) = outcome.flags_at {
            let flags = get_u32(self.record, at);
            let flags = match outcome.op {
                Op4::Sequence => flags & !FLAGS_CALLBACKS_DOWN,
                _ => flags & !FLAGS_LAYOUTS | FLAG_NO_LAYOUTS,
            };
            set_u32(self.record, at, flags);
        }
        for at in outcome.limits_at.into_iter().flatten() {
            let limit = u32::try_from(PAYLOAD_BYTES_MAX).unwrap_or(u32::MAX);
            if get_u32(self.record, at) > 0 || get_u32(self.record, at + 4) > limit {
                set_u32(self.record, at, 0);
                set_u32(self.record, at + 4, limit);
            }
        }
        let Some(cursor) = asked.cursor.as_deref() else { return };
        if let Some(found) = outcome.found {
            self.learn(found, cursor);
            let above = matches!(cursor.position, Position::Above(_));
            self.seal(found, above);
        }
        if outcome.op == Op4::ReadDir && outcome.status == status::OK {
            let entries = &all.entries[outcome.entries.0..outcome.entries.1];
            self.directory(number, outcome, entries, asked, cursor);
        }
    }

    fn learn(&self, found: Found, cursor: &Cursor) {
        let handle = found.handle.of(self.record);
        match (cursor.position, &cursor.name) {
            (Position::Above(level), _) => self.chain.learn_above(handle, level),
            (Position::Inside(place), Some((directory, name))) => {
                self.chain.learn_name(handle, directory.as_ref(), place, name);
            }
            // Where a walk from above has reached the export.
            (Position::Inside(place), None) if cursor.handle.is_none() => {
                self.chain.learn_name(handle, None, place, b"");
            }
            _ => {}
        }
    }

    /// Replaces a handle; how much longer it became, bytes.
    fn seal(&mut self, found: Found, above: bool) -> isize {
        let Some(handle) = Handle::new(found.handle.of(self.record)) else { return 0 };
        let sealed = self.chain.seal_handle(OpenHandle { handle, above }, self.client);
        if sealed == handle {
            return 0;
        }
        let (old, new) = (padded(found.handle.bytes), padded(sealed.as_bytes().len()));
        if let Some(at) = found.length_at {
            let length = get_u32(self.record, at) as usize;
            set_u32(self.record, at, u32::try_from(length + new - old).unwrap_or(u32::MAX));
        }
        let range = found.handle.start - 4..found.handle.padded_end();
        self.edits.push(Edit { range, new: Piece::Handle(sealed) });
        new as isize - old as isize
    }

    /// Above the export only what leads to it is shown. Entries that no longer fit because of their handles are left out: the
    /// client asks for them with the last one's cookie.
    fn directory(
        &mut self,
        number: usize,
        outcome: &Outcome4,
        entries: &[Entry4],
        asked: &OpAsked,
        cursor: &Cursor,
    ) {
        let extra =
            self.extras.iter().position(|(of, _)| *of == number).map(|at| self.extras.swap_remove(at).1);
        let only =
            if let Position::Above(level) = cursor.position { self.way.get(level).copied() } else { None };
        let above = matches!(cursor.position, Position::Above(level) if level + 1 < self.way.len());
        let folder = cursor.position.place();
        let (chain, caller) = (self.chain, self.caller);
        let mut hidden = Hidden::new(chain, caller);
        let mut bytes = (8 + 8) as isize;
        let mut shown = 0;
        for (number, entry) in entries.iter().enumerate() {
            let name = entry.name.of(self.record);
            if only.is_some_and(|only| only != name) {
                self.edits.push(Edit { range: entry.start..entry.end, new: Piece::Nothing });
                continue;
            }
            let edits = self.edits.len();
            let hides = folder.is_some_and(|folder| hidden.is(self.chain.entry_place(folder, name)));
            if let Some(found) = entry.found {
                self.learn_entry(found, entry, cursor);
            }
            if hides {
                bytes += self.bare(entry, &asked.wanted);
            } else if let Some(found) = entry.found {
                bytes += self.seal(found, above);
            }
            bytes += (entry.end - entry.start) as isize;
            shown += 1;
            if shown > 1 && bytes > asked.maxcount as isize {
                self.edits.truncate(edits);
                let rest = entries[number].start..outcome.entries_end_at;
                self.edits.push(Edit { range: rest, new: Piece::Nothing });
                set_u32(self.record, outcome.entries_end_at + 4, 0);
                return;
            }
        }
        let Some(extra) = extra.filter(|_| get_u32(self.record, outcome.entries_end_at + 4) != 0) else {
            return;
        };
        let mut added = Vec::new();
        put_u32(&mut added, 1);
        put_u64(&mut added, extra.cookie);
        put_opaque(&mut added, &extra.name);
        let object =
            Object4 { attributes: Some(&extra.attributes), handle: extra.handle.as_bytes(), fsid: self.fsid };
        object.put(&asked.wanted, &mut added);
        if shown > 0 && bytes + added.len() as isize > asked.maxcount as isize {
            set_u32(self.record, outcome.entries_end_at + 4, 0);
            return;
        }
        let at = outcome.entries_end_at;
        self.edits.push(Edit { range: at..at, new: Piece::Bytes(added) });
    }

    /// Takes the attributes of an entry out, which says why if the client asks for that; how much longer it became, bytes.
    fn bare(&mut self, entry: &Entry4, wanted: &[u8]) -> isize {
        let mut said = Vec::new();
        Object4 { attributes: None, handle: &[], fsid: self.fsid }.put(wanted, &mut said);
        let range = entry.name.padded_end()..entry.end;
        let longer = said.len() as isize - range.len() as isize;
        self.edits.push(Edit { range, new: Piece::Bytes(said) });
        longer
    }

    fn learn_entry(&self, found: Found, entry: &Entry4, cursor: &Cursor) {
        let name = entry.name.of(self.record);
        let handle = found.handle.of(self.record);
        match cursor.position {
            Position::Above(level) if level + 1 < self.way.len() => {
                self.chain.learn_above(handle, level + 1);
            }
            Position::Above(_) => self.chain.learn_name(handle, None, ROOT, b""),
            Position::Inside(directory) => {
                if let Some(place) = self.chain.context().zones.step(directory, name) {
                    self.chain.learn_name(handle, cursor.handle.as_ref(), place, name);
                }
            }
            _ => {}
        }
    }
}

impl Session {
    /// Deals with the reply to a COMPOUND, all of which must be at hand.
    pub(super) fn compound_reply(&mut self, source: Source, head: ReplyHead, env: &mut Env<'_>) -> Done {
        if !self.s2c.is_whole(source) {
            return Done::More;
        }
        let Session { s2c, pending, client, held, .. } = self;
        let Some(Entry { asked: Question::Compound(asked), client_xid, chain, since_us, once, .. }) =
            pending.take(head.xid)
        else {
            return Done::Skip;
        };
        let totals = &env.shared.totals;
        Totals::down(&totals.pending, 1);
        let (record, record_bytes, output) = s2c.record(source);
        let begin = output.heads_bytes();
        let mut reader = Reader::new(record, record_bytes);
        env.results4.objects = chain.judges_objects();
        let read = match head.results_at {
            None => Ok(false),
            Some(at) => reader.take(at).and_then(|_| results(&mut reader, env.results4)).map(|()| true),
        };
        let fits = |found: &Results4| {
            let mut sent = asked.ops.iter().filter_map(|op| match &op.sent {
                Sent::Made(_) => None,
                Sent::As(other) => Some(*other),
                _ => Some(op.op),
            });
            // A server that knows an operation not answers with the number of ILLEGAL.
            found.outcomes.iter().all(|outcome| sent.next() == Some(outcome.op))
        };
        // What has got no place in a session may come again as another call, and is for the server to answer again.
        let placed = read == Ok(true)
            && !env
                .results4
                .outcomes
                .first()
                .is_some_and(|first| first.op == Op4::Sequence && first.status != status::OK);
        if let Some((place, call)) = asked.place {
            env.shared.four.slots.answered(place, call, placed);
        }
        let mut head_end = record_bytes;
        match read {
            Ok(true) if fits(env.results4) => {
                for outcome in env.results4.outcomes.iter().filter(|outcome| outcome.status == status::OK) {
                    if let Some((owned, given)) = Owned::of_result(outcome.op, outcome.start, record) {
                        env.shared.four.owners.learn(owned, asked.caller.address, given);
                    }
                }
                let extras = show_policies(&asked, &chain, record, env, since_us);
                let (edits, status, cut) = rewrite(record, record_bytes, &asked, &chain, extras, env);
                if asked.segment {
                    if let Some(course) = held.as_mut().and_then(|held| held.course.as_mut()) {
                        course.count +=
                            put_results(record, &asked, &edits, env.results4, &mut course.results);
                        course.status = status;
                    }
                    self.resume();
                    return Done::Skip;
                }
                if once.is_none() && !cut {
                    head_end = edits.last().map_or(4, |edit| edit.range.end);
                }
                output.head(|out| put_edited(record, record_bytes, head_end, client_xid, &edits, out));
            }
            // The call that is held is answered with what the server says, or fails.
            _ if asked.segment => {
                tracing::warn!("the server does not carry out a part of a COMPOUND");
                if let Some(course) = held.as_mut().and_then(|held| held.course.as_mut()) {
                    let op = asked.ops.first().map_or(Op4::PutFh, |op| op.op);
                    course.results.extend_from_slice(&failed(op, status::SERVERFAULT));
                    course.count += 1;
                    course.status = status::SERVERFAULT;
                }
                self.resume();
                return Done::Skip;
            }
            Ok(false) => {
                let all = asked.ops.iter().filter(|op| !matches!(op.sent, Sent::Made(_)));
                for (asked, handled) in all.flat_map(|op| &op.asked) {
                    chain.undone(asked, *handled);
                }
                output.head(|out| put_edited(record, record_bytes, record_bytes, client_xid, &[], out))
            }
            other => {
                Totals::count(&totals.bad_replies_total);
                tracing::warn!(wrong = ?other.err(), "the server sent results of a COMPOUND that are none");
                output.head(|out| put_refusal(out, client_xid, Refusal::SystemError));
            }
        }
        if let Some(once) = once {
            tell_waiters(once, output.heads_from(begin), placed, env);
        }
        if !matches!(client, Client::Tcp(_)) {
            output.clear();
            return Done::Skip;
        }
        if head_end < record_bytes { Done::Forward(head_end) } else { Done::Skip }
    }

    /// The server's answer to a question about a COMPOUND that is held.
    pub(super) fn answered(&mut self, source: Source, head: ReplyHead, env: &mut Env<'_>) -> Done {
        if !self.s2c.is_whole(source) {
            return Done::More;
        }
        let Some(Entry { asked: Question::Own4(question), chain, .. }) = self.pending.take(head.xid) else {
            return Done::Skip;
        };
        Totals::down(&env.shared.totals.pending, 1);
        let (record, record_bytes, _) = self.s2c.record(source);
        let mut reader = Reader::new(record, record_bytes);
        env.results4.objects = true;
        let read = match head.results_at {
            Some(at) => reader.take(at).and_then(|_| results(&mut reader, env.results4)).is_ok(),
            None => false,
        };
        if !read {
            Totals::count(&env.shared.totals.bad_replies_total);
            tracing::warn!(?question, "the server has no answer in NFSv4.0 to a question of FileWall's own");
        }
        let answer = question.answer(record, read.then_some(&*env.results4), chain.identities());
        if let Some(course) = self.held.as_mut().and_then(|held| held.course.as_mut()) {
            match answer {
                Answer4::Probe(told) => course.told.push(told),
                Answer4::Parent(parent) => course.parent = Some(parent),
                Answer4::Listed(status, bytes) => course.listed = Some((status, bytes)),
                Answer4::UsedUp(status) => course.used_up = Some(status),
                Answer4::Root(Ok(root)) => env.shared.four.set_root(Some(root)),
                Answer4::Root(Err(status)) => {
                    tracing::warn!(status, "the root of the export cannot be looked up over NFSv4");
                    course.fail(status);
                }
            }
        }
        self.resume();
        Done::Skip
    }

    /// The COMPOUND that is held goes on.
    fn resume(&mut self) {
        if let Some(held) = &mut self.held {
            held.until_us = 0;
        }
    }
}

/// Shows the results to the policies that let their operations go on, and tells them what is learnt of objects. Returns what they
/// add to listings, by the number of the result.
fn show_policies(
    asked: &CompoundAsked,
    chain: &Chain,
    record: &mut [u8],
    env: &mut Env<'_>,
    since_us: u64,
) -> Vec<(usize, Box<Extra>)> {
    let latency_us = env.now.steady_us.saturating_sub(since_us);
    let record_bytes = record.len();
    let mut extras = Vec::new();
    let mut fresh = None;
    let sent = || asked.ops.iter().filter(|op| !matches!(op.sent, Sent::Made(_)));
    // What was noted of the first operation holds for all that were asked with it.
    let seen = asked.ops.iter().flat_map(|op| &op.asked).map(|(asked, _)| asked.seen).next();
    let seen = seen.filter(|_| chain.judges_objects());
    for (asked, handled) in sent().skip(env.results4.outcomes.len()).flat_map(|op| &op.asked) {
        chain.undone(asked, *handled);
    }
    if let Some(seen) = &seen {
        let mut maker = None;
        for (outcome, op) in env.results4.outcomes.iter().zip(sent()) {
            if outcome.status == status::OK {
                let made = op.asked.iter().map(|(asked, _)| asked).rfind(|asked| asked.op.makes());
                maker = made.map(|asked| asked.seen).or(maker);
                learn_object(outcome, op, &mut fresh, (chain, seen, maker.as_ref()), record);
            }
        }
    }
    for (number, (outcome, op)) in env.results4.outcomes.iter().zip(sent()).enumerate() {
        for (asked, handled) in &op.asked {
            env.shared.totals.reply(asked.op, latency_us);
            env.results.clear();
            env.results.status = outcome.status;
            env.results.count = outcome.count;
            if op.op == Op4::ReadDir && outcome.status == status::OK {
                env.results.entries_end_at = Some(outcome.entries_end_at);
            }
            let mut reply = Reply::new(record, record_bytes, env.results, env.entry_handles);
            chain.reply(asked, &mut reply, *handled, latency_us);
            if let Some(extra) = reply.extra.take() {
                extras.push((number, extra));
            }
        }
    }
    extras
}

/// What a result tells of an object; `fresh` is the handle of what the COMPOUND has made.
fn learn_object(
    outcome: &Outcome4,
    asked: &OpAsked,
    fresh: &mut Option<Handle>,
    (chain, seen, maker): (&Chain, &Seen, Option<&Seen>),
    record: &[u8],
) {
    let Some(cursor) = asked.cursor.as_deref() else { return };
    if outcome.op == Op4::GetFh && cursor.handle.is_none() {
        *fresh = outcome.found.and_then(|found| Handle::new(found.handle.of(record)));
        if let (Some(handle), Some(maker), Some((Some(folder), name))) = (fresh.as_ref(), maker, &cursor.name)
            && chain.seen(folder, name, maker.at_us).keys[0] == maker.keys[0]
        {
            chain.name_seen(maker, handle);
        }
    }
    let Some(handle) = cursor.handle.or(*fresh) else { return };
    match (outcome.op, &outcome.known) {
        (Op4::GetAttr, Some(known)) => {
            let attributes = fattr3(known, record, chain.identities());
            chain.object_seen(handle.as_bytes(), attributes.as_ref(), seen);
        }
        (Op4::SetAttr, _) => chain.object_seen(handle.as_bytes(), None, seen),
        _ => {}
    }
}

/// What is replaced in a reply, its status, and whether a result was added.
fn rewrite(
    record: &mut [u8],
    record_bytes: usize,
    asked: &CompoundAsked,
    chain: &Chain,
    extras: Vec<(usize, Box<Extra>)>,
    env: &Env<'_>,
) -> (Vec<Edit>, u32, bool) {
    let found = &*env.results4;
    let way = env.shared.server.way().collect();
    let mut rewrite = Rewrite {
        record,
        chain,
        client: asked.caller.address,
        caller: &asked.caller,
        way,
        edits: Vec::new(),
        extras,
        fsid: env.shared.four.root().map_or((0, 0), |root| root.fsid),
        status: found.status,
        hidden: 0,
    };
    let mut sent = asked.ops.iter().filter(|op| !matches!(op.sent, Sent::Made(_))).peekable();
    let mut count = 0;
    for (number, outcome) in found.outcomes.iter().enumerate() {
        let Some(asked) = sent.next() else { break };
        count += 1;
        rewrite.outcome(number, outcome, asked, found);
        rewrite.translate(outcome, asked, sent.peek().copied());
    }
    let complete = found.status == status::OK && sent.next().is_none();
    let Rewrite { record, mut edits, status: mut says, hidden, .. } = rewrite;
    if count == 0 {
        says = found.status;
    }
    if says != found.status {
        set_u32(record, found.status_at, says);
    }
    if hidden > 0 {
        set_u32(record, found.count_at, get_u32(record, found.count_at) - hidden);
    }
    let (Some((number, status)), true) = (asked.cut, complete) else { return (edits, says, false) };
    set_u32(record, found.status_at, status);
    set_u32(record, found.count_at, get_u32(record, found.count_at) + 1);
    let mut refused = Vec::new();
    put_refused(&mut refused, number, status);
    edits.push(Edit { range: record_bytes..record_bytes, new: Piece::Bytes(refused) });
    (edits, says, true)
}

/// Appends the results of a part of a COMPOUND, those that were made among them; returns their number.
fn put_results(
    record: &[u8],
    asked: &CompoundAsked,
    edits: &[Edit],
    found: &Results4,
    out: &mut Vec<u8>,
) -> u32 {
    let mut count = 0;
    let mut outcomes = found.outcomes.iter();
    for op in &asked.ops {
        match &op.sent {
            Sent::Made(bytes) => out.extend_from_slice(bytes),
            sent => {
                let Some(outcome) = outcomes.next() else { break };
                put_region(record, outcome.start..outcome.end, edits, out);
                if *sent == Sent::Hidden && outcome.status == status::OK {
                    continue;
                }
                if outcome.status != status::OK {
                    return count + 1;
                }
            }
        }
        count += 1;
    }
    count
}
