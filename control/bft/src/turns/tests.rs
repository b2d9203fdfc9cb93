use super::*;
use std::time::Duration;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

struct Group {
    accounts: Accounts,
    now_us: u64,
    view: u64,
    left: Vec<(usize, u64)>,
}

impl Group {
    fn of(members: usize) -> Group {
        let accounts = Accounts::new(Timers::LAN, members);
        let mut group = Group { accounts, now_us: 1_700_000_000 * SECOND, view: 1, left: Vec::new() };
        group.turn(5, End::Certified, false);
        group
    }

    fn leader(&self) -> usize {
        self.view as usize % self.accounts.members.len()
    }

    fn is_heard(&mut self, member: usize) -> bool {
        self.accounts.hears(member, self.now_us)
    }

    /// A turn that takes so long; all others' votes come before it ends.
    fn turn(&mut self, took_ms: u64, end: End, gave_up: bool) {
        self.now_us += took_ms * MS;
        for member in 0..self.accounts.members.len() {
            self.is_heard(member);
        }
        if gave_up {
            self.accounts.gives_up(self.view);
        }
        let leader = self.leader();
        if let Some(member) = self.accounts.ends(self.view, leader, end, self.now_us) {
            self.left.push((member, self.now_us));
        }
        self.view += 1;
    }

    /// A turn of each member; that of `liar` costs `cost_ms` while it is heard and is passed over at once when it is not.
    fn round(&mut self, liar: usize, cost_ms: u64) {
        for _ in 0..self.accounts.members.len() {
            let lies = self.leader() == liar;
            match (lies, self.is_heard(liar)) {
                (true, true) => self.turn(cost_ms, End::PassedOver, false),
                (true, false) => self.turn(5, End::PassedOver, false),
                _ => self.turn(5, End::Certified, false),
            }
        }
    }
}

#[test]
fn who_costs_too_much_is_not_heard_and_longer_each_time() {
    let mut group = Group::of(4);
    let begun = group.now_us;
    while group.now_us < begun + 600 * SECOND {
        group.round(2, 245);
    }
    assert!(group.left.iter().all(|(member, _)| *member == 2), "{:?}", group.left);
    let times: Vec<u64> = group.left.iter().map(|(_, at)| *at).collect();
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let first = PAUSES * us(Timers::LAN.certification);
    assert!(times[0] < begun + 2 * SECOND && pauses[0] < first + 2 * SECOND, "{pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] + SECOND > pair[0]), "{pauses:?}");
    assert!(pauses.last() >= Some(&(first << LEVEL_MAX)), "{pauses:?}");
    // Each time it costs less than a second.
    assert!(times.len() < 16, "{pauses:?}");
}

#[test]
fn idle_groups_silent_members_and_a_hiccup_owe_nothing_that_matters() {
    let mut group = Group::of(4);
    for _ in 0..10_000 {
        group.turn(44, End::PassedOver, true);
    }
    // A leader that is not there at all, which consensus passes over.
    for turn in 0..10_000 {
        group.now_us += if turn == 0 { 700 * MS } else { 5 * MS };
        let (view, leader) = (group.view, group.leader());
        let silent = leader == 3;
        (0..3).for_each(|member| assert!(group.accounts.hears(member, group.now_us)));
        let end = if silent { End::PassedOver } else { End::Certified };
        assert_eq!(group.accounts.ends(view, leader, end, group.now_us), None);
        group.view += 1;
    }
    // It comes back, and is slow once.
    group.turn(300, End::PassedOver, false);
    assert!(group.is_heard(3));
    for _ in 0..10_000 {
        group.turn(110, End::Certified, false);
    }
    assert_eq!((group.left.len(), group.accounts.unheard), (0, 0));
}

#[test]
fn never_more_than_f_are_not_heard() {
    for (members, faults) in [(1, 0), (3, 0), (4, 1), (7, 2), (10, 3)] {
        let mut group = Group::of(members);
        for _ in 0..40 * members {
            group.turn(245, End::PassedOver, false);
        }
        let unheard = (0..members).filter(|member| !group.is_heard(*member)).count();
        assert_eq!(unheard, faults, "of {members}");
    }
}

#[test]
fn all_are_heard_again_when_nothing_is_agreed_on() {
    let mut group = Group::of(4);
    while group.left.is_empty() {
        group.round(1, 245);
    }
    assert!(!group.is_heard(1));
    group.now_us += us(2 * Timers::LAN.certification) + 1;
    assert!(group.is_heard(1), "somebody else went, and it is needed");
    let again = group.now_us;
    while group.now_us + SECOND < again + GRACE * us(Timers::LAN.certification) {
        group.round(1, 245);
        assert!(group.is_heard(1));
    }
    (0..8).for_each(|_| group.round(1, 245));
    assert!(!group.is_heard(1));
}

#[test]
fn late_reports_and_views_that_were_missed_count_nothing() {
    let mut accounts = Accounts::new(Timers::LAN, 4);
    let now = 1_700_000_000 * SECOND;
    (0..4).for_each(|member| assert!(accounts.hears(member, now)));
    // Nobody knows when the first began, nor one after a gap.
    assert_eq!(accounts.ends(7, 1, End::PassedOver, now), None);
    assert_eq!(accounts.ends(9, 1, End::PassedOver, now + 10 * SECOND), None);
    // What is said of a view that is over says nothing new.
    assert_eq!(accounts.ends(7, 1, End::PassedOver, now + 20 * SECOND), None);
    assert!(accounts.members.iter().all(|one| one.owes_us == 0), "{accounts:?}");
    assert!(accounts.hears(99, now), "who is no member is for others to refuse");
}

#[test]
fn what_is_owed_is_forgiven() {
    let mut accounts = Accounts::new(Timers::LAN, 4);
    let now = 1_700_000_000 * SECOND;
    assert_eq!(accounts.owes(1, 400 * MS, now), None);
    assert_eq!(accounts.owes(1, 0, now + 10 * SECOND), None);
    assert_eq!(accounts.members[1].owes_us, 200 * MS);
    assert_eq!(accounts.owes(1, us(Duration::from_millis(300)), now + 10 * SECOND), Some(1));
}
