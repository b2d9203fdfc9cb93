//! Sessions over real sockets and mutual TLS: joining, programming, questions, replacement, heartbeats,
//! and a restart of the controller after which nothing is reprogrammed.

use super::app::{TestApp, endpoint, entries, facts, label, policy, transaction, vni};
use super::recovery::{open, runtime, settings, signer};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair as CertificateKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_admission::{Door, Limits};
use weir_base::world::{Disk, RealDisk};
use weir_controller::Error;
use weir_controller::audit::{Link, Misdeed, Record, Wrong};
use weir_controller::core::scheduler::Reached;
use weir_controller::driver::{
    AUDIT_BYTES_MIN, AuditPlace, Controller, ControllerHandle, ControllerSettings, SessionAccess, read_frame,
    serve_sessions, write_frame,
};
use weir_model::event::{Event, EventBody, SPEAKS_TABLE, SignedEvent, SourceId, UsageReport};
use weir_model::identity::IdentityEvent;
use weir_model::local::{Answer, Question};
use weir_model::plane::PlaneOrder;
use weir_model::session::{
    PLANES_SINCE, PROTOCOL, PROTOCOL_MIN, REQUEST_BYTES_MAX, SWITCHES_SINCE, ToActuator, ToController,
};
use weir_model::{Key, Label, Version};
use weir_trust::batch::{GroupSigner, Verifier};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks, sign_event};

const BOUND: Duration = Duration::from_secs(60);

