use super::*;
use crate::policy::load;

fn policies(folder: &Path, context: &str) -> Vec<Policy> {
    let text = format!(
        "kind: stalled\nname: other\nbox: other\nsensor: x\n---\nkind: stalled\nname: web\nbox: web\nsensor: requests\n\
         periods: 2\nperiod-ms: 20\ncontext: {context}\n"
    );
    let path = folder.join("policies.yaml");
    std::fs::write(&path, text).unwrap();
    load(&path).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come about");
}

#[test]
fn a_reader_is_made_only_where_something_is_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path().join("sensors"));
    assert!(Reader::new(&policies(folder.path(), "local"), None, &sensors).unwrap().is_none());
    assert!(Reader::new(&policies(folder.path(), "dataplane"), None, &sensors).unwrap().is_some());
    assert!(Reader::open(None, None, &sensors).unwrap().is_none());
}

#[test]
fn a_counter_that_stands_still_is_told_in_the_readers_own_box() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path().join("sensors"));
    let mut reader = Reader::new(&policies(folder.path(), "dataplane"), None, &sensors).unwrap().unwrap();
    let shape = Shape { sensors: 4, records: 16 };
    let web = SensorBox::create("web", shape, 20_000_000).unwrap();
    let requests = web.add("requests", Kind::Counter).unwrap();
    web.export(&sensors).unwrap();
    let view = sensors.discover_own(BOX).unwrap();
    let (slots, told) = (view.find(SLOTS).unwrap(), view.find(&sensor(1)).unwrap());
    assert_eq!(view.find(&sensor(0)), None, "the other policy is not for this context");
    until("the box of the application", || {
        web.count(requests, 1);
        reader.slot();
        reader.rows[0].attached.is_some()
    });
    assert!(fresh(&view, slots, now_ns()));
    until("the failure", || {
        reader.slot();
        view.value(told) == Some(1)
    });
    web.count(requests, 1);
    reader.slot();
    reader.slot();
    reader.slot();
    assert_eq!(view.value(told), Some(2), "it moves again, and each is told once");
    assert!(!fresh(&view, slots, now_ns() + STALE_NS));
    drop(reader);
    assert!(!fresh(&view, slots, now_ns()), "a reader that has ended is none");
}

#[test]
fn the_responder_answers_probes_of_its_ring_and_nothing_else() {
    use crate::remote::{Kind as What, PACKET_BYTES, Packet};
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 16]).unwrap();
    let own = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "own: a\nhosts: {{ a: \"{own}\", b: \"127.0.0.1:1\", c: \"127.0.0.1:2\" }}\nkey-file: {}\nresponder: dataplane\n",
        key.display()
    );
    let path = folder.path().join("ring.yaml");
    std::fs::write(&path, text).unwrap();
    let ring = RingFile::load(&path).unwrap();
    let sensors = Directory::new(folder.path().join("sensors"));
    let mut reader = Reader::new(&[], Some(&ring), &sensors).unwrap().unwrap();
    assert!(reader.socket().is_some());
    let prober = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    prober.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let probe =
        Packet { kind: What::Probe, from: 1, about: 0, suspects: false, nonce: 5, progress: 0, time: 0 };
    prober.send_to(b"nonsense", own).unwrap();
    prober.send_to(&Packet { nonce: 4, ..probe }.encode(&[8; 16]), own).unwrap();
    let mut bytes = [0; PACKET_BYTES];
    until("an answer", || {
        prober.send_to(&probe.encode(&[7; 16]), own).unwrap();
        reader.answer();
        prober.recv(&mut bytes).is_ok()
    });
    let answer = Packet::decode(&bytes, &[7; 16]).unwrap();
    assert_eq!((answer.kind, answer.from, answer.nonce), (What::Answer, 0, 5));
    let web = SensorBox::create("web", Shape { sensors: 1, records: 16 }, 1).unwrap();
    web.count(web.add("requests", Kind::Counter).unwrap(), 42);
    web.export(&sensors).unwrap();
    let read = Packet {
        kind: What::Read,
        nonce: 6,
        progress: crate::remote::shelf::key("web", "requests"),
        ..probe
    };
    let mut value = answer;
    until("a value", || {
        prober.send_to(&read.encode(&[7; 16]), own).unwrap();
        reader.answer();
        if prober.recv(&mut bytes).is_ok() {
            value = Packet::decode(&bytes, &[7; 16]).unwrap();
        }
        value.reading() == crate::remote::shelf::Reading::Value(42)
    });
    assert_eq!((value.kind, value.from, value.nonce), (What::Value, 0, 6));
    assert_eq!(reader.responder.as_ref().unwrap().dropped, 2);
}

#[test]
fn a_pulse_is_published_and_watched_by_the_policy_that_is_built_in() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path().join("sensors"));
    let pulse = Pulse::new("h1", &sensors).unwrap();
    let view = sensors.discover("switch-h1").unwrap();
    let slots = view.find(SLOTS).unwrap();
    pulse.beat();
    pulse.beat();
    assert_eq!((view.value(slots), view.period_ns()), (Some(2), 100_000_000));
    let Policy::Stalled(policy) = Pulse::policy("h1") else { panic!("it is watched for progress") };
    assert_eq!((policy.sensor_box.as_str(), policy.sensor.as_str()), (view.name(), SLOTS));
    assert_eq!((policy.common.name.as_str(), policy.common.action), ("builtin-switch-h1", Action::Report));
    // Another switch of that name has taken its place: the end of the first does not take that away.
    let other = Pulse::new("h1", &sensors).unwrap();
    drop(pulse);
    assert!(sensors.discover("switch-h1").is_ok());
    drop(other);
    assert!(sensors.discover("switch-h1").is_err());
}
