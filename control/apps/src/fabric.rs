//! The fabric: turns resources into the entries of switches (Andromeda §3.1 to §3.3; rows A1, A2,
//! A11, A14, and pains 1, 4, 7, 8, 13).
//!
//! One of the deciders on the engine of [`crate::delta`]: an event changes its tables (resources, what was allocated for them, the
//! indices over both), that marks keys, and the engine compares. So one endpoint costs the same in a small network and in a large
//! one (pain 1).
//!
//! Who holds what (row A11):
//! - each of both: where switches are, if it can read that ([`switches`]).
//! - a host: the gateways; for each network that has a port here its parameters, policy, members of
//!   the tags that the policy selects by, routes, and virtual addresses; its ports; and the locations and turns
//!   that its own packets earned. So state on hosts grows with what they use and not with the network.
//! - a gateway: every network with its routes, and every location. No policy: hosts police.
//!
//! Invariants
//! - A transaction changes everything or nothing, and the order of its mutations means nothing.
//! - A dependency of a plan names a key at a version at which some actuator shall have it, so
//!   nothing waits for what nobody sends. The graph has no cycle.
//! - A port's first packet meets the policy: see [`weir_model::entry::PortEntry::policy_min`].
//! - VNIs are given in turn and used again only after all 2^24 of them, so a late packet or a
//!   switch that was away cannot take a new network for an old one.
//!
//! Departures
//! - Locations that fill a gateway that just joined do not wait for their ports. Without a location
//!   the packet would be lost too, and one dead host must not keep a new gateway from use.
//! - A gateway has an empty `gateways` entry, put last when it joins. Its ack means "filled", so the
//!   entry of each host waits for one thing and not for every location.
//! - A port waits for the members of its own tags at its own host only: other hosts learn of them
//!   at their own pace, so that a dead host cannot keep all ports of a network down.

mod balancer;
mod broad;
mod change;
mod claims;
mod depend;
mod document;
pub mod domains;
mod entries;
mod intent;
mod learned;
mod marks;
mod membership;
mod offload;
mod pool;
mod query;
mod summary;
mod switches;
pub mod tables;
mod work;

pub use learned::{SeenDevice, devices_seen};
pub use query::{Led, explain, network_of, offloads, resource, resource_counts, resources, vni_of};
pub use summary::{Counts, PlanSummary, plan_summary};
pub use tables::{Allocated, Stored};

// Whoever asks about networks asks about their actuators, and what else these have.
pub use crate::delta::{ActuatorStatus, Refused, actuator, actuators, desired, desired_entry};
pub use crate::orders::{
    Health, Ordered, PLANES_MAX, Reported, all_orders, has_orders, health, order_id, order_of, ordered,
    orders_of, policies_of, repairs_of, reports_of,
};

use crate::delta::tables::Member;
use crate::delta::{Bounds, Decider, Desk, Held, Issued};
use weir_model::entry::VNI_MAX;
use weir_model::event::{ActuatorFacts, Event, EventBody, Role};
use weir_model::{Dependency, Entry, Key, Label, PlannedUpdate};
use weir_store::Rejection;
use work::{Own, Work};

