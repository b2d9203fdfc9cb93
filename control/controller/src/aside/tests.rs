#![allow(clippy::unwrap_used)]

use super::mark::RESERVED;
use super::*;
use std::collections::BTreeSet;
use weir_base::world::Rng;

const BOOT: [u8; 16] = [1; 16];

fn domain() -> Label {
    Label::new("prod").unwrap()
}

fn name(index: u64, digest: u8) -> EntryName {
    EntryName { index, sha256: [digest; 32] }
}

fn key(member: u32) -> KeyPair {
    KeyPair::from_seed(&[member as u8; 32])
}

fn electorate(members: u32, survives_lies: bool) -> Electorate {
    let quorum = if survives_lies { members - (members - 1) / 3 } else { members / 2 + 1 };
    let members = (1..=members).map(|member| (member, key(member).public())).collect();
    Electorate { members, quorum: quorum as usize, believes: !survives_lies }
}

fn wish(entry: EntryName) -> Wish {
    Wish { entry, word: None, not_carried_out: false }
}

fn look(
    aside: &Aside,
    me: u32,
    entry: EntryName,
    who: &Electorate,
    wish: Option<&Wish>,
    mark: Carried,
) -> Considered {
    aside.consider((me, &key(me)), (&domain(), entry), who, wish, (mark, None))
}

/// What a member with this promise tells.
fn promised(member: u32, entry: EntryName) -> Tell {
    let signature = key(member).sign(Context::AsidePromise, &promise_of(&domain(), &entry, member));
    let case = Case { entry, word: None, promises: BTreeMap::from([(member, signature)]), agreed: false };
    Tell { case, asks: true }
}

#[test]
fn one_that_is_alone_needs_an_operator_and_nobody_else() {
    let who = electorate(1, false);
    let aside = Aside::default();
    let untold = look(&aside, 1, name(7, 1), &who, None, Carried::No);
    assert_eq!((untold.waits, untold.changed), (Some(Waits::Untold), false));
    let told = look(&aside, 1, name(7, 1), &who, Some(&wish(name(7, 1))), Carried::Yes);
    assert!(told.waits.is_none() && told.changed && told.case.agreed);
}

#[test]
fn a_member_promises_once_it_is_told_and_goes_on_with_a_quorum() {
    let (who, entry) = (electorate(4, true), name(7, 1));
    let mut aside = Aside::default();
    let told = look(&aside, 1, entry, &who, Some(&wish(entry)), Carried::No);
    assert_eq!(told.waits, Some(Waits::Few { have: 1, need: 3 }));
    aside.keep(told.case);
    // Of a member that is none, of another entry, and with another's key: they do not count.
    assert!(aside.hear(9, promised(9, entry)).is_none());
    assert!(aside.hear(2, promised(2, name(7, 2))).is_none());
    let mut forged = promised(3, entry);
    forged.case.promises = BTreeMap::from([(4, forged.case.promises[&3])]);
    assert!(aside.hear(3, forged).is_none());
    let few = look(&aside, 1, entry, &who, None, Carried::No);
    assert_eq!((few.waits, few.changed), (Some(Waits::Few { have: 1, need: 3 }), false));
    // One may bring the promises of others.
    let mut both = promised(2, entry);
    both.case.promises.extend(promised(3, entry).case.promises);
    assert!(aside.hear(4, both).is_none());
    let agreed = look(&aside, 1, entry, &who, None, Carried::No);
    assert!(agreed.waits.is_none() && agreed.case.agreed);
    aside.keep(agreed.case.clone());
    // Who asks is shown it, and the bytes that are kept have it.
    let answer = aside.hear(4, promised(4, entry)).unwrap();
    assert_eq!((&answer.case, answer.asks), (&agreed.case, false));
    assert_eq!(Tell::decode(&answer.encode()), Some(answer));
    let again = Aside::open(&aside.with(&agreed.case)).unwrap();
    assert_eq!(again.case(&entry), Some(&agreed.case));
    assert!(again.case(&name(7, 2)).is_none(), "of this entry only");
}

