use super::*;
use weir_packet::headers::{Transport, parse};

#[test]
fn it_copies_what_was_asked_for_and_no_more() {
    let counters = Counters::default();
    let (tap, mut reader) = capture(1, Point::Port(3), 2, Duration::from_secs(600), 10);
    let mut taps = Taps::default();
    taps.add(tap);
    taps.port(4, &[&[0; 60]], &counters);
    assert!(reader.peek().is_none());
    for _ in 0..3 {
        taps.port(3, &[&[1; 8], &[2; 52]], &counters);
    }
    for _ in 0..2 {
        let (stamp, kept) = reader.peek().unwrap();
        assert_eq!((stamp.length, kept), (60, &[1, 1, 1, 1, 1, 1, 1, 1, 2, 2][..]));
        reader.pop();
    }
    assert!(reader.peek().is_none());
    taps.remove(1);
    assert!(taps.is_empty());
}

#[test]
fn outer_headers_of_the_underlay_parse() {
    let counters = Counters::default();
    for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let (tap, reader) = capture(1, Point::Underlay, 9, Duration::from_secs(600), 65_535);
        let mut taps = Taps::default();
        taps.add(tap);
        let outer = Outer {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            port: 6081,
            ecn: 2,
        };
        taps.underlay(&outer, [&[7; 20], &[8; 100]], &counters);
        let (stamp, frame) = reader.peek().unwrap();
        assert_eq!(stamp.length as usize, frame.len());
        let parsed = parse(frame).unwrap();
        assert_eq!(parsed.transport, Transport::Udp);
        assert_eq!((parsed.destination_port, parsed.payload_length(), parsed.ecn()), (6081, 120, 2));
    }
}
