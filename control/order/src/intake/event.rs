//! A signed event as it travels and as an operation of a batch; `docs/protocol/raft.md` draws it.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of an event beside its payload.
pub const EVENT_OVERHEAD_BYTES: usize = 1 + 32 + 8 + 64;

const VERSION: u8 = 1;

/// Who sends events: its public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub [u8; 32]);

/// An event of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedEvent {
    /// Who sends it.
    pub source: Source,
    /// 1 for the source's first event, then without gaps.
    pub sequence: u64,
    /// The source's signature over sequence and payload.
    pub signature: [u8; 64],
    /// What happened.
    pub payload: Bytes,
}

impl SignedEvent {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(EVENT_OVERHEAD_BYTES + self.payload.len());
        out.put_u8(VERSION);
        out.put_slice(&self.source.0);
        out.put_u64_le(self.sequence);
        out.put_slice(&self.signature);
        out.put_slice(&self.payload);
        out.freeze()
    }

    /// Reads one; None when the bytes are no event.
    pub fn decode(bytes: &Bytes) -> Option<SignedEvent> {
        if bytes.len() < EVENT_OVERHEAD_BYTES || bytes[0] != VERSION {
            return None;
        }
        let (mut source, mut sequence, mut signature) = ([0; 32], [0; 8], [0; 64]);
        source.copy_from_slice(&bytes[1..33]);
        sequence.copy_from_slice(&bytes[33..41]);
        signature.copy_from_slice(&bytes[41..EVENT_OVERHEAD_BYTES]);
        let (sequence, payload) = (u64::from_le_bytes(sequence), bytes.slice(EVENT_OVERHEAD_BYTES..));
        (sequence > 0).then_some(SignedEvent { source: Source(source), sequence, signature, payload })
    }
}

/// Says whether a signature is right. The same answer on every replica.
pub trait Verify {
    /// Whether `event` carries its source's signature and the source is one that may send.
    fn is_right(&self, event: &SignedEvent) -> bool;
}

impl<F: Fn(&SignedEvent) -> bool> Verify for F {
    fn is_right(&self, event: &SignedEvent) -> bool {
        self(event)
    }
}
