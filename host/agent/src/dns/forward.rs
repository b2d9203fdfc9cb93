//! Asks another server over UDP.

use super::directory::{Answer, Question};
use super::message::{PAYLOAD_BYTES_MAX, match_answer, own_query};
use crate::metrics::Metrics;
use hickory_proto::op::ResponseCode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;

/// Attempts for one question, over all servers.
pub const ATTEMPTS_MAX: usize = 3;
/// Wait for one attempt, milliseconds.
pub const ATTEMPT_MS: u64 = 800;
/// Datagrams of the server that are looked at in one attempt; more is a flood of forgeries.
pub const MISMATCHES_MAX: usize = 32;

/// Asks the servers in turn, from a random one on; `None` when none gives a usable answer.
pub async fn ask(
    metrics: &Metrics,
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
        let attempt = ask_one(metrics, server, question, recursion);
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
    server: SocketAddr,
    question: &Question,
    recursion: bool,
) -> Option<Answer> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    // Connected, so that the system drops what others send.
    socket.connect(server).await.ok()?;
    let id: u16 = rand::random();
    socket.send(&own_query(id, question, recursion)?).await.ok()?;
    let mut buffer = [0_u8; PAYLOAD_BYTES_MAX as usize];
    for _ in 0..MISMATCHES_MAX {
        let length = socket.recv(&mut buffer).await.ok()?;
        if let Some(answer) = match_answer(&buffer[..length], id, question) {
            return Some(answer);
        }
        metrics.dns_mismatched.count();
    }
    None
}
