#![allow(clippy::unwrap_used)]

use super::balancer::{Member, Vip};
use super::learning::Forward;
use super::*;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use weir_store::{Aborted, Batch, Store};

/// Controllers' view of one store. A request takes a while, so that others come between; what the cache has
/// is never too young to be given.
struct Shared {
    store: Mutex<Store>,
    registry: Registry,
    requests: Mutex<u64>,
}

impl Shared {
    fn new() -> Shared {
        let shared = Shared {
            store: Mutex::new(Store::new()),
            registry: procedures(Registry::new()),
            requests: Mutex::new(0),
        };
        now(create_tables(&Controller::of(&shared))).unwrap();
        shared
    }
}

/// Table and key.
type Name = (String, Vec<u8>);

struct Controller<'a> {
    shared: &'a Shared,
    cache: Mutex<HashMap<Name, Option<Vec<u8>>>>,
}

impl Controller<'_> {
    fn of(shared: &Shared) -> Controller<'_> {
        Controller { shared, cache: Mutex::default() }
    }
}

/// Lets others go first, once.
async fn pause() {
    let mut paused = false;
    std::future::poll_fn(
        |_| if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending },
    )
    .await;
}

impl Data for Controller<'_> {
    type Error = Infallible;

    async fn read(&self, query: Query) -> std::result::Result<Answer, Infallible> {
        pause().await;
        *self.shared.requests.lock().unwrap() += 1;
        Ok(self.shared.store.lock().unwrap().query(&self.shared.registry, &query))
    }

    async fn submit(&self, operation: Operation) -> std::result::Result<Outcome, Infallible> {
        pause().await;
        *self.shared.requests.lock().unwrap() += 1;
        let mut store = self.shared.store.lock().unwrap();
        let now_ms = store.now_ms();
        Ok(store.apply(&self.shared.registry, now_ms, &Batch::once([operation])).outcomes.remove(0))
    }

    async fn cached(
        &self,
        table: &str,
        key: &[u8],
        staleness_ms: u64,
    ) -> std::result::Result<Option<Vec<u8>>, Infallible> {
        let name = (table.to_owned(), key.to_vec());
        if staleness_ms > 0
            && let Some(known) = self.cache.lock().unwrap().get(&name)
        {
            return Ok(known.clone());
        }
        let value = match self.read(get(table, key, Select::Whole)).await? {
            Answer::Found(found) => match found.value {
                Selected::Whole(value) => Some(value),
                other => panic!("{other:?}"),
            },
            Answer::Absent { .. } => None,
            other => panic!("{other:?}"),
        };
        self.cache.lock().unwrap().insert(name, value.clone());
        Ok(value)
    }

    async fn put(&self, table: &str, key: &[u8], value: Vec<u8>) -> std::result::Result<(), Infallible> {
        let outcome = self.submit(super::put(table, key, Condition::Always, value.clone())).await?;
        assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        self.cache.lock().unwrap().insert((table.to_owned(), key.to_vec()), Some(value));
        Ok(())
    }
}

/// Runs a future that waits for nothing but its turn.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// Runs futures together, in an order that the seed says.
fn together<T>(seed: u64, futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut waiting: Vec<_> = futures.into_iter().enumerate().collect();
    let mut done = BTreeMap::new();
    while !waiting.is_empty() {
        let at = random.random_range(0..waiting.len());
        if let Poll::Ready(value) = waiting[at].1.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            done.insert(waiting.swap_remove(at).0, value);
        }
    }
    done.into_values().collect()
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

fn packet(source: u8, target: u8, port: u32, now_ms: u64) -> PacketIn {
    let target = if target == 0 { MacAddr::BROADCAST } else { mac(target) };
    PacketIn { switch: 1, port, source: mac(source), target, addresses: Some((ip(source), ip(9))), now_ms }
}

fn vip() -> Vip {
    let (address, mac) = (Ipv4Addr::new(10, 9, 9, 9), MacAddr([2, 9, 9, 9, 9, 9]));
    Vip { id: 7, name: "shop".into(), address, mac, port: 80, pool: 3 }
}

fn members(count: u64) -> Vec<Member> {
    let member = |id: u64| Member {
        id,
        name: format!("web-{id}"),
        address: ip(100 + id as u8),
        mac: mac(100 + id as u8),
        port: 8080,
    };
    (0..count).map(member).collect()
}

