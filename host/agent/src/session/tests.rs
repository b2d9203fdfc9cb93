//! Conversations with the machine, as a person would tell them.

use super::*;
use crate::testing::label;
use weir_model::event::{Event, EventBody, SignedEvent, SourceId, UsageReport};
use weir_model::signed::{
    BatchHeader, GroupSignature, ProvenUpdate, Signature, SignedAcks, SignedHeader, SignedUpdates,
};
use weir_model::{Change, Key, Update, Version, entry::Vni};

const SIGNATURE: Signature = Signature { r: [0; 32], s: [0; 32] };

fn settings(controllers: &[&str]) -> Settings {
    Settings {
        actuator: label("host-1"),
        role: Role::Host,
        software: "0.1.0".into(),
        identity: [7; 32],
        underlay: "192.0.2.1".parse().unwrap(),
        controllers: controllers.iter().map(ToString::to_string).collect(),
        backoff_min_ms: 100,
        backoff_max_ms: 5000,
    }
}

struct Talk {
    session: Session,
    now_ms: u64,
}

impl Talk {
    fn new(controllers: &[&str]) -> Talk {
        Talk { session: Session::new(settings(controllers), 1, 1), now_ms: 1000 }
    }

    fn say(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.session.step(self.now_ms, input, &mut out);
        out
    }

    /// Lets time pass until the machine wants a tick.
    fn wait(&mut self) -> Vec<Output> {
        self.now_ms = self.session.next_tick_ms().expect("something is due").max(self.now_ms);
        self.say(Input::Tick)
    }

    fn greet(&mut self) {
        self.say(Input::Connected);
        self.say(Input::FromSwitch(state(5, &[], true)));
        self.say(Input::FromController(ToActuator::Welcome { protocol: PROTOCOL, epoch: 3 }));
        assert!(self.session.established());
    }
}

fn established() -> Talk {
    let mut talk = Talk::new(&["a:1", "b:2"]);
    talk.say(Input::SwitchUp);
    talk.greet();
    talk
}

fn state(digest: u128, vnis: &[u32], last: bool) -> FromSwitch {
    let entries = vnis.iter().map(|&vni| (Key::Network { vni: Vni(vni) }, Version(1))).collect();
    FromSwitch::State { digest: StateDigest(digest), entries, last }
}

fn acks() -> SignedAcks {
    SignedAcks { actuator: label("host-1"), acks: vec![], signature: SIGNATURE }
}

fn usage() -> SignedEvent {
    let actuator = label("host-1");
    let source = SourceId::of_actuator(&actuator);
    let report =
        UsageReport { actuator, window_ms: 1, through_gateway: vec![], direct: vec![], turns: Vec::new() };
    let event = Event { source, sequence: 1, body: EventBody::Usage(report) };
    SignedEvent { event, subject: None, signature: SIGNATURE }
}

fn updates() -> SignedUpdates {
    let header = BatchHeader { domain: label("d"), epoch: 1, index: Version(1), count: 1, root: [0; 32] };
    let header = SignedHeader { header, signature: GroupSignature::Single(SIGNATURE) };
    let key = Key::Network { vni: Vni(1) };
    let (target, version, expected) = (label("host-1"), Version(1), Version::ZERO);
    let update = Update { target, key, version, expected, change: Change::Delete };
    SignedUpdates { header, updates: vec![ProvenUpdate { leaf: 0, path: Vec::new(), update }] }
}

fn connects(out: &[Output]) -> Vec<&str> {
    out.iter()
        .filter_map(|o| match o {
            Output::Connect(address) => Some(address.as_str()),
            _ => None,
        })
        .collect()
}

