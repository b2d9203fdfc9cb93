//! What must hold after every step, whoever lies.

use super::order::{Domain, OWN, RED, VNI, label, number, underlay};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_apps::fabric::domains::{self as query, Taken};
use weir_apps::fabric::{self};
use weir_controller::core::{Core, Outcome};
use weir_model::domain::{DomainEvent, statement_of};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::resource::{Kind, Resource};
use weir_model::{Entry, Key, Label};

/// Each statement of another domain is taken once.
#[derive(Default)]
pub struct Taking {
    taken: BTreeSet<(Label, u64)>,
    /// Events that brought something, and those that brought nothing more.
    pub fruitful: u64,
    pub repeated: u64,
}

type Seen = BTreeMap<Label, Taken>;

impl Taking {
    pub fn look(core: &Core) -> Seen {
        query::domains(core.store()).map(|one| (one.record.name, one.taken)).collect()
    }

    pub fn forget(&mut self, domain: &Label) {
        self.taken.retain(|(of, _)| of != domain);
    }

    pub fn has(&self, of: &Label, number: u64) -> bool {
        self.taken.contains(&(of.clone(), number))
    }

    /// Compares what an event did with what it brought.
    pub fn check(
        &mut self,
        before: &Seen,
        core: &Core,
        about: &DomainEvent,
        outcome: &Outcome,
        first: bool,
    ) -> Option<String> {
        let DomainEvent::Forwarded { origin, statements } = about else { return None };
        let (before, after) = (before.get(origin), Taking::look(core).remove(origin));
        if !matches!(outcome, Outcome::Committed(_)) {
            return (before != after.as_ref())
                .then(|| format!("a refused event of {origin} changed something"));
        }
        let (before, after) = (before?, after?);
        let numbers = statements.iter().flat_map(|batch| &batch.updates);
        let mut through = before.through;
        let mut new = Vec::new();
        for (_, number, _) in numbers.filter_map(|proven| statement_of(&proven.update)) {
            if number > through {
                through = number;
                new.push(number);
            }
        }
        let counted = |taken: &Taken| taken.taken + taken.refused.iter().sum::<u64>();
        if after.through != through || counted(&after) - counted(before) != new.len() as u64 {
            return Some(format!("{} new statements of {origin}: {before:?} and then {after:?}", new.len()));
        }
        if !first {
            return None;
        }
        *(if new.is_empty() { &mut self.repeated } else { &mut self.fruitful }) += 1;
        let twice = new.iter().find(|number| !self.taken.insert((origin.clone(), **number)));
        twice.map(|number| format!("statement {number} of {origin} was taken twice"))
    }
}

fn locations(core: &Core) -> BTreeMap<(Vni, IpAddr), LocationEntry> {
    let all = fabric::desired(core.store(), &label("g1"));
    let one = |key: Key, entry: Option<Entry>| match (key, entry?) {
        (Key::Location { vni, address }, Entry::Location(at)) => Some(((vni, address), at)),
        _ => None,
    };
    all.filter_map(|(key, _, entry)| one(key, entry)).collect()
}

/// Where the own endpoints of a network are.
fn placed(core: &Core, network: &str) -> BTreeMap<IpAddr, Label> {
    let all = fabric::resources(core.store(), Some(Kind::Endpoint), Some(&label(network)));
    let of = |stored: fabric::Stored| {
        let Resource::Endpoint(endpoint) = &stored.resource else { return Vec::new() };
        let host = endpoint.host.clone();
        let placed =
            |host: Label| stored.allocated.addresses.iter().map(move |address| (*address, host.clone()));
        host.into_iter().flat_map(placed).collect()
    };
    all.flat_map(of).collect()
}

fn subnet_owner(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[1],
        IpAddr::V6(_) => 0,
    }
}

fn at_host(domain: &Label, host: &Label) -> IpAddr {
    let last = 10 + host.as_str().as_bytes()[1] - b'0';
    [10, 100 + number(domain), 0, last].into()
}

/// A gateway knows its own endpoints where they are, and of others only what they may say: addresses of their subnets, at places of
/// their hosts. `domains` are all, those that lie too.
pub fn right_places(domain: &Domain, core: &Core, domains: &[Label]) -> Option<String> {
    let found = locations(core);
    for (vni, network) in [(Vni(VNI), RED), (Vni(5), OWN)] {
        let own: BTreeMap<IpAddr, IpAddr> = placed(core, network)
            .into_iter()
            .map(|(address, host)| (address, at_host(&domain.name, &host)))
            .collect();
        let known: BTreeMap<IpAddr, IpAddr> = found
            .iter()
            .filter(|((of, address), _)| {
                *of == vni && (network == OWN || subnet_owner(*address) == number(&domain.name))
            })
            .map(|((_, address), at)| (*address, at.underlay))
            .collect();
        if own != known {
            return Some(format!(
                "its own endpoints of {network} are {own:?}, and its gateway has {known:?}"
            ));
        }
    }
    for ((vni, address), at) in &found {
        let owner = subnet_owner(*address);
        if *vni == Vni(VNI) && owner != number(&domain.name) {
            let of = domains.iter().find(|other| number(other) == owner);
            let granted = of.map(|other| underlay(other).parse::<ipnet::IpNet>().unwrap());
            if !granted.is_some_and(|granted| granted.contains(&at.underlay)) {
                return Some(format!("{address} is at {}, which its domain has not", at.underlay));
            }
        } else if !matches!(vni.0, VNI | 5) {
            return Some(format!("a location of network {vni}"));
        }
    }
    None
}

fn has_subnet(core: &Core, of: &Label) -> bool {
    let mut all = fabric::resources(core.store(), Some(Kind::Subnet), Some(&label(RED)));
    all.any(
        |stored| matches!(&stored.resource, Resource::Subnet(subnet) if subnet.domain.as_ref() == Some(of)),
    )
}

/// What keeps `domain` from knowing all that the honest `other` has, and no more.
pub fn unsettled(domain: &Domain, other: &Domain) -> Option<String> {
    let (here, there) = (domain.truth(), other.truth());
    let shared = has_subnet(here, &other.name) && has_subnet(there, &domain.name);
    let wanted: BTreeMap<IpAddr, IpAddr> = placed(there, RED)
        .into_iter()
        .filter(|_| shared)
        .map(|(address, host)| (address, at_host(&other.name, &host)))
        .collect();
    let known: BTreeMap<IpAddr, IpAddr> = locations(here)
        .into_iter()
        .filter(|((vni, address), _)| *vni == Vni(VNI) && subnet_owner(*address) == number(&other.name))
        .map(|((_, address), at)| (address, at.underlay))
        .collect();
    if wanted != known {
        return Some(format!("{} has {wanted:?} and {} knows {known:?}", other.name, domain.name));
    }
    let controllers = query::record(here.store(), &other.name).map(|record| record.controllers);
    if controllers != Some(other.list()) {
        return Some(format!("{} knows other controllers of {}: {controllers:?}", domain.name, other.name));
    }
    let lane = query::told_domain(there.store(), &domain.name)?;
    if lane.acked != lane.last {
        return Some(format!("{} does not know that {} has all: {lane:?}", other.name, domain.name));
    }
    let missing: Vec<u64> = other
        .must_be_taken(&domain.name)
        .into_iter()
        .filter(|number| !domain.taking.has(&other.name, *number))
        .collect();
    (!missing.is_empty()).then(|| format!("{} never took {missing:?} of {}", domain.name, other.name))
}