struct Authority {
    issuer: Issuer<'static, CertificateKey>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        let key = CertificateKey::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, name: &str, dns: bool) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = CertificateKey::generate().unwrap();
        let names = if dns { vec![name.to_string()] } else { Vec::new() };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone()).build().unwrap();
        let (chain, key) = self.issue("localhost", true);
        let builder =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap())
    }

    /// A client that trusts this authority, with a certificate of `issuer`, or without one.
    fn client(&self, certificate: Option<(&Authority, &str, bool)>) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(self.roots());
        Arc::new(match certificate {
            None => builder.with_no_client_auth(),
            Some((issuer, name, dns)) => {
                let (chain, key) = issuer.issue(name, dns);
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

async fn dial(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(config).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

fn hello(name: &Label, gate: &Gate, identity: [u8; 32]) -> ToController {
    hello_in(PROTOCOL_MIN, name, gate, identity)
}

fn hello_in(protocol: u32, name: &Label, gate: &Gate, identity: [u8; 32]) -> ToController {
    let facts = facts(name.as_str(), identity);
    ToController::Hello {
        protocol,
        actuator: name.clone(),
        role: facts.role,
        software: "test 1".into(),
        identity,
        underlay: facts.underlay,
        digest: gate.digest(),
    }
}

/// An actuator as an agent and its switch are: a gate behind a session.
struct Agent {
    name: Label,
    gate: Mutex<Gate>,
    identity: KeyPair,
    /// Signs its acks, where that is not its own key.
    forger: Option<KeyPair>,
    /// Most speak the oldest that is taken, and so are told nothing of later kinds.
    protocol: u32,
}

impl Agent {
    fn new(name: &str, number: u8, dir: &Path) -> Arc<Agent> {
        let verifier = Verifier::new(label("d"), signer().group_key());
        let gate = Gate::open(label(name), verifier, &dir.join(name)).unwrap();
        let identity = KeyPair::from_seed(&[40 + number; 32]);
        Arc::new(Agent {
            name: label(name),
            gate: Mutex::new(gate),
            identity,
            forger: None,
            protocol: PROTOCOL_MIN,
        })
    }

    /// One whose acks somebody else signs.
    fn forged(name: &str, number: u8, dir: &Path) -> Arc<Agent> {
        let agent = Arc::into_inner(Agent::new(name, number, dir)).unwrap();
        Arc::new(Agent { forger: Some(KeyPair::from_seed(&[99; 32])), ..agent })
    }

    /// One of this release.
    fn current(name: &str, number: u8, dir: &Path) -> Arc<Agent> {
        let agent = Arc::into_inner(Agent::new(name, number, dir)).unwrap();
        Arc::new(Agent { protocol: PROTOCOL, ..agent })
    }

    async fn run(self: Arc<Agent>, address: SocketAddr, config: Arc<ClientConfig>) -> Result<(), Error> {
        let mut stream = dial(address, config).await.map_err(weir_base::codec::CodecError::Io)?;
        let hello = hello_in(self.protocol, &self.name, &self.gate.lock().unwrap(), self.identity.public());
        write_frame(&mut stream, &hello).await?;
        loop {
            let frame = read_frame::<ToActuator>(&mut stream).await?;
            for answer in self.handle(frame)? {
                write_frame(&mut stream, &answer).await?;
            }
        }
    }

    fn handle(&self, frame: ToActuator) -> Result<Vec<ToController>, Error> {
        let mut gate = self.gate.lock().unwrap();
        Ok(match frame {
            ToActuator::Welcome { .. } => Vec::new(),
            ToActuator::Refused(reason) => return Err(Error::Peer(reason)),
            ToActuator::SendState => {
                let entries = gate.iter().map(|(key, found)| (key.clone(), found.version)).collect();
                vec![ToController::State { entries, last: true }]
            }
            ToActuator::Updates(updates) => {
                let acks = take(&mut gate, &updates, |_| Ok(())).unwrap();
                let key = self.forger.as_ref().unwrap_or(&self.identity);
                vec![ToController::Acks(sign_acks(key, &self.name, acks))]
            }
            ToActuator::Ask { id, question: Question::Counters } => {
                let answer = Answer::Counters(vec![("applied".into(), gate.counters.applied)]);
                vec![ToController::Answer { id, answer }]
            }
            ToActuator::Ask { id, question: Question::Capture { .. } } => (0..3)
                .map(|part| {
                    let answer = Answer::Captured { frames: vec![(part, 1, vec![0])], last: part == 2 };
                    ToController::Answer { id, answer }
                })
                .collect(),
            ToActuator::Ask { .. } => Vec::new(),
            ToActuator::Ping { id } => vec![ToController::Pong { id }],
            ToActuator::Renewed { .. }
            | ToActuator::NotRenewed(_)
            | ToActuator::Controllers { .. }
            | ToActuator::RotateKeys
            | ToActuator::Rotated { .. }
            | ToActuator::Settled { .. }
            | ToActuator::NotRotated(_) => Vec::new(),
            ToActuator::Unsigned(_) | ToActuator::Share(_) | ToActuator::Endorsement(_) => {
                return Err(Error::Peer("a controller that is alone signs itself".into()));
            }
        })
    }

    fn applied(&self) -> (u64, u64) {
        let counters = self.gate.lock().unwrap().counters;
        (counters.applied, counters.repeated)
    }
}

struct World {
    authority: Authority,
    disk: Arc<dyn Disk>,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::create_dir(&log).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&log).unwrap());
        World { authority: Authority::new(), disk, dir }
    }

    fn start(&self, settings: &ControllerSettings) -> Controller {
        open(&self.disk, settings, Arc::new(TestApp)).unwrap()
    }

    fn access(&self, strangers: bool) -> SessionAccess {
        let renewer = |name: &Label, csr: &str| match csr {
            "bad" => Err("no request".to_string()),
            _ => Ok(format!("new for {name}")),
        };
        let door = Door::new("sessions", Limits::default());
        SessionAccess { tls: self.authority.server(), strangers, renewer: Arc::new(renewer), door }
    }

    async fn listen(&self, handle: ControllerHandle) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_sessions(handle, listener, self.access(true)));
        address
    }

    fn connect(&self, agent: &Arc<Agent>, address: SocketAddr) -> JoinHandle<Result<(), Error>> {
        let certificate = (&self.authority, agent.name.as_str(), true);
        tokio::spawn(agent.clone().run(address, self.authority.client(Some(certificate))))
    }
}

/// Polls until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let polled = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(BOUND, polled).await.is_ok(), "never: {what}");
}

