//! The three apps of packets on a store of one process: gRPC on loopback, durable log (Botelho et al. §VII).
//!
//!     cargo bench -p weir-apps --bench flows [-- SECONDS CALLERS ROUNDS]        (make bench-flows)
//!
//! First sizes: for each workload and form the bytes of each request and reply, beside the paper's Table I.
//! Then throughput: closed-loop callers, forms taking turns within each round; medians over rounds of
//! flows a second and of the 90th percentile of latency, each form beside the plain one.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use weir_apps::flows::balancer::{self, Member, Vip};
use weir_apps::flows::{Data, Form, PacketIn, devices, learning};
use weir_base::world::{RealClock, RealDisk};
use weir_model::MacAddr;
use weir_rpc::access::Identity;
use weir_rpc::cache::Cache;
use weir_rpc::client::{Client, ClientSettings};
use weir_rpc::local::{LocalSettings, LocalStore};
use weir_rpc::{Error, sizes};
use weir_store::{Answer, Condition, Operation, Outcome, Query, Registry};

/// Hosts that send, virtual addresses, members of each.
const HOSTS: u32 = 4_096;
const VIPS: u32 = 256;
const MEMBERS: u64 = 8;
/// How old a cached entry may be, milliseconds.
const STALENESS_MS: u64 = 1_000;

/// Bytes of requests and replies, in order.
type Sizes = Arc<Mutex<Vec<(usize, usize)>>>;

/// One controller: a client, its cache, and the sizes of what it asks when somebody wants them.
#[derive(Clone)]
struct Controller {
    client: Client,
    cache: Cache,
    sizes: Option<Sizes>,
}

impl Controller {
    fn note(&self, sizes: impl FnOnce() -> (usize, usize)) {
        if let Some(all) = &self.sizes {
            all.lock().unwrap().push(sizes());
        }
    }
}

impl Data for Controller {
    type Error = Error;

    async fn read(&self, query: Query) -> Result<Answer, Error> {
        let (_, answer) = self.client.read(query.clone(), 0).await?;
        self.note(|| sizes::of_query(&query, &answer));
        Ok(answer)
    }

    async fn submit(&self, operation: Operation) -> Result<Outcome, Error> {
        let asked = self.sizes.is_some().then(|| operation.clone());
        let outcome = self.client.submit(operation).await?;
        if let Some(operation) = asked {
            self.note(|| sizes::of_operation(&operation, &outcome));
        }
        Ok(outcome)
    }

    async fn cached(&self, table: &str, key: &[u8], staleness_ms: u64) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.cache.get(table, key, staleness_ms).await?.map(|cached| cached.value.to_vec()))
    }

    async fn put(&self, table: &str, key: &[u8], value: Vec<u8>) -> Result<(), Error> {
        let written = self.cache.put(table, key, Condition::Always, &value).await?;
        assert!(written.is_ok(), "a write without a condition met one");
        Ok(())
    }
}

/// The paper's workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    LsBcast,
    LsUcast,
    LbArp,
    LbVip,
    DmKnown,
    DmUnknown,
}

impl Work {
    const ALL: [Work; 6] =
        [Work::LsBcast, Work::LsUcast, Work::LbArp, Work::LbVip, Work::DmKnown, Work::DmUnknown];

