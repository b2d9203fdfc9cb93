//! Keeping a culprit's tree from growing while it is killed, by the first of these that there is a way for:
//! 1. the policy's cgroup is frozen;
//! 2. the cgroup is frozen in which most of the tree is, unless the monitor is in it, too, or it is the root;
//! 3. the tree is doomed in the kernel: who of it forks is killed by that, and the child is doomed before it runs;
//! 4. it is stopped process by process, until a round finds no new one: a race, which a bomb on many processors wins.

use super::Engine;
use super::innocent::Blamed;
use super::repair::ROUNDS_MAX;
use crate::controls::{Controls, PATH_BYTES};
use crate::incident::Incident;
use crate::tree::{DOOMED, KILLED, Place, STOPPED};
use rustix::process::Signal;
use std::time::Duration;
use weir_sensor::now_ns;

/// So many of a tree are asked for their cgroup, because some end meanwhile.
const ASKED_MAX: usize = 64;
/// Most rounds of dooming a tree that goes on forking: each takes microseconds, and doubles nothing.
const DOOM_ROUNDS_MAX: u32 = 256;

impl Engine {
    pub(super) fn freeze(&mut self, at: usize, incident: &mut Incident, how: fn(&Controls) -> bool) {
        incident.frozen = self.controls(at).is_some_and(how);
        incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
        self.gather();
    }

    /// Keeps a culprit's tree from growing.
    pub(super) fn halt(&mut self, at: usize, blamed: Blamed, incident: &mut Incident) {
        if self.controls(at).is_some_and(Controls::can_freeze) {
            self.freeze(at, incident, Controls::freeze_briefly);
            // Else it is gone, or another of the same name is there by now.
            if incident.frozen {
                return;
            }
        }
        if self.freeze_borrowed(at, blamed, incident) {
            return;
        }
        if self.doom(at, blamed) {
            incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
            return;
        }
        for _ in 0..ROUNDS_MAX {
            self.collect(at, blamed.place, blamed.extent);
            if self.signal_members(Signal::STOP, STOPPED) == 0 {
                break;
            }
            self.stopped = true;
            // A fork that was under way ends, and is told.
            std::thread::sleep(Duration::from_micros(200));
            self.gather();
        }
        incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
    }

    /// Freezes the cgroup in which most of a culprit's tree is. Returns whether all of the tree is there.
    fn freeze_borrowed(&mut self, at: usize, blamed: Blamed, incident: &mut Incident) -> bool {
        self.collect(at, blamed.place, blamed.extent);
        let Some(controls) = self.find_controls() else { return false };
        let cgroup = controls.cgroup;
        incident.frozen = controls.freeze_briefly();
        incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
        self.armed[at].borrowed = Some(controls);
        self.gather();
        self.collect(at, blamed.place, blamed.extent);
        let tree = &self.tree;
        let there = |place: Place| tree.get(place).is_none_or(|node| node.cgroup == cgroup);
        incident.frozen && self.members.iter().all(|(place, _)| there(*place))
    }

    /// The controls of the cgroup in which most of the members are, if it may be frozen.
    fn find_controls(&self) -> Option<Controls> {
        let mount = self.cgroups.as_ref()?;
        let cgroup_of = |place: Place| self.tree.get(place).map_or(0, |node| node.cgroup);
        // The only one that can be that of more than half.
        let (mut most, mut lead) = (0, 0_usize);
        for cgroup in self.members.iter().map(|(place, _)| cgroup_of(*place)) {
            if lead == 0 {
                most = cgroup;
            }
            lead = if cgroup == most { lead + 1 } else { lead - 1 };
        }
        for (_, process) in self.members.iter().filter(|(place, _)| cgroup_of(*place) == most).take(ASKED_MAX)
        {
            let mut buffer = [0; PATH_BYTES];
            let path = self.proc.cgroup_path(*process, &mut buffer);
            if let Some(controls) = path.and_then(|path| Controls::borrow(mount, path)) {
                return (!self.own_cgroups.contains(&controls.cgroup)).then_some(controls);
            }
        }
        None
    }

    /// Dooms a culprit's tree in the kernel, so that its forks come to nothing, until a round finds no new process. Returns whether there
    /// is a way to do that.
    fn doom(&mut self, at: usize, blamed: Blamed) -> bool {
        for _ in 0..DOOM_ROUNDS_MAX {
            self.collect(at, blamed.place, blamed.extent);
            let mut more = 0;
            for (place, process) in &self.members {
                let fresh = self.tree.get(*place).is_some_and(|node| node.signals & DOOMED == 0);
                if fresh {
                    if !self.kernel.doom(*process) {
                        return false;
                    }
                    self.tree.mark(*place, DOOMED, true);
                    more += 1;
                }
            }
            self.take_events();
            // A number that became free meanwhile is another's soon.
            for (place, process) in &self.members {
                if self.tree.get(*place).is_none_or(|node| !node.alive || node.process != *process) {
                    self.kernel.pardon(*process);
                }
            }
            if more == 0 {
                break;
            }
            self.doomed = true;
        }
        true
    }

    /// Who was doomed and is not killed after all goes on.
    fn pardon(&mut self) {
        if !std::mem::take(&mut self.doomed) {
            return;
        }
        let kernel = &self.kernel;
        self.tree.unmark_all(DOOMED, |node| {
            if node.signals & KILLED == 0 {
                kernel.pardon(node.process);
            }
        });
    }

    /// Who was stopped or doomed and is not killed after all goes on.
    pub(super) fn release_halted(&mut self) {
        self.pardon();
        if !std::mem::take(&mut self.stopped) {
            return;
        }
        let members = &mut self.members;
        members.clear();
        self.tree.for_each_living(|place, node| {
            if node.signals & (STOPPED | KILLED) == STOPPED && members.len() < members.capacity() {
                members.push((place, node.process));
            }
        });
        for at in 0..self.members.len() {
            let (place, _) = self.members[at];
            self.tree.mark(place, STOPPED, false);
        }
        self.signal_members(Signal::CONT, 0);
    }
}
