//! Big-endian reads and writes at an offset.
//!
//! [`get16`] and the others without a result are for places that a length check right above proves, or that lie in a buffer of
//! ours whose size is a constant. A place that is worked out from what a frame says is read and written by [`read`] and
//! [`write()`], which refuse what is not there.

use crate::PacketError;

/// The `N` bytes at a place that was worked out from a frame.
///
/// # Errors
/// `FrameMismatch` when they are not all there.
#[inline(always)]
pub(crate) fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], PacketError> {
    let there = at.checked_add(N).and_then(|end| bytes.get(at..end));
    there.and_then(|there| there.try_into().ok()).ok_or(PacketError::FrameMismatch)
}

/// The two bytes at a place that was worked out from a frame, as a number.
///
/// # Errors
/// `FrameMismatch` when they are not both there.
#[inline(always)]
pub(crate) fn read16(bytes: &[u8], at: usize) -> Result<u16, PacketError> {
    read(bytes, at).map(u16::from_be_bytes)
}

/// Copies `value` to a place that was worked out from a frame.
///
/// # Errors
/// `FrameMismatch` when there is no room for all of it; nothing is written then.
#[inline(always)]
pub(crate) fn write(bytes: &mut [u8], at: usize, value: &[u8]) -> Result<(), PacketError> {
    let place = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end));
    place.ok_or(PacketError::FrameMismatch)?.copy_from_slice(value);
    Ok(())
}

/// Writes two bytes at a place that was worked out from a frame.
///
/// # Errors
/// `FrameMismatch` when there is no room; nothing is written then.
#[inline(always)]
pub(crate) fn write16(bytes: &mut [u8], at: usize, value: u16) -> Result<(), PacketError> {
    write(bytes, at, &value.to_be_bytes())
}

/// The two bytes at `at`, as a number.
#[inline(always)]
pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at `at`, as a number.
#[inline(always)]
pub(crate) fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(get_array(bytes, at))
}

/// The `N` bytes at `at`.
#[inline(always)]
pub(crate) fn get_array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Writes two bytes at `at`.
#[inline(always)]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes four bytes at `at`.
#[inline(always)]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Copies `value` to `at`.
#[inline(always)]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
