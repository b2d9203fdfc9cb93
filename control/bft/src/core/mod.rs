//! The pure core of a replica around consensus: which batches wait, which blocks are right, what is committed, who is asked for
//! what is missing. It knows no network, disk, clock or task: it is told what happens and says what to do.
//!
//! Invariants
//! - A block is voted for only when it follows its parent, names batches that this replica has, and all of them are fresh there
//!   ([`crate::rules`]); it is certified, and so can be finalized, only when block and batches are durable here. So what 2f+1 members
//!   finalize is on the disks of f+1 honest ones before anybody takes it as committed.
//! - Blocks are committed in the order of their parents, each once, and only below a certificate of 2f+1 members.
//! - What others send is bounded: per member so many batches, bytes and blocks that nobody asked for.
//! - What a member sends is believed only when it is signed by its origin (a batch), hashes to what was asked for (a block),
//!   ends in a certificate (a range), or f+1 members say the same (a state).

mod blocks;
mod catch_up;
mod commit;
mod epochs;
mod fetch;
mod messages;
mod output;

pub use catch_up::Seen;
pub(crate) use commit::of_application;
pub use commit::{decode_final, encode_final};
pub use output::{Chained, CoreCounters, Output, Tag, Tip, To};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use weir_order::{Error, Position};

use crate::members::Roster;
use crate::rules::{Overlay, Tables};
use crate::settings::Settings;
use crate::wire::{Batch, Block, Digest, Message, Name};

/// Committed blocks whose digests are remembered.
const RECENT_MAX: usize = 4096;
/// Questions of consensus that may wait for data.
const WAITING_MAX: usize = 256;

/// The term of every place in the order: indices go on through all epochs.
pub const TERM: u64 = 1;

/// Signs, and checks what others signed.
pub trait Keys: Send {
    /// This member's signature over a batch's digest.
    fn sign(&self, digest: &Digest) -> [u8; 64];
    /// Whether `origin` signed the digest.
    fn is_right(&self, origin: u32, digest: &Digest, signature: &[u8; 64]) -> bool;
    /// The view and the block that 2f+1 members finalized, when `certificate` shows so.
    fn certified(&mut self, certificate: &Bytes) -> Option<(u64, Digest)>;
    /// The keys of another epoch in the same hands; none when a key of its members is none.
    fn of_epoch(&self, roster: &Roster) -> Option<Box<dyn Keys>>;
}

struct Held {
    batch: Batch,
    number: u64,
    admissible: bool,
}

struct Known {
    block: Block,
    /// Its record, once it was asked about: what nobody asks about is not worth the disk.
    number: Option<u64>,
    from: u32,
    judged: bool,
}

struct Own {
    ticket: u64,
    digest: Digest,
    told_ms: u64,
}

struct Leading {
    ticket: u64,
    parent: Digest,
    until_ms: u64,
    rest_until_ms: u64,
}

impl Leading {
    /// When it says that there is nothing to order.
    fn nothing_ms(&self, rests: bool) -> u64 {
        if rests { self.rest_until_ms } else { self.until_ms }
    }
}

struct Verifying {
    ticket: u64,
    leader: u32,
    parent: Digest,
    payload: Digest,
}

struct Certifying {
    ticket: u64,
    payload: Digest,
}

/// The highest block that is known to be final and is not committed yet.
struct Target {
    view: u64,
    digest: Digest,
    certificate: Bytes,
}

/// What lies behind a block.
enum Ancestry {
    Known {
        overlay: Box<Overlay>,
        height: u64,
        index: u64,
    },
    Missing(Digest),
    /// It does not follow what is committed.
    Dead,
}

/// A replica's core.
pub struct Core {
    me: u32,
    members: Vec<u32>,
    group: Vec<u8>,
    settings: Settings,
    keys: Box<dyn Keys>,
    epoch: u64,
    life: u64,
    next_sequence: u64,
    tip: Tip,
    /// The last members that links from the founders lead to.
    frontier: Roster,
    frontier_keys: Box<dyn Keys>,
    /// Since when an epoch is over and nothing of the next was certified.
    ended_ms: Option<u64>,
    tables: Tables,
    /// The last batch that the application has: a state taken over may end within a block.
    applied: u64,
    recent: VecDeque<Digest>,
    /// The parents of the last committed blocks; none when it is not known.
    parents: BTreeMap<Digest, Option<Digest>>,
    batches: BTreeMap<Digest, Held>,
    pool: BTreeMap<u32, BTreeMap<(u64, u64, Digest), u32>>,
    blocks: BTreeMap<Digest, Known>,
    unasked: BTreeMap<u32, VecDeque<Digest>>,
    /// Own proposals whose fate is open, by life and sequence.
    own: BTreeMap<(u64, u64), Own>,
    leading: Option<Leading>,
    put_off: BTreeSet<u32>,
    rests: bool,
    verifying: VecDeque<Verifying>,
    certifying: VecDeque<Certifying>,
    target: Option<Target>,
    needs: fetch::Needs,
    /// When each member's account of answers began, and what was spent since.
    answered: BTreeMap<u32, (u64, usize)>,
    catching: catch_up::Catching,
    next_number: u64,
    stored: u64,
    counters: CoreCounters,
}

