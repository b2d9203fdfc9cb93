//! A gateway's listener on the underlay: it answers the agents of hosts from its mirror, which has
//! every location (row A11). Tenants cannot reach the underlay. Who is no switch of the domain gets no answer, so that a stranger on the
//! underlay reads nobody's names, and nobody is flooded with answers to questions that carry his address.

use super::directory::{Answer, decide_for_agent};
use super::message::{PAYLOAD_BYTES_MAX, Refused, encode_answer, parse_query};
use crate::AgentError;
use crate::shared::Shared;
use hickory_proto::op::ResponseCode;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;

/// Wait before the address is tried again, milliseconds: it may not be configured yet.
const RETRY_MS: u64 = 1000;

/// The answer to a datagram, if it wants one.
pub fn answer(shared: &Shared, datagram: &[u8]) -> Option<Vec<u8>> {
    let query = match parse_query(datagram) {
        Ok(query) => query,
        Err(refused) => {
            shared.metrics.dns_served_bad.count();
            return match refused {
                Refused::Reply(bytes) => Some(bytes),
                Refused::Drop => None,
            };
        }
    };
    let answer = if shared.synced() {
        decide_for_agent(&shared.mirror(), &query.question())
            .unwrap_or_else(|| Answer::code(ResponseCode::Refused))
    } else {
        Answer::code(ResponseCode::ServFail)
    };
    shared.metrics.dns_served.count();
    encode_answer(&query, &answer).map(|(bytes, _)| bytes)
}

/// Serves for ever.
pub async fn run(shared: Arc<Shared>, address: SocketAddr) {
    let mut told = false;
    loop {
        match UdpSocket::bind(address).await {
            Ok(socket) => {
                tracing::info!(%address, "answering the names of all networks to agents");
                told = false;
                serve(&shared, &socket).await;
            }
            Err(source) if !told => {
                let error = AgentError::Socket { what: format!("DNS listener on {address}"), source };
                tracing::warn!(%error, "trying again");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(RETRY_MS)).await;
    }
}

fn may_ask(shared: &Shared, asker: IpAddr) -> bool {
    shared.mirror().is_switch(asker)
}

async fn serve(shared: &Shared, socket: &UdpSocket) {
    let mut buffer = [0_u8; PAYLOAD_BYTES_MAX as usize];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((_, asker)) if !may_ask(shared, asker.ip()) => shared.metrics.dns_strangers.count(),
            Ok((length, asker)) => {
                if let Some(bytes) = answer(shared, &buffer[..length]) {
                    // A full socket buffer loses the answer, and the asker asks again.
                    let _ = socket.try_send_to(&bytes, asker);
                }
            }
            // The unreachable port of an asker that has gone is told here.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => {
                tracing::warn!(%error, "DNS listener");
                return;
            }
        }
    }
}
