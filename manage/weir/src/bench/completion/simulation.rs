//! Controllers and switches that set flows up, event by event, in simulated time (rows C1, C6, C7, C8).
//!
//! Every controller has a processor of its own, and every switch; work waits for it in order. Members of a group are alike:
//! one that leads (and puts signatures together) and one of the others are simulated. A domain orders one batch after the
//! other and takes what has come meanwhile into the next. The rules of a flow are brought to its switches as the planner
//! says (row C1): to all at once, and when these have said that they are in force, to the first; a flow goes on when all
//! of them are, in every domain that it crosses. Its bytes then take what its server's link needs: flows do not compete for links, which is
//! the same under every order.
//!
//! A flow of several domains is ordered first where it begins; the others learn it from what that domain signed
//! ([`weir_model::domain`]), and set their part up all at once.

use super::costs::{Costs, Order};
use super::places::{Places, Switch};
use super::traffic::{Flow, SECOND_NS};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// Most events of a batch.
const BATCH_MAX: usize = 1_000;
/// So much work that nobody waits for is put off; more is done before anything else, for a processor that is always busy must do it some time.
const LATE_MAX_NS: f64 = 5e8;
/// Where nobody waits for the group's signature it is made after so long, of batches of which something is still in force: controllers
/// that are never idle for 100 ms do so (`CLAIM_MS` of the controller's shares).
const SIGNED_AFTER_NS: f64 = 5e8;

/// Who signs a batch, and what switches check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// One controller puts shares of the group's signature together.
    Aggregated,
    /// Switches do.
    AtSwitches,
    /// Switches take signatures of enough controllers' own keys; the group's signature is made behind them, when nobody waits for it.
    Endorsed,
}

/// How a network is controlled.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// The order of each domain.
    pub order: Order,
    /// Controllers of each domain.
    pub members: usize,
    /// How a batch is signed.
    pub proof: Proof,
    /// Each pod is a domain, and what joins the pods of a data centre; else there is one domain.
    pub domain_a_pod: bool,
    /// Rules go with their flow; else they stay, and later flows between the two racks use them.
    pub torn_down: bool,
    /// What a server's link carries, bits a second.
    pub link_bits: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the first packet of each flow to its last, nanoseconds.
    pub completion_ns: Vec<f64>,
    /// From the first packet to rules in force, of flows that had to wait for them, nanoseconds.
    pub setup_ns: Vec<f64>,
    /// Events that each domain ordered.
    pub events: Vec<u64>,
}

/// A processor, a disk, anything that does one thing after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    free_ns: f64,
    /// Work that nobody waits for, done when nothing else is.
    late_ns: f64,
}

impl Worker {
    fn run(&mut self, now_ns: f64, cost_ns: f64) -> f64 {
        self.late_ns = (self.late_ns - (now_ns - self.free_ns).max(0.0)).max(0.0);
        let overdue_ns = (self.late_ns - LATE_MAX_NS).max(0.0);
        self.late_ns -= overdue_ns;
        self.free_ns = self.free_ns.max(now_ns) + overdue_ns + cost_ns;
        self.free_ns
    }

    fn later(&mut self, cost_ns: f64) {
        self.late_ns += cost_ns;
    }
}

/// One step of a batch: both kinds of members work, then time passes that is nobody's work.
#[derive(Clone, Copy, Debug)]
struct Stage {
    leader_ns: f64,
    member_ns: f64,
    after_ns: f64,
    /// The next batch may begin.
    ordered: bool,
}

/// What a batch does at a domain: the rules of a flow there, or their removal.
#[derive(Clone, Debug)]
struct Job {
    domain: usize,
    /// The last is where packets come from: it is told when all others have acknowledged.
    switches: Vec<Switch>,
    /// How many have not acknowledged.
    unacked: usize,
    /// The flow that waits; none when rules are removed.
    flow: Option<usize>,
    /// It came from the domain where the flow begins.
    told: bool,
}

#[derive(Debug, Default)]
struct Domain {
    centre: u32,
    leader: Worker,
    member: Worker,
    waiting: VecDeque<usize>,
    ordering: bool,
    events: u64,
}

