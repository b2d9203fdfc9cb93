//! A worker: one thread, one epoll, many sessions. A session never changes its worker, so its state needs no lock.
//!
//! New connections, results of the MOUNT helper, and replies that copies of a call wait for come through an inbox.

use super::door::Ticket;
use super::env::Env;
use super::inbox::{Delivery, InboxEnd, Mounted};
use super::names::SessionKey;
use super::retransmit::put_again;
use super::session::{Client, Session, Up};
use super::{MAX_DATAGRAM_BYTES, Shared};
use crate::message::{EntryHandles, Now};
use crate::metrics::Totals;
use crate::policy::Chain;
use crate::wire::mount;
use crate::wire::nfs4::arguments::Compound;
use crate::wire::nfs4::results::Results4;
use crate::wire::reply::Results;
use hashbrown::HashMap;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How often late calls and idle sessions are looked for, µs.
const TICK_US: u64 = 250_000;
/// Events taken from the kernel at once.
const EVENTS: usize = 128;
/// Datagrams taken from a socket at once.
const DATAGRAMS: usize = 64;

fn ticker() -> std::io::Result<OwnedFd> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
    };
    let ticker = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let each = Timespec { tv_sec: 0, tv_nsec: TICK_US as i64 * 1000 };
    let times = Itimerspec { it_interval: each, it_value: each };
    timerfd_settime(&ticker, TimerfdTimerFlags::empty(), &times)?;
    Ok(ticker)
}

/// Which of a worker's descriptors has something.
const BELL: u64 = u64::MAX;
const UDP: u64 = u64::MAX - 1;
const PORTMAP_UDP: u64 = u64::MAX - 2;
const TICK: u64 = u64::MAX - 3;

fn token(key: SessionKey, server: bool) -> u64 {
    u64::from(key.uses) << 33 | u64::from(key.slot) << 1 | u64::from(server)
}

#[derive(Debug, Default)]
struct Place {
    uses: u32,
    session: Option<Session>,
    /// What the kernel was last told to watch on each end; `None` where the end is not watched.
    watched: [Option<(epoll::EventFlags, i32)>; 2],
}

/// Sockets for datagrams, which the first worker has.
#[derive(Debug, Default)]
pub struct Datagrams {
    /// NFS and MOUNT.
    pub udp: Option<UdpSocket>,
    /// PORTMAP.
    pub portmap: Option<UdpSocket>,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    number: usize,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    inbox: InboxEnd,
    datagrams: Datagrams,
    places: Vec<Place>,
    free: Vec<u32>,
    by_address: HashMap<(SocketAddr, bool), SessionKey>,
    /// Rings each [`TICK_US`], so that waiting needs no time-out of its own, which costs more than it seems.
    ticker: OwnedFd,
    started: Instant,
    /// Read once for each event.
    now: Now,
    chain: arc_swap::Cache<Arc<arc_swap::ArcSwap<Chain>>, Arc<Chain>>,
    results: Results,
    compound: Compound,
    results4: Results4,
    entry_handles: EntryHandles,
    datagram: Vec<u8>,
    received: Vec<u8>,
    next_tick_us: u64,
    /// When the first session wants to be stirred, µs.
    next_wake_us: u64,
}

/// What an event asks of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stir {
    Client(epoll::EventFlags),
    Server(epoll::EventFlags),
    Tick,
    Run,
}

