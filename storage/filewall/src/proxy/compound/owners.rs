//! Whose the server's sessions and client numbers are (NFSv4.1).
//!
//! A server takes a SEQUENCE of whoever names a session, and lets him end it: with AUTH_SYS nothing says that he is the client that has
//! made it (RFC 8881, 2.10.8 leaves that to state protection, which needs Kerberos). So each session is its client machine's here: the
//! address to which the server has given it, or, for a session that is older than this FileWall, the first that has used it. The same
//! goes for the client numbers of EXCHANGE_ID, by which sessions are made and clients are ended.
//!
//! - Used, bound or ended by another address: `NFS4ERR_BADSESSION`, and the server hears nothing of it. Nor does such a call take a
//!   place in a slot ([`super::slots`]), which would be missing to the owner.
//! - A session made with, or an end of, another address's client number: `NFS4ERR_STALE_CLIENTID`.
//!
//! Departures: a client whose address changes makes a new session, as after a restart of the server; one that uses one session from
//! several addresses (trunking from its side) has the first one only. Machines behind one translated address are one. When there are more
//! than [`OWNERS_MAX`], those that were not used for longest are forgotten, and are the next user's.

use crate::wire::nfs4::arguments::Argument;
use crate::wire::nfs4::{CLIENT_BYTES, Op4, SESSION_BYTES, status};
use hashbrown::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Most sessions and client numbers that are remembered.
pub const OWNERS_MAX: usize = 65_536;

/// What is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owned {
    /// A session.
    Session([u8; SESSION_BYTES]),
    /// A client's number.
    Client([u8; CLIENT_BYTES]),
}

impl Owned {
    /// What the arguments of an operation name.
    pub fn of_argument(argument: &Argument, record: &[u8]) -> Option<Owned> {
        let rest = record.get(argument.start + 4..)?;
        match argument.op {
            Op4::Sequence | Op4::DestroySession | Op4::BindConnection => Owned::session(rest),
            Op4::CreateSession | Op4::DestroyClientId => Owned::client(rest),
            _ => None,
        }
    }

    /// What the server has given, or has let somebody use, by the result of an operation that went well, and whether it is given
    /// anew. `start` is where the result begins.
    pub fn of_result(op: Op4, start: usize, record: &[u8]) -> Option<(Owned, bool)> {
        let rest = record.get(start + 8..)?;
        match op {
            Op4::CreateSession => Some((Owned::session(rest)?, true)),
            Op4::ExchangeId => Some((Owned::client(rest)?, true)),
            Op4::Sequence | Op4::BindConnection => Some((Owned::session(rest)?, false)),
            _ => None,
        }
    }

    fn session(bytes: &[u8]) -> Option<Owned> {
        bytes.first_chunk().copied().map(Owned::Session)
    }

    fn client(bytes: &[u8]) -> Option<Owned> {
        bytes.first_chunk().copied().map(Owned::Client)
    }

    /// What somebody else is answered.
    pub fn refusal(&self) -> u32 {
        match self {
            Owned::Session(_) => status::BADSESSION,
            Owned::Client(_) => status::STALE_CLIENTID,
        }
    }
}

type Known = HashMap<Owned, IpAddr>;

#[derive(Debug, Default)]
struct Generations {
    young: Known,
    old: Known,
}

/// Who owns what.
#[derive(Debug, Default)]
pub struct Owners(Mutex<Generations>);

impl Owners {
    /// True if it is another address's.
    pub fn is_foreign(&self, owned: Owned, address: IpAddr) -> bool {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.find(owned).is_some_and(|owner| owner != address)
    }

    /// The server has given it to an address, or has let it be used from there; then it is that one's unless it is another's.
    pub fn learn(&self, owned: Owned, address: IpAddr, given: bool) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if given || generations.find(owned).is_none() {
            generations.put(owned, address);
        }
    }
}

impl Generations {
    fn find(&mut self, owned: Owned) -> Option<IpAddr> {
        if let Some(owner) = self.young.get(&owned) {
            return Some(*owner);
        }
        let owner = self.old.remove(&owned)?;
        self.put(owned, owner);
        Some(owner)
    }

    fn put(&mut self, owned: Owned, address: IpAddr) {
        if self.young.len() >= OWNERS_MAX / 2 && !self.young.contains_key(&owned) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&owned);
        self.young.insert(owned, address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u32) -> Owned {
        let mut bytes = [0; SESSION_BYTES];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Owned::Session(bytes)
    }

    #[test]
    fn it_is_whose_the_server_gave_it_to_or_of_the_first_who_uses_it() {
        let owners = Owners::default();
        let [own, other]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        assert!(!owners.is_foreign(session(1), own) && !owners.is_foreign(session(1), other));
        owners.learn(session(1), own, false);
        owners.learn(session(1), other, false);
        assert!(!owners.is_foreign(session(1), own) && owners.is_foreign(session(1), other));
        assert!(!owners.is_foreign(session(2), other), "another session");
        owners.learn(session(1), other, true);
        assert!(owners.is_foreign(session(1), own), "the server has given its name anew");
        let client = Owned::Client([1; CLIENT_BYTES]);
        owners.learn(client, own, true);
        assert!(owners.is_foreign(client, other));
        assert_eq!([session(1).refusal(), client.refusal()], [10052, 10022]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        let owners = Owners::default();
        let [own, other]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        owners.learn(session(0), own, true);
        for number in 1..3 * OWNERS_MAX as u32 {
            owners.learn(session(number), other, true);
            assert!(owners.is_foreign(session(0), other), "{number}");
        }
        let generations = owners.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= OWNERS_MAX);
    }
}
