//! A host with the actuator that is tried, and its controllers.

use super::subject::{Driver, Tried};
use crate::Identity;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_model::signed::{GroupSignature, MemberSignature, SignedAcks, SignedHeader, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, frames, prepare_batch, sign_batch};
use weir_trust::endorsement::endorse;
use weir_trust::identity::{KeyPair, verify_acks};

/// From this the key of the host is made on which the machine is.
pub const HOST_SEED: [u8; 32] = [2; 32];
/// The domain of the host.
pub const DOMAIN: &str = "prod";
/// What a demand ends with.
pub type Outcome = Result<(), String>;

/// A folder that is removed when it is dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-actuator-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn label(text: &str) -> Result<Label, String> {
    Label::new(text).map_err(|error| error.to_string())
}

pub(super) fn signer(seed: u8) -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[seed; 32]))
}

pub(super) fn check(is_so: bool, text: impl FnOnce() -> String) -> Outcome {
    if is_so { Ok(()) } else { Err(text()) }
}

/// One update of a frame.
#[derive(Clone)]
pub(super) struct Of {
    pub(super) host: Label,
    pub(super) key: Key,
    pub(super) version: u64,
    pub(super) entry: Option<Entry>,
}

/// An actuator on a host, and controllers.
pub(super) struct World<'d, D: Driver> {
    driver: &'d D,
    pub(super) folder: Folder,
    pub(super) host: Label,
    machine: Option<D::Machine>,
    key: Key,
}

impl<'d, D: Driver> World<'d, D> {
    pub(super) fn new(driver: &'d D) -> Result<World<'d, D>, String> {
        let [key, _] = driver.keys()?;
        let mut world = World { driver, folder: Folder::new()?, host: label("h1")?, machine: None, key };
        world.start()?;
        Ok(world)
    }

    pub(super) fn machine(&mut self) -> Result<&mut D::Machine, String> {
        self.machine.as_mut().ok_or_else(|| "the process is down".into())
    }

    /// The process ends, at once.
    pub(super) fn kill(&mut self) {
        self.machine = None;
    }

    /// It starts on what is in its folders.
    pub(super) fn start(&mut self) -> Outcome {
        self.kill();
        let identity = Identity {
            actuator: self.host.clone(),
            domain: label(DOMAIN)?,
            group: signer(1).group_key(),
            read_key: Box::new(|| Ok(KeyPair::from_seed(&HOST_SEED))),
        };
        self.machine = Some(self.driver.open(identity, &self.folder.0)?);
        Ok(())
    }

    pub(super) fn of(&self, version: u64, entry: Option<Entry>) -> Of {
        Of { host: self.host.clone(), key: self.key.clone(), version, entry }
    }

    /// Updates as they are decided, and the version of the newest.
    pub(super) fn decided(updates: Vec<Of>) -> (Vec<Update>, Version) {
        let index = updates.iter().map(|of| of.version).max().unwrap_or(1);
        let update = |of: Of| Update {
            target: of.host,
            key: of.key,
            version: Version(of.version),
            expected: Version::ZERO,
            change: of.entry.map_or(Change::Delete, Change::Put),
        };
        (updates.into_iter().map(update).collect(), Version(index))
    }

    /// A frame as the group signs it.
    pub(super) fn frame(&self, epoch: u64, updates: Vec<Of>) -> Result<SignedUpdates, String> {
        let (updates, index) = World::<D>::decided(updates);
        let (header, proven) = sign_batch(&signer(1), &label(DOMAIN)?, epoch, index, updates)
            .map_err(|error| error.to_string())?;
        let whole = proven.len();
        let mut made = frames(proven.into_iter().map(|proven| (header.clone(), proven)), whole);
        made.pop().ok_or_else(|| "no frame".to_string())
    }

    /// A frame as these controllers endorse it.
    pub(super) fn endorsed(
        &self,
        phase: u64,
        members: &[u8],
        updates: Vec<Of>,
    ) -> Result<SignedUpdates, String> {
        let (updates, index) = World::<D>::decided(updates);
        let (header, proven) =
            prepare_batch(&label(DOMAIN)?, 1, index, updates).map_err(|error| error.to_string())?;
        let by = |member: &u8| MemberSignature {
            member: u32::from(*member),
            signature: endorse(&KeyPair::from_seed(&[*member; 32]), phase, &header),
        };
        let signatures = members.iter().map(by).collect();
        let signature = GroupSignature::Members { phase, signatures };
        Ok(SignedUpdates { header: SignedHeader { header, signature }, updates: proven })
    }

    /// Takes a frame; what was answered, checked for whose it is.
    pub(super) fn take(&mut self, frame: &SignedUpdates) -> Result<Vec<Result<(), Refusal>>, String> {
        let host = self.host.clone();
        let Some(acks) = self.machine()?.take(frame) else { return Ok(Vec::new()) };
        let SignedAcks { actuator, .. } = &acks;
        check(*actuator == host, || format!("it acks as {actuator}"))?;
        let signed = verify_acks(&KeyPair::from_seed(&HOST_SEED).public(), &acks);
        signed.map_err(|error| format!("the acks are not the host's: {error}"))?;
        Ok(acks.acks.into_iter().map(|ack| ack.result).collect())
    }

    pub(super) fn put(&mut self, version: u64, entry: Option<Entry>) -> Result<Result<(), Refusal>, String> {
        let frame = self.frame(1, vec![self.of(version, entry)])?;
        let mut answers = self.take(&frame)?;
        answers.pop().ok_or_else(|| format!("version {version} is not answered"))
    }

    pub(super) fn must_take(&mut self, version: u64, entry: Option<Entry>) -> Outcome {
        let answer = self.put(version, entry)?;
        check(answer.is_ok(), || format!("version {version} is refused: {answer:?}"))
    }

    /// The version that it tells, 0 where it has none.
    pub(super) fn told(&mut self) -> Result<u64, String> {
        let key = self.key.clone();
        let state = self.machine()?.state();
        Ok(state.into_iter().find(|(known, _)| *known == key).map_or(0, |(_, version)| version.0))
    }

    pub(super) fn found(&mut self) -> Result<Option<Entry>, String> {
        let (driver, key) = (self.driver, self.key.clone());
        Ok(driver.in_force(self.machine()?, &key))
    }

    /// Asserts what is in force, and what is told of it.
    pub(super) fn must_have(&mut self, version: u64, entry: Option<&Entry>) -> Outcome {
        let found = self.found()?;
        check(found.as_ref() == entry, || {
            format!("in force is {}, wanted is {}", shown(found.as_ref()), shown(entry))
        })?;
        let told = self.told()?;
        check(told == version, || format!("it tells {told}, wanted is {version}"))
    }

    /// What is in force when this was withdrawn.
    pub(super) fn after_withdrawal(&self, before: Entry) -> Option<Entry> {
        self.driver.keeps_withdrawn().then_some(before)
    }
}

pub(super) fn shown(entry: Option<&Entry>) -> String {
    match entry {
        Some(Entry::Plane(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}
