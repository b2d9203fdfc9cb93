//! What members say to each other beside the order, on a channel of its own: best effort, and said again when it matters.

use bytes::{BufMut, Bytes, BytesMut};

use crate::wire::{Malformed, Reader, VERSION};

/// Bytes that those above the order may say at once.
pub const TELL_BYTES_MAX: usize = 64 << 10;

/// A word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// For those above the order.
    Tell(Bytes),
    /// The digest of the sender's state after a batch.
    Digest {
        /// The batch.
        index: u64,
        /// The digest.
        digest: [u8; 32],
    },
    /// The sender needs a state: everybody is to keep the one after this batch, which is still to come.
    WantState {
        /// The batch.
        index: u64,
    },
}

impl Word {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Word::Tell(bytes) => {
                out.put_u8(0);
                out.put_slice(bytes);
            }
            Word::Digest { index, digest } => {
                out.put_u8(1);
                out.put_u64_le(*index);
                out.put_slice(digest);
            }
            Word::WantState { index } => {
                out.put_u8(2);
                out.put_u64_le(*index);
            }
        }
        out.freeze()
    }

    /// Reads a word.
    pub fn decode(bytes: Bytes) -> Result<Word, Malformed> {
        let mut from = Reader(bytes);
        if from.u8()? != VERSION {
            return Err(Malformed("a word of a version that this program does not read"));
        }
        let word = match from.u8()? {
            0 if from.0.len() > TELL_BYTES_MAX => return Err(Malformed("a word is too long")),
            0 => return Ok(Word::Tell(from.0)),
            1 => Word::Digest { index: from.u64()?, digest: from.array()? },
            2 => Word::WantState { index: from.u64()? },
            _ => return Err(Malformed("a word of an unknown kind")),
        };
        from.end()?;
        Ok(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written_and_others_are_refused() {
        for word in [
            Word::Tell(Bytes::from_static(b"x")),
            Word::Digest { index: 64, digest: [7; 32] },
            Word::WantState { index: 128 },
        ] {
            assert_eq!(Word::decode(word.encode()), Ok(word));
        }
        assert!(Word::decode(Bytes::from(vec![VERSION; TELL_BYTES_MAX + 3])).is_err());
        bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
            let bytes = Bytes::from(bytes.clone());
            if let Ok(word) = Word::decode(bytes.clone()) {
                assert_eq!(word.encode(), bytes);
            }
        });
    }
}
