//! gRPC over a [`StoreService`]: checks who asks, converts, and keeps the order of each stream.
//!
//! What one caller may not, or says badly, is refused by itself: the rest of its batch goes on.

use crate::access::Identity;
use crate::convert::{query, to_answer, to_change, to_outcome, to_problem, to_status};
use crate::proto::store_server::{Store as Rpc, StoreServer};
use crate::proto::{self as p, client_batch, server_batch};
use crate::service::{Consistency, ServiceError, StoreService};
use crate::tls::{Peer, accept};
use futures_util::stream::FuturesUnordered;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Extensions, Request, Response, Status, Streaming};
use weir_admission::{Door, Limits, Place};
use weir_model::Version;
use weir_store::{Answer, Batch, Change, Operation, Outcome, Query, Refusal};

/// Largest message either way, bytes. Below the largest operation of a controller's order, so that what can be
/// received can be ordered.
pub const MESSAGE_BYTES_MAX: usize = 14 << 20;
/// Most batches of one stream that are open.
pub const BATCHES_OPEN_MAX: usize = 64;
/// Most queries of a read.
pub const QUERIES_MAX: usize = 4_096;
/// Bytes of changes that one reply of a watch has, unless one version has more.
const WATCH_BYTES: usize = 4 << 20;
/// A watch whose client takes nothing for so long ends.
const WATCH_WAIT: Duration = Duration::from_secs(30);
/// Most filters of a watch.
pub const FILTERS_MAX: usize = 256;

/// Says who asks, by what the transport knows ([`crate::tls::Peer`], say) and the call's metadata.
pub type Authenticate = dyn Fn(&Extensions, &MetadataMap) -> Result<Identity, Status> + Send + Sync;

/// The service, to be served by [`serve`] or as a route beside others.
/// Streams end when `stopping` becomes true. Who asks is judged by the head of a call, before a byte of its body is read.
pub fn service(
    service: Arc<dyn StoreService>,
    authenticate: Arc<Authenticate>,
    stopping: watch::Receiver<bool>,
) -> InterceptedService<StoreServer<Server>, ByHead> {
    let server = StoreServer::new(Server { service, authenticate: authenticate.clone(), stopping })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    InterceptedService::new(server, ByHead(authenticate))
}

/// Lets those through who may ask; their connection is a known one's from then on.
#[derive(Clone)]
pub struct ByHead(Arc<Authenticate>);

impl std::fmt::Debug for ByHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByHead")
    }
}

impl Interceptor for ByHead {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let who = (self.0)(request.extensions(), request.metadata())?;
        let extensions = request.extensions();
        let place = extensions.get::<Place>().or_else(|| extensions.get::<Peer>().map(|peer| &peer.place));
        if let Some(place) = place {
            place.admit(&who.name).map_err(|full| Status::resource_exhausted(full.to_string()))?;
        }
        request.extensions_mut().insert(who);
        Ok(request)
    }
}

/// Serves on a socket until `stop` ends; then streams end behind what they began.
///
/// # Errors
/// What the transport says.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    store: Arc<dyn StoreService>,
    authenticate: Arc<Authenticate>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let door = Door::new("store", Limits::default());
    let incoming = ReceiverStream::new(accept(listener, tls, door));
    let (stopped, stopping) = watch::channel(false);
    let stop = async {
        stop.await;
        stopped.send_replace(true);
    };
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(service(store, authenticate, stopping))
        .serve_with_incoming_shutdown(incoming, stop)
        .await
}

/// See the module.
#[derive(Clone)]
pub struct Server {
    service: Arc<dyn StoreService>,
    authenticate: Arc<Authenticate>,
    stopping: watch::Receiver<bool>,
}

/// Ends when the server stops.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_err() {
        // Whoever could stop the server is gone, so it runs until the process ends.
        std::future::pending::<()>().await;
    }
}

impl Server {
    fn who<T>(&self, request: &Request<T>) -> Result<Identity, Status> {
        match request.extensions().get::<Identity>() {
            Some(who) => Ok(who.clone()),
            None => (self.authenticate)(request.extensions(), request.metadata()),
        }
    }

