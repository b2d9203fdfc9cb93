//! Domains beside each other, and what is between them: questions, answers and words that are late, lost or in vain.

use super::check::{right_places, unsettled};
use super::liar::{self, LIARS};
use super::order::{self, Domain, RED, absent, document, label, number, record, subnet};
use std::collections::BTreeSet;
use weir_apps::fabric::domains as query;
use weir_base::world::Rng;
use weir_controller::core::OutboxPage;
use weir_controller::domains::{Answer, Asker, PAUSE_MS, Seen, is_behind};
use weir_model::Label;
use weir_model::domain::{DomainController, DomainEvent, DomainRecord, Fetch, SignedFetch};
use weir_model::event::{Event, EventBody, SourceId};
use weir_model::resource::Kind;
use weir_trust::identity::sign_fetch;

/// How long a question waits where it is asked, milliseconds.
const WAIT_MS: u64 = 1_500;
/// Rounds within which all must be well once nothing fails any more, of 20 ms.
const ROUNDS_MAX: usize = 2_000;

/// A controller: which domain, and which of it.
type Place = (usize, usize);

/// A question, on its way or waiting where it was asked.
struct Asking {
    from: Place,
    life: u64,
    to: Label,
    whom: u64,
    signed: SignedFetch,
    since_ms: u64,
}

struct Word {
    to: Label,
    whom: u64,
    signed: SignedFetch,
}

/// See the module.
pub struct World {
    seed: u64,
    rng: Rng,
    now_ms: u64,
    pub domains: Vec<Domain>,
    /// The domain that lies as a whole.
    liar: Option<Label>,
    asking: Vec<Asking>,
    words: Vec<Word>,
    /// Controllers that do not reach each other.
    cut: BTreeSet<(Place, Label, u64)>,
    healed: bool,
    pub violations: Vec<String>,
    pub rounds: usize,
}

impl World {
    pub fn new(seed: u64, with_liar: bool) -> World {
        let domains = vec![Domain::new("a", 3, false), Domain::new("b", 4, true)];
        let mut world = World {
            seed,
            rng: Rng::new(seed),
            now_ms: 1_000_000,
            domains,
            liar: with_liar.then(|| label("c")),
            asking: Vec::new(),
            words: Vec::new(),
            cut: BTreeSet::new(),
            healed: false,
            violations: Vec::new(),
            rounds: 0,
        };
        for at in 0..world.domains.len() {
            for (other, count) in world.others(at) {
                world.domains[at].about(DomainEvent::Known(record(&other, count)));
                world.domains[at].change(vec![subnet(&other)], false);
            }
            world.domains[at].settle(world.now_ms);
        }
        world
    }

    /// All others that a domain knows, and how many controllers each has.
    fn others(&self, at: usize) -> Vec<(Label, usize)> {
        let honest = self.domains.iter().enumerate().filter(|(other, _)| *other != at);
        let honest = honest.map(|(_, domain)| (domain.name.clone(), domain.replicas.len()));
        honest.chain(self.liar.iter().map(|liar| (liar.clone(), LIARS))).collect()
    }

    fn all_names(&self) -> Vec<Label> {
        self.domains.iter().map(|domain| domain.name.clone()).chain(self.liar.clone()).collect()
    }

    fn index(&self, name: &Label) -> Option<usize> {
        self.domains.iter().position(|domain| domain.name == *name)
    }

    /// Gives a controller its turn, as its process does every few milliseconds.
    fn drive(&mut self, (at, replica): Place) {
        if !self.domains[at].replicas[replica].up {
            return;
        }
        if self.domains[at].replicas[replica].lies {
            return self.lie((at, replica));
        }
        for (other, _) in self.others(at) {
            self.drive_asker((at, replica), &other);
        }
        self.say_controllers((at, replica));
        self.order_words((at, replica));
    }

