//! A whole agent between a switch and a controller, over real sockets.

use crate::fake_switch::{FakeSwitch, header};
use crate::joining::{Api, applicant, response};
use crate::pki::Authority;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use weir_agent::agent::Agent;
use weir_agent::config::{AgentConfig, AgentSettings};
use weir_agent::join::join;
use weir_agent::wire::{read_frame, write_frame};
use weir_model::entry::{GatewayEntry, NetworkEntry, SubnetEntry, Vni};
use weir_model::join::{CONTROLLER_DNS_NAME, JoinRequest};
use weir_model::local::{Answer, Question, ToSwitch};
use weir_model::resource::Encapsulation;
use weir_model::session::{PROTOCOL, StateDigest, ToActuator, ToController};
use weir_model::signed::{ProvenUpdate, SignedUpdates};
use weir_model::{Change, Entry, Key, Label, Update, Version};

pub fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub const VNI: Vni = Vni(7);

pub fn network() -> NetworkEntry {
    NetworkEntry {
        name: label("red"),
        mtu: 1400,
        encapsulation: Encapsulation::Geneve,
        external_access: false,
        subnets: vec![SubnetEntry {
            name: label("front"),
            v4: Some("10.0.0.0/24".parse().unwrap()),
            router_v4: Some("10.0.0.1".parse().unwrap()),
            v6: Some("fd00:a::/64".parse().unwrap()),
            router_v6: Some("fd00:a::1".parse().unwrap()),
        }],
        forwarding: weir_model::resource::Forwarding::Routed,
    }
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 30 seconds: {what}");
}

pub fn config(directory: &std::path::Path) -> AgentConfig {
    AgentConfig {
        name: label("host-1"),
        role: weir_model::event::Role::Host,
        underlay: "127.0.0.1".parse().unwrap(),
        state_dir: directory.join("state"),
        run_dir: directory.to_path_buf(),
        controllers: vec![],
        settings: AgentSettings { backoff_min_ms: 10, backoff_max_ms: 100, ..AgentSettings::default() },
    }
}

/// Lets an agent join, with these session addresses.
pub async fn let_in(directory: &std::path::Path, authority: &Arc<Authority>, controllers: Vec<String>) {
    let signer = authority.clone();
    let reply = move |request: &JoinRequest| {
        (200, serde_json::to_string(&response(&signer, request, &controllers)).unwrap())
    };
    let api = Api::start(authority.acceptor("127.0.0.1", false), Box::new(reply)).await;
    join(&directory.join("state"), &applicant(), &api.token(authority), false).await.unwrap();
}

pub struct Controller {
    pub listener: TcpListener,
    pub acceptor: TlsAcceptor,
}

pub struct Conversation(TlsStream<TcpStream>);

impl Controller {
    pub async fn accept(&self) -> Conversation {
        let (stream, _) = self.listener.accept().await.unwrap();
        Conversation(self.acceptor.accept(stream).await.unwrap())
    }
}

impl Conversation {
    pub async fn hear(&mut self) -> ToController {
        tokio::time::timeout(Duration::from_secs(30), read_frame(&mut self.0)).await.unwrap().unwrap()
    }

    /// The certificate that the agent shows.
    fn shown(&self) -> Vec<u8> {
        self.0.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    }