async fn all_in_sync(handle: &ControllerHandle, count: usize) {
    until("all actuators are in sync", async || {
        let status = handle.status().await.unwrap();
        status.actuators.len() == count
            && status.actuators.iter().all(|a| a.target.synced && a.target.lag == 0 && a.software.is_some())
    })
    .await;
}

fn assert_in_force(handle: &ControllerHandle, agents: &[Arc<Agent>]) {
    let wanted = entries(&handle.store());
    for agent in agents {
        let gate = agent.gate.lock().unwrap();
        let found = gate.iter().filter_map(|(key, found)| {
            Some(((agent.name.clone(), key.clone()), (found.version, found.entry.clone()?)))
        });
        let wanted = wanted.iter().filter(|((target, _), _)| *target == agent.name);
        assert!(found.eq(wanted.map(|(node, value)| (node.clone(), value.clone()))), "{}", agent.name);
    }
}

#[test]
fn intents_reach_real_gates_and_a_restart_reprograms_nothing() {
    let world = World::new();
    let runtime = runtime();
    let agents = ["h1", "h2", "g1"].map(|name| Agent::new(name, name.as_bytes()[1], world.dir.path()));
    let controller = world.start(&settings());
    let tasks = runtime.block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let tasks: Vec<_> = agents.iter().map(|agent| world.connect(agent, address)).collect();
        all_in_sync(&handle, 3).await;
        program(&handle, &agents).await;
        question(&handle).await;
        tasks
    });
    controller.shutdown();
    let applied: Vec<_> = agents.iter().map(|agent| agent.applied()).collect();
    runtime.block_on(async {
        for task in tasks {
            assert!(task.await.unwrap().is_err(), "sessions end with the controller");
        }
    });

    let controller = world.start(&settings());
    runtime.block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        agents.iter().for_each(|agent| drop(world.connect(agent, address)));
        all_in_sync(&handle, 3).await;
        let counters = handle.inspect(|core| core.scheduler().counters).await.unwrap();
        assert_eq!((counters.sent, counters.sessions_in_sync, counters.sessions_compared), (0, 3, 0));
        assert_eq!(applied, agents.iter().map(|agent| agent.applied()).collect::<Vec<_>>());
        let version = handle.propose(transaction(vec![endpoint("n1", "e3", "h2")])).await.unwrap();
        assert_eq!(handle.wait(version, BOUND).await.unwrap(), Reached::All);
        assert_in_force(&handle, &agents);
    });
    controller.shutdown();
}

async fn program(handle: &ControllerHandle, agents: &[Arc<Agent>]) {
    let wanted =
        transaction(vec![endpoint("n1", "e1", "h1"), endpoint("n1", "e2", "h2"), policy("n1", "deny")]);
    let before = handle.store().version();
    let plan = handle.dry_run(wanted.clone()).await.unwrap();
    assert_eq!(plan.updates.len(), 8, "network, policy and port on two hosts, two locations");
    assert_eq!(handle.store().version(), before);
    let mut watch = handle.watch(before).unwrap();
    let version = handle.propose(wanted).await.unwrap();
    assert_eq!(handle.wait(version, BOUND).await.unwrap(), Reached::All);
    assert_eq!(watch.next().await.unwrap()[0].version, version);
    assert_in_force(handle, agents);
    let keys = handle.keys(label("h1"), None, 10).await.unwrap();
    assert!(keys.len() == 3 && keys.iter().all(|key| key.acked == Some(key.desired)));
    assert!(handle.waiting(10).await.unwrap().is_empty());
    let wrong = transaction(vec![endpoint("n1", "e1", "no host")]);
    assert!(matches!(handle.propose(wrong).await, Err(Error::Rejected(_))));
    assert_eq!(handle.wait(Version(10_000), BOUND).await.unwrap(), Reached::NotDecided);
}

