//! Writes the journal: everything that waits, then one sync.

use bytes::Bytes;
use weir_order::log::{Log, Place};
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
}

impl Writer {
    pub(super) fn new(log: Log) -> Writer {
        Writer { log, durable: 0, failure: None }
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

    /// Does all of `writes`, and makes it durable when that is asked of any.
    pub fn drain(&mut self, writes: &mut Vec<Write>) -> Written {
        let mut written = Written {
            places: Vec::new(),
            durable: 0,
            bytes: writes.iter().map(Write::bytes).sum(),
            counters: LogCounters::default(),
            failure: None,
        };
        let result = match &self.failure {
            Some(error) => Err(error.clone()),
            None => self.write(writes, &mut written.places),
        };
        writes.clear();
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

    fn write(&mut self, writes: &[Write], places: &mut Vec<(u64, Place)>) -> Result<(), Error> {
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
        if writes.iter().any(|write| matches!(write, Write::Append { sync: true, .. })) {
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
