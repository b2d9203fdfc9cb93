//! What waits to be sent: a folder with a file for each message, named by its number.
//!
//! A message is there once its file has been synced and renamed to its name, and gone once that is removed; so whatever moment a monitor is
//! killed at, the folder holds whole messages, and at most one that was taken already. Where the folder takes no more (a full disk), a message
//! waits in memory instead.

use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How much waits at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages.
    pub count_max: usize,
    /// Bytes of all of them.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { count_max: 1024, bytes_max: 8 << 20 }
    }
}

/// Ends of names: of messages, and of files that are being written.
const MESSAGE: &str = "json";
const ASIDE: &str = "new";

#[derive(Debug)]
struct Waiting {
    number: u64,
    bytes: u64,
    /// The message itself, where it could not be written.
    held: Option<Vec<u8>>,
}

/// The outbox.
#[derive(Debug)]
pub struct Outbox {
    folder: PathBuf,
    limits: Limits,
    waiting: VecDeque<Waiting>,
    bytes: u64,
    next: u64,
    /// Messages that gave way to newer ones, or could not be read any more.
    pub dropped: u64,
    /// Messages that wait in memory only, since the start.
    pub unkept: u64,
}

impl Outbox {
    /// Opens or makes one. What is in the folder and is no message stays there unread.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(folder: &Path, limits: Limits) -> Result<Outbox> {
        let failed = |error| Error::io(format!("opening the outbox {}", folder.display()), error);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let ends = |end: &str| path.extension().is_some_and(|own| own == end);
            if !entry.file_type().map_err(failed)?.is_file() {
                continue;
            }
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let Some(number) = stem.and_then(|stem| stem.parse::<u64>().ok()) else { continue };
            if ends(MESSAGE) {
                let bytes = entry.metadata().map_err(failed)?.len();
                found.push(Waiting { number, bytes, held: None });
            } else if ends(ASIDE) {
                // It was never whole.
                drop(std::fs::remove_file(&path));
            }
        }
        found.sort_unstable_by_key(|waiting| waiting.number);
        let mut outbox = Outbox {
            folder: folder.to_path_buf(),
            limits,
            bytes: found.iter().map(|waiting| waiting.bytes).sum(),
            next: found.last().map_or(0, |newest| newest.number.saturating_add(1)),
            waiting: found.into(),
            dropped: 0,
            unkept: 0,
        };
        outbox.make_room(0);
        Ok(outbox)
    }

    fn path(&self, number: u64, end: &str) -> PathBuf {
        self.folder.join(format!("{number:020}.{end}"))
    }

    /// Messages that wait, and their bytes.
    pub fn waiting(&self) -> (usize, u64) {
        (self.waiting.len(), self.bytes)
    }

    /// Lets the oldest go until there is room.
    fn make_room(&mut self, bytes: u64) {
        let coming = usize::from(bytes > 0);
        while self.waiting.len() + coming > self.limits.count_max
            || self.bytes.saturating_add(bytes) > self.limits.bytes_max
        {
            let Some(oldest) = self.waiting.front().map(|oldest| oldest.number) else { return };
            self.remove(oldest);
            self.dropped += 1;
        }
    }

    /// Puts a message in; it is as safe as the disk when this returns.
    pub fn push(&mut self, message: &[u8]) {
        let bytes = message.len() as u64;
        if bytes > self.limits.bytes_max || self.limits.count_max == 0 {
            self.dropped += 1;
            return;
        }
        self.make_room(bytes);
        let number = self.next;
        self.next = self.next.saturating_add(1);
        let held = match self.write(number, message) {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(folder = %self.folder.display(), %error, "DEGRADED: an alert waits in memory only");
                self.unkept += 1;
                Some(message.to_vec())
            }
        };
        self.bytes += bytes;
        self.waiting.push_back(Waiting { number, bytes, held });
    }

    fn write(&self, number: u64, message: &[u8]) -> std::io::Result<()> {
        let aside = self.path(number, ASIDE);
        let written = replace(&aside, &self.path(number, MESSAGE), message);
        if written.is_err() {
            drop(std::fs::remove_file(&aside));
        }
        written
    }

    /// The oldest that waits, and its number. One that cannot be read any more is dropped.
    pub fn first(&mut self) -> Option<(u64, Vec<u8>)> {
        loop {
            let oldest = self.waiting.front()?;
            let (number, bytes) = (oldest.number, oldest.bytes);
            if let Some(held) = &oldest.held {
                return Some((number, held.clone()));
            }
            let mut message = Vec::new();
            let read = File::open(self.path(number, MESSAGE))
                .and_then(|file| file.take(bytes + 1).read_to_end(&mut message));
            match read {
                Ok(length) if length as u64 == bytes && bytes > 0 => return Some((number, message)),
                Ok(_) | Err(_) => {
                    tracing::error!(folder = %self.folder.display(), number, "an alert that waited to be sent cannot be read");
                    self.dropped += 1;
                    self.remove(number);
                }
            }
        }
    }

    /// Takes a message out.
    pub fn remove(&mut self, number: u64) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.number == number) else { return };
        if let Some(gone) = self.waiting.remove(at) {
            self.bytes = self.bytes.saturating_sub(gone.bytes);
        }
        if let Err(error) = std::fs::remove_file(self.path(number, MESSAGE))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %self.folder.display(), number, %error, "an alert that was sent stays, and is sent again by the next monitor");
        }
    }
}

/// Writes a file whole, or not at all.
pub(super) fn replace(aside: &Path, to: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match std::fs::remove_file(aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(aside, to)?;
    to.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
