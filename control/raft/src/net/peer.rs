//! Requests to other replicas, over links that are opened when needed and shared.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use futures_util::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use weir_base::world::DiskFile;

use super::message::{Hello, Offer, Request, Response, decode_response, encode_request};
use super::{Common, Lane, PIPELINE_MAX, PROTOCOL, Transport, count, locked};
use crate::machine::{Meta, SnapshotFile};
use crate::runtime::{aside, spawn};
use crate::types::{Address, LogId, Types, Vote};

/// The least time that a chunk of a snapshot, or its installation, is waited for.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Requests without an answer on one link, at most: beyond, the link counts as broken.
const WAITING_MAX: usize = 1024;
/// Entries may take so long to be acknowledged, at least: a disk may stall.
const APPEND_SILENCE: Duration = Duration::from_secs(1);

/// The open links, by replica and lane.
type Links = BTreeMap<(u64, Lane), Arc<Connection>>;
/// Who waits for an answer, by the number of the request, and since when.
type Waiting = BTreeMap<u64, (Instant, oneshot::Sender<Response>)>;

/// One open link and who waits for answers on it.
struct Connection {
    outgoing: mpsc::Sender<Bytes>,
    /// None when the link is broken.
    waiting: Arc<Mutex<Option<Waiting>>>,
    next: AtomicU64,
    /// A request that had no answer for so long means that the link is dead. Requests that nobody waits for any more
    /// count as well, so a link that died without a word is noticed by whoever uses it next.
    silence_max: Duration,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, what.to_owned())
}

impl Connection {
    fn is_open(&self) -> bool {
        locked(&self.waiting).is_some() && !self.outgoing.is_closed()
    }

    /// Queues a request; the answer comes through the receiver, which fails when the link breaks. Requests keep
    /// the order in which they were queued.
    fn send(&self, common: &Common, request: &Request) -> io::Result<oneshot::Receiver<Response>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = locked(&self.waiting);
        let Some(map) = waiting.as_mut() else { return Err(broken("the link is broken")) };
        let silent = map.first_key_value().is_some_and(|(_, (since, _))| since.elapsed() > self.silence_max);
        let place = match self.outgoing.try_reserve() {
            Ok(place) if !silent && map.len() < WAITING_MAX => place,
            _ => {
                *waiting = None;
                return Err(broken("the link is dead: what was sent has no answer"));
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = encode_request(number, request);
        if frame.len() > common.frame_bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a request is larger than a frame may be",
            ));
        }
        count(&common.counts.requests, 1);
        count(&common.counts.bytes_sent, frame.len() as u64);
        map.insert(number, (Instant::now(), sender));
        place.send(frame);
        Ok(receiver)
    }
}

async fn read_answers(
    common: Arc<Common>,
    (target, address): (u64, String),
    mut incoming: mpsc::Receiver<Bytes>,
    waiting: Arc<Mutex<Option<Waiting>>>,
) {
    let mut answered = false;
    while let Some(frame) = incoming.recv().await {
        count(&common.counts.bytes_received, frame.len() as u64);
        let Ok((number, response)) = decode_response(frame) else {
            count(&common.counts.malformed, 1);
            break;
        };
        if !std::mem::replace(&mut answered, true) {
            common.contacts.reached(target);
        }
        let asker = locked(&waiting).as_mut().and_then(|map| map.remove(&number));
        if let Some((_, asker)) = asker {
            // Whoever asked may have stopped waiting.
            let _unheard = asker.send(response);
        }
    }
    if !answered {
        let what = "it closed the link before it had answered anything; its log says why";
        common.contacts.failed(target, &address, &broken(what));
    }
    *locked(&waiting) = None;
}

/// Makes clients, and holds the links that they share.
#[derive(Clone)]
pub struct Network {
    common: Arc<Common>,
    transport: Arc<dyn Transport>,
    links: Arc<tokio::sync::Mutex<Links>>,
    pace: Pace,
    silence_max: Duration,
}

