//! Relates the order of batches to raft's log.

use std::collections::VecDeque;

use weir_order::{Error, Position};

use crate::types::{LogId, StoredMembership, log_id, term_of};

/// A place in both countings, with the members there.
#[derive(Debug, Clone, PartialEq)]
pub struct Meta {
    /// In raft's log.
    pub log_id: LogId,
    /// The members in force there.
    pub membership: StoredMembership,
    /// In the order of batches.
    pub position: Position,
}

/// One of raft's own entries.
#[derive(Debug)]
struct Own {
    /// Batches before it.
    batches_before: u64,
    membership: Option<StoredMembership>,
}

/// What was applied. Remembers raft's own entries since the newest snapshot: elections and membership changes, a few.
#[derive(Debug, Default)]
pub struct Steps {
    base: Option<Meta>,
    own: VecDeque<Own>,
    applied: Option<LogId>,
    position: Option<Position>,
    membership: StoredMembership,
}

impl Steps {
    /// The last applied entry.
    pub fn applied(&self) -> Option<LogId> {
        self.applied
    }

    /// The last batch.
    pub fn position(&self) -> Position {
        self.position.unwrap_or(Position { term: 0, index: 0 })
    }

    /// The members now.
    pub fn membership(&self) -> StoredMembership {
        self.membership.clone()
    }

    /// The place that the batch at `id` will have.
    pub fn next(&self, id: &LogId) -> Position {
        Position { term: term_of(id), index: self.position().index + 1 }
    }

    /// A batch was applied.
    pub fn batch(&mut self, id: LogId) {
        self.position = Some(self.next(&id));
        self.step(id);
    }

    /// An entry of raft's own was applied.
    pub fn own(&mut self, id: LogId, membership: Option<StoredMembership>) {
        if let Some(membership) = &membership {
            self.membership = membership.clone();
        }
        self.own.push_back(Own { batches_before: self.position().index, membership });
        self.step(id);
    }

    fn step(&mut self, id: LogId) {
        let next = self.applied.map_or(0, |applied| applied.index() + 1);
        assert_eq!(id.index(), next, "openraft applies without gaps");
        self.applied = Some(id);
    }

    /// Begins anew at a state that was installed.
    pub fn install(&mut self, meta: &Meta) {
        self.own.clear();
        self.applied = Some(meta.log_id);
        self.position = Some(meta.position);
        self.membership = meta.membership.clone();
        self.base = Some(meta.clone());
    }

    /// Where the batch at `at` stands in raft's log.
    pub fn meta_of(&self, at: Position) -> Result<Meta, Error> {
        let (from, base) = (self.base.as_ref().map_or(0, |base| base.position.index), self.position().index);
        if at.index <= from || at.index > base {
            let right = format!("a snapshot must be above {from}, and the last committed index is {base}");
            return Err(Error::Index { index: at.index, right });
        }
        let before = self.own.iter().take_while(|own| own.batches_before < at.index);
        let (mut count, mut membership) = (0, self.base.as_ref().map(|base| &base.membership));
        for own in before {
            count += 1;
            membership = own.membership.as_ref().or(membership);
        }
        let next = self.base.as_ref().map_or(0, |base| base.log_id.index() + 1);
        let index = next + count + (at.index - from) - 1;
        let membership = membership.cloned().unwrap_or_default();
        Ok(Meta { log_id: log_id(at.term, index), membership, position: at })
    }

    /// Forgets what lies below a snapshot that was saved.
    pub fn rebase(&mut self, meta: &Meta) {
        while self.own.front().is_some_and(|own| own.batches_before < meta.position.index) {
            self.own.pop_front();
        }
        self.base = Some(meta.clone());
    }
}
