//! The API over real TLS on loopback, with a backend that answers by rote.

#![allow(clippy::unwrap_used)]

mod document;
mod signed;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use weir_admission::{Door, Limits};
use weir_api::any::AnyId;
use weir_api::client::{Client, ClientError, Context};
use weir_api::domains::*;
use weir_api::pki::{Authority, server_config};
use weir_api::planes::*;
use weir_api::server::{Admins, finished, openapi, parse, router};
use weir_api::tls::dns_names;
use weir_api::types::*;
use weir_api::{ApiError, Backend, Caller, Reply, TOKEN_CALLER, WatchStep};
use weir_model::Label;
use weir_model::approval::Needs;
use weir_model::join::{JoinRequest, JoinResponse};
use weir_model::resource::{FieldError, Kind, Network, Resource, ResourceId};

/// With the address of another that leads, it refuses to list.
struct Rote(Option<String>);

fn network(name: &str) -> ResourceView {
    let text = format!(r#"{{"kind":"network","name":"{name}"}}"#);
    ResourceView {
        resource: serde_json::from_str(&text).unwrap(),
        version: 3,
        allocated: serde_json::json!({"vni": 7}),
    }
}

impl Backend for Rote {
    fn apply(&self, caller: Caller, request: ApplyRequest) -> Reply<'_, ApplyResponse> {
        Box::pin(async move {
            assert_eq!(caller.subject, TOKEN_CALLER, "these clients come with the token");
            for document in &request.resources {
                let resource = serde_json::from_value::<Resource>(document.clone()).map_err(|error| {
                    ApiError::field("network/red", FieldError::new("mtu", "1", error.to_string()))
                })?;
                let id = resource.id().to_string();
                resource.validate().map_err(|error| ApiError::field(id, error))?;
            }
            let changes = request
                .delete
                .into_iter()
                .map(|id| ResourceChange { id, effect: Effect::Delete, version: None, fields: Vec::new() })
                .collect();
            Ok(ApplyResponse {
                version: (!request.dry_run).then_some(4),
                changes,
                updates: vec![],
                updates_total: 0,
                switches: 0,
                joined: 1,
                in_force: false,
                not_ready: Vec::new(),
                without_host: Vec::new(),
                not_in_force: Vec::new(),
            })
        })
    }
    fn audit(&self, from: u64, limit: usize) -> Reply<'_, AuditPage> {
        Box::pin(async move {
            let links = (from..=2).take(limit).map(|number| format!("link {number}")).collect();
            let (controller, head) = ("controller/c1".to_owned(), "00".to_owned());
            Ok(AuditPage { controller, from, links, first: 1, last: 2, head, failed: false })
        })
    }
    fn list(&self, _: Option<Label>, _: Option<Label>, _: bool) -> Reply<'_, ResourceList> {
        Box::pin(async {
            match &self.0 {
                Some(leader) => Err(ApiError::not_leader(Some(leader.clone()))),
                None => Ok(ResourceList { items: vec![network("red")], version: 3 }),
            }
        })
    }
    fn devices(&self, _: Option<Label>) -> Reply<'_, DeviceList> {
        Box::pin(async { Ok(DeviceList { items: Vec::new(), more: false }) })
    }
    fn get(&self, id: AnyId) -> Reply<'_, ResourceView> {
        Box::pin(async move {
            match id.name.as_str() {
                "red" => Ok(network("red")),
                _ => Err(ApiError::not_found(format!("there is no {id}"))),
            }
        })
    }
    fn group(&self) -> Result<GroupStatus, ApiError> {
        Err(ApiError::not_found("this controller is alone"))
    }
    fn add_member(&self, _: Caller, _: AddMember) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn convert(&self, _: Caller, _: ConvertRequest) -> Reply<'_, ConvertResponse> {
        Box::pin(async { Err(ApiError::conflict("this controller is in a group")) })
    }
    fn remove_member(&self, _: u64) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn refresh_group(&self) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn clock(&self) -> ClockStatus {
        let controllers = vec![ClockOf { id: 2, ahead_ms: -7 }];
        ClockStatus { ordered_ms: 1, wall_ms: 2, ahead_ms: None, state: "alone".into(), controllers }
    }
    fn set_clock(&self, caller: Caller) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::unavailable(caller.subject)) })
    }
    fn identities(&self, _: bool) -> Reply<'_, IdentityList> {
        Box::pin(async { Ok(IdentityList::default()) })
    }
    fn operators(&self) -> Reply<'_, OperatorList> {
        Box::pin(async { Ok(OperatorList::default()) })
    }
    fn put_operator(&self, _: Caller, name: Label, _: OperatorRequest) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::conflict(name.to_string())) })
    }
    fn remove_operator(&self, _: Caller, name: Label) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::not_found(name.to_string())) })
    }
    fn rotate(&self, _: Caller, request: RotateRequest) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::not_found(request.name)) })
    }
    fn revoke(&self, _: Caller, request: RevokeRequest) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::conflict(request.reason)) })
    }
    fn order_key_change(&self, _: Caller, change: KeyChange) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::invalid(change.event)) })
    }
    fn next_key(&self) -> Reply<'_, KeyChange> {
        Box::pin(async { Ok(KeyChange::default()) })
    }
    fn use_next_key(&self) -> Reply<'_, KeyChange> {
        Box::pin(async { Err(ApiError::conflict("not yet")) })
    }
    /// From 5 on: two versions, the first of many events; then its end. From 6 on it ends without a word, as who is too slow.
    fn watch(&self, from: u64) -> Result<mpsc::Receiver<WatchStep>, ApiError> {
        match from {
            0..5 => return Err(ApiError::too_old("read everything again")),
            5..8 => {}
            _ => return Err(ApiError::not_reached("ask again")),
        }
        let (sender, receiver) = mpsc::channel(4);
        let event = |version, name: &str| {
            let view = network(name);
            WatchEvent { version, more: false, id: view.resource.id(), item: Some(view) }
        };
        let many = (0..EVENTS).map(|number| event(from + 1, &format!("n{number}"))).collect();
        sender.try_send(WatchStep::Version(from + 1, many)).unwrap();
        sender.try_send(WatchStep::Version(from + 3, vec![event(from + 3, "red")])).unwrap();
        if from == 5 {
            let problem = *ApiError::unavailable("this controller stops").problem;
            sender.try_send(WatchStep::End(problem)).unwrap();
        }
        Ok(receiver)
    }
    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(async {
            match &self.0 {
                Some(_) => Err(ApiError::unready("no leader")),
                None => Ok(()),
            }
        })
    }
    fn status(&self) -> Reply<'_, StatusResponse> {
        Box::pin(async { Err(ApiError::overloaded("busy")) })
    }
    fn trace(&self, _: TraceRequest) -> Reply<'_, TraceResponse> {
        Box::pin(async { Err(ApiError::unavailable("no answer")) })
    }
    fn capture(&self, _: CaptureRequest) -> Reply<'_, Vec<CapturedFrame>> {
        Box::pin(async { Ok(vec![]) })
    }
    fn token(&self, _: Caller, request: TokenRequest) -> Reply<'_, TokenResponse> {
        Box::pin(async move {
            let id = request.name.to_string();
            Ok(TokenResponse { token: "weir1.x".into(), id, until_s: 7 })
        })
    }
    fn tokens(&self) -> Reply<'_, TokenList> {
        Box::pin(async { Ok(TokenList::default()) })
    }
    fn void_token(&self, _: Caller, id: String) -> Reply<'_, ()> {
        Box::pin(async move { Err(ApiError::not_found(id)) })
    }
    fn join(&self, _: JoinRequest, from: IpAddr) -> Reply<'_, JoinResponse> {
        Box::pin(async move { Err(ApiError::unauthorized(format!("no join token, from {from}"))) })
    }
    fn approvals(&self) -> Reply<'_, ApprovalList> {
        Box::pin(async { Ok(ApprovalList::default()) })
    }
    fn approve(&self, caller: Caller, id: [u8; 32], approve: bool) -> Reply<'_, ApprovalResponse> {
        Box::pin(async move { signed::approve(&caller, id, approve) })
    }
    fn need_approvals(&self, _: Caller, _: Needs) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::waits("it waits")) })
    }
    fn remove_actuator(&self, caller: Caller, name: Label) -> Reply<'_, ()> {
        Box::pin(async move { signed::remove(&caller, name) })
    }
    fn repair(&self, _: Caller, name: Label, request: RepairRequest) -> Reply<'_, RepairResponse> {
        Box::pin(async move {
            if (name.as_str(), request.cgroup.as_str()) != ("h1", "machines/web") {
                return Err(ApiError::not_found("no such cgroup"));
            }
            Ok(RepairResponse { version: 9, in_force: false, outcome: None })
        })
    }
    fn planes(&self, _: Label) -> Reply<'_, PlaneList> {
        Box::pin(async { Ok(PlaneList { items: Vec::new(), reports: Vec::new() }) })
    }
    fn plane(&self, _: Label, plane: Label, of: String) -> Reply<'_, PlaneView> {
        Box::pin(async move {
            let spec = serde_json::json!({ "text": of });
            let (plane, description) = (plane.to_string(), String::new());
            Ok(PlaneView { plane, name: of, version: 11, spec, description, in_force: true, refusal: None })
        })
    }
    fn order(
        &self,
        _: Caller,
        name: Label,
        (plane, of): (Label, String),
        spec: Option<serde_json::Value>,
        wait_ms: u32,
    ) -> Reply<'_, PlaneResponse> {
        Box::pin(async move {
            let refusal = Some(format!("{name} {plane} {of:?} {spec:?} {wait_ms}"));
            Ok(PlaneResponse { version: 11, in_force: false, refusal })
        })
    }
    fn filewall(
        &self,
        _: Caller,
        name: Label,
        wall: Label,
        request: FileWallRequest,
    ) -> Reply<'_, FileWallResponse> {
        Box::pin(async move {
            let first = request.files.unwrap_or_default().first().map(|file| file.name.clone());
            if (name.as_str(), wall.as_str(), first.as_deref()) != ("h1", "wall", Some("a.yaml")) {
                return Err(ApiError::not_found("no such order"));
            }
            Ok(FileWallResponse { version: 10, in_force: true, outcome: None })
        })
    }
    fn domain(&self) -> Reply<'_, DomainDescription> {
        Box::pin(async { Ok(east()) })
    }
    fn domains(&self) -> Reply<'_, DomainList> {
        Box::pin(async { Ok(DomainList { items: Vec::new() }) })
    }
    fn add_domain(&self, _: Caller, request: AddDomain) -> Reply<'_, DomainResponse> {
        Box::pin(async move {
            if (request.domain, request.underlays) != (east(), vec!["198.18.2.0/24".to_owned()]) {
                return Err(ApiError::not_found("no such domain"));
            }
            Ok(DomainResponse { version: 11 })
        })
    }
    fn forget_domain(&self, _: Caller, name: Label) -> Reply<'_, DomainResponse> {
        Box::pin(async move { Err(ApiError::not_found(format!("no domain '{name}'"))) })
    }
    fn statements(&self, question: Vec<u8>) -> Reply<'_, Vec<u8>> {
        Box::pin(async move {
            match question.as_slice() {
                b"what follows 7?" => Ok(b"8, 9".to_vec()),
                _ => Err(ApiError::unauthorized("no controller of a domain that is known asks")),
            }
        })
    }
    fn counters(&self, _: Label) -> Reply<'_, Vec<(String, u64)>> {
        Box::pin(async { Ok(vec![("drops".into(), 2)]) })
    }
    fn metrics(&self) -> String {
        "weir_up 1\n".into()
    }
}

