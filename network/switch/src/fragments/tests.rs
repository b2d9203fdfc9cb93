use super::*;
use crate::testing::{Packet, echo, ip, tcp, udp};
use proptest::prelude::*;
use std::collections::BTreeSet;

const PORT: Ingress = Ingress::Port(3);

fn underlay(vni: u32, sender: &str) -> Ingress {
    let format = weir_model::resource::Encapsulation::Geneve;
    Ingress::Underlay { sender: ip(sender), vni, token: None, format, half: weir_packet::encap::Half::Unsaid }
}

fn parsed(packet: &Packet) -> Parsed {
    weir_packet::parse(&packet.build()).unwrap()
}

/// A UDP datagram in pieces of 64 bytes.
fn pieces(family: u8, identification: u16, bytes: usize) -> Vec<Parsed> {
    let (a, b) = if family == 4 { ("10.0.0.1", "10.0.0.2") } else { ("fd00::1", "fd00::2") };
    let whole = udp((ip(a), 1000), (ip(b), 53), bytes);
    whole.pieces(identification, 64).iter().map(parsed).collect()
}

fn take(fragments: &mut Fragments, ingress: &Ingress, piece: &Parsed) -> Result<FlowKey, Reason> {
    fragments.take(ingress, 0, piece, 0).map(|followed| followed.key)
}

#[test]
fn later_fragments_get_the_key_of_their_first_one_and_a_whole_datagram_is_forgotten() {
    for family in [4, 6] {
        let mut fragments = Fragments::default();
        let pieces = pieces(family, 9, 300);
        let key = FlowKey::new(0, &pieces[0]);
        assert_eq!((key.source_port, key.destination_port, key.flags), (1000, 53, 0));
        for (number, piece) in pieces.iter().enumerate() {
            assert_eq!(fragments.len(), usize::from(number > 0));
            assert_eq!(fragments.look(&PORT, piece, 0).map(|f| f.key), Ok(key));
            assert_eq!(take(&mut fragments, &PORT, piece), Ok(key));
        }
        assert!(fragments.is_empty() && fragments.held.iter().all(|held| *held == 0));
        assert_eq!(take(&mut fragments, &PORT, &pieces[1]), Err(Reason::FragmentEarly));
    }
}

#[test]
fn echo_and_other_protocols_have_keys_too() {
    let mut fragments = Fragments::default();
    let mut ping = echo(ip("10.0.0.1"), ip("10.0.0.2"), 77, true);
    ping.transport.extend([0; 200]);
    let pieces: Vec<Parsed> = ping.pieces(1, 64).iter().map(parsed).collect();
    let key = take(&mut fragments, &PORT, &pieces[0]).unwrap();
    assert_eq!((key.source_port, key.destination_port), (77, 0x0800));
    assert_eq!(take(&mut fragments, &PORT, &pieces[1]), Ok(key));
    let gre = Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 47, vec![0; 100]).pieces(2, 64);
    assert_eq!(take(&mut fragments, &PORT, &parsed(&gre[0])), take(&mut fragments, &PORT, &parsed(&gre[1])));
}

#[test]
fn datagrams_are_told_apart_by_place_addresses_identification_and_protocol() {
    let mut fragments = Fragments::default();
    let one = pieces(4, 1, 300);
    take(&mut fragments, &underlay(1, "192.0.2.1"), &one[0]).unwrap();
    let early = Err(Reason::FragmentEarly);
    assert_eq!(take(&mut fragments, &underlay(2, "192.0.2.1"), &one[1]), early);
    assert_eq!(take(&mut fragments, &PORT, &one[1]), early);
    assert_eq!(take(&mut fragments, &Ingress::External, &one[1]), early);
    assert_eq!(take(&mut fragments, &underlay(1, "192.0.2.1"), &pieces(4, 2, 300)[1]), early);
    let other = Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 47, vec![0; 300]).pieces(1, 64);
    assert_eq!(take(&mut fragments, &underlay(1, "192.0.2.1"), &parsed(&other[1])), early);
    let back = udp((ip("10.0.0.2"), 1000), (ip("10.0.0.1"), 53), 300).pieces(1, 64);
    assert_eq!(take(&mut fragments, &underlay(1, "192.0.2.1"), &parsed(&back[1])), early);
    // It may go on by another switch: it began by a gateway.
    assert!(take(&mut fragments, &underlay(1, "192.0.2.9"), &one[1]).is_ok());
}

