//! Room on links while flows move (rows C1, Fig 3.3).
//!
//! A *move* is what shifts load at once: a whole flow (its steps in any order they allow), one switch's new
//! rule, or one source's stamp. A flow is first taken as one move, whose peak is what every link might carry
//! in any of its states. Where that is too much, the flow's rules move one by one; where that fails, its
//! sources do, by versions.
//!
//! An order of the moves that never passes a limit is searched, and then only as much of it is kept as the
//! links need: a move that adds load to a link waits for moves that free it, until the load before
//! everything, plus all that earlier moves and this one may add, less what those it waits for have freed,
//! is within the limit. So in any interleaving: take the last adding move of the order that has begun; all
//! adding moves that have begun are earlier, and all that it waits for are done.

use super::draft::Draft;
use super::flow::{FlowChange, add_load};
use super::walk::Walk;
use super::{PlanError, Settings};
use crate::network::{Link, Network, Switch};
use crate::plan::{Method, Reason};
use std::collections::{BTreeMap, BTreeSet, HashSet};

pub(super) type Loads = BTreeMap<Link, u64>;

/// What links may carry at most while the change goes on.
pub(super) struct Limits {
    limits: Loads,
    before: Loads,
}

impl Limits {
    /// From what all flows put on links before and after.
    ///
    /// # Errors
    /// [`PlanError::NewOverload`].
    pub(super) fn new(network: &Network, before: Loads, after: &Loads) -> Result<Limits, PlanError> {
        let mut limits = Loads::new();
        for (link, state) in network.links() {
            let Some(capacity) = state.capacity_kbps else { continue };
            let limit = capacity.max(before.get(&link).copied().unwrap_or(0));
            let load_kbps = after.get(&link).copied().unwrap_or(0);
            if load_kbps > limit {
                let (from, to) = (network.name(link.from).to_string(), network.name(link.to).to_string());
                return Err(PlanError::NewOverload { from, to, load_kbps, capacity_kbps: capacity });
            }
            limits.insert(link, limit);
        }
        Ok(Limits { limits, before })
    }

    /// The links on which the peaks of all flows together are too much.
    fn tight(&self, peaks: impl Iterator<Item = (Link, u64)>) -> BTreeSet<Link> {
        let mut sums = self.before.clone();
        for (link, more) in peaks {
            let sum = sums.entry(link).or_insert(0);
            *sum = sum.saturating_add(more);
        }
        let over = |(link, sum): &(&Link, &u64)| self.limits.get(link).is_some_and(|limit| *sum > limit);
        sums.iter().filter(over).map(|(link, _)| *link).collect()
    }
}

/// How a flow's load is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grain {
    Whole,
    Switches,
    Sources,
}

/// A flow that takes part.
struct Mover<'d, 'c> {
    change: &'d FlowChange<'c>,
    draft: &'d Draft,
    place: usize,
    grain: Grain,
    /// The switches that move, in the draft's own order of steps.
    switches: Vec<Switch>,
}

impl Mover<'_, '_> {
    /// How many moves it makes.
    fn count(&self) -> usize {
        if self.grain == Grain::Whole { 1 } else { self.switches.len() }
    }

    /// The loads when these of its moves are done.
    fn loads(&self, done: &[bool]) -> Loads {
        let change = self.change;
        let moved: BTreeSet<Switch> = match self.grain {
            Grain::Whole if done[0] => {
                return change.loads(change.new_walks.iter().map(|(s, way)| (*s, way)));
            }
            Grain::Whole => BTreeSet::new(),
            _ => self.switches.iter().zip(done).filter(|(_, done)| **done).map(|(at, _)| *at).collect(),
        };
        let by_version = matches!(self.draft.note.method, Method::Versions { .. });
        let mut loads = Loads::new();
        for (source, rate) in &change.sources {
            let way: Walk = match (by_version, moved.contains(source)) {
                (true, true) => change.new_walks[source].clone(),
                (true, false) => change.old_walks[source].clone(),
                // New rules where no old packet passes are there in time, by the draft's own order.
                (false, _) => change.mixed(*source, |at| {
                    change.changed.contains(&at)
                        && (moved.contains(&at) || !self.draft.movers.contains_key(&at))
                }),
            };
            add_load(&mut loads, &way, *rate);
        }
        loads
    }

