//! Where the replica meets the machine: a thread for raft and the network, one that writes the log, one that makes spare
//! segments, and TLS over TCP between replicas.

mod log_thread;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use weir_base::world::Disk;
use weir_order::{Completion, Engine, Error, Position, Sink, SnapshotInfo, Status};

pub use tls::{Identity, ListenerCounters, TlsListener, TlsTransport, replica_name};

use crate::net::{Accepted, Transport};
use crate::replica::{LINKS_WAITING_MAX, Opened, Replica, open};
use crate::runtime::Life;
use crate::settings::Settings;

/// Takes links of others for as long as the replica runs; it is run on the replica's own runtime.
pub trait Listener: Send + 'static {
    /// Runs until the receiver of `links` is gone.
    fn listen(self: Box<Self>, links: mpsc::Sender<Accepted>)
    -> futures_util::future::BoxFuture<'static, ()>;
}

/// A replica on threads of its own. Dropping it stops the replica and waits for its log to be closed.
pub struct RaftEngine {
    replica: Replica,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| Error::Io {
        action: "starting a thread for",
        file: name.to_owned(),
        dir: "this process".to_owned(),
        source: Arc::new(error),
    })
}

impl RaftEngine {
    /// Opens the replica in `disk` and starts it.
    pub fn start(
        disk: Arc<dyn Disk>,
        settings: Settings,
        transport: Arc<dyn Transport>,
        listener: Box<dyn Listener>,
        sink: Box<dyn Sink>,
    ) -> Result<RaftEngine, Error> {
        let (accepted, links) = mpsc::channel(LINKS_WAITING_MAX);
        let segment_bytes = settings.log.segment_bytes;
        let Opened { replica, run, writer, writes, lock, .. } =
            open(Arc::clone(&disk), settings, transport, links, sink)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Error::Io {
            action: "starting a runtime for",
            file: "raft".to_owned(),
            dir: "this process".to_owned(),
            source: Arc::new(error),
        })?;
        let mut threads = log_thread::start(disk, segment_bytes, lock, &replica.inner.log, writer, writes)?;
        let raft = spawn_thread("raft", move || {
            let life = Life::with_threads();
            runtime.block_on(async {
                life.spawn(listener.listen(accepted));
                // Cancelled only by the end of this life, which comes after.
                let _ended = life.spawn(run.run()).await;
                life.end();
            });
        })?;
        threads.insert(0, raft);
        Ok(RaftEngine { replica, threads: Mutex::new(threads) })
    }

    /// The replica's handle.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }
}

impl std::ops::Deref for RaftEngine {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl Engine for RaftEngine {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        self.replica.propose(batch, done)
    }

    fn status(&self) -> Status {
        self.replica.status()
    }

    fn save_snapshot(&self, at: Position, state: &mut dyn std::io::Read) -> Result<SnapshotInfo, Error> {
        self.replica.save_snapshot(at, state)
    }
}

impl Drop for RaftEngine {
    fn drop(&mut self) {
        self.replica.stop();
        let own = thread::current().id();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.iter().any(|handle| handle.thread().id() == own) {
            // The last reference was dropped by a completion: a thread cannot wait for itself.
            return;
        }
        // The log's threads end when raft's tasks, which alone can ask them, are gone.
        for handle in threads.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a thread of the replica panicked");
            }
        }
    }
}