/// What a core begins with.
pub struct Beginning {
    /// This member.
    pub me: u32,
    /// Signs and checks; the keys of the members in `tables`.
    pub keys: Box<dyn Keys>,
    /// The last members that the links here lead to.
    pub frontier: Roster,
    /// Larger than in every earlier life of this member.
    pub life: u64,
    /// The last committed block.
    pub tip: Tip,
    /// The tables after it.
    pub tables: Tables,
    /// The last batch that the application has.
    pub applied: u64,
    /// The last committed blocks and their parents, oldest first; at least the tip.
    pub recent: Vec<(Digest, Option<Digest>)>,
    /// The number of the journal's last record.
    pub last_number: u64,
    /// Batches in the journal that are not committed.
    pub batches: Vec<(u64, Batch)>,
    /// Blocks in the journal that are not committed.
    pub blocks: Vec<(u64, Block)>,
}

impl Core {
    /// A core that goes on from what the journal has.
    ///
    /// # Panics
    /// When the frontier has a key that is none: it was checked when it was taken.
    #[allow(clippy::expect_used, reason = "links are taken only when their members have keys")]
    pub fn new(settings: Settings, beginning: Beginning) -> Core {
        let roster = beginning.tables.roster();
        let frontier_keys = beginning.keys.of_epoch(&beginning.frontier).expect("keys of known members");
        let mut core = Core {
            me: beginning.me,
            members: roster.ids(),
            group: settings.group.clone().into_bytes(),
            settings,
            epoch: roster.epoch,
            keys: beginning.keys,
            frontier: beginning.frontier,
            frontier_keys,
            ended_ms: None,
            life: beginning.life,
            next_sequence: 1,
            tip: beginning.tip,
            tables: beginning.tables,
            applied: beginning.applied,
            recent: VecDeque::new(),
            parents: BTreeMap::new(),
            batches: BTreeMap::new(),
            pool: BTreeMap::new(),
            blocks: BTreeMap::new(),
            unasked: BTreeMap::new(),
            own: BTreeMap::new(),
            leading: None,
            put_off: BTreeSet::new(),
            rests: false,
            verifying: VecDeque::new(),
            certifying: VecDeque::new(),
            target: None,
            needs: fetch::Needs::default(),
            answered: BTreeMap::new(),
            catching: catch_up::Catching::default(),
            next_number: beginning.last_number + 1,
            stored: beginning.last_number,
            counters: CoreCounters::default(),
        };
        beginning.recent.into_iter().for_each(|(digest, parent)| core.remember(digest, parent));
        for (number, batch) in beginning.batches {
            if !core.members.contains(&batch.name.origin) {
                continue;
            }
            let digest = batch.digest(&core.group);
            core.hold(digest, batch, number);
        }
        for (number, block) in
            beginning.blocks.into_iter().filter(|(_, block)| block.height > core.tip.height)
        {
            if block.epoch != core.epoch {
                continue;
            }
            let known = Known { number: Some(number), from: core.me, judged: false, block };
            core.blocks.insert(known.block.digest(), known);
        }
        core
    }

    /// The last committed block.
    pub fn tip(&self) -> Tip {
        self.tip
    }

    /// The last batch that the application has.
    pub fn applied(&self) -> Position {
        Position { term: if self.applied == 0 { 0 } else { TERM }, index: self.applied }
    }

    /// What was counted.
    pub fn counters(&self) -> CoreCounters {
        self.counters
    }

    /// The lowest number of a record that is still needed and is not of a committed block.
    pub fn lowest_number(&self) -> u64 {
        let batches = self.batches.values().map(|held| held.number);
        batches.chain(self.blocks.values().filter_map(|known| known.number)).min().unwrap_or(self.next_number)
    }

    fn remember(&mut self, digest: Digest, parent: Option<Digest>) {
        if self.parents.insert(digest, parent).is_none() {
            self.recent.push_back(digest);
        }
        if self.recent.len() > RECENT_MAX
            && let Some(oldest) = self.recent.pop_front()
        {
            self.parents.remove(&oldest);
        }
    }

