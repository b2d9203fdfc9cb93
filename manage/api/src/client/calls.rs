//! Calls that are not signed: those that read, and those of the group to itself.

use super::{Client, ClientError, PROBE_TIMEOUT, TIMEOUT, encoded, plane_path, refused};
use crate::any::AnyId;
use crate::domains::{DomainDescription, DomainList};
use crate::planes::{PlaneList, PlaneView};
use crate::said::Word;
use crate::types::{
    ApiError, ApprovalList, AuditPage, CaptureRequest, CapturedFrame, ClockStatus, ConvertRequest,
    ConvertResponse, DeviceList, GroupStatus, IdentityList, KeyChange, OperatorList, ResourceList,
    ResourceView, RotateRequest, StatusResponse, TokenList, TraceRequest, TraceResponse, WatchEvent,
    WatchLine,
};
use axum::http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

impl Client {
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

    /// `GET /v1/devices`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn devices(&self, network: Option<&str>) -> Result<DeviceList, ClientError> {
        self.get(
            &network.map_or_else(
                || "/v1/devices".to_string(),
                |network| format!("/v1/devices?network={network}"),
            ),
        )
    }

    /// `GET /v1/resources/…`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resource(&self, id: &AnyId) -> Result<ResourceView, ClientError> {
        let AnyId { kind, network, host, name } = id;
        let place = network.as_ref().or(host.as_ref()).map(|place| format!("{place}/")).unwrap_or_default();
        self.get(&format!("/v1/resources/{kind}/{place}{}", encoded(name)))
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

    /// `GET /v1/tokens`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tokens(&self) -> Result<TokenList, ClientError> {
        self.get("/v1/tokens")
    }

    /// `GET /metrics`, in Prometheus' text format.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let request =
            self.agent(&self.server()).get(self.url("/metrics")).header("authorization", self.bearer());
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

    /// `GET /v1/actuators/{name}/planes`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn planes(&self, actuator: &str) -> Result<PlaneList, ClientError> {
        self.get(&format!("/v1/actuators/{actuator}/planes"))
    }

    /// `GET /v1/actuators/{name}/planes/{plane}/{of}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn plane(&self, actuator: &str, plane: &str, of: &str) -> Result<PlaneView, ClientError> {
        self.get(&plane_path(actuator, plane, of))
    }

    /// `GET /v1/domain`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn domain(&self) -> Result<DomainDescription, ClientError> {
        self.get("/v1/domain")
    }

    /// `GET /v1/domains`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn domains(&self) -> Result<DomainList, ClientError> {
        self.get("/v1/domains")
    }

    /// `GET /v1/status` of the controller of the context, whoever leads.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status_here(&self) -> Result<StatusResponse, ClientError> {
        self.get_from(&self.server(), "/v1/status", PROBE_TIMEOUT)
    }

    /// `GET /v1/audit`, of one controller.
    ///
    /// # Errors
    /// [`ClientError`]; `not-found` where it keeps none.
    pub fn audit(&self, server: &str, from: u64) -> Result<AuditPage, ClientError> {
        self.get_from(server, &format!("/v1/audit?from={from}&limit=4096"), TIMEOUT)
    }

    /// `GET /v1/group`, of the controller that leads where one does.
    ///
    /// # Errors
    /// [`ClientError`]; `not-found` where a controller is alone.
    pub fn group(&self) -> Result<GroupStatus, ClientError> {
        if !self.context.others.is_empty() {
            self.find_leader();
        }
        let mut failed = None;
        for server in self.servers() {
            match self.get_from(&server, "/v1/group", PROBE_TIMEOUT) {
                Err(error @ (ClientError::Unreachable { .. } | ClientError::Clock { .. })) => {
                    failed = failed.or(Some(error));
                }
                answer => return answer,
            }
        }
        Err(failed.unwrap_or_else(|| ClientError::Answer("the context names no controller".into())))
    }

    /// `GET /v1/identities`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn identities(&self) -> Result<IdentityList, ClientError> {
        self.get("/v1/identities")
    }

    /// `GET /v1/identities` of the controller of the context, whoever leads: with the certificate that it shows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn own_certificate(&self) -> Result<IdentityList, ClientError> {
        self.get_from(&self.server(), "/v1/identities?stale=true", PROBE_TIMEOUT)
    }

    /// `GET /v1/operators`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn operators(&self) -> Result<OperatorList, ClientError> {
        self.get("/v1/operators")
    }

    /// `GET /v1/approvals`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn approvals(&self) -> Result<ApprovalList, ClientError> {
        self.get("/v1/approvals")
    }

    /// `POST /v1/identities/rotate`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn rotate(&self, request: &RotateRequest) -> Result<(), ClientError> {
        self.post::<_, Option<()>>("/v1/identities/rotate", request).map(drop)
    }

    /// `POST /v1/identities/change`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn order_key_change(&self, change: &KeyChange) -> Result<(), ClientError> {
        self.post::<_, Option<()>>("/v1/identities/change", change).map(drop)
    }

    /// `POST /v1/identities/own/next`, of a client of one controller.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn next_key(&self) -> Result<KeyChange, ClientError> {
        self.post("/v1/identities/own/next", &())
    }

    /// `POST /v1/identities/own/use`, of a client of one controller.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn use_next_key(&self) -> Result<KeyChange, ClientError> {
        self.post("/v1/identities/own/use", &())
    }

    /// `GET /v1/clock`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clock(&self) -> Result<ClockStatus, ClientError> {
        self.get("/v1/clock")
    }

    /// `POST /v1/clock`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_clock(&self) -> Result<(), ClientError> {
        self.post::<_, Option<()>>("/v1/clock", &()).map(drop)
    }

    /// `POST /v1/group/convert`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn convert(&self, request: &ConvertRequest) -> Result<ConvertResponse, ClientError> {
        self.post("/v1/group/convert", request)
    }

    /// `POST /v1/group/refresh`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn refresh_group(&self) -> Result<(), ClientError> {
        self.post::<_, Option<()>>("/v1/group/refresh", &()).map(drop)
    }

    /// `DELETE /v1/group/members/{id}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove_member(&self, id: u64) -> Result<(), ClientError> {
        let path = format!("/v1/group/members/{id}");
        self.at_leader(|| self.send::<(), Option<()>>(Method::DELETE, &path, &Word::None, None)).map(drop)
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
        if !self.context.others.is_empty() {
            self.find_leader();
        }
        let query = from.map(|from| format!("?from={from}")).unwrap_or_default();
        let url = self.url(&format!("/v1/watch{query}"));
        let request = self.agent(&self.server()).get(url).header("authorization", self.bearer());
        // What happens next may take as long as it likes, but not that it begins.
        let begins = request.config().timeout_recv_response(Some(TIMEOUT)).build();
        let mut answer = begins.call().map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if !status.is_success() {
            let bytes = answer.body_mut().read_to_vec().map_err(|error| self.unreachable(&error))?;
            return Err(refused(status, &bytes));
        }
        let mut last = from;
        let reader = BufReader::new(answer.body_mut().with_config().limit(u64::MAX).reader());
        for line in reader.lines() {
            let Ok(line) = line else { break };
            let line = serde_json::from_str(&line).map_err(|error| ClientError::Answer(error.to_string()))?;
            let event: WatchEvent = match line {
                WatchLine::Change(event) => event,
                WatchLine::End(end) if end.ended.code == "too-old" => {
                    let problem = Box::new(end.ended);
                    return Err(ClientError::Refused(ApiError { status: StatusCode::GONE, problem }));
                }
                WatchLine::End(end) => return Ok(Some(end.from)),
            };
            // A version is whole or not told: there is no place inside it to go on from.
            if !event.more {
                last = Some(event.version);
            }
            if !each(event) {
                break;
            }
        }
        Ok(last)
    }
}
