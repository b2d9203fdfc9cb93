//! DNS messages: reading a query strictly, and writing its answer into the size that the asker
//! takes (RFC 1035, 6891, 7766).

use super::directory::{Answer, Question};
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query as Asked, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};

/// Largest payload of an asker without EDNS, bytes.
pub const PAYLOAD_BYTES_MIN: u16 = 512;
/// Largest payload that we send or take, bytes: it fits every path without fragments.
pub const PAYLOAD_BYTES_MAX: u16 = 1232;
/// A header, bytes.
const HEADER_BYTES: usize = 12;

/// A query that can be answered.
#[derive(Clone, Debug)]
pub struct Query {
    metadata: Metadata,
    asked: Asked,
    /// Largest payload of the asker, if it speaks EDNS.
    edns_bytes: Option<u16>,
    /// Whether it came on a stream, which takes every answer.
    stream: bool,
}

/// Why a query is not answered as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no query; there is nobody to tell.
    Drop,
    /// This says why.
    Reply(Vec<u8>),
}

/// What a query came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram, so that the answer must fit into what the asker takes.
    Datagram,
    /// A stream.
    Stream,
}

impl Query {
    /// The query, as it came.
    pub fn carried_by(mut self, carrier: Carrier) -> Query {
        self.stream = carrier == Carrier::Stream;
        self
    }

    /// The question, in lower case.
    pub fn question(&self) -> Question {
        Question { name: self.asked.name.to_lowercase(), kind: self.asked.query_type }
    }
}

/// Reads a query.
///
/// # Errors
/// [`Refused`].
pub fn parse_query(bytes: &[u8]) -> Result<Query, Refused> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Refused::Drop)?;
    // An answer must never be answered, or two servers talk for ever.
    if header[2] & 0x80 != 0 {
        return Err(Refused::Drop);
    }
    let id = u16::from_be_bytes([header[0], header[1]]);
    let reply = |code| {
        let message = Message::error_msg(id, OpCode::from_u8((header[2] >> 3) & 0x0f), code);
        match message.to_vec() {
            Ok(bytes) => Refused::Reply(bytes),
            Err(_) => Refused::Drop,
        }
    };
    // Counted before decoding: a header may announce 65535 questions.
    if header[4..6] != [0, 1] || header[6..8] != [0, 0] {
        return Err(reply(ResponseCode::FormErr));
    }
    let message = Message::from_vec(bytes).map_err(|_| reply(ResponseCode::FormErr))?;
    let Some(asked) = message.queries.first().cloned() else {
        return Err(reply(ResponseCode::FormErr));
    };
    let edns_bytes = message.edns.as_ref().map(Edns::max_payload);
    let query = Query { metadata: message.metadata, asked, edns_bytes, stream: false };
    let refuse = |code| match encode_answer(&query, &Answer::code(code)) {
        Some((bytes, _)) => Refused::Reply(bytes),
        None => Refused::Drop,
    };
    if message.metadata.op_code != OpCode::Query {
        return Err(refuse(ResponseCode::NotImp));
    }
    if message.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
        return Err(refuse(ResponseCode::BADVERS));
    }
    if query.asked.query_class != DNSClass::IN {
        return Err(refuse(ResponseCode::Refused));
    }
    if matches!(query.asked.query_type, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) {
        return Err(refuse(ResponseCode::NotImp));
    }
    Ok(query)
}

/// Writes the answer to a query, and tells whether it had to be cut.
pub fn encode_answer(query: &Query, answer: &Answer) -> Option<(Vec<u8>, bool)> {
    let mut metadata = Metadata::response_from_request(&query.metadata);
    metadata.authoritative = answer.authoritative;
    metadata.recursion_available = true;
    metadata.response_code = answer.code;
    let mut message = Message::new(metadata.id, MessageType::Response, metadata.op_code);
    message.metadata = metadata;
    message.add_query(query.asked.clone());
    message.answers = answer.records.clone();
    message.authorities = answer.authority.clone();
    if query.edns_bytes.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD_BYTES_MAX);
        message.set_edns(edns);
    }
    let limit = match query.stream {
        true => u16::MAX,
        false => query.edns_bytes.unwrap_or(0).clamp(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX),
    };
    let bytes = message.to_vec().ok()?;
    if bytes.len() <= usize::from(limit) {
        return Some((bytes, false));
    }
    Some((message.truncate().to_vec().ok()?, true))
}

/// A query of our own.
pub fn own_query(id: u16, question: &Question, recursion: bool) -> Option<Vec<u8>> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = recursion;
    message.add_query(Asked::query(question.name.clone(), question.kind));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD_BYTES_MAX);
    message.set_edns(edns);
    message.to_vec().ok()
}

/// What a server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The answer to the query.
    Answer(Answer),
    /// The answer to the query, cut: it would be cached as whole, so it only says that a stream must be used.
    Cut,
    /// Something else.
    Other,
}

/// Reads what a server sent after a query.
pub fn match_answer(bytes: &[u8], id: u16, question: &Question) -> Received {
    let Ok(message) = Message::from_vec(bytes) else { return Received::Other };
    let metadata = &message.metadata;
    let [asked] = &message.queries[..] else { return Received::Other };
    let matches = metadata.id == id
        && metadata.message_type == MessageType::Response
        && metadata.op_code == OpCode::Query
        && asked.query_class == DNSClass::IN
        && asked.query_type == question.kind
        && asked.name.to_lowercase() == question.name;
    if !matches {
        return Received::Other;
    }
    if metadata.truncation {
        return Received::Cut;
    }
    Received::Answer(Answer {
        code: metadata.response_code,
        records: message.answers,
        authority: message.authorities,
        authoritative: false,
    })
}
