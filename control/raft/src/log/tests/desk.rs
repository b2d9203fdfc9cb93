//! A follower that writes by itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use weir_base::world::{Clock, SimClock};

use super::*;

/// A log with a desk, whose queue is served only when the test does.
pub(super) struct Open {
    pub(super) store: LogStore,
    pub(super) desk: Arc<Desk>,
    pub(super) writes: mpsc::Receiver<Write>,
    told: Receiver<()>,
}

pub(super) fn open_with_desk(disk: &SimDisk, clock: impl Clock + 'static) -> Open {
    let OpenedLog { store, writer, writes, .. } =
        open(Arc::new(disk.restart()), SETTINGS, 1 << 20, false).unwrap();
    let (unquiet, told) = sync_channel(1);
    let desk = Arc::new(Desk::new(writer, Box::new(clock), unquiet));
    store.shared().set_desk(Arc::clone(&desk));
    Open { store, desk, writes, told }
}

impl Open {
    /// Appends an entry; whether it is durable when the call returns.
    async fn append_one(&mut self, index: u64) -> bool {
        use openraft::type_config::TypeConfigExt;
        let (done, flushed) = <crate::types::Types as TypeConfigExt>::oneshot();
        self.store.append([entry(1, index, 100)], IOFlushed::signal(done)).await.unwrap();
        let mut flushed = Box::pin(flushed);
        let polled = futures_util::poll!(&mut flushed);
        polled.is_ready()
    }

    fn serve_queue(&mut self) -> usize {
        let mut waiting = Vec::new();
        while let Ok(write) = self.writes.try_recv() {
            waiting.push(write);
        }
        let count = waiting.len();
        self.desk.write_queued(&mut waiting);
        count
    }
}

#[test]
fn who_follows_writes_by_itself_and_who_leads_does_not() {
    let disk = SimDisk::new(21);
    block_on(async {
        let mut open = open_with_desk(&disk, SimClock::new(0));
        assert!(!open.append_one(0).await, "it is not known yet who leads");
        assert_eq!(open.serve_queue(), 1);
        open.store.shared().set_follows(true);
        assert!(open.append_one(1).await);
        open.store.shared().set_follows(false);
        assert!(!open.append_one(2).await);
        assert_eq!(open.serve_queue(), 1);
    });
    disk.cut_power();
    block_on(async {
        let mut open = open_with_desk(&disk, SimClock::new(0));
        assert_eq!(open.store.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 2)));
    });
}

#[test]
fn nothing_overtakes_what_is_queued() {
    let disk = SimDisk::new(22);
    block_on(async {
        let mut open = open_with_desk(&disk, SimClock::new(0));
        assert!(!open.append_one(0).await);
        open.store.shared().set_follows(true);
        assert!(!open.append_one(1).await, "entry 0 is not on disk yet");
        assert_eq!(open.serve_queue(), 2);
        assert!(open.append_one(2).await);
        assert_eq!(open.serve_queue(), 0);
    });
}

/// Each look takes a while.
struct Slow(AtomicU64);

impl Clock for Slow {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(20_000_000, Ordering::Relaxed)
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

#[test]
fn a_slow_disk_is_left_to_the_thread() {
    let disk = SimDisk::new(23);
    block_on(async {
        let mut open = open_with_desk(&disk, Slow(AtomicU64::new(0)));
        open.store.shared().set_follows(true);
        assert!(open.append_one(0).await);
        assert!(!open.append_one(1).await, "the one before took 20 ms");
        assert_eq!(open.serve_queue(), 1);
        let mut queued = 1;
        for index in 2..=1025 {
            queued += u64::from(!open.append_one(index).await);
            open.serve_queue();
        }
        assert_eq!(queued, 1024, "then it is tried again");
    });
}

#[test]
fn who_waits_for_quiet_is_told_once_and_marks() {
    let disk = SimDisk::new(24);
    block_on(async {
        let mut open = open_with_desk(&disk, SimClock::new(0));
        open.store.shared().set_follows(true);
        for index in 0..3 {
            assert!(open.append_one(index).await);
        }
        assert_eq!((open.told.try_recv().is_ok(), open.told.try_recv().is_ok()), (true, false));
        let marks = open.store.shared().counters().marks;
        open.desk.idle();
        assert_eq!(open.store.shared().counters().marks, marks + 1);
        assert!(open.append_one(3).await);
        assert!(open.told.try_recv().is_ok());
        // Closed: nobody is told any more, and nothing is taken.
        let mut writer = open.desk.take().unwrap();
        writer.close().unwrap();
        assert!(open.told.try_recv().is_err());
        assert_eq!(open.store.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 3)));
    });
}
