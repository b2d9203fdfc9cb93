//! The loop's work, one call a period: fetch what happened, keep the fork tree, judge by the policies, act, follow up.
//!
//! ```text
//!  kernel ──► tree, scopes ──► fork-bomb ─┐
//!  memory files, preopened ──► memory-hog ┼─► repair: freeze, fetch the rest, kill, thaw ──► follow until it is gone
//!  sensor boxes ──► detectors ─► stalled ─┘                       └──► notes (bounded queue) ──► audit, metrics
//! ```
//!
//! Invariants
//! - [`Engine::step`] allocates nothing and waits for nobody, except for a freeze that it ordered itself, which is bounded
//!   ([`crate::controls::FREEZE_NS_MAX`]). So it runs on when the host can neither start a process nor give memory.
//! - What is protected is never signalled: process 1, kernel threads, this process and those above it, whitelisted
//!   programs, and what is outside the policy's scope.
//! - A policy that is a dry run signals, freezes and writes nothing.

mod bomb;
mod halt;
mod hog;
mod innocent;
mod repair;
mod service;
mod stall;

use crate::controls::{self, Controls};
use crate::error::Result;
use crate::incident::{Incident, Note, Reason};
use crate::kernel::proc::{Listing, Proc};
use crate::kernel::{Event, Kernel, Way, What};
use crate::pace::Signs;
use crate::policy::{Action, Policy, Whitelist};
use crate::query::{Queries, Query};
use crate::resident::present;
use crate::tree::growth::Growth;
use crate::tree::scope::{Members, Scope};
use crate::tree::{Counters, ForkTree, NODES_MAX, Node, Place};
use rustix::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use weir_sensor::{View, now_ns};

/// Most notes that wait to be read.
pub const NOTES_MAX: usize = 1024;
/// Longest way up when a process is added with those above it.
const ANCESTORS_MAX: usize = 64;

/// What the loop has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Steps.
    pub steps: u64,
    /// Events of the kernel.
    pub events: u64,
    /// Events that were lost.
    pub lost: u64,
    /// Impossible things that a box said.
    pub lies: u64,
    /// Times that the tree was compared with `/proc`.
    pub resyncs: u64,
    /// Alarms.
    pub alarms: u64,
    /// Signals sent.
    pub signals: u64,
    /// Killed processes that were given priority, so that they end soon.
    pub hurried: u64,
    /// Notes that found the queue full.
    pub notes_lost: u64,
    /// Longest step, ns.
    pub step_ns_max: u64,
    /// All steps together, ns.
    pub step_ns: u64,
    /// What the tree counted.
    pub tree: Counters,
}

/// A policy in force.
#[derive(Debug)]
struct Armed {
    policy: Policy,
    whitelist: Whitelist,
    controls: Option<Controls>,
    /// Those of the culprit's own cgroup, while a policy that names none has it frozen.
    borrowed: Option<Controls>,
    usage: Option<hog::Usage>,
    stall: Option<stall::Stall>,
    watch: Option<service::Watch>,
    growth: Option<Growth>,
    /// A chain or a breadth over its limit, seen while events were applied.
    marked: Option<(Reason, Place)>,
    /// A chain or a breadth near its limit, seen in the last step.
    near: bool,
    quiet_until_ns: u64,
    following: Option<repair::Following>,
    /// Who was spared when a branch below it was killed for its memory, and when, ns.
    spared: Option<(Place, u64)>,
}

/// What a step works with.
#[derive(Debug)]
pub struct Engine {
    kernel: Kernel,
    tree: ForkTree,
    proc: Proc,
    listing: Listing,
    armed: Vec<Armed>,
    queries: Queries,
    /// This process and those above it.
    protected: Vec<u32>,
    /// Where cgroups are mounted, open.
    cgroups: Option<OwnedFd>,
    /// This process's cgroup and those above it: they are never frozen.
    own_cgroups: Vec<u64>,
    members: Vec<(Place, u32)>,
    runners: Option<service::Runners>,
    /// Whether processes were stopped that are not killed yet.
    stopped: bool,
    /// Whether processes were doomed that are not killed yet.
    doomed: bool,
    /// Whether what it kills is hurried.
    hurries: bool,
    pages: Box<[u32]>,
    notes: SyncSender<Note>,
    /// What was counted.
    pub totals: Totals,
}