#[test]
fn a_member_that_nobody_told_needs_all_others_or_believes_one() {
    let entry = name(7, 1);
    let mut aside = Aside::default();
    assert!(aside.hear(2, promised(2, entry)).is_none());
    let lying = look(&aside, 1, entry, &electorate(4, true), None, Carried::No);
    assert_eq!(lying.waits, Some(Waits::Untold), "one of four may lie about what an operator said");
    let crashing = look(&aside, 1, entry, &electorate(3, false), None, Carried::No);
    assert!(crashing.case.agreed, "a majority of three with its own");
    assert!(aside.hear(3, promised(3, entry)).is_none() && aside.hear(4, promised(4, entry)).is_none());
    let shown = look(&aside, 1, entry, &electorate(4, true), None, Carried::No);
    assert!(shown.case.agreed && !shown.case.promises.contains_key(&1), "the other three are enough");
}

/// One of four promises never to carry out whatever is ordered: those whom nobody told keep nothing of it, and there is room for what an
/// operator says later.
#[test]
fn who_promises_whatever_it_likes_fills_nobodys_disk() {
    let who = electorate(4, true);
    let mut aside = Aside::default();
    for index in 1..=2 * CASES_MAX as u64 {
        let entry = name(index, 1);
        assert!(aside.hear(4, promised(4, entry)).is_none());
        let considered = look(&aside, 1, entry, &who, None, Carried::No);
        assert_eq!((considered.waits, considered.changed), (Some(Waits::Untold), false));
        assert_eq!(considered.case.promises.len(), 1, "it is a promise");
    }
    for index in 1..=CASES_MAX as u64 {
        let entry = name(index, 1);
        let told = look(&aside, 1, entry, &who, Some(&wish(entry)), Carried::No);
        assert!(told.changed && told.case.promises.contains_key(&1), "{index}");
        aside.keep(told.case);
    }
    let more = name(CASES_MAX as u64 + 1, 1);
    let more = look(&aside, 1, more, &who, Some(&wish(more)), Carried::No);
    assert_eq!((more.waits, more.changed), (Some(Waits::TooMany), false));
    let last = aside.case(&name(CASES_MAX as u64, 1)).unwrap();
    assert!(aside.with(last).len() < KEPT_BYTES_MAX);
}

#[test]
fn who_has_carried_it_out_or_does_not_know_promises_nothing() {
    let (who, entry) = (electorate(3, false), name(7, 1));
    let mut told = wish(entry);
    let aside = Aside::default();
    let carried = look(&aside, 1, entry, &who, Some(&told), Carried::Yes);
    assert_eq!((carried.waits, carried.case.promises.len()), (Some(Waits::Carried), 0));
    let unknown = look(&aside, 1, entry, &who, Some(&told), Carried::Unknown);
    assert_eq!((unknown.waits, unknown.case.promises.len()), (Some(Waits::Unknown), 0));
    told.not_carried_out = true;
    assert_eq!(look(&aside, 1, entry, &who, Some(&told), Carried::Unknown).case.promises.len(), 1);
    assert_eq!(look(&aside, 1, entry, &who, Some(&told), Carried::Yes).waits, Some(Waits::Carried));
}

#[test]
fn a_member_that_was_told_of_another_entry_goes_on_neither_with_nor_without() {
    let (who, entry) = (electorate(4, true), name(7, 1));
    let mut aside = Aside::default();
    for member in 2..=4 {
        assert!(aside.hear(member, promised(member, entry)).is_none());
    }
    let other = look(&aside, 1, entry, &who, Some(&wish(name(7, 2))), Carried::No);
    assert!(matches!(other.waits, Some(Waits::Other(_))) && other.case.promises.is_empty());
    assert!(look(&aside, 1, entry, &who, Some(&wish(entry)), Carried::No).case.agreed);
}

