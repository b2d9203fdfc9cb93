//! What a monitor offers, one by one: events whose flags it changes, memory without end.

use super::super::bounds::{Budget, LENT_BYTES_MAX, LENT_BYTES_MAX_PORT, apart};
use super::super::calls::{Batch, CALLS_MAX, Calls};
use super::super::driver::{BYTES, Driver, GUEST, USER, take_event};
use super::super::memory::{Lent, Memory};
use super::super::offered::{self, Event, MemoryFile};
use super::super::touched::{All, Touched};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// An eventfd without a flag.
pub fn waiting_event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

/// Has whoever writes to it wait.
pub fn fill(event: impl AsFd) {
    rustix::io::ioctl_fionbio(&event, true).unwrap();
    // What is in it already leaves no room for the most: whatever there is, it is full behind these.
    for shift in (0..u64::BITS).rev() {
        let _ = rustix::io::write(&event, &(1_u64 << shift).to_ne_bytes());
    }
    rustix::io::ioctl_fionbio(&event, false).unwrap();
}

#[test]
fn an_event_that_is_full_and_set_to_wait_keeps_nobody_waiting() {
    let (done, is_done) = channel();
    // Apart, so that one who waits for ever is seen.
    std::thread::spawn(move || {
        let calls = Calls::shared().unwrap();
        let file = waiting_event();
        let event = Event::offered(file.try_clone().unwrap()).unwrap();
        let healthy = Event::offered(waiting_event()).unwrap();
        fill(&file);
        let mut batch = Batch::default();
        for _ in 0..2 * CALLS_MAX + 1 {
            batch.add(calls, &event);
            batch.add(calls, &healthy);
        }
        assert_eq!(batch.give(), 4 * CALLS_MAX as u64 + 2);
        assert_eq!(batch.give(), 0, "each is given once");
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "its flags are its owner's");
        assert_eq!(take_event(&healthy), 2 * CALLS_MAX as u64 + 1, "the other's came");
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("it goes on");
}

#[test]
fn only_an_eventfd_is_an_event() {
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let memory = Driver::new(8).file.try_clone().unwrap();
    for other in [reader, socket.into(), null.into(), memory] {
        let error = Event::offered(other).unwrap_err().to_string();
        assert!(error.contains("must be an eventfd"), "{error}");
    }
    assert!(offered::event(None).unwrap().is_none());
}

#[test]
fn a_monitors_numbers_are_taken_as_they_may_be() {
    for (size, right) in [(1, true), (256, true), (32_768, true), (0, false), (3, false), (65_536, false)] {
        assert_eq!(offered::queue_size(0, size).is_ok(), right, "{size}");
    }
    assert!(offered::queue_size(0, u32::MAX).unwrap_err().to_string().contains("power of two"));
    assert_eq!(offered::queue_index(3, 4), Ok(3));
    assert!(offered::queue_index(4, 4).unwrap_err().to_string().contains("there are 4 queues"));
    assert_eq!(offered::features(0b101, 0b111), Ok(0b101));
    assert!(offered::features(0b1000, 0b111).unwrap_err().to_string().contains("0x8"));
}

fn lent(guest: u64, user: u64, length: u64) -> Lent {
    Lent { guest, user, length, offset: 0 }
}

#[test]
fn regions_that_overlap_are_refused() {
    let page = 4096;
    for (regions, right) in [
        (vec![lent(0, USER, page), lent(page, USER + page, page)], true),
        (vec![lent(page, USER, page), lent(0, USER + page, page)], true),
        (vec![lent(0, USER, page), lent(page - 1, USER + page, page)], false),
        (vec![lent(0, USER, page), lent(page, USER + page - 1, page)], false),
        (vec![lent(0, USER, 8 * page), lent(page, USER + 16 * page, page)], false),
        (vec![lent(0, USER, page), lent(0, USER, page)], false),
    ] {
        let result = apart(&regions);
        assert_eq!(result.is_ok(), right, "{regions:?}: {result:?}");
        let driver = Driver::new(8);
        let offered = regions.iter().map(|lent| (*lent, driver.file.try_clone().unwrap())).collect();
        assert_eq!(Memory::map(offered).is_ok(), right, "{regions:?}");
    }
}

#[test]
fn lent_memory_is_bounded_by_port_and_in_all_and_nobody_takes_what_others_need() {
    static BUDGET: Budget = Budget::new();
    let refused = BUDGET.take(LENT_BYTES_MAX_PORT + 1).unwrap_err().to_string();
    assert!(refused.contains("a port may lend"), "{refused}");
    let mut shares = vec![BUDGET.take(LENT_BYTES_MAX_PORT).unwrap()];
    // One owner's ports, as many as it likes, each as much as it gets.
    let mut bytes = LENT_BYTES_MAX_PORT;
    while bytes >= 1 << 40 {
        match BUDGET.take(bytes) {
            Ok(share) => shares.push(share),
            Err(_) => bytes /= 2,
        }
    }
    assert!(BUDGET.lent() <= LENT_BYTES_MAX);
    let common = BUDGET.take(64 << 30).expect("a machine of common size finds room");
    drop((shares, common));
    assert_eq!(BUDGET.lent(), 0, "all is given back");
}

#[test]
fn a_file_without_end_is_refused_and_what_is_mapped_is_what_was_lent() {
    let file = rustix::fs::memfd_create("big", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 46).unwrap();
    let clone = || file.try_clone().unwrap();
    let offer = |regions: Vec<Lent>| Memory::map(regions.into_iter().map(|lent| (lent, clone())).collect());
    let whole = offer(vec![lent(0, USER, 1 << 46)]).unwrap_err().to_string();
    assert!(whole.contains("a port may lend"), "{whole}");
    let part = (LENT_BYTES_MAX_PORT / 32) + 4096;
    let parts: Vec<Lent> = (0..32).map(|at| lent(at * part, USER + at * part, part)).collect();
    assert!(offer(parts).unwrap_err().to_string().contains("a port may lend"));
    // One page, far behind the beginning: it costs a page.
    let far = Lent { offset: (1 << 45) + 100, ..lent(GUEST, USER, 4090) };
    let memory = offer(vec![far]).unwrap();
    let (at, there) = memory.at(GUEST, 4090).unwrap();
    assert_eq!((there, at as usize % 4096), (4090, 100));
    let bytes = [7_u8; 4];
    rustix::io::pwrite(&file, &bytes, (1 << 45) + 100).unwrap();
    // SAFETY: four lent bytes, which nobody changes now.
    #[allow(unsafe_code)]
    let read = unsafe { at.cast::<[u8; 4]>().read_volatile() };
    assert_eq!(read, bytes, "it is the right page");
    assert_eq!(memory.mapped_bytes(), 8192, "of two pages it touches");
    let driver = Driver::new(8);
    let memory = driver.memory();
    assert_eq!((memory.mapped_bytes(), memory.grown_bytes()), (BYTES as u64, 0));
    driver.write(BYTES / 2, &[1; 8192]);
    assert_eq!(memory.grown_bytes(), 8192, "pages that somebody touched are counted");
    assert_eq!(MemoryFile::offered(clone()).unwrap().length, 1 << 46);
}

/// A sparse file of memory.
pub(super) fn sparse(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    file
}

pub(super) fn map(file: &OwnedFd, bytes: u64) -> Memory {
    Memory::map(vec![(lent(GUEST, USER, bytes), file.try_clone().unwrap())]).unwrap()
}

/// The switch touches pages.
pub(super) fn touch(memory: &Memory, from: u64, bytes: u64) {
    for at in (from..from + bytes).step_by(4096) {
        let (page, _) = memory.at(GUEST + at, 1).unwrap();
        // SAFETY: a byte of lent memory.
        #[allow(unsafe_code)]
        unsafe {
            page.write_volatile(1);
        }
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn memory_that_the_switch_touches_first_is_counted_and_bounded() {
    static ALL: All = All::new(32 * MIB);
    let port = Touched::new(&ALL);
    let file = sparse(64 * MIB);
    let memory = map(&file, 64 * MIB);
    port.lent(&memory, Instant::now()).unwrap();
    assert_eq!(port.read(), (64 * MIB, 0));
    // What its owner touches is not charged to the switch, which may read it.
    rustix::io::pwrite(&file, &vec![1; 30 * MIB as usize], 0).unwrap();
    port.look(&memory).unwrap();
    assert_eq!(port.read().1, 0);
    touch(&memory, 30 * MIB, 8 * MIB);
    port.look(&memory).unwrap();
    assert_eq!((port.read().1, ALL.bytes()), (8 * MIB, 8 * MIB));
    touch(&memory, 38 * MIB, 10 * MIB);
    let reason = port.look(&memory).unwrap_err().to_string();
    assert!(
        reason.contains("18 MiB") && reason.contains("of 16 MiB") && reason.contains("prealloc=on"),
        "{reason}"
    );
    assert_eq!(ALL.refused(), 1);
    drop(memory);
    port.gone();
    assert_eq!(
        (port.read(), ALL.bytes()),
        ((0, 18 * MIB), 18 * MIB),
        "it is charged as long as the file lives"
    );
    // It comes back with the same file, and with one that is made.
    let again = port.lent(&map(&file, 64 * MIB), Instant::now()).unwrap_err().to_string();
    assert!(again.contains("prealloc=on"), "{again}");
    rustix::io::pwrite(&file, &vec![1; 64 * MIB as usize], 0).unwrap();
    port.lent(&map(&file, 64 * MIB), Instant::now()).expect("nothing is left to touch first");
    drop(port);
    assert_eq!(ALL.bytes(), 0);
}

#[test]
fn a_port_leaves_others_half_and_other_files_are_forgotten_seldom() {
    static ALL: All = All::new(32 * MIB);
    let (greedy, other) = (Touched::new(&ALL), Touched::new(&ALL));
    let now = Instant::now();
    // A monitor with new memory each time, of which it has the switch touch what it gets.
    let mut files = Vec::new();
    for _ in 0..8 {
        let file = sparse(16 * MIB);
        let memory = map(&file, 16 * MIB);
        if greedy.lent(&memory, now).is_err() {
            break;
        }
        touch(&memory, 0, 12 * MIB);
        greedy.look(&memory).unwrap_or_default();
        files.push(file);
    }
    assert_eq!(files.len(), 6, "one, four more that are taken for others, and one that is added to those");
    assert!(greedy.read().1 >= 16 * MIB, "then it is refused");
    let memory = map(&sparse(16 * MIB), 16 * MIB);
    other.lent(&memory, now).unwrap();
    touch(&memory, 0, 3 * MIB);
    other.look(&memory).expect("others have half of what it left");
}
