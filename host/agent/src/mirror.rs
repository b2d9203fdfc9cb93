//! A mirror of those entries in force at the switch that the agent needs: networks, ports,
//! locations, gateways, where the domain's switches are, and the controllers whose endorsements count there. The switch owns them; a restarted agent reads them again.
//!
//! Invariants
//! - A version never goes back: what the pages of a reading and the changes that come between them
//!   say is merged by version, and a deletion seen while reading is remembered until its end.
//! - Readers see the old mirror until a new reading is whole, so a restarted switch does not make
//!   names vanish for a moment.
//! - The names of a location's endpoint are indexed both ways, and both ways agree.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::entry::{
    ControllersEntry, GatewayEntry, NetworkEntry, PortEntry, SubnetEntry, Vni, member_bucket,
};
use weir_model::{Entry, Key, Label, Version};

/// Most entries mirrored; the switch itself holds no more.
pub const ENTRIES_MAX: usize = weir_trust::gate::ENTRIES_MAX;
/// The domain that the zones of all networks lie in.
pub const ROOT_ZONE: &str = "weir.internal";

/// A port of this host with its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortContext {
    /// The network's identifier.
    pub vni: Vni,
    /// Name of the endpoint.
    pub endpoint: Label,
    /// The port.
    pub port: Arc<PortEntry>,
    /// The network.
    pub network: Arc<NetworkEntry>,
}

impl PortContext {
    /// The port's subnet in its network's entry.
    pub fn subnet(&self) -> Option<&SubnetEntry> {
        self.network.subnets.iter().find(|subnet| subnet.name == self.port.subnet)
    }

    /// DNS zone of the network, without a final dot.
    pub fn zone(&self) -> String {
        format!("{}.{ROOT_ZONE}", self.network.name)
    }
}

impl fmt::Display for PortContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network.name, self.endpoint)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    versions: HashMap<Key, Version>,
    networks: HashMap<Vni, Arc<NetworkEntry>>,
    network_names: HashMap<Label, Vni>,
    ports: BTreeMap<(Vni, Label), Arc<PortEntry>>,
    locations: HashMap<(Vni, IpAddr), Label>,
    names: HashMap<(Vni, Label), Vec<IpAddr>>,
    gateways: Vec<GatewayEntry>,
    controllers: Option<Arc<ControllersEntry>>,
    switches: HashMap<u8, Vec<IpAddr>>,
    /// Whether the list of switches is whole: [`Key::Underlays`] comes last.
    switches_known: bool,
}

/// What an accepted change touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Something was taken over.
    pub any: bool,
    /// Ports or networks changed, so devices may have to.
    pub ports: bool,
    /// The entry was not mirrored because there is no room.
    pub full: bool,
}

impl Mirror {
    /// Takes over a change; `None` deletes. Older than what is known, or of no interest: nothing.
    pub fn apply(&mut self, key: &Key, version: Version, entry: Option<&Entry>) -> Touched {
        let interesting = matches!(
            key,
            Key::Gateways
                | Key::Controllers
                | Key::Switches { .. }
                | Key::Underlays
                | Key::Network { .. }
                | Key::Port { .. }
                | Key::Location { .. }
        );
        if !interesting || self.versions.get(key).is_some_and(|&known| known > version) {
            return Touched::default();
        }
        if entry.is_some() && !self.versions.contains_key(key) && self.versions.len() >= ENTRIES_MAX {
            return Touched { full: true, ..Touched::default() };
        }
        match entry {
            Some(entry) if !entry.fits(key) => return Touched::default(),
            Some(entry) => self.put(key, entry),
            None => self.delete(key),
        }
        match entry {
            Some(_) => self.versions.insert(key.clone(), version),
            None => self.versions.remove(key),
        };
        Touched { any: true, ports: matches!(key, Key::Network { .. } | Key::Port { .. }), full: false }
    }

    /// Whether a switch of this domain is at this address of the underlay, as far as the controllers have told where they are;
    /// those of a release that does not tell it leave it open.
    pub fn is_switch(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let listed = self.switches.get(&member_bucket(address)).is_some_and(|known| known.contains(&address));
        !self.switches_known || listed || self.gateways.iter().any(|gateway| gateway.underlay == address)
    }

    fn put(&mut self, key: &Key, entry: &Entry) {
        match (key, entry) {
            (Key::Gateways, Entry::Gateways(gateways)) => self.gateways = gateways.clone(),
            (Key::Controllers, Entry::Controllers(controllers)) => {
                self.controllers = Some(Arc::new(controllers.clone()));
            }
            (Key::Switches { bucket }, Entry::Switches(addresses)) => {
                self.switches.insert(*bucket, addresses.clone());
            }
            (Key::Underlays, Entry::Underlays(_)) => self.switches_known = true,
            (Key::Network { vni }, Entry::Network(network)) => {
                self.delete(key);
                self.network_names.insert(network.name.clone(), *vni);
                self.networks.insert(*vni, Arc::new(network.clone()));
            }
            (Key::Port { vni, endpoint }, Entry::Port(port)) => {
                self.ports.insert((*vni, endpoint.clone()), Arc::new(port.clone()));
            }
            (Key::Location { vni, address }, Entry::Location(location)) => {
                self.delete(key);
                self.locations.insert((*vni, *address), location.endpoint.clone());
                let known = self.names.entry((*vni, location.endpoint.clone())).or_default();
                known.push(*address);
                known.sort_unstable();
            }
            _ => {}
        }
    }

