use super::*;
use crate::engine::counters::Counters;
use crate::engine::{MissLoad, Shared};
use crate::flowtable::FlowStore;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use weir_base::codec::{encode_frame, read_frame};
use weir_model::local::{Answer, FromSwitch, Punt, Question};

#[test]
fn any_bytes_are_frames_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(Some(body)) = whole_frame(bytes) {
            let _ = decode::<ToSwitch>(&bytes[body]);
        }
        let _ = decode::<Punt>(bytes);
        let _ = decode::<FromSwitch>(bytes);
    });
}

struct Fixture {
    dir: tempfile::TempDir,
    requests: Receiver<Request>,
    counters: Arc<ControlCounters>,
    stop: Arc<AtomicBool>,
    wake: Arc<Wakeup>,
    thread: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let shared = Arc::new(Shared {
        store: Arc::new(FlowStore::new([1, 2])),
        counters: Arc::new(Counters::default()),
        load: MissLoad::default(),
        engine_wake: Wakeup::new().unwrap(),
        slow_wake: Wakeup::new().unwrap(),
        start: Instant::now(),
        stop: AtomicBool::new(false),
        mark: crate::mark::Mark::none(),
    });
    let (sender, requests) = sync_channel(2);
    let counters = Arc::new(ControlCounters::default());
    let control = Control::new(dir.path(), sender, shared, Arc::clone(&counters)).unwrap();
    let (wake, stop) = (control.waker(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let thread = Some(std::thread::spawn(move || control.run(&stopped)));
    Fixture { dir, requests, counters, stop, wake, thread }
}

impl Fixture {
    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join(CONTROL_SOCKET)).unwrap()
    }

    fn next(&self) -> Request {
        self.requests.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

fn ask(id: u64) -> ToSwitch {
    ToSwitch::Ask { id, question: Question::Ports }
}

#[test]
fn frames_come_whole_in_whatever_pieces_they_are_written() {
    let fixture = fixture();
    let mut stream = fixture.connect();
    let bytes: Vec<u8> = (0..20).flat_map(|id| encode_frame(&ask(id)).unwrap()).collect();
    let writer = std::thread::spawn(move || {
        for piece in bytes.chunks(3) {
            stream.write_all(piece).unwrap();
        }
        stream
    });
    // The queue holds two: the others wait in the socket until these are taken.
    for id in 0..20 {
        let request = fixture.next();
        assert_eq!(request.body, ask(id));
        let answer = Answer::Error(format!("no {id}"));
        request.client.send(&FromSwitch::Answer { id, answer });
    }
    let mut stream = writer.join().unwrap();
    for id in 0..20 {
        let answer = Answer::Error(format!("no {id}"));
        assert_eq!(read_frame::<FromSwitch>(&mut stream).unwrap(), FromSwitch::Answer { id, answer });
    }
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let fixture = fixture();
    let mut stream = fixture.connect();
    stream.write_all(&encode_frame(&ask(1)).unwrap()).unwrap();
    let client = fixture.next().client;
    let answer = FromSwitch::Answer { id: 1, answer: Answer::Error("x".repeat(1 << 20)) };
    for _ in 0..64 {
        client.send(&answer);
    }
    assert!(!client.is_alive());
    assert_eq!(client.waiting_bytes(), 0);
    assert_eq!(fixture.counters.clients_dropped.load(Relaxed), 1);
    // The stream ends behind what was on its way.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 64 << 20);
}

#[test]
fn too_many_clients_are_refused() {
    let fixture = fixture();
    let streams: Vec<UnixStream> = (0..CLIENTS_MAX + 1).map(|_| fixture.connect()).collect();
    let mut last = streams.last().unwrap();
    assert_eq!(last.read(&mut [0]).unwrap(), 0, "the last is closed");
    assert_eq!(fixture.counters.clients_refused.load(Relaxed), 1);
}

#[test]
fn the_sockets_are_for_their_owner_alone() {
    let fixture = fixture();
    let mode = std::fs::metadata(fixture.dir.path().join(CONTROL_SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let path = fixture.dir.path().join(PUNT_SOCKET);
    punt::PuntSocket::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn punted_frames_go_to_who_said_hello_last() {
    use std::os::unix::net::UnixDatagram;
    use weir_model::entry::Vni;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(PUNT_SOCKET);
    let mut socket = punt::PuntSocket::bind(&path).unwrap();
    let key = weir_model::Key::Port { vni: Vni(7), endpoint: weir_model::Label::new("a").unwrap() };
    let frame = Punt { key, frame: vec![1, 2, 3] };
    assert!(!socket.send(&frame), "nobody is there");
    for name in ["first", "second"] {
        let agent = UnixDatagram::bind(dir.path().join(name)).unwrap();
        agent.send_to(&[], &path).unwrap();
        assert!(socket.receive().unwrap().is_none());
        assert!(socket.send(&frame));
        let mut bytes = [0; 100];
        let length = agent.recv(&mut bytes).unwrap();
        assert_eq!(decode::<Punt>(&bytes[..length]).unwrap(), frame);
        agent.send_to(&bytes[..length], &path).unwrap();
        assert_eq!(socket.receive().unwrap(), Some(frame.clone()));
        agent.send_to(&[0xff; 9], &path).unwrap();
        assert!(socket.receive().is_err());
    }
}