async fn question(handle: &ControllerHandle) {
    let answer = handle.ask(&label("h1"), Question::Counters).await.unwrap();
    assert_eq!(answer, Answer::Counters(vec![("applied".into(), 3)]));
    let capture = Question::Capture { port: None, frames_max: 3, duration_ms: 1, snap_bytes: 1 };
    let Answer::Captured { frames, last: true } = handle.ask(&label("h1"), capture).await.unwrap() else {
        panic!("not all was captured")
    };
    assert_eq!(frames.len(), 3);
    let nobody = handle.ask(&label("h9"), Question::Counters).await;
    assert!(matches!(nobody, Err(Error::NotConnected(_))));
    let text = handle.metrics_text();
    assert!(
        text.contains("weir_controller_sessions 3")
            && text.contains("# TYPE weir_controller_updates_total counter")
            && text.contains("# TYPE weir_controller_step_seconds histogram")
    );
    assert_eq!(weir_base::exposition::check(&text), []);
}

#[test]
fn an_unanswered_question_ends_and_usage_is_ordered_that_changes_anything() {
    let world = World::new();
    let mut settings = settings();
    settings.sessions.answer_ms = 50;
    let controller = world.start(&settings);
    let agent = Agent::new("h1", 1, world.dir.path());
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let config = world.authority.client(Some((&world.authority, "h1", false)));
        let mut stream = dial(address, config).await.unwrap();
        let hello = hello(&agent.name, &agent.gate.lock().unwrap(), agent.identity.public());
        write_frame(&mut stream, &hello).await.unwrap();
        all_in_sync(&handle, 1).await;
        let error = handle.ask(&agent.name, Question::Ports).await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer { waited_ms: 50, .. }), "{error}");
        let good = usage(&agent, "h1", 7);
        let mut forged = usage(&agent, "h1", 8);
        forged.signature.s[0] ^= 1;
        let of_another = usage(&agent, "h2", 9);
        for event in [forged, of_another, good.clone()] {
            write_frame(&mut stream, &ToController::Event(event)).await.unwrap();
        }
        until("the usage report is ordered", async || handle.store().count("usage") == 1).await;
        write_frame(&mut stream, &ToController::Event(good)).await.unwrap();
        let counted = |outcome: &str| {
            handle.metrics_text().contains(&format!("intake_total{{outcome=\"{outcome}\"}} 1\n"))
        };
        until("all are counted", async || {
            ["accepted", "duplicate", "bad_signature", "not_its_own"].iter().all(|outcome| counted(outcome))
        })
        .await;
        // What changes nothing is not ordered.
        let before = handle.store().version();
        write_frame(&mut stream, &ToController::Event(usage(&agent, "h1", 10))).await.unwrap();
        until("it is passed over", async || counted("idle")).await;
        assert!(counted("accepted") && handle.store().version() == before);
    });
    controller.shutdown();
}

/// A usage report that an agent's switch signs, of itself or somebody else.
fn usage(agent: &Agent, of: &str, sequence: u64) -> SignedEvent {
    let (through_gateway, direct) = (vec![], vec![]);
    let report =
        UsageReport { actuator: label(of), window_ms: 1, through_gateway, direct, turns: Vec::new() };
    let source = SourceId::of_actuator(&agent.name);
    let event = Event { source, sequence, body: EventBody::Usage(report) };
    sign_event(&agent.identity, &label("d"), event, None)
}

/// The text with which a session is refused.
async fn refusal(address: SocketAddr, config: Arc<ClientConfig>, hello: ToController) -> String {
    let mut stream = dial(address, config).await.unwrap();
    write_frame(&mut stream, &hello).await.unwrap();
    match read_frame::<ToActuator>(&mut stream).await.unwrap() {
        ToActuator::Refused(text) => text,
        other => panic!("not refused but {other:?}"),
    }
}

/// The next frame that is no ping and no question about the state.
async fn heard(stream: &mut TlsStream<TcpStream>) -> ToActuator {
    loop {
        match read_frame::<ToActuator>(stream).await.unwrap() {
            ToActuator::Ping { .. } | ToActuator::SendState | ToActuator::Welcome { .. } => {}
            other => return other,
        }
    }
}