/// Events of a version of a watch: more than any queue holds.
const EVENTS: usize = 3_000;

/// One request in its own words; status and body of the answer.
fn ask(context: &Context, request: &str) -> (u16, String) {
    let (status, head, body) = ask_bytes(context, request.as_bytes());
    assert!(head.starts_with("HTTP/1."), "{head}");
    (status, body)
}

fn ask_bytes(context: &Context, request: &[u8]) -> (u16, String, String) {
    use std::io::{Read, Write};
    let at: std::net::SocketAddr = context.server.trim_start_matches("https://").parse().unwrap();
    let config = weir_api::pki::client_config(&context.ca).unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    // An answer may come, and the connection end, before all of a body that nobody wants is written.
    let _ = tls.write_all(request);
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count) = tls.read(&mut part) {
        answer.extend_from_slice(&part[..count]);
        if count == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    (status, head.to_owned(), body.to_owned())
}

#[test]
fn every_error_is_a_problem_in_json() {
    let (_runtime, context, _) = serve();
    let token = "authorization: Bearer secret\r\n";
    let json = "content-type: application/json\r\n";
    let long = "x".repeat(9_000);
    let fields: String = (0..150).map(|number| format!("x-{number}: y\r\n")).collect();
    let cases = [
        (404, format!("GET /v1/nothing HTTP/1.0\r\n{token}\r\n")),
        (401, "GET /v1/status HTTP/1.0\r\n\r\n".to_owned()),
        (405, format!("PUT /v1/apply HTTP/1.0\r\n{token}\r\n")),
        (405, "DELETE /healthz HTTP/1.0\r\n\r\n".to_owned()),
        (415, format!("POST /v1/apply HTTP/1.0\r\n{token}content-length: 2\r\n\r\n{{}}")),
        (
            415,
            format!(
                "POST /v1/apply HTTP/1.0\r\n{token}content-type: text/plain\r\ncontent-length: 2\r\n\r\n{{}}"
            ),
        ),
        (400, format!("POST /v1/apply HTTP/1.0\r\n{token}{json}content-length: 2\r\n\r\n[1")),
        (400, format!("GET /v1/resources?stale=maybe HTTP/1.0\r\n{token}\r\n")),
        (400, format!("GET /v1/resources?colour=red HTTP/1.0\r\n{token}\r\n")),
        (400, format!("GET /v1/audit?limit=-1 HTTP/1.0\r\n{token}\r\n")),
        (400, format!("DELETE /v1/group/members/seven HTTP/1.0\r\n{token}\r\n")),
        (400, format!("GET /v1/resources/network/%ff HTTP/1.0\r\n{token}\r\n")),
        (413, format!("POST /v1/apply HTTP/1.0\r\n{token}{json}content-length: 99999999\r\n\r\n")),
        (414, format!("GET /v1/status?{long} HTTP/1.0\r\n{token}\r\n")),
        (431, format!("GET /v1/status HTTP/1.0\r\n{token}{fields}\r\n")),
        (431, format!("GET /v1/status HTTP/1.0\r\n{token}x-long: {}\r\n\r\n", "y".repeat(40_000))),
        // What needs nobody to be known takes little.
        (413, format!("POST /v1/join HTTP/1.0\r\n{json}content-length: 9000\r\n\r\n")),
        (415, "POST /v1/join HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}".to_owned()),
        (400, format!("POST /v1/join HTTP/1.0\r\n{json}content-length: 2\r\n\r\n{{}}")),
        (413, "POST /v1/domain/statements HTTP/1.0\r\ncontent-length: 9000\r\n\r\n".to_owned()),
    ];
    for (wanted, request) in cases {
        let begin: String = request.chars().take(120).collect();
        let (status, head, body) = ask_bytes(&context, request.as_bytes());
        assert_eq!(status, wanted, "{begin}: {body}");
        assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{begin}: {head}");
        let problem: Problem =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{begin}: {error}: {body}"));
        assert!(
            !problem.message.is_empty() && !problem.message.contains('`'),
            "{begin}: {}",
            problem.message
        );
        if status == 405 {
            assert!(head.to_ascii_lowercase().contains("allow:"), "{head}");
        }
    }
    assert_eq!(ask(&context, "GET /healthz HTTP/1.0\r\n\r\n").0, 200);
    assert_eq!(ask(&context, "GET /readyz HTTP/1.0\r\n\r\n"), (200, "ready\n".to_owned()));
}

