//! The thread that writes what is queued for the log, and the one that waits for quiet: it marks the log, and makes spare segments.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use tokio::sync::mpsc;
use weir_base::world::{Disk, DiskLock, RealClock};
use weir_order::Error;
use weir_order::log::prepare_spare;

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
    let quiet = Arc::clone(&desk);
    Ok(vec![
        spawn_thread("raft-log", move || {
            write_all(&desk, writes);
            drop(lock);
        })?,
        spawn_thread("raft-quiet", move || wait_for_quiet(&*disk, segment_bytes, &quiet, &told))?,
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
        desk.write_queued(&mut waiting);
    }
    if let Some(mut writer) = desk.take()
        && let Err(error) = writer.close()
    {
        tracing::warn!(%error, "the replica's log could not be closed cleanly");
    }
}

fn wait_for_quiet(disk: &dyn Disk, segment_bytes: u64, desk: &Desk, told: &Receiver<()>) {
    let mut made = false;
    while told.recv().is_ok() {
        loop {
            let before = desk.writes();
            sleep(QUIET);
            let wanted = desk.wants_spare();
            // A failure costs only time: the log makes the segment itself when it needs it, or says that the disk is full.
            if wanted
                && !made
                && let Err(error) = prepare_spare(disk, segment_bytes)
            {
                tracing::warn!(%error, "could not make a spare segment ahead of need");
            }
            made = wanted;
            if desk.writes() == before {
                break;
            }
        }
        desk.idle();
    }
}
