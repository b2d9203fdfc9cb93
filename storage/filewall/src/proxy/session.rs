//! A session: a client's connection (or UDP address), its own connection to the server, and the calls in between.
//!
//! What happens to calls is in [`super::calls`], what happens to replies in [`super::replies`]. Here is what both share, and
//! how bytes get in and out.
//!
//! Invariants
//! - An answer of our own goes out between two records, never inside one.
//! - Nothing is read while there is nowhere to put what it causes: input, backlog, pending map and held call are bounded.
//! - When the connection to the server is lost with calls pending, the client's is closed too: it connects again and sends
//!   again what it has no answer to, as it would to a server that came back.

use super::aside::Asides;
use super::env::Env;
use super::flow::{BACKLOG_BYTES_MAX, Came, Flow};
use super::inbox::Delivery;
use super::names::{SessionKey, Ticket};
use super::pending::{Pending, Question, remember};
use crate::identity::Principal;
use crate::message::{Asked, Call, Counted, ProbeAnswer};
use crate::metrics::Totals;
use crate::policy::Chain;
use crate::wire::nfs3::{Handle, Status};
use crate::wire::rpc::record_mark;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// After so long without a call a session gives its memory back, µs.
const REST_US: u64 = 2_000_000;
/// How long to wait before the server is tried again, µs: doubled up to the second.
const RETRY_US: (u64, u64) = (50_000, 2_000_000);
/// Callers remembered by the bytes of their credentials.
pub(super) const CALLERS_MAX: usize = 8;

/// The client's end.
#[derive(Debug)]
pub enum Client {
    /// A connection.
    Tcp(TcpStream),
    /// An address that datagrams come from.
    Udp,
    /// Gone; what is still pending is waited for, because it must be remembered.
    Gone,
}

/// The server's end.
#[derive(Debug)]
pub enum Up {
    /// Not connected: nothing to send.
    Idle,
    /// Being connected.
    Connecting(TcpStream),
    /// Connected.
    Ready(TcpStream),
    /// Could not be connected; to be tried again at this time, µs.
    Waiting(u64),
}

/// A call that a policy delays. It stays in the input.
#[derive(Debug)]
pub struct Held {
    /// When it is shown to the policy again, µs.
    pub until_us: u64,
    /// Number of that policy.
    pub from: usize,
    /// Policies that it has passed, as bits.
    pub handled: u64,
    /// Its chain.
    pub chain: Arc<Chain>,
    /// Its caller.
    pub caller: Arc<Principal>,
    /// Its handles, where policies have replaced them.
    pub handles: [Option<Handle>; 2],
    /// Its `maxcount` as the client gave it.
    pub maxcount: u32,
    /// What the server answered to its probes.
    pub told: Vec<ProbeAnswer>,
    /// What a policy wants to remember until the reply comes.
    pub note: u64,
    /// What quotas have counted for it.
    pub counted: Counted,
    /// As in [`Call`].
    pub seen: crate::message::Seen,
    /// Its name for retransmissions.
    pub once: Option<super::retransmit::Key>,
    /// As in [`Call`].
    pub unknown: bool,
    /// As in [`Call`].
    pub unless: Option<Status>,
    /// For a call of NFSv3: what the policies that it has passed know it by.
    pub asked: Option<Box<Asked>>,
    /// For a COMPOUND: where it is.
    pub course: Option<Box<super::compound::asked::Course>>,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// Its name in its worker.
    pub key: SessionKey,
    /// Its seat.
    pub ticket: Ticket,
    /// When it began, µs; `None` from its first call on.
    pub(super) silent_since_us: Option<u64>,
    /// The client's end.
    pub client: Client,
    /// The client's address.
    pub address: SocketAddr,
    /// Our address that the client has reached.
    pub own_address: IpAddr,
    /// The server's end.
    pub up: Up,
    /// Calls.
    pub c2s: Flow,
    /// Replies.
    pub s2c: Flow,
    /// Our own answers, whole records, to go out at the next boundary.
    pub answers: Vec<u8>,
    /// Questions of our own that a reply gave rise to, whole records, to go out at the next boundary.
    pub questions: Vec<u8>,
    /// Forwarded calls.
    pub pending: Pending,
    /// Calls that others may go before.
    pub asides: Asides,
    /// A call that a policy delays.
    pub held: Option<Held>,
    /// Chain of the callers below.
    pub chain: Arc<Chain>,
    /// Callers by the bytes of their credentials.
    pub callers: Vec<(Box<[u8]>, Arc<Principal>)>,
    /// MOUNT calls that the helper works on.
    pub mounts: usize,
    /// True while calls are not read because something is full.
    pub stalled: bool,
    /// True when it shall be removed.
    pub ended: bool,
    /// When something came from the client last, µs.
    pub seen_us: u64,
    retry_us: u64,
}

