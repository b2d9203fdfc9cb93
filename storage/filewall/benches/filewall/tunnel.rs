//! The paper's baseline: a TCP tunnel that looks at nothing, with FileWall's own threads (a thread that accepts, workers with one
//! epoll each, a connection to the server for each of a client). `copy` moves bytes through a buffer of 256 KB, `splice`
//! through a pipe in the kernel.

use super::{Failure, failed, place};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const BUFFER_BYTES: usize = 256 << 10;

/// What was read and not yet written.
enum Between {
    Buffer { bytes: Vec<u8>, start: usize, end: usize },
    Pipe { read: OwnedFd, write: OwnedFd, inside: usize },
}

impl Between {
    fn new(spliced: bool) -> std::io::Result<Between> {
        if !spliced {
            return Ok(Between::Buffer { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0 });
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::pipe::fcntl_setpipe_size(&write, BUFFER_BYTES)?;
        Ok(Between::Pipe { read, write, inside: 0 })
    }

    fn is_empty(&self) -> bool {
        match self {
            Between::Buffer { start, end, .. } => start == end,
            Between::Pipe { inside, .. } => *inside == 0,
        }
    }

    /// Reads once; false at the end.
    fn fill(&mut self, mut from: &TcpStream) -> std::io::Result<bool> {
        match self {
            Between::Buffer { bytes, end, .. } => {
                let count = from.read(&mut bytes[*end..])?;
                *end += count;
                Ok(count > 0)
            }
            Between::Pipe { write, inside, .. } => {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                let count = splice(from, None, &*write, None, BUFFER_BYTES, flags)?;
                *inside += count;
                Ok(count > 0)
            }
        }
    }

    fn drain(&mut self, mut to: &TcpStream) -> std::io::Result<()> {
        match self {
            Between::Buffer { bytes, start, end } => {
                while start < end {
                    *start += to.write(&bytes[*start..*end])?;
                }
                (*start, *end) = (0, 0);
            }
            Between::Pipe { read, inside, .. } => {
                while *inside > 0 {
                    *inside -=
                        splice(&*read, None, to, None, *inside, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?;
                }
            }
        }
        Ok(())
    }
}

struct Pair {
    ends: [TcpStream; 2],
    between: [Between; 2],
    watched: [epoll::EventFlags; 2],
}

impl Pair {
    fn new(client: TcpStream, spliced: bool) -> std::io::Result<Pair> {
        let server = TcpStream::connect(place::nfs())?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        let between = [Between::new(spliced)?, Between::new(spliced)?];
        Ok(Pair { ends: [client, server], between, watched: [epoll::EventFlags::IN; 2] })
    }

    /// Moves what can be moved in one direction; false when the connection has ended.
    fn pump(&mut self, direction: usize) -> bool {
        let (from, to) = (&self.ends[direction], &self.ends[1 - direction]);
        let between = &mut self.between[direction];
        if between.is_empty() {
            match between.fill(from) {
                Ok(true) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(false) | Err(_) => return false,
            }
        }
        match between.drain(to) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            result => result.is_ok(),
        }
    }
}

/// Where a worker gets its connections from.
type Inbox = Sender<(u64, Pair)>;

struct Worker {
    epoll: Arc<OwnedFd>,
    new: Receiver<(u64, Pair)>,
    pairs: HashMap<u64, Pair>,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::with_capacity(128);
        loop {
            events.clear();
            if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None).is_err() {
                continue;
            }
            self.pairs.extend(self.new.try_iter());
            for event in &events {
                self.event(event.data.u64(), event.flags);
            }
        }
    }

    fn event(&mut self, token: u64, flags: epoll::EventFlags) {
        let (number, end) = (token >> 1, (token & 1) as usize);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let mut alive = true;
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            alive &= pair.pump(end);
        }
        if flags.contains(epoll::EventFlags::OUT) && !pair.between[1 - end].is_empty() {
            alive &= pair.pump(1 - end);
        }
        if !alive || watch(&self.epoll, number, pair).is_err() {
            self.pairs.remove(&number);
        }
    }
}

/// An end is read while nothing of it waits, and written while something does.
fn watch(epoll: &OwnedFd, number: u64, pair: &mut Pair) -> rustix::io::Result<()> {
    for end in 0..2 {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, pair.between[end].is_empty());
        flags.set(epoll::EventFlags::OUT, !pair.between[1 - end].is_empty());
        if pair.watched[end] != flags {
            epoll::modify(epoll, &pair.ends[end], data(number, end), flags)?;
            pair.watched[end] = flags;
        }
    }
    Ok(())
}

fn data(number: u64, end: usize) -> epoll::EventData {
    epoll::EventData::new_u64(number << 1 | end as u64)
}

/// Serves a port until the process is ended.
pub fn run(port: u16, spliced: bool) -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed("listen"))?;
    let mut workers: Vec<(Arc<OwnedFd>, Inbox)> = Vec::new();
    for _ in 0..super::WORKERS {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("make an epoll"))?;
        let epoll = Arc::new(epoll);
        let (sender, new) = channel();
        workers.push((epoll.clone(), sender));
        std::thread::spawn(move || Worker { epoll, new, pairs: HashMap::new() }.run());
    }
    for (number, stream) in listener.incoming().enumerate() {
        let pair = Pair::new(stream.map_err(failed("accept"))?, spliced).map_err(failed("connect"))?;
        let (epoll, sender) = &workers[number % workers.len()];
        for (end, stream) in pair.ends.iter().enumerate() {
            let data = data(number as u64, end);
            epoll::add(epoll, stream, data, epoll::EventFlags::IN).map_err(failed("watch"))?;
        }
        // An event that comes before the pair does is told again.
        sender.send((number as u64, pair)).map_err(|_| Failure("a worker has ended".to_string()))?;
    }
    Ok(())
}
