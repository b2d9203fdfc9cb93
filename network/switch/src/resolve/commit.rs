//! Making a decision true: counters, connections, and the flows for the engine.

use super::TableResolver;
use super::decision::{Arrival, Budget, Cause, Decision, Forward, Install, Track};
use super::hops::DROP_IDLE_MS;
use super::perform;
use crate::conntrack::{Binding, Connection, ConnectionId, Sides, Way};
use crate::counters::Reason;
use crate::flow::{
    Action, CounterIndex, Hangs, Hop, Ingress, MissReason, NO_CONNECTION, Outcome, Resolution,
};
use weir_model::resource::{Action as RuleAction, Direction};
use weir_packet::key::FlowKey;

fn outcome(outcome: Outcome) -> Resolution {
    Resolution { install: Vec::new(), outcome }
}

pub(super) fn drop_action(counter: CounterIndex) -> Action {
    Action {
        hop: Hop::Drop,
        ethernet: None,
        nat: None,
        routed: false,
        mtu: u16::MAX,
        mss_max: 0,
        counter,
        connection: NO_CONNECTION,
        idle_ms: DROP_IDLE_MS,
        hangs: Hangs::default(),
    }
}

/// A key as it is installed: the ingress tells the zone.
fn zoneless(key: &FlowKey) -> FlowKey {
    FlowKey { zone: 0, ..*key }
}

impl TableResolver {
    pub(super) fn commit(&mut self, at: &Arrival<'_>, decision: Decision) -> Resolution {
        match decision {
            Decision::Forward(forward) => self.commit_forward(at, *forward),
            Decision::Send { hop, frame, cause } => {
                let counter = self.counter(&cause);
                self.counters.count(counter, 1);
                outcome(Outcome::Forward { hop, frame })
            }
            Decision::Answer { service, frame, budget, cause, install } => {
                if !self.take_budget(at.now_ms, budget) {
                    let cause = cause.unwrap_or(Cause::Reason(Reason::IcmpLimited));
                    return self.commit_drop(at, cause, install, None);
                }
                self.counters.count(self.answer_counters[service as usize], 1);
                let mut resolution = match cause {
                    Some(cause) => self.commit_drop(at, cause, install, None),
                    None => outcome(Outcome::Drop),
                };
                if resolution.outcome == Outcome::Reinject {
                    // The frame is answered, so the flow that drops the next ones does not see it.
                    if let Some((_, _, action)) = resolution.install.first() {
                        self.counters.count(action.counter, 1);
                    }
                }
                resolution.outcome = Outcome::Answer(frame);
                resolution
            }
            Decision::Punt(service) => {
                self.counters.count(self.answer_counters[service as usize], 1);
                outcome(Outcome::Punt)
            }
            Decision::Ask(about) => match self.asked(at, about) {
                Some(asked) => outcome(Outcome::Ask(Box::new(asked))),
                None => {
                    self.commit_drop(at, Cause::Reason(Reason::UnknownDestination), Install::Nothing, None)
                }
            },
            Decision::Drop { cause, install, revoke } => self.commit_drop(at, cause, install, revoke),
        }
    }

    fn commit_drop(
        &mut self,
        at: &Arrival<'_>,
        cause: Cause,
        install: Install,
        revoke: Option<ConnectionId>,
    ) -> Resolution {
        let counter = self.counter(&cause);
        if let Some(id) = revoke {
            let generation = self.tables.network(at.key.zone).map_or(0, |network| network.generation);
            self.connections.revoke(at.now_ms, id, generation, counter);
        }
        if !at.may_install() || install == Install::Nothing || !self.remember_denied(at, install) {
            self.counters.count(counter, 1);
            return outcome(Outcome::Drop);
        }
        let mut action = self.drop_flow(at, &cause);
        if let Some(id) = revoke {
            // As long as it tries, it stays revoked.
            action.connection = id.number(Way::Opener);
        }
        let flow = (*at.ingress, zoneless(&at.key), action);
        Resolution { install: vec![flow], outcome: Outcome::Reinject }
    }

