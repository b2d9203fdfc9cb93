//! Monitors that come, set up a device, and go: with the frontend of the crate `vhost` as the monitor.

use super::super::driver::{BYTES, Driver, GUEST, USER, event};
use super::super::session::{Moved, Session, Told};
use super::super::{Socket, feature};
use super::{frame, post_frame, take_all};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn session(path: &Path, listens: bool, pairs: u16) -> (Session, Receiver<Told>) {
    let (sender, told) = channel();
    let socket = Socket { path: path.to_path_buf(), listens, pairs };
    let tell = move |what| {
        let _ = sender.send(what);
    };
    (Session::start(socket, Arc::new(tell)).unwrap(), told)
}

/// What is told next that is wanted.
pub(super) fn next<T>(told: &Receiver<Told>, what: &str, mut wanted: impl FnMut(Told) -> Option<T>) -> T {
    let start = Instant::now();
    while let Some(left) = PATIENCE.checked_sub(start.elapsed()) {
        match told.recv_timeout(left) {
            Ok(one) => {
                if let Some(found) = wanted(one) {
                    return found;
                }
            }
            Err(_) => break,
        }
    }
    panic!("waited in vain for {what}");
}

pub(super) fn runs(told: &Receiver<Told>) -> super::Guest {
    next(told, "queues that run", |one| match one {
        Told::Runs(guest) => Some(*guest),
        _ => None,
    })
}

pub(super) fn waits(told: &Receiver<Told>, words: &str) {
    next(told, words, |one| match one {
        Told::Waits(reason) | Told::Failed(reason) if reason.contains(words) => Some(()),
        _ => None,
    });
}

pub(super) fn connect(path: &Path, pairs: u64) -> Frontend {
    let start = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Frontend::from_stream(stream, 2 * pairs),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sets up a device as DPDK does.
pub(super) fn set_up(frontend: &mut Frontend, driver: &Driver, pairs: usize) {
    set_up_queues(frontend, driver, pairs, true);
}

/// Sets up a device as QEMU does, which has enabled its queues before.
fn set_up_but_for_enabling(frontend: &mut Frontend, driver: &Driver, pairs: usize) {
    set_up_queues(frontend, driver, pairs, false);
}

fn set_up_queues(frontend: &mut Frontend, driver: &Driver, pairs: usize, enable: bool) {
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let offered = frontend.get_features().unwrap();
    assert_eq!(offered & feature::MQ != 0, pairs > 1);
    let wanted = offered & !feature::EVENT_IDX;
    frontend.set_features(wanted).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK));
    frontend.set_protocol_features(protocol).unwrap();
    // It is not asked how many queues there are: of a network device the answer is in pairs, which this frontend takes for
    // single queues.
    frontend.set_owner().unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST,
        memory_size: BYTES as u64,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: driver.file.as_raw_fd(),
    };
    frontend.set_mem_table(&[region]).unwrap();
    for queue in 0..2 * pairs {
        let addresses = driver.addresses(queue);
        frontend.set_vring_num(queue, driver.size).unwrap();
        frontend.set_vring_base(queue, 0).unwrap();
        let config = VringConfigData {
            queue_max_size: driver.size,
            queue_size: driver.size,
            flags: 0,
            desc_table_addr: addresses.descriptors,
            used_ring_addr: addresses.used,
            avail_ring_addr: addresses.available,
            log_addr: None,
        };
        frontend.set_vring_addr(queue, &config).unwrap();
        let events = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
        frontend.set_vring_call(queue, &events[0]).unwrap();
        frontend.set_vring_kick(queue, &events[1]).unwrap();
        if enable {
            frontend.set_vring_enable(queue, true).unwrap();
        }
    }
}

