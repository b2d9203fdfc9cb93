//! A whole agent with a plane's process beside its switch, and a controller.

use crate::fake_switch::FakeSwitch;
use crate::pki::Authority;
use crate::whole::{Controller, Conversation, config, label, let_in, until};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use weir_actuator::suite::echo::Echo;
use weir_actuator::{Folders, Identity, Runner, Serving};
use weir_agent::agent::Agent;
use weir_agent::join;
use weir_model::entry::GatewayEntry;
use weir_model::event::EventBody;
use weir_model::join::CONTROLLER_DNS_NAME;
use weir_model::session::{StateDigest, ToActuator, ToController};
use weir_model::signed::SignedAcks;
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, frames, sign_batch};
use weir_trust::gate::content_digest;
use weir_trust::identity::{KeyPair, verify_acks};

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn key(plane: &str, name: &str) -> Key {
    Key::Plane { plane: label(plane), name: name.into() }
}

fn start(directory: &Path) -> Serving<Echo> {
    let state = directory.join("state");
    let identity = Identity {
        actuator: label("host-1"),
        domain: label("lab"),
        group: signer().group_key(),
        read_key: Box::new(move || join::identity(&state).map_err(|error| error.to_string())),
    };
    let folders = Folders { state: directory.join("echo"), run: directory.to_path_buf() };
    Runner::new(identity, &folders, None, Echo::default()).unwrap().start().unwrap()
}

/// Updates under one header.
fn updates(version: u64, entries: Vec<(Key, Entry)>) -> ToActuator {
    let update = |(key, entry)| Update {
        target: label("host-1"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(entry),
    };
    let updates = entries.into_iter().map(update).collect();
    let (header, proven) = sign_batch(&signer(), &label("lab"), 1, Version(version), updates).unwrap();
    ToActuator::Updates(frames(proven.into_iter().map(|proven| (header.clone(), proven)), 100).remove(0))
}

fn spec(text: &str) -> Entry {
    Entry::Plane(format!(r#"{{"text":"{text}"}}"#).into_bytes())
}

/// Hears until something is it.
async fn hear<T>(talk: &mut Conversation, mut is_it: impl FnMut(&ToController) -> Option<T>) -> T {
    loop {
        let frame = talk.hear().await;
        if let Some(found) = is_it(&frame) {
            return found;
        }
    }
}

fn acks_of(wanted: &Key) -> impl FnMut(&ToController) -> Option<SignedAcks> {
    move |frame| match frame {
        ToController::Acks(acks) if acks.acks[0].key == *wanted => Some(acks.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn a_planes_process_comes_acts_goes_and_comes_back_behind_one_session() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let controller = Controller {
        listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        acceptor: authority.acceptor(CONTROLLER_DNS_NAME, true),
    };
    let address = controller.listener.local_addr().unwrap().to_string();
    let_in(directory.path(), &authority, vec![address]).await;
    let switch = FakeSwitch::start(directory.path(), vec![(Key::Gateways, Entry::Gateways(vec![]))]);
    let echo = start(directory.path());
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    until("the plane is there", || shared.metrics.planes_up.get() == 1).await;
    let mut talk = controller.accept().await;
    assert_eq!(talk.greet().await, StateDigest(1), "the plane has nothing yet");

    // One frame for both: each acks its own, the plane with the host's key.
    let gateway = GatewayEntry { name: label("gw"), underlay: "127.0.0.1".parse().unwrap() };
    let own = key("echo", "n");
    talk.say(updates(9, vec![(Key::Gateways, Entry::Gateways(vec![gateway])), (own.clone(), spec("x"))]))
        .await;
    let (mut by_switch, mut by_plane) = (None, None);
    hear(&mut talk, |frame| {
        let ToController::Acks(acks) = frame else { return None };
        assert_eq!(acks.acks.len(), 1);
        *(if acks.acks[0].key == own { &mut by_plane } else { &mut by_switch }) = Some(acks.clone());
        (by_switch.is_some() && by_plane.is_some()).then_some(())
    })
    .await;
    let host = join::identity(&directory.path().join("state")).unwrap().public();
    assert_eq!(verify_acks(&host, &by_plane.unwrap()), Ok(()));
    assert_eq!(echo.with(|machine| machine.actuator().texts["n"].clone()), "x");
    assert!(!switch.state.lock().unwrap().entries.contains_key(&own), "it is not the switch's");
    let said = hear(&mut talk, |frame| match frame {
        ToController::Event(event) => Some(event.event.body.clone()),
        _ => None,
    });
    assert!(matches!(said.await, EventBody::Report(report) if report.bytes == b"\"x\""));

    // It goes, and comes back with what it had; the session stays.
    let plane = |frame: &ToController| match frame {
        ToController::Plane { plane, entries, last } => Some((plane.clone(), entries.clone(), *last)),
        _ => None,
    };
    drop(echo);
    assert_eq!(hear(&mut talk, plane).await, (label("echo"), None, true));
    talk.say(updates(10, vec![(own.clone(), spec("while it was away"))])).await;
    let echo = start(directory.path());
    let has = Some(vec![(own.clone(), Version(9))]);
    assert_eq!(hear(&mut talk, plane).await, (label("echo"), has, true));
    assert_eq!(hear(&mut talk, acks_of(&own)).await.acks[0].version, Version(10));
    assert_eq!(echo.with(|machine| machine.actuator().texts["n"].clone()), "while it was away");
    talk.say(ToActuator::SendState).await;
    let state = hear(&mut talk, |frame| match frame {
        ToController::State { entries, last: true } => Some(entries.clone()),
        _ => None,
    });
    assert_eq!(state.await, [(Key::Gateways, Version(9)), (own.clone(), Version(10))]);

    // What nobody takes is refused in words.
    let nobody = key("nobody", "n");
    talk.say(updates(11, vec![(nobody.clone(), spec("x"))])).await;
    let refused = hear(&mut talk, acks_of(&nobody)).await;
    assert_eq!(verify_acks(&host, &refused), Ok(()));
    let Err(Refusal::Failed(why)) = &refused.acks[0].result else { panic!("{refused:?}") };
    assert!(why.contains("no process of plane nobody is on this host"), "{why}");

    // The next session begins with both digests in one.
    drop(talk);
    let mut talk = controller.accept().await;
    let content = content_digest(&own, Version(10), &Change::Put(spec("while it was away")));
    assert_eq!(talk.greet().await, StateDigest(content.wrapping_add(1)));
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
}