/// Largest document of a resource, bytes.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// Limits and thresholds. Part of the program: every replica must have the same, and a log must be
/// replayed with those it was written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricSettings {
    /// A destination gets a direct location when a host sends it at least this by a gateway, bits a
    /// second (row A11: 20 kbit/s).
    pub offload_threshold_bps: u64,
    /// A direct location, or a turn of a virtual address, goes when it was not used for so long, milliseconds of ordered
    /// time.
    pub offload_idle_ms: u64,
    /// Most direct locations of a host.
    pub offloads_per_host_max: usize,
    /// Most hosts of a learned network that wait for the place of an address, each address counted.
    pub waiting_per_network_max: usize,
    /// A host that asked for an endpoint that is not heard is forgotten after so long, milliseconds of ordered time.
    pub waiting_ms: u64,
    /// Most virtual addresses of a network.
    pub balancers_per_network_max: usize,
    /// Most turns of the clients on a host.
    pub turns_per_host_max: usize,
    /// Most networks.
    pub networks_max: usize,
    /// Most subnets of a network.
    pub subnets_per_network_max: usize,
    /// Most endpoints of a network.
    pub endpoints_per_network_max: usize,
    /// Most routes of a network.
    pub routes_per_network_max: usize,
    /// Most firewall rules of a network.
    pub rules_per_network_max: usize,
    /// Most different tags that the rules of a network select their peers by.
    pub rule_tags_per_network_max: usize,
    /// Most endpoints placed on a host.
    pub endpoints_per_host_max: usize,
    /// Most addresses of all endpoints: each is a location on every gateway.
    pub addresses_max: usize,
    /// Largest policy entry, bytes.
    pub policy_bytes_max: usize,
    /// Most addresses in one bucket of a tag's members.
    pub members_per_bucket_max: usize,
    /// Most entries of a host, direct locations aside.
    pub entries_per_host_max: usize,
    /// Most entries of a gateway.
    pub entries_per_gateway_max: usize,
    /// Most actuators.
    pub actuators_max: usize,
    /// Most gateways.
    pub gateways_max: usize,
    /// The domain; without one nothing is shared with others.
    pub domain: Option<Label>,
    /// Whether a controller's word alone is not believed, because some may lie.
    pub believes_no_controller: bool,
    /// How many controllers founded the group.
    pub controllers_founded: usize,
    /// Most locations that one other domain is told.
    pub told_per_domain_max: usize,
    /// Most statements that another domain has not taken; beyond it is told everything anew when it is back.
    pub statements_waiting_max: usize,
    /// Most locations that are kept of what one other domain told.
    pub foreign_per_domain_max: usize,
    /// How often at most a domain is told everything anew, milliseconds of ordered time.
    pub begin_again_ms: u64,
}

impl Default for FabricSettings {
    fn default() -> FabricSettings {
        FabricSettings {
            offload_threshold_bps: 20_000,
            offload_idle_ms: 60_000,
            offloads_per_host_max: 4096,
            waiting_per_network_max: 4096,
            waiting_ms: 30_000,
            balancers_per_network_max: 1024,
            turns_per_host_max: weir_model::event::USAGE_TURNS_MAX,
            networks_max: 65_536,
            subnets_per_network_max: 256,
            endpoints_per_network_max: 131_072,
            routes_per_network_max: 16_384,
            rules_per_network_max: 1024,
            rule_tags_per_network_max: 64,
            endpoints_per_host_max: 4096,
            addresses_max: 1_000_000,
            policy_bytes_max: 256 * 1024,
            members_per_bucket_max: 16_384,
            entries_per_host_max: 262_144,
            entries_per_gateway_max: 2_000_000,
            actuators_max: 16_384,
            gateways_max: 64,
            domain: None,
            believes_no_controller: false,
            controllers_founded: 1,
            told_per_domain_max: 32_768,
            statements_waiting_max: 65_536,
            foreign_per_domain_max: 65_536,
            begin_again_ms: 10_000,
        }
    }
}

impl FabricSettings {
    /// What of it bounds actuators, whatever decides about them.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            actuators_max: self.actuators_max,
            entries_per_host_max: self.entries_per_host_max,
            entries_per_gateway_max: self.entries_per_gateway_max,
        }
    }
}

/// The decider, for one decision. See the module.
pub(crate) struct Fabric<'f> {
    settings: &'f FabricSettings,
    own: Own,
}