/// How a snapshot is sent.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Bytes in a chunk.
    pub chunk_bytes: usize,
    /// Bytes a second, at most; 0 is without limit.
    pub bytes_per_s: u64,
}

impl Network {
    /// A network without links. A link whose requests have no answer for `silence_max` is opened anew.
    pub fn new(
        common: Arc<Common>,
        transport: Arc<dyn Transport>,
        pace: Pace,
        silence_max: Duration,
    ) -> Network {
        Network { common, transport, links: Arc::default(), pace, silence_max }
    }

    /// A client of replica `target`.
    pub fn client(&self, target: u64, address: &Address, lane: Lane) -> Client {
        Client { network: self.clone(), target, address: address.clone(), lane }
    }

    fn open(&self, target: u64, lane: Lane) -> Option<Arc<Connection>> {
        let links = self.links.try_lock().ok()?;
        links.get(&(target, lane)).filter(|link| link.is_open()).cloned()
    }

    async fn connection(&self, target: u64, address: &Address, lane: Lane) -> io::Result<Arc<Connection>> {
        if let Some(open) = self.open(target, lane) {
            return Ok(open);
        }
        self.common.contacts.pause(target).await;
        // Somebody else may have opened it meanwhile.
        if let Some(open) = self.open(target, lane) {
            return Ok(open);
        }
        let connected = self.transport.connect(target, address.0.clone(), lane).await;
        let link = connected.inspect_err(|error| {
            count(&self.common.counts.links_failed, 1);
            self.common.contacts.failed(target, &address.0, error);
        })?;
        count(&self.common.counts.links_opened, 1);
        let (from, group, lane_number) = (self.common.id, self.common.group.clone(), lane.number());
        let hello = Hello { protocol: PROTOCOL, group, from, to: target, lane: lane_number };
        link.outgoing.try_send(hello.encode()).map_err(|_| broken("the link broke at once"))?;
        let waiting = Arc::new(Mutex::new(Some(Waiting::new())));
        let whom = (target, address.0.clone());
        spawn(read_answers(Arc::clone(&self.common), whom, link.incoming, Arc::clone(&waiting)));
        let silence_max = match lane {
            Lane::Control | Lane::Peers => self.silence_max,
            Lane::Append => self.silence_max.max(APPEND_SILENCE),
            Lane::Snapshot => INSTALL_TIMEOUT,
        };
        let next = AtomicU64::new(1);
        let connection = Arc::new(Connection { outgoing: link.outgoing, waiting, next, silence_max });
        self.links.lock().await.insert((target, lane), Arc::clone(&connection));
        Ok(connection)
    }
}

/// Asks one replica.
pub struct Client {
    network: Network,
    target: u64,
    address: Address,
    lane: Lane,
}

fn unreachable(error: &io::Error) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(error))
}

fn unexpected(response: &Response) -> RPCError<Types> {
    let what = match response {
        Response::Refused(why) => why.clone(),
        other => format!("an answer that does not fit: {other:?}"),
    };
    RPCError::Network(NetworkError::from_string(what))
}

