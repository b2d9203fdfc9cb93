//! From shares to the group's signature (row C4: an actuator or an aggregator may do this).
//!
//! The collector hopes: it combines the first `threshold` shares and checks the result once. Only when
//! that fails it checks share by share, names who sent a bad one, and goes on with the others. So honest
//! groups pay one verification a batch, and a liar costs one verification a share, once: it is named.
//!
//! The caller takes a share only from its member's own authenticated session, or anybody could have a
//! member blamed.

use super::field::weights_at_zero;
use super::group::{GroupPublic, ShareSignature, read_signature, signature_bytes, verify_with};
use super::{Fault, FaultKind};
use crate::TrustError;
use crate::identity::Context;
use blst::MultiPoint as _;
use blst::min_sig::Signature;
use std::collections::{BTreeMap, BTreeSet};
use weir_model::signed::BlsSignature;

/// Combines exactly these shares, by members. Verifies nothing: the result is the group's signature when
/// there are at least threshold shares and all are right, and no signature else.
///
/// # Errors
/// [`TrustError::BadSignature`] for bytes that are no signature, [`TrustError::BadMembers`] for none.
pub fn combine(shares: &[ShareSignature]) -> Result<BlsSignature, TrustError> {
    let points = shares
        .iter()
        .map(|share| Ok((share.member, read_signature(&share.signature)?)))
        .collect::<Result<BTreeMap<u32, Signature>, TrustError>>()?;
    if points.is_empty() || points.len() != shares.len() {
        return Err(TrustError::BadMembers("shares must be of different members, at least one".into()));
    }
    Ok(signature_bytes(&combine_points(&points)))
}

fn combine_points(points: &BTreeMap<u32, Signature>) -> Signature {
    let members: Vec<u32> = points.keys().copied().collect();
    let weights: Vec<u8> =
        weights_at_zero(&members).iter().flat_map(|weight| weight.little_endian()).collect();
    let points: Vec<Signature> = points.values().copied().collect();
    points.mult(&weights, 255).to_signature()
}

/// Collects shares of one message until they make a signature.
#[derive(Debug)]
pub struct Collector {
    context: Context,
    message: Vec<u8>,
    /// Shares not known to be bad, by member.
    shares: BTreeMap<u32, Signature>,
    /// Members whose share verified on its own.
    checked: BTreeSet<u32>,
    /// Members that are not listened to any more.
    refused: BTreeSet<u32>,
    done: Option<BlsSignature>,
    /// Signature checks made.
    pub checks: u64,
}

/// What a share led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The group's signature, verified.
    pub signature: Option<BlsSignature>,
    /// Who was found to have sent something bad.
    pub faults: Vec<Fault>,
}

impl Collector {
    /// For a message.
    pub fn new(context: Context, message: Vec<u8>) -> Collector {
        Collector {
            context,
            message,
            shares: BTreeMap::new(),
            checked: BTreeSet::new(),
            refused: BTreeSet::new(),
            done: None,
            checks: 0,
        }
    }

    /// Adds a share. A member's second share counts only as a fault, when it differs.
    pub fn add(&mut self, group: &GroupPublic, share: &ShareSignature) -> Collected {
        if self.done.is_some() {
            return Collected { signature: self.done, faults: Vec::new() };
        }
        let fault = |what| Collected { signature: None, faults: vec![Fault { member: share.member, what }] };
        if !group.members().contains(&share.member) {
            return fault(FaultKind::NotMember);
        }
        if self.refused.contains(&share.member) {
            return Collected::default();
        }
        let Ok(signature) = read_signature(&share.signature) else {
            self.refused.insert(share.member);
            return fault(FaultKind::BadSignatureShare);
        };
        match self.shares.get(&share.member) {
            Some(known) if *known == signature => return Collected::default(),
            // The right share is unique, so one of the two is bad. The first stays until it is checked.
            Some(_) => return fault(FaultKind::Equivocated),
            None => {}
        }
        self.shares.insert(share.member, signature);
        let mut faults = Vec::new();
        let signature = self.try_combine(group, &mut faults);
        Collected { signature, faults }
    }

    fn try_combine(&mut self, group: &GroupPublic, faults: &mut Vec<Fault>) -> Option<BlsSignature> {
        while self.shares.len() >= group.threshold() {
            let chosen: BTreeMap<u32, Signature> =
                self.shares.iter().take(group.threshold()).map(|(member, share)| (*member, *share)).collect();
            let combined = combine_points(&chosen);
            self.checks += 1;
            if verify_with(&group.group_key(), self.context, &self.message, &combined).is_ok() {
                self.done = Some(signature_bytes(&combined));
                return self.done;
            }
            let found = self.check_shares(group);
            assert!(!found.is_empty(), "shares that verify one by one make a signature that verifies");
            faults.extend(found);
        }
        None
    }

    /// Checks every share that was not checked yet, and lets the bad ones go.
    fn check_shares(&mut self, group: &GroupPublic) -> Vec<Fault> {
        let unchecked: Vec<u32> =
            self.shares.keys().copied().filter(|member| !self.checked.contains(member)).collect();
        let mut faults = Vec::new();
        for member in unchecked {
            self.checks += 1;
            let right = group.member_key(member).is_some_and(|key| {
                verify_with(&key, self.context, &self.message, &self.shares[&member]).is_ok()
            });
            if right {
                self.checked.insert(member);
            } else {
                self.shares.remove(&member);
                self.refused.insert(member);
                faults.push(Fault { member, what: FaultKind::BadSignatureShare });
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests;
