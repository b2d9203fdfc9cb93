//! Signing a decided batch and verifying one update of it (rows R5, C3).
//!
//! A group has one public key, and whoever verifies sees one signature a batch, however many
//! controllers made it: one controller with an ed25519 key, or enough of them with shares of a BLS key.

use crate::TrustError;
use crate::endorsement;
use crate::identity::{self, Context, KeyPair};
use crate::merkle::{Tree, is_under, leaf_hash};
use crate::threshold::GroupVerifier;
use std::collections::VecDeque;
use weir_base::codec::encode;
use weir_model::conversion::{Succeeded, Succession};
use weir_model::entry::ControllersEntry;
use weir_model::signed::{
    BatchHeader, BlsKey, GroupKey, GroupSignature, PATH_MAX, ProvenUpdate, Signature, SignedHeader,
    SignedUpdates,
};
use weir_model::{Label, Update, Version};

/// Makes a group's signature.
pub trait GroupSigner {
    /// The group's public key.
    fn group_key(&self) -> GroupKey;
    /// Signs the encoding of a batch header.
    fn sign(&self, message: &[u8]) -> GroupSignature;
    /// Names the key that comes after this one, the same bytes whenever the same is asked. Nothing where it cannot: only one controller's key does.
    fn succeed(&self, succession: &Succession) -> Option<Signature> {
        let _unnamed = succession;
        None
    }
}

/// A group of one controller.
#[derive(Debug)]
pub struct SingleSigner(pub KeyPair);

impl GroupSigner for SingleSigner {
    fn group_key(&self) -> GroupKey {
        GroupKey::Single(self.0.public())
    }

    fn sign(&self, message: &[u8]) -> GroupSignature {
        GroupSignature::Single(self.0.sign(Context::Batch, message))
    }

    fn succeed(&self, succession: &Succession) -> Option<Signature> {
        Some(self.0.sign(Context::Succession, &encode(succession)))
    }
}

/// Signs the updates of the batch decided at `index`: the header, and each update with its proof,
/// in the order given.
///
/// # Errors
/// [`TrustError::BadCount`] for no update or too many.
pub fn sign_batch(
    signer: &dyn GroupSigner,
    domain: &Label,
    epoch: u64,
    index: Version,
    updates: Vec<Update>,
) -> Result<(SignedHeader, Vec<ProvenUpdate>), TrustError> {
    let (header, proven) = prepare_batch(domain, epoch, index, updates)?;
    let signature = signer.sign(&encode(&header));
    Ok((SignedHeader { header, signature }, proven))
}

/// The header that a group signs for the updates of the batch decided at `index`, and each update with
/// its proof, in the order given. Controllers that share a key sign its encoding under
/// [`Context::Batch`].
///
/// # Errors
/// [`TrustError::BadCount`] for no update or too many.
pub fn prepare_batch(
    domain: &Label,
    epoch: u64,
    index: Version,
    updates: Vec<Update>,
) -> Result<(BatchHeader, Vec<ProvenUpdate>), TrustError> {
    if updates.is_empty() || updates.len() > 1 << PATH_MAX {
        return Err(TrustError::BadCount(updates.len()));
    }
    let tree = Tree::new(updates.iter().map(|update| leaf_hash(&encode(update))).collect());
    let header =
        BatchHeader { domain: domain.clone(), epoch, index, count: updates.len() as u32, root: tree.root() };
    let proven = updates
        .into_iter()
        .enumerate()
        .map(|(leaf, update)| ProvenUpdate { leaf: leaf as u32, path: tree.path(leaf), update })
        .collect();
    Ok((header, proven))
}

/// How many verified headers are remembered, so that a batch that arrives in parts costs one
/// signature check.
pub const HEADERS_REMEMBERED: usize = 64;
/// How many headers are remembered that did not verify: a frame of updates under one costs one signature check, and so does the frame
/// that comes again.
pub const FORGERIES_REMEMBERED: usize = 16;

/// A group's key, checked once. Nothing verifies under bytes that are no key.
#[derive(Debug)]
enum CheckedKey {
    Single([u8; 32]),
    Threshold(BlsKey, GroupVerifier),
    Bad,
}

