//! Ports that go over to another process, and back (row A30): their devices and sockets with what is to be known of them.

use super::{Given, Place, PortBook, teller};
use crate::engine::limits::EXTERNAL;
use crate::engine::port::Device;
use crate::flow::PortIndex;
use crate::handover::guests::Guest as Carried;
use crate::handover::message::{CarriedTap, CarriedVeth, CarriedWay};
use crate::handover::new::Taken;
use crate::handover::store::Words;
use crate::ports::attach::{Opened, Target};
use crate::ports::vhost::session::Session;
use crate::ports::{netlink, packet, tap, xdp};
use crate::slow::Slow;
use crate::slow::mind::Mind;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl PortBook {
    /// The TAPs that are to be handed over.
    pub(in crate::slow) fn carried_taps(&self) -> Vec<(CarriedTap, Arc<OwnedFd>)> {
        let taps = self.states.values().filter_map(|state| match (&state.place, &state.device) {
            (Place::Tap(Target { netns, device: name, .. }), Some(Given::Tap(device))) => {
                let (key, netns, name) = (Some(state.key.clone()), netns.clone(), name.clone());
                Some((CarriedTap { key, netns, device: name }, Arc::clone(device)))
            }
            _ => None,
        });
        taps.collect()
    }

    /// The sockets of veth pairs that are to be handed over, with their descriptors.
    pub(in crate::slow) fn carried_veths(&self) -> Vec<(CarriedVeth, Vec<Arc<OwnedFd>>)> {
        let veths = self.states.values().filter_map(|state| {
            let Place::Veth(Target { netns, device, .. }) = &state.place else { return None };
            let (way, descriptors) = match &state.device {
                Some(Given::Packet(socket)) => {
                    (CarriedWay::Packet { why: state.trouble.clone() }, vec![Arc::clone(socket)])
                }
                Some(Given::Xdp(parts)) => {
                    let way = CarriedWay::Xdp {
                        device: parts.device,
                        chunks: xdp::CHUNKS,
                        chunk_bytes: xdp::CHUNK_BYTES as u32,
                    };
                    (way, [&parts.socket, &parts.memory, &parts.program].map(Arc::clone).to_vec())
                }
                _ => return None,
            };
            let (key, netns, device) = (state.key.clone(), netns.clone(), device.clone());
            Some((CarriedVeth { key, netns, device, way }, descriptors))
        });
        veths.collect()
    }

    /// Stops the virtual machines' sockets and says what there is to be handed over of them, and how many did not stand still within
    /// the limit.
    pub(in crate::slow) fn carried_guests(&mut self, limit: Duration) -> (Vec<Carried>, u32) {
        let until = Instant::now() + limit;
        let (mut guests, mut left, mut frozen) = (Vec::new(), 0, Vec::new());
        for (port, state) in &self.states {
            if let Some(session) = &state.session {
                frozen.push((*port, session.freeze()));
            }
        }
        for (port, moved) in frozen {
            let Some(state) = self.states.get_mut(&port) else { continue };
            let Place::Guest(socket) = &state.place else { continue };
            match moved.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(moved) => {
                    state.handed = true;
                    guests.push(Carried { key: state.key.clone(), socket: socket.clone(), moved });
                }
                Err(_) => left += 1,
            }
        }
        (guests, left)
    }

    /// Goes on after all.
    pub(in crate::slow) fn thaw(&mut self) {
        for state in self.states.values_mut() {
            state.handed = false;
            if let Some(session) = &state.session {
                session.thaw();
            }
        }
    }

    /// Another process goes on with what was handed over.
    pub(in crate::slow) fn leave(&mut self) {
        for state in self.states.values().filter(|state| state.handed) {
            if let Some(session) = &state.session {
                session.leave();
            }
        }
    }
}