#[test]
fn the_first_session_greets_with_the_switchs_digest() {
    let mut talk = Talk::new(&["a:1"]);
    assert_eq!(talk.session.next_tick_ms(), None, "without a switch there is nothing to do");
    assert_eq!(connects(&talk.say(Input::SwitchUp)), ["a:1"]);
    assert_eq!(talk.say(Input::Connected), [Output::ToSwitch(ToSwitch::SendState)]);
    assert_eq!(talk.say(Input::FromSwitch(state(1, &[1], false))), []);
    let hello = talk.say(Input::FromSwitch(state(42, &[2], true)));
    let [Output::ToController(ToController::Hello { protocol, digest, actuator, .. })] = &hello[..] else {
        panic!("{hello:?}")
    };
    assert_eq!((*protocol, *digest, actuator.as_str()), (PROTOCOL, StateDigest(42), "host-1"));
    let welcome = talk.say(Input::FromController(ToActuator::Welcome { protocol: PROTOCOL, epoch: 3 }));
    assert_eq!(welcome, [Output::Report(Report::Established { controller: "a:1".into(), epoch: 3 })]);
}

#[test]
fn frames_pass_both_ways() {
    let mut talk = established();
    let update = Input::FromController(ToActuator::Updates(updates()));
    assert_eq!(talk.say(update), [Output::ToSwitch(ToSwitch::Updates(updates()))]);
    let ack = Input::FromSwitch(FromSwitch::Acks(acks()));
    assert_eq!(talk.say(ack), [Output::ToController(ToController::Acks(acks()))]);
    let report = Input::FromSwitch(FromSwitch::Event(usage()));
    assert_eq!(talk.say(report), [Output::ToController(ToController::Event(usage()))]);
    let ping = Input::FromController(ToActuator::Ping { id: 9 });
    assert_eq!(talk.say(ping), [Output::ToController(ToController::Pong { id: 9 })]);
}

#[test]
fn the_state_is_asked_anew_and_passed_on_in_parts() {
    let mut talk = established();
    let asked = talk.say(Input::FromController(ToActuator::SendState));
    assert_eq!(asked, [Output::ToSwitch(ToSwitch::SendState)]);
    let first = talk.say(Input::FromSwitch(state(0, &[1, 2], false)));
    assert!(
        matches!(&first[..], [Output::ToController(ToController::State { entries, last: false })] if entries.len() == 2)
    );
    let many: Vec<u32> = (1..=STATE_CHUNK_KEYS as u32 + 1).collect();
    let rest = talk.say(Input::FromSwitch(state(0, &many, true)));
    let shapes: Vec<_> = rest
        .iter()
        .map(|o| match o {
            Output::ToController(ToController::State { entries, last }) => (entries.len(), *last),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shapes, [(STATE_CHUNK_KEYS, false), (1, true)]);
    assert_eq!(talk.say(Input::FromSwitch(state(0, &[1], true))), [], "nobody asked for this");
}

#[test]
fn an_empty_state_is_still_an_answer() {
    let mut talk = established();
    talk.say(Input::FromController(ToActuator::SendState));
    let answer = talk.say(Input::FromSwitch(state(0, &[], true)));
    assert_eq!(answer, [Output::ToController(ToController::State { entries: vec![], last: true })]);
}

#[test]
fn repeated_state_requests_do_not_pile_up() {
    let mut talk = established();
    let asked: usize = (0..50).map(|_| talk.say(Input::FromController(ToActuator::SendState)).len()).sum();
    assert_eq!(asked, 2, "the one under way and one more");
}

#[test]
fn a_new_session_does_not_take_the_answers_of_the_old_one() {
    let mut talk = established();
    talk.say(Input::FromController(ToActuator::SendState));
    talk.say(Input::FromController(ToActuator::Ask { id: 4, question: Question::Ports }));
    talk.say(Input::Closed("reset".into()));
    assert_eq!(connects(&talk.wait()), ["b:2"]);
    talk.say(Input::Connected);
    assert_eq!(talk.say(Input::FromSwitch(state(1, &[1], true))), [], "this was for the old session");
    let answer = FromSwitch::Answer { id: 1, answer: Answer::Ports(vec![]) };
    assert_eq!(talk.say(Input::FromSwitch(answer)), []);
    assert_eq!(talk.session.counters.dropped_answers, 1);
    let hello = talk.say(Input::FromSwitch(state(2, &[1], true)));
    assert!(matches!(&hello[..], [Output::ToController(ToController::Hello { digest: StateDigest(2), .. })]));
}

#[test]
fn questions_keep_their_numbers_and_a_capture_has_many_answers() {
    let mut talk = established();
    let ask = talk.say(Input::FromController(ToActuator::Ask { id: 77, question: Question::Counters }));
    let [Output::ToSwitch(ToSwitch::Ask { id, question: Question::Counters })] = ask[..] else {
        panic!("{ask:?}")
    };
    for last in [false, false, true] {
        let answer = Answer::Captured { frames: vec![], last };
        let out = talk.say(Input::FromSwitch(FromSwitch::Answer { id, answer: answer.clone() }));
        assert_eq!(out, [Output::ToController(ToController::Answer { id: 77, answer })]);
    }
    let again = FromSwitch::Answer { id, answer: Answer::Ports(vec![]) };
    assert_eq!(talk.say(Input::FromSwitch(again)), []);
}

#[test]
fn too_many_questions_are_refused_and_old_ones_expire() {
    let mut talk = established();
    for id in 0..QUESTIONS_MAX as u64 {
        talk.say(Input::FromController(ToActuator::Ask { id, question: Question::Ports }));
    }
    let refused = talk.say(Input::FromController(ToActuator::Ask { id: 1000, question: Question::Ports }));
    assert!(matches!(
        &refused[..],
        [Output::ToController(ToController::Answer { id: 1000, answer: Answer::Error(_) })]
    ));
    assert_eq!(talk.wait().len(), QUESTIONS_MAX, "each gets an error");
    assert_eq!(talk.session.counters.questions_expired, QUESTIONS_MAX as u64);
    assert!(talk.session.established());
}

#[test]
fn without_a_session_nothing_is_sent_and_all_is_counted() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    assert_eq!(talk.say(Input::FromSwitch(FromSwitch::Acks(acks()))), []);
    assert_eq!(talk.say(Input::FromSwitch(FromSwitch::Event(usage()))), []);
    assert_eq!((talk.session.counters.dropped_acks, talk.session.counters.dropped_events), (1, 1));
}

