//! Punted frames: DHCP and DNS of this host's endpoints (pain 12), in and out of the switch's
//! datagram socket.
//!
//! Answers that are known at once go back at once; those that wait for somebody else are bounded
//! (see [`crate::dns`]) and finished by tasks of their own. TCP of endpoints, for DNS only, lives in
//! [`crate::dns::stream`]; what it makes of frames and answers is carried here.

use crate::AgentError;
use crate::dhcp::{self, NoAnswer};
use crate::dns::message::Carrier;
use crate::dns::stream::{self, Output, StreamId, Streams};
use crate::dns::{self, Begun};
use crate::frame::{TcpFrame, UdpFrame, parse_tcp, parse_udp};
use crate::mirror::PortContext;
use crate::shared::Shared;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixDatagram;
use tokio::time::MissedTickBehavior;
use weir_base::codec::{decode, encode};
use weir_model::Key;
use weir_model::local::{PUNT_AGENT_SOCKET, PUNT_BYTES_MAX, PUNT_SOCKET, Punt};

/// How often the switch is told that we are there, milliseconds; also the wait for its socket.
const PRESENCE_MS: u64 = 1000;
/// Room for a frame with its key, bytes.
const DATAGRAM_BYTES_MAX: usize = PUNT_BYTES_MAX + 256;

/// What becomes of a punted frame.
#[derive(Debug)]
pub enum Outcome {
    /// This frame goes back to the port.
    Answer(Vec<u8>),
    /// What DNS over TCP makes of the frame.
    Streamed(PortContext, Output),
    /// A DNS query that waits.
    Later(Box<dns::Pending>, Waiting),
    /// Nothing; it is counted.
    Nothing,
}

/// What is needed to send a late answer.
#[derive(Debug)]
pub struct Waiting {
    port: PortContext,
    /// The query's frame, without its payload.
    headers: UdpFrame<'static>,
}

/// Answers punted frames.
#[derive(Debug)]
pub struct Answerer {
    shared: Arc<Shared>,
    dns: Arc<dns::Service>,
    streams: Mutex<Streams>,
    started: Instant,
}

