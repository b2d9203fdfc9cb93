//! The state of the ports: what is wanted, what the device does, and what the engine was told. [`carried`]: what goes over to another process.

mod carried;

use super::Slow;
use super::mind::Mind;
use crate::engine::port::{Device, Port};
use crate::engine::{Command, PORTS_MAX};
use crate::flow::{PortEffect, PortIndex};
use crate::handover::message::CarriedTap;
use crate::handover::store::Words;
use crate::ports::attach::{Attached, Attacher, Opened, Target};
use crate::ports::seldom::Seldom;
use crate::ports::vhost::session::{Session, Tell, Told};
use crate::ports::vhost::{Socket, guest::Guest};
use crate::ports::{PortError, netlink, packet, tap, veth, xdp};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use weir_model::local::{FromSwitch, PortName, PortStatus};
use weir_model::resource::AttachmentKind;
use weir_model::{Entry, Key, Label, Update, Version};
use weir_trust::gate::Gate;

/// Starts of one virtual machine's queues that are logged in each [`STARTS_SPAN`].
const STARTS_TOLD: u32 = 4;
const STARTS_SPAN: Duration = Duration::from_secs(60);

/// What a port's frames come from and go to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tap(Target),
    Veth(Target),
    Guest(Socket),
}

impl Place {
    fn name(&self) -> String {
        match self {
            Place::Tap(target) | Place::Veth(target) => target.device.clone(),
            Place::Guest(socket) => socket.path.display().to_string(),
        }
    }
}

/// What of it the engine has.
#[derive(Clone, Debug)]
enum Given {
    Tap(Arc<OwnedFd>),
    /// A veth pair's frames by AF_PACKET.
    Packet(Arc<OwnedFd>),
    /// By AF_XDP.
    Xdp(xdp::Parts),
    Guest,
}

/// What came of trying to have a port's device.
#[derive(Debug)]
pub struct Arrived {
    port: PortIndex,
    /// Number of the wish that led to it: of an older one it is void.
    wish: u64,
    what: Arrival,
}

#[derive(Debug)]
enum Arrival {
    Device(Result<Opened, PortError>),
    Guest(Told),
}

impl From<Attached> for Arrived {
    fn from(attached: Attached) -> Arrived {
        Arrived { port: attached.port, wish: attached.wish, what: Arrival::Device(attached.result) }
    }
}

/// One port.
struct PortState {
    key: Key,
    place: Place,
    /// The socket of a virtual machine.
    session: Option<Session>,
    /// Whether it shall carry traffic.
    wanted: bool,
    /// Why it shall not.
    reason: String,
    device: Option<Given>,
    /// Number of the newest wish to attach.
    wish: u64,
    /// Why there is no device; of one that is there, why it is not had in the way that was wanted.
    trouble: String,
    /// Frames that the kernel lost because we took them too late.
    lost: u64,
    /// Those of sockets before.
    lost_before: u64,
    /// Another process gets its socket.
    handed: bool,
    /// The handling of its frames failed again: it carries no traffic until it is set anew.
    quarantined: bool,
    /// Starts of a virtual machine's queues that are logged: it may start them as often as it likes.
    starts: Seldom,
}

/// All ports.
pub struct PortBook {
    states: HashMap<PortIndex, PortState>,
    numbers: HashMap<Key, PortIndex>,
    attacher: Attacher,
    tell: Arc<dyn Fn(Arrived) + Send + Sync>,
    arrived: Receiver<Arrived>,
    wishes: u64,
    changed: bool,
    /// Another process has the devices still: they will be handed over.
    adopting: bool,
}

impl PortBook {
    /// No ports. `tell` hands over what arrives, from any thread, and wakes the slow one.
    pub fn new(
        attacher: Attacher,
        tell: Arc<dyn Fn(Arrived) + Send + Sync>,
        arrived: Receiver<Arrived>,
    ) -> PortBook {
        PortBook {
            states: HashMap::new(),
            numbers: HashMap::new(),
            attacher,
            tell,
            arrived,
            wishes: 0,
            changed: false,
            adopting: false,
        }
    }