    /// Whether a denied flow may be in the flow table: it must be remembered, for a connection that is
    /// opened the other way must find it.
    pub(super) fn remember_denied(&mut self, at: &Arrival<'_>, install: Install) -> bool {
        let (Install::Denied, Ingress::Underlay { sender, vni, half, .. }) = (install, at.ingress) else {
            return true;
        };
        let Some(network) = self.tables.network_mut(*vni) else { return false };
        let sender = (*sender, *half);
        if network.can_deny(&at.key, sender) {
            network.deny(at.key, sender);
            true
        } else {
            network.denied_full = true;
            false
        }
    }

    fn commit_forward(&mut self, at: &Arrival<'_>, forward: Forward) -> Resolution {
        let Forward { mut action, cause, track, reverse, revoke } = forward;
        if let Some(id) = revoke {
            self.connections.remove(id);
        }
        let counter = self.counter(&cause);
        let flags = at.parsed.tcp_flags;
        let tracked = match track {
            Track::Untracked | Track::BothWays | Track::Alone => None,
            Track::Known { id, way, judged, .. } => {
                if let Some((generation, sides)) = judged {
                    self.connections.judged(id, generation, sides, counter);
                }
                self.connections.touch(at.now_ms, id, way, flags);
                if way == Way::Reply
                    && matches!(at.ingress, Ingress::Port(_))
                    && matches!(action.hop, Hop::Underlay { half, .. } if half.opens())
                {
                    self.connections.told(id);
                }
                Some((id, way))
            }
            Track::New { sides, binding } => {
                let opened = self.open(at, (at.key, false), (sides, binding), counter);
                let id = match opened {
                    Ok(id) => id,
                    Err(reason) => {
                        return self.commit_drop(at, Cause::Reason(reason), Install::Nothing, None);
                    }
                };
                self.connections.touch(at.now_ms, id, Way::Opener, flags);
                Some((id, Way::Opener))
            }
            Track::Resumed { sides } => {
                // The opener is here, and only who replies remembers it.
                match self.open(at, (at.key.reverse(), true), (sides, None), counter) {
                    Ok(id) => {
                        self.connections.touch(at.now_ms, id, Way::Reply, flags);
                        Some((id, Way::Reply))
                    }
                    Err(reason) => {
                        return self.commit_drop(at, Cause::Reason(reason), Install::Nothing, None);
                    }
                }
            }
        };
        let number = |way: Option<(ConnectionId, Way)>| way.map_or(NO_CONNECTION, |(id, way)| id.number(way));
        action.counter = counter;
        action.connection = number(tracked);
        let back = tracked.map(|(id, way)| (id, if way == Way::Opener { Way::Reply } else { Way::Opener }));
        if let Some(network) = self.tables.network_mut(at.key.zone) {
            reverse.iter().for_each(|(_, key, _)| network.forgive(key));
        }
        if at.reason == MissReason::Special {
            // The flow table is not for it: put back, it would come here again.
            self.counters.count(counter, 1);
            return match perform::perform(at.frame, &action) {
                Some(frame) => outcome(Outcome::Forward { hop: action.hop, frame }),
                None => outcome(Outcome::Drop),
            };
        }
        let flow = (*at.ingress, zoneless(&at.key), self.hanging(&at.key, action));
        let reverse = reverse.into_iter().map(|(ingress, key, action)| {
            let action = Action { counter, connection: number(back), ..action };
            (ingress, zoneless(&key), self.hanging(&key, action))
        });
        Resolution { install: std::iter::once(flow).chain(reverse).collect(), outcome: Outcome::Reinject }
    }

