use super::*;
use std::cell::RefCell;
use weir_actuator::Actuator;
use weir_model::Version;
use weir_monitor::plane::Repairer;
use weir_planes::monitor::{Report, Spec};

#[derive(Default)]
struct Fake(RefCell<Vec<(u64, Ordered)>>);

impl Hands for Fake {
    fn is_up(&self) -> bool {
        true
    }

    fn carry_out(&self, version: u64, _cgroup: &str, what: Ordered) {
        self.0.borrow_mut().push((version, what));
    }
}

fn follower(folder: &Path) -> Follower<Fake> {
    let done_file = folder.join(DONE_FILE);
    let done = read(&done_file).unwrap();
    let actuator = Label::new("h1").unwrap();
    Follower { hands: Fake::default(), actuator, done_file, done, frozen: Frozen::default() }
}

fn done(follower: &Follower<Fake>) -> Vec<(u64, Ordered)> {
    follower.hands.0.take()
}

fn ordered(version: u64, action: RepairAction) -> BTreeMap<String, RepairEntry> {
    BTreeMap::from([("web".to_string(), RepairEntry { action, version: Version(version) })])
}

#[test]
fn all_repairs_come_after_all_other_keys() {
    let repair = Key::Repair { host: Label::new("0").unwrap(), cgroup: String::new() };
    assert!(last_of_others() < repair && Key::Gateways < last_of_others());
}

#[test]
fn what_a_release_before_ordered_is_done_once_and_undone_when_it_is_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = follower(folder.path());
    let freeze = ordered(5, RepairAction::Freeze);
    one.reconcile(&freeze);
    assert_eq!(done(&one), [(5, Ordered::Freeze)]);
    one.reconcile(&freeze);
    // Another process, with the file that the release before has left.
    let mut two = follower(folder.path());
    two.reconcile(&freeze);
    assert!(done(&two).is_empty());
    two.reconcile(&ordered(9, RepairAction::Kill));
    assert_eq!(done(&two), [(9, Ordered::Thaw), (9, Ordered::Kill)]);
    two.reconcile(&ordered(11, RepairAction::Freeze));
    assert_eq!(done(&two), [(11, Ordered::Freeze)]);
    // Withdrawn while nobody ran.
    let mut three = follower(folder.path());
    three.reconcile(&BTreeMap::new());
    assert_eq!(done(&three), [(11, Ordered::Thaw)]);
    three.reconcile(&BTreeMap::new());
    assert!(done(&three).is_empty());
}

/// Hands of the plane.
struct Quiet;

impl weir_monitor::plane::Hands for Quiet {
    fn carry_out(&self, _version: u64, _cgroup: &str, _what: Ordered) -> Result<(), String> {
        Ok(())
    }

    fn is_frozen(&self, _cgroup: &str) -> bool {
        true
    }

    fn report(&mut self) -> Option<Report> {
        None
    }
}

#[test]
fn what_an_order_of_the_plane_holds_frozen_is_not_thawed() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = Repairer::open(folder.path(), Quiet).unwrap();
    let mut one = follower(folder.path());
    one.frozen = plane.frozen();
    one.reconcile(&ordered(5, RepairAction::Freeze));
    assert_eq!(done(&one), [(5, Ordered::Freeze)]);
    let spec = Spec { action: RepairAction::Freeze, id: "1".into() };
    plane.apply("web", Some(&spec), Version(7)).unwrap();
    one.reconcile(&BTreeMap::new());
    assert!(done(&one).is_empty());
}