/// Of IPv6, a later fragment may name another protocol than the first: an extension header behind the fragment header.
#[test]
fn the_protocol_of_an_ipv6_fragment_is_that_of_its_first() {
    let mut fragments = Fragments::default();
    let mut datagram = pieces(6, 5, 300);
    let key = take(&mut fragments, &PORT, &datagram[0]).unwrap();
    datagram[1].protocol = 60;
    assert_eq!(take(&mut fragments, &PORT, &datagram[1]), Ok(key));
}

#[test]
fn an_overlap_refuses_the_rest_of_its_datagram() {
    let whole = pieces(4, 1, 300);
    let overlap = Err(Reason::FragmentOverlap);
    let refused = |changed: &dyn Fn(&mut Parsed), before: usize| {
        let mut fragments = Fragments::default();
        for piece in &whole[..before] {
            take(&mut fragments, &PORT, piece).unwrap();
        }
        let mut bad = whole[before];
        changed(&mut bad);
        assert_eq!(fragments.look(&PORT, &bad, 0).map(|f| f.key), overlap);
        assert_eq!(take(&mut fragments, &PORT, &bad), overlap);
        assert_eq!(take(&mut fragments, &PORT, &whole[before]), overlap, "and the rest");
        assert_eq!(fragments.len(), 1);
    };
    refused(&|piece| piece.fragment_offset -= 8, 2);
    refused(&|piece| (piece.fragment_offset, piece.fragment_end) = (8, 16), 2);
    refused(&|piece| *piece = whole[0], 2);
    refused(&|piece| piece.fragment_end = piece.fragment_offset, 2);
    // A last one in front of what has come, a second last one, one behind the end.
    let mut fragments = Fragments::default();
    for at in [0, 2] {
        take(&mut fragments, &PORT, &whole[at]).unwrap();
    }
    let last = Parsed { more_fragments: false, ..whole[1] };
    assert_eq!(take(&mut fragments, &PORT, &last), overlap);
    let mut fragments = Fragments::default();
    for at in [0, 4] {
        take(&mut fragments, &PORT, &whole[at]).unwrap();
    }
    let behind = Parsed { fragment_offset: 640, fragment_end: 648, more_fragments: true, ..whole[1] };
    assert_eq!(take(&mut fragments, &PORT, &behind), overlap);
}

/// RFC 3128: a second first fragment with other ports would be laid over the one that was allowed.
#[test]
fn a_second_first_fragment_is_refused_with_all_that_follows() {
    let mut fragments = Fragments::default();
    let allowed = tcp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 80), 0x10);
    let hidden = tcp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 22), 0x02);
    let first = |packet: Packet| {
        let packet = Packet { transport: [packet.transport.clone(), vec![0; 4]].concat(), ..packet };
        parsed(&packet.fragment(0x2000))
    };
    take(&mut fragments, &PORT, &first(allowed)).unwrap();
    assert_eq!(take(&mut fragments, &PORT, &first(hidden)), Err(Reason::FragmentOverlap));
    let rest = parsed(&Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 6, vec![0; 8]).fragment(3));
    assert_eq!(take(&mut fragments, &PORT, &rest), Err(Reason::FragmentOverlap));
}

#[test]
fn disorder_is_followed_up_to_a_limit() {
    let mut fragments = Fragments::default();
    let whole = pieces(4, 1, 64 * 2 * (PIECES_MAX + 1));
    take(&mut fragments, &PORT, &whole[0]).unwrap();
    for piece in 1..PIECES_MAX {
        take(&mut fragments, &PORT, &whole[2 * piece]).unwrap();
    }
    assert_eq!(take(&mut fragments, &PORT, &whole[2 * PIECES_MAX]), Err(Reason::FragmentScattered));
    assert_eq!(take(&mut fragments, &PORT, &whole[1]), Err(Reason::FragmentScattered));
}

#[test]
fn a_datagram_ends_with_its_time_or_its_first_fragment() {
    let mut fragments = Fragments::default();
    let one = pieces(4, 1, 300);
    fragments.take(&PORT, 0, &one[0], u32::MAX - 10).unwrap();
    let after = |ms: u32| (u32::MAX - 10).wrapping_add(ms);
    assert!(fragments.look(&PORT, &one[1], after(TIMEOUT_MS)).is_ok());
    assert_eq!(fragments.look(&PORT, &one[1], after(TIMEOUT_MS + 1)), Err(Reason::FragmentEarly));
    assert!(fragments.take(&PORT, 0, &one[0], after(TIMEOUT_MS + 1)).is_ok(), "it may begin anew");
    fragments.first_ended(&PORT, &one[0], after(TIMEOUT_MS + 1));
    assert_eq!(fragments.look(&PORT, &one[1], after(TIMEOUT_MS + 1)), Err(Reason::FragmentEarly));
}

