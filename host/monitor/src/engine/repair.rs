//! Acting on an alarm: freeze, look again, kill the culprit's tree, thaw; then follow until it is gone (Bohra, 3.5.2).
//!
//! The freeze is the paper's remote lock of the target: nothing is born while the tree is being killed, and the killed do
//! not compete with the spinning. It is asked for and not waited for: from then on nobody forks, and to wait until the last of
//! 1,500 has run once, so as to stop, costs as much as to kill them. What was killed is hurried ([`crate::hurry`]). A policy that names
//! no cgroup has the one frozen in which most of the culprit's tree is ([`super::halt`]).

use super::innocent::{self, Blamed, Extent, is_manager, old_ns};
use super::{Armed, Engine};
use crate::controls::Controls;
use crate::hurry;
use crate::incident::{Incident, LISTED_MAX, Note, Outcome, Reason, Suspect};
use crate::kernel::Way;
use crate::policy::{Action, Policy};
use crate::tree::{Choice, ForkTree, KILLED, Node, Place, YOUNG_NS};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use weir_sensor::now_ns;

/// Most rounds of stopping, or killing, a tree that goes on forking.
pub(super) const ROUNDS_MAX: u32 = 16;
/// How long an incident is followed, ns.
pub const FOLLOW_NS_MAX: u64 = 5_000_000_000;

/// Processes that are held at once while they are signalled.
const HELD_MAX: usize = 64;

/// A culprit's tree, or a cgroup, that was killed and is not gone yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    place: Place,
    extent: Extent,
    /// The first of those that were killed.
    listed: [u32; LISTED_MAX],
    since_ns: u64,
    again: u32,
    action: Action,
}

/// Whether a process must never be touched, whatever the tree says.
fn is_protected(protected: &[u32], armed: &Armed, node: &Node) -> bool {
    const INIT: u32 = 1;
    const KERNEL_THREADS: u32 = 2;
    node.process == INIT
        || node.process == KERNEL_THREADS
        || protected.contains(&node.process)
        || armed.whitelist.holds(&node.comm)
}

