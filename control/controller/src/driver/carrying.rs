//! Which entry of the order is being carried out, beside the log, so that one that ends the process does not end it for ever.
//!
//! Before an entry is carried out its place is written into a small file, and when it is done that is noted there. Whoever
//! starts and finds an entry that was not done knows which one the process ended at, and says so. It is tried
//! again, because somebody may just have ended the process; one that ended it [`ENDS_MAX`] times is not, and the controller
//! does not start until somebody mends the cause or sets the entry aside.
//!
//! An entry that is set aside changes nothing. That stands in a file of its own, which an operator's command writes at every
//! controller alike: the place and the digest of the entry, so that none can be meant but this. A controller where it was left
//! out has another state than the others, which their digests tell.
//!
//! Nothing here is synced: the files must outlive the process, not the machine.

use crate::Error;
use crate::core::{Item, decode_batch};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use weir_base::world::{Disk, DiskFile};
use weir_model::join::{from_hex, to_hex};
use weir_order::Entry;
use weir_store::{Operation, Request};

/// The file of what is carried out, in the directory of the controller's numbers.
pub const CARRYING_FILE: &str = "carrying";
/// The file of what is set aside, beside it: an index and a SHA-256 in hexadecimal digits on each line.
pub const SET_ASIDE_FILE: &str = "set-aside";
/// How often the process may end at one entry before that is not tried again.
pub const ENDS_MAX: u32 = 3;
/// Most bytes of the file of what is set aside.
const SET_ASIDE_BYTES_MAX: usize = 64 * 1024;
/// Most operations of an entry that are told.
const TOLD_MAX: usize = 8;

const MAGIC: &[u8; 8] = b"weircar1";
const FILE_BYTES: usize = 32;

/// An entry that the process ended at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAt {
    /// Its place in the order.
    pub index: u64,
    /// CRC-32C of its bytes.
    crc: u32,
    /// How often.
    pub times: u32,
}

/// What to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Carry it out, and say [`Carrying::done`] then.
    CarryOut,
    /// It is set aside, with this digest.
    SetAside([u8; 32]),
}

/// See the module.
pub struct Carrying {
    disk: Arc<dyn Disk>,
    /// None where it could not be made: then nothing is told.
    file: Option<Arc<dyn DiskFile>>,
    ended: Option<EndedAt>,
    /// What is being carried out.
    now: u64,
    aside: BTreeMap<u64, [u8; 32]>,
}

impl Carrying {
    /// Looks at what an earlier life left.
    ///
    /// # Errors
    /// [`Error::SetAside`]: the file of what is set aside cannot be read.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Carrying, Error> {
        let file = match disk.open(CARRYING_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(CARRYING_FILE),
            other => other,
        };
        let file = file.inspect_err(|error| {
            tracing::warn!(%error, file = CARRYING_FILE, "it will not be known which entry the process ended at");
        });
        let file = file.ok();
        let ended = file.as_ref().and_then(|file| {
            let mut bytes = [0; FILE_BYTES];
            file.read_at(0, &mut bytes).is_ok_and(|read| read == FILE_BYTES).then(|| decode(&bytes)).flatten()
        });
        let aside = set_aside(&*disk)?;
        if let Some(ended) = ended {
            tracing::error!(
                index = ended.index,
                times = ended.times,
                "the process ended while it carried out this entry of the order: what is in it is told when it is read"
            );
        }
        Ok(Carrying { disk, file, ended, now: 0, aside })
    }

    /// The entry that the process ended at before it started, if it did.
    pub fn ended_at(&self) -> Option<EndedAt> {
        self.ended
    }

    /// An entry is to be carried out.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: it ended the process too often.
    pub fn begin(&mut self, entry: &Entry) -> Result<Way, Error> {
        let index = entry.position.index;
        if let Some(wanted) = self.aside.get(&index) {
            let digest = digest(entry);
            if digest == *wanted {
                tracing::warn!(
                    index,
                    digest = to_hex(&digest),
                    "the entry is set aside: nothing of it is done"
                );
                return Ok(Way::SetAside(digest));
            }
            tracing::error!(
                index,
                wanted = to_hex(wanted),
                "another entry was to be set aside at this place"
            );
        }
        let crc = crc32c::crc32c(&entry.batch);
        let before = self.ended.filter(|ended| (ended.index, ended.crc) == (index, crc));
        let times = before.map_or(0, |ended| ended.times);
        if times > 0 {
            let what = told(entry);
            tracing::error!(index, times, what, "the process ended at this entry before");
            if times >= ENDS_MAX {
                let (digest, dir) = (to_hex(&digest(entry)), self.disk.describe());
                return Err(Error::Poisoned { index, times, what, digest, dir });
            }
        }
        self.now = index;
        self.write(&EndedAt { index, crc, times: times + 1 }, true);
        Ok(Way::CarryOut)
    }

    /// The entry is carried out.
    pub fn done(&mut self) {
        // What is before it is carried out each time, and must not make it forgotten.
        self.ended = self.ended.filter(|ended| ended.index > self.now);
        self.write(&EndedAt { index: 0, crc: 0, times: 0 }, false);
    }

    fn write(&self, at: &EndedAt, carrying: bool) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_at(0, &encode(at, carrying)) {
            tracing::debug!(%error, "what is carried out was not written down");
        }
    }
}

