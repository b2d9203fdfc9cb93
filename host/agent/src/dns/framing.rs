//! DNS messages on a stream: each behind its length, two bytes, big-endian (RFC 1035 4.2.2, RFC 7766 8).
//!
//! Invariants: at most one message beyond what was asked for is kept, so a reassembly holds at most
//! [`QUERY_BYTES_MAX`] + 2 bytes; a length over the limit ends the stream at once, before its bytes are waited for.

/// Longest query taken from a stream, bytes. A query has one question; the rest is room for EDNS options.
pub const QUERY_BYTES_MAX: usize = 4096;
const LENGTH_BYTES: usize = 2;

/// A message that is longer than any query, or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes on a stream: 1 to {QUERY_BYTES_MAX} are taken")]
pub struct BadLength(pub usize);

/// Makes messages of a stream's bytes.
#[derive(Debug, Default)]
pub struct Reassembly {
    bytes: Vec<u8>,
}

impl Reassembly {
    /// How many bytes it takes now.
    pub fn room(&self) -> usize {
        LENGTH_BYTES + QUERY_BYTES_MAX - self.bytes.len()
    }

    /// Takes bytes of the stream, at most [`Reassembly::room`]; returns how many.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.bytes.extend_from_slice(&bytes[..taken]);
        taken
    }

    /// The next message that is whole.
    ///
    /// # Errors
    /// [`BadLength`]: nothing can be made of this stream any more.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, BadLength> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*length));
        if length == 0 || length > QUERY_BYTES_MAX {
            return Err(BadLength(length));
        }
        let end = LENGTH_BYTES + length;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let message = self.bytes[LENGTH_BYTES..end].to_vec();
        self.bytes.drain(..end);
        Ok(Some(message))
    }
}

/// A message as it stands on a stream; `None` when it is too long for that.
pub fn frame(message: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    Some([&length.to_be_bytes(), message].concat())
}