#[test]
fn a_body_is_refused_before_it_is_read() {
    let (_runtime, context, _) = serve();
    // Nobody sends the rest: whoever waited for it would not answer.
    for path in ["/v1/apply", "/v1/tokens", "/v1/trace"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        );
        let begun = format!("{head}content-length: 30000000\r\n\r\n{{");
        assert_eq!(ask(&context, &begun).0, 401, "{path}");
    }
    let begun = "POST /v1/join HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: 30000000\r\n\r\n{";
    assert_eq!(ask(&context, begun).0, 413);
}

#[test]
fn a_controller_that_cannot_work_is_alive_and_not_ready() {
    let (_runtime, contexts, _) = serve_with(vec![Some(1), None]);
    assert_eq!(ask(&contexts[0], "GET /healthz HTTP/1.0\r\n\r\n").0, 200);
    assert_eq!(ask(&contexts[0], "GET /readyz HTTP/1.0\r\n\r\n").0, 503);
    assert_eq!(ask(&contexts[1], "GET /readyz HTTP/1.0\r\n\r\n").0, 200);
}

#[test]
fn strangers_keep_no_operator_out() {
    let limits = Limits { strangers_max: 8, strangers_per_address_max: 8, ..Limits::default() };
    let (_runtime, contexts, _) = serve_within(limits, vec![None], SystemTime::now());
    let at: std::net::SocketAddr = contexts[0].server.trim_start_matches("https://").parse().unwrap();
    let client = Client::new(contexts[0].clone()).unwrap();
    let mut held = std::collections::VecDeque::new();
    for _ in 0..20 {
        for _ in 0..20 {
            held.push_back(std::net::TcpStream::connect(at).unwrap());
        }
        assert_eq!(client.list(None, None).unwrap().version, 3);
        held.drain(..held.len().saturating_sub(100));
    }
    // Whoever is known keeps its connection, whatever comes.
    let kept = client.list(None, None).unwrap();
    assert_eq!(kept.version, 3);
}

