//! What each step of a flow's set-up costs, measured in this run with the code that controllers and switches run: signatures,
//! decisions, taking an update at a switch, a sync of the disk, a hop between two processes, and what real groups of
//! processes use for ordering, by their size.

use super::super::order::client::{self, Cell};
use super::super::order::median;
use super::super::order::servers::{Peer, Servers, Spent};
use crate::failure::Failure;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_apps::Deciders;
use weir_base::codec::encode;
use weir_base::world::Rng;
use weir_controller::core::{Core, CoreSettings, Input, Item, Outcome, Output, SharedApp, Signer};
use weir_model::entry::{ControllersEntry, PortEntry, Vni};
use weir_model::event::{
    ActuatorFacts, Event, EventBody, Mutation, Role, SignedEvent, SourceId, Transaction, Wanted,
};
use weir_model::packet_in::{PacketIn, PacketInReport, Why};
use weir_model::resource::{Kind, ResourceId};
use weir_model::signed::{GroupKey, GroupSignature, MemberSignature, SignedHeader, SignedUpdates};
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{GroupSigner as _, SingleSigner, Verifier, prepare_batch, sign_batch};
use weir_trust::endorsement::{self, endorse};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{Context, KeyPair, sign_event, verify};
use weir_trust::threshold::{
    Dealer, GroupPublic, GroupVerifier, Ledger, MemberSecret, Player, Round, combine,
};

/// Repetitions of what is short.
const REPEATS: usize = 31;
/// Packets of which decisions are measured: as many as addresses that one sender can ask for here.
const ENDPOINTS: u8 = 8;
const ADDRESSES: u8 = 16;
/// How long a group of processes is driven, milliseconds.
const WINDOW_MS: u64 = 1_500;
/// From one write to the next of a group that has one at a time, milliseconds: long enough for what is done behind it.
const EVERY_MS: u64 = 25;
/// Callers of a group that has batches to make.
const CALLERS_MANY: usize = 256;

/// Which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// One controller.
    Local,
    /// A group of which some may crash.
    Raft,
    /// A group of which some may lie.
    Bft,
}

/// What ordering uses at a controller, nanoseconds of a processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ordering {
    /// For a batch, at the controller that leads.
    pub batch_leader_ns: f64,
    /// For a batch, at another.
    pub batch_member_ns: f64,
    /// For an event more in it, at the one that leads.
    pub event_leader_ns: f64,
    /// For an event more in it, at another.
    pub event_member_ns: f64,
    /// For a batch, at the one that leads, beside what anybody waits for.
    pub late_leader_ns: f64,
    /// The same at another.
    pub late_member_ns: f64,
    /// How long one write took over real processes on this machine's processors.
    pub measured_ns: f64,
}

/// What signing costs in a group, nanoseconds of a processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signing {
    /// A share.
    pub share_ns: f64,
    /// Putting enough shares together, and checking what comes of it.
    pub combine_ns: f64,
    /// Checking the endorsements of enough controllers.
    pub endorsed_ns: f64,
}

/// See the module. All in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// From one process to another, with its wake-up.
    pub hop_ns: f64,
    /// A sync of 4 KiB.
    pub sync_ns: f64,
    /// Signing an event, or acks.
    pub sign_ns: f64,
    /// Checking such a signature.
    pub verify_ns: f64,
    /// Deciding an event, with the check of its signature and the root of its updates.
    pub decide_ns: f64,
    /// Taking an update at a switch, under one controller's signature.
    pub take_single_ns: f64,
    /// Taking an update at a switch, under a group's.
    pub take_group_ns: f64,
    /// By members.
    pub signing: BTreeMap<usize, Signing>,
    /// By order and members.
    pub ordering: BTreeMap<(Order, usize), Ordering>,
}

fn wrong(error: impl Display) -> Failure {
    Failure::Input(format!("measuring a step: {error}"))
}

