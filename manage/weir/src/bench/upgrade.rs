//! `weir bench upgrade`: how long a host stands still when its switch is replaced under traffic, and when it crashes, seen
//! from outside (row A30; Dalton, Andromeda, section 6.2: median 270 ms).
//!
//! Real hosts of this binary with a gateway and a controller, joined as in `weir bench net`. A prober sends a small datagram every
//! 0.2 ms from an endpoint of one host to one of the other, and the receiver notes when each comes. The longest gap between
//! two that overlaps a hand-over is what a program would feel of it; windows of the same length without one say what the machine
//! does by itself. Beside it a TCP stream and idle connections that must all be there at the end.
//!
//! Hosts take turns; with `--binary` every other upgrade goes to that program and back, which is upgrade and downgrade.

use super::net_path::Weir;
use super::order::median;
use crate::failure::Failure;
use clap::Args;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::bench::net::{Endpoints, Path as _};
use weir_lab::{Netns, Scope, scope::CleanOnDrop, system};

/// Pause between two probes.
const PROBE: Duration = Duration::from_micros(200);
/// Port of the probes.
const PROBE_PORT: u16 = 9100;
/// Port of the stream and of the idle connections.
const STREAM_PORT: u16 = 9101;
/// Connections that stand still meanwhile.
const IDLE: usize = 200;
/// Pause of the stream after each piece, so that it does not take the processors from what is measured.
const STREAM_PAUSE: Duration = Duration::from_millis(2);
/// Rest between two measured events.
const REST: Duration = Duration::from_millis(400);
/// How long a gap may belong to an event after it was over.
const AFTER: Duration = Duration::from_millis(100);
/// How long anything may take.
const BOUND: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct Upgrade {
    /// Upgrades
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Crashes of a switch
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    crashes: u32,
    /// Another build, such as that of the last release: upgrades go to it and back in turn
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

fn wrong(error: impl Display) -> Failure {
    Failure::Input(error.to_string())
}

/// Runs something in a thread of its own in a namespace.
fn within<T: Send + 'static>(
    netns: &Netns,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<JoinHandle<std::io::Result<T>>, Failure> {
    let path = netns.path();
    let namespace = std::fs::File::open(&path).map_err(Failure::io(path.display().to_string()))?;
    std::thread::Builder::new()
        .name("weir-bench".into())
        .spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        })
        .map_err(Failure::io("starting a thread"))
}

/// The prober: what came, and when.
struct Prober {
    arrived: Arc<Mutex<Vec<(u64, Instant)>>>,
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Prober {
    fn begin(ends: &Endpoints) -> Result<Prober, Failure> {
        let arrived: Arc<Mutex<Vec<(u64, Instant)>>> = Arc::default();
        let (sent, stop): (Arc<AtomicU64>, Arc<AtomicBool>) = Default::default();
        let target = SocketAddr::new(ends.server_address, PROBE_PORT);
        let (noted, over) = (Arc::clone(&arrived), Arc::clone(&stop));
        let receive = move || {
            let socket = UdpSocket::bind(target)?;
            socket.set_read_timeout(Some(REST))?;
            let mut number = [0; 8];
            while !over.load(Relaxed) {
                if socket.recv(&mut number).is_ok_and(|length| length == number.len()) {
                    let one = (u64::from_le_bytes(number), Instant::now());
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            }
            Ok(())
        };
        let (count, over) = (Arc::clone(&sent), Arc::clone(&stop));
        let send = move || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(target)?;
            let mut due = Instant::now();
            while !over.load(Relaxed) {
                // Nobody listens yet, or the device is being made: the next one may come.
                let _ = socket.send(&count.fetch_add(1, Relaxed).to_le_bytes());
                due = (due + PROBE).max(Instant::now() - REST);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(())
        };
        let threads = vec![within(&ends.server, receive)?, within(&ends.client, send)?];
        Ok(Prober { arrived, sent, stop, threads })
    }

    /// The longest gap between two arrivals that overlaps a time, milliseconds.
    fn gap_ms(&self, from: Instant, to: Instant) -> f64 {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrived.partition_point(|(_, at)| *at < from).saturating_sub(1);
        let gaps = arrived[first..].windows(2).take_while(|pair| pair[0].1 <= to);
        gaps.map(|pair| (pair[1].1 - pair[0].1).as_secs_f64() * 1000.0).fold(0.0, f64::max)
    }

    fn has_come_since(&self, time: Instant) -> bool {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.last().is_some_and(|(_, at)| *at > time)
    }

    /// How many were sent between the first and the last that came, and how many of them did not.
    fn end(self) -> (u64, u64) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            let _ended = thread.join();
        }
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (arrived.first().map_or(0, |one| one.0), arrived.iter().map(|one| one.0).max());
        let sent = last.map_or(0, |last| last + 1 - first);
        (sent.min(self.sent.load(Relaxed)), sent.saturating_sub(arrived.len() as u64))
    }
}

