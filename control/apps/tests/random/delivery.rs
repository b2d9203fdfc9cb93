//! Switches, and a scheduler that releases an update when what it waits for is in force: in random
//! order, as slow as it likes.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_apps::fabric::{actuators, desired, desired_entry};
use weir_model::resource::Peer;
use weir_model::{Change, Entry, Key, Label, Plan, PlannedUpdate, Version};
use weir_store::Store;

type At = (Label, Key);

/// What is in force, and what is still to come.
pub(super) struct Switches {
    in_force: BTreeMap<At, (Version, Option<Entry>)>,
    pending: BTreeMap<At, PlannedUpdate>,
    /// Each plan is finished before the next; then the strict invariants must hold at each step.
    strict: bool,
}

impl Switches {
    pub(super) fn new(strict: bool) -> Switches {
        Switches { in_force: BTreeMap::new(), pending: BTreeMap::new(), strict }
    }

    /// A later update of a key replaces one that was not sent.
    pub(super) fn take(&mut self, plan: Plan) {
        for planned in plan.updates {
            let at = (planned.update.target.clone(), planned.update.key.clone());
            self.pending.insert(at, planned);
        }
    }

    pub(super) fn forget(&mut self, actuator: &Label) {
        self.in_force.retain(|(target, _), _| target != actuator);
        self.pending.retain(|(target, _), _| target != actuator);
    }

    pub(super) fn deliver(&mut self, store: &Store, rng: &mut ChaCha8Rng, rounds: usize) {
        if self.strict {
            self.drain(store, rng);
            return;
        }
        for _ in 0..rounds {
            self.deliver_one(store, rng);
        }
    }

    /// Everything arrives in the end, and is what the switches shall have.
    pub(super) fn drain(&mut self, store: &Store, rng: &mut ChaCha8Rng) {
        while self.deliver_one(store, rng) {}
        assert!(self.pending.is_empty(), "nobody sends what these wait for: {:#?}", self.pending);
        for status in actuators(store) {
            let name = status.facts.name;
            for (key, version, entry) in desired(store, &name) {
                assert_eq!(self.in_force.get(&(name.clone(), key)), Some(&(version, entry)));
            }
        }
    }

    fn deliver_one(&mut self, store: &Store, rng: &mut ChaCha8Rng) -> bool {
        let joined = |name: &Label| actuators(store).any(|status| status.facts.name == *name);
        let ready: Vec<At> = self
            .pending
            .iter()
            .filter(|(_, planned)| {
                planned.after.iter().all(|wait| {
                    let found = self.in_force.get(&(wait.target.clone(), wait.key.clone()));
                    found.is_some_and(|(version, _)| *version >= wait.version) || !joined(&wait.target)
                })
            })
            .map(|(at, _)| at.clone())
            .collect();
        if ready.is_empty() {
            return false;
        }
        let at = ready[rng.random_range(0..ready.len())].clone();
        let update = self.pending.remove(&at).unwrap().update;
        let entry = match update.change {
            Change::Put(entry) => Some(entry),
            Change::Delete => None,
        };
        if self.strict {
            self.check_members(store, &at, entry.as_ref());
        }
        let before = self.in_force.insert(at, (update.version, entry));
        assert!(before.is_none_or(|(version, _)| version < update.version));
        if self.strict {
            self.check(store);
        }
        true
    }

    fn get(&self, target: &Label, key: Key) -> Option<&(Version, Option<Entry>)> {
        self.in_force.get(&(target.clone(), key)).filter(|(_, entry)| entry.is_some())
    }

    /// Members of a tag are there while a policy in force selects by it.
    fn check_members(&self, store: &Store, at: &At, entry: Option<&Entry>) {
        match (&at.1, entry) {
            (Key::Policy { vni }, Some(policy)) => {
                for (key, ..) in desired(store, &at.0).filter(|(_, _, entry)| entry.is_some()) {
                    if let Key::Members { vni: of, tag, .. } = &key
                        && of == vni
                        && selects(policy, tag)
                    {
                        assert!(self.get(&at.0, key.clone()).is_some(), "{key} is late at {}", at.0);
                    }
                }
            }
            (Key::Members { vni, tag, .. }, None) => {
                let key = Key::Policy { vni: *vni };
                let wanted = desired_entry(store, &at.0, &key).and_then(|(_, entry)| entry);
                let emptied = wanted.is_some_and(|policy| selects(&policy, tag));
                if let Some((_, Some(policy))) = self.get(&at.0, key) {
                    assert!(emptied || !selects(policy, tag), "{} goes early at {}", at.1, at.0);
                }
            }
            _ => {}
        }
    }

    fn check(&self, store: &Store) {
        let joined: Vec<Label> = actuators(store).map(|status| status.facts.name).collect();
        for ((target, key), (version, entry)) in &self.in_force {
            match entry {
                Some(Entry::Port(port)) => {
                    let Some(vni) = key.vni() else { unreachable!() };
                    assert!(self.get(target, Key::Network { vni }).is_some(), "{key} has no network");
                    let policy = self.get(target, Key::Policy { vni });
                    assert!(
                        policy.is_some_and(|(version, _)| *version >= port.policy_min),
                        "{key} has no policy"
                    );
                }
                Some(Entry::Location(location)) if joined.contains(&location.host) => {
                    let Some(vni) = key.vni() else { unreachable!() };
                    let port = Key::Port { vni, endpoint: location.endpoint.clone() };
                    assert!(self.get(&location.host, port).is_some(), "{target} {key} leads to nobody");
                }
                Some(Entry::Gateways(gateways)) => {
                    for gateway in gateways.iter().filter(|gateway| joined.contains(&gateway.name)) {
                        assert!(
                            self.get(&gateway.name, Key::Gateways).is_some(),
                            "{} is not filled",
                            gateway.name
                        );
                    }
                }
                Some(Entry::Underlays(_)) => {
                    // What was decided later is told when it is.
                    let whole = desired(store, target).all(|(key, decided, entry)| {
                        !matches!(key, Key::Switches { .. })
                            || entry.is_none()
                            || decided > *version
                            || self.in_force.contains_key(&(target.clone(), key))
                    });
                    assert!(whole, "{target} has a list that counts and is not whole");
                }
                _ => {}
            }
        }
    }
}

fn selects(policy: &Entry, tag: &Label) -> bool {
    let Entry::Policy(policy) = policy else { return false };
    policy.rules.iter().flat_map(|rule| &rule.peers).any(|peer| *peer == Peer::Tag(tag.clone()))
}
