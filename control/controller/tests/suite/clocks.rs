//! A controller whose clock is wrong, jumps and is right again: lives of keys end when they should, not before and not never.

use super::app::TestApp;
use super::recovery::{runtime, settings, signer};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_base::ordered_time::State;
use weir_base::world::{Clock, Disk, SimDisk};
use weir_controller::core::clock::difference_ms;
use weir_controller::driver::{Controller, ControllerHandle};
use weir_store::{Action, Batch, Condition, Operation, TableOptions, Write};

const BOUND: Duration = Duration::from_secs(60);
const BEGIN_MS: u64 = 1_790_000_000_000;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const YEARS_MS: i64 = 3_650 * DAY_MS as i64;

/// A machine's clocks: time passes when told to, and the wall clock may be wrong.
#[derive(Default)]
struct Wrong {
    now_ms: AtomicU64,
    wrong_ms: AtomicI64,
}

impl Clock for Wrong {
    fn now_ns(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst) * 1_000_000
    }

    fn wall_ms(&self) -> u64 {
        let right = BEGIN_MS + self.now_ms.load(Ordering::SeqCst);
        right.saturating_add_signed(self.wrong_ms.load(Ordering::SeqCst))
    }
}

impl Wrong {
    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
    }

    fn set(&self, wrong_ms: i64) {
        self.wrong_ms.store(wrong_ms, Ordering::SeqCst);
    }
}

struct World {
    clock: Arc<Wrong>,
    handle: ControllerHandle,
}

fn put(key: &str, ttl_ms: u64) -> Operation {
    let action = Action::Put { value: b"x".to_vec(), ttl_ms };
    let (table, key) = ("t/t".into(), key.as_bytes().to_vec());
    Operation::Write(Write { table, key, condition: Condition::Always, action })
}

impl World {
    async fn order(&self, operations: Vec<Operation>) {
        let outcomes = self.handle.operate(Batch::once(operations)).unwrap().await.unwrap().unwrap();
        let text = format!("{outcomes:?}");
        assert!(!text.contains("Refused"), "{text}");
    }

    /// Time passes in steps, and is ordered.
    async fn pass(&self, ms: u64, steps: u64) {
        for _ in 0..steps {
            self.clock.pass(ms / steps);
            self.handle.time().tick();
        }
        self.order(Vec::new()).await;
    }

    fn has(&self, key: &str) -> bool {
        self.handle.store().get("t/t", key.as_bytes()).is_some()
    }

    /// Waits until the time keeper says so; its own thread feeds it as well.
    fn until(&self, what: &str, is_so: impl Fn(State) -> bool) {
        let until = Instant::now() + BOUND;
        while !is_so(self.handle.time().view().0.state) {
            assert!(Instant::now() < until, "{what}: {:?}", self.handle.time().view());
            self.clock.pass(100);
            self.handle.time().tick();
        }
    }
}

fn controller(disk: &Arc<dyn Disk>, clock: &Arc<Wrong>) -> Controller {
    let until = Instant::now() + BOUND;
    loop {
        match Controller::open(settings(), disk.clone(), clock.clone(), signer(), vec![Arc::new(TestApp)]) {
            Err(weir_controller::Error::Order(weir_order::Error::Locked { .. }))
                if Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other.unwrap(),
        }
    }
}

#[test]
fn a_clock_that_is_wrong_for_a_while_ends_no_life_early_and_none_never() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let clock = Arc::new(Wrong::default());
    let running = controller(&disk, &clock);
    let world = World { clock: clock.clone(), handle: running.handle() };
    runtime().block_on(async {
        let table = Operation::CreateTable { table: "t/t".into(), options: TableOptions::default() };
        world.order(vec![table, put("month", 30 * DAY_MS), put("minute", 60_000)]).await;
        for wrong_ms in [YEARS_MS, -YEARS_MS, 3_600_000, -3_600_000] {
            clock.set(wrong_ms);
            world.pass(2_000, 4).await;
            clock.set(0);
            world.pass(1_000, 2).await;
            assert!(world.has("month") && world.has("minute"), "{wrong_ms} ms wrong");
        }
        world.pass(70_000, 700).await;
        assert!(world.has("month") && !world.has("minute"), "what has lived its time goes");
        // Wrong for good: time goes on, a person is asked, and what is said then changes no life.
        clock.set(YEARS_MS);
        world.pass(300_000, 3_000).await;
        world.until("it asks", |state| state == State::Asks);
        world.order(vec![put("after", 60_000)]).await;
        assert!(world.has("month"));
        let before_ms = world.handle.time().ordered_ms();
        world.handle.set_clock(Some("somebody".into())).await.unwrap();
        assert!(world.has("month") && world.has("after"));
        assert!(world.handle.time().ordered_ms() < before_ms + DAY_MS, "ordered time is not set");
        assert!(difference_ms(&world.handle.store()).abs_diff(YEARS_MS) < 60_000);
        world.until("it follows", |state| state == State::Follows);
        assert!(world.handle.time().wall_ms().abs_diff(clock.wall_ms()) < 60_000);
        world.pass(70_000, 700).await;
        assert!(world.has("month") && !world.has("after"));
    });
    // All of it is in the log: the next life knows it.
    let ordered_ms = world.handle.published().now_ms;
    drop(world);
    running.shutdown();
    let running = controller(&disk, &clock);
    let world = World { clock: clock.clone(), handle: running.handle() };
    runtime().block_on(async {
        assert_eq!(world.handle.published().now_ms, ordered_ms);
        assert!(difference_ms(&world.handle.store()).abs_diff(YEARS_MS) < 60_000);
        assert!(world.has("month"));
        world.pass(31 * DAY_MS, 31).await;
        assert!(!world.has("month"), "it ends in time, and not in ten years");
    });
}
