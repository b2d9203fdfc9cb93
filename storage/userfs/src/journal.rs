//! What a daemon's successor must know: a log in memory that outlives the daemon, as another process keeps it open too (`keeper`).
//!
//! Two memory files. One is the log: a number of the generation, then batches, each with its length before it. When it has grown to
//! a multiple of what is true now, all of that is written into the other one, and last its generation, which makes it the log.
//!
//! Invariants
//! - A batch is there whole or not at all, however the daemon dies: one that is shorter than its length says is the last, and none.
//! - Whoever appends or rewrites holds the lock of what the log is of, so batches are in the order in which they became true.
//! - At most [`SMALL_BYTES`] and [`GROWTH`] times what is true.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A log up to this is never rewritten.
const SMALL_BYTES: u64 = 4 << 20;
/// How much larger than when it was last rewritten a log becomes.
const GROWTH: u64 = 3;
/// Bytes of the number of the generation, and of a length.
const WORD_BYTES: u64 = 8;
/// Entries of a batch when all is rewritten.
const ENTRIES_AT_ONCE: usize = 256;

/// The log.
#[derive(Debug)]
pub struct Journal {
    files: [File; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Which file.
    current: usize,
    generation: u64,
    end: u64,
    /// As long as this it is left alone.
    enough: u64,
    /// Why nothing is written any more.
    broken: Option<String>,
}

fn word(file: &File, at: u64) -> std::io::Result<u64> {
    let mut bytes = [0; WORD_BYTES as usize];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) => Ok(u64::from_le_bytes(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
    }
}

fn framed<E: Serialize>(batch: &[E]) -> std::io::Result<Vec<u8>> {
    let framed = postcard::to_extend(batch, vec![0; WORD_BYTES as usize]).map_err(std::io::Error::other);
    framed.map(|mut bytes| {
        let length = bytes.len() as u64 - WORD_BYTES;
        bytes[..WORD_BYTES as usize].copy_from_slice(&length.to_le_bytes());
        bytes
    })
}

impl Journal {
    /// An empty one.
    pub fn create() -> std::io::Result<Journal> {
        let memory = || {
            let made = rustix::fs::memfd_create("weir-userfs-journal", rustix::fs::MemfdFlags::CLOEXEC)?;
            Ok::<_, std::io::Error>(File::from(made))
        };
        let files = [memory()?, memory()?];
        files[0].write_all_at(&1u64.to_le_bytes(), 0)?;
        let state = State { current: 0, generation: 1, end: WORD_BYTES, enough: SMALL_BYTES, broken: None };
        Ok(Journal { files, state: Mutex::new(state) })
    }

    /// The one that another daemon wrote, and what it says, batch by batch.
    pub fn open<E: DeserializeOwned>(
        files: [OwnedFd; 2],
        mut each: impl FnMut(Vec<E>),
    ) -> std::io::Result<Journal> {
        let files = files.map(File::from);
        let generations = [word(&files[0], 0)?, word(&files[1], 0)?];
        let current = usize::from(generations[1] > generations[0]);
        let mut all = vec![0; files[current].metadata()?.len() as usize];
        files[current].read_exact_at(&mut all, 0)?;
        let mut at = WORD_BYTES as usize;
        while let Some(length) = all.get(at..at + WORD_BYTES as usize) {
            let length = length.try_into().map_or(0, u64::from_le_bytes) as usize;
            let begin = at + WORD_BYTES as usize;
            let Some(batch) = begin.checked_add(length).and_then(|end| all.get(begin..end)) else { break };
            if length == 0 {
                break;
            }
            each(postcard::from_bytes(batch).map_err(std::io::Error::other)?);
            at = begin + length;
        }
        files[current].set_len(at as u64)?;
        let state = State {
            current,
            generation: generations[current],
            end: at as u64,
            enough: SMALL_BYTES.max(at as u64),
            broken: None,
        };
        Ok(Journal { files, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What another process must keep open.
    pub fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.files[0].as_fd(), self.files[1].as_fd()]
    }

    /// Why a successor would not know all; nothing as long as it would.
    pub fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.state().end
    }