    fn drive_asker(&mut self, (at, replica): Place, of: &Label) {
        let now_ms = self.now_ms;
        let busy = self.asking.iter().any(|one| {
            one.from == (at, replica) && one.to == *of && one.life == self.domains[at].replicas[replica].life
        });
        let domain = &mut self.domains[at];
        let (own, store) = (domain.name.clone(), domain.replicas[replica].core.store().clone());
        let Some(known) = query::domain(&store, of) else {
            domain.replicas[replica].askers.remove(of);
            return;
        };
        let seen = seen(&known);
        let before = domain.replicas[..replica].iter().filter(|one| one.up).count() as u64;
        let (leads, byzantine) = (domain.leader == replica, domain.byzantine);
        let one = &mut domain.replicas[replica];
        let id = one.id;
        let asker = one.askers.entry(of.clone()).or_insert_with(|| Asker::new(own.clone(), id, of.clone()));
        let mine = |since_ms: u64| if byzantine { since_ms >= before * 300 } else { leads };
        let due = asker.due(&seen, now_ms, mine);
        let word = asker.word(&seen, now_ms);
        let ask = if busy { None } else { asker.ask(&seen, now_ms) };
        let too_many = asker.counters.proposed > 2 + now_ms / PAUSE_MS;
        if too_many {
            self.violations.push(format!("{own} orders what {of} tells without a pause"));
        }
        let sign = |fetch: Fetch| sign_fetch(&order::identity(&own, id), fetch);
        for controller in word.iter().flat_map(|_| seen.controllers) {
            let signed = sign(word.clone().unwrap());
            self.words.push(Word { to: of.clone(), whom: controller.id, signed });
        }
        if let Some((whom, fetch)) = ask {
            let life = self.domains[at].replicas[replica].life;
            let (from, to, signed) = ((at, replica), of.clone(), sign(fetch));
            self.asking.push(Asking { from, life, to, whom: whom.id, signed, since_ms: now_ms });
        }
        if let Some(event) = due {
            self.domains[at].propose(replica, event);
        }
    }

    fn say_controllers(&mut self, (at, replica): Place) {
        let domain = &mut self.domains[at];
        if !domain.byzantine && domain.leader != replica {
            return;
        }
        let (list, one) = (domain.list(), &domain.replicas[replica]);
        let source = SourceId(format!("controller/controller-{}", one.id));
        let store = one.core.store();
        let is_said =
            query::controllers(store) == list || query::word(store, &source).as_ref() == Some(&list);
        if !is_said && self.rng.chance(1, 8) {
            domain.propose(replica, DomainEvent::Controllers(list));
        }
    }

    fn order_words(&mut self, (at, replica): Place) {
        let now_ms = self.now_ms;
        for (other, _) in self.others(at) {
            let domain = &mut self.domains[at];
            let one = &mut domain.replicas[replica];
            let Some(known) = query::domain(one.core.store(), &other) else { continue };
            let lane = (known.told.acked, known.told.last, known.told.cut);
            let due = one.words.due(&other, &known.record.controllers, lane, now_ms);
            let Some((event, overdue_ms)) = due else { continue };
            if domain.may_order(replica, overdue_ms) && self.rng.chance(1, 4) {
                domain.replicas[replica].words.ordered(&other);
                domain.propose(replica, event);
            }
        }
    }

    /// What a controller that lies does of itself.
    fn lie(&mut self, (at, replica): Place) {
        if !self.rng.chance(1, 8) {
            return;
        }
        let others: Vec<Label> = self.others(at).into_iter().map(|(name, _)| name).collect();
        let event = liar::proposal(&mut self.rng, &self.domains[at], replica, &others, self.now_ms);
        self.domains[at].propose(replica, event);
        let (own, id) = (self.domains[at].name.clone(), self.domains[at].replicas[replica].id);
        let to = others[self.rng.below(others.len() as u64) as usize].clone();
        let signed = liar::word(&mut self.rng, &own, id, &to, self.now_ms);
        self.words.push(Word { to, whom: 1 + self.rng.below(4), signed });
    }

    /// The domain that lies as a whole says how far it is, as it likes: with one voice, so that it counts.
    fn lying_words(&mut self) {
        let Some(liar) = self.liar.clone() else { return };
        let to = self.domains[self.rng.below(self.domains.len() as u64) as usize].name.clone();
        let first = liar::word(&mut self.rng, &liar, 1, &to, self.now_ms);
        for whom in 1..=4 {
            for id in 1..=LIARS as u64 {
                let fetch = Fetch { controller: id, ..first.fetch.clone() };
                let signed = sign_fetch(&order::identity(&liar, id), fetch);
                self.words.push(Word { to: to.clone(), whom, signed });
            }
        }
    }

    fn lost(&mut self) -> bool {
        !self.healed && self.rng.chance(1, 10)
    }

    fn deliver_word(&mut self) {
        if self.words.is_empty() {
            return;
        }
        let at = self.rng.below(self.words.len() as u64) as usize;
        let Word { to, whom, signed } = self.words.swap_remove(at);
        if self.lost() {
            return;
        }
        if let Some(target) = self.reached(&to, whom) {
            self.hear(target, &signed);
        }
    }