/// Connections that must survive: an echo server, a stream that checks what comes back, and idle ones.
struct Connections {
    stop: Arc<AtomicBool>,
    echoed: Arc<AtomicU64>,
    stream: JoinHandle<std::io::Result<usize>>,
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

fn say(stream: &mut TcpStream, number: u64) -> std::io::Result<()> {
    let said = number.to_le_bytes().repeat(128);
    stream.write_all(&said)?;
    let mut heard = vec![0; said.len()];
    stream.read_exact(&mut heard)?;
    if said == heard { Ok(()) } else { Err(std::io::Error::other("other bytes came back")) }
}

impl Connections {
    fn begin(ends: &Endpoints) -> Result<Connections, Failure> {
        let target = SocketAddr::new(ends.server_address, STREAM_PORT);
        let listener = within(&ends.server, move || TcpListener::bind(target))?;
        let listener =
            listener.join().map_err(|_| wrong("the server"))?.map_err(Failure::io("the server"))?;
        // It ends with this process: it holds nothing.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || echo(stream));
            }
        });
        let (stop, echoed): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let (over, count) = (Arc::clone(&stop), Arc::clone(&echoed));
        let stream = within(&ends.client, move || {
            let connect = || -> std::io::Result<TcpStream> {
                let stream = TcpStream::connect_timeout(&target, BOUND)?;
                stream.set_read_timeout(Some(BOUND))?;
                stream.set_nodelay(true)?;
                Ok(stream)
            };
            let mut idle = (0..IDLE).map(|_| connect()).collect::<std::io::Result<Vec<_>>>()?;
            let mut busy = connect()?;
            while !over.load(Relaxed) {
                say(&mut busy, count.fetch_add(1, Relaxed))?;
                std::thread::sleep(STREAM_PAUSE);
            }
            let alive =
                idle.iter_mut().enumerate().map(|(at, one)| say(one, at as u64)).filter(Result::is_ok);
            Ok(alive.count())
        })?;
        Ok(Connections { stop, echoed, stream })
    }

    fn wait(&self) -> Result<(), Failure> {
        Ok(system::wait_for("the stream", BOUND, || Ok(self.echoed.load(Relaxed) > 10))?)
    }

    /// Idle connections that still work, and round trips of the busy one.
    fn end(self) -> Result<(usize, u64), Failure> {
        self.stop.store(true, Relaxed);
        let alive = self.stream.join().map_err(|_| wrong("the stream"))?;
        Ok((alive.map_err(Failure::io("a TCP connection did not survive"))?, self.echoed.load(Relaxed)))
    }
}

/// What was measured of one kind of event, milliseconds.
#[derive(Default)]
struct Measured {
    gaps: Vec<f64>,
    quiet: Vec<f64>,
}

impl Measured {
    fn event(&mut self, prober: &Prober, event: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        std::thread::sleep(REST);
        let began = Instant::now();
        event()?;
        std::thread::sleep(AFTER);
        // A gap has an end when something came after it.
        let here = Instant::now();
        system::wait_for("a probe behind the event", BOUND, || Ok(prober.has_come_since(here)))?;
        let length = began.elapsed();
        self.gaps.push(prober.gap_ms(began, began + length));
        std::thread::sleep(REST);
        let still = Instant::now();
        std::thread::sleep(length);
        self.quiet.push(prober.gap_ms(still, still + length));
        Ok(())
    }

