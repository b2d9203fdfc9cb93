//! Services that crash: their main process is followed by the kernel's events, its end is judged by how it ended, and the command
//! that starts it again is ordered from a thread outside the loop ([`crate::runner`]).
//!
//! - What ends by a fault is told: the main process always, other processes of the service only when a signal ended them, and not
//!   more often than the policy's cooldown allows; what is not told each is counted.
//! - After a crash only a process that was forked later is the new main one: workers that outlive their master are not.
//! - A service that was not up since the monitor started is not started by it.

use super::Engine;
use crate::incident::{Crash, NotUp, Note, Suspect};
use crate::kernel::{Comm, Event, Way};
use crate::policy::{Main, Policy, ServicePolicy, Whitelist};
use crate::restart::{Do, Next, Restarts};
use crate::runner::{Orders, Ran};
use crate::tree::{ForkTree, Node, Place};
use std::sync::mpsc::Receiver;

/// Shortest time between two searches for a main process, ns.
const SEEK_NS: u64 = 20_000_000;

/// An end that nobody saw was at most so long ago, ns.
const UNSEEN_NS: u64 = 1_000_000_000;

/// The way to the threads that run commands.
#[derive(Debug)]
pub(super) struct Runners {
    pub(super) orders: Orders,
    pub(super) ran: Receiver<Ran>,
}

/// A service that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    main: Option<Place>,
    /// The main process as it was seen last.
    last: Suspect,
    born_ns: u64,
    /// The end of the main process since the last look: how, and when, ns.
    ended: Option<(u32, u64)>,
    /// The first end of another process by a fault since the last look, and how many more there were.
    worker: Option<(Suspect, u32, u64)>,
    more: u64,
    /// When a worker's crash was told last, ns.
    told_ns: u64,
    /// Only who was forked later is the main process, ns.
    not_before_ns: u64,
    /// What a pid file says; 0: nothing new.
    claimed: u32,
    /// Whether something happened that may have brought a main process.
    stirred: bool,
    sought_ns: u64,
    program: Option<Whitelist>,
    restarts: Option<Restarts>,
}

impl Watch {
    pub(super) fn new(policy: &ServicePolicy) -> Watch {
        let program = match &policy.main {
            Main::Program(name) => Some(Whitelist::new(std::slice::from_ref(name))),
            Main::Topmost | Main::PidFile(_) => None,
        };
        Watch {
            main: None,
            last: Suspect::default(),
            born_ns: 0,
            ended: None,
            worker: None,
            more: 0,
            told_ns: 0,
            not_before_ns: 0,
            claimed: 0,
            stirred: true,
            sought_ns: 0,
            program,
            restarts: policy.restart.as_ref().map(|restart| Restarts::new(restart.settings)),
        }
    }

    /// Whether a node belongs to the service, besides the main process.
    fn holds(&self, at: usize, tree: &ForkTree, place: Place, node: &Node) -> bool {
        node.scopes >> at & 1 == 1
            || self.is_program(&node.comm)
            || self.main.is_some_and(|main| tree.parent(place) == Some(main))
    }

    fn is_program(&self, comm: &Comm) -> bool {
        self.program.as_ref().is_some_and(|program| program.holds(comm))
    }

    /// A process is about to be taken out of the tree.
    pub(super) fn ends(&mut self, at: usize, tree: &ForkTree, event: &Event, status: u32) {
        let Some(place) = tree.find(event.process) else { return };
        let Some(node) = tree.get(place) else { return };
        if self.main == Some(place) {
            self.last = suspect(node);
            self.born_ns = node.born_ns;
            self.ended = Some((status, event.time_ns));
            self.main = None;
        } else if crate::policy::is_fault(status) && self.holds(at, tree, place, node) {
            match self.worker {
                None => self.worker = Some((suspect(node), status, node.born_ns)),
                Some(_) => self.more += 1,
            }
        } else if self.main.is_none() && self.holds(at, tree, place, node) {
            // Its child may be the topmost now.
            self.stirred = true;
        }
    }

    /// A process was forked, or became another program.
    pub(super) fn stirs(&mut self, at: usize, tree: &ForkTree, process: u32) {
        if self.main.is_none() && !self.stirred {
            self.stirred = tree
                .find(process)
                .and_then(|place| Some((place, tree.get(place)?)))
                .is_some_and(|(place, node)| self.holds(at, tree, place, node));
        }
    }

    /// The cgroups of its scope are others.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// What a pid file says.
    pub(super) fn claim(&mut self, process: u32) {
        self.claimed = process;
    }

