//! The client: what the command line and tests speak to a controller with. What reads is in `calls`, what orders something in `orders`.

mod calls;
mod orders;

use crate::operator::{Operator, OperatorKey};
use crate::pki::clock_words;
use crate::proxy::{Proxies, Proxy};
use crate::said::{HEADER, Word};
use crate::types::{ApiError, GroupMember, GroupStatus, NOT_LEADER, Problem};
use axum::http::{Method, Request, StatusCode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Largest answer read, bytes.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// A controller answers within this, but for a watch.
const TIMEOUT: Duration = Duration::from_secs(90);
/// A controller that does not say who leads within this is passed over.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a call waits for a group to have a leader.
const LEADER_WAIT: Duration = Duration::from_secs(15);
/// Between two looks for it.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// Where a controller is and who we are: the file `admin.json` that a controller writes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Context {
    /// Base address, such as `https://192.0.2.1:7443`.
    pub server: String,
    /// Base addresses of the other controllers of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// Bearer token.
    pub token: String,
    /// The authority's certificate, PEM.
    pub ca: String,
    /// The operator whose key signs what is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<OperatorKey>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The controller cannot be reached.
    #[error(
        "the controller at {server} cannot be reached: {reason}; look whether 'weir controller' runs there, and \
         whether the context (admin.json) is of this domain"
    )]
    Unreachable {
        /// Its address.
        server: String,
        /// What the transport says.
        reason: String,
        /// Whether the request may have come through, so that nobody knows whether it was done.
        may_be_done: bool,
    },
    /// The controller's certificate is out of its time by the clock of this machine. Nothing was sent.
    #[error("the controller at {server} cannot be spoken with: {reason}")]
    Clock {
        /// Its address.
        server: String,
        /// What is out of its time, and what to do.
        reason: String,
    },
    /// The controller refuses.
    #[error("{}", .0.problem.message)]
    Refused(ApiError),
    /// It was not signed, and so nothing was done.
    #[error("{0}")]
    NotSigned(String),
    /// The controller's answer makes no sense.
    #[error("the controller's answer cannot be read: {0}")]
    Answer(String),
}

/// A client of a controller, or of a group of them. In a group, calls go to the one that leads.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    /// The same by the proxy of the environment.
    proxied: Option<ureq::Agent>,
    proxies: Proxies,
    context: Context,
    /// Who signs.
    operator: Option<Operator>,
    /// Who is asked.
    current: Mutex<String>,
}