    fn report(&self, what: &str, goal_ms: f64, paper: Option<f64>) {
        let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (own, quiet) = (median(self.gaps.iter().copied()), median(self.quiet.iter().copied()));
        say!("RESULT upgrade {what}-median weir={own:.2}ms goal={goal_ms:.0}ms ratio={:.2}", own / goal_ms);
        say!(
            "RESULT upgrade {what}-worst weir={:.2}ms goal={goal_ms:.0}ms ratio={:.2}",
            worst(&self.gaps),
            worst(&self.gaps) / goal_ms
        );
        say!("RESULT upgrade {what}-median weir={own:.2}ms nothing={quiet:.2}ms ratio={:.2}", own / quiet);
        if let Some(paper) = paper {
            say!("RESULT upgrade {what}-median weir={own:.2}ms paper={paper:.0}ms ratio={:.3}", own / paper);
        }
        let list = |values: &[f64]| values.iter().map(|ms| format!("{ms:.1}")).collect::<Vec<_>>().join(" ");
        say!("{what}: {} events, gaps in ms: {}", self.gaps.len(), list(&self.gaps));
        say!("{what}: as long without one: {}", list(&self.quiet));
    }
}

/// The process of a host's switch.
fn pid_of(run: &Path) -> Option<i32> {
    std::fs::read_to_string(run.join("switch.pid")).ok()?.trim().parse().ok()
}

impl Upgrade {
    /// With the usual options.
    pub fn usual() -> Upgrade {
        Upgrade { rounds: 20, crashes: 10, binary: None }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        system::require_root()?;
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let scope: CleanOnDrop = Scope::begin("bench-upgrade", "wbu-")?.clean_on_drop();
        let mut weir = Weir::new(own.clone());
        let ends = weir.set_up(&scope)?;
        let runs = ["h1", "h2"].map(|host| scope.folder().join("weir").join(host).join("run"));
        let connections = Connections::begin(&ends)?;
        connections.wait()?;
        let prober = Prober::begin(&ends)?;
        let mut upgrades = Measured::default();
        for round in 0..self.rounds {
            // Both hosts go to the other program, then both back.
            let there = round / 2 % 2 == 0;
            let program = if there { self.binary.as_ref().unwrap_or(&own) } else { &own };
            let run = &runs[round as usize % 2];
            upgrades.event(&prober, || upgrade(&own, run, program))?;
        }
        let (sent, lost) = prober.end();
        say!("probes through {} upgrades: {sent} sent, {lost} lost", self.rounds);
        let prober = Prober::begin(&ends)?;
        let mut crashes = Measured::default();
        for round in 0..self.crashes {
            let run = &runs[round as usize % 2];
            crashes.event(&prober, || crash(run))?;
        }
        let (crash_sent, crash_lost) = prober.end();
        let (alive, echoed) = connections.end()?;
        upgrades.report("blackout", 20.0, Some(270.0));
        if self.crashes > 0 {
            crashes.report("crash", 200.0, None);
        }
        say!(
            "RESULT upgrade probes-lost weir={lost} sent={sent} ratio={:.6}",
            lost as f64 / sent.max(1) as f64
        );
        say!("probes through {} crashes: {crash_sent} sent, {crash_lost} lost", self.crashes);
        say!("TCP: {echoed} round trips of one, {alive} of {IDLE} idle connections alive in the end");
        weir.tear_down()?;
        if alive < IDLE {
            return Err(wrong(format!("{} connections did not survive", IDLE - alive)));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn upgrade(own: &Path, run: &Path, program: &Path) -> Result<(), Failure> {
    let mut command = Command::new(own);
    command.args(["upgrade", "--run"]).arg(run).arg("--binary").arg(program);
    let output = command.output().map_err(Failure::io("weir upgrade"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(wrong(format!("weir upgrade: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Kills the switch, and waits until another serves.
fn crash(run: &Path) -> Result<(), Failure> {
    let before = pid_of(run).ok_or_else(|| wrong("no switch runs"))?;
    let pid = rustix::process::Pid::from_raw(before).ok_or_else(|| wrong("no switch runs"))?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(wrong)?;
    Ok(system::wait_for("another switch", BOUND, || Ok(pid_of(run).is_some_and(|pid| pid != before)))?)
}
