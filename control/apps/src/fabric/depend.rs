//! Dependencies: what each update of a plan waits for, and why (row C1). A dependency names a key
//! at the version at which `desired` has it after this decision.

use super::marks::desired_keys;
use super::tables::{Family, is_tombstone, read_desired, split_desired};
use super::work::Work;
use crate::delta::Issued;
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_model::entry::{LocationEntry, MEMBER_BUCKETS, PortEntry, Vni, member_bucket};
use weir_model::event::Role;
use weir_model::resource::Resource;
use weir_model::update::Reason;
use weir_model::{Change, Dependency, Entry, Key, Label};

/// What this decision does with the locations of an address: at whom, and whether it is deleted.
type Moves = BTreeMap<(Vni, IpAddr), Vec<(Label, bool)>>;

/// Adds the dependencies of each update.
pub(super) fn order(work: &mut Work<'_, '_, '_>, issued: &[Issued], lists: &mut [Vec<Dependency>]) {
    let mut moves = Moves::new();
    for update in issued {
        if let Key::Location { vni, address } = update.key {
            let gone = update.change == Change::Delete;
            moves.entry((vni, address)).or_default().push((update.target.clone(), gone));
        }
    }
    let gateways = work.gateways();
    for (update, list) in issued.iter().zip(lists) {
        list.extend(after(work, update, &moves, &gateways));
    }
}

/// Addresses that a port had before.
fn addresses_before(update: &Issued) -> Vec<IpAddr> {
    match update.before.as_deref().map(|value| read_desired(value).1) {
        Some(Some(Entry::Port(port))) => port.addresses,
        _ => Vec::new(),
    }
}

fn after(work: &mut Work<'_, '_, '_>, update: &Issued, moves: &Moves, gateways: &[Label]) -> Vec<Dependency> {
    let at = &update.target;
    let mut list = List { work, found: Vec::new() };
    match (&update.key, &update.change) {
        (Key::Gateways, Change::Put(_)) => {
            list.gateways(at, gateways);
            list.gateways_take(at, gateways);
        }
        (Key::Underlays, Change::Put(_)) => list.switches(at),
        (Key::Policy { vni }, Change::Put(_)) => list.members(at, *vni),
        (Key::Port { vni, .. }, Change::Put(Entry::Port(port))) => {
            list.port(at, *vni, port);
            list.dropped(update, *vni, port, moves);
        }
        (Key::Port { vni, .. }, Change::Delete) => list.gone(update, *vni, moves, gateways),
        // What another domain tells is about its own ports.
        (Key::Location { vni, address }, Change::Put(Entry::Location(location)))
            if list.work.address_owner(*vni, *address).is_some() =>
        {
            list.location(at, *vni, location);
            list.both_take(at, &location.host);
        }
        // Whoever answers from another domain is taken.
        (Key::Location { .. }, Change::Put(_)) => list.add(at, Key::Underlays, Reason::ReceiverFirst),
        (Key::Turn { vni, address, .. }, Change::Put(Entry::Turn(turn))) => {
            list.add(at, Key::Virtual { vni: *vni, address: *address }, Reason::VirtualBeforeTurn);
            list.member(*vni, &turn.endpoint);
        }
        (Key::Policy { vni }, Change::Delete) => list.ports(at, *vni),
        (Key::Network { vni } | Key::Route { vni, .. }, Change::Delete)
            if !list.work.network_at(at, *vni) =>
        {
            list.add(at, Key::Policy { vni: *vni }, Reason::PortGoneBeforeNetwork);
        }
        (Key::Members { vni, tag, .. }, Change::Delete)
            if !list.work.network_at(at, *vni) || !list.work.tag_used(*vni, tag) =>
        {
            list.add(at, Key::Policy { vni: *vni }, Reason::PolicyBeforeMembersGone);
        }
        _ => {}
    }
    list.found
}

struct List<'l, 'w, 'v, 's> {
    work: &'l mut Work<'w, 'v, 's>,
    found: Vec<Dependency>,
}

impl List<'_, '_, '_, '_> {
    /// Waits for a key if the actuator shall have it, or shall have deleted it.
    fn add(&mut self, target: &Label, key: Key, reason: Reason) {
        if let Some(version) = self.work.desired_version(target, &key) {
            self.found.push(Dependency { target: target.clone(), key, version, reason });
        }
    }

    /// A host learns of gateways that are filled; a gateway's own empty list marks that it is.
    fn gateways(&mut self, at: &Label, gateways: &[Label]) {
        if self.work.member_as(at, Role::Gateway).is_none() {
            for gateway in gateways {
                self.add(gateway, Key::Gateways, Reason::GatewayFilledBeforeUse);
            }
            return;
        }
        for (key, value) in self.work.desired_under(at, b"") {
            let (version, tail) = split_desired(&value);
            if key != Key::Gateways && !is_tombstone(tail) {
                let reason = Reason::GatewayFilledBeforeUse;
                self.found.push(Dependency { target: at.clone(), key, version, reason });
            }
        }
    }

