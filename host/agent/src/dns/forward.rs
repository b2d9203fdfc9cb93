//! Asks another server over UDP, and over TCP what does not fit (RFC 7766 5).

use super::directory::{Answer, Question};
use super::framing;
use super::message::{PAYLOAD_BYTES_MAX, Received, match_answer, own_query};
use crate::metrics::Metrics;
use hickory_proto::op::ResponseCode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Attempts for one question, over all servers.
pub const ATTEMPTS_MAX: usize = 3;
/// Wait for one attempt, milliseconds.
pub const ATTEMPT_MS: u64 = 800;
/// Datagrams of the server that are looked at in one attempt; more is a flood of forgeries.
pub const MISMATCHES_MAX: usize = 32;

/// Asks the servers in turn, from a random one on and, where one is given and of their family, from the address `from`; `None` when none
/// gives a usable answer.
pub async fn ask(
    metrics: &Metrics,
    from: Option<IpAddr>,
    servers: &[SocketAddr],
    question: &Question,
    recursion: bool,
) -> Option<Answer> {
    if servers.is_empty() {
        return None;
    }
    let first: usize = rand::random_range(0..servers.len());
    let mut failed = None;
    for attempt in 0..ATTEMPTS_MAX {
        let server = servers[(first + attempt) % servers.len()];
        let limit = Duration::from_millis(ATTEMPT_MS);
        let attempt = ask_one(metrics, from, server, question, recursion);
        match tokio::time::timeout(limit, attempt).await {
            // Another server may know better.
            Ok(Some(answer)) if matches!(answer.code, ResponseCode::ServFail | ResponseCode::Refused) => {
                failed = Some(answer);
                if servers.len() == 1 {
                    break;
                }
            }
            Ok(Some(answer)) => return Some(answer),
            Ok(None) | Err(_) => {}
        }
    }
    failed
}

/// One attempt, from a socket of its own: the system gives it a random port.
async fn ask_one(
    metrics: &Metrics,
    from: Option<IpAddr>,
    server: SocketAddr,
    question: &Question,
    recursion: bool,
) -> Option<Answer> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = from.filter(|from| from.is_ipv4() == server.is_ipv4()).unwrap_or(any);
    let socket = UdpSocket::bind((from, 0)).await.ok()?;
    // Connected, so that the system drops what others send.
    socket.connect(server).await.ok()?;
    let id: u16 = rand::random();
    socket.send(&own_query(id, question, recursion)?).await.ok()?;
    let mut buffer = [0_u8; PAYLOAD_BYTES_MAX as usize];
    for _ in 0..MISMATCHES_MAX {
        let length = socket.recv(&mut buffer).await.ok()?;
        match match_answer(&buffer[..length], id, question) {
            Received::Answer(answer) => return Some(answer),
            Received::Cut => return ask_whole(metrics, server, question, recursion).await,
            Received::Other => metrics.dns_mismatched.count(),
        }
    }
    None
}

/// The same over TCP, for an answer that no datagram holds.
async fn ask_whole(
    metrics: &Metrics,
    server: SocketAddr,
    question: &Question,
    recursion: bool,
) -> Option<Answer> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    let id: u16 = rand::random();
    stream.write_all(&framing::frame(&own_query(id, question, recursion)?)?).await.ok()?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await.ok()?)];
    stream.read_exact(&mut bytes).await.ok()?;
    match match_answer(&bytes, id, question) {
        Received::Answer(answer) => {
            metrics.dns_upstream_streams.count();
            Some(answer)
        }
        Received::Cut | Received::Other => {
            metrics.dns_mismatched.count();
            None
        }
    }
}