/// What an operator set aside.
fn set_aside(disk: &dyn Disk) -> Result<BTreeMap<u64, [u8; 32]>, Error> {
    let file = match disk.open(SET_ASIDE_FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Error::system("reading what is set aside")(error)),
    };
    let mut bytes = vec![0; SET_ASIDE_BYTES_MAX + 1];
    let read = file.read_at(0, &mut bytes).map_err(Error::system("reading what is set aside"))?;
    bytes.truncate(read);
    let wrong = || Error::SetAside { dir: disk.describe() };
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    if text.len() > SET_ASIDE_BYTES_MAX {
        return Err(wrong());
    }
    let line = |line: &str| {
        let (index, digest) = line.trim().split_once(' ')?;
        Some((index.parse().ok()?, from_hex::<32>(digest.trim())?))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(line).collect::<Option<_>>().ok_or_else(wrong)
}

/// By which an entry is named for being set aside: SHA-256 of its bytes.
pub fn digest(entry: &Entry) -> [u8; 32] {
    Sha256::digest(&entry.batch).into()
}

fn encode(at: &EndedAt, carrying: bool) -> [u8; FILE_BYTES] {
    let mut bytes = [0; FILE_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&at.index.to_le_bytes());
    bytes[16..20].copy_from_slice(&at.crc.to_le_bytes());
    bytes[20..24].copy_from_slice(&at.times.to_le_bytes());
    bytes[24] = u8::from(carrying);
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; FILE_BYTES]) -> Option<EndedAt> {
    let number = |from: usize| Some(u32::from_le_bytes(bytes[from..from + 4].try_into().ok()?));
    let index = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    let at = EndedAt { index, crc: number(16)?, times: number(20)? };
    (encode(&at, true) == *bytes).then_some(at)
}

/// What is in an entry, in words.
fn told(entry: &Entry) -> String {
    let items = match decode_batch(&entry.batch) {
        Ok(items) => items,
        Err(error) => return error.to_string(),
    };
    let mut text = format!("{} items, {} bytes", items.len(), entry.batch.len());
    for item in items.iter().take(TOLD_MAX) {
        // Writing into a string does not fail.
        let _ = match item {
            Item::Event { event, .. } => {
                let kind = crate::audit::kind_of(&event.event.body);
                write!(text, "; event '{kind}' {} of {}", event.event.sequence, event.event.source.0)
            }
            Item::Repair { actuator, .. } => write!(text, "; repair of {actuator}"),
            Item::Keys { .. } => write!(text, "; a step of the group's key"),
            Item::Operations { batch, .. } => {
                let principal = batch.principal;
                let first = batch.requests.iter().take(TOLD_MAX).map(operation).collect::<Vec<_>>();
                let count = batch.requests.len();
                write!(text, "; {count} requests of principal {principal:016x}: {}", first.join(", "))
            }
        };
    }
    if items.len() > TOLD_MAX {
        text.push_str("; and more");
    }
    text
}

fn operation(request: &Request) -> String {
    match &request.operation {
        Operation::Write(write) => format!("write {}", write.table),
        Operation::Transaction(steps) => format!("transaction of {} steps", steps.len()),
        Operation::Call { procedure, arguments } => format!("call {procedure} ({} bytes)", arguments.len()),
        Operation::CreateTable { table, .. } => format!("create {table}"),
        Operation::AlterTable { table, .. } => format!("alter {table}"),
        Operation::DropTable { table } => format!("drop {table}"),
        Operation::LoadProcedure { procedure, module, .. } => {
            format!("load {procedure} ({} bytes)", module.len())
        }
        Operation::RemoveProcedure { procedure } => format!("remove {procedure}"),
        Operation::SetQuota { namespace, .. } => format!("quota of {namespace}"),
        Operation::OpenClient => "open a client".to_owned(),
        Operation::CloseClient { client } => format!("close client {client}"),
    }
}

#[cfg(test)]
mod tests;