    /// With devices that another process will hand over: none is opened before.
    pub fn adopting(mut self) -> PortBook {
        self.adopting = true;
        self
    }

    /// Whether devices will be handed over.
    pub fn is_adopting(&self) -> bool {
        self.adopting
    }

    /// The key of a port.
    pub fn key(&self, port: PortIndex) -> Option<&Key> {
        self.states.get(&port).map(|state| &state.key)
    }

    /// The number of a port.
    pub fn number(&self, key: &Key) -> Option<PortIndex> {
        self.numbers.get(key).copied()
    }

    /// The network of a port.
    pub fn vni(&self, port: PortIndex) -> Option<u32> {
        self.key(port).and_then(Key::vni).map(|vni| vni.0)
    }

    /// The number of a port by the names of its network and endpoint.
    pub fn named(&self, name: &PortName, gate: &Gate) -> Option<PortIndex> {
        self.states.iter().find(|(_, state)| port_name(&state.key, gate) == *name).map(|(port, _)| *port)
    }

    fn wish(&mut self, port: PortIndex) {
        if self.adopting {
            return;
        }
        self.wishes += 1;
        let wish = self.wishes;
        let Some(state) = self.states.get_mut(&port) else { return };
        state.wish = wish;
        match &state.place {
            Place::Tap(target) | Place::Veth(target) => self.attacher.attach(port, wish, target.clone()),
            Place::Guest(socket) => {
                // The one before ends first: both want the same socket.
                state.session = None;
                match Session::start(socket.clone(), teller(&self.tell, port, wish)) {
                    Ok(session) => state.session = Some(session),
                    Err(error) => state.trouble = format!("no thread for a virtual machine: {error}"),
                }
            }
        }
    }

    /// Whether the device that a port's socket was opened on is there still.
    fn is_there(&self, port: PortIndex, device: u32) -> bool {
        let Some(Place::Veth(target)) = self.states.get(&port).map(|state| &state.place) else {
            return false;
        };
        netlink::index_of(&target.opened()).is_ok_and(|index| index == device)
    }

    /// Counts what sockets lost; returns the ports whose device is gone.
    fn look_at_veths(&mut self) -> Vec<PortIndex> {
        let mut gone = Vec::new();
        for (port, state) in &mut self.states {
            match &state.device {
                // Each time it says what it lost since the last.
                Some(Given::Packet(socket)) => state.lost += packet::lost(socket.as_fd()),
                Some(Given::Xdp(parts)) => {
                    state.lost = state.lost_before + xdp::statistics(parts.socket.as_fd()).lost;
                    gone.push((*port, parts.device));
                }
                Some(Given::Tap(_) | Given::Guest) | None => {}
            }
        }
        gone.retain(|(port, device)| !self.is_there(*port, *device));
        gone.into_iter().map(|(port, _)| port).collect()
    }

    /// What the kernel lost of each port with a veth pair, because it was taken too late.
    pub fn lost(&self, gate: &Gate) -> Vec<(PortName, u64)> {
        let veths = self.states.values().filter(|state| matches!(state.place, Place::Veth(_)));
        veths.map(|state| (port_name(&state.key, gate), state.lost)).collect()
    }

    /// Of each virtual machine's port: bytes of memory that are lent now, and bytes that were touched here first.
    pub fn memory(&self, gate: &Gate) -> Vec<(PortName, (u64, u64))> {
        let sessions = self.states.values().filter_map(|state| Some((&state.key, state.session.as_ref()?)));
        sessions.map(|(key, session)| (port_name(key, gate), session.memory())).collect()
    }

    /// The state of every port in order of the keys, with what the engine counted.
    pub fn statuses(&self, gate: &Gate, counters: &crate::engine::counters::Counters) -> Vec<PortStatus> {
        let mut statuses: Vec<PortStatus> =
            self.states.iter().map(|(port, state)| status(*port, state, gate, counters)).collect();
        statuses.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        statuses
    }
}

fn teller(tell: &Arc<dyn Fn(Arrived) + Send + Sync>, port: PortIndex, wish: u64) -> Tell {
    let tell = Arc::clone(tell);
    Arc::new(move |told| tell(Arrived { port, wish, what: Arrival::Guest(told) }))
}