impl CheckedKey {
    fn new(key: &GroupKey) -> CheckedKey {
        match key {
            GroupKey::Single(key) => CheckedKey::Single(*key),
            GroupKey::Threshold(key) => GroupVerifier::new(key)
                .map_or(CheckedKey::Bad, |checked| CheckedKey::Threshold(*key, checked)),
        }
    }

    /// A signature of another kind than the key does not verify.
    fn verify(&self, message: &[u8], signature: &GroupSignature) -> Result<(), TrustError> {
        match (self, signature) {
            (CheckedKey::Single(key), GroupSignature::Single(signature)) => {
                identity::verify(key, Context::Batch, message, signature)
            }
            (CheckedKey::Threshold(_, key), GroupSignature::Threshold(signature)) => {
                key.verify(Context::Batch, message, signature)
            }
            (CheckedKey::Bad, _) => Err(TrustError::BadKey),
            (CheckedKey::Single(_) | CheckedKey::Threshold(..), _) => Err(TrustError::BadSignature),
        }
    }
}

/// Whether a header is signed by a key that this one named for the header's domain and epoch.
fn verify_succeeded(key: &CheckedKey, header: &BatchHeader, by: &Succeeded) -> Result<(), TrustError> {
    let Succession { domain, epoch, key: new, .. } = &by.succession;
    if *domain != header.domain || header.epoch < *epoch {
        return Err(TrustError::BadSignature);
    }
    match key {
        CheckedKey::Single(old) => {
            identity::verify(old, Context::Succession, &encode(&by.succession), &by.by)?;
        }
        // Who joined since trusts the new one alone, and needs nobody's word for it.
        CheckedKey::Threshold(own, _) if own == new => {}
        CheckedKey::Threshold(..) => return Err(TrustError::BadSignature),
        CheckedKey::Bad => return Err(TrustError::BadKey),
    }
    GroupVerifier::new(new)?.verify(Context::Batch, &encode(header), &by.signature)
}

/// Verifies signatures over headers of any domain: for who examines, and obeys nothing.
#[derive(Debug)]
pub struct HeaderVerifier(CheckedKey);

impl HeaderVerifier {
    /// For a group's key.
    pub fn new(key: &GroupKey) -> HeaderVerifier {
        HeaderVerifier(CheckedKey::new(key))
    }

    /// Whether the group signed a header.
    ///
    /// # Errors
    /// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
    pub fn verify(&self, header: &BatchHeader, signature: &GroupSignature) -> Result<(), TrustError> {
        match signature {
            GroupSignature::Succeeded(by) => verify_succeeded(&self.0, header, by),
            signature => self.0.verify(&encode(header), signature),
        }
    }
}

/// Verifies updates of one domain. A key that the trusted one named ([`Verifier::follow`]) takes its place from its epoch on. What controllers endorsed counts only where their list is given, and a list of one phase has
/// always the same members: that makes it sound to remember both verdicts.
#[derive(Debug)]
pub struct Verifier {
    domain: Label,
    key: CheckedKey,
    successor: Option<(Succession, CheckedKey)>,
    remembered: Vec<SignedHeader>,
    forgeries: VecDeque<SignedHeader>,
    /// Signature checks made: at most one a batch.
    pub signature_checks: u64,
}

impl Verifier {
    /// For a domain and its group's key.
    pub fn new(domain: Label, group_key: GroupKey) -> Verifier {
        Verifier {
            domain,
            key: CheckedKey::new(&group_key),
            successor: None,
            remembered: Vec::new(),
            forgeries: VecDeque::new(),
            signature_checks: 0,
        }
    }

    /// The domain.
    pub fn domain(&self) -> &Label {
        &self.domain
    }

    /// The change of keys that is followed.
    pub fn successor(&self) -> Option<&Succession> {
        self.successor.as_ref().map(|(succession, _)| succession)
    }

