use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::message::*;
use crate::types::{Address, Batch, Membership, Payload, RaftEntry, StoredMembership, Vote, log_id};

fn membership() -> Membership {
    let nodes: std::collections::BTreeMap<u64, Address> =
        (1..=3).map(|id| (id, Address(format!("host-{id}:7000")))).collect();
    Membership::new(vec![[1, 2, 3].into()], nodes).unwrap()
}

fn requests() -> Vec<Request> {
    let entries = vec![
        RaftEntry { log_id: log_id(2, 7), payload: Payload::Blank },
        RaftEntry { log_id: log_id(2, 8), payload: Payload::Normal(Batch(Bytes::from_static(b"a batch"))) },
        RaftEntry { log_id: log_id(2, 9), payload: Payload::Membership(membership()) },
    ];
    let vote = Vote::new_committed(2, 1);
    let mut handed = VoteRequest::new(Vote::new(3, 2), Some(log_id(2, 9)));
    handed.leadership_transfer = true;
    vec![
        Request::Append(AppendEntriesRequest {
            vote,
            prev_log_id: Some(log_id(1, 6)),
            entries,
            leader_commit: None,
        }),
        Request::Vote(handed),
        Request::PreVote(VoteRequest::new(Vote::new(3, 2), None)),
        Request::Transfer(TransferLeaderRequest::new(vote, 3, Some(log_id(2, 9)))),
        Request::Offer(Offer {
            vote,
            log_id: log_id(2, 9),
            membership: StoredMembership::new(Some(log_id(2, 9)), membership()),
            position: (4, 2),
            file_bytes: 1000,
            sha256: [5; 32],
        }),
        Request::Chunk { offset: 40, crc: 7, bytes: Bytes::from_static(b"some bytes") },
        Request::Install { vote },
        Request::Digest { index: 3, digest: [1; 32] },
        Request::Repair,
        Request::Tell { bytes: Bytes::from_static(b"something") },
    ]
}

fn responses() -> Vec<Response> {
    let vote = Vote::new(2, 1);
    vec![
        Response::Append(AppendEntriesResponse::Success),
        Response::Append(AppendEntriesResponse::PartialSuccess(Some(log_id(1, 2)))),
        Response::Append(AppendEntriesResponse::Conflict),
        Response::Append(AppendEntriesResponse::HigherVote(vote)),
        Response::Vote(VoteResponse::new(vote, Some(log_id(1, 2)), true)),
        Response::Transfer(Ok(())),
        Response::Have(9),
        Response::Installed(vote),
        Response::Ok,
        Response::Refused("why not".to_owned()),
    ]
}

#[test]
fn messages_keep_what_they_say() {
    for request in requests() {
        let (number, read) = decode_request(encode_request(5, &request)).unwrap();
        assert_eq!((number, format!("{read:?}")), (5, format!("{request:?}")));
    }
    for response in responses() {
        let (number, read) = decode_response(encode_response(6, &response)).unwrap();
        assert_eq!((number, format!("{read:?}")), (6, format!("{response:?}")));
    }
    let hello = Hello { protocol: super::PROTOCOL, group: "a group".to_owned(), from: 1, to: 2, lane: 3 };
    assert_eq!(Hello::decode(hello.encode()), Ok(hello.clone()));
    let other = Hello { protocol: 99, ..hello };
    assert!(Hello::decode(other.encode()).unwrap_err().to_string().contains("the same release"));
}

#[test]
fn hostile_frames_are_refused_or_read_as_they_would_be_written() {
    let good: Vec<Bytes> = requests()
        .iter()
        .map(|request| encode_request(1, request))
        .chain(responses().iter().map(|response| encode_response(1, response)))
        .collect();
    bolero::check!().with_iterations(4000).with_type::<(Vec<u8>, u8, Vec<(u16, u8)>)>().for_each(
        |(any, which, changes)| {
            let mut changed = good[usize::from(*which) % good.len()].to_vec();
            for (at, with) in changes {
                let at = usize::from(*at) % changed.len();
                changed[at] ^= with;
            }
            for bytes in [any, &changed] {
                let frame = Bytes::from(bytes.clone());
                if let Ok((number, request)) = decode_request(frame.clone()) {
                    let again = decode_request(encode_request(number, &request)).unwrap();
                    assert_eq!(format!("{again:?}"), format!("{:?}", (number, request)));
                }
                if let Ok((number, response)) = decode_response(frame.clone()) {
                    let again = decode_response(encode_response(number, &response)).unwrap();
                    assert_eq!(format!("{again:?}"), format!("{:?}", (number, response)));
                }
                // No panic is all that is wanted.
                let _read = Hello::decode(frame);
            }
        },
    );
}

/// Replicas of the release before read these. A hash that differs means another protocol: raise [`super::PROTOCOL`].
#[test]
fn messages_keep_their_bytes() {
    use sha2::{Digest as _, Sha256};
    let hello = Hello { protocol: super::PROTOCOL, group: "a group".to_owned(), from: 1, to: 2, lane: 3 };
    let mut hash = Sha256::new();
    hash.update(hello.encode());
    requests().iter().for_each(|request| hash.update(encode_request(5, request)));
    responses().iter().for_each(|response| hash.update(encode_response(6, response)));
    let digest: [u8; 32] = hash.finalize().into();
    assert_eq!(
        (super::PROTOCOL, &digest[..8]),
        (1, &[0x46, 0xc7, 0x0e, 0x49, 0x4b, 0x68, 0x66, 0xe5][..]),
        "{digest:02x?}"
    );
}