/// What came with a protocol is told to whoever speaks it, and to nobody else; one that comes back with an older release keeps its session.
#[test]
fn what_came_with_a_protocol_is_told_to_whoever_speaks_it() {
    let world = World::new();
    let mut settings = settings();
    settings.sessions.ping_ms = 20;
    let controller = world.start(&settings);
    let (old, new) = (Agent::new("h1", 1, world.dir.path()), Agent::current("h2", 2, world.dir.path()));
    let has = |agent: &Agent| {
        agent.gate.lock().unwrap().get(&Key::Underlays).is_some_and(|found| found.entry.is_some())
    };
    let spoken = |handle: &ControllerHandle, name: &str| {
        let published = handle.published();
        let cell = published.store.get(SPEAKS_TABLE, name.as_bytes())?;
        weir_base::codec::decode::<u32>(&cell.value).ok()
    };
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let first = world.connect(&old, address);
        let second = world.connect(&new, address);
        until("the new one has it", async || has(&new)).await;
        assert_eq!((spoken(&handle, "h1"), spoken(&handle, "h2")), (None, Some(PROTOCOL)));
        let both = transaction(vec![endpoint("n1", "e1", "h1"), endpoint("n1", "e2", "h2")]);
        let version = handle.propose(both).await.unwrap();
        assert_eq!(handle.wait(version, BOUND).await.unwrap(), Reached::All);
        assert!(!has(&old) && !first.is_finished() && !second.is_finished());

        // Back to the release before, whose switch begins with nothing: what it cannot read is kept from it.
        second.abort();
        let folder = world.dir.path().join("again");
        std::fs::create_dir(&folder).unwrap();
        let back = Agent::new("h2", 2, &folder);
        let third = world.connect(&back, address);
        until("it is known to speak the older one", async || spoken(&handle, "h2") == Some(PROTOCOL_MIN))
            .await;
        let version = handle.propose(transaction(vec![endpoint("n1", "e3", "h2")])).await.unwrap();
        let port = Key::Port { vni: vni(&label("n1")), endpoint: label("e3") };
        until("updates that it can read", async || back.gate.lock().unwrap().get(&port).is_some()).await;
        assert!(version > Version::ZERO && !third.is_finished() && !has(&back));
        assert!(back.gate.lock().unwrap().iter().all(|(key, _)| key.since_protocol() <= PROTOCOL_MIN));
    });
    controller.shutdown();
}

/// Hosts of every release that this one works with, in one domain: each has all that it can read, nothing else, and its session goes on.
#[test]
fn hosts_of_all_protocols_that_are_taken_work_side_by_side() {
    let world = World::new();
    let mut settings = settings();
    settings.sessions.ping_ms = 20;
    let controller = world.start(&settings);
    let agents: Vec<Arc<Agent>> = (PROTOCOL_MIN..=PROTOCOL)
        .map(|protocol| {
            let number = protocol as u8;
            let agent =
                Arc::into_inner(Agent::new(&format!("h{protocol}"), number, world.dir.path())).unwrap();
            Arc::new(Agent { protocol, ..agent })
        })
        .collect();
    assert!(agents.len() > 1, "the release before is taken");
    let plane = Key::Plane { plane: label("echo"), name: "n".into() };
    let has = |agent: &Agent, key: &Key| {
        agent.gate.lock().unwrap().get(key).is_some_and(|found| found.entry.is_some())
    };
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let sessions: Vec<_> = agents.iter().map(|agent| world.connect(agent, address)).collect();
        until("all are there", async || handle.published().joined.len() == agents.len()).await;
        for agent in &agents {
            let (actuator, name) = (agent.name.clone(), "n".to_owned());
            let order = PlaneOrder { plane: label("echo"), actuator, name, spec: Some(b"{}".to_vec()) };
            handle.submit_own(EventBody::Order(order), None).await.unwrap();
        }
        let endpoints =
            agents.iter().map(|agent| endpoint("n1", &format!("e{}", agent.protocol), agent.name.as_str()));
        handle.propose(transaction(endpoints.collect())).await.unwrap();
        for agent in &agents {
            let port = Key::Port { vni: vni(&label("n1")), endpoint: label(&format!("e{}", agent.protocol)) };
            until("its port", async || has(agent, &port)).await;
            for (key, since) in [(&Key::Underlays, SWITCHES_SINCE), (&plane, PLANES_SINCE)] {
                let can_read = agent.protocol >= since;
                until("what it can read", async || has(agent, key) == can_read).await;
            }
            let gate = agent.gate.lock().unwrap();
            assert!(gate.iter().all(|(key, _)| key.since_protocol() <= agent.protocol), "{}", agent.name);
        }
        assert!(sessions.iter().all(|session| !session.is_finished()));
    });
    controller.shutdown();
}

