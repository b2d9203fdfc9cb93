#![allow(clippy::unwrap_used)]

use super::*;
use weir_base::codec::{decode, encode};

fn packet(why: Why) -> PacketIn {
    PacketIn {
        endpoint: Label::new("a").unwrap(),
        why,
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        source: Some("10.0.0.1".parse().unwrap()),
        destination: Some("10.0.0.2".parse().unwrap()),
        protocol: 6,
        ports: (40_000, 80),
    }
}

fn report(packets: Vec<PacketIn>) -> PacketInReport {
    PacketInReport { actuator: Label::new("h1").unwrap(), vni: Vni(5), packets }
}

#[test]
fn a_report_says_what_is_wrong_with_it() {
    assert_eq!(report(vec![packet(Why::Unknown), packet(Why::Heard), packet(Why::Sought)]).problem(), None);
    let problem = |packets| report(packets).problem().unwrap();
    assert!(problem(Vec::new()).contains("0 packets, 1 to 64 are allowed"));
    assert!(problem(vec![packet(Why::Heard); PACKETS_IN_MAX + 1]).contains("65 packets"));
    let group = PacketIn { source_mac: MacAddr::BROADCAST, ..packet(Why::Heard) };
    assert!(problem(vec![group]).contains("no station's"));
    let nowhere = PacketIn { destination: None, ..packet(Why::Unknown) };
    assert!(problem(vec![nowhere]).contains("without naming one"));
    let nobody = PacketIn { source: None, ..packet(Why::Sought) };
    assert!(problem(vec![nobody]).contains("under which address"));
}

/// Whatever comes, reading a report ends without harm; and what was read is written as it was.
#[test]
fn any_bytes_are_a_report_or_refused() {
    bolero::check!().for_each(|bytes| {
        if let Ok(report) = decode::<PacketInReport>(bytes) {
            let _ = report.problem();
            assert_eq!(decode::<PacketInReport>(&encode(&report)).unwrap(), report);
        }
    });
}
