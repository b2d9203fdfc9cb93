//! Where an endpoint cannot have a port: on a host that has not joined, or on what is there and has no ports of endpoints. Such an
//! endpoint waits, as it may be ordered before its host; whoever orders it or looks at it is told.

use weir_apps::fabric;
use weir_model::Label;
use weir_model::event::Role;
use weir_store::Store;

/// Why an endpoint has no port at a host with this role; `None` as role: no such host has joined.
pub fn problem(host: &str, role: Option<Role>) -> Option<String> {
    match role {
        Some(Role::Host) => None,
        Some(Role::Planes) => {
            Some(format!("host '{host}' has no switch: it joined with --no-switch, for planes alone"))
        }
        Some(Role::Gateway) => Some(format!("'{host}' is a gateway, and endpoints are on hosts")),
        None => Some(format!("no host '{host}' has joined")),
    }
}

/// As [`problem`], of a host by what the store knows of it.
pub fn problem_at(store: &Store, host: &Label) -> Option<String> {
    problem(host.as_str(), fabric::actuator(store, host).map(|known| known.facts.role))
}