    /// What links might carry at most between two states of its moves.
    fn peak(&self, before: &Loads, after: &Loads) -> Loads {
        if self.grain == Grain::Whole { highest(self.change, self.draft) } else { max(before, after) }
    }

    /// The steps after which a whole flow goes its new ways: the last that move packets, or the very last
    /// where packets go on by old rules until these are removed.
    fn done_by(&self, all: &[usize]) -> Vec<usize> {
        let lingers = |source: &Switch| {
            self.change.mixed(*source, |at| self.change.changed.contains(&at))
                != self.change.new_walks[source]
        };
        if self.change.sources.keys().any(lingers) {
            let every: Vec<usize> = (0..self.draft.steps.len()).collect();
            self.draft.last_of(&every)
        } else {
            self.draft.last_of(all)
        }
    }

    /// Whether a move's own predecessors in the flow are done.
    fn may_go(&self, at: usize, done: &[bool]) -> bool {
        if self.grain != Grain::Switches {
            return true;
        }
        let step = self.draft.movers[&self.switches[at]];
        let waits = |other: usize| self.draft.reaches(step, self.draft.movers[&self.switches[other]]);
        (0..self.switches.len()).all(|other| other == at || done[other] || !waits(other))
    }
}

fn max(one: &Loads, other: &Loads) -> Loads {
    let mut both = one.clone();
    for (link, load) in other {
        let known = both.entry(*link).or_insert(0);
        *known = (*known).max(*load);
    }
    both
}

