//! A call of NFSv3 that the chain has judged: it is held, answered, settled, set aside, or goes to the server.

use super::aside::Asides;
use super::asking;
use super::buffer::Output;
use super::env::Env;
use super::inbox::Delivery;
use super::known::{Done, Passed, known};
use super::pending::{Entry, Pending, Print, Question, remember};
use super::replies::tell_waiters;
use super::retransmit::{Key, Look, Waiter};
use super::session::{Held, Session};
use super::settle::{self, Settled};
use crate::message::{Asked, Call, Probe};
use crate::metrics::Totals;
use crate::policy::chain::POLICIES_MAX;
use crate::policy::{Chain, Outcome};
use crate::wire::answer;
use crate::wire::nfs3::{Handle, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The parts of a session that a judged call changes.
pub(super) struct Parts<'s> {
    pub pending: &'s mut Pending,
    pub answers: &'s mut Vec<u8>,
    pub asides: &'s mut Asides,
    pub output: &'s mut Output,
    pub held: &'s mut Option<Held>,
}

/// A call, and what is known of it besides.
pub(super) struct Judged<'c> {
    pub call: Call<'c>,
    pub chain: Arc<Chain>,
    /// Its name, if it must happen once.
    pub once: Option<Key>,
    /// `maxcount` as the client gave it.
    pub maxcount: u32,
    pub datagram: bool,
    pub print: Print,
    pub waiter: Waiter,
}