impl Session {
    /// A new session: between which addresses, and with which seat since when.
    pub fn new(
        key: SessionKey,
        client: Client,
        (address, own_address): (SocketAddr, IpAddr),
        (ticket, begun_us): (Ticket, u64),
        chain: Arc<Chain>,
    ) -> Self {
        Self {
            key,
            ticket,
            silent_since_us: Some(begun_us),
            client,
            address,
            own_address,
            up: Up::Idle,
            c2s: Flow::default(),
            s2c: Flow::default(),
            answers: Vec::new(),
            questions: Vec::new(),
            pending: Pending::new(super::server::random()),
            asides: Asides::default(),
            held: None,
            chain,
            callers: Vec::new(),
            mounts: 0,
            stalled: false,
            ended: false,
            seen_us: 0,
            retry_us: RETRY_US.0,
        }
    }

    /// True if the client speaks UDP.
    pub fn datagram(&self) -> bool {
        matches!(self.client, Client::Udp)
    }

    /// True if another call may be taken up.
    pub(super) fn has_room(&self) -> bool {
        !self.pending.is_full()
            && self.answers.len() < BACKLOG_BYTES_MAX
            && self.c2s.output.bytes() < BACKLOG_BYTES_MAX
            && self.s2c.output.bytes() < BACKLOG_BYTES_MAX
    }

    /// Something can be read from the client, or it has closed the connection.
    pub fn client_readable(&mut self, env: &mut Env<'_>, closed: bool) {
        self.seen_us = env.now.steady_us;
        if !self.c2s.can_read() && closed {
            return self.client_gone(env);
        }
        if self.c2s.can_read() {
            let Client::Tcp(stream) = &mut self.client else { return };
            match self.c2s.read(stream) {
                Ok(Came::End) | Err(_) => return self.client_gone(env),
                Ok(_) => {}
            }
        }
        self.run(env);
    }

    /// A datagram has come from the client; it is dropped if there is no space, as the network would.
    pub fn datagram_came(&mut self, datagram: &[u8], env: &mut Env<'_>) {
        self.seen_us = env.now.steady_us;
        let movable = !self.c2s.output.pins_input();
        let space = self.c2s.input.space(movable);
        if let (Some(space), Ok(mark)) = (space.get_mut(..4 + datagram.len()), u32::try_from(datagram.len()))
        {
            space[..4].copy_from_slice(&(mark | crate::wire::rpc::LAST_FRAGMENT).to_be_bytes());
            space[4..].copy_from_slice(datagram);
            self.c2s.input.received(4 + datagram.len());
        } else {
            Totals::count(&env.shared.totals.stalls_total);
        }
        self.run(env);
    }

    /// Something can be read from the server, or it has closed the connection.
    pub fn server_readable(&mut self, env: &mut Env<'_>, closed: bool) {
        if !self.s2c.can_read() && closed {
            return self.server_lost(env);
        }
        if let Up::Ready(stream) = &mut self.up
            && self.s2c.can_read()
            && matches!(self.s2c.read(stream), Ok(Came::End) | Err(_))
        {
            return self.server_lost(env);
        }
        self.run(env);
    }

    /// The server's end can be written to: a connection is there, or was refused.
    pub fn server_writable(&mut self, env: &mut Env<'_>) {
        if let Up::Connecting(stream) = &mut self.up {
            match stream.take_error() {
                Ok(None) => {
                    self.retry_us = RETRY_US.0;
                    if let Up::Connecting(stream) = std::mem::replace(&mut self.up, Up::Idle) {
                        self.up = Up::Ready(stream);
                    }
                }
                _ => self.unreachable(env),
            }
        }
        self.run(env);
    }

    /// Does all that can be done now.
    pub fn run(&mut self, env: &mut Env<'_>) {
        self.replies(env);
        self.calls(env);
        self.send(env);
        // What was sent may have made room.
        if self.stalled && self.has_room() && self.held.is_none() {
            self.calls(env);
            self.send(env);
        }
        if matches!(self.client, Client::Gone) && (self.pending.is_empty() || !self.pending.any_once()) {
            self.end(env);
        }
    }

