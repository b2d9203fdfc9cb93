//! The thread that owns the store.

use super::{Item, LocalSettings, Shared, items, locked};
use crate::service::ReadResult;
use bytes::Bytes;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use weir_base::codec::encode;
use weir_order::{Engine, Entry, Position, Submitter};
use weir_store::{Batch, History, Query, Registry, Store};

/// How often it is looked whether an entry goes.
const EXPIRY_LOOK: Duration = Duration::from_millis(50);

pub(super) enum Command {
    /// The order committed an entry.
    Committed(Entry),
    /// The order brings the state after an entry.
    Install(Position, Box<Store>),
    /// Somebody reads.
    Read {
        queries: Vec<Query>,
        /// Who reads may have given up.
        reply: oneshot::Sender<ReadResult>,
    },
    /// A snapshot was saved or failed.
    Saved,
    /// End after what is here.
    Stop,
}

pub(super) struct Applier {
    store: Store,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    submitter: Weak<Submitter>,
    saver: SyncSender<(Position, Store)>,
    settings: LocalSettings,
    last: Position,
    entries_since: u64,
    bytes_since: u64,
    saving: bool,
    /// Whether the time was proposed, and neither ordered nor refused yet.
    time_proposed: Arc<AtomicBool>,
}

impl Applier {
    pub fn new(
        store: Store,
        registry: Arc<Registry>,
        shared: Arc<Shared>,
        submitter: Weak<Submitter>,
        saver: SyncSender<(Position, Store)>,
        settings: LocalSettings,
        last: Position,
    ) -> Applier {
        Applier {
            store,
            registry,
            shared,
            submitter,
            saver,
            settings,
            last,
            entries_since: 0,
            bytes_since: 0,
            saving: false,
            time_proposed: Arc::default(),
        }
    }

    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(EXPIRY_LOOK) {
                Ok(Command::Committed(entry)) => {
                    if let Err(error) = self.committed(&entry) {
                        tracing::error!(index = entry.position.index, %error, "cannot apply an ordered entry");
                        break;
                    }
                }
                Ok(Command::Install(at, store)) => self.install(at, *store),
                Ok(Command::Read { queries, reply }) => {
                    let answers = self.store.queries(&self.registry, &queries);
                    let _ = reply.send(ReadResult { version: self.store.version(), answers });
                }
                Ok(Command::Saved) => self.saving = false,
                Err(RecvTimeoutError::Timeout) => self.look_at_time(),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Whoever waits hears that it is uncertain.
        locked(&self.shared.submissions).clear();
    }

    fn committed(&mut self, entry: &Entry) -> Result<(), crate::Error> {
        for item in items(entry)? {
            self.apply(item);
        }
        self.last = entry.position;
        self.entries_since += 1;
        self.bytes_since += entry.batch.len() as u64;
        self.take_snapshot();
        self.look_at_time();
        Ok(())
    }

    fn install(&mut self, at: Position, store: Store) {
        *locked(&self.shared.fresh_at) = None;
        *locked(&self.shared.history) = History::new(self.settings.history, store.version());
        self.shared.reached.send_replace(store.version());
        self.shared.decided(store.now_ms());
        self.store = store;
        self.last = at;
        self.entries_since = 0;
        self.bytes_since = 0;
        // What waits was done, or was not, in a part of the order that is not seen here.
        locked(&self.shared.submissions).clear();
    }

    fn apply(&mut self, item: Item) {
        let applied = self.store.apply(&self.registry, item.now_ms, &item.batch);
        self.shared.decided(self.store.now_ms());
        self.shared.repeated.fetch_add(applied.repeated, Ordering::Relaxed);
        if !applied.changes.is_empty() {
            let mut history = locked(&self.shared.history);
            applied.changes.into_iter().for_each(|change| history.push(Arc::new(change)));
            drop(history);
            self.shared.reached.send_replace(self.store.version());
        }
        if item.origin != self.shared.origin {
            return;
        }
        if item.ticket == 0 {
            self.time_proposed.store(false, Ordering::Relaxed);
        }
        if let Some(answer) = locked(&self.shared.submissions).remove(&item.ticket) {
            let _ = answer.send(Ok(applied.outcomes));
        }
    }

    /// Proposes the time when an entry is due: entries go by ordered time only.
    fn look_at_time(&mut self) {
        let now_ms = self.shared.ordered_ms();
        let due = self.store.next_expiry_ms().is_some_and(|expires_ms| expires_ms <= now_ms);
        if !due || self.time_proposed.load(Ordering::Relaxed) {
            return;
        }
        let Some(submitter) = self.submitter.upgrade() else { return };
        self.time_proposed.store(true, Ordering::Relaxed);
        let proposed = self.time_proposed.clone();
        let item = Item { now_ms, origin: self.shared.origin, ticket: 0, batch: Batch::once([]) };
        let reply = move |result: Result<_, weir_order::Error>| {
            if let Err(error) = result {
                proposed.store(false, Ordering::Relaxed);
                tracing::debug!(%error, "the time was not ordered");
            }
        };
        submitter.submit(Bytes::from(encode(&item)), Box::new(reply));
    }

    fn take_snapshot(&mut self) {
        let LocalSettings { snapshot_bytes, snapshot_entries, .. } = self.settings;
        if self.saving || (self.bytes_since < snapshot_bytes && self.entries_since < snapshot_entries) {
            return;
        }
        if self.saver.try_send((self.last, self.store.clone())).is_ok() {
            self.saving = true;
            self.entries_since = 0;
            self.bytes_since = 0;
        }
    }
}

/// Saves snapshots until the apply thread ends.
pub(super) fn save_snapshots(
    engine: &dyn Engine,
    jobs: &Receiver<(Position, Store)>,
    saved: &SyncSender<Command>,
) {
    while let Ok((at, store)) = jobs.recv() {
        let bytes = store.to_snapshot();
        drop(store);
        if let Err(error) = engine.save_snapshot(at, &mut Cursor::new(bytes)) {
            tracing::warn!(%error, "a snapshot was not saved; the log keeps its entries");
        }
        if saved.send(Command::Saved).is_err() {
            return;
        }
    }
}