/// Which members the store's procedure chooses, question by question.
pub(crate) fn turns_of_the_procedure(count: u64, questions: usize) -> Vec<u64> {
    let shared = Shared::new();
    let data = Controller::of(&shared);
    now(balancer::configure(&data, &vip(), &members(count))).unwrap();
    let choose = || now(balancer::choose(&data, Form::Procedures, 0, vip().address)).unwrap().unwrap();
    (0..questions).map(|_| u64::from(choose().address.octets()[3]) - 100).collect()
}

#[test]
fn a_switch_learns_and_forgets_nothing_in_every_form() {
    for form in Form::ALL {
        let shared = Shared::new();
        let data = Controller::of(&shared);
        let go = |packet: PacketIn| now(learning::forward(&data, form, 1, &packet)).unwrap();
        assert_eq!(go(packet(1, 0, 11, 0)), Forward::Flood, "{form:?}: to all");
        assert_eq!(go(packet(2, 1, 12, 0)), Forward::Port(11), "{form:?}: to one that was heard");
        assert_eq!(go(packet(1, 2, 11, 0)), Forward::Port(12), "{form:?}: and back");
        assert_eq!(go(packet(1, 2, 13, 0)), Forward::Port(12), "{form:?}: it moved");
        assert_eq!(go(packet(2, 1, 12, 0)), Forward::Port(13), "{form:?}: and is found there");
        assert_eq!(go(packet(2, 5, 12, 0)), Forward::Flood, "{form:?}: to one never heard");
        let elsewhere = PacketIn { switch: 2, ..packet(4, 1, 1, 0) };
        assert_eq!(go(elsewhere), Forward::Flood, "{form:?}: another switch knows nothing of it");
    }
}

#[test]
fn each_form_asks_the_store_no_more_often_than_the_one_before() {
    let count = |work: &dyn Fn(&Controller<'_>, Form), form| {
        let shared = Shared::new();
        let data = Controller::of(&shared);
        now(balancer::configure(&data, &vip(), &members(3))).unwrap();
        for source in [1, 2] {
            now(devices::seen(&data, Form::Plain, 0, &packet(source, 0, 1, 0))).unwrap();
        }
        let before = *shared.requests.lock().unwrap();
        work(&data, form);
        *shared.requests.lock().unwrap() - before
    };
    let counts = |work: &dyn Fn(&Controller<'_>, Form)| {
        Form::ALL[..5].iter().map(|&form| count(work, form)).collect::<Vec<_>>()
    };
    // A source that was not heard before is asked for and then ordered; from then on nothing is ordered.
    let forward =
        |data: &Controller<'_>, form| _ = now(learning::forward(data, form, 0, &packet(1, 2, 1, 0))).unwrap();
    assert_eq!(counts(&forward), [2, 2, 2, 2, 2]);
    let thrice = counts(&|data, form| (0..3).for_each(|_| forward(data, form)));
    assert_eq!(thrice, [6, 6, 6, 6, 4]);
    let arp = counts(&|data, form| _ = now(balancer::resolve(data, form, 0, vip().address)).unwrap());
    assert_eq!(arp, [2, 1, 1, 1, 1]);
    let choose = counts(&|data, form| _ = now(balancer::choose(data, form, 0, vip().address)).unwrap());
    assert_eq!(choose, [5, 4, 4, 4, 1]);
    let known = counts(&|data, form| _ = now(devices::seen(data, form, 0, &packet(1, 2, 1, 5))).unwrap());
    assert_eq!(known, [5, 3, 3, 3, 1]);
    // The paper's has 8 and 7: here the device, its address and the index are written at once.
    let unknown = counts(&|data, form| _ = now(devices::seen(data, form, 0, &packet(3, 2, 1, 5))).unwrap());
    assert_eq!(unknown, [6, 5, 5, 5, 1]);
}

