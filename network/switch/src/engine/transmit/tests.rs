use super::*;
use crate::engine::wire::BySockets;
use proptest::prelude::*;
use std::net::UdpSocket;

fn tunnel(receiver: &str) -> Tunnel {
    Tunnel::new(receiver.parse().unwrap(), 7, Encapsulation::Geneve, None).unwrap()
}

/// A sender of one socket, to a receiver that gets the datagrams one by one.
fn pair() -> (Transmit, UdpSocket, Arc<Counters>) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    sys::set_option(receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 8 << 20).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let sender = || vec![OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap())];
    let counters = Arc::new(Counters::default());
    let transmit = Transmit::new(false, (sender(), port), (sender(), port), Arc::clone(&counters));
    (transmit, receiver, counters)
}

/// Sends datagrams that lie one behind the other.
fn send_run(transmit: &mut Transmit, tunnel: &Tunnel, datagrams: &[u8], segment_bytes: usize) {
    // SAFETY: the callers keep the datagrams until they have flushed.
    #[allow(unsafe_code)]
    unsafe {
        transmit.append_run(tunnel, 0, 0, datagrams, segment_bytes);
    }
}

fn send(transmit: &mut Transmit, tunnel: &Tunnel, header: &[u8], payload: &[u8]) {
    transmit.header_room(header.len()).copy_from_slice(header);
    // SAFETY: the callers keep the payloads until they have flushed.
    #[allow(unsafe_code)]
    unsafe {
        transmit.append(tunnel, 0, 0, header.len(), payload);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Whatever the sizes, what arrives is what was sent, in order and in its pieces.
    #[test]
    fn datagrams_arrive_whole_and_in_order(
        sizes in proptest::collection::vec((1_usize..60, prop_oneof![Just(100_usize), 0..1400_usize]), 1..150),
    ) {
        let (mut transmit, receiver, counters) = pair();
        let tunnel = tunnel("127.0.0.1");
        let frames: Vec<(Vec<u8>, Vec<u8>)> = sizes
            .iter()
            .enumerate()
            .map(|(number, (header, payload))| (vec![number as u8; *header], vec![!number as u8; *payload]))
            .collect();
        for (header, payload) in &frames {
            send(&mut transmit, &tunnel, header, payload);
        }
        transmit.flush();
        prop_assert!(transmit.is_empty());
        let mut bytes = [0; 2000];
        for (header, payload) in &frames {
            let length = receiver.recv(&mut bytes).unwrap();
            prop_assert_eq!(&bytes[..length], &[&header[..], &payload[..]].concat()[..]);
        }
        prop_assert_eq!(counters.event(EngineEvent::UnderlaySegments).get(), frames.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Runs and single datagrams, mixed, arrive in order and in their pieces, sent together or one by one.
    #[test]
    fn runs_arrive_whole_and_in_order(
        runs in proptest::collection::vec((0_usize..3000, prop_oneof![Just(100_usize), 1..1400_usize]), 1..30),
        together in any::<bool>(),
    ) {
        let (mut transmit, receiver, counters) = pair();
        let tunnel = tunnel("127.0.0.1");
        let byte = |run: usize, at: usize| (run * 31 + at) as u8;
        let runs: Vec<(Vec<u8>, usize)> = runs
            .iter()
            .enumerate()
            .map(|(run, (length, size))| ((0..*length).map(|at| byte(run, at)).collect(), *size))
            .collect();
        for (bytes, size) in &runs {
            send_run(&mut transmit, &tunnel, bytes, *size);
            send(&mut transmit, &tunnel, &[1; 20], &bytes[..bytes.len().min(80)]);
        }
        if together {
            transmit.flush();
        } else {
            // What has not left by itself goes one by one.
            let fd = transmit.sockets[0].fds[0].as_fd();
            for unit in &transmit.units[..transmit.units_used] {
                send_singly(fd, unit, false, &counters);
            }
        }
        let mut got = [0; 2000];
        for (bytes, size) in &runs {
            for datagram in bytes.chunks(*size) {
                let length = receiver.recv(&mut got).unwrap();
                prop_assert_eq!(&got[..length], datagram);
            }
            prop_assert_eq!(receiver.recv(&mut got).unwrap(), 20 + bytes.len().min(80));
        }
    }
}

/// A run longer than a message holds makes several, each as full as it can be.
#[test]
fn a_long_run_is_several_messages() {
    let (mut transmit, receiver, counters) = pair();
    let here = tunnel("127.0.0.1");
    let (long, large) = (vec![5; 2 * SEGMENTS_MAX * 100 + 50], vec![6; 70 * 1400]);
    send_run(&mut transmit, &here, &long, 100);
    send_run(&mut transmit, &here, &large, 1400);
    transmit.flush();
    assert_eq!(counters.event(EngineEvent::UnderlaySends).get(), 3 + 2);
    let total = (0..2 * SEGMENTS_MAX + 1 + 70).map(|_| receiver.recv(&mut [0; 2000]).unwrap()).sum::<usize>();
    assert_eq!(total, long.len() + large.len());
    send_run(&mut transmit, &tunnel("2001:db8::1"), &long, 100);
    send_run(&mut transmit, &here, &vec![0; 70_000], 70_000);
    assert_eq!(counters.dropped(EngineDrop::UnderlayFamily).packets.get(), 2 * SEGMENTS_MAX as u64 + 1);
    assert_eq!(counters.dropped(EngineDrop::UnderlayTooBig).packets.get(), 1);
}

#[test]
fn equal_frames_share_a_message() {
    let (mut transmit, receiver, counters) = pair();
    let (here, payload) = (tunnel("127.0.0.1"), [5; 200]);
    for _ in 0..SEGMENTS_MAX * 2 {
        send(&mut transmit, &here, &[1; 20], &payload);
    }
    transmit.flush();
    assert_eq!(counters.event(EngineEvent::UnderlaySends).get(), 2);
    for _ in 0..SEGMENTS_MAX * 2 {
        assert_eq!(receiver.recv(&mut [0; 2000]).unwrap(), 220);
    }
}

#[test]
fn what_cannot_be_sent_is_counted_by_its_reason() {
    let (mut transmit, _receiver, counters) = pair();
    let (payload, huge) = ([5; 200], vec![0; 70_000]);
    send(&mut transmit, &tunnel("2001:db8::1"), &[1; 20], &payload);
    send(&mut transmit, &tunnel("127.0.0.1"), &[1; 20], &huge);
    transmit.flush();
    assert_eq!(counters.dropped(EngineDrop::UnderlayFamily).packets.get(), 1);
    assert_eq!(counters.dropped(EngineDrop::UnderlayTooBig).packets.get(), 1);
    assert_eq!(counters.event(EngineEvent::UnderlaySegments).get(), 0);
}

#[test]
fn one_by_one_is_the_same() {
    let (mut transmit, receiver, counters) = pair();
    let (here, payload, last) = (tunnel("127.0.0.1"), [5; 200], [6; 30]);
    for _ in 0..3 {
        send(&mut transmit, &here, &[1; 20], &payload);
    }
    send(&mut transmit, &here, &[2; 20], &last);
    let fd = transmit.sockets[0].fds[0].as_fd();
    send_singly(fd, &transmit.units[0], false, &counters);
    let mut bytes = [0; 2000];
    for _ in 0..3 {
        assert_eq!(receiver.recv(&mut bytes).unwrap(), 220);
        assert_eq!((bytes[0], bytes[219]), (1, 5));
    }
    assert_eq!(receiver.recv(&mut bytes).unwrap(), 50);
    assert_eq!((bytes[0], bytes[49]), (2, 6));
}

/// A wire that keeps what it is given, as much as it has room for; what was shown of it is seen.
#[derive(Clone, Default)]
struct Kept(Arc<std::sync::Mutex<(Vec<Vec<u8>>, usize)>>);

const KEPT_MAX: usize = 100;

impl Wire for Kept {
    fn put(&mut self, pieces: &[&[u8]]) -> bool {
        let kept = &mut self.0.lock().unwrap().0;
        let has_room = kept.len() < KEPT_MAX;
        if has_room {
            kept.push(pieces.concat());
        }
        has_room
    }

    fn show(&mut self) -> io::Result<()> {
        let (kept, shown) = &mut *self.0.lock().unwrap();
        *shown = kept.len();
        Ok(())
    }

    fn take(&mut self, _: usize, _: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        0
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn settle(&mut self) -> io::Result<()> {
        self.show()
    }
}

/// A sender with a wire whose way to the receiver has this MTU; what the wire has kept, and the receiver that gets what goes by sockets.
fn with_wire(mtu: usize) -> (Transmit, Kept, UdpSocket, Arc<Counters>) {
    use crate::engine::wire::{Hop, Hops, Receiver, SharedHops};
    let (mut transmit, receiver, counters) = pair();
    let (here, port) = ("127.0.0.1".parse().unwrap(), receiver.local_addr().unwrap().port());
    let hop = Hop::new(([2; 6], [4; 6]), here, here, 64, [port, port], mtu).unwrap();
    let way = Receiver { way: Ok(Arc::new(hop)), used: Arc::default() };
    let hops: SharedHops = Arc::new(arc_swap::ArcSwap::from_pointee(Hops::new(1, [(here, way)])));
    let kept = Kept::default();
    let wires = Wires::new(vec![Box::new(kept.clone())], hops, None);
    assert!(transmit.set_wires(Some(Box::new(wires))).unwrap().is_none());
    (transmit, kept, receiver, counters)
}

/// What is in the frames of a wire that was shown, with their UDP source ports.
fn shown(kept: &Kept) -> Vec<(Vec<u8>, u16)> {
    let (kept, shown) = &*kept.0.lock().unwrap();
    assert_eq!(kept.len(), *shown, "all that was put was shown");
    let datagram = |frame: &Vec<u8>| {
        let parsed = weir_packet::parse(frame).unwrap();
        assert_eq!(weir_packet::checksum::verify(frame, &parsed), Ok(()));
        (frame[parsed.payload_offset..parsed.payload_end].to_vec(), parsed.source_port)
    };
    kept.iter().map(datagram).collect()
}

#[test]
fn a_wire_gets_single_datagrams_in_order_and_a_socket_what_was_cut() {
    let (mut transmit, kept, receiver, counters) = with_wire(1500);
    let tunnel = tunnel("127.0.0.1");
    let run: Vec<u8> = (0..=255).cycle().take(1050).collect();
    let single: Vec<Vec<u8>> = (0..50_u8).map(|number| vec![number; 60 + usize::from(number % 3)]).collect();
    for payload in &single[..25] {
        send(&mut transmit, &tunnel, &[9; 16], payload);
    }
    send_run(&mut transmit, &tunnel, &run, 100);
    for payload in &single[25..] {
        send(&mut transmit, &tunnel, &[9; 16], payload);
    }
    transmit.flush();
    assert!(transmit.is_empty());
    let wanted: Vec<Vec<u8>> = single.iter().map(|payload| [&[9; 16], &payload[..]].concat()).collect();
    let got = shown(&kept);
    assert_eq!(
        got.iter().map(|(datagram, _)| datagram).collect::<Vec<_>>(),
        wanted.iter().collect::<Vec<_>>()
    );
    let mut room = [0; 2000];
    for datagram in run.chunks(100) {
        let (length, from) = receiver.recv_from(&mut room).unwrap();
        assert_eq!(&room[..length], datagram);
        assert_eq!(from.port(), got[0].1, "a flow has one source port, whichever way it goes");
    }
    assert_eq!(counters.event(EngineEvent::WireSegments).get(), 50);
    assert_eq!(counters.event(EngineEvent::UnderlaySegments).get(), 50 + 11);
    assert_eq!(counters.by_sockets(BySockets::Cut).get(), 11);
}

#[test]
fn what_a_wire_has_no_room_for_and_what_is_too_large_goes_by_the_socket() {
    let (mut transmit, kept, receiver, counters) = with_wire(228);
    let tunnel = tunnel("127.0.0.1");
    for number in 0..KEPT_MAX as u8 + 30 {
        send(&mut transmit, &tunnel, &[number; 20], &[5; 180]);
    }
    send(&mut transmit, &tunnel, &[7; 20], &[5; 181]);
    transmit.flush();
    assert_eq!(shown(&kept).len(), KEPT_MAX);
    let mut room = [0; 2000];
    for number in KEPT_MAX..KEPT_MAX + 30 {
        assert_eq!(receiver.recv(&mut room).unwrap(), 200);
        assert_eq!(usize::from(room[0]), number, "in order");
    }
    assert_eq!((receiver.recv(&mut room).unwrap(), room[0]), (201, 7));
    assert_eq!(counters.by_sockets(BySockets::Full).get(), 30);
    assert_eq!(counters.by_sockets(BySockets::TooLarge).get(), 1);
    assert_eq!(counters.event(EngineEvent::UnderlaySegments).get(), KEPT_MAX as u64 + 31);
}

#[test]
fn without_a_next_hop_or_at_rest_everything_goes_by_the_socket() {
    let (mut transmit, kept, receiver, counters) = with_wire(1500);
    send(&mut transmit, &tunnel("127.0.0.2"), &[1; 20], &[5; 60]);
    transmit.flush();
    assert_eq!(counters.by_sockets(BySockets::Unknown).get(), 1);
    transmit.wires().unwrap().rest(true);
    send(&mut transmit, &tunnel("127.0.0.1"), &[2; 20], &[5; 60]);
    transmit.flush();
    assert_eq!(counters.by_sockets(BySockets::Rests).get(), 1);
    assert_eq!(shown(&kept).len(), 0);
    assert_eq!(receiver.recv(&mut [0; 2000]).unwrap(), 80);
}

/// A packet whose inner checksum is partial has an outer one, also over IPv4: nothing else protects it.
#[test]
fn a_partial_inner_checksum_has_an_outer_one() {
    use weir_packet::encap::InnerChecksum;
    let (mut transmit, kept, _receiver, _) = with_wire(1500);
    let tunnel = tunnel("127.0.0.1");
    for checksum in [InnerChecksum::Accepts, InnerChecksum::Partial] {
        send(&mut transmit, &tunnel, &tunnel.header(checksum), &[5; 60]);
    }
    transmit.flush();
    let fields: Vec<[u8; 2]> = kept.0.lock().unwrap().0.iter().map(|frame| [frame[40], frame[41]]).collect();
    assert_eq!(fields[0], [0, 0]);
    assert_ne!(fields[1], [0, 0]);
    shown(&kept);
}
