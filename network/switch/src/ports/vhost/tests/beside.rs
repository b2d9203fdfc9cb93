//! A hostile monitor beside a machine of somebody else's, both met by real sessions and served by one thread as the engine serves them:
//! whatever the one does, the other's frames go on.

use super::super::calls::Batch;
use super::super::driver::{BYTES, Driver, GUEST, Taken, USER, WRITE, take};
use super::super::feature;
use super::super::guest::Guest;
use super::super::session::{Session, Told};
use super::bounded::{fill, waiting_event};
use super::meeting::{connect, session, set_up};
use super::{LONG, RX, TX, frame, post_frame};
use crate::engine::sys;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use weir_packet::virtio::VirtioNetHeader;

const PATIENCE: Duration = Duration::from_secs(60);
/// Hostile sessions of a run.
const SESSIONS: u64 = 48;
const FDS_MAX: usize = 32;

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One at the end of something, mostly.
    fn odd(&mut self) -> u64 {
        const ODD: [u64; 14] = [
            0,
            1,
            2,
            8,
            33,
            256,
            65_536,
            1 << 31,
            1 << 32,
            1 << 46,
            1 << 47,
            1 << 63,
            u64::MAX - 4095,
            u64::MAX,
        ];
        if self.below(3) > 0 { ODD[self.below(14) as usize] } else { self.next() }
    }
}

