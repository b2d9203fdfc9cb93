//! What one controller of four that crashes, hangs or lies costs the others (rows R6, R11, R12, C4, C5), in the lab of four controllers with real
//! switches: `make bench-attacks`. Root.
//!
//! - Changes of firewall rules that are in force on every switch, a second, and writes to the store, asked of the three honest controllers: with four
//!   honest ones, and in turn with each of these in place of the fourth. The program that lies is the one of the tests; it has its own
//!   machine's share of nothing: all run on the processors of this one, so what it uses itself the others lack, and its processor time is told beside.
//! - A fifth controller joins and leaves under load: the longest time without a change that came into force, and without an acknowledged write.
//! - A member that keeps its sessions with all hosts and floods them, as fast as they read (attack ii of the paper's 2.7.6): changes in force, and what
//!   setting up a flow that no switch knows takes, beside the same lab where that member is dead.
//!
//! - The fourth orders by its own word, and with stolen and changed requests of the operator, one of each kind: how many are in force.
//!
//! `members`, `orders`, `lies`, `floods` or words of the fourth's (`hangs`, `repeats` and so on) as arguments do these parts alone.
//!
//! Every round goes through all of them; medians of the rounds.

#![allow(missing_docs, dead_code)] // parts of the tests' harness, of which this bench uses some
#![allow(clippy::unwrap_used)] // a step that fails ends the bench

#[path = "../../../control/rpc/tests/suite/checker.rs"]
mod checker;
#[path = "../tests/echo.rs"]
mod echo;
#[path = "../tests/extra.rs"]
mod extra;
#[path = "../tests/flooder.rs"]
mod flooder;
#[allow(unused_imports)] // its scenarios are tests alone
#[path = "../tests/group.rs"]
mod group;
#[path = "../../../control/rpc/tests/suite/history.rs"]
mod history;
#[path = "../tests/lab.rs"]
mod lab;
#[path = "../tests/liar.rs"]
mod liar;
#[path = "../tests/namespaces.rs"]
mod namespaces;
#[path = "../../../control/bft/tests/suite/traitor.rs"]
mod traitor;
#[allow(unused_imports)] // its scenario is a test alone
#[path = "../tests/traitor_orders.rs"]
mod traitor_orders;

use group::{store, wait_whole};
use lab::Lab;
use namespaces::wait;
use serde_json::json;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use traitor::Kind;
use weir_api::client::{Client, Context};
use weir_api::types::ApplyRequest;
use weir_lab::process::Signal;
use weir_store::{Operation, TableOptions};

/// Who changes rules, and who writes, at each honest controller.
const APPLIERS: usize = 1;
const WRITERS: usize = 4;
const HONEST: [&str; 3] = ["c1", "c2", "c3"];
const WINDOW: Duration = Duration::from_secs(3);
/// What was begun before is left out.
const SETTLE: Duration = Duration::from_millis(1_500);
/// How long one waits who was refused.
const AGAIN: Duration = Duration::from_millis(50);
const TABLE: &str = "bench/attacks";
const ROUNDS: usize = 5;
/// Entries behind the others, of one that takes part.
const NEAR: u64 = 100;
/// Of each controller's log, told when one does not come back.
const LAST_LINES: usize = 100;
const NEAR_MAX: Duration = Duration::from_secs(60);

/// What the fourth controller does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fourth {
    Honest,
    Crashes,
    Hangs,
    Lies(Kind),
}

