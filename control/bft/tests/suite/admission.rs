//! Groups whose operations are signed events: what was ordered is refused by the vote, whoever proposes it (rows R1, R4).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use weir_bft::core::{Beginning, Core, Keys, Output, Tip};
use weir_bft::members::{Approval, Change, Member, Roster};
use weir_bft::rules::{Admission, Judgement, Overlay, Tables, is_admissible};
use weir_bft::settings::Settings;
use weir_bft::wire::{Batch, Block, Digest, Message, Name, Ref};
use weir_order::batcher;
use weir_order::intake::{SignedEvent, Source};

/// A signature that everybody can check without keys: the sum of the payload's bytes.
fn sign(payload: &[u8]) -> [u8; 64] {
    [payload.iter().fold(1, |sum: u8, byte| sum.wrapping_add(*byte)); 64]
}

fn admission() -> Admission {
    let verify = Arc::new(|event: &SignedEvent| event.signature == sign(&event.payload));
    Admission { verify, sources_max: 100 }
}

fn event(source: u8, sequence: u64) -> Bytes {
    let payload = Bytes::from(vec![source, sequence as u8]);
    SignedEvent { source: Source([source; 32]), sequence, signature: sign(&payload), payload }.encode()
}

fn body(events: &[(u8, u64)]) -> Bytes {
    let operations: Vec<Bytes> = events.iter().map(|(source, sequence)| event(*source, *sequence)).collect();
    batcher::encode(&operations)
}

fn name(origin: u32, sequence: u64) -> Name {
    Name { origin, life: 1, sequence }
}

#[test]
fn an_event_is_fresh_once() {
    let rules = admission();
    let mut tables = Tables::new(Some(&rules), roster());
    let judge =
        |tables: &Tables, name: Name, body: &Bytes| tables.judge(&mut Overlay::default(), &name, body);
    let first = body(&[(1, 1), (1, 2), (2, 1)]);
    assert_eq!(judge(&tables, name(1, 1), &first), Judgement::Fresh);
    tables.ordered(&Batch { name: name(1, 1), signature: [0; 64], body: first.clone() });
    assert_eq!(judge(&tables, name(1, 1), &body(&[(3, 1)])), Judgement::Stale, "the name is used up");
    assert_eq!(
        judge(&tables, name(2, 1), &first),
        Judgement::Stale,
        "another member proposes the same events"
    );
    assert_eq!(
        judge(&tables, name(2, 1), &body(&[(3, 1), (1, 2)])),
        Judgement::Stale,
        "one old event is enough"
    );
    assert_eq!(judge(&tables, name(2, 1), &body(&[(1, 4)])), Judgement::Early);
    assert_eq!(judge(&tables, name(2, 1), &body(&[(1, 3), (1, 4)])), Judgement::Fresh);
    assert_eq!(judge(&tables, name(2, 1), &body(&[(1, 3), (1, 3)])), Judgement::Stale, "twice in one batch");
    let again = Tables::decode(Bytes::from(tables.encode()), Some(&rules)).unwrap();
    assert_eq!(again.encode(), tables.encode());
    assert_eq!(judge(&again, name(2, 1), &first), Judgement::Stale);
}

#[test]
fn only_signed_events_are_admissible() {
    let rules = admission();
    assert!(is_admissible(Some(&rules), &body(&[(1, 1)])));
    assert!(!is_admissible(Some(&rules), &Bytes::from_static(b"no batch")));
    assert!(!is_admissible(Some(&rules), &batcher::encode(&[Bytes::from_static(b"no event")])));
    let mut forged = event(1, 1).to_vec();
    *forged.last_mut().unwrap() += 1;
    assert!(!is_admissible(Some(&rules), &batcher::encode(&[event(2, 1), Bytes::from(forged)])));
    assert!(!is_admissible(Some(&rules), &batcher::encode(&[])), "nothing is no reason for a batch");
}

/// Signs with the member's number.
struct Names(u32);

impl Keys for Names {
    fn sign(&self, _digest: &Digest) -> [u8; 64] {
        [self.0 as u8; 64]
    }

    fn is_right(&self, origin: u32, _digest: &Digest, signature: &[u8; 64]) -> bool {
        *signature == [origin as u8; 64]
    }

    fn certified(&mut self, _certificate: &Bytes) -> Option<(u64, Digest)> {
        None
    }

    fn of_epoch(&self, _roster: &Roster) -> Option<Box<dyn Keys>> {
        Some(Box::new(Names(self.0)))
    }
}

fn member(id: u32) -> Member {
    Member { key: super::sim::identity(id).public().unwrap(), address: format!("192.0.2.{id}:1") }
}