impl Answerer {
    /// Over the shared mirror.
    pub fn new(shared: Arc<Shared>, settings: dns::Settings) -> Answerer {
        let dns = Arc::new(dns::Service::new(shared.clone(), settings));
        Answerer { shared, dns, streams: Mutex::default(), started: Instant::now() }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one frame of a port.
    pub fn answer(&self, key: &Key, frame: &[u8]) -> Outcome {
        let metrics = &self.shared.metrics;
        let port = match key {
            Key::Port { vni, endpoint } => self.shared.mirror().port(*vni, endpoint),
            _ => None,
        };
        let Some(port) = port else {
            metrics.punt_unknown_port.count();
            return Outcome::Nothing;
        };
        if let Ok(segment) = parse_tcp(frame) {
            return self.segment(port, &segment);
        }
        let udp = match parse_udp(frame) {
            Ok(udp) => udp,
            Err(error) => {
                metrics.punt_malformed.count();
                tracing::debug!(%port, %error, "punted frame");
                return Outcome::Nothing;
            }
        };
        match (udp.source.is_ipv4(), udp.destination_port) {
            (true, dhcp::SERVER_PORT_V4) => {
                let counters = [&metrics.dhcp4_answered, &metrics.dhcp4_malformed, &metrics.dhcp4_ignored];
                dhcp_outcome(&port, dhcp::v4::answer(&port, &udp), counters)
            }
            (false, dhcp::SERVER_PORT_V6) => {
                let counters = [&metrics.dhcp6_answered, &metrics.dhcp6_malformed, &metrics.dhcp6_ignored];
                dhcp_outcome(&port, dhcp::v6::answer(&port, &udp), counters)
            }
            (_, dns::DNS_PORT) if dns::is_for_us(&port, udp.destination) => self.name(port, &udp),
            _ => {
                metrics.punt_unknown_service.count();
                Outcome::Nothing
            }
        }
    }

    fn segment(&self, port: PortContext, segment: &TcpFrame<'_>) -> Outcome {
        let metrics = &self.shared.metrics;
        if segment.destination_port != dns::DNS_PORT || !dns::is_for_us(&port, segment.destination) {
            metrics.punt_unknown_service.count();
            return Outcome::Nothing;
        }
        if !dns::is_from_endpoint(&port, segment.source_mac, segment.source) {
            metrics.punt_spoofed.count();
            return Outcome::Nothing;
        }
        let output = self.streams().take(metrics, &port, segment, self.now_ms());
        Outcome::Streamed(port, output)
    }

    fn stream_answer(&self, to: &StreamId, answer: Option<&[u8]>) -> Output {
        self.streams().answer(&self.shared.metrics, to, answer, self.now_ms())
    }

    fn name(&self, port: PortContext, udp: &UdpFrame<'_>) -> Outcome {
        if !dns::is_from_endpoint(&port, udp.source_mac, udp.source) {
            self.shared.metrics.punt_spoofed.count();
            return Outcome::Nothing;
        }
        match self.dns.begin(&port, udp.payload, Carrier::Datagram) {
            Begun::Now(bytes) => match dns::answer_frame(&port, udp, &bytes) {
                Some(frame) => Outcome::Answer(frame),
                None => Outcome::Nothing,
            },
            Begun::Later(pending) => {
                let headers = UdpFrame { payload: &[], ..*udp };
                Outcome::Later(Box::new(pending), Waiting { port, headers })
            }
            Begun::Nothing => Outcome::Nothing,
        }
    }

    /// The frame with a late answer.
    pub async fn finish(&self, pending: dns::Pending, waiting: &Waiting) -> Option<Vec<u8>> {
        let bytes = self.dns.finish(pending).await?;
        dns::answer_frame(&waiting.port, &waiting.headers, &bytes)
    }
}

fn dhcp_outcome(
    port: &PortContext,
    answer: Result<Vec<u8>, NoAnswer>,
    [answered, malformed, ignored]: [&crate::metrics::Number; 3],
) -> Outcome {
    match answer {
        Ok(frame) => {
            answered.count();
            Outcome::Answer(frame)
        }
        Err(error) => {
            match error {
                NoAnswer::Malformed(_) => malformed.count(),
                NoAnswer::Ignored(_) => ignored.count(),
            }
            tracing::debug!(%port, %error, "DHCP without an answer");
            Outcome::Nothing
        }
    }
}

/// Serves the datagram socket for ever.
pub async fn run(answerer: Arc<Answerer>, run_dir: PathBuf) {
    let mut told = false;
    loop {
        match open(&run_dir) {
            Ok(socket) => {
                told = false;
                serve(&answerer, Arc::new(socket), &run_dir.join(PUNT_SOCKET)).await;
            }
            Err(error) if !told => {
                tracing::warn!(%error, "trying again");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(PRESENCE_MS)).await;
    }
}

fn open(run_dir: &Path) -> Result<UnixDatagram, AgentError> {
    let path = run_dir.join(PUNT_AGENT_SOCKET);
    // What a former agent left: there is one agent in a run directory.
    let _ = std::fs::remove_file(&path);
    UnixDatagram::bind(&path)
        .map_err(|source| AgentError::Socket { what: format!("socket {}", path.display()), source })
}

async fn serve(answerer: &Arc<Answerer>, socket: Arc<UnixDatagram>, switch: &Path) {
    let mut ticks = tokio::time::interval(Duration::from_millis(stream::TICK_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut presence = tokio::time::interval(Duration::from_millis(PRESENCE_MS));
    let mut buffer = vec![0_u8; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => match received {
                Ok(length) => take(answerer, &socket, switch, &buffer[..length]),
                Err(error) => {
                    tracing::warn!(%error, "punt socket");
                    return;
                }
            },
            _ = ticks.tick(), if answerer.streams().connections() > 0 => {
                let outputs = answerer.streams().tick(&answerer.shared.metrics, answerer.now_ms());
                for (port, output) in outputs {
                    carry(answerer, &socket, switch, &port, output);
                }
            }
            _ = presence.tick() => {
                // Without a switch there is nobody to tell; it is told again.
                let _ = send(&socket, switch, &[]);
            }
        }
    }
}

/// Sends without waiting: a switch that does not read loses answers, and endpoints ask again.
fn send(socket: &UnixDatagram, switch: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::fd::AsFd;
    let address = rustix::net::SocketAddrUnix::new(switch)?;
    rustix::net::sendto(socket.as_fd(), bytes, rustix::net::SendFlags::DONTWAIT, &address)?;
    Ok(())
}

fn take(answerer: &Arc<Answerer>, socket: &Arc<UnixDatagram>, switch: &Path, datagram: &[u8]) {
    let metrics = &answerer.shared.metrics;
    metrics.punt_in.count();
    let Ok(Punt { key, frame }) = decode::<Punt>(datagram) else {
        metrics.punt_malformed.count();
        return;
    };
    match answerer.answer(&key, &frame) {
        Outcome::Answer(frame) => give_back(&answerer.shared, socket, switch, key, frame),
        Outcome::Streamed(port, output) => carry(answerer, socket, switch, &port, output),
        Outcome::Later(pending, waiting) => {
            let (answerer, socket, switch) = (answerer.clone(), socket.clone(), switch.to_path_buf());
            tokio::spawn(async move {
                if let Some(frame) = answerer.finish(*pending, &waiting).await {
                    give_back(&answerer.shared, &socket, &switch, key, frame);
                }
            });
        }
        Outcome::Nothing => {}
    }
}

/// Does what a step of DNS over TCP asks for, and what follows from it.
fn carry(
    answerer: &Arc<Answerer>,
    socket: &Arc<UnixDatagram>,
    switch: &Path,
    port: &PortContext,
    output: Output,
) {
    let mut outputs = vec![output];
    while let Some(output) = outputs.pop() {
        for frame in output.frames {
            let key = Key::Port { vni: port.vni, endpoint: port.endpoint.clone() };
            give_back(&answerer.shared, socket, switch, key, frame);
        }
        for (id, query) in output.queries {
            match answerer.dns.begin(port, &query, Carrier::Stream) {
                Begun::Now(bytes) => outputs.push(answerer.stream_answer(&id, Some(&bytes))),
                Begun::Nothing => outputs.push(answerer.stream_answer(&id, None)),
                Begun::Later(pending) => {
                    let (answerer, socket, switch) = (answerer.clone(), socket.clone(), switch.to_path_buf());
                    let port = port.clone();
                    tokio::spawn(async move {
                        let bytes = answerer.dns.finish(pending).await;
                        let output = answerer.stream_answer(&id, bytes.as_deref());
                        carry(&answerer, &socket, &switch, &port, output);
                    });
                }
            }
        }
    }
}

fn give_back(shared: &Shared, socket: &UnixDatagram, switch: &Path, key: Key, frame: Vec<u8>) {
    match send(socket, switch, &encode(&Punt { key, frame })) {
        Ok(()) => shared.metrics.punt_out.count(),
        Err(_) => shared.metrics.punt_unsent.count(),
    }
}

#[cfg(test)]
mod tests;