    /// One switch has another's address in its list, if it has a list.
    fn takes(&mut self, receiver: &Label, sender: &Label) {
        if let Some(sender) = self.work.member(sender).filter(|_| receiver != sender) {
            let bucket = member_bucket(sender.facts.underlay);
            self.add(receiver, Key::Switches { bucket }, Reason::ReceiverFirst);
        }
    }

    /// Who has a place of the other sends there, and is answered from there.
    fn both_take(&mut self, at: &Label, other: &Label) {
        self.takes(other, at);
        self.takes(at, other);
    }

    /// A host sends by gateways that have it in their lists, and is answered by them.
    fn gateways_take(&mut self, at: &Label, gateways: &[Label]) {
        if self.work.member_as(at, Role::Host).is_some() {
            gateways.iter().for_each(|gateway| self.both_take(at, gateway));
        }
    }

    /// A list that counts is whole.
    fn switches(&mut self, at: &Label) {
        for bucket in 0..MEMBER_BUCKETS {
            self.add(at, Key::Switches { bucket }, Reason::ListBeforeUse);
        }
    }

    fn members(&mut self, at: &Label, vni: Vni) {
        for (key, value) in desired_keys(self.work, at, Family::Members, vni) {
            let (version, tail) = split_desired(&value);
            if !is_tombstone(tail) {
                let reason = Reason::MembersBeforePolicy;
                self.found.push(Dependency { target: at.clone(), key, version, reason });
            }
        }
    }

    fn port(&mut self, at: &Label, vni: Vni, port: &PortEntry) {
        self.add(at, Key::Network { vni }, Reason::NetworkBeforePort);
        self.add(at, Key::Policy { vni }, Reason::PolicyBeforePort);
        let mut members: Vec<Key> = Vec::new();
        for tag in port.tags.iter().filter(|tag| self.work.tag_used(vni, tag)) {
            let buckets = port.addresses.iter().map(|address| member_bucket(*address));
            members.extend(buckets.map(|bucket| Key::Members { vni, tag: tag.clone(), bucket }));
        }
        members.sort();
        members.dedup();
        for key in members {
            self.add(at, key, Reason::PolicyBeforePort);
        }
    }

    /// Addresses that a port loses are first forgotten by those who send there. One that another
    /// endpoint takes over is not waited for: two ports that swap addresses would wait for each
    /// other.
    fn dropped(&mut self, update: &Issued, vni: Vni, port: &PortEntry, moves: &Moves) {
        for address in addresses_before(update) {
            if port.addresses.contains(&address) {
                continue;
            }
            for (holder, _) in moves.get(&(vni, address)).into_iter().flatten().filter(|(_, gone)| *gone) {
                let key = Key::Location { vni, address };
                self.add(holder, key, Reason::LocationGoneBeforePort);
            }
        }
    }

    fn gone(&mut self, update: &Issued, vni: Vni, moves: &Moves, gateways: &[Label]) {
        for address in addresses_before(update) {
            let moved = moves.get(&(vni, address)).into_iter().flatten().map(|(holder, _)| holder);
            let mut holders: Vec<&Label> = gateways.iter().chain(moved).collect();
            holders.sort();
            holders.dedup();
            for holder in holders {
                let key = Key::Location { vni, address };
                self.add(holder, key, Reason::LocationGoneBeforePort);
            }
        }
    }

    fn location(&mut self, at: &Label, vni: Vni, location: &LocationEntry) {
        if self.work.own.fresh.as_ref() != Some(at) {
            let key = Key::Port { vni, endpoint: location.endpoint.clone() };
            self.add(&location.host, key, Reason::PortBeforeLocation);
        }
    }

    /// Whoever serves must be known at its own host.
    fn member(&mut self, vni: Vni, name: &Label) {
        let stored = self.work.endpoint(vni, name);
        let Some(Resource::Endpoint(endpoint)) = stored.as_ref().map(|stored| &stored.resource) else {
            return;
        };
        if let Some(host) = &endpoint.host {
            self.add(host, Key::Port { vni, endpoint: name.clone() }, Reason::PortBeforeLocation);
        }
    }

    /// The last port of a network left: its policy waits for every port that it had here.
    fn ports(&mut self, at: &Label, vni: Vni) {
        for (key, value) in desired_keys(self.work, at, Family::Port, vni) {
            let version = split_desired(&value).0;
            let reason = Reason::PortGoneBeforeNetwork;
            self.found.push(Dependency { target: at.clone(), key, version, reason });
        }
    }
}