#[test]
fn a_monitor_sets_up_a_device_stops_it_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let (session, told) = session(&path, true, 2);
    let mut driver = Driver::new(8);
    let mut frontend = connect(&path, 2);
    set_up(&mut frontend, &driver, 2);
    // The first pair runs by itself until the second is there, too.
    let first = runs(&told);
    assert_eq!(first.pairs(), 1);
    drop(first);
    let mut guest = runs(&told);
    assert_eq!(guest.pairs(), 2);
    for _ in 0..3 {
        post_frame(&mut driver, &frame(10));
    }
    assert_eq!(take_all(&mut guest, 0).len(), 3);
    guest.publish();
    // Whoever asks where a queue stands waits until the engine has let go of it.
    let asks = std::thread::spawn(move || (frontend.get_vring_base(1).unwrap(), frontend));
    waits(&told, "setting up");
    assert!(!asks.is_finished());
    drop(guest);
    let (base, frontend) = asks.join().unwrap();
    assert_eq!(base, 3);
    assert_eq!(runs(&told).pairs(), 1, "the other pair goes on");
    drop(frontend);
    waits(&told, "no virtual machine");
    // It comes back with a base of zero, as some do: the guest's memory knows better.
    let mut frontend = connect(&path, 2);
    set_up(&mut frontend, &driver, 2);
    drop(runs(&told));
    let mut guest = runs(&told);
    post_frame(&mut driver, &frame(20));
    assert_eq!(take_all(&mut guest, 0), [frame(20)]);
    drop(guest);
    session.disconnect();
    waits(&told, "no virtual machine");
    drop(session);
    let start = Instant::now();
    while path.exists() {
        assert!(start.elapsed() < PATIENCE, "the socket is removed with its port");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Enables or disables a queue by a message as it is on the socket; returns the reply, if one is wanted.
fn enable(stream: &mut UnixStream, queue: u32, state: u32, wants_reply: bool) -> Option<u64> {
    let words = [18, 1 | u32::from(wants_reply) << 3, 8, queue, state];
    let message: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    stream.write_all(&message).unwrap();
    wants_reply.then(|| {
        let mut reply = [0; 20];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::io::Read::read_exact(stream, &mut reply).unwrap();
        assert_eq!(reply[..8], [18, 0, 0, 0, 5, 0, 0, 0]);
        u64::from_le_bytes(reply[12..].try_into().unwrap())
    })
}

#[test]
fn queues_that_are_enabled_before_any_feature_is_set_run_when_they_are_set_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.sock");
    let (_session, told) = session(&path, true, 1);
    // The switch has gone and come back, too: QEMU says the same on each connection.
    for wants_reply in [false, true] {
        let driver = Driver::new(8);
        drop(connect(&path, 1));
        let mut stream = UnixStream::connect(&path).unwrap();
        for queue in [0, 1] {
            assert_eq!(enable(&mut stream, queue, 1, wants_reply), wants_reply.then_some(0));
        }
        if wants_reply {
            assert_eq!(enable(&mut stream, 7, 1, true), Some(1), "there is no such queue");
            assert_eq!(enable(&mut stream, 0, 2, true), Some(1), "there is no such state");
        }
        let mut frontend = Frontend::from_stream(stream, 2);
        set_up_but_for_enabling(&mut frontend, &driver, 1);
        drop(runs(&told));
        // Whoever disables a queue is heard as well.
        frontend.set_vring_enable(1, false).unwrap();
        waits(&told, "setting up");
        frontend.set_vring_enable(1, true).unwrap();
        drop(runs(&told));
        drop(frontend);
        waits(&told, "no virtual machine");
    }
}

/// What a session is, when it stands still.
pub(super) fn frozen(session: &Session) -> Moved {
    session.freeze().recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_session_goes_on_elsewhere_and_the_monitor_notices_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (path, listens) in [(dir.path().join("l.sock"), true), (dir.path().join("c.sock"), false)] {
        let monitor = (!listens).then(|| UnixListener::bind(&path).unwrap());
        let (old, told) = session(&path, listens, 1);
        let mut driver = Driver::new(8);
        let mut frontend = match &monitor {
            Some(listener) => Frontend::from_stream(listener.accept().unwrap().0, 2),
            None => connect(&path, 1),
        };
        set_up(&mut frontend, &driver, 1);
        let mut guest = runs(&told);
        post_frame(&mut driver, &frame(10));
        assert_eq!(take_all(&mut guest, 0), [frame(10)]);
        guest.publish();
        // One that stood still and may go on does.
        drop(frozen(&old));
        old.thaw();
        frontend.set_vring_enable(1, true).unwrap();

        let moved = frozen(&old);
        assert_eq!((moved.stream.is_some(), moved.listener.is_some()), (true, listens));
        let (sender, told) = channel();
        let tell = move |what| {
            let _ = sender.send(what);
        };
        let socket = Socket { path: path.clone(), listens, pairs: 1 };
        let new = Session::resume(socket, moved, Arc::new(tell)).unwrap();
        old.leave();
        drop(old);
        drop(guest);
        let mut guest = runs(&told);
        for number in 0..20 {
            post_frame(&mut driver, &frame(20 + number));
            assert_eq!(take_all(&mut guest, 0), [frame(20 + number)]);
            guest.publish();
        }
        // A reply is wanted with each, which the library remembers from the features.
        frontend.set_vring_enable(1, true).unwrap();
        let asks = std::thread::spawn(move || (frontend.get_vring_base(1).unwrap(), frontend));
        waits(&told, "setting up");
        drop(guest);
        let (base, frontend) = asks.join().unwrap();
        assert_eq!(base, 21);
        drop(frontend);
        waits(&told, "no virtual machine");
        // The next monitor is met as ever.
        let mut frontend = match &monitor {
            Some(listener) => Frontend::from_stream(listener.accept().unwrap().0, 2),
            None => connect(&path, 1),
        };
        set_up(&mut frontend, &Driver::new(8), 1);
        drop(runs(&told));
        drop(new);
    }
}

