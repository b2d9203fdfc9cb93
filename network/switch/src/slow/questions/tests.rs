#![allow(clippy::unwrap_used)]

use super::*;
use std::net::IpAddr;
use weir_base::world::Rng;
use weir_model::packet_in::Why;
use weir_model::{Label, MacAddr};

fn asked(port: PortIndex, vni: u32, last: u32) -> Asked {
    let address = IpAddr::V4((0x0a00_0000 + last).into());
    let packet = PacketIn {
        endpoint: Label::new("a").unwrap(),
        why: Why::Unknown,
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        source: None,
        destination: Some(address),
        protocol: 17,
        ports: (1, 2),
    };
    Asked { port, vni, about: About::Place(address), packet }
}

fn dropped<T>(questions: &Questions<T>, reason: Dropped) -> u64 {
    questions.counters.dropped[reason as usize]
}

#[test]
fn one_question_a_destination_and_its_first_frames_go_on_in_order() {
    let mut questions = Questions::default();
    for frame in 0..10 {
        questions.ask(0, asked(frame % 2, 7, 1), 100, frame);
    }
    questions.ask(0, asked(1, 8, 1), 100, 99);
    assert_eq!(questions.open(), 2, "the same address in another network is another question");
    assert_eq!(dropped(&questions, Dropped::Held), 6);
    let (vni, packets) = questions.take_told().unwrap();
    assert_eq!((vni, packets.len()), (Vni(7), 1));
    assert_eq!(questions.take_told().unwrap().0, Vni(8), "networks are told apart");
    assert!(questions.take_told().is_none());
    assert_eq!(questions.answered(3_000, 7, asked(0, 7, 1).about), [0, 1, 2, 3]);
    assert_eq!(questions.counters.answer_us_max, 3_000);
    assert!(questions.answered(4_000, 7, asked(0, 7, 1).about).is_empty());
    assert_eq!(questions.held(), (1, 100));
}

#[test]
fn a_port_that_sends_to_everybody_has_its_share_and_others_theirs() {
    let mut questions = Questions::default();
    for last in 0..10_000 {
        questions.ask(0, asked(1, 7, last), 60, ());
    }
    assert_eq!(questions.open(), QUESTIONS_PER_PORT_MAX);
    assert_eq!(dropped(&questions, Dropped::PortQuestions), 10_000 - QUESTIONS_PER_PORT_MAX as u64);
    questions.ask(0, asked(2, 7, 20_000), 60, ());
    assert_eq!(questions.open(), QUESTIONS_PER_PORT_MAX + 1, "another port asks as if nothing were");
    // Answers make room, and the rate holds then.
    for last in 0..QUESTIONS_PER_PORT_MAX as u32 {
        questions.answered(0, 7, asked(1, 7, last).about);
    }
    for last in 30_000..31_000 {
        questions.ask(0, asked(1, 7, last), 60, ());
        questions.answered(0, 7, asked(1, 7, last).about);
    }
    assert_eq!(questions.counters.asked, 1 + ASKS_AT_ONCE);
    assert_eq!(dropped(&questions, Dropped::Rate), 1_000 - (ASKS_AT_ONCE - QUESTIONS_PER_PORT_MAX as u64));
    questions.ask(1_000_000, asked(1, 7, 40_000), 60, ());
    assert_eq!(questions.counters.asked, 2 + ASKS_AT_ONCE, "a second later it may ask again");
}

#[test]
fn many_ports_together_have_a_limit_too() {
    let mut questions = Questions::default();
    for port in 0..64 {
        for last in 0..QUESTIONS_PER_PORT_MAX as u32 {
            questions.ask(0, asked(port, 7, u32::from(port) * 1000 + last), 9_000, ());
        }
    }
    assert!(questions.open() <= QUESTIONS_MAX);
    assert!(questions.held().1 <= HELD_BYTES_MAX);
    let lost: u64 = questions.counters.dropped.iter().sum();
    assert_eq!(questions.counters.asked + lost, 64 * QUESTIONS_PER_PORT_MAX as u64);
    assert_eq!(questions.open(), QUESTIONS_PER_NETWORK_MAX.min(29 * 9), "they are of one network");
    // Another tenant asks, and its frames are held, as if nothing were.
    questions.ask(0, asked(100, 8, 1), 9_000, ());
    assert_eq!(questions.answered(0, 8, asked(100, 8, 1).about).len(), 1);
}

#[test]
fn one_port_holds_no_more_than_its_share() {
    let mut questions = Questions::default();
    for last in 0..60 {
        questions.ask(0, asked(1, 7, last), 65_000, ());
    }
    assert_eq!(questions.held(), (4, 260_000));
    assert_eq!(dropped(&questions, Dropped::Held), 56);
    questions.ask(0, asked(2, 7, 1), 65_000, ());
    assert_eq!(questions.held().0, 5);
    questions.port_gone(1);
    assert_eq!((questions.held(), questions.open()), ((0, 0), 0), "the one that asked is gone");
    questions.ask(0, asked(2, 7, 1), 65_000, ());
    assert_eq!(questions.held(), (1, 65_000));
}

#[test]
fn a_question_is_asked_again_and_given_up() {
    let mut questions = Questions::default();
    questions.ask(0, asked(1, 7, 1), 60, ());
    let mut told = 0;
    for now_ms in 0..20_000 {
        questions.pass_time(now_ms);
        while let Some((_, packets)) = questions.take_told() {
            told += packets.len();
        }
    }
    assert_eq!(told, ASKS_MAX as usize);
    assert_eq!((questions.open(), questions.held()), (0, (0, 0)));
    assert_eq!((questions.counters.given_up, dropped(&questions, Dropped::NoAnswer)), (1, 1));
    assert!(questions.budgets.is_empty(), "nothing is remembered of a port that is silent");
}

/// Whatever happens in whatever order, every frame is held, released or counted, and the limits hold.
#[test]
fn every_frame_is_accounted_for() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut questions = Questions::default();
        let (mut now_us, mut frames, mut released) = (0, 0_u64, 0_u64);
        for _ in 0..400 {
            now_us += rng.below(300_000);
            let (port, last) = (rng.below(4) as PortIndex, rng.below(30) as u32);
            match rng.below(12) {
                0 => questions.port_gone(port),
                1 | 2 => questions.pass_time(now_us / 1000),
                3 | 4 => {
                    released += questions.answered(now_us, 7, asked(port, 7, last).about).len() as u64;
                }
                5 => while questions.take_told().is_some() {},
                _ => {
                    frames += 1;
                    questions.ask(now_us, asked(port, 7, last), 1 + rng.below(9_000) as usize, ());
                }
            }
            let lost: u64 = questions.counters.dropped.iter().sum();
            assert_eq!(frames, released + lost + questions.held().0 as u64, "seed {seed}");
            assert_eq!(questions.counters.released, released, "seed {seed}");
            let bytes: usize =
                questions.open.values().flat_map(|q| q.held.iter().map(|(_, (), bytes)| bytes)).sum();
            assert_eq!(questions.held_bytes, bytes, "seed {seed}");
            assert_eq!(questions.held_of_ports.values().sum::<usize>(), bytes, "seed {seed}");
            assert_eq!(questions.of_networks.values().sum::<usize>(), questions.open.len(), "seed {seed}");
            for (port, budget) in &questions.budgets {
                let open = questions.open.values().filter(|question| question.port == *port).count();
                assert_eq!(open, budget.open, "seed {seed}");
                assert!(open <= QUESTIONS_PER_PORT_MAX);
            }
        }
    }
}
