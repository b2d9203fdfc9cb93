//! The messages; `docs/protocol/raft.md` draws them.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};

use super::PROTOCOL;
use crate::codec::{Malformed, Put, Reader};
use crate::types::{LogId, StoredMembership, Types, Vote};

/// Entries in one request, at most.
const ENTRIES_MAX: u32 = 65_536;
/// Bytes that those above the order may say at once.
pub const TELL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a group's name, at most.
const GROUP_BYTES_MAX: usize = 128;

/// Why a follower whose disk is full does not take what a leader has taken: leaders know it by these words. It acknowledges signs of life.
pub const FULL: &str = "this replica's disk is full: it takes nothing new until there is room";

/// The first frame of a link, from whoever opened it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The protocol's version.
    pub protocol: u32,
    /// The group's name.
    pub group: String,
    /// Who opens.
    pub from: u64,
    /// To whom.
    pub to: u64,
    /// [`super::Lane::number`].
    pub lane: u8,
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u32_le(self.protocol);
        out.put_bytes_of(self.group.as_bytes());
        out.put_u64_le(self.from);
        out.put_u64_le(self.to);
        out.put_u8(self.lane);
        out.freeze()
    }

    /// Reads one. Another version is [`Malformed`] too.
    pub fn decode(bytes: Bytes) -> Result<Hello, Malformed> {
        let mut reader = Reader(bytes);
        let protocol = reader.u32()?;
        if protocol != PROTOCOL {
            return Err(Malformed(
                "another version of the protocol between replicas: install the same release",
            ));
        }
        let group = reader.bytes()?;
        if group.len() > GROUP_BYTES_MAX {
            return Err(Malformed("a group's name is too long"));
        }
        let group = String::from_utf8(group.to_vec()).map_err(|_| Malformed("a group's name is not text"))?;
        let hello = Hello { protocol, group, from: reader.u64()?, to: reader.u64()?, lane: reader.u8()? };
        reader.end()?;
        Ok(hello)
    }
}

/// A snapshot that is about to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The leader's vote.
    pub vote: Vote,
    /// Where in raft's log it stands.
    pub log_id: LogId,
    /// The members there.
    pub membership: StoredMembership,
    /// Where in the order of batches: index and term.
    pub position: (u64, u64),
    /// Bytes of its file.
    pub file_bytes: u64,
    /// SHA-256 of its state.
    pub sha256: [u8; 32],
}

/// A question to another replica.
#[derive(Debug, Clone)]
pub enum Request {
    /// Append these entries.
    Append(AppendEntriesRequest<Types>),
    /// Vote for me.
    Vote(VoteRequest<Types>),
    /// Would you vote for me?
    PreVote(VoteRequest<Types>),
    /// Lead.
    Transfer(TransferLeaderRequest<Types>),
    /// How much of this snapshot have you?
    Offer(Offer),
    /// Bytes of the snapshot offered last.
    Chunk {
        /// Where in its file.
        offset: u64,
        /// CRC32C of the bytes.
        crc: u32,
        /// The bytes.
        bytes: Bytes,
    },
    /// That was all of it: install it.
    Install {
        /// The leader's vote.
        vote: Vote,
    },
    /// The digest of my state after an entry. The answer is [`Response::Ok`].
    Digest {
        /// The batch's index.
        index: u64,
        /// Its digest.
        digest: [u8; 32],
    },
    /// My state is not that of the majority: offer me yours on a link of your own.
    Repair,
    /// Something that those above the order say to each other, at most [`TELL_BYTES_MAX`]. The answer is [`Response::Ok`].
    Tell {
        /// What.
        bytes: Bytes,
    },
}

/// An answer.
#[derive(Debug, Clone)]
pub enum Response {
    /// To [`Request::Append`].
    Append(AppendEntriesResponse<Types>),
    /// To [`Request::Vote`] and [`Request::PreVote`].
    Vote(VoteResponse<Types>),
    /// To [`Request::Transfer`].
    Transfer(Result<(), TransferLeaderError<Types>>),
    /// To [`Request::Offer`] and [`Request::Chunk`]: I have the file up to here.
    Have(u64),
    /// To [`Request::Install`]: my vote now.
    Installed(Vote),
    /// Heard.
    Ok,
    /// This replica cannot answer, and why.
    Refused(String),
}

const APPEND: u8 = 1;
const VOTE: u8 = 2;
const PRE_VOTE: u8 = 3;
const TRANSFER: u8 = 4;
const OFFER: u8 = 5;
const CHUNK: u8 = 6;
const INSTALL: u8 = 7;
const DIGEST: u8 = 8;
const REPAIR: u8 = 9;
const TELL: u8 = 10;

