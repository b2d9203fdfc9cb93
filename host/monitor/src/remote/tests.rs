use super::*;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

const KEY: &[u8] = b"a key of sixteen bytes or more";

#[test]
fn packets_are_the_same_after_the_way_and_others_are_refused() {
    let packet = Packet {
        kind: Kind::Opinion,
        from: 3,
        about: 7,
        suspects: true,
        nonce: 5,
        progress: u64::MAX,
        time: 9,
    };
    let bytes = packet.encode(KEY);
    assert_eq!(Packet::decode(&bytes, KEY), Some(packet));
    assert_eq!(Packet::decode(&bytes, b"another key of some length"), None);
    assert_eq!(Packet::decode(&bytes[..40], KEY), None);
    for at in 0..bytes.len() {
        let mut changed = bytes;
        changed[at] ^= 1;
        assert_eq!(Packet::decode(&changed, KEY), None, "byte {at}");
    }
}

#[test]
fn any_packet_is_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        Packet::decode(bytes, KEY);
    });
}

#[test]
fn wrong_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.yaml");
    let base = "own: a\nkey-file: /k\nhosts: { a: '127.0.0.1:1', b: '127.0.0.1:2', c: '127.0.0.1:3' }\n";
    let cases = [
        (base.replace("own: a", "own: z"), "'z' is not among the hosts"),
        (format!("{base}k: 2\n"), "needs at least 4 hosts"),
        (format!("{base}period-ms: 0\n"), "more than 0"),
        (format!("{base}colour: red\n"), "colour"),
        (
            format!("{base}views: [{{ host: z, box: web, sensors: [x] }}]\n"),
            "views: 'z' is not among the hosts",
        ),
        (format!("{base}views: [{{ host: a, box: web, sensors: [x] }}]\n"), "of this host itself"),
        (format!("{base}views: [{{ host: b, box: web, sensors: [] }}]\n"), "needs a sensor"),
        (format!("{base}views: [{{ host: b, box: web, sensors: [x], every-ms: 9 }}]\n"), "of at least 10"),
        (
            format!(
                "{base}views: [{{ host: b, box: w, sensors: [x] }}, {{ host: b, box: w, sensors: [y] }}]\n"
            ),
            "twice",
        ),
    ];
    for (text, wanted) in cases {
        std::fs::write(&path, &text).unwrap();
        let error = RingFile::load(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
    std::fs::write(&path, base).unwrap();
    assert_eq!(RingFile::load(&path).unwrap().k, 1);
}

/// Waits for a note.
fn wait(notes: &Receiver<Note>, wanted: &Note) {
    let limit = Instant::now() + Duration::from_secs(60);
    while let Ok(note) = notes.recv_timeout(limit.saturating_duration_since(Instant::now())) {
        if note == *wanted {
            return;
        }
    }
    panic!("{wanted:?} was not told");
}

#[test]
fn a_host_that_ends_is_fenced_and_declared_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, KEY).unwrap();
    let fence = folder.path().join("fence");
    std::fs::write(&fence, format!("#!/bin/sh\necho $1 >> {}/fenced\n", folder.path().display())).unwrap();
    std::fs::set_permissions(&fence, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Ports that are free now.
    let sockets: Vec<UdpSocket> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let names = ["a", "b", "c", "d"];
    let hosts: BTreeMap<String, SocketAddr> = names
        .iter()
        .zip(&sockets)
        .map(|(name, socket)| (name.to_string(), socket.local_addr().unwrap()))
        .collect();
    drop(sockets);
    let file = |own: &str| RingFile {
        responder: Context::Local,
        views: Vec::new(),
        own: own.into(),
        hosts: hosts.clone(),
        key_file: key_file.clone(),
        k: 1,
        period_ms: 50,
        periods: 10,
        fence: (own == "a").then(|| fence.clone()),
    };
    let settings = local::Settings { priority: None, lock_memory: false, ..local::Settings::default() };
    let start = |own: &str| {
        let (tell, notes) = sync_channel(64);
        let sensors = Directory::new(folder.path().join(own));
        (Remote::start(&file(own), settings, &sensors, tell).unwrap(), notes)
    };
    let (first, notes) = start("a");
    let (_second, others) = start("b");
    let (_third, _kept) = start("c");
    let (fourth, _kept_too) = start("d");
    let limit = Instant::now() + Duration::from_secs(120);
    // All four are up once each that `a` watches has answered: its level is then low again.
    while first.view().iter().filter(|host| host.level.is_some_and(|level| level < 2.0)).count() < 2 {
        assert!(Instant::now() < limit, "{:?}", first.view());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(fourth);
    wait(&notes, &Note::HostFailed { host: 3, fenced: Some(true) });
    wait(&others, &Note::HostFailed { host: 3, fenced: None });
    assert!(std::fs::read_to_string(folder.path().join("fenced")).unwrap().contains("d\n"));
    // What is shown follows with the next period.
    while !first.view().iter().any(|host| host.name == "d" && host.failed) {
        assert!(Instant::now() < limit, "{:?}", first.view());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_fourth, _kept_as_well) = start("d");
    wait(&notes, &Note::HostRecovered { host: 3 });
}

#[test]
fn a_box_of_another_host_is_read_kept_and_closed_with_it() {
    use weir_sensor::{Kind as SensorKind, SensorBox, Shape};
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, KEY).unwrap();
    let sockets: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let hosts: Vec<String> = ["a", "b", "c"]
        .iter()
        .zip(&sockets)
        .map(|(name, socket)| format!("{name}: \"{}\"", socket.local_addr().unwrap()))
        .collect();
    drop(sockets);
    let start = |own: &str, more: &str| {
        let path = folder.path().join(format!("{own}.yaml"));
        let text = format!(
            "own: {own}\nhosts: {{ {} }}\nkey-file: {}\nperiod-ms: 50\nperiods: 100\n{more}",
            hosts.join(", "),
            key_file.display()
        );
        std::fs::write(&path, text).unwrap();
        let sensors = Directory::new(folder.path().join(own));
        let settings = local::Settings { priority: None, lock_memory: false, ..local::Settings::default() };
        let (tell, notes) = sync_channel(64);
        (Remote::start(&RingFile::load(&path).unwrap(), settings, &sensors, tell).unwrap(), sensors, notes)
    };
    let (_one, here, _kept) =
        start("a", "views: [{ host: b, box: web, sensors: [requests, hits], every-ms: 10 }]\n");
    let (_two, there, _kept_too) = start("b", "");
    let web = SensorBox::create("web", Shape { sensors: 4, records: 16 }, 10_000_000).unwrap();
    let requests = web.add("requests", SensorKind::Counter).unwrap();
    let hits = web.add("hits", SensorKind::Event).unwrap();
    web.count(requests, 41);
    web.record(hits, b"x");
    web.export(&there).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let until = |what: &str, holds: &mut dyn FnMut() -> bool| {
        while !holds() {
            assert!(Instant::now() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut copy = None;
    until("the copy", &mut || {
        copy = here.discover("b.web").ok();
        copy.is_some()
    });
    let copy = copy.unwrap();
    assert_eq!(copy.period_ns(), 10_000_000);
    until("its values", &mut || (copy.value_of("requests"), copy.value_of("hits")) == (Some(41), Some(1)));
    web.count(requests, 1);
    until("a new value", &mut || copy.value_of("requests") == Some(42));
    // It is destroyed there, so it is here; and made anew.
    web.destroy();
    until("the end of the copy", &mut || copy.closed() && here.discover("b.web").is_err());
    let web = SensorBox::create("web", Shape { sensors: 4, records: 16 }, 10_000_000).unwrap();
    web.set(web.add("requests", SensorKind::Gauge).unwrap(), 7);
    web.export(&there).unwrap();
    until("the next copy", &mut || {
        here.discover("b.web").is_ok_and(|copy| copy.value_of("requests") == Some(7))
    });
}