    /// These are true from now on.
    pub fn append<E: Serialize>(&self, batch: &[E]) {
        let mut state = self.state();
        if batch.is_empty() || state.broken.is_some() {
            return;
        }
        let written = framed(batch).and_then(|bytes| {
            self.files[state.current].write_all_at(&bytes, state.end).map(|()| bytes.len() as u64)
        });
        match written {
            Ok(bytes) => state.end += bytes,
            Err(error) => state.give_up(&error),
        }
    }

    /// Whether it is worth to [`Journal::rewrite`] it.
    pub fn is_long(&self) -> bool {
        let state = self.state();
        state.end > state.enough && state.broken.is_none()
    }

    /// Begins anew with all that is true.
    pub fn rewrite<E: Serialize>(&self, all: impl Iterator<Item = E>) {
        let mut state = self.state();
        match self.write_other(&state, all) {
            Ok(end) => {
                let old = state.current;
                state.current = 1 - old;
                state.generation += 1;
                state.end = end;
                state.enough = SMALL_BYTES.max(end * GROWTH);
                // Its memory; the generation that it has is the lower one.
                if let Err(error) = self.files[old].set_len(WORD_BYTES) {
                    tracing::debug!("the memory of an old log stays: {error}");
                }
            }
            Err(error) => state.give_up(&error),
        }
    }

    fn write_other<E: Serialize>(&self, state: &State, all: impl Iterator<Item = E>) -> std::io::Result<u64> {
        let to = &self.files[1 - state.current];
        to.set_len(0)?;
        let mut end = WORD_BYTES;
        let mut batch = Vec::with_capacity(ENTRIES_AT_ONCE);
        let mut all = all.peekable();
        while all.peek().is_some() {
            batch.clear();
            batch.extend(all.by_ref().take(ENTRIES_AT_ONCE));
            let bytes = framed(&batch)?;
            to.write_all_at(&bytes, end)?;
            end += bytes.len() as u64;
        }
        to.write_all_at(&(state.generation + 1).to_le_bytes(), 0)?;
        Ok(end)
    }
}

impl State {
    fn give_up(&mut self, error: &std::io::Error) {
        tracing::warn!("a crash of this daemon would end its mount: {error}");
        self.broken = Some(format!("a crash of the daemon would end this mount: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(journal: &Journal) -> (Journal, Vec<u32>) {
        let files = journal.files().map(|file| file.try_clone_to_owned().unwrap());
        let mut all = Vec::new();
        let opened = Journal::open(files, |batch: Vec<u32>| all.extend(batch)).unwrap();
        (opened, all)
    }

    #[test]
    fn what_was_appended_is_there_again() {
        let journal = Journal::create().unwrap();
        assert!(again(&journal).1.is_empty());
        journal.append(&[1u32, 2]);
        journal.append(&[3u32]);
        let (second, all) = again(&journal);
        assert_eq!(all, [1, 2, 3]);
        second.append(&[4u32]);
        assert_eq!(again(&second).1, [1, 2, 3, 4]);
    }

    #[test]
    fn a_batch_that_was_cut_is_none() {
        let journal = Journal::create().unwrap();
        journal.append(&[1u32, 2]);
        journal.append(&(0..1000u32).collect::<Vec<_>>());
        let bytes = journal.files[0].metadata().unwrap().len();
        for cut in [bytes - 1, bytes - 900, 20, 17] {
            journal.files[0].set_len(cut).unwrap();
            assert!(again(&journal).1.len() <= 2, "cut at {cut}");
        }
    }

    #[test]
    fn rewriting_leaves_what_is_true() {
        let journal = Journal::create().unwrap();
        journal.append(&[1u32; 100]);
        for round in 0..3u32 {
            journal.rewrite(0..600u32 + round);
            journal.append(&[7u32]);
            let (_, all) = again(&journal);
            assert_eq!(all.len(), 601 + round as usize);
            assert_eq!(all.last(), Some(&7));
        }
        // Killed while it was rewritten: the generation is written last.
        let state = journal.state();
        let other = &journal.files[1 - state.current];
        other.set_len(0).unwrap();
        other.write_all_at(&framed(&[9u32; 50]).unwrap(), WORD_BYTES).unwrap();
        drop(state);
        assert_eq!(again(&journal).1.len(), 603);
    }
}
