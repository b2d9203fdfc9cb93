//! The checker of replicas: clients do what they like, servers suffer what befalls them, and at rest all live trees are equal and hold what
//! was acknowledged.

use super::{EXIST, HASTY, Stage, Talk};
use crate::disk::Fault;
use crate::oracle::Random;
use crate::played::BOUND;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_filewall::wire::nfs3::Op;

/// Seeds of the checker, and what each client does.
const SEEDS: [u64; 3] = [1, 2, 3];
const CLIENTS: usize = 3;
const STEPS: usize = 60;

/// What a client has in its folder, as far as it was acknowledged.
struct Own<'w> {
    talk: Talk<'w>,
    random: Random,
    folder: Vec<u8>,
    path: String,
    files: BTreeMap<String, Vec<u8>>,
    next: usize,
}

impl Own<'_> {
    fn name(&mut self) -> Option<String> {
        let names: Vec<String> = self.files.keys().cloned().collect();
        (!names.is_empty()).then(|| self.random.of(&names).clone())
    }

    /// Nobody knows what became of names: they are as they are now.
    fn adopt(&mut self, names: &[&str]) {
        for name in names {
            let came = self.talk.look(&self.folder, name);
            match came.status {
                0 => drop(self.files.insert(name.to_string(), self.talk.read(&came.handle()))),
                _ => drop(self.files.remove(*name)),
            }
        }
    }

    fn create(&mut self) {
        self.next += 1;
        let name = format!("f{}", self.next);
        match self.talk.make(Op::Create, &self.folder, &name).map(|came| came.status) {
            Some(0) => drop(self.files.insert(name, Vec::new())),
            None => self.adopt(&[&name]),
            Some(_) => {}
        }
    }

    fn write(&mut self) {
        let Some(name) = self.name() else { return };
        let handle = self.talk.look(&self.folder, &name).handle();
        let at = self.random.below(16);
        let data: Vec<u8> = (0..1 + self.random.below(12)).map(|_| self.random.below(256) as u8).collect();
        let stable = if self.random.below(2) == 0 { 2 } else { 0 };
        // What is not committed is written again, as clients do.
        for _ in 0..20 {
            let Some(written) = self.talk.write(&handle, at as u64, &data, stable) else { break };
            if written.status != 0 || (written.found.count as usize) < data.len() {
                break;
            }
            let same = stable == 2
                || match self.talk.commit(&handle) {
                    Some(commit) => commit.status == 0 && commit.verifier() == written.verifier(),
                    None => false,
                };
            if same {
                let content = self.files.get_mut(&name).unwrap();
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(&data);
                return;
            }
        }
        // It is made durable before it counts.
        if self.talk.write(&handle, 0, b"!", 2).is_none_or(|came| came.status != 0) {
            self.talk.named(Op::Remove, &self.folder, &name);
        }
        self.adopt(&[&name]);
    }

    /// The file that is written goes on under another name, and a new one takes its place.
    fn rotate(&mut self) {
        let Some(name) = self.name() else { return };
        self.next += 1;
        let old = format!("{name}.{}", self.next);
        match self.talk.rename(&self.folder, &name, &old).map(|came| came.status) {
            Some(0) => {
                let content = self.files.remove(&name).unwrap();
                self.files.insert(old, content);
                match self.talk.make(Op::Create, &self.folder, &name).map(|came| came.status) {
                    Some(0) => drop(self.files.insert(name, Vec::new())),
                    None => self.adopt(&[&name]),
                    Some(status) => assert_ne!(status, EXIST, "{name} was just renamed"),
                }
            }
            None => self.adopt(&[&name, &old]),
            Some(_) => {}
        }
    }

    fn remove(&mut self) {
        let Some(name) = self.name() else { return };
        match self.talk.named(Op::Remove, &self.folder, &name).map(|came| came.status) {
            Some(0) => drop(self.files.remove(&name)),
            None => self.adopt(&[&name]),
            Some(_) => {}
        }
    }

    /// A second name, by which it is written.
    fn link(&mut self) {
        let Some(name) = self.name() else { return };
        self.next += 1;
        let other = format!("l{}", self.next);
        let handle = self.talk.look(&self.folder, &name).handle();
        if self.talk.link(&handle, &self.folder, &other).is_some_and(|came| came.status == 0) {
            let linked = self.talk.look(&self.folder, &other).handle();
            self.talk.write(&linked, 0, b"linked", 2);
        }
        // Which of these was done shows; then it has one name again.
        let begin = Instant::now();
        while self.talk.look(&self.folder, &other).status == 0 {
            assert!(begin.elapsed() < BOUND, "{other} is never removed");
            self.talk.named(Op::Remove, &self.folder, &other);
        }
        self.adopt(&[&name, &other]);
    }

    fn read(&mut self) {
        let Some(name) = self.name() else { return };
        let came = self.talk.look(&self.folder, &name);
        assert_eq!(came.status, 0, "{}/{name} is there", self.path);
        assert_eq!(self.talk.read(&came.handle()), self.files[&name], "{}/{name}", self.path);
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 | 1 => self.create(),
            2..=4 => self.write(),
            5 => self.rotate(),
            6 => self.remove(),
            7 => self.link(),
            _ => self.read(),
        }
    }
}