fn status(
    port: PortIndex,
    state: &PortState,
    gate: &Gate,
    counters: &crate::engine::counters::Counters,
) -> PortStatus {
    let counted = counters.port(usize::from(port));
    let up = state.wanted && state.device.is_some() && !state.quarantined;
    let reason = match (state.wanted, &state.device) {
        (false, _) => state.reason.clone(),
        (true, None) => state.trouble.clone(),
        (true, Some(_)) => state.trouble.clone(),
    };
    PortStatus {
        key: state.key.clone(),
        name: port_name(&state.key, gate),
        version: gate.get(&state.key).map_or(Version::ZERO, |in_force| in_force.version),
        up,
        reason,
        rx_frames: counted.rx.packets.get(),
        rx_bytes: counted.rx.bytes.get(),
        tx_frames: counted.tx.packets.get(),
        tx_bytes: counted.tx.bytes.get(),
    }
}

/// Name of a port; the network has its number for a name when it is not known.
pub fn port_name(key: &Key, gate: &Gate) -> PortName {
    let vni = key.vni().map_or(0, |vni| vni.0);
    let network = key.vni().and_then(|vni| gate.get(&Key::Network { vni })).and_then(|in_force| {
        match &in_force.entry {
            Some(Entry::Network(network)) => Some(network.name.clone()),
            _ => None,
        }
    });
    let endpoint = match key {
        Key::Port { endpoint, .. } => Some(endpoint.clone()),
        _ => None,
    };
    let fallback = |text: String| match Label::new(text) {
        Ok(label) => label,
        Err(error) => unreachable!("{error}"),
    };
    PortName {
        network: network.unwrap_or_else(|| fallback(format!("vni-{vni}"))),
        endpoint: endpoint.unwrap_or_else(|| fallback("none".to_string())),
    }
}

impl<M: Mind> Slow<M> {
    /// Makes what an update means for a port true.
    pub(super) fn port_effect(&mut self, update: &Update, effect: PortEffect) {
        self.ports.changed = true;
        match effect {
            PortEffect::Set { port, vni: _, netns, device, kind, queue_pairs, up, reason, mtu: _ } => {
                let key = self.mind.port_key(port).unwrap_or_else(|| update.key.clone());
                let place = match kind {
                    AttachmentKind::Tap => Place::Tap(Target { netns, device, kind }),
                    AttachmentKind::AfPacket | AttachmentKind::AfXdp => {
                        Place::Veth(Target { netns, device, kind })
                    }
                    AttachmentKind::VhostUser | AttachmentKind::VhostUserClient => Place::Guest(Socket {
                        path: device.into(),
                        listens: kind == AttachmentKind::VhostUser,
                        pairs: queue_pairs,
                    }),
                };
                self.set_port(port, key, place, up, reason);
            }
            PortEffect::Remove { port } => {
                self.ports.attacher.forget(port);
                if let Some(state) = self.ports.states.remove(&port) {
                    self.ports.numbers.remove(&state.key);
                    self.store.drop_tap(&state.key);
                    match (&state.place, state.device) {
                        (_, Some(Given::Tap(device))) => drop(tap::set_carrier(device.as_fd(), false)),
                        // The agent takes the pair away.
                        (Place::Veth(target), Some(_)) => drop(veth::set_up(&target.opened(), false)),
                        _ => {}
                    }
                    let _ = self.command(Command::RemovePort(usize::from(port)));
                }
            }
        }
    }