    pub async fn say(&mut self, frame: ToActuator) {
        write_frame(&mut self.0, &frame).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Takes the greeting and welcomes; gives the digest.
    pub async fn greet(&mut self) -> StateDigest {
        let ToController::Hello { protocol, actuator, digest, .. } = self.hear().await else {
            panic!("no greeting")
        };
        assert_eq!((protocol, actuator.as_str()), (PROTOCOL, "host-1"));
        self.say(ToActuator::Welcome { protocol: PROTOCOL, epoch: 3 }).await;
        digest
    }
}

fn put(key: Key, version: u64, entry: Entry) -> ToActuator {
    let update = Update {
        target: label("host-1"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(entry),
    };
    let proven = ProvenUpdate { leaf: 0, path: vec![], update };
    ToActuator::Updates(SignedUpdates { header: header(), updates: vec![proven] })
}

#[tokio::test]
async fn an_agent_serves_controller_and_switch_through_restarts_of_both() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let controller = Controller {
        listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        acceptor: authority.acceptor(CONTROLLER_DNS_NAME, true),
    };
    let address = controller.listener.local_addr().unwrap().to_string();
    let_in(directory.path(), &authority, vec![address]).await;
    let entries = vec![
        (Key::Gateways, Entry::Gateways(vec![])),
        (Key::Network { vni: VNI }, Entry::Network(network())),
    ];
    let switch = FakeSwitch::start(directory.path(), entries.clone());
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));

    let mut talk = controller.accept().await;
    assert_eq!(talk.greet().await, StateDigest(2), "the switch's digest");
    until("the mirror is read", || shared.synced() && shared.mirror().len() == 2).await;

    talk.say(ToActuator::SendState).await;
    let ToController::State { entries: state, last: true } = talk.hear().await else { panic!("no state") };
    assert_eq!(state.len(), 2);
    let gateway = GatewayEntry { name: label("gw"), underlay: "127.0.0.1".parse().unwrap() };
    talk.say(put(Key::Gateways, 9, Entry::Gateways(vec![gateway]))).await;
    let ToController::Acks(acks) = talk.hear().await else { panic!("no acks") };
    assert_eq!((acks.acks[0].version, &acks.acks[0].key), (Version(9), &Key::Gateways));
    until("the change is mirrored", || shared.mirror().gateways().len() == 1).await;
    talk.say(ToActuator::Ask { id: 5, question: Question::Counters }).await;
    let answer = talk.hear().await;
    assert!(matches!(answer, ToController::Answer { id: 5, answer: Answer::Counters(_) }), "{answer:?}");
    talk.say(ToActuator::Ping { id: 6 }).await;
    assert_eq!(talk.hear().await, ToController::Pong { id: 6 });

    drop(talk);
    let mut talk = controller.accept().await;
    talk.greet().await;
    assert_eq!(shared.mirror().len(), 2, "without control nothing is forgotten");

    switch.kill();
    let mut rest = Vec::new();
    let _ = talk.0.read_to_end(&mut rest).await;
    assert_eq!(shared.mirror().len(), 2, "without the switch nothing is forgotten");
    let switch = FakeSwitch::start(directory.path(), entries[..1].to_vec());
    let mut talk = controller.accept().await;
    assert_eq!(talk.greet().await, StateDigest(1), "the new switch's digest");
    until("the new switch is mirrored", || shared.mirror().len() == 1).await;
    assert_eq!(switch.state.lock().unwrap().connections, 1);

    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
    let text = shared.metrics.metrics_text();
    assert!(text.contains("weir_agent_switch_link_connects_total 2\n"), "{text}");
}

async fn controller(authority: &Authority) -> (Controller, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (Controller { listener, acceptor: authority.acceptor(CONTROLLER_DNS_NAME, true) }, address)
}

#[tokio::test]
async fn every_controller_of_a_group_has_a_session_and_hears_of_every_ack() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let [(one, one_at), (two, two_at), (three, three_at)] =
        [controller(&authority).await, controller(&authority).await, controller(&authority).await];
    let_in(directory.path(), &authority, vec![one_at.clone(), two_at.clone()]).await;
    let _switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    let (mut first, mut second) = (one.accept().await, two.accept().await);
    assert_eq!((first.greet().await, second.greet().await), (StateDigest(1), StateDigest(1)));
    until("two sessions", || shared.metrics.sessions_established.get() == 2).await;

    let gateway = GatewayEntry { name: label("gw"), underlay: "127.0.0.1".parse().unwrap() };
    second.say(put(Key::Gateways, 9, Entry::Gateways(vec![gateway]))).await;
    for talk in [&mut first, &mut second] {
        let ToController::Acks(acks) = talk.hear().await else { panic!("no acks") };
        assert_eq!(acks.acks[0].version, Version(9));
    }
    // Each has its own answers and states, also where the numbers of their questions are the same.
    for talk in [&mut first, &mut second] {
        talk.say(ToActuator::SendState).await;
        talk.say(ToActuator::Ask { id: 5, question: Question::Counters }).await;
    }
    for talk in [&mut first, &mut second] {
        assert!(matches!(talk.hear().await, ToController::State { last: true, .. }));
        assert!(matches!(talk.hear().await, ToController::Answer { id: 5, answer: Answer::Counters(_) }));
    }

    // The first one goes, a third one comes; an older list says nothing.
    let told = |number, sessions: [&String; 2]| ToActuator::Controllers {
        number,
        sessions: sessions.map(String::clone).to_vec(),
    };
    second.say(told(7, [&two_at, &three_at])).await;
    let mut third = three.accept().await;
    assert_eq!(third.greet().await, StateDigest(1));
    third.say(told(6, [&one_at, &two_at])).await;
    let mut rest = Vec::new();
    let _ = first.0.read_to_end(&mut rest).await;
    let file = directory.path().join("state/membership.json");
    let kept = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept()["controllers"], serde_json::json!([two_at, three_at]));
    third.say(ToActuator::Ping { id: 1 }).await;
    assert_eq!(third.hear().await, ToController::Pong { id: 1 });
    assert_eq!(shared.metrics.sessions_established.get(), 2);
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