fn east() -> DomainDescription {
    let one = DomainMember { id: 1, key: "ab".repeat(32), api: "198.18.2.1:7443".into() };
    let (name, group_key, authority) = ("east".into(), "cd".repeat(96), "-----BEGIN".into());
    DomainDescription { name, group_key, authority, controllers: vec![one] }
}

/// Starts the service on a runtime of its own; gives a context for it.
fn serve() -> (tokio::runtime::Runtime, Context, Authority) {
    let (runtime, mut contexts, authority) = serve_with(vec![None]);
    (runtime, contexts.remove(0), authority)
}

/// Starts services of one domain, each with the number of the one that leads if it is another.
fn serve_with(leaders: Vec<Option<usize>>) -> (tokio::runtime::Runtime, Vec<Context>, Authority) {
    serve_within(Limits::default(), leaders, SystemTime::now())
}

fn serve_within(
    limits: Limits,
    leaders: Vec<Option<usize>>,
    made_at: SystemTime,
) -> (tokio::runtime::Runtime, Vec<Context>, Authority) {
    let made = Authority::make(&Label::new("test").unwrap()).unwrap();
    let authority = Authority::open(&made).unwrap();
    let identity = authority.controller(&[IpAddr::V4(Ipv4Addr::LOCALHOST)], made_at).unwrap();
    let config = server_config(&identity, authority.certificate_pem(), false).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let servers: Vec<String> = runtime.block_on(async {
        let mut listeners = Vec::new();
        for _ in &leaders {
            listeners.push(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        }
        let at = |listener: &tokio::net::TcpListener| format!("https://{}", listener.local_addr().unwrap());
        let servers: Vec<String> = listeners.iter().map(at).collect();
        for (listener, leader) in listeners.into_iter().zip(leaders) {
            let (config, door) = (config.clone(), Door::new("api", limits));
            let backend = Rote(leader.map(|leader| servers[leader].clone()));
            let app = finished(router(Arc::new(backend), Admins::of_token("secret")));
            tokio::spawn(async move {
                weir_api::serve::serve(listener, &config, Arc::new(SystemTime::now), &door, app).await
            });
        }
        servers
    });
    let context = |server: String| Context {
        server,
        others: vec![],
        token: "secret".into(),
        ca: authority.certificate_pem().to_string(),
        operator: None,
    };
    let contexts = servers.into_iter().map(context).collect();
    (runtime, contexts, authority)
}

#[test]
fn a_call_goes_on_to_the_controller_that_leads() {
    let (_runtime, contexts, _) = serve_with(vec![Some(1), None]);
    let client = Client::new(contexts[0].clone()).unwrap();
    assert_eq!(client.list(None, None).unwrap().version, 3);
    assert_eq!(client.server(), contexts[1].server, "the next call goes there at once");

    // One that is gone is passed over: nothing came to it.
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let server = format!("https://{free}");
    let gone = Context { server: server.clone(), others: vec![], ..contexts[0].clone() };
    let answer = Client::new(gone.clone()).unwrap().list(None, None);
    assert!(matches!(answer, Err(ClientError::Unreachable { may_be_done: false, .. })), "{answer:?}");
    assert!(matches!(Client::new(gone).unwrap().group(), Err(ClientError::Unreachable { .. })));
    let alone = Client::new(contexts[1].clone()).unwrap().group();
    assert_eq!(code(alone.unwrap_err()), "not-found");
}

fn code(error: ClientError) -> String {
    match error {
        ClientError::Refused(error) => error.problem.code,
        other => panic!("{other}"),
    }
}

#[test]
fn calls_answer_and_errors_keep_their_words() {
    let (_runtime, context, _) = serve();
    let client = Client::new(context).unwrap();
    assert_eq!(client.list(Some("network"), None).unwrap().items.len(), 1);
    let id = |name: &str| {
        let name = Label::new(name).unwrap();
        AnyId::from(ResourceId { kind: Kind::Network, network: None, name })
    };
    assert_eq!(client.resource(&id("red")).unwrap().version, 3);
    assert_eq!(code(client.resource(&id("blue")).unwrap_err()), "not-found");
    // The name of what a plane has may be any text.
    let at = Label::new("h1").unwrap();
    let of_plane =
        AnyId { kind: Label::new("echo").unwrap(), network: None, host: Some(at), name: "a b/ü%".into() };
    let ClientError::Refused(error) = client.resource(&of_plane).unwrap_err() else {
        panic!("refused expected")
    };
    assert_eq!(error.problem.message, "there is no echo/h1/a b/ü%");
    assert_eq!(code(client.list(Some("cloud"), None).unwrap_err()), "invalid");
    assert_eq!(code(client.status().unwrap_err()), "overloaded");
    assert_eq!(client.counters("h1").unwrap()["drops"], 2);
    client.remove_actuator("h1").unwrap();
    let applied = client.apply(&ApplyRequest { delete: vec![id("red")], ..ApplyRequest::default() }).unwrap();
    assert_eq!(applied.changes[0].effect, Effect::Delete);
    let wrong = ApplyRequest {
        resources: vec![serde_json::json!({"kind": "network", "name": "red", "mttu": 1})],
        ..ApplyRequest::default()
    };
    let ClientError::Refused(error) = client.apply(&wrong).unwrap_err() else { panic!("refused expected") };
    assert!(error.problem.field.unwrap().allowed.contains("mttu"));
}

#[test]
fn a_watch_tells_versions_whole_and_says_why_it_ends() {
    let (_runtime, context, _) = serve();
    let client = Client::new(context.clone()).unwrap();
    for from in [5, 6] {
        let mut seen = Vec::new();
        let last = client.watch(Some(from), |event| {
            seen.push((event.version, event.more));
            true
        });
        assert_eq!(last.unwrap(), Some(from + 3));
        assert_eq!(seen.len(), EVENTS + 1, "no event of a version is lost");
        assert_eq!(seen.iter().filter(|(_, more)| !more).count(), 2);
        assert_eq!(seen.last(), Some(&(from + 3, false)));
    }
    // Whoever stops inside of a version resumes before it.
    let last = client.watch(Some(5), |event| event.more && event.version < 6);
    assert_eq!(last.unwrap(), Some(5));
    assert_eq!(code(client.watch(Some(1), |_| true).unwrap_err()), "too-old");
    assert_eq!(code(client.watch(Some(9), |_| true).unwrap_err()), "not-reached");

    let lines = |from: u64| {
        let answer = ask(
            &context,
            &format!("GET /v1/watch?from={from} HTTP/1.0\r\nauthorization: Bearer secret\r\n\r\n"),
        );
        let last = answer.1.trim_end().lines().last().unwrap().to_owned();
        serde_json::from_str::<WatchEnd>(&last).unwrap()
    };
    let stopped = lines(5);
    assert_eq!((stopped.ended.code.as_str(), stopped.from), ("unavailable", 8));
    let slow = lines(6);
    assert_eq!((slow.ended.code.as_str(), slow.from), ("too-slow", 9));
}

#[test]
fn whose_clock_makes_a_certificate_bad_is_told_so() {
    let years = Duration::from_secs(10 * 365 * 86_400);
    // By the clock of this machine; as if that were years behind, or ahead.
    for (made_at, words) in
        [(SystemTime::now() + years, "is not valid yet, for"), (SystemTime::now() - years, "is over, since")]
    {
        let (_runtime, mut contexts, _) = serve_within(Limits::default(), vec![None, None], made_at);
        let others = vec![contexts.remove(1).server];
        let client = Client::new(Context { others, ..contexts.remove(0) }).unwrap();
        let watched = client.watch(None, |_| true).map(drop);
        for said in [client.list(None, None).map(drop), client.group().map(drop), watched] {
            let error = said.unwrap_err();
            assert!(matches!(error, ClientError::Clock { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(words) && error.contains("set this clock right"), "{error}");
        }
    }
}

#[test]
fn nobody_enters_without_a_right_token_and_authority() {
    let (_runtime, context, authority) = serve();
    let wrong = Client::new(Context { token: "guess".into(), ..context.clone() }).unwrap();
    assert_eq!(code(wrong.list(None, None).unwrap_err()), "unauthorized");
    let other = Authority::make(&Label::new("other").unwrap()).unwrap();
    let stranger = Client::new(Context { ca: other.certificate_pem, ..context }).unwrap();
    assert!(matches!(stranger.list(None, None), Err(ClientError::Unreachable { .. })));
    assert_eq!(authority.fingerprint().unwrap().len(), 64);
}

#[test]
fn certificates_tell_actuators_and_administrators_apart() {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let made = Authority::make(&Label::new("test").unwrap()).unwrap();
    let authority = Authority::open(&made).unwrap();
    let names = |pem: &str| dns_names(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::new(vec!["admin.weir.internal".to_string()]).unwrap();
    let csr = request.serialize_request(&key).unwrap().pem().unwrap();
    let issued = authority.actuator(&Label::new("h1").unwrap(), &csr, 30, SystemTime::now()).unwrap();
    assert_eq!(names(&issued), ["h1"], "the name is the domain's to give");
    assert_eq!(names(&authority.admin().unwrap().certificate_pem), ["admin.weir.internal"]);
    assert!(authority.actuator(&Label::new("h1").unwrap(), "no request", 30, SystemTime::now()).is_err());

    // The word of the owner's identity goes from the request into the certificate; whose it is looks who takes that.
    let word = weir_model::signed::Signature { r: [7; 32], s: [8; 32] };
    let attribute = rcgen::Attribute {
        oid: &weir_model::identity::OWNER_OID,
        values: weir_trust::owner::to_der_set(&word),
    };
    let csr = request.serialize_request_with_attributes(&key, vec![attribute]).unwrap().pem().unwrap();
    let owned = authority.actuator(&Label::new("h1").unwrap(), &csr, 30, SystemTime::now()).unwrap();
    let words = |pem: &str| {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
        let ours = |arcs: Vec<u64>| arcs == weir_model::identity::OWNER_OID;
        let found = certificate.extensions().iter().filter(|one| ours(one.oid.iter().unwrap().collect()));
        found.map(|one| (one.critical, weir_trust::owner::of_der(one.value))).collect::<Vec<_>>()
    };
    assert_eq!((words(&owned), words(&issued)), (vec![(false, Some(word))], vec![]));
}

#[test]
fn the_document_is_openapi_3_1_and_names_every_resource() {
    let document = serde_json::to_value(openapi()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for path in ["/v1/apply", "/v1/resources", "/v1/watch", "/v1/status", "/v1/trace", "/v1/join"] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    for schema in ["Network", "Subnet", "Endpoint", "Route", "FirewallRule", "Balancer", "Problem"] {
        assert!(document["components"]["schemas"].get(schema).is_some(), "{schema}");
    }
    let spec = &document["components"]["schemas"]["PlaneResource"]["properties"]["spec"];
    assert_eq!(spec["x-bytes-max-of-plane"]["monitor"], 1024);
    let network: Network = serde_json::from_str(r#"{"name":"red"}"#).unwrap();
    let properties = document["components"]["schemas"]["Network"]["properties"].as_object().unwrap();
    for field in serde_json::to_value(network).unwrap().as_object().unwrap().keys() {
        assert!(properties.contains_key(field), "{field} is not in the document");
    }
}

#[test]
fn fuzz_bodies() {
    bolero::check!().with_iterations(5_000).for_each(|bytes: &[u8]| {
        let _ = parse::<ApplyRequest>(bytes);
        let _ = parse::<TraceRequest>(bytes);
        let _ = parse::<JoinRequest>(bytes);
    });
}

#[test]
fn domains_are_made_known_by_operators_and_ask_without_a_token() {
    let (_runtime, context, _authority) = serve();
    let client = Client::new(context.clone()).unwrap();
    assert_eq!(client.domain().unwrap(), east());
    assert!(client.domains().unwrap().items.is_empty());
    let request = AddDomain { domain: east(), underlays: vec!["198.18.2.0/24".into()] };
    assert_eq!(client.add_domain(&request).unwrap().version, 11);
    let Err(ClientError::Refused(error)) = client.forget_domain("west") else { panic!("forgotten") };
    assert_eq!(
        (error.problem.code.as_str(), error.problem.message.as_str()),
        ("not-found", "no domain 'west'")
    );

    let limit = std::time::Duration::from_secs(10);
    let other = DomainClient::new(&context.ca).unwrap();
    let api = context.server.trim_start_matches("https://");
    assert_eq!(other.ask(api, b"what follows 7?", limit).unwrap(), b"8, 9");
    let refused = other.ask(api, b"tell me all", limit).unwrap_err().to_string();
    assert!(refused.contains("refuses: no controller of a domain that is known asks"), "{refused}");
    let large = other.ask(api, &vec![0; QUESTION_BYTES_MAX + 1], limit).unwrap_err().to_string();
    assert!(large.contains("at most 4096 bytes"), "{large}");
    // Whoever is there with a certificate of another authority is not asked.
    let stranger = Authority::make(&"west".parse().unwrap()).unwrap();
    let stranger = DomainClient::new(&stranger.certificate_pem).unwrap();
    assert!(
        stranger.ask(api, b"what follows 7?", limit).unwrap_err().to_string().contains("does not answer")
    );
    assert!(DomainClient::new("no certificate").is_err());
    let strangers = Client::new(Context { token: "wrong".into(), ..context }).unwrap();
    assert!(matches!(strangers.domains(), Err(ClientError::Refused(_))), "the rest is for administrators");
}
