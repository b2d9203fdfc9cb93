//! The runtime on a disk that loses power or whose process is killed at any change: what was answered is there,
//! what was not is there whole or not at all.

use super::app::{ENDPOINTS, TestApp, endpoint, event, key_of, keys, label, transaction};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use weir_base::codec::encode;
use weir_base::world::{Disk, RealClock, RealDisk, SimDisk};
use weir_controller::Error;
use weir_controller::audit::{Auditor, Trusted};
use weir_controller::driver::{
    AUDIT_BYTES_MIN, AuditPlace, Controller, ControllerHandle, ControllerSettings, SnapshotPolicy,
};
use weir_model::Version;
use weir_model::event::{Event, EventBody, MUTATIONS_MAX, SignedEvent};
use weir_store::{App, Decision, Rejection, Store, View};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::KeyPair;

const BOUND: Duration = Duration::from_secs(60);

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn settings() -> ControllerSettings {
    let mut settings = ControllerSettings::new(label("d"), label("c1"), Arc::new(key_of("controller/c1")));
    settings.peers = keys();
    settings.snapshots = SnapshotPolicy { bytes: 1 << 30, entries: 7 };
    settings.order.log.segment_bytes = 256 << 10;
    settings.order.log.batch_bytes_max = 64 << 10;
    settings.order.local.batch_bytes_max = 64 << 10;
    settings
}

pub fn signer() -> Box<SingleSigner> {
    Box::new(SingleSigner(KeyPair::from_seed(&[1; 32])))
}