    /// Looks for the main process. Only a topmost one of the cgroup or of the program is it; the oldest of several.
    fn seek(&mut self, at: usize, main: &Main, tree: &ForkTree) -> Option<Place> {
        if let Main::PidFile(_) = main {
            // Who is not there now has ended: later the number may be another's.
            return tree.find(std::mem::take(&mut self.claimed));
        }
        let mut oldest: Option<(u64, Place)> = None;
        tree.for_each_living(|place, node| {
            let fits = |node: &Node| match main {
                Main::Program(_) => self.is_program(&node.comm),
                Main::Topmost | Main::PidFile(_) => node.scopes >> at & 1 == 1,
            };
            let in_time = self.not_before_ns == 0 || node.born_ns >= self.not_before_ns;
            let older = oldest.is_none_or(|(serial, _)| node.serial < serial);
            if in_time && older && fits(node) {
                let above = tree.parent(place).and_then(|above| tree.get(above));
                if !above.is_some_and(|above| above.alive && fits(above)) {
                    oldest = Some((node.serial, place));
                }
            }
        });
        oldest.map(|(_, place)| place)
    }
}

fn suspect(node: &Node) -> Suspect {
    Suspect { process: node.process, comm: node.comm, user: node.user, alive: false }
}

/// Time from a birth to now; nothing where the birth was not seen.
fn lived_ns(born_ns: u64, now: u64) -> Option<u64> {
    (born_ns != 0).then(|| now.saturating_sub(born_ns))
}

impl Engine {
    /// Lets services be started again.
    #[must_use]
    pub fn with_runners(mut self, orders: Orders, ran: Receiver<Ran>) -> Engine {
        self.runners = Some(Runners { orders, ran });
        self
    }

    /// The main process of a policy's service; 0 while there is none.
    pub fn main_process(&self, policy: usize) -> u32 {
        let watch = self.armed.get(policy).and_then(|armed| armed.watch.as_ref());
        watch.filter(|watch| watch.main.is_some()).map_or(0, |watch| watch.last.process)
    }

    /// Tells a policy of the kind `service` which process its pid file names.
    pub fn claim(&mut self, policy: usize, process: u32) {
        if let Some(watch) = self.armed.get_mut(policy).and_then(|armed| armed.watch.as_mut()) {
            watch.claim(process);
        }
    }

    pub(super) fn judge_service(&mut self, at: usize, now: u64) {
        let Some(mut watch) = self.armed[at].watch.take() else { return };
        self.look_at(at, now, &mut watch);
        self.armed[at].watch = Some(watch);
    }

    fn look_at(&mut self, at: usize, now: u64, watch: &mut Watch) {
        if let Some(place) = watch.main
            && self.tree.get(place).is_none_or(|node| !node.alive)
        {
            // Events were lost, and nobody saw how it ended.
            watch.main = None;
            self.down(at, now, watch, None);
        }
        if let Some(ended) = watch.ended.take() {
            self.down(at, now, watch, Some(ended));
        }
        self.tell_of_workers(at, now, watch);
        if watch.main.is_none() || watch.claimed != 0 {
            self.seek_main(at, now, watch);
        }
        self.start_again(at, now, watch);
    }

    /// The main process has ended.
    fn down(&mut self, at: usize, now: u64, watch: &mut Watch, ended: Option<(u32, u64)>) {
        let Policy::Service(policy) = &self.armed[at].policy else { return };
        watch.stirred = true;
        let (status, ended_ns) =
            ended.map_or((None, now.saturating_sub(UNSEEN_NS)), |(status, ns)| (Some(status), ns));
        if status.is_some_and(|status| !policy.is_crash(status)) {
            // It may have gone into the background: a process that it left may be the main one now.
            watch.not_before_ns = 0;
            if let Some(restarts) = &mut watch.restarts {
                restarts.stopped();
            }
            return;
        }
        watch.not_before_ns = ended_ns;
        let next = self.after_crash(at, now, watch);
        let lived_ns = lived_ns(watch.born_ns, ended_ns);
        // A worker's crash that was not told yet is told with this one.
        let more = std::mem::take(&mut watch.more) + u64::from(watch.worker.take().is_some());
        let process = watch.last;
        self.tell(Note::Crashed(Crash { policy: at, process, status, main: true, lived_ns, more, next }));
    }

