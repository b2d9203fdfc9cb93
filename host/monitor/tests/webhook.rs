//! The webhook beside receivers as they are: that refuse, are away, are slow, answer and forget, start anew; and after kill -9.
//!
//! ```text
//!  audit log ──► webhook ──TCP──► receiver (a thread here, whose manner changes)
//! ```

use crate::cage::until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_monitor::audit::{Log, What, read_all};
use weir_monitor::webhook::{Answer, Limits, Receiver, Settings, Webhook, judge};

/// So long a sender waits for an answer here.
const PATIENCE: Duration = Duration::from_millis(300);

/// A client of HTTP as small as it can be.
struct Http(SocketAddr);

impl Http {
    fn try_post(&self, message: &[u8]) -> std::io::Result<(u16, Option<String>)> {
        let mut stream = TcpStream::connect_timeout(&self.0, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "POST /alerts HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", message.len())?;
        stream.write_all(message)?;
        let (mut status, mut after) = (0, None);
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("retry-after: ") {
                after = Some(rest.to_string());
            } else if line.is_empty() {
                break;
            }
        }
        if status == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok((status, after)) }
    }
}

impl Receiver for Http {
    fn post(&mut self, message: &[u8]) -> Answer {
        match self.try_post(message) {
            Ok((status, after)) => judge(status, after.as_deref(), SystemTime::now()),
            Err(error) => Answer::Later { why: error.to_string(), after: None },
        }
    }
}

/// How a receiver answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    Takes,
    /// With this status, and how long it wants to be left alone, s.
    Says(u16, Option<u64>),
    /// Too late.
    Slow,
    /// Not at all: the connection ends.
    Hangs,
}

/// A receiver: what it took, and when it was asked.
struct Taker {
    address: SocketAddr,
    manner: Arc<Mutex<Manner>>,
    taken: Arc<Mutex<Vec<Value>>>,
    asked: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Taker {
    fn start(address: &str, manner: Manner) -> Taker {
        let mut listener = None;
        // Of one that has just ended, connections may still hold the address.
        until("the receiver's address", || {
            listener = TcpListener::bind(address).ok();
            listener.is_some()
        });
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let (manner, taken) = (Arc::new(Mutex::new(manner)), Arc::new(Mutex::new(Vec::new())));
        let (asked, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let kept = (manner.clone(), taken.clone(), asked.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (manner, taken, asked, stop) = kept;
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Some((body, mut stream)) = body(stream) else { continue };
                asked.fetch_add(1, Ordering::SeqCst);
                let manner = *manner.lock().unwrap();
                let (status, after) = match manner {
                    Manner::Hangs => continue,
                    Manner::Slow => {
                        std::thread::sleep(PATIENCE * 2);
                        (200, None)
                    }
                    Manner::Takes => (200, None),
                    Manner::Says(status, after) => (status, after),
                };
                if matches!(manner, Manner::Takes) {
                    taken.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                }
                let after = after.map_or(String::new(), |after| format!("retry-after: {after}\r\n"));
                drop(write!(stream, "HTTP/1.1 {status} x\r\n{after}content-length: 0\r\n\r\n"));
            }
        });
        Taker { address, manner, taken, asked, stop, thread: Some(thread) }
    }

    fn is(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// Policies whose alerts it took with a status, in order, each once.
    fn taken(&self, status: &str) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        let mut found: Vec<String> = Vec::new();
        for message in taken.iter().filter(|message| message["status"] == status) {
            let policy = message["commonLabels"]["policy"].as_str().unwrap().to_string();
            if !found.contains(&policy) {
                found.push(policy);
            }
        }
        found
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        drop(self.thread.take().unwrap().join());
    }
}

fn body(stream: TcpStream) -> Option<(Vec<u8>, TcpStream)> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(said) = line.strip_prefix("content-length: ") {
            length = said.trim().parse().ok();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length?];
    reader.read_exact(&mut body).ok()?;
    Some((body, reader.into_inner()))
}

