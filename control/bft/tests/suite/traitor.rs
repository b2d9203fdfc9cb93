//! A member that betrays the group: it has its key and its links, and does one kind of wrong as often as it can.
//!
//! It follows the votes of the others, so it knows the view, the parent and the blocks, and sends its wrongs in every view: also in
//! those in which it leads, where they hurt.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use commonware_codec::varint::UInt;
use commonware_codec::{Copying, DecodeExt, Encode};
use commonware_consensus::simplex::scheme::ed25519::Scheme;
use commonware_consensus::simplex::types::{Finalize, Notarize, Nullify, Proposal, Vote};
use commonware_consensus::types::{Epoch, Round, View};
use commonware_cryptography::ed25519::PublicKey;
use commonware_cryptography::sha256::Digest as Payload;
use commonware_p2p::{Receiver, Recipients};
use commonware_runtime::{Clock, IoBuf};
use weir_base::world::Rng;
use weir_bft::consensus::KeyRing;
use weir_bft::core::Keys;
use weir_bft::members::{Approval, Change, Link, Member, Roster};
use weir_bft::wire::{Batch, Block, Digest, Message, Name, Offer, Ref};
use weir_bft::{Identity, Members};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Silent,
    Equivocates,
    Forges,
    Repeats,
    Floods,
    LiesInTransfer,
    /// Votes of old epochs once more in the present one.
    ReplaysEpochs,
    /// Links that lead to members of its own choice.
    LiesInLinks,
    /// Its word for changes that nobody wants, and blocks that say that they were decided.
    Usurps,
}

/// Who betrays whom.
pub struct Betrayal {
    pub group: String,
    pub me: Identity,
    pub founders: Members,
    pub kind: Kind,
    pub seed: u64,
}

struct Traitor {
    group: String,
    identity: Identity,
    me: u32,
    kind: Kind,
    keys: KeyRing,
    /// The epoch that it is in, and the members of all that it has heard of.
    epoch: u64,
    rosters: BTreeMap<u64, Roster>,
    /// Votes of epochs that are over, with their epochs.
    heard: Vec<(u64, Bytes)>,
    others: Vec<PublicKey>,
    rng: Rng,
    blocks: BTreeMap<Digest, Block>,
    batches: Vec<(Digest, Name, u32)>,
    sequence: u64,
    view: u64,
}

/// Betrays as long as the network is there.
pub async fn betray<E, S, R>(context: E, betrayal: Betrayal, channels: [(S, R); 5])
where
    E: Clock,
    S: commonware_p2p::Sender<PublicKey = PublicKey>,
    R: Receiver<PublicKey = PublicKey>,
{
    let Betrayal { group, me: identity, founders, kind, seed } = betrayal;
    if kind == Kind::Silent {
        return;
    }
    let roster = Roster::founding(&group, &founders);
    let keys = KeyRing::new(&group, &identity, &roster, [2; 32]).unwrap();
    let me = identity.id;
    let mut traitor = Traitor {
        group,
        identity,
        me,
        kind,
        epoch: roster.epoch,
        others: Vec::new(),
        keys,
        rosters: BTreeMap::from([(roster.epoch, roster)]),
        heard: Vec::new(),
        rng: Rng::new(seed),
        blocks: BTreeMap::new(),
        batches: Vec::new(),
        sequence: 0,
        view: 0,
    };
    traitor.know_others();
    traitor.run(context, channels).await;
}

impl Traitor {
    async fn run<E, S, R>(mut self, context: E, channels: [(S, R); 5])
    where
        E: Clock,
        S: commonware_p2p::Sender<PublicKey = PublicKey>,
        R: Receiver<PublicKey = PublicKey>,
    {
        let [
            (mut votes, mut voted),
            (_certificates, mut certified),
            (_fetches, mut fetched),
            (mut own, mut heard),
            (_words, mut worded),
        ] = channels;
        loop {
            tokio::select! {
                biased;
                // Blocks before votes: what is built behind a block needs its place.
                message = heard.recv() => match message {
                    Ok((from, bytes)) => self.heard(&from, bytes.into(), &mut own),
                    Err(_) => return,
                },
                vote = voted.recv() => match vote {
                    Ok((_, bytes)) => self.vote(bytes.into(), &mut votes, &mut own),
                    Err(_) => return,
                },
                certificate = certified.recv() => if certificate.is_err() { return },
                fetch = fetched.recv() => if fetch.is_err() { return },
                word = worded.recv() => if word.is_err() { return },
                () = context.sleep(Duration::from_millis(20)) => self.idle(&mut own),
            }
        }
    }

