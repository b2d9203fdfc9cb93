//! The task behind a client: one stream, numbers, repetitions.
//!
//! Invariants
//! - A request is in `pending` from when it is taken until its caller has an answer, and its number is used by
//!   no other request of this client.
//! - `settled_below` is never above a number in `pending`, so the store keeps every outcome that may be asked for.
//! - A request that may have been done under a client number which the store forgot is not sent again: it is uncertain.

use super::ClientSettings;
use super::pause::Pause;
use crate::Error;
use crate::convert::{answer, outcome, to_operation, to_query};
use crate::proto::store_client::StoreClient;
use crate::proto::{self as p, client_batch, server_batch};
use crate::server::MESSAGE_BYTES_MAX;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Streaming};
use weir_model::Version;
use weir_store::{Answer, Operation, Outcome, Query, Refusal};

/// A batch ends behind so many bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// What callers ask for.
pub(super) enum Job {
    Submit {
        operation: Operation,
        since: Instant,
        reply: oneshot::Sender<Result<Outcome, Error>>,
    },
    Read {
        query: Query,
        staleness_ms: u64,
        since: Instant,
        reply: oneshot::Sender<Result<(Version, Answer), Error>>,
    },
}

struct Submission {
    operation: p::Operation,
    reply: oneshot::Sender<Result<Outcome, Error>>,
    since: Instant,
    /// How often it was sent and may have been done.
    sendings: u32,
}

struct Reading {
    query: p::Query,
    staleness_ms: u64,
    reply: oneshot::Sender<Result<(Version, Answer), Error>>,
    since: Instant,
}

/// A batch without an answer yet.
struct Open {
    sent: Instant,
    client: u64,
    what: What,
}

enum What {
    Opening,
    Submissions(Vec<u64>),
    Readings(Vec<u64>),
}

/// Why a connection is left.
enum Left {
    /// Try the endpoint that is said to lead, or the next.
    Try(Option<String>),
    /// All callers are gone.
    Done,
}

pub(super) struct Driver {
    settings: Arc<ClientSettings>,
    jobs: mpsc::Receiver<Job>,
    callers_gone: bool,
    pending: BTreeMap<u64, Submission>,
    readings: BTreeMap<u64, Reading>,
    /// Of `pending` and `readings`: those that are in no open batch.
    unsent: BTreeSet<u64>,
    unread: BTreeSet<u64>,
    /// 0: not opened.
    client: u64,
    next_number: u64,
    endpoint: usize,
    /// Said to lead.
    leader: Option<String>,
    pause: Pause,
    trouble: String,
}

struct Connection {
    batches: mpsc::Sender<p::ClientBatch>,
    answers: Streaming<p::ServerBatch>,
    open: HashMap<u64, Open>,
    /// Nothing is sent before: the server is overloaded.
    quiet_until: Option<Instant>,
}

impl Driver {
    pub fn new(settings: Arc<ClientSettings>, jobs: mpsc::Receiver<Job>) -> Driver {
        Driver {
            settings,
            jobs,
            callers_gone: false,
            pending: BTreeMap::new(),
            readings: BTreeMap::new(),
            unsent: BTreeSet::new(),
            unread: BTreeSet::new(),
            client: 0,
            next_number: 1,
            endpoint: 0,
            leader: None,
            pause: Pause::new(),
            trouble: "no server was tried yet".into(),
        }
    }

    pub async fn run(mut self) {
        loop {
            // Connect when somebody wants something, not before.
            if self.pending.is_empty() && self.readings.is_empty() {
                match self.jobs.recv().await {
                    Some(job) => self.take(job),
                    None => return,
                }
            }
            let endpoint =
                self.leader.take().unwrap_or_else(|| self.settings.endpoints[self.endpoint].clone());
            let left = match self.connect(&endpoint).await {
                Ok(connection) => self.serve(connection).await,
                Err(error) => {
                    self.trouble = error.to_string();
                    if matches!(error, Error::Denied(_) | Error::Setting(_)) {
                        self.fail(What::Readings(self.readings.keys().copied().collect()));
                        self.fail(What::Submissions(self.pending.keys().copied().collect()));
                    }
                    Left::Try(None)
                }
            };
            match left {
                Left::Done => return,
                Left::Try(leader) => {
                    self.endpoint =
                        (self.endpoint + usize::from(leader.is_none())) % self.settings.endpoints.len();
                    self.leader = leader;
                }
            }
            self.forget_those_done_once();
            self.unsent = self.pending.keys().copied().collect();
            self.unread = self.readings.keys().copied().collect();
            self.give_up();
            tokio::time::sleep(self.pause.next()).await;
            while let Ok(job) = self.jobs.try_recv() {
                self.take(job);
                if self.is_full() {
                    break;
                }
            }
        }
    }

