//! Numbers modulo the order of BLS12-381's groups: the arithmetic of secret shares.
//!
//! blst has it in constant time but gives Rust no safe face for it, so this file has one, and it is the
//! only place of the crate with `unsafe`. Every call hands pointers to live values of the right type to a
//! function that reads and writes exactly those and keeps none of them; arguments are always canonical,
//! because [`Scalar`] can only be made so.

use blst::blst_scalar;

/// A number modulo the group order. Wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Scalar(blst_scalar);

impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scalar(secret)")
    }
}

impl Scalar {
    /// A member's id as a number.
    pub(crate) fn from_u32(value: u32) -> Scalar {
        let mut bytes = [0; 32];
        bytes[28..].copy_from_slice(&value.to_be_bytes());
        Scalar::reduce(&bytes)
    }

    /// 48 random bytes reduced, so that the bias is below 2^-128.
    pub(crate) fn from_random(bytes: &[u8; 48]) -> Scalar {
        Scalar::reduce(bytes)
    }

    #[allow(unsafe_code)]
    fn reduce(bytes: &[u8]) -> Scalar {
        let mut out = blst_scalar::default();
        // SAFETY: `bytes` is live for its whole length, `out` is a live scalar; see the module.
        unsafe { blst::blst_scalar_from_be_bytes(&mut out, bytes.as_ptr(), bytes.len()) };
        Scalar(out)
    }

    /// From 32 big-endian bytes; nothing when they are not below the order.
    #[allow(unsafe_code)]
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Option<Scalar> {
        let mut out = blst_scalar::default();
        // SAFETY: `bytes` are the 32 that the function reads, `out` is a live scalar; see the module.
        let canonical = unsafe {
            blst::blst_scalar_from_bendian(&mut out, bytes.as_ptr());
            blst::blst_scalar_fr_check(&out)
        };
        canonical.then_some(Scalar(out))
    }

    /// 32 big-endian bytes.
    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = self.little_endian();
        bytes.reverse();
        bytes
    }

    /// 32 little-endian bytes, as multiplications of points take them.
    pub(crate) fn little_endian(&self) -> [u8; 32] {
        self.0.b
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0.b == [0; 32]
    }

    /// The inner number, as blst's keys take it.
    pub(crate) fn inner(&self) -> &blst_scalar {
        &self.0
    }

    #[allow(unsafe_code)]
    pub(crate) fn plus(&self, other: &Scalar) -> Scalar {
        let mut out = blst_scalar::default();
        // SAFETY: three live scalars; see the module. The answer says whether the sum is zero: it may be.
        unsafe { blst::blst_sk_add_n_check(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    #[allow(unsafe_code)]
    pub(crate) fn minus(&self, other: &Scalar) -> Scalar {
        let mut out = blst_scalar::default();
        // SAFETY: three live scalars; see the module.
        unsafe { blst::blst_sk_sub_n_check(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    #[allow(unsafe_code)]
    pub(crate) fn times(&self, other: &Scalar) -> Scalar {
        let mut out = blst_scalar::default();
        // SAFETY: three live scalars; see the module.
        unsafe { blst::blst_sk_mul_n_check(&mut out, &self.0, &other.0) };
        Scalar(out)
    }

    /// One divided by this.
    ///
    /// # Panics
    /// For zero, which has none.
    #[allow(unsafe_code)]
    pub(crate) fn inverse(&self) -> Scalar {
        assert!(!self.is_zero(), "zero has no inverse");
        let mut out = blst_scalar::default();
        // SAFETY: two live scalars; see the module.
        unsafe { blst::blst_sk_inverse(&mut out, &self.0) };
        Scalar(out)
    }
}

/// What each of these members' values counts for in the value at zero of the polynomial through them.
///
/// # Panics
/// When a member is named twice: the callers have sets.
pub(crate) fn weights_at_zero(members: &[u32]) -> Vec<Scalar> {
    let points: Vec<Scalar> = members.iter().map(|member| Scalar::from_u32(*member)).collect();
    let weight = |at: usize| {
        let others = || points.iter().enumerate().filter(move |(other, _)| *other != at).map(|(_, x)| x);
        let one = || Scalar::from_u32(1);
        let above = others().fold(one(), |product, x| product.times(x));
        let below = others().fold(one(), |product, x| product.times(&x.minus(&points[at])));
        above.times(&below.inverse())
    };
    (0..points.len()).map(weight).collect()
}

#[cfg(test)]
mod tests;