/// Processor time of this thread, nanoseconds.
pub(in crate::bench) fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Median processor time of something that is done again and again.
fn cpu_of<T>(mut work: impl FnMut(usize) -> Result<T, Failure>) -> Result<f64, Failure> {
    let mut found = Vec::with_capacity(REPEATS);
    for round in 0..REPEATS {
        let begun = cpu_ns();
        work(round)?;
        found.push(cpu_ns() - begun);
    }
    Ok(median(found.into_iter()))
}

fn domain() -> Result<Label, Failure> {
    Label::new("bench").map_err(wrong)
}

impl Costs {
    /// Measures all but the orders.
    pub fn measure(sizes: &[usize], folder: &Path) -> Result<Costs, Failure> {
        let mut costs = Costs { hop_ns: hop_ns()?, sync_ns: sync_ns(folder)?, ..Costs::default() };
        let key = KeyPair::from_seed(&[7; 32]);
        let message = [7_u8; 256];
        costs.sign_ns = cpu_of(|_| Ok(key.sign(Context::Event, &message)))?;
        let signature = key.sign(Context::Event, &message);
        let public = key.public();
        costs.verify_ns = cpu_of(|_| verify(&public, Context::Event, &message, &signature).map_err(wrong))?;
        costs.decide_ns = decide_ns()?;
        costs.take_single_ns = take_ns(&folder.join("single"), None)?;
        for size in sizes {
            let group = Group::make(*size)?;
            costs.signing.insert(*size, group.signing()?);
            if costs.take_group_ns == 0.0 {
                costs.take_group_ns = take_ns(&folder.join("group"), Some(&group))?;
            }
        }
        Ok(costs)
    }

    /// Measures what ordering costs in a group of processes, all on this machine.
    pub fn measure_order(&mut self, order: Order, members: usize, folder: &Path) -> Result<(), Failure> {
        let peer = if order == Order::Bft { Peer::Bft } else { Peer::Weir };
        let servers = Servers::start_many(peer, members, folder)?;
        let cell = |callers, every_ms| Cell { reads: false, bytes: 100, callers, every_ms };
        client::run(&servers, &cell(CALLERS_MANY, 0), WINDOW_MS)?;
        // What they use when nobody wants anything: heartbeats, views without a block.
        let before = servers.each_spent()?;
        std::thread::sleep(Duration::from_millis(WINDOW_MS));
        let idle = since(&servers, &before)?;
        let few = used(&servers, &cell(1, EVERY_MS), 2 * WINDOW_MS, &idle)?;
        let many = used(&servers, &cell(CALLERS_MANY, 0), WINDOW_MS, &idle)?;
        let batch = |few: Side, many: Side| (few.waited_ns - many.whole_ns).max(0.0);
        let found = Ordering {
            batch_leader_ns: batch(few.leader, many.leader),
            batch_member_ns: batch(few.member, many.member),
            event_leader_ns: many.leader.whole_ns,
            event_member_ns: many.member.whole_ns,
            late_leader_ns: (few.leader.whole_ns - few.leader.waited_ns).max(0.0),
            late_member_ns: (few.member.whole_ns - few.member.waited_ns).max(0.0),
            measured_ns: few.took_ns,
        };
        self.ordering.insert((order, members), found);
        Ok(())
    }

    /// What ordering costs in a group of any size: on the straight line through the two nearest that were measured.
    pub fn ordering(&self, order: Order, members: usize) -> Ordering {
        let known: Vec<(f64, Ordering)> = self
            .ordering
            .iter()
            .filter(|(key, _)| key.0 == order)
            .map(|(key, found)| (key.1 as f64, *found))
            .collect();
        let at = members as f64;
        let above = known.iter().position(|(size, _)| *size >= at).unwrap_or(known.len());
        let high = above.clamp(1, known.len().saturating_sub(1).max(1));
        let (Some(one), Some(other)) = (known.get(high - 1), known.get(high).or(known.first())) else {
            return Ordering::default();
        };
        let share = if other.0 > one.0 { (at - one.0) / (other.0 - one.0) } else { 0.0 };
        let line = |value: fn(&Ordering) -> f64| {
            (value(&one.1) + (value(&other.1) - value(&one.1)) * share).max(0.0)
        };
        Ordering {
            batch_leader_ns: line(|found| found.batch_leader_ns),
            batch_member_ns: line(|found| found.batch_member_ns),
            event_leader_ns: line(|found| found.event_leader_ns),
            event_member_ns: line(|found| found.event_member_ns),
            late_leader_ns: line(|found| found.late_leader_ns),
            late_member_ns: line(|found| found.late_member_ns),
            measured_ns: line(|found| found.measured_ns),
        }
    }
}

