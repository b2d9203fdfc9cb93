//! From the text of `--backend` to a backend.

#[cfg(test)]
mod tests;

use crate::archive::Archive;
use crate::backend::Backend;
use crate::dir::Directory;
use crate::error::Error;
use crate::ledger::Ledger;
pub use crate::life::{Left, Life};
use crate::mem::{Limits, Memory};
use crate::remote::s3::{self, Settings};
use crate::remote::{nfs, sftp};
use std::path::Path;
use std::sync::Arc;

/// Kinds that [`open`] knows, for help texts.
pub const KINDS: &str = "dir:FOLDER, archive:FILE, sftp:USER@HOST:FOLDER, nfs:HOST:/FOLDER, s3://BUCKET/PREFIX, mem:, mem:BYTES (K, M, G and T as units)";

fn wrong(given: &str, reason: impl Into<String>) -> Error {
    Error::Backend { given: given.to_owned(), reason: reason.into() }
}

/// `64M` as bytes.
fn bytes(given: &str, text: &str) -> Result<u64, Error> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        other => return Err(wrong(given, format!("'{other}' is no unit; K, M, G and T are"))),
    };
    let number: u64 =
        digits.parse().map_err(|_| wrong(given, format!("'{digits}' is no number of bytes")))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes >= 1 << 20)
        .ok_or_else(|| wrong(given, format!("'{text}' must be at least 1M and less than 16384T")))
}

/// What backends use of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The command in place of `ssh`, with arguments.
    pub ssh: String,
    /// Where S3 is.
    pub s3: Settings,
}

impl Surroundings {
    /// As the environment says: `WEIR_FS_SSH`, and Amazon's variables.
    pub fn from_environment() -> Surroundings {
        let ssh = std::env::var("WEIR_FS_SSH").unwrap_or_else(|_| "ssh".to_owned());
        Surroundings { ssh, s3: Settings::from_environment() }
    }
}

/// Opens the backend that `text` names.
pub fn open(text: &str) -> Result<Arc<dyn Backend>, Error> {
    open_in(text, &Surroundings::from_environment(), Life::Alone)
}

/// With numbers that outlive it, where its own do not.
fn numbered(given: &str, backend: impl Backend, life: Life) -> Result<Arc<dyn Backend>, Error> {
    let failed = |error| Error::io("making a journal", error);
    let backend = Arc::new(backend);
    Ok(match life {
        Life::Alone => backend,
        Life::Kept => Arc::new(Ledger::new(backend).map_err(failed)?),
        Life::Again(left) => {
            let again = Ledger::again(backend, left.journal(given)?);
            Arc::new(again.map_err(|error| Error::io("reading a journal", error))?)
        }
    })
}

fn memory(given: &str, limits: Limits, life: Life) -> Result<Memory, Error> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let made = match life {
        Life::Alone => Memory::new(limits, user, group),
        Life::Kept => Memory::kept(limits, user, group),
        Life::Again(Left { segment: Some(segment), journal: Some(journal) }) => {
            Memory::recall(segment, journal)
        }
        Life::Again(_) => return Err(wrong(given, "its daemon left no memory")),
    };
    made.map_err(|error| Error::io("making shared memory", error))
}

/// The same, with other surroundings than the environment's.
pub fn open_in(text: &str, surroundings: &Surroundings, life: Life) -> Result<Arc<dyn Backend>, Error> {
    let (kind, rest) =
        text.split_once(':').ok_or_else(|| wrong(text, format!("no kind; there are {KINDS}")))?;
    match kind {
        "dir" if rest.is_empty() => Err(wrong(text, "name the folder: dir:/srv/data")),
        "dir" => numbered(text, Directory::open(Path::new(rest))?, life),
        "archive" if rest.is_empty() => {
            Err(wrong(text, "name the file, a tar, tar.gz, zip or gz: archive:/srv/data.tar.gz"))
        }
        "archive" => Ok(Arc::new(Archive::open_in(Path::new(rest), life)?)),
        "sftp" => {
            let reason =
                "give user, host and folder: sftp:user@host:/srv/data, or sftp://user@host:22/srv/data";
            let target = sftp::Target::parse(rest).ok_or_else(|| wrong(text, reason))?;
            numbered(text, sftp::open(text, target, &surroundings.ssh)?, life)
        }
        "s3" => numbered(text, s3::open(text, rest, &surroundings.s3)?, life),
        "nfs" => {
            let reason = "give host and exported folder: nfs:server:/srv/data, or \
                          nfs://server/srv/data?nfsport=2049&mountport=20048";
            let target = nfs::Target::parse(rest).ok_or_else(|| wrong(text, reason))?;
            numbered(text, nfs::open(text, target)?, life)
        }
        "mem" => {
            let mut limits = Limits::default();
            if !rest.is_empty() {
                limits.bytes_max = bytes(text, rest)?;
            }
            Ok(Arc::new(memory(text, limits, life)?))
        }
        other => Err(wrong(text, format!("'{other}' is no kind of backend; there are {KINDS}"))),
    }
}