    /// All who may know more: the members here, and those of the last epoch that is known.
    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        let later = self.frontier.members.keys().filter(|id| !self.members.contains(id));
        self.members.iter().chain(later).copied().filter(|member| *member != self.me)
    }

    /// Members that may lie.
    pub fn faulty_max(&self) -> usize {
        (self.members.len() - 1) / 3
    }

    fn store(&mut self, tag: Tag, body: Bytes, out: &mut Vec<Output>) -> u64 {
        // A block is written down when it is voted for, behind its batches; so one sync serves them all.
        self.store_now(tag, body, tag == Tag::Block, out)
    }

    fn store_now(&mut self, tag: Tag, body: Bytes, sync: bool, out: &mut Vec<Output>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        out.push(Output::Store { number, tag, body, sync });
        number
    }

    fn blame(&mut self, who: u32, what: &'static str, out: &mut Vec<Output>) {
        self.counters.lies += 1;
        out.push(Output::Blame { who, what });
    }

    fn hold(&mut self, digest: Digest, batch: Batch, number: u64) {
        let name = batch.name;
        let admissible = self.settings.is_admissible(&batch.body);
        let key = (name.life, name.sequence, digest);
        self.pool.entry(name.origin).or_default().insert(key, batch.body.len() as u32);
        self.batches.insert(digest, Held { batch, number, admissible });
    }

    fn let_go(&mut self, digest: &Digest) -> Option<Held> {
        let held = self.batches.remove(digest)?;
        let name = &held.batch.name;
        if let Some(of_origin) = self.pool.get_mut(&name.origin) {
            of_origin.remove(&(name.life, name.sequence, *digest));
        }
        Some(held)
    }

    /// Somebody here wants `body` ordered.
    pub fn propose(&mut self, ticket: u64, body: Bytes, now_ms: u64, out: &mut Vec<Output>) {
        let (waiting, limit) = (self.own.len() as u64, self.settings.proposals_max as u64);
        let limit_bytes = self.settings.proposal_bytes_max();
        let refused = if !self.members.contains(&self.me) {
            Some(Error::NotLeader { leader: None })
        } else if waiting >= limit {
            self.counters.overloads += 1;
            Some(Error::Overloaded { what: "batches", waiting, limit })
        } else if body.len() as u64 > limit_bytes {
            Some(Error::TooLarge { what: "the batch", bytes: body.len() as u64, limit_bytes })
        } else if !self.settings.is_admissible(&body) {
            Some(Error::Batch { what: "the group's members would refuse it by their votes" })
        } else {
            None
        };
        match refused {
            Some(error) => out.push(Output::Done { ticket, result: Err(error) }),
            None => {
                self.name_and_tell(ticket, body, now_ms, out);
                self.try_lead(now_ms, out);
            }
        }
    }

    fn name_and_tell(&mut self, ticket: u64, body: Bytes, now_ms: u64, out: &mut Vec<Output>) {
        let (life, _) = self.tables.last_of(&Overlay::default(), self.me);
        if life > self.life {
            // The clock went back, or the disk was lost with what it knew: names below can never be ordered.
            self.life = life + 1;
            self.next_sequence = 1;
        }
        let name = Name { origin: self.me, life: self.life, sequence: self.next_sequence };
        self.next_sequence += 1;
        let digest = Batch::digest_of(&self.group, &name, &body);
        let batch = Batch { name, signature: self.keys.sign(&digest), body };
        out.push(Output::Send { to: To::All, message: Message::Batch(batch.clone()) });
        let number = self.store(Tag::Batch, batch.encode(), out);
        self.hold(digest, batch, number);
        self.own.insert((name.life, name.sequence), Own { ticket, digest, told_ms: now_ms });
    }

    /// Something came: whatever waited may go on.
    fn retry(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.try_verify(now_ms, out);
        self.try_certify(now_ms, out);
        self.try_commit(now_ms, out);
        self.try_lead(now_ms, out);
    }

    /// When [`Core::tick`] is to be called at the latest, in ms.
    pub fn wake_at_ms(&self, now_ms: u64) -> u64 {
        let leading = self.leading.as_ref().map(|leading| leading.nothing_ms(self.rests));
        let needs = self.needs.wake_at_ms();
        leading.into_iter().chain(needs).min().unwrap_or(u64::MAX).min(now_ms + 20)
    }

    /// Time passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.retry(now_ms, out);
        let patience_ms = self.settings.timers.patience.as_millis() as u64;
        let late: Vec<(u64, u64)> = self
            .own
            .iter()
            .filter(|(_, own)| own.told_ms + patience_ms <= now_ms)
            .map(|(at, _)| *at)
            .collect();
        for name in late {
            let Some(own) = self.own.get_mut(&name) else { continue };
            own.told_ms = now_ms;
            let digest = own.digest;
            if let Some(held) = self.batches.get(&digest) {
                self.counters.repeated += 1;
                out.push(Output::Send { to: To::All, message: Message::Batch(held.batch.clone()) });
            }
        }
        self.ask_for_needs(now_ms, out);
        self.ask_for_links(now_ms, out);
        self.catch_up(now_ms, out);
    }
}