    /// Takes its place in the order when called.
    fn submit(
        &self,
        who: &Identity,
        request: p::SubmitRequest,
    ) -> impl Future<Output = Result<p::SubmitReply, ServiceError>> + Send + use<> {
        // Outcomes of requests that are refused here; the others are ordered.
        let mut refused: Vec<Option<Outcome>> = Vec::with_capacity(request.requests.len());
        let mut requests: Vec<weir_store::Request> = Vec::with_capacity(request.requests.len());
        let mut next = 0;
        for one in request.requests {
            // Refusing one must not change the numbers of those behind it.
            let sequence = if one.sequence == 0 { next } else { one.sequence };
            next = sequence.saturating_add(1);
            match allowed(who, one.operation) {
                Ok(operation) => {
                    requests.push(weir_store::Request { sequence, operation });
                    refused.push(None);
                }
                Err(problem) => refused.push(Some(Outcome::Refused(Refusal::Invalid { problem }))),
            }
        }
        let (client, principal) = (request.client, who.principal());
        let batch = Batch { client, principal, settled_below: request.settled_below, requests };
        let ordered = (!batch.requests.is_empty()).then(|| self.service.submit(batch));
        async move {
            let mut done = match ordered {
                Some(ordered) => ordered.await?,
                None => Vec::new(),
            }
            .into_iter();
            let lost = || Outcome::Refused(Refusal::Invalid { problem: "its outcome is missing".into() });
            let outcomes = refused.into_iter().map(|refused| match refused {
                Some(refused) => refused,
                None => done.next().unwrap_or_else(lost),
            });
            Ok(p::SubmitReply { outcomes: outcomes.map(to_outcome).collect() })
        }
    }

    fn read(
        &self,
        who: &Identity,
        request: p::ReadRequest,
    ) -> impl Future<Output = Result<p::ReadReply, ServiceError>> + Send + use<> {
        let consistency = match request.staleness_ms {
            0 => Consistency::Linearizable,
            staleness_ms => Consistency::Stale { staleness_ms },
        };
        let mut queries: Vec<Query> = Vec::new();
        let mut refused: Vec<Option<Answer>> = Vec::new();
        let too_many = request.queries.len() > QUERIES_MAX;
        for one in request.queries {
            let checked = query(one).map_err(|error| error.to_string());
            let allowed = |query: Query| match who.check_query(&query) {
                Ok(()) => Ok(query),
                Err(denied) => Err(denied.to_string()),
            };
            match checked.and_then(allowed) {
                Ok(query) => {
                    queries.push(query);
                    refused.push(None);
                }
                Err(problem) => refused.push(Some(Answer::Refused(Refusal::Invalid { problem }))),
            }
        }
        let reading = self.service.read(queries, consistency);
        async move {
            if too_many {
                let reason = format!("{} queries are over the limit of {QUERIES_MAX} a read", refused.len());
                return Err(ServiceError::Unavailable { reason });
            }
            let read = reading.await?;
            let mut answers = read.answers.into_iter();
            let lost = || Answer::Refused(Refusal::Invalid { problem: "its answer is missing".into() });
            let all = refused.into_iter().map(|refused| match refused {
                Some(refused) => refused,
                None => answers.next().unwrap_or_else(lost),
            });
            Ok(p::ReadReply { version: read.version.0, answers: all.map(to_answer).collect() })
        }
    }

    /// Begins with a batch, and gives what ends it.
    fn begin(&self, who: &Identity, batch: p::ClientBatch) -> Begun {
        let number = batch.number;
        let answer = move |body| p::ServerBatch { number, body: Some(body) };
        let problem = move |error: &ServiceError| answer(server_batch::Body::Problem(to_problem(error)));
        match batch.body {
            Some(client_batch::Body::Submit(request)) => {
                let submitted = self.submit(who, request);
                Box::pin(async move {
                    match submitted.await {
                        Ok(reply) => answer(server_batch::Body::Submitted(reply)),
                        Err(error) => problem(&error),
                    }
                })
            }
            Some(client_batch::Body::Read(request)) => {
                let read = self.read(who, request);
                Box::pin(async move {
                    match read.await {
                        Ok(reply) => answer(server_batch::Body::Read(reply)),
                        Err(error) => problem(&error),
                    }
                })
            }
            None => {
                let message = "a batch has requests or queries".to_owned();
                let code = p::problem::Code::Invalid.into();
                let problem = p::Problem { code, message, leader: String::new() };
                Box::pin(async move { answer(server_batch::Body::Problem(problem)) })
            }
        }
    }
}

/// The answers of a stream, as they come. Polling it also begins what the client sends: all of a stream is one task, so
/// that a batch costs as few wake-ups as it can. It ends behind what was begun when the client or the server ends.
struct Answers {
    server: Server,
    who: Identity,
    /// None when nothing more comes.
    batches: Option<Streaming<p::ClientBatch>>,
    open: FuturesUnordered<Begun>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Answers {
    /// Begins with what came.
    fn begin_all(&mut self, context: &mut Context<'_>) {
        while self.open.len() < BATCHES_OPEN_MAX
            && let Some(batches) = &mut self.batches
        {
            if self.stopped.as_mut().poll(context).is_ready() {
                self.batches = None;
                return;
            }
            match Pin::new(batches).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(batch))) => self.open.push(self.server.begin(&self.who, batch)),
                Poll::Ready(Some(Err(status))) => {
                    tracing::debug!(%status, "a stream ended");
                    self.batches = None;
                }
                Poll::Ready(None) => self.batches = None,
            }
        }
    }
}