impl Engine {
    /// Arms the policies and looks at the processes that are there.
    ///
    /// # Errors
    /// [`crate::Error::Io`] for what the machine refuses. A cgroup that a policy names and that is not there stops nobody: [`Engine::refit`].
    pub fn new(
        mut kernel: Kernel,
        policies: Vec<Policy>,
        queries: Vec<Query>,
        notes: SyncSender<Note>,
    ) -> Result<Engine> {
        let proc = Proc::open()?;
        let mut tree = ForkTree::new(NODES_MAX);
        let mut armed = Vec::new();
        for (at, policy) in policies.into_iter().enumerate() {
            let name = policy.common().name.clone();
            let of_policy = |error: crate::Error| error.of(&format!("policy '{name}'"));
            tree.define(at, scope(&policy));
            armed.push(arm(policy).map_err(of_policy)?);
        }
        let left = controls::thaw_left_behind().into_iter();
        let named = armed.iter().filter_map(|armed| Some((armed.controls.as_ref()?, armed.policy.common())));
        let named = named.filter(|(controls, _)| controls.thaw_if_left());
        for cgroup in left.chain(named.filter_map(|(_, common)| common.cgroup.clone())) {
            tracing::warn!(cgroup = %cgroup.display(), "thawed: a monitor died while it acted on it");
        }
        // What happened up to now is in /proc.
        kernel.fetch(|_| ());
        let own = std::process::id();
        let mut engine = Engine {
            kernel,
            tree,
            protected: std::iter::successors(Some(own), |process| {
                proc.stat(*process).map(|stat| stat.parent).filter(|parent| *parent != 0)
            })
            .take(ANCESTORS_MAX)
            .collect(),
            cgroups: controls::open_mount(),
            own_cgroups: own_cgroups(&proc, own),
            proc,
            listing: Listing::default(),
            armed,
            queries: Queries::new(queries),
            members: present(Vec::with_capacity(NODES_MAX)),
            runners: None,
            stopped: false,
            doomed: false,
            hurries: false,
            pages: present(vec![0; NODES_MAX]).into_boxed_slice(),
            notes,
            totals: Totals::default(),
        };
        engine.seed();
        engine.refuse_suicide()?;
        Ok(engine)
    }

    /// A policy must not judge the cgroup that the monitor itself is in, whatever it would do there: its action is changed by one word.
    fn refuse_suicide(&self) -> Result<()> {
        let Some(own) = self.tree.find(std::process::id()).and_then(|place| self.tree.get(place)) else {
            return Ok(());
        };
        for (at, armed) in self.armed.iter().enumerate() {
            let common = armed.policy.common();
            if common.cgroup.is_some() && own.scopes >> at & 1 == 1 {
                let reason = "the monitor itself is in its cgroup: run the monitor in another one";
                let what = format!("policy '{}'", common.name);
                return Err(crate::Error::io(what, std::io::Error::other(reason)));
            }
        }
        Ok(())
    }

    /// Hurries what it kills: for a monitor that has rights over priorities itself.
    pub fn with_hurry(mut self, hurries: bool) -> Engine {
        self.hurries = hurries;
        self
    }