    fn reached(&self, to: &Label, whom: u64) -> Option<Place> {
        let at = self.index(to)?;
        let replica = self.domains[at].replicas.iter().position(|one| one.id == whom && one.up)?;
        Some((at, replica))
    }

    fn hear(&mut self, (at, replica): Place, signed: &SignedFetch) -> bool {
        let now_ms = self.now_ms;
        let domain = &mut self.domains[at];
        let (own, one) = (domain.name.clone(), &mut domain.replicas[replica]);
        let record = query::record(one.core.store(), &signed.fetch.domain);
        let controllers: Option<Vec<DomainController>> = record.map(|record| record.controllers);
        one.words.hear(&own, controllers.as_deref(), signed, now_ms).is_ok()
    }

    /// What the one that is asked answers; none: it lets the question wait.
    fn answer(&mut self, asking: &Asking) -> Option<Answer> {
        let fetch = &asking.signed.fetch;
        if self.liar.as_ref() == Some(&asking.to) {
            return Some(Answer::Page(liar::answer(&mut self.rng, &asking.to, fetch)));
        }
        let cut = self.cut.contains(&(asking.from, asking.to.clone(), asking.whom));
        let Some((at, replica)) = self.reached(&asking.to, asking.whom).filter(|_| !cut) else {
            return Some(Answer::Silent);
        };
        if !self.hear((at, replica), &asking.signed) {
            return Some(Answer::Silent);
        }
        let domain = &self.domains[at];
        let one = &domain.replicas[replica];
        let mut page = one.core.outbox().page(&fetch.domain, fetch.through);
        if one.lies {
            let (own, id) = (domain.name.clone(), one.id);
            return Some(Answer::Page(liar::distorted(&mut self.rng, &own, id, fetch, page)));
        }
        let lane = query::told_domain(one.core.store(), &fetch.domain);
        let behind = lane.is_some_and(|lane| is_behind(&page, fetch.through, (lane.acked, lane.last)));
        // One that lags looks again when it has caught up.
        page.behind = behind && domain.is_current(replica);
        let waits = page == OutboxPage::default() && self.now_ms - asking.since_ms < WAIT_MS;
        (!waits).then_some(Answer::Page(page))
    }

    fn deliver_answer(&mut self, at: usize) {
        let asking = self.asking.swap_remove(at);
        let (from, replica) = asking.from;
        let one = &self.domains[from].replicas[replica];
        if !one.up || one.life != asking.life {
            return;
        }
        let lost = self.lost();
        let answer = if lost { Some(Answer::Silent) } else { self.answer(&asking) };
        let Some(answer) = answer else { return self.asking.push(asking) };
        let answer = self.tried(&asking, answer);
        let now_ms = self.now_ms;
        let one = &mut self.domains[from].replicas[replica];
        if let Some(known) = query::domain(one.core.store(), &asking.to)
            && let Some(asker) = one.askers.get_mut(&asking.to)
        {
            asker.answered(&seen(&known), answer, now_ms);
        }
    }

    /// What came is tried on the state of the one that asked.
    fn tried(&self, asking: &Asking, answer: Answer) -> Answer {
        let Answer::Page(mut page) = answer else { return answer };
        let (from, replica) = asking.from;
        let (domain, core) = (&self.domains[from], &self.domains[from].replicas[replica].core);
        if page.statements.is_empty() {
            let known = query::domain(core.store(), &asking.to);
            let same = known.is_some_and(|known| known.taken.through == asking.signed.fetch.through);
            page.behind &= same && domain.is_current(replica);
            return Answer::Page(page);
        }
        let about = DomainEvent::Forwarded { origin: asking.to.clone(), statements: page.statements.clone() };
        let source = SourceId(format!("controller/controller-{}", replica + 1));
        let event = Event { source, sequence: 0, body: EventBody::Domain(Box::new(about)) };
        if core.dry_run(&event).is_err() { Answer::Refused } else { Answer::Page(page) }
    }

    fn apply(&mut self, (at, replica): Place) {
        let domain = &mut self.domains[at];
        if !domain.replicas[replica].up || domain.is_current(replica) {
            return;
        }
        domain.apply(replica);
        let names = self.all_names();
        let domain = &self.domains[at];
        let wrong = right_places(domain, &domain.replicas[replica].core, &names);
        self.violations.extend(wrong.map(|wrong| format!("{}: {wrong}", self.domains[at].name)));
    }