/// Waits that a test can wait for.
fn settings(limits: Limits) -> Settings {
    Settings { limits, wait: Duration::from_millis(5), wait_max: Duration::from_millis(50) }
}

fn start(audit: &Path, address: SocketAddr) -> Webhook {
    Webhook::start(audit, Box::new(Http(address)), settings(Limits::default())).unwrap()
}

/// Writes the start of an alarm of a policy, and tells it.
fn alarm(log: &mut Log, webhook: Option<&Webhook>, policy: &str) {
    write(log, webhook, policy, What::Unsettled { left: 1 });
}

fn write(log: &mut Log, webhook: Option<&Webhook>, policy: &str, what: What) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let entry = log.write(now, Some(policy.into()), what).unwrap();
    if let Some(webhook) = webhook {
        webhook.tell(&entry);
    }
}

#[test]
fn a_receiver_that_refuses_is_away_or_is_slow_gets_all_of_it_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = Log::open(&audit).unwrap();
    let taker = Taker::start("127.0.0.1:0", Manner::Takes);
    let webhook = start(&audit, taker.address);
    let manners = [
        Manner::Says(503, None),
        Manner::Says(429, Some(0)),
        Manner::Says(404, None),
        Manner::Says(302, None),
        Manner::Slow,
        Manner::Hangs,
    ];
    let mut wanted = Vec::new();
    for (number, manner) in manners.into_iter().enumerate() {
        let policy = format!("p{number}");
        taker.is(manner);
        let before = taker.asked.load(Ordering::SeqCst);
        alarm(&mut log, Some(&webhook), &policy);
        // More often than what was given up after three tries.
        until("six tries", || taker.asked.load(Ordering::SeqCst) >= before + 6);
        assert_eq!(taker.taken("firing"), wanted, "{manner:?}");
        assert!(webhook.row().problem.is_some() && webhook.row().waiting == 1, "{:?}", webhook.row());
        taker.is(Manner::Takes);
        wanted.push(policy);
        until("the alert", || taker.taken("firing") == wanted);
    }
    until("an empty outbox", || webhook.row().waiting == 0);
    let row = webhook.row();
    assert_eq!((row.firing, row.dropped, row.refused, row.problem.clone()), (6, 0, 0, None), "{row:?}");
    assert!(row.failed >= 36 && row.sent >= 6, "{row:?}");
    // They end, too.
    write(&mut log, Some(&webhook), "p2", What::Settled { took_us: 1, again: 0 });
    until("its end", || taker.taken("resolved") == ["p2"]);
    assert_eq!(webhook.row().firing, 5);
}

#[test]
fn a_receiver_that_asks_to_be_left_alone_is() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = Log::open(&audit).unwrap();
    let taker = Taker::start("127.0.0.1:0", Manner::Says(503, Some(2)));
    let webhook = start(&audit, taker.address);
    let began = Instant::now();
    alarm(&mut log, Some(&webhook), "a");
    until("the first try", || taker.asked.load(Ordering::SeqCst) == 1);
    taker.is(Manner::Takes);
    until("the alert", || taker.taken("firing") == ["a"]);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(taker.asked.load(Ordering::SeqCst), 2);
}

#[test]
fn a_message_that_the_receiver_calls_wrong_does_not_hold_up_the_others_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = Log::open(&audit).unwrap();
    let taker = Taker::start("127.0.0.1:0", Manner::Says(422, None));
    let webhook = start(&audit, taker.address);
    alarm(&mut log, Some(&webhook), "a");
    until("that it is given up", || webhook.row().refused == 1);
    taker.is(Manner::Takes);
    alarm(&mut log, Some(&webhook), "b");
    until("the next", || taker.taken("firing") == ["b"]);
}