    /// The policies, in the order that notes count them.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.armed.iter().map(|armed| &armed.policy)
    }

    /// Has what was opened of a policy's cgroup anew, which was made, or made anew; returns what it had.
    ///
    /// # Errors
    /// What was given: while it acts it keeps what it has, and must be given that again.
    pub fn refit(&mut self, policy: usize, fitted: Fitted) -> std::result::Result<Fitted, Fitted> {
        match self.armed.get_mut(policy) {
            Some(armed) if armed.following.is_none() && armed.borrowed.is_none() => Ok(Fitted {
                controls: std::mem::replace(&mut armed.controls, fitted.controls),
                usage: std::mem::replace(&mut armed.usage, fitted.usage),
            }),
            _ => Err(fitted),
        }
    }

    /// The kernel's events.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The fork tree.
    pub fn tree(&self) -> &ForkTree {
        &self.tree
    }

    fn seed(&mut self) {
        let mount = controls::mount();
        let (proc, tree) = (&self.proc, &mut self.tree);
        let mut processes = Vec::new();
        proc.for_each(&mut self.listing, |process| processes.push(process));
        for process in processes {
            let cgroup = mount.as_deref().and_then(|mount| proc.cgroup(process, mount)).unwrap_or(0);
            add_with_ancestors(proc, tree, process, cgroup, 0);
        }
    }

    /// One period's work. `now_ns` is [`now_ns`] of the caller.
    pub fn step(&mut self, now: u64) {
        self.armed.iter_mut().for_each(|armed| armed.near = false);
        self.gather();
        self.hear_runners(now);
        for at in 0..self.armed.len() {
            match self.armed[at].policy {
                Policy::ForkBomb(_) => self.judge_bomb(at, now),
                Policy::MemoryHog(_) => self.judge_hog(at, now),
                Policy::Stalled(_) => self.judge_stall(at, now),
                Policy::Service(_) => self.judge_service(at, now),
                // A guest has a thread of its own.
                Policy::Guest(_) => {}
            }
            self.follow(at);
        }
        self.ask(now);
        self.totals.steps += 1;
        self.totals.tree = self.tree.counters;
        let took = now_ns().saturating_sub(now);
        self.totals.step_ns += took;
        self.totals.step_ns_max = self.totals.step_ns_max.max(took);
    }

    /// What the step at `now` saw that may be a sign of trouble. `late_ns` is how much too late it began.
    pub fn signs(&self, now: u64, late_ns: u64) -> Signs {
        let short_in = |armed: &Armed| armed.usage.as_ref().and_then(hog::Usage::short_in_ns);
        Signs {
            forks: self.tree.counters.forks,
            near: self.armed.iter().enumerate().any(|(at, armed)| armed.is_near(self.tree.scope(at), now)),
            memory_short_in_ns: self.armed.iter().filter_map(short_in).min(),
            late_ns,
            repairing: self.armed.iter().any(|armed| armed.following.is_some()),
        }
    }

    /// Fetches what happened and applies it.
    fn gather(&mut self) {
        self.take_events();
        if self.kernel.way() == Way::Connector {
            self.look_into_cgroups();
        }
    }

    /// The same, where it does not matter who moved to which cgroup.
    fn take_events(&mut self) {
        let (tree, armed, queries) = (&mut self.tree, &mut self.armed, &mut self.queries);
        let found = self.kernel.fetch(|event: &Event| {
            queries.take(event);
            if let What::Exit { status } = event.what {
                for (at, armed) in armed.iter_mut().enumerate() {
                    if let Some(watch) = &mut armed.watch {
                        watch.ends(at, tree, event, status);
                    }
                }
            }
            if let Some(child) = tree.apply(event) {
                for (at, armed) in armed.iter_mut().enumerate() {
                    armed.mark(at, tree, child);
                }
            }
            if matches!(event.what, What::Fork { .. } | What::Exec) {
                for (at, armed) in armed.iter_mut().enumerate() {
                    if let Some(watch) = &mut armed.watch {
                        watch.stirs(at, tree, event.process);
                    }
                }
            }
        });
        self.totals.events += found.records;
        self.totals.lost += found.lost;
        self.totals.lies += found.lies;
        if found.lost > 0 || found.lies > 0 {
            self.resync(found.lost);
        }
    }

    /// Where the kernel does not tell cgroups, those of the policies are asked who is in them; not those below them.
    fn look_into_cgroups(&mut self) {
        let tree = &mut self.tree;
        for controls in self.armed.iter().filter_map(|armed| armed.controls.as_ref()) {
            controls.for_each_process(|process| tree.place_in(process, controls.cgroup));
        }
    }

    /// Mends the tree after a loss.
    fn resync(&mut self, lost: u64) {
        let (proc, tree) = (&self.proc, &mut self.tree);
        let asleep_ns = crate::kernel::proc::asleep_ns();
        // One that ended meanwhile may have left its number to another.
        let lives = |node: &Node| {
            proc.stat(node.process).is_some_and(|stat| {
                stat.state != b'Z' && stat.state != b'X' && stat.may_be_born(node.born_ns, asleep_ns)
            })
        };
        tree.retain(lives);
        let now = now_ns();
        proc.for_each(&mut self.listing, |process| add_with_ancestors(proc, tree, process, 0, now));
        self.totals.resyncs += 1;
        self.tell(Note::Resynced { lost });
    }

    /// Evaluates the queries.
    fn ask(&mut self, now: u64) {
        let (notes, totals) = (&self.notes, &mut self.totals);
        self.queries.step(now, self.tree.counters.living, |query, value| {
            if notes.try_send(Note::Query { query, value }).is_err() {
                totals.notes_lost += 1;
            }
        });
    }

    /// The queries.
    pub fn queries(&self) -> &Queries {
        &self.queries
    }

    /// Gives the queries a box to read; returns the one before.
    pub fn attach_for_queries(&mut self, at: usize, view: View) -> Option<View> {
        self.queries.attach(at, view)
    }

    fn tell(&mut self, note: Note) {
        if self.notes.try_send(note).is_err() {
            self.totals.notes_lost += 1;
        }
    }

    fn tell_incident(&mut self, incident: Incident) {
        self.totals.alarms += 1;
        self.tell(Note::Incident(incident));
    }

    /// Replaces the cgroups of a policy's scope: they come and go.
    pub fn redefine(&mut self, policy: usize, cgroups: &[u64]) {
        self.tree.redefine(policy, cgroups);
        if let Some(watch) = self.armed.get_mut(policy).and_then(|armed| armed.watch.as_mut()) {
            watch.stir();
        }
    }

    /// Gives a policy of the kind `stalled` the box of the reader in the packet core.
    pub fn attach_reader(&mut self, policy: usize, view: View) {
        if let Some(stall) = self.armed.get_mut(policy).and_then(|armed| armed.stall.as_mut()) {
            stall.attach_reader(policy, view);
        }
    }

    /// Gives a policy of the kind `stalled` the box that it watches.
    pub fn attach(&mut self, policy: usize, view: View) {
        if let Some(stall) = self.armed.get_mut(policy).and_then(|armed| armed.stall.as_mut()) {
            stall.attach(view);
        }
    }
}