impl Client {
    /// Asks and waits for the answer, connecting included.
    pub async fn ask(&self, request: &Request, limit: Duration) -> io::Result<Response> {
        let network = &self.network;
        let asked = timeout(limit, async {
            let connection = network.connection(self.target, &self.address, self.lane).await?;
            let answer = connection.send(&network.common, request)?;
            answer.await.map_err(|_| broken("the link broke before the answer"))
        });
        match asked.await {
            Ok(result) => result,
            Err(_) => {
                count(&network.common.counts.timeouts, 1);
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}")))
            }
        }
    }

    async fn call(&self, request: Request, option: &RPCOption) -> Result<Response, RPCError<Types>> {
        self.ask(&request, option.soft_ttl()).await.map_err(|error| unreachable(&error))
    }

    /// Sends a snapshot: asks what is there already, then the rest, chunk by chunk, and waits until it is installed.
    async fn send_snapshot(&self, vote: Vote, meta: &Meta, data: &SnapshotFile) -> io::Result<Vote> {
        let offer = Offer {
            vote,
            log_id: meta.log_id,
            membership: meta.membership.clone(),
            position: (data.info.at.index, data.info.at.term),
            file_bytes: data.file_bytes,
            sha256: data.info.sha256,
        };
        let mut offset = self.have(self.ask(&Request::Offer(offer), CHUNK_TIMEOUT).await?)?;
        if offset > 0 {
            count(&self.network.common.counts.transfers_resumed, 1);
        }
        let sending = self.network.common.contacts.sending(self.target, data.file_bytes);
        let chunk_bytes = self.network.pace.chunk_bytes;
        while offset < data.file_bytes {
            sending.sent(offset);
            let file = Arc::clone(&data.file);
            let (bytes, crc) = aside(move || chunk_of(&*file, offset, chunk_bytes)).await?;
            let filled = bytes.len();
            let request = Request::Chunk { offset, crc, bytes };
            let next = self.have(self.ask(&request, CHUNK_TIMEOUT).await?)?;
            if next != offset + filled as u64 {
                return Err(broken("the receiver lost its place"));
            }
            count(&self.network.common.counts.chunks_sent, 1);
            offset = next;
            if let Some(rest_ns) = (filled as u64 * 1_000_000_000).checked_div(self.network.pace.bytes_per_s)
            {
                tokio::time::sleep(Duration::from_nanos(rest_ns)).await;
            }
        }
        sending.sent(data.file_bytes);
        match self.ask(&Request::Install { vote }, INSTALL_TIMEOUT).await? {
            Response::Installed(vote) => Ok(vote),
            other => Err(io::Error::other(unexpected(&other))),
        }
    }

    fn have(&self, response: Response) -> io::Result<u64> {
        match response {
            Response::Have(offset) => Ok(offset),
            other => Err(io::Error::other(unexpected(&other))),
        }
    }

    /// Sends the newest snapshot to a replica that asked for a repair.
    pub async fn send_repair(&self, meta: &Meta, data: &SnapshotFile, vote: Vote) -> io::Result<()> {
        self.send_snapshot(vote, meta, data).await.map(|_| ())
    }
}

/// Bytes of a snapshot's file, and their checksum.
fn chunk_of(file: &dyn DiskFile, offset: u64, chunk_bytes: usize) -> io::Result<(Bytes, u32)> {
    let mut chunk = vec![0; chunk_bytes];
    let filled = file.read_at(offset, &mut chunk)?;
    if filled == 0 {
        let what = "the snapshot's file is shorter than it was";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
    }
    chunk.truncate(filled);
    let crc = crc32c::crc32c(&chunk);
    Ok((Bytes::from(chunk), crc))
}