#[test]
fn where_operators_sign_the_word_of_an_admin_is_enough_for_all_and_nothing_else_is() {
    let (who, entry, alice) = (electorate(4, true), name(7, 1), SourceId("operator/alice".into()));
    let signing = KeyPair::from_seed(&[9; 32]);
    let admins = Admins::from([(alice.clone(), vec![signing.public()])]);
    let consider = |aside: &Aside, wish: Option<&Wish>| {
        aside.consider((1, &key(1)), (&domain(), entry), &who, wish, (Carried::No, Some(&admins)))
    };
    let aside = Aside::default();
    assert_eq!(consider(&aside, Some(&wish(entry))).waits, Some(Waits::Unsigned));
    let word = |key: &KeyPair, domain: &str, entry: EntryName, of: &SourceId| {
        Word::sign(key, &Label::new(domain).unwrap(), &entry, of.clone(), 5)
    };
    let wrong = [
        word(&key(1), "prod", entry, &alice),
        word(&signing, "other", entry, &alice),
        word(&signing, "prod", name(8, 1), &alice),
        word(&signing, "prod", entry, &SourceId("operator/bob".into())),
    ];
    for word in wrong {
        let wish = Wish { word: Some(word), ..wish(entry) };
        assert_eq!(consider(&aside, Some(&wish)).waits, Some(Waits::Unsigned));
    }
    // It comes by another member as well, which need not have promised.
    let mut aside = Aside::default();
    let right = word(&signing, "prod", entry, &alice);
    let case = Case { word: Some(right.clone()), ..Case::new(entry) };
    assert!(aside.hear(2, Tell { case, asks: true }).is_none());
    let told = consider(&aside, None);
    assert_eq!((told.case.word, told.case.promises.len()), (Some(right), 1));
}

#[test]
fn a_mark_knows_what_was_carried_out_unless_a_machine_went_down() {
    let mut mark = Mark::new(BOOT);
    assert_eq!(mark.carried(1), Carried::No);
    assert!(mark.begin(1) && mark.done(1) && !mark.begin(2), "one sync for many");
    let same = mark.next(BOOT);
    assert_eq!((same.carried(1), same.carried(2)), (Carried::Yes, Carried::No));
    let mut other = mark.next([2; 16]);
    assert_eq!((other.carried(1), other.carried(2)), (Carried::Yes, Carried::Unknown));
    assert_eq!(other.carried(1 + RESERVED), Carried::Unknown);
    assert_eq!(other.carried(2 + RESERVED), Carried::No);
    other.done(3);
    assert!(other.settle() && other.carried(4) == Carried::No, "all of lives before is below");
    let mut ended = mark;
    ended.end();
    assert_eq!(ended.next([2; 16]).carried(2), Carried::No, "it ended in good order");
    assert_eq!(ended.next([2; 16]).next([3; 16]).carried(2), Carried::Unknown, "of the life before only");
    assert_eq!(Mark::unknown(BOOT).carried(u64::MAX - 1), Carried::Unknown);
    let nameless = Mark::new([0; 16]).next([0; 16]);
    assert_eq!(nameless.carried(1), Carried::No, "nothing was reserved");
    assert_eq!(Mark::decode(&mark.encode()), Some(mark));
    for bit in 0..MARK_BYTES * 8 {
        let mut bytes = mark.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Mark::decode(&bytes), None, "bit {bit}");
    }
}

#[test]
fn whatever_is_read_is_read_or_refused() {
    bolero::check!().with_iterations(500).with_type::<Vec<u8>>().for_each(|bytes| {
        let _kept = Aside::open(bytes);
        let _said = Tell::decode(&[&TELL_MAGIC[..], bytes].concat());
    });
    let kept = Aside::default().with(&promised(1, name(7, 1)).case);
    for cut in 0..kept.len() {
        assert!(Aside::open(&kept[..cut]).is_none(), "cut at {cut}");
    }
    for bit in 0..kept.len() * 8 {
        let mut bytes = kept.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Aside::open(&bytes).is_none(), "bit {bit}");
    }
}

/// A member in the simulation: what its disk has, and what its process knows.
struct Simulated {
    me: u32,
    aside: Aside,
    kept: Option<Vec<u8>>,
    /// The mark in the cache of the machine, and on the disk.
    mark: Mark,
    synced: Mark,
    boot: u8,
    wish: Option<Wish>,
    /// It carried the entry out, in whichever life.
    carried: bool,
    agreed: bool,
}

impl Simulated {
    fn new(me: u32) -> Simulated {
        let mark = Mark::new([1; 16]);
        let (aside, kept) = (Aside::default(), None);
        Simulated { me, aside, kept, mark, synced: mark, boot: 1, wish: None, carried: false, agreed: false }
    }

    /// It carries the entry out, and the process ends in the middle, or does not.
    fn carry_out(&mut self, entry: EntryName, ends: bool) {
        let case = self.aside.case(&entry);
        let waits = self.wish.is_some()
            || case.is_some_and(|case| case.agreed || case.promises.contains_key(&self.me));
        if waits || self.agreed {
            return;
        }
        if self.mark.begin(entry.index) {
            self.synced = self.mark;
        }
        if !ends {
            self.carried = true;
            self.mark.done(entry.index);
        }
    }