impl Stream for Answers {
    type Item = Result<p::ServerBatch, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.begin_all(context);
        match Pin::new(&mut self.open).poll_next(context) {
            Poll::Ready(Some(answer)) => Poll::Ready(Some(Ok(answer))),
            Poll::Ready(None) if self.batches.is_none() => Poll::Ready(None),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

type Begun = Pin<Box<dyn Future<Output = p::ServerBatch> + Send>>;
type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn allowed(who: &Identity, operation: Option<p::Operation>) -> Result<Operation, String> {
    let operation = operation.ok_or("a request has no operation")?;
    let operation = crate::convert::operation(operation).map_err(|error| error.to_string())?;
    who.check_operation(&operation).map_err(|denied| denied.to_string())?;
    Ok(operation)
}

#[tonic::async_trait]
impl Rpc for Server {
    type StreamStream = Sent<p::ServerBatch>;
    type WatchStream = Sent<p::WatchReply>;

    async fn stream(
        &self,
        request: Request<Streaming<p::ClientBatch>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let who = self.who(&request)?;
        let answers = Answers {
            server: self.clone(),
            who,
            batches: Some(request.into_inner()),
            open: FuturesUnordered::new(),
            stopped: Box::pin(stopped(self.stopping.clone())),
        };
        Ok(Response::new(Box::pin(answers)))
    }

    async fn submit(&self, request: Request<p::SubmitRequest>) -> Result<Response<p::SubmitReply>, Status> {
        let who = self.who(&request)?;
        let submitted = Server::submit(self, &who, request.into_inner()).await;
        submitted.map(Response::new).map_err(|error| to_status(&error))
    }

    async fn read(&self, request: Request<p::ReadRequest>) -> Result<Response<p::ReadReply>, Status> {
        let who = self.who(&request)?;
        let read = Server::read(self, &who, request.into_inner()).await;
        read.map(Response::new).map_err(|error| to_status(&error))
    }

    async fn watch(&self, request: Request<p::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let who = self.who(&request)?;
        let request = request.into_inner();
        if request.filters.len() > FILTERS_MAX {
            return Err(Status::invalid_argument(format!("a watch has at most {FILTERS_MAX} filters")));
        }
        let from = (!request.now).then_some(Version(request.from_version));
        let (from, mut changes) = self.service.watch(from).map_err(|error| to_status(&error))?;
        let (replies, sent) = mpsc::channel(16);
        let filters = request.filters;
        let wanted = move |table: &str, key: &[u8]| {
            let named =
                |filter: &p::WatchFilter| filter.table == table && key.starts_with(&filter.key_prefix);
            who.may_read(table) && (filters.is_empty() || filters.iter().any(named))
        };
        let stopping = self.stopping.clone();
        tokio::spawn(async move {
            // Tells at once from where the watch goes.
            let first = p::WatchReply { changes: Vec::new(), version: from.0 };
            let mut told = vec![Ok(first)];
            loop {
                for reply in told {
                    let ends = reply.is_err();
                    // A client that takes nothing for so long asks again from where it was.
                    if replies.send_timeout(reply, WATCH_WAIT).await.is_err() || ends {
                        return;
                    }
                }
                let next = tokio::select! {
                    next = changes.next() => next,
                    () = replies.closed() => return,
                    () = stopped(stopping.clone()) => return,
                };
                told = match next {
                    Ok(changes) => parts(&changes).map(|part| Ok(watch_reply(part, &wanted))).collect(),
                    Err(error) => vec![Err(to_status(&error))],
                };
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sent))))
    }
}

fn watch_reply(changes: &[Arc<Change>], wanted: &impl Fn(&str, &[u8]) -> bool) -> p::WatchReply {
    let version = changes.last().map_or(0, |change| change.version.0);
    let changes = changes.iter().filter_map(|change| to_change(change, wanted)).collect();
    p::WatchReply { changes, version }
}

/// Changes in parts that a message holds; a version is never divided.
fn parts(changes: &[Arc<Change>]) -> impl Iterator<Item = &[Arc<Change>]> {
    let mut rest = changes;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |change: &&Arc<Change>| {
            bytes += change.bytes();
            bytes <= WATCH_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (part, after) = rest.split_at(count);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests;
