//! The door: who has a session, and who must leave it.
//!
//! A client that connects is *silent* until the head of its first whole call was read. Silent sessions end after
//! [`super::Limits::first_call_us`], and where the places are taken, of all or of one group of addresses, the oldest silent one ends to make
//! room. So whoever says at once what it wants gets in, however many say nothing; who has spoken is never displaced.
//!
//! Clients are grouped by their IPv4 address, or by the /64 of an IPv6 address: one machine usually has all of that.
//!
//! Invariants
//! - A seat counts from [`Door::admit`] until it is displaced or given back, and once.
//! - Those who were displaced and are not gone yet (their worker ends them) are at most [`LEAVING_MAX`]; then newcomers are refused.
//!   So descriptors are bounded by the sessions allowed and this.

use super::names::SessionKey;
pub use super::names::Ticket;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most sessions that are ending because others took their places.
pub const LEAVING_MAX: usize = 256;

/// Where a session is: its worker, and its name there.
pub type At = (usize, SessionKey);

/// What became of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It has this seat. Where somebody had to leave for it, `end` is where that session is, if a worker has it already.
    Seat {
        /// Its seat.
        ticket: Ticket,
        /// True if a silent session lost its seat.
        displaced: bool,
        /// What is to be ended.
        end: Option<At>,
    },
    /// There is no room.
    Full,
}

#[derive(Debug, Default)]
struct Group {
    all: usize,
    silent: BTreeSet<Ticket>,
}

#[derive(Debug, Default)]
struct Inside {
    next: Ticket,
    /// The groups of all who have a seat.
    seats: HashMap<Ticket, IpAddr>,
    /// Those who have said nothing yet, the oldest first, and where they are.
    silent: BTreeMap<Ticket, Option<At>>,
    groups: HashMap<IpAddr, Group>,
    leaving: usize,
}

impl Inside {
    /// Takes a seat back; false if it was taken back before.
    fn leave(&mut self, ticket: Ticket) -> bool {
        let Some(group) = self.seats.remove(&ticket) else { return false };
        self.silent.remove(&ticket);
        if let Some(own) = self.groups.get_mut(&group) {
            own.silent.remove(&ticket);
            own.all -= 1;
            if own.all == 0 {
                self.groups.remove(&group);
            }
        }
        true
    }
}

/// The door of a FileWall.
#[derive(Debug)]
pub struct Door {
    sessions_max: usize,
    of_group_max: usize,
    inside: Mutex<Inside>,
}

/// What counts as one client.
pub fn group_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Door {
    /// A door with so many seats, and so many for one group.
    pub fn new(sessions_max: usize, of_group_max: usize) -> Door {
        Door { sessions_max, of_group_max, inside: Mutex::default() }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody comes.
    pub fn admit(&self, client: IpAddr) -> Admitted {
        let group = group_of(client);
        let mut inside = self.inside();
        let own = inside.groups.get(&group);
        let crowded = own.is_some_and(|own| own.all >= self.of_group_max) || self.of_group_max == 0;
        let mut left = None;
        if crowded || inside.seats.len() >= self.sessions_max {
            let oldest = match own {
                Some(own) if crowded => own.silent.first().copied(),
                _ if crowded => None,
                _ => inside.silent.keys().next().copied(),
            };
            let Some(oldest) = oldest.filter(|_| inside.leaving < LEAVING_MAX) else {
                return Admitted::Full;
            };
            left = Some(inside.silent.get(&oldest).copied().flatten());
            inside.leave(oldest);
            inside.leaving += 1;
        }
        let ticket = inside.next;
        inside.next += 1;
        inside.seats.insert(ticket, group);
        inside.silent.insert(ticket, None);
        let own = inside.groups.entry(group).or_default();
        own.all += 1;
        own.silent.insert(ticket);
        Admitted::Seat { ticket, displaced: left.is_some(), end: left.flatten() }
    }

    /// A worker has made the session; false if the seat is lost already, so that the session must end at once.
    pub fn seated(&self, ticket: Ticket, at: At) -> bool {
        let mut inside = self.inside();
        if let Some(place) = inside.silent.get_mut(&ticket) {
            *place = Some(at);
            return true;
        }
        inside.seats.contains_key(&ticket)
    }

    /// The first call of a session was read; false if its seat is lost already.
    pub fn spoke(&self, ticket: Ticket) -> bool {
        let mut inside = self.inside();
        inside.silent.remove(&ticket);
        let Some(group) = inside.seats.get(&ticket).copied() else { return false };
        if let Some(own) = inside.groups.get_mut(&group) {
            own.silent.remove(&ticket);
        }
        true
    }

    /// A session is gone, or was never made; true if it had its seat still.
    pub fn release(&self, ticket: Ticket) -> bool {
        let mut inside = self.inside();
        let had = inside.leave(ticket);
        if !had {
            inside.leaving = inside.leaving.saturating_sub(1);
        }
        had
    }
}

#[cfg(test)]
mod tests;