    fn set_port(&mut self, port: PortIndex, key: Key, place: Place, wanted: bool, reason: String) {
        if usize::from(port) >= PORTS_MAX {
            tracing::error!(port, limit = PORTS_MAX, "too many ports: this one carries no traffic");
            return;
        }
        let old = self.ports.states.remove(&port);
        self.ports.numbers.insert(key.clone(), port);
        let (device, session, kept) = match old {
            Some(old) if old.place == place => {
                // Set anew it may try again.
                let trouble = if old.quarantined { String::new() } else { old.trouble };
                (old.device, old.session, Some((old.wish, trouble, old.lost, old.lost_before)))
            }
            Some(old) => {
                self.ports.attacher.forget(port);
                self.store.drop_tap(&old.key);
                let _ = self.command(Command::RemovePort(usize::from(port)));
                (None, None, None)
            }
            None => (None, None, None),
        };
        let is_new = kept.is_none();
        let begin = || (0, "not attached to its device yet".into(), 0, 0);
        let (wish, trouble, lost, lost_before) = kept.unwrap_or_else(begin);
        let state = PortState {
            key,
            place,
            session,
            wanted,
            reason,
            device,
            wish,
            trouble,
            lost,
            lost_before,
            handed: false,
            quarantined: false,
            starts: Seldom::new(STARTS_TOLD, STARTS_SPAN),
        };
        let has_device = state.device.is_some();
        self.ports.states.insert(port, state);
        if has_device {
            self.show_carrier(port);
            let _ = self.command(Command::SetUp(usize::from(port), wanted));
        } else if is_new {
            self.ports.wish(port);
        }
    }

    fn show_carrier(&self, port: PortIndex) {
        let Some(state) = self.ports.states.get(&port) else { return };
        let result = match (&state.place, &state.device) {
            (_, Some(Given::Tap(device))) => {
                tap::set_carrier(device.as_fd(), state.wanted).map_err(|error| error.to_string())
            }
            (Place::Veth(target), Some(_)) => {
                veth::set_up(&target.opened(), state.wanted).map_err(|error| error.to_string())
            }
            // A virtual machine monitor has no way to be told.
            _ => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(key = %state.key, error, "the carrier cannot be set");
        }
    }

    /// Takes devices that were attached to since the last time.
    pub(super) fn take_attached(&mut self) {
        while let Ok(Arrived { port, wish, what }) = self.ports.arrived.try_recv() {
            let Some(state) = self.ports.states.get_mut(&port) else { continue };
            if wish != state.wish {
                continue;
            }
            self.ports.changed = true;
            match what {
                Arrival::Device(Ok(opened)) => self.give_opened(port, opened),
                Arrival::Guest(Told::Runs(guest)) => {
                    state.device = Some(Given::Guest);
                    self.give_guest(port, *guest);
                }
                Arrival::Guest(Told::Waits(reason)) => self.take_guest(port, reason),
                Arrival::Device(Err(error)) => self.not_arrived(port, error.to_string()),
                Arrival::Guest(Told::Failed(reason)) => self.not_arrived(port, reason),
            }
        }
    }

    fn give_opened(&mut self, port: PortIndex, opened: Opened) {
        let Some(state) = self.ports.states.get_mut(&port) else { return };
        state.lost_before = state.lost;
        let (given, device, way) = match opened {
            Opened::Tap(device) => {
                let device = Arc::new(device);
                (Given::Tap(Arc::clone(&device)), Device::Tap(device), String::new())
            }
            Opened::Packet(socket, why) => {
                (Given::Packet(Arc::clone(&socket)), Device::Tap(socket), why.unwrap_or_default())
            }
            Opened::Xdp(socket) => {
                let given = Given::Xdp(socket.parts().clone());
                (given, Device::Xdp(Box::new(RefCell::new(*socket))), String::new())
            }
        };
        if !way.is_empty() {
            tracing::warn!(key = %state.key, way, "a port's frames go another way than was wanted");
        }
        state.device = Some(given);
        self.give(port, device);
        if let Some(state) = self.ports.states.get_mut(&port) {
            state.trouble = way;
        }
    }

    fn give(&mut self, port: PortIndex, device: Device) {
        let Some(state) = self.ports.states.get_mut(&port) else { return };
        (state.trouble, state.quarantined) = (String::new(), false);
        if let (Device::Tap(device), Place::Tap(Target { netns, device: name, .. })) = (&device, &state.place)
        {
            let (key, netns, name) = (Some(state.key.clone()), netns.clone(), name.clone());
            self.shared.mark.name(usize::from(port), crate::mark::name_of(netns.as_deref(), &name));
            self.store.keep(Words::Tap(CarriedTap { key, netns, device: name }), vec![Arc::clone(device)]);
        }
        let given = Port { device, up: state.wanted, ethernet: None };
        self.show_carrier(port);
        let _ = self.command(Command::SetPort(usize::from(port), Box::new(given)));
    }

