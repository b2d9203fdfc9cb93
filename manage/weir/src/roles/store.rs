//! The controller as a store: its clients' operations go through the same order as its events (row B1).
//!
//! Who shows the administrator's token or certificate may use every namespace, and reads the apps' tables. An actuator
//! may use the namespace `host.NAME`, and no other: names of actuators have no dot, so it is nobody else's.

use super::group::Group;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};
use weir_api::server::Admins;
use weir_api::tls::Peer;
use weir_controller::Error;
use weir_controller::driver::{ControllerHandle, Watch};
use weir_model::Version;
use weir_procedure::WasmLoader;
use weir_rpc::access::Identity;
use weir_rpc::server::Authenticate;
use weir_rpc::service::{Borrowing, Boxed, Changes, Consistency, ReadResult, ServiceError, StoreService};
use weir_store::{Batch, Change, HistoryError, Outcome, Query, Registry};

/// How often it is looked whether an entry goes.
const EXPIRY_LOOK: Duration = Duration::from_millis(100);

/// A read of at most so many entries is answered where it was asked.
const QUICK_QUERIES_MAX: usize = 64;

/// The procedures that clients may call: those of the apps of packets, and what an operator loads. One a process: what
/// it compiled serves operations and reads.
pub fn registry() -> Arc<Registry> {
    static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| {
        Arc::new(weir_apps::flows::procedures(Registry::new().with_loader(Arc::new(WasmLoader::new()))))
    });
    REGISTRY.clone()
}

/// The route of the store, to stand beside the API's.
pub fn route(handle: ControllerHandle, group: Option<Group>, admins: Admins) -> axum::Router {
    // Streams end with the process.
    let (_, stopping) = tokio::sync::watch::channel(false);
    let controlled = Arc::new(Controlled { handle, registry: registry(), group });
    let service = weir_rpc::server::service(controlled, authenticate(admins), stopping);
    axum::Router::new().route_service("/weir.store.v1.Store/{call}", service)
}

fn authenticate(admins: Admins) -> Arc<Authenticate> {
    Arc::new(move |extensions: &Extensions, metadata: &MetadataMap| {
        let peer = extensions.get::<axum::extract::ConnectInfo<Peer>>().map(|info| &info.0);
        let authorization = metadata.get("authorization").and_then(|value| value.to_str().ok());
        let taken = admins.takes(peer);
        taken.map_err(|error| Status::unauthenticated(error.problem.message))?;
        if let Some(name) = peer.and_then(|peer| peer.name.as_ref()).filter(|_| authorization.is_none()) {
            if peer.is_some_and(|peer| peer.is_admin) {
                return Ok(Identity::admin(Identity::ADMINISTRATOR));
            }
            return Ok(Identity::actuator(name));
        }
        admins.check(peer, authorization).map_err(|error| Status::unauthenticated(error.problem.message))?;
        Ok(Identity::admin(Identity::ADMINISTRATOR))
    })
}

/// Orders the time whenever an entry is due, so that it goes also when nothing else is ordered.
pub async fn expire(handle: ControllerHandle) {
    loop {
        tokio::time::sleep(EXPIRY_LOOK).await;
        let now_ms = handle.time().ordered_ms();
        let due_ms = handle.published().store.next_expiry_ms();
        if let Some(due_ms) = due_ms.filter(|due_ms| *due_ms <= now_ms)
            && handle.orders_for_all(Duration::from_millis(now_ms - due_ms))
            && let Ok(applied) = handle.operate(Batch::once([]))
        {
            // One at a time; why it failed is in the order's own counters.
            let _ = applied.await;
        }
    }
}

#[derive(Clone)]
struct Controlled {
    handle: ControllerHandle,
    registry: Arc<Registry>,
    group: Option<Group>,
}

impl Controlled {
    /// With the address of the controller that leads, where another does.
    fn refused(&self, error: &Error) -> ServiceError {
        match error {
            Error::Order(weir_order::Error::NotLeader { leader }) => {
                let api = |group: &Group| leader.and_then(|leader| group.api_of(leader));
                ServiceError::NotLeader { leader: self.group.as_ref().and_then(api) }
            }
            other => refused(other),
        }
    }
}

fn refused(error: &Error) -> ServiceError {
    let reason = error.to_string();
    match error {
        Error::Overloaded { .. } => ServiceError::Overloaded { reason },
        Error::Held(_) | Error::Converts => ServiceError::Unavailable { reason },
        Error::Order(weir_order::Error::Overloaded { .. }) => ServiceError::Overloaded { reason },
        Error::Order(order) if order.is_definite() => ServiceError::Unavailable { reason },
        Error::WatchTooOld { from, oldest } => HistoryError::TooOld { from: *from, oldest: *oldest }.into(),
        Error::WatchAhead { from, last } => HistoryError::Ahead { from: *from, last: *last }.into(),
        _ => ServiceError::Uncertain { reason },
    }
}

impl StoreService for Controlled {
    fn submit(&self, batch: Batch) -> Boxed<Result<Vec<Outcome>, ServiceError>> {
        let operated = self.handle.operate(batch);
        let this = self.clone();
        Box::pin(async move {
            let answered = operated.map_err(|error| this.refused(&error))?.await;
            let stopped = |_| ServiceError::Uncertain { reason: "the controller stopped meanwhile".into() };
            answered.map_err(stopped)?.map_err(|error| this.refused(&error))
        })
    }

    fn read(&self, queries: Vec<Query>, consistency: Consistency) -> Boxed<Result<ReadResult, ServiceError>> {
        let this = self.clone();
        Box::pin(async move {
            // Alone, what is published is there before anybody is told that it is done, so this costs nothing.
            let fresh = match consistency {
                Consistency::Linearizable => this.handle.barrier().await,
                Consistency::Stale { staleness_ms } => {
                    this.handle.barrier_within(Duration::from_millis(staleness_ms)).await
                }
            };
            fresh.map_err(|error| this.refused(&error))?;
            let published = this.handle.published();
            let version = published.store.version();
            let quick =
                |query: &Query| matches!(query, Query::Get { .. } | Query::Follow { .. } | Query::Digest);
            let is_quick = queries.len() <= QUICK_QUERIES_MAX && queries.iter().all(quick);
            let answered = move || published.store.queries(&this.registry, &queries);
            if is_quick {
                return Ok(ReadResult { version, answers: answered() });
            }
            // Procedures and long scans take their time: not on a thread that serves others.
            let answers = tokio::task::spawn_blocking(answered).await;
            let stopped = |_| ServiceError::Uncertain { reason: "the controller stopped meanwhile".into() };
            Ok(ReadResult { version, answers: answers.map_err(stopped)? })
        })
    }

    fn watch(&self, from: Option<Version>) -> Result<(Version, Box<dyn Changes>), ServiceError> {
        let from = from.unwrap_or_else(|| self.handle.published().store.version());
        let watch = self.handle.watch(from).map_err(|error| refused(&error))?;
        Ok((from, Box::new(Watched(watch))))
    }
}

struct Watched(Watch);

impl Changes for Watched {
    fn next(&mut self) -> Borrowing<'_, Result<Vec<Arc<Change>>, ServiceError>> {
        Box::pin(async { self.0.next().await.map_err(|error| refused(&error)) })
    }
}