/// Keeps a switch from reading until the returned sender is dropped.
fn keep_busy(switch: &FakeSwitch) -> std::sync::mpsc::Sender<()> {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let state = switch.state.clone();
    std::thread::spawn(move || {
        let _state = state.lock().unwrap();
        locked.send(()).unwrap();
        let _ = released.recv();
    });
    is_locked.recv().unwrap();
    release
}

#[tokio::test]
async fn a_switch_with_a_full_queue_keeps_no_session_from_coming_back() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let controller = Controller {
        listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        acceptor: authority.acceptor(CONTROLLER_DNS_NAME, true),
    };
    let address = controller.listener.local_addr().unwrap().to_string();
    let_in(directory.path(), &authority, vec![address]).await;
    let switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    let mut talk = controller.accept().await;
    talk.greet().await;
    until("the mirror is read", || shared.synced()).await;

    drop(talk);
    until("the agent tries again", || shared.metrics.session_connects.get() == 2).await;
    // It waits for our side of TLS now. Meanwhile others fill the queue to the switch.
    let release = keep_busy(&switch);
    let sender = shared.switch.borrow().clone().unwrap();
    let mut full = 0;
    while full < 10 {
        let frame = ToSwitch::Attach { key: Key::Gateways };
        full = if sender.try_send(frame).is_ok() { 0 } else { full + 1 };
        if full > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut talk = controller.accept().await;
    // The stream is there before the switch can be asked for its state; once it can, all goes on.
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(release);
    assert_eq!(talk.greet().await, StateDigest(1));
    until("the session is established", || shared.metrics.session_up.get() == 1).await;
    assert_eq!(shared.metrics.session_connects.get(), 2, "at the first attempt");
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_is_renewed_in_a_session_and_shown_in_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let controller = Controller {
        listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        acceptor: authority.acceptor(CONTROLLER_DNS_NAME, true),
    };
    let address = controller.listener.local_addr().unwrap().to_string();
    let signer = authority.clone();
    let reply = move |request: &JoinRequest| {
        let mut response = response(&signer, request, std::slice::from_ref(&address));
        response.certificate_pem = signer.sign_for(&request.csr_pem, "host-1", 9000, 600);
        (200, serde_json::to_string(&response).unwrap())
    };
    let api = Api::start(authority.acceptor("127.0.0.1", false), Box::new(reply)).await;
    join(&directory.path().join("state"), &applicant(), &api.token(&authority), false).await.unwrap();
    let _switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));

    let mut talk = controller.accept().await;
    talk.greet().await;
    let old = talk.shown();
    let ToController::Renew { csr_pem } = talk.hear().await else { panic!("no request") };
    talk.say(ToActuator::Renewed { certificate_pem: authority.sign_for(&csr_pem, "host-1", 60, 9000) }).await;
    let file = directory.path().join("state").join(weir_model::join::CERTIFICATE_FILE);
    let before = std::fs::read(&file).unwrap();
    until("the new certificate is kept", || std::fs::read(&file).unwrap() != before).await;
    drop(talk);
    let mut talk = controller.accept().await;
    talk.greet().await;
    assert_ne!(talk.shown(), old, "the next session shows the new one");
    talk.say(ToActuator::Ping { id: 1 }).await;
    assert_eq!(talk.hear().await, ToController::Pong { id: 1 }, "and asks for no other");
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_out_of_its_time_by_our_clock_is_told_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    // By the clock of this machine; as if that were years behind.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = authority.acceptor_from(CONTROLLER_DNS_NAME, true, 3000);
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            assert!(acceptor.accept(stream).await.is_err(), "the agent does not take it");
        }
    });
    let_in(directory.path(), &authority, vec![address]).await;
    let _switch = FakeSwitch::start(directory.path(), vec![]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    until("the clock is blamed", || shared.metrics.session_clock_faults.get() > 1).await;
    assert_eq!(shared.metrics.session_up.get(), 0);
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();

    // Who joins reads it.
    let never = Box::new(|_: &JoinRequest| -> (u16, String) { panic!("nothing is asked") });
    let api = Api::start(authority.acceptor_from("127.0.0.1", false, 3000), never).await;
    let other = tempfile::tempdir().unwrap();
    let error =
        join(&other.path().join("state"), &applicant(), &api.token(&authority), false).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("is not valid yet, for") && said.contains("set this clock right"), "{said}");
}

