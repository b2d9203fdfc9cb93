//! Results of COMPOUNDs on their way to the client: handles are replaced, what they tell of places is learnt, policies see
//! what they have let go on, and a COMPOUND that was cut gets the result that is missing.

use super::compound::{CompoundAsked, Cursor, Edit, OpAsked, Piece, Position, put_edited, put_refused};
use super::flow::Source;
use super::pending::{Entry, Question};
use super::replies::{Done, tell_waiters};
use super::session::{Client, Session};
use super::worker::Env;
use crate::message::Reply;
use crate::metrics::Totals;
use crate::places::ROOT;
use crate::policy::{Chain, OpenHandle};
use crate::wire::nfs3::{Handle, PAYLOAD_BYTES_MAX};
use crate::wire::nfs4::results::{Entry4, Found, Outcome4, Results4, results};
use crate::wire::nfs4::{Op4, status};
use crate::wire::rpc::{Refusal, ReplyHead, put_refusal};
use crate::wire::xdr::{Reader, get_u32, padded, set_u32};
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
    way: Vec<&'r [u8]>,
    edits: Vec<Edit>,
}

impl Rewrite<'_> {
    fn outcome(&mut self, outcome: &Outcome4, asked: &OpAsked, all: &Results4) {
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
            self.directory(outcome, &all.entries[outcome.entries.0..outcome.entries.1], asked, cursor);
        }
    }

    fn learn(&self, found: Found, cursor: &Cursor) {
        let handle = found.handle.of(self.record);
        let places = self.chain.context().places;
        match (cursor.position, &cursor.name) {
            (Position::Above(level), _) => places.learn_above(handle, level),
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
    fn directory(&mut self, outcome: &Outcome4, entries: &[Entry4], asked: &OpAsked, cursor: &Cursor) {
        let only =
            if let Position::Above(level) = cursor.position { self.way.get(level).copied() } else { None };
        let above = matches!(cursor.position, Position::Above(level) if level + 1 < self.way.len());
        let mut bytes = (8 + 8) as isize;
        let mut shown = 0;
        for (number, entry) in entries.iter().enumerate() {
            let name = entry.name.of(self.record);
            if only.is_some_and(|only| only != name) {
                self.edits.push(Edit { range: entry.start..entry.end, new: Piece::Nothing });
                continue;
            }
            let edits = self.edits.len();
            if let Some(found) = entry.found {
                self.learn_entry(found, entry, cursor);
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
    }

    fn learn_entry(&self, found: Found, entry: &Entry4, cursor: &Cursor) {
        let name = entry.name.of(self.record);
        let handle = found.handle.of(self.record);
        match cursor.position {
            Position::Above(level) if level + 1 < self.way.len() => {
                self.chain.context().places.learn_above(handle, level + 1);
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
        let Session { s2c, pending, client, .. } = self;
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
        let read = match head.results_at {
            None => Ok(false),
            Some(at) => reader.take(at).and_then(|_| results(&mut reader, env.results4)).map(|()| true),
        };
        let fits = |found: &Results4| {
            found.outcomes.len() <= asked.ops.len()
                && found.outcomes.iter().zip(&asked.ops).all(|(outcome, asked)| outcome.op == asked.op)
        };
        let mut head_end = record_bytes;
        match read {
            Ok(false) => {
                output.head(|out| put_edited(record, record_bytes, record_bytes, client_xid, &[], out))
            }
            Ok(true) if fits(env.results4) => {
                show_policies(&asked, &chain, record, env, since_us);
                let (edits, cut) = rewrite(record, record_bytes, &asked, &chain, env);
                if once.is_none() && !cut {
                    head_end = edits.last().map_or(4, |edit| edit.range.end);
                }
                output.head(|out| put_edited(record, record_bytes, head_end, client_xid, &edits, out));
            }
            other => {
                Totals::count(&totals.bad_replies_total);
                tracing::warn!(wrong = ?other.err(), "the server sent results of a COMPOUND that are none");
                output.head(|out| put_refusal(out, client_xid, Refusal::SystemError));
            }
        }
        if let Some(once) = once {
            tell_waiters(once, output.heads_from(begin), env);
        }
        if !matches!(client, Client::Tcp(_)) {
            output.clear();
            return Done::Skip;
        }
        if head_end < record_bytes { Done::Forward(head_end) } else { Done::Skip }
    }
}

/// Shows the results to the policies that let their operations go on.
fn show_policies(asked: &CompoundAsked, chain: &Chain, record: &mut [u8], env: &mut Env<'_>, since_us: u64) {
    let latency_us = env.now.steady_us.saturating_sub(since_us);
    let record_bytes = record.len();
    for (outcome, op) in env.results4.outcomes.iter().zip(&asked.ops) {
        let Some((asked, handled)) = &op.asked else { continue };
        env.shared.totals.reply(asked.op, latency_us);
        env.results.clear();
        env.results.status = outcome.status;
        env.results.count = outcome.count;
        let mut reply = Reply::new(record, record_bytes, env.results, env.entry_handles);
        chain.reply(asked, &mut reply, *handled, latency_us);
    }
}

/// What is replaced in a reply, and whether a result was added.
fn rewrite(
    record: &mut [u8],
    record_bytes: usize,
    asked: &CompoundAsked,
    chain: &Chain,
    env: &Env<'_>,
) -> (Vec<Edit>, bool) {
    let found = &*env.results4;
    let way = env.shared.server.way().collect();
    let mut rewrite = Rewrite { record, chain, client: asked.caller.address, way, edits: Vec::new() };
    for (outcome, asked) in found.outcomes.iter().zip(&asked.ops) {
        rewrite.outcome(outcome, asked, found);
    }
    let Rewrite { record, mut edits, .. } = rewrite;
    let complete = found.status == status::OK && found.outcomes.len() == asked.ops.len();
    let (Some((number, status)), true) = (asked.cut, complete) else { return (edits, false) };
    set_u32(record, found.status_at, status);
    set_u32(record, found.count_at, get_u32(record, found.count_at) + 1);
    let mut refused = Vec::new();
    put_refused(&mut refused, number, status);
    edits.push(Edit { range: record_bytes..record_bytes, new: Piece::Bytes(refused) });
    (edits, true)
}
