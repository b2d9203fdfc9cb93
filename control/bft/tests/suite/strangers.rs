//! Strangers at the listener of members: silent ones, and those that say something that is no handshake.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Where they come from: not the members' address, and not its subnet.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 7, 7, 7);
/// Connections that are held at each listener.
pub const EACH: usize = 800;

/// Strangers that come until this is dropped.
pub struct Strangers {
    opened: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Strangers {
    pub fn begin(listeners: Vec<SocketAddr>) -> Strangers {
        let (opened, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (Arc::clone(&opened), Arc::clone(&stop));
        let thread = thread::spawn(move || come(&listeners, &counts, &ends));
        Strangers { opened, stop, thread: Some(thread) }
    }

    /// Connections that they opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It panics only where the test does.
            let _ended = thread.join();
        }
    }
}

fn open(to: SocketAddr) -> std::io::Result<TcpStream> {
    // Not for the members that this process starts.
    let stream = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&stream, &SocketAddr::V4(SocketAddrV4::new(FROM, 0)))?;
    connect(&stream, &to)?;
    let stream = TcpStream::from(stream);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn come(listeners: &[SocketAddr], opened: &AtomicU64, stop: &AtomicBool) {
    let mut held: Vec<Vec<TcpStream>> = listeners.iter().map(|_| Vec::new()).collect();
    // A length that is too much, one that never comes, and what is no number at all.
    let words: [&[u8]; 4] = [&[], &[0xff; 64], &[0, 0, 0, 200, 1, 2, 3], b"GET / HTTP/1.1\r\n\r\n"];
    while !stop.load(Ordering::Acquire) {
        for (to, held) in listeners.iter().zip(&mut held) {
            held.retain(
                |stream| matches!(stream.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
            );
            for _ in 0..20.min(EACH - held.len()) {
                let Ok(mut stream) = open(*to) else { break };
                let nth = opened.fetch_add(1, Ordering::Relaxed);
                // Refused while it is written, if so.
                let _refused = stream.write_all(words[nth as usize % words.len()]);
                held.push(stream);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}