fn own_cgroups(proc: &Proc, own: u32) -> Vec<u64> {
    let mut buffer = [0; controls::PATH_BYTES];
    let path = proc.cgroup_path(own, &mut buffer);
    path.map_or(Vec::new(), |path| controls::above(Path::new(std::ffi::OsStr::from_bytes(path))))
}

/// Adds a process that `/proc` shows, after those above it.
fn add_with_ancestors(proc: &Proc, tree: &mut ForkTree, process: u32, cgroup: u64, born_ns: u64) {
    let mut way = [(0_u32, [0_u8; 16], 0_u32); ANCESTORS_MAX];
    let mut length = 0;
    let mut next = process;
    while length < ANCESTORS_MAX && next != 0 && tree.find(next).is_none() {
        let Some(stat) = proc.stat(next) else { break };
        if stat.state == b'Z' || stat.state == b'X' {
            break;
        }
        way[length] = (next, stat.comm, stat.parent);
        length += 1;
        next = stat.parent;
    }
    for (which, comm, parent) in way[..length].iter().rev() {
        let cgroup = if *which == process { cgroup } else { 0 };
        tree.seed(*which, *parent, *comm, cgroup, born_ns);
    }
}

/// The scope of a policy.
fn scope(policy: &Policy) -> Scope {
    let window_ns = match policy {
        Policy::ForkBomb(bomb) => bomb.when.window_ms.saturating_mul(1_000_000),
        Policy::MemoryHog(_) | Policy::Stalled(_) | Policy::Guest(_) | Policy::Service(_) => {
            crate::tree::YOUNG_NS
        }
    };
    let members = match &policy.common().cgroup {
        None if matches!(policy, Policy::Service(_)) => Members::Nobody,
        None => Members::Host,
        // It comes and goes: of a unit with that, of others with whoever makes them.
        Some(cgroup) => Members::Cgroups(cgroups_below(&controls::folder(cgroup)).unwrap_or_default()),
    };
    Scope::new(members, window_ns)
}