    fn name(self) -> &'static str {
        match self {
            Work::LsBcast => "ls-bcast",
            Work::LsUcast => "ls-ucast",
            Work::LbArp => "lb-arp",
            Work::LbVip => "lb-vip",
            Work::DmKnown => "dm-known",
            Work::DmUnknown => "dm-unknown",
        }
    }

    /// Request and reply bytes of each operation in Table I, form by form; a form without a row is as the one
    /// before it.
    fn paper(self, form: Form) -> &'static [(usize, usize)] {
        match (self, form) {
            (Work::LsBcast, _) => &[(113, 1)],
            (Work::LsUcast, Form::Procedures) => &[(56, 6)],
            (Work::LsUcast, _) => &[(113, 1), (36, 77)],
            (Work::LbArp, Form::Plain) => &[(104, 8), (29, 509)],
            (Work::LbArp, Form::References) => &[(104, 509)],
            (Work::LbArp, Form::Versions) => &[(104, 513)],
            (Work::LbArp, _) => &[(62, 324)],
            (Work::LbVip, Form::Plain) => &[(104, 8), (29, 509), (30, 369), (772, 1), (32, 221)],
            (Work::LbVip, Form::References) => &[(104, 509), (30, 369), (772, 1), (32, 221)],
            (Work::LbVip, Form::Versions) => &[(104, 513), (30, 373), (403, 1), (32, 225)],
            (Work::LbVip, Form::Columns) => &[(62, 324), (30, 373), (403, 1), (44, 4)],
            (Work::LbVip, _) => &[(62, 324), (11, 4)],
            (Work::DmKnown, Form::Plain) => &[(408, 8), (26, 1444), (2942, 0), (408, 8), (26, 1369)],
            (Work::DmKnown, Form::References) => &[(408, 1274), (2602, 0), (408, 1199)],
            (Work::DmKnown, Form::Versions) => &[(408, 1278), (1316, 1), (408, 1203)],
            (Work::DmKnown, Form::Columns) => &[(486, 1261), (667, 1), (416, 474)],
            (Work::DmKnown, _) => &[(28, 1414), (36, 0)],
            (Work::DmUnknown, Form::Plain) => {
                &[(408, 0), (21, 4), (1395, 1), (416, 0), (386, 0), (517, 0), (408, 8), (26, 1378)]
            }
            (Work::DmUnknown, Form::References) => {
                &[(408, 0), (21, 4), (1225, 1), (416, 0), (386, 0), (517, 0), (408, 1208)]
            }
            (Work::DmUnknown, Form::Versions) => {
                &[(408, 0), (21, 4), (1225, 1), (416, 0), (386, 0), (517, 0), (408, 1212)]
            }
            (Work::DmUnknown, Form::Columns) => {
                &[(486, 0), (21, 4), (1183, 1), (416, 0), (386, 0), (517, 0), (416, 474)]
            }
            (Work::DmUnknown, _) => &[(28, 201), (476, 8)],
        }
    }

    /// Handles one packet; `number` tells packets apart.
    async fn flow(self, data: &Controller, form: Form, number: u32) {
        let packet = packet(self, number);
        let stale = STALENESS_MS;
        match self {
            Work::LsBcast | Work::LsUcast => _ = learning::forward(data, form, stale, &packet).await.unwrap(),
            Work::LbArp => {
                assert!(balancer::resolve(data, form, stale, vip(number).address).await.unwrap().is_some())
            }
            Work::LbVip => {
                assert!(balancer::choose(data, form, stale, vip(number).address).await.unwrap().is_some())
            }
            Work::DmKnown | Work::DmUnknown => {
                let seen = devices::seen(data, form, stale, &packet).await.unwrap();
                assert_eq!(seen.new, self == Work::DmUnknown, "packet {number}");
                assert!(seen.target.is_some(), "packet {number}");
            }
        }
    }
}

