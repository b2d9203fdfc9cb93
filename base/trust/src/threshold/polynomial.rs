//! Secret polynomials and the public commitments to them (Feldman 1987).
//!
//! A dealer's polynomial has its secret at zero and member `i`'s share at `i`. Its commitment, one point a
//! coefficient, lets anybody compute what member `i`'s public key must be, so a wrong share is found by
//! whoever gets it.

use super::field::Scalar;
use super::{MEMBERS_MAX, Randomness};
use crate::TrustError;
use blst::MultiPoint as _;
use blst::min_sig::{AggregatePublicKey, PublicKey};
use serde::{Deserialize, Serialize};
use weir_model::signed::BlsKey;

/// Bits of a scalar that a multiplication looks at.
const SCALAR_BITS: usize = 255;

/// The public key of a secret number.
pub(crate) fn public(secret: &Scalar) -> Result<PublicKey, TrustError> {
    let key: &blst::min_sig::SecretKey = secret.inner().try_into().map_err(|_| TrustError::BadShare)?;
    Ok(key.sk_to_pk())
}

pub(crate) fn key_bytes(key: &PublicKey) -> BlsKey {
    let bytes = key.to_bytes();
    let third = |at: usize| std::array::from_fn(|offset| bytes[at * 32 + offset]);
    BlsKey([third(0), third(1), third(2)])
}

/// Reads a public key: on the curve, in the group, not zero.
pub(crate) fn read_key(key: &BlsKey) -> Result<PublicKey, TrustError> {
    PublicKey::key_validate(&key.0.concat()).map_err(|_| TrustError::BadKey)
}

/// A secret polynomial.
pub(crate) struct Polynomial(Vec<Scalar>);

impl Polynomial {
    /// A random polynomial of `threshold` coefficients with this value at zero.
    pub(crate) fn random(at_zero: Scalar, threshold: usize, randomness: &mut Randomness<'_>) -> Polynomial {
        let mut coefficients = vec![at_zero];
        coefficients.extend((1..threshold).map(|_| random_scalar(randomness)));
        Polynomial(coefficients)
    }

    pub(crate) fn at(&self, member: u32) -> Scalar {
        let x = Scalar::from_u32(member);
        let zero = Scalar::from_u32(0);
        self.0.iter().rev().fold(zero, |value, coefficient| value.times(&x).plus(coefficient))
    }

    pub(crate) fn commitment(&self) -> Result<Commitment, TrustError> {
        Ok(Commitment(self.0.iter().map(public).collect::<Result<_, _>>()?))
    }
}

pub(crate) fn random_scalar(randomness: &mut Randomness<'_>) -> Scalar {
    let mut bytes = zeroize::Zeroizing::new([0; 48]);
    randomness(&mut *bytes);
    Scalar::from_random(&bytes)
}

/// The public side of a secret polynomial: one point a coefficient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<BlsKey>", into = "Vec<BlsKey>")]
pub struct Commitment(Vec<PublicKey>);

impl From<Commitment> for Vec<BlsKey> {
    fn from(commitment: Commitment) -> Vec<BlsKey> {
        commitment.0.iter().map(key_bytes).collect()
    }
}

impl TryFrom<Vec<BlsKey>> for Commitment {
    type Error = TrustError;

    fn try_from(keys: Vec<BlsKey>) -> Result<Commitment, TrustError> {
        if keys.is_empty() || keys.len() > MEMBERS_MAX {
            return Err(TrustError::BadMembers(format!(
                "a commitment has 1 to {MEMBERS_MAX} points, not {}",
                keys.len()
            )));
        }
        Ok(Commitment(keys.iter().map(read_key).collect::<Result<_, _>>()?))
    }
}

impl Commitment {
    /// How many shares make a secret.
    pub fn threshold(&self) -> usize {
        self.0.len()
    }

    /// The public key of the secret itself.
    pub fn at_zero(&self) -> PublicKey {
        self.0[0]
    }

    /// The public key of a member's share.
    pub fn at(&self, member: u32) -> PublicKey {
        let x = Scalar::from_u32(member);
        let mut power = Scalar::from_u32(1);
        let mut powers = Vec::with_capacity(self.0.len() * 32);
        for _ in &self.0 {
            powers.extend(power.little_endian());
            power = power.times(&x);
        }
        multiply(&self.0, &powers)
    }

    /// The sum of commitments, each times its weight.
    ///
    /// # Panics
    /// When they have different lengths or are none: callers have checked.
    pub(crate) fn weighted(parts: &[(Scalar, &Commitment)]) -> Commitment {
        let threshold = parts[0].1.threshold();
        assert!(parts.iter().all(|(_, part)| part.threshold() == threshold), "commitments differ in length");
        let weights: Vec<u8> = parts.iter().flat_map(|(weight, _)| weight.little_endian()).collect();
        let column = |at: usize| -> Vec<PublicKey> { parts.iter().map(|(_, part)| part.0[at]).collect() };
        Commitment((0..threshold).map(|at| multiply(&column(at), &weights)).collect())
    }
}

fn multiply(points: &[PublicKey], scalars: &[u8]) -> PublicKey {
    let sum: AggregatePublicKey = points.mult(scalars, SCALAR_BITS);
    sum.to_public_key()
}

#[cfg(test)]
mod tests;
