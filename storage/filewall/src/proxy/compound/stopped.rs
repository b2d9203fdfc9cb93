//! A COMPOUND at the operation at which its walk has stopped: it is held, a part of it goes to the server, or it ends.

use super::asked::{CompoundAsked, Course, Question4, Sent};
use super::walk::Stop;
use super::{Way, put_answer, put_edited, set_user, slots};
use crate::metrics::Totals;
use crate::proxy::env::Env;
use crate::proxy::known::{Done, Passed, known};
use crate::proxy::outcome::Parts;
use crate::proxy::pending::Question;
use crate::proxy::replies::tell_waiters;
use crate::proxy::retransmit::{Key, Look, Waiter};
use crate::wire::nfs4::status;
use crate::wire::xdr::set_u32;
use std::sync::atomic::Ordering;

/// See the module.
pub(super) struct Stopped<'s> {
    pub way: Way<'s>,
    pub course: Course,
    pub record: &'s mut [u8],
    pub record_bytes: usize,
    /// Its place in a session, and its name there.
    pub place: Option<(slots::Place, Key)>,
    pub tag: Vec<u8>,
    pub waiter: Waiter,
}

impl Stopped<'_> {
    pub(super) fn go_on(self, stop: Stop, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        match stop {
            Stop::Wait(wait_us) => {
                *parts.held = Some(self.way.hold(env.now.steady_us + wait_us, self.course));
                Done::Hold
            }
            Stop::Ask(question) => self.ask(question, parts, env),
            Stop::Flush(end) => self.flush(end, parts, env),
            Stop::End(end) => self.end(end, parts, env),
            Stop::Cut(_) => {
                let end = self.record_bytes;
                self.end(end, parts, env)
            }
        }
    }

    /// The server is asked first, and the call is held.
    fn ask(mut self, question: Box<Question4>, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        if !self.course.may_ask() {
            self.course.give_up(&self.way.chain);
            tracing::warn!(client = %self.way.caller.address, "a COMPOUND needs more questions than are allowed");
            let refused = Some(env.compound.ops.get(self.course.next).map_or(0, |op| op.op.number()));
            let results = (self.course.count, self.course.results.as_slice());
            put_answer(parts.answers, self.way.head.xid, &self.tag, results, (status::RESOURCE, refused));
            return Done::Skip;
        }
        let asked = Question::Own4(question.clone());
        let xid = parts.pending.insert(self.way.entry(asked, env.now.steady_us, None));
        env.shared.totals.pending.fetch_add(1, Ordering::Relaxed);
        parts.output.head(|out| out.extend_from_slice(&question.record(xid, &env.shared.server)));
        *parts.held = Some(self.way.hold(u64::MAX, self.course));
        Done::Hold
    }

    /// The server carries out what stands before `end`, and the call is held for the rest.
    fn flush(self, end: usize, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        let Stopped { way, mut course, record, place, .. } = self;
        let (edits, ops) = (std::mem::take(&mut course.edits), std::mem::take(&mut course.ops));
        let sent = ops.iter().filter(|op| !matches!(op.sent, Sent::Made(_))).count();
        let user = course.user.take().and_then(|(user, _)| user);
        let asked = CompoundAsked { ops, cut: None, caller: way.caller.clone(), segment: true, place };
        let asked = Question::Compound(Box::new(asked));
        let xid = parts.pending.insert(way.entry(asked, env.now.steady_us, None));
        env.shared.totals.pending.fetch_add(1, Ordering::Relaxed);
        // The record stays as it is, for the rest of it is walked through later.
        let mut part = record.to_vec();
        set_u32(&mut part, way.compound.count_at, u32::try_from(sent).unwrap_or(0));
        set_user(&mut part, &way.head, user);
        parts.output.head(|out| put_edited(&part, end, end, xid, &edits, out));
        *parts.held = Some(way.hold(u64::MAX, course));
        Done::Hold
    }

    /// There is no more of it, or no more of it is carried out: what is left goes to the server, or all of it is answered.
    fn end(mut self, end: usize, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        // What policies let go on of an operation that another has denied, or that an earlier one's failure keeps from the server.
        self.course.give_up_now(&self.way.chain);
        if self.course.cut.is_some() {
            Totals::count(&env.shared.totals.compounds_cut_total);
        }
        if self.course.ops.is_empty() {
            return self.answer(parts, env);
        }
        // A COMPOUND of which nobody knows what became goes to the server once more, as without FileWall.
        if known(self.way.once, Look::Forward, self.waiter, parts.answers, env) == Passed::Dealt {
            self.course.give_up(&self.way.chain);
            return Done::Skip;
        }
        self.send(end, parts, env)
    }

    /// The server has nothing to do with it.
    fn answer(self, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        let Stopped { way, course, tag, .. } = self;
        let status = course.cut.map_or(course.status, |(_, status)| status);
        let results = (course.count, course.results.as_slice());
        let begin = parts.answers.len();
        let refused = course.cut.map(|(number, _)| number);
        put_answer(parts.answers, way.head.xid, &tag, results, (status, refused));
        // Its place in the slot is used up at the server, unless that is what has failed.
        let placed = course.count > 1 || course.count == 1 && course.status == status::OK;
        if let (Some(once), true) = (way.once, way.compound.minor > 0 && placed) {
            tell_waiters(once, &parts.answers[begin..], true, env);
        }
        Done::Skip
    }

    fn send(self, end: usize, parts: Parts<'_>, env: &mut Env<'_>) -> Done {
        let Stopped { way, course, record, record_bytes, place, .. } = self;
        set_user(record, &way.head, course.user.and_then(|(user, _)| user));
        let forwarded = course.ops.len();
        let (ops, cut, caller) = (course.ops, course.cut, way.caller.clone());
        let asked = CompoundAsked { ops, cut, caller, segment: false, place };
        let asked = Question::Compound(Box::new(asked));
        let xid = parts.pending.insert(way.entry(asked, env.now.steady_us, way.once));
        env.shared.totals.pending.fetch_add(1, Ordering::Relaxed);
        let edits = course.edits;
        set_u32(record, way.compound.count_at, u32::try_from(forwarded).unwrap_or(0));
        if end < record_bytes {
            parts.output.head(|out| put_edited(record, end, end, xid, &edits, out));
            return Done::Skip;
        }
        let head_end = edits.last().map_or(way.compound.count_at + 4, |edit| edit.range.end);
        parts.output.head(|out| put_edited(record, record_bytes, head_end, xid, &edits, out));
        Done::Forward(head_end)
    }
}