impl Worker {
    /// A worker that does not run yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        number: usize,
        shared: Arc<Shared>,
        inbox: InboxEnd,
        datagrams: Datagrams,
    ) -> std::io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |fd: &dyn AsFd, token: u64| {
            epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        watch(&inbox.bell, BELL)?;
        if let Some(udp) = &datagrams.udp {
            watch(udp, UDP)?;
        }
        if let Some(portmap) = &datagrams.portmap {
            watch(portmap, PORTMAP_UDP)?;
        }
        let ticker = ticker()?;
        watch(&ticker, TICK)?;
        let chain = arc_swap::Cache::new(shared.chain.clone());
        Ok(Worker {
            number,
            shared,
            epoll,
            inbox,
            datagrams,
            places: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
            ticker,
            started: Instant::now(),
            now: Now::default(),
            chain,
            results: Results::default(),
            compound: Compound::default(),
            results4: Results4::default(),
            entry_handles: EntryHandles::default(),
            datagram: Vec::new(),
            received: vec![0; MAX_DATAGRAM_BYTES],
            next_tick_us: TICK_US,
            next_wake_us: u64::MAX,
        })
    }

    /// Works until the process is told to stop.
    pub fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        while !self.shared.stop.load(Ordering::Relaxed) {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "waiting for events failed: the worker ends");
                    break;
                }
            }
            self.now = self.clock();
            for (number, event) in events.iter().enumerate() {
                if number > 0 {
                    self.now = self.clock();
                }
                self.event(event.data.u64(), event.flags);
            }
            self.tick_if_due();
        }
        let keys: Vec<SessionKey> = self.keys();
        for key in keys {
            self.remove(key);
        }
    }

    fn clock(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            steady_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// How long to wait at most; the ticker ends a longer wait.
    fn timeout(&self) -> Option<Timespec> {
        if self.next_wake_us >= self.now.steady_us + TICK_US {
            return None;
        }
        let wait_us = self.next_wake_us.saturating_sub(self.now.steady_us);
        Some(Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait_us * 1000).unwrap_or(0) })
    }

    fn event(&mut self, token: u64, flags: epoll::EventFlags) {
        match token {
            BELL => self.read_inbox(),
            TICK => {
                // That it rang is all that it says.
                let _ = rustix::io::read(&self.ticker, &mut [0; 8]);
            }
            UDP => self.read_datagrams(false),
            PORTMAP_UDP => self.read_datagrams(true),
            _ => {
                let key = SessionKey { slot: (token >> 1) as u32, uses: (token >> 33) as u32 };
                self.stir(key, if token & 1 == 1 { Stir::Server(flags) } else { Stir::Client(flags) });
            }
        }
    }

    fn read_inbox(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.inbox.bell, &mut count);
        while let Ok(delivery) = self.inbox.receiver.try_recv() {
            match delivery {
                Delivery::Connection(stream, address, ticket) => self.accept(stream, address, ticket),
                Delivery::Mounted(mounted) => {
                    let key = mounted.session;
                    self.answer(key, |session, shared| finish_mount(session, mounted, shared));
                }
                Delivery::Reply { session, xid, reply } => {
                    self.answer(session, |session, _| put_again(&reply, xid, &mut session.answers));
                }
                Delivery::End { session } => self.remove(session),
            }
        }
    }

    fn answer(&mut self, key: SessionKey, work: impl FnOnce(&mut Session, &Shared)) {
        let shared = self.shared.clone();
        if let Some(session) = self.session(key) {
            work(session, &shared);
            self.stir(key, Stir::Run);
        }
    }

    fn session(&mut self, key: SessionKey) -> Option<&mut Session> {
        let place = self.places.get_mut(key.slot as usize)?;
        if place.uses == key.uses { place.session.as_mut() } else { None }
    }

    fn keys(&self) -> Vec<SessionKey> {
        self.places.iter().filter_map(|place| Some(place.session.as_ref()?.key)).collect()
    }

    fn accept(&mut self, stream: TcpStream, address: SocketAddr, ticket: Ticket) {
        let own = stream.local_addr().map_or(IpAddr::from([0, 0, 0, 0]), |own| own.ip());
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            self.shared.release(ticket);
            return;
        }
        // A client that vanished without a word is found out by the kernel.
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        if let Some(key) = self.insert(Client::Tcp(stream), address, own, ticket) {
            self.stir(key, Stir::Run);
        }
    }

    /// Makes a session; `None` if its seat is lost already.
    fn insert(
        &mut self,
        client: Client,
        address: SocketAddr,
        own: IpAddr,
        ticket: Ticket,
    ) -> Option<SessionKey> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let chain = self.chain.load().clone();
        let place = &mut self.places[slot as usize];
        place.uses = place.uses.wrapping_add(1) & (u32::MAX >> 2);
        let key = SessionKey { slot, uses: place.uses };
        if !self.shared.door.seated(ticket, (self.number, key)) {
            self.free.push(slot);
            self.shared.release(ticket);
            return None;
        }
        let begun = (ticket, self.now.steady_us);
        place.session = Some(Session::new(key, client, (address, own), begun, chain));
        place.watched = [None; 2];
        Totals::count(&self.shared.totals.sessions_total);
        Some(key)
    }

    fn remove(&mut self, key: SessionKey) {
        let shared = self.shared.clone();
        self.with_env(key, |session, env| session.end(env));
        let Some(place) = self.places.get_mut(key.slot as usize).filter(|place| place.uses == key.uses)
        else {
            return;
        };
        let Some(session) = place.session.take() else { return };
        for portmap in [false, true] {
            if self.by_address.get(&(session.address, portmap)) == Some(&key) {
                self.by_address.remove(&(session.address, portmap));
            }
        }
        self.free.push(key.slot);
        shared.release(session.ticket);
        // Closing the descriptors takes them out of the epoll.
    }

    fn with_env(&mut self, key: SessionKey, work: impl FnOnce(&mut Session, &mut Env<'_>)) {
        let now = self.now;
        let Some(place) = self.places.get_mut(key.slot as usize).filter(|place| place.uses == key.uses)
        else {
            return;
        };
        let Some(session) = &mut place.session else { return };
        let portmap = session.datagram() && self.by_address.get(&(session.address, true)) == Some(&key);
        let udp = if portmap { self.datagrams.portmap.as_ref() } else { self.datagrams.udp.as_ref() };
        let mut env = Env {
            shared: &self.shared,
            worker: self.number,
            now,
            chain: self.chain.load(),
            results: &mut self.results,
            compound: &mut self.compound,
            results4: &mut self.results4,
            entry_handles: &mut self.entry_handles,
            datagram: &mut self.datagram,
            udp,
        };
        work(session, &mut env);
    }

    fn stir(&mut self, key: SessionKey, stir: Stir) {
        use epoll::EventFlags as Flags;
        self.with_env(key, |session, env| match stir {
            Stir::Run => session.run(env),
            Stir::Tick => session.tick(env),
            Stir::Client(flags) => {
                let closed = flags.intersects(Flags::HUP | Flags::ERR);
                if closed || flags.contains(Flags::IN) {
                    session.client_readable(env, closed)
                } else {
                    session.run(env)
                }
            }
            Stir::Server(flags) => {
                if matches!(session.up, Up::Connecting(_)) {
                    session.server_writable(env);
                } else if flags.intersects(Flags::IN | Flags::HUP | Flags::ERR) {
                    session.server_readable(env, flags.intersects(Flags::HUP | Flags::ERR));
                } else {
                    session.run(env);
                }
            }
        });
        self.settle(key);
    }

    /// Removes a session that has ended, and tells the kernel what to watch of one that has not.
    fn settle(&mut self, key: SessionKey) {
        let Some(place) = self.places.get_mut(key.slot as usize).filter(|place| place.uses == key.uses)
        else {
            return;
        };
        let Some(session) = &mut place.session else { return };
        if session.ended {
            return self.remove(key);
        }
        if let Some(at_us) = session.wake_us() {
            self.next_wake_us = self.next_wake_us.min(at_us);
        }
        let failed = watch(&self.epoll, place, key).is_err();
        if failed {
            tracing::error!("a session cannot be watched: it ends");
            self.remove(key);
        }
    }

    fn tick_if_due(&mut self) {
        let now_us = self.now.steady_us;
        let due = now_us >= self.next_tick_us;
        if !due && now_us < self.next_wake_us {
            return;
        }
        if due {
            self.next_tick_us = now_us + TICK_US;
        }
        // Each session that still wants to be stirred says so again.
        self.next_wake_us = u64::MAX;
        for key in self.keys() {
            match self.session(key).and_then(|session| session.wake_us()) {
                Some(at_us) if !due && at_us > now_us => self.next_wake_us = self.next_wake_us.min(at_us),
                None if !due => {}
                _ => self.stir(key, Stir::Tick),
            }
        }
    }

    fn read_datagrams(&mut self, portmap: bool) {
        let mut bytes = std::mem::take(&mut self.received);
        for _ in 0..DATAGRAMS {
            let socket = if portmap { &self.datagrams.portmap } else { &self.datagrams.udp };
            let Some(Ok((length, from))) = socket.as_ref().map(|socket| socket.recv_from(&mut bytes)) else {
                break;
            };
            let Some(key) = self.datagram_session(from, portmap) else { continue };
            self.with_env(key, |session, env| session.datagram_came(&bytes[..length], env));
            self.settle(key);
        }
        self.received = bytes;
    }

    fn datagram_session(&mut self, from: SocketAddr, portmap: bool) -> Option<SessionKey> {
        if let Some(key) = self.by_address.get(&(from, portmap)) {
            return Some(*key);
        }
        let ticket = self.shared.admit(from.ip())?;
        let own = self.shared.own_address_for(from);
        let key = self.insert(Client::Udp, from, own, ticket)?;
        self.by_address.insert((from, portmap), key);
        Some(key)
    }
}