    fn restarts(&mut self, machine: bool) {
        if machine {
            self.boot += 1;
            self.mark = self.synced;
        }
        self.mark = self.mark.next([self.boot; 16]);
        self.synced = self.mark;
        self.aside = self.kept.as_ref().map_or_else(Aside::default, |kept| Aside::open(kept).unwrap());
    }

    /// `crashes`: between the disk and the network.
    fn looks(&mut self, entry: EntryName, who: &Electorate, crashes: bool) -> Option<Tell> {
        let mark = self.mark.carried(entry.index);
        let considered = look(&self.aside, self.me, entry, who, self.wish.as_ref(), mark);
        if considered.changed {
            self.kept = Some(self.aside.with(&considered.case));
            if crashes {
                self.restarts(true);
                return None;
            }
            self.aside.keep(considered.case.clone());
        }
        self.agreed |= considered.waits.is_none();
        Some(Tell { case: considered.case, asks: true })
    }
}

fn simulate(seed: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let survives_lies = rng.chance(1, 2);
    let count: u32 = match survives_lies {
        true => [4, 7][rng.below(2) as usize],
        false => [3, 5][rng.below(2) as usize],
    };
    let (who, entry) = (electorate(count, survives_lies), name(7, 1));
    let liars = if survives_lies { rng.below(u64::from((count - 1) / 3) + 1) as u32 } else { 0 };
    // The last ones lie: they promise, and carry out.
    let is_liar = |member: u32| member > count - liars;
    let mut members: Vec<Simulated> = (1..=count).map(Simulated::new).collect();
    let mut network: Vec<(u32, u32, Tell)> = Vec::new();
    for _ in 0..400 {
        let at = rng.below(u64::from(count)) as usize;
        let member = &mut members[at];
        match rng.below(12) {
            0 => member.carry_out(entry, rng.chance(9, 10)),
            1 => member.restarts(rng.chance(1, 4)),
            2 if rng.chance(1, 3) => member.wish = Some(wish(entry)),
            3 if rng.chance(1, 6) => member.wish = Some(wish(name(7, 2))),
            4 if rng.chance(1, 3) => member.wish = None,
            5..8 => {
                let told = match is_liar(member.me) {
                    true => Some(promised(member.me, entry)),
                    false => member.looks(entry, &who, rng.chance(1, 10)),
                };
                let me = member.me;
                for to in (1..=count).filter(|to| *to != me) {
                    network.extend(told.clone().map(|told| (me, to, told)));
                }
            }
            _ if !network.is_empty() => {
                let (from, to, tell) = network.swap_remove(rng.below(network.len() as u64) as usize);
                if rng.chance(4, 5)
                    && let Some(answer) = members[to as usize - 1].aside.hear(from, tell)
                {
                    network.push((to, from, answer));
                }
            }
            _ => {}
        }
        let honest = || members.iter().filter(|member| !is_liar(member.me));
        let carried = honest().filter(|member| member.carried).count() + liars as usize;
        let agreed = honest().filter(|member| member.agreed).count();
        assert!(
            agreed == 0 || carried < who.quorum,
            "seed {seed}: one quorum carried it out, and one set it aside"
        );
        let kept: BTreeSet<u32> = honest()
            .filter(|member| {
                member.aside.case(&entry).is_some_and(|case| case.promises.contains_key(&member.me))
            })
            .map(|member| member.me)
            .collect();
        assert!(
            honest().all(|member| !(member.carried && kept.contains(&member.me))),
            "seed {seed}: who promised carried it out, or the reverse"
        );
    }
    let honest = members.iter().filter(|member| !is_liar(member.me));
    let agreed = honest.clone().filter(|member| member.agreed).count();
    (agreed, honest.filter(|member| member.carried).count())
}

#[test]
fn never_does_one_quorum_set_aside_what_another_carried_out() {
    let seeds = std::env::var("WEIR_ASIDE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let ended: Vec<(usize, usize)> = (0..seeds).map(simulate).collect();
    assert!(ended.iter().any(|(agreed, _)| *agreed > 0), "some set it aside");
    assert!(ended.iter().any(|(_, carried)| *carried > 0), "some carried it out");
}
