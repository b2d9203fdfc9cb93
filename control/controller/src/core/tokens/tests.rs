//! Tokens as events of a core: once, for one key; voided with whom they are for.

use super::*;
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Input, Item, Outcome, Output};
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::Version;
use weir_model::event::{ActuatorFacts, Event, EventBody};
use weir_model::identity::IdentityEvent;
use weir_store::{App, Decision};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_event};

struct Nothing;

impl App for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn decide(&self, _: &mut View<'_>, _: Version, _: u64, _: &Event) -> Result<Decision, Rejection> {
        Ok(Decision::default())
    }
}

const ID: TokenId = [7; 16];
const UNTIL_S: u64 = 3_600;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn host(name: &str) -> SourceId {
    SourceId::of_actuator(&label(name))
}

struct World {
    core: Core,
    sequence: u64,
    now_ms: u64,
}

impl World {
    fn new() -> World {
        let (source, key) = (SourceId::of_controller(&label("c1")), KeyPair::from_seed(&[1; 32]));
        let settings = CoreSettings {
            domain: label("d"),
            epoch: 1,
            source: source.clone(),
            keys: [(source, key.public())].into(),
            believes_one: true,
            scheduler: SchedulerSettings::default(),
        };
        let signer = Box::new(SingleSigner(KeyPair::from_seed(&[2; 32])));
        World { core: Core::new(settings, signer, vec![Arc::new(Nothing)]), sequence: 0, now_ms: 1_000 }
    }

