//! A real process that is killed with SIGKILL in the midst of appending.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use weir_base::world::{RealClock, RealDisk, Rng};
use weir_order::{BatcherSettings, Entry, OpenedLocal, Settings, Submitter, batcher};

use super::witness::{id_of, payload};

const DIR: &str = "WEIR_ORDER_KILL_DIR";
const FIRST: &str = "WEIR_ORDER_KILL_FIRST";
const NAME: &str = "suite::kill::nothing_acknowledged_is_lost_by_a_kill";
const OUTSTANDING: usize = 32;

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.log.segment_bytes = 1 << 20;
    settings.log.batch_bytes_max = 512 << 10;
    settings.local.batch_bytes_max = 512 << 10;
    settings
}

/// Submits proposals for ever and prints each that was acknowledged.
fn child(dir: &Path, first: u64) {
    let opened = OpenedLocal::open(Arc::new(RealDisk::open(dir).unwrap()), settings()).unwrap();
    let engine = Arc::new(opened.start(Box::new(|_: &Entry| {})).unwrap());
    let submitter = Submitter::new(engine, Arc::new(RealClock::new()), BatcherSettings::default()).unwrap();
    let (free, slots) = sync_channel(OUTSTANDING);
    for id in first.. {
        if id - first >= OUTSTANDING as u64 {
            slots.recv().unwrap();
        }
        let free = free.clone();
        let reply = move |result: Result<_, weir_order::Error>| {
            result.unwrap();
            println!("ack {id}");
            std::io::stdout().flush().unwrap();
            free.send(()).unwrap();
        };
        submitter.submit(payload(id), Box::new(reply));
    }
}

/// Kills and reaps the child also when an assertion fails.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _gone = (self.0.kill(), self.0.wait());
    }
}

/// Runs the child until it has acknowledged `acks` proposals and gives all ids it acknowledged.
fn run_and_kill(dir: &Path, first: u64, acks: u64) -> Vec<u64> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir).env(FIRST, first.to_string()).stdout(Stdio::piped());
    let mut child = Reaped(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    let mut killed = false;
    for line in lines.by_ref().map_while(Result::ok) {
        // A line goes through the pipe in one piece, so the kill cuts none short.
        if let Some(id) = line.strip_prefix("ack ").and_then(|id| id.parse().ok()) {
            seen.push(id);
        }
        if seen.len() as u64 >= acks && !killed {
            child.0.kill().unwrap();
            killed = true;
        }
    }
    assert!(killed, "the child ended by itself after {} acknowledgements", seen.len());
    seen
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill() {
    if let (Ok(dir), Ok(first)) = (std::env::var(DIR), std::env::var(FIRST)) {
        child(Path::new(&dir), first.parse().unwrap());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(std::process::id().into());
    let (mut first, mut acknowledged) = (1, Vec::new());
    for _ in 0..6 {
        acknowledged.extend(run_and_kill(dir.path(), first, 1 + rng.below(600)));
        let opened = OpenedLocal::open(Arc::new(RealDisk::open(dir.path()).unwrap()), settings()).unwrap();
        let mut there = Vec::new();
        for entry in opened.replay().unwrap() {
            for operation in batcher::decode(&entry.unwrap().batch).unwrap() {
                there.push(id_of(operation).unwrap());
            }
        }
        assert!(there.windows(2).all(|pair| pair[0] < pair[1]), "out of order or twice");
        let lost: Vec<&u64> = acknowledged.iter().filter(|id| there.binary_search(id).is_err()).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        first = there.last().unwrap() + 1;
    }
    assert!(acknowledged.len() >= 6);
}
