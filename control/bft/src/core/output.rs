//! What a core says: what is to be done, how far it is, and what it counted.

use bytes::Bytes;
use weir_order::{Entry, Error, Position};

use crate::members::{Link, Roster};
use crate::wire::{Digest, Message, Offer};

/// The last committed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tip {
    /// Its height; 0 before the first.
    pub height: u64,
    /// Its digest, or the genesis.
    pub digest: Digest,
    /// The place of its last batch; 0 before the first.
    pub index: u64,
}

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// All other members.
    All,
    /// One of them.
    One(u32),
}

/// What a record of the journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// A batch.
    Batch = 0,
    /// A block.
    Block = 1,
    /// A block's height and digest, and the certificate that committed it.
    Final = 2,
}

/// A block that was committed, by the numbers of its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chained {
    /// Its height.
    pub height: u64,
    /// Its digest.
    pub digest: Digest,
    /// The place of its first batch.
    pub first_index: u64,
    /// The record of the block.
    pub block: u64,
    /// The records of its batches.
    pub batches: Vec<u64>,
    /// The record of its certificate, when it has one of its own.
    pub certificate: Option<u64>,
    /// What follows, when it is the last of its epoch.
    pub next: Option<Roster>,
}

impl Chained {
    /// The place of its last batch.
    pub fn last_index(&self) -> u64 {
        self.first_index + self.batches.len() as u64 - 1
    }

    /// Where the order stands behind it.
    pub fn tip(&self) -> Tip {
        let digest = self.next.as_ref().map_or(self.digest, |next| next.genesis);
        Tip { height: self.height, digest, index: self.last_index() }
    }
}

/// What to do.
#[derive(Debug)]
pub enum Output {
    /// Say something.
    Send {
        /// To whom.
        to: To,
        /// What.
        message: Message,
    },
    /// Append a record to the journal. Numbers follow each other.
    Store {
        /// The record's number.
        number: u64,
        /// What it is.
        tag: Tag,
        /// Its body.
        body: Bytes,
        /// Whether somebody waits for it to be durable; else it becomes so with the next for which somebody does.
        sync: bool,
    },
    /// Answer consensus with the digest to propose.
    Proposed {
        /// The question.
        ticket: u64,
        /// The digest.
        digest: Digest,
    },
    /// Answer consensus whether it may go on.
    Verdict {
        /// The question.
        ticket: u64,
        /// The answer.
        right: bool,
    },
    /// Hand an entry to the application.
    Committed {
        /// The entry.
        entry: Entry,
    },
    /// Remember where a committed block is.
    Chained(Chained),
    /// Tell a proposer its batch's fate.
    Done {
        /// The proposal.
        ticket: u64,
        /// Its fate.
        result: Result<Position, Error>,
    },
    /// Answer a replica that is behind.
    ServeRange {
        /// Who.
        to: u32,
        /// The last height that it has.
        above: u64,
    },
    /// Say which states there are.
    ServeOffers {
        /// Who asks.
        to: u32,
    },
    /// Send a piece of a state.
    ServeChunk {
        /// Who asks.
        to: u32,
        /// Which state.
        index: u64,
        /// Where in its file.
        offset: u64,
    },
    /// Write a piece of a state that comes.
    WriteChunk {
        /// Where; 0 begins anew.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// The state is complete: check it and take it over.
    Adopt {
        /// What it must be.
        offer: Offer,
    },
    /// Keep this link for ever; before anything that is behind it is forgotten.
    Link(Box<Link>),
    /// Another epoch begins here, or more is known of the members: see [`Core::roster`] and [`Core::frontier`].
    Members,
    /// Send what leads on from an epoch.
    ServeLinks {
        /// Who asks.
        to: u32,
        /// The last epoch that it knows of.
        epoch: u64,
    },
    /// A member sent what no honest one sends.
    Blame {
        /// Who.
        who: u32,
        /// What it did.
        what: &'static str,
    },
}

/// Counts since the replica was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Blocks committed.
    pub blocks: u64,
    /// Batches committed.
    pub committed: u64,
    /// Own proposals that failed.
    pub failed: u64,
    /// Own proposals refused, because too many were open.
    pub overloads: u64,
    /// Proposals of others refused by a vote.
    pub refused: u64,
    /// Own proposals told to the others again.
    pub repeated: u64,
    /// Own proposals that needed another name, because a leader had passed them by.
    pub renamed: u64,
    /// Batches and blocks of others dropped, because that member has too many.
    pub dropped: u64,
    /// Answers that a member did not get, because it asks for too much.
    pub withheld: u64,
    /// Batches and blocks asked for.
    pub asked: u64,
    /// Ranges taken over from others.
    pub ranges: u64,
    /// States taken over from others.
    pub states: u64,
    /// Times that a member sent what no honest one sends.
    pub lies: u64,
    /// Epochs that began here.
    pub epochs: u64,
    /// Links between epochs taken over from others.
    pub links: u64,
    /// For how long nothing was decided between the end of an epoch and the first certificate of the next, ms in all.
    pub epoch_pause_ms: u64,
}
