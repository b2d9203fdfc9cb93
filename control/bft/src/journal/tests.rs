//! The journal alone: what it gives back after kills and power cuts, and whose states it takes.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use weir_base::world::{Disk, Rng, SimDisk};
use weir_order::log::LogSettings;
use weir_order::{Entry, Position, Sink};

use super::{OpenedJournal, Write, open};
use crate::consensus::Identity;
use crate::core::{Chained, Tag, encode_final};
use crate::group::Members;
use crate::members::{Change, Member, Roster};
use crate::wire::{Batch, Block, Digest, Message, Name, Ref};

const GROUP: &[u8] = b"group";

fn settings() -> LogSettings {
    LogSettings { segment_bytes: 64 << 10, batch_bytes_max: 16 << 10, log_id_if_new: 9 }
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Bytes>>>);

impl Sink for Seen {
    fn committed(&mut self, entry: &Entry) {
        let mut seen = self.0.lock().unwrap();
        seen.push(entry.batch.clone());
        assert_eq!(entry.position.index, seen.len() as u64);
    }

    fn install(&mut self, at: Position, state: &mut dyn Read) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        state.read_to_end(&mut bytes)?;
        let list: Vec<Bytes> = bytes.chunks(8).map(Bytes::copy_from_slice).collect();
        assert_eq!(list.len() as u64, at.index);
        *self.0.lock().unwrap() = list;
        Ok(())
    }
}

fn opened(disk: &SimDisk) -> (OpenedJournal, Seen) {
    let (disk, mut seen): (Arc<dyn Disk>, Seen) = (Arc::new(disk.clone()), Seen::default());
    let opened = open(&disk, settings(), GROUP, &founding(), None, &mut seen).unwrap();
    (opened, seen)
}

fn founding() -> Roster {
    let key = |id: u32| Identity { id, secret: [id as u8; 32] }.public().unwrap();
    Roster::founding("group", &Members((1..=4).map(|id| (id, key(id))).collect()))
}

fn body(index: u64) -> Bytes {
    Bytes::copy_from_slice(&index.to_le_bytes())
}

/// A group's blocks, one batch of 8 bytes or two in each.
struct Chain {
    epoch: u64,
    parent: Digest,
    height: u64,
    index: u64,
    /// The next block ends the epoch.
    ends: Option<BTreeMap<u32, Member>>,
}

impl Chain {
    fn next(&mut self) -> (Vec<Batch>, Block) {
        let count = 1 + self.height % 2;
        let batches: Vec<Batch> = (1..=count)
            .map(|nth| {
                let index = self.index + nth;
                let name = Name { origin: 1, life: 1, sequence: index };
                Batch { name, signature: [0; 64], body: body(index) }
            })
            .collect();
        let named = |batch: &Batch| Ref { digest: batch.digest(GROUP), name: batch.name, bytes: 8 };
        let refs = batches.iter().map(named).collect();
        let block = Block {
            epoch: self.epoch,
            parent: self.parent,
            height: self.height + 1,
            first_index: self.index + 1,
            refs,
            next: self.ends.take(),
        };
        (self.parent, self.height, self.index) = (block.digest(), block.height, block.last_index());
        if let Some(next) = Roster::behind(GROUP, &block) {
            (self.epoch, self.parent) = (next.epoch, next.genesis);
        }
        (batches, block)
    }
}

/// Writes `blocks` more blocks, each synced. Gives false when the disk is gone.
fn write(opened: &mut OpenedJournal, chain: &mut Chain, blocks: u64) -> bool {
    for _ in 0..blocks {
        let (batches, block) = chain.next();
        let mut writes = Vec::new();
        let mut append = |tag, body| {
            opened.last_number += 1;
            writes.push(Write::Append { number: opened.last_number, tag, body, sync: true });
            opened.last_number
        };
        let numbers: Vec<u64> = batches.iter().map(|batch| append(Tag::Batch, batch.encode())).collect();
        let number = append(Tag::Block, block.encode());
        let certificate = encode_final(block.height, &block.digest(), &Bytes::from_static(b"2f+1"));
        let certificate = append(Tag::Final, certificate);
        let written = opened.writer.drain(&mut writes);
        if written.failure.is_some() {
            return false;
        }
        opened.journal.placed(&written.places);
        opened.journal.chained(Chained {
            height: block.height,
            digest: block.digest(),
            first_index: block.first_index,
            block: number,
            batches: numbers,
            certificate: Some(certificate),
            next: Roster::behind(GROUP, &block),
        });
    }
    true
}

fn genesis() -> Chain {
    Chain { epoch: 1, parent: founding().genesis, height: 0, index: 0, ends: None }
}

fn state(index: u64) -> Vec<u8> {
    (1..=index).flat_map(u64::to_le_bytes).collect()
}

#[test]
fn what_was_committed_is_given_again() {
    let disk = SimDisk::new(1);
    let (mut journal, seen) = opened(&disk);
    assert!(seen.0.lock().unwrap().is_empty());
    let mut chain = genesis();
    assert!(write(&mut journal, &mut chain, 20));
    drop(journal);
    let (journal, seen) = opened(&disk.restart());
    let wanted: Vec<Bytes> = (1..=chain.index).map(body).collect();
    assert_eq!(*seen.0.lock().unwrap(), wanted);
    assert_eq!((journal.base.tip.height, journal.base.tip.digest), (20, chain.parent));
    let range = journal.journal.range(12).unwrap();
    let Some(Message::Range { blocks, batches, .. }) = range else { panic!("{range:?}") };
    assert_eq!(blocks.first().map(|block| block.height), Some(13));
    assert_eq!(blocks.iter().map(|block| block.refs.len()).sum::<usize>(), batches.len());
}