#[test]
fn those_behind_a_first_one_that_waits_wait_until_it_goes() {
    let mut fragments = Fragments::default();
    let one = pieces(4, 1, 300);
    fragments.take(&PORT, 0, &one[0], 0).unwrap();
    fragments.first_waits(&PORT, &one[0], 0);
    assert!(fragments.take(&PORT, 0, &one[1], 0).unwrap().waits);
    fragments.first_goes(&PORT, &one[0], 0);
    assert!(!fragments.take(&PORT, 0, &one[2], 0).unwrap().waits);
}

/// Who floods takes from himself: a datagram of somebody else goes on.
#[test]
fn the_heaviest_holder_makes_room() {
    let mut fragments = Fragments::with_limit(64);
    let mine = pieces(4, 1, 300);
    fragments.take(&Ingress::Port(1), 1, &mine[0], 0).unwrap();
    for number in 0..2000 {
        let flood = pieces(4, number, 300);
        assert!(fragments.take(&Ingress::Port(2), 2, &flood[0], u32::from(number)).is_ok());
    }
    assert!(fragments.evicted > 1900 && fragments.len() <= 64);
    assert_eq!(fragments.held.iter().map(|held| usize::from(*held)).sum::<usize>(), fragments.len());
    assert!(fragments.take(&Ingress::Port(1), 1, &mine[1], 2000).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Against a set of bytes: a fragment passes when all before passed and it overlaps none, and a datagram is whole when
    /// every byte of it has come.
    #[test]
    fn pieces_are_those_of_a_set(list in proptest::collection::vec((0_u16..80, 0_u16..6, any::<bool>()), 1..80)) {
        let mut pieces = Pieces::default();
        let (mut seen, mut end) = (BTreeSet::new(), None);
        let template = super::tests::pieces(4, 1, 300)[1];
        for (from, length, more) in list {
            let to = from + length;
            let units: BTreeSet<u16> = (from..to).collect();
            let beyond = end.is_some_and(|end| to > end || !more)
                || (!more && seen.last().is_some_and(|last| *last >= to));
            let fits = length > 0 && !beyond && seen.is_disjoint(&units);
            let piece = Parsed {
                fragment_offset: from * 8, fragment_end: to * 8, more_fragments: more, ..template
            };
            match pieces.add(&piece) {
                Ok(()) => {
                    prop_assert!(fits);
                    seen.extend(&units);
                    if !more { end = Some(to); }
                }
                Err(Reason::FragmentScattered) => {
                    prop_assert!(fits);
                    prop_assert_eq!(usize::from(pieces.count), PIECES_MAX);
                }
                Err(reason) => {
                    prop_assert_eq!(reason, Reason::FragmentOverlap);
                    prop_assert!(!fits);
                }
            }
            let whole = end.is_some_and(|end| seen.len() == usize::from(end));
            prop_assert_eq!(pieces.is_whole(), whole);
            let mut last = None;
            for piece in &pieces.pieces[..usize::from(pieces.count)] {
                prop_assert!(piece.0 < piece.1 && last.is_none_or(|last| last < piece.0));
                last = Some(piece.1);
            }
        }
    }
}

/// Whatever comes in, every later fragment that passes has the ports of a first one that passed.
#[test]
fn any_fragments_are_followed_or_refused() {
    bolero::check!().with_type::<Vec<(u8, u8, u8, u8)>>().with_iterations(2000).for_each(|list| {
        let mut fragments = Fragments::with_limit(16);
        let mut ports = std::collections::HashMap::new();
        let mut now_ms = 0;
        for (number, (who, place, length, passed)) in list.iter().enumerate() {
            let identification = who & 3;
            let (more, offset) = (place & 0x80 != 0, u16::from(place & 0x0f) * 8);
            let from = number as u16 + 1;
            let mut piece = pieces(4, identification.into(), 300)[usize::from(offset > 0)];
            if offset == 0 {
                piece.source_port = from;
            }
            (piece.fragment_offset, piece.more_fragments) = (offset, more || offset == 0);
            piece.fragment_end = offset + u16::from(length % 40);
            now_ms += u32::from(*passed) * 10;
            let looked = fragments.look(&PORT, &piece, now_ms);
            let taken = fragments.take(&PORT, usize::from(who & 1), &piece, now_ms);
            assert_eq!(looked, taken);
            if let Ok(followed) = taken {
                if offset == 0 {
                    ports.insert(identification, from);
                }
                assert_eq!(ports.get(&identification), Some(&followed.key.source_port));
            }
            assert_eq!(fragments.held.iter().map(|held| usize::from(*held)).sum::<usize>(), fragments.len());
        }
    });
}