fn since(servers: &Servers, before: &[Spent]) -> Result<Vec<Spent>, Failure> {
    Ok(servers.each_spent()?.iter().zip(before).map(|(after, before)| after.since(before)).collect())
}

/// Processor time of a write at one controller, nanoseconds.
#[derive(Clone, Copy)]
struct Side {
    /// All of it, beyond what it uses idle.
    whole_ns: f64,
    /// What the write waits for.
    waited_ns: f64,
}

/// What writes used.
struct Used {
    leader: Side,
    /// The mean of the others.
    member: Side,
    /// How long one took.
    took_ns: f64,
}

/// What writes use beyond what controllers used in [`WINDOW_MS`] idle.
fn used(servers: &Servers, cell: &Cell, window_ms: u64, idle: &[Spent]) -> Result<Used, Failure> {
    let leader = servers.leader()?;
    let (before, begun) = (servers.each_spent()?, Instant::now());
    let window = client::run(servers, cell, window_ms)?;
    let windows = begun.elapsed().as_secs_f64() * 1e3 / WINDOW_MS as f64;
    let each: Vec<(f64, f64)> = since(servers, &before)?
        .iter()
        .zip(idle)
        .map(|(spent, idle)| {
            let whole = (spent.whole_us - idle.whole_us * windows).max(0.0);
            // An agreement takes the place of an idle view, so it may take more than what is used beyond idle.
            (whole, (spent.waited_for_us() - idle.waited_for_us() * windows).max(0.0))
        })
        .collect();
    let side = |(whole, waited): (f64, f64), controllers: usize| {
        let of_one = 1e3 / window.count.max(1) as f64 / controllers as f64;
        Side { whole_ns: whole * of_one, waited_ns: waited * of_one }
    };
    let led = each.get(leader - 1).copied().unwrap_or_default();
    let all = each.iter().fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
    let others = side((all.0 - led.0, all.1 - led.1), each.len().max(2) - 1);
    Ok(Used { leader: side(led, 1), member: others, took_ns: window.p50_us * 1e3 })
}

/// Half of a round trip between two threads over loopback.
fn hop_ns() -> Result<f64, Failure> {
    const TRIPS: usize = 2_000;
    let io = |error| Failure::io("a round trip over loopback")(error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io)?;
    let mut one = TcpStream::connect(listener.local_addr().map_err(io)?).map_err(io)?;
    let (mut other, _) = listener.accept().map_err(io)?;
    one.set_nodelay(true).and_then(|()| other.set_nodelay(true)).map_err(io)?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0; 1];
        while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
    });
    let mut found = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let begun = Instant::now();
        one.write_all(&[1]).and_then(|()| one.read_exact(&mut [0; 1])).map_err(io)?;
        found.push(begun.elapsed().as_nanos() as f64 / 2.0);
    }
    drop(one);
    // It ends with the connection.
    let _ended = echo.join();
    Ok(median(found.into_iter()))
}

fn sync_ns(folder: &Path) -> Result<f64, Failure> {
    let path = folder.join("sync");
    let file = std::fs::File::create(&path).map_err(Failure::io(path.display().to_string()))?;
    let mut found = Vec::with_capacity(REPEATS);
    for round in 0..REPEATS {
        let begun = Instant::now();
        file.write_all_at(&[7; 4096], round as u64 * 4096)
            .and_then(|()| file.sync_data())
            .map_err(Failure::io(path.display().to_string()))?;
        found.push(begun.elapsed().as_nanos() as f64);
    }
    Ok(median(found.into_iter()))
}