/// Opens a controller; the threads of the one before may hold the lock for a moment.
pub fn open(
    disk: &Arc<dyn Disk>,
    settings: &ControllerSettings,
    app: Arc<dyn App + Sync>,
) -> Result<Controller, Error> {
    let until = Instant::now() + BOUND;
    loop {
        let clock = Arc::new(RealClock::new());
        match Controller::open(settings.clone(), disk.clone(), clock, signer(), vec![app.clone()]) {
            Err(Error::Order(weir_order::Error::Locked { .. })) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

fn names(number: u64) -> [String; 2] {
    [format!("e{number}"), format!("x{number}")]
}

/// An event that puts two endpoints: both must be there or none.
fn pair(number: u64) -> SignedEvent {
    let [first, second] = names(number);
    let mutations = vec![endpoint("n1", &first, "h1"), endpoint("n1", &second, "h1")];
    event("client", number, EventBody::Intent(transaction(mutations)))
}

fn has(store: &Store, name: &str) -> bool {
    store.get(ENDPOINTS, &encode(&(label("n1"), label(name)))).is_some()
}

async fn propose_until_dead(handle: &ControllerHandle, from: u64) -> Vec<(u64, Version)> {
    let mut acknowledged = Vec::new();
    for number in from..from + 40 {
        let (one, two) = (handle.submit(pair(2 * number)), handle.submit(pair(2 * number + 1)));
        let results = tokio::join!(one, two);
        for (number, result) in [(2 * number, results.0), (2 * number + 1, results.1)] {
            match result {
                Ok(version) => acknowledged.push((number, version)),
                Err(_) => return acknowledged,
            }
        }
    }
    acknowledged
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_whole_or_absent() {
    let runtime = runtime();
    let (mut cut, mut acknowledged_in_all) = (0, 0);
    for seed in 0..24 {
        let mut disk = SimDisk::new(seed);
        let mut acknowledged: Vec<(u64, Version)> = Vec::new();
        for life in 0..3 {
            let opened: Arc<dyn Disk> = Arc::new(disk.clone());
            if seed % 2 == 0 {
                disk.cut_power_after(5 + (seed * 37 + life * 61) % 190);
            }
            if let Ok(controller) = open(&opened, &settings(), Arc::new(TestApp)) {
                let found = runtime.block_on(propose_until_dead(&controller.handle(), life * 40));
                acknowledged.extend(found);
                if seed % 2 == 1 {
                    disk.kill();
                }
                controller.shutdown();
            }
            cut += u64::from(disk.is_dead());
            disk = disk.restart();
            check(&disk, &acknowledged, &runtime);
        }
        acknowledged_in_all += acknowledged.len();
    }
    assert!(cut > 40 && acknowledged_in_all > 1_000, "{cut} crashes, {acknowledged_in_all} acknowledged");
}

fn check(disk: &SimDisk, acknowledged: &[(u64, Version)], runtime: &Runtime) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let controller = open(&disk, &settings(), Arc::new(TestApp)).unwrap();
    let handle = controller.handle();
    let store = handle.store();
    for (number, version) in acknowledged {
        assert!(names(*number).iter().all(|name| has(&store, name)), "event {number} at {version} is lost");
        // The same event again gets the same answer, as long as it is remembered.
        assert_eq!(runtime.block_on(handle.submit(pair(*number))).unwrap(), *version);
    }
    for number in 0..240 {
        let [first, second] = names(number);
        assert_eq!(has(&store, &first), has(&store, &second), "event {number} is there in part");
    }
    controller.shutdown();
}

#[test]
fn a_restart_finds_the_same_state_and_watchers_resume() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let mut settings = settings();
    settings.snapshots.entries = 1_000;
    let controller = open(&disk, &settings, Arc::new(TestApp)).unwrap();
    let handle = controller.handle();
    let mut watch = handle.watch(Version::ZERO).unwrap();
    let (token, digest) = runtime.block_on(async {
        for number in 0..10 {
            handle.submit(pair(number)).await.unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 6 {
            seen.extend(watch.next().await.unwrap());
        }
        let versions: Vec<u64> = seen.iter().map(|change| change.version.0).collect();
        assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>());
        (watch.version(), handle.store().digest())
    });
    controller.shutdown();
    runtime.block_on(async {
        while watch.next().await.is_ok() {}
        assert!(matches!(handle.submit(pair(11)).await, Err(Error::Stopped)));
    });

    let controller = open(&disk, &settings, Arc::new(TestApp)).unwrap();
    assert!(
        controller.recovered().replayed > 0
            && controller.recovered().opening.as_ref().unwrap().snapshot.is_none()
    );
    let handle = controller.handle();
    assert_eq!(handle.store().digest(), digest);
    runtime.block_on(async {
        let mut watch = handle.watch(token).unwrap();
        let mut last = token;
        while last < Version(10) {
            last = watch.next().await.unwrap().last().unwrap().version;
        }
        assert!(matches!(handle.watch(Version(11)), Err(Error::WatchAhead { .. })));
        // Own events go on with a fresh number.
        let own = transaction(vec![endpoint("n1", "e1", "h2")]);
        assert_eq!(handle.propose(own.clone()).await.unwrap(), Version(11));
        assert_eq!(handle.propose(own).await.unwrap(), Version(12));
    });
    controller.shutdown();
}

#[test]
fn a_snapshot_shortens_the_replay_and_bounds_what_can_be_watched() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let controller = open(&disk, &settings(), Arc::new(TestApp)).unwrap();
    let handle = controller.handle();
    let until = Instant::now() + BOUND;
    let mut number = 0;
    while !handle.metrics_text().contains("log_total{what=\"snapshots_saved\"} 2") {
        assert!(Instant::now() < until, "no second snapshot was saved:\n{}", handle.metrics_text());
        runtime.block_on(handle.submit(pair(number))).unwrap();
        number += 1;
    }
    let digest = handle.store().digest();
    controller.shutdown();
    let controller = open(&disk, &settings(), Arc::new(TestApp)).unwrap();
    assert!(
        controller.recovered().opening.as_ref().unwrap().snapshot.is_some()
            && controller.recovered().replayed < number
    );
    assert_eq!(controller.handle().store().digest(), digest);
    assert!(matches!(controller.handle().watch(Version::ZERO), Err(Error::WatchTooOld { .. })));
    controller.shutdown();
}

/// Submits until another snapshot was saved; gives the next number.
fn until_snapshot(runtime: &Runtime, handle: &ControllerHandle, mut number: u64) -> u64 {
    let until = Instant::now() + BOUND;
    while !handle.metrics_text().contains("log_total{what=\"snapshots_saved\"} 1") {
        assert!(Instant::now() < until, "no snapshot was saved:\n{}", handle.metrics_text());
        runtime.block_on(handle.submit(pair(number))).unwrap();
        number += 1;
    }
    number
}

#[test]
fn an_audit_is_whole_over_snapshots_and_tells_what_it_lacks() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let place = AuditPlace { disk: Arc::new(SimDisk::new(2)), bytes_max: AUDIT_BYTES_MIN };
    let mut kept = settings();
    kept.audit = Some(place);
    let gaps = |handle: &ControllerHandle| {
        let mut auditor = Auditor::new(Trusted::default());
        let mut next = 0;
        loop {
            let (page, _) = runtime.block_on(handle.audit(next, 100)).unwrap().unwrap();
            if page.links.is_empty() {
                break;
            }
            next = page.from + page.links.len() as u64;
            for (number, link) in (page.from..).zip(&page.links) {
                auditor.take(number, link);
            }
        }
        let checked = auditor.finish();
        assert_eq!(checked.findings, []);
        assert!(checked.events > 0);
        checked.gaps
    };
    let mut number = 0;
    for _ in 0..2 {
        let controller = open(&disk, &kept, Arc::new(TestApp)).unwrap();
        if number > 0 {
            assert_eq!(gaps(&controller.handle()), 0);
        }
        number = until_snapshot(&runtime, &controller.handle(), number);
        assert_eq!(gaps(&controller.handle()), 0);
        controller.shutdown();
    }
    // While none is kept, the order forgets.
    let controller = open(&disk, &settings(), Arc::new(TestApp)).unwrap();
    until_snapshot(&runtime, &controller.handle(), number);
    assert!(runtime.block_on(controller.handle().audit(0, 1)).unwrap().is_none());
    controller.shutdown();
    let controller = open(&disk, &kept, Arc::new(TestApp)).unwrap();
    assert_eq!(gaps(&controller.handle()), 1);
    controller.shutdown();
}