#[test]
fn what_a_receiver_that_starts_anew_has_not_taken_comes_after_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = Log::open(&audit).unwrap();
    let taker = Taker::start("127.0.0.1:0", Manner::Takes);
    let address = taker.address;
    let webhook = start(&audit, address);
    alarm(&mut log, Some(&webhook), "a");
    until("the first", || taker.taken("firing") == ["a"]);
    drop(taker);
    // More at once than the queue takes: those are read from the log.
    let policies: Vec<String> = (0..400).map(|number| format!("p{number:03}")).collect();
    for policy in &policies {
        alarm(&mut log, Some(&webhook), policy);
    }
    until("all in the outbox", || webhook.row().waiting >= 400);
    assert!(webhook.row().failed > 0);
    let taker = Taker::start(&address.to_string(), Manner::Takes);
    until("all of them", || taker.taken("firing").len() == 400);
    assert_eq!(taker.taken("firing"), policies, "in order");
}

#[test]
fn what_waits_too_long_gives_way_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut log = Log::open(&audit).unwrap();
    let taker = Taker::start("127.0.0.1:0", Manner::Hangs);
    let limits = Limits { count_max: 10, ..Limits::default() };
    let webhook = Webhook::start(&audit, Box::new(Http(taker.address)), settings(limits)).unwrap();
    for number in 0..30 {
        alarm(&mut log, Some(&webhook), &format!("p{number:02}"));
    }
    until("that the oldest are gone", || webhook.row().dropped == 20);
    taker.is(Manner::Takes);
    until("the newest", || taker.taken("firing").last().is_some_and(|policy| policy == "p29"));
    // One may have been on its way when it was dropped.
    assert!((10..=11).contains(&taker.taken("firing").len()), "{:?}", taker.taken("firing"));
}

#[test]
fn a_second_monitor_does_not_send_from_the_outbox_of_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let taker = Taker::start("127.0.0.1:0", Manner::Takes);
    let first = start(&audit, taker.address);
    let second = Webhook::start(&audit, Box::new(Http(taker.address)), settings(Limits::default()));
    let error = second.err().unwrap().to_string();
    assert!(error.contains("another monitor sends from it"), "{error}");
    drop(first);
    start(&audit, taker.address);
}

const CHILD: &str = "WEIR_TEST_WEBHOOK_CHILD";

/// What is killed by the test below: it writes alarms to the log, and sends them.
#[test]
fn child_that_is_killed() {
    let Ok(said) = std::env::var(CHILD) else { return };
    let (audit, address) = said.split_once(' ').unwrap();
    let mut log = Log::open(Path::new(audit)).unwrap();
    let webhook = start(Path::new(audit), address.parse().unwrap());
    println!("up");
    let first = read_all(Path::new(audit)).unwrap_or_default().len();
    for number in first.. {
        alarm(&mut log, Some(&webhook), &format!("p{number:06}"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_was_not_taken_is_sent_again_after_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let taker = Taker::start("127.0.0.1:0", Manner::Takes);
    for (round, manner) in
        [Manner::Takes, Manner::Hangs, Manner::Says(503, None), Manner::Takes, Manner::Slow]
            .iter()
            .enumerate()
    {
        taker.is(*manner);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "webhook::child_that_is_killed", "--nocapture"])
            .env(CHILD, format!("{} {}", audit.display(), taker.address))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.by_ref().any(|line| line.unwrap().contains("up")));
        let before = read_all(&audit).map_or(0, |all| all.len());
        // At no moment in particular.
        until("some entries", || std::fs::metadata(&audit).is_ok_and(|log| log.len() > 0));
        std::thread::sleep(Duration::from_millis(40 + 37 * round as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        mend(&audit);
        assert!(read_all(&audit).unwrap().len() >= before);
    }
    taker.is(Manner::Takes);
    let all: Vec<String> =
        read_all(&audit).unwrap().into_iter().filter_map(|(_, entry)| entry.policy).collect();
    assert!(!all.is_empty());
    let webhook = start(&audit, taker.address);
    until("all that the log has", || taker.taken("firing").len() == all.len());
    let mut taken = taker.taken("firing");
    taken.sort();
    assert_eq!(taken, all);
    assert_eq!(webhook.row().dropped, 0);
}

/// A kill may leave half a line, which a person cuts off.
fn mend(audit: &Path) {
    let bytes = std::fs::read(audit).unwrap();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    std::fs::write(audit, &bytes[..whole]).unwrap();
}