/// What each link might carry of a flow in any state that its draft allows.
fn highest(change: &FlowChange<'_>, draft: &Draft) -> Loads {
    if matches!(draft.note.method, Method::Versions { .. }) {
        // Each source goes one way or the other.
        let mut loads = Loads::new();
        for (source, rate) in &change.sources {
            let (mut old, mut new) = (Loads::new(), Loads::new());
            add_load(&mut old, &change.old_walks[source], *rate);
            add_load(&mut new, &change.new_walks[source], *rate);
            for (link, load) in max(&old, &new) {
                let sum = loads.entry(link).or_insert(0_u64);
                *sum = sum.saturating_add(load);
            }
        }
        return loads;
    }
    let mut loads = Loads::new();
    for (source, rate) in &change.sources {
        let mut seen = BTreeSet::from([*source]);
        let mut open = vec![*source];
        while let Some(at) = open.pop() {
            let rules = [change.old.rules.get(&at), change.new.rules.get(&at)];
            let next: BTreeSet<Switch> = rules.into_iter().flatten().filter_map(forwards_to).collect();
            for to in next.into_iter().filter(|to| change.network.carries(at, *to)) {
                let load = loads.entry(Link { from: at, to }).or_insert(0_u64);
                *load = load.saturating_add(*rate);
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
    }
    loads
}

fn forwards_to(action: &crate::policy::Action) -> Option<Switch> {
    match action {
        crate::policy::Action::Forward(next) => Some(*next),
        _ => None,
    }
}

/// The links with a limit whose load a flow changes, on the way or in the end.
pub(super) fn changed_links(change: &FlowChange<'_>, draft: &Draft, limits: &Limits) -> BTreeSet<Link> {
    let ways =
        |walks: &BTreeMap<Switch, Walk>| change.loads(walks.iter().map(|(source, way)| (*source, way)));
    let (old, new, peak) = (ways(&change.old_walks), ways(&change.new_walks), highest(change, draft));
    let differs = |link: &&Link| {
        let of = |loads: &Loads| loads.get(link).copied().unwrap_or(0);
        of(&peak) != of(&old) || of(&peak) != of(&new)
    };
    limits.limits.keys().filter(differs).copied().collect()
}

/// One move of the order that was found.
struct Move {
    flow: usize,
    /// Steps that must wait, and steps that must be done, by place in the flow's draft.
    firsts: Vec<usize>,
    lasts: Vec<usize>,
    adds: Loads,
    frees: Loads,
}

/// A step of one flow waits for a step of another, or of its own; places are those of flows and drafts.
pub(super) struct Wait {
    pub(super) flow: usize,
    pub(super) step: usize,
    pub(super) first_flow: usize,
    pub(super) first: usize,
    pub(super) reason: Reason,
}

/// What came of fitting.
pub(super) enum Fit {
    /// Waits to add because of links.
    Waits(Vec<Wait>),
    /// These flows, by place, should be planned by versions.
    Versions(Vec<usize>, Link),
    /// There is no room.
    NoRoom(Link),
}

/// Finds out what must wait so that no link carries too much.
pub(super) fn fit(changes: &[FlowChange<'_>], drafts: &[Draft], limits: &Limits, settings: &Settings) -> Fit {
    let peaks: Vec<Loads> =
        changes.iter().zip(drafts).map(|(change, draft)| highest(change, draft)).collect();
    let olds: Vec<Loads> =
        changes.iter().map(|c| c.loads(c.old_walks.iter().map(|(s, w)| (*s, w)))).collect();
    let news: Vec<Loads> =
        changes.iter().map(|c| c.loads(c.new_walks.iter().map(|(s, w)| (*s, w)))).collect();
    let more = |(peak, old): (&Loads, &Loads)| -> Vec<(Link, u64)> {
        peak.iter()
            .map(|(link, load)| (*link, load - old.get(link).copied().unwrap_or(0).min(*load)))
            .collect()
    };
    let tight = limits.tight(peaks.iter().zip(&olds).flat_map(more));
    let Some(example) = tight.first().copied() else { return Fit::Waits(Vec::new()) };
    let involved: Vec<usize> = (0..changes.len())
        .filter(|at| {
            let of = |loads: &Loads, link: &Link| loads.get(link).copied().unwrap_or(0);
            let steady = |link: &Link| {
                let peak = of(&peaks[*at], link);
                peak == of(&olds[*at], link) && peak == of(&news[*at], link)
            };
            !tight.iter().all(steady)
        })
        .collect();
    for grain in [Grain::Whole, Grain::Switches] {
        let movers: Vec<Mover<'_, '_>> =
            involved.iter().map(|at| mover(&changes[*at], &drafts[*at], *at, grain)).collect();
        let most = match grain {
            Grain::Whole => settings.capacity_flows_max,
            _ => settings.capacity_moves_max,
        };
        if movers.iter().map(Mover::count).sum::<usize>() > most {
            continue;
        }
        if let Some(order) = Search::new(&movers, limits, &tight, settings).run() {
            return Fit::Waits(keep_what_is_needed(&movers, &order, limits, &tight));
        }
    }
    let by_version = |at: &&usize| matches!(drafts[**at].note.method, Method::Versions { .. });
    let rest: Vec<usize> = involved.iter().filter(|at| !by_version(at)).copied().collect();
    if rest.is_empty() || !settings.versions { Fit::NoRoom(example) } else { Fit::Versions(rest, example) }
}

fn mover<'d, 'c>(change: &'d FlowChange<'c>, draft: &'d Draft, place: usize, grain: Grain) -> Mover<'d, 'c> {
    let mut switches: Vec<Switch> = draft.movers.keys().copied().collect();
    switches.sort_by_key(|switch| draft.movers[switch]);
    let by_version = matches!(draft.note.method, Method::Versions { .. });
    let grain = match grain {
        Grain::Switches if by_version => Grain::Sources,
        // A flow without movers still counts once: nothing of it moves.
        _ if switches.is_empty() => Grain::Whole,
        grain => grain,
    };
    Mover { change, draft, place, grain, switches }
}

/// A search for an order of moves within the limits, depth first.
struct Search<'s, 'd, 'c> {
    movers: &'s [Mover<'d, 'c>],
    limits: &'s Limits,
    tight: &'s BTreeSet<Link>,
    done: Vec<Vec<bool>>,
    loads: Vec<Loads>,
    total: Loads,
    dead: HashSet<Vec<Vec<bool>>>,
    order: Vec<(usize, usize)>,
    states_left: usize,
}

impl<'s, 'd, 'c> Search<'s, 'd, 'c> {
    fn new(
        movers: &'s [Mover<'d, 'c>],
        limits: &'s Limits,
        tight: &'s BTreeSet<Link>,
        settings: &Settings,
    ) -> Search<'s, 'd, 'c> {
        let done: Vec<Vec<bool>> = movers.iter().map(|mover| vec![false; mover.count()]).collect();
        let loads = movers.iter().zip(&done).map(|(mover, done)| mover.loads(done)).collect();
        Search {
            movers,
            limits,
            tight,
            done,
            loads,
            total: limits.before.clone(),
            dead: HashSet::new(),
            order: Vec::new(),
            states_left: settings.capacity_states_max,
        }
    }

    fn run(mut self) -> Option<Vec<(usize, usize)>> {
        self.extend().then_some(self.order)
    }

    /// The moves that may go next and fit, with their flow's loads after each; those that add nothing first.
    fn candidates(&self) -> Vec<(usize, usize, Loads)> {
        let mut found = Vec::new();
        for (at, mover) in self.movers.iter().enumerate() {
            for nth in 0..mover.count() {
                if self.done[at][nth] || !mover.may_go(nth, &self.done[at]) {
                    continue;
                }
                let mut done = self.done[at].clone();
                done[nth] = true;
                let after = mover.loads(&done);
                let peak = mover.peak(&self.loads[at], &after);
                let mut adds = false;
                let fits = self.tight.iter().all(|link| {
                    let of = |loads: &Loads| loads.get(link).copied().unwrap_or(0);
                    let more = of(&peak).saturating_sub(of(&self.loads[at]));
                    adds |= more > 0;
                    more == 0 || of(&self.total) + more <= self.limits.limits[link]
                });
                if fits && !adds && mover.grain != Grain::Switches {
                    // What takes no room can always go first, unless it changes what its flow's next moves take.
                    return vec![(at, nth, after)];
                }
                if fits {
                    found.push((adds, at, nth, after));
                }
            }
        }
        found.sort_by_key(|(adds, at, nth, _)| (*adds, *at, *nth));
        found.into_iter().map(|(_, at, nth, after)| (at, nth, after)).collect()
    }

    fn set(&mut self, at: usize, loads: Loads) {
        for (link, load) in std::mem::replace(&mut self.loads[at], loads) {
            if let Some(total) = self.total.get_mut(&link) {
                *total = total.saturating_sub(load);
            }
        }
        for (link, load) in &self.loads[at] {
            *self.total.entry(*link).or_insert(0) += load;
        }
    }

    fn extend(&mut self) -> bool {
        if self.done.iter().flatten().all(|done| *done) {
            return true;
        }
        if self.states_left == 0 || self.dead.contains(&self.done) {
            return false;
        }
        self.states_left -= 1;
        for (at, nth, after) in self.candidates() {
            let before = self.loads[at].clone();
            self.set(at, after);
            self.done[at][nth] = true;
            self.order.push((at, nth));
            if self.extend() {
                return true;
            }
            self.order.pop();
            self.done[at][nth] = false;
            self.set(at, before);
        }
        self.dead.insert(self.done.clone());
        false
    }
}

/// The moves of an order, with what each adds and frees on tight links.
fn moves(movers: &[Mover<'_, '_>], order: &[(usize, usize)], tight: &BTreeSet<Link>) -> Vec<Move> {
    let mut done: Vec<Vec<bool>> = movers.iter().map(|mover| vec![false; mover.count()]).collect();
    order
        .iter()
        .map(|(at, nth)| {
            let mover = &movers[*at];
            let before = mover.loads(&done[*at]);
            done[*at][*nth] = true;
            let after = mover.loads(&done[*at]);
            let peak = mover.peak(&before, &after);
            let less = |one: &Loads, other: &Loads| -> Loads {
                let of = |loads: &Loads, link: &Link| loads.get(link).copied().unwrap_or(0);
                let gap = |link: &Link| (*link, of(one, link).saturating_sub(of(other, link)));
                tight.iter().map(gap).filter(|(_, gap)| *gap > 0).collect()
            };
            let all: Vec<usize> = mover.draft.movers.values().copied().collect();
            let (firsts, lasts) = match mover.grain {
                Grain::Whole => (first_of(mover.draft, &all), mover.done_by(&all)),
                _ => {
                    let step = mover.draft.movers[&mover.switches[*nth]];
                    (vec![step], vec![step])
                }
            };
            let (adds, frees) = (less(&peak, &before), less(&peak, &after));
            Move { flow: mover.place, firsts, lasts, adds, frees }
        })
        .collect()
}

/// Steps among these that wait for none other of these.
fn first_of(draft: &Draft, steps: &[usize]) -> Vec<usize> {
    let waits = |step: usize| steps.iter().any(|other| *other != step && draft.reaches(step, *other));
    steps.iter().copied().filter(|step| !waits(*step)).collect()
}

fn keep_what_is_needed(
    movers: &[Mover<'_, '_>],
    order: &[(usize, usize)],
    limits: &Limits,
    tight: &BTreeSet<Link>,
) -> Vec<Wait> {
    let moves = moves(movers, order, tight);
    let mut waits = Vec::new();
    // All moves that each waits for, also through others.
    let mut behind: Vec<BTreeSet<usize>> = Vec::new();
    for (nth, now) in moves.iter().enumerate() {
        let mut mine = BTreeSet::new();
        // Loads of one flow's switches are known only in the order found.
        let own = (0..nth).rev().find(|earlier| moves[*earlier].flow == now.flow);
        if let Some(own) = own.filter(|_| movers[order[nth].0].grain == Grain::Switches) {
            let link = now.adds.keys().chain(now.frees.keys()).chain(tight).next().copied();
            add_wait(&mut waits, &moves, nth, own, link.map(Reason::KnownLoad));
            mine.insert(own);
            mine.extend(behind[own].iter().copied());
        }
        for link in now.adds.keys() {
            let of = |loads: &Loads| loads.get(link).copied().unwrap_or(0);
            let start = limits.before.get(link).copied().unwrap_or(0);
            let added: u64 = start + moves[..=nth].iter().map(|one| of(&one.adds)).sum::<u64>();
            for earlier in 0..nth {
                let freed: u64 = mine.iter().map(|one| of(&moves[*one].frees)).sum();
                if added - freed.min(added) <= limits.limits[link] {
                    break;
                }
                if of(&moves[earlier].frees) > 0 && !mine.contains(&earlier) {
                    add_wait(&mut waits, &moves, nth, earlier, Some(Reason::Capacity(*link)));
                    mine.insert(earlier);
                    mine.extend(behind[earlier].iter().copied());
                }
            }
        }
        behind.push(mine);
    }
    waits
}

fn add_wait(waits: &mut Vec<Wait>, moves: &[Move], nth: usize, earlier: usize, reason: Option<Reason>) {
    let Some(reason) = reason else { return };
    for first in &moves[nth].firsts {
        for last in &moves[earlier].lasts {
            waits.push(Wait {
                flow: moves[nth].flow,
                step: *first,
                first_flow: moves[earlier].flow,
                first: *last,
                reason,
            });
        }
    }
}
