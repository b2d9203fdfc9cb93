//! A group's public side, a member's secret share, and signatures with either.

use super::field::Scalar;
use super::polynomial::{Commitment, key_bytes, public, read_key};
use super::{Fault, FaultKind, MEMBERS_MAX, threshold};
use crate::TrustError;
use crate::identity::Context;
use blst::BLST_ERROR::BLST_SUCCESS;
use blst::min_sig::{PublicKey, SecretKey, Signature};
use blst::{MultiPoint as _, blst_fp12, blst_p1_affine, blst_p2_affine};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use weir_model::signed::{BlsKey, BlsSignature};

/// Domain separation of hashing to the curve (RFC 9380), one for all of Weir: what a signature is for is
/// in the message, as with identities.
const SUITE: &[u8] = b"WEIR-V1-BLS12381G1_XMD:SHA-256_SSWU_RO_";

fn framed(context: Context, message: &[u8]) -> Vec<u8> {
    [context.tag(), message].concat()
}

pub(crate) fn signature_bytes(signature: &Signature) -> BlsSignature {
    let bytes = signature.to_bytes();
    let third = |at: usize| std::array::from_fn(|offset| bytes[at * 16 + offset]);
    BlsSignature([third(0), third(1), third(2)])
}

/// Reads a signature: on the curve, in the group, not zero.
pub(crate) fn read_signature(signature: &BlsSignature) -> Result<Signature, TrustError> {
    Signature::sig_validate(&signature.0.concat(), true).map_err(|_| TrustError::BadSignature)
}

/// Verifies against a key that was validated when it was read.
pub(crate) fn verify_with(
    key: &PublicKey,
    context: Context,
    message: &[u8],
    signature: &Signature,
) -> Result<(), TrustError> {
    match signature.verify(false, &framed(context, message), SUITE, &[], key, false) {
        BLST_SUCCESS => Ok(()),
        _ => Err(TrustError::BadSignature),
    }
}

/// A group's public key that was checked once, to verify with many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupVerifier(PublicKey);

impl GroupVerifier {
    /// Checks a key.
    ///
    /// # Errors
    /// [`TrustError::BadKey`].
    pub fn new(key: &BlsKey) -> Result<GroupVerifier, TrustError> {
        Ok(GroupVerifier(read_key(key)?))
    }

    /// Verifies a group's signature.
    ///
    /// # Errors
    /// [`TrustError::BadSignature`].
    pub fn verify(
        &self,
        context: Context,
        message: &[u8],
        signature: &BlsSignature,
    ) -> Result<(), TrustError> {
        verify_with(&self.0, context, message, &read_signature(signature)?)
    }

    /// Verifies many signatures at once, for two pairings and a fraction more each: the sum of all, each times a number
    /// that depends on all of them, must be right. Says not which is wrong.
    ///
    /// The numbers have 128 bits and come from a hash over the messages and signatures, so whoever makes these cannot
    /// choose wrong ones that cancel out.
    ///
    /// # Errors
    /// [`TrustError::BadSignature`] when at least one is wrong.
    pub fn verify_all(&self, context: Context, signed: &[(Vec<u8>, BlsSignature)]) -> Result<(), TrustError> {
        if let [(message, signature)] = signed {
            return self.verify(context, message, signature);
        }
        if signed.is_empty() {
            return Ok(());
        }
        let signatures =
            signed.iter().map(|(_, signature)| read_signature(signature)).collect::<Result<Vec<_>, _>>()?;
        // What the key one signs with is the message's point itself.
        let one = SecretKey::from_bytes(&Scalar::from_u32(1).to_bytes()).map_err(|_| TrustError::BadKey)?;
        let messages: Vec<Signature> =
            signed.iter().map(|(message, _)| one.sign(&framed(context, message), SUITE, &[])).collect();
        let weights = weights(signed);
        let sum = |points: &[Signature]| blst_p1_affine::from(points.mult(&weights, 128).to_signature());
        let key = blst_p2_affine::from(self.0);
        let generator = blst_p2_affine::from(public(&Scalar::from_u32(1))?);
        let given = blst_fp12::miller_loop(&generator, &sum(&signatures));
        let wanted = blst_fp12::miller_loop(&key, &sum(&messages));
        if blst_fp12::finalverify(&given, &wanted) { Ok(()) } else { Err(TrustError::BadSignature) }
    }
}

/// A number of 128 bits for each signature, little-endian, one behind the other.
fn weights(signed: &[(Vec<u8>, BlsSignature)]) -> Vec<u8> {
    let mut all = Sha256::new_with_prefix("weir many signatures");
    for (message, signature) in signed {
        all.update((message.len() as u64).to_be_bytes());
        all.update(message);
        all.update(signature.0.concat());
    }
    let seed: [u8; 32] = all.finalize().into();
    let weight = |number: usize| {
        let hash: [u8; 32] =
            Sha256::new_with_prefix(seed).chain_update((number as u64).to_be_bytes()).finalize().into();
        hash.into_iter().take(16)
    };
    (0..signed.len()).flat_map(weight).collect()
}

/// Verifies a group's signature with a key that is used once.
///
/// # Errors
/// [`TrustError::BadKey`] or [`TrustError::BadSignature`].
pub fn verify_group(
    key: &BlsKey,
    context: Context,
    message: &[u8],
    signature: &BlsSignature,
) -> Result<(), TrustError> {
    GroupVerifier::new(key)?.verify(context, message, signature)
}

/// What everybody may know of a group in one phase: who is in it, and the commitment to its polynomial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "GroupWire", into = "GroupWire")]
pub struct GroupPublic {
    members: BTreeSet<u32>,
    commitment: Commitment,
}

