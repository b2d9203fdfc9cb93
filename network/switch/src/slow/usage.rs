//! Who sent how much to whom in a window of time: what the controller decides on which pairs to program
//! directly (row A11).

use std::collections::HashMap;
use std::net::IpAddr;
use weir_model::Label;
use weir_model::entry::Vni;
use weir_model::event::{USAGE_FLOWS_MAX, Usage, UsageReport};

/// Destinations of one window; later ones are counted and left out.
pub const DESTINATIONS_MAX: usize = 65_536;

/// A silent host that holds locations tells so after as many silent windows.
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
}

impl UsageWindow {
    /// For a host.
    pub fn new(actuator: Label) -> UsageWindow {
        UsageWindow { actuator, bytes: HashMap::new(), left_out: 0, said: false, silent: 0 }
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

    /// Ends the window. Two silent windows in a row give one report, and where locations are held every
    /// [`SILENT_WINDOWS_MAX`]th one: only when it hears that nothing is used does the controller take them back.
    pub fn close(&mut self, window_ms: u32, holds_locations: bool) -> Option<UsageReport> {
        let says = !self.bytes.is_empty();
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
        Some(UsageReport { actuator: self.actuator.clone(), window_ms, through_gateway, direct })
    }
}

#[cfg(test)]
mod tests;