fn roster() -> Roster {
    let members = (1..=4).map(|id| (id, Member { address: String::new(), ..member(id) })).collect();
    Roster { epoch: 1, genesis: GENESIS, members }
}

const GENESIS: Digest = [0; 32];

fn core() -> Core {
    let rules = admission();
    let settings = Settings { admission: Some(rules.clone()), ..Settings::new("group") };
    let tip = Tip { height: 0, digest: GENESIS, index: 0 };
    Core::new(
        settings,
        Beginning {
            me: 1,
            keys: Box::new(Names(1)),
            frontier: roster(),
            life: 1,
            tip,
            tables: Tables::new(Some(&rules), roster()),
            applied: 0,
            recent: vec![(GENESIS, None)],
            last_number: 0,
            batches: Vec::new(),
            blocks: Vec::new(),
        },
    )
}

/// What the core answers when member 2 proposes a block of these batches behind `parent`.
fn vote(core: &mut Core, parent: (Digest, u64, u64), batches: &[(Name, Bytes)]) -> (Block, Option<bool>) {
    vote_for(core, parent, batches, None)
}

fn vote_for(
    core: &mut Core,
    parent: (Digest, u64, u64),
    batches: &[(Name, Bytes)],
    next: Option<BTreeMap<u32, Member>>,
) -> (Block, Option<bool>) {
    let mut out = Vec::new();
    let mut refs = Vec::new();
    for (name, body) in batches {
        let batch = Batch { name: *name, signature: [name.origin as u8; 64], body: body.clone() };
        refs.push(Ref { digest: batch.digest(b"group"), name: *name, bytes: body.len() as u32 });
        core.heard(2, Message::Batch(batch), 1, &mut out);
    }
    let (parent, height, index) = parent;
    let block = Block { epoch: 1, parent, height: height + 1, first_index: index + 1, refs, next };
    core.heard(2, Message::Block(block.clone()), 1, &mut out);
    core.verify(9, 2, parent, block.digest(), 1, &mut out);
    let verdict = out.iter().find_map(|output| match output {
        Output::Verdict { ticket: 9, right } => Some(*right),
        _ => None,
    });
    (block, verdict)
}

#[test]
fn the_vote_refuses_what_must_not_be_ordered() {
    let genesis = (GENESIS, 0, 0);
    let good = [(name(2, 1), body(&[(1, 1)]))];
    assert_eq!(vote(&mut core(), genesis, &good).1, Some(true));
    let twice = [(name(2, 1), body(&[(1, 1)])), (name(3, 1), body(&[(1, 1)]))];
    assert_eq!(vote(&mut core(), genesis, &twice).1, Some(false), "an event twice in one block");
    assert_eq!(vote(&mut core(), genesis, &[(name(2, 1), body(&[(1, 2)]))]).1, Some(false), "a gap");
    let forged = batcher::encode(&[SignedEvent::decode(&event(1, 1))
        .map(|event| SignedEvent { signature: [0; 64], ..event }.encode())
        .unwrap()]);
    assert_eq!(
        vote(&mut core(), genesis, &[(name(2, 1), forged)]).1,
        Some(false),
        "a wrong signature of a source"
    );
    assert_eq!(vote(&mut core(), (GENESIS, 4, 0), &good).1, Some(false), "a wrong height");
    assert_eq!(vote(&mut core(), (GENESIS, 0, 7), &good).1, Some(false), "a wrong place");
    let many: Vec<(Name, Bytes)> = (1..=140).map(|at| (name(2, at), body(&[(at as u8, 1)]))).collect();
    assert_eq!(vote(&mut core(), genesis, &many).1, Some(false), "more batches than a block may have");
}

#[test]
fn old_events_are_refused_behind_a_block_that_is_not_committed_too() {
    let mut core = core();
    let (first, verdict) = vote(&mut core, (GENESIS, 0, 0), &[(name(2, 1), body(&[(1, 1)]))]);
    assert_eq!(verdict, Some(true));
    let behind = (first.digest(), 1, 1);
    assert_eq!(vote(&mut core, behind, &[(name(3, 1), body(&[(1, 1)]))]).1, Some(false));
    assert_eq!(vote(&mut core, behind, &[(name(3, 1), body(&[(1, 2)]))]).1, Some(true));
}