/// What a policy has of its cgroup, opened beforehand.
#[derive(Debug, Default)]
pub struct Fitted {
    controls: Option<Controls>,
    usage: Option<hog::Usage>,
}

impl Fitted {
    /// Opens what a policy needs of its cgroup; nothing, where that is not there now.
    ///
    /// # Errors
    /// It is there, and cannot do what the policy's action is.
    pub fn open(policy: &Policy) -> Result<Fitted> {
        let common = policy.common();
        let controls =
            common.cgroup.as_ref().and_then(|cgroup| Controls::open(&controls::folder(cgroup)).ok());
        let can = |can: bool, what: &str| {
            let reason = || std::io::Error::other(format!("its cgroup cannot be {what}"));
            if can { Ok(()) } else { Err(crate::Error::io("arming it", reason())) }
        };
        match (common.action, &controls) {
            (Action::Freeze, Some(controls)) => can(controls.can_freeze(), "frozen")?,
            (Action::KillCgroup, Some(controls)) => can(controls.can_kill(), "killed whole")?,
            _ => {}
        }
        let usage = match policy {
            Policy::MemoryHog(hog) => match hog::Usage::open(hog) {
                // Its cgroup is made later.
                Err(_) if common.cgroup.is_some() && controls.is_none() => None,
                other => Some(other?),
            },
            _ => None,
        };
        Ok(Fitted { controls, usage })
    }

    /// The number of the cgroup; 0: it is not there.
    pub fn cgroup(&self) -> u64 {
        self.controls.as_ref().map_or(0, |controls| controls.cgroup)
    }
}

/// The numbers of a cgroup and those below it, sorted.
///
/// # Errors
/// [`crate::Error::Io`] when there is no such cgroup.
pub fn cgroups_below(folder: &Path) -> Result<Vec<u64>> {
    use std::os::unix::fs::MetadataExt;
    let status = std::fs::metadata(folder)
        .map_err(|error| crate::Error::io(format!("cgroup {} (make it first)", folder.display()), error))?;
    let mut found = vec![status.ino()];
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        // A cgroup that ends meanwhile is none.
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            if let Ok(status) = entry.metadata()
                && status.is_dir()
                && found.len() < crate::tree::scope::CGROUPS_MAX
            {
                found.push(status.ino());
                folders.push(entry.path());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn arm(policy: Policy) -> Result<Armed> {
    let common = policy.common();
    let whitelist = Whitelist::new(&common.whitelist);
    let fitted = Fitted::open(&policy)?;
    if let Some(cgroup) = &common.cgroup
        && fitted.controls.is_none()
        && !matches!(policy, Policy::Service(_))
    {
        let folder = controls::folder(cgroup);
        tracing::warn!(policy = common.name, cgroup = %folder.display(), "DEGRADED: there is no such cgroup yet: the policy waits for it");
    }
    let Fitted { controls, usage } = fitted;
    let stall = match &policy {
        Policy::Stalled(stalled) => Some(stall::Stall::new(stalled)),
        _ => None,
    };
    let watch = match &policy {
        Policy::Service(service) => Some(service::Watch::new(service)),
        _ => None,
    };
    let growth = match &policy {
        Policy::ForkBomb(bomb) if bomb.when.growth.is_some() => {
            Some(Growth::new(bomb.when.growth_window_ms.saturating_mul(1_000_000)))
        }
        _ => None,
    };
    Ok(Armed {
        policy,
        whitelist,
        controls,
        borrowed: None,
        usage,
        stall,
        watch,
        growth,
        marked: None,
        near: false,
        quiet_until_ns: 0,
        following: None,
        spared: None,
    })
}