#[derive(Debug)]
enum Step {
    /// The first packet of a flow.
    Begin(usize),
    /// A job comes to its domain.
    Heard(usize),
    /// A batch is at one of its stages.
    Stage { batch: usize, at: usize },
    /// The proof of a batch comes to the switch of a job that is told last, which looks at it while the others take their updates.
    Proof(usize),
    /// An update comes to the switch of a job.
    AtSwitch { job: usize, at: usize },
    /// It is time for the group's signature of a batch that went without.
    Sign(usize),
    /// Its ack comes back.
    Acked(usize),
    /// The last byte of a flow.
    End(usize),
}

struct Batch {
    domain: usize,
    jobs: Vec<usize>,
    stages: Vec<Stage>,
}

struct Waiting {
    setup: bool,
    domains: usize,
    ready_ns: f64,
    /// Its last byte came.
    over: bool,
}

/// A time in the heap. Times are never NaN: they are sums of what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct At(f64, u64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &At) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &At) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// See the module.
pub struct Simulation<'s> {
    control: Control,
    costs: &'s Costs,
    places: &'s Places,
    flows: &'s [Flow],
    heap: BinaryHeap<Reverse<(At, usize)>>,
    steps: Vec<Option<Step>>,
    domains: Vec<Domain>,
    switches: BTreeMap<Switch, Worker>,
    jobs: Vec<Job>,
    batches: Vec<Batch>,
    waiting: Vec<Waiting>,
    /// Pairs of racks with rules, and flows that wait for such.
    installed: BTreeSet<(super::places::Rack, super::places::Rack)>,
    coming: BTreeMap<(super::places::Rack, super::places::Rack), Vec<usize>>,
    outcome: Outcome,
}

impl<'s> Simulation<'s> {
    /// Lets all flows pass.
    pub fn run(control: Control, costs: &'s Costs, places: &'s Places, flows: &'s [Flow]) -> Outcome {
        let pods = places.centres() * places.pods();
        let count = if control.domain_a_pod { pods + places.centres() } else { 1 };
        let centre = |domain: u32| match control.domain_a_pod {
            false => places.middle(),
            true if domain < pods => domain / places.pods(),
            true => domain - pods,
        };
        let domains =
            (0..count).map(|domain| Domain { centre: centre(domain), ..Domain::default() }).collect();
        let waiting =
            flows.iter().map(|_| Waiting { setup: false, domains: 0, ready_ns: 0.0, over: false }).collect();
        let mut simulation = Simulation {
            control,
            costs,
            places,
            flows,
            heap: BinaryHeap::new(),
            steps: Vec::new(),
            domains,
            switches: BTreeMap::new(),
            jobs: Vec::new(),
            batches: Vec::new(),
            waiting,
            installed: BTreeSet::new(),
            coming: BTreeMap::new(),
            outcome: Outcome::default(),
        };
        for (number, flow) in flows.iter().enumerate() {
            simulation.at(flow.at_ns as f64, Step::Begin(number));
        }
        while let Some(Reverse((At(now_ns, _), number))) = simulation.heap.pop() {
            if let Some(step) = simulation.steps[number].take() {
                simulation.step(now_ns, step);
            }
        }
        simulation.outcome.events = simulation.domains.iter().map(|domain| domain.events).collect();
        simulation.outcome
    }

    fn at(&mut self, ns: f64, step: Step) {
        let number = self.steps.len();
        self.steps.push(Some(step));
        self.heap.push(Reverse((At(ns, number as u64), number)));
    }

    fn domain_of(&self, switch: Switch) -> usize {
        let pods = self.places.pods();
        let number = match (self.control.domain_a_pod, switch.pod()) {
            (false, _) => 0,
            (true, Some((centre, pod))) => centre * pods + pod,
            (true, None) => self.places.centres() * pods + switch.centre(),
        };
        number as usize
    }

    /// From a domain's controllers to a place, nanoseconds.
    fn reach_ns(&self, domain: usize, centre: u32) -> f64 {
        self.costs.hop_ns + self.places.between_ns(self.domains[domain].centre, centre) as f64
    }

    fn path(&self, flow: usize) -> Vec<Switch> {
        let flow = &self.flows[flow];
        // Rules that stay are of a pair of racks, which has one path.
        let pair = u64::from(flow.from.rack) * 31 + u64::from(flow.to.rack);
        self.places.path(flow.from, flow.to, if self.control.torn_down { flow.hash } else { pair })
    }

