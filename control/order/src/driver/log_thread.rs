//! The one thread that owns the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

use super::{Command, Shared, locked};
use crate::engine::{Completion, Entry, Sink};
use crate::error::Error;
use crate::local::{Input, Local, LocalSettings, Output};
use crate::log::Log;

/// Drives the local core: takes what waits, writes it at once, syncs once, answers, and again.
pub struct LogThread {
    log: Log,
    core: Local<Completion>,
    waiting_max: usize,
    sink: Box<dyn Sink>,
    shared: Arc<Shared>,
    inbox: Receiver<Command>,
    spares: SyncSender<()>,
    spare_wanted: bool,
}

impl LogThread {
    pub fn new(
        log: Log,
        settings: LocalSettings,
        sink: Box<dyn Sink>,
        shared: Arc<Shared>,
        inbox: Receiver<Command>,
        spares: SyncSender<()>,
    ) -> LogThread {
        let core = Local::new(settings, log.last());
        let waiting_max = settings.waiting_max;
        LogThread { log, core, waiting_max, sink, shared, inbox, spares, spare_wanted: false }
    }

    pub fn run(mut self) {
        // Ends when the engine is dropped, after what it had been given.
        while let Ok(command) = self.inbox.recv() {
            self.work(command);
            // Nothing waits: say in the log that all of it is durable, before sleeping.
            self.log.mark();
            self.publish();
        }
        if let Err(error) = self.log.close() {
            tracing::warn!(%error, "the log could not be closed cleanly");
        }
        self.publish();
    }

    /// Takes `command` and all that waits behind it, and works until the core is idle.
    fn work(&mut self, command: Command) {
        let mut out = Vec::new();
        self.take(command, &mut out);
        self.take_waiting(&mut out);
        while !out.is_empty() {
            let mut write = None;
            for output in out.drain(..) {
                match output {
                    Output::Write { entries } => write = Some(entries),
                    Output::Committed { entry } => self.committed(&entry),
                    Output::Done { ticket, result } => {
                        if result.is_err() {
                            self.shared.failed.fetch_add(1, Ordering::Relaxed);
                        }
                        ticket.finish(result);
                    }
                }
            }
            if let Some(entries) = write {
                let input = match self.write(&entries) {
                    Ok(count) => Input::Written { count },
                    Err(error) => Input::WriteFailed { error },
                };
                self.publish();
                // What came during the write is queued first, so that the next write gathers it.
                self.take_waiting(&mut out);
                self.core.step(input, &mut out);
            }
        }
    }

    fn take_waiting(&mut self, out: &mut Vec<Output<Completion>>) {
        for _ in 0..self.waiting_max {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command, out),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }

    fn take(&mut self, command: Command, out: &mut Vec<Output<Completion>>) {
        match command {
            Command::Propose { batch, done } => self.core.step(Input::Propose { ticket: done, batch }, out),
            Command::TruncateBelow { index } => {
                if let Err(error) = self.log.truncate_below(index) {
                    tracing::warn!(%error, "old segments stay for now");
                }
            }
        }
    }

    fn write(&mut self, entries: &[Entry]) -> Result<usize, Error> {
        let count = self.log.append(entries)?;
        self.log.sync()?;
        if !self.log.wants_spare() {
            self.spare_wanted = false;
        } else if !self.spare_wanted {
            // A full channel means one is being made.
            self.spare_wanted = self.spares.try_send(()).is_ok();
        }
        Ok(count)
    }

    fn committed(&mut self, entry: &Entry) {
        *locked(&self.shared.last) = entry.position;
        self.shared.committed.fetch_add(1, Ordering::Relaxed);
        self.sink.committed(entry);
    }

    fn publish(&self) {
        *locked(&self.shared.log) = self.log.counters();
        self.shared.unhealthy.store(!self.log.is_healthy(), Ordering::Release);
    }
}
