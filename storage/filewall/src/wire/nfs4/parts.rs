//! Parts that arguments and results have alike.

use super::OPAQUE_BYTES_MAX;
use crate::wire::xdr::{Read, Reader};

/// `nfs_impl_id4<1>`.
pub(super) fn implementation(reader: &mut Reader<'_>) -> Read<()> {
    if reader.length(1)? == 1 {
        reader.opaque(OPAQUE_BYTES_MAX)?;
        reader.opaque(OPAQUE_BYTES_MAX)?;
        reader.take(12)?;
    }
    Ok(())
}

/// `channel_attrs4`.
pub(super) fn channel(reader: &mut Reader<'_>) -> Read<()> {
    reader.take(24)?;
    let words = reader.length(1)?;
    reader.take(4 * words).map(|_| ())
}