    fn give_guest(&mut self, port: PortIndex, guest: Guest) {
        if let Some(state) = self.ports.states.get_mut(&port)
            && let Some(untold) = state.starts.again(Instant::now())
        {
            tracing::info!(port, pairs = guest.pairs(), untold, "a virtual machine's queues run");
        }
        self.give(port, Device::Guest(Box::new(RefCell::new(guest))));
    }

    /// The virtual machine of a port wants its queues back, or is not there.
    fn take_guest(&mut self, port: PortIndex, reason: String) {
        let Some(state) = self.ports.states.get_mut(&port) else { return };
        state.trouble = reason;
        if state.device.take().is_some() {
            let _ = self.command(Command::RemovePort(usize::from(port)));
        }
    }

    fn not_arrived(&mut self, port: PortIndex, reason: String) {
        self.counters.attach_failures += 1;
        if let Some(state) = self.ports.states.get_mut(&port) {
            state.trouble = reason;
        }
    }

    /// The handling of a port's frames failed again: the engine reads it no more.
    pub(super) fn quarantine(&mut self, port: PortIndex) {
        let Some(state) = self.ports.states.get_mut(&port) else { return };
        if std::mem::replace(&mut state.quarantined, true) {
            return;
        }
        state.trouble =
            "quarantined: the handling of two of its frames failed, which is a fault of the switch; \
                         set the endpoint down and up again to let it carry traffic"
                .to_string();
        tracing::error!(key = %state.key, "quarantined: the handling of its frames failed again");
        self.ports.changed = true;
    }

    /// The device of a port is gone: attach anew when there is one.
    pub(super) fn port_failed(&mut self, number: usize) {
        let Ok(port) = PortIndex::try_from(number) else { return };
        let Some(state) = self.ports.states.get_mut(&port) else { return };
        if state.device.take().is_none() {
            return;
        }
        state.trouble = format!("device '{}' is gone", state.place.name());
        self.ports.changed = true;
        self.store.drop_tap(&state.key);
        if let Some(session) = &state.session {
            // It goes on with the next virtual machine by itself.
            state.trouble = format!("the virtual machine at '{}' took its memory back", state.place.name());
            session.disconnect();
            let _ = self.command(Command::RemovePort(number));
            return;
        }
        let _ = self.command(Command::RemovePort(number));
        self.ports.wish(port);
    }

    /// A client says that the device of a port is there or was made anew.
    pub(super) fn attach_again(&mut self, key: &Key) {
        let Some(port) = self.ports.number(key) else { return };
        let Some(state) = self.ports.states.get(&port) else { return };
        let is_at = |device: &OwnedFd| match &state.place {
            Place::Tap(target) => tap::is_at(device.as_fd(), target.netns.as_deref(), &target.device),
            Place::Veth(_) | Place::Guest(_) => true,
        };
        match &state.device {
            Some(Given::Guest) => {}
            None if state.session.is_some() => {}
            Some(Given::Tap(device)) if is_at(device) => {}
            Some(Given::Xdp(parts)) if self.ports.is_there(port, parts.device) => {}
            // One that is gone says so when it is read.
            Some(Given::Packet(_)) => {}
            Some(Given::Tap(_) | Given::Xdp(_)) => self.port_failed(usize::from(port)),
            None => self.ports.wish(port),
        }
    }

    /// Looks after sockets of veth pairs: what they lost, and whether those of AF_XDP, which are not told, still have their device.
    pub(super) fn look_at_veths(&mut self) {
        for port in self.ports.look_at_veths() {
            self.port_failed(usize::from(port));
        }
    }

    /// Tells subscribers of ports that changed.
    pub(super) fn tell_ports(&mut self) {
        if std::mem::take(&mut self.ports.changed) && !self.subscribers.is_empty() {
            let statuses = self.ports.statuses(self.kept.gate(), &self.shared.counters);
            self.tell(&FromSwitch::Ports(statuses));
        }
    }
}
