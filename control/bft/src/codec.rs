//! How the bytes of this crate are read.

use bytes::{Buf, Bytes};

/// SHA-256 of a batch or block.
pub type Digest = [u8; 32];

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Reads from the front; never beyond the end.
pub struct Reader(pub Bytes);

impl Reader {
    fn need(&self, bytes: usize) -> Result<(), Malformed> {
        if self.0.len() < bytes { Err(Malformed("it ends too early")) } else { Ok(()) }
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }

    /// A fixed number of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.need(N)?;
        let mut out = [0; N];
        self.0.copy_to_slice(&mut out);
        Ok(out)
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Result<Bytes, Malformed> {
        self.need(count)?;
        Ok(self.0.split_to(count))
    }

    /// A count that must not be above `max`, nor above what bytes are left.
    pub fn count(&mut self, max: usize, what: &'static str) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > max || count > self.0.len() { Err(Malformed(what)) } else { Ok(count) }
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes follow its end")) }
    }
}
