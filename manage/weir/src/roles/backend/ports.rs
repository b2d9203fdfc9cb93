//! Ports that carry no traffic: what hosts say of their devices.

use super::Controlled;
use crate::roles::placing;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_api::types::PortDown;
use weir_apps::fabric;
use weir_model::event::Role;
use weir_model::local::{Answer, PortStatus, Question};
use weir_model::resource::{Endpoint, Kind, PortState, Resource, ResourceId};
use weir_model::{Change, Entry, Key, Label, Plan};
use weir_store::Store;
use weir_switch::ports::vhost::session::awaits_guest;

/// Most hosts asked at once.
const ASKED_MAX: usize = 256;
/// How long hosts are asked in all; those beyond are not.
const ASK_BOUND: Duration = Duration::from_secs(3);
/// How long a host may take to say how its ports are.
const ANSWER_BOUND: Duration = Duration::from_secs(2);
/// Between two looks at the devices of a change.
const LOOK: Duration = Duration::from_millis(100);
/// Most endpoints told of one change.
const TOLD_MAX: usize = 100;

/// Endpoints that a plan gives a port, by host.
pub(super) type Placed = BTreeMap<Label, Vec<Key>>;

/// The devices that a plan has made: ports that are put and wanted up, whose device the host makes.
pub(super) fn placed(plan: &Plan) -> Placed {
    let mut placed = Placed::new();
    for planned in &plan.updates {
        if let Change::Put(Entry::Port(port)) = &planned.update.change
            && port.state == PortState::Up
            && port.kind.is_device()
        {
            placed.entry(planned.update.target.clone()).or_default().push(planned.update.key.clone());
        }
    }
    placed
}

fn named(status: &PortStatus) -> String {
    format!("{}/{}", status.name.network, status.name.endpoint)
}

impl Controlled {
    /// The ports of hosts; absent are those that did not answer, or were not asked for want of time.
    async fn ports_of(&self, hosts: Vec<Label>) -> BTreeMap<Label, Vec<PortStatus>> {
        let mut found = BTreeMap::new();
        let until = Instant::now() + ASK_BOUND;
        for some in hosts.chunks(ASKED_MAX) {
            if Instant::now() >= until {
                break;
            }
            let mut asked = JoinSet::new();
            for host in some.iter().cloned() {
                let handle = self.handle.clone();
                asked.spawn(async move {
                    let answer = tokio::time::timeout(ANSWER_BOUND, handle.ask(&host, Question::Ports)).await;
                    match answer {
                        Ok(Ok(Answer::Ports(ports))) => Some((host, ports)),
                        _ => None,
                    }
                });
            }
            while let Some(answer) = asked.join_next().await {
                found.extend(answer.ok().flatten());
            }
        }
        found
    }

    /// Ports that are wanted up and are not, by host.
    pub(super) async fn ports_down(&self, hosts: Vec<Label>) -> BTreeMap<Label, Vec<PortDown>> {
        let store = self.handle.published().store.clone();
        let wanted = |status: &PortStatus| {
            let id = ResourceId {
                kind: Kind::Endpoint,
                network: Some(status.name.network.clone()),
                name: status.name.endpoint.clone(),
            };
            let stored = fabric::resource(&store, &id).map(|stored| stored.resource);
            matches!(stored, Some(Resource::Endpoint(endpoint)) if is_missed(&endpoint, &status.reason))
        };
        let down = |ports: Vec<PortStatus>| {
            let down = ports.into_iter().filter(|status| !status.up && wanted(status));
            down.map(|status| PortDown { endpoint: named(&status), reason: status.reason }).collect()
        };
        self.ports_of(hosts).await.into_iter().map(|(host, ports)| (host, down(ports))).collect()
    }

    /// Waits for the devices of a change, and tells which are not there at the end.
    pub(super) async fn wait_for_devices(&self, placed: &Placed, until: Instant) -> Vec<String> {
        loop {
            let ports = self.ports_of(placed.keys().cloned().collect()).await;
            let mut missing = Vec::new();
            for (host, keys) in placed {
                let Some(ports) = ports.get(host) else {
                    missing.push(format!("{host} does not say how its ports are"));
                    continue;
                };
                let found = |key: &Key| ports.iter().find(|status| status.key == *key);
                let down = keys.iter().filter_map(|key| match found(key) {
                    Some(status) if status.up => None,
                    Some(status) => Some(format!("{} at {host}: {}", named(status), status.reason)),
                    // Another change has taken it away again.
                    None => None,
                });
                missing.extend(down);
            }
            if missing.is_empty() || Instant::now() >= until {
                let more = missing.len().saturating_sub(TOLD_MAX);
                missing.truncate(TOLD_MAX);
                missing.extend((more > 0).then(|| format!("… and {more} more")));
                return missing;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Endpoints that are placed where something has joined that has no ports of endpoints, by its name.
pub(super) fn without_switch(store: &Store) -> BTreeMap<Label, Vec<PortDown>> {
    let others = fabric::actuators(store).filter(|known| known.facts.role != Role::Host);
    let others: BTreeMap<Label, Role> = others.map(|known| (known.facts.name, known.facts.role)).collect();
    let mut down: BTreeMap<Label, Vec<PortDown>> = BTreeMap::new();
    if others.is_empty() {
        return down;
    }
    for stored in fabric::resources(store, Some(Kind::Endpoint), None) {
        let Resource::Endpoint(endpoint) = stored.resource else { continue };
        let Some(host) = endpoint.host.as_ref().filter(|_| endpoint.state == PortState::Up) else { continue };
        let problem = others.get(host).and_then(|role| placing::problem(host.as_str(), Some(*role)));
        let Some(reason) = problem else { continue };
        let endpoint = format!("{}/{}", endpoint.network, endpoint.name);
        down.entry(host.clone()).or_default().push(PortDown { endpoint, reason });
    }
    down
}

/// Whether a port that carries nothing for this reason should. A virtual machine comes and goes as it likes; one that is there and
/// cannot be served is told.
fn is_missed(endpoint: &Endpoint, reason: &str) -> bool {
    let is_device = endpoint.attachment.as_ref().is_none_or(|attachment| attachment.kind.is_device());
    endpoint.state == PortState::Up && (is_device || !awaits_guest(reason))
}