#[test]
fn controllers_are_tried_in_turn_with_growing_waits() {
    let mut talk = Talk::new(&["a:1", "b:2", "c:3"]);
    let mut tried: Vec<String> = connects(&talk.say(Input::SwitchUp)).iter().map(|s| s.to_string()).collect();
    let mut waits = Vec::new();
    for _ in 0..60 {
        let out = talk.say(Input::Closed("refused".into()));
        let [Output::Report(Report::Lost { wait_ms, .. })] = out[..] else { panic!("{out:?}") };
        waits.push(wait_ms);
        tried.extend(connects(&talk.wait()).iter().map(|s| s.to_string()));
    }
    assert_eq!(tried[..4], ["a:1", "b:2", "c:3", "a:1"]);
    for (failure, &wait_ms) in waits.iter().enumerate() {
        let full = (100_u64 << (failure / 3).min(20)).min(5000);
        assert!(wait_ms >= full / 2 && wait_ms <= full, "wait {wait_ms} after failure {failure}");
    }
    let mut other = Talk { session: Session::new(settings(&["a:1"]), 2, 1), now_ms: 1000 };
    other.say(Input::SwitchUp);
    let out = other.say(Input::Closed("refused".into()));
    assert!(!out.contains(&Output::Report(Report::Lost {
        controller: "a:1".into(),
        reason: "refused".into(),
        wait_ms: waits[0]
    })));
}

#[test]
fn a_session_resets_the_waits() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    for _ in 0..20 {
        talk.say(Input::Closed("refused".into()));
        talk.wait();
    }
    talk.greet();
    let out = talk.say(Input::Closed("reset".into()));
    assert!(matches!(out[..], [Output::Report(Report::Lost { wait_ms, .. })] if wait_ms <= 100));
}

#[test]
fn another_protocol_is_told_plainly() {
    for (protocol, older) in [(PROTOCOL + 1, "agent"), (PROTOCOL - 1, "controller")] {
        let mut talk = Talk::new(&["a:1"]);
        talk.say(Input::SwitchUp);
        talk.say(Input::Connected);
        talk.say(Input::FromSwitch(state(1, &[], true)));
        let out = talk.say(Input::FromController(ToActuator::Welcome { protocol, epoch: 1 }));
        let [Output::Close, Output::Report(report)] = &out[..] else { panic!("{out:?}") };
        let text = report.to_string();
        let wanted =
            format!("speaks protocol {protocol} and this agent speaks {PROTOCOL}: upgrade the {older}");
        assert!(text.contains(&wanted), "{text}");
        assert_eq!(talk.session.counters.protocol_errors, 1);
    }
}

