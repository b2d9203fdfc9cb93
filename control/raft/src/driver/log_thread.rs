//! The thread that writes the log, and the one that makes spare segments.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use weir_base::world::{Disk, DiskLock};
use weir_order::Error;
use weir_order::log::prepare_spare;

use super::spawn_thread;
use crate::log::{WRITES_WAITING_MAX, Write, Writer};

/// Starts both. They end when the replica's log has no user left.
pub(super) fn start(
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    lock: Arc<DiskLock>,
    writer: Writer,
    writes: mpsc::Receiver<Write>,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (spares, wanted) = sync_channel(1);
    Ok(vec![
        spawn_thread("raft-log", move || {
            write_all(writer, writes, &spares);
            drop(lock);
        })?,
        spawn_thread("raft-spare", move || make_spares(&*disk, segment_bytes, &wanted))?,
    ])
}

fn write_all(mut writer: Writer, mut writes: mpsc::Receiver<Write>, spares: &SyncSender<()>) {
    let mut waiting = Vec::with_capacity(WRITES_WAITING_MAX);
    let mut spare_wanted = false;
    while let Some(first) = writes.blocking_recv() {
        waiting.push(first);
        loop {
            while waiting.len() < WRITES_WAITING_MAX
                && let Ok(next) = writes.try_recv()
            {
                waiting.push(next);
            }
            if waiting.is_empty() {
                break;
            }
            writer.drain(&mut waiting);
            if !writer.wants_spare() {
                spare_wanted = false;
            } else if !spare_wanted {
                // A full channel means one is being made.
                spare_wanted = spares.try_send(()).is_ok();
            }
        }
        writer.idle();
    }
    if let Err(error) = writer.close() {
        tracing::warn!(%error, "the replica's log could not be closed cleanly");
    }
}

/// A failure costs only time: the log makes the segment itself when it needs it, or says that the disk is full.
fn make_spares(disk: &dyn Disk, segment_bytes: u64, wanted: &Receiver<()>) {
    while wanted.recv().is_ok() {
        if let Err(error) = prepare_spare(disk, segment_bytes) {
            tracing::warn!(%error, "could not make a spare segment ahead of need");
        }
    }
}
