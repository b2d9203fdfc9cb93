//! Writes the journal: everything that waits, then one sync.
//!
//! What finds no room on the disk is no failure: it waits, in order and with everything behind it, and is tried again. Nothing of it counts as
//! written or durable, so this member votes for nothing that hangs on it, and what waits is bounded by what the replica takes while its journal is
//! behind.

use std::sync::Arc;

use bytes::Bytes;
use weir_order::log::{Log, Place, Room};
use weir_order::{Error, LogCounters, Position};

use crate::core::{TERM, Tag};

/// What the writer is asked, in order.
#[derive(Debug)]
pub enum Write {
    /// Append a record.
    Append {
        /// Its number: one more than the last.
        number: u64,
        /// What it is.
        tag: Tag,
        /// Its body.
        body: Bytes,
        /// Whether it must be durable now.
        sync: bool,
    },
    /// Forget records below this number.
    Forget {
        /// The lowest number that is still needed.
        below: u64,
    },
}

impl Write {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Write::Append { body, .. } => body.len() + 64,
            Write::Forget { .. } => 0,
        }
    }
}

/// What was written.
#[derive(Debug)]
pub struct Written {
    /// The records and where they are.
    pub places: Vec<(u64, Place)>,
    /// The last record that is durable, with all before it; 0 when none of this life is.
    pub durable: u64,
    /// Bytes of what was asked.
    pub bytes: usize,
    /// The log's counts.
    pub counters: LogCounters,
    /// The failure after which nothing more is written.
    pub failure: Option<Error>,
}

/// Owns the log.
pub struct Writer {
    log: Log,
    durable: u64,
    failure: Option<Error>,
    /// What found no room, in order.
    held: Vec<Write>,
}

impl Writer {
    pub(super) fn new(log: Log) -> Writer {
        Writer { log, durable: 0, failure: None, held: Vec::new() }
    }

    /// Whether there is room on the disk.
    pub fn room(&self) -> &Arc<Room> {
        self.log.room()
    }

    /// Looks for room on the disk, for who writes without a thread that makes spares.
    pub fn look_for_room(&self) {
        self.log.prepare_next();
    }

    /// Whether something waits for room on the disk.
    pub fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a spare segment should be made now.
    pub fn wants_spare(&self) -> bool {
        self.log.wants_spare()
    }

    /// Nothing waits: says in the log that all of it is durable.
    pub fn idle(&mut self) {
        self.log.mark();
    }

    /// Leaves nothing in doubt.
    pub fn close(&mut self) -> Result<(), Error> {
        self.log.close()
    }

    /// Does what waits for room and then all of `writes`, and makes it durable when that is asked of any. Where there is no room, what is left
    /// waits.
    pub fn drain(&mut self, writes: &mut Vec<Write>) -> Written {
        let mut all = std::mem::take(&mut self.held);
        all.append(writes);
        let mut places = Vec::new();
        let mut done = all.len();
        let mut result = match &self.failure {
            Some(error) => Err(error.clone()),
            None => self.append(&all, &mut places),
        };
        if let Err(error) = &result
            && self.failure.is_none()
            && error.is_no_room()
            && self.log.is_healthy()
        {
            done = first_left(&all, places.len());
            result = Ok(());
        }
        let result = result.and_then(|()| self.settle(&all, done));
        let mut written = Written {
            places,
            durable: 0,
            bytes: all[..done].iter().map(Write::bytes).sum(),
            counters: LogCounters::default(),
            failure: None,
        };
        self.held = all.split_off(done);
        self.held.retain(|write| matches!(write, Write::Append { .. }));
        match self.held.is_empty() {
            true => self.log.room().goes_on(),
            false => self.log.room().waits(),
        }
        if let Err(error) = result {
            if self.failure.is_none() {
                tracing::error!(%error, "the replica's journal stops");
            }
            written.places.clear();
            self.failure = Some(error);
        }
        written.failure.clone_from(&self.failure);
        written.durable = self.durable;
        written.counters = self.log.counters();
        written
    }

    fn append(&mut self, writes: &[Write], places: &mut Vec<(u64, Place)>) -> Result<(), Error> {
        let appends: Vec<(Position, u8, &Bytes)> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Append { number, tag, body, .. } => {
                    Some((Position { term: TERM, index: *number }, *tag as u8, body))
                }
                Write::Forget { .. } => None,
            })
            .collect();
        let mut rest = &appends[..];
        while !rest.is_empty() {
            let mut found = Vec::with_capacity(rest.len());
            let count = self.log.append_tagged(rest.iter().copied(), &mut |place| found.push(place))?;
            places.extend(rest[..count].iter().map(|(at, _, _)| at.index).zip(found));
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Makes the first `done` durable, if that is asked of any, and forgets what may be forgotten: that waits for nothing, as it makes room.
    fn settle(&mut self, writes: &[Write], done: usize) -> Result<(), Error> {
        if writes[..done].iter().any(|write| matches!(write, Write::Append { sync: true, .. })) {
            self.log.sync()?;
            self.durable = self.log.last().index;
        }
        let forget = writes.iter().rev().find_map(|write| match write {
            Write::Forget { below } => Some(*below),
            Write::Append { .. } => None,
        });
        forget.map_or(Ok(()), |below| self.log.truncate_below(below.saturating_sub(1)))
    }
}

/// The first of `writes` that is not done when so many of their records are in the log.
fn first_left(writes: &[Write], records: usize) -> usize {
    let mut seen = 0;
    let appends = |write: &Write| matches!(write, Write::Append { .. });
    writes
        .iter()
        .position(|write| {
            let left = appends(write) && seen == records;
            seen += usize::from(appends(write));
            left
        })
        .unwrap_or(writes.len())
}