#[test]
fn a_session_that_nobody_has_met_yet_goes_on_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.sock");
    let (old, _) = session(&path, true, 2);
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let moved = frozen(&old);
    assert!(moved.stream.is_none() && moved.listener.is_some() && moved.queues.is_empty());
    let (sender, told) = channel();
    let tell = move |what| {
        let _ = sender.send(what);
    };
    let socket = Socket { path: path.clone(), listens: true, pairs: 2 };
    let _new = Session::resume(socket, moved, Arc::new(tell)).unwrap();
    old.leave();
    drop(old);
    let mut frontend = connect(&path, 2);
    set_up(&mut frontend, &Driver::new(8), 2);
    assert_eq!(runs(&told).pairs(), 1);
    assert!(path.exists());
}

#[test]
fn half_a_message_is_not_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.sock");
    let (session, _) = session(&path, true, 1);
    drop(connect(&path, 1));
    let mut stream = UnixStream::connect(&path).unwrap();
    let message: Vec<u8> = [1_u32, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    stream.write_all(&message[..5]).unwrap();
    // Until the thread reads it, it may stand still.
    std::thread::sleep(Duration::from_millis(200));
    assert!(session.freeze().recv_timeout(Duration::from_millis(100)).is_err());
    session.thaw();
    stream.write_all(&message[5..]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 20]).unwrap();
}

#[test]
fn the_switch_connects_to_a_monitor_that_listens_whenever_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.sock");
    let (_session, told) = session(&path, false, 1);
    waits(&told, "b.sock");
    let driver = Driver::new(8);
    for _ in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut frontend = Frontend::from_stream(stream, 2);
        set_up(&mut frontend, &driver, 1);
        assert_eq!(runs(&told).pairs(), 1);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn half_a_message_keeps_its_own_port_waiting_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["slow.sock", "quick.sock"].map(|name| dir.path().join(name));
    let (_slow, _) = session(&paths[0], true, 1);
    let (_quick, told) = session(&paths[1], true, 1);
    drop(connect(&paths[0], 1));
    let mut slow = UnixStream::connect(&paths[0]).unwrap();
    // GET_FEATURES, byte by byte, while another port is set up.
    let message: Vec<u8> = [1_u32, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    slow.write_all(&message[..5]).unwrap();
    let driver = Driver::new(8);
    let mut frontend = connect(&paths[1], 1);
    set_up(&mut frontend, &driver, 1);
    assert_eq!(runs(&told).pairs(), 1);
    slow.write_all(&message[5..]).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reply = [0; 20];
    std::io::Read::read_exact(&mut slow, &mut reply).unwrap();
    assert_eq!(u64::from_le_bytes(reply[12..].try_into().unwrap()), feature::OFFERED);
}

#[test]
fn what_a_monitor_may_not_do_ends_its_connection_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.sock");
    let (_session, told) = session(&path, true, 1);
    let driver = Driver::new(8);
    let mut frontend = connect(&path, 1);
    set_up(&mut frontend, &driver, 1);
    drop(runs(&told));
    // A pipe is no event.
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: a descriptor that is owned by nobody else from here on.
    #[allow(unsafe_code)]
    let pipe = unsafe {
        <EventFd as std::os::fd::FromRawFd>::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(reader))
    };
    assert!(frontend.set_vring_kick(0, &pipe).is_err());
    let told_why = |words: &str| waits(&told, words);
    drop(frontend);
    told_why("no virtual machine");
    let frontend = connect(&path, 1);
    assert!(frontend.set_features(1 << 40).is_err() || frontend.get_features().is_err());
    told_why("not offered");
    // A file that is no socket stays.
    let other = dir.path().join("file");
    std::fs::write(&other, "mine").unwrap();
    let (_other, told) = self::session(&other, true, 1);
    waits(&told, "no socket");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    // One that somebody listens on is not taken away.
    let taken = dir.path().join("taken.sock");
    let _listener = UnixListener::bind(&taken).unwrap();
    let (_taken, told) = self::session(&taken, true, 1);
    waits(&told, "another process listens");
    let _ = event();
}
