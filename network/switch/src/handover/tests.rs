//! The formats of a hand-over, and what does not keep to them.

use super::guests::{self, Guest, Guests};
use super::message::*;
use super::wire::Channel;
use super::*;
use crate::conntrack::{CarriedConnection, RecordKey, State};
use crate::fragments::{CarriedDatagram, CarriedFate, CarriedPlace};
use crate::ports::vhost::Socket;
use crate::ports::vhost::memory::Lent;
use crate::ports::vhost::ring::Addresses;
use crate::ports::vhost::session::{Moved, MovedQueue};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::BorrowedFd;
use weir_model::entry::Vni;
use weir_model::resource::Encapsulation;
use weir_model::{Key, Label};

/// Every message of version 1: kind in words and bytes in hexadecimal digits.
const FIXTURE: &str = include_str!("message-v1.txt");

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn port(name: &str) -> Key {
    Key::Port { vni: Vni(7), endpoint: label(name) }
}

fn key() -> RecordKey {
    RecordKey {
        vni: 7,
        protocol: 6,
        flags: 1,
        source: ("10.0.0.1".parse().unwrap(), 40_000),
        destination: ("fd10::2".parse().unwrap(), 443),
    }
}

/// One of each.
fn messages() -> Vec<Message> {
    let connection = |state, external| CarriedConnection {
        key: key(),
        state,
        external,
        flags: [0x12, 0x10],
        seen: [true, false],
        recorded: true,
        last_ms: 1 << 33,
    };
    let datagram = |place, fate| CarriedDatagram {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        place,
        identification: 77,
        named_protocol: 17,
        protocol: 17,
        ports: (1000, 53),
        fate,
        pieces: vec![(0, 64), (128, 192)],
        end: Some(200),
        since_ms: 12_345,
    };
    let queue =
        CarriedQueue { size: 256, addresses: Some((1, 2, 3)), kick: true, call: false, enabled: true };
    let states = [State::Opening, State::Open, State::HalfClosed, State::Closed, State::Revoked];
    let external = Some(("192.0.2.1".parse().unwrap(), 20_000));
    vec![
        Message::Hello(Hello {
            oldest: 1,
            newest: 3,
            build: "weir 0.1".into(),
            name: label("h1"),
            domain: label("lab"),
            underlay: ("192.0.2.1".parse().unwrap(), 6081, 4789),
        }),
        Message::Welcome(Welcome {
            version: 1,
            build: "weir 0.1".into(),
            now_ms: 123_456,
            receivers: vec![Encapsulation::Geneve, Encapsulation::Vxlan],
            senders: vec![Encapsulation::Geneve],
        }),
        Message::No("because".into()),
        Message::Copy,
        Message::Connections(states.map(|state| connection(state, external)).to_vec()),
        Message::Gone(vec![key(), key()]),
        Message::Copied(300),
        Message::Freeze,
        Message::Tap(CarriedTap { key: Some(port("a")), netns: Some("ns".into()), device: "t0".into() }),
        Message::Tap(CarriedTap { key: None, netns: None, device: "wext0".into() }),
        Message::Guest(CarriedGuest {
            key: port("vm"),
            path: "/run/vm.sock".into(),
            listens: true,
            pairs: 2,
            connected: true,
            listening: true,
            features: 1 << 32,
            protocol_features: 3,
        }),
        Message::Memory(CarriedMemory { key: port("vm"), regions: vec![(1, 2, 3, 4), (5, 6, 7, 8)] }),
        Message::Queues(CarriedQueues {
            key: port("vm"),
            first: 0,
            queues: vec![queue, CarriedQueue::default()],
        }),
        Message::Fragments(vec![
            datagram(CarriedPlace::Port(port("a")), CarriedFate::Waits),
            datagram(CarriedPlace::External, CarriedFate::Goes),
            datagram(CarriedPlace::Network(7, 4100), CarriedFate::Refused("fragment-overlap".into())),
        ]),
        Message::Peers(vec![("192.0.2.2".parse().unwrap(), 99)]),
        Message::Held(HeldFrame {
            place: CarriedPlace::Port(port("a")),
            header: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            frame: vec![0xaa; 20],
        }),
        Message::Frozen(Frozen {
            taps: 1,
            guests: 2,
            guests_left: 3,
            checkpoint_bytes: 4,
            journal_bytes: 1 << 40,
        }),
        Message::Serving,
        Message::Veth(CarriedVeth {
            key: port("a"),
            netns: Some("ns".into()),
            device: "t0".into(),
            way: CarriedWay::Packet { why: "why".into() },
        }),
        Message::Veth(CarriedVeth {
            key: port("a"),
            netns: None,
            device: "t0".into(),
            way: CarriedWay::Xdp { device: 7, chunks: 1024, chunk_bytes: 2048 },
        }),
        Message::Gateways(vec![("192.0.2.2".parse().unwrap(), false), ("192.0.2.3".parse().unwrap(), true)]),
    ]
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn the_bytes_of_version_1_are_what_they_were() {
    let now: Vec<String> = messages().iter().map(|message| hexadecimal(&message.encode())).collect();
    let kept: Vec<&str> = FIXTURE.lines().collect();
    assert_eq!(
        now,
        kept,
        "a message of version 1 changed: make a new kind or a new version\n{}",
        now.join("\n")
    );
    for (line, message) in kept.iter().zip(messages()) {
        assert_eq!(Message::decode(&bytes_of(line)).unwrap(), Some(message));
    }
}

#[test]
fn any_bytes_are_a_message_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(Some(message)) = Message::decode(bytes) {
            assert_eq!(Message::decode(&message.encode()).unwrap(), Some(message));
        }
    });
}

