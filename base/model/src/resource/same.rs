//! When two resources say the same: what is a set may stand in any order.

use super::{Peer, Resource};
use serde_json::Value;
use std::collections::BTreeSet;

impl Resource {
    /// Whether the other one asks for the same.
    pub fn says_the_same(&self, other: &Resource) -> bool {
        self.in_order() == other.in_order()
    }

    /// The resource with its sets in order: addresses, tags, ports, peers and targets. The members of a balancer take turns
    /// as they stand, and name servers are asked as they stand.
    fn in_order(&self) -> Resource {
        let mut sorted = self.clone();
        match &mut sorted {
            Resource::Endpoint(endpoint) => {
                endpoint.addresses.sort_unstable();
                endpoint.tags.sort_unstable();
            }
            Resource::FirewallRule(rule) => {
                rule.ports.sort_unstable_by_key(|range| (range.first, range.last));
                rule.targets.sort_unstable();
                rule.peers.sort_unstable_by_key(|peer| match peer {
                    Peer::Prefix(net) => (0, net.to_string()),
                    Peer::Tag(tag) => (1, tag.to_string()),
                });
            }
            Resource::Balancer(balancer) => {
                balancer
                    .services
                    .sort_unstable_by_key(|service| (service.port, service.protocol.to_string()));
            }
            Resource::Network(_) | Resource::Subnet(_) | Resource::Route(_) => {}
        }
        sorted
    }

    /// The fields in which another resource of this id differs: path, value here, value there; absent where there is none.
    pub fn differences(&self, other: &Resource) -> Vec<(String, Option<Value>, Option<Value>)> {
        let [here, there] = [self, other].map(|one| serde_json::to_value(one.in_order()).unwrap_or_default());
        let mut found = Vec::new();
        compare(String::new(), Some(&here), Some(&there), &mut found);
        found
    }
}

type Difference = (String, Option<Value>, Option<Value>);

/// Goes into objects; lists are told whole.
fn compare(path: String, here: Option<&Value>, there: Option<&Value>, found: &mut Vec<Difference>) {
    if here == there {
        return;
    }
    if let (Some(Value::Object(a)), Some(Value::Object(b))) = (here, there) {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for name in names {
            let inside = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            compare(inside, a.get(name), b.get(name), found);
        }
        return;
    }
    found.push((path, here.cloned(), there.cloned()));
}
