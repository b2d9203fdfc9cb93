//! What happens to calls: decode, ask the chain, forward, answer, hold, or leave to a helper.

use super::asking;
use super::flow::{BadRecord, Source};
use super::mounter::Job;
use super::pending::{Entry, Met, Print, Question};
use super::retransmit::{self, Known, Look, Waiter};
use super::session::{Client, Held, Session};
use super::settle::{self, Settled};
use super::worker::{Delivery, Env};
use crate::identity::Principal;
use crate::message::{Asked, Call};
use crate::metrics::Totals;
use crate::policy::chain::POLICIES_MAX;
use crate::policy::{Mount, Outcome};
use crate::wire::call::{Arguments, arguments};
use crate::wire::nfs3::{self, Handle, Op, Status};
use crate::wire::nfs4;
use crate::wire::rpc::{CallHead, Refusal, call_head, program, put_refusal};
use crate::wire::xdr::{Reader, Wrong, get_u32, set_u32};
use crate::wire::{answer, mount, name, portmap};
use std::sync::Arc;

/// What was done with a call.
pub(super) enum Done {
    /// More of it must be received first.
    More,
    /// It is dealt with; nothing of it goes out.
    Skip,
    /// Its head was queued up to here; the rest goes out as it is.
    Forward(usize),
    /// It stays where it is.
    Hold,
    /// It stays where it is until another call of its number is answered: the client could not tell the answers apart.
    Wait,
}

impl Session {
    /// Deals with the calls that have come, as far as there is room.
    pub(super) fn calls(&mut self, env: &mut Env<'_>) {
        let was_stalled = std::mem::replace(&mut self.stalled, false);
        while !self.ended && self.c2s.pass_body() && !matches!(self.client, Client::Gone) {
            if self.held.as_ref().is_some_and(|held| env.now.steady_us < held.until_us) {
                break;
            }
            if !self.has_room() {
                self.stalled = true;
                if !was_stalled {
                    Totals::count(&env.shared.totals.stalls_total);
                }
                break;
            }
            let source = match self.c2s.next_record() {
                Ok(Some(source)) => source,
                Ok(None) => break,
                Err(BadRecord) => {
                    Totals::count(&env.shared.totals.bad_records_total);
                    tracing::info!(client = %self.address, "a record is too long: the session ends");
                    return self.end(env);
                }
            };
            match self.call(source, env) {
                Done::Skip => self.c2s.done(source, 0, false),
                Done::Forward(head_end) => self.c2s.done(source, head_end, true),
                Done::Hold => break,
                Done::Wait => {
                    self.stalled = true;
                    break;
                }
                Done::More => {
                    self.c2s.want_more(source);
                    break;
                }
            }
        }
    }

    fn call(&mut self, source: Source, env: &mut Env<'_>) -> Done {
        let (record, record_bytes, _) = self.c2s.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let head = match call_head(&mut reader) {
            Ok(head) => head,
            Err(Wrong::Incomplete) => return Done::More,
            Err(wrong) => {
                let xid = record.get(..4).map(|bytes| get_u32(bytes, 0));
                return self.bad_head(xid, wrong, env);
            }
        };
        if self.silent_since_us.take().is_some() && !env.shared.door.spoke(self.ticket) {
            // Another has its seat: this session is about to be ended, and begins nothing any more.
            self.end(env);
            return Done::Skip;
        }
        match (head.program, head.version) {
            (program::NFS, nfs3::VERSION) => match Op::from_number(head.procedure) {
                Some(op) => self.nfs(source, head, op, env),
                None => self.refuse(head.xid, Refusal::ProcedureUnavailable, env),
            },
            (program::NFS, nfs4::VERSION) if !self.datagram() => self.nfs4(source, head, env),
            (program::MOUNT, mount::VERSION) => self.mount(source, head, env),
            (program::PORTMAP, _) => self.portmap(source, head, env),
            (program::NFS, _) => {
                let high = if self.datagram() { nfs3::VERSION } else { nfs4::VERSION };
                self.refuse(head.xid, Refusal::VersionMismatch { low: nfs3::VERSION, high }, env)
            }
            (program::MOUNT, _) => self.refuse(head.xid, Refusal::VersionMismatch { low: 3, high: 3 }, env),
            _ => self.refuse(head.xid, Refusal::ProgramUnavailable, env),
        }
    }

