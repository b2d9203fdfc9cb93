//! Which replicas have everything, written down: so that one that has missed something is not read from because FileWall began anew
//! in between.
//!
//! The last record holds. It names the replicas that have everything, and says whether changes may be under way: then they may have
//! reached some of them only, and all but one are to be compared with that one.
//!
//! Invariants
//! - That a replica is behind is in the kernel's hands before the change that it has missed is acknowledged.
//! - That changes may be under way is in the kernel's hands before the first one goes out.

use serde::{Deserialize, Serialize};
use std::io::Result;
use std::path::Path;
use weir_base::journal::Journal;

/// Length above which the journal is written anew, bytes.
const LENGTH_BYTES_MAX: u64 = 1 << 20;

/// What is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The replicas that have everything.
    pub live: Vec<String>,
    /// Changes may be under way.
    pub changing: bool,
}

/// The journal.
#[derive(Debug)]
pub struct Book {
    journal: Journal,
    page: Page,
}

impl Book {
    /// Opens it, or makes it. Returns what was written last, if anything was.
    ///
    /// # Errors
    /// What the system says; `InvalidData` for a journal of something else.
    pub fn open(path: &Path) -> Result<(Book, Option<Page>)> {
        let (journal, records) = Journal::open(path)?;
        let page: Option<Page> = records
            .last()
            .map(|record| serde_json::from_slice(record))
            .transpose()
            .map_err(std::io::Error::from)?;
        Ok((Book { journal, page: page.clone().unwrap_or_default() }, page))
    }

    /// Writes down what is so now, if it is something else than before.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, page: Page) -> Result<()> {
        if page == self.page {
            return Ok(());
        }
        let record = serde_json::to_vec(&page)?;
        if self.journal.length_bytes > LENGTH_BYTES_MAX {
            self.journal.rewrite(std::iter::once(record.as_slice()))?;
        } else {
            self.journal.append(&[record])?;
        }
        self.page = page;
        Ok(())
    }

    /// What was written last.
    pub fn page(&self) -> &Page {
        &self.page
    }
}
