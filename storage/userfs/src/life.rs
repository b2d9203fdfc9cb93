//! What of a backend outlives its daemon.

use crate::error::Error;
use std::os::fd::OwnedFd;

/// Whether a backend's numbers and memory are for its own life only.
#[derive(Debug, Default)]
pub enum Life {
    /// They are.
    #[default]
    Alone,
    /// Another process keeps what a successor needs: [`crate::backend::Backend::segment`] and [`crate::backend::Backend::journal`].
    Kept,
    /// It is that successor.
    Again(Left),
}

/// What is left of a backend whose daemon died.
#[derive(Debug)]
pub struct Left {
    /// Its segment, if it had one.
    pub segment: Option<OwnedFd>,
    /// Its journal, if it had one.
    pub journal: Option<[OwnedFd; 2]>,
}

impl Left {
    /// Its journal, where it must have one.
    pub(crate) fn journal(self, given: &str) -> Result<[OwnedFd; 2], Error> {
        self.journal.ok_or_else(|| Error::Backend {
            given: given.to_owned(),
            reason: "its daemon left no journal".into(),
        })
    }
}
