//! The API over real TLS on loopback, with a backend that answers by rote.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tokio::sync::mpsc;
use weir_api::client::{Client, ClientError, Context};
use weir_api::domains::*;
use weir_api::pki::{Authority, server_config};
use weir_api::server::{Admins, openapi, parse, router};
use weir_api::tls::{Peer, TlsListener, dns_names};
use weir_api::types::*;
use weir_api::{ApiError, Backend, Caller, Reply, TOKEN_CALLER};
use weir_model::Label;
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
            assert_eq!(caller.0, TOKEN_CALLER, "these clients come with the token");
            for document in &request.resources {
                serde_json::from_value::<Resource>(document.clone()).map_err(|error| {
                    ApiError::field("network/red", FieldError::new("mtu", "1", error.to_string()))
                })?;
            }
            let changes = request
                .delete
                .into_iter()
                .map(|id| ResourceChange { id, effect: Effect::Delete, fields: Vec::new() })
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
    fn list(&self, _: Option<Kind>, _: Option<Label>, _: bool) -> Reply<'_, ResourceList> {
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
    fn get(&self, id: ResourceId) -> Reply<'_, ResourceView> {
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
    fn add_member(&self, _: AddMember) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn remove_member(&self, _: u64) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn refresh_group(&self) -> Reply<'_, ()> {
        Box::pin(async { Err(ApiError::not_found("this controller is alone")) })
    }
    fn identities(&self, _: bool) -> Reply<'_, IdentityList> {
        Box::pin(async { Ok(IdentityList::default()) })
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
    fn watch(&self, from: u64) -> Result<mpsc::Receiver<WatchEvent>, ApiError> {
        if from < 2 {
            return Err(ApiError::too_old("read everything again"));
        }
        let (sender, receiver) = mpsc::channel(4);
        for version in from + 1..from + 3 {
            let view = network("red");
            let event = WatchEvent { version, id: view.resource.id(), item: Some(view) };
            sender.try_send(event).unwrap();
        }
        Ok(receiver)
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
    fn token(&self, _: TokenRequest) -> Result<TokenResponse, ApiError> {
        Ok(TokenResponse { token: "weir1.x".into() })
    }
    fn join(&self, _: JoinRequest) -> Reply<'_, JoinResponse> {
        Box::pin(async { Err(ApiError::unauthorized("the join token is over")) })
    }
    fn remove_actuator(&self, _: Caller, _: Label) -> Reply<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    fn repair(&self, _: Caller, name: Label, request: RepairRequest) -> Reply<'_, RepairResponse> {
        Box::pin(async move {
            assert_eq!((name.as_str(), request.cgroup.as_str()), ("h1", "machines/web"));
            Ok(RepairResponse { version: 9, in_force: false })
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
            assert_eq!((name.as_str(), wall.as_str()), ("h1", "wall"));
            assert_eq!(request.files.unwrap()[0].name, "a.yaml");
            Ok(FileWallResponse { version: 10, in_force: true })
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
            assert_eq!((request.domain, request.underlays), (east(), vec!["198.18.2.0/24".to_owned()]));
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
    let made = Authority::make(&Label::new("test").unwrap()).unwrap();
    let authority = Authority::open(&made).unwrap();
    let identity = authority.controller(&[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
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
            let listener = TlsListener::new(listener, config.clone()).unwrap();
            let backend = Rote(leader.map(|leader| servers[leader].clone()));
            let app = router(Arc::new(backend), Admins::of_token("secret"));
            tokio::spawn(async move {
                axum::serve(listener, app.into_make_service_with_connect_info::<Peer>()).await.unwrap();
            });
        }
        servers
    });
    let context = |server: String| Context {
        server,
        others: vec![],
        token: "secret".into(),
        ca: authority.certificate_pem().to_string(),
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
    let id = |name: &str| ResourceId { kind: Kind::Network, network: None, name: Label::new(name).unwrap() };
    assert_eq!(client.resource(&id("red")).unwrap().version, 3);
    assert_eq!(code(client.resource(&id("blue")).unwrap_err()), "not-found");
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
fn a_watch_resumes_and_says_when_it_cannot() {
    let (_runtime, context, _) = serve();
    let client = Client::new(context).unwrap();
    let mut seen = Vec::new();
    let last = client
        .watch(Some(5), |event| {
            seen.push(event.version);
            true
        })
        .unwrap();
    assert_eq!((seen, last), (vec![6, 7], Some(7)));
    assert_eq!(code(client.watch(Some(1), |_| true).unwrap_err()), "too-old");
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
    let issued = authority.actuator(&Label::new("h1").unwrap(), &csr, 30).unwrap();
    assert_eq!(names(&issued), ["h1"], "the name is the domain's to give");
    assert_eq!(names(&authority.admin().unwrap().certificate_pem), ["admin.weir.internal"]);
    assert!(authority.actuator(&Label::new("h1").unwrap(), "no request", 30).is_err());
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
    let refused = other.ask(api, b"tell me all", limit).unwrap_err();
    assert!(refused.contains("refuses: no controller of a domain that is known asks"), "{refused}");
    let large = other.ask(api, &vec![0; QUESTION_BYTES_MAX + 1], limit).unwrap_err();
    assert!(large.contains("at most 4096 bytes"), "{large}");
    // Whoever is there with a certificate of another authority is not asked.
    let stranger = Authority::make(&"west".parse().unwrap()).unwrap();
    let stranger = DomainClient::new(&stranger.certificate_pem).unwrap();
    assert!(stranger.ask(api, b"what follows 7?", limit).unwrap_err().contains("does not answer"));
    assert!(DomainClient::new("no certificate").is_err());
    let strangers = Client::new(Context { token: "wrong".into(), ..context }).unwrap();
    assert!(matches!(strangers.domains(), Err(ClientError::Refused(_))), "the rest is for administrators");
}