    fn step(&mut self, now_ns: f64, step: Step) {
        match step {
            Step::Begin(flow) => self.begin(now_ns, flow),
            Step::Heard(job) => {
                let domain = self.jobs[job].domain;
                self.domains[domain].waiting.push_back(job);
                self.order(now_ns, domain);
            }
            Step::Stage { batch, at } => self.stage(now_ns, batch, at),
            Step::Proof(job) => self.look_at_proof(now_ns, job),
            Step::AtSwitch { job, at } => self.at_switch(now_ns, job, at),
            Step::Sign(batch) => self.sign(batch),
            Step::Acked(job) => self.acked(now_ns, job),
            Step::End(flow) => self.end(now_ns, flow),
        }
    }

    fn begin(&mut self, now_ns: f64, number: usize) {
        let flow = &self.flows[number];
        let pair = (flow.from, flow.to);
        if !self.control.torn_down {
            if self.installed.contains(&pair) {
                self.go(now_ns, number);
                return;
            }
            self.waiting[number].setup = true;
            if let Some(coming) = self.coming.get_mut(&pair) {
                coming.push(number);
                return;
            }
            self.coming.insert(pair, vec![number]);
        }
        self.waiting[number].setup = true;
        let jobs = self.jobs_of(number, Some(number));
        self.waiting[number].domains = jobs.len();
        if let Some(first) = jobs.first() {
            self.tell_first(now_ns, number, *first);
        }
    }

    /// The switch where a flow begins (or ends) tells its domain.
    fn tell_first(&mut self, now_ns: f64, flow: usize, job: usize) {
        let ingress = self.path(flow)[0];
        let signed = self.switches.entry(ingress).or_default().run(now_ns, self.costs.sign_ns);
        let heard = signed + self.reach_ns(self.jobs[job].domain, ingress.centre());
        self.at(heard, Step::Heard(job));
    }

    /// A job in each domain that a flow crosses, that of its beginning first.
    fn jobs_of(&mut self, flow: usize, waits: Option<usize>) -> Vec<usize> {
        let mut parts: Vec<(usize, Vec<Switch>)> = Vec::new();
        for switch in self.path(flow) {
            let domain = self.domain_of(switch);
            match parts.iter_mut().find(|(known, _)| *known == domain) {
                Some((_, switches)) => switches.insert(0, switch),
                None => parts.push((domain, vec![switch])),
            }
        }
        let first = self.jobs.len();
        for (number, (domain, switches)) in parts.into_iter().enumerate() {
            let unacked = switches.len();
            self.jobs.push(Job { domain, switches, unacked, flow: waits, told: number > 0 });
        }
        (first..self.jobs.len()).collect()
    }

    fn order(&mut self, now_ns: f64, domain: usize) {
        let of = &mut self.domains[domain];
        if of.ordering || of.waiting.is_empty() {
            return;
        }
        of.ordering = true;
        let count = of.waiting.len().min(BATCH_MAX);
        let jobs: Vec<usize> = of.waiting.drain(..count).collect();
        of.events += count as u64;
        let told = jobs.iter().filter(|job| self.jobs[**job].told).count();
        let stages = self.stages(count, told);
        self.batches.push(Batch { domain, jobs, stages });
        let batch = self.batches.len() - 1;
        self.at(now_ns, Step::Stage { batch, at: 0 });
    }