/// An app that decides only while the test lets it.
struct Slow(Arc<Mutex<()>>);

impl App for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn decide(&self, _: &mut View<'_>, _: Version, _: u64, _: &Event) -> Result<Decision, Rejection> {
        let guard: MutexGuard<'_, ()> = self.0.lock().unwrap();
        drop(guard);
        Ok(Decision::default())
    }
}

/// The log is brought back from a copy, with its own proof, and its tail with it; the audit beside it has what was decided since.
#[test]
fn a_log_that_ends_before_its_audit_is_refused() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let [log, copy, audit] = ["log", "copy", "audit"].map(|name| dir.path().join(name));
    let open_at = |folder: &std::path::Path| {
        let disk = |path: &std::path::Path| -> Arc<dyn Disk> { Arc::new(RealDisk::open(path).unwrap()) };
        let mut settings = settings();
        settings.snapshots.entries = 1_000;
        settings.audit = Some(AuditPlace { disk: disk(&audit), bytes_max: AUDIT_BYTES_MIN });
        let until = Instant::now() + BOUND;
        loop {
            // The thread that wrote the audit of one that was refused may hold its lock for a moment.
            match open(&disk(folder), &settings, Arc::new(TestApp)) {
                Err(error) if error.to_string().contains("in use by") && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                other => return other,
            }
        }
    };
    let propose = |controller: Controller, from: u64, to: u64| {
        for number in from..to {
            runtime.block_on(controller.handle().submit(pair(number))).unwrap();
        }
        controller.shutdown();
    };
    propose(open_at(&log).unwrap(), 0, 5);
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&log).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    propose(open_at(&log).unwrap(), 5, 9);
    let error = open_at(&copy).err().map(|error| error.to_string()).unwrap_or_default();
    for words in ["ends with entry", "the audit proves", "weir state accept"] {
        assert!(error.contains(words), "'{error}' does not say '{words}'");
    }
    // The whole log is taken, and so is the old one when the audit is out of the way.
    propose(open_at(&log).unwrap(), 9, 10);
    std::fs::rename(&audit, dir.path().join("audit-before")).unwrap();
    propose(open_at(&copy).unwrap(), 5, 6);
}

