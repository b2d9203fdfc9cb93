//! Where packets go under fixed rules.

use crate::network::{Network, Switch};
use crate::policy::Action;

/// What becomes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    Dropped,
    /// No rule, or a link that does not carry.
    Lost,
    Looping,
}

/// The switches that packets pass, in order, each once, and what becomes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) path: Vec<Switch>,
    pub(super) fate: Fate,
}

/// Follows packets from a switch on.
pub(super) fn walk(network: &Network, start: Switch, rule: impl Fn(Switch) -> Option<Action>) -> Walk {
    let mut path = vec![start];
    let mut at = start;
    let fate = loop {
        match rule(at) {
            None => break Fate::Lost,
            Some(Action::Deliver) => break Fate::Delivered,
            Some(Action::Drop) => break Fate::Dropped,
            Some(Action::Forward(next)) => {
                if !network.carries(at, next) {
                    break Fate::Lost;
                }
                // Paths are short, so looking back costs less than a set.
                if path.contains(&next) {
                    break Fate::Looping;
                }
                path.push(next);
                at = next;
            }
        }
    };
    Walk { path, fate }
}