    pub(super) fn refuse(&mut self, xid: u32, refusal: Refusal, env: &mut Env<'_>) -> Done {
        let totals = &env.shared.totals;
        Totals::count(match refusal {
            Refusal::GarbageArguments | Refusal::RpcMismatch => &totals.bad_calls_total,
            Refusal::BadCredential | Refusal::CredentialTooWeak => &totals.credentials_refused_total,
            _ => &totals.unserved_total,
        });
        put_refusal(&mut self.answers, xid, refusal);
        Done::Skip
    }

    /// A head that is none: what can be said is said, and a message that is no call at all ends the session.
    fn bad_head(&mut self, xid: Option<u32>, wrong: Wrong, env: &mut Env<'_>) -> Done {
        tracing::debug!(client = %self.address, %wrong, "a call without a sound head");
        match (xid, wrong) {
            (Some(xid), Wrong::Value { at: 8, .. }) => self.refuse(xid, Refusal::RpcMismatch, env),
            (Some(xid), Wrong::Long { .. } | Wrong::Padding { .. }) => {
                self.refuse(xid, Refusal::BadCredential, env)
            }
            _ => {
                Totals::count(&env.shared.totals.bad_calls_total);
                self.end(env);
                Done::Skip
            }
        }
    }

    fn portmap(&mut self, source: Source, head: CallHead, env: &mut Env<'_>) -> Done {
        if !self.c2s.is_whole(source) {
            return Done::More;
        }
        let (own, datagram, begin) = (self.own_address, self.datagram(), self.answers.len());
        let (record, record_bytes, _) = self.c2s.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let read = reader
            .take(head.arguments_at)
            .and_then(|_| portmap::answer(&mut reader, &head, &env.shared.ports, own, &mut self.answers));
        match read {
            // The source of a datagram may be somebody else, who would get more than was sent in that name.
            Ok(()) if datagram && self.answers.len() - begin > 2 * record_bytes => {
                self.answers.truncate(begin);
                self.refuse(head.xid, Refusal::ProcedureUnavailable, env)
            }
            Ok(()) => Done::Skip,
            Err(_) => self.refuse(head.xid, Refusal::GarbageArguments, env),
        }
    }

    fn mount(&mut self, source: Source, head: CallHead, env: &mut Env<'_>) -> Done {
        if !self.c2s.is_whole(source) {
            return Done::More;
        }
        self.renew_chain(env);
        let (record, record_bytes, _) = self.c2s.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let call = reader.take(head.arguments_at).and_then(|_| mount::call(&mut reader, head.procedure));
        let path = match &call {
            Ok(Some(mount::Call::Mount(path))) => path.of(record).to_vec(),
            _ => Vec::new(),
        };
        let caller = Session::caller(&self.chain, &mut self.callers, self.address.ip(), record, &head);
        let out = &mut self.answers;
        match call {
            Err(_) => return self.refuse(head.xid, Refusal::GarbageArguments, env),
            Ok(None) => return self.refuse(head.xid, Refusal::ProcedureUnavailable, env),
            Ok(Some(mount::Call::Null | mount::Call::Unmount(_) | mount::Call::UnmountAll)) => {
                mount::put_void(out, head.xid);
            }
            Ok(Some(mount::Call::Dump)) => mount::put_dump(out, head.xid),
            Ok(Some(mount::Call::Export)) => {
                mount::put_export(out, head.xid, env.shared.server.path.as_bytes())
            }
            Ok(Some(mount::Call::Mount(_))) => match caller {
                None => return self.refuse(head.xid, Refusal::CredentialTooWeak, env),
                Some(caller) => self.begin_mount(head.xid, &path, caller, env),
            },
        }
        Done::Skip
    }

