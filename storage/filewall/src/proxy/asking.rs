//! Calls of FileWall's own, and answers that policies make (paper 4.2.3: injection).
//!
//! A policy that must know more of an object than was learnt so far asks the server on the connection of the session that the
//! call came on. The call is held meanwhile, like one that is delayed; the reply to the question is shown to nobody else.
//!
//! Invariants
//! - A call is held for one question at a time, and asks at most [`PROBES_MAX`].
//! - Questions change nothing: GETATTR and LOOKUP, as root.

use super::env::Env;
use super::flow::Source;
use super::pending::{Entry, Overtaken, Question};
use super::replies;
use super::session::Session;
use super::settle;
use crate::message::{Asked, Call, PROBES_MAX, Probe, ProbeAnswer, Reply};
use crate::metrics::Totals;
use crate::policy::Chain;
use crate::wire::answer;
use crate::wire::build::{Caller, Record};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status};
use crate::wire::reply::results;
use crate::wire::rpc::{ReplyHead, put_success};
use crate::wire::xdr::{Reader, Wrong};
use std::sync::Arc;

/// Who asks.
const FILEWALL: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[] };

impl Probe {
    /// The operation that asks.
    pub fn op(&self) -> Op {
        if self.name.is_some() { Op::Lookup } else { Op::Getattr }
    }

    fn record(&self, xid: u32) -> Vec<u8> {
        let record = Record::nfs3(xid, self.op(), &FILEWALL).opaque(self.handle.as_bytes());
        match &self.name {
            Some(name) => record.opaque(name).finish(),
            None => record.finish(),
        }
    }
}

/// The entry of the pending map for a call's probe; `None` if it has asked too often.
pub(super) fn question(call: &mut Call<'_>, chain: &Arc<Chain>) -> Option<Entry> {
    let probe = call.probe.take()?;
    (call.told.len() < PROBES_MAX).then(|| Entry {
        client_xid: call.head.xid,
        print: None,
        asked: Question::Own(probe),
        chain: chain.clone(),
        since_us: call.now.steady_us,
        once: None,
        resent: false,
    })
}

/// Appends the record of a question.
pub(super) fn put_question(entry: &Entry, xid: u32, out: &mut Vec<u8>) {
    match &entry.asked {
        Question::Own(probe) => out.extend_from_slice(&probe.record(xid)),
        Question::Overtaken(overtaken) => out.extend_from_slice(&overtaken.probe.record(xid)),
        Question::Call(..) | Question::Compound(_) | Question::Own4(_) => {}
    }
}

/// Who has made results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// A policy, of an object that the server does not have.
    Policy,
    /// The server, in answer to other questions.
    Server,
}

/// Answers a call with results that were made, as the policies that saw it let them through.
pub(super) fn put_made(
    made: &[u8],
    maker: Maker,
    xid: u32,
    asked: &Asked,
    (chain, handled): (&Chain, u64),
    answers: &mut Vec<u8>,
    env: &mut Env<'_>,
) {
    let mut record = Vec::with_capacity(28 + made.len());
    put_success(&mut record, xid, made.len());
    record.extend_from_slice(made);
    let record = &mut record[4..];
    let bytes = record.len();
    let mut reader = Reader::whole(record);
    let results_at = 24;
    if reader.take(results_at).and_then(|_| results(&mut reader, asked.op, env.results)).is_err() {
        tracing::error!(op = %asked.op, "a policy has made results that are none");
        answer::put(answers, xid, asked.op, Status::ServerFault);
        return;
    }
    let mut reply = Reply::new(record, bytes, env.results, env.entry_handles);
    match maker {
        Maker::Policy => chain.show(asked, &mut reply, handled, 0),
        Maker::Server => chain.reply(asked, &mut reply, handled, 0),
    }
    if let Some(status) = reply.failed {
        return answer::put(answers, xid, asked.op, status);
    }
    let limit = usize::try_from(asked.maxcount).unwrap_or(usize::MAX);
    reply.put(xid, results_at, limit, answers);
    let head_end = reply.head_end();
    answers.extend_from_slice(&record[head_end..]);
}

impl Session {
    /// The server has answered a copy of a call with unknown fate as if the first one had happened: it is asked.
    pub(super) fn look_again(&mut self, xid: u32, status: Status, probe: Probe, env: &mut Env<'_>) {
        let Some(Entry { asked: Question::Call(asked, handled), client_xid, print, chain, once, .. }) =
            self.pending.take(xid)
        else {
            return;
        };
        let overtaken = Overtaken { asked, handled, status, probe };
        let xid = self.pending.insert(Entry {
            client_xid,
            print,
            asked: Question::Overtaken(Box::new(overtaken)),
            resent: false,
            chain,
            since_us: env.now.steady_us,
            once,
        });
        if let Some(entry) = self.pending.get(xid) {
            put_question(entry, xid, &mut self.questions);
        }
    }

    /// The server's reply to a question of our own.
    pub(super) fn own_reply(&mut self, source: Source, head: ReplyHead, env: &mut Env<'_>) -> replies::Done {
        if !self.s2c.is_whole(source) {
            return replies::Done::More;
        }
        let Some(Entry { asked, client_xid, chain, once, .. }) = self.pending.take(head.xid) else {
            return replies::Done::Skip;
        };
        Totals::down(&env.shared.totals.pending, 1);
        let probe = match &asked {
            Question::Own(probe) => (**probe).clone(),
            Question::Overtaken(overtaken) => overtaken.probe.clone(),
            Question::Call(..) | Question::Compound(_) | Question::Own4(_) => return replies::Done::Skip,
        };
        let (record, record_bytes, _) = self.s2c.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let read = match head.results_at {
            Some(at) => reader.take(at).and_then(|_| results(&mut reader, probe.op(), env.results)),
            None => Err(Wrong::Short { at: 0 }),
        };
        let told = match read {
            Ok(()) => {
                let found = &*env.results;
                let attributes =
                    found.object.and_then(|at| record.get(at..at + ATTRIBUTES_BYTES)?.try_into().ok());
                let handle = found.handle.and_then(|span| Handle::new(span.of(record)));
                ProbeAnswer { probe, status: found.status, handle, attributes }
            }
            Err(_) => {
                Totals::count(&env.shared.totals.bad_replies_total);
                ProbeAnswer { probe, status: Status::ServerFault.number(), handle: None, attributes: None }
            }
        };
        let Question::Overtaken(overtaken) = asked else {
            self.told(told);
            return replies::Done::Skip;
        };
        let Overtaken { asked, handled, status, .. } = *overtaken;
        let made = match settle::happened(asked.op, &told) {
            Some(made) => {
                Totals::count(&env.shared.totals.settled_total);
                made
            }
            None => answer::results(asked.op, status),
        };
        let begin = self.answers.len();
        put_made(&made, Maker::Server, client_xid, &asked, (&chain, handled), &mut self.answers, env);
        if let Some(once) = once {
            replies::tell_waiters(once, &self.answers[begin..], true, env);
        }
        replies::Done::Skip
    }
}
