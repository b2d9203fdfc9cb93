//! The client: many callers, one stream of batches, each request done once.
//!
//! Callers wait in one queue. What waits goes out as one batch, with two batches open at a time: so a
//! lone caller waits for nobody, and many callers share messages. A request keeps its number until
//! it has an outcome, over broken connections and changes of the leader.
//!
//! No wait is for ever: each call has [`ClientSettings::give_up_ms`], counted from when it is made, and a watch tells after so long that it
//! reaches nobody. The error says what the last try met; where that is a certificate out of its time, it names the clock.

mod driver;
mod pause;
mod watch;

use crate::Error;
use crate::tls::{ALPN, clock_words};
use driver::{Driver, Job};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use weir_model::Version;
use weir_store::{
    Action, Answer, Condition, Found, Operation, Outcome, Query, Select, Step, StepOutcome, Write,
};

pub use watch::{Watch, WatchFilter};

/// Longest head of a proxy's answer, bytes.
const PROXY_ANSWER_BYTES_MAX: usize = 8 * 1024;
/// A connection on which nothing comes is asked for a sign of life after so long, and is over when none comes for as long again: so a watch
/// notices that a server is gone whose end nobody told.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Tries that may be under way when a call's time is over, and be waited for.
const LAST_TRIES: u64 = 4;

/// Settings of a client.
#[derive(Clone)]
pub struct ClientSettings {
    /// Where replicas are, `host:port`; the first is tried first.
    pub endpoints: Vec<String>,
    /// TLS; none only for tests on this machine.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Name in the server's certificate, where it is not the endpoint's host.
    pub server_name: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
    /// A proxy for HTTP's CONNECT by which endpoints are reached.
    pub proxy: Option<Proxy>,
    /// Most requests of a batch.
    pub batch_max: usize,
    /// Batches of requests, and of reads, that may be open.
    pub open_max: usize,
    /// Another replica is tried when one did not answer in so long, milliseconds.
    pub try_ms: u64,
    /// A call without an outcome after so long is given up, milliseconds; a try that is under way then is waited for. A watch that
    /// reaches nobody for so long says so.
    pub give_up_ms: u64,
    /// Most requests and reads that wait; callers beyond wait for a place, within the same time.
    pub waiting_max: usize,
    /// Requests are done as they come, without a client in the store whose requests may be repeated: all that a host or gateway may. One whose
    /// answer is lost is not sent again, and [`Error::Uncertain`].
    pub once: bool,
}

/// A proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// `host:port`.
    pub address: String,
    /// What to say in the header proxy-authorization.
    pub authorization: Option<String>,
}

impl ClientSettings {
    /// Defaults for some endpoints.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> ClientSettings {
        ClientSettings {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            server_name: None,
            token: None,
            proxy: None,
            batch_max: 512,
            open_max: 2,
            try_ms: 1_000,
            give_up_ms: 30_000,
            waiting_max: 4_096,
            once: false,
        }
    }

    fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, Error> {
        let parse = |token: &String| {
            let value = format!("Bearer {token}").parse();
            value.map_err(|_| Error::Setting("the token has characters that no header takes".into()))
        };
        self.token.as_ref().map(parse).transpose()
    }

    /// Connects to an endpoint.
    async fn channel(&self, endpoint: &str) -> Result<Channel, Error> {
        let unreachable = |error: &dyn std::fmt::Display| Error::Unavailable(format!("{endpoint}: {error}"));
        // TLS is below: to HTTP/2 it is a plain connection.
        let target = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(|error| Error::Setting(format!("endpoint '{endpoint}': {error}")))?
            .connect_timeout(Duration::from_millis(self.try_ms))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let (tls, name, proxy) = (self.tls.clone(), self.server_name.clone(), self.proxy.clone());
        let address = endpoint.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let (tls, name, address, proxy) = (tls.clone(), name.clone(), address.clone(), proxy.clone());
            async move {
                let stream = match &proxy {
                    Some(proxy) => proxy.connect(&address).await?,
                    None => TcpStream::connect(&address).await?,
                };
                connect(stream, &address, tls, name).await.map(TokioIo::new)
            }
        });
        target.connect_with_connector(connector).await.map_err(|error| {
            if let Some(words) = clock_words(&error) {
                return unreachable(&words);
            }
            let mut cause: &dyn std::error::Error = &error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            unreachable(&cause)
        })
    }
}

/// A connection with TLS or without.
trait Duplex: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Duplex for T {}

impl Proxy {
    /// A stream to an address by the proxy.
    async fn connect(&self, address: &str) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let authorization = self.authorization.as_ref();
        let authorization =
            authorization.map(|text| format!("proxy-authorization: {text}\r\n")).unwrap_or_default();
        let request = format!("CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= PROXY_ANSWER_BYTES_MAX {
                return Err(std::io::Error::other(format!("the proxy {} says too much", self.address)));
            }
            // One at a time: what comes behind is the endpoint's.
            answer.push(stream.read_u8().await?);
        }
        let status = String::from_utf8_lossy(&answer);
        let line = status.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(std::io::Error::other(format!("the proxy {} refuses: {line}", self.address))),
        }
    }
}

async fn connect(
    stream: TcpStream,
    address: &str,
    tls: Option<Arc<rustls::ClientConfig>>,
    name: Option<String>,
) -> std::io::Result<Box<dyn Duplex>> {
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let mut config = (*tls).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let host = name.unwrap_or_else(|| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_matches(['[', ']']).to_owned()
    });
    let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    Ok(Box::new(connector.connect(name, stream).await?))
}

