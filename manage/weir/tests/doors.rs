//! The doors of one controller, a process of its own on the loopback: strangers, join tokens, addresses on the underlay, and what ends with
//! a revocation. Needs no root.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_agent::join::{Applicant, Joined, join};
use weir_agent::session::tls::session_config;
use weir_api::client::{Client, ClientError, Context};
use weir_api::types::{RevokeRequest, TokenRequest};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_model::session::{PROTOCOL, StateDigest, ToActuator, ToController};
use weir_rpc::client::ClientSettings;
use weir_store::{Operation, Outcome, TableOptions};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// So long a test waits for what must come.
const GENEROUS: Duration = Duration::from_secs(60);

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + GENEROUS;
    while !done() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub struct Controller {
    process: Child,
    dir: tempfile::TempDir,
    pub api: SocketAddr,
    pub session: SocketAddr,
    runtime: tokio::runtime::Runtime,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Controller {
    pub fn start() -> Controller {
        let dir = tempfile::tempdir().unwrap();
        // Held together until the numbers are known, so that they differ.
        let held: Vec<TcpListener> =
            (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let [api, session] = [&held[0], &held[1]].map(|one| one.local_addr().unwrap());
        drop(held);
        let log = std::fs::File::create(dir.path().join("log.txt")).unwrap();
        let process = Command::new(WEIR)
            .args(["controller", "--domain", "doors", "--advertise", "127.0.0.1", "--api", &api.to_string()])
            .args(["--session", &session.to_string(), "--state"])
            .arg(dir.path().join("state"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let controller = Controller { process, dir, api, session, runtime };
        wait("the controller", || controller.try_client().is_some_and(|client| client.status().is_ok()));
        controller
    }

    pub fn context(&self) -> Option<Context> {
        serde_json::from_slice(&std::fs::read(self.dir.path().join("state/admin.json")).ok()?).ok()
    }

    fn try_client(&self) -> Option<Client> {
        Client::new(self.context()?).ok()
    }

    fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log.txt")).unwrap_or_default()
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn token(&self, name: &str, role: Role, underlay: Option<&str>) -> String {
        let name = Label::new(name).unwrap();
        let request =
            TokenRequest { name, role, valid_s: None, underlay: underlay.map(str::to_owned), key: None };
        self.client().token(&request).unwrap().token
    }

    /// Joins with keys in a folder; what is said when it is refused.
    fn join(
        &self,
        folder: &str,
        (name, role): (&str, Role),
        underlay: &str,
        token: &str,
    ) -> Result<(), String> {
        let name = Label::new(name).unwrap();
        let applicant = Applicant { name, role, underlay: underlay.parse().unwrap() };
        let joined = self.runtime.block_on(join(&self.folder(folder), &applicant, token, true));
        joined.map(|joined| assert!(matches!(joined, Joined::Now(_)))).map_err(|error| error.to_string())
    }

    /// A host that has joined.
    fn host(&self, name: &str, underlay: &str) {
        let token = self.token(name, Role::Host, Some(underlay));
        self.join(name, (name, Role::Host), underlay, &token).unwrap();
    }

    /// The store, by the administrator's token.
    fn operator_store(&self) -> weir_rpc::client::Client {
        let context = self.context().unwrap();
        let mut settings = ClientSettings::new([self.api.to_string()]);
        settings.tls = Some(weir_api::pki::client_config(&context.ca).unwrap());
        settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
        settings.token = Some(context.token.clone());
        let _in_runtime = self.runtime.enter();
        weir_rpc::client::Client::new(settings).unwrap()
    }

    /// The store, by a host's certificate.
    fn store(&self, name: &str) -> weir_rpc::client::Client {
        let mut settings = ClientSettings::new([self.api.to_string()]);
        settings.tls = Some(session_config(&self.folder(name)).unwrap());
        settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
        settings.try_ms = 5_000;
        settings.give_up_ms = 5_000;
        settings.once = true;
        let _in_runtime = self.runtime.enter();
        weir_rpc::client::Client::new(settings).unwrap()
    }
}

#[track_caller]
fn refused(answer: Result<(), String>, why: &str) {
    let said = answer.unwrap_err();
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_token_is_for_one_name_in_one_role_and_serves_once() {
    let controller = Controller::start();
    let host = Role::Host;
    let token = controller.token("h1", host, Some("192.0.2.0/24"));
    refused(controller.join("a", ("h2", host), "192.0.2.1", &token), "is for the host 'h1'");
    refused(controller.join("a", ("h1", Role::Gateway), "192.0.2.1", &token), "is for the host 'h1'");
    refused(controller.join("a", ("h1", host), "198.51.100.1", &token), "192.0.2.0/24");
    controller.join("a", ("h1", host), "192.0.2.1", &token).unwrap();
    // Who did not hear the answer asks again; another machine does not join by it.
    controller.join("a", ("h1", host), "192.0.2.1", &token).unwrap();
    refused(controller.join("b", ("h1", host), "192.0.2.1", &token), "used already");

    let voided = controller.token("h2", host, Some("192.0.2.2"));
    let listed = controller.client().tokens().unwrap().items;
    let open: Vec<_> = listed.iter().filter(|one| one.state == "open").collect();
    assert_eq!((listed.len(), open.len(), open[0].name.as_str()), (2, 1, "h2"));
    controller.client().void_token(&open[0].id).unwrap();
    refused(controller.join("c", ("h2", host), "192.0.2.2", &voided), "voided");
    // Not from elsewhere than where it speaks from, unless its token says so; nothing that is no switch's; nothing of another.
    let plain = controller.token("h3", host, None);
    refused(
        controller.join("d", ("h3", host), "192.0.2.3", &plain),
        "'192.0.2.3' is not allowed for 'h3': 127.0.0.1",
    );
    refused(controller.join("d", ("h3", host), "127.0.0.1", &plain), "loopback");
    let any = controller.token("h3", host, Some("0.0.0.0/0"));
    refused(controller.join("d", ("h3", host), "192.0.2.1", &any), "address of 'h1'");
    refused(controller.join("d", ("h3", host), "239.1.1.1", &any), "multicast");
    controller.join("d", ("h3", host), "192.0.2.3", &any).unwrap();
    // A revoked one does not come back by what it has.
    controller
        .client()
        .revoke(&RevokeRequest { source: "actuator/h1".into(), reason: "stolen".into() })
        .unwrap();
    refused(controller.join("a", ("h1", host), "192.0.2.1", &token), "voided");
    let again = controller.token("h1", host, Some("192.0.2.1"));
    refused(controller.join("a", ("h1", host), "192.0.2.1", &again), "this key was revoked");
    let another = controller.token("h5", host, Some("192.0.2.5"));
    refused(controller.join("a", ("h5", host), "192.0.2.5", &another), "revoked, as one of actuator/h1");
    // Nor by the key of its certificate alone.
    let key = weir_model::join::KEY_FILE;
    std::fs::create_dir(controller.folder("half")).unwrap();
    std::fs::copy(controller.folder("a").join(key), controller.folder("half").join(key)).unwrap();
    refused(controller.join("half", ("h5", host), "192.0.2.5", &another), "revoked, as one of actuator/h1");
    // The token is for whoever comes with keys of its own.
    controller.join("e", ("h5", host), "192.0.2.5", &another).unwrap();
    controller.join("b", ("h1", host), "192.0.2.1", &again).unwrap();

    let short = TokenRequest {
        name: Label::new("h4").unwrap(),
        role: host,
        valid_s: Some(0),
        underlay: None,
        key: None,
    };
    let Err(ClientError::Refused(error)) = controller.client().token(&short) else { panic!("taken") };
    assert!(error.problem.message.contains("60 to 604800"), "{error}");
}

/// What a joining host sends must be its own: another's public key is no key.
#[test]
fn a_key_is_proved_by_whoever_joins() {
    let controller = Controller::start();
    let token = controller.token("h1", Role::Host, Some("192.0.2.1"));
    let secret = weir_agent::join::parse_token(&token).unwrap().secret;
    let key = rcgen_key();
    let ask = |proof: &str, csr: &str| {
        let body = serde_json::json!({
            "name": "h1", "role": "host", "csr_pem": csr, "identity": "ab".repeat(32), "underlay": "192.0.2.1", "secret": secret,
            "proof": proof,
        });
        let context = controller.context().unwrap();
        post(&context, "/v1/join", &body.to_string())
    };
    for proof in ["", "00", &"00".repeat(64)] {
        let (status, said) = ask(proof, &key);
        assert_eq!(status, 401, "{said}");
        assert!(said.contains("proof"), "{said}");
    }
    assert!(
        controller.client().tokens().unwrap().items.iter().all(|one| one.state == "open"),
        "nothing was used"
    );
}

fn rcgen_key() -> String {
    "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".to_owned()
}

fn post(context: &Context, path: &str, body: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let at: SocketAddr = context.server.trim_start_matches("https://").parse().unwrap();
    let config = weir_api::pki::client_config(&context.ca).unwrap();
    let name = rustls::pki_types::ServerName::try_from(CONTROLLER_DNS_NAME).unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    tls.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = tls.read(&mut part) {
        answer.extend_from_slice(&part[..count]);
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    (status, text)
}

#[test]
fn whoever_is_revoked_or_forgotten_loses_what_is_open() {
    let controller = Controller::start();
    for (name, underlay) in [("h1", "192.0.2.1"), ("h2", "192.0.2.2")] {
        controller.host(name, underlay);
    }
    let client = controller.client();
    let revoke =
        || client.revoke(&RevokeRequest { source: "actuator/h1".into(), reason: "stolen".into() }).unwrap();
    let forget = || client.remove_actuator("h2").unwrap();
    let ended = || {
        let metrics = client.metrics().unwrap();
        let name = "weir_door_connections_total{door=\"api\",event=\"ended\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default()
    };
    for (name, ends) in [("h1", &revoke as &dyn Fn()), ("h2", &forget)] {
        let store = controller.store(name);
        let table = format!("host.{name}/t");
        let create = || Operation::CreateTable { table: table.clone(), options: TableOptions::default() };
        controller.runtime.block_on(async {
            let made = controller.operator_store().submit(create()).await.unwrap();
            assert!(matches!(made, Outcome::Written { .. }));
            assert!(
                !matches!(store.submit(create()).await, Ok(Outcome::Written { .. })),
                "tables are an administrator's"
            );
            store.put(&table, b"k", *b"1").await.unwrap();
            // Not the operator's, and not another's, though it is called so.
            for other in ["h1/t", "h2/t", "host.h3/t", "shop/t"] {
                assert!(store.put(other, b"k", *b"1").await.is_err(), "{other}");
            }
        });
        let mut watch = store.watch(None, vec![]);
        controller.runtime.block_on(watch.next()).unwrap();
        let before = ended();
        ends();
        wait(&format!("the connections of {name} to be ended"), || ended() > before);
        // Both the stream and new connections: none writes again, and none watches.
        wait(&format!("{name} to be shut out of the store"), || {
            controller.runtime.block_on(store.put(&table, b"k", *b"2")).is_err()
        });
        let last = controller
            .runtime
            .block_on(async { store.put(&table, b"k", *b"3").await.map_err(|error| error.to_string()) });
        assert!(last.is_err(), "{last:?}");
        let after = controller
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(2), watch.next()).await });
        assert!(!matches!(&after, Ok(Ok(changes)) if !changes.is_empty()), "{after:?}");
    }
    assert!(client.status().is_ok(), "the operator goes on");
}

async fn say(stream: &mut (impl tokio::io::AsyncWrite + Unpin), frame: &ToController) {
    use tokio::io::AsyncWriteExt;
    let bytes = encode(frame);
    stream.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
}

async fn hear(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<ToActuator> {
    use tokio::io::AsyncReadExt;
    let length = stream.read_u32_le().await.ok()?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    weir_base::codec::decode(&bytes).ok()
}

/// Says Hello with a host's own certificate and another address; the first answer.
async fn hello(controller: &Controller, name: &str, underlay: &str) -> Option<ToActuator> {
    let folder = controller.folder(name);
    let connector = tokio_rustls::TlsConnector::from(session_config(&folder).unwrap());
    let stream = tokio::net::TcpStream::connect(controller.session).await.unwrap();
    let server = rustls::pki_types::ServerName::try_from(CONTROLLER_DNS_NAME).unwrap();
    let mut stream = connector.connect(server, stream).await.ok()?;
    let hello = ToController::Hello {
        protocol: PROTOCOL,
        actuator: Label::new(name).unwrap(),
        role: Role::Host,
        software: "test".into(),
        identity: weir_agent::join::identity(&folder).unwrap().public(),
        underlay: underlay.parse().unwrap(),
        digest: StateDigest::default(),
    };
    say(&mut stream, &hello).await;
    tokio::time::timeout(GENEROUS, hear(&mut stream)).await.ok()?
}

#[test]
fn a_host_claims_no_address_but_its_own() {
    let controller = Controller::start();
    controller.host("h1", "192.0.2.1");
    controller.host("h2", "192.0.2.2");
    let says = |underlay: &str| controller.runtime.block_on(hello(&controller, "h2", underlay));
    for (underlay, why) in [
        ("192.0.2.1", "address of 'h1'"),
        ("127.0.0.1", "loopback"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("0.0.0.0", "unspecified"),
        ("192.0.2.99", "speaks from 127.0.0.1"),
    ] {
        let answer = says(underlay);
        assert!(
            matches!(&answer, Some(ToActuator::Refused(text)) if text.contains(why)),
            "{underlay}: {answer:?}"
        );
    }
    let metrics = controller.client().metrics().unwrap();
    assert!(metrics.contains("underlays_refused"), "{metrics}");
    assert!(matches!(says("192.0.2.2"), Some(ToActuator::Welcome { .. })));
    let status = controller.client().status().unwrap();
    let known: IpAddr = "192.0.2.2".parse().unwrap();
    assert!(status.actuators.iter().any(|one| one.name == "h2" && one.underlay == known.to_string()));
}

/// The fault's own shape: ten thousand say nothing at both ports, and whoever may work goes on; the log's segments too.
#[test]
fn ten_thousand_silent_strangers_keep_nobody_from_work() {
    const STRANGERS: usize = 10_000;
    const HELD: usize = 700;
    let _most = weir_admission::descriptors::raise();
    let controller = Controller::start();
    controller.host("h1", "192.0.2.1");
    let client = controller.client();
    let mut held = VecDeque::new();
    for number in 0..STRANGERS {
        let at = if number % 2 == 0 { controller.api } else { controller.session };
        held.extend(TcpStream::connect(at));
        if held.len() > HELD {
            held.pop_front();
        }
        if number % 500 == 499 {
            client.status().unwrap();
            let name = format!("n{number}");
            controller.token(&name, Role::Host, None);
            assert!(matches!(
                controller.runtime.block_on(hello(&controller, "h1", "192.0.2.1")),
                Some(ToActuator::Welcome { .. })
            ));
        }
    }
    let metrics = client.metrics().unwrap();
    for door in ["api", "sessions"] {
        let value = |event: &str| {
            let name = format!("weir_door_connections_total{{door=\"{door}\",event=\"{event}\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
            line.and_then(|value| value.parse::<usize>().ok()).unwrap_or_default()
        };
        assert!(value("entered") >= STRANGERS / 2, "{door}: {metrics}");
        assert!(value("displaced") + value("silent") + value("no-handshake") > 0, "{door}: {metrics}");
    }
    let open = metrics.lines().find_map(|line| line.strip_prefix("process_open_fds ")).unwrap();
    assert!(open.parse::<usize>().unwrap() < 2_000, "{open} descriptors are open");
    assert!(controller.log().contains("the controller is ready"), "{}", controller.log());
}

/// Few descriptors: strangers get fewer places, and the log makes its files.
#[test]
fn few_descriptors_are_enough_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (api, session) = (held.local_addr().unwrap(), other.local_addr().unwrap());
    drop((held, other));
    let script = format!(
        "ulimit -n 400; exec {WEIR} controller --domain few --advertise 127.0.0.1 --api {api} --session {session} --state {}",
        state.display()
    );
    let process = Command::new("/bin/sh").args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let controller = Controller { process, dir, api, session, runtime };
    wait("the controller", || controller.try_client().is_some_and(|client| client.status().is_ok()));
    let held: Vec<_> = (0..600)
        .filter_map(|number| TcpStream::connect(if number % 2 == 0 { api } else { session }).ok())
        .collect();
    let mut settings = ClientSettings::new([api.to_string()]);
    let context = controller.context().unwrap();
    settings.tls = Some(weir_api::pki::client_config(&context.ca).unwrap());
    settings.server_name = Some(CONTROLLER_DNS_NAME.to_owned());
    settings.token = Some(context.token);
    let written = controller.runtime.block_on(async {
        let store = weir_rpc::client::Client::new(settings).unwrap();
        store
            .submit(Operation::CreateTable { table: "s/t".into(), options: TableOptions::default() })
            .await
            .unwrap();
        let mut written = 0;
        // Segments of the log roll meanwhile.
        for number in 0..80_u8 {
            written += usize::from(store.put("s/t", b"k", vec![number; 1_000_000]).await.is_ok());
        }
        written
    });
    assert_eq!(written, 80);
    drop(held);
}

/// Neither the environment of a host nor that of what it starts shows a token that was used.
#[test]
fn a_token_leaves_the_environment() {
    let controller = Controller::start();
    let token = controller.token("h1", Role::Host, Some("192.0.2.1"));
    let state = controller.folder("node");
    let mut command = Command::new(WEIR);
    command
        .args(["host", "--name", "h1", "--underlay", "192.0.2.1", "--monitor", "off", "--state"])
        .arg(&state)
        .arg("--run")
        .arg(controller.folder("run"))
        .env("WEIR_JOIN_TOKEN", &token)
        .stderr(std::fs::File::create(controller.folder("host.txt")).unwrap());
    let mut host = command.spawn().unwrap();
    let shown = |pid: u32| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let has = |bytes: &[u8]| bytes.windows(token.len()).any(|window| window == token.as_bytes());
    wait("the host to have joined", || Path::new(&state).join("membership.json").exists());
    wait("the token to be gone", || {
        let bytes = shown(host.id());
        host.try_wait().is_ok_and(|ended| ended.is_some()) || !bytes.is_empty() && !has(&bytes)
    });
    // Without root its switch does not come up; what matters is that this process went on, or ended, without the token.
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.id())).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
        assert!(!has(&shown(child)), "child {child} has the token");
    }
    let _ = host.kill();
    let _ = host.wait();
    for child in children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()) {
        if let Some(child) = rustix::process::Pid::from_raw(child) {
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }
    let _keeps = Arc::new(controller);
}
