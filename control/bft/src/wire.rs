//! The bytes of batches, blocks and what replicas say to each other beside the votes; `docs/protocol/bft.md` draws them.
//!
//! A **batch** is what one replica was asked to order, signed by it and named by its digest. A **block** names its parent and
//! the batches that follow in the order; consensus votes on the block's digest alone. Nothing here depends on the types of the consensus
//! library, so its next release reads the same bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

use crate::member::{Member, put_members, take_members};

pub use crate::codec::{Digest, Malformed, Reader};

/// The first byte of every message.
pub const VERSION: u8 = 3;
/// Batches that a block may name.
pub const REFS_MAX: usize = 256;
/// Blocks in an answer to a replica that is behind.
pub const RANGE_BLOCKS_MAX: usize = 256;
/// Digests that may be asked for at once.
pub const WANTED_MAX: usize = REFS_MAX;
/// Bytes of a certificate, at most: 64 signatures fit.
pub const CERTIFICATE_BYTES_MAX: usize = 16 << 10;
/// Links in an answer to a replica that knows of fewer epochs.
pub const LINKS_MAX: usize = 16;
/// Bytes of a piece of a state on its way.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a message beside the batches and pieces in it.
pub const MESSAGE_OVERHEAD_BYTES: usize = 64 << 10;
const REF_BYTES: usize = 32 + 4 + 8 + 8 + 4;
const BATCH_HEAD_BYTES: usize = 4 + 8 + 8 + 64;

/// Who proposed a batch, in which of its lives, as which of that life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The member that was asked to order it.
    pub origin: u32,
    /// Grows with every start of that member.
    pub life: u64,
    /// 1, 2, 3 and so on in a life.
    pub sequence: u64,
}

/// What a replica was asked to order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Its name.
    pub name: Name,
    /// The origin's signature over the digest.
    pub signature: [u8; 64],
    /// The proposed bytes.
    pub body: Bytes,
}

impl Batch {
    /// What names and signs it. `group` keeps groups apart.
    pub fn digest_of(group: &[u8], name: &Name, body: &[u8]) -> Digest {
        let mut hash = Sha256::new();
        hash.update(b"weir bft batch\0");
        hash.update((group.len() as u64).to_le_bytes());
        hash.update(group);
        hash.update(name.origin.to_le_bytes());
        hash.update(name.life.to_le_bytes());
        hash.update(name.sequence.to_le_bytes());
        hash.update(body);
        hash.finalize().into()
    }

    /// Its digest.
    pub fn digest(&self, group: &[u8]) -> Digest {
        Batch::digest_of(group, &self.name, &self.body)
    }

    fn put(&self, out: &mut BytesMut) {
        put_name(out, &self.name);
        out.put_slice(&self.signature);
        out.put_u32_le(self.body.len() as u32);
        out.put_slice(&self.body);
    }

    fn take(from: &mut Reader) -> Result<Batch, Malformed> {
        let name = from.name()?;
        let signature = from.array()?;
        let length = from.u32()? as usize;
        Ok(Batch { name, signature, body: from.bytes(length)? })
    }

    /// Its bytes for the journal.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(BATCH_HEAD_BYTES + 4 + self.body.len());
        self.put(&mut out);
        out.freeze()
    }

    /// Reads what [`Batch::encode`] wrote.
    pub fn decode(bytes: Bytes) -> Result<Batch, Malformed> {
        let mut from = Reader(bytes);
        let batch = Batch::take(&mut from)?;
        from.end()?;
        Ok(batch)
    }
}

/// A batch as a block names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ref {
    /// The batch's digest.
    pub digest: Digest,
    /// The batch's name.
    pub name: Name,
    /// Bytes of the batch's body.
    pub bytes: u32,
}

/// What consensus orders, by its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The epoch whose members decide it.
    pub epoch: u64,
    /// The block before, or the epoch's genesis.
    pub parent: Digest,
    /// 1 for the first block, then without gaps.
    pub height: u64,
    /// The place of its first batch.
    pub first_index: u64,
    /// Its batches, in order; at least one.
    pub refs: Vec<Ref>,
    /// The members of the next epoch, when this is the last block of its own.
    pub next: Option<BTreeMap<u32, Member>>,
}