/// A client of a store. Clones share it.
#[derive(Clone)]
pub struct Client {
    jobs: mpsc::Sender<Job>,
    settings: Arc<ClientSettings>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.settings.endpoints).finish_non_exhaustive()
    }
}

impl Client {
    /// A client, on the current runtime. It connects when it is first needed, and ends with its last clone.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn new(settings: ClientSettings) -> Result<Client, Error> {
        if settings.endpoints.is_empty() || settings.batch_max == 0 || settings.open_max == 0 {
            return Err(Error::Setting("a client needs an endpoint, and batches of at least one".into()));
        }
        settings.authorization()?;
        let settings = Arc::new(settings);
        let (jobs, queue) = mpsc::channel(settings.waiting_max.max(1));
        tokio::spawn(Driver::new(settings.clone(), queue).run());
        Ok(Client { jobs, settings })
    }

    /// The time of a call is counted from here: it waits for a place in its own time.
    async fn job<T>(
        &self,
        job: impl FnOnce(Instant, oneshot::Sender<Result<T, Error>>) -> Job,
    ) -> Result<T, Error> {
        let (since, (reply, answer)) = (Instant::now(), oneshot::channel());
        let until = since + Duration::from_millis(self.settings.give_up_ms);
        match tokio::time::timeout_at(until, self.jobs.send(job(since, reply))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::Unavailable("the client has stopped".into())),
            Err(_) => {
                let most = self.settings.waiting_max;
                return Err(Error::Unavailable(format!("{most} requests and reads wait already")));
            }
        }
        // The driver says what the last try met. It is behind its own time by no more than the tries that it is in.
        let until = until + Duration::from_millis(self.settings.try_ms.saturating_mul(LAST_TRIES));
        match tokio::time::timeout_at(until, answer).await {
            Ok(answered) => answered.map_err(|_| Error::Uncertain("the client stopped meanwhile".into()))?,
            Err(_) => Err(Error::Uncertain("the client has said nothing within its time".into())),
        }
    }

    /// Does an operation, once.
    ///
    /// # Errors
    /// Only when there is no outcome: [`Error::Uncertain`], [`Error::Unavailable`], [`Error::Denied`].
    pub async fn submit(&self, operation: Operation) -> Result<Outcome, Error> {
        self.job(|since, reply| Job::Submit { operation, since, reply }).await
    }

    /// Reads, seeing all that was acknowledged before, or lacking at most what was done in the last
    /// `staleness_ms` milliseconds. Gives the version that was read.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn read(&self, query: Query, staleness_ms: u64) -> Result<(Version, Answer), Error> {
        self.job(|since, reply| Job::Read { query, staleness_ms, since, reply }).await
    }

    /// An entry, linearizably.
    ///
    /// # Errors
    /// As [`Client::read`], and [`Error::Refused`].
    pub async fn get(&self, table: &str, key: &[u8]) -> Result<Option<Found>, Error> {
        let query = Query::Get { table: table.into(), key: key.into(), select: Select::Whole };
        match self.read(query, 0).await?.1 {
            Answer::Found(found) => Ok(Some(found)),
            Answer::Absent { .. } => Ok(None),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes one entry. `Ok(Err(version))`: the condition does not hold, this version is there.
    ///
    /// # Errors
    /// As [`Client::submit`], and [`Error::Refused`].
    pub async fn write(
        &self,
        table: &str,
        key: &[u8],
        condition: Condition,
        action: Action,
    ) -> Result<Result<Version, Version>, Error> {
        let write = Write { table: table.into(), key: key.into(), condition, action };
        match self.submit(Operation::Write(write)).await? {
            Outcome::Written { version } | Outcome::Counted { version, .. } => Ok(Ok(version)),
            Outcome::Conflict { found, .. } => Ok(Err(found)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes a value, whatever is there.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn put(&self, table: &str, key: &[u8], value: impl Into<Vec<u8>>) -> Result<Version, Error> {
        let put = Action::Put { value: value.into(), ttl_ms: 0 };
        let written = self.write(table, key, Condition::Always, put).await?;
        written.map_err(|found| unexpected(&found))
    }

    /// Adds to a counter, and gives what it was before.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn increment(&self, table: &str, key: &[u8], column: &str, by: i64) -> Result<i64, Error> {
        let action = Action::Increment { column: column.into(), by };
        let write = Write { table: table.into(), key: key.into(), condition: Condition::Always, action };
        match self.submit(Operation::Write(write)).await? {
            Outcome::Counted { before, .. } => Ok(before),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Does all steps or none. `Ok(Err(step))`: the condition of this step does not hold.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn transact(&self, steps: Vec<Step>) -> Result<Result<Vec<StepOutcome>, u32>, Error> {
        match self.submit(Operation::Transaction(steps)).await? {
            Outcome::Done { steps, .. } => Ok(Ok(steps)),
            Outcome::Conflict { step, .. } => Ok(Err(step)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Calls a procedure.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn call(&self, procedure: &str, arguments: impl Into<Vec<u8>>) -> Result<Vec<u8>, Error> {
        let call = Operation::Call { procedure: procedure.into(), arguments: arguments.into() };
        match self.submit(call).await? {
            Outcome::Reply { reply, .. } => Ok(reply),
            Outcome::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// The changes after a version, or after now; it goes on over broken connections.
    pub fn watch(&self, from: Option<Version>, filters: Vec<WatchFilter>) -> Watch {
        Watch::new(self.settings.clone(), from, filters)
    }
}

fn unexpected(what: &dyn std::fmt::Debug) -> Error {
    Error::Unavailable(format!("the server's answer is of another kind: {what:?}"))
}