    /// Decides what comes after a crash.
    fn after_crash(&self, at: usize, now: u64, watch: &mut Watch) -> Next {
        let dry_run = self.armed[at].policy.common().dry_run;
        match watch.restarts.as_mut() {
            None => Next::Nothing,
            Some(restarts) => match (restarts.crashed(now), dry_run) {
                (Next::In(wait_ns), true) => {
                    restarts.stopped();
                    Next::WouldIn(wait_ns)
                }
                (next, _) => next,
            },
        }
    }

    fn tell_of_workers(&mut self, at: usize, now: u64, watch: &mut Watch) {
        let cooldown_ns = self.armed[at].policy.common().cooldown_ms.saturating_mul(1_000_000);
        if watch.told_ns != 0 && now.saturating_sub(watch.told_ns) < cooldown_ns {
            return;
        }
        let Some((process, status, born_ns)) = watch.worker.take() else { return };
        watch.told_ns = now;
        self.tell(Note::Crashed(Crash {
            policy: at,
            process,
            status: Some(status),
            main: false,
            lived_ns: lived_ns(born_ns, now),
            more: std::mem::take(&mut watch.more),
            next: Next::Nothing,
        }));
    }

    fn seek_main(&mut self, at: usize, now: u64, watch: &mut Watch) {
        // Where the kernel tells neither names nor cgroups nobody says that something stirred.
        let blind = self.kernel.way() == Way::Connector;
        let wanted = watch.stirred || watch.claimed != 0 || blind;
        if !wanted || now.saturating_sub(watch.sought_ns) < SEEK_NS {
            return;
        }
        (watch.sought_ns, watch.stirred) = (now, false);
        if blind && watch.program.is_some() {
            self.learn_all_names();
        }
        let Policy::Service(policy) = &self.armed[at].policy else { return };
        let Some(place) = watch.seek(at, &policy.main, &self.tree) else { return };
        let Some(node) = self.tree.get(place) else { return };
        (watch.main, watch.last, watch.born_ns) = (Some(place), suspect(node), node.born_ns);
        let process = node.process;
        if let Some((attempt, took_ns)) = watch.restarts.as_mut().and_then(|restarts| restarts.up(now)) {
            self.tell(Note::Restarted { policy: at, attempt, took_ns, process });
        }
    }

    /// Where the kernel does not tell names, all are looked up.
    fn learn_all_names(&mut self) {
        let (members, proc) = (&mut self.members, &self.proc);
        members.clear();
        self.tree.for_each_living(|place, node| {
            if members.len() < members.capacity() {
                members.push((place, node.process));
            }
        });
        for (_, process) in members.iter() {
            if let Some(stat) = proc.stat(*process) {
                self.tree.rename(*process, stat.comm);
            }
        }
    }

    fn start_again(&mut self, at: usize, now: u64, watch: &mut Watch) {
        let Some(restarts) = watch.restarts.as_mut() else { return };
        let (attempt, why) = match restarts.tick(now) {
            Do::Nothing => return,
            Do::Late(attempt) => (attempt, NotUp::Late),
            Do::Run(attempt) => {
                let orders = self.runners.as_ref().and_then(|runners| runners.orders.get(at)?.as_ref());
                if orders.is_some_and(|orders| orders.try_send(attempt).is_ok()) {
                    return;
                }
                (attempt, NotUp::NotRun)
            }
        };
        self.not_up(at, now, watch, attempt, why);
    }

    fn not_up(&mut self, at: usize, now: u64, watch: &mut Watch, attempt: u32, why: NotUp) {
        let next = self.after_crash(at, now, watch);
        self.tell(Note::NotRestarted { policy: at, attempt, why, next });
    }

    /// Takes the ends of commands: one that failed did not bring its service up.
    pub(super) fn hear_runners(&mut self, now: u64) {
        while let Some(ran) = self.runners.as_ref().and_then(|runners| runners.ran.try_recv().ok()) {
            let Some(mut watch) = self.armed.get_mut(ran.policy).and_then(|armed| armed.watch.take()) else {
                continue;
            };
            let waited = watch.restarts.as_ref().is_some_and(|restarts| restarts.is_starting(ran.attempt));
            match ran.status {
                // A command that succeeded may have left the service to come up by itself.
                Some(0) => {}
                status if waited => {
                    let why = status.map_or(NotUp::NotRun, NotUp::Command);
                    self.not_up(ran.policy, now, &mut watch, ran.attempt, why);
                }
                _ => {}
            }
            self.armed[ran.policy].watch = Some(watch);
        }
    }
}
