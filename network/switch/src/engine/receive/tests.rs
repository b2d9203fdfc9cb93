use super::*;
use crate::testing::{FrameWire, outer_frame};

const PORTS: [u16; 2] = [6081, 4789];

fn frame(sender: &str, port: u16, ecn: u8, payload: &[u8]) -> Vec<u8> {
    outer_frame(sender, "192.0.2.2", port, ecn, payload)
}

fn receive(receive: &mut Receive, wire: &mut FrameWire, counters: &Counters) -> usize {
    let own = IpAddress::from("192.0.2.2".parse::<IpAddr>().unwrap());
    receive.receive_by_wire(wire, WIRE_FRAMES_MAX, (&own, &PORTS), counters)
}

#[test]
fn datagrams_of_a_sender_and_a_size_are_one_message() {
    let (mut room, counters) = (Receive::default(), Counters::default());
    let (a, b) = ("192.0.2.1", "192.0.2.3");
    let frames = [
        frame(a, PORTS[0], 0, &[1; 100]),
        frame(a, PORTS[0], 0, &[2; 100]),
        frame(a, PORTS[0], 0, &[3; 40]),
        // A shorter one was the last.
        frame(a, PORTS[0], 0, &[4; 40]),
        frame(a, PORTS[1], 0, &[5; 40]),
        frame(b, PORTS[1], 0, &[6; 40]),
        frame(b, PORTS[1], 3, &[7; 40]),
        frame(b, 9, 0, &[8; 40]),
        frame(b, PORTS[1], 3, &[9; 41]),
    ];
    let mut wire = FrameWire::default();
    wire.come(frames);
    assert_eq!(receive(&mut room, &mut wire, &counters), 9);
    let mut found = Vec::new();
    while let Some((message, format)) = room.wired(found.len()) {
        let bytes = &room.bytes[message.start..message.start + message.length];
        let firsts: Vec<u8> = bytes.chunks(message.segment_bytes).map(|datagram| datagram[0]).collect();
        found.push((message.sender.to_string(), message.ecn, message.segment_bytes, firsts, format));
    }
    let (geneve, vxlan) = (Encapsulation::Geneve, Encapsulation::Vxlan);
    let wanted = [
        (a, 0, 100, vec![1, 2, 3], geneve),
        (a, 0, 40, vec![4], geneve),
        (a, 0, 40, vec![5], vxlan),
        (b, 0, 40, vec![6], vxlan),
        (b, 3, 40, vec![7], vxlan),
        (b, 3, 41, vec![9], vxlan),
    ];
    let wanted: Vec<_> =
        wanted.into_iter().map(|(s, e, b, f, format)| (s.to_string(), e, b, f, format)).collect();
    assert_eq!(found, wanted);
    assert_eq!(counters.parse_error(PacketError::OuterUnwanted).packets.get(), 1);
    assert_eq!(counters.event(EngineEvent::WireDatagrams).get(), 9);
    assert_eq!(receive(&mut room, &mut wire, &counters), 0);
    assert!(room.wired(0).is_none(), "what was there is not there again");
}

#[test]
fn what_has_no_room_comes_with_the_next_look() {
    let (mut room, counters) = (Receive::default(), Counters::default());
    let large = vec![7; 60_000];
    let mut wire = FrameWire::default();
    wire.come((0..20).map(|_| frame("192.0.2.1", PORTS[0], 0, &large)));
    let mut looks = 0;
    while !wire.is_empty() {
        assert!(receive(&mut room, &mut wire, &counters) > 0);
        looks += 1;
    }
    assert!(looks > 1);
    assert_eq!(counters.event(EngineEvent::WireDatagrams).get(), 20);
    assert_eq!(counters.dropped(EngineDrop::UnderlayTruncated).packets.get(), 0);
}

/// Empty datagrams, and bytes that are no frame, end nowhere and are no message without end.
#[test]
fn nonsense_is_counted() {
    let (mut room, counters) = (Receive::default(), Counters::default());
    let empty = frame("192.0.2.1", PORTS[0], 0, &[]);
    let mut wire = FrameWire::default();
    wire.come([vec![], vec![0xff; 60], empty.clone(), empty]);
    assert_eq!(receive(&mut room, &mut wire, &counters), 4);
    assert_eq!(room.wired(1).map(|(message, _)| (message.length, message.segment_bytes)), Some((0, 1)));
    assert_eq!(counters.parse_error(PacketError::EthernetTruncated).packets.get(), 1);
    assert_eq!(counters.parse_error(PacketError::OuterUnwanted).packets.get(), 1);
}
