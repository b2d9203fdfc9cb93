//! The sum of many bytes with vector instructions, where the processor has them.
//!
//! A large part of what a switch of our kind costs besides copying is the checksum of every segment. The two
//! processors of a core share their adders, which the plain loop keeps busy; this one needs a quarter of the
//! instructions.

/// Fewer bytes are not worth it.
#[cfg(target_arch = "x86_64")]
const BYTES_MIN: usize = 256;

/// The sum of the 16-bit words, as they lie in memory, of the first bytes, and the bytes that are left to sum.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> (u64, &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= BYTES_MIN && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature; nothing else is asked of the caller.
        #[allow(unsafe_code)]
        return unsafe { avx2::sum(bytes) };
    }
    (0, bytes)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_extract_epi64, _mm256_madd_epi16, _mm256_set_epi64x,
        _mm256_set1_epi16, _mm256_setzero_si256, _mm256_xor_si256,
    };

    const STEP: usize = 64;
    /// Bytes after which the lanes of 32 bits are emptied: each step adds at most 2^16 to one of 2^31.
    const BLOCK: usize = 512 * 1024;

    #[target_feature(enable = "avx2")]
    pub(super) fn sum(bytes: &[u8]) -> (u64, &[u8]) {
        let whole = bytes.len() - bytes.len() % STEP;
        let (head, rest) = bytes.split_at(whole);
        (head.chunks(BLOCK).map(|block| block_sum(block)).sum(), rest)
    }

    /// The multiplication takes signed words, so each is lowered by 2^15, which is added again in the end.
    #[target_feature(enable = "avx2")]
    fn block_sum(block: &[u8]) -> u64 {
        let (bias, ones) = (_mm256_set1_epi16(i16::MIN), _mm256_set1_epi16(1));
        let (mut a, mut b) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        let (steps, _) = block.as_chunks::<STEP>();
        for step in steps {
            let (x, y) = (load(step, 0), load(step, 32));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_xor_si256(x, bias), ones));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_xor_si256(y, bias), ones));
        }
        let words = (steps.len() * STEP / 2) as i64;
        (lanes(a) + lanes(b) + words * 32_768) as u64
    }

    /// The compiler makes one load of the four.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(step: &[u8; STEP], at: usize) -> __m256i {
        let word = |number: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&step[at + number * 8..at + number * 8 + 8]);
            i64::from_ne_bytes(bytes)
        };
        _mm256_set_epi64x(word(3), word(2), word(1), word(0))
    }

    /// The sum of the eight lanes of 32 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn lanes(v: __m256i) -> i64 {
        let both = |pair: i64| i64::from(pair as i32) + (pair >> 32);
        both(_mm256_extract_epi64::<0>(v))
            + both(_mm256_extract_epi64::<1>(v))
            + both(_mm256_extract_epi64::<2>(v))
            + both(_mm256_extract_epi64::<3>(v))
    }
}