impl Judged<'_> {
    /// Does what the chain says, which was asked from the policy of this number on.
    pub(super) fn go_on(
        mut self,
        outcome: Outcome,
        from: usize,
        mut parts: Parts<'_>,
        env: &mut Env<'_>,
    ) -> Done {
        match outcome {
            Outcome::Wait { wait_us, from, handled } => {
                let hold = Session::hold(&self.call, wait_us, from, handled, &self.chain);
                *parts.held = Some(Held { once: self.once, maxcount: self.maxcount, ..hold });
                Done::Hold
            }
            Outcome::Ask { from, handled } => self.ask((from, handled), None, &mut parts, env),
            Outcome::Reply { handled } => {
                let made = std::mem::take(&mut self.call.results);
                self.put_made(&made, asking::Maker::Policy, handled, parts.answers, env);
                Done::Skip
            }
            Outcome::Answer { status, .. } => {
                env.shared.totals.denied(self.call.op());
                self.refuse(status, &mut parts)
            }
            Outcome::Forward { handled } => self.forward(handled, from == POLICIES_MAX, &mut parts, env),
        }
    }

    /// What must be known of it when its reply comes.
    fn asked(&self, names: bool) -> Asked {
        remember(&self.call, self.call.caller.clone(), self.maxcount, self.datagram, names)
    }

    /// Policies have heard that it goes to the server: it does not.
    fn undone(&self, handled: u64) {
        self.chain.undone(&self.asked(false), handled);
    }

    fn refuse(&self, status: Status, parts: &mut Parts<'_>) -> Done {
        answer::put(parts.answers, self.call.head.xid, self.call.op(), status);
        Done::Skip
    }

    fn put_made(
        &self,
        made: &[u8],
        maker: asking::Maker,
        handled: u64,
        answers: &mut Vec<u8>,
        env: &mut Env<'_>,
    ) {
        let asked = self.asked(self.chain.needs_names());
        asking::put_made(made, maker, self.call.head.xid, &asked, (&self.chain, handled), answers, env);
    }

    /// Asks the server what the call's probe says, and holds the call meanwhile. With a name under which it is `settled` it is
    /// unknown again if the session ends now.
    fn ask(
        &mut self,
        (from, handled): (usize, u64),
        settled: Option<Key>,
        parts: &mut Parts<'_>,
        env: &Env<'_>,
    ) -> Done {
        let Some(mut entry) = asking::question(&mut self.call, &self.chain) else {
            self.undone(handled);
            return self.refuse(Status::ServerFault, parts);
        };
        entry.once = settled;
        let hold = Session::hold(&self.call, 0, from, handled, &self.chain);
        let (once, maxcount) = (self.once, self.maxcount);
        *parts.held = Some(Held { once, maxcount, until_us: u64::MAX, ..hold });
        let xid = parts.pending.insert(entry);
        if let Some(entry) = parts.pending.get(xid) {
            parts.output.head(|out| asking::put_question(entry, xid, out));
        }
        env.shared.totals.pending.fetch_add(1, Ordering::Relaxed);
        Done::Hold
    }

    /// It goes to the server, unless it was there before.
    fn forward(mut self, handled: u64, settling: bool, parts: &mut Parts<'_>, env: &mut Env<'_>) -> Done {
        let unknown = settling
            || match known(self.once, Look::Forward, self.waiter, parts.answers, env) {
                Passed::New => false,
                Passed::Unknown => true,
                Passed::Dealt => {
                    self.undone(handled);
                    return Done::Skip;
                }
            };
        if let (true, Some(once)) = (unknown, self.once)
            && let Some(done) = self.settle(once, handled, parts, env)
        {
            return done;
        }
        if let Some(status) = self.call.unless {
            self.undone(handled);
            // It is forgotten meanwhile that it was sent before.
            self.abandon(env);
            return self.refuse(status, parts);
        }
        let resent = unknown && settle::shows(&self.call);
        self.send(handled, resent, parts, env)
    }

    /// Tells those who wait for the same call that nobody knows what became of it.
    fn abandon(&self, env: &Env<'_>) {
        let Some(once) = self.once else { return };
        for waiter in env.shared.retransmits.abandoned(once, env.now.steady_us) {
            env.shared.deliver(waiter.worker, Delivery::End { session: waiter.session });
        }
    }

    /// Settles a call of which nobody knows whether it has happened; nothing if it goes to the server once more.
    fn settle(&mut self, once: Key, handled: u64, parts: &mut Parts<'_>, env: &mut Env<'_>) -> Option<Done> {
        match settle::settle(&self.call) {
            Settled::Again => {
                let status = self.call.unless?;
                self.undone(handled);
                let begin = parts.answers.len();
                let done = self.refuse(status, parts);
                tell_waiters(once, &parts.answers[begin..], true, env);
                Some(done)
            }
            Settled::Ask(probe) => Some(self.ask_first(probe, once, handled, parts, env)),
            Settled::Done(made) => {
                Totals::count(&env.shared.totals.settled_total);
                let begin = parts.answers.len();
                self.put_made(&made, asking::Maker::Server, handled, parts.answers, env);
                tell_waiters(once, &parts.answers[begin..], true, env);
                Some(Done::Skip)
            }
            Settled::Later => {
                self.undone(handled);
                self.abandon(env);
                Some(self.refuse(Status::Jukebox, parts))
            }
        }
    }

    fn ask_first(
        &mut self,
        probe: Box<Probe>,
        once: Key,
        handled: u64,
        parts: &mut Parts<'_>,
        env: &Env<'_>,
    ) -> Done {
        self.call.probe = Some(probe);
        self.ask((POLICIES_MAX, handled), Some(once), parts, env)
    }

    /// Sends it, or sets it aside for a moment.
    fn send(self, handled: u64, resent: bool, parts: &mut Parts<'_>, env: &Env<'_>) -> Done {
        let asked = self.asked(resent || self.chain.needs_names());
        let Judged { call, chain, once, datagram, print, .. } = self;
        let Parts { pending, asides, output, .. } = parts;
        let head_end = call.head_end();
        let has_room = asides.has_room(call.record_bytes());
        let aside_us = if datagram || !has_room { 0 } else { call.aside_us };
        if aside_us == 0 && !asides.is_empty() {
            if asides.may_pass(&call) {
                Totals::count(&env.shared.totals.overtaken_total);
            } else {
                asides.release(output);
            }
        }
        let xid = pending.insert(Entry {
            client_xid: call.head.xid,
            print: Some(print),
            asked: Question::Call(asked, handled),
            resent,
            chain,
            since_us: env.now.steady_us,
            once,
        });
        env.shared.totals.pending.fetch_add(1, Ordering::Relaxed);
        if aside_us > 0 {
            let handle = Handle::new(call.handle(0)).unwrap_or(Handle::EMPTY);
            let mut bytes = Vec::with_capacity(call.record_bytes() + 72);
            call.put(xid, &mut bytes);
            bytes.extend_from_slice(call.behind_head());
            asides.push(bytes, handle, env.now.steady_us + aside_us, &env.shared.totals);
            return Done::Skip;
        }
        output.head(|out| call.put(xid, out));
        Done::Forward(head_end)
    }
}