impl<'f> Fabric<'f> {
    pub(crate) fn new(settings: &'f FabricSettings) -> Fabric<'f> {
        Fabric { settings, own: Own::default() }
    }

    fn work<'w, 'v, 's>(&'w mut self, desk: &'w mut Desk<'v, 's>) -> Work<'w, 'v, 's> {
        Work { desk, settings: self.settings, own: &mut self.own }
    }
}

impl Decider for Fabric<'_> {
    fn owns(&self, key: &Key) -> bool {
        match key {
            Key::Gateways
            | Key::Network { .. }
            | Key::Policy { .. }
            | Key::Members { .. }
            | Key::Route { .. }
            | Key::Port { .. }
            | Key::Location { .. }
            | Key::Sought { .. }
            | Key::Virtual { .. }
            | Key::Turn { .. }
            | Key::Switches { .. }
            | Key::Underlays => true,
            Key::Repair { .. } | Key::FileWall { .. } | Key::Plane { .. } => false,
            // No switch has the one; the other follows the group's key, not tables.
            Key::Statement { .. } | Key::Controllers => false,
        }
    }

    fn problem(&self, key: &Key) -> Option<String> {
        key.vni().filter(|vni| vni.0 > VNI_MAX).map(|_| format!("{key} has no such VNI"))
    }

    fn joined(
        &mut self,
        desk: &mut Desk<'_, '_>,
        facts: &ActuatorFacts,
        before: Option<&Member>,
    ) -> Result<(), Rejection> {
        membership::joined(&mut self.work(desk), facts, before)
    }

    fn left(&mut self, desk: &mut Desk<'_, '_>, member: &Member) -> Result<(), Rejection> {
        membership::left(&mut self.work(desk), member)
    }

    fn speaks(&mut self, desk: &mut Desk<'_, '_>, name: &Label) {
        switches::mark_all(&mut self.work(desk), name);
    }

    fn words_needed(&mut self, desk: &mut Desk<'_, '_>) -> Option<usize> {
        switches::words_needed(&self.work(desk))
    }

    fn note(&mut self, desk: &mut Desk<'_, '_>, event: &Event, now_ms: u64) -> Result<(), Rejection> {
        let work = &mut self.work(desk);
        match &event.body {
            EventBody::Intent(transaction) => intent::change(work, transaction),
            EventBody::Apply(apply) => intent::change(work, &apply.resources),
            EventBody::Usage(report) => offload::weigh(work, report, now_ms),
            EventBody::PacketIn(report) => learned::hear(work, report, now_ms),
            EventBody::Domain(about) => domains::decide(work, event, about, now_ms),
            _ => Ok(()),
        }
    }

    fn outside(&mut self, desk: &mut Desk<'_, '_>) -> Result<Vec<PlannedUpdate>, Rejection> {
        domains::tell(&mut self.work(desk))
    }

    fn spread(&mut self, desk: &mut Desk<'_, '_>) {
        marks::spread(&mut self.work(desk));
    }

    fn entry(&mut self, desk: &mut Desk<'_, '_>, key: &Key) -> Result<Option<Entry>, Rejection> {
        self.work(desk).entry(key)
    }

    fn held(
        &mut self,
        desk: &mut Desk<'_, '_>,
        target: &Label,
        key: &Key,
        entry: &Entry,
        before: Option<&[u8]>,
    ) -> Held {
        let mut work = self.work(desk);
        if !work.holds(target, key, entry) {
            return Held::Not;
        }
        work.own_entry(target, key, entry, before).map_or(Held::Same, Held::Own)
    }

    fn let_go(&mut self, desk: &mut Desk<'_, '_>, target: &Label, key: &Key) -> Result<(), Rejection> {
        let work = &mut self.work(desk);
        match key {
            Key::Location { vni, address } => offload::drop_offload(work, target, *vni, *address),
            Key::Turn { vni, client, address } => {
                balancer::drop_turn(work, target, (*vni, *client, *address))
            }
            _ => Ok(()),
        }
    }

    fn counts(&mut self, desk: &mut Desk<'_, '_>, target: &Label, key: &Key) -> bool {
        // Direct locations and turns of hosts have limits of their own.
        let earned = matches!(key, Key::Location { .. } | Key::Turn { .. });
        !(earned && desk.member_as(target, Role::Host).is_some())
    }

    fn depend(&mut self, desk: &mut Desk<'_, '_>, issued: &[Issued], after: &mut [Vec<Dependency>]) {
        depend::order(&mut self.work(desk), issued, after);
    }
}
