//! Joining over real TLS on loopback.

use crate::pki::Authority;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use weir_agent::join::{Applicant, Joined, format_token, identity, join, membership, parse_token};
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::{
    CONTROLLER_DNS_NAME, JoinRequest, JoinResponse, JoinToken, TRUST_FILE, TrustFile, to_hex,
};

type Reply = Box<dyn Fn(&JoinRequest) -> (u16, String) + Send + Sync>;

/// An API that answers each request as told, and remembers them.
pub struct Api {
    pub address: SocketAddr,
    pub requests: Arc<Mutex<Vec<JoinRequest>>>,
}

impl Api {
    pub async fn start(acceptor: TlsAcceptor, reply: Reply) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut bytes = Vec::new();
                let request = loop {
                    let mut buffer = [0; 4096];
                    let read = stream.read(&mut buffer).await.unwrap();
                    bytes.extend_from_slice(&buffer[..read]);
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    if let Some((head, body)) = text.split_once("\r\n\r\n")
                        && let Ok(request) = serde_json::from_str::<JoinRequest>(body)
                    {
                        assert!(head.starts_with("POST /v1/join HTTP/1.0\r\n"), "{head}");
                        break request;
                    }
                    assert!(read > 0, "the request ended early: {text}");
                };
                let (status, body) = reply(&request);
                seen.lock().unwrap().push(request);
                let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(body.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        Api { address, requests }
    }

    pub fn token(&self, authority: &Authority) -> String {
        format_token(&JoinToken {
            ca_fingerprint: authority.fingerprint(),
            secret: "let-me-in".into(),
            controllers: vec![format!("https://{}", self.address)],
            domain: None,
            key: None,
        })
    }
}

pub fn response(authority: &Authority, request: &JoinRequest, controllers: &[String]) -> JoinResponse {
    JoinResponse {
        certificate_pem: authority.sign(&request.csr_pem),
        ca_pem: authority.pem.clone(),
        domain: Label::new("lab").unwrap(),
        epoch: 3,
        group_key: "ab".repeat(32),
        dataplane_secret: "cd".repeat(16),
        controllers: controllers.to_vec(),
    }
}

pub fn applicant() -> Applicant {
    Applicant {
        name: Label::new("host-1").unwrap(),
        role: Role::Host,
        underlay: "192.0.2.1".parse().unwrap(),
    }
}

async fn welcoming(authority: &Arc<Authority>, name: &str) -> Api {
    let signer = authority.clone();
    let reply = move |request: &JoinRequest| {
        let answer = response(&signer, request, &["127.0.0.1:7444".to_string()]);
        (200, serde_json::to_string(&answer).unwrap())
    };
    Api::start(authority.acceptor(name, false), Box::new(reply)).await
}