/// A descriptor that stays with the process that has this number now, whoever has it later.
fn hold(process: u32) -> Option<OwnedFd> {
    // 0 and what is no positive number would mean groups of processes.
    let process = i32::try_from(process).ok().filter(|process| *process > 1).and_then(Pid::from_raw)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

/// The long window of a policy.
fn growth_window_ns(policy: &Policy) -> u64 {
    match policy {
        Policy::ForkBomb(bomb) => bomb.when.growth_window_ms.saturating_mul(1_000_000),
        _ => YOUNG_NS,
    }
}

fn suspect(tree: &ForkTree, place: Option<Place>) -> Suspect {
    place.and_then(|place| tree.get(place)).map_or(Suspect::default(), |node| Suspect {
        process: node.process,
        comm: node.comm,
        user: node.user,
        alive: node.alive,
    })
}

impl Engine {
    /// Acts on an alarm, or says why not. `known` is the culprit, when the alarm itself names it.
    pub(super) fn repair(&mut self, at: usize, now: u64, reason: Reason, known: Option<Place>) {
        let common = self.armed[at].policy.common();
        let (action, dry_run) = (common.action, common.dry_run);
        self.armed[at].quiet_until_ns = now.saturating_add(common.cooldown_ms.saturating_mul(1_000_000));
        let acts = !dry_run && action != Action::Report;
        if self.kernel.way() == Way::Connector {
            self.learn_names(at);
        }
        let mut incident = Incident {
            policy: at,
            time_ns: now,
            first_ns: 0,
            reason,
            culprit: Suspect::default(),
            parent: Suspect::default(),
            weight: 0,
            members: 0,
            spared: 0,
            signalled: 0,
            listed: [0; LISTED_MAX],
            outcome: if acts { Outcome::Acted } else { Outcome::Reported },
            frozen: false,
            freeze_ns: 0,
            act_ns: 0,
        };
        // Weighing memory takes time, in which a hog grows: it is frozen first.
        let early = acts && action == Action::FreezeKill && self.is_hog(at);
        if early {
            self.freeze(at, &mut incident, Controls::freeze_briefly);
        }
        match self.find_culprit(at, now, reason, known) {
            // That an application stands still is worth a report whoever it is.
            None if !acts && matches!(reason, Reason::Silent { .. }) => {}
            None => incident.outcome = Outcome::NobodyToBlame,
            Some(blamed) if acts && action == Action::FreezeKill && !early => {
                self.halt(at, blamed, &mut incident);
                // What was born before the freeze is known now.
                let again = self.find_culprit(at, now, reason, known);
                self.blame(at, again.unwrap_or(blamed), &mut incident);
            }
            Some(found) => self.blame(at, found, &mut incident),
        }
        if acts && incident.outcome == Outcome::Acted {
            self.act(at, action, &mut incident);
        }
        self.release_halted();
        let thaws =
            acts && action == Action::FreezeKill && self.controls(at).is_some_and(Controls::can_freeze);
        // In a cgroup that is gone nobody is frozen; what bears its name now is another, which was frozen by other controls.
        let let_go = |controls: &Controls| controls.thaw() || !controls.is_there();
        let thawed = !thaws || self.controls(at).is_some_and(let_go);
        let given_back = self.armed[at].borrowed.take().is_none_or(|controls| let_go(&controls));
        if !(thawed && given_back) {
            incident.outcome = Outcome::Unable;
        }
        incident.act_ns = now_ns().saturating_sub(now);
        self.tell_incident(incident);
    }

    /// Where the kernel does not tell names, whitelists need them: those of the scope are looked up.
    fn learn_names(&mut self, at: usize) {
        let (members, proc) = (&mut self.members, &self.proc);
        members.clear();
        self.tree.for_each_living(|place, node| {
            if node.scopes >> at & 1 == 1 && members.len() < members.capacity() {
                members.push((place, node.process));
            }
        });
        for (_, process) in members.iter() {
            if let Some(stat) = proc.stat(*process) {
                self.tree.rename(*process, stat.comm);
            }
        }
    }

    pub(super) fn controls(&self, at: usize) -> Option<&Controls> {
        self.armed[at].controls.as_ref()
    }

    /// Who is behind it, if anybody may be blamed.
    fn find_culprit(&mut self, at: usize, now: u64, reason: Reason, known: Option<Place>) -> Option<Blamed> {
        if let Some(place) = known {
            return self.known_culprit(at, now, reason, place);
        }
        let hog = self.is_hog(at);
        if hog {
            self.weigh_memory(at);
        }
        let (tree, armed, protected, pages) = (&mut self.tree, &self.armed[at], &self.protected, &self.pages);
        let since = match reason {
            Reason::Living { .. } | Reason::Forks { .. } => tree.scope(at).since(now),
            Reason::Growth { .. } => now.saturating_sub(growth_window_ns(&armed.policy)).max(1),
            _ => now.saturating_sub(YOUNG_NS),
        };
        // On a busy machine a bomb is older than the window when it is noticed: its first process counts as young, too.
        let started = since.saturating_sub(now.saturating_sub(since) * 3);
        let old = old_ns(now, since);
        let in_scope = |node: &Node| node.scopes >> at & 1 == 1;
        let young = |node: &Node| node.born_ns >= since;
        // Process 1 and what it forked itself.
        let mut below_manager = true;
        let (place, weight) = tree.culprit(
            |place, node| match reason {
                _ if !in_scope(node) => 0,
                // Who forks one after the other has few that live, and an innocent may be as young as they are.
                Reason::Forks { .. } => {
                    if node.forked_ns >= since {
                        node.forks
                    } else {
                        0
                    }
                }
                _ if !node.alive => 0,
                _ if hog => pages[place.at as usize],
                _ => u32::from(young(node)),
            },
            |node| {
                let manager = node.alive && is_manager(node, old, below_manager);
                below_manager = manager || node.process == 1;
                match node.alive {
                    true if manager || is_protected(protected, armed, node) || !in_scope(node) => {
                        Choice::Never
                    }
                    _ if !hog && node.born_ns >= started.max(1) => Choice::AtOnce,
                    _ => Choice::IfNoneBelow,
                }
            },
        )?;
        if hog {
            return self.hog_below(at, now, place, weight);
        }
        let extent = self.burst_below(place, weight, reason, since, old);
        Some(Blamed { place, weight, extent })
    }

    /// A culprit that the alarm itself names: the parent of many, a chain's last link, a publisher.
    fn known_culprit(&self, at: usize, now: u64, reason: Reason, place: Place) -> Option<Blamed> {
        let (armed, protected) = (&self.armed[at], &self.protected);
        let old = old_ns(now, now);
        let may_be_blamed = |node: &Node| {
            node.scopes >> at & 1 == 1
                && !is_protected(protected, armed, node)
                && !is_manager(node, old, false)
        };
        let place = match reason {
            Reason::Depth { .. } => self.tree.chain_start(place, may_be_blamed),
            _ => place,
        };
        let node = self.tree.get(place)?;
        let blamed = match reason {
            // Whoever publishes is known by its own box, also outside the policy's scope.
            Reason::Silent { .. } => !is_protected(protected, armed, node),
            _ => may_be_blamed(node),
        };
        blamed.then_some(Blamed { place, weight: 1, extent: Extent::WHOLE })
    }

    /// Which part of the tree below a culprit is the burst: all, unless the culprit is older than it.
    fn burst_below(&self, place: Place, weight: u64, reason: Reason, since: u64, old: u64) -> Extent {
        let Some(node) = self.tree.get(place).filter(|node| node.alive && node.born_ns < old) else {
            return Extent::WHOLE;
        };
        let mut own = match reason {
            Reason::Forks { .. } => u64::from(node.forks.saturating_sub(node.inherited)),
            _ => 0,
        };
        if matches!(reason, Reason::Living { .. } | Reason::Growth { .. }) {
            self.tree.children(place, |child| own += u64::from(child.alive && child.born_ns >= since));
        }
        Extent { top: own.saturating_mul(2) >= weight, since_ns: old }
    }

    /// Of a tree that holds most of the memory, the part that is to go.
    fn hog_below(&mut self, at: usize, now: u64, place: Place, weight: u64) -> Option<Blamed> {
        let whole = Blamed { place, weight, extent: Extent::WHOLE };
        let (armed, protected) = (&self.armed[at], &self.protected);
        let top = *self.tree.get(place)?;
        let own = if top.alive { u64::from(self.pages[place.at as usize]) } else { 0 };
        if !top.alive || own.saturating_mul(2) >= weight {
            return Some(whole);
        }
        let may_be_blamed = |node: &Node| {
            !node.alive || (node.scopes >> at & 1 == 1 && !is_protected(protected, armed, node))
        };
        let Some((branch, branch_weight)) = self.tree.heaviest_branch(place, may_be_blamed) else {
            return Some(whole);
        };
        let born_ns = self.tree.get(branch)?.born_ns;
        let respawned = armed.spared.is_some_and(|(spared, at_ns)| {
            spared == place && born_ns >= at_ns && now.saturating_sub(at_ns) < innocent::RESPAWN_NS
        });
        let together = born_ns != 0 && born_ns.saturating_sub(top.born_ns) < YOUNG_NS;
        if respawned || together {
            return Some(whole);
        }
        self.armed[at].spared = Some((place, now));
        Some(Blamed { place: branch, weight: branch_weight, extent: Extent::WHOLE })
    }

    /// Writes down who it is, and who would die.
    fn blame(&mut self, at: usize, blamed: Blamed, incident: &mut Incident) {
        let Blamed { place, weight, extent } = blamed;
        incident.culprit = suspect(&self.tree, Some(place));
        incident.parent = suspect(&self.tree, self.tree.parent(place));
        incident.weight = weight;
        let (spared, first_ns) = self.collect(at, place, extent);
        incident.spared = spared;
        incident.first_ns = first_ns;
        incident.members = self.members.len() as u32 + spared;
        for (to, (_, from)) in incident.listed.iter_mut().zip(&self.members) {
            *to = *from;
        }
        let by_tree = self.armed[at].policy.common().action == Action::FreezeKill;
        if by_tree && self.members.is_empty() && incident.outcome == Outcome::Acted {
            incident.outcome = Outcome::NobodyToBlame;
        }
        self.follow_no_more(at);
        self.tree.hold(place);
        self.armed[at].following = Some(Following {
            place,
            extent,
            listed: incident.listed,
            since_ns: incident.time_ns,
            again: 0,
            action: Action::FreezeKill,
        });
        if incident.outcome == Outcome::Acted {
            // Else its forks would be laid at the door of whoever is left when it is gone.
            self.tree.forgive(at, place);
        } else {
            self.follow_no_more(at);
        }
    }

    /// What was followed is not any more.
    fn follow_no_more(&mut self, at: usize) {
        if let Some(following) = self.armed[at].following.take() {
            self.tree.let_go(following.place);
        }
    }

    /// Collects the living processes of a tree that may be signalled; returns how many may not, and the oldest birth.
    pub(super) fn collect(&mut self, at: usize, top: Place, extent: Extent) -> (u32, u64) {
        let (members, armed, protected) = (&mut self.members, &self.armed[at], &self.protected);
        members.clear();
        let (mut spared, mut first_ns) = (0, u64::MAX);
        self.tree.below(top, |place, node| {
            if !node.alive {
                return;
            }
            let held = node.scopes >> at & 1 == 1 && extent.holds(top, place, node);
            if !held || is_protected(protected, armed, node) {
                spared += 1;
                return;
            }
            if node.born_ns != 0 {
                first_ns = first_ns.min(node.born_ns);
            }
            if members.len() < members.capacity() {
                members.push((place, node.process));
            }
        });
        (spared, if first_ns == u64::MAX { 0 } else { first_ns })
    }

    /// Sends a signal to each member that was not sent it before (`mark` is its bit; 0: to all). Returns to how many.
    ///
    /// A number may pass to another process at any time. So each is held by a descriptor first, and then the kernel is heard
    /// again: whoever had ended before is out of the tree by now, because the end is told before the number is free.
    pub(super) fn signal_members(&mut self, signal: Signal, mark: u8) -> u32 {
        let mut sent = 0;
        for first in (0..self.members.len()).step_by(HELD_MAX) {
            let mut held: [Option<OwnedFd>; HELD_MAX] = [const { None }; HELD_MAX];
            for (slot, (place, process)) in held.iter_mut().zip(&self.members[first..]) {
                if self.tree.get(*place).is_some_and(|node| node.alive && node.signals & mark == 0) {
                    *slot = hold(*process);
                }
            }
            self.take_events();
            for (at, slot) in held.iter().enumerate() {
                let Some(process) = slot else { continue };
                let (place, number) = self.members[first + at];
                let meant = self
                    .tree
                    .get(place)
                    .is_some_and(|node| node.alive && node.process == number && node.signals & mark == 0);
                if meant && pidfd_send_signal(process, signal).is_ok() {
                    self.tree.mark(place, mark, true);
                    sent += 1;
                    if self.hurries && signal == Signal::KILL {
                        self.totals.hurried += u64::from(hurry::hurry(process, number));
                    }
                }
            }
        }
        self.totals.signals += u64::from(sent);
        sent
    }

    fn kill_members(&mut self) -> u32 {
        self.signal_members(Signal::KILL, KILLED)
    }

    /// Kills the members, and those of their tree that were born meanwhile.
    fn kill_all(&mut self, at: usize) -> u32 {
        let mut killed = self.kill_members();
        for _ in 0..ROUNDS_MAX {
            let Some(Following { place, extent, .. }) = self.armed[at].following else { break };
            self.take_events();
            self.collect(at, place, extent);
            let more = self.kill_members();
            killed += more;
            if more == 0 {
                break;
            }
        }
        killed
    }

    fn act(&mut self, at: usize, action: Action, incident: &mut Incident) {
        let done = match action {
            Action::Report => true,
            Action::FreezeKill => {
                incident.signalled = self.kill_all(at);
                true
            }
            Action::Freeze => {
                self.follow_no_more(at);
                self.freeze(at, incident, Controls::freeze);
                incident.frozen
            }
            Action::KillCgroup => self.controls(at).is_some_and(Controls::kill),
            Action::Hook => {
                let cgroup = self.controls(at).map_or(0, |controls| controls.cgroup);
                cgroup != 0 && self.kernel.hook(cgroup)
            }
        };
        if let Some(following) = &mut self.armed[at].following {
            following.action = action;
        }
        if !done {
            incident.outcome = Outcome::Unable;
            self.follow_no_more(at);
        }
    }

    /// Whether processes that end have given their memory back. Their end is told before that; who looked in between would find
    /// memory short still, and blame the next.
    fn have_given_back(&self, listed: &[u32]) -> bool {
        let ended = |process: &u32| {
            self.proc.stat(*process).is_none_or(|stat| stat.state == b'Z' || stat.state == b'X')
        };
        listed.iter().take_while(|process| **process != 0).all(ended)
    }

    /// Whether a member was not killed yet: a fork that was under way ends after its parent was told.
    fn has_survivors(&self) -> bool {
        let spared = |place: Place| self.tree.get(place).is_some_and(|node| node.signals & KILLED == 0);
        self.members.iter().any(|(place, _)| spared(*place))
    }

    /// Follows what was killed until it is gone; what was born meanwhile is killed too. Then the next alarm may come.
    pub(super) fn follow(&mut self, at: usize) {
        let Some(following) = self.armed[at].following else { return };
        self.collect(at, following.place, following.extent);
        let now = now_ns();
        let took_ns = now.saturating_sub(following.since_ns);
        let gone = match following.action {
            Action::KillCgroup | Action::Hook => !self.controls(at).is_some_and(Controls::populated),
            _ => self.members.is_empty() && (!self.is_hog(at) || self.have_given_back(&following.listed)),
        };
        if gone || took_ns > FOLLOW_NS_MAX {
            self.tree.forgive(at, following.place);
            self.follow_no_more(at);
            if following.action == Action::Hook
                && let Some(controls) = self.controls(at)
            {
                self.kernel.unhook(controls.cgroup);
            }
            let left = self.members.len() as u32;
            self.tell(match gone {
                true => Note::Settled { policy: at, took_ns, again: following.again },
                false => Note::Unsettled { policy: at, left },
            });
            self.armed[at].quiet_until_ns = now;
        } else if following.action == Action::FreezeKill && self.has_survivors() {
            let again = self.kill_members();
            if let Some(following) = &mut self.armed[at].following {
                following.again += again;
            }
        }
    }
}

#[cfg(test)]
mod tests;
