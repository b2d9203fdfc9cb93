use super::*;
use crate::flow::Ingress;
use crate::testing::{ip, udp};
use weir_model::Label;
use weir_model::entry::Vni;
use weir_model::resource::Encapsulation;
use weir_packet::{FlowKey, Parsed};

fn pieces(identification: u16) -> Vec<Parsed> {
    let whole = udp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 53), 300);
    whole.pieces(identification, 64).iter().map(|piece| weir_packet::parse(&piece.build()).unwrap()).collect()
}

fn key() -> Key {
    Key::Port { vni: Vni(7), endpoint: Label::new("a").unwrap() }
}

#[test]
fn the_rest_of_a_datagram_finds_its_first_fragment_in_the_other_process() {
    let underlay = Ingress::Underlay {
        sender: ip("192.0.2.9"),
        vni: 7,
        token: None,
        format: Encapsulation::Geneve,
        half: weir_packet::encap::Half::Unsaid,
    };
    let mut old = Fragments::default();
    let places = [(Ingress::Port(3), 3), (Ingress::External, EXTERNAL), (underlay, PORTS_MAX + 9)];
    for (number, (ingress, class)) in places.iter().enumerate() {
        for piece in &pieces(number as u16)[..3] {
            old.take(ingress, *class, piece, 1000).unwrap();
        }
    }
    // Twice the same piece: the rest is refused.
    let spoilt = pieces(9);
    old.take(&underlay, PORTS_MAX + 9, &spoilt[0], 1000).unwrap();
    assert_eq!(old.take(&underlay, PORTS_MAX + 9, &spoilt[0], 1000), Err(Reason::FragmentOverlap));
    assert!(old.carried(9000, |_| Some(key())).is_empty(), "too old");
    assert_eq!(old.carried(1001, |_| None).len(), 3, "its port is gone");
    let carried = old.carried(1001, |port| (port == 3).then(key));
    assert_eq!(carried.len(), 4);

    let mut new = Fragments::default();
    // The port has another number there.
    assert_eq!(new.carry(&carried, 1001, |of| (*of == key()).then_some(5)), 0);
    assert_eq!(new.carry(&carried, 1001, |_| Some(5)), 4, "it has them");
    let flow = FlowKey::new(0, &pieces(0)[0]);
    for (number, ingress) in [Ingress::Port(5), Ingress::External, underlay].iter().enumerate() {
        for piece in &pieces(number as u16)[3..] {
            assert_eq!(new.take(ingress, 5, piece, 1002).map(|followed| followed.key), Ok(flow));
        }
    }
    assert_eq!(new.take(&underlay, 5, &spoilt[1], 1002), Err(Reason::FragmentOverlap));
    assert_eq!(new.len(), 1, "those that are whole are forgotten");
}

#[test]
fn what_makes_no_sense_is_left_out() {
    let mut old = Fragments::default();
    old.take(&Ingress::External, EXTERNAL, &pieces(1)[0], 0).unwrap();
    let right = old.carried(0, |_| None).remove(0);
    let mut wrong = vec![right.clone(); 4];
    wrong[0].pieces = vec![(0, 8); PIECES_MAX + 1];
    wrong[1].pieces = vec![(64, 0)];
    wrong[2].pieces = vec![(0, 64), (32, 96)];
    wrong[3].place = CarriedPlace::Network(1, u16::MAX);
    let mut new = Fragments::default();
    assert_eq!(new.carry(&wrong, 0, |_| None), 4);
    assert!(new.is_empty());
    assert_eq!(new.carry(&[right], 0, |_| None), 0);
}