const TO_APPEND: u8 = 0x81;
const TO_VOTE: u8 = 0x82;
const TO_TRANSFER: u8 = 0x84;
const HAVE: u8 = 0x85;
const INSTALLED: u8 = 0x87;
const OK: u8 = 0x88;
const REFUSED: u8 = 0x89;

fn put_vote_request(out: &mut BytesMut, request: &VoteRequest<Types>) {
    out.put_vote(&request.vote);
    out.put_log_id(request.last_log_id.as_ref());
    out.put_u8(u8::from(request.leadership_transfer));
}

fn vote_request(reader: &mut Reader) -> Result<VoteRequest<Types>, Malformed> {
    let mut request = VoteRequest::new(reader.vote()?, reader.log_id()?);
    request.leadership_transfer = reader.bool()?;
    Ok(request)
}

fn array(bytes: &Bytes) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(bytes);
    out
}

/// A request's frame.
pub fn encode_request(number: u64, request: &Request) -> Bytes {
    let mut out = BytesMut::with_capacity(size_hint(request));
    let kind = match request {
        Request::Append(_) => APPEND,
        Request::Vote(_) => VOTE,
        Request::PreVote(_) => PRE_VOTE,
        Request::Transfer(_) => TRANSFER,
        Request::Offer(_) => OFFER,
        Request::Chunk { .. } => CHUNK,
        Request::Install { .. } => INSTALL,
        Request::Digest { .. } => DIGEST,
        Request::Repair => REPAIR,
        Request::Tell { .. } => TELL,
    };
    out.put_u8(kind);
    out.put_u64_le(number);
    match request {
        Request::Append(append) => {
            out.put_vote(&append.vote);
            out.put_log_id(append.prev_log_id.as_ref());
            out.put_log_id(append.leader_commit.as_ref());
            out.put_u32_le(append.entries.len() as u32);
            for entry in &append.entries {
                out.put_entry(entry);
            }
        }
        Request::Vote(vote) | Request::PreVote(vote) => put_vote_request(&mut out, vote),
        Request::Transfer(transfer) => {
            out.put_vote(transfer.from_leader());
            out.put_u64_le(*transfer.to_node_id());
            out.put_log_id(transfer.last_log_id());
        }
        Request::Offer(offer) => {
            out.put_vote(&offer.vote);
            out.put_log_id(Some(&offer.log_id));
            out.put_stored_membership(&offer.membership);
            out.put_u64_le(offer.position.0);
            out.put_u64_le(offer.position.1);
            out.put_u64_le(offer.file_bytes);
            out.put_slice(&offer.sha256);
        }
        Request::Chunk { offset, crc, bytes } => {
            out.put_u64_le(*offset);
            out.put_u32_le(*crc);
            out.put_bytes_of(bytes);
        }
        Request::Install { vote } => out.put_vote(vote),
        Request::Digest { index, digest } => {
            out.put_u64_le(*index);
            out.put_slice(digest);
        }
        Request::Repair => {}
        Request::Tell { bytes } => out.put_bytes_of(bytes),
    }
    out.freeze()
}

fn size_hint(request: &Request) -> usize {
    const SMALL: usize = 128;
    match request {
        Request::Append(append) => {
            let body = |entry: &crate::types::RaftEntry| match &entry.payload {
                openraft::EntryPayload::Normal(batch) => batch.0.len(),
                _ => SMALL,
            };
            SMALL + append.entries.iter().map(|entry| 32 + body(entry)).sum::<usize>()
        }
        Request::Chunk { bytes, .. } | Request::Tell { bytes } => SMALL + bytes.len(),
        _ => SMALL,
    }
}

