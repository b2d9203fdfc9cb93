//! The thread that turns a core's snapshot into bytes and saves it, so that the core goes on meanwhile.

use super::Order;
use super::audit::Keeper;
use super::command::Command;
use crate::Error;
use crate::core::CoreSnapshot;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use tokio::sync::mpsc;
use weir_order::Position;

/// A snapshot to save, at the last entry that it holds.
pub(super) type Job = (Position, CoreSnapshot);

/// Starts the thread. It ends when the sender is dropped. One job may wait.
pub(super) fn start(
    engine: Arc<dyn Order>,
    inbox: mpsc::Sender<Command>,
    audit: Option<Keeper>,
) -> Result<(SyncSender<Job>, JoinHandle<()>), Error> {
    let (jobs, queue) = sync_channel::<Job>(1);
    let run = move || {
        while let Ok((at, snapshot)) = queue.recv() {
            let version = snapshot.version();
            let bytes = snapshot.to_bytes();
            if let Some(audit) = &audit {
                // The order forgets what is below the snapshot.
                audit.flush(at.index);
            }
            let saved = engine.save_snapshot(at, &mut &bytes[..]);
            match &saved {
                Ok(info) => tracing::info!(%version, index = at.index, bytes = info.bytes, "snapshot saved"),
                Err(error) => tracing::error!(%version, index = at.index, %error, "no snapshot was saved"),
            }
            if inbox.blocking_send(Command::SnapshotDone { saved: saved.is_ok() }).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("controller-snapshot".into()).spawn(run);
    Ok((jobs, thread.map_err(Error::system("starting a thread"))?))
}