    /// Opens a connection under a key, or has one go on that its replies tell of.
    fn open(
        &mut self,
        at: &Arrival<'_>,
        (key, resumed): (FlowKey, bool),
        (sides, binding): (Sides, Option<Binding>),
        counter: CounterIndex,
    ) -> Result<ConnectionId, Reason> {
        let network = self.tables.network(key.zone).ok_or(Reason::UnknownNetwork)?;
        let owner = self.owner(network, &key);
        let mut connection = Connection::new(key, network.generation, sides, counter, owner);
        connection.binding = binding;
        // Its sender's host takes it for a reply, and goes on doing so.
        let untold = !resumed && sides.ingress.is_some() && at.half().remembers();
        let connection = match (resumed, untold) {
            (true, _) => connection.resumed(),
            (false, true) => connection.untold(),
            (false, false) => connection,
        };
        self.connections.open(at.now_ms, connection).ok_or(Reason::ConnectionsFull)
    }

    fn take_budget(&mut self, now_ms: u64, budget: Budget) -> bool {
        let bucket = match budget {
            Budget::Free => return true,
            Budget::Port(index) => self.tables.port_mut(index).map(|port| &mut port.bucket),
            Budget::Network(vni) => self.tables.network_mut(vni).map(|network| &mut network.bucket),
            Budget::External => Some(&mut self.external_bucket),
        };
        let Some(bucket) = bucket.filter(|bucket| bucket.has(now_ms)) else { return false };
        bucket.take(now_ms);
        true
    }

    /// The counter of what decided, a new one if it decides for the first time.
    pub(super) fn counter(&mut self, cause: &Cause) -> CounterIndex {
        match *cause {
            Cause::Reason(reason) => self.counters.reason(reason),
            Cause::Malformed(error) => self.counters.malformed(error),
            Cause::Counter(counter) => counter,
            Cause::Path(path) => self.path_counters[path as usize],
            Cause::Rule { vni, direction, rule } => self.rule_counter(vni, direction, Some(rule)),
            Cause::Default { vni, direction } => self.rule_counter(vni, direction, None),
            Cause::Route { vni, prefix } => {
                let network = self.tables.network(vni);
                let name = network.map(network_label).unwrap_or_default();
                let route = network.and_then(|network| network.route(prefix)).map(|r| r.name.to_string());
                let route = route.unwrap_or_default();
                self.counters.register("drops", &[("reason", "route"), ("network", &name), ("route", &route)])
            }
        }
    }

    fn rule_counter(&mut self, vni: u32, direction: Direction, rule: Option<u32>) -> CounterIndex {
        let overflow = self.counters.reason(Reason::CounterOverflow);
        let Some(network) = self.tables.network_mut(vni) else { return overflow };
        let label = network_label(network);
        let Some(policy) = network.policy.as_mut() else { return overflow };
        let rules = policy.rules_mut(direction);
        let (slot, action, name) = match rule {
            Some(rule) => {
                let Some(rule) = rules.list.get_mut(rule as usize) else { return overflow };
                let action = rule.action();
                (&mut rule.counter, action, Some(rule.name.as_str()))
            }
            None => (&mut rules.default_counter, rules.default, None),
        };
        if let Some(counter) = *slot {
            return counter;
        }
        let way = if direction == Direction::Ingress { "ingress" } else { "egress" };
        let counters = &mut self.counters;
        let counter = match (action, name) {
            (RuleAction::Deny, Some(name)) => {
                counters.register("drops", &[("reason", "rule"), ("network", &label), ("rule", name)])
            }
            (RuleAction::Deny, None) => counters
                .register("drops", &[("reason", "default-deny"), ("network", &label), ("direction", way)]),
            (RuleAction::Allow, Some(name)) => {
                counters.register("passed", &[("network", &label), ("rule", name)])
            }
            (RuleAction::Allow, None) => {
                counters.register("passed", &[("network", &label), ("default", way)])
            }
        };
        *slot = Some(counter);
        counter
    }
}

/// Name of a network for labels; its identifier while its parameters are not here.
pub(super) fn network_label(network: &crate::tables::network::Network) -> String {
    network.entry.as_ref().map_or_else(|| network.vni.to_string(), |entry| entry.name.to_string())
}