#[test]
fn turns_are_taken_once_however_controllers_come_between_each_other() {
    for form in Form::ALL {
        for seed in 0..40 {
            let shared = Shared::new();
            let controllers: Vec<_> = (0..4).map(|_| Controller::of(&shared)).collect();
            now(balancer::configure(&controllers[0], &vip(), &members(3))).unwrap();
            let one = |data| -> Pin<Box<dyn Future<Output = Vec<Ipv4Addr>> + '_>> {
                Box::pin(async move {
                    let mut chosen = Vec::new();
                    for _ in 0..6 {
                        chosen.push(
                            balancer::choose(data, form, 1, vip().address).await.unwrap().unwrap().address,
                        );
                    }
                    chosen
                })
            };
            let chosen = together(seed, controllers.iter().map(one).collect()).concat();
            let mut each = BTreeMap::<_, u32>::new();
            for address in chosen {
                *each.entry(address).or_default() += 1;
            }
            assert_eq!(each.into_values().collect::<Vec<_>>(), [8, 8, 8], "{form:?} seed {seed}");
        }
    }
}

#[test]
fn an_address_with_another_pool_is_noticed_behind_a_stale_cache() {
    let shared = Shared::new();
    let (data, other) = (Controller::of(&shared), Controller::of(&shared));
    now(balancer::configure(&data, &vip(), &members(2))).unwrap();
    let choose = |data| now(balancer::choose(data, Form::Cached, 1, vip().address)).unwrap().unwrap();
    assert_eq!(choose(&data).address, ip(100));
    let fresh = Member { id: 50, address: ip(150), ..members(1).remove(0) };
    now(balancer::configure(&other, &Vip { pool: 4, ..vip() }, &[fresh])).unwrap();
    assert_eq!(choose(&data).address, ip(150));
    assert_eq!(now(balancer::resolve(&data, Form::Cached, 1, ip(1))).unwrap(), None);
}

#[test]
fn a_pool_that_makes_no_sense_is_refused() {
    let shared = Shared::new();
    let data = Controller::of(&shared);
    let error = now(balancer::configure(&data, &vip(), &[])).unwrap_err().to_string();
    assert!(error.contains("0 members, 1 to 1024 are allowed"), "{error}");
    now(data.submit(super::put("devices/macs", &mac(1).0, Condition::Always, vec![0; 8]))).unwrap();
    let broken =
        put("devices/devices", &[0; 8], Condition::Always, weir_store::columns::Columns::new().to_value());
    now(data.submit(broken)).unwrap();
    let error = now(devices::seen(&data, Form::Versions, 0, &packet(1, 0, 1, 0))).unwrap_err().to_string();
    assert!(error.contains("no device"), "{error}");
}

