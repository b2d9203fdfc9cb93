//! What silent strangers cost an operator (`docs/operate/security.md`): the time of a request, from the connection on, beside ten thousand strangers
//! who open a connection and say nothing, and without them. `make bench-doors`; needs no root.
//!
//! One controller, a process of its own on the loopback. Strangers come from a thousand addresses of it, none of them the operator's: who shares
//! an address with a flood of strangers shares its places. Rounds with and without strangers take turns; every request is of a new connection, as
//! a person's is. The strangers hold as many connections as a machine of theirs would, and open another for each that is ended, until
//! ten thousand have come in a round. Printed: `RESULT doors p99_ms weir=WITH alone=WITHOUT ratio=X` at a thousand
//! strangers a second, and `flood_p99_ms` where they come as fast as two threads can beside the controller, on the same processors.

#![allow(missing_docs, dead_code)] // parts of the tests' harness, of which this bench uses some
#![allow(clippy::unwrap_used)] // a step that fails ends the bench

#[allow(unused_imports)] // its scenarios are tests alone
#[path = "../tests/doors.rs"]
mod doors;

use doors::Controller;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};

const ROUNDS: usize = 5;
/// Strangers of a round.
const STRANGERS: usize = 10_000;
/// How many of them hold a connection at a time.
const HELD: usize = 700;
/// Strangers that come a second.
const RATE: u32 = 1_000;
/// Addresses that they come from.
const ADDRESSES: usize = 1_000;
/// Threads of strangers.
const THREADS: usize = 2;
/// Requests of a round, at least.
const REQUESTS: usize = 300;
/// Of each series, before it counts.
const WARM: usize = 10;
/// So long one waits for strangers to have come.
const LIMIT: Duration = Duration::from_secs(300);

/// The address of a stranger: a thousand others than the operator's.
fn stranger(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, (number % ADDRESSES / 250) as u8, (number % 250 + 1) as u8)
}

fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// Strangers who come until they are told to go.
struct Strangers {
    stop: Arc<AtomicBool>,
    came: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Strangers {
    /// So many come a second; none: as fast as two threads can, which is more than this machine has processors for.
    fn start(doors: [SocketAddr; 2], rate: Option<u32>) -> Strangers {
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = |number: usize| {
            let (stop, came) = (stop.clone(), came.clone());
            std::thread::spawn(move || {
                let mut held = VecDeque::new();
                let began = Instant::now();
                for turn in number.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(rate) = rate {
                        let due = Duration::from_secs(1) * ((turn - number) * THREADS) as u32 / rate;
                        std::thread::sleep(due.saturating_sub(began.elapsed()));
                    }
                    match connect(stranger(turn), doors[turn % 2]) {
                        Ok(stream) => {
                            held.push_back(stream);
                            came.fetch_add(1, Ordering::Relaxed);
                        }
                        // Descriptors or ports are short: theirs, not the controller's.
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                    if held.len() > HELD / THREADS {
                        held.pop_front();
                    }
                }
            })
        };
        let threads = (0..THREADS).map(thread).collect();
        Strangers { stop, came, threads }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

fn request_ms(context: &Context) -> f64 {
    let began = Instant::now();
    Client::new(context.clone()).unwrap().status().unwrap();
    began.elapsed().as_secs_f64() * 1e3
}

/// Times of requests, until enough were made and `goes_on` says no more.
fn series(context: &Context, goes_on: impl Fn() -> bool) -> Vec<f64> {
    for _ in 0..WARM {
        request_ms(context);
    }
    let mut times_ms = Vec::new();
    while times_ms.len() < REQUESTS || goes_on() {
        times_ms.push(request_ms(context));
    }
    times_ms
}

fn p99(times_ms: &mut [f64]) -> f64 {
    times_ms.sort_by(f64::total_cmp);
    times_ms[(times_ms.len() * 99).div_ceil(100) - 1]
}

fn main() {
    let _most = weir_admission::descriptors::raise();
    let controller = Controller::start();
    let context = controller.context().unwrap();
    let (mut with, mut flooded, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        alone.extend(series(&context, || false));
        for (rate, times_ms) in [(Some(RATE), &mut with), (None, &mut flooded)] {
            let strangers = Strangers::start([controller.api, controller.session], rate);
            let began = Instant::now();
            times_ms.extend(series(&context, || strangers.came() < STRANGERS && began.elapsed() < LIMIT));
            let took_s = began.elapsed().as_secs_f64();
            println!(
                "round {round}: {} strangers in {took_s:.1} s, {} requests beside them so far",
                strangers.came(),
                times_ms.len()
            );
        }
    }
    let (with, flooded, alone) = (p99(&mut with), p99(&mut flooded), p99(&mut alone));
    println!("RESULT doors p99_ms weir={with:.2} alone={alone:.2} ratio={:.2}", with / alone);
    println!("RESULT doors flood_p99_ms weir={flooded:.2} alone={alone:.2} ratio={:.2}", flooded / alone);
}
