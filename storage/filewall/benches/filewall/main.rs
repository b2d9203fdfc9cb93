//! `make bench-filewall`: FileWall beside the server alone and beside TCP tunnels that look at nothing (paper 4.6).
//!
//! ```text
//!  client ──┬───────────────────────────────── ganesha (VFS on a tmpfs)       direct
//!           ├── tunnel that copies ──────────────┤                            tunnel: the paper's baseline
//!           ├── tunnel that splices ─────────────┤                            splice
//!           ├── FileWall: handles + rules by role┤                            rules
//!           ├── FileWall: handles + RBAC (Cedar) ┤                            weir
//!           └── FileWall: N rules policies ──────┘                            chain of N
//! ```
//!
//! All of it runs in one namespace without a name. For each metric the peers take turns in short windows; the median of the
//! windows counts. `ratio` is weir over the peer, the median of the ratios of windows next to each other, so that what else
//! the machine does falls on both; for rates more is better, for times less. `quartiles` says between what half of these ratios lie: where
//! that is wide, the machine was busy.
//!
//! Loads make the same calls in the same order each time. Of each call the median over all rounds counts, and these are added up: what else
//! the machine does lengthens some calls of some rounds, and no other.
//!
//! A part of it alone, each in less than two minutes: `cargo bench -p weir-filewall -- ops`, or `work`, `overload`, `chain`,
//! `takeover`; `-- cost` is that of policies alone, which needs no server.

mod chain;
mod client;
mod listing;
mod overload;
mod place;
mod takeover;
mod tunnel;
mod work;

use client::{Connection, Timed};
use place::Place;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_filewall::proxy::{Config, FileWall, Limits};
use weir_filewall::replicate::Plan;
use weir_filewall::wire::nfs3::{Handle, Op};

/// Threads of FileWall and of the tunnels.
pub const WORKERS: usize = 2;
/// Rounds of short windows, and of loads that take as long as they take.
const ROUNDS: usize = 25;
const ROUNDS_OF_LOADS: usize = 7;
const ROUNDS_OF_WORK: usize = 15;
const WINDOW: Duration = Duration::from_millis(25);
const DEPTH: usize = 32;
/// Entries of the folder that is listed.
const ENTRIES: usize = 60;
const PORT_FIRST: u16 = 3001;

/// Why the bench does not go on.
pub struct Failure(pub String);

/// A failure of the system with what was tried.
pub fn failed<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    let what = what.into();
    move |error| Failure(format!("{what}: {error}"))
}

/// A way to the server.
struct Peer {
    name: String,
    address: SocketAddr,
    connection: Connection,
    root: Handle,
    file: Handle,
    folder: Handle,
    process: Option<u32>,
}