    fn begin_mount(&mut self, xid: u32, path: &[u8], caller: Arc<Principal>, env: &mut Env<'_>) {
        // What the helper goes down is what was judged: names, one after another.
        let below = env.shared.server.below(path).and_then(|below| name::of_path(below).ok());
        let below =
            below.map(|names| names.iter().flat_map(|name| [b"/", *name]).flatten().copied().collect());
        let place = below
            .and_then(|below: Vec<u8>| Some((self.chain.context().zones.place(&below)?, below)))
            .map(|(place, below)| (below, place));
        let wanted = place.map(|(path, place)| Mount { caller, path, place, now: env.now });
        let refused = match &wanted {
            None => Some(Status::Acces),
            Some(wanted) => self.chain.mount(wanted).err(),
        };
        if let (Some(mount), None) = (wanted, refused) {
            let job = Job { worker: env.worker, session: self.key, xid, mount, chain: self.chain.clone() };
            match env.shared.mounter.try_send(job) {
                Ok(()) => self.mounts += 1,
                Err(_) => mount::put_refused(&mut self.answers, xid, mount::FAULT),
            }
            return;
        }
        Totals::count(&env.shared.totals.mounts_refused_total);
        tracing::info!(client = %self.address.ip(), path = %String::from_utf8_lossy(path), "a mount was refused");
        mount::put_refused(&mut self.answers, xid, mount::DENIED);
    }

    /// Takes up the chain that is in force.
    pub(super) fn renew_chain(&mut self, env: &Env<'_>) {
        if !Arc::ptr_eq(&self.chain, env.chain) {
            self.chain = env.chain.clone();
            self.callers.clear();
        }
    }

