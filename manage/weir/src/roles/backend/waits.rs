//! What the updates of a plan wait for, as the scheduler carries it out: beside what the plan itself says, a port waits for the
//! one whose address or device it takes, and one that goes does not wait for an address that stays at its host.

use super::names::Names;
use std::collections::HashMap;
use std::net::IpAddr;
use weir_apps::fabric;
use weir_model::entry::{PortEntry, Vni};
use weir_model::update::Reason;
use weir_model::{Change, Entry, Key, Label, Plan, PlannedUpdate};
use weir_store::Store;

/// What one port of a host at a time can have.
#[derive(PartialEq, Eq, Hash)]
enum Claim {
    Address(Vni, IpAddr),
    Device(Option<String>, String),
}

fn claims(vni: Vni, port: &PortEntry) -> Vec<Claim> {
    let addresses = port.addresses.iter().map(|address| Claim::Address(vni, *address));
    addresses.chain([Claim::Device(port.netns.clone(), port.device.clone())]).collect()
}

/// See the module.
pub(super) struct Waits<'p> {
    /// Hosts of the locations that the plan puts.
    locations: HashMap<(&'p Label, &'p Key), &'p Label>,
    /// Who has what, of the ports that the plan changes.
    holders: HashMap<(&'p Label, Claim), Vec<&'p PlannedUpdate>>,
}

impl<'p> Waits<'p> {
    pub(super) fn of(store: &Store, plan: &'p Plan) -> Waits<'p> {
        let mut waits = Waits { locations: HashMap::new(), holders: HashMap::new() };
        for planned in &plan.updates {
            let (target, key) = (&planned.update.target, &planned.update.key);
            match (key, &planned.update.change) {
                (_, Change::Put(Entry::Location(location))) => {
                    waits.locations.insert((target, key), &location.host);
                }
                (Key::Port { vni, .. }, _) => {
                    if let Some((_, Some(Entry::Port(had)))) = fabric::desired_entry(store, target, key) {
                        for claim in claims(*vni, &had) {
                            waits.holders.entry((target, claim)).or_default().push(planned);
                        }
                    }
                }
                _ => {}
            }
        }
        waits
    }

    /// What an update waits for, in words.
    pub(super) fn of_update(&self, planned: &PlannedUpdate, names: &Names<'_>) -> Vec<String> {
        let (at, key) = (&planned.update.target, &planned.update.key);
        let comes_back =
            |target: &Label, key: &Key| self.locations.get(&(target, key)).is_some_and(|host| *host == at);
        let counts = planned.after.iter().filter(|after| {
            after.reason != Reason::LocationGoneBeforePort || !comes_back(&after.target, &after.key)
        });
        let say =
            |key: &Key, target: &Label, reason: Reason| format!("{} at {target}: {reason}", names.key(key));
        let mut waits: Vec<String> =
            counts.map(|after| say(&after.key, &after.target, after.reason)).collect();
        let (Key::Port { vni, .. }, Change::Put(Entry::Port(wanted))) = (key, &planned.update.change) else {
            return waits;
        };
        for claim in claims(*vni, wanted) {
            for other in self.holders.get(&(at, claim)).into_iter().flatten() {
                let other = &other.update;
                let goes_first = other.change == Change::Delete || other.key < *key;
                if other.key != *key && goes_first {
                    waits.push(say(&other.key, at, Reason::PortLetsGo));
                }
            }
        }
        waits.dedup();
        waits
    }
}