    /// What a batch of so many events goes through, of which some came from other domains.
    fn stages(&self, events: usize, told: usize) -> Vec<Stage> {
        let (costs, events) = (self.costs, events as f64);
        let ordering = costs.ordering(self.control.order, self.control.members);
        let signing = costs.signing.get(&self.control.members).copied().unwrap_or_default();
        let leader_ns = ordering.batch_leader_ns + ordering.event_leader_ns * events;
        let member_ns = ordering.batch_member_ns + ordering.event_member_ns * events;
        // What another domain said is under its group's signature, one for a batch of it.
        let heard_ns = costs.verify_ns * events + costs.take_group_ns * told as f64;
        let decide_ns = costs.decide_ns * events;
        let (hop_ns, sync_ns) = (costs.hop_ns, costs.sync_ns);
        let stage = |leader_ns, member_ns, after_ns| Stage { leader_ns, member_ns, after_ns, ordered: false };
        let mut stages = match self.control.order {
            Order::Local => vec![stage(heard_ns + leader_ns, 0.0, sync_ns)],
            Order::Raft => {
                vec![stage(heard_ns + leader_ns, 0.0, hop_ns), stage(0.0, member_ns, sync_ns + hop_ns)]
            }
            // The one that leads proposes what it heard, the others vote, all vote that it is final; each vote is kept before it goes.
            Order::Bft => vec![
                stage(heard_ns + leader_ns / 4.0, heard_ns + member_ns / 4.0, sync_ns + hop_ns),
                stage(leader_ns / 4.0, member_ns / 4.0, sync_ns + hop_ns),
                stage(leader_ns / 4.0, member_ns / 4.0, sync_ns + hop_ns),
                stage(leader_ns / 4.0, member_ns / 4.0, 0.0),
            ],
        };
        if let Some(last) = stages.last_mut() {
            last.ordered = true;
        }
        match self.control.order {
            Order::Local => stages.push(stage(decide_ns + costs.sign_ns, 0.0, 0.0)),
            order => {
                // The others of raft learn of the commit a hop later; those of bft see it themselves.
                let hops = if order == Order::Raft { 2.0 } else { 1.0 };
                let proof = self.control.proof;
                let sign =
                    decide_ns + if proof == Proof::Endorsed { costs.sign_ns } else { signing.share_ns };
                let hops = if proof == Proof::Aggregated { hops } else { hops - 1.0 };
                stages.push(stage(sign, sign, hop_ns * hops));
                if proof == Proof::Aggregated {
                    stages.push(stage(signing.combine_ns, 0.0, 0.0));
                }
            }
        }
        stages
    }

    fn stage(&mut self, now_ns: f64, batch: usize, at: usize) {
        let domain = self.batches[batch].domain;
        let Some(stage) = self.batches[batch].stages.get(at).copied() else {
            self.signed(now_ns, batch);
            return;
        };
        let of = &mut self.domains[domain];
        let done = of.leader.run(now_ns, stage.leader_ns).max(of.member.run(now_ns, stage.member_ns));
        self.at(done + stage.after_ns, Step::Stage { batch, at: at + 1 });
        if at > 0 && self.batches[batch].stages[at - 1].ordered {
            let ordering = self.costs.ordering(self.control.order, self.control.members);
            self.domains[domain].leader.later(ordering.late_leader_ns);
            self.domains[domain].member.later(ordering.late_member_ns);
            self.domains[domain].ordering = false;
            self.order(now_ns, domain);
        }
    }

    /// A batch is signed: its updates go, and other domains learn what concerns them.
    fn signed(&mut self, now_ns: f64, batch: usize) {
        if self.control.proof != Proof::Aggregated && self.control.order != Order::Local {
            self.at(now_ns + SIGNED_AFTER_NS, Step::Sign(batch));
        }
        for job in self.batches[batch].jobs.clone() {
            let of = self.jobs[job].clone();
            // One switch alone is the first and the last.
            for at in 0..of.switches.len().saturating_sub(1).max(1) {
                self.send(now_ns, job, at);
            }
            if let (Proof::Endorsed, [_, .., last]) = (self.control.proof, of.switches.as_slice())
                && self.control.order != Order::Local
            {
                let arrives = now_ns + self.reach_ns(of.domain, last.centre());
                self.at(arrives, Step::Proof(job));
            }
            if of.told {
                continue;
            }
            // The jobs of a flow stand behind each other.
            let mut next = job + 1;
            while self.jobs.get(next).is_some_and(|other| other.told) {
                let other = self.jobs[next].domain;
                let reach = self.reach_ns(of.domain, self.domains[other].centre);
                self.at(now_ns + reach, Step::Heard(next));
                next += 1;
            }
        }
    }

    /// Makes the group's signature of a batch behind everything else. Rules of a flow that is over are not there any more, and
    /// need none; that they were removed does.
    fn sign(&mut self, batch: usize) {
        let of = &self.batches[batch];
        let is_gone = |flow: usize| self.control.torn_down && self.waiting[flow].over;
        if of.jobs.iter().all(|job| self.jobs[*job].flow.is_some_and(is_gone)) {
            return;
        }
        let signing = self.costs.signing.get(&self.control.members).copied().unwrap_or_default();
        let share_ns = if self.control.proof == Proof::Endorsed { signing.share_ns } else { 0.0 };
        let domain = &mut self.domains[of.domain];
        domain.leader.later(share_ns + signing.combine_ns);
        domain.member.later(share_ns);
    }