/// Who speaks what is not taken any more, or not yet, hears both numbers and which side is older.
#[test]
fn a_protocol_that_is_not_taken_is_refused_with_what_to_upgrade() {
    let world = World::new();
    let controller = world.start(&settings());
    let agent = Agent::new("h1", 1, world.dir.path());
    let gate = agent.gate.lock().unwrap();
    runtime().block_on(async {
        let address = world.listen(controller.handle()).await;
        let authority = &world.authority;
        let client = authority.client(Some((authority, "h1", true)));
        for (protocol, older) in [(PROTOCOL_MIN - 1, "this host or gateway"), (PROTOCOL + 1, "the controllers")] {
            let hello = hello_in(protocol, &label("h1"), &gate, agent.identity.public());
            let text = refusal(address, client.clone(), hello).await;
            let wanted = format!(
                "protocol {protocol} of sessions and the controllers {PROTOCOL_MIN} to {PROTOCOL}: upgrade {older}"
            );
            assert!(text.contains(&wanted), "{text}");
        }
        assert!(controller.handle().published().joined.is_empty());
    });
    controller.shutdown();
}

#[test]
fn certificates_are_renewed_for_members_only() {
    let world = World::new();
    let controller = world.start(&settings());
    let agent = Agent::new("h1", 1, world.dir.path());
    runtime().block_on(async {
        let handle = controller.handle();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_sessions(handle.clone(), listener, world.access(false)));
        let config = world.authority.client(Some((&world.authority, "h1", true)));
        let identity = agent.identity.public();
        let hello = |identity| hello(&label("h1"), &agent.gate.lock().unwrap(), identity);

        let text = refusal(address, config.clone(), hello(identity)).await;
        assert!(text.contains("'h1' has not joined") && text.contains("WEIR_JOIN_TOKEN"), "{text}");
        handle.joined(facts("h1", identity)).await.unwrap();
        let text = refusal(address, config.clone(), hello([9; 32])).await;
        assert!(text.contains("another identity"), "{text}");

        let mut stream = dial(address, config.clone()).await.unwrap();
        write_frame(&mut stream, &hello(identity)).await.unwrap();
        for (csr_pem, answer) in [
            ("good".to_string(), ToActuator::Renewed { certificate_pem: "new for h1".into() }),
            ("bad".to_string(), ToActuator::NotRenewed("no request".into())),
        ] {
            write_frame(&mut stream, &ToController::Renew { csr_pem }).await.unwrap();
            assert_eq!(heard(&mut stream).await, answer);
        }
        let csr_pem = "x".repeat(REQUEST_BYTES_MAX + 1);
        write_frame(&mut stream, &ToController::Renew { csr_pem }).await.unwrap();
        assert!(
            matches!(heard(&mut stream).await, ToActuator::NotRenewed(reason) if reason.contains("at most"))
        );

        handle.submit_own(EventBody::Removed { actuator: label("h1") }, None).await.unwrap();
        assert!(matches!(heard(&mut stream).await, ToActuator::Refused(_)), "its session ends");
        let text = refusal(address, config, hello(identity)).await;
        assert!(text.contains("was forgotten"), "{text}");
    });
    controller.shutdown();
}

