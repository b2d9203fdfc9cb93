//! A replica that begins with a state: what an order of another kind has left.
//!
//! The directory looks as that of a replica which had applied everything up to the state, made a snapshot of it and purged its log: so whoever
//! joins later gets the state as ever, by [`crate::net`]'s snapshots.
//!
//! Invariants
//! - The places of batches go on where the order before ended ([`Position::index`]); terms go on above the incarnations of it.
//! - Nothing is in the directory before, and everything is durable when [`seed`] returns. Whoever calls it gives the directory its name after that.
//! - A replica that has ordered nothing since, and whose members are the same, can be given up ([`is_as_seeded`]).
//! - Exactly one replica begins so in a group: others with a seed of their own would vote with a log that nobody gave them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use openraft::impls::leader_id_std::LeaderId;
use openraft::vote::RaftLeaderId;
use weir_base::world::Disk;
use weir_order::log::record::{Kind, RecordHeader};
use weir_order::log::{Log, LogSettings, Place};
use weir_order::snapshot::SnapshotStore;
use weir_order::{Error, Position, SnapshotInfo};

use crate::codec::TAG_BLANK;
use crate::log::{Notes, position_of};
use crate::machine::{Meta, preamble};
use crate::types::{Address, Membership, StoredMembership, Vote, log_id, term_of};

/// Makes the directory of the only replica of a new group, whose state is that after `at`.
///
/// # Errors
/// [`Error`]: of the disk, or of a directory that is not empty.
pub fn seed(
    disk: Arc<dyn Disk>,
    settings: LogSettings,
    (id, address): (u64, String),
    at: Position,
    state: &mut dyn Read,
) -> Result<SnapshotInfo, Error> {
    let dir = disk.describe();
    let failed = |error: std::io::Error| Error::Io {
        action: "listing",
        file: "files".to_owned(),
        dir: dir.clone(),
        source: Arc::new(error),
    };
    if !disk.list().map_err(failed)?.is_empty() {
        return Err(Error::Index { index: at.index, right: format!("{dir} to be empty") });
    }
    let last = log_id(at.term.max(1), at.index);
    let nodes = BTreeMap::from([(id, Address(address))]);
    let members = Membership::new(vec![BTreeSet::from([id])], nodes)
        .map_err(|error| Error::Index { index: at.index, right: error.to_string() })?;
    let membership = StoredMembership::new(Some(last), members);
    let meta = Meta { log_id: last, membership, position: at };
    let front = preamble(&meta);
    let info = SnapshotStore::open(Arc::clone(&disk))?.save(at, &mut (&front[..]).chain(state))?;
    let (mut log, _) = Log::open_visited(disk, settings, 0, &mut |_, _, _| Ok(()))?;
    log.set_last(position_of(Some(&last)))?;
    // Its own vote of that term: the first one that it asks for is in a later one.
    let vote = Vote { leader_id: LeaderId::new(term_of(&last), id), committed: false };
    log.note(&Notes { vote: Some(vote), purged: Some(last) }.encode())?;
    log.sync()?;
    log.close()?;
    Ok(info)
}

/// Whether a replica that does not run has neither a batch nor another member than it was seeded with, at the place `index` of the order.
///
/// # Errors
/// [`Error`]: of the disk, of a log that is damaged, or of a replica that runs.
pub fn is_as_seeded(disk: &Arc<dyn Disk>, settings: LogSettings, index: u64) -> Result<bool, Error> {
    let _held = crate::replica::lock(&**disk)?;
    let newest = SnapshotStore::open(Arc::clone(disk))?.newest();
    let mut own = true;
    let mut visit = |header: &RecordHeader, _: Place, _: &[u8]| {
        own &= header.kind != Kind::Entry || header.tag == TAG_BLANK;
        Ok(())
    };
    let (mut log, _) = Log::open_visited(Arc::clone(disk), settings, 0, &mut visit)?;
    log.close()?;
    Ok(own && newest.is_some_and(|newest| newest.at.index == index))
}
