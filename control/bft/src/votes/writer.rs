//! Writes the log of votes: all that waits, then one sync.

use std::time::Duration;

use bytes::Bytes;
use commonware_runtime::Clock;
use commonware_utils::channel::{mpsc, oneshot};
use weir_order::log::Log;
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

/// Owns the log of votes.
pub struct VotesWriter {
    log: Log,
    /// The blobs as the log has them.
    contents: Contents,
    /// The segment that began with all that was live.
    live_in: u64,
    failure: Option<Error>,
    requests: mpsc::UnboundedReceiver<Request>,
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
        VotesWriter { live_in: log.active_segment(), log, contents, failure: None, requests }
    }

    /// Writes until nobody asks any more. Blocks; `spare` is called when a spare segment should be made.
    pub fn run(mut self, mut spare: impl FnMut()) {
        let mut waiting = Vec::new();
        while let Some(first) = self.requests.blocking_recv() {
            waiting.push(first);
            self.write(&mut waiting);
            if self.log.wants_spare() {
                spare();
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
    pub async fn run_here(self, mut spare: impl FnMut()) {
        let (mut waiting, mut closes) = (Vec::new(), Closes(self));
        while let Some(first) = closes.0.requests.recv().await {
            waiting.push(first);
            closes.0.write(&mut waiting);
            if closes.0.log.wants_spare() {
                spare();
            }
        }
    }

    /// As [`VotesWriter::run`], as a task: what is written takes `time` to become durable.
    pub async fn run_as_task<E: Clock>(mut self, context: E, time: impl Fn() -> Duration + Send) {
        let mut waiting = Vec::new();
        while let Some(first) = self.requests.recv().await {
            waiting.push(first);
            context.sleep(time()).await;
            self.write(&mut waiting);
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
        let result = match &self.failure {
            Some(error) => Err(error.clone()),
            None => self.append(waiting).inspect_err(|error| {
                tracing::error!(%error, "the log of votes stops");
            }),
        };
        if let Err(error) = &result {
            self.failure = Some(error.clone());
        }
        for request in waiting.drain(..) {
            // Who does not wait may have gone.
            let _gone = request.done.send(result.clone());
        }
        if result.is_ok() {
            self.renew();
        }
    }

    fn append(&mut self, waiting: &mut [Request]) -> Result<(), Error> {
        let mut changes = Vec::new();
        waiting.iter_mut().for_each(|request| changes.append(&mut request.changes));
        changes.iter().for_each(|change| change.apply(&mut self.contents));
        self.put(&records(changes), |_| CHANGES)?;
        self.log.sync()
    }

    fn put(&mut self, bodies: &[Bytes], tag: impl Fn(usize) -> u8) -> Result<(), Error> {
        let first = self.log.last().index + 1;
        let mut written = 0;
        while written < bodies.len() {
            let rest = bodies
                .iter()
                .enumerate()
                .skip(written)
                .map(|(nth, body)| (Position { term: TERM, index: first + nth as u64 }, tag(nth), body));
            written += self.log.append_tagged(rest, &mut |_| ())?;
        }
        Ok(())
    }

    /// When a new segment was begun: writes all that is live, and lets what is before it go.
    fn renew(&mut self) {
        if self.log.active_segment() == self.live_in {
            return;
        }
        let before = self.log.last().index;
        let changes = self.contents.iter().flat_map(|(key, blob)| whole(key, blob)).collect();
        let mut bodies = records(changes);
        if bodies.is_empty() {
            bodies.push(Bytes::new());
        }
        let last = bodies.len() - 1;
        let put = self.put(&bodies, |nth| if nth == last { LIVE_END } else { LIVE });
        let result = put.and_then(|()| self.log.sync()).and_then(|()| self.log.truncate_below(before));
        self.live_in = self.log.active_segment();
        if let Err(error) = result {
            tracing::error!(%error, "the log of votes stops");
            self.failure = Some(error);
        }
    }
}