/// A member's own key.
pub(in crate::bench) fn member_key(id: u32) -> KeyPair {
    KeyPair::from_seed(&[id as u8; 32])
}

/// A group with its shares, in one process.
pub(in crate::bench) struct Group {
    /// Its key.
    pub(in crate::bench) public: GroupPublic,
    /// The members' shares of it.
    pub(in crate::bench) secrets: BTreeMap<u32, MemberSecret>,
}

impl Group {
    pub(in crate::bench) fn make(members: usize) -> Result<Group, Failure> {
        let mut rng = Rng::new(members as u64);
        let keys: BTreeMap<u32, KeyPair> = (1..=members as u32).map(|id| (id, member_key(id))).collect();
        let public = keys.iter().map(|(id, key)| (*id, key.public())).collect();
        let round = Round::fresh(domain()?, 0, public).map_err(wrong)?;
        let mut players = BTreeMap::new();
        for id in keys.keys() {
            players.insert(*id, Player::new(round.clone(), *id).map_err(wrong)?);
        }
        let mut ledger = Ledger::new(round.clone());
        for (id, key) in &keys {
            let mut dealer =
                Dealer::new(round.clone(), *id, None, &mut |bytes| rng.fill(bytes)).map_err(wrong)?;
            for (player, state) in &mut players {
                let deal = dealer.deal(*player).ok_or_else(|| wrong("no such player"))?;
                let ack = state.take(&deal, &keys[player]).map_err(|fault| wrong(format!("{fault:?}")))?;
                dealer.take_ack(&ack).map_err(|fault| wrong(format!("{fault:?}")))?;
            }
            let log = dealer.log(key).ok_or_else(|| wrong("players are missing"))?;
            ledger.add(&log).map_err(|fault| wrong(format!("{fault:?}")))?;
        }
        let mut secrets = BTreeMap::new();
        for (id, player) in &players {
            secrets.insert(*id, player.finish(&ledger).map_err(wrong)?.1);
        }
        Ok(Group { public: ledger.outcome().map_err(wrong)?, secrets })
    }

    fn sign(&self, message: &[u8]) -> Result<weir_model::signed::BlsSignature, Failure> {
        let members = self.secrets.values().take(self.public.threshold());
        let shares: Vec<_> = members
            .map(|secret| secret.sign(Context::Batch, message))
            .collect::<Result<_, _>>()
            .map_err(wrong)?;
        combine(&shares).map_err(wrong)
    }

    fn signing(&self) -> Result<Signing, Failure> {
        let message = [9_u8; 128];
        let verifier = GroupVerifier::new(&self.public.key()).map_err(wrong)?;
        let member = self.secrets.values().next().ok_or_else(|| wrong("nobody is in the group"))?;
        let shares: Vec<_> = self
            .secrets
            .values()
            .take(self.public.threshold())
            .map(|secret| secret.sign(Context::Batch, &message))
            .collect::<Result<_, _>>()
            .map_err(wrong)?;
        Ok(Signing {
            share_ns: cpu_of(|_| member.sign(Context::Batch, &message).map_err(wrong))?,
            endorsed_ns: self.endorsed_ns()?,
            combine_ns: cpu_of(|_| {
                let signature = combine(&shares).map_err(wrong)?;
                verifier.verify(Context::Batch, &message, &signature).map_err(wrong)
            })?,
        })
    }
}