fn finish_mount(session: &mut Session, mounted: Mounted, shared: &Shared) {
    session.mounts -= 1;
    match mounted.result {
        Ok(mut handle) => {
            let server = handle;
            if mounted.chain.mounted(&mounted.mount, &mut handle) {
                shared.note_mount(&server, &mounted.mount.path);
            }
            if handle.as_bytes().is_empty() {
                Totals::count(&shared.totals.mounts_refused_total);
                return mount::put_refused(&mut session.answers, mounted.xid, mount::FAULT);
            }
            Totals::count(&shared.totals.mounts_total);
            mount::put_mounted(&mut session.answers, mounted.xid, handle.as_bytes());
        }
        Err(status) => {
            Totals::count(&shared.totals.mounts_refused_total);
            mount::put_refused(&mut session.answers, mounted.xid, status);
        }
    }
}

/// Tells the kernel what is wanted of both ends, if that has changed.
fn watch(epoll: &OwnedFd, place: &mut Place, key: SessionKey) -> rustix::io::Result<()> {
    use epoll::EventFlags as Flags;
    let Some(session) = &mut place.session else { return Ok(()) };
    let mut flags = [Flags::empty(); 2];
    if session.wants_client() {
        flags[0] |= Flags::IN;
    }
    if !session.s2c.output.is_empty() {
        flags[0] |= Flags::OUT;
    }
    if session.wants_server() {
        flags[1] |= Flags::IN;
    }
    if matches!(session.up, Up::Connecting(_)) || !session.c2s.output.is_empty() {
        flags[1] |= Flags::OUT;
    }
    let client = if let Client::Tcp(stream) = &session.client { Some(stream) } else { None };
    let server = match &session.up {
        Up::Connecting(stream) | Up::Ready(stream) => Some(stream),
        _ => None,
    };
    for (end, stream) in [client, server].into_iter().enumerate() {
        let Some(stream) = stream else {
            place.watched[end] = None;
            continue;
        };
        let data = epoll::EventData::new_u64(token(key, end == 1));
        let fd = std::os::fd::AsRawFd::as_raw_fd(stream);
        match place.watched[end] {
            Some(watched) if watched == (flags[end], fd) => continue,
            // The same number may be another connection by now, which the kernel does not know yet.
            Some((_, known)) if known == fd => match epoll::modify(epoll, stream, data, flags[end]) {
                Err(rustix::io::Errno::NOENT) => epoll::add(epoll, stream, data, flags[end])?,
                other => other?,
            },
            _ => epoll::add(epoll, stream, data, flags[end])?,
        }
        place.watched[end] = Some((flags[end], fd));
    }
    Ok(())
}