impl Peer {
    fn new(name: &str, server: &weir_filewall::proxy::Server, process: Option<u32>) -> Result<Peer, Failure> {
        let root = place::mount(server)?;
        let since = Instant::now();
        let mut connection = loop {
            match Connection::open(server.nfs()) {
                Ok(connection) => break connection,
                Err(failure) if since.elapsed() > Duration::from_secs(20) => return Err(failure),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let folder = connection.handle(Op::Lookup, &root, "folder")?;
        let file = connection.handle(Op::Lookup, &folder, "file")?;
        Ok(Peer { name: name.to_string(), address: server.nfs(), connection, root, file, folder, process })
    }
}

/// The middle of some figures.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The figure below which a share of some figures lies.
fn at_share(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 - 1.0) * share).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Measures each peer in turn, so many times after one that does not count; the figures of each peer, by rounds.
fn turns(
    rounds: usize,
    peers: &mut [Peer],
    mut measure: impl FnMut(&mut Peer) -> Result<f64, Failure>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut figures = vec![Vec::new(); peers.len()];
    for round in 0..=rounds {
        for turn in 0..peers.len() {
            let number = (turn + round) % peers.len();
            let figure = measure(&mut peers[number])?;
            if round > 0 {
                figures[number].push(figure);
            }
        }
    }
    Ok(figures)
}

/// Prints one line a peer; `weir` is the last one.
fn result(metric: &str, unit: &str, peers: &[Peer], figures: &[Vec<f64>]) {
    let Some((weir, others)) = figures.split_last() else { return };
    for (peer, figure) in peers.iter().zip(others) {
        let ratios: Vec<f64> = weir.iter().zip(figure).map(|(weir, other)| weir / other).collect();
        println!(
            "RESULT filewall {metric} weir={:.1}{unit} {}={:.1}{unit} ratio={:.2} quartiles={:.2}..{:.2}",
            median(weir),
            peer.name,
            median(figure),
            median(&ratios),
            at_share(&ratios, 0.25),
            at_share(&ratios, 0.75)
        );
    }
}

/// Who works in an office, and handles of FileWall's own.
const OFFICE: &str = "
kind: identities
users: {dev: {uid: 1001, roles: [developer]}, ann: {uid: 1002, roles: [admin]}, tom: {uid: 1003, roles: [guest]}}
roles: {guest: {}, employee: {inherits: [guest]}, developer: {inherits: [employee]}, admin: {inherits: [employee]}}
---
kind: handles
key-file: key
---
";

/// Roles with sessions and the control folder: the case study (paper 4.5).
const RBAC: &str = "
kind: rbac
state-file: rbac.state
log-file: rbac.log
control: .control
initial: [guest, employee, developer]
administrators: [admin]
exclusive: [[admin, developer]]
delegations: [{role: admin, to: [developer], time: [{from: '17:00', to: '09:00'}]}]
rules: |
  permit (principal in Role::\"developer\", action, resource);
  permit (principal in Role::\"admin\", action, resource);
  permit (principal in Role::\"guest\", action in [Action::\"looks\", Action::\"reads\"], resource)
  when { context.hour >= 9 && context.hour < 17 };
  forbid (principal, action, resource in Folder::\"/secret\") unless { principal in Role::\"admin\" };
  forbid (principal, action in Action::\"changes\", resource in Folder::\"/released\");
  @permission(\"log\") permit (principal in Role::\"admin\", action in Action::\"changes\", resource);
";

/// Rules by role, as the office would have them without sessions.
const RULES: &str = "
kind: access
default: deny
rules:
- {deny: [all], paths: [/secret]}
- {allow: [all], roles: [admin]}
- {deny: [changes], paths: [/released], answer: rofs}
- {allow: [all], roles: [developer]}
- {allow: [looks, reads], roles: [guest], time: [{from: '09:00', to: '17:00'}]}
";

fn all(part: &str) -> Result<(), Failure> {
    let mut place = Place::new()?;
    let wants = |name: &str| part.is_empty() || part == name;
    let mut peers = Vec::new();
    let direct = place::server(None);
    place::mount(&direct)?;
    std::fs::create_dir(place.export().join("folder")).map_err(failed("make a folder"))?;
    let fill = |name: &str, bytes: usize| {
        std::fs::write(place.export().join("folder").join(name), vec![0x5a; bytes])
            .map_err(failed("write a file"))
    };
    fill("file", 1 << 20)?;
    (0..ENTRIES).try_for_each(|number| fill(&format!("entry-{number}"), 100))?;
    let open = std::process::Command::new("chmod").arg("-R").arg("777").arg(place.export()).status();
    open.map_err(failed("run chmod"))?;
    peers.push(Peer::new("direct", &direct, None)?);
    // FileWall comes right behind the tunnel that it is compared with most.
    for (port, name) in (PORT_FIRST..).zip(["splice", "rules", "tunnel", "weir"]) {
        let (process, server) = match name {
            "rules" => (place.wall(name, port, &format!("{OFFICE}{RULES}"))?, place::behind_wall(port)),
            "weir" => (place.wall(name, port, &format!("{OFFICE}{RBAC}"))?, place::behind_wall(port)),
            kind => (place.role(&[kind, &port.to_string()])?, place::server(Some(port))),
        };
        peers.push(Peer::new(name, &server, Some(process))?);
    }
    if wants("ops") {
        operations(&mut peers)?;
    }
    if wants("work") {
        workloads(&mut peers)?;
    }
    if wants("overload") {
        overloaded(&mut peers)?;
    }
    if wants("chain") {
        chains(&mut place)?;
    }
    if wants("takeover") {
        takeover::waits(&mut place, PORT_FIRST + 20, &format!("{OFFICE}{RBAC}"))?;
    }
    Ok(())
}

fn operations(peers: &mut [Peer]) -> Result<(), Failure> {
    let names: Vec<&str> =
        work::single(&peers[0].file, &peers[0].folder).into_iter().map(|(name, _)| name).collect();
    let call = |peer: &Peer, number: usize| work::single(&peer.file, &peer.folder).swap_remove(number).1;
    for (number, name) in names.iter().enumerate() {
        let figures = turns(ROUNDS, peers, |peer| {
            let mut call = call(peer, number);
            peer.connection.latencies_us(&mut call, WINDOW).map(|all| median(&all))
        })?;
        result(&format!("{name}_p50"), "us", peers, &figures);
    }
    for (number, name) in names.iter().enumerate() {
        let figures = turns(ROUNDS, peers, |peer| {
            let call = call(peer, number);
            peer.connection.rate(&call, DEPTH, WINDOW)
        })?;
        result(&format!("{name}_depth{DEPTH}"), "/s", peers, &figures);
    }
    // Processor time of the box itself, which the direct way does not have.
    for (number, name) in names.iter().enumerate() {
        let figures = turns(ROUNDS, &mut peers[1..], |peer| {
            let call = call(peer, number);
            let process = peer.process.unwrap_or_default();
            let before = place::cpu_us(process);
            let per_s = peer.connection.rate(&call, DEPTH, WINDOW)?;
            Ok((place::cpu_us(process) - before) / (per_s * WINDOW.as_secs_f64()))
        })?;
        result(&format!("{name}_cpu"), "us", &peers[1..], &figures);
    }
    Ok(())
}

fn workloads(peers: &mut [Peer]) -> Result<(), Failure> {
    type Work = fn(&mut Connection, &Handle) -> Result<(), Failure>;
    let works: [(&str, Work); 2] = [("postmark", work::postmark), ("source_tree", work::tree)];
    for (name, work) in works {
        // Times of each call, by peers and rounds.
        let mut timed: Vec<Vec<Vec<Timed>>> = vec![Vec::new(); peers.len()];
        let names: Vec<String> = peers.iter().map(|peer| peer.name.clone()).collect();
        turns(ROUNDS_OF_WORK, peers, |peer| {
            peer.connection.timed.clear();
            work(&mut peer.connection, &peer.root)?;
            let at = names.iter().position(|name| *name == peer.name).unwrap_or(0);
            timed[at].push(std::mem::take(&mut peer.connection.timed));
            Ok(0.0)
        })?;
        let typical: Vec<Vec<Timed>> = timed.iter().map(|rounds| typical(&rounds[1..])).collect();
        let Some((weir, others)) = typical.split_last() else { continue };
        let compare = |part: &str, fits: &dyn Fn(&Timed) -> bool, only: Option<&str>| {
            for (peer, other) in
                names.iter().zip(others).filter(|(peer, _)| only.is_none_or(|only| *peer == only))
            {
                let (own, theirs) = (sum_ms(weir, fits), sum_ms(other, fits));
                if theirs > 0.0 {
                    let ratio = own / theirs;
                    println!(
                        "RESULT filewall {name}{part} weir={own:.2}ms {peer}={theirs:.2}ms ratio={ratio:.2}"
                    );
                }
            }
        };
        compare("", &|_| true, None);
        for part in ["unpack", "walk", "build", "remove"] {
            compare(&format!("_{part}"), &|call| call.part == part, None);
        }
        // Where the time goes.
        for op in Op::ALL {
            compare(&format!("_{}", op.name().to_lowercase()), &|call| call.op == op as u32, Some("tunnel"));
        }
    }
    Ok(())
}

/// How long some calls took together, ms.
fn sum_ms(calls: &[Timed], fits: &dyn Fn(&Timed) -> bool) -> f64 {
    calls.iter().filter(|call| fits(call)).map(|call| call.time_us / 1000.0).sum()
}

/// Of each call the median over the rounds, all of which make the same ones.
fn typical(rounds: &[Vec<Timed>]) -> Vec<Timed> {
    let calls = rounds.iter().map(Vec::len).min().unwrap_or(0);
    let one = |at: usize| {
        let times: Vec<f64> = rounds.iter().map(|calls| calls[at].time_us).collect();
        Timed { time_us: median(&times), ..rounds[0][at] }
    };
    (0..calls).map(one).collect()
}

/// Offers more and more of a mix; the most that is answered is the knee.
fn overloaded(peers: &mut [Peer]) -> Result<(), Failure> {
    let window = Duration::from_millis(200);
    let saturate = |peer: &mut Peer, per_s: f64| {
        overload::offer(peer.address, &work::mix(&peer.file, &peer.folder), per_s, window)
    };
    let tunnel = peers.iter().position(|peer| peer.name == "tunnel").unwrap_or(0);
    let alone = &mut peers[tunnel..=tunnel];
    let most = median(&turns(ROUNDS_OF_LOADS, alone, |peer| saturate(peer, 200_000.0))?[0]);
    let mut knees = vec![vec![0f64; ROUNDS_OF_LOADS]; peers.len()];
    for percent in [50, 100, 150, 200, 300] {
        let figures =
            turns(ROUNDS_OF_LOADS, peers, |peer| saturate(peer, most * f64::from(percent) / 100.0))?;
        result(&format!("mix_offered_{percent}percent"), "/s", peers, &figures);
        for (knee, figure) in knees.iter_mut().flatten().zip(figures.iter().flatten()) {
            *knee = knee.max(*figure);
        }
    }
    result("mix_knee", "/s", peers, &knees);
    Ok(())
}

fn chains(place: &mut Place) -> Result<(), Failure> {
    let lengths = [0usize, 1, 5, 10, 20];
    let mut peers = Vec::new();
    for (number, length) in lengths.into_iter().enumerate() {
        let port = PORT_FIRST + 10 + number as u16;
        let process = place.wall(&format!("chain-{length}"), port, &chain::policies(length))?;
        peers.push(Peer::new(&format!("policies_{length}"), &place::behind_wall(port), Some(process))?);
    }
    let figures = turns(ROUNDS, &mut peers, |peer| {
        let mut call = work::single(&peer.file, &peer.folder).swap_remove(0).1;
        peer.connection.latencies_us(&mut call, WINDOW).map(|all| median(&all))
    })?;
    result("chain_of_20_getattr_p50", "us", &peers, &figures);
    chain::cost()?;
    listing::cost(None)
}

fn run() -> Result<ExitCode, Failure> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let port = |text: &str| text.parse().map_err(|_| Failure(format!("'{text}' is no port")));
    match words.as_slice() {
        ["tunnel", text] => tunnel::run(port(text)?, false)?,
        ["splice", text] => tunnel::run(port(text)?, true)?,
        ["wall", text, policy] => wall(port(text)?, PathBuf::from(policy), &Plan::default())?,
        ["wall", text, policy, context] => {
            let plan = Plan { context: Some(PathBuf::from(context)), standby: true, ..Plan::default() };
            wall(port(text)?, PathBuf::from(policy), &plan)?;
        }
        ["inside"] => all("")?,
        ["inside", part] => all(part)?,
        ["cost"] => {
            chain::cost()?;
            listing::cost(None)?;
        }
        ["cost", "listing", replies] => {
            let replies = replies.parse().map_err(|_| Failure(format!("'{replies}' is no number")))?;
            listing::cost(Some(replies))?;
        }
        _ => return place::enter(),
    }
    Ok(ExitCode::SUCCESS)
}

fn wall(port: u16, policy: PathBuf, plan: &Plan) -> Result<(), Failure> {
    let config = Config {
        server: place::server(None),
        listen: Ipv4Addr::LOCALHOST.into(),
        port,
        portmap_port: None,
        udp: false,
        workers: WORKERS,
        policy: Some(policy),
        watch: true,
        limits: Limits::default(),
    };
    let _wall = FileWall::start_group(config, plan).map_err(|error| Failure(error.to_string()))?;
    loop {
        std::thread::park();
    }
}

fn main() -> ExitCode {
    run().unwrap_or_else(|failure| {
        eprintln!("bench filewall: {}", failure.0);
        ExitCode::FAILURE
    })
}