#[test]
fn what_is_not_known_is_passed_over_or_refused_as_it_says() {
    assert_eq!(Message::decode(&[99, 0, 0, 0, 1, 2]).unwrap(), None);
    assert!(matches!(Message::decode(&[99, 0, 1, 0, 1, 2]), Err(HandoverError::Unknown(99))));
    assert!(matches!(Message::decode(&[1]), Err(HandoverError::Nonsense(_))));
    assert!(matches!(Message::decode(&[17, 0, 1, 0, 9]), Err(HandoverError::Nonsense(_))), "too long");
}

fn pair() -> (Channel, Channel) {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Channel::new(a), Channel::new(b))
}

fn file(byte: u8) -> OwnedFd {
    let file = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&file, &[byte]).unwrap();
    file
}

fn byte_of(file: &OwnedFd) -> u8 {
    let mut byte = [0];
    rustix::io::pread(file, &mut byte, 0).unwrap();
    byte[0]
}

#[test]
fn messages_keep_their_bounds_and_their_descriptors() {
    let (a, mut b) = pair();
    let files: Vec<OwnedFd> = (0..MESSAGE_FDS_MAX).map(|number| file(number as u8)).collect();
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(OwnedFd::as_fd).collect();
    for message in messages() {
        a.send(&message, &borrowed).unwrap();
        let (got, fds) = b.receive().unwrap();
        assert_eq!(got, message);
        assert_eq!(
            fds.iter().map(byte_of).collect::<Vec<_>>(),
            files.iter().map(byte_of).collect::<Vec<_>>()
        );
    }
    let too_many = [borrowed.as_slice(), &borrowed[..1]].concat();
    assert!(matches!(a.send(&Message::Copy, &too_many), Err(HandoverError::TooLarge { .. })));
    let too_long = Message::No("x".repeat(MESSAGE_BYTES_MAX));
    assert!(matches!(a.send(&too_long, &[]), Err(HandoverError::TooLarge { .. })));
    // The largest that there are.
    let Some(Message::Connections(five)) = messages().into_iter().nth(4) else { panic!() };
    let many: Vec<_> = (0..CONNECTIONS_PER_MESSAGE).map(|number| five[number % five.len()].clone()).collect();
    a.send(&Message::Connections(many.clone()), &[]).unwrap();
    assert_eq!(b.receive().unwrap().0, Message::Connections(many));
    drop(a);
    assert!(matches!(b.receive(), Err(HandoverError::Gone)));
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let (a, mut b) = pair();
    b.set_limit(Duration::from_millis(20)).unwrap();
    assert!(matches!(b.receive(), Err(HandoverError::TooSlow)));
    // Nor who does not listen.
    a.set_limit(Duration::from_millis(20)).unwrap();
    let message = Message::No("x".repeat(MESSAGE_BYTES_MAX / 2));
    let end = (0..1000).find_map(|_| a.send(&message, &[]).err());
    assert!(matches!(end, Some(HandoverError::TooSlow)), "{end:?}");
}