#[test]
fn a_power_cut_leaves_a_prefix_with_all_that_was_synced() {
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        let (mut journal, _) = opened(&disk);
        let mut chain = genesis();
        assert!(write(&mut journal, &mut chain, 5));
        let synced = chain.index;
        disk.cut_power_after(Rng::new(seed).below(25));
        while write(&mut journal, &mut chain, 1) {}
        drop(journal);
        let (journal, seen) = opened(&disk.restart());
        let seen = seen.0.lock().unwrap();
        assert!(
            seen.len() as u64 >= synced && seen.len() as u64 <= chain.index,
            "seed {seed}: {}",
            seen.len()
        );
        assert!(seen.iter().zip(1..).all(|(found, index)| *found == body(index)), "seed {seed}");
        assert_eq!(journal.base.applied, seen.len() as u64);
    }
}

#[test]
fn states_let_blocks_be_forgotten_and_are_begun_with() {
    let disk = SimDisk::new(1);
    let (mut journal, _) = opened(&disk);
    let mut chain = genesis();
    // One in the midst of a block.
    for index in [31, 62, 93] {
        assert!(write(&mut journal, &mut chain, 22));
        let at = Position { term: 1, index };
        journal.journal.save(at, &mut &state(index)[..]).unwrap();
    }
    let below = journal.journal.forget().unwrap();
    journal.writer.drain(&mut vec![Write::Forget { below }]);
    journal.journal.forgotten(below);
    assert_eq!(journal.journal.range(3).unwrap(), None, "the first blocks are forgotten");
    assert!(journal.journal.range(60).unwrap().is_some());
    drop(journal);
    let (journal, seen) = opened(&disk.restart());
    assert_eq!(*seen.0.lock().unwrap(), (1..=chain.index).map(body).collect::<Vec<_>>());
    assert_eq!(journal.base.tip.digest, chain.parent);
    let last = journal.base.tables.last_of(&Default::default(), 1);
    assert_eq!(last, (1, chain.index));
}

#[test]
fn a_state_is_taken_only_when_it_is_the_one_that_was_offered() {
    let disk = SimDisk::new(1);
    let (mut helper, _) = opened(&disk);
    let mut chain = genesis();
    assert!(write(&mut helper, &mut chain, 10));
    helper.journal.save(Position { term: 1, index: 10 }, &mut &state(10)[..]).unwrap();
    let Message::Offers(offers) = helper.journal.offers() else { panic!("no offers") };
    let offer = offers[0];
    let Some(Message::Chunk { bytes, .. }) = helper.journal.chunk(10, 0) else { panic!("no piece") };
    assert_eq!(bytes.len() as u64, offer.file_bytes);
    let (behind, _) = opened(&SimDisk::new(2));
    let mut wrong = bytes.to_vec();
    wrong[60] ^= 1;
    behind.journal.write_chunk(0, &wrong).unwrap();
    assert!(behind.journal.adopt(&offer).is_err(), "a changed byte");
    behind.journal.write_chunk(0, &bytes).unwrap();
    let other = crate::wire::Offer { sha256: [1; 32], ..offer };
    assert!(behind.journal.adopt(&other).is_err(), "another state than f+1 members say");
    behind.journal.write_chunk(0, &bytes).unwrap();
    let (base, mut rest) = behind.journal.adopt(&offer).unwrap();
    let mut given = Vec::new();
    rest.read_to_end(&mut given).unwrap();
    assert_eq!((given, base.applied), (state(10), 10));
    assert!(base.tip.index <= 10);
}

#[test]
fn a_journal_goes_on_through_epochs_and_gives_what_leads_there() {
    let disk = SimDisk::new(3);
    let (mut journal, _) = opened(&disk);
    let mut chain = genesis();
    assert!(write(&mut journal, &mut chain, 5));
    let key = Identity { id: 5, secret: [5; 32] }.public().unwrap();
    let five = Change::Add { id: 5, member: Member { key, address: "192.0.2.5:1".into() } };
    chain.ends = Some(founding().after(&five).unwrap());
    assert!(write(&mut journal, &mut chain, 1));
    assert!(write(&mut journal, &mut chain, 4));
    // The crash came before the link was kept.
    drop(journal);
    let (journal, seen) = opened(&disk.restart());
    assert_eq!(seen.0.lock().unwrap().len() as u64, chain.index);
    assert_eq!((journal.base.tip.height, journal.base.tip.digest), (10, chain.parent));
    let roster = journal.base.tables.roster();
    assert_eq!((roster.epoch, roster.ids()), (2, vec![1, 2, 3, 4, 5]));
    assert_eq!(journal.frontier, *roster);
    let Some(Message::Links(links)) = journal.journal.links(1) else { panic!("no links") };
    assert_eq!((links.len(), links[0].block.height), (1, 6));
    assert_eq!(journal.journal.links(2), None);
    // A range ends with its epoch: one certificate proves it.
    let Some(Message::Range { blocks, .. }) = journal.journal.range(2).unwrap() else { panic!("no range") };
    assert_eq!(blocks.last().map(|block| block.height), Some(6));
    let Some(Message::Range { blocks, .. }) = journal.journal.range(6).unwrap() else { panic!("no range") };
    assert_eq!(blocks.first().map(|block| (block.height, block.epoch)), Some((7, 2)));
    // A state at the end of the epoch stands on the next one's genesis.
    let index = blocks[0].first_index - 1;
    journal.journal.save(Position { term: 1, index }, &mut &state(index)[..]).unwrap();
    drop(journal);
    let (journal, _) = opened(&disk.restart());
    assert_eq!((journal.base.tip.height, journal.base.tables.roster().epoch), (10, 2));
}
