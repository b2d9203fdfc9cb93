//! How operations lie in a batch; `docs/protocol/log.md` draws it.

use bytes::Bytes;

use crate::error::Error;

/// Bytes of a batch without operations.
pub const BATCH_OVERHEAD_BYTES: usize = 4;
/// Bytes that an operation takes beside its own.
pub const OPERATION_OVERHEAD_BYTES: usize = 4;

/// Puts operations into a batch.
pub fn encode(operations: &[Bytes]) -> Bytes {
    let bytes: usize = operations.iter().map(|operation| OPERATION_OVERHEAD_BYTES + operation.len()).sum();
    let mut out = Vec::with_capacity(BATCH_OVERHEAD_BYTES + bytes);
    out.extend_from_slice(&(operations.len() as u32).to_le_bytes());
    for operation in operations {
        out.extend_from_slice(&(operation.len() as u32).to_le_bytes());
        out.extend_from_slice(operation);
    }
    Bytes::from(out)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Error> {
    let (head, tail) = bytes.split_at_checked(count).ok_or(Error::Batch { what: "it ends too early" })?;
    *bytes = tail;
    Ok(head)
}

fn take_u32(bytes: &mut &[u8]) -> Result<usize, Error> {
    let head = take(bytes, 4)?;
    Ok(u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize)
}

/// The operations of a batch, in order. They point into it: copy what is kept, or the whole batch stays.
pub fn decode(batch: &[u8]) -> Result<Vec<&[u8]>, Error> {
    let mut rest = batch;
    let count = take_u32(&mut rest)?;
    if count > rest.len() / OPERATION_OVERHEAD_BYTES {
        return Err(Error::Batch { what: "it says it has more operations than fit" });
    }
    let mut operations = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_u32(&mut rest)?;
        operations.push(take(&mut rest, length)?);
    }
    if rest.is_empty() {
        Ok(operations)
    } else {
        Err(Error::Batch { what: "bytes follow its last operation" })
    }
}