#[test]
fn the_welcome_comes_before_every_ping() {
    let world = World::new();
    let mut settings = settings();
    settings.sessions.ping_ms = 1;
    let controller = world.start(&settings);
    let agent = Agent::new("h1", 1, world.dir.path());
    runtime().block_on(async {
        let address = world.listen(controller.handle()).await;
        let config = world.authority.client(Some((&world.authority, "h1", true)));
        let hello = hello(&agent.name, &agent.gate.lock().unwrap(), agent.identity.public());
        for _ in 0..32 {
            let mut stream = dial(address, config.clone()).await.unwrap();
            write_frame(&mut stream, &hello).await.unwrap();
            let first = read_frame::<ToActuator>(&mut stream).await.unwrap();
            assert!(matches!(first, ToActuator::Welcome { .. }), "{first:?} came first");
            let mut next = first;
            while !matches!(next, ToActuator::Ping { .. }) {
                next = read_frame::<ToActuator>(&mut stream).await.unwrap();
            }
        }
    });
    controller.shutdown();
}

#[test]
fn strangers_and_impostors_are_refused() {
    let world = World::new();
    let controller = world.start(&settings());
    let agent = Agent::new("h1", 1, world.dir.path());
    let gate = agent.gate.lock().unwrap();
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let authority = &world.authority;
        let right = authority.client(Some((authority, "h1", true)));
        let identity = agent.identity.public();
        let text = refusal(address, right.clone(), hello(&label("h2"), &gate, identity)).await;
        assert!(text.contains("'h2'") && text.contains("'h1'"), "{text}");
        let mut old = hello(&label("h1"), &gate, identity);
        if let ToController::Hello { protocol, .. } = &mut old {
            *protocol = 99;
        }
        assert!(refusal(address, right.clone(), old).await.contains("protocol 99"));
        assert!(refusal(address, right, ToController::Pong { id: 1 }).await.contains("Hello"));

        let stranger = Authority::new();
        for config in [authority.client(None), authority.client(Some((&stranger, "h1", true)))] {
            // In TLS 1.3 the client hears of it when it reads.
            if let Ok(mut stream) = dial(address, config).await {
                let _ = write_frame(&mut stream, &hello(&label("h1"), &gate, identity)).await;
                assert!(read_frame::<ToActuator>(&mut stream).await.is_err());
            }
        }
        assert!(handle.published().joined.is_empty());
        assert!(stranger_to_the_server(address, &stranger).await);
    });
    controller.shutdown();
}

/// A client that trusts another authority does not talk to this server.
async fn stranger_to_the_server(address: SocketAddr, stranger: &Authority) -> bool {
    dial(address, stranger.client(Some((stranger, "h1", true)))).await.is_err()
}

#[test]
fn a_newer_session_replaces_the_older_and_a_silent_one_dies() {
    let world = World::new();
    let mut settings = settings();
    settings.sessions.ping_ms = 20;
    settings.sessions.dead_ms = 400;
    let controller = world.start(&settings);
    let agent = Agent::new("h1", 1, world.dir.path());
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let first = world.connect(&agent, address);
        all_in_sync(&handle, 1).await;
        let second = world.connect(&agent, address);
        assert!(first.await.unwrap().is_err(), "the older session ends");
        all_in_sync(&handle, 1).await;
        let version = handle.propose(transaction(vec![endpoint("n1", "e1", "h1")])).await.unwrap();
        assert_eq!(handle.wait(version, BOUND).await.unwrap(), Reached::All);

        let config = world.authority.client(Some((&world.authority, "h1", true)));
        let mut silent = dial(address, config).await.unwrap();
        let hello = hello(&agent.name, &agent.gate.lock().unwrap(), agent.identity.public());
        write_frame(&mut silent, &hello).await.unwrap();
        assert!(second.await.unwrap().is_err());
        until("the silent session is over", async || {
            let status = handle.status().await.unwrap();
            !status.actuators[0].target.connected
        })
        .await;
        let third = world.connect(&agent, address);
        all_in_sync(&handle, 1).await;
        handle.submit_own(EventBody::Removed { actuator: label("h1") }, None).await.unwrap();
        let error = third.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("removed"), "{error}");
        assert!(handle.status().await.unwrap().actuators.is_empty());
        assert!(
            agent.gate.lock().unwrap().get(&Key::Network { vni: super::app::vni(&label("n1")) }).is_some()
        );
    });
    controller.shutdown();
}