/// The bytes of a group: checked when read.
#[derive(Serialize, Deserialize)]
struct GroupWire {
    members: Vec<u32>,
    commitment: Commitment,
}

impl From<GroupPublic> for GroupWire {
    fn from(group: GroupPublic) -> GroupWire {
        GroupWire { members: group.members.into_iter().collect(), commitment: group.commitment }
    }
}

impl TryFrom<GroupWire> for GroupPublic {
    type Error = TrustError;

    fn try_from(wire: GroupWire) -> Result<GroupPublic, TrustError> {
        if !wire.members.is_sorted_by(|one, two| one < two) {
            return Err(TrustError::BadMembers("members must be in rising order, each once".into()));
        }
        GroupPublic::new(wire.members.into_iter().collect(), wire.commitment)
    }
}

/// Checks a set of members: 1 to [`MEMBERS_MAX`], none with id zero.
pub(crate) fn check_members(members: impl ExactSizeIterator<Item = u32>) -> Result<(), TrustError> {
    let count = members.len();
    if count == 0 || count > MEMBERS_MAX {
        return Err(TrustError::BadMembers(format!("a group has 1 to {MEMBERS_MAX} members, not {count}")));
    }
    if members.into_iter().any(|member| member == 0) {
        return Err(TrustError::BadMembers("a member's id is 1 or more: at 0 lies the key itself".into()));
    }
    Ok(())
}

impl GroupPublic {
    /// Puts a group together.
    ///
    /// # Errors
    /// [`TrustError::BadMembers`] for impossible members, or a commitment that is not of their threshold.
    pub fn new(members: BTreeSet<u32>, commitment: Commitment) -> Result<GroupPublic, TrustError> {
        check_members(members.iter().copied())?;
        let wanted = threshold(members.len());
        if commitment.threshold() != wanted {
            let (count, given) = (members.len(), commitment.threshold());
            return Err(TrustError::BadMembers(format!(
                "{count} members need a threshold of {wanted}, the commitment has {given}"
            )));
        }
        Ok(GroupPublic { members, commitment })
    }

    /// The group's public key: the same in every phase.
    pub fn key(&self) -> BlsKey {
        key_bytes(&self.commitment.at_zero())
    }

    /// The ids of its members.
    pub fn members(&self) -> &BTreeSet<u32> {
        &self.members
    }

    /// How many shares make a signature.
    pub fn threshold(&self) -> usize {
        self.commitment.threshold()
    }

    /// The public key of a member's share; nothing when it is not a member.
    pub(crate) fn member_key(&self, member: u32) -> Option<PublicKey> {
        self.members.contains(&member).then(|| self.commitment.at(member))
    }

    pub(crate) fn group_key(&self) -> PublicKey {
        self.commitment.at_zero()
    }

    /// Checks one member's share of a signature.
    ///
    /// # Errors
    /// A [`Fault`] that names the member.
    pub fn verify_share(
        &self,
        context: Context,
        message: &[u8],
        share: &ShareSignature,
    ) -> Result<(), Fault> {
        let fault = |what| Fault { member: share.member, what };
        let key = self.member_key(share.member).ok_or(fault(FaultKind::NotMember))?;
        read_signature(&share.signature)
            .and_then(|signature| verify_with(&key, context, message, &signature))
            .map_err(|_| fault(FaultKind::BadSignatureShare))
    }
}

/// One member's share of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareSignature {
    /// Who.
    pub member: u32,
    /// The signature with its share of the key.
    pub signature: BlsSignature,
}

/// A member's secret share of the group's key. Wiped when dropped, never printed.
#[derive(Clone, Debug)]
pub struct MemberSecret {
    member: u32,
    share: Scalar,
}

impl MemberSecret {
    /// Takes a share that fits the group.
    ///
    /// # Errors
    /// [`TrustError::BadShare`] when it is not the member's share of this group.
    pub(crate) fn new(group: &GroupPublic, member: u32, share: Scalar) -> Result<MemberSecret, TrustError> {
        match group.member_key(member) {
            Some(key) if key == public(&share)? => Ok(MemberSecret { member, share }),
            _ => Err(TrustError::BadShare),
        }
    }

    /// Reads a share that [`MemberSecret::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`TrustError::BadShare`].
    pub fn from_bytes(
        group: &GroupPublic,
        member: u32,
        bytes: &[u8; 32],
    ) -> Result<MemberSecret, TrustError> {
        MemberSecret::new(group, member, Scalar::from_bytes(bytes).ok_or(TrustError::BadShare)?)
    }

    /// The secret bytes, to keep in a file that only the controller can read.
    pub fn to_bytes(&self) -> zeroize::Zeroizing<[u8; 32]> {
        zeroize::Zeroizing::new(self.share.to_bytes())
    }

    /// Whose share it is.
    pub fn member(&self) -> u32 {
        self.member
    }

    pub(crate) fn share(&self) -> &Scalar {
        &self.share
    }

    /// Signs with the share.
    ///
    /// # Errors
    /// [`TrustError::BadShare`] for a share of zero, which no honest round yields.
    pub fn sign(&self, context: Context, message: &[u8]) -> Result<ShareSignature, TrustError> {
        let key: &SecretKey = self.share.inner().try_into().map_err(|_| TrustError::BadShare)?;
        let signature = key.sign(&framed(context, message), SUITE, &[]);
        Ok(ShareSignature { member: self.member, signature: signature_bytes(&signature) })
    }
}

#[cfg(test)]
mod tests;
