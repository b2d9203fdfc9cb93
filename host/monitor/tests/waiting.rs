//! What tests wait for, and ask a guest: what benches have no use for.

use crate::cage::{Cage, Watched, until};
use crate::vm::Vm;
use std::collections::BTreeMap;
use weir_monitor::audit::{Alarm, Entry, GuestAlarm, What};
use weir_monitor::status::GuestRow;

impl Cage {
    /// Waits until `count` processes are inside.
    pub fn wait_for(&self, count: usize) {
        until("processes in the cage", || self.processes().len() >= count);
    }
}

impl Watched {
    /// Waits for an entry.
    pub fn wait_for(&self, what: &str, mut wanted: impl FnMut(&Entry) -> bool) -> Entry {
        let mut found = None;
        until(what, || {
            found = self.monitor.recent().into_iter().find(&mut wanted);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits for an alarm of a policy.
    pub fn wait_for_alarm(&self, policy: &str) -> Alarm {
        let entry = self.wait_for("an alarm", |entry| {
            entry.policy.as_deref() == Some(policy) && matches!(entry.what, What::Alarm(_))
        });
        let What::Alarm(alarm) = entry.what else { unreachable!("it was asked for") };
        *alarm
    }

    /// The alarms about guests, in order.
    pub fn guest_alarms(&self) -> Vec<GuestAlarm> {
        let recent = self.monitor.recent().into_iter();
        recent
            .filter_map(|entry| match entry.what {
                What::Guest(alarm) => Some(alarm),
                _ => None,
            })
            .collect()
    }

    /// The guest of the first policy.
    pub fn guest(&self) -> GuestRow {
        self.monitor.status().guests[0].clone()
    }
}

/// A process as its guest lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its parent.
    pub parent: u32,
    /// Its program.
    pub program: String,
}

impl Vm {
    /// An empty line on its console: an interrupt.
    pub fn type_line(&mut self) {
        self.say("");
    }

    /// The processes as the guest itself sees them.
    pub fn processes(&mut self) -> BTreeMap<u32, Listed> {
        self.console.lock().unwrap().clear();
        self.type_line();
        let mut listed = None;
        until("the guest's own list", || {
            let console = self.console.lock().unwrap();
            let list = console.split("LIST\n").nth(1).and_then(|rest| rest.split_once("END"));
            listed = list.map(|(list, _)| list.lines().filter_map(parse).collect());
            listed.is_some()
        });
        listed.unwrap()
    }
}

/// A line of `/proc/PID/stat`: number, program in parentheses, state, parent.
fn parse(line: &str) -> Option<(u32, Listed)> {
    let (process, rest) = line.split_once(" (")?;
    let (program, rest) = rest.rsplit_once(") ")?;
    let parent = rest.split(' ').nth(1)?.parse().ok()?;
    Some((process.trim().parse().ok()?, Listed { parent, program: program.into() }))
}
