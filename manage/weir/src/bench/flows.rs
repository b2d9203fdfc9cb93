//! `weir bench flows`: the three apps of packets on the store of a group of three controllers (Botelho et al. §VII, rows B10
//! and B11).
//!
//! The replicas are processes of their own on loopback, which sync every write to disk; what handles packets is this process,
//! with two clients as two controllers would be. First sizes: for each workload and form the bytes of each request and reply, beside the
//! paper's Table I. Then throughput: closed-loop callers, forms taking turns within each round; medians over rounds of flows
//! a second and of the 90th percentile of latency, each form beside the plain one.

mod trace;

use super::order::{client, median, servers};
use crate::failure::Failure;
use clap::Args;
use client::weir_client;
use servers::{Peer, Servers, runtime};
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_apps::flows::balancer::{self, Member, Vip};
use weir_apps::flows::{Data, Form, PacketIn, devices, learning};
use weir_model::MacAddr;
use weir_rpc::cache::Cache;
use weir_rpc::client::Client;
use weir_rpc::{Error, sizes};
use weir_store::{Answer, Condition, Operation, Outcome, Query};

#[derive(Debug, Args)]
pub struct Flows {
    /// How often each workload is measured in each form
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=21))]
    rounds: u32,
    /// How long each time, milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    /// Packets that are handled at the same time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    callers: u32,
    /// Only this workload, such as ls-ucast
    #[arg(long)]
    workload: Option<String>,
    /// Packets of this trace (pcap of whole Ethernet frames, such as `weir capture --snap-bytes 65535 -w`) instead of made
    /// ones
    #[arg(long, conflicts_with_all = ["workload", "window_ms", "callers"])]
    pcap: Option<PathBuf>,
}