/// What befalls a server for a while: it is away, mute, full, read-only, answers byte by byte, is slow, or has begun anew.
fn suffer(stage: &Stage, random: &mut Random, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let at = random.below(stage.disks.len());
        let kind = random.below(7);
        let jitter_ms = random.below(8) as u64;
        let fault = match kind {
            0 => Fault { down: true, ..Fault::default() },
            1 => Fault { mute: true, ..Fault::default() },
            2 => Fault { room: Some(random.below(4)), ..Fault::default() },
            3 => Fault { read_only: true, ..Fault::default() },
            4 => Fault { trickle: true, ..Fault::default() },
            _ => Fault { jitter_ms, ..Fault::default() },
        };
        stage.fault(at, fault);
        if kind >= 5 {
            stage.disks[at].lock().unwrap().begin_anew();
        }
        std::thread::sleep(Duration::from_millis(20 + random.below(200) as u64));
        stage.fault(at, Fault { jitter_ms, ..Fault::default() });
        std::thread::sleep(Duration::from_millis(random.below(150) as u64));
    }
    (0..stage.disks.len()).for_each(|at| stage.fault(at, Fault::default()));
}

fn check(seed: u64) {
    let stage = Stage::hasty(3, HASTY);
    stage.all_live();
    let folders: Vec<Vec<u8>> = {
        let mut talk = stage.talk();
        let root = talk.root.clone();
        (0..CLIENTS).map(|number| talk.made(Op::Mkdir, &root, &format!("c{number}"))).collect()
    };
    let stop = AtomicBool::new(false);
    let owns: Vec<(String, BTreeMap<String, Vec<u8>>)> = std::thread::scope(|scope| {
        let suffering = scope.spawn(|| suffer(&stage, &mut Random::new(seed + 1000), &stop));
        let clients: Vec<_> = folders
            .iter()
            .enumerate()
            .map(|(number, folder)| {
                let mut own = Own {
                    talk: stage.talk(),
                    random: Random::new(seed * 100 + number as u64),
                    folder: folder.clone(),
                    path: format!("/c{number}"),
                    files: BTreeMap::new(),
                    next: 0,
                };
                scope.spawn(move || {
                    (0..STEPS).for_each(|_| own.step());
                    (own.path, own.files)
                })
            })
            .collect();
        let done = clients.into_iter().map(|client| client.join()).collect::<Vec<_>>();
        stop.store(true, Ordering::Relaxed);
        suffering.join().unwrap();
        done.into_iter().map(Result::unwrap).collect()
    });
    stage.same();
    let tree = stage.disks[0].lock().unwrap().tree();
    for (path, files) in owns {
        for (name, content) in files {
            let there = tree.get(&format!("{path}/{name}")).map(|node| node.3.clone());
            assert_eq!(there.as_ref(), Some(&content), "seed {seed}: {path}/{name} was acknowledged");
        }
    }
}

/// Seeds of the checker: those that are kept, or as many others as `WEIR_REPLICATED_SEEDS` says (`20`, or `40+20` for those behind).
fn seeds() -> Option<Vec<u64>> {
    let text = std::env::var("WEIR_REPLICATED_SEEDS").ok()?;
    let (from, count) = text.split_once('+').unwrap_or(("0", &text));
    let (from, count): (u64, u64) = (from.parse().ok()?, count.parse().ok()?);
    Some((from..from + count).map(|seed| 100 + seed).collect())
}

#[test]
fn at_rest_all_live_trees_are_equal_and_hold_what_was_acknowledged() {
    let Some(more) = seeds() else { return SEEDS.into_iter().for_each(check) };
    // Most of the time they wait.
    for some in more.chunks(4) {
        std::thread::scope(|scope| some.iter().for_each(|seed| drop(scope.spawn(|| check(*seed)))));
        println!("seeds {some:?} hold");
    }
}