#[test]
fn a_device_is_made_once_and_all_its_addresses_are_in_the_index() {
    for form in Form::ALL {
        for seed in 0..40 {
            let shared = Shared::new();
            let controllers: Vec<_> = (0..4).map(|_| Controller::of(&shared)).collect();
            let one = |(at, data): (usize, _)| -> Pin<Box<dyn Future<Output = ()> + '_>> {
                Box::pin(async move {
                    for source in [1, 2, 1] {
                        let addresses = Some((ip(10 * (at as u8 + 1) + source), ip(200)));
                        let packet = PacketIn { addresses, ..packet(source, 3 - source, at as u32, 5) };
                        devices::seen(data, form, 1, &packet).await.unwrap();
                    }
                })
            };
            together(seed, controllers.iter().enumerate().map(one).collect());
            let mut ids = BTreeSet::new();
            for source in [1, 2] {
                let device = now(devices::by_mac(&controllers[0], mac(source))).unwrap().unwrap();
                assert!(ids.insert(device.id), "{form:?} seed {seed}: two devices with one number");
                let expected: BTreeSet<_> = (1..=4).map(|at| ip(10 * at + source)).collect();
                assert_eq!(device.addresses, expected, "{form:?} seed {seed}");
                for address in device.addresses {
                    let indexed = now(devices::by_address(&controllers[0], address)).unwrap();
                    assert_eq!(indexed, [device.id], "{form:?} seed {seed} {address}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_form_makes_no_difference(steps in prop::collection::vec((1_u8..6, 0_u8..6, 1_u32..4, any::<bool>()), 1..60)) {
        let mut all = Vec::new();
        for form in Form::ALL {
            let shared = Shared::new();
            let data = Controller::of(&shared);
            now(balancer::configure(&data, &vip(), &members(3))).unwrap();
            let mut decisions = Vec::new();
            for (at, &(source, target, port, with_address)) in steps.iter().enumerate() {
                let mut packet = packet(source, target, port, at as u64);
                if !with_address {
                    packet.addresses = None;
                }
                let forward = now(learning::forward(&data, form, 0, &packet)).unwrap();
                let mut seen = now(devices::seen(&data, form, 0, &packet)).unwrap();
                let choice = now(balancer::choose(&data, form, 0, vip().address)).unwrap();
                let mac = now(balancer::resolve(&data, form, 0, vip().address)).unwrap();
                // The paper's order: a procedure that reads both devices sees the target before the source is
                // noted, so a packet to oneself shows oneself as before.
                if packet.source == packet.target {
                    seen.target = None;
                }
                decisions.push((forward, seen, choice, mac));
            }
            all.push(decisions);
        }
        for decisions in &all[1..] {
            prop_assert_eq!(decisions, &all[0]);
        }
    }
}

const PORTS: &[(&str, &str)] = &[("ports", "test-ports")];
const MANAGER: &[(&str, &str)] = &[
    ("devices", "test-devices"),
    ("macs", "test-macs"),
    ("addresses", "test-addresses"),
    ("counters", "test-counters"),
];

/// The apps' code as the fabric runs it, on a part of its own tables.
struct Beneath {
    store: Store,
    part: u8,
}

impl Beneath {
    fn decide<T>(
        &mut self,
        tables: &'static [(&'static str, &'static str)],
        decide: impl FnOnce(&mut beside::Part<'_, '_>) -> std::result::Result<T, Aborted>,
    ) -> T {
        let mut view = self.store.view();
        let decided = decide(&mut beside::Part::new(&mut view, tables, vec![self.part])).unwrap();
        let version = Version(self.store.version().0 + 1);
        let writes = view.into_writes();
        self.store.commit(version, writes);
        decided
    }

    fn learn(&mut self, packet: &PacketIn) -> Forward {
        let learned = self.decide(PORTS, |tables| {
            learning::learn(tables, packet.switch, (packet.source, packet.port), packet.target)
        });
        learned.map_or(Forward::Flood, Forward::Port)
    }

    fn seen(&mut self, packet: &PacketIn) -> devices::Seen {
        self.decide(MANAGER, |tables| devices::seen_beside(tables, packet))
    }
}

#[test]
fn parts_of_tables_know_nothing_of_each_other_and_forget_without_a_trace() {
    let mut one = Beneath { store: Store::new(), part: 1 };
    let empty = one.store.digest();
    one.learn(&packet(1, 2, 7, 0));
    one.seen(&packet(1, 2, 7, 0));
    assert_eq!(one.learn(&packet(2, 1, 8, 0)), Forward::Port(7));
    one.part = 2;
    assert_eq!(one.learn(&packet(2, 1, 8, 0)), Forward::Flood);
    assert!(one.seen(&packet(1, 2, 7, 0)).new);
    for part in [1, 2] {
        one.part = part;
        for address in [mac(1), mac(2)] {
            one.decide(PORTS, |tables| learning::forget(tables, 1, address));
            one.decide(MANAGER, |tables| devices::forget(tables, address));
        }
        one.decide(MANAGER, |tables| tables.remove("counters", b"device"));
    }
    assert_eq!(one.store.digest(), empty);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_fabric_decides_as_every_form_does(steps in prop::collection::vec((1_u8..6, 0_u8..6, 1_u32..4, any::<bool>()), 1..60)) {
        let packets: Vec<PacketIn> = steps.iter().enumerate().map(|(at, &(source, target, port, with_address))| {
            let packet = packet(source, target, port, at as u64);
            PacketIn { addresses: packet.addresses.filter(|_| with_address), ..packet }
        }).collect();
        let mut beneath = Beneath { store: Store::new(), part: 9 };
        let own: Vec<_> = packets.iter().map(|packet| (beneath.learn(packet), beneath.seen(packet))).collect();
        for form in Form::ALL {
            let shared = Shared::new();
            let data = Controller::of(&shared);
            for (packet, (forward, seen)) in packets.iter().zip(&own) {
                prop_assert_eq!(now(learning::forward(&data, form, 0, packet)).unwrap(), *forward);
                let mut other = now(devices::seen(&data, form, 0, packet)).unwrap();
                let mut seen = seen.clone();
                // The paper's order: see `the_form_makes_no_difference`.
                if packet.source == packet.target {
                    (other.target, seen.target) = (None, None);
                }
                prop_assert_eq!(other, seen);
            }
        }
    }
}