    fn nfs(&mut self, source: Source, head: CallHead, op: Op, env: &mut Env<'_>) -> Done {
        let datagram = self.datagram();
        let held = self.held.take();
        if held.is_none() {
            self.renew_chain(env);
        }
        // What may be set aside must be there as a whole.
        if op == Op::Write && !datagram && self.chain.reorders() && !self.c2s.is_whole(source) {
            self.held = held;
            return Done::More;
        }
        let Session { c2s, callers, chain, pending, address, key, answers, asides, .. } = self;
        let (record, record_bytes, output) = c2s.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let found = match reader.take(head.arguments_at).and_then(|_| arguments(&mut reader, op)) {
            Ok(found) => found,
            Err(Wrong::Incomplete) => {
                self.held = held;
                return Done::More;
            }
            Err(_) => return self.refuse(head.xid, Refusal::GarbageArguments, env),
        };
        if let Some(misnamed) = found.misnamed {
            Totals::count(&env.shared.totals.misnamed_total);
            answer::put(answers, head.xid, op, misnamed.status());
            return Done::Skip;
        }
        match pending.meets(head.xid, record, record_bytes) {
            Met::Nobody => {}
            Met::Copy => {
                Totals::count(&env.shared.totals.retransmissions_total);
                return Done::Skip;
            }
            Met::Another => {
                self.held = held;
                return Done::Wait;
            }
        }
        let print = Print::of(record, record_bytes);
        let caller = match &held {
            Some(held) => Some(held.caller.clone()),
            None => Session::caller(chain, callers, address.ip(), record, &head),
        };
        let Some(caller) = caller else { return self.refuse(head.xid, Refusal::CredentialTooWeak, env) };
        let chain = held.as_ref().map_or_else(|| chain.clone(), |held| held.chain.clone());
        let once = match &held {
            Some(held) => held.once,
            None => op.once().then(|| env.shared.retransmits.key(address.ip(), &[record])),
        };
        let waiter = Waiter { worker: env.worker, session: *key, xid: head.xid };
        let mut unknown_before = held.as_ref().is_some_and(|held| held.unknown);
        if held.is_none() {
            match known(once, Look::Before, waiter, answers, env) {
                Passed::New => {}
                Passed::Unknown => unknown_before = true,
                Passed::Dealt => return Done::Skip,
            }
            env.shared.totals.call(op);
        }
        let mut found = found;
        bound_count(record, &mut found);
        let maxcount = held.as_ref().map_or(found.count, |held| held.maxcount);
        let (from, handled) = held.as_ref().map_or((0, 0), |held| (held.from, held.handled));
        let mut call = Call::new(record, record_bytes, head, found, &caller, env.now);
        if let Some(held) = held {
            call.restore_handles(held.handles);
            call.told = held.told;
            call.note = held.note;
            call.counted = held.counted;
            call.seen = held.seen;
            call.unless = held.unless;
        }
        call.unknown = unknown_before && settle::shows(&call);
        match chain.request(&mut call, from, handled) {
            Outcome::Wait { wait_us, from, handled } => {
                let hold = Session::hold(&call, wait_us, from, handled, &chain);
                self.held = Some(Held { once, maxcount, ..hold });
                Done::Hold
            }
            Outcome::Ask { from, handled } => {
                let Some(entry) = asking::question(&mut call, &chain) else {
                    chain.undone(&remember(&call, caller.clone(), maxcount, datagram, false), handled);
                    answer::put(answers, head.xid, op, Status::ServerFault);
                    return Done::Skip;
                };
                let hold = Session::hold(&call, 0, from, handled, &chain);
                self.held = Some(Held { once, maxcount, until_us: u64::MAX, ..hold });
                let xid = pending.insert(entry);
                if let Some(entry) = pending.get(xid) {
                    output.head(|out| asking::put_question(entry, xid, out));
                }
                env.shared.totals.pending.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Done::Hold
            }
            Outcome::Reply { handled } => {
                let made = std::mem::take(&mut call.results);
                let asked = remember(&call, caller.clone(), maxcount, datagram, chain.needs_names());
                let maker = asking::Maker::Policy;
                asking::put_made(&made, maker, head.xid, &asked, (&chain, handled), answers, env);
                Done::Skip
            }
            Outcome::Answer { status, .. } => {
                env.shared.totals.denied(op);
                answer::put(answers, head.xid, op, status);
                Done::Skip
            }
            Outcome::Forward { handled } => {
                let settling = from == POLICIES_MAX;
                // Policies have heard that it goes to the server.
                let undone = |call: &Call<'_>| {
                    let asked = remember(call, caller.clone(), maxcount, datagram, false);
                    chain.undone(&asked, handled);
                };
                let unknown = settling
                    || match known(once, Look::Forward, waiter, answers, env) {
                        Passed::New => false,
                        Passed::Unknown => true,
                        Passed::Dealt => {
                            undone(&call);
                            return Done::Skip;
                        }
                    };
                if let (true, Some(once)) = (unknown, once) {
                    match settle::settle(&call) {
                        Settled::Again if call.unless.is_none() => {}
                        Settled::Again => {
                            let status = call.unless.unwrap_or(Status::ServerFault);
                            undone(&call);
                            let begin = answers.len();
                            answer::put(answers, head.xid, op, status);
                            super::replies::tell_waiters(once, &answers[begin..], true, env);
                            return Done::Skip;
                        }
                        Settled::Ask(probe) => {
                            call.probe = Some(probe);
                            let Some(mut entry) = asking::question(&mut call, &chain) else {
                                undone(&call);
                                answer::put(answers, head.xid, op, Status::ServerFault);
                                return Done::Skip;
                            };
                            // If the session ends now, it is unknown again.
                            entry.once = Some(once);
                            let hold = Session::hold(&call, 0, POLICIES_MAX, handled, &chain);
                            self.held = Some(Held { once: Some(once), maxcount, until_us: u64::MAX, ..hold });
                            let xid = pending.insert(entry);
                            if let Some(entry) = pending.get(xid) {
                                output.head(|out| asking::put_question(entry, xid, out));
                            }
                            env.shared.totals.pending.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            return Done::Hold;
                        }
                        Settled::Done(made) => {
                            Totals::count(&env.shared.totals.settled_total);
                            let names = chain.needs_names();
                            let asked = remember(&call, caller.clone(), maxcount, datagram, names);
                            let begin = answers.len();
                            let maker = asking::Maker::Server;
                            asking::put_made(&made, maker, head.xid, &asked, (&chain, handled), answers, env);
                            let reply = answers[begin..].to_vec();
                            super::replies::tell_waiters(once, &reply, true, env);
                            return Done::Skip;
                        }
                        Settled::Later => {
                            undone(&call);
                            for waiter in env.shared.retransmits.abandoned(once, env.now.steady_us) {
                                env.shared.deliver(waiter.worker, Delivery::End { session: waiter.session });
                            }
                            answer::put(answers, head.xid, op, Status::Jukebox);
                            return Done::Skip;
                        }
                    }
                }
                if let Some(status) = call.unless {
                    undone(&call);
                    // It is forgotten meanwhile that it was sent before.
                    for waiter in once
                        .map(|once| env.shared.retransmits.abandoned(once, env.now.steady_us))
                        .unwrap_or_default()
                    {
                        env.shared.deliver(waiter.worker, Delivery::End { session: waiter.session });
                    }
                    answer::put(answers, head.xid, op, status);
                    return Done::Skip;
                }
                let resent = unknown && settle::shows(&call);
                let names = resent || chain.needs_names();
                let asked = remember(&call, caller.clone(), maxcount, datagram, names);
                let head_end = call.head_end();
                let aside_us = if datagram || !asides.has_room(record_bytes) { 0 } else { call.aside_us };
                if aside_us == 0 && !asides.is_empty() {
                    if asides.may_pass(&call) {
                        Totals::count(&env.shared.totals.overtaken_total);
                    } else {
                        asides.release(output);
                    }
                }
                let entry = Entry {
                    client_xid: head.xid,
                    print: Some(print),
                    asked: Question::Call(asked, handled),
                    resent,
                    chain: chain.clone(),
                    since_us: env.now.steady_us,
                    once,
                };
                let xid = pending.insert(entry);
                env.shared.totals.pending.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if aside_us > 0 {
                    let handle = Handle::new(call.handle(0)).unwrap_or(Handle::EMPTY);
                    let mut bytes = Vec::with_capacity(record_bytes + 72);
                    call.put(xid, &mut bytes);
                    bytes.extend_from_slice(&record[head_end..]);
                    let totals = &env.shared.totals;
                    asides.push(bytes, handle, env.now.steady_us + aside_us, totals);
                    return Done::Skip;
                }
                output.head(|out| call.put(xid, out));
                Done::Forward(head_end)
            }
        }
    }
}