    fn delete(&mut self, key: &Key) {
        match key {
            Key::Gateways => self.gateways.clear(),
            Key::Controllers => self.controllers = None,
            Key::Switches { bucket } => drop(self.switches.remove(bucket)),
            Key::Underlays => self.switches_known = false,
            Key::Network { vni } => {
                if let Some(network) = self.networks.remove(vni)
                    && self.network_names.get(&network.name) == Some(vni)
                {
                    self.network_names.remove(&network.name);
                }
            }
            Key::Port { vni, endpoint } => {
                self.ports.remove(&(*vni, endpoint.clone()));
            }
            Key::Location { vni, address } => {
                if let Some(endpoint) = self.locations.remove(&(*vni, *address)) {
                    let name = (*vni, endpoint);
                    if let Some(known) = self.names.get_mut(&name) {
                        known.retain(|other| other != address);
                        if known.is_empty() {
                            self.names.remove(&name);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// The gateways of the domain.
    pub fn gateways(&self) -> &[GatewayEntry] {
        &self.gateways
    }

    /// The controllers whose endorsements count.
    pub fn controllers(&self) -> Option<&Arc<ControllersEntry>> {
        self.controllers.as_ref()
    }

    /// A network.
    pub fn network(&self, vni: Vni) -> Option<&Arc<NetworkEntry>> {
        self.networks.get(&vni)
    }

    /// A network by its name.
    pub fn network_named(&self, name: &str) -> Option<(Vni, &Arc<NetworkEntry>)> {
        let vni = *self.network_names.get(&Label::new(name).ok()?)?;
        Some((vni, self.networks.get(&vni)?))
    }

    /// A port with its network; `None` while either is not known.
    pub fn port(&self, vni: Vni, endpoint: &Label) -> Option<PortContext> {
        let port = self.ports.get(&(vni, endpoint.clone()))?;
        self.context(vni, endpoint, port)
    }

    /// All ports whose network is known, in order.
    pub fn ports(&self) -> impl Iterator<Item = PortContext> + '_ {
        self.ports.iter().filter_map(|((vni, endpoint), port)| self.context(*vni, endpoint, port))
    }

    fn context(&self, vni: Vni, endpoint: &Label, port: &Arc<PortEntry>) -> Option<PortContext> {
        let network = self.networks.get(&vni)?.clone();
        Some(PortContext { vni, endpoint: endpoint.clone(), port: port.clone(), network })
    }

    /// Addresses of an endpoint: of the port if it is here, else as far as locations are known here.
    pub fn addresses(&self, vni: Vni, endpoint: &str) -> Option<(Vec<IpAddr>, Known)> {
        let name = (vni, Label::new(endpoint).ok()?);
        if let Some(port) = self.ports.get(&name) {
            return Some((port.addresses.clone(), Known::Whole));
        }
        self.names.get(&name).map(|addresses| (addresses.clone(), Known::Part))
    }

    /// Name of the endpoint that has an address.
    pub fn endpoint_at(&self, vni: Vni, address: IpAddr) -> Option<&Label> {
        self.locations.get(&(vni, address)).or_else(|| {
            let range = (vni, first_label())..;
            self.ports
                .range(range)
                .take_while(|((of, _), _)| *of == vni)
                .find(|(_, port)| port.addresses.contains(&address))
                .map(|((_, endpoint), _)| endpoint)
        })
    }
}

/// The label that sorts before all others.
fn first_label() -> Label {
    match Label::new("0") {
        Ok(label) => label,
        Err(error) => unreachable!("{error}"),
    }
}

/// How much is known of an endpoint's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// All of them.
    Whole,
    /// Those in use here; on a gateway that is all of them.
    Part,
}

/// A reading of the switch's entries, page by page, while changes go on.
#[derive(Debug, Default)]
pub struct Reading {
    mirror: Mirror,
    deleted: HashMap<Key, Version>,
}

impl Reading {
    /// An entry of a page.
    pub fn page_entry(&mut self, key: &Key, version: Version, entry: &Entry) -> Touched {
        match self.deleted.get(key) {
            Some(&deleted) if deleted >= version => Touched::default(),
            _ => self.mirror.apply(key, version, Some(entry)),
        }
    }

    /// A change that came meanwhile.
    pub fn change(&mut self, key: &Key, version: Version, entry: Option<&Entry>) -> Touched {
        if entry.is_none() {
            self.deleted.insert(key.clone(), version);
        } else {
            self.deleted.remove(key);
        }
        self.mirror.apply(key, version, entry)
    }

    /// The mirror, after the last page.
    pub fn finish(self) -> Mirror {
        self.mirror
    }
}

#[cfg(test)]
mod tests;