    fn says(&mut self, body: EventBody) -> Result<(), String> {
        self.sequence += 1;
        let source = SourceId::of_controller(&label("c1"));
        let event = Event { source, sequence: self.sequence, body };
        let event = sign_event(&KeyPair::from_seed(&[1; 32]), &label("d"), event, None);
        let (mut out, now_ms) = (Vec::new(), self.now_ms);
        self.core.step(Input::Ordered(vec![Item::Event { now_ms, event }]), &mut out);
        let decided = out.into_iter().find_map(|output| match output {
            Output::Decided { outcome, .. } => Some(outcome),
            _ => None,
        });
        match decided.unwrap() {
            Outcome::Committed(_) => Ok(()),
            Outcome::Rejected(rejection) => Err(rejection.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn about(&mut self, name: &str, id: TokenId, change: TokenChange) -> Result<(), String> {
        let about = IdentityEvent::Token { whose: host(name), id, change };
        self.says(EventBody::Identity(Box::new(about)))
    }

    fn made(&mut self, name: &str, id: TokenId) -> Result<(), String> {
        let change = TokenChange::Made { role: Role::Host, until_s: UNTIL_S, underlay: None };
        self.about(name, id, change)
    }

    fn used(&mut self, name: &str, id: TokenId, key: u8) -> Result<(), String> {
        self.about(name, id, TokenChange::Used { key: [key; 32] })
    }

    fn joined(&mut self, name: &str, key: u8, underlay: &str) -> Result<(), String> {
        let (identity, underlay) = ([key; 32], underlay.parse::<IpAddr>().unwrap());
        self.says(EventBody::Joined(ActuatorFacts {
            name: label(name),
            role: Role::Host,
            identity,
            underlay,
        }))
    }

    fn state(&self, id: &TokenId) -> TokenState {
        token(self.core.store(), id).unwrap().state
    }
}

#[track_caller]
fn refused(answer: Result<(), String>, why: &str) {
    let said = answer.unwrap_err();
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_token_serves_one_name_and_one_key_once() {
    let mut world = World::new();
    refused(world.used("h1", ID, 1), "no such join token");
    world.made("h1", ID).unwrap();
    refused(world.made("h1", ID), "already");
    refused(world.used("h2", ID, 1), "another name");
    world.used("h1", ID, 1).unwrap();
    // Whoever did not hear the answer asks again; nobody else may.
    world.used("h1", ID, 1).unwrap();
    refused(world.used("h1", ID, 2), "used already");
    assert!(matches!(world.state(&ID), TokenState::Used { key, .. } if key == [1; 32]));
    world.about("h1", ID, TokenChange::Voided).unwrap();
    refused(world.used("h1", ID, 1), "voided");
    world.about("h1", ID, TokenChange::Voided).unwrap();
    assert_eq!(tokens(world.core.store()).count(), 1);
}

#[test]
fn a_token_ends_and_what_is_over_makes_room() {
    let mut world = World::new();
    world.made("h1", ID).unwrap();
    world.now_ms = (UNTIL_S + 1) * 1_000;
    refused(world.used("h1", ID, 1), "over");
    let far = TokenChange::Made {
        role: Role::Host,
        until_s: world.now_ms / 1_000 + TOKEN_LIFE_MAX_S + CLOCKS_APART_S + 1,
        underlay: None,
    };
    refused(world.about("h1", [1; 16], far), "604800");
    for number in 1..TOKENS_MAX as u128 {
        let until_s = UNTIL_S * 3;
        let change = TokenChange::Made { role: Role::Gateway, until_s, underlay: None };
        world.about("g1", number.to_le_bytes(), change).unwrap();
    }
    assert_eq!(tokens(world.core.store()).count(), TOKENS_MAX);
    // One is over, and goes; then there is no room.
    let one_more = TokenChange::Made { role: Role::Host, until_s: UNTIL_S * 3, underlay: None };
    world.about("h1", [8; 16], one_more.clone()).unwrap();
    assert!(token(world.core.store(), &ID).is_none());
    refused(world.about("h1", [9; 16], one_more), "join tokens");
}

#[test]
fn whoever_is_revoked_or_forgotten_leaves_no_token() {
    let mut world = World::new();
    for (number, name) in [(1, "h1"), (2, "h1"), (3, "h2"), (4, "h3")] {
        world.made(name, [number; 16]).unwrap();
    }
    world.used("h1", [1; 16], 1).unwrap();
    world.joined("h1", 1, "192.0.2.1").unwrap();
    world.used("h3", [4; 16], 3).unwrap();
    world.joined("h3", 3, "192.0.2.3").unwrap();
    let about = IdentityEvent::Revoked { whose: host("h1"), reason: "stolen".into() };
    world.says(EventBody::Identity(Box::new(about))).unwrap();
    world.says(EventBody::Removed { actuator: label("h3") }).unwrap();
    for id in [[1; 16], [2; 16], [4; 16]] {
        assert!(matches!(world.state(&id), TokenState::Voided { .. }), "{id:?}");
    }
    assert_eq!(world.state(&[3; 16]), TokenState::Open);
    refused(world.used("h1", [2; 16], 9), "voided");
    refused(world.used("h3", [4; 16], 3), "voided");
}

#[test]
fn an_address_on_the_underlay_is_one_actuator_s() {
    // Entries from before the rule are decided as they were.
    let mut before = World::new();
    before.joined("h1", 1, "192.0.2.1").unwrap();
    before.joined("h2", 2, "192.0.2.1").unwrap();
    before.joined("h3", 3, "224.0.0.1").unwrap();

    let mut world = World::new();
    world.made("h1", ID).unwrap();
    world.joined("h1", 1, "192.0.2.1").unwrap();
    world.joined("h1", 1, "192.0.2.1").unwrap();
    refused(world.joined("h2", 2, "192.0.2.1"), "address of 'h1'");
    world.joined("h2", 2, "192.0.2.2").unwrap();
    refused(world.joined("h2", 2, "192.0.2.1"), "address of 'h1'");
    for none in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "169.254.1.1",
        "::",
        "::1",
        "ff02::1",
        "fe80::1",
        "::ffff:192.0.2.9",
    ] {
        refused(world.joined("h2", 2, none), "cannot be its address");
    }
    // Whoever is revoked or forgotten leaves its address to others.
    let about = IdentityEvent::Revoked { whose: host("h1"), reason: "stolen".into() };
    world.says(EventBody::Identity(Box::new(about))).unwrap();
    world.joined("h2", 2, "192.0.2.1").unwrap();
    world.joined("h4", 4, "2001:db8::1").unwrap();
    refused(world.joined("h5", 5, "2001:db8::1"), "address of 'h4'");
    world.says(EventBody::Removed { actuator: label("h4") }).unwrap();
    world.joined("h5", 5, "2001:db8::1").unwrap();
}
