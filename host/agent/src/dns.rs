//! DNS for endpoints (rows A11, A15, pain 12): every network is a zone, `<network>.weir.internal`.
//!
//! Queries reach the router's address and are punted here. Names of the asker's own network are
//! answered from the mirror, then from a short cache, then by a gateway, which knows every location;
//! the rest goes to the configured resolvers, or is refused when there are none.
//!
//! Invariants
//! - Isolation: no name of another network is answered, forwarded or cached for an asker. Reverse
//!   names of the network's own prefixes are asked of gateways with the zone appended, because
//!   tenants use the same addresses; private reverse names never leave the host.
//! - An answer is taken only from the server asked, on a fresh random port, with the random number
//!   and the question that were sent; of a gateway's answer only records for the name asked, with
//!   addresses inside the network's prefixes.
//! - Outstanding queries are bounded in all and for each port.
//!
//! An answer over the size of the asker's datagrams is cut with TC set, and whole over TCP ([`stream`]).
//!
//! Departure: a gateway's listener for other agents speaks UDP only; what it knows of one name fits.

pub mod cache;
pub mod directory;
pub mod forward;
pub mod framing;
pub mod listener;
pub mod message;
pub mod stream;

use crate::frame::UdpFrame;
use crate::metrics::Metrics;
use crate::mirror::PortContext;
use crate::shared::Shared;
use cache::{Cache, Scope};
use directory::{Answer, Decision, Question, decide};
use hickory_proto::op::ResponseCode;
use message::{Carrier, Query, Refused};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_model::entry::Vni;
use weir_model::event::Role;
use weir_model::{Label, MacAddr};

/// Port that DNS is asked at.
pub const DNS_PORT: u16 = 53;
/// Most queries waiting for a gateway or a resolver.
pub const OUTSTANDING_MAX: usize = 1024;
/// Most queries of one port waiting for a gateway or a resolver.
pub const OUTSTANDING_PER_PORT_MAX: usize = 32;
/// Time that an answer about a network's own names may be kept, seconds: endpoints move.
pub const ZONE_TTL_S: u32 = 5;

/// Whom to ask.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this actuator is: a gateway knows all locations, and asks no other.
    pub role: Role,
    /// Port of the gateways' listeners on the underlay.
    pub gateway_port: u16,
    /// This machine's address on the underlay, which gateways are asked from: they know switches by it.
    pub underlay: Option<IpAddr>,
    /// Resolvers for names outside.
    pub upstream: Vec<SocketAddr>,
}

/// Answers the queries of endpoints.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    settings: Settings,
    cache: Mutex<Cache>,
    places: Arc<Semaphore>,
    waiting: Mutex<HashMap<(Vni, Label), usize>>,
    started: Instant,
}

/// What becomes of a query.
#[derive(Debug)]
pub enum Begun {
    /// Its answer.
    Now(Vec<u8>),
    /// Somebody else must be asked: await [`Service::finish`].
    Later(Pending),
    /// It is dropped.
    Nothing,
}

/// A query that waits for somebody else.
#[derive(Debug)]
pub struct Pending {
    query: Query,
    question: Question,
    port: PortContext,
    decision: Decision,
    /// Held until the answer is there.
    place: OwnedSemaphorePermit,
}

/// Whether an address is the router's, as the port's endpoint sees it.
pub fn is_for_us(port: &PortContext, destination: IpAddr) -> bool {
    let routers = port
        .network
        .subnets
        .iter()
        .flat_map(|subnet| {
            let v4 = subnet.router_v4.map(IpAddr::V4);
            v4.into_iter().chain(subnet.router_v6.map(IpAddr::V6))
        })
        .chain([IpAddr::V6(port.vni.router_link_local())]);
    routers.into_iter().any(|router| router == destination)
}

/// Whether the source of a frame is the port's endpoint.
pub fn is_from_endpoint(port: &PortContext, mac: MacAddr, source: IpAddr) -> bool {
    let link_local = matches!(source, IpAddr::V6(v6) if v6.is_unicast_link_local());
    mac == port.port.mac && (link_local || port.port.addresses.contains(&source))
}

/// The frame that carries an answer back.
pub fn answer_frame(port: &PortContext, query: &UdpFrame<'_>, payload: &[u8]) -> Option<Vec<u8>> {
    UdpFrame {
        source_mac: port.vni.router_mac(),
        destination_mac: port.port.mac,
        source: query.destination,
        destination: query.source,
        source_port: query.destination_port,
        destination_port: query.source_port,
        payload,
    }
    .build()
}