impl Group {
    /// What checking the endorsements of enough members takes.
    fn endorsed_ns(&self) -> Result<f64, Failure> {
        let threshold = self.public.threshold();
        let key = |id: &u32| member_key(*id);
        let members = self.secrets.keys().map(|id| (*id, key(id).public())).collect();
        let controllers = ControllersEntry { phase: 1, threshold: threshold as u32, members };
        let update = Update {
            target: Label::new("h1").map_err(wrong)?,
            key: Key::Network { vni: Vni(1) },
            version: Version(1),
            expected: Version::ZERO,
            change: Change::Delete,
        };
        let (header, _) = prepare_batch(&domain()?, 1, Version(1), vec![update]).map_err(wrong)?;
        let endorse = |id: &u32| MemberSignature { member: *id, signature: endorse(&key(id), 1, &header) };
        let signatures: Vec<_> = self.secrets.keys().take(threshold).map(endorse).collect();
        cpu_of(|_| endorsement::verify(&controllers, &header, 1, &signatures).map_err(wrong))
    }
}

/// What a switch's gate uses for an update.
fn take_ns(path: &Path, group: Option<&Group>) -> Result<f64, Failure> {
    let (domain, host) = (domain()?, Label::new("h1").map_err(wrong)?);
    let single = SingleSigner(KeyPair::from_seed(&[1; 32]));
    let key = group.map_or_else(|| single.group_key(), |group| GroupKey::Threshold(group.public.key()));
    let mut gate = Gate::open(host.clone(), Verifier::new(domain.clone(), key), path)
        .map_err(Failure::io(path.display().to_string()))?;
    let mut frames = Vec::new();
    for round in 0..REPEATS {
        let version = Version(round as u64 + 1);
        let update = Update {
            target: host.clone(),
            key: Key::Members { vni: Vni(1), tag: domain.clone(), bucket: 1 },
            version,
            expected: Version::ZERO,
            change: Change::Put(Entry::Members(vec![[10, 0, 0, round as u8].into()])),
        };
        frames.push(match group {
            None => {
                let (header, updates) =
                    sign_batch(&single, &domain, 1, version, vec![update]).map_err(wrong)?;
                SignedUpdates { header, updates }
            }
            Some(group) => {
                let (header, updates) = prepare_batch(&domain, 1, version, vec![update]).map_err(wrong)?;
                let signature = GroupSignature::Threshold(group.sign(&encode(&header))?);
                SignedUpdates { header: SignedHeader { header, signature }, updates }
            }
        });
    }
    cpu_of(|round| {
        let acks = take(&mut gate, &frames[round], |_| Ok(())).map_err(Failure::io("a gate"))?;
        match acks.iter().all(|ack| ack.result.is_ok()) {
            true => Ok(()),
            false => Err(wrong(format!("a gate refused: {acks:?}"))),
        }
    })
}

/// A learned network whose first packets are decided.
struct Network {
    core: Core,
    sequences: BTreeMap<String, u64>,
    ports: BTreeMap<Label, PortEntry>,
}

impl Network {
    fn key(source: &str) -> KeyPair {
        let mut seed = [0; 32];
        seed.iter_mut().zip(source.bytes()).for_each(|(to, from)| *to = from);
        KeyPair::from_seed(&seed)
    }

    fn event(&mut self, source: &str, body: EventBody) -> Result<SignedEvent, Failure> {
        let sequence = self.sequences.entry(source.to_owned()).or_default();
        *sequence += 1;
        let event = Event { source: SourceId(source.into()), sequence: *sequence, body };
        Ok(sign_event(&Network::key(source), &domain()?, event, None))
    }

