//! The client: what the command line and tests speak to a controller with.

use crate::types::{
    ApiError, ApplyRequest, ApplyResponse, CaptureRequest, CapturedFrame, Problem, ResourceList,
    ResourceView, StatusResponse, TokenRequest, TokenResponse, TraceRequest, TraceResponse, WatchEvent,
};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use weir_model::resource::ResourceId;

/// Largest answer read, bytes.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// A controller answers within this, but for a watch.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Where a controller is and who we are: the file `admin.json` that a controller writes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Context {
    /// Base address, such as `https://192.0.2.1:7443`.
    pub server: String,
    /// Bearer token.
    pub token: String,
    /// The authority's certificate, PEM.
    pub ca: String,
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
    },
    /// The controller refuses.
    #[error("{}", .0.problem.message)]
    Refused(ApiError),
    /// The controller's answer makes no sense.
    #[error("the controller's answer cannot be read: {0}")]
    Answer(String),
}

/// A client of one controller.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    context: Context,
}

impl Client {
    /// A client with a context.
    ///
    /// # Errors
    /// [`ClientError::Answer`] when the certificate is none.
    pub fn new(context: Context) -> Result<Client, ClientError> {
        let ca = Certificate::from_pem(context.ca.as_bytes())
            .map_err(|error| ClientError::Answer(format!("the context's CA certificate: {error}")))?;
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(vec![ca])))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build()
            .into();
        Ok(Client { agent, context })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.context.server.trim_end_matches('/'))
    }

    fn unreachable(&self, error: &ureq::Error) -> ClientError {
        ClientError::Unreachable { server: self.context.server.clone(), reason: error.to_string() }
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

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let request = self.agent.get(self.url(path)).header("authorization", self.bearer());
        self.read(request.config().timeout_global(Some(TIMEOUT)).build().call())
    }

    fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        let request = self.agent.post(self.url(path)).header("authorization", self.bearer());
        self.read(request.config().timeout_global(Some(TIMEOUT)).build().send_json(body))
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.context.token)
    }

    /// `POST /v1/apply`.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub fn apply(&self, request: &ApplyRequest) -> Result<ApplyResponse, ClientError> {
        self.post("/v1/apply", request)
    }

    /// `GET /v1/resources`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&self, kind: Option<&str>, network: Option<&str>) -> Result<ResourceList, ClientError> {
        let parts: Vec<String> = [("kind", kind), ("network", network)]
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")))
            .collect();
        self.get(&format!("/v1/resources?{}", parts.join("&")))
    }

    /// `GET /v1/resources/…`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resource(&self, id: &ResourceId) -> Result<ResourceView, ClientError> {
        self.get(&format!("/v1/resources/{id}"))
    }

    /// `GET /v1/status`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&self) -> Result<StatusResponse, ClientError> {
        self.get("/v1/status")
    }

    /// `POST /v1/trace`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn trace(&self, request: &TraceRequest) -> Result<TraceResponse, ClientError> {
        self.post("/v1/trace", request)
    }

    /// `POST /v1/capture`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn capture(&self, request: &CaptureRequest) -> Result<Vec<CapturedFrame>, ClientError> {
        self.post("/v1/capture", request)
    }

    /// `POST /v1/tokens`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn token(&self, request: &TokenRequest) -> Result<TokenResponse, ClientError> {
        self.post("/v1/tokens", request)
    }

    /// `GET /metrics`, in Prometheus' text format.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let request = self.agent.get(self.url("/metrics")).header("authorization", self.bearer());
        let bytes = self.body(request.config().timeout_global(Some(TIMEOUT)).build().call())?;
        String::from_utf8(bytes).map_err(|error| ClientError::Answer(error.to_string()))
    }

    /// `GET /v1/actuators/{name}/counters`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn counters(&self, actuator: &str) -> Result<BTreeMap<String, u64>, ClientError> {
        self.get(&format!("/v1/actuators/{actuator}/counters"))
    }

    /// `DELETE /v1/actuators/{name}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove_actuator(&self, actuator: &str) -> Result<(), ClientError> {
        let url = self.url(&format!("/v1/actuators/{actuator}"));
        self.read::<Option<()>>(self.agent.delete(url).header("authorization", self.bearer()).call())
            .map(drop)
    }

    /// `GET /v1/watch`: calls `each` for every change until it returns `false` or the stream ends.
    /// Returns the version to resume from.
    ///
    /// # Errors
    /// [`ClientError`]; `too-old` when everything must be read again.
    pub fn watch(
        &self,
        from: Option<u64>,
        mut each: impl FnMut(WatchEvent) -> bool,
    ) -> Result<Option<u64>, ClientError> {
        let query = from.map(|from| format!("?from={from}")).unwrap_or_default();
        let url = self.url(&format!("/v1/watch{query}"));
        let mut answer = self
            .agent
            .get(url)
            .header("authorization", self.bearer())
            .call()
            .map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if !status.is_success() {
            let bytes = answer.body_mut().read_to_vec().map_err(|error| self.unreachable(&error))?;
            return Err(refused(status, &bytes));
        }
        let mut last = from;
        let reader = BufReader::new(answer.body_mut().with_config().limit(u64::MAX).reader());
        for line in reader.lines() {
            let Ok(line) = line else { break };
            let event: WatchEvent =
                serde_json::from_str(&line).map_err(|error| ClientError::Answer(error.to_string()))?;
            last = Some(event.version);
            if !each(event) {
                break;
            }
        }
        Ok(last)
    }
}

fn refused(status: StatusCode, bytes: &[u8]) -> ClientError {
    let problem = serde_json::from_slice(bytes).unwrap_or_else(|_| Problem {
        code: "internal".to_string(),
        message: format!("status {status}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])),
        resource: None,
        field: None,
    });
    ClientError::Refused(ApiError { status, problem: Box::new(problem) })
}