#[test]
fn a_refusal_is_told_and_tried_again_later() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    talk.say(Input::Connected);
    let out = talk.say(Input::FromController(ToActuator::Refused("name is taken".into())));
    assert!(
        matches!(&out[..], [Output::Close, Output::Report(Report::Lost { reason, .. })] if reason.contains("name is taken"))
    );
    assert_eq!(connects(&talk.wait()), ["a:1"]);
}

#[test]
fn frames_before_the_welcome_break_the_protocol() {
    for frame in [ToActuator::SendState, ToActuator::Updates(updates()), ToActuator::Ping { id: 1 }] {
        let mut talk = Talk::new(&["a:1"]);
        talk.say(Input::SwitchUp);
        talk.say(Input::Connected);
        let out = talk.say(Input::FromController(frame));
        assert_eq!(out[0], Output::Close);
        assert_eq!(talk.session.counters.protocol_errors, 1);
        assert!(!out.iter().any(|o| matches!(o, Output::ToSwitch(_))), "nothing reaches the switch");
    }
}

#[test]
fn a_ping_before_the_welcome_ends_nothing() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    talk.say(Input::Connected);
    talk.say(Input::FromSwitch(state(1, &[], true)));
    let answer = talk.say(Input::FromController(ToActuator::Ping { id: 1 }));
    assert_eq!(answer, [Output::ToController(ToController::Pong { id: 1 })]);
    talk.say(Input::FromController(ToActuator::Welcome { protocol: PROTOCOL, epoch: 3 }));
    assert!(talk.session.established());
}

#[test]
fn a_certificate_is_asked_for_in_a_session_and_kept() {
    let mut talk = Talk::new(&["a:1"]);
    assert_eq!(talk.say(asks_renewal()), [], "there is nobody to ask");
    let mut talk = established();
    let asked = talk.say(asks_renewal());
    assert_eq!(asked, [Output::ToController(ToController::Renew { csr_pem: "csr".into() })]);
    let renewed = ToActuator::Renewed { certificate_pem: "new".into() };
    assert_eq!(talk.say(Input::FromController(renewed)), [Output::Certificate("new".into())]);
    let out = talk.say(Input::FromController(ToActuator::NotRenewed("forgotten".into())));
    assert!(matches!(&out[..], [Output::Report(report)] if report.to_string().contains("forgotten")));
    assert!(talk.session.established());
}

#[test]
fn a_reply_that_was_lost_keeps_no_later_session_from_coming_about() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    for _ in 0..2 * STATE_REQUESTS_MAX {
        talk.say(Input::Connected);
        assert!(talk.wait().contains(&Output::ResetSwitch), "the switch owes its state");
        talk.say(Input::SwitchDown);
        talk.say(Input::SwitchUp);
    }
    talk.greet();
}

#[test]
fn when_the_switch_goes_the_session_goes_and_comes_back_with_it() {
    let mut talk = established();
    let out = talk.say(Input::SwitchDown);
    assert_eq!(out[0], Output::Close);
    assert!(!talk.session.established());
    assert_eq!(talk.session.next_tick_ms(), None);
    assert_eq!(connects(&talk.say(Input::SwitchUp)), ["a:1"]);
    talk.greet();
}

#[test]
fn stages_that_hang_are_given_up() {
    let mut talk = Talk::new(&["a:1", "b:2"]);
    talk.say(Input::SwitchUp);
    assert_eq!(talk.wait()[0], Output::Close, "no stream");
    assert_eq!(connects(&talk.wait()), ["b:2"]);
    talk.say(Input::Connected);
    let out = talk.wait();
    assert_eq!(out[0], Output::Close, "no digest");
    assert!(out.contains(&Output::ResetSwitch), "a new connection owes nothing");
    talk.say(Input::SwitchDown);
    talk.say(Input::SwitchUp);
    talk.say(Input::Connected);
    talk.say(Input::FromSwitch(state(1, &[], true)));
    assert_eq!(talk.wait()[0], Output::Close, "no welcome");
}