/// What the controllers of a group were asked about keys, each.
type Asked = Arc<std::sync::Mutex<Vec<Vec<&'static str>>>>;

/// Takes sessions for ever. Only the one that leads takes steps of a change of keys.
async fn takes_sessions(
    controller: Controller,
    authority: Arc<Authority>,
    (at, leads): (usize, bool),
    asked: Asked,
) {
    loop {
        let (stream, _) = controller.listener.accept().await.unwrap();
        // One that comes with the certificate before, or goes meanwhile.
        let Ok(stream) = controller.acceptor.accept(stream).await else { continue };
        let (authority, asked) = (authority.clone(), asked.clone());
        tokio::spawn(async move {
            let mut talk = Conversation(stream);
            talk.greet().await;
            if leads && asked.lock().unwrap()[at].is_empty() {
                asked.lock().unwrap()[at].push("begins");
                talk.say(ToActuator::RotateKeys).await;
            }
            while let Ok(frame) = read_frame::<ToController>(&mut talk.0).await {
                let (what, answer) = match frame {
                    ToController::Rotate { rotation, csr_pem } => {
                        let certificate_pem = authority.sign_for(&csr_pem, "host-1", 60, 9_000);
                        ("rotate", ToActuator::Rotated { key: rotation.new, certificate_pem })
                    }
                    ToController::Settle { key, .. } => ("settle", ToActuator::Settled { key }),
                    _ => continue,
                };
                asked.lock().unwrap()[at].push(what);
                let refused = || ToActuator::NotRotated("another controller leads".into());
                talk.say(if leads { answer } else { refused() }).await;
            }
        });
    }
}

#[tokio::test]
async fn in_a_group_of_five_the_one_that_takes_a_change_of_keys_is_asked_for_each_step() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let asked: Asked = Arc::new(std::sync::Mutex::new(vec![Vec::new(); 5]));
    let mut addresses = Vec::new();
    for at in 0..5 {
        let (controller, address) = controller(&authority).await;
        addresses.push(address);
        tokio::spawn(takes_sessions(controller, authority.clone(), (at, at == 3), asked.clone()));
    }
    let_in(directory.path(), &authority, addresses).await;
    let _switch = FakeSwitch::start(directory.path(), vec![]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    until("the keys are changed", || shared.metrics.keys_changed.get() == 1).await;
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked[3], ["begins", "rotate", "settle"]);
    assert_eq!(asked.iter().map(Vec::len).sum::<usize>(), 3, "no other is asked: {asked:?}");
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn metrics_are_those_of_agent_and_switch() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let_in(directory.path(), &authority, vec!["127.0.0.1:1".into()]).await;
    let switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let mut config = config(directory.path());
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    config.settings.metrics = Some(free);
    let agent = Agent::new(config).unwrap();
    let agent = agent.with_switch_metrics(|counters| {
        counters.iter().map(|(name, value)| format!("weir_switch_{name} {value}\n")).collect()
    });
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    let scrape = async || loop {
        if let Ok(mut stream) = TcpStream::connect(free).await {
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            return text;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let text = tokio::time::timeout(Duration::from_secs(30), scrape()).await.unwrap();
    for line in ["weir_agent_session_up 0\n", "weir_switch_up 1\n", "weir_switch_frames 1\n"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    switch.kill();
    let text = tokio::time::timeout(Duration::from_secs(30), scrape()).await.unwrap();
    assert!(text.contains("weir_switch_up 0\n") && text.contains("weir_agent_"), "{text}");
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_controller_of_another_authority_hears_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let impostor = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = impostor.acceptor("127.0.0.1", false);
    let_in(directory.path(), &authority, vec![listener.local_addr().unwrap().to_string()]).await;
    let _switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let agent = Agent::new(config(directory.path())).unwrap();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    for _ in 0..2 {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(acceptor.accept(stream).await.is_err(), "the agent ends the handshake");
    }
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}

#[test]
fn an_agent_that_has_not_joined_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let error = Agent::new(config(directory.path())).unwrap_err().to_string();
    assert!(error.contains("WEIR_JOIN_TOKEN"), "{error}");
    let mut told = config(directory.path());
    told.controllers = vec!["127.0.0.1:1".into()];
    let error = Agent::new(told).unwrap_err().to_string();
    assert!(error.contains("identity.seed") && error.contains("join first"), "{error}");
}
