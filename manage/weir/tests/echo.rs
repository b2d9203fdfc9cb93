//! A TCP connection between two namespaces that never rests, and checks every byte.

use crate::namespaces::{BOUND, enter, wait, within};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::Netns;

/// Bytes of a round.
const BLOCK_BYTES: usize = 4096;

/// The connection. Dropping it ends it.
pub struct Echo {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    begun: Instant,
    /// When the last round came back, microseconds after `begun`.
    last_us: Arc<AtomicU64>,
    client: Option<JoinHandle<Result<(), String>>>,
}

/// Bytes of a round: they depend on its number.
fn block(round: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64)
        .map(|at| (round.wrapping_mul(0x9e37_79b9).wrapping_add(at * 31) >> 3) as u8)
        .collect()
}

/// A listener in a namespace, on all of its addresses.
pub fn listen(netns: &Netns, port: u16) -> TcpListener {
    within(netns, || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap())
}

/// Echoes on one connection until it ends.
fn serve(listener: TcpListener) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    // The port is free for the next listener, also while this connection hangs.
    drop(listener);
    let mut bytes = vec![0; BLOCK_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

impl Echo {
    /// Opens a connection to a port of `server`, which this listens on, and keeps it busy.
    pub fn open(client: &Netns, server: &Netns, address: IpAddr, port: u16) -> Echo {
        let listener = listen(server, port);
        std::thread::spawn(move || serve(listener));
        let netns = client.clone();
        let stream =
            within(&netns, || TcpStream::connect_timeout(&SocketAddr::new(address, port), BOUND).unwrap());
        let mut echo = Echo {
            stop: Arc::default(),
            rounds: Arc::default(),
            begun: Instant::now(),
            last_us: Arc::default(),
            client: None,
        };
        let (stop, rounds, last) = (echo.stop.clone(), echo.rounds.clone(), echo.last_us.clone());
        let begun = echo.begun;
        echo.client = Some(std::thread::spawn(move || {
            keep_busy(stream, &stop, || {
                last.store(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                rounds.fetch_add(1, Ordering::Relaxed)
            })
        }));
        echo.goes_on();
        echo
    }

    /// How many rounds came back whole.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits until more rounds come back.
    pub fn goes_on(&self) {
        let before = self.rounds();
        wait("more rounds of the echo", || {
            assert!(!self.ended(), "the connection broke after {} rounds", self.rounds());
            self.rounds() > before + 20
        });
    }

    /// Whether the client has given up or found wrong bytes.
    fn ended(&self) -> bool {
        self.client.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until no round has come back for `quiet`; when the last one came.
    pub fn wait_cut(&self, quiet: Duration) -> Instant {
        let last = || self.begun + Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        wait("the end of the echo", || last().elapsed() > quiet);
        last()
    }

    /// Ends it; every round must have been whole. Returns how many there were.
    pub fn close(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.client.take().unwrap().join().unwrap();
        assert_eq!(ended, Ok(()), "after {} rounds", self.rounds());
        self.rounds()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn keep_busy(mut stream: TcpStream, stop: &AtomicBool, count: impl Fn() -> u64) -> Result<(), String> {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut answer = vec![0; BLOCK_BYTES];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let sent = block(round);
        let passed = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut answer));
        passed.map_err(|error| error.to_string())?;
        if answer != sent {
            return Err("other bytes came back".to_string());
        }
        round = count() + 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether a TCP connection can be opened within `limit`.
pub fn connects(client: &Netns, address: IpAddr, port: u16, limit: Duration) -> bool {
    within(client, || TcpStream::connect_timeout(&SocketAddr::new(address, port), limit).is_ok())
}

/// Sends a small datagram to each port for as long as the returned value lives, from before there is any address.
pub struct Blast {
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Blast {
    /// Begins; errors of a device that is down or has no address yet are what it waits out.
    pub fn begin(netns: &Netns, targets: Vec<SocketAddr>) -> Blast {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, netns) = (Arc::clone(&stop), netns.clone());
        let sender = std::thread::spawn(move || {
            enter(&netns);
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            while !stopped.load(Ordering::Relaxed) {
                for target in &targets {
                    let _ = socket.send_to(b"weir", target);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Blast { stop, sender: Some(sender) }
    }
}

impl Drop for Blast {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
    }
}

/// A socket in a namespace that counts datagrams without waiting.
pub struct Counting(std::net::UdpSocket, u64);

impl Counting {
    /// Listens.
    pub fn begin(netns: &Netns, port: u16) -> Counting {
        let socket = within(netns, || std::net::UdpSocket::bind(("0.0.0.0", port)).unwrap());
        socket.set_nonblocking(true).unwrap();
        Counting(socket, 0)
    }

    /// How many came in all.
    pub fn count(&mut self) -> u64 {
        let mut bytes = [0; 64];
        while self.0.recv(&mut bytes).is_ok() {
            self.1 += 1;
        }
        self.1
    }
}

/// Whether every ping is answered.
pub fn ping_all(from: &Netns, to: IpAddr) -> bool {
    use weir_lab::probe::ping;
    ping::run(from, to, &ping::Options::default()).unwrap().all()
}

/// Whether nothing comes back.
pub fn ping_none(from: &Netns, to: IpAddr) -> bool {
    use weir_lab::probe::ping;
    ping::run(from, to, &ping::Options { count: 2, ..ping::Options::default() }).unwrap().none()
}
