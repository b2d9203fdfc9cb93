//! Whose a session of NFSv4.1 is, and calls of one number at once.

use crate::compound::{answer, compound, named, op, operations_of, results, words};
use crate::played::{
    BOUND, client, client_from, getattr, read_record, remove, reply_to, server, until, wall,
};
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::Receiver;
use weir_filewall::proxy::{FileWall, Limits};
use weir_filewall::wire::nfs4::Op4;
use weir_filewall::wire::xdr::get_u32;

const BADSESSION: u32 = 10_052;
const STALE_CLIENTID: u32 = 10_022;
const SESSION: [u32; 4] = [0xa, 0xb, 0xc, 0xd];
const CLIENT: [u32; 2] = [7, 9];

/// A client's connection and FileWall's to the server.
struct Line {
    stream: TcpStream,
    upstream: Option<TcpStream>,
    xid: u32,
}

impl Line {
    fn new(stream: TcpStream) -> Line {
        Line { stream, upstream: None, xid: 0 }
    }

    /// A COMPOUND of NFSv4.1 that the server answers with these results, each with its own; what the client is told.
    fn served(
        &mut self,
        connections: &Receiver<TcpStream>,
        operations: &[crate::compound::Operation],
        done: &[(Op4, u32, Vec<u8>)],
    ) -> (u32, u32) {
        self.xid += 1;
        self.stream.write_all(&compound(self.xid, 1, operations)).unwrap();
        let upstream = self.upstream.get_or_insert_with(|| connections.recv_timeout(BOUND).unwrap());
        let seen = read_record(upstream).unwrap();
        assert_eq!(get_u32(operations_of(&seen), 0) as usize, done.len(), "what the server gets");
        let status = done.last().map_or(0, |(_, status, _)| *status);
        upstream.write_all(&reply_to(&seen, &results(status, done))).unwrap();
        let reply = read_record(&mut self.stream).unwrap();
        (answer(&reply).0, answer(&reply).1)
    }

    /// One that the server hears nothing of.
    fn refused(&mut self, operations: &[crate::compound::Operation]) -> (u32, u32) {
        self.xid += 1;
        self.stream.write_all(&compound(self.xid, 1, operations)).unwrap();
        let reply = read_record(&mut self.stream).unwrap();
        (answer(&reply).0, answer(&reply).1)
    }
}

fn sequence(session: [u32; 4], number: u32) -> crate::compound::Operation {
    words(Op4::Sequence, &[&session[..], &[number, 0, 0, 0]].concat())
}

fn sequenced(session: [u32; 4], number: u32) -> (Op4, u32, Vec<u8>) {
    let said = words(Op4::Sequence, &[&session[..], &[number, 0, 0, 0, 0]].concat());
    (Op4::Sequence, 0, said.1)
}

fn create_session() -> crate::compound::Operation {
    let channel = [0u32, 1000, 1000, 1000, 8, 8, 0];
    words(Op4::CreateSession, &[&CLIENT[..], &[1, 0], &channel, &channel, &[0x4000_0000, 0]].concat())
}

fn begin(policy: &str) -> (FileWall, tempfile::TempDir, Receiver<TcpStream>) {
    let (address, connections) = server();
    let (wall, folder) = wall(address, Some(policy), Limits::default());
    (wall, folder, connections)
}