/// What the answer to one pipelined request says, and whether the stream ends with it.
fn streamed(
    response: Response,
    prev: Option<LogId>,
    last: Option<LogId>,
) -> (Result<StreamAppendResult<Types>, RPCError<Types>>, bool) {
    match response {
        Response::Append(AppendEntriesResponse::Success) => (Ok(Ok(last)), false),
        Response::Append(AppendEntriesResponse::PartialSuccess(id)) => (Ok(Ok(id)), id != last),
        Response::Append(AppendEntriesResponse::Conflict) => match prev {
            Some(prev) => (Ok(Err(StreamAppendError::Conflict(prev))), true),
            None => {
                (Err(RPCError::Network(NetworkError::from_string("a conflict before the first entry"))), true)
            }
        },
        Response::Append(AppendEntriesResponse::HigherVote(vote)) => {
            (Ok(Err(StreamAppendError::HigherVote(vote))), true)
        }
        other => (Err(unexpected(&other)), true),
    }
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        match self.call(Request::Append(rpc), &option).await? {
            Response::Append(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let (network, target, lane, limit) =
                (self.network.clone(), self.target, self.lane, option.soft_ttl());
            let opening = timeout(limit, network.connection(target, &self.address, lane)).await;
            let opened = opening.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)));
            let connection = opened.map_err(|error| unreachable(&error))?;
            let answers = input.map(move |request| {
                let prev = request.prev_log_id;
                let last = request.entries.last().map(|entry| entry.log_id).or(prev);
                let whom = (target, request.vote.leader_id.term);
                // Queued here, not when the future runs: this keeps the order.
                let sent = connection.send(&network.common, &Request::Append(request));
                let (network, silence_max) = (network.clone(), connection.silence_max);
                async move {
                    let answer = match sent {
                        Ok(answer) => answer,
                        Err(error) => return (Err(unreachable(&error)), true),
                    };
                    match timeout(silence_max, answer).await {
                        Ok(Ok(response)) => {
                            let contacts = &network.common.contacts;
                            contacts.heard(whom, &response, prev, last);
                            if contacts.is_lost(target) {
                                // What it says counts only when it is known to begin anew.
                                let what = "it has lost what it had acknowledged, and is not heard before that is mended";
                                return (Err(unreachable(&io::Error::other(what))), true);
                            }
                            streamed(response, prev, last)
                        }
                        Ok(Err(_)) => (Err(unreachable(&broken("the link broke before the answer"))), true),
                        Err(_) => {
                            count(&network.common.counts.timeouts, 1);
                            (Err(unreachable(&io::Error::from(io::ErrorKind::TimedOut))), true)
                        }
                    }
                }
            });
            let mut over = false;
            let until_end = answers.buffered(PIPELINE_MAX).take_while(move |(_, last)| {
                let wanted = !over;
                over |= *last;
                std::future::ready(wanted)
            });
            let stream: BoxStream<'s, _> = Box::pin(until_end.map(|(result, _)| result));
            Ok(stream)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Request::Vote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Request::PreVote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::type_config::alias::SnapshotOf<Types, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let position = snapshot.snapshot.info.at;
        let Some(log_id) = snapshot.meta.last_log_id else {
            return Err(StreamingError::Network(NetworkError::from_string("a snapshot without a place")));
        };
        let meta = Meta { log_id, membership: snapshot.meta.last_membership, position };
        let send = std::pin::pin!(self.send_snapshot(vote, &meta, &snapshot.snapshot));
        match futures_util::future::select(send, std::pin::pin!(cancel)).await {
            Either::Left((Ok(vote), _)) => Ok(SnapshotResponse::new(vote)),
            Either::Left((Err(error), _)) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        match self.call(Request::Transfer(request), &option).await? {
            Response::Transfer(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}

/// openraft's way to ask for clients: entries, everything small, and snapshots go over lanes of their own.
impl RaftNetworkFactory<Types> for Network {
    type Network = RoutedClient;

    async fn new_client(&mut self, target: u64, node: &Address) -> RoutedClient {
        RoutedClient {
            entries: self.client(target, node, Lane::Append),
            control: self.client(target, node, Lane::Control),
        }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Address) -> RoutedClient {
        let control = self.client(target, node, Lane::Control);
        RoutedClient { entries: self.client(target, node, Lane::Control), control }
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Address) -> RoutedClient {
        RoutedClient {
            entries: self.client(target, node, Lane::Snapshot),
            control: self.client(target, node, Lane::Control),
        }
    }
}

/// Sends entries and snapshots on one lane and the rest on the control lane.
pub struct RoutedClient {
    entries: Client,
    control: Client,
}

impl RaftNetworkV2<Types> for RoutedClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        self.entries.append_entries(rpc, option).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        RaftNetworkV2::stream_append(&mut self.entries, input, option)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        RaftNetworkV2::vote(&mut self.control, rpc, option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        RaftNetworkV2::pre_vote(&mut self.control, rpc, option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::type_config::alias::SnapshotOf<Types, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        RaftNetworkV2::full_snapshot(&mut self.entries, vote, snapshot, cancel, option).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        RaftNetworkV2::transfer_leader(&mut self.control, request, option).await
    }
}
