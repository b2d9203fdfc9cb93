//! Answers the requests of other replicas, link by link.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use openraft::storage::Snapshot;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use weir_base::world::Disk;
use weir_order::snapshot;

use super::message::{FULL, Hello, Request, Response, decode_request, encode_response};
use super::{Accepted, Common, Incoming, Link, PIPELINE_MAX, count};
use crate::machine::{Machine, MachineShared};
use crate::replica::Newborn;
use crate::runtime::aside;
use crate::types::{SnapshotMeta, Types, term_of};

/// How long the first frame of a link may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Small requests of one link that may be worked on at once.
const SMALL_MAX: usize = 256;

/// What a replica hears beside raft.
pub enum Notice {
    /// The digest of replica `from` after batch `index`.
    Digest {
        /// Who says it.
        from: u64,
        /// The batch.
        index: u64,
        /// The digest.
        digest: [u8; 32],
    },
    /// Replica `from` wants a state.
    Repair {
        /// Who.
        from: u64,
    },
    /// A state came that was asked for.
    State {
        /// Its file.
        data: crate::machine::SnapshotFile,
    },
}

/// What answers.
pub struct Service {
    /// Who this is.
    pub common: Arc<Common>,
    /// openraft.
    pub raft: openraft::Raft<Types, Machine>,
    /// Where a snapshot goes that comes in.
    pub disk: Arc<dyn Disk>,
    /// What is applied.
    pub machine: Arc<MachineShared>,
    /// The snapshot that comes in; one at a time.
    pub incoming: Mutex<Option<Incoming>>,
    /// Where notices go.
    pub notices: mpsc::Sender<Notice>,
    /// No vote is granted before, so that a lease that this replica helped to give stays true across its restart.
    pub votes_from: Instant,
    /// Hears what others' upper halves say.
    pub peers: Arc<std::sync::OnceLock<Box<super::PeerSink>>>,
    /// Whether there is room on this replica's disk.
    pub log: Arc<crate::log::Shared>,
    /// Whether this replica may lack what it had.
    pub newborn: Arc<Newborn>,
    /// Whether a state that is not the leader's snapshot is wanted.
    pub repairing: std::sync::atomic::AtomicBool,
}

/// Serves links until there are no more.
pub async fn serve(service: Arc<Service>, mut links: mpsc::Receiver<Accepted>) {
    while let Some(accepted) = links.recv().await {
        crate::runtime::spawn(serve_link(Arc::clone(&service), accepted));
    }
}

async fn serve_link(service: Arc<Service>, accepted: Accepted) {
    let Accepted { from, mut link } = accepted;
    let counts = &service.common.counts;
    let hello = timeout(HELLO_TIMEOUT, link.incoming.recv()).await.ok().flatten();
    match hello.map(|frame| service.check(from, frame)) {
        Some(Ok(())) => {
            count(&counts.links_accepted, 1);
            // Who opens a link is there.
            service.common.contacts.reached(from);
        }
        Some(Err(why)) => {
            count(&counts.links_refused, 1);
            tracing::warn!(from, why, "refused a connection");
            return;
        }
        None => return,
    }
    if let Err(why) = answer_all(&service, from, link).await {
        count(&counts.malformed, 1);
        tracing::warn!(from, why, "closed a connection");
    }
}

async fn answer_all(service: &Arc<Service>, from: u64, mut link: Link) -> Result<(), &'static str> {
    let mut appends: FuturesOrdered<BoxFuture<'static, Bytes>> = FuturesOrdered::new();
    let mut others: FuturesUnordered<BoxFuture<'static, Bytes>> = FuturesUnordered::new();
    let mut last = 0;
    loop {
        let room = appends.len() < 2 * PIPELINE_MAX && others.len() < SMALL_MAX;
        let answer = tokio::select! {
            biased;
            Some(answer) = appends.next() => answer,
            Some(answer) = others.next() => answer,
            frame = link.incoming.recv(), if room => {
                let Some(frame) = frame else { return Ok(()) };
                count(&service.common.counts.bytes_received, frame.len() as u64);
                let (number, request) = decode_request(frame).map_err(|error| error.0)?;
                if number != last + 1 {
                    return Err("a request is missing");
                }
                last = number;
                let service = Arc::clone(service);
                match request {
                    Request::Append(append) => appends.push_back(Box::pin(async move {
                        encode_response(number, &service.append(append).await)
                    })),
                    other => others.push(Box::pin(async move {
                        encode_response(number, &service.answer(from, other).await)
                    })),
                }
                continue;
            }
        };
        count(&service.common.counts.bytes_sent, answer.len() as u64);
        if link.outgoing.send(answer).await.is_err() {
            return Ok(());
        }
    }
}

fn refused(why: impl std::fmt::Display) -> Response {
    Response::Refused(why.to_string())
}

/// How many entries come before the first batch that this leader took, if there is one. What it has from leaders before it, and its own first
/// entry, must go through for it to lead at all, and are little.
fn before_new(append: &AppendEntriesRequest<Types>) -> Option<usize> {
    let term = append.vote.leader_id.term;
    let is_new = |entry: &crate::types::RaftEntry| {
        matches!(entry.payload, openraft::EntryPayload::Normal(_)) && term_of(&entry.log_id) == term
    };
    append.entries.iter().position(is_new)
}

impl Service {
    fn check(&self, from: u64, frame: Bytes) -> Result<(), String> {
        let hello = Hello::decode(frame).map_err(|error| error.to_string())?;
        let own = &self.common;
        if hello.group != own.group {
            return Err(format!("it is of group '{}' and this is group '{}'", hello.group, own.group));
        }
        if hello.to != own.id {
            return Err(format!(
                "it wants replica {} and this is replica {}: check the addresses",
                hello.to, own.id
            ));
        }
        if hello.from != from {
            return Err(format!(
                "it says it is replica {}, its identity is that of replica {from}",
                hello.from
            ));
        }
        Ok(())
    }