fn wrong(error: impl Display) -> Failure {
    Failure::Input(error.to_string())
}

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
            all.lock().unwrap_or_else(PoisonError::into_inner).push(sizes());
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
        // A write without a condition meets none.
        let _written = self.cache.put(table, key, Condition::Always, &value).await?;
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
    async fn flow(self, data: &Controller, form: Form, number: u32) -> Result<(), Failure> {
        let packet = packet(self, number);
        let stale = STALENESS_MS;
        let found = match self {
            Work::LsBcast | Work::LsUcast => {
                learning::forward(data, form, stale, &packet).await.map_err(wrong)?;
                true
            }
            Work::LbArp => {
                balancer::resolve(data, form, stale, vip(number).address).await.map_err(wrong)?.is_some()
            }
            Work::LbVip => {
                balancer::choose(data, form, stale, vip(number).address).await.map_err(wrong)?.is_some()
            }
            Work::DmKnown | Work::DmUnknown => {
                let seen = devices::seen(data, form, stale, &packet).await.map_err(wrong)?;
                seen.new == (self == Work::DmUnknown) && seen.target.is_some()
            }
        };
        if found {
            Ok(())
        } else {
            Err(wrong(format!("{}: packet {number} was handled wrongly", self.name())))
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

async fn fill(data: &Controller) -> Result<(), Failure> {
    weir_apps::flows::create_tables(data).await.map_err(wrong)?;
    for id in 0..VIPS {
        let Some(vip) = (0..u32::MAX).map(vip).find(|vip| vip.id == u64::from(id)) else { continue };
        let member = |at: u64| Member {
            id: u64::from(id) * MEMBERS + at,
            name: format!("server-{id}-{at}.example"),
            address: Ipv4Addr::from(0x0B00_0000 | (id << 8) | at as u32),
            mac: mac(0x5000_0000 | (id << 8) | at as u32),
            port: 8443,
        };
        balancer::configure(data, &vip, &(0..MEMBERS).map(member).collect::<Vec<_>>())
            .await
            .map_err(wrong)?;
    }
    for host in 0..HOSTS {
        let addresses = Some((Ipv4Addr::from(0x0A00_0000 | host), Ipv4Addr::new(10, 0, 0, 1)));
        let target = MacAddr::BROADCAST;
        let packet = PacketIn { switch: 1, port: host % 48, source: mac(host), target, addresses, now_ms: 0 };
        learning::forward(data, Form::Plain, 0, &packet).await.map_err(wrong)?;
        devices::seen(data, Form::Procedures, 0, &packet).await.map_err(wrong)?;
    }
    Ok(())
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

async fn print_sizes(data: &Controller, works: &[Work], numbers: &mut Numbers) -> Result<(), Failure> {
    say!("{:<11}{:<6}request and reply bytes of each operation = sum; the paper's below", "workload", "form");
    for work in works {
        for form in &Form::ALL[..5] {
            let all = Sizes::default();
            let data = Controller { sizes: Some(all.clone()), ..data.clone() };
            work.flow(&data, *form, numbers.take(1)).await?;
            let all = all.lock().unwrap_or_else(PoisonError::into_inner);
            say!("{:<11}{:<6}{}", work.name(), form.word(), text(&all));
            say!("{:<11}{:<6}{}", "", "paper", text(work.paper(*form)));
        }
    }
    Ok(())
}

/// Flows a second, and the 90th percentile of latency, milliseconds.
type Measured = (f64, f64);

impl Flows {
    /// With the usual options.
    pub fn usual() -> Flows {
        Flows { rounds: 5, window_ms: 500, callers: 64, workload: None, pcap: None }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let works: Vec<Work> = Work::ALL
            .into_iter()
            .filter(|work| self.workload.as_deref().is_none_or(|name| name == work.name()))
            .collect();
        if works.is_empty() {
            let names = Work::ALL.map(Work::name).join(", ");
            return Err(wrong(format!(
                "there is no workload '{}': they are {names}",
                self.workload.unwrap_or_default()
            )));
        }
        let trace = self.pcap.as_deref().map(trace::Trace::read).transpose()?;
        let servers = Servers::start(Peer::Weir)?;
        let (context, leader) = (servers.context()?, servers.leader_address()?);
        runtime()?.block_on(async {
            let controller = || -> Result<Controller, Failure> {
                let client = weir_client(&context, std::slice::from_ref(&leader))?;
                Ok(Controller { cache: Cache::new(client.clone(), 100_000), client, sizes: None })
            };
            if let Some(trace) = &trace {
                let data = controller()?;
                weir_apps::flows::create_tables(&data).await.map_err(wrong)?;
                self.replay(&data, trace).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let controllers = [controller()?, controller()?];
            fill(&controllers[0]).await?;
            let mut numbers = Numbers(0);
            print_sizes(&controllers[0], &works, &mut numbers).await?;
            for work in works {
                self.measure(&controllers, work, &mut numbers).await?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn measure(&self, data: &[Controller], work: Work, numbers: &mut Numbers) -> Result<(), Failure> {
        let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); Form::ALL.len()];
        for _ in 0..self.rounds {
            for (form, measured) in Form::ALL.into_iter().zip(&mut measured) {
                // More numbers than a window can use, so that no packet comes twice.
                measured.push(self.window(data, work, form, numbers.take(4_000_000)).await?);
            }
        }
        let of = |at: usize, part: fn(&Measured) -> f64| median(measured[at].iter().map(part));
        let (plain, plain_p90) = (of(0, |one| one.0), of(0, |one| one.1));
        for (at, form) in Form::ALL.iter().enumerate() {
            let (name, word) = (work.name(), form.word());
            let (flows, p90) = (of(at, |one| one.0), of(at, |one| one.1));
            say!(
                "RESULT flows {name}-{word}-throughput weir={flows:.0}/s init={plain:.0}/s ratio={:.2}",
                flows / plain
            );
            say!(
                "RESULT flows {name}-{word}-p90 weir={p90:.2}ms init={plain_p90:.2}ms ratio={:.2}",
                p90 / plain_p90
            );
        }
        Ok(())
    }

    async fn window(
        &self,
        data: &[Controller],
        work: Work,
        form: Form,
        first: u32,
    ) -> Result<Measured, Failure> {
        let begun = Instant::now();
        let end = begun + Duration::from_millis(self.window_ms);
        let callers = self.callers;
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
                        work.flow(&data, form, number).await?;
                        taken_us.push(begun.elapsed().as_micros() as u64);
                    }
                    Ok::<_, Failure>(taken_us)
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.map_err(wrong)??);
        }
        all.sort_unstable();
        let p90 = all.get(all.len() * 9 / 10).map_or(f64::NAN, |us| *us as f64 / 1_000.0);
        Ok((all.len() as f64 / begun.elapsed().as_secs_f64(), p90))
    }
}