/// A server that gives what is asked for must not give more than fits into a record.
fn bound_count(record: &mut [u8], found: &mut Arguments) {
    let behind = found.handles[0].padded_end();
    let limit = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let (places, most) = match found.op {
        Op::Read => ([behind + 8, behind + 8], limit(nfs3::PAYLOAD_BYTES_MAX)),
        Op::Readdir => ([behind + 16, behind + 16], limit(nfs3::LISTING_BYTES_MAX)),
        // `dircount` and `maxcount`.
        Op::Readdirplus => ([behind + 16, behind + 20], limit(nfs3::LISTING_BYTES_MAX)),
        _ => return,
    };
    for at in places {
        let asked = get_u32(record, at);
        if asked > most {
            set_u32(record, at, most);
        }
    }
    found.count = found.count.min(most);
}

/// What is to be done with a call that must happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// It goes on.
    New,
    /// It was sent to the server before, and nobody knows what became of it.
    Unknown,
    /// It was carried out before, or is pending: it was answered from memory, or waits.
    Dealt,
}

/// Looks a call up that must happen once. What was carried out before, or is pending, is not for policies to judge again (a name
/// that it has removed is gone).
pub(super) fn known(
    once: Option<retransmit::Key>,
    look: Look,
    waiter: Waiter,
    answers: &mut Vec<u8>,
    env: &Env<'_>,
) -> Passed {
    let Some(once) = once else { return Passed::New };
    match env.shared.retransmits.known(once, look, waiter, env.now.steady_us) {
        Known::New => return Passed::New,
        Known::Unknown => return Passed::Unknown,
        Known::Answered(reply) => {
            Totals::count(&env.shared.totals.replayed_total);
            retransmit::put_again(&reply, waiter.xid, answers);
        }
        Known::Pending | Known::Crowded => Totals::count(&env.shared.totals.retransmissions_total),
    }
    Passed::Dealt
}

/// What must be known of a call when its reply comes.
pub(super) fn remember(
    call: &Call<'_>,
    caller: Arc<Principal>,
    maxcount: u32,
    datagram: bool,
    names: bool,
) -> Asked {
    let Arguments { op, handle_count, name_count, .. } = call.arguments;
    let name = |number: usize| (names && number < name_count).then(|| Box::from(call.name(number)));
    let handle = |number: usize| Handle::new(call.handle(number));
    Asked {
        op,
        caller,
        handle: handle(0).unwrap_or(Handle::EMPTY),
        handle_to: if handle_count > 1 { handle(1) } else { None },
        place: None,
        name: name(0),
        name_to: name(1),
        maxcount,
        datagram,
        note: call.note,
        counted: call.counted,
        seen: call.seen,
    }
}
