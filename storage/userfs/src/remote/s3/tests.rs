//! A store that is busy for good: what a program waits is what is promised, by a clock that only the store and the pauses move.

use super::*;
use crate::backend::{Backend, ROOT, Replace};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What is documented.
const PROMISED: Duration = Duration::from_secs(30);

const LISTING: &str = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
    <Name>bucket</Name><Prefix></Prefix><IsTruncated>false</IsTruncated><Contents><Key>file</Key>\
    <LastModified>2030-01-01T00:00:00.000Z</LastModified><Size>4</Size></Contents></ListBucketResult>";

#[derive(Default)]
struct Store {
    /// Milliseconds.
    now: AtomicU64,
    busy: AtomicBool,
    /// What each answer takes, milliseconds.
    slow: AtomicU64,
    /// When each call came.
    calls: Mutex<Vec<Duration>>,
}

impl Clock for Arc<Store> {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.now.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Store {
    fn answer(self: &Arc<Store>, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut first, mut sent) = (String::new(), 0);
        reader.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                sent = length.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; sent])?;
        self.calls.lock().unwrap().push(self.now());
        self.sleep(Duration::from_millis(self.slow.load(Ordering::SeqCst)));
        let (code, body) = match first.contains("list-type") {
            _ if self.busy.load(Ordering::SeqCst) => {
                ("503 Slow Down", "<Error><Code>SlowDown</Code></Error>")
            }
            true => ("200 OK", LISTING),
            false => ("200 OK", "four"),
        };
        let length = body.len();
        let body = if first.starts_with("HEAD") { "" } else { body };
        let head = format!(
            "HTTP/1.1 {code}\r\nContent-Length: {length}\r\nETag: \"one\"\r\nConnection: close\r\n\r\n"
        );
        let mut stream = stream;
        stream.write_all(format!("{head}{body}").as_bytes())
    }

    /// Serves as long as the test runs.
    fn serve(self: &Arc<Store>) -> u16 {
        let (listener, store) = (TcpListener::bind("127.0.0.1:0").unwrap(), self.clone());
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that went away is its own affair.
                let _ = stream.and_then(|stream| store.answer(&stream));
            }
        });
        port
    }

    /// How many calls an operation made; none later than is promised, nor did it last longer.
    fn of<T>(self: &Arc<Store>, work: impl FnOnce() -> T) -> (T, usize) {
        let before = self.calls.lock().unwrap().len();
        let begun = self.now();
        let done = work();
        let calls = self.calls.lock().unwrap()[before..].to_vec();
        let slow = Duration::from_millis(self.slow.load(Ordering::SeqCst));
        assert!(calls.iter().all(|at| *at < begun + PROMISED), "begun at {begun:?}: {calls:?}");
        // The last answer may take its time: the real one is cut off (`within`), as its clock moves.
        let took = self.now() - begun;
        assert!(took < PROMISED + slow, "{took:?}");
        (done, calls.len())
    }

    fn opened(self: &Arc<Store>) -> Remote<S3> {
        let endpoint = format!("http://127.0.0.1:{}", self.serve());
        let settings = Settings { endpoint: Some(endpoint), ..Settings::default() };
        open_by("s3://bucket", "//bucket", &settings, Box::new(self.clone())).unwrap()
    }

    /// Nobody asks it for a while.
    fn rests(&self) {
        self.now.fetch_add(2 * PROMISED.as_millis() as u64, Ordering::SeqCst);
    }
}

#[test]
fn a_store_that_stays_busy_is_asked_for_as_long_as_is_promised() {
    for slow in [0, 400, 7_000, 20_000] {
        let store: Arc<Store> = Arc::default();
        let files = store.opened();
        let name = OsStr::new("file");
        let inode = files.lookup(ROOT, name).unwrap().inode;
        files.open(inode).unwrap();
        store.slow.store(slow, Ordering::SeqCst);
        type Operation<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);
        let operations: [Operation<'_>; 7] = [
            ("look", Box::new(|| files.lookup(ROOT, OsStr::new("other")).map(drop))),
            ("open", Box::new(|| files.open(inode).map(drop))),
            ("read", Box::new(|| files.read(inode, 0, &mut [0; 4]).map(drop))),
            ("list", Box::new(|| files.list(ROOT, 0, &mut |_| true))),
            ("make", Box::new(|| files.make_directory(ROOT, OsStr::new("folder"), new()).map(drop))),
            ("rename", Box::new(|| files.rename((ROOT, name), (ROOT, OsStr::new("new")), Replace::Yes))),
            ("write", Box::new(|| files.write(inode, 0, b"four", false).map(drop))),
        ];
        for (what, work) in &operations {
            store.rests();
            store.busy.store(true, Ordering::SeqCst);
            let (done, calls) = store.of(work);
            assert_eq!(done, Err(Errno::IO), "{what}, {slow} ms an answer");
            assert!(calls > 1, "{what}, {slow} ms an answer: it was not asked again");
            // From then on once a call.
            assert_eq!(store.of(work), (Err(Errno::IO), 1), "{what}, {slow} ms an answer");
            store.busy.store(false, Ordering::SeqCst);
            files.list(ROOT, 0, &mut |_| true).unwrap();
            // It has answered: now it has its time again.
            store.busy.store(true, Ordering::SeqCst);
            let (done, calls) = store.of(work);
            assert!(done == Err(Errno::IO) && calls > 1, "{what}, {slow} ms an answer: {calls} calls");
            store.busy.store(false, Ordering::SeqCst);
        }
        // What was written is put up when it is closed, and whoever closes it hears that it is not.
        files.write(inode, 0, b"four", false).unwrap();
        store.rests();
        store.busy.store(true, Ordering::SeqCst);
        let (done, calls) = store.of(|| files.close(inode));
        assert!(done == Err(Errno::IO) && calls > 1, "close, {slow} ms an answer: {calls} calls");
        let notes = files.notes().join("; ");
        assert!(notes.contains("22 were given up"), "{notes}");
    }
}

fn new() -> crate::backend::New {
    crate::backend::New { mode: 0o755, device: 0, user: 0, group: 0 }
}

#[test]
fn each_try_hears_how_much_time_is_left() {
    let store: Arc<Store> = Arc::default();
    let tries = Tries::new(Box::new(store.clone()));
    let mut told = Vec::new();
    let done: Result<()> = tries.run(|most| {
        told.push((store.now(), most));
        store.sleep(Duration::from_secs(4));
        Tried::Weak(Errno(libc::ETIMEDOUT))
    });
    assert_eq!(done, Err(Errno(libc::ETIMEDOUT)));
    assert!(told.len() > 3, "{told:?}");
    assert!(told.iter().all(|(at, most)| *at + *most == PROMISED && !most.is_zero()), "{told:?}");
    // An answer that refuses is one.
    assert_eq!(tries.run::<()>(|_| Tried::Refused(Errno::NOT_FOUND)), Err(Errno::NOT_FOUND));
    let mut again = 0;
    let done = tries.run(|_| {
        again += 1;
        if again < 3 { Tried::Weak(Errno::IO) } else { Tried::Done(again) }
    });
    assert_eq!(done, Ok(3));
}