/// The misdeeds in a controller's audit.
async fn misdeeds(handle: &ControllerHandle) -> Vec<Misdeed> {
    let (page, _) = handle.audit(0, 1_000).await.unwrap().unwrap();
    let links = page.links.iter().map(|link| Link::from_bytes(link).unwrap());
    let records = links.flat_map(|link| link.records);
    records
        .filter_map(|record| if let Record::Misdeed(misdeed) = record { Some(*misdeed) } else { None })
        .collect()
}

#[test]
fn who_forges_acks_is_named_in_the_audit_and_nothing_counts_as_acknowledged() {
    let world = World::new();
    let folder = world.dir.path().join("audit");
    std::fs::create_dir(&folder).unwrap();
    let mut settings = settings();
    settings.audit =
        Some(AuditPlace { disk: Arc::new(RealDisk::open(&folder).unwrap()), bytes_max: AUDIT_BYTES_MIN });
    let controller = world.start(&settings);
    let (forged, honest) = (Agent::forged("h1", 1, world.dir.path()), Agent::new("h2", 2, world.dir.path()));
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        for agent in [&forged, &honest] {
            drop(world.connect(agent, address));
        }
        all_in_sync(&handle, 2).await;
        let both = vec![endpoint("n1", "e1", "h1"), endpoint("n1", "e2", "h2")];
        let version = handle.propose(transaction(both)).await.unwrap();
        until("the forger is named", async || !misdeeds(&handle).await.is_empty()).await;
        let found = misdeeds(&handle).await;
        assert!(found.iter().all(|misdeed| misdeed.who == SourceId::of_actuator(&label("h1"))), "{found:?}");
        assert!(matches!(&found[0], Misdeed { what: Wrong::ForgedAcks(_), count: 1, .. }), "{found:?}");
        let reached = handle.wait(version, Duration::from_millis(50)).await.unwrap();
        assert!(matches!(reached, Reached::Waiting(_)), "{reached:?}");
        assert!(handle.metrics_text().contains("weir_controller_identities_total{what=\"acks_forged\"}"));
    });
    controller.shutdown();
}

#[test]
fn a_revoked_actuator_has_no_session_and_a_changed_certificate_takes_the_place_of_the_one_before() {
    let world = World::new();
    let controller = world.start(&settings());
    let agent = Agent::new("h1", 1, world.dir.path());
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let first = world.connect(&agent, address);
        all_in_sync(&handle, 1).await;
        let whose = SourceId::of_actuator(&label("h1"));
        // Some other certificate is the one that is known: this one is not taken any more.
        let known = IdentityEvent::Certified { whose: whose.clone(), key: [1; 32], until_s: 1 };
        handle.about_identity(known, None).await.unwrap();
        let refused = world.connect(&agent, address).await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("replaced by a newer one"), "{refused}");
        let revoked = IdentityEvent::Revoked { whose, reason: "a test".into() };
        handle.about_identity(revoked, Some("admin".into())).await.unwrap();
        let ended = first.await.unwrap().unwrap_err().to_string();
        assert!(ended.contains("revoked: a test"), "{ended}");
        let refused = world.connect(&agent, address).await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("it was revoked"), "{refused}");
        let text = handle.metrics_text();
        for line in
            ["identities_total{what=\"session_revoked\"} 1", "identities_total{what=\"session_replaced\"} 1"]
        {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    });
    controller.shutdown();

    // Nothing of it is forgotten.
    let controller = world.start(&settings());
    runtime().block_on(async {
        let handle = controller.handle();
        let address = world.listen(handle.clone()).await;
        let refused = world.connect(&agent, address).await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("it was revoked"), "{refused}");
    });
    controller.shutdown();
}
