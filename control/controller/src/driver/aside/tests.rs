#![allow(clippy::unwrap_used)]

use super::*;
use weir_base::world::RealDisk;

/// The members of a group in one process: what each tells goes into the others' inboxes.
struct Wired {
    me: u32,
    who: Electorate,
    inboxes: Arc<BTreeMap<u32, AsideInbox>>,
}

impl AsideGroup for Wired {
    fn me(&self) -> u32 {
        self.me
    }

    fn electorate(&self, _index: u64) -> Option<Electorate> {
        Some(self.who.clone())
    }

    fn tell(&self, to: u32, bytes: Vec<u8>) {
        assert!(self.inboxes[&to].hear(u64::from(self.me), &bytes));
    }
}

fn key(member: u32) -> KeyPair {
    KeyPair::from_seed(&[member as u8; 32])
}

struct Lab {
    dirs: BTreeMap<u32, tempfile::TempDir>,
    inboxes: Arc<BTreeMap<u32, AsideInbox>>,
    who: Electorate,
}

impl Lab {
    fn new(count: u32, survives_lies: bool) -> Lab {
        let quorum = if survives_lies { count - (count - 1) / 3 } else { count / 2 + 1 };
        let members = (1..=count).map(|member| (member, key(member).public())).collect();
        Lab {
            dirs: (1..=count).map(|member| (member, tempfile::tempdir().unwrap())).collect(),
            inboxes: Arc::new((1..=count).map(|member| (member, AsideInbox::default())).collect()),
            who: Electorate { members, quorum: quorum as usize, believes: !survives_lies },
        }
    }

    fn disk(&self, member: u32) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(self.dirs[&member].path()).unwrap())
    }

    fn open(&self, member: u32) -> Asides {
        let disk = self.disk(member);
        let (kept, inbox) = (disk.clone(), self.inboxes[&member].clone());
        let group = Arc::new(Wired { me: member, who: self.who.clone(), inboxes: self.inboxes.clone() });
        let keep: Keep = Arc::new(move |bytes| weir_base::file::replace_at(&*kept, LEFT_OUT_FILE, bytes));
        let place = AsidePlace { group, key: Arc::new(key(member)), keep, inbox };
        Asides::open(disk, Label::new("prod").unwrap(), place, false).unwrap()
    }

    fn wish(&self, member: u32, entry: EntryName) {
        let wish = Wish { entry, word: None, not_carried_out: false };
        write_wishes(&*self.disk(member), &[(entry.index, wish)].into()).unwrap();
    }
}

const ENTRY: EntryName = EntryName { index: 7, sha256: [1; 32] };

#[test]
fn members_that_are_told_tell_the_one_that_is_not() {
    let lab = Lab::new(4, true);
    (1..=3).for_each(|member| lab.wish(member, ENTRY));
    let mut members: Vec<Asides> = (1..=4).map(|member| lab.open(member)).collect();
    let none = Operators::default();
    let first: Vec<bool> = members.iter_mut().map(|member| member.look(&ENTRY, &none).is_ok()).collect();
    assert_eq!(first, [false, false, true, true], "the third completes it, and the fourth is shown it");
    assert!(members.iter_mut().all(|member| member.look(&ENTRY, &none).is_ok()));
    assert!(matches!(lab.open(4).known(7, || [1; 32]), Known::Agreed(_)), "it is on its disk");
    // One that comes late has lost what was said to it: it asks, and is answered.
    let mut late = lab.open(4);
    late.aside = Aside::default();
    assert!(late.look(&ENTRY, &none).is_err());
    // But for the fourth's own earlier life, which has the same inbox.
    members.iter_mut().take(3).for_each(Asides::hear);
    assert!(late.look(&ENTRY, &none).is_ok());
}

#[test]
fn a_promise_that_cannot_be_kept_is_not_made() {
    let lab = Lab::new(3, false);
    lab.wish(1, ENTRY);
    let mut member = lab.open(1);
    member.place.keep = Arc::new(|_| Err(io::Error::other("no room")));
    let error = member.look(&ENTRY, &Operators::default()).unwrap_err();
    assert!(error.contains("no room"), "{error}");
    assert!(lab.inboxes[&2].take().is_empty(), "nothing was told");
    assert!(!member.aside.knows_of(7));
    // It may be on the disk all the same: the entry is not carried out, nor another one at its place, as long as nobody takes that back.
    member.wishes.clear();
    assert!(member.must_wait(&ENTRY) && !member.must_wait(&EntryName { index: 8, ..ENTRY }));
    lab.wish(1, ENTRY);
    member.place.keep = Arc::new(|_| Ok(()));
    member.looks = 0;
    assert!(member.look(&ENTRY, &Operators::default()).is_err_and(|waits| waits.contains("1 of 2")));
    assert!(member.must_wait(&ENTRY) && member.unsure.is_none());
}

#[test]
fn what_a_controller_has_carried_out_is_known_in_its_next_life() {
    let lab = Lab::new(3, false);
    let mut member = lab.open(1);
    member.begin(6);
    member.done(6, false);
    member.begin(7);
    drop(member);
    let disk = lab.disk(1);
    assert_eq!(carried(&*disk, 6).unwrap(), Carried::Yes);
    assert_eq!(carried(&*disk, 7).unwrap(), Carried::No);
    // The mark is gone: nobody knows any more.
    lab.wish(1, ENTRY);
    let mut member = lab.open(1);
    disk.remove(CARRIED_FILE).unwrap();
    assert_eq!(carried(&*disk, 6).unwrap(), Carried::Unknown);
    member.mark = open_mark(&*disk, true).unwrap().0;
    let waits = member.look(&ENTRY, &Operators::default()).unwrap_err();
    assert!(waits.contains("--not-carried-out"), "{waits}");
}

#[test]
fn what_operators_want_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let operator = SourceId("operator/alice".into());
    let word = Word::sign(&key(1), &Label::new("prod").unwrap(), &ENTRY, operator, 5);
    let wish = |index, word, not_carried_out| {
        (index, Wish { entry: EntryName { index, ..ENTRY }, word, not_carried_out })
    };
    let all: BTreeMap<u64, Wish> =
        [wish(7, Some(word.clone()), true), wish(8, None, false), wish(9, Some(word), false)].into();
    write_wishes(&disk, &all).unwrap();
    assert_eq!(wishes(&disk).unwrap(), all);
    std::fs::write(dir.path().join(WANTED_FILE), "7 none").unwrap();
    assert!(matches!(wishes(&disk), Err(Error::SetAside { what: WANTED_FILE, .. })));
}

#[test]
fn what_is_not_right_is_counted_and_forgotten() {
    let inbox = AsideInbox::default();
    assert!(!inbox.hear(1, b"something else"));
    assert!(inbox.hear(1, b"\xc1aside\x00\x01 and nothing"));
    assert_eq!((inbox.dropped(), inbox.take().len()), (1, 0));
    // One that says it again and again takes no room from the others.
    let case = Case { entry: ENTRY, word: None, promises: BTreeMap::new(), agreed: false };
    let bytes = Tell { case, asks: true }.encode();
    (0..2 * HEARD_MAX).for_each(|_| assert!(inbox.hear(4, &bytes)));
    assert!(inbox.hear(3, &bytes));
    let heard: Vec<u32> = inbox.take().into_iter().map(|(from, _)| from).collect();
    assert_eq!((heard.len(), heard.last()), (HEARD_OF_MAX + 1, Some(&3)));
}
