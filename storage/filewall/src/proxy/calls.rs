//! What happens to calls: decode, ask the chain, forward, answer, hold, or leave to a helper.

use super::env::Env;
use super::flow::{BadRecord, Source};
use super::known::{Done, Passed, known};
use super::mounter::Job;
use super::outcome::{Judged, Parts};
use super::pending::{Met, Print};
use super::retransmit::{Look, Waiter};
use super::session::{Client, Session};
use super::settle;
use crate::identity::Principal;
use crate::message::Call;
use crate::metrics::Totals;
use crate::policy::Mount;
use crate::wire::call::{Arguments, arguments};
use crate::wire::nfs3::{self, Op, Status};
use crate::wire::nfs4;
use crate::wire::rpc::{CallHead, Refusal, call_head, program, put_refusal};
use crate::wire::xdr::{Reader, Wrong, get_u32, set_u32};
use crate::wire::{answer, mount, name, portmap};
use std::sync::Arc;

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
        let outcome = chain.request(&mut call, from, handled);
        let judged = Judged { call, chain, once, maxcount, datagram, print, waiter };
        let parts = Parts { pending, answers, asides, output, held: &mut self.held };
        judged.go_on(outcome, from, parts, env)
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