    fn send(&mut self, env: &mut Env<'_>) {
        if self.ended {
            return;
        }
        self.settle_asides(env);
        self.settle_answers(env);
        let failed = match &mut self.client {
            Client::Tcp(stream) if !self.s2c.output.is_empty() => self.s2c.flush(stream).is_err(),
            Client::Gone => {
                self.s2c.output.clear();
                false
            }
            _ => false,
        };
        if failed {
            return self.client_gone(env);
        }
        if !self.questions.is_empty() && self.c2s.at_boundary() {
            let questions = std::mem::take(&mut self.questions);
            self.c2s.output.head(|out| out.extend_from_slice(&questions));
        }
        if self.c2s.output.is_empty() {
            return;
        }
        if matches!(self.up, Up::Idle) {
            self.connect(env);
        }
        // What has gone out may have been all that a call was set aside for.
        while let Up::Ready(stream) = &mut self.up
            && !self.c2s.output.is_empty()
        {
            match self.c2s.flush(stream) {
                Ok(true) => self.settle_asides(env),
                Ok(false) => return,
                Err(_) => return self.server_lost(env),
            }
        }
    }

    /// Calls that were set aside go out when nothing that could go first is waiting, or their time is over.
    fn settle_asides(&mut self, env: &Env<'_>) {
        if self.asides.is_empty() || !self.c2s.at_boundary() {
            return;
        }
        let idle = self.c2s.output.is_empty() && !self.stalled;
        let over = self.asides.until_us().is_some_and(|until_us| until_us <= env.now.steady_us);
        if over && !idle {
            env.shared.totals.set_aside_expired_total.fetch_add(self.asides.len() as u64, Ordering::Relaxed);
        }
        if over || idle {
            self.asides.release(&mut self.c2s.output);
        }
    }

    /// Our own answers go out if no record is on its way.
    fn settle_answers(&mut self, env: &mut Env<'_>) {
        if self.answers.is_empty() || !self.s2c.at_boundary() {
            return;
        }
        match self.client {
            Client::Tcp(_) => self.s2c.output.head(|out| out.extend_from_slice(&self.answers)),
            Client::Udp => {
                let mut rest = self.answers.as_slice();
                while let Some((mark, record)) = rest.split_first_chunk::<4>() {
                    let (bytes, _) = record_mark(u32::from_be_bytes(*mark));
                    let (record, behind) = record.split_at(bytes.min(record.len()));
                    env.send_datagram(record, self.address);
                    rest = behind;
                }
            }
            Client::Gone => {}
        }
        self.answers.clear();
    }

    fn connect(&mut self, env: &mut Env<'_>) {
        match env.shared.server.begin_connect() {
            Ok(stream) => self.up = Up::Connecting(stream),
            Err(error) => {
                tracing::debug!(%error, "the server cannot be connected");
                self.unreachable(env);
            }
        }
    }

    fn unreachable(&mut self, env: &mut Env<'_>) {
        Totals::count(&env.shared.totals.server_unreachable_total);
        self.up = Up::Waiting(env.now.steady_us + self.retry_us);
        self.retry_us = (self.retry_us * 2).min(RETRY_US.1);
    }

    /// The connection to the server is lost. What was not yet sent must not go out on another one in the middle of a record.
    fn server_lost(&mut self, env: &mut Env<'_>) {
        Totals::count(&env.shared.totals.server_lost_total);
        let busy = !self.pending.is_empty() || !self.c2s.output.is_empty() || !self.s2c.at_boundary();
        self.up = Up::Idle;
        self.s2c.abandon_input();
        if busy {
            self.end(env);
        }
    }

    fn client_gone(&mut self, env: &mut Env<'_>) {
        self.client = Client::Gone;
        self.s2c.output.clear();
        self.answers.clear();
        self.give_up_held();
        // A call whose data has not come as a whole cannot go out any more, and nothing may follow it.
        if !self.pending.any_once() || !self.c2s.at_boundary() {
            self.end(env);
        }
    }

    /// The call that is held goes nowhere: policies that let it go on hear that.
    fn give_up_held(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Some(asked) = &held.asked {
            held.chain.undone(asked, held.handled);
        }
        if let Some(mut course) = held.course {
            course.give_up(&held.chain);
        }
    }

    /// Ends the session: what is pending is forgotten, and copies that wait for it are told.
    pub fn end(&mut self, env: &mut Env<'_>) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.give_up_held();
        let entries = self.pending.drain();
        Totals::down(&env.shared.totals.pending, entries.len() as u64);
        for key in entries.into_iter().filter_map(|entry| entry.once) {
            for waiter in env.shared.retransmits.abandoned(key, env.now.steady_us) {
                env.shared.deliver(waiter.worker, Delivery::End { session: waiter.session });
            }
        }
    }