impl Fourth {
    fn word(self) -> String {
        match self {
            Fourth::Lies(kind) => format!("{kind:?}").to_lowercase(),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

/// Load on the honest controllers while this lives.
struct Load {
    stop: Arc<AtomicBool>,
    applied: Arc<Count>,
    written: Arc<Count>,
    threads: Vec<JoinHandle<()>>,
}

/// What came, and the longest time without any.
#[derive(Default)]
struct Count {
    came: AtomicU64,
    last: Mutex<Option<Instant>>,
    gap_us: AtomicU64,
}

impl Count {
    fn comes(&self) {
        let now = Instant::now();
        if let Some(last) = self.last.lock().unwrap().replace(now) {
            self.gap_us.fetch_max((now - last).as_micros() as u64, Ordering::Relaxed);
        }
        self.came.fetch_add(1, Ordering::Relaxed);
    }
}

fn alone(lab: &Lab, controller: &str) -> Context {
    Context { others: vec![], ..lab.context_of(controller) }
}

impl Load {
    fn begin(lab: &Lab) -> Load {
        let (stop, applied, written) = (Arc::default(), Arc::<Count>::default(), Arc::<Count>::default());
        let mut load = Load { stop, applied, written, threads: Vec::new() };
        for controller in HONEST {
            for number in 0..APPLIERS {
                let (client, name) =
                    (Client::new(alone(lab, controller)).unwrap(), format!("{controller}-{number}"));
                let (stop, count) = (load.stop.clone(), load.applied.clone());
                load.threads.push(std::thread::spawn(move || apply(&client, &name, &stop, &count)));
            }
            let (context, stop, count) = (alone(lab, controller), load.stop.clone(), load.written.clone());
            let name = controller.to_owned();
            load.threads.push(std::thread::spawn(move || write(&context, &name, &stop, &count)));
        }
        load
    }

    /// Changes in force and writes, a second.
    fn rates(&self) -> (f64, f64) {
        std::thread::sleep(SETTLE);
        let now = || (self.applied.came.load(Ordering::Relaxed), self.written.came.load(Ordering::Relaxed));
        let (before, begun) = (now(), Instant::now());
        std::thread::sleep(WINDOW);
        let (after, seconds) = (now(), begun.elapsed().as_secs_f64());
        assert!(self.threads.iter().all(|thread| !thread.is_finished()), "the load ended");
        ((after.0 - before.0) as f64 / seconds, (after.1 - before.1) as f64 / seconds)
    }

    fn ends(self) {
        self.stop.store(true, Ordering::Release);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Changes a rule again and again; each change is in force on every switch before the next.
fn apply(client: &Client, name: &str, stop: &AtomicBool, count: &Count) {
    let mut port = 7_000;
    while !stop.load(Ordering::Acquire) {
        port = if port == 7_000 { 7_001 } else { 7_000 };
        let rule = json!({"kind": "firewall-rule", "network": "red", "name": format!("attack-{name}"),
            "direction": "ingress", "action": "allow", "protocol": "tcp", "ports": [port.to_string()]});
        let request = ApplyRequest { resources: vec![rule], wait_ms: 20_000, ..ApplyRequest::default() };
        // A controller that has lost its quorum for a moment, or begins, says so; what was asked is asked again.
        match client.apply(&request) {
            Ok(_) => count.comes(),
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

fn write(context: &Context, name: &str, stop: &AtomicBool, count: &Count) {
    group::runtime().block_on(async {
        let client = store(context);
        let writer = |number: usize| {
            let client = client.clone();
            async move {
                let mut key = 0_u64;
                while !stop.load(Ordering::Acquire) {
                    key = (key + 1) % 1_000;
                    let key = format!("{name}-{number}-{key}").into_bytes();
                    match client.put(TABLE, &key, vec![7; 100]).await {
                        Ok(_) => count.comes(),
                        Err(_) => tokio::time::sleep(AGAIN).await,
                    }
                }
            }
        };
        let (a, b, c, d) = (writer(0), writer(1), writer(2), writer(WRITERS - 1));
        tokio::join!(a, b, c, d);
    });
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of a process, seconds.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}

/// Lets the fourth controller do something and measures; the lab is whole before and after, but for a liar that the others cut off.
fn measure(lab: &Lab, load: &Load, fourth: Fourth) -> (f64, f64, f64) {
    match fourth {
        Fourth::Honest => {
            let (applied, written) = load.rates();
            (applied, written, 0.0)
        }
        Fourth::Hangs => {
            let program = lab.program("c4").unwrap();
            assert!(program.signal(Signal::STOP).unwrap());
            let (applied, written) = load.rates();
            assert!(program.signal(Signal::CONT).unwrap());
            (applied, written, 0.0)
        }
        Fourth::Crashes => {
            lab.kill("c4");
            let (applied, written) = load.rates();
            (applied, written, 0.0)
        }
        Fourth::Lies(kind) => {
            if lab.program("c4").is_some_and(|program| program.alive()) {
                lab.kill("c4");
            }
            let mut liar = liar::begin(lab, "attacks", kind, liar::OF_FOUR);
            let (before, begun) = (cpu_s(liar.0.id()), Instant::now());
            let (applied, written) = load.rates();
            let used = (cpu_s(liar.0.id()) - before) / begun.elapsed().as_secs_f64();
            assert!(liar.0.try_wait().unwrap().is_none(), "the liar ended");
            (applied, written, used)
        }
    }
}

/// Who voted wrongly is cut off by the others as long as they run. Under load nobody has all entries at any moment, so it is asked to be near.
fn take_back(lab: &Lab) {
    lab.start("c4");
    for one in HONEST {
        lab.kill(one);
        lab.start(one);
        wait(&format!("{one} to be there"), || Client::new(alone(lab, one)).unwrap().status_here().is_ok());
    }
    near(lab);
}

fn near(lab: &Lab) {
    let begun = Instant::now();
    let is_near = || {
        lab.client().group().is_ok_and(|group| {
            let mut others = group.members.iter().filter(|member| Some(member.id) != group.leader);
            others.all(|member| member.voter && member.lag.is_some_and(|lag| lag <= NEAR))
        })
    };
    while !is_near() {
        if begun.elapsed() > NEAR_MAX {
            for one in lab.controllers() {
                let status = Client::new(alone(lab, one)).unwrap().status_here().map(|status| status.group);
                eprintln!("{one}: {status:#?}");
                let log = std::fs::read_to_string(lab.log(one)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                eprintln!("{one} said last:\n{}", lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"));
            }
            panic!("somebody is still far from the others after {NEAR_MAX:?}");
        }
        std::thread::sleep(AGAIN);
    }
}

/// Measures what has a name that `wants`; an honest fourth always.
fn attacks(lab: &Lab, wants: impl Fn(&str) -> bool) {
    let all: Vec<Fourth> = [Fourth::Honest, Fourth::Hangs, Fourth::Crashes]
        .into_iter()
        .chain(liar::KINDS.map(Fourth::Lies))
        .filter(|fourth| *fourth == Fourth::Honest || wants(&fourth.word()))
        .collect();
    let mut found: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        let load = Load::begin(lab);
        for (fourth, found) in all.iter().zip(&mut found) {
            found.push(measure(lab, &load, *fourth));
            println!("# c4 {}: {:.1?}", fourth.word(), found.last());
            if *fourth == Fourth::Hangs {
                near(lab);
            }
        }
        // Who was cut off comes back while something is ordered.
        take_back(lab);
        load.ends();
        wait_whole(lab);
    }
    let figure = |at: usize, of: fn(&(f64, f64, f64)) -> f64| median(found[at].iter().map(of).collect());
    for (at, fourth) in all.iter().enumerate() {
        let word = fourth.word();
        let cpu = figure(at, |one| one.2);
        println!("# c4 {word}: {cpu:.2} processors of its own program that lies");
        for (metric, of) in [
            ("changes-in-force", (|one| one.0) as fn(&(f64, f64, f64)) -> f64),
            ("writes", |one: &(f64, f64, f64)| one.1),
        ] {
            let (own, base) = (figure(at, of), figure(0, of));
            println!(
                "RESULT attacks {metric}-{word} weir={own:.1}/s weir-honest={base:.1}/s ratio={:.2}",
                own / base
            );
        }
    }
}

/// New connections from `red-app` to `red-db`, one after the other, each of them a flow that no switch knows; the times that took, microseconds.
struct Misses {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl Misses {
    fn begin(lab: &Lab) -> Misses {
        let (stop, netns) = (Arc::<AtomicBool>::default(), lab.netns("red-app"));
        let (stopped, to) = (stop.clone(), std::net::SocketAddr::new(lab.v4("red-db"), 5432));
        let thread = std::thread::spawn(move || {
            namespaces::enter(&netns);
            let mut took = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                let begun = Instant::now();
                // Who is not answered at all took as long as was waited.
                let _closed = std::net::TcpStream::connect_timeout(&to, Duration::from_secs(5));
                took.push(begun.elapsed().as_secs_f64() * 1e6);
                std::thread::sleep(Duration::from_millis(2));
            }
            took
        });
        Misses { stop, thread }
    }

    fn ends(self) -> Vec<f64> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// What a member that floods the hosts costs. It is dead in the comparison too: what its silence costs the order is told by `crashes`.
fn floods(lab: &Lab) {
    lab.kill("c4");
    let all: Vec<Option<flooder::Flood>> =
        std::iter::once(None).chain(flooder::FLOODS.into_iter().map(Some)).collect();
    let mut found: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); all.len()];
    let load = Load::begin(lab);
    for _ in 0..ROUNDS {
        for (flood, found) in all.iter().zip(&mut found) {
            let flooder = flood.map(|flood| flooder::begin(lab, "attacks", flood));
            let misses = Misses::begin(lab);
            let (pid, begun) = (flooder.as_ref().map(|one| one.0.id()), Instant::now());
            let (applied, _) = load.rates();
            let used = pid.map_or(0.0, |pid| cpu_s(pid) / begun.elapsed().as_secs_f64());
            found.push((applied, quantile(misses.ends(), 0.99), used));
            println!("# c4 floods {flood:?}: {:.1?}", found.last());
            if let Some(mut flooder) = flooder {
                assert!(flooder.0.try_wait().unwrap().is_none(), "the flooder ended");
            }
        }
    }
    load.ends();
    let figure = |at: usize, of: fn(&(f64, f64, f64)) -> f64| median(found[at].iter().map(of).collect());
    let quiet = (figure(0, |one| one.0), figure(0, |one| one.1));
    let mut worst = ((quiet.0, "quiet".to_owned()), (0.0, "quiet".to_owned()));
    for (at, flood) in all.iter().enumerate().skip(1) {
        let word = format!("{:?}", flood.unwrap()).to_lowercase();
        let (applied, miss) = (figure(at, |one| one.0), figure(at, |one| one.1));
        println!("# c4 floods {word}: {:.2} processors of its own program", figure(at, |one| one.2));
        println!(
            "RESULT attacks flood-in-force-{word} weir={applied:.1}/s weir-quiet={:.1}/s ratio={:.2}",
            quiet.0,
            applied / quiet.0
        );
        println!(
            "RESULT attacks flood-miss-p99-{word} weir={miss:.0}us weir-quiet={:.0}us ratio={:.2}",
            quiet.1,
            miss / quiet.1
        );
        if applied < worst.0.0 {
            worst.0 = (applied, word.clone());
        }
        if miss > worst.1.0 {
            worst.1 = (miss, word);
        }
    }
    let ((applied, by), (miss, of)) = worst;
    println!(
        "RESULT attacks flood-in-force weir={applied:.1}/s weir-quiet={:.1}/s ratio={:.2} # {by}",
        quiet.0,
        applied / quiet.0
    );
    println!(
        "RESULT attacks flood-miss-p99 weir={miss:.0}us weir-quiet={:.0}us ratio={:.2} # {of}",
        quiet.1,
        miss / quiet.1
    );
    lab.start("c4");
    wait_whole(lab);
}

/// The members that every one of these controllers knows.
fn members_are(lab: &Lab, at: &[&str], members: &[u64]) -> bool {
    at.iter().all(|one| {
        let group = Client::new(alone(lab, one)).unwrap().status_here().ok().and_then(|status| status.group);
        group.is_some_and(|group| {
            let mut known: Vec<u64> = group.members.iter().map(|member| member.id).collect();
            known.sort_unstable();
            known == members
        })
    })
}

fn change(lab: &Lab, arguments: &[&str]) {
    wait(&format!("weir {}", arguments.join(" ")), || {
        let mut command = lab.command();
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    });
}

fn membership(lab: &Lab) {
    let mut gaps: [[Vec<f64>; 2]; 2] = Default::default();
    lab.start("c5");
    for round in 0..ROUNDS {
        let state = lab.folder().join("c5/state").display().to_string();
        let key = lab.ok(&["group", "identity", "--state", &state]).trim().to_owned();
        if round > 0 {
            lab.ok(&["lab", "start", "c5", "four-controllers", "--instance", "9", "--join-group"]);
        }
        let load = Load::begin(lab);
        std::thread::sleep(SETTLE);
        for (adds, gaps) in [true, false].into_iter().zip(&mut gaps) {
            load.applied.gap_us.store(0, Ordering::Relaxed);
            load.written.gap_us.store(0, Ordering::Relaxed);
            let at = |port: u16| format!("198.18.106.5:{port}");
            if adds {
                let (replica, api, session) = (at(7445), at(7443), at(7444));
                change(
                    lab,
                    &[
                        "group",
                        "add",
                        "5",
                        "--replica",
                        &replica,
                        "--api",
                        &api,
                        "--session",
                        &session,
                        "--key",
                        &key,
                    ],
                );
                wait("the fifth", || members_are(lab, &HONEST, &[1, 2, 3, 4, 5]));
            } else {
                change(lab, &["group", "remove", "5"]);
                wait("four again", || members_are(lab, &HONEST, &[1, 2, 3, 4]));
            }
            std::thread::sleep(SETTLE);
            for (count, gaps) in [&load.applied, &load.written].into_iter().zip(gaps) {
                gaps.push(count.gap_us.load(Ordering::Relaxed) as f64 / 1e3);
            }
        }
        load.ends();
        wait("c5 to end", || lab.program("c5").is_none_or(|one| !one.alive()));
    }
    for (what, gaps) in ["add", "remove"].into_iter().zip(gaps) {
        for (metric, gaps) in ["changes-in-force", "writes"].into_iter().zip(gaps) {
            let worst = gaps.iter().copied().fold(0.0, f64::max);
            let own = median(gaps);
            println!(
                "RESULT attacks {what}-longest-gap-{metric} weir={own:.0}ms goal=1000ms ratio={:.3}",
                own / 1e3
            );
            println!("# {what}, {metric}: worst of {ROUNDS} {worst:.0} ms");
        }
    }
}

fn main() {
    if liar::lies() || flooder::floods() {
        return;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| {
        !arguments.iter().any(|one| !one.starts_with('-')) || arguments.iter().any(|one| one == part)
    };
    let kinds = [Fourth::Hangs, Fourth::Crashes].into_iter().chain(liar::KINDS.map(Fourth::Lies));
    let parts: Vec<String> = ["members", "orders", "lies", "floods"]
        .map(str::to_owned)
        .into_iter()
        .chain(kinds.map(Fourth::word))
        .collect();
    if let Some(other) = arguments.iter().find(|one| !one.starts_with('-') && !parts.contains(one)) {
        eprintln!("there is no part {other}; there are {}", parts.join(", "));
        std::process::exit(2);
    }
    let Some(lab) = lab::byzantine_lab("attacks") else { return };
    wait_whole(&lab);
    let create = Operation::CreateTable { table: TABLE.to_owned(), options: TableOptions::default() };
    let context = lab.context_of("c1");
    let made = group::runtime().block_on(async move { store(&context).submit(create).await });
    made.unwrap();
    if wants("orders") && traitor_orders::can("attacks orders") {
        let (tried, decided) = traitor_orders::orders(&lab, "c4");
        println!("RESULT attacks orders-wrong-rules weir={decided} goal=0 ratio={:.2}", decided as f64);
        println!("# {tried} orders of {} kinds by a controller alone", traitor_orders::KINDS);
    }
    if wants("members") {
        membership(&lab);
    }
    if wants("floods") {
        floods(&lab);
    }
    let of_itself =
        |one: &String| one.starts_with('-') || ["members", "orders", "floods"].contains(&one.as_str());
    if !arguments.iter().all(of_itself) || wants("lies") {
        attacks(&lab, |word| wants("lies") || wants(word));
    }
    lab.take_down();
}