/// A veth pair's socket of another process, if it is of this device still.
fn open_carried(name: &str, way: CarriedWay, descriptors: Vec<OwnedFd>) -> io::Result<Opened> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let index = netlink::index_of(name).map_err(|error| wrong(error.to_string()))?;
    let of = |device: u32| match device == index {
        true => Ok(()),
        false => Err(wrong(format!("it is of device {device}, and '{name}' is {index}"))),
    };
    let mut descriptors = descriptors.into_iter().map(Arc::new);
    let mut next = || descriptors.next().ok_or_else(|| wrong("a descriptor is missing".into()));
    match way {
        CarriedWay::Packet { why } => {
            let socket = next()?;
            of(packet::device(socket.as_fd())?)?;
            Ok(Opened::Packet(socket, (!why.is_empty()).then_some(why)))
        }
        CarriedWay::Xdp { device, chunks, chunk_bytes } => {
            of(device)?;
            if (chunks, chunk_bytes) != (xdp::CHUNKS, xdp::CHUNK_BYTES as u32) {
                return Err(wrong(format!("it has {chunks} chunks of {chunk_bytes} bytes")));
            }
            let (socket, memory, program) = (next()?, next()?, next()?);
            let parts = xdp::Parts { program, socket, memory, device };
            xdp::Socket::resume(parts).map(|socket| Opened::Xdp(Box::new(socket)))
        }
    }
}

impl<M: Mind> Slow<M> {
    /// Goes on with what a crashed process had open, and keeps it and what is new.
    pub(crate) fn go_on_with(&mut self, mut found: Taken, outside: Option<(String, Arc<OwnedFd>)>) {
        if self.ports.adopting {
            self.adopt(&mut found);
        }
        if let Some((device, tap)) = outside {
            self.keep_outside(device, tap);
        }
        // What is left belongs to nobody any more.
        self.store.settle();
    }

    /// Keeps the device of the outside.
    pub(crate) fn keep_outside(&mut self, device: String, tap: Arc<OwnedFd>) {
        self.shared.mark.name(EXTERNAL, crate::mark::name_of(None, &device));
        self.store.keep(Words::Tap(CarriedTap { key: None, netns: None, device }), vec![tap]);
    }

    /// Gives the ports the devices that another process had, and looks for those that it had not.
    pub(in crate::slow) fn adopt(&mut self, taken: &mut Taken) {
        self.ports.adopting = false;
        let mut ports: Vec<PortIndex> = self.ports.states.keys().copied().collect();
        ports.sort_unstable();
        for port in ports {
            let adopted = self.adopt_tap(port, taken) || self.adopt_veth(port, taken);
            if !adopted && !self.adopt_guest(port, taken) {
                self.ports.wish(port);
            }
        }
    }

    fn adopt_tap(&mut self, port: PortIndex, taken: &mut Taken) -> bool {
        let Some(state) = self.ports.states.get_mut(&port) else { return false };
        let Place::Tap(target) = &state.place else { return false };
        let Some((tap, device)) = taken.taps.remove(&Some(state.key.clone())) else { return false };
        // Another device, or one that was made anew, renamed or moved: it is opened as ever.
        let is_at = || tap::is_at(device.as_fd(), tap.netns.as_deref(), &tap.device);
        if (&tap.netns, &tap.device) != (&target.netns, &target.device) || !is_at() {
            return false;
        }
        let device = Arc::new(device);
        state.device = Some(Given::Tap(Arc::clone(&device)));
        self.give(port, Device::Tap(device));
        true
    }

    fn adopt_veth(&mut self, port: PortIndex, taken: &mut Taken) -> bool {
        let Some(state) = self.ports.states.get(&port) else { return false };
        let Place::Veth(target) = &state.place else { return false };
        let Some((veth, descriptors)) = taken.veths.remove(&state.key) else { return false };
        if (&veth.netns, &veth.device) != (&target.netns, &target.device) {
            return false;
        }
        match open_carried(&target.opened(), veth.way, descriptors) {
            Ok(opened) => {
                self.give_opened(port, opened);
                true
            }
            Err(error) => {
                tracing::warn!(key = %state.key, %error, "a veth pair's socket cannot be taken over: it is opened anew");
                false
            }
        }
    }

    fn adopt_guest(&mut self, port: PortIndex, taken: &mut Taken) -> bool {
        let (wish, tell) = (self.ports.wishes + 1, Arc::clone(&self.ports.tell));
        let Some(state) = self.ports.states.get_mut(&port) else { return false };
        let Place::Guest(socket) = &state.place else { return false };
        let Some((of, moved)) = taken.guests.take(&state.key).filter(|(of, _)| of == socket) else {
            return false;
        };
        (self.ports.wishes, state.wish) = (wish, wish);
        match Session::resume(of, moved, teller(&tell, port, wish)) {
            Ok(session) => {
                state.session = Some(session);
                true
            }
            Err(error) => {
                tracing::warn!(key = %state.key, %error, "a virtual machine cannot be taken over: it must connect anew");
                false
            }
        }
    }
}
