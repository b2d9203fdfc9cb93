//! `weir group set-aside`: what an operator wants to become of an entry that ends the controllers' processes.
//!
//! It is written into the state directory of a controller, and binds nobody: the controller promises, when it has looked at the entry and at who says
//! so, and its promises and those of the others are what counts (`weir_controller::aside`).

use super::Failure;
use super::consent::Consent;
use crate::roles::state::numbers_folder;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_api::operator::{OperatorKey, now_ms};
use weir_base::world::RealDisk;
use weir_controller::aside::{Carried, EntryName, Wish, Word};
use weir_controller::driver::aside::{WANTED_FILE, carried, wishes, write_wishes};
use weir_model::event::SourceId;
use weir_model::join::{from_hex, to_hex};

#[derive(Debug, Args)]
pub(super) struct SetAside {
    /// State directory of the controller
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// The place of the entry in the order
    #[arg(long, value_name = "NUMBER")]
    entry: u64,
    /// SHA-256 of the entry, as the controller told it: no other one is set aside
    #[arg(long, value_name = "HEX")]
    digest: String,
    /// This controller has not carried the entry out: where it does not know that itself
    #[arg(long)]
    not_carried_out: bool,
    /// Take back what was said here of an entry at this place. What the controller has promised stays
    #[arg(long, conflicts_with = "not_carried_out")]
    take_back: bool,
    #[command(flatten)]
    consent: Consent,
}

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}

impl SetAside {
    pub(super) fn run(self, operator: Option<OperatorKey>) -> Result<ExitCode, Failure> {
        let sha256 = from_hex::<32>(&self.digest);
        let sha256 =
            sha256.ok_or_else(|| wrong("--digest: it should be 64 hex digits, as the controller told it"))?;
        let entry = EntryName { index: self.entry, sha256 };
        let (folder, member) = numbers_folder(&self.state).map_err(wrong)?;
        let disk = RealDisk::open(&folder).map_err(Failure::io(folder.display().to_string()))?;
        let mut known = wishes(&disk).map_err(wrong)?;
        if self.take_back {
            if known.get(&entry.index).is_none_or(|wish| wish.entry != entry) {
                return Err(Failure::Missing(format!(
                    "nothing was said here of entry {} with this digest: {} has what was",
                    entry.index,
                    folder.join(WANTED_FILE).display()
                )));
            }
            known.remove(&entry.index);
            let what = format!("What was said here of entry {} is taken back.", entry.index);
            if self.consent.given(&what)? {
                write_wishes(&disk, &known).map_err(Failure::io(WANTED_FILE))?;
                say!("{what} What this controller has promised stays.");
            }
            return Ok(ExitCode::SUCCESS);
        }
        let carried = carried(&disk, entry.index).map_err(wrong)?;
        if member && carried == Carried::Yes {
            return Err(Failure::Refused(format!(
                "this controller has carried out entry {}: it never promises the reverse. Say it at one that has not",
                entry.index
            )));
        }
        let word = operator.map(|key| word_of(&key, &self.state, &entry)).transpose()?;
        let what = format!(
            "entry {} with digest {} is set aside, once as many controllers as decide have promised so: nothing of it will ever be done, at any controller \
             of the domain.",
            entry.index,
            to_hex(&sha256)
        );
        if !self.consent.given(&what)? {
            return Ok(ExitCode::SUCCESS);
        }
        let signed = word.is_some();
        known.insert(entry.index, Wish { entry, word, not_carried_out: self.not_carried_out });
        write_wishes(&disk, &known).map_err(Failure::io(WANTED_FILE))?;
        say!(
            "Said here{}. {}",
            if signed { ", with an operator's signature" } else { "" },
            match member {
                true =>
                    "The controller looks at it within a second, when it runs; 'weir group list' says what it waits for. Where controllers are not believed \
                     (order: bft) and no operator signed, say the same on every one.",
                false => "Start the controller.",
            }
        );
        if member && carried == Carried::Unknown && !self.not_carried_out {
            say!(
                "It may not be known here whether this controller has carried the entry out: then it says so, and wants --not-carried-out from whoever \
                 knows that it has not."
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The operator's word, for the domain of a state directory.
fn word_of(key: &OperatorKey, state_dir: &Path, entry: &EntryName) -> Result<Word, Failure> {
    let path = state_dir.join("domain");
    let domain = std::fs::read_to_string(&path).map_err(Failure::io(path.display().to_string()))?;
    if domain.trim_end() != key.domain.as_str() {
        let (of, here) = (&key.domain, domain.trim_end());
        return Err(wrong(format!(
            "the operator's key is for domain '{of}', and this controller is of '{here}'"
        )));
    }
    let made = key.key().map_err(wrong)?;
    Ok(Word::sign(&made, &key.domain, entry, SourceId::of_operator(&key.name), now_ms()))
}