#[test]
fn only_a_controller_that_pings_may_not_fall_silent() {
    let mut talk = established();
    assert_eq!(talk.session.next_tick_ms(), None);
    talk.say(Input::FromController(ToActuator::Ping { id: 1 }));
    let due_ms = talk.session.next_tick_ms().unwrap();
    talk.now_ms = due_ms - 1;
    assert_eq!(talk.say(Input::Tick), []);
    talk.say(Input::FromController(ToActuator::SendState));
    talk.now_ms = due_ms;
    assert_eq!(talk.say(Input::Tick), [], "any frame is a sign of life");
    assert_eq!(talk.wait()[0], Output::Close);
}

#[test]
fn any_conversation_keeps_the_machine_sane() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut talk = Talk::new(&["a:1", "b:2"]);
        let mut switch_up = false;
        let mut stream = false;
        for &byte in bytes {
            talk.now_ms += u64::from(byte) * 50;
            let input = match byte % 16 {
                0 => Input::SwitchUp,
                1 => Input::SwitchDown,
                2 => Input::FromSwitch(state(1, &[1], byte > 128)),
                3 => Input::FromSwitch(FromSwitch::Acks(acks())),
                4 => Input::FromSwitch(FromSwitch::Answer {
                    id: u64::from(byte / 16),
                    answer: Answer::Ports(vec![]),
                }),
                5 => Input::Connected,
                6 => Input::Closed("over".into()),
                7 => Input::FromController(ToActuator::Welcome { protocol: PROTOCOL, epoch: 1 }),
                8 => Input::FromController(ToActuator::SendState),
                9 => Input::FromController(ToActuator::Updates(updates())),
                10 => Input::FromController(ToActuator::Ask { id: 1, question: Question::Ports }),
                11 => Input::FromController(ToActuator::Ping { id: 1 }),
                12 => Input::FromController(ToActuator::Refused("no".into())),
                13 => Input::FromController(ToActuator::Renewed { certificate_pem: "c".into() }),
                14 => asks_renewal(),
                _ => Input::Tick,
            };
            match input {
                Input::SwitchUp => switch_up = true,
                Input::SwitchDown => switch_up = false,
                Input::Closed(_) => stream = false,
                _ => {}
            }
            for output in talk.say(input) {
                match output {
                    Output::Connect(_) => {
                        assert!(switch_up && !stream, "one stream at a time, and only with a switch");
                        stream = true;
                    }
                    Output::Close => stream = false,
                    Output::ToController(_) => assert!(stream && switch_up),
                    Output::ToSwitch(_) => assert!(switch_up),
                    Output::ResetSwitch => assert!(switch_up),
                    Output::Certificate(_)
                    | Output::Keys(_)
                    | Output::Controllers { .. }
                    | Output::Unsigned(_)
                    | Output::Share(_)
                    | Output::Endorsement(_) => assert!(stream && switch_up),
                    Output::Report(_) | Output::BadConduct(_) => {}
                }
            }
            assert!(talk.session.states.len() <= STATE_REQUESTS_MAX);
            assert!(talk.session.questions.len() <= QUESTIONS_MAX);
        }
    });
}

fn asks_renewal() -> Input {
    Input::Say(Box::new(ToController::Renew { csr_pem: "csr".into() }))
}

/// Frames go on until the session ends; how many went, and how long it waits then.
fn until_it_ends(talk: &mut Talk, input: &Input) -> (usize, u64) {
    for count in 0..1_000 {
        let out = talk.say(input.clone());
        let lost = out.iter().find_map(|output| match output {
            Output::Report(Report::Lost { wait_ms, .. }) => Some(*wait_ms),
            _ => None,
        });
        if let Some(wait_ms) = lost {
            assert!(out.contains(&Output::Close) || matches!(input, Input::Garbage(_)), "{out:?}");
            let what = match input {
                Input::Garbage(_) => BadConduct::Garbage,
                _ => BadConduct::Forgeries,
            };
            let ended = talk.session.counters.bad_conduct;
            let forgeries = talk.session.counters.forgeries;
            assert!(out.contains(&Output::BadConduct(Ended { what, ended, forgeries })), "{out:?}");
            return (count, wait_ms);
        }
    }
    panic!("it never ends");
}

