#![allow(clippy::unwrap_used)]

use super::*;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::time::Duration;

fn arp(source: u8, operation: u8, target: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, source, 8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend([2, 0, 0, 0, 0, source, 10, 0, 0, source]);
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
    frame
}

fn udp(source: u8, target: u8, port: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, source, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, source, 10, 0, 0, target]);
    frame.extend([0, port, 0, 53, 0, 8, 0, 0]);
    frame
}

fn file(link: DataLink, frames: &[Vec<u8>]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = PcapHeader { datalink: link, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(file.reopen().unwrap(), header).unwrap();
    for (at, frame) in frames.iter().enumerate() {
        let timestamp = Duration::from_millis(1_000 + at as u64);
        let packet = PcapPacket { timestamp, orig_len: frame.len() as u32, data: frame.into() };
        writer.write_packet(&packet).unwrap();
    }
    file
}

#[test]
fn the_first_frame_of_each_flow_and_each_arp_is_reported() {
    let frames =
        [arp(1, 1, 2), arp(2, 2, 1), udp(1, 2, 9), udp(1, 2, 9), udp(2, 1, 9), udp(1, 2, 10), vec![0; 9]];
    let trace = Trace::read(file(DataLink::ETHERNET, &frames).path()).unwrap();
    assert_eq!((trace.frames, trace.unreadable), (7, 1));
    let said: Vec<_> = trace
        .packets
        .iter()
        .map(|heard| (heard.packet.port, heard.packet.now_ms, heard.asks, heard.packet.addresses.unwrap().1))
        .collect();
    let ip = |last| Ipv4Addr::new(10, 0, 0, last);
    let wanted = [
        (0, 1_000, true, ip(2)),
        (1, 1_001, false, ip(1)),
        (0, 1_002, false, ip(2)),
        (1, 1_004, false, ip(1)),
        (0, 1_005, false, ip(2)),
    ];
    assert_eq!(said, wanted);
    assert!(!trace.packets[0].packet.target.is_unicast() && trace.packets[1].asks == trace.packets[2].asks);
}

#[test]
fn runs_do_not_know_each_other() {
    let trace = Trace::read(file(DataLink::ETHERNET, &[udp(1, 2, 9)]).path()).unwrap();
    let of: HashSet<_> = (0..64).map(|run| of_run(run, &trace.packets[0].packet)).map(|p| p.source).collect();
    assert_eq!(of.len(), 64);
    assert!(of.iter().all(|mac| mac.is_unicast()));
}

#[test]
fn a_file_that_is_no_trace_of_ethernet_is_refused() {
    let said = Trace::read(file(DataLink::RAW, &[]).path()).unwrap_err().to_string();
    assert!(said.contains("Ethernet is wanted"), "{said}");
    let text = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(text.path(), b"no pcap at all, but some text").unwrap();
    assert!(Trace::read(text.path()).is_err());
    assert!(Trace::read(Path::new("/nowhere/at/all.pcap")).is_err());
}

/// Whatever a frame is, it is reported, not reported, or counted as unreadable.
#[test]
fn any_frame_is_taken() {
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        let mut seen = Seen::default();
        seen.frame(1, bytes);
        seen.frame(2, bytes);
        let Seen { trace, ports, .. } = seen;
        assert_eq!(trace.frames, 2);
        assert!(trace.packets.len() + trace.unreadable <= 2 && ports.len() <= 1);
    });
}