#[tokio::test]
async fn joining_leaves_all_files_and_is_done_once() {
    let authority = Arc::new(Authority::new());
    let api = welcoming(&authority, "127.0.0.1").await;
    let state = tempfile::tempdir().unwrap();
    let token = api.token(&authority);
    let joined = join(state.path(), &applicant(), &token, false).await.unwrap();
    let Joined::Now(member) = joined else { panic!("{joined:?}") };
    assert_eq!((member.domain.as_str(), member.controllers.len()), ("lab", 1));
    let trust: TrustFile =
        serde_json::from_slice(&std::fs::read(state.path().join(TRUST_FILE)).unwrap()).unwrap();
    assert_eq!((trust.epoch, trust.dataplane_secret), (3, "cd".repeat(16)));
    for secret in ["session.key", "identity.seed", TRUST_FILE] {
        let mode = std::fs::metadata(state.path().join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let request = api.requests.lock().unwrap()[0].clone();
    assert_eq!(request.identity, to_hex(&identity(state.path()).unwrap().public()));
    assert_eq!((request.secret.as_str(), request.name.as_str()), ("let-me-in", "host-1"));
    let before = join(state.path(), &applicant(), &token, false).await.unwrap();
    assert_eq!(before, Joined::Before(member.clone()));
    assert_eq!(api.requests.lock().unwrap().len(), 1);
    let again = join(state.path(), &applicant(), &token, true).await.unwrap();
    assert_eq!(again, Joined::Now(member));
    assert_eq!(api.requests.lock().unwrap()[1].identity, request.identity, "keys are kept");
    let other = Applicant { name: Label::new("host-2").unwrap(), ..applicant() };
    let error = join(state.path(), &other, &token, false).await.unwrap_err().to_string();
    assert!(error.contains("membership of Host 'host-1'"), "{error}");
}

#[tokio::test]
async fn a_controllers_certificate_may_be_for_its_own_name_but_not_for_any() {
    let authority = Arc::new(Authority::new());
    let state = tempfile::tempdir().unwrap();
    let api = welcoming(&authority, CONTROLLER_DNS_NAME).await;
    join(state.path(), &applicant(), &api.token(&authority), false).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let api = welcoming(&authority, "host-9").await;
    let error =
        join(other.path(), &applicant(), &api.token(&authority), false).await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
    assert_eq!(api.requests.lock().unwrap().len(), 0, "the secret was not sent");
}

#[tokio::test]
async fn another_authority_gets_no_secret() {
    let authority = Arc::new(Authority::new());
    let impostor = Arc::new(Authority::new());
    let api = welcoming(&impostor, "127.0.0.1").await;
    let state = tempfile::tempdir().unwrap();
    let error =
        join(state.path(), &applicant(), &api.token(&authority), false).await.unwrap_err().to_string();
    assert!(error.contains("does not hold the authority that the token names"), "{error}");
    assert_eq!(api.requests.lock().unwrap().len(), 0);
    assert_eq!(membership(state.path()).unwrap(), None);
}

#[tokio::test]
async fn refusals_and_wrong_answers_are_told_and_leave_no_membership() {
    let authority = Arc::new(Authority::new());
    let wrong_key = {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["host-1".into()]).unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    };
    type Change = Box<dyn Fn(&mut JoinResponse) + Send + Sync>;
    let signer = authority.clone();
    let cases: Vec<(&str, Change)> = vec![
        ("not the authority that the token names", Box::new(|r| r.ca_pem = Authority::new().pem)),
        ("ca_pem holds no certificate", Box::new(|r| r.ca_pem = String::new())),
        ("not for the key that was sent", Box::new(move |r| r.certificate_pem = signer.sign(&wrong_key))),
        ("group_key is not 64 hex digits", Box::new(|r| r.group_key.truncate(63))),
        ("dataplane_secret is not 32 hex digits", Box::new(|r| r.dataplane_secret.push('g'))),
        ("names no controller", Box::new(|r| r.controllers.clear())),
        ("controllers: 'nowhere'", Box::new(|r| r.controllers = vec!["nowhere".into()])),
    ];
    for (part, change) in cases {
        let signer = authority.clone();
        let reply = move |request: &JoinRequest| {
            let mut answer = response(&signer, request, &["127.0.0.1:7444".to_string()]);
            change(&mut answer);
            (200, serde_json::to_string(&answer).unwrap())
        };
        let api = Api::start(authority.acceptor("127.0.0.1", false), Box::new(reply)).await;
        let state = tempfile::tempdir().unwrap();
        let error =
            join(state.path(), &applicant(), &api.token(&authority), false).await.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(membership(state.path()).unwrap(), None);
    }
    let refusing = Api::start(
        authority.acceptor("127.0.0.1", false),
        Box::new(|_| (403, r#"{"error":"the token has expired"}"#.to_string())),
    )
    .await;
    let state = tempfile::tempdir().unwrap();
    let error =
        join(state.path(), &applicant(), &refusing.token(&authority), false).await.unwrap_err().to_string();
    assert!(error.contains("status 403") && error.contains("the token has expired"), "{error}");
}

#[tokio::test]
async fn a_silent_controller_is_passed_over() {
    let authority = Arc::new(Authority::new());
    let api = welcoming(&authority, "127.0.0.1").await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let token = format_token(&JoinToken {
        ca_fingerprint: authority.fingerprint(),
        secret: "x".into(),
        controllers: vec![format!("https://{closed}"), format!("https://{}/", api.address)],
        domain: None,
        key: None,
    });
    let state = tempfile::tempdir().unwrap();
    assert!(matches!(join(state.path(), &applicant(), &token, false).await, Ok(Joined::Now(_))));
}

#[test]
fn wrong_tokens_are_told_without_repeating_them() {
    let good = JoinToken {
        ca_fingerprint: "ab".repeat(32),
        secret: "hush".into(),
        controllers: vec!["https://192.0.2.1:7443".into()],
        domain: None,
        key: None,
    };
    assert_eq!(parse_token(&format!(" {}\n", format_token(&good))).unwrap(), good);
    let with = |change: fn(&mut JoinToken)| {
        let mut token = good.clone();
        change(&mut token);
        parse_token(&format_token(&token)).unwrap_err().to_string()
    };
    let cases = [
        (parse_token("weir2.x").unwrap_err().to_string(), "does not begin with 'weir1.'"),
        (parse_token("weir1.!!").unwrap_err().to_string(), "is not base64"),
        (parse_token("weir1.e30").unwrap_err().to_string(), "missing field"),
        (parse_token(&"w".repeat(10_000)).unwrap_err().to_string(), "longer than"),
        (with(|t| t.ca_fingerprint.truncate(10)), "ca_fingerprint is not 64 hex digits"),
        (with(|t| t.secret.clear()), "secret is empty"),
        (with(|t| t.key = Some("hush".into())), "names no domain"),
        (
            with(|t| (t.key, t.domain) = (Some("hush".into()), Label::new("d").ok())),
            "key is not 64 hex digits",
        ),
        (
            with(|t| (t.key, t.domain) = (Some("ab".repeat(32)), Label::new("d").ok())),
            "does not begin with the token's name",
        ),
        (with(|t| t.controllers.clear()), "names no controller"),
        (with(|t| t.controllers = vec!["http://192.0.2.1:80".into()]), "use https://host:port"),
    ];
    for (error, part) in cases {
        assert!(error.contains(part) && !error.contains("hush"), "{part}: {error}");
    }
}
