//! Who sent how much to whom in a window of time: what the controller decides on which pairs to program
//! directly (row A11).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use weir_model::Label;
use weir_model::entry::Vni;
use weir_model::event::{TurnUse, USAGE_FLOWS_MAX, USAGE_TURNS_MAX, Usage, UsageReport};

/// Destinations of one window; later ones are counted and left out.
pub const DESTINATIONS_MAX: usize = 65_536;

/// Turns that were used are told once in so many windows: the controllers keep one for some minutes.
pub const TURN_WINDOWS: u32 = 5;

/// A silent host that holds locations or turns tells so after as many silent windows.
pub const SILENT_WINDOWS_MAX: u32 = 30;

/// The window that is open.
pub struct UsageWindow {
    actuator: Label,
    bytes: HashMap<(u32, IpAddr, bool), u64>,
    /// Flows left out because there were too many destinations.
    pub left_out: u64,
    said: bool,
    /// Silent windows since the last report.
    silent: u32,
    /// Turns that were used and not told of.
    turns: BTreeSet<TurnUse>,
    /// Windows since turns were told of.
    turn_windows: u32,
}

impl UsageWindow {
    /// For a host.
    pub fn new(actuator: Label) -> UsageWindow {
        UsageWindow {
            actuator,
            bytes: HashMap::new(),
            left_out: 0,
            said: false,
            silent: 0,
            turns: BTreeSet::new(),
            turn_windows: 0,
        }
    }

    /// Adds what a flow carried; zero says that it is there.
    pub fn add(&mut self, vni: u32, destination: IpAddr, by_gateway: bool, bytes: u64) {
        let key = (vni, destination, by_gateway);
        if self.bytes.len() >= DESTINATIONS_MAX && !self.bytes.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        *self.bytes.entry(key).or_default() += bytes;
    }

    /// Notes that a turn is in use.
    pub fn use_turn(&mut self, turn: TurnUse) {
        if self.turns.len() < USAGE_TURNS_MAX {
            self.turns.insert(turn);
        } else if !self.turns.contains(&turn) {
            self.left_out += 1;
        }
    }

    /// Ends the window. Two silent windows in a row give one report, and where locations are held every
    /// [`SILENT_WINDOWS_MAX`]th one: only when it hears that nothing is used does the controller take them back.
    pub fn close(&mut self, window_ms: u32, holds_locations: bool) -> Option<UsageReport> {
        self.turn_windows += 1;
        let tells_turns = !self.turns.is_empty() && self.turn_windows >= TURN_WINDOWS;
        let says = !self.bytes.is_empty() || tells_turns;
        if !says && !self.said {
            self.silent += 1;
            if !holds_locations || self.silent < SILENT_WINDOWS_MAX {
                return None;
            }
        }
        (self.said, self.silent) = (says, 0);
        let (mut through_gateway, mut direct) = (Vec::new(), Vec::new());
        for ((vni, address, by_gateway), bytes) in self.bytes.drain() {
            let usage = Usage { vni: Vni(vni), address, bytes };
            if !by_gateway {
                direct.push(usage);
            } else if bytes > 0 {
                through_gateway.push(usage);
            }
        }
        for list in [&mut through_gateway, &mut direct] {
            list.sort_unstable_by_key(|usage| (std::cmp::Reverse(usage.bytes), usage.vni, usage.address));
            list.truncate(USAGE_FLOWS_MAX);
        }
        let mut turns = Vec::new();
        if tells_turns {
            turns = std::mem::take(&mut self.turns).into_iter().collect();
            self.turn_windows = 0;
        }
        Some(UsageReport { actuator: self.actuator.clone(), window_ms, through_gateway, direct, turns })
    }
}

#[cfg(test)]
mod tests;
