//! Commits what is final.

use bytes::{BufMut, Bytes, BytesMut};
use weir_order::{Entry, Error, Position};

use super::{Chained, Core, Known, Output, TERM, Tag, Target, Tip};
use crate::members::{Approval, Link, Roster};
use crate::rules::{Judgement, Overlay, Tables};
use crate::wire::{CERTIFICATE_BYTES_MAX, Digest, Malformed, Name, Reader};

/// The body of a [`Tag::Final`] record.
pub fn encode_final(height: u64, digest: &Digest, certificate: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(44 + certificate.len());
    out.put_u64_le(height);
    out.put_slice(digest);
    out.put_u32_le(certificate.len() as u32);
    out.put_slice(certificate);
    out.freeze()
}

/// Reads what [`encode_final`] wrote.
pub fn decode_final(bytes: Bytes) -> Result<(u64, Digest, Bytes), Malformed> {
    let mut from = Reader(bytes);
    let (height, digest) = (from.u64()?, from.array()?);
    let length = from.count(CERTIFICATE_BYTES_MAX, "the certificate is too long")?;
    let certificate = from.bytes(length)?;
    from.end()?;
    Ok((height, digest, certificate))
}

/// What the application is given: a change of members means nothing to it, but has its place.
pub(crate) fn of_application(body: Bytes) -> Bytes {
    if Approval::is_one(&body) { Bytes::new() } else { body }
}

impl Core {
    /// 2f+1 members finalized `digest` in `view`: consensus says so, or the certificate was checked.
    pub fn finalized(
        &mut self,
        view: u64,
        digest: Digest,
        certificate: Bytes,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        if let Some(since_ms) = self.ended_ms.take() {
            self.counters.epoch_pause_ms += now_ms.saturating_sub(since_ms);
        }
        let newer = self.target.as_ref().is_none_or(|target| view > target.view);
        if !newer || self.parents.contains_key(&digest) {
            return;
        }
        self.target = Some(Target { view, digest, certificate });
        self.try_commit(now_ms, out);
    }

    pub(super) fn try_commit(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let Some(target) = &self.target else { return };
        let (digest, certificate) = (target.digest, target.certificate.clone());
        let mut path = Vec::new();
        let mut at = digest;
        while at != self.tip.digest {
            let Some(known) = self.blocks.get(&at) else {
                self.need_block(at, None, now_ms);
                return;
            };
            path.push(at);
            at = known.block.parent;
        }
        let mut missing = Vec::new();
        for digest in &path {
            let Some(known) = self.blocks.get(digest) else { continue };
            let refs = known.block.refs.iter().map(|named| (named.digest, known.from));
            missing.extend(refs.filter(|(digest, _)| !self.batches.contains_key(digest)));
        }
        if !missing.is_empty() {
            missing.into_iter().for_each(|(digest, from)| self.need_batch(digest, from, now_ms));
            return;
        }
        self.target = None;
        let mut ended = None;
        for digest in path.into_iter().rev() {
            let Some(number) = self.keep_block(&digest, out) else { continue };
            let Some(known) = self.blocks.remove(&digest) else { continue };
            ended = known.block.next.is_some().then(|| known.block.clone());
            self.commit(digest, known, number, now_ms, out);
        }
        let record = encode_final(self.tip.height, &digest, &certificate);
        // The last of an epoch: those who come later need it from somebody.
        let number = self.store_now(Tag::Final, record, ended.is_some(), out);
        if let Some(Output::Chained(chained)) =
            out.iter_mut().rev().find(|output| matches!(output, Output::Chained(_)))
        {
            chained.certificate = Some(number);
        }
        if let Some(block) = ended {
            self.end_epoch(Link { block, certificate }, now_ms, out);
        }
        self.after_commit(now_ms, out);
    }

    fn commit(&mut self, digest: Digest, known: Known, number: u64, now_ms: u64, out: &mut Vec<Output>) {
        let block = known.block;
        let mut batches = Vec::with_capacity(block.refs.len());
        for (index, named) in (block.first_index..).zip(&block.refs) {
            let Some(held) = self.let_go(&named.digest) else { continue };
            batches.push(held.number);
            self.tables.ordered(&held.batch);
            let position = Position { term: TERM, index };
            if index > self.applied {
                self.applied = index;
                self.counters.committed += 1;
                let batch = of_application(held.batch.body);
                out.push(Output::Committed { entry: Entry { position, batch } });
            }
            if named.name.origin == self.me
                && let Some(own) = self.own.remove(&(named.name.life, named.name.sequence))
            {
                out.push(Output::Done { ticket: own.ticket, result: Ok(position) });
            }
        }
        self.counters.blocks += 1;
        let next = Roster::behind(&self.group, &block);
        self.tip = Tip { height: block.height, digest, index: block.last_index() };
        self.remember(digest, Some(block.parent));
        out.push(Output::Chained(Chained {
            height: block.height,
            digest,
            first_index: block.first_index,
            block: number,
            batches,
            certificate: None,
            next,
        }));
        self.catching.moved(now_ms);
    }

    /// Drops what can never be ordered now, and gives own proposals that were passed by another name.
    fn after_commit(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let height = self.tip.height;
        self.blocks.retain(|_, known| known.block.height > height);
        let none = Overlay::default();
        let mut gone = Vec::new();
        for of_origin in self.pool.values() {
            for (_, _, digest) in of_origin.keys() {
                let Some(held) = self.batches.get(digest) else { continue };
                if is_stale(&self.tables, &none, held) {
                    gone.push(*digest);
                } else if self.settings.admission.is_none() {
                    // In the order of names: all behind are fresh too.
                    break;
                }
            }
        }
        for digest in gone {
            let Some(held) = self.let_go(&digest) else { continue };
            let name = held.batch.name;
            let own =
                if name.origin == self.me { self.own.remove(&(name.life, name.sequence)) } else { None };
            let Some(own) = own else { continue };
            // Under another name it may still be fresh: a leader had put a later one first.
            let mut overlay = Overlay::default();
            let renamed = Name { life: u64::MAX, ..name };
            if self.tables.judge(&mut overlay, &renamed, &held.batch.body) == Judgement::Stale {
                self.counters.failed += 1;
                out.push(Output::Done { ticket: own.ticket, result: Err(Error::Stale) });
            } else {
                self.counters.renamed += 1;
                self.name_and_tell(own.ticket, held.batch.body, now_ms, out);
            }
        }
        self.retry(now_ms, out);
    }
}

fn is_stale(tables: &Tables, none: &Overlay, held: &super::Held) -> bool {
    tables.judge(&mut none.clone(), &held.batch.name, &held.batch.body) == Judgement::Stale
}
