//! VXLAN (RFC 7348 §5): flags, 24 reserved bits, VNI, 8 reserved bits.

use super::{Decapsulated, Half, InnerChecksum, check_vni};
use crate::PacketError;
use crate::bytes::{get32, put32};

/// UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;
/// Length of a VXLAN header.
pub const VXLAN_BYTES: usize = 8;

const FLAG_VNI: u8 = 0x08;

/// Writes a VXLAN header and returns its length.
///
/// # Errors
/// `VniRange`, `BufferTooSmall`.
#[inline]
pub fn encode_vxlan(buffer: &mut [u8], vni: u32) -> Result<usize, PacketError> {
    check_vni(vni)?;
    if buffer.len() < VXLAN_BYTES {
        return Err(PacketError::BufferTooSmall);
    }
    put32(buffer, 0, u32::from(FLAG_VNI) << 24);
    put32(buffer, 4, vni << 8);
    Ok(VXLAN_BYTES)
}

/// Reads a VXLAN header. Other flag bits announce extensions (GBP, GPE) that change what follows, so they are refused;
/// the other reserved bits are ignored, as RFC 7348 says.
///
/// # Errors
/// `VxlanTruncated`, `VxlanFlags`.
#[inline]
pub fn decode_vxlan(datagram: &[u8]) -> Result<Decapsulated, PacketError> {
    if datagram.len() < VXLAN_BYTES {
        return Err(PacketError::VxlanTruncated);
    }
    if datagram[0] != FLAG_VNI {
        return Err(PacketError::VxlanFlags);
    }
    let (vni, checksum) = (get32(datagram, 4) >> 8, InnerChecksum::Full);
    Ok(Decapsulated { vni, inner_offset: VXLAN_BYTES, token: None, checksum, half: Half::Unsaid, oam: false })
}