    /// Operators change things: mostly what stays in their domain.
    fn intent(&mut self, at: usize) {
        let end = 10 + self.rng.below(6);
        let name = format!("e{end}");
        let local = self.rng.chance(1, 2);
        let (network, second) =
            if local { (order::OWN, 200) } else { (RED, u64::from(number(&self.domains[at].name))) };
        let subnet_name = if local { "main".to_owned() } else { format!("of-{}", self.domains[at].name) };
        let mutation = if self.rng.chance(1, 3) {
            absent(Kind::Endpoint, network, &name)
        } else {
            let host = ["h1", "h2"][self.rng.below(2) as usize];
            let more =
                format!(r#""subnet":"{subnet_name}","host":"{host}","addresses":["10.{second}.0.{end}"]"#);
            document(Kind::Endpoint, network, &name, &more)
        };
        self.domains[at].change(vec![mutation], local);
    }

    /// Operators change what domains have to do with each other.
    fn relate(&mut self, at: usize) {
        let others = self.others(at);
        let (other, count) = others[self.rng.below(others.len() as u64) as usize].clone();
        let domain = &mut self.domains[at];
        match self.rng.below(5) {
            0 => domain.about(DomainEvent::Forgotten { domain: other }),
            1 => domain.about(DomainEvent::Known(record(&other, count))),
            2 => domain.change(vec![absent(Kind::Subnet, RED, &format!("of-{other}"))], false),
            3 => domain.change(vec![subnet(&other)], false),
            _ => domain.generation += 1,
        }
    }

    fn place(&mut self) -> Place {
        let at = self.rng.below(self.domains.len() as u64) as usize;
        (at, self.rng.below(self.domains[at].replicas.len() as u64) as usize)
    }

    fn step(&mut self) {
        let (at, replica) = self.place();
        match self.rng.below(128) {
            0..8 => self.intent(at),
            8 => self.relate(at),
            9 => self.domains[at].kill(replica),
            10..13 if !self.domains[at].replicas[replica].up => self.domains[at].start(replica),
            13..15 => self.domains[at].elect(replica),
            15 => {
                let one = &mut self.domains[at].replicas[replica];
                one.snapshot =
                    one.up.then(|| (one.applied, one.core.snapshot().to_bytes())).or(one.snapshot.take());
            }
            16 => self.cut_or_join((at, replica)),
            17 => self.lying_words(),
            18..36 => self.order(at),
            36..72 => self.apply((at, replica)),
            72..96 => self.drive((at, replica)),
            96..110 if !self.asking.is_empty() => {
                let at = self.rng.below(self.asking.len() as u64) as usize;
                self.deliver_answer(at);
            }
            110..118 => self.deliver_word(),
            _ => self.now_ms += self.rng.below(60),
        }
    }

    fn cut_or_join(&mut self, from: Place) {
        let others = self.others(from.0);
        let (other, count) = others[self.rng.below(others.len() as u64) as usize].clone();
        let link = (from, other, 1 + self.rng.below(count as u64));
        if !self.cut.remove(&link) {
            self.cut.insert(link);
        }
    }

    fn order(&mut self, at: usize) {
        let count = self.domains[at].proposals.len() as u64;
        if count == 0 {
            return;
        }
        let chosen = self.rng.below(count) as usize;
        let by = self.domains[at].proposals[chosen].by;
        // Of one that died some are lost; some come nowhere anyhow.
        let dead = by.is_some_and(|(replica, life)| self.domains[at].replicas[replica].life != life);
        if by.is_some() && (self.lost() || dead && self.rng.chance(1, 2)) {
            self.domains[at].proposals.remove(chosen);
            return;
        }
        let now_ms = self.now_ms;
        self.domains[at].order(chosen, now_ms);
    }

    /// Nothing fails any more but that liars lie. Operators have the domains know each other.
    fn heal(&mut self) {
        self.healed = true;
        self.cut.clear();
        for at in 0..self.domains.len() {
            for replica in 0..self.domains[at].replicas.len() {
                if !self.domains[at].replicas[replica].up {
                    self.domains[at].start(replica);
                }
            }
            while !self.domains[at].proposals.is_empty() {
                self.order(at);
            }
            for replica in 0..self.domains[at].replicas.len() {
                self.domains[at].apply_all(replica);
            }
            for (other, count) in self.others(at) {
                let known = query::record(self.domains[at].truth().store(), &other);
                if known.is_none() {
                    self.domains[at].about(DomainEvent::Known(record(&other, count)));
                }
            }
        }
    }

    /// An operator forgets the other domain and makes it known again while the controller that leads has something of it under way: that
    /// is refused then.
    fn forget_under_way(&mut self) {
        let (at, other) = (0, self.domains[1].name.clone());
        let leader = self.domains[at].leader;
        for (here, there) in [(0, 1), (1, 0)] {
            let there = self.domains[there].name.clone();
            self.domains[here].change(vec![subnet(&there)], false);
            self.domains[here].settle(self.now_ms);
        }
        for _ in 0..ROUNDS_MAX {
            self.now_ms += 20;
            self.drive((at, leader));
            for asking in (0..self.asking.len()).rev() {
                self.deliver_answer(asking);
            }
            let busy = |proposal: &order::Proposal| proposal.brings(&other);
            if self.domains[at].proposals.iter().any(busy) {
                break;
            }
            // So that there is something to tell.
            self.intent(1);
            self.round_of(1);
        }
        let under_way = std::mem::take(&mut self.domains[at].proposals);
        let count = self.domains[1].replicas.len();
        self.domains[at].about(DomainEvent::Forgotten { domain: other.clone() });
        self.domains[at].about(DomainEvent::Known(record(&other, count)));
        self.domains[at].settle(self.now_ms);
        self.domains[at].proposals = under_way;
        self.domains[at].settle(self.now_ms);
    }

    fn round_of(&mut self, at: usize) {
        for replica in 0..self.domains[at].replicas.len() {
            self.drive((at, replica));
        }
        while !self.domains[at].proposals.is_empty() {
            self.order(at);
        }
        for replica in 0..self.domains[at].replicas.len() {
            while !self.domains[at].is_current(replica) {
                self.apply((at, replica));
            }
        }
    }

    fn round(&mut self) {
        self.now_ms += 20;
        (0..self.domains.len()).for_each(|at| self.round_of(at));
        for at in (0..self.asking.len()).rev() {
            self.deliver_answer(at);
        }
        while !self.words.is_empty() {
            self.deliver_word();
        }
        if self.rng.chance(1, 16) {
            self.lying_words();
        }
    }

    fn unsettled(&self) -> Option<String> {
        let same = |domain: &Domain| {
            let mut digests = domain.replicas.iter().map(|one| one.core.store().digest());
            let first = digests.next();
            digests.all(|digest| Some(digest) == first)
        };
        if let Some(domain) = self.domains.iter().find(|domain| !same(domain)) {
            return Some(format!("the controllers of {} have different states", domain.name));
        }
        let pairs = self.domains.iter().flat_map(|one| self.domains.iter().map(move |other| (one, other)));
        pairs.filter(|(one, other)| one.name != other.name).find_map(|(one, other)| unsettled(one, other))
    }

    /// Goes on until all is well.
    fn until_settled(&mut self) {
        let mut why = Some(String::new());
        let mut rounds = 0;
        while why.is_some() && rounds < ROUNDS_MAX && self.violations.is_empty() {
            self.round();
            rounds += 1;
            why = self.unsettled();
        }
        self.rounds = self.rounds.max(rounds);
        self.violations.extend(why.filter(|_| rounds == ROUNDS_MAX));
    }

    /// Runs; what was wrong.
    pub fn run(&mut self, steps: usize) -> Vec<String> {
        for _ in 0..steps {
            self.step();
        }
        self.heal();
        self.until_settled();
        if self.violations.is_empty() {
            self.forget_under_way();
            self.until_settled();
        }
        for domain in &mut self.domains {
            self.violations.append(&mut domain.violations);
        }
        let seed = self.seed;
        self.violations.iter().map(|wrong| format!("seed {seed}: {wrong}")).collect()
    }

    /// What the liar may tell about places is what a domain granted it: to show that the checker sees more.
    pub fn grant_everything(&mut self) {
        let Some(liar) = self.liar.clone() else { return };
        for domain in &mut self.domains {
            let underlays = vec!["10.0.0.0/8".parse().unwrap()];
            domain.about(DomainEvent::Known(DomainRecord { underlays, ..record(&liar, LIARS) }));
        }
    }
}

fn seen(known: &query::DomainStatus) -> Seen<'_> {
    Seen { controllers: &known.record.controllers, through: known.taken.through, anew: known.taken.anew }
}
