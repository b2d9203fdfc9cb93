//! Which entry of the order is being carried out, beside the log, so that one that ends the process does not end it for ever.
//!
//! Before an entry is carried out its place is written into a small file, and when it is done that is noted there. Whoever
//! starts and finds an entry that was not done knows which one the process ended at, and says so. It is tried
//! again, because somebody may just have ended the process; one that ended it [`ENDS_MAX`] times is not: the controller waits before it
//! (one that is alone does not start) until somebody mends the cause, or it is set aside ([`super::aside`]).
//!
//! The file is not synced: it must outlive the process, not the machine.

use super::aside::{AsidePlace, Asides, Known};
use crate::Error;
use crate::aside::{Case, EntryName};
use crate::core::operators::Operators;
use crate::core::{Item, decode_batch};
use crate::error::Poisoned;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use weir_base::world::{Disk, DiskFile};
use weir_model::Label;
use weir_model::join::to_hex;
use weir_order::Entry;
use weir_store::{Operation, Request};

/// The file of what is carried out, in the directory of the controller's numbers.
pub const CARRYING_FILE: &str = "carrying";
/// How often the process may end at one entry before that is not tried again.
pub const ENDS_MAX: u32 = 3;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Carry it out, and say [`Carrying::done`] then.
    CarryOut,
    /// It is set aside.
    SetAside(Box<Case>),
    /// It was set aside by a release before, with this digest.
    SetAsideBefore([u8; 32]),
    /// Wait, and [`Carrying::look`] at it again and again.
    Wait,
}

/// See the module.
pub struct Carrying {
    disk: Arc<dyn Disk>,
    /// None where it could not be made: then nothing is told.
    file: Option<Arc<dyn DiskFile>>,
    ended: Option<EndedAt>,
    /// What is being carried out, and whether it ended the process before.
    now: (u64, bool),
    /// What is looked at, and what is in it.
    waits_at: Option<(EntryName, String)>,
    asides: Asides,
}

impl Carrying {
    /// Looks at what an earlier life left.
    ///
    /// # Errors
    /// [`Error::SetAside`], [`Error::System`]: what is set aside cannot be read.
    pub fn open(disk: Arc<dyn Disk>, domain: Label, place: AsidePlace) -> Result<Carrying, Error> {
        let used = disk.list().is_ok_and(|names| !names.is_empty());
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
        let asides = Asides::open(disk.clone(), domain, place, used)?;
        if let Some(ended) = ended {
            tracing::error!(
                index = ended.index,
                times = ended.times,
                "the process ended while it carried out this entry of the order: what is in it is told when it is read"
            );
        }
        Ok(Carrying { disk, file, ended, now: (0, false), waits_at: None, asides })
    }

    /// The entry that the process ended at before it started, if it did.
    pub fn ended_at(&self) -> Option<EndedAt> {
        self.ended
    }

    /// What is known of entries that are set aside.
    pub fn asides(&mut self) -> &mut Asides {
        &mut self.asides
    }

    /// An entry is to be carried out. `operators`: as the state before it knows them.
    pub fn begin(&mut self, entry: &Entry, operators: &Operators) -> Way {
        let index = entry.position.index;
        match self.asides.known(index, || digest(entry)) {
            Known::Agreed(case) => return Way::SetAside(case),
            Known::Before(digest) => return Way::SetAsideBefore(digest),
            // Others may have agreed, or an operator's word may have come by them.
            Known::Spoken => match self.look(entry, operators) {
                Ok(case) => return Way::SetAside(case),
                Err(_) => {
                    let name = self.name(entry);
                    if self.asides.must_wait(&name) {
                        return Way::Wait;
                    }
                }
            },
            Known::Nothing => {}
        }
        let crc = crc32c::crc32c(&entry.batch);
        let before = self.ended.filter(|ended| (ended.index, ended.crc) == (index, crc));
        let times = before.map_or(0, |ended| ended.times);
        if times > 0 {
            tracing::error!(index, times, what = told(entry), "the process ended at this entry before");
            if times >= ENDS_MAX {
                return Way::Wait;
            }
        }
        self.waits_at = None;
        self.asides.begin(index);
        self.now = (index, times > 0);
        self.write(&EndedAt { index, crc, times: times + 1 }, true);
        #[cfg(debug_assertions)]
        end_when_told(&*self.disk, entry);
        Way::CarryOut
    }

    /// Looks at an entry before which this controller waits: gives it when it is agreed to set it aside.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: why it still waits, and what to do.
    pub fn look(&mut self, entry: &Entry, operators: &Operators) -> Result<Box<Case>, Error> {
        let name = self.name(entry);
        let waits = match self.asides.look(&name, operators) {
            Ok(case) => return Ok(case),
            Err(waits) => waits,
        };
        let what = self.waits_at.as_ref().map(|(_, what)| what.clone()).unwrap_or_default();
        let times = self.ended.filter(|ended| ended.index == name.index).map_or(0, |ended| ended.times);
        let (index, digest, dir) = (name.index, to_hex(&name.sha256), self.disk.describe());
        Err(Error::Poisoned(Arc::new(Poisoned { index, times, what, digest, dir, waits })))
    }

    /// Its name, and what is in it, are known while it is looked at: it may have megabytes.
    fn name(&mut self, entry: &Entry) -> EntryName {
        let index = entry.position.index;
        match &self.waits_at {
            Some((name, _)) if name.index == index => *name,
            _ => {
                let name = EntryName { index, sha256: digest(entry) };
                self.waits_at = Some((name, told(entry)));
                name
            }
        }
    }

    /// The entry is carried out.
    pub fn done(&mut self) {
        let (now, ended_before) = self.now;
        // What is before it is carried out each time, and must not make it forgotten.
        self.ended = self.ended.filter(|ended| ended.index > now);
        self.asides.done(now, ended_before);
        self.write(&EndedAt { index: 0, crc: 0, times: 0 }, false);
    }

    fn write(&self, at: &EndedAt, carrying: bool) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_at(0, &encode(at, carrying)) {
            tracing::debug!(%error, "what is carried out was not written down");
        }
    }
}

/// By which an entry is named for being set aside: SHA-256 of its bytes.
pub fn digest(entry: &Entry) -> [u8; 32] {
    Sha256::digest(&entry.batch).into()
}

/// In builds for tests: ends the process at an entry that has the text of the file `ends-at` in it, as one does that a machine cannot bear.
#[cfg(debug_assertions)]
fn end_when_told(disk: &dyn Disk, entry: &Entry) {
    let Ok(file) = disk.open("ends-at") else { return };
    let mut text = [0; 64];
    let read = file.read_at(0, &mut text).unwrap_or(0);
    let text = text[..read].trim_ascii();
    if !text.is_empty() && entry.batch.windows(text.len()).any(|found| found == text) {
        tracing::error!(index = entry.position.index, "the process ends here, as the file ends-at told");
        std::process::abort();
    }
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
