use super::*;
use crate::fixtures::{self, bytes};
use crate::parse;
use std::collections::HashSet;

fn key(hex: &str) -> FlowKey {
    FlowKey::new(42, &parse(&bytes(hex)).unwrap())
}

#[test]
fn is_compact() {
    assert_eq!(size_of::<FlowKey>(), 44);
}

#[test]
fn an_answer_has_the_reversed_key() {
    assert_eq!(key(fixtures::TCP_SYN).reverse(), key(fixtures::TCP_SYN_ACK));
    assert_eq!(key(fixtures::ICMP_ECHO_REQUEST).reverse(), key(fixtures::ICMP_ECHO_REPLY));
    for hex in fixtures::ALL {
        assert_eq!(key(hex).reverse().reverse(), key(hex));
    }
    let echo = key(fixtures::ICMP_ECHO_REQUEST);
    assert_eq!((echo.source_port, echo.destination_port), (1, 0x0800));
}

#[test]
fn other_frames_are_keyed_by_ethernet() {
    let arp = bytes(fixtures::VXLAN_ARP_REQUEST)[50..].to_vec();
    let key = FlowKey::new(42, &parse(&arp).unwrap());
    assert!(key.is_ethernet());
    assert_eq!(key.destination_port, 0x0806);
    assert_eq!(key.destination.0[..6], [0xff; 6]);
    assert_eq!(key.reverse().destination.0[..6], [2, 0, 0, 0, 1, 1]);
}

#[test]
fn every_field_moves_the_hash_and_the_seed_does() {
    let seed = HashSeed::new([1, 2]);
    let base = key(fixtures::UDP_V4);
    let mut hashes = HashSet::from([
        base.hash(&seed),
        base.hash(&HashSeed::new([1, 3])),
        base.hash(&HashSeed::new([2, 2])),
    ]);
    let mut changed = |change: fn(&mut FlowKey)| {
        let mut key = base;
        change(&mut key);
        hashes.insert(key.hash(&seed))
    };
    assert!(changed(|key| key.source.0[15] ^= 1));
    assert!(changed(|key| key.source.0[0] ^= 1));
    assert!(changed(|key| key.destination.0[15] ^= 1));
    assert!(changed(|key| key.destination.0[0] ^= 1));
    assert!(changed(|key| key.zone ^= 1));
    assert!(changed(|key| key.source_port ^= 1));
    assert!(changed(|key| key.destination_port ^= 1));
    assert!(changed(|key| key.vlan ^= 1));
    assert!(changed(|key| key.protocol ^= 1));
    assert!(changed(|key| key.flags ^= 1));
    assert_eq!(hashes.len(), 13);
    assert_ne!(base.hash(&seed), base.reverse().hash(&seed));
}

#[test]
fn keys_are_equal_only_in_all_fields() {
    let base = key(fixtures::UDP_V4);
    let changes: [fn(&mut FlowKey); 10] = [
        |key| key.source.0[15] ^= 1,
        |key| key.source.0[0] ^= 0x80,
        |key| key.destination.0[15] ^= 1,
        |key| key.destination.0[0] ^= 0x80,
        |key| key.zone ^= 1 << 31,
        |key| key.source_port ^= 0x8000,
        |key| key.destination_port ^= 0x8000,
        |key| key.vlan ^= 0x8000,
        |key| key.protocol ^= 0x80,
        |key| key.flags ^= 0x80,
    ];
    for change in changes {
        let mut other = base;
        assert_eq!(other, base);
        change(&mut other);
        assert_ne!(other, base);
        change(&mut other);
        assert_eq!(HashSet::from([base, other]).len(), 1);
    }
}

#[test]
fn hashes_spread_over_low_and_high_bits() {
    let seed = HashSeed::new([0x1234_5678, 0x9abc_def0]);
    let mut low = vec![0_u32; 256];
    let mut high = vec![0_u32; 256];
    let mut key = key(fixtures::UDP_V4);
    for flow in 0..65_536_u32 {
        key.source.0[14..].copy_from_slice(&((flow >> 8) as u16).to_be_bytes());
        key.source_port = (flow & 0xff) as u16;
        let hash = key.hash(&seed);
        low[(hash & 0xff) as usize] += 1;
        high[(hash >> 56) as usize] += 1;
    }
    // 256 expected in each; 16 is the standard deviation, so 6 of them.
    for count in low.into_iter().chain(high) {
        assert!((160..=352).contains(&count), "{count}");
    }
}