#[test]
fn a_block_waits_for_what_it_lacks_and_asks_for_it() {
    let mut core = core();
    let missing = Batch { name: name(3, 1), signature: [3; 64], body: body(&[(1, 1)]) };
    let digest = missing.digest(b"group");
    let named = Ref { digest, name: missing.name, bytes: missing.body.len() as u32 };
    let (epoch, next) = (1, None);
    let block = Block { epoch, parent: GENESIS, height: 1, first_index: 1, refs: vec![named], next };
    let mut out = Vec::new();
    core.heard(2, Message::Block(block.clone()), 1, &mut out);
    core.verify(9, 2, GENESIS, block.digest(), 1, &mut out);
    core.tick(100, &mut out);
    let mut asked = BTreeMap::new();
    for output in out.drain(..) {
        match output {
            Output::Verdict { .. } => panic!("there is nothing to judge yet"),
            Output::Send { to, message: Message::WantBatches(wanted) } => {
                asked.insert(wanted, to);
            }
            _ => {}
        }
    }
    assert_eq!(asked.len(), 1);
    assert!(asked.contains_key(&vec![digest]), "{asked:?}");
    core.heard(4, Message::Batch(missing), 101, &mut out);
    assert!(out.iter().any(|output| matches!(output, Output::Verdict { ticket: 9, right: true })), "{out:?}");
}

#[test]
fn a_name_that_is_used_up_is_refused_without_a_wait_for_its_batch() {
    let mut core = core();
    let (first, verdict) = vote(&mut core, (GENESIS, 0, 0), &[(name(2, 2), body(&[(1, 1)]))]);
    assert_eq!(verdict, Some(true));
    let named = Ref { digest: [7; 32], name: name(2, 1), bytes: 5 };
    let parent = first.digest();
    let block = Block { epoch: 1, parent, height: 2, first_index: 2, refs: vec![named], next: None };
    let mut out = Vec::new();
    core.heard(3, Message::Block(block.clone()), 1, &mut out);
    core.verify(10, 3, parent, block.digest(), 1, &mut out);
    core.tick(100, &mut out);
    assert!(
        out.iter().any(|output| matches!(output, Output::Verdict { ticket: 10, right: false })),
        "{out:?}"
    );
    let asks = |output: &Output| matches!(output, Output::Send { message: Message::WantBatches(_), .. });
    assert!(!out.iter().any(asks), "{out:?}");
}

#[test]
fn a_change_needs_the_word_of_a_quorum_and_ends_its_block() {
    let five = Change::Add { id: 5, member: member(5) };
    let word = Approval { epoch: 1, change: five.clone() }.encode();
    let said = |origins: &[u32]| -> Vec<(Name, Bytes)> {
        origins.iter().map(|origin| (name(*origin, 1), word.clone())).collect()
    };
    let next = Some(roster().after(&five).unwrap());
    let genesis = (GENESIS, 0, 0);
    // Two are not enough, and a block that says they are is refused.
    assert_eq!(vote(&mut core(), genesis, &said(&[2, 3])).1, Some(true));
    assert_eq!(vote_for(&mut core(), genesis, &said(&[2, 3]), next.clone()).1, Some(false));
    // Three are; the block must say so, and have nothing behind it.
    assert_eq!(vote(&mut core(), genesis, &said(&[2, 3, 4])).1, Some(false));
    let others = Some(roster().after(&Change::Add { id: 6, member: member(6) }).unwrap());
    assert_eq!(vote_for(&mut core(), genesis, &said(&[2, 3, 4]), others).1, Some(false));
    let mut good = core();
    let (block, verdict) = vote_for(&mut good, genesis, &said(&[2, 3, 4]), next.clone());
    assert_eq!(verdict, Some(true));
    let more = [said(&[2, 3, 4]), vec![(name(2, 2), body(&[(1, 1)]))]].concat();
    assert_eq!(vote_for(&mut core(), genesis, &more, next).1, Some(false));
    // Nothing follows in that epoch, whoever wants it.
    let behind = (block.digest(), 1, 3);
    assert_eq!(vote(&mut good, behind, &[(name(3, 2), body(&[(1, 1)]))]).1, Some(false));
    // One member's word counts once.
    let same = [(name(2, 1), word.clone()), (name(2, 2), word.clone()), (name(2, 3), word.clone())];
    assert_eq!(vote(&mut core(), genesis, &same).1, Some(true));
    // A change that cannot be, or one of another epoch, is not ordered.
    let three = Approval { epoch: 1, change: Change::Remove { id: 4 } }.encode();
    assert_eq!(vote(&mut core(), genesis, &[(name(2, 1), three)]).1, Some(false));
    for epoch in [0, 2] {
        let other = Approval { epoch, change: five.clone() }.encode();
        assert_eq!(vote(&mut core(), genesis, &[(name(2, 1), other)]).1, Some(false), "epoch {epoch}");
    }
}