    /// From now on the key that a verified header came under is the group's, and the one before signs nothing of its epoch or a later one. A second
    /// change of the same key changes nothing.
    pub fn follow(&mut self, succession: &Succession) {
        let is_own = matches!(&self.key, CheckedKey::Threshold(..));
        if self.successor.is_none() && !is_own && succession.domain == self.domain {
            let key = CheckedKey::new(&GroupKey::Threshold(succession.key));
            self.successor = Some((succession.clone(), key));
            self.remembered.clear();
            self.forgeries.clear();
        }
    }

    fn verify_key(&self, signed: &SignedHeader) -> Result<(), TrustError> {
        let SignedHeader { header, signature } = signed;
        match (&self.successor, signature) {
            (Some((known, key)), GroupSignature::Succeeded(by)) if by.succession == *known => {
                key.verify(&encode(header), &GroupSignature::Threshold(by.signature))
            }
            // It was named once: nobody who has the old key names another one.
            (Some(_), GroupSignature::Succeeded(_)) => Err(TrustError::BadSignature),
            (None, GroupSignature::Succeeded(by)) => verify_succeeded(&self.key, header, by),
            (Some((known, key)), signature) if header.epoch >= known.epoch => {
                key.verify(&encode(header), signature)
            }
            (_, signature) => self.key.verify(&encode(header), signature),
        }
    }

    /// Checks a header's domain and the signature of the group's key.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn verify_header(&mut self, signed: &SignedHeader) -> Result<(), TrustError> {
        self.verify_header_by(signed, None)
    }

    /// As [`Verifier::verify_header`]; a header that enough of these controllers endorsed is right as well.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn verify_header_by(
        &mut self,
        signed: &SignedHeader,
        controllers: Option<&ControllersEntry>,
    ) -> Result<(), TrustError> {
        if signed.header.domain != self.domain {
            return Err(TrustError::WrongDomain {
                given: signed.header.domain.to_string(),
                wanted: self.domain.to_string(),
            });
        }
        // What was right under other controllers is looked at anew.
        let endorsed = match &signed.signature {
            GroupSignature::Members { phase, signatures } => {
                let controllers = controllers.ok_or(TrustError::NoControllers)?;
                if *phase != controllers.phase {
                    return Err(TrustError::OtherPhase { given: *phase, wanted: controllers.phase });
                }
                Some((controllers, signatures))
            }
            _ => None,
        };
        if self.remembered.contains(signed) {
            return Ok(());
        }
        if self.forgeries.contains(signed) {
            return Err(TrustError::BadSignature);
        }
        self.signature_checks += 1;
        let verdict = match endorsed {
            Some((controllers, signatures)) => {
                endorsement::verify(controllers, &signed.header, controllers.phase, signatures)
            }
            None => self.verify_key(signed),
        };
        if verdict.is_err() {
            if self.forgeries.len() == FORGERIES_REMEMBERED {
                self.forgeries.pop_front();
            }
            self.forgeries.push_back(signed.clone());
            return verdict;
        }
        if self.remembered.len() == HEADERS_REMEMBERED {
            self.remembered.remove(0);
        }
        self.remembered.push(signed.clone());
        Ok(())
    }

    /// Checks that an update is under a verified header's root.
    ///
    /// # Errors
    /// [`TrustError::BadPath`].
    pub fn verify_path(&self, header: &BatchHeader, proven: &ProvenUpdate) -> Result<(), TrustError> {
        if is_of(header, proven) { Ok(()) } else { Err(TrustError::BadPath) }
    }
}

/// Whether an update is under a header's root, whoever signed that.
pub fn is_of(header: &BatchHeader, proven: &ProvenUpdate) -> bool {
    is_under(&header.root, header.count, proven.leaf, leaf_hash(&encode(&proven.update)), &proven.path)
}

/// Groups proven updates of several headers into frames of at most `limit` updates.
pub fn frames(
    updates: impl IntoIterator<Item = (SignedHeader, ProvenUpdate)>,
    limit: usize,
) -> Vec<SignedUpdates> {
    let mut frames: Vec<SignedUpdates> = Vec::new();
    for (header, update) in updates {
        match frames.last_mut() {
            Some(frame) if frame.header == header && frame.updates.len() < limit => {
                frame.updates.push(update)
            }
            _ => frames.push(SignedUpdates { header, updates: vec![update] }),
        }
    }
    frames
}