    async fn append(&self, mut append: AppendEntriesRequest<Types>) -> Response {
        // Of a message that brings both, what must go through is taken: the leader sends the rest again, and hears why it waits.
        let mut part = false;
        if self.log.room().is_short()
            && let Some(taken) = before_new(&append)
        {
            count(&self.common.counts.appends_refused, 1);
            if taken == 0 {
                return refused(FULL);
            }
            append.entries.truncate(taken);
            part = true;
        }
        let (commit, last) = (append.leader_commit, append.entries.last().map(|entry| entry.log_id));
        let has = last.or(append.prev_log_id);
        let new = self.newborn.is_new();
        if new && !self.newborn.may_vote(has.as_ref()) {
            // With more than the founding entry it must not want to lead.
            self.raft.runtime_config().elect(false);
        }
        match self.raft.append_entries(append).await {
            Ok(response) => {
                let success = matches!(response, AppendEntriesResponse::Success);
                if new && success && commit.is_some() && has >= commit {
                    self.newborn.grown();
                    self.raft.runtime_config().elect(true);
                }
                match success && part {
                    true => Response::Append(AppendEntriesResponse::PartialSuccess(has)),
                    false => Response::Append(response),
                }
            }
            Err(error) => refused(error),
        }
    }

    /// Why a vote is not given, if so.
    fn withholds(&self, vote: &VoteRequest<Types>) -> Option<Response> {
        let followed = self.log.view().vote.filter(|own| own.committed).map(|own| own.leader_id.voted_for);
        let again = followed == Some(vote.vote.leader_id.voted_for);
        let may = again || self.newborn.may_vote(vote.last_log_id.as_ref());
        (!may)
            .then(|| refused("this replica is new, or has lost what it had: it votes when it has caught up"))
    }

    async fn answer(&self, from: u64, request: Request) -> Response {
        match request {
            Request::Append(append) => self.append(append).await,
            Request::Vote(vote) | Request::PreVote(vote) if self.withholds(&vote).is_some() => {
                self.withholds(&vote).unwrap_or(Response::Ok)
            }
            Request::Vote(vote) => {
                sleep_until(self.votes_from).await;
                self.raft.vote(vote).await.map_or_else(refused, Response::Vote)
            }
            Request::PreVote(vote) => {
                sleep_until(self.votes_from).await;
                self.raft.pre_vote(vote).await.map_or_else(refused, Response::Vote)
            }
            Request::Transfer(transfer) => {
                self.raft.handle_transfer_leader(transfer).await.map_or_else(refused, Response::Transfer)
            }
            Request::Digest { index, digest } => self.notice(Notice::Digest { from, index, digest }),
            Request::Repair => self.notice(Notice::Repair { from }),
            Request::Tell { bytes } => match self.peers.get() {
                Some(hears) => {
                    hears(from, bytes);
                    Response::Ok
                }
                None => refused("nobody here listens to other replicas yet"),
            },
            Request::Offer(_) | Request::Chunk { .. } | Request::Install { .. } => {
                self.snapshot(request).await.unwrap_or_else(refused)
            }
        }
    }

    fn notice(&self, notice: Notice) -> Response {
        // A full queue loses a digest, or a wish that is repeated: both come again.
        match self.notices.try_send(notice) {
            Ok(()) => Response::Ok,
            Err(_) => refused("this replica is busy"),
        }
    }

    async fn snapshot(&self, request: Request) -> io::Result<Response> {
        let mut incoming = self.incoming.lock().await;
        match request {
            Request::Offer(offer) => {
                let disk = Arc::clone(&self.disk);
                let begun = aside(move || Incoming::begin(&*disk, offer)).await?;
                let have = begun.have();
                *incoming = Some(begun);
                Ok(Response::Have(have))
            }
            Request::Chunk { offset, crc, bytes } => {
                let begun = incoming.as_mut().ok_or_else(|| io::Error::other("no snapshot was offered"))?;
                begun.chunk(offset, crc, &bytes).map(Response::Have)
            }
            Request::Install { vote } => {
                let begun = incoming.take().ok_or_else(|| io::Error::other("no snapshot was offered"))?;
                let (offer, data) = begun.finish()?;
                // What came over the wire is not trusted: openraft takes an error while installing as the end.
                let (disk, name) = (Arc::clone(&self.disk), data.name.clone());
                if !aside(move || snapshot::whole_prefix(&*disk, &name)).await?.1 {
                    self.disk.remove(&data.name)?;
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the snapshot arrived damaged"));
                }
                count(&self.common.counts.snapshots_received, 1);
                // A newer one than what is applied is for a replica that is behind, fenced or not.
                let repairing = self.repairing.load(std::sync::atomic::Ordering::Acquire);
                if repairing && data.info.at.index <= self.machine.applied().index {
                    let sent = self.notices.send(Notice::State { data }).await;
                    return sent
                        .map(|()| Response::Installed(vote))
                        .map_err(|_| io::Error::other("stopping"));
                }
                let meta =
                    SnapshotMeta { last_log_id: Some(offer.log_id), last_membership: offer.membership };
                let installed =
                    self.raft.install_full_snapshot(vote, Snapshot { meta, snapshot: data }).await;
                installed.map(|response| Response::Installed(response.vote)).map_err(io::Error::other)
            }
            _ => Err(io::Error::other("no request about snapshots")),
        }
    }
}
