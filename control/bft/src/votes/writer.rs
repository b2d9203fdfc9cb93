//! Writes the log of votes: all that waits, then one sync.
//!
//! Votes need little room, and little more as time goes on: a next segment is made as soon as one is begun, and where the disk is full it is made of the
//! oldest, which is not needed once all that is live is written anew. So a member votes on on a full disk. When there is no room all the same,
//! what is to be written waits and is tried again; nobody is told that it is durable, so nothing is sent that hangs on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use commonware_runtime::Clock;
use commonware_utils::channel::{mpsc, oneshot};
use weir_order::log::{Log, Room};
use weir_order::{Error, Position};

use super::record::{CHANGES, Change, Contents, LIVE, LIVE_END, records, whole};

/// Log entries need a term; votes have no leader.
const TERM: u64 = 1;

/// What is asked of the writer.
pub(super) struct Request {
    /// What happened, in order.
    pub changes: Vec<Change>,
    /// Is told when it is durable.
    pub done: oneshot::Sender<Result<(), Error>>,
}

/// What is to be written before anything else is.
#[derive(Default)]
struct Work {
    bodies: VecDeque<(u8, Bytes)>,
    /// Who is told when all of it is durable.
    done: Vec<oneshot::Sender<Result<(), Error>>>,
    /// The last record that may go then, when this is all that is live.
    renews: Option<u64>,
}

/// Owns the log of votes.
pub struct VotesWriter {
    log: Log,
    /// The blobs as the log has them, or will have them.
    contents: Contents,
    /// The segment that began with all that was live.
    live_in: u64,
    /// The segment in which a next one was asked for.
    spare_in: u64,
    failure: Option<Error>,
    requests: mpsc::UnboundedReceiver<Request>,
    work: Work,
}

/// Closes the log also when its task ends with the runtime: consensus may have those who ask for ever.
struct Closes(VotesWriter);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl VotesWriter {
    pub(super) fn new(
        log: Log,
        contents: Contents,
        requests: mpsc::UnboundedReceiver<Request>,
    ) -> VotesWriter {
        let live_in = log.active_segment();
        VotesWriter { live_in, spare_in: 0, log, contents, failure: None, requests, work: Work::default() }
    }

    /// Whether there is room on the disk.
    pub fn room(&self) -> &Arc<Room> {
        self.log.room()
    }

    /// Writes until nobody asks any more. Blocks; `spare` is called when a spare segment should be made, or room looked for.
    pub fn run(mut self, mut spare: impl FnMut()) {
        let mut waiting = Vec::new();
        self.ask_for_spare(&mut spare);
        while let Some(first) = self.requests.blocking_recv() {
            waiting.push(first);
            self.write(&mut waiting);
            self.ask_for_spare(&mut spare);
            while self.is_waiting() && !self.requests.is_closed() {
                spare();
                std::thread::sleep(self.room().pause());
                self.try_again();
            }
        }
        self.close();
    }

    fn close(&mut self) {
        if let Err(error) = self.log.close() {
            tracing::warn!(%error, "the log of votes could not be closed cleanly");
        }
    }

    /// As [`VotesWriter::run`], as a task of whoever votes: for a folder in memory, where a write takes less than to wake a thread for it.
    pub async fn run_here<E: Clock>(self, context: E, mut spare: impl FnMut()) {
        let (mut waiting, mut closes) = (Vec::new(), Closes(self));
        closes.0.ask_for_spare(&mut spare);
        while let Some(first) = closes.0.requests.recv().await {
            waiting.push(first);
            closes.0.write(&mut waiting);
            closes.0.ask_for_spare(&mut spare);
            while closes.0.is_waiting() && !closes.0.requests.is_closed() {
                spare();
                context.sleep(closes.0.room().pause()).await;
                closes.0.try_again();
            }
        }
    }