#[test]
fn who_forges_again_and_again_is_left_alone_for_longer_each_time() {
    let mut talk = Talk::new(&["a:1"]);
    talk.say(Input::SwitchUp);
    talk.greet();
    let (forgiven, wait_ms) = until_it_ends(&mut talk, &Input::Forged);
    assert_eq!(forgiven, 16);
    assert!((1_000..5_000).contains(&wait_ms), "{wait_ms}");
    // Verdicts on what it sent before come late.
    assert_eq!(talk.say(Input::Forged), []);
    let mut waits = vec![wait_ms];
    for _ in 0..9 {
        assert_eq!(connects(&talk.wait()), ["a:1"]);
        talk.greet();
        let (_, wait_ms) = until_it_ends(&mut talk, &Input::Forged);
        waits.push(wait_ms);
    }
    assert!(waits.windows(2).all(|pair| pair[1] >= pair[0]), "{waits:?}");
    assert_eq!(*waits.last().unwrap(), conduct::DISTRUST_MAX_MS);
    assert_eq!(talk.session.counters.bad_conduct, 10);
    // Garbage is no better.
    talk.wait();
    talk.greet();
    let (_, wait_ms) = until_it_ends(&mut talk, &Input::Garbage("no frame".into()));
    assert_eq!(wait_ms, conduct::DISTRUST_MAX_MS);
    // After good conduct it begins anew.
    talk.wait();
    talk.now_ms += conduct::DISTRUST_LIFE_MS + conduct::DISTRUST_MAX_MS;
    talk.greet();
    assert!(until_it_ends(&mut talk, &Input::Forged).1 < 5_000);
}

#[test]
fn a_frame_of_no_updates_is_no_controllers_and_does_not_reach_the_switch() {
    let mut talk = established();
    let empty = SignedUpdates { updates: Vec::new(), ..updates() };
    assert_eq!(talk.say(Input::FromController(ToActuator::Updates(empty))), []);
    assert_eq!(talk.session.counters.forgeries, 1);
}

#[test]
fn the_whole_state_and_questions_are_given_at_a_bounded_rate_and_the_last_request_is_served() {
    let mut talk = established();
    let began_ms = talk.now_ms;
    let mut served = 0;
    let mut serve = |talk: &mut Talk, out: Vec<Output>| {
        if out.contains(&Output::ToSwitch(ToSwitch::SendState)) {
            served += 1;
            talk.say(Input::FromSwitch(state(1, &[1], true)));
        }
        served
    };
    for _ in 0..1_000 {
        let out = talk.say(Input::FromController(ToActuator::SendState));
        serve(&mut talk, out);
    }
    let out = talk.say(Input::Tick);
    let at_once = serve(&mut talk, out);
    assert_eq!((at_once, talk.session.counters.states_delayed), (4, 1));
    let out = talk.wait();
    assert_eq!(serve(&mut talk, out), 5, "who asked last is answered, a little later");
    assert!(talk.now_ms - began_ms <= 5_000);
    assert!(talk.session.next_tick_ms().is_none_or(|at_ms| at_ms > talk.now_ms + 5_000));

    let ask = || Input::FromController(ToActuator::Ask { id: 7, question: Question::Counters });
    let mut taken = 0;
    for _ in 0..2_000 {
        for output in talk.say(ask()) {
            if let Output::ToSwitch(ToSwitch::Ask { id, .. }) = output {
                taken += 1;
                let answer = Answer::Error("none".into());
                talk.say(Input::FromSwitch(FromSwitch::Answer { id, answer }));
            }
        }
    }
    assert_eq!((taken, talk.session.counters.questions_refused), (256, 2_000 - 256));
    talk.now_ms += 1_000;
    let out = talk.say(ask());
    assert!(matches!(out[..], [Output::ToSwitch(ToSwitch::Ask { .. })]), "{out:?}");
}
