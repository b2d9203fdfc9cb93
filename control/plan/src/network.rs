//! Switches, and links between them with capacities.

use std::collections::BTreeMap;
use std::fmt;

/// A switch, by its number in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Switch(pub u32);

/// One direction between two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Where packets come from.
    pub from: Switch,
    /// Where they go.
    pub to: Switch,
}

/// What is known of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// How much it carries, kbit/s; nothing when that does not matter.
    pub capacity_kbps: Option<u64>,
    /// Whether it carries anything.
    pub up: bool,
}

/// A network. Numbers of switches are places in the list of names.
#[derive(Clone, Debug, Default)]
pub struct Network {
    names: Vec<String>,
    links: BTreeMap<Link, LinkState>,
}

impl Network {
    /// Adds a switch.
    pub fn add_switch(&mut self, name: impl Into<String>) -> Switch {
        self.names.push(name.into());
        Switch(self.names.len() as u32 - 1)
    }

    /// Adds a link in both directions, or changes it.
    ///
    /// # Panics
    /// When an end is no switch of this network.
    pub fn add_link(&mut self, one: Switch, other: Switch, capacity_kbps: Option<u64>) {
        self.set_link(one, other, LinkState { capacity_kbps, up: true });
    }

    /// Sets both directions of a link.
    ///
    /// # Panics
    /// When an end is no switch of this network.
    pub fn set_link(&mut self, one: Switch, other: Switch, state: LinkState) {
        assert!(self.has(one) && self.has(other), "a link has two switches of the network");
        self.links.insert(Link { from: one, to: other }, state);
        self.links.insert(Link { from: other, to: one }, state);
    }

    /// Marks both directions of a link as failed.
    pub fn fail_link(&mut self, one: Switch, other: Switch) {
        for link in [Link { from: one, to: other }, Link { from: other, to: one }] {
            if let Some(state) = self.links.get_mut(&link) {
                state.up = false;
            }
        }
    }

    /// Whether the switch is of this network.
    pub fn has(&self, switch: Switch) -> bool {
        (switch.0 as usize) < self.names.len()
    }

    /// All switches.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = Switch> + use<> {
        (0..self.names.len() as u32).map(Switch)
    }

    /// All links, each direction apart.
    pub fn links(&self) -> impl Iterator<Item = (Link, LinkState)> {
        self.links.iter().map(|(link, state)| (*link, *state))
    }

    /// What is known of a link; nothing when the two are no neighbours.
    pub fn link(&self, from: Switch, to: Switch) -> Option<LinkState> {
        self.links.get(&Link { from, to }).copied()
    }

    /// Whether packets get from one to the other.
    pub fn carries(&self, from: Switch, to: Switch) -> bool {
        self.link(from, to).is_some_and(|state| state.up)
    }

    /// A switch's neighbours over links that are up.
    pub fn neighbours(&self, switch: Switch) -> impl Iterator<Item = Switch> {
        let first = Link { from: switch, to: Switch(0) };
        let last = Link { from: switch, to: Switch(u32::MAX) };
        self.links.range(first..=last).filter(|(_, state)| state.up).map(|(link, _)| link.to)
    }

    /// The switch of this name.
    pub fn find(&self, name: &str) -> Option<Switch> {
        self.names.iter().position(|known| known == name).map(|at| Switch(at as u32))
    }

    /// The name of a switch.
    pub fn name(&self, switch: Switch) -> Name<'_> {
        Name(self, switch)
    }
}

/// A switch's name, for people.
#[derive(Clone, Copy)]
pub struct Name<'n>(&'n Network, Switch);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.names.get(self.1.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "switch {}", self.1.0),
        }
    }
}