    /// Decides an event alone in its batch; gives the processor time.
    fn decide(&mut self, event: SignedEvent) -> Result<f64, Failure> {
        let mut out = Vec::new();
        let begun = cpu_ns();
        self.core.step(Input::Ordered(vec![Item::Event { now_ms: 1, event }]), &mut out);
        let took = cpu_ns() - begun;
        for output in out {
            match output {
                Output::Decided { outcome: Outcome::Committed(_), .. } => {}
                Output::Decided { outcome, .. } => return Err(wrong(format!("not decided: {outcome:?}"))),
                Output::Prepared { updates, .. } => {
                    for proven in updates {
                        if let (Key::Port { endpoint, .. }, Change::Put(Entry::Port(port))) =
                            (&proven.update.key, &proven.update.change)
                        {
                            self.ports.insert(endpoint.clone(), port.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(took)
    }

    fn packet(
        &mut self,
        host: &str,
        endpoint: &Label,
        why: Why,
        to: Option<std::net::IpAddr>,
    ) -> Result<f64, Failure> {
        let port = self.ports.get(endpoint).ok_or_else(|| wrong(format!("{endpoint} has no port")))?;
        let packet = PacketIn {
            endpoint: endpoint.clone(),
            why,
            source_mac: port.mac,
            source: port.addresses.first().copied(),
            destination: to,
            protocol: 17,
            ports: (1, 2),
        };
        let actuator = Label::new(host).map_err(wrong)?;
        let report = PacketInReport { actuator: actuator.clone(), vni: Vni(1), packets: vec![packet] };
        let source = SourceId::of_actuator(&actuator);
        let event = self.event(&source.0.to_string(), EventBody::PacketIn(report))?;
        self.decide(event)
    }
}

fn decide_ns() -> Result<f64, Failure> {
    let client = "client";
    let settings = CoreSettings {
        domain: domain()?,
        epoch: 1,
        source: SourceId("controller/c1".into()),
        keys: [(SourceId(client.into()), Network::key(client).public())].into(),
        believes_one: true,
        scheduler: Default::default(),
    };
    let apps: Vec<SharedApp> = vec![Arc::new(Deciders::default())];
    let core = Core::new(settings, Signer::Shares, apps);
    let mut network = Network { core, sequences: BTreeMap::new(), ports: BTreeMap::new() };
    for (host, number) in [("h1", 1), ("h2", 2)] {
        let name = Label::new(host).map_err(wrong)?;
        let identity = Network::key(&SourceId::of_actuator(&name).0).public();
        let facts = ActuatorFacts { name, role: Role::Host, identity, underlay: [192, 0, 2, number].into() };
        let event = network.event(client, EventBody::Joined(facts))?;
        network.decide(event)?;
    }
    let mutation = |kind, name: &str, text: String| -> Result<Mutation, Failure> {
        let of = (kind != Kind::Network).then(|| Label::new("blue").map_err(wrong)).transpose()?;
        let id = ResourceId { kind, network: of, name: Label::new(name).map_err(wrong)? };
        Ok(Mutation { id, expected: None, wanted: Wanted::Document(text) })
    };
    let mut mutations = vec![
        mutation(
            Kind::Network,
            "blue",
            r#"{"kind":"network","name":"blue","ingress":"allow","forwarding":"learned"}"#.into(),
        )?,
        mutation(
            Kind::Subnet,
            "main",
            r#"{"kind":"subnet","network":"blue","name":"main","v4":"10.0.0.0/16"}"#.into(),
        )?,
    ];
    for number in 0..=ENDPOINTS {
        let host = if number == 0 { "h1" } else { "h2" };
        let addresses: Vec<String> =
            (0..ADDRESSES).map(|at| format!("\"10.0.{number}.{}\"", at + 10)).collect();
        let text = format!(
            r#"{{"kind":"endpoint","network":"blue","name":"e{number}","subnet":"main","host":"{host}","addresses":[{}]}}"#,
            addresses.join(",")
        );
        mutations.push(mutation(Kind::Endpoint, &format!("e{number}"), text)?);
    }
    let event = network.event(client, EventBody::Intent(Transaction { mutations, replace_all: false }))?;
    network.decide(event)?;
    let mut found = Vec::new();
    let sender = Label::new("e0").map_err(wrong)?;
    for number in 1..=ENDPOINTS {
        let endpoint = Label::new(format!("e{number}")).map_err(wrong)?;
        network.packet("h2", &endpoint, Why::Heard, None)?;
        for at in 0..ADDRESSES {
            found.push(network.packet("h1", &sender, Why::Unknown, Some([10, 0, number, at + 10].into()))?);
        }
    }
    Ok(median(found.into_iter()))
}
