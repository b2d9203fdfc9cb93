//! The receivers that the engine asked for, and what the kernel says of the way to each.

use super::kernel::{Changes, Kernel, Link};
use super::{Settings, UNUSED_MAX};
use crate::engine::wire::{BySockets, HOPS_MAX, Hop, Hops, Receiver};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weir_packet::Mac;

/// What is known of the way to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// Who gets the frames.
    next_hop: IpAddr,
    /// The Ethernet address there, the largest packet, and the hop limit; or why not by the wire.
    way: Result<(Mac, usize, u8), BySockets>,
}

struct Known {
    found: Found,
    receiver: Receiver,
    /// Refreshes since something came for it.
    unused: u32,
}

/// See the module.
pub(super) struct Ways {
    settings: Settings,
    link: Option<Link>,
    known: BTreeMap<IpAddr, Known>,
    version: u64,
    has_changed: bool,
    too_many: u64,
    failed: u64,
}

impl Ways {
    pub(super) fn new(settings: Settings) -> Ways {
        Ways {
            settings,
            link: None,
            known: BTreeMap::new(),
            version: 0,
            has_changed: false,
            too_many: 0,
            failed: 0,
        }
    }

    /// The wires' device from now on.
    pub(super) fn set_link(&mut self, link: Option<Link>) {
        self.link = link;
        if self.link.is_none() && !self.known.is_empty() {
            self.known.clear();
            self.has_changed = true;
        }
    }

    /// Looks for a receiver that is not known yet.
    pub(super) fn add(&mut self, kernel: &mut Kernel, receiver: IpAddr) {
        if self.known.contains_key(&receiver) || self.link.is_none() {
            return;
        }
        if self.known.len() >= HOPS_MAX {
            self.too_many += 1;
            return;
        }
        let found = self.find(kernel, receiver, true);
        let used = Arc::new(AtomicBool::new(true));
        let way = self.hop(receiver, &found);
        self.known.insert(receiver, Known { found, receiver: Receiver { way, used }, unused: 0 });
        self.has_changed = true;
    }

    /// Looks again for those that changes may concern.
    pub(super) fn note(&mut self, kernel: &mut Kernel, changes: &Changes) {
        if changes.all {
            return self.note_all(kernel);
        }
        if changes.neighbours.is_empty() {
            return;
        }
        let concerned = |known: &Known| changes.neighbours.contains(&known.found.next_hop);
        let of: Vec<IpAddr> =
            self.known.iter().filter(|(_, known)| concerned(known)).map(|(receiver, _)| *receiver).collect();
        of.into_iter().for_each(|receiver| self.look(kernel, receiver, false));
    }

    /// Looks for all of them.
    pub(super) fn note_all(&mut self, kernel: &mut Kernel) {
        let all: Vec<IpAddr> = self.known.keys().copied().collect();
        all.into_iter().for_each(|receiver| self.look(kernel, receiver, false));
    }

    /// Forgets who is not used, and looks for the others; has the kernel look for their neighbours where it should.
    pub(super) fn refresh(&mut self, kernel: &mut Kernel) {
        let before = self.known.len();
        self.known.retain(|_, known| {
            let is_used = known.receiver.used.swap(false, Relaxed);
            known.unused = if is_used { 0 } else { known.unused + 1 };
            known.unused <= UNUSED_MAX
        });
        self.has_changed |= self.known.len() != before;
        let used: Vec<(IpAddr, bool)> =
            self.known.iter().map(|(receiver, known)| (*receiver, known.unused == 0)).collect();
        used.into_iter().for_each(|(receiver, is_used)| self.look(kernel, receiver, is_used));
    }

    fn look(&mut self, kernel: &mut Kernel, receiver: IpAddr, asks: bool) {
        let found = self.find(kernel, receiver, asks);
        let is_new = self.known.get(&receiver).is_none_or(|known| known.found != found);
        // The own Ethernet address is in the headers, too.
        let way = self.hop(receiver, &found);
        if let Some(known) = self.known.get_mut(&receiver) {
            let is_new = is_new || !is_same(&known.receiver.way, &way);
            (known.found, known.receiver.way) = (found, way);
            self.has_changed |= is_new;
        }
    }

    /// The way to a receiver. If `asks`, the kernel looks for a neighbour that is missing or stale.
    fn find(&mut self, kernel: &mut Kernel, receiver: IpAddr, asks: bool) -> Found {
        let other = |next_hop| Found { next_hop, way: Err(BySockets::OtherWay) };
        let Some(link) = self.link.clone() else { return other(receiver) };
        let route = match kernel.route(self.settings.address, receiver) {
            Ok(Some(route)) => route,
            Ok(None) => return other(receiver),
            Err(error) => {
                self.failed += u64::from(error.kind() != std::io::ErrorKind::NetworkUnreachable);
                return other(receiver);
            }
        };
        if route.device != link.index || !link.is_running {
            return other(route.next_hop);
        }
        let neighbour = kernel.neighbour(link.index, route.next_hop).unwrap_or_else(|_| {
            self.failed += 1;
            None
        });
        if asks && neighbour.is_none_or(|neighbour| neighbour.is_stale) {
            self.failed += u64::from(kernel.use_neighbour(link.index, route.next_hop).is_err());
        }
        let mtu = route.mtu.unwrap_or(link.mtu).min(link.mtu);
        let hop_limit = route.hop_limit.unwrap_or(self.settings.hop_limit);
        let way = neighbour.map(|neighbour| (neighbour.mac, mtu, hop_limit)).ok_or(BySockets::NoNeighbour);
        Found { next_hop: route.next_hop, way }
    }

    fn hop(&self, receiver: IpAddr, found: &Found) -> Result<Arc<Hop>, BySockets> {
        let (mac, mtu, hop_limit) = found.way?;
        let own = self.link.as_ref().and_then(|link| link.mac).ok_or(BySockets::OtherWay)?;
        let Settings { address, ports, .. } = self.settings;
        Hop::new((mac, own), address, receiver, hop_limit, ports, mtu)
            .map(Arc::new)
            .ok_or(BySockets::OtherWay)
    }

    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Receivers that there was no room for.
    pub(super) fn too_many(&self) -> u64 {
        self.too_many
    }

    /// Questions that the kernel did not answer.
    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    /// The map as it is now.
    pub(super) fn publish(&mut self) -> Hops {
        self.has_changed = false;
        self.version += 1;
        Hops::new(
            self.version,
            self.known.iter().map(|(receiver, known)| (*receiver, known.receiver.clone())),
        )
    }
}

fn is_same(one: &Result<Arc<Hop>, BySockets>, other: &Result<Arc<Hop>, BySockets>) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => **one == **other,
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}