#[test]
fn a_full_intake_says_so_and_loses_nothing_that_it_took() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let mut settings = settings();
    settings.proposals_max = 8;
    let lock = Arc::new(Mutex::new(()));
    let controller = open(&disk, &settings, Arc::new(Slow(lock.clone()))).unwrap();
    let handle = controller.handle();
    let held = lock.lock().unwrap();
    let mut taken = Vec::new();
    for number in 0..8 {
        let handle = handle.clone();
        taken.push(runtime.spawn(async move { handle.submit(pair(number)).await }));
    }
    let until = Instant::now() + BOUND;
    loop {
        let refused = runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(20), handle.submit(pair(99))).await
        });
        match refused {
            Ok(Err(Error::Overloaded { limit: 8, .. })) => break,
            _ => assert!(Instant::now() < until, "never overloaded"),
        }
    }
    drop(held);
    let results: Vec<_> = taken.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    let took = results.iter().filter(|result| result.is_ok()).count();
    assert!(took >= 6, "{results:?}");
    assert!(handle.metrics_text().contains("driver_total{what=\"overloads\"}"));
    controller.shutdown();
}

/// An app with a bug.
struct Broken;

impl App for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn decide(&self, _: &mut View<'_>, _: Version, _: u64, _: &Event) -> Result<Decision, Rejection> {
        panic!("this app always panics");
    }
}

#[test]
fn nobody_waits_for_a_core_that_died() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let controller = open(&disk, &settings(), Arc::new(Broken)).unwrap();
    let handle = controller.handle();
    runtime().block_on(async {
        assert!(matches!(handle.submit(pair(1)).await, Err(Error::Stopped)));
        assert!(matches!(handle.submit(pair(2)).await, Err(Error::Stopped)));
        assert!(matches!(handle.status().await, Err(Error::Stopped)));
    });
    controller.shutdown();
}

#[test]
fn a_transaction_of_many_megabytes_is_ordered() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let mut settings = ControllerSettings::new(label("d"), label("c1"), settings().identity);
    settings.peers = keys();
    let controller = open(&disk, &settings, Arc::new(Slow(Arc::default()))).unwrap();
    let handle = controller.handle();
    let host = "h".repeat(600);
    let mutations = (0..MUTATIONS_MAX).map(|_| endpoint("n1", "e1", &host)).collect();
    let body = EventBody::Intent(transaction(mutations));
    let runtime = runtime();
    assert_eq!(runtime.block_on(handle.submit(event("client", 1, body))).unwrap(), Version(1));
    let too_large = EventBody::Intent(transaction(vec![endpoint("n1", "e1", &"h".repeat(16 << 20))]));
    let error = runtime.block_on(handle.submit(event("client", 2, too_large))).unwrap_err();
    assert!(matches!(error, Error::Order(weir_order::Error::TooLarge { .. })), "{error}");
    controller.shutdown();
}

#[test]
fn a_log_of_another_domain_is_not_opened() {
    let runtime = runtime();
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let controller = open(&disk, &settings(), Arc::new(TestApp)).unwrap();
    let handle = controller.handle();
    let until = Instant::now() + BOUND;
    let mut number = 0;
    while !handle.metrics_text().contains("log_total{what=\"snapshots_saved\"} 1") {
        assert!(Instant::now() < until, "no snapshot was saved");
        runtime.block_on(handle.submit(pair(number))).unwrap();
        number += 1;
    }
    controller.shutdown();
    let mut other = settings();
    other.domain = label("other");
    let error = open(&disk, &other, Arc::new(TestApp)).map(drop).unwrap_err();
    assert!(matches!(error, Error::SnapshotDomain { .. }), "{error}");
}
