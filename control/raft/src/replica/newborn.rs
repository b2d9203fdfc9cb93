//! A replica whose log began empty: it is new, or it has lost its disk, and it cannot tell which itself. If it has lost its disk it has
//! forgotten how it voted and what it acknowledged, and a vote of its may undo what a majority had.
//!
//! So it gives no vote, and asks for none, until it has everything that a leader knew to be committed; but for the first election of a group,
//! in which nobody has more than the founding entry, and for whoever it follows already: that one had led without what this one may have lost, and has
//! all that was committed before. That a leader takes it for a member that never had more, or has seen to it that it has no
//! vote (see `lost`), is the leader's part.
//!
//! The file `newborn` beside the log says so over restarts; it goes when the replica has caught up, or leads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_base::world::Disk;

use crate::types::LogId;

/// The file.
const FILE: &str = "newborn";

/// See the module.
pub struct Newborn {
    disk: Arc<dyn Disk>,
    is: AtomicBool,
}

impl Newborn {
    /// Of the replica in `disk`; `empty` says that it has neither log nor snapshot.
    pub fn open(disk: Arc<dyn Disk>, empty: bool) -> io::Result<Newborn> {
        let there = match disk.open(FILE) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if empty && !there {
            disk.create(FILE)?;
            disk.sync_dir()?;
        }
        Ok(Newborn { disk, is: AtomicBool::new(empty || there) })
    }

    /// Whether it may lack what it had.
    pub fn is_new(&self) -> bool {
        self.is.load(Ordering::Acquire)
    }

    /// Whether it may vote for a candidate whose last entry this is; for itself, too.
    pub fn may_vote(&self, last: Option<&LogId>) -> bool {
        !self.is_new() || last.is_none_or(|last| last.index() == 0)
    }

    /// It has what is committed.
    pub fn grown(&self) {
        if !self.is.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.disk.remove(FILE).and_then(|()| self.disk.sync_dir()) {
            // After a restart it catches up once more.
            tracing::warn!(%error, file = FILE, "it was not removed");
        }
    }
}