impl Client {
    /// A client with a context.
    ///
    /// # Errors
    /// [`ClientError::Answer`] when the certificate is none, [`ClientError::NotSigned`] when the operator's key is none.
    pub fn new(context: Context) -> Result<Client, ClientError> {
        let operator = context.operator.as_ref().map(Operator::new).transpose();
        let operator =
            operator.map_err(|error| ClientError::NotSigned(format!("the context's operator: {error}")))?;
        let ca = Certificate::from_pem(context.ca.as_bytes())
            .map_err(|error| ClientError::Answer(format!("the context's CA certificate: {error}")))?;
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(vec![ca])))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let proxies = Proxies::from_environment().map_err(|error| ClientError::Answer(error.to_string()))?;
        let agent = |proxy: Option<ureq::Proxy>| -> ureq::Agent {
            ureq::Agent::config_builder()
                .tls_config(tls.clone())
                .http_status_as_error(false)
                .timeout_connect(Some(Duration::from_secs(5)))
                .proxy(proxy)
                .build()
                .into()
        };
        let proxied = match proxies.first() {
            None => None,
            Some(proxy) => {
                let found = ureq::Proxy::new(proxy.url())
                    .map_err(|error| ClientError::Answer(format!("{}: {error}", proxy.variable)))?;
                Some(agent(Some(found)))
            }
        };
        let agent = agent(None);
        let current = Mutex::new(context.server.trim_end_matches('/').to_string());
        Ok(Client { agent, proxied, proxies, context, operator, current })
    }

    /// The domain in which this client signs.
    pub fn operator_domain(&self) -> Option<&weir_model::Label> {
        self.operator.as_ref().map(Operator::domain)
    }

    /// The controller that is asked.
    pub fn server(&self) -> String {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The proxy by which a controller is reached, when it is.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxies.to(&self.server())
    }

    fn agent(&self, url: &str) -> &ureq::Agent {
        match (&self.proxied, self.proxies.to(url)) {
            (Some(proxied), Some(_)) => proxied,
            _ => &self.agent,
        }
    }

    fn set_server(&self, server: &str) {
        let server = server.trim_end_matches('/').to_string();
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server())
    }

    fn unreachable(&self, error: &ureq::Error) -> ClientError {
        if let Some(reason) = about_clock(error) {
            return ClientError::Clock { server: self.server(), reason };
        }
        ClientError::Unreachable {
            server: self.server(),
            reason: match self.proxy() {
                Some(proxy) => format!("{error} (by the proxy {} of {})", proxy.address, proxy.variable),
                None => error.to_string(),
            },
            may_be_done: !never_sent(error),
        }
    }

    /// The body of an answer that is a success.
    fn body(
        &self,
        answer: Result<axum::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Vec<u8>, ClientError> {
        let mut answer = answer.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            return Err(refused(status, &bytes));
        }
        Ok(bytes)
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: Result<axum::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, ClientError> {
        let bytes = self.body(answer)?;
        let bytes = if bytes.is_empty() { b"null".as_slice() } else { &bytes };
        serde_json::from_slice(bytes).map_err(|error| ClientError::Answer(error.to_string()))
    }

    /// All controllers, the one that is asked first.
    pub fn servers(&self) -> Vec<String> {
        let mut servers = vec![self.server()];
        for server in std::iter::once(&self.context.server).chain(&self.context.others) {
            let server = server.trim_end_matches('/').to_string();
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers
    }

    /// Asks the group who leads. A controller that is stopped or gone costs a moment, and no request.
    fn find_leader(&self) {
        for server in self.servers() {
            let Ok(status) = self.get_from::<GroupStatus>(&server, "/v1/group", PROBE_TIMEOUT) else {
                continue;
            };
            let leads = |member: &&GroupMember| Some(member.id) == status.leader;
            if let Some(leader) = status.members.iter().find(leads) {
                self.set_server(&format!("https://{}", leader.api));
                return;
            }
        }
    }

    /// Makes a call at the controller that leads. It is made again only when it was for certain not done.
    fn at_leader<T>(&self, call: impl Fn() -> Result<T, ClientError>) -> Result<T, ClientError> {
        let until = Instant::now() + LEADER_WAIT;
        let grouped = !self.context.others.is_empty();
        loop {
            if grouped {
                self.find_leader();
            }
            let result = call();
            let again = match &result {
                Err(ClientError::Refused(error)) if error.problem.code == NOT_LEADER => {
                    if let Some(leader) = &error.problem.leader {
                        self.set_server(leader);
                    }
                    true
                }
                Err(ClientError::Unreachable { may_be_done: false, .. }) => grouped,
                _ => false,
            };
            if !again || Instant::now() >= until {
                return result;
            }
            std::thread::sleep(LEADER_PAUSE);
        }
    }

    fn get_from<T: DeserializeOwned>(
        &self,
        server: &str,
        path: &str,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let request =
            self.agent(server).get(format!("{server}{path}")).header("authorization", self.bearer());
        self.read(request.config().timeout_global(Some(limit)).build().call())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.at_leader(|| self.get_from(&self.server(), path, TIMEOUT))
    }

    fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.at_leader(|| self.send(Method::POST, path, &Word::None, Some(body)))
    }

    /// Sends one request to the controller that is asked.
    fn send<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        word: &Word,
        body: Option<&B>,
    ) -> Result<T, ClientError> {
        let mut request = Request::builder().method(method).uri(self.url(path));
        request = request.header("authorization", self.bearer());
        if *word != Word::None {
            request = request.header(HEADER, word.to_string());
        }
        let agent = self.agent(&self.server());
        let unmade = |error: axum::http::Error| ClientError::Answer(format!("the request: {error}"));
        match body {
            None => {
                let request = request.body(()).map_err(unmade)?;
                self.read(agent.run(agent.configure_request(request).timeout_global(Some(TIMEOUT)).build()))
            }
            Some(body) => {
                let json =
                    serde_json::to_vec(body).map_err(|error| ClientError::Answer(error.to_string()))?;
                let request =
                    request.header("content-type", "application/json").body(json).map_err(unmade)?;
                self.read(agent.run(agent.configure_request(request).timeout_global(Some(TIMEOUT)).build()))
            }
        }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.context.token)
    }

    /// A client of one controller of the group alone, by where people and tools reach it.
    ///
    /// # Errors
    /// [`ClientError::Answer`] when the certificate is none.
    pub fn alone(&self, api: &str) -> Result<Client, ClientError> {
        Client::new(Context { server: format!("https://{api}"), others: Vec::new(), ..self.context.clone() })
    }
}

/// Whether a request that failed so cannot have come to a controller.
fn never_sent(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    match error {
        ureq::Error::Io(error) => {
            matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
        }
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}

/// What a person is told of an error below which TLS found a certificate out of its time; nothing for other errors.
fn about_clock(error: &ureq::Error) -> Option<String> {
    match error {
        ureq::Error::Rustls(found) => clock_words(found),
        ureq::Error::Io(error) => clock_words(error.get_ref()?.downcast_ref()?),
        _ => None,
    }
}

fn refused(status: StatusCode, bytes: &[u8]) -> ClientError {
    let problem = serde_json::from_slice(bytes).unwrap_or_else(|_| Problem {
        code: "internal".to_string(),
        message: format!("status {status}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])),
        resource: None,
        field: None,
        leader: None,
        statement: None,
    });
    ClientError::Refused(ApiError { status, problem: Box::new(problem) })
}

/// Where something of a plane is; a name may have any characters.
fn plane_path(actuator: &str, plane: &str, of: &str) -> String {
    format!("/v1/actuators/{actuator}/planes/{plane}/{}", encoded(of))
}

/// A name as one part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let mut path = String::new();
    for byte in name.bytes() {
        match plain(byte) {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}
