//! A host without a switch: what stands in the switch's place, in the agent itself, for a host that has planes only
//! ([`Role::Planes`](weir_model::event::Role)).
//!
//! To the sessions it is a switch that has nothing. Of what controllers send to switches it takes the list of controllers
//! ([`Key::Controllers`]), which says whose endorsements of batches count; it verifies, keeps and acks it as every actuator does
//! ([`weir_trust::kept`]). All else is refused in words: controllers send it to no host of that role, so whoever sees a refusal sees a fault.
//!
//! Invariants
//! - Nothing here is needed for the planes: their processes verify and keep what is theirs.
//! - Its checkpoint holds one key.

use crate::AgentError;
use crate::join;
use crate::wire::{read_frame, write_frame};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use weir_base::codec::CodecError;
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_model::signed::SignedUpdates;
use weir_model::update::Refusal;
use weir_model::{Key, Label, Update};
use weir_trust::batch::Verifier;
use weir_trust::gate::Gate;
use weir_trust::identity::sign_acks;
use weir_trust::kept::{Hands, Kept};

/// Name of the checkpoint in the state directory.
const CHECKPOINT_FILE: &str = "no-switch.checkpoint";
/// What is said where only a switch has an answer.
pub const NO_SWITCH: &str = "this host has no switch: it joined with --no-switch, for planes alone";

/// See the module.
#[derive(Debug)]
pub struct Switchless {
    actuator: Label,
    state_dir: PathBuf,
    kept: Kept,
}

/// Shared with the task that serves it.
pub type Here = Arc<Mutex<Switchless>>;

struct OfControllers;

impl Hands for OfControllers {
    fn apply(&mut self, _gate: &Gate, update: &Update) -> Result<(), Refusal> {
        match update.key {
            // The gate reads it itself.
            Key::Controllers => Ok(()),
            _ => Err(Refusal::Failed(format!("{}: {NO_SWITCH}", update.key))),
        }
    }

    fn put_back(&mut self, _gate: &Gate, _keys: &BTreeSet<Key>) {}
}

impl Switchless {
    /// Opens what it kept in the state directory of a host that has joined.
    ///
    /// # Errors
    /// The host has not joined, or the checkpoint cannot be read.
    pub fn open(state_dir: &Path, actuator: &Label) -> Result<Switchless, AgentError> {
        let missing = || AgentError::Material {
            what: state_dir.display().to_string(),
            reason: "this host has not joined, and one without a switch has no other way to know its group"
                .into(),
        };
        let domain = join::membership(state_dir)?.map(|member| member.domain).ok_or_else(missing)?;
        let group = join::group_key(state_dir).ok_or_else(missing)?;
        let (path, name) = (state_dir.join(CHECKPOINT_FILE), actuator.clone());
        let shown = path.clone();
        let verifier = move || Verifier::new(domain.clone(), group.clone());
        let kept = Kept::open(Box::new(move || Gate::open(name.clone(), verifier(), &path)));
        let kept = kept.map_err(|error| AgentError::file(&shown, error))?;
        Ok(Switchless { actuator: actuator.clone(), state_dir: state_dir.to_path_buf(), kept })
    }

    /// What it says to a frame.
    pub fn answer(&mut self, frame: ToSwitch) -> Vec<FromSwitch> {
        match frame {
            ToSwitch::Updates(frame) => self.take(&frame),
            ToSwitch::SendState => {
                let gate = self.kept.gate();
                let entries = gate.iter().map(|(key, known)| (key.clone(), known.version)).collect();
                vec![FromSwitch::State { digest: gate.digest(), entries, last: true }]
            }
            ToSwitch::Subscribe => vec![FromSwitch::Ports(Vec::new())],
            ToSwitch::Attach { .. } => Vec::new(),
            ToSwitch::Ask { id, question } => {
                vec![FromSwitch::Answer { id, answer: self.answer_to(&question) }]
            }
            ToSwitch::ReadIdentity => match join::identity(&self.state_dir) {
                Ok(key) => vec![FromSwitch::Identity { key: key.public() }],
                Err(error) => {
                    tracing::error!(%error, "the host's key cannot be read");
                    Vec::new()
                }
            },
        }
    }

    fn take(&mut self, frame: &SignedUpdates) -> Vec<FromSwitch> {
        if let Err(error) = self.kept.mend(&mut OfControllers) {
            tracing::error!(%error, "the checkpoint cannot be opened: nothing is acked until it can");
            return Vec::new();
        }
        let taken = self.kept.take(frame, 1, &mut OfControllers);
        if let Some(error) = taken.failure {
            tracing::error!(%error, "the checkpoint cannot be written: nothing is acked until it can");
        }
        if taken.acks.is_empty() {
            return Vec::new();
        }
        let changed = taken.acks.iter().filter(|ack| ack.result.is_ok()).map(|ack| {
            let entry = self.kept.gate().get(&ack.key).and_then(|known| known.entry.clone());
            FromSwitch::Changed { key: ack.key.clone(), version: ack.version, entry }
        });
        let mut answers: Vec<FromSwitch> = changed.collect();
        match join::identity(&self.state_dir) {
            Ok(key) => answers.push(FromSwitch::Acks(sign_acks(&key, &self.actuator, taken.acks))),
            Err(error) => {
                tracing::error!(%error, "the host's key cannot be read: nothing is acked until it can")
            }
        }
        answers
    }

    fn answer_to(&self, question: &Question) -> Answer {
        match question {
            Question::Entries { after } => {
                let behind = self.kept.gate().iter().filter(|(key, _)| Some(*key) > after.as_ref());
                let entries = behind.filter_map(|(key, known)| {
                    Some((key.clone(), known.version, known.entry.clone()?, known.header.clone()))
                });
                Answer::Entries { entries: entries.collect(), last: true }
            }
            Question::Ports => Answer::Ports(Vec::new()),
            Question::Connections { .. } => Answer::Connections(Vec::new()),
            Question::Counters | Question::Trace { .. } | Question::Capture { .. } => {
                Answer::Error(NO_SWITCH.into())
            }
        }
    }
}

/// Answers on a stream until it ends.
pub async fn serve(here: Here, mut stream: UnixStream) {
    while let Ok(frame) = read_frame::<ToSwitch>(&mut stream).await {
        let answers = here.lock().unwrap_or_else(PoisonError::into_inner).answer(frame);
        for answer in &answers {
            if write(&mut stream, answer).await.is_err() {
                return;
            }
        }
    }
}

async fn write(stream: &mut UnixStream, answer: &FromSwitch) -> Result<(), CodecError> {
    write_frame(stream, answer).await?;
    Ok(stream.flush().await?)
}

#[cfg(test)]
mod tests;