    /// As [`VotesWriter::run`], as a task: what is written takes `time` to become durable.
    pub async fn run_as_task<E: Clock>(mut self, context: E, time: impl Fn() -> Duration + Send) {
        let (mut waiting, room) = (Vec::new(), Arc::clone(self.room()));
        self.log.prepare_next();
        loop {
            tokio::select! {
                biased;
                first = self.requests.recv(), if !self.is_waiting() => match first {
                    Some(first) => waiting.push(first),
                    None => return,
                },
                () = context.sleep(room.pause()), if room.is_short() => {
                    self.log.prepare_next();
                    self.try_again();
                    continue;
                }
            }
            context.sleep(time()).await;
            self.write(&mut waiting);
            if self.spare_in != self.log.active_segment() {
                self.spare_in = self.log.active_segment();
                self.log.prepare_next();
            }
        }
    }

    fn ask_for_spare(&mut self, spare: &mut impl FnMut()) {
        if self.spare_in != self.log.active_segment() {
            self.spare_in = self.log.active_segment();
            spare();
        }
    }

    fn is_waiting(&self) -> bool {
        self.failure.is_none() && !self.work.bodies.is_empty()
    }

    fn try_again(&mut self) {
        if self.is_waiting() && self.room().has_next() {
            self.go_on();
        }
    }

    #[cfg(test)]
    pub(super) fn write_what_waits(&mut self) {
        self.write(&mut Vec::new());
    }

    /// Does what waits, and answers.
    fn write(&mut self, waiting: &mut Vec<Request>) {
        while let Ok(next) = self.requests.try_recv() {
            waiting.push(next);
        }
        let mut changes = Vec::new();
        for request in waiting.drain(..) {
            changes.extend(request.changes);
            self.work.done.push(request.done);
        }
        changes.iter().for_each(|change| change.apply(&mut self.contents));
        self.work.bodies.extend(records(changes).into_iter().map(|body| (CHANGES, body)));
        self.go_on();
    }

    /// Writes all that is to be written, makes it durable and answers; where there is no room, what is left waits.
    fn go_on(&mut self) {
        loop {
            let result = match &self.failure {
                Some(error) => Err(error.clone()),
                None => self.put(),
            };
            match &result {
                Err(error) if self.failure.is_none() && error.is_no_room() && self.log.is_healthy() => {
                    return self.room().waits();
                }
                Err(error) if self.failure.is_none() => {
                    tracing::error!(%error, "the log of votes stops");
                    self.failure = Some(error.clone());
                }
                _ => {}
            }
            self.room().goes_on();
            for done in self.work.done.drain(..) {
                // Who does not wait may have gone.
                let _gone = done.send(result.clone());
            }
            if self.failure.is_some() || self.log.active_segment() == self.live_in {
                return;
            }
            self.renew();
        }
    }

    fn put(&mut self) -> Result<(), Error> {
        while !self.work.bodies.is_empty() {
            let first = self.log.last().index + 1;
            let bodies = (first..)
                .zip(&self.work.bodies)
                .map(|(index, (tag, body))| (Position { term: TERM, index }, *tag, body));
            let count = self.log.append_tagged(bodies, &mut |_| ())?;
            self.work.bodies.drain(..count);
        }
        self.log.sync()?;
        match self.work.renews.take() {
            Some(before) => {
                // Before the removal, which may make the next segment of what goes.
                self.live_in = self.log.active_segment();
                self.log.truncate_below(before)
            }
            None => Ok(()),
        }
    }

    /// When a new segment was begun: all that is live is to be written, and what is before it goes then.
    fn renew(&mut self) {
        self.work.renews = Some(self.log.last().index);
        let changes = self.contents.iter().flat_map(|(key, blob)| whole(key, blob)).collect();
        let mut bodies = records(changes);
        if bodies.is_empty() {
            bodies.push(Bytes::new());
        }
        let last = bodies.len() - 1;
        let tag = |nth| if nth == last { LIVE_END } else { LIVE };
        self.work.bodies.extend(bodies.into_iter().enumerate().map(|(nth, body)| (tag(nth), body)));
    }
}
