//! The fabric: turns resources into the entries of switches (Andromeda §3.1 to §3.3; rows A1, A2,
//! A11, A14, and pains 1, 4, 7, 8, 13).
//!
//! A decision has two halves. First the event changes tables: resources, what was allocated for
//! them, the indices over both. That marks the keys of entries that may have changed. Then
//! each marked key is made anew, compared with what its actuators shall have by the `desired`
//! table, and only a difference becomes an update. Nothing is ever made anew as a whole, so one
//! endpoint costs the same in a small network and in a large one (pain 1).
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
//! - What a document repeats unchanged gets no new version and leads to no update (pain 4).
//! - A dependency of a plan names a key at a version at which some actuator shall have it, so
//!   nothing waits for what nobody sends. The graph has no cycle.
//! - A port's first packet meets the policy: see [`weir_model::entry::PortEntry::policy_min`].
//! - A deleted resource leaves nothing but tombstones in `desired`, at most [`TOMBSTONES_MAX`] an
//!   actuator. An actuator that still holds a key whose tombstone is gone is told to delete it
//!   when its refusal or its state is reported as [`weir_model::event::EventBody::Refused`].
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
mod change;
mod claims;
mod compile;
mod depend;
mod document;
pub mod domains;
mod entries;
mod filewall;
mod health;
mod intent;
mod issued;
mod learned;
mod marks;
mod membership;
mod offload;
mod orders;
mod pool;
mod query;
mod refusal;
mod summary;
mod switches;
pub mod tables;
mod work;

pub use filewall::policies_of;
pub use health::{Health, health, repairs_of};
pub use learned::{SeenDevice, devices_seen};
pub use orders::{
    Ordered, PLANES_MAX, Reported, all_orders, has_orders, order_id, order_of, ordered, orders_of, reports_of,
};
pub use query::{
    ActuatorStatus, Led, actuator, actuators, desired, desired_entry, explain, network_of, offloads,
    resource, resource_counts, resources, vni_of,
};
pub use refusal::Refused;
pub use summary::{Counts, PlanSummary, plan_summary};
pub use tables::{Allocated, Stored};

use weir_model::event::{Event, EventBody};
use weir_model::{Label, Version};
use weir_store::{App, Decision, Rejection, View};
use work::Work;

/// Most tombstones of an actuator; beyond it the older half is forgotten.
pub const TOMBSTONES_MAX: u64 = 16_384;
/// Most refusals remembered for an actuator; beyond it the oldest is forgotten.
pub const REFUSALS_MAX: usize = 32;
/// How often one value of a key is issued again after refusals.
pub const REISSUES_MAX: u32 = 8;
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

/// The app. See the module.
#[derive(Clone, Debug, Default)]
pub struct Fabric {
    settings: FabricSettings,
}

impl Fabric {
    /// With these settings.
    pub fn new(settings: FabricSettings) -> Fabric {
        Fabric { settings }
    }

    /// Its settings.
    pub fn settings(&self) -> &FabricSettings {
        &self.settings
    }
}

impl App for Fabric {
    fn name(&self) -> &'static str {
        "fabric"
    }

    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        now_ms: u64,
        event: &Event,
    ) -> Result<Decision, Rejection> {
        let mut work = Work::new(view, version, &self.settings);
        match &event.body {
            EventBody::Intent(transaction) => intent::change(&mut work, transaction)?,
            EventBody::Joined(facts) => membership::join(&mut work, facts)?,
            EventBody::Removed { actuator } => membership::remove(&mut work, actuator)?,
            EventBody::Usage(report) => offload::weigh(&mut work, report, now_ms)?,
            EventBody::Refused { actuator, key, version, refusal } => {
                refusal::answer(&mut work, actuator, key, *version, refusal)?;
            }
            EventBody::Health(report) => health::note(&mut work, report, now_ms)?,
            EventBody::Repair(order) => health::order(&mut work, order)?,
            EventBody::FileWall(order) => filewall::order(&mut work, order)?,
            EventBody::PacketIn(report) => learned::hear(&mut work, report, now_ms)?,
            EventBody::Domain(about) => domains::decide(&mut work, event, about, now_ms)?,
            EventBody::Identity(about) => membership::rekey(&mut work, about)?,
            EventBody::Clock { .. } => {}
            // The core gives what they carry, once it knows that it is their author's.
            EventBody::Said(_) | EventBody::JoinedBy(_) => {}
            EventBody::Speaks { name, protocol } => switches::speaks(&mut work, event, name, *protocol)?,
            EventBody::Order(order) => orders::order(&mut work, order)?,
            EventBody::Apply(apply) => {
                intent::change(&mut work, &apply.resources)?;
                orders::change(&mut work, apply)?;
            }
            EventBody::Report(report) => orders::note(&mut work, report, now_ms)?,
        }
        // Before the marks are used up.
        let told = domains::tell(&mut work)?;
        let mut plan = compile::plan(&mut work)?;
        plan.updates.extend(told);
        Ok(Decision { plan })
    }
}

#[cfg(test)]
mod tests;
