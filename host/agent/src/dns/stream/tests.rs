use super::*;
use crate::frame::parse_tcp;
use crate::testing::{MAC, VNI, context};
use proptest::prelude::*;
use weir_base::world::Rng;

const V4: (&str, &str) = ("10.0.0.5", "10.0.0.1");
const V6: (&str, &str) = ("fd00:a::5", "fd00:a::1");

/// An endpoint with a TCP of its own, on a link that may lose and double frames.
struct Endpoint {
    server: IpAddr,
    device: Queue,
    interface: Interface,
    sockets: SocketSet<'static>,
    streams: Streams,
    metrics: Metrics,
    asked: Vec<(StreamId, Vec<u8>)>,
    now_ms: u64,
    rng: Rng,
    loss: u64,
    next_port: u16,
}

impl Endpoint {
    fn new((client, server): (&str, &str), loss: u64, seed: u64) -> Endpoint {
        let mut device = Queue::new(1400);
        let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, at(0));
        let own: IpAddr = client.parse().unwrap();
        interface.update_ip_addrs(|all| all.push(IpCidr::new(IpAddress::from(own), 0)).unwrap());
        Endpoint {
            server: server.parse().unwrap(),
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            streams: Streams::default(),
            metrics: Metrics::default(),
            asked: Vec::new(),
            now_ms: 0,
            rng: Rng::new(seed),
            loss,
            next_port: 40_000,
        }
    }

    fn connect(&mut self) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; 16_384]);
        let mut socket = Socket::new(buffer(), buffer());
        self.next_port += 1;
        let to = (IpAddress::from(self.server), PORT);
        socket.connect(self.interface.context(), to, self.next_port).unwrap();
        self.sockets.add(socket)
    }

    fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn absorb(&mut self, output: Output) {
        self.asked.extend(output.queries);
        for frame in output.frames {
            let segment = parse_tcp(&frame).unwrap();
            assert_eq!((segment.source, segment.source_mac), (self.server, VNI.router_mac()));
            assert!(segment.packet.len() <= 1400);
            if !self.rng.chance(self.loss, 100) {
                self.device.receive(segment.packet.to_vec());
            }
        }
    }

    /// Both sides talk until neither has anything to say.
    fn settle(&mut self) {
        loop {
            self.interface.poll(at(self.now_ms), &mut self.device, &mut self.sockets);
            let sent = self.device.take_sent();
            if sent.is_empty() && self.device.is_empty() {
                return;
            }
            for packet in sent {
                let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
                let frame = [&VNI.router_mac().0[..], &MAC.0, &kind, &packet].concat();
                let copies = match self.rng.below(100) {
                    chance if chance < self.loss => 0,
                    chance if chance < 2 * self.loss => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let segment = parse_tcp(&frame).unwrap();
                    let output = self.streams.take(&self.metrics, &context(), &segment, self.now_ms);
                    self.absorb(output);
                }
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(TICK_MS) {
            self.now_ms += TICK_MS;
            for (_, output) in self.streams.tick(&self.metrics, self.now_ms) {
                self.absorb(output);
            }
            self.settle();
        }
    }

    fn answer(&mut self, to: &StreamId, bytes: &[u8]) {
        let output = self.streams.answer(&self.metrics, to, Some(bytes), self.now_ms);
        self.absorb(output);
        self.settle();
    }

    fn say(&mut self, handle: SocketHandle, bytes: &[u8]) {
        assert_eq!(self.socket(handle).send_slice(bytes).unwrap(), bytes.len());
        self.settle();
    }

    fn heard(&mut self, handle: SocketHandle) -> Vec<u8> {
        let mut all = Vec::new();
        let socket = self.socket(handle);
        while socket.can_recv() {
            let more = socket.recv(|bytes| (bytes.len(), bytes.to_vec())).unwrap();
            all.extend(more);
        }
        all
    }
}

fn query(text: &str) -> Vec<u8> {
    framing::frame(text.as_bytes()).unwrap()
}

#[test]
fn queries_on_one_connection_are_answered_in_any_order_over_both_families() {
    for addresses in [V4, V6] {
        let mut endpoint = Endpoint::new(addresses, 0, 1);
        let stream = endpoint.connect();
        endpoint.settle();
        endpoint.say(stream, &[query("one"), query("two")].concat());
        endpoint.say(stream, &query("three")[..3]);
        assert_eq!(endpoint.asked.len(), 2);
        endpoint.say(stream, &query("three")[3..]);
        let asked = std::mem::take(&mut endpoint.asked);
        let texts: Vec<&[u8]> = asked.iter().map(|(_, text)| &text[..]).collect();
        assert_eq!(texts, [b"one".as_slice(), b"two", b"three"]);
        for (id, text) in asked.iter().rev() {
            endpoint.answer(id, &[b"re: ", &text[..]].concat());
        }
        let wanted = ["re: three", "re: two", "re: one"].map(query).concat();
        assert_eq!(endpoint.heard(stream), wanted);
        // The endpoint says good-bye, and nothing of it is left.
        endpoint.socket(stream).close();
        endpoint.settle();
        assert_eq!((endpoint.streams.connections(), endpoint.streams.stacks.len()), (0, 0));
        assert_eq!(endpoint.metrics.dns_tcp_queries.get(), 3);
    }
}

#[test]
fn a_large_answer_passes_whole_and_a_late_one_for_nobody_is_dropped() {
    let mut endpoint = Endpoint::new(V4, 0, 1);
    let stream = endpoint.connect();
    endpoint.settle();
    endpoint.say(stream, &query("large"));
    let large: Vec<u8> = (0..u16::MAX).map(|n| n as u8).collect();
    let (id, _) = endpoint.asked.remove(0);
    endpoint.answer(&id, &large);
    let mut all = endpoint.heard(stream);
    while all.len() < large.len() + 2 {
        endpoint.pass(TICK_MS);
        all.extend(endpoint.heard(stream));
        assert!(endpoint.now_ms < IDLE_MS, "{} bytes came", all.len());
    }
    assert_eq!(all, framing::frame(&large).unwrap());
    endpoint.say(stream, &query("again"));
    let (id, _) = endpoint.asked.remove(0);
    endpoint.socket(stream).abort();
    endpoint.settle();
    endpoint.answer(&id, b"nobody hears this");
    assert_eq!(endpoint.streams.connections(), 0);
}

#[test]
fn connections_and_open_queries_are_bounded() {
    let mut endpoint = Endpoint::new(V4, 0, 1);
    let all: Vec<SocketHandle> = (0..CONNECTIONS_PER_STACK_MAX + 3).map(|_| endpoint.connect()).collect();
    endpoint.settle();
    let open = |endpoint: &mut Endpoint| {
        all.iter().filter(|handle| endpoint.socket(**handle).state() == State::Established).count()
    };
    assert_eq!(open(&mut endpoint), CONNECTIONS_PER_STACK_MAX);
    assert_eq!(endpoint.metrics.dns_tcp_refused.get(), 3);
    let first = all.iter().copied().find(|one| endpoint.socket(*one).may_send()).unwrap();
    endpoint.say(first, &query("q").repeat(PIPELINE_MAX + 5));
    assert_eq!(endpoint.asked.len(), PIPELINE_MAX);
    let (id, _) = endpoint.asked[0].clone();
    endpoint.answer(&id, b"a");
    assert_eq!(endpoint.asked.len(), PIPELINE_MAX + 1, "an answer makes room for the next");
    // A place that is given back can be taken.
    endpoint.socket(first).abort();
    endpoint.settle();
    endpoint.connect();
    endpoint.settle();
    assert_eq!(endpoint.streams.connections(), CONNECTIONS_PER_STACK_MAX);
}

#[test]
fn connections_that_say_nothing_shut_nobody_out() {
    let mut endpoint = Endpoint::new(V4, 0, 1);
    let idle: Vec<SocketHandle> = (0..CONNECTIONS_PER_STACK_MAX).map(|_| endpoint.connect()).collect();
    endpoint.settle();
    endpoint.pass(YIELDS_MS);
    // One that waits for an answer keeps its place.
    endpoint.say(idle[0], &query("slow"));
    for number in 0..3 {
        let late = endpoint.connect();
        endpoint.settle();
        assert_eq!(endpoint.socket(late).state(), State::Established, "number {number}");
        endpoint.say(late, &query("late"));
        assert_eq!(endpoint.asked.last().unwrap().1, b"late");
    }
    assert_eq!(endpoint.streams.connections(), CONNECTIONS_PER_STACK_MAX);
    assert_eq!(endpoint.socket(idle[0]).state(), State::Established);
    let closed = idle.iter().filter(|one| endpoint.sockets.get::<Socket<'_>>(**one).state() == State::Closed);
    assert_eq!(closed.count(), 3, "those are told");
    assert_eq!(endpoint.metrics.dns_tcp_refused.get(), 0);
}

#[test]
fn who_is_idle_or_trickles_is_closed() {
    let mut endpoint = Endpoint::new(V4, 0, 1);
    let (idle, trickling) = (endpoint.connect(), endpoint.connect());
    endpoint.settle();
    for byte in query(&"x".repeat(300)).chunks(1).take(150) {
        endpoint.say(trickling, byte);
        endpoint.pass(100);
        if !endpoint.socket(trickling).may_send() || endpoint.socket(trickling).state() != State::Established
        {
            break;
        }
    }
    for handle in [idle, trickling] {
        assert_eq!(endpoint.socket(handle).state(), State::CloseWait);
    }
    assert_eq!(endpoint.metrics.dns_tcp_idle.get(), 2);
    assert!(endpoint.now_ms < IDLE_MS + 1000);
    // They never close their side: after a while they are forgotten all the same.
    endpoint.pass(CLOSING_MS + 1000);
    assert_eq!((endpoint.streams.connections(), endpoint.asked.len()), (0, 0));
}

#[test]
fn a_length_that_no_query_has_ends_the_stream() {
    for length in [0, QUERY_TOO_LONG] {
        let mut endpoint = Endpoint::new(V4, 0, 1);
        let stream = endpoint.connect();
        endpoint.settle();
        endpoint.say(stream, &length.to_be_bytes());
        assert_eq!(endpoint.socket(stream).state(), State::Closed, "{length}");
        assert_eq!((endpoint.metrics.dns_tcp_malformed.get(), endpoint.streams.connections()), (1, 0));
    }
}

const QUERY_TOO_LONG: u16 = framing::QUERY_BYTES_MAX as u16 + 1;

#[test]
fn lost_and_doubled_frames_lose_no_query() {
    for seed in 0..20 {
        // More loss makes pauses after which the connection is idle.
        let mut endpoint = Endpoint::new(if seed % 2 == 0 { V4 } else { V6 }, 5, seed);
        let stream = endpoint.connect();
        let wanted: Vec<String> = (0..40).map(|n| format!("query {n} {}", "x".repeat(n * 13))).collect();
        let mut unsent: Vec<u8> = wanted.iter().flat_map(|text| query(text)).collect();
        let mut heard = Vec::new();
        let mut answered = Vec::new();
        while heard.len() < wanted.iter().map(|text| text.len() + 2).sum() {
            endpoint.settle();
            let socket = endpoint.socket(stream);
            if socket.can_send() {
                let sent = socket.send_slice(&unsent[..unsent.len().min(700)]).unwrap();
                unsent.drain(..sent);
            }
            endpoint.settle();
            for (id, text) in std::mem::take(&mut endpoint.asked) {
                answered.push(String::from_utf8(text.clone()).unwrap());
                endpoint.answer(&id, &text);
            }
            heard.extend(endpoint.heard(stream));
            endpoint.pass(TICK_MS);
            assert!(endpoint.now_ms < 600_000, "seed {seed}: {} of {} heard", heard.len(), answered.len());
        }
        assert_eq!(answered, wanted, "seed {seed}: each once, in the order sent");
    }
}

#[test]
fn fuzz_no_segment_breaks_anything() {
    bolero::check!().with_iterations(1000).with_type::<Vec<(u16, Vec<u8>, u32)>>().for_each(|segments| {
        let mut endpoint = Endpoint::new(V4, 0, 1);
        let stream = endpoint.connect();
        endpoint.settle();
        assert_eq!(endpoint.socket(stream).state(), State::Established);
        for (port, rest, later_ms) in segments {
            let packet = segment(*port, rest);
            let frame = [&VNI.router_mac().0[..], &MAC.0, &[8, 0], &packet].concat();
            if let Ok(segment) = parse_tcp(&frame) {
                let output = endpoint.streams.take(&endpoint.metrics, &context(), &segment, endpoint.now_ms);
                for (id, query) in output.queries {
                    endpoint.streams.answer(&endpoint.metrics, &id, Some(&query), endpoint.now_ms);
                }
            }
            endpoint.now_ms += u64::from(*later_ms) % 300;
            endpoint.streams.tick(&endpoint.metrics, endpoint.now_ms);
            assert!(endpoint.streams.connections() <= CONNECTIONS_PER_STACK_MAX);
        }
    });
}

/// A TCP segment to the router, whatever its header says behind the ports; its checksum is left to the device.
fn segment(port: u16, rest: &[u8]) -> Vec<u8> {
    let mut tcp = [&port.to_be_bytes()[..], &PORT.to_be_bytes(), rest].concat();
    tcp.resize(tcp.len().max(20), 0);
    let total = 20 + tcp.len() as u16;
    let words = |bytes: &[u8]| {
        bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum::<u32>()
    };
    let fold = |mut sum: u32| {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    };
    let (from, to) = ([10, 0, 0, 5], [10, 0, 0, 1]);
    let pseudo = fold(words(&from) + words(&to) + 6 + tcp.len() as u32);
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&total.to_be_bytes());
    header.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0]);
    header.extend_from_slice(&[from, to].concat());
    let sum = !fold(words(&header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [header, tcp].concat()
}

proptest! {
    #[test]
    fn messages_come_out_of_a_stream_as_they_went_in(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..600), 0..12),
        cuts in proptest::collection::vec(1..700_usize, 1..40),
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| framing::frame(message).unwrap()).collect();
        let (mut reassembly, mut found, mut at) = (Reassembly::default(), Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            if at == bytes.len() {
                break;
            }
            at += reassembly.push(&bytes[at..(at + cut).min(bytes.len())]);
            while let Some(message) = reassembly.message().unwrap() {
                found.push(message);
            }
        }
        prop_assert_eq!(found, messages);
        prop_assert_eq!(reassembly.room(), 2 + framing::QUERY_BYTES_MAX);
    }
}

#[test]
fn fuzz_reassembly_is_bounded_and_lengths_are_checked() {
    bolero::check!().with_iterations(3000).with_type::<Vec<Vec<u8>>>().for_each(|pieces| {
        let mut reassembly = Reassembly::default();
        for piece in pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let taken = reassembly.push(rest);
                rest = &rest[taken..];
                assert!(reassembly.room() <= 2 + framing::QUERY_BYTES_MAX);
                loop {
                    match reassembly.message() {
                        Ok(Some(message)) => {
                            assert!((1..=framing::QUERY_BYTES_MAX).contains(&message.len()));
                        }
                        Ok(None) => break,
                        Err(error) => {
                            assert!(error.0 == 0 || error.0 > framing::QUERY_BYTES_MAX);
                            return;
                        }
                    }
                }
                assert!(taken > 0, "a reassembly without a whole message has room");
            }
        }
    });
}