fn mac(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

/// Spreads numbers over so many.
fn spread(number: u32, over: u32) -> u32 {
    ((u64::from(number.wrapping_mul(0x9E37_79B1)) * u64::from(over)) >> 32) as u32
}

fn packet(work: Work, number: u32) -> PacketIn {
    let source = if work == Work::DmUnknown { HOSTS + number } else { spread(number, HOSTS) };
    let target = if work == Work::LsBcast { MacAddr::BROADCAST } else { mac(spread(number ^ 0x5555, HOSTS)) };
    let addresses = Some((Ipv4Addr::from(0x0A00_0000 | (source & 0x00FF_FFFF)), Ipv4Addr::new(10, 0, 0, 1)));
    PacketIn {
        switch: 1,
        port: source % 48,
        source: mac(source),
        target,
        addresses,
        now_ms: u64::from(number),
    }
}

fn vip(number: u32) -> Vip {
    let id = spread(number, VIPS);
    let address = Ipv4Addr::from(0xC0A8_0000 | id);
    let name = format!("service-{id}.example");
    Vip { id: id.into(), name, address, mac: mac(0x4000_0000 | id), port: 443, pool: id.into() }
}

async fn fill(data: &Controller) {
    weir_apps::flows::create_tables(data).await.unwrap();
    for id in 0..VIPS {
        let vip = (0..).map(vip).find(|vip| vip.id == u64::from(id)).unwrap();
        let member = |at: u64| Member {
            id: u64::from(id) * MEMBERS + at,
            name: format!("server-{id}-{at}.example"),
            address: Ipv4Addr::from(0x0B00_0000 | (id << 8) | at as u32),
            mac: mac(0x5000_0000 | (id << 8) | at as u32),
            port: 8443,
        };
        balancer::configure(data, &vip, &(0..MEMBERS).map(member).collect::<Vec<_>>()).await.unwrap();
    }
    for host in 0..HOSTS {
        let addresses = Some((Ipv4Addr::from(0x0A00_0000 | host), Ipv4Addr::new(10, 0, 0, 1)));
        let target = MacAddr::BROADCAST;
        let packet = PacketIn { switch: 1, port: host % 48, source: mac(host), target, addresses, now_ms: 0 };
        learning::forward(data, Form::Plain, 0, &packet).await.unwrap();
        devices::seen(data, Form::Procedures, 0, &packet).await.unwrap();
    }
}

fn text(sizes: &[(usize, usize)]) -> String {
    let (requests, replies) = sizes.iter().fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    let each: Vec<_> = sizes.iter().map(|(request, reply)| format!("({request},{reply})")).collect();
    format!("{} = ({requests},{replies})", each.join(" "))
}

/// Packets for `DmUnknown` must be new each time.
struct Numbers(u32);

impl Numbers {
    fn take(&mut self, count: u32) -> u32 {
        self.0 += count;
        self.0 - count
    }
}

async fn print_sizes(data: &Controller, numbers: &mut Numbers) {
    println!(
        "{:<11}{:<6}request and reply bytes of each operation = sum; the paper's below",
        "workload", "form"
    );
    for work in Work::ALL {
        for form in &Form::ALL[..5] {
            let all = Arc::new(Mutex::new(Vec::new()));
            let data = Controller { sizes: Some(all.clone()), ..data.clone() };
            work.flow(&data, *form, numbers.take(1)).await;
            println!("{:<11}{:<6}{}", work.name(), form.word(), text(&all.lock().unwrap()));
            println!("{:<11}{:<6}{}", "", "paper", text(work.paper(*form)));
        }
    }
}

/// One window: flows a second, and the 90th percentile of latency, milliseconds.
async fn window(
    data: &[Controller],
    work: Work,
    form: Form,
    callers: u32,
    window: Duration,
    first: u32,
) -> (f64, f64) {
    let begun = Instant::now();
    let end = begun + window;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let data = data[caller as usize % data.len()].clone();
            tokio::spawn(async move {
                let mut taken_us = Vec::new();
                for number in (first + caller..).step_by(callers as usize) {
                    let begun = Instant::now();
                    if begun >= end {
                        break;
                    }
                    work.flow(&data, form, number).await;
                    taken_us.push(begun.elapsed().as_micros() as u64);
                }
                taken_us
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    let p90 = all[all.len() * 9 / 10] as f64 / 1_000.0;
    (all.len() as f64 / begun.elapsed().as_secs_f64(), p90)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn print_throughput(
    data: &[Controller],
    seconds: f64,
    callers: u32,
    rounds: usize,
    numbers: &mut Numbers,
) {
    for work in Work::ALL {
        let mut measured = vec![Vec::new(); Form::ALL.len()];
        for _ in 0..rounds {
            for (at, &form) in Form::ALL.iter().enumerate() {
                // More numbers than a window can use, so that no packet comes twice.
                let first = numbers.take(4_000_000);
                measured[at]
                    .push(window(data, work, form, callers, Duration::from_secs_f64(seconds), first).await);
            }
        }
        let of = |at: usize, part: fn(&(f64, f64)) -> f64| median(measured[at].iter().map(part).collect());
        for (at, form) in Form::ALL.iter().enumerate() {
            let (name, word) = (work.name(), form.word());
            let ((flows, p90), (plain, plain_p90)) =
                ((of(at, |m| m.0), of(at, |m| m.1)), (of(0, |m| m.0), of(0, |m| m.1)));
            println!(
                "RESULT flows {name}-{word}-throughput weir={flows:.0}/s init={plain:.0}/s ratio={:.2}",
                flows / plain
            );
            println!(
                "RESULT flows {name}-{word}-p90 weir={p90:.2}ms init={plain_p90:.2}ms ratio={:.2}",
                p90 / plain_p90
            );
        }
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<f64>().ok());
    let seconds = numbers.next().unwrap_or(0.5);
    let callers = numbers.next().unwrap_or(64.0) as u32;
    let rounds = numbers.next().unwrap_or(5.0) as usize;
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let registry = Arc::new(weir_apps::flows::procedures(Registry::new()));
    let store = Arc::new(
        LocalStore::open(disk, Arc::new(RealClock::new()), registry, LocalSettings::default()).unwrap(),
    );
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = server.block_on(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let anybody =
        Arc::new(|_: &tonic::Extensions, _: &tonic::metadata::MetadataMap| Ok(Identity::admin("bench")));
    server.spawn(weir_rpc::server::serve(listener, None, store, anybody, std::future::pending()));
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let controller = || {
            let client = Client::new(ClientSettings::new([address.clone()])).unwrap();
            Controller { cache: Cache::new(client.clone(), 100_000), client, sizes: None }
        };
        let controllers = [controller(), controller()];
        fill(&controllers[0]).await;
        let mut numbers = Numbers(0);
        print_sizes(&controllers[0], &mut numbers).await;
        print_throughput(&controllers, seconds, callers.max(1), rounds.max(1), &mut numbers).await;
    });
}