impl Block {
    /// The place of its last batch.
    pub fn last_index(&self) -> u64 {
        self.first_index + self.refs.len() as u64 - 1
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + REF_BYTES * self.refs.len());
        self.put(&mut out);
        out.freeze()
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch);
        out.put_slice(&self.parent);
        out.put_u64_le(self.height);
        out.put_u64_le(self.first_index);
        out.put_u32_le(self.refs.len() as u32);
        for named in &self.refs {
            out.put_slice(&named.digest);
            put_name(out, &named.name);
            out.put_u32_le(named.bytes);
        }
        out.put_u8(u8::from(self.next.is_some()));
        if let Some(next) = &self.next {
            put_members(out, next);
        }
    }

    fn take(from: &mut Reader) -> Result<Block, Malformed> {
        let epoch = from.u64()?;
        let (parent, height, first_index) = (from.array()?, from.u64()?, from.u64()?);
        let count = from.u32()? as usize;
        if count == 0 || count > REFS_MAX {
            return Err(Malformed("a block names no batch, or too many"));
        }
        if height == 0 || first_index == 0 || first_index.checked_add(count as u64).is_none() {
            return Err(Malformed("a block has no place"));
        }
        let mut refs = Vec::with_capacity(count);
        for _ in 0..count {
            let (digest, name, bytes) = (from.array()?, from.name()?, from.u32()?);
            refs.push(Ref { digest, name, bytes });
        }
        let next = match from.u8()? {
            0 => None,
            1 => Some(take_members(from)?),
            _ => return Err(Malformed("whether it ends the epoch is 0 or 1")),
        };
        Ok(Block { epoch, parent, height, first_index, refs, next })
    }

    /// Reads what [`Block::encode`] wrote.
    pub fn decode(bytes: Bytes) -> Result<Block, Malformed> {
        let mut from = Reader(bytes);
        let block = Block::take(&mut from)?;
        from.end()?;
        Ok(block)
    }

    /// Its digest.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(b"weir bft block\0");
        hash.update(self.encode());
        hash.finalize().into()
    }
}

/// A state that a replica can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// The last batch whose effects it holds.
    pub index: u64,
    /// Bytes of the state, the engine's part included.
    pub state_bytes: u64,
    /// SHA-256 of the state.
    pub sha256: Digest,
    /// Bytes of the file that carries it.
    pub file_bytes: u64,
}

/// What replicas say to each other on the engine's own channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Somebody wants this ordered; or it was asked for.
    Batch(Batch),
    /// Somebody proposes this; or it was asked for.
    Block(Block),
    /// Asks for batches.
    WantBatches(Vec<Digest>),
    /// Asks for a block that is not committed yet.
    WantBlock(Digest),
    /// How far the sender is.
    Tip {
        /// The height of its last committed block.
        height: u64,
        /// The last epoch that it knows of.
        epoch: u64,
        /// Whether it serves: its state is not known to differ from that of the others.
        serves: bool,
    },
    /// Asks for committed blocks above a height.
    WantRange {
        /// The last block that the sender has.
        above: u64,
    },
    /// Committed blocks, their batches in order, and the certificate of the last of them.
    Range {
        /// The blocks.
        blocks: Vec<Block>,
        /// All their batches.
        batches: Vec<Batch>,
        /// 2f+1 members finalized the last block.
        certificate: Bytes,
    },
    /// The blocks that were asked for are gone; these states are there.
    Offers(Vec<Offer>),
    /// Asks which states are there.
    WantOffers,
    /// Asks for a piece of a state's file.
    WantChunk {
        /// Which state.
        index: u64,
        /// Where in its file.
        offset: u64,
    },
    /// A piece of a state's file.
    Chunk {
        /// Which state.
        index: u64,
        /// Where in its file.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// Asks what leads from an epoch to the present one.
    WantLinks {
        /// The last epoch that the sender knows of.
        epoch: u64,
    },
    /// The last blocks of epochs with their certificates, without gaps.
    Links(Vec<Link>),
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Message::Batch(batch) => {
                out.reserve(BATCH_HEAD_BYTES + 8 + batch.body.len());
                out.put_u8(0);
                batch.put(&mut out);
            }
            Message::Block(block) => {
                out.put_u8(1);
                block.put(&mut out);
            }
            Message::WantBatches(digests) => {
                out.put_u8(2);
                out.put_u32_le(digests.len() as u32);
                digests.iter().for_each(|digest| out.put_slice(digest));
            }
            Message::WantBlock(digest) => {
                out.put_u8(3);
                out.put_slice(digest);
            }
            Message::Tip { height, epoch, serves } => {
                out.put_u8(4);
                out.put_u64_le(*height);
                out.put_u64_le(*epoch);
                out.put_u8(u8::from(*serves));
            }
            Message::WantRange { above } => {
                out.put_u8(5);
                out.put_u64_le(*above);
            }
            Message::Range { blocks, batches, certificate } => {
                out.put_u8(6);
                out.put_u32_le(blocks.len() as u32);
                blocks.iter().for_each(|block| block.put(&mut out));
                out.put_u32_le(batches.len() as u32);
                batches.iter().for_each(|batch| batch.put(&mut out));
                out.put_u32_le(certificate.len() as u32);
                out.put_slice(certificate);
            }
            Message::Offers(offers) => {
                out.put_u8(7);
                out.put_u32_le(offers.len() as u32);
                for offer in offers {
                    out.put_u64_le(offer.index);
                    out.put_u64_le(offer.state_bytes);
                    out.put_slice(&offer.sha256);
                    out.put_u64_le(offer.file_bytes);
                }
            }
            Message::WantOffers => out.put_u8(8),
            Message::WantChunk { index, offset } => {
                out.put_u8(9);
                out.put_u64_le(*index);
                out.put_u64_le(*offset);
            }
            Message::Chunk { index, offset, bytes } => {
                out.put_u8(10);
                out.put_u64_le(*index);
                out.put_u64_le(*offset);
                out.put_u32_le(bytes.len() as u32);
                out.put_slice(bytes);
            }
            Message::WantLinks { epoch } => {
                out.put_u8(11);
                out.put_u64_le(*epoch);
            }
            Message::Links(links) => {
                out.put_u8(12);
                out.put_u32_le(links.len() as u32);
                links.iter().for_each(|link| link.put(&mut out));
            }
        }
        out.freeze()
    }

    /// Reads a message. What it holds never takes more room than its bytes, but for a small factor.
    pub fn decode(bytes: Bytes) -> Result<Message, Malformed> {
        let mut from = Reader(bytes);
        if from.u8()? != VERSION {
            return Err(Malformed("a message of a version that this program does not read"));
        }
        let message = match from.u8()? {
            0 => Message::Batch(Batch::take(&mut from)?),
            1 => Message::Block(Block::take(&mut from)?),
            2 => {
                let count = from.count(WANTED_MAX, "too many batches are asked for")?;
                Message::WantBatches((0..count).map(|_| from.array()).collect::<Result<_, _>>()?)
            }
            3 => Message::WantBlock(from.array()?),
            4 => {
                let (height, epoch) = (from.u64()?, from.u64()?);
                let serves = match from.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed("whether it serves is 0 or 1")),
                };
                Message::Tip { height, epoch, serves }
            }
            5 => Message::WantRange { above: from.u64()? },
            6 => {
                let count = from.count(RANGE_BLOCKS_MAX, "too many blocks")?;
                let blocks = (0..count).map(|_| Block::take(&mut from)).collect::<Result<_, _>>()?;
                let count = from.count(RANGE_BLOCKS_MAX * REFS_MAX, "too many batches")?;
                let batches = (0..count).map(|_| Batch::take(&mut from)).collect::<Result<_, _>>()?;
                let length = from.count(CERTIFICATE_BYTES_MAX, "the certificate is too long")?;
                Message::Range { blocks, batches, certificate: from.bytes(length)? }
            }
            7 => {
                let count = from.count(8, "too many states are offered")?;
                let mut offers = Vec::with_capacity(count);
                for _ in 0..count {
                    let (index, state_bytes) = (from.u64()?, from.u64()?);
                    offers.push(Offer { index, state_bytes, sha256: from.array()?, file_bytes: from.u64()? });
                }
                Message::Offers(offers)
            }
            8 => Message::WantOffers,
            9 => Message::WantChunk { index: from.u64()?, offset: from.u64()? },
            10 => {
                let (index, offset) = (from.u64()?, from.u64()?);
                let length = from.count(CHUNK_BYTES, "the piece is too long")?;
                Message::Chunk { index, offset, bytes: from.bytes(length)? }
            }
            11 => Message::WantLinks { epoch: from.u64()? },
            12 => {
                let count = from.count(LINKS_MAX, "too many links")?;
                Message::Links((0..count).map(|_| Link::take(&mut from)).collect::<Result<_, _>>()?)
            }
            _ => return Err(Malformed("a message of an unknown kind")),
        };
        from.end()?;
        Ok(message)
    }
}

