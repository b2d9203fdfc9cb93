//! The thread that writes what is queued for the log, and the one that waits for quiet: it marks the log, and makes spare segments.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use weir_base::world::{Disk, DiskLock, RealClock};
use weir_order::Error;
use weir_order::log::Room;

use super::spawn_thread;
use crate::log::{Desk, Shared, WRITES_WAITING_MAX, Write, Writer};

/// The log is marked when nothing was written for so long. A mark costs about as much as an entry without its sync, and is of use
/// only when nothing follows.
const QUIET: Duration = Duration::from_millis(20);

/// Starts both. They end when the replica's log has no user left.
pub(super) fn start(
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    lock: Arc<DiskLock>,
    log: &Shared,
    writer: Writer,
    writes: mpsc::Receiver<Write>,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (unquiet, told) = sync_channel(1);
    let desk = Arc::new(Desk::new(writer, Box::new(RealClock::new()), unquiet));
    log.set_desk(Arc::clone(&desk));
    let (quiet, room) = (Arc::clone(&desk), Arc::clone(log.room()));
    Ok(vec![
        spawn_thread("raft-log", move || {
            write_all(&desk, writes);
            drop(lock);
        })?,
        spawn_thread("raft-quiet", move || {
            Quiet { disk, segment_bytes, desk: quiet, room, next_try: Instant::now() }.wait(&told)
        })?,
    ])
}

fn write_all(desk: &Desk, mut writes: mpsc::Receiver<Write>) {
    let mut waiting = Vec::with_capacity(WRITES_WAITING_MAX);
    while let Some(first) = writes.blocking_recv() {
        waiting.push(first);
        while waiting.len() < WRITES_WAITING_MAX
            && let Ok(next) = writes.try_recv()
        {
            waiting.push(next);
        }
        // Nothing overtakes what waits for room, and the queue has its limit; who makes spares tries it again.
        while desk.is_waiting() && !writes.is_closed() {
            sleep(QUIET);
        }
        desk.write_queued(&mut waiting);
    }
    if let Some(mut writer) = desk.take()
        && let Err(error) = writer.close()
    {
        tracing::warn!(%error, "the replica's log could not be closed cleanly");
    }
}

/// Waits for quiet, and looks after the log's room.
struct Quiet {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    desk: Arc<Desk>,
    room: Arc<Room>,
    /// When room is looked for again, where there was none.
    next_try: Instant,
}

impl Quiet {
    fn wait(mut self, told: &Receiver<()>) {
        let mut made = false;
        while self.is_told(told) {
            loop {
                let before = self.desk.writes();
                sleep(QUIET);
                let wanted = self.desk.wants_spare();
                if self.room.is_short() || (wanted && !made) {
                    self.look_for_room();
                }
                made = wanted;
                if self.desk.writes() == before {
                    break;
                }
            }
            self.desk.idle();
        }
    }

    /// Waits until something was written, or it is time to look for room; false when the log is closed.
    fn is_told(&self, told: &Receiver<()>) -> bool {
        match self.room.is_short() {
            true => told.recv_timeout(self.room.pause()) != Err(RecvTimeoutError::Disconnected),
            false => told.recv().is_ok(),
        }
    }

    fn look_for_room(&mut self) {
        if self.room.is_short() && Instant::now() < self.next_try {
            return;
        }
        // Another failure than a full disk costs only time: the log makes the segment itself when it needs it.
        if let Err(error) = self.room.prepare(&*self.disk, self.segment_bytes) {
            tracing::warn!(%error, "could not make a spare segment ahead of need");
        }
        self.desk.try_again();
        self.next_try = Instant::now() + self.room.pause();
    }
}