/// Reads a request's frame: its number and what it asks.
pub fn decode_request(frame: Bytes) -> Result<(u64, Request), Malformed> {
    let mut reader = Reader(frame);
    let (kind, number) = (reader.u8()?, reader.u64()?);
    let request = match kind {
        APPEND => {
            let (vote, prev_log_id, leader_commit) = (reader.vote()?, reader.log_id()?, reader.log_id()?);
            let count = reader.u32()?;
            if count > ENTRIES_MAX {
                return Err(Malformed("a request has too many entries"));
            }
            let entries = (0..count).map(|_| reader.entry()).collect::<Result<Vec<_>, _>>()?;
            let ids = prev_log_id.into_iter().chain(entries.iter().map(|entry| entry.log_id));
            let mut next = None;
            for id in ids {
                if next.is_some_and(|next| next != id.index()) {
                    return Err(Malformed("the entries of a request do not follow each other"));
                }
                next = Some(id.index() + 1);
            }
            Request::Append(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
        }
        VOTE => Request::Vote(vote_request(&mut reader)?),
        PRE_VOTE => Request::PreVote(vote_request(&mut reader)?),
        TRANSFER => {
            let (vote, to) = (reader.vote()?, reader.u64()?);
            Request::Transfer(TransferLeaderRequest::new(vote, to, reader.log_id()?))
        }
        OFFER => Request::Offer(Offer {
            vote: reader.vote()?,
            log_id: reader.log_id()?.ok_or(Malformed("an offer has no place"))?,
            membership: reader.stored_membership()?,
            position: (reader.u64()?, reader.u64()?),
            file_bytes: reader.u64()?,
            sha256: array(&reader.take(32)?),
        }),
        CHUNK => Request::Chunk { offset: reader.u64()?, crc: reader.u32()?, bytes: reader.bytes()? },
        INSTALL => Request::Install { vote: reader.vote()? },
        DIGEST => Request::Digest { index: reader.u64()?, digest: array(&reader.take(32)?) },
        REPAIR => Request::Repair,
        TELL => {
            let bytes = reader.bytes()?;
            if bytes.len() > TELL_BYTES_MAX {
                return Err(Malformed("a message of those above the order is too long"));
            }
            Request::Tell { bytes }
        }
        _ => return Err(Malformed("a request of an unknown kind")),
    };
    reader.end()?;
    Ok((number, request))
}

/// A response's frame.
pub fn encode_response(number: u64, response: &Response) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    let kind = match response {
        Response::Append(_) => TO_APPEND,
        Response::Vote(_) => TO_VOTE,
        Response::Transfer(_) => TO_TRANSFER,
        Response::Have(_) => HAVE,
        Response::Installed(_) => INSTALLED,
        Response::Ok => OK,
        Response::Refused(_) => REFUSED,
    };
    out.put_u8(kind);
    out.put_u64_le(number);
    match response {
        Response::Append(AppendEntriesResponse::Success) => out.put_u8(0),
        Response::Append(AppendEntriesResponse::PartialSuccess(id)) => {
            out.put_u8(1);
            out.put_log_id(id.as_ref());
        }
        Response::Append(AppendEntriesResponse::Conflict) => out.put_u8(2),
        Response::Append(AppendEntriesResponse::HigherVote(vote)) => {
            out.put_u8(3);
            out.put_vote(vote);
        }
        Response::Vote(vote) => {
            out.put_vote(&vote.vote);
            out.put_u8(u8::from(vote.vote_granted));
            out.put_log_id(vote.last_log_id.as_ref());
        }
        Response::Transfer(Ok(())) => out.put_u8(0),
        Response::Transfer(Err(TransferLeaderError::VoteChanged { expected, actual })) => {
            out.put_u8(1);
            out.put_vote(expected);
            out.put_vote(actual);
        }
        Response::Transfer(Err(TransferLeaderError::LogNotFlushed { expected, actual })) => {
            out.put_u8(2);
            out.put_log_id(expected.as_ref());
            out.put_log_id(actual.as_ref());
        }
        Response::Have(offset) => out.put_u64_le(*offset),
        Response::Installed(vote) => out.put_vote(vote),
        Response::Ok => {}
        Response::Refused(why) => out.put_bytes_of(why.as_bytes()),
    }
    out.freeze()
}

/// Reads a response's frame: the number of its request and what it says.
pub fn decode_response(frame: Bytes) -> Result<(u64, Response), Malformed> {
    let mut reader = Reader(frame);
    let (kind, number) = (reader.u8()?, reader.u64()?);
    let unknown = Malformed("a response of an unknown kind");
    let response = match kind {
        TO_APPEND => Response::Append(match reader.u8()? {
            0 => AppendEntriesResponse::Success,
            1 => AppendEntriesResponse::PartialSuccess(reader.log_id()?),
            2 => AppendEntriesResponse::Conflict,
            3 => AppendEntriesResponse::HigherVote(reader.vote()?),
            _ => return Err(unknown),
        }),
        TO_VOTE => {
            let (vote, granted) = (reader.vote()?, reader.bool()?);
            Response::Vote(VoteResponse::new(vote, reader.log_id()?, granted))
        }
        TO_TRANSFER => Response::Transfer(match reader.u8()? {
            0 => Ok(()),
            1 => Err(TransferLeaderError::VoteChanged { expected: reader.vote()?, actual: reader.vote()? }),
            2 => Err(TransferLeaderError::LogNotFlushed {
                expected: reader.log_id()?,
                actual: reader.log_id()?,
            }),
            _ => return Err(unknown),
        }),
        HAVE => Response::Have(reader.u64()?),
        INSTALLED => Response::Installed(reader.vote()?),
        OK => Response::Ok,
        REFUSED => Response::Refused(String::from_utf8_lossy(&reader.bytes()?).into_owned()),
        _ => return Err(unknown),
    };
    reader.end()?;
    Ok((number, response))
}