    fn say<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &self,
        to: Recipients<PublicKey>,
        own: &mut S,
        message: &Message,
    ) {
        let _sent = own.send(to, IoBuf::from(message.encode()), false);
    }

    fn cast<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &self,
        to: &[PublicKey],
        votes: &mut S,
        vote: Vote<Scheme, Payload>,
    ) {
        self.cast_bytes(to, votes, &vote.encode());
    }

    /// On the lane of the epoch.
    fn cast_bytes<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &self,
        to: &[PublicKey],
        votes: &mut S,
        vote: &[u8],
    ) {
        let bytes = [&UInt(self.epoch).encode()[..], vote].concat();
        let _sent = votes.send(Recipients::Some(to.to_vec()), IoBuf::from(bytes), true);
    }

    /// Follows the others into an epoch whose members it has heard of.
    fn enter(&mut self, epoch: u64) {
        let Some(roster) = self.rosters.get(&epoch).filter(|_| epoch > self.epoch) else { return };
        let Ok(keys) = KeyRing::new(&self.group, &self.identity, roster, [2; 32]) else { return };
        (self.epoch, self.keys, self.view) = (epoch, keys, 0);
        self.know_others();
    }

    fn know_others(&mut self) {
        let ids = self.keys.ids().into_iter().filter(|id| *id != self.me);
        self.others = ids.filter_map(|id| self.keys.key_of(id).cloned()).collect();
    }

    fn vote<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &mut self,
        bytes: Bytes,
        votes: &mut S,
        own: &mut S,
    ) {
        let Ok((epoch, bytes)) = commonware_p2p::utils::mux::parse(IoBuf::from(bytes)) else { return };
        let bytes: Bytes = bytes.into();
        self.enter(epoch);
        if epoch != self.epoch || !self.rosters[&epoch].members.contains_key(&self.me) {
            return;
        }
        if self.kind == Kind::ReplaysEpochs && self.heard.len() < 2000 {
            self.heard.push((epoch, bytes.clone()));
        }
        let Ok(Vote::Notarize(notarize)) = Vote::<Scheme, Payload>::decode(Copying(&bytes)) else { return };
        let seen = notarize.proposal;
        let view = seen.round.view().get();
        if view <= self.view {
            return;
        }
        self.view = view;
        let next = Round::new(Epoch::new(self.epoch), View::new(view + 1));
        let sides: (Vec<PublicKey>, Vec<PublicKey>) = (self.others[..1].to_vec(), self.others[1..].to_vec());
        match self.kind {
            Kind::Equivocates => {
                let wrong = Payload(self.random());
                let other = Proposal::new(seen.round, seen.parent, wrong);
                self.cast(
                    &sides.0,
                    votes,
                    Vote::Notarize(Notarize::sign(self.keys.scheme(), seen.clone()).unwrap()),
                );
                self.cast(
                    &sides.1,
                    votes,
                    Vote::Notarize(Notarize::sign(self.keys.scheme(), other.clone()).unwrap()),
                );
                self.cast(
                    &sides.0,
                    votes,
                    Vote::Finalize(Finalize::sign(self.keys.scheme(), other).unwrap()),
                );
                self.cast(
                    &sides.1,
                    votes,
                    Vote::Finalize(Finalize::sign(self.keys.scheme(), seen.clone()).unwrap()),
                );
                let nullify = Nullify::sign::<Payload>(self.keys.scheme(), seen.round).unwrap();
                self.cast(&sides.1, votes, Vote::Nullify(nullify));
                // Two blocks for the next view.
                for to in [&sides.0, &sides.1] {
                    let batch = self.batch(self.me, true);
                    self.say(Recipients::All, own, &Message::Batch(batch.clone()));
                    let block = self.block(seen.payload.0, vec![self.named(&batch)]);
                    self.propose(to, next, seen.round.view(), &block, votes, own);
                }
            }
            Kind::Repeats => {
                let count = 1 + self.rng.below(4) as usize;
                let old: Vec<Ref> = (0..count)
                    .filter_map(|_| {
                        let at = self.rng.below(self.batches.len() as u64) as usize;
                        self.batches.get(at).map(|(digest, name, bytes)| Ref {
                            digest: *digest,
                            name: *name,
                            bytes: *bytes,
                        })
                    })
                    .collect();
                if !old.is_empty() {
                    let block = self.block(seen.payload.0, old);
                    self.propose(&self.others.clone(), next, seen.round.view(), &block, votes, own);
                } else if let Some(old) = self.blocks.keys().next().copied() {
                    let proposal = Proposal::new(next, seen.round.view(), Payload(old));
                    let vote = Vote::Notarize(Notarize::sign(self.keys.scheme(), proposal).unwrap());
                    self.cast(&self.others.clone(), votes, vote);
                }
            }
            Kind::Forges => {
                let origin = 1 + self.rng.below(3) as u32;
                let forged = self.batch(origin, false);
                self.say(Recipients::All, own, &Message::Batch(forged.clone()));
                let mut block = self.block(seen.payload.0, vec![self.named(&forged)]);
                self.propose(&sides.0, next, seen.round.view(), &block, votes, own);
                let good = self.batch(self.me, true);
                self.say(Recipients::All, own, &Message::Batch(good.clone()));
                block = self.block(seen.payload.0, vec![self.named(&good)]);
                block.first_index += 1 + self.rng.below(3);
                self.propose(&sides.1, next, seen.round.view(), &block, votes, own);
            }
            Kind::ReplaysEpochs => {
                let own = Vote::Notarize(Notarize::sign(self.keys.scheme(), seen).unwrap());
                self.heard.push((epoch, own.encode()));
                let old: Vec<Bytes> =
                    self.heard.iter().filter(|(of, _)| *of < epoch).map(|(_, vote)| vote.clone()).collect();
                for _ in 0..old.len().min(8) {
                    let nth = self.rng.below(old.len() as u64) as usize;
                    self.cast_bytes(&self.others.clone(), votes, &old[nth]);
                }
            }
            Kind::Usurps => {
                let change = self.usurpation();
                let word = self.word(change.clone());
                self.say(Recipients::All, own, &Message::Batch(word.clone()));
                let mut block = self.block(seen.payload.0, vec![self.named(&word)]);
                block.next = self.rosters[&epoch].after(&change).ok();
                self.propose(&self.others.clone(), next, seen.round.view(), &block, votes, own);
            }
            Kind::Silent | Kind::Floods | Kind::LiesInTransfer | Kind::LiesInLinks => {}
        }
    }

    fn propose<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &self,
        to: &[PublicKey],
        round: Round,
        parent: View,
        block: &Block,
        votes: &mut S,
        own: &mut S,
    ) {
        self.say(Recipients::Some(to.to_vec()), own, &Message::Block(block.clone()));
        let proposal = Proposal::new(round, parent, Payload(block.digest()));
        self.cast(to, votes, Vote::Notarize(Notarize::sign(self.keys.scheme(), proposal).unwrap()));
    }

    fn heard<S: commonware_p2p::Sender<PublicKey = PublicKey>>(
        &mut self,
        from: &PublicKey,
        bytes: Bytes,
        own: &mut S,
    ) {
        let Ok(message) = Message::decode(bytes) else { return };
        let to = Recipients::One(from.clone());
        match message {
            Message::Block(block) => {
                if let Some(roster) = Roster::behind(self.group.as_bytes(), &block) {
                    self.rosters.entry(roster.epoch).or_insert(roster);
                }
                self.blocks.insert(block.digest(), block);
            }
            Message::WantLinks { epoch } if self.kind == Kind::LiesInLinks => {
                let roster = self.rosters.get(&epoch).or(self.rosters.get(&self.epoch)).cloned().unwrap();
                let mut block = self.block(self.random_digest(), vec![]);
                (block.epoch, block.next) = (epoch, Some(roster.members));
                let batch = self.batch(self.me, true);
                block.refs = vec![self.named(&batch)];
                let certificate = Bytes::from_static(&[7; 90]);
                self.say(to, own, &Message::Links(vec![Link { block, certificate }]));
            }
            Message::Batch(batch) => {
                let digest = batch.digest(self.group.as_bytes());
                self.batches.push((digest, batch.name, batch.body.len() as u32));
            }
            Message::WantRange { above } if self.kind == Kind::LiesInTransfer => {
                let block = Block {
                    epoch: self.epoch,
                    next: None,
                    parent: self.random(),
                    height: above + 1,
                    first_index: above + 1,
                    refs: Vec::new(),
                };
                let batch = self.batch(self.me, true);
                let block = Block { refs: vec![self.named(&batch)], ..block };
                let lie = match self.rng.below(3) {
                    0 => Message::Range {
                        blocks: vec![block],
                        batches: vec![batch],
                        certificate: Bytes::from_static(&[7; 90]),
                    },
                    1 => Message::Offers(vec![self.offer()]),
                    _ => return,
                };
                self.say(to, own, &lie);
            }
            Message::WantOffers if self.kind == Kind::LiesInTransfer => {
                let offers = Message::Offers(vec![self.offer()]);
                self.say(to, own, &offers);
            }
            // Says what the others say, to be asked for it, and then sends something else.
            Message::Offers(offers) if self.kind == Kind::LiesInTransfer => {
                self.say(Recipients::All, own, &Message::Offers(offers));
            }
            Message::WantChunk { index, offset } if self.kind == Kind::LiesInTransfer => {
                let bytes = Bytes::from(vec![9; self.rng.below(3000) as usize]);
                self.say(to, own, &Message::Chunk { index, offset, bytes });
            }
            _ => {}
        }
    }

    fn idle<S: commonware_p2p::Sender<PublicKey = PublicKey>>(&mut self, own: &mut S) {
        match self.kind {
            Kind::LiesInTransfer => {
                self.say(Recipients::All, own, &Message::Tip { height: u64::MAX, epoch: 1, serves: true });
                self.say(Recipients::All, own, &Message::WantOffers);
            }
            Kind::LiesInLinks => {
                self.say(Recipients::All, own, &Message::Tip { height: 1, epoch: u64::MAX, serves: true });
            }
            Kind::Floods => {
                for _ in 0..20 {
                    let batch = self.batch(self.me, true);
                    self.say(Recipients::All, own, &Message::Batch(batch));
                    let parent = self.random();
                    let digest = self.random();
                    let named = Ref { digest, name: Name { origin: 1, life: 1, sequence: 1 }, bytes: 1 };
                    let (epoch, height, refs) = (self.epoch, u64::MAX - 1, vec![named]);
                    let block = Block { epoch, parent, height, first_index: 1, refs, next: None };
                    self.say(Recipients::All, own, &Message::Block(block));
                    self.say(Recipients::All, own, &Message::WantBatches(vec![digest; 256]));
                    self.say(Recipients::All, own, &Message::WantRange { above: 0 });
                    let junk = IoBuf::from(self.random().to_vec());
                    let _sent = own.send(Recipients::All, junk, false);
                }
            }
            _ => {}
        }
    }

    fn random(&mut self) -> Digest {
        let mut out = [0; 32];
        self.rng.fill(&mut out);
        out
    }

    fn offer(&mut self) -> Offer {
        Offer { index: 1_000_000, state_bytes: 10, sha256: self.random(), file_bytes: 1000 }
    }

    /// A batch of its own, or one in another's name that it cannot sign.
    fn batch(&mut self, origin: u32, right: bool) -> Batch {
        self.sequence += 1;
        let name = Name { origin, life: 1 + u64::from(!right) * 1000, sequence: self.sequence };
        // No other traitor's and no client's.
        let value = (1 << 60) + (u64::from(self.me) << 40) + self.sequence;
        let body = Bytes::from([&value.to_le_bytes()[..], &[0; 30]].concat());
        let digest = Batch::digest_of(self.group.as_bytes(), &name, &body);
        Batch { name, signature: self.keys.sign(&digest), body }
    }

    /// A change that nobody wants: one member less, or one of its own in its place.
    fn usurpation(&mut self) -> Change {
        let key = Identity { id: 77, secret: [77; 32] }.public().unwrap();
        let member = Member { key, address: "192.0.2.77:1".to_owned() };
        match self.rng.below(2) {
            0 => Change::Add { id: 77, member },
            _ => Change::Replace { out: 1, id: 77, member },
        }
    }

    fn word(&mut self, change: Change) -> Batch {
        self.sequence += 1;
        let name = Name { origin: self.me, life: 1, sequence: self.sequence };
        let body = Approval { epoch: self.epoch, change }.encode();
        let digest = Batch::digest_of(self.group.as_bytes(), &name, &body);
        Batch { name, signature: self.keys.sign(&digest), body }
    }

    fn random_digest(&self) -> Digest {
        [self.sequence as u8; 32]
    }

    fn named(&self, batch: &Batch) -> Ref {
        Ref { digest: batch.digest(self.group.as_bytes()), name: batch.name, bytes: batch.body.len() as u32 }
    }

    /// A block behind `parent`, with the right place when that is known.
    fn block(&self, parent: Digest, refs: Vec<Ref>) -> Block {
        let (height, index) =
            self.blocks.get(&parent).map_or((0, 0), |block| (block.height, block.last_index()));
        Block { epoch: self.epoch, parent, height: height + 1, first_index: index + 1, refs, next: None }
    }
}