/// Serves both as the engine does: takes what they give, gives it to both, and interrupts.
fn serve(told: [Receiver<Told>; 2], sessions: [Session; 2], ends: &AtomicBool) {
    let (mut guests, mut room, mut batch) = ([None::<Box<Guest>>, None], vec![0; 70_000], Batch::default());
    while !ends.load(Relaxed) {
        for (number, told) in told.iter().enumerate() {
            while let Ok(told) = told.try_recv() {
                guests[number] = if let Told::Runs(guest) = told { Some(guest) } else { None };
            }
        }
        let mut frames = Vec::new();
        for guest in guests.iter_mut().flatten() {
            let header = guest.header_bytes();
            for _ in 0..guest.begin(0, 64) {
                if let Taken::Frame(bytes) = take(guest, 0, &mut room) {
                    frames.push(room[header..bytes].to_vec());
                }
            }
        }
        for guest in guests.iter_mut().flatten() {
            for frame in &frames {
                let _ = guest.send(&VirtioNetHeader::default(), &[sys::piece(frame)], || 0);
            }
            guest.show();
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        guests.iter_mut().flatten().for_each(|guest| guest.interrupt(&mut batch));
        batch.give();
        for (guest, session) in guests.iter_mut().zip(&sessions) {
            if guest.as_ref().is_some_and(|guest| guest.is_lost()) {
                *guest = None;
                session.disconnect();
            }
        }
        if frames.is_empty() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The machine whose frames must go on: each comes back to it.
struct Neighbour {
    driver: Driver,
    sent: usize,
}

impl Neighbour {
    fn exchanges(&mut self, doing: &str) {
        for _ in 0..4 {
            self.sent += 1;
            // A length that nobody else's frame has.
            let mine = frame(700 + self.sent % 300);
            let (start, mut came, mut turn) = (Instant::now(), false, 0);
            while !came {
                // What came of the other's may have had the room: then once more.
                if turn % 500 == 0 {
                    let at = self.driver.buffer(2048);
                    self.driver.post(RX, &[(at, 2048)], WRITE);
                    post_frame(&mut self.driver, &mine);
                }
                turn += 1;
                assert!(
                    start.elapsed() < PATIENCE,
                    "the neighbour's frame is lost while the monitor {doing}"
                );
                for (head, bytes) in self.driver.take_used(RX) {
                    let at = self.driver.buffer_of(RX, head);
                    came |= self.driver.read(at + LONG, bytes as usize - LONG) == mine;
                    if !came {
                        // A frame of the other's.
                        self.driver.post(RX, &[(at, 2048)], WRITE);
                    }
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            self.driver.take_used(TX);
        }
    }
}

/// A monitor that means harm, at the level of messages.
struct Monitor {
    stream: UnixStream,
    driver: Driver,
    calls: [OwnedFd; 2],
    kicks: [OwnedFd; 2],
}

impl Monitor {
    fn new(path: &std::path::Path) -> Monitor {
        drop(connect(path, 1));
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let events = || [waiting_event(), waiting_event()];
        Monitor { stream, driver: Driver::new(16), calls: events(), kicks: events() }
    }

    /// Says something; returns whether anybody listens still.
    fn say(&self, request: u32, flags: u32, size: u32, content: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut message: Vec<u8> =
            [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect();
        message.extend_from_slice(content);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds[..fds.len().min(FDS_MAX)]));
        }
        sendmsg(&self.stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    fn tell(&self, request: u32, words: &[u64], fds: &[BorrowedFd<'_>]) -> bool {
        let content: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.say(request, 1, content.len() as u32, &content, fds)
    }

    /// Whatever was answered.
    fn hear(&self) {
        let _ = std::io::Read::read(&mut &self.stream, &mut [0; 4096]);
    }

    fn pair(low: u64, high: u64) -> u64 {
        low | high << 32
    }

    /// Sets a device up, as a proper one would.
    fn start(&self, features: u64) {
        self.tell(3, &[], &[]);
        self.tell(2, &[feature::VERSION_1 | features], &[]);
        self.tell(5, &[1, GUEST, BYTES as u64, USER, 0], &[self.driver.file.as_fd()]);
        for queue in 0..2_u64 {
            let at = self.driver.addresses(queue as usize);
            self.tell(8, &[Monitor::pair(queue, 16)], &[]);
            self.tell(9, &[Monitor::pair(queue, 0), at.descriptors, at.used, at.available, 0], &[]);
            self.tell(13, &[queue], &[self.calls[queue as usize].as_fd()]);
            self.tell(12, &[queue], &[self.kicks[queue as usize].as_fd()]);
        }
    }

    /// Frames that want interrupts, and room for as many.
    fn traffic(&mut self) {
        for _ in 0..8 {
            post_frame(&mut self.driver, &frame(40));
            let at = self.driver.buffer(2048);
            self.driver.post(RX, &[(at, 2048)], WRITE);
        }
    }

    /// Waits until the device runs: its first frames were taken.
    fn runs(&mut self) {
        self.traffic();
        let start = Instant::now();
        while self.driver.take_used(TX).is_empty() {
            assert!(start.elapsed() < PATIENCE, "the hostile device runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Random messages with random descriptors.
    fn babble(&self, dice: &mut Dice) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let pool = [
            self.driver.file.as_fd(),
            self.calls[0].as_fd(),
            self.kicks[1].as_fd(),
            reader.as_fd(),
            writer.as_fd(),
            null.as_fd(),
            socket.as_fd(),
        ];
        for _ in 0..dice.below(40) {
            let request = [2, 5, 8, 9, 10, 11, 12, 13, 14, 16, 18, 24, 37, 99][dice.below(14) as usize];
            let words = [0, 1, 1, 2, 5, 5, 9, 33][dice.below(8) as usize];
            let mut content: Vec<u64> = (0..words).map(|_| dice.odd()).collect();
            if let (5, Some(first)) = (request, content.first_mut()) {
                *first = dice.below(34);
            }
            let content: Vec<u8> = content.iter().flat_map(|word| word.to_le_bytes()).collect();
            let fds: Vec<BorrowedFd<'_>> = (0..[0, 0, 1, 1, 2, 8, 32][dice.below(7) as usize])
                .map(|_| pool[dice.below(pool.len() as u64) as usize])
                .collect();
            let size = if dice.below(6) == 0 { dice.odd() as u32 } else { content.len() as u32 };
            let flags = [1, 1, 1, 9, 5, 0][dice.below(6) as usize];
            if !self.say(request, flags, size, &content, &fds) {
                return;
            }
        }
    }

    /// As much memory as the messages hold, region behind region.
    fn lend_without_end(&self) {
        let file = rustix::fs::memfd_create("big", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 46).unwrap();
        for shift in [46, 43, 41] {
            let mut words = vec![32];
            (0..32_u64).for_each(|at| words.extend([at << shift, 1 << shift, at << shift, 0]));
            self.tell(5, &words, &[file.as_fd(); 32]);
        }
    }

    /// Writes what no driver would.
    fn scribble(&mut self, dice: &mut Dice) {
        for queue in [RX, TX] {
            for number in 0..16 {
                let [address, length] = [GUEST + dice.below(1 << 23), dice.odd()];
                let bytes = Driver::descriptor(
                    address,
                    length as u32,
                    dice.next() as u16 & 7,
                    dice.next() as u16 % 18,
                );
                self.driver.put_descriptor(queue, number, &bytes);
                self.driver.offer(queue, dice.below(18) as u16);
            }
            if dice.below(2) == 0 {
                self.driver.set_available(queue, dice.next() as u16);
            }
        }
    }

    fn harm(&mut self, way: u64, dice: &mut Dice) -> &'static str {
        match way {
            0 => {
                self.start(0);
                self.runs();
                self.calls.iter().for_each(fill);
                self.traffic();
                "lets its interrupts' counts be full, and has writers wait"
            }
            1 => {
                self.start(0);
                self.runs();
                self.lend_without_end();
                "lends memory without end"
            }
            2 => {
                self.start(feature::EVENT_IDX);
                self.babble(dice);
                "says anything"
            }
            3 => {
                self.start(feature::MRG_RXBUF);
                self.scribble(dice);
                "writes anything"
            }
            4 => {
                self.start(0);
                self.runs();
                rustix::fs::ftruncate(&self.driver.file, 0).unwrap();
                // What is mapped here is gone as well: it touches nothing any more.
                "takes its memory back"
            }
            5 => {
                self.start(feature::PROTOCOL_FEATURES);
                for turn in 0..200 {
                    self.tell(18, &[Monitor::pair(turn % 2, turn / 2 % 2)], &[]);
                }
                "starts and stops its queues again and again"
            }
            6 => {
                self.say(5, 1, 4000, &[0; 7], &[]);
                "says half of something"
            }
            _ => {
                self.start(0);
                for queue in 0..2_usize {
                    // One event for all.
                    self.tell(13, &[queue as u64], &[self.kicks[0].as_fd()]);
                    self.tell(12, &[queue as u64], &[self.kicks[0].as_fd()]);
                }
                fill(&self.kicks[0]);
                self.traffic();
                "kicks itself"
            }
        }
    }
}

#[test]
fn whatever_a_monitor_does_the_machine_beside_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["hostile.sock", "neighbour.sock"].map(|name| dir.path().join(name));
    let [(hostile, told_of), (quiet, told)] = [session(&paths[0], true, 1), session(&paths[1], true, 1)];
    let ends = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ends);
    let server = std::thread::spawn(move || serve([told_of, told], [hostile, quiet], &seen));
    let mut neighbour = Neighbour { driver: Driver::new(16), sent: 0 };
    let mut frontend = connect(&paths[1], 1);
    set_up(&mut frontend, &neighbour.driver, 1);
    neighbour.exchanges("is not there yet");
    for seed in 0..SESSIONS {
        let (mut dice, mut monitor) = (Dice(seed), Monitor::new(&paths[0]));
        let doing = monitor.harm(seed % 8, &mut dice);
        neighbour.exchanges(doing);
        monitor.hear();
        drop(monitor);
        neighbour.exchanges("goes");
    }
    ends.store(true, Relaxed);
    server.join().unwrap();
}
