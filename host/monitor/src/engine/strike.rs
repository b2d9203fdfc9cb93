//! Acting on an alarm: freeze, look again, kill the culprit's tree, thaw; then follow until it is gone (Bohra, 3.5.2).
//!
//! The freeze is the paper's remote lock of the target: nothing is born while the tree is being killed, and the killed do
//! not compete with the spinning. Without a cgroup that can be frozen, the tree is stopped process by process until a
//! round finds no new one.

use super::{Armed, Engine};
use crate::incident::{Incident, LISTED_MAX, Note, Outcome, Reason, Suspect};
use crate::kernel::Way;
use crate::levers::Levers;
use crate::policy::Action;
use crate::tree::{Choice, ForkTree, Node, Place, YOUNG_NS};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use weir_sensor::now_ns;

/// Most rounds of stopping a tree that goes on forking.
const STOP_ROUNDS_MAX: u32 = 16;
/// How long an incident is followed, ns.
pub const FOLLOW_NS_MAX: u64 = 5_000_000_000;
/// How long between two signals to what is still there, ns.
const AGAIN_NS: u64 = 20_000_000;

/// A culprit's tree, or a cgroup, that was killed and is not gone yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    place: Place,
    since_ns: u64,
    again_ns: u64,
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

fn signal(process: u32, signal: Signal) -> bool {
    // 0 and what is no positive number would mean groups of processes.
    let process = i32::try_from(process).ok().filter(|process| *process > 1).and_then(Pid::from_raw);
    process.is_some_and(|process| kill_process(process, signal).is_ok())
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
    pub(super) fn strike(&mut self, at: usize, now: u64, reason: Reason, known: Option<Place>) {
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
            self.freeze(at, &mut incident);
        }
        match self.find_culprit(at, now, reason, known) {
            // That an application stands still is worth a report whoever it is.
            None if !acts && matches!(reason, Reason::Silent { .. }) => {}
            None => incident.outcome = Outcome::NobodyToBlame,
            Some((place, _)) if acts && action == Action::FreezeKill && !early => {
                self.freeze_or_stop(at, place, &mut incident);
                // What was born before the freeze is known now.
                let again = self.find_culprit(at, now, reason, known);
                self.blame(at, again.unwrap_or((place, 0)), &mut incident);
            }
            Some(found) => self.blame(at, found, &mut incident),
        }
        if acts && incident.outcome == Outcome::Acted {
            self.act(at, action, &mut incident);
        }
        let thaws = acts && action == Action::FreezeKill && self.levers(at).is_some_and(Levers::can_freeze);
        if thaws && !self.levers(at).is_some_and(Levers::thaw) {
            incident.outcome = Outcome::Unable;
        }
        incident.act_ns = now_ns().saturating_sub(now);
        self.tell_incident(incident);
    }

    /// Where the kernel does not tell names, whitelists need them: those of the scope are looked up.
    fn learn_names(&mut self, at: usize) {
        let (members, proc) = (&mut self.members, &self.proc);
        members.clear();
        self.tree.for_each_living(|_, node| {
            if node.scopes >> at & 1 == 1 && members.len() < members.capacity() {
                members.push(node.process);
            }
        });
        for process in members.iter() {
            if let Some(stat) = proc.stat(*process) {
                self.tree.rename(*process, stat.comm);
            }
        }
    }

    fn levers(&self, at: usize) -> Option<&Levers> {
        self.armed[at].levers.as_ref()
    }

    fn freeze(&mut self, at: usize, incident: &mut Incident) {
        incident.frozen = self.levers(at).is_some_and(Levers::freeze);
        incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
        self.gather();
    }

    fn freeze_or_stop(&mut self, at: usize, place: Place, incident: &mut Incident) {
        if self.levers(at).is_some_and(Levers::can_freeze) {
            self.freeze(at, incident);
            return;
        }
        let mut before = usize::MAX;
        for _ in 0..STOP_ROUNDS_MAX {
            self.collect(at, place);
            if self.members.len() == before {
                break;
            }
            before = self.members.len();
            for process in &self.members {
                signal(*process, Signal::STOP);
            }
            // A fork that was under way ends, and is told.
            std::thread::sleep(Duration::from_micros(200));
            self.gather();
        }
        incident.freeze_ns = now_ns().saturating_sub(incident.time_ns);
    }

    fn find_culprit(
        &mut self,
        at: usize,
        now: u64,
        reason: Reason,
        known: Option<Place>,
    ) -> Option<(Place, u64)> {
        if let Some(place) = known {
            let node = self.tree.get(place)?;
            let protected = is_protected(&self.protected, &self.armed[at], node);
            return (!protected).then_some((place, 1));
        }
        let hog = self.is_hog(at);
        if hog {
            self.weigh_memory(at);
        }
        let (tree, armed, protected, pages) = (&mut self.tree, &self.armed[at], &self.protected, &self.pages);
        let since = match reason {
            Reason::Living { .. } | Reason::Forks { .. } => tree.scope(at).since(now),
            _ => now.saturating_sub(YOUNG_NS),
        };
        // On a busy machine a bomb is older than the window when it is noticed: its first process counts as young, too.
        let started = since.saturating_sub(now.saturating_sub(since) * 3);
        let in_scope = |node: &Node| node.scopes >> at & 1 == 1;
        let young = |node: &Node| node.born_ns >= since;
        tree.culprit(
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
            |node| match node.alive {
                true if is_protected(protected, armed, node) || !in_scope(node) => Choice::Never,
                _ if !hog && node.born_ns >= started.max(1) => Choice::AtOnce,
                _ => Choice::IfNoneBelow,
            },
        )
    }

    /// Writes down who it is, and who would die.
    fn blame(&mut self, at: usize, (place, weight): (Place, u64), incident: &mut Incident) {
        incident.culprit = suspect(&self.tree, Some(place));
        incident.parent = suspect(&self.tree, self.tree.parent(place));
        incident.weight = weight;
        let (spared, first_ns) = self.collect(at, place);
        incident.spared = spared;
        incident.first_ns = first_ns;
        incident.members = self.members.len() as u32 + spared;
        for (to, from) in incident.listed.iter_mut().zip(&self.members) {
            *to = *from;
        }
        self.armed[at].following = Some(Following {
            place,
            since_ns: incident.time_ns,
            again_ns: incident.time_ns,
            again: 0,
            action: Action::FreezeKill,
        });
        if incident.outcome == Outcome::Acted {
            // Else its forks would be laid at the door of whoever is left when it is gone.
            self.tree.forgive(at, place);
        } else {
            self.armed[at].following = None;
        }
    }

    /// Collects the living processes of a tree that may be signalled; returns how many may not, and the oldest birth.
    fn collect(&mut self, at: usize, place: Place) -> (u32, u64) {
        let (members, armed, protected) = (&mut self.members, &self.armed[at], &self.protected);
        members.clear();
        let (mut spared, mut first_ns) = (0, u64::MAX);
        self.tree.below(place, |_, node| {
            if !node.alive {
                return;
            }
            if node.scopes >> at & 1 == 0 || is_protected(protected, armed, node) {
                spared += 1;
                return;
            }
            if node.born_ns != 0 {
                first_ns = first_ns.min(node.born_ns);
            }
            if members.len() < members.capacity() {
                members.push(node.process);
            }
        });
        (spared, if first_ns == u64::MAX { 0 } else { first_ns })
    }

    fn kill_members(&mut self) -> u32 {
        let killed = self.members.iter().filter(|process| signal(**process, Signal::KILL)).count() as u32;
        self.totals.signals += u64::from(killed);
        killed
    }

    fn act(&mut self, at: usize, action: Action, incident: &mut Incident) {
        let done = match action {
            Action::Report => true,
            Action::FreezeKill => {
                incident.signalled = self.kill_members();
                true
            }
            Action::Freeze => {
                self.armed[at].following = None;
                self.freeze(at, incident);
                incident.frozen
            }
            Action::KillCgroup => self.levers(at).is_some_and(Levers::kill),
            Action::Hook => {
                let cgroup = self.levers(at).map_or(0, |levers| levers.cgroup);
                cgroup != 0 && self.kernel.hook(cgroup)
            }
        };
        if let Some(following) = &mut self.armed[at].following {
            following.action = action;
        }
        if !done {
            incident.outcome = Outcome::Unable;
            self.armed[at].following = None;
        }
    }

    /// Follows what was killed until it is gone; what was born meanwhile is killed too. Then the next alarm may come.
    pub(super) fn follow(&mut self, at: usize) {
        let Some(following) = self.armed[at].following else { return };
        self.collect(at, following.place);
        let now = now_ns();
        let took_ns = now.saturating_sub(following.since_ns);
        let gone = match following.action {
            Action::KillCgroup | Action::Hook => !self.levers(at).is_some_and(Levers::populated),
            _ => self.members.is_empty(),
        };
        if gone || took_ns > FOLLOW_NS_MAX {
            self.armed[at].following = None;
            self.tree.forgive(at, following.place);
            if following.action == Action::Hook
                && let Some(levers) = self.levers(at)
            {
                self.kernel.unhook(levers.cgroup);
            }
            let left = self.members.len() as u32;
            self.tell(match gone {
                true => Note::Settled { policy: at, took_ns, again: following.again },
                false => Note::Unsettled { policy: at, left },
            });
            self.armed[at].quiet_until_ns = now;
        } else if following.action == Action::FreezeKill && now.saturating_sub(following.again_ns) > AGAIN_NS
        {
            let again = self.kill_members();
            if let Some(following) = &mut self.armed[at].following {
                following.again_ns = now;
                following.again += again;
            }
        }
    }
}