#[test]
fn virtual_machines_arrive_as_they_left() {
    let (a, mut b) = pair();
    let queue = |number: u16| MovedQueue {
        size: 256,
        addresses: (number != 3).then_some(Addresses { descriptors: 1, available: 2, used: number.into() }),
        kick: (!number.is_multiple_of(3)).then(|| file(number as u8)),
        call: (!number.is_multiple_of(2)).then(|| file((number as u8).wrapping_add(100))),
        enabled: number > 5,
    };
    let lent = |number: u8| {
        let lent = Lent { guest: number.into(), user: 2, length: 3, offset: 4 };
        (lent, file(200 + number))
    };
    let moved = Moved {
        stream: Some(file(1)),
        listener: Some(file(2)),
        features: 5,
        protocol_features: 6,
        memory: (0..3).map(lent).collect(),
        queues: (0..200).map(queue).collect(),
    };
    let socket = Socket { path: "/run/a.sock".into(), listens: true, pairs: 100 };
    guests::send(&a, &Guest { key: port("vm"), socket: socket.clone(), moved }).unwrap();
    a.send(&Message::Serving, &[]).unwrap();
    let mut guests = Guests::default();
    loop {
        let (message, fds) = b.receive().unwrap();
        match message {
            Message::Guest(guest) => guests.head(guest, fds).unwrap(),
            Message::Memory(memory) => guests.memory(memory, fds).unwrap(),
            Message::Queues(queues) => guests.queues(queues, fds).unwrap(),
            _ => break,
        }
    }
    let (of, got) = guests.take(&port("vm")).unwrap();
    assert_eq!((of, got.features, got.protocol_features), (socket, 5, 6));
    assert_eq!((byte_of(&got.stream.unwrap()), byte_of(&got.listener.unwrap())), (1, 2));
    let memory: Vec<(u64, u8)> = got.memory.iter().map(|(lent, file)| (lent.guest, byte_of(file))).collect();
    assert_eq!(memory, [(0, 200), (1, 201), (2, 202)]);
    assert_eq!(got.queues.len(), 200);
    for (number, got) in got.queues.iter().enumerate() {
        let sent = queue(number as u16);
        assert_eq!((got.size, got.addresses, got.enabled), (sent.size, sent.addresses, sent.enabled));
        assert_eq!(got.kick.as_ref().map(byte_of), sent.kick.as_ref().map(byte_of), "{number}");
        assert_eq!(got.call.as_ref().map(byte_of), sent.call.as_ref().map(byte_of), "{number}");
    }
}

#[test]
fn virtual_machines_that_make_no_sense_are_refused() {
    let mut guests = Guests::default();
    let Some(Message::Guest(head)) = messages().into_iter().nth(10) else { panic!() };
    let Some(Message::Memory(memory)) = messages().into_iter().nth(11) else { panic!() };
    let Some(Message::Queues(queues)) = messages().into_iter().nth(12) else { panic!() };
    assert!(guests.memory(memory.clone(), vec![file(1), file(2)]).is_err(), "of nobody");
    assert!(guests.head(head.clone(), vec![file(1)]).is_err(), "two are named");
    guests.head(head.clone(), vec![file(1), file(2)]).unwrap();
    assert!(guests.head(head, vec![file(1), file(2)]).is_err(), "twice");
    assert!(guests.memory(memory, vec![file(1)]).is_err());
    assert!(guests.queues(queues.clone(), vec![]).is_err());
    guests.queues(queues.clone(), vec![file(1)]).unwrap();
    assert!(guests.queues(queues, vec![file(1)]).is_err(), "the first ones again");
}
