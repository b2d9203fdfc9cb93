use super::*;
use crate::fixtures::{self, bytes};
use crate::headers::{Fragment, Transport, parse};
use crate::rewrite::decrement_ttl;

/// What is plain is what the parser says; and what the parser says is a whole TCP or UDP packet between two hosts, without
/// anything besides, and with a TTL and flags that such packets have, is plain.
fn agrees(frame: &[u8]) {
    let (plain, parsed) = (Plain::new(9, frame), parse(frame));
    let Ok(parsed) = parsed else { return assert_eq!(plain, None, "{frame:02x?}") };
    let to_many = frame[0] & 1 != 0 || parsed.destination.is_multicast();
    let of_hosts = !to_many && ![parsed.source, parsed.destination].iter().any(is_reserved);
    let is_odd =
        parsed.ttl == 0 || (parsed.transport == Transport::Tcp && tcp_flags::is_odd(parsed.tcp_flags));
    let wanted = matches!(parsed.transport, Transport::Tcp | Transport::Udp)
        && !is_odd
        && parsed.fragment == Fragment::Whole
        && !parsed.has_options
        && parsed.vlan_tci.is_none()
        && of_hosts;
    let Some(mut plain) = plain else { return assert!(!wanted, "{frame:02x?}") };
    assert!(wanted, "{frame:02x?}");
    assert_eq!(plain.key, FlowKey::new(9, &parsed));
    let (mut again, seed) = (plain, HashSeed::new([1, 2]));
    again.key.zone = 7;
    assert_eq!((again.renew(9, frame, &seed), again), (Some(plain.key.hash(&seed)), plain));
    let told = (usize::from(plain.l3_bytes), plain.ttl, plain.tcp_flags, Plain::ecn(frame));
    assert_eq!(told, (parsed.l3_length(), parsed.ttl, parsed.tcp_flags, parsed.ecn()));
    if plain.ttl > 1 {
        let (mut one, mut other, mut parsed) = (frame.to_vec(), frame.to_vec(), parsed);
        plain.decrement_ttl(&mut one);
        decrement_ttl(&mut other, &mut parsed).unwrap();
        assert_eq!((one, plain.ttl), (other, parsed.ttl));
    }
}

/// 240.0.0.0/4, which is left to the parser.
fn is_reserved(ip: &IpAddress) -> bool {
    ip.as_v4().is_some_and(|bytes| bytes[0] >= 240)
}

#[test]
fn it_agrees_with_the_parser_on_every_fixture_cut_anywhere() {
    let mut plain = 0;
    for hex in fixtures::ALL {
        let frame = bytes(hex);
        plain += usize::from(Plain::new(0, &frame).is_some());
        for length in 0..=frame.len() {
            agrees(&frame[..length]);
        }
        let padded = [&*frame, &[0xaa; 18]].concat();
        agrees(&padded);
    }
    assert!(plain >= 4, "{plain} fixtures are plain");
}

#[test]
fn it_agrees_with_the_parser_whatever_byte_is_another() {
    for hex in fixtures::ALL {
        let frame = bytes(hex);
        for at in 0..frame.len().min(80) {
            for value in 0..=255 {
                let mut changed = frame.clone();
                changed[at] = value;
                agrees(&changed);
            }
        }
    }
}

#[test]
fn it_agrees_with_the_parser_on_random_changes() {
    let mut state = 0x9e37_79b9_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..200_000 {
        let mut frame = bytes(fixtures::ALL[random(fixtures::ALL.len())]);
        for _ in 0..1 + random(4) {
            let at = random(frame.len().min(80));
            frame[at] = random(256) as u8;
        }
        frame.truncate(frame.len() - random(frame.len()).saturating_sub(frame.len() / 2));
        agrees(&frame);
    }
}