impl Service {
    /// With an empty cache.
    pub fn new(shared: Arc<Shared>, settings: Settings) -> Service {
        Service {
            shared,
            settings,
            cache: Mutex::default(),
            places: Arc::new(Semaphore::new(OUTSTANDING_MAX)),
            waiting: Mutex::default(),
            started: Instant::now(),
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Takes a query from a port.
    pub fn begin(&self, port: &PortContext, payload: &[u8], carrier: Carrier) -> Begun {
        let query = match message::parse_query(payload) {
            Ok(query) => query.carried_by(carrier),
            Err(Refused::Drop) => {
                self.metrics().dns_malformed.count();
                return Begun::Nothing;
            }
            Err(Refused::Reply(bytes)) => {
                self.metrics().dns_refused.count();
                return Begun::Now(bytes);
            }
        };
        let question = query.question();
        let decision = decide(&self.shared.mirror(), self.settings.role, port, &question);
        if let Decision::Answer(answer) = &decision {
            self.metrics().dns_local.count();
            return self.now(&query, answer);
        }
        let scope = decision.scope(port.vni);
        let cached = self.lock_cache().get(scope, &question, self.now_ms());
        if let Some(answer) = cached {
            self.metrics().dns_cached.count();
            return self.now(&query, &answer);
        }
        if matches!(decision, Decision::Upstream) && self.settings.upstream.is_empty() {
            self.metrics().dns_refused.count();
            return self.now(&query, &Answer::code(ResponseCode::Refused));
        }
        match self.take_place(port) {
            Some(place) => Begun::Later(Pending { query, question, port: port.clone(), decision, place }),
            None => {
                self.metrics().dns_busy.count();
                self.now(&query, &Answer::code(ResponseCode::ServFail))
            }
        }
    }

    fn now(&self, query: &Query, answer: &Answer) -> Begun {
        match self.encode(query, answer) {
            Some(bytes) => Begun::Now(bytes),
            None => Begun::Nothing,
        }
    }

    fn encode(&self, query: &Query, answer: &Answer) -> Option<Vec<u8>> {
        let (bytes, truncated) = message::encode_answer(query, answer)?;
        if truncated {
            self.metrics().dns_truncated.count();
        }
        Some(bytes)
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_place(&self, port: &PortContext) -> Option<OwnedSemaphorePermit> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let own = waiting.entry((port.vni, port.endpoint.clone())).or_default();
        if *own >= OUTSTANDING_PER_PORT_MAX {
            return None;
        }
        let place = self.places.clone().try_acquire_owned().ok()?;
        *own += 1;
        self.metrics().dns_outstanding.set((OUTSTANDING_MAX - self.places.available_permits()) as u64);
        Some(place)
    }

    fn give_place_back(&self, port: &PortContext, place: OwnedSemaphorePermit) {
        drop(place);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (port.vni, port.endpoint.clone());
        if let Some(own) = waiting.get_mut(&name) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(&name);
            }
        }
        self.metrics().dns_outstanding.set((OUTSTANDING_MAX - self.places.available_permits()) as u64);
    }

    /// Asks whoever must be asked, and gives the answer for the endpoint.
    pub async fn finish(&self, pending: Pending) -> Option<Vec<u8>> {
        let Pending { query, question, port, decision, place } = pending;
        let answer = match &decision {
            Decision::Gateway { ask } => self.ask_gateway(&port, &question, ask).await,
            Decision::Upstream => self.ask_upstream(&question).await,
            Decision::Answer(answer) => answer.clone(),
        };
        self.give_place_back(&port, place);
        self.lock_cache().put(decision.scope(port.vni), &question, &answer, self.now_ms());
        self.encode(&query, &answer)
    }

    async fn ask_gateway(&self, port: &PortContext, question: &Question, ask: &Question) -> Answer {
        let gateways: Vec<SocketAddr> = self
            .shared
            .mirror()
            .gateways()
            .iter()
            .map(|gateway| SocketAddr::new(gateway.underlay, self.settings.gateway_port))
            .collect();
        match forward::ask(self.metrics(), self.settings.underlay, &gateways, ask, false).await {
            Some(answer) => {
                self.metrics().dns_gateway.count();
                directory::only_of_network(port, question, ask, answer)
            }
            None => {
                self.metrics().dns_failed.count();
                Answer::code(ResponseCode::ServFail)
            }
        }
    }

    async fn ask_upstream(&self, question: &Question) -> Answer {
        match forward::ask(self.metrics(), None, &self.settings.upstream, question, true).await {
            Some(answer) => {
                self.metrics().dns_upstream.count();
                answer
            }
            None => {
                self.metrics().dns_failed.count();
                Answer::code(ResponseCode::ServFail)
            }
        }
    }
}

impl Decision {
    /// Whose cache the answer belongs to.
    fn scope(&self, vni: Vni) -> Scope {
        match self {
            Decision::Upstream => Scope::Outside,
            Decision::Answer(_) | Decision::Gateway { .. } => Scope::Network(vni),
        }
    }
}

#[cfg(test)]
mod tests;