    fn send(&mut self, now_ns: f64, job: usize, at: usize) {
        let of = &self.jobs[job];
        if let Some(switch) = of.switches.get(at) {
            let arrives = now_ns + self.reach_ns(of.domain, switch.centre());
            self.at(arrives, Step::AtSwitch { job, at });
        }
    }

    fn look_at_proof(&mut self, now_ns: f64, job: usize) {
        let signing = self.costs.signing.get(&self.control.members).copied().unwrap_or_default();
        if let Some(switch) = self.jobs[job].switches.last() {
            self.switches.entry(*switch).or_default().run(now_ns, signing.endorsed_ns);
        }
    }

    fn at_switch(&mut self, now_ns: f64, job: usize, at: usize) {
        let of = &self.jobs[job];
        let (domain, switch) = (of.domain, of.switches[at]);
        let take_ns = match (self.control.order, self.control.proof) {
            (Order::Local, _) => self.costs.take_single_ns,
            (_, Proof::Aggregated) => self.costs.take_group_ns,
            // In place of one controller's signature those of enough, checked together; the one that is told last has done so already.
            (_, Proof::Endorsed) => {
                let signing = self.costs.signing.get(&self.control.members).copied().unwrap_or_default();
                let is_proven = at > 0 && at + 1 == of.switches.len();
                let checks_ns = if is_proven { 0.0 } else { signing.endorsed_ns };
                self.costs.take_single_ns - self.costs.verify_ns + checks_ns
            }
            (_, Proof::AtSwitches) => {
                let signing = self.costs.signing.get(&self.control.members).copied().unwrap_or_default();
                // Shares are put together, and the check of what comes of it is the gate's own.
                signing.combine_ns.max(self.costs.take_group_ns)
            }
        };
        let worker = self.switches.entry(switch).or_default();
        let done = worker.run(now_ns, take_ns + self.costs.sign_ns);
        let back = done + self.reach_ns(domain, switch.centre());
        self.at(back, Step::Acked(job));
        if at + 1 == self.jobs[job].switches.len()
            && let Some(flow) = self.jobs[job].flow
        {
            let waiting = &mut self.waiting[flow];
            waiting.domains -= 1;
            waiting.ready_ns = waiting.ready_ns.max(done);
            if waiting.domains == 0 {
                let ready = waiting.ready_ns;
                self.ready(ready, flow);
            }
        }
    }

    fn acked(&mut self, now_ns: f64, job: usize) {
        let of = &mut self.domains[self.jobs[job].domain];
        let known = of.leader.run(now_ns, self.costs.verify_ns);
        of.member.run(now_ns, self.costs.verify_ns);
        self.jobs[job].unacked -= 1;
        if self.jobs[job].unacked == 1 {
            self.send(known, job, self.jobs[job].switches.len() - 1);
        }
    }

    /// All rules of a flow are in force.
    fn ready(&mut self, now_ns: f64, flow: usize) {
        let pair = (self.flows[flow].from, self.flows[flow].to);
        if self.control.torn_down {
            self.go(now_ns, flow);
            return;
        }
        self.installed.insert(pair);
        for waits in self.coming.remove(&pair).unwrap_or_default() {
            self.go(now_ns, waits);
        }
    }

    /// A flow's bytes go.
    fn go(&mut self, now_ns: f64, number: usize) {
        let flow = &self.flows[number];
        let begun_ns = flow.at_ns as f64;
        if self.waiting[number].setup {
            self.outcome.setup_ns.push(now_ns - begun_ns);
        }
        let way_ns = self.places.path_ns(&self.path(number)) as f64;
        let ends_ns = now_ns + flow.bytes * 8.0 / self.control.link_bits * SECOND_NS + way_ns;
        self.outcome.completion_ns.push(ends_ns - begun_ns);
        self.at(ends_ns, Step::End(number));
    }

    fn end(&mut self, now_ns: f64, flow: usize) {
        self.waiting[flow].over = true;
        if self.control.torn_down {
            let jobs = self.jobs_of(flow, None);
            if let Some(first) = jobs.first() {
                self.tell_first(now_ns, flow, *first);
            }
        }
    }
}

#[cfg(test)]
mod tests;