#[test]
fn a_session_is_used_and_ended_by_the_address_that_it_was_given_to() {
    let (wall, _folder, connections) = begin("kind: statistics\n");
    let mut owner = Line::new(client(&wall));
    let mut stranger = Line::new(client_from(&wall, [127, 0, 0, 2]));
    let channel = [0u32, 1000, 1000, 1000, 8, 8, 0];
    let given = words(Op4::CreateSession, &[&SESSION[..], &[1, 0], &channel, &channel].concat()).1;
    assert_eq!(owner.served(&connections, &[create_session()], &[(Op4::CreateSession, 0, given)]), (0, 1));
    // Whoever knows its name from elsewhere can neither use nor end it, nor bind a connection to it.
    let getattr = || words(Op4::GetAttr, &[1, 2]);
    let use_it = [sequence(SESSION, 1), op(Op4::PutRootFh), getattr()];
    assert_eq!(stranger.refused(&use_it), (BADSESSION, 1));
    assert_eq!(stranger.refused(&[words(Op4::DestroySession, &SESSION)]), (BADSESSION, 1));
    let bind = words(Op4::BindConnection, &[&SESSION[..], &[1, 0]].concat());
    assert_eq!(stranger.refused(&[bind]), (BADSESSION, 1));
    // Nor has he taken a place in it: the owner's call of that number is another one.
    let own = [sequence(SESSION, 1), op(Op4::PutRootFh)];
    let done = [sequenced(SESSION, 1), (Op4::PutRootFh, 0, Vec::new())];
    assert_eq!(owner.served(&connections, &own, &done), (0, 2));
    // With a session of his own he ends no other one.
    let his = [1, 2, 3, 4];
    assert_eq!(stranger.served(&connections, &[sequence(his, 1)], &[sequenced(his, 1)]), (0, 1));
    let both = [sequence(his, 2), words(Op4::DestroySession, &SESSION)];
    assert_eq!(stranger.served(&connections, &both, &[sequenced(his, 2)]), (BADSESSION, 2));
    // One that is older than FileWall is the first user's.
    assert_eq!(owner.refused(&[sequence(his, 3)]), (BADSESSION, 1));
    let end = [words(Op4::DestroySession, &SESSION)];
    assert_eq!(owner.served(&connections, &end, &[(Op4::DestroySession, 0, Vec::new())]), (0, 1));
    assert_eq!(wall.status().totals.counters["foreign_sessions_total"], 5);
}

#[test]
fn no_session_is_made_with_and_no_end_made_of_another_address_s_client() {
    let (wall, _folder, connections) = begin("kind: statistics\n");
    let mut owner = Line::new(client(&wall));
    let mut stranger = Line::new(client_from(&wall, [127, 0, 0, 2]));
    // The verifier, the owner's name, flags, no state protection, no implementation.
    let exchange = words(Op4::ExchangeId, &[1, 2, 4, 0x686f_7374, 0, 0, 0]);
    let given =
        words(Op4::ExchangeId, &[&CLIENT[..], &[1, 0, 0, 0, 0, 4, 0x686f_7374, 4, 0x686f_7374, 0]].concat());
    assert_eq!(owner.served(&connections, &[exchange], &[(Op4::ExchangeId, 0, given.1)]), (0, 1));
    assert_eq!(stranger.refused(&[create_session()]), (STALE_CLIENTID, 1));
    assert_eq!(stranger.refused(&[words(Op4::DestroyClientId, &CLIENT)]), (STALE_CLIENTID, 1));
    let end = [words(Op4::DestroyClientId, &CLIENT)];
    assert_eq!(owner.served(&connections, &end, &[(Op4::DestroyClientId, 0, Vec::new())]), (0, 1));
}

#[test]
fn two_calls_of_one_number_at_once_are_both_answered() {
    let (wall, _folder, connections) = begin("kind: statistics\n");
    for four in [false, true] {
        let mut stream = client(&wall);
        let (first, second) = match four {
            false => (getattr(7), remove(7)),
            true => {
                let lookup =
                    |name: &[u8]| compound(7, 0, &[named(Op4::PutFh, b"root"), named(Op4::Lookup, name)]);
                (lookup(b"one"), lookup(b"two"))
            }
        };
        // The second one twice: a copy has the answer of the first of its kind.
        stream.write_all(&[first.clone(), first.clone(), second.clone()].concat()).unwrap();
        let mut upstream = connections.recv_timeout(BOUND).unwrap();
        let mut answers = Vec::new();
        let end = |record: &[u8]| record[record.len() - 8..].to_vec();
        for asked in [&first, &second] {
            let seen = read_record(&mut upstream).unwrap();
            assert_eq!(end(&seen), end(asked), "the second one waits for the first");
            let said = match four {
                true => results(0, &[(Op4::PutFh, 0, Vec::new()), (Op4::Lookup, 0, Vec::new())]),
                false => [70u32, 0, 0].map(u32::to_be_bytes).concat(),
            };
            let said = if asked == &first && !four { said[..4].to_vec() } else { said };
            upstream.write_all(&reply_to(&seen, &said)).unwrap();
            answers.push(read_record(&mut stream).unwrap());
        }
        assert!(answers.iter().all(|answer| get_u32(answer, 0) == 7));
        until("nothing to be pending", || wall.status().totals.counters["pending"] == 0);
    }
    assert_eq!(wall.status().totals.counters["retransmissions_total"], 2);
}
