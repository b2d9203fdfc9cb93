//! Runs the journal's writer: on a thread, beside consensus, or in a simulation. Where the disk is full it looks for room again and again.

use std::sync::Arc;
use std::time::Duration;

use commonware_runtime::Clock;
use commonware_utils::channel::mpsc;
use weir_order::log::Room;

use crate::journal::{Write, Writer, Written};

/// Writes what the replica asks it to.
pub struct JournalWriter {
    writer: Writer,
    writes: mpsc::UnboundedReceiver<Write>,
    written: mpsc::UnboundedSender<Written>,
}

impl JournalWriter {
    pub(super) fn new(
        writer: Writer,
        writes: mpsc::UnboundedReceiver<Write>,
        written: mpsc::UnboundedSender<Written>,
    ) -> JournalWriter {
        JournalWriter { writer, writes, written }
    }

    /// Whether there is room on the disk.
    pub fn room(&self) -> &Arc<Room> {
        self.writer.room()
    }

    /// Writes until the replica is gone. Blocks; `spare` is called when a spare segment should be made, or room looked for.
    pub fn run(mut self, mut spare: impl FnMut()) {
        let mut waiting = Vec::new();
        while let Some(first) = self.writes.blocking_recv() {
            waiting.push(first);
            loop {
                self.take(&mut waiting);
                if waiting.is_empty() {
                    break;
                }
                self.write(&mut waiting);
                if self.writer.wants_spare() {
                    spare();
                }
                while self.writer.is_waiting() && !self.writes.is_closed() {
                    spare();
                    std::thread::sleep(self.writer.room().pause());
                    self.try_again(&mut waiting);
                }
            }
            self.writer.idle();
        }
        self.close();
    }

    /// As [`JournalWriter::run`], as a task of the replica itself: for a folder in memory, where a write takes less than to wake a thread for it.
    pub async fn run_here<E: Clock>(mut self, context: E, mut spare: impl FnMut()) {
        let mut waiting = Vec::new();
        while let Some(first) = self.writes.recv().await {
            waiting.push(first);
            self.take(&mut waiting);
            self.write(&mut waiting);
            if self.writer.wants_spare() {
                spare();
            }
            while self.writer.is_waiting() && !self.writes.is_closed() {
                spare();
                context.sleep(self.writer.room().pause()).await;
                self.try_again(&mut waiting);
            }
            if self.writes.is_empty() {
                self.writer.idle();
            }
        }
        self.close();
    }

    fn close(&mut self) {
        if let Err(error) = self.writer.close() {
            tracing::warn!(%error, "the replica's journal could not be closed cleanly");
        }
    }

    /// As [`JournalWriter::run`], as a task: what is written takes `time` to become durable.
    pub async fn run_as_task<E: Clock>(mut self, context: E, time: impl Fn() -> Duration + Send) {
        let (mut waiting, room) = (Vec::new(), Arc::clone(self.writer.room()));
        loop {
            tokio::select! {
                biased;
                first = self.writes.recv(), if !self.writer.is_waiting() => match first {
                    Some(first) => waiting.push(first),
                    None => return,
                },
                () = context.sleep(room.pause()), if room.is_short() => {
                    self.writer.look_for_room();
                    self.try_again(&mut waiting);
                    continue;
                }
            }
            context.sleep(time()).await;
            self.take(&mut waiting);
            self.write(&mut waiting);
            if self.writer.wants_spare() && !room.is_short() {
                self.writer.look_for_room();
            }
        }
    }

    fn take(&mut self, waiting: &mut Vec<Write>) {
        while let Ok(next) = self.writes.try_recv() {
            waiting.push(next);
        }
    }

    fn try_again(&mut self, waiting: &mut Vec<Write>) {
        if self.writer.is_waiting() && self.writer.room().has_next() {
            self.write(waiting);
        }
    }

    fn write(&mut self, waiting: &mut Vec<Write>) {
        // The replica may be gone; what it asked for is written all the same.
        let _unheard = self.written.send(self.writer.drain(waiting));
    }
}