    /// Time has passed: late calls are purged, a held call or the server is tried again.
    pub fn tick(&mut self, env: &mut Env<'_>) {
        let now_us = env.now.steady_us;
        let late = self.pending.expire(now_us.saturating_sub(env.shared.limits.call_timeout_us));
        Totals::down(&env.shared.totals.pending, late.len() as u64);
        let mut stuck = false;
        for entry in late {
            Totals::count(&env.shared.totals.timeouts_total);
            // The call that waits for it cannot go on: the client connects again, and sends it again.
            if matches!(entry.asked, Question::Own4(_))
                || matches!(&entry.asked, Question::Compound(asked) if asked.segment)
            {
                stuck = true;
                continue;
            }
            if let Question::Own(probe) = entry.asked {
                self.told(ProbeAnswer {
                    probe: *probe,
                    status: Status::Jukebox.number(),
                    handle: None,
                    attributes: None,
                });
                continue;
            }
            let waiters =
                entry.once.map(|key| env.shared.retransmits.abandoned(key, now_us)).unwrap_or_default();
            for waiter in waiters {
                env.shared.deliver(waiter.worker, Delivery::End { session: waiter.session });
            }
        }
        if stuck {
            return self.end(env);
        }
        let first_us = env.shared.limits.first_call_us;
        if self.silent_since_us.is_some_and(|since_us| now_us.saturating_sub(since_us) > first_us) {
            Totals::count(&env.shared.totals.sessions_silent_total);
            return self.end(env);
        }
        // Thousands of clients that have mounted and do nothing cost next to nothing.
        if self.pending.is_empty() && now_us.saturating_sub(self.seen_us) > REST_US {
            self.c2s.rest();
            self.s2c.rest();
        }
        if self.datagram() && self.pending.is_empty() && self.mounts == 0 {
            let idle_us = now_us.saturating_sub(self.seen_us);
            if idle_us > env.shared.limits.datagram_idle_us {
                return self.end(env);
            }
        }
        if matches!(self.up, Up::Waiting(at_us) if at_us <= now_us) {
            self.up = Up::Idle;
        }
        self.run(env);
    }

    /// The server has answered a probe of the call that is held; it goes on.
    pub(super) fn told(&mut self, told: ProbeAnswer) {
        if let Some(held) = &mut self.held {
            held.told.push(told);
            held.until_us = 0;
        }
    }

    /// When [`Session::tick`] is wanted at the latest, µs; `None` if nothing waits for a time.
    pub fn wake_us(&self) -> Option<u64> {
        let held = self.held.as_ref().map(|held| held.until_us);
        let retry = match self.up {
            Up::Waiting(at_us) if !self.c2s.output.is_empty() => Some(at_us),
            _ => None,
        };
        [held, retry, self.asides.until_us()].into_iter().flatten().min()
    }

    /// True if bytes from the client are wanted.
    pub fn wants_client(&mut self) -> bool {
        !self.stalled && self.held.is_none() && self.c2s.can_read()
    }

    /// True if bytes from the server are wanted.
    pub fn wants_server(&mut self) -> bool {
        self.s2c.can_read()
    }

    /// The principal of the credentials in `record`.
    pub(super) fn caller(
        chain: &Chain,
        callers: &mut Vec<(Box<[u8]>, Arc<Principal>)>,
        address: IpAddr,
        record: &[u8],
        call: &crate::wire::rpc::CallHead,
    ) -> Option<Arc<Principal>> {
        use crate::identity::NOBODY;
        use crate::wire::rpc::Credential;
        let sys = match &call.credential {
            Credential::Other(_) => return None,
            Credential::None => {
                return Some(chain.principals().get(chain.identities(), address, NOBODY, NOBODY, &[]));
            }
            Credential::Sys(sys) => sys,
        };
        let identity = sys.identity.of(record);
        if let Some((_, principal)) = callers.iter().find(|(known, _)| **known == *identity) {
            return Some(principal.clone());
        }
        let principal = chain.principals().get(chain.identities(), address, sys.uid, sys.gid, sys.groups());
        if callers.len() == CALLERS_MAX {
            callers.remove(0);
        }
        callers.push((identity.into(), principal.clone()));
        Some(principal)
    }

    /// Keeps a call that a policy delays.
    pub(super) fn hold(call: &Call<'_>, wait_us: u64, from: usize, handled: u64, chain: &Arc<Chain>) -> Held {
        Held {
            until_us: call.now.steady_us + wait_us,
            from,
            handled,
            chain: chain.clone(),
            caller: call.caller.clone(),
            handles: call.replaced_handles(),
            maxcount: call.arguments.count,
            told: call.told.clone(),
            note: call.note,
            counted: call.counted,
            seen: call.seen,
            once: None,
            unknown: call.unknown,
            unless: call.unless,
            asked: Some(Box::new(remember(call, call.caller.clone(), call.arguments.count, false, false))),
            course: None,
        }
    }
}