/// The last block of an epoch, and the certificate of that epoch's members over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The block, which names the next members.
    pub block: Block,
    /// 2f+1 of the old members finalized it.
    pub certificate: Bytes,
}

impl Link {
    pub(crate) fn put(&self, out: &mut BytesMut) {
        let block = self.block.encode();
        out.put_u32_le(block.len() as u32);
        out.put_slice(&block);
        out.put_u32_le(self.certificate.len() as u32);
        out.put_slice(&self.certificate);
    }

    pub(crate) fn take(from: &mut Reader) -> Result<Link, Malformed> {
        let length = from.count(from.0.len(), "a link is longer than what it is in")?;
        let block = Block::decode(from.bytes(length)?)?;
        let length = from.count(CERTIFICATE_BYTES_MAX, "the certificate is too long")?;
        if block.next.is_none() {
            return Err(Malformed("a link's block ends no epoch"));
        }
        Ok(Link { block, certificate: from.bytes(length)? })
    }

    /// Its bytes for the disk.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.freeze()
    }

    /// Reads what [`Link::encode`] wrote.
    pub fn decode(bytes: Bytes) -> Result<Link, Malformed> {
        let mut from = Reader(bytes);
        let link = Link::take(&mut from)?;
        from.end()?;
        Ok(link)
    }
}

fn put_name(out: &mut BytesMut, name: &Name) {
    out.put_u32_le(name.origin);
    out.put_u64_le(name.life);
    out.put_u64_le(name.sequence);
}

impl Reader {
    fn name(&mut self) -> Result<Name, Malformed> {
        let (origin, life, sequence) = (self.u32()?, self.u64()?, self.u64()?);
        if life == 0 || sequence == 0 {
            return Err(Malformed("a batch has no name"));
        }
        Ok(Name { origin, life, sequence })
    }
}