    async fn connect(&self, endpoint: &str) -> Result<Connection, Error> {
        let limit = Duration::from_millis(self.settings.try_ms);
        let late = |_| Error::Unavailable(format!("{endpoint} does not answer"));
        let channel = tokio::time::timeout(limit, self.settings.channel(endpoint)).await.map_err(late)??;
        let mut client = StoreClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (batches, outbound) = mpsc::channel(2 * self.settings.open_max + 2);
        let mut request = Request::new(ReceiverStream::new(outbound));
        if let Some(authorization) = self.settings.authorization()? {
            request.metadata_mut().insert("authorization", authorization);
        }
        let answered = tokio::time::timeout(limit, client.stream(request)).await.map_err(late)?;
        let answers = answered.map_err(|status| denied(endpoint, &status))?.into_inner();
        Ok(Connection { batches, answers, open: HashMap::new(), quiet_until: None })
    }

    fn is_full(&self) -> bool {
        self.pending.len() + self.readings.len() >= self.settings.waiting_max
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn take(&mut self, job: Job) {
        let number = self.number();
        match job {
            Job::Submit { operation, since, reply } => {
                let operation = to_operation(&operation);
                self.pending.insert(number, Submission { operation, reply, since, sendings: 0 });
                self.unsent.insert(number);
            }
            Job::Read { query, staleness_ms, since, reply } => {
                let query = to_query(&query);
                self.readings.insert(number, Reading { query, staleness_ms, reply, since });
                self.unread.insert(number);
            }
        }
    }

    /// What was sent and may not be sent again has no outcome any more.
    fn forget_those_done_once(&mut self) {
        if !self.settings.once {
            return;
        }
        let sent = self.pending.iter().filter(|(_, one)| one.sendings > 0).map(|(number, _)| *number);
        for number in sent.collect::<Vec<_>>() {
            if let Some(submission) = self.pending.remove(&number) {
                let _ = submission.reply.send(Err(Error::Uncertain(self.trouble.clone())));
            }
        }
    }

    /// Tells those who wait for too long.
    fn give_up(&mut self) {
        let limit = Duration::from_millis(self.settings.give_up_ms);
        let is_late = |since: Instant| since.elapsed() >= limit;
        let late: Vec<u64> = self
            .pending
            .iter()
            .take_while(|(_, one)| is_late(one.since))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.unsent.remove(&number);
            let Some(submission) = self.pending.remove(&number) else { continue };
            let trouble = self.trouble.clone();
            let error = if submission.sendings == 0 {
                Error::Unavailable(trouble)
            } else {
                Error::Uncertain(trouble)
            };
            let _ = submission.reply.send(Err(error));
        }
        let late: Vec<u64> = self
            .readings
            .iter()
            .take_while(|(_, one)| is_late(one.since))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.unread.remove(&number);
            let Some(reading) = self.readings.remove(&number) else { continue };
            let _ = reading.reply.send(Err(Error::Unavailable(self.trouble.clone())));
        }
    }

    async fn serve(&mut self, mut connection: Connection) -> Left {
        loop {
            if self.callers_gone && self.pending.is_empty() && self.readings.is_empty() {
                return Left::Done;
            }
            if connection.quiet_until.is_none_or(|until| until <= Instant::now()) {
                connection.quiet_until = None;
                if !self.send(&mut connection) {
                    return Left::Try(None);
                }
            }
            let deadline = self.deadline(&connection);
            let may_take = !self.is_full() && !self.callers_gone;
            tokio::select! {
                answered = connection.answers.message() => match answered {
                    Ok(Some(batch)) => {
                        if let Some(left) = self.answered(&mut connection, batch) {
                            return left;
                        }
                    }
                    Ok(None) => return self.lost("the server ended the stream"),
                    Err(status) => return self.lost(status.message()),
                },
                job = self.jobs.recv(), if may_take => match job {
                    Some(job) => self.take_all(job),
                    None => self.callers_gone = true,
                },
                () = tokio::time::sleep_until(deadline) => {
                    self.give_up();
                    let limit = Duration::from_millis(self.settings.try_ms);
                    if connection.open.values().any(|open| open.sent.elapsed() >= limit) {
                        return self.lost("the server does not answer");
                    }
                }
            }
        }
    }

    fn lost(&mut self, trouble: &str) -> Left {
        self.trouble = trouble.to_owned();
        Left::Try(None)
    }

    fn take_all(&mut self, job: Job) {
        self.take(job);
        while !self.is_full() {
            match self.jobs.try_recv() {
                Ok(job) => self.take(job),
                Err(_) => return,
            }
        }
    }

    fn deadline(&self, connection: &Connection) -> Instant {
        let after = |since: Instant, ms: u64| since + Duration::from_millis(ms);
        let opened = connection.open.values().map(|open| after(open.sent, self.settings.try_ms));
        let first = self.pending.values().next().map(|one| one.since);
        let first = first.into_iter().chain(self.readings.values().next().map(|one| one.since));
        let given_up = first.map(|since| after(since, self.settings.give_up_ms));
        let idle = Instant::now() + Duration::from_secs(60);
        opened.chain(given_up).chain(connection.quiet_until).fold(idle, Instant::min)
    }

    /// Sends what may be sent; false when the connection is gone.
    fn send(&mut self, connection: &mut Connection) -> bool {
        let count = |wanted: fn(&What) -> bool| connection.open.values().filter(|o| wanted(&o.what)).count();
        let opening = count(|what| matches!(what, What::Opening)) > 0;
        let submitting = count(|what| matches!(what, What::Submissions(_)));
        let reading = count(|what| matches!(what, What::Readings(_)));
        let is_open = self.client != 0 || self.settings.once;
        if !self.unsent.is_empty() && !is_open && !opening {
            let open = p::operation::Operation::OpenClient(p::OpenClient {});
            let request = p::Request { sequence: 0, operation: Some(p::Operation { operation: Some(open) }) };
            let body = p::SubmitRequest { client: 0, settled_below: 0, requests: vec![request] };
            if !self.send_one(connection, What::Opening, client_batch::Body::Submit(body)) {
                return false;
            }
        }
        if !self.unsent.is_empty() && is_open && submitting < self.settings.open_max {
            let (numbers, body) = self.submissions();
            let body = client_batch::Body::Submit(body);
            if !self.send_one(connection, What::Submissions(numbers), body) {
                return false;
            }
        }
        if !self.unread.is_empty() && reading < self.settings.open_max {
            let (numbers, body) = self.reads();
            let body = client_batch::Body::Read(body);
            if !self.send_one(connection, What::Readings(numbers), body) {
                return false;
            }
        }
        true
    }

    fn send_one(&mut self, connection: &mut Connection, what: What, body: client_batch::Body) -> bool {
        let number = self.number();
        let open = Open { sent: Instant::now(), client: self.client, what };
        connection.open.insert(number, open);
        // Has a place: no more batches are open than it holds.
        let sent = connection.batches.try_send(p::ClientBatch { number, body: Some(body) });
        if sent.is_err() {
            self.trouble = "the connection broke".into();
        }
        sent.is_ok()
    }

    fn submissions(&mut self) -> (Vec<u64>, p::SubmitRequest) {
        let (mut numbers, mut requests, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(number) = self.unsent.first().copied() {
            let Some(submission) = self.pending.get_mut(&number) else {
                self.unsent.remove(&number);
                continue;
            };
            if numbers.len() == self.settings.batch_max || bytes >= BATCH_BYTES_MAX {
                break;
            }
            bytes += submission.operation.encoded_len();
            submission.sendings += 1;
            requests.push(p::Request { sequence: number, operation: Some(submission.operation.clone()) });
            numbers.push(number);
            self.unsent.remove(&number);
        }
        let settled_below = self.pending.keys().next().copied().unwrap_or(self.next_number);
        (numbers, p::SubmitRequest { client: self.client, settled_below, requests })
    }

    /// Reads that may be equally stale.
    fn reads(&mut self) -> (Vec<u64>, p::ReadRequest) {
        let first = self.unread.first().and_then(|number| self.readings.get(number));
        let staleness_ms = first.map_or(0, |reading| reading.staleness_ms);
        let (mut numbers, mut queries) = (Vec::new(), Vec::new());
        for number in self.unread.iter() {
            let Some(reading) = self.readings.get(number) else { continue };
            if reading.staleness_ms == staleness_ms && numbers.len() < self.settings.batch_max {
                numbers.push(*number);
                queries.push(reading.query.clone());
            }
        }
        for number in &numbers {
            self.unread.remove(number);
        }
        (numbers, p::ReadRequest { queries, staleness_ms })
    }

    fn answered(&mut self, connection: &mut Connection, batch: p::ServerBatch) -> Option<Left> {
        let open = connection.open.remove(&batch.number)?;
        match (batch.body, open.what) {
            (Some(server_batch::Body::Submitted(reply)), What::Opening) => {
                match reply.outcomes.into_iter().next().map(outcome) {
                    Some(Ok(Outcome::Opened { client })) => self.client = client,
                    other => return Some(self.lost(&format!("no client could be opened: {other:?}"))),
                }
            }
            (Some(server_batch::Body::Submitted(reply)), What::Submissions(numbers)) => {
                if self.settle(open.client, numbers, reply.outcomes) {
                    // Another one is opened, and perhaps forgotten as soon.
                    connection.quiet_until = Some(Instant::now() + self.pause.next());
                    return None;
                }
            }
            (Some(server_batch::Body::Read(reply)), What::Readings(numbers)) => {
                let mut answers = reply.answers.into_iter();
                for number in numbers {
                    let Some(reading) = self.readings.remove(&number) else { continue };
                    let found = answers.next().ok_or_else(|| crate::ConvertError::missing("an answer"));
                    let found = found.and_then(answer).map_err(Error::Answer);
                    let _ = reading.reply.send(found.map(|answer| (Version(reply.version), answer)));
                }
            }
            (Some(server_batch::Body::Problem(problem)), what) => {
                return self.problem(connection, problem, what);
            }
            _ => return Some(self.lost("the server answers another kind of batch")),
        }
        self.pause.over();
        None
    }

    /// Tells whether the store has forgotten the client.
    fn settle(&mut self, client: u64, numbers: Vec<u64>, outcomes: Vec<p::Outcome>) -> bool {
        let (mut outcomes, mut is_unknown) = (outcomes.into_iter(), false);
        for number in numbers {
            let found = outcomes.next().ok_or_else(|| crate::ConvertError::missing("an outcome"));
            let found = found.and_then(outcome);
            if let Ok(Outcome::Refused(refusal @ Refusal::UnknownClient { .. })) = &found {
                is_unknown = true;
                self.client = if self.client == client { 0 } else { self.client };
                // What was sent this once was not done. An earlier sending may have been, before the store
                // forgot the client.
                if let Some(submission) = self.pending.get_mut(&number).filter(|one| one.sendings == 1) {
                    submission.sendings = 0;
                    self.unsent.insert(number);
                } else if let Some(submission) = self.pending.remove(&number) {
                    let _ = submission.reply.send(Err(Error::Uncertain(refusal.to_string())));
                }
                continue;
            }
            if let Some(submission) = self.pending.remove(&number) {
                let _ = submission.reply.send(found.map_err(Error::Answer));
            }
        }
        is_unknown
    }

    fn problem(&mut self, connection: &mut Connection, problem: p::Problem, what: What) -> Option<Left> {
        use p::problem::Code;
        let (code, leader) = (problem.code(), problem.leader);
        self.trouble = problem.message;
        match code {
            Code::NotLeader => return Some(Left::Try(Some(leader).filter(|leader| !leader.is_empty()))),
            Code::Overloaded => {
                connection.quiet_until = Some(Instant::now() + self.pause.next());
                match what {
                    What::Opening => {}
                    What::Submissions(numbers) => {
                        for number in numbers {
                            if let Some(submission) = self.pending.get_mut(&number) {
                                submission.sendings -= 1;
                                self.unsent.insert(number);
                            }
                        }
                    }
                    // One that was given up meanwhile would be asked for again and again, and never be taken out.
                    What::Readings(numbers) => {
                        self.unread.extend(numbers.into_iter().filter(|one| self.readings.contains_key(one)));
                    }
                }
            }
            Code::Denied | Code::Invalid => self.fail(what),
            Code::Uncertain | Code::Unavailable | Code::Unknown => return Some(Left::Try(None)),
        }
        None
    }

    fn fail(&mut self, what: What) {
        let error = || Error::Denied(self.trouble.clone());
        match what {
            What::Opening => self.fail(What::Submissions(self.pending.keys().copied().collect())),
            What::Submissions(numbers) => {
                for number in numbers {
                    if let Some(submission) = self.pending.remove(&number) {
                        let _ = submission.reply.send(Err(error()));
                    }
                }
            }
            What::Readings(numbers) => {
                for number in numbers {
                    if let Some(reading) = self.readings.remove(&number) {
                        let _ = reading.reply.send(Err(error()));
                    }
                }
            }
        }
    }
}

/// A call that is refused as a whole.
fn denied(endpoint: &str, status: &tonic::Status) -> Error {
    let message = format!("{endpoint}: {}", status.message());
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Error::Denied(message),
        _ => Error::Unavailable(message),
    }
}
