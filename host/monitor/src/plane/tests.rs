//! The monitor passes what every actuator must pass, with freezes and with kills; and what is its own: that a kill is done once, also when
//! the process ends in the midst of it, and that nothing stays frozen for nobody.

use super::*;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_actuator::suite::Subject;

/// Cgroups, as a kernel has them: they outlive the process.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kernel {
    /// By the order of which version each is frozen.
    frozen: BTreeMap<String, u64>,
    /// Kills: cgroup and version.
    killed: Vec<(String, u64)>,
    /// All that was done.
    done: u64,
}

/// Hands on a kernel in a file.
struct Fake {
    file: PathBuf,
    /// What fails.
    fails: Option<Ordered>,
    /// The process ends when this is done.
    dies_at: Option<Ordered>,
}

impl Fake {
    fn new(folder: &Path) -> Fake {
        Fake { file: folder.join("kernel.json"), fails: None, dies_at: None }
    }

    fn kernel(&self) -> Kernel {
        std::fs::read(&self.file).map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default()
    }
}

impl Hands for Fake {
    fn carry_out(&self, version: u64, cgroup: &str, what: Ordered) -> Result<(), String> {
        let mut kernel = self.kernel();
        kernel.done += 1;
        if self.fails == Some(what) {
            std::fs::write(&self.file, serde_json::to_vec(&kernel).unwrap()).unwrap();
            return Err(format!("no {}", what.name()));
        }
        match what {
            Ordered::Freeze => drop(kernel.frozen.insert(cgroup.into(), version)),
            Ordered::Thaw => drop(kernel.frozen.remove(cgroup)),
            Ordered::Kill => {
                let kill = (cgroup.to_string(), version);
                assert!(!kernel.killed.contains(&kill), "{kill:?} twice");
                kernel.killed.push(kill);
            }
        }
        std::fs::write(&self.file, serde_json::to_vec(&kernel).unwrap()).unwrap();
        assert!(self.dies_at != Some(what), "the process ends here");
        Ok(())
    }

    fn is_frozen(&self, cgroup: &str) -> bool {
        self.kernel().frozen.contains_key(cgroup)
    }

    fn report(&mut self) -> Option<Report> {
        Some(Report::default())
    }
}

fn json(action: RepairAction, id: u64) -> Vec<u8> {
    serde_json::to_vec(&spec(action, id)).unwrap()
}

fn spec(action: RepairAction, id: u64) -> Spec {
    Spec { action, id: id.to_string() }
}

mod freezes {
    use super::*;

    /// Orders that freeze; kills fail.
    struct Freezes;

    impl Subject for Freezes {
        type Actuator = Repairer<Fake>;

        fn make(&self, folder: &Path) -> Repairer<Fake> {
            let fake = Fake { fails: Some(Ordered::Kill), ..Fake::new(folder) };
            Repairer::open(folder, fake).unwrap()
        }

        fn names(&self) -> [String; 2] {
            ["machines/web".into(), "machines/db".into()]
        }

        fn spec(&self, number: u32) -> Vec<u8> {
            json(RepairAction::Freeze, number.into())
        }

        fn refused(&self) -> Vec<u8> {
            json(RepairAction::Kill, 1000)
        }

        fn in_force(&self, repairer: &mut Repairer<Fake>, name: &str) -> Option<Vec<u8>> {
            let held = repairer.book.held_by(name).map(|version| json(RepairAction::Freeze, version));
            held.filter(|_| repairer.hands.kernel().frozen.contains_key(name))
        }
    }

    weir_actuator::suite!(Freezes);
}

mod kills {
    use super::*;

    /// Orders that kill; freezes fail.
    struct Kills;

    impl Subject for Kills {
        type Actuator = Repairer<Fake>;

        fn make(&self, folder: &Path) -> Repairer<Fake> {
            let fake = Fake { fails: Some(Ordered::Freeze), ..Fake::new(folder) };
            Repairer::open(folder, fake).unwrap()
        }

        fn names(&self) -> [String; 2] {
            ["machines/web".into(), "machines/db".into()]
        }

        fn spec(&self, number: u32) -> Vec<u8> {
            json(RepairAction::Kill, number.into())
        }

        fn refused(&self) -> Vec<u8> {
            json(RepairAction::Freeze, 1000)
        }

        fn in_force(&self, repairer: &mut Repairer<Fake>, name: &str) -> Option<Vec<u8>> {
            let kernel = repairer.hands.kernel();
            let newest = kernel.killed.iter().rfind(|(cgroup, _)| cgroup == name)?;
            Some(json(RepairAction::Kill, newest.1))
        }

        /// Who was killed stays so.
        const KEEPS_WITHDRAWN: bool = true;
    }

    weir_actuator::suite!(Kills);
}

/// Without the gate and the journal around it.
struct Scene {
    folder: tempfile::TempDir,
    repairer: Option<Repairer<Fake>>,
}

impl Scene {
    fn new() -> Scene {
        let mut scene = Scene { folder: tempfile::tempdir().unwrap(), repairer: None };
        scene.restart();
        scene
    }

    fn restart(&mut self) {
        let fake = Fake::new(self.folder.path());
        self.repairer = Some(Repairer::open(self.folder.path(), fake).unwrap());
    }

    fn repairer(&mut self) -> &mut Repairer<Fake> {
        self.repairer.as_mut().unwrap()
    }

    fn apply(&mut self, version: u64, spec: Option<Spec>) -> Result<(), String> {
        self.repairer().apply("web", spec.as_ref(), Version(version))
    }

    /// The same, and the process ends as soon as something is done.
    fn apply_and_die(&mut self, version: u64, spec: Option<Spec>, at: Ordered) {
        self.repairer().hands.dies_at = Some(at);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.apply(version, spec)));
        assert!(ended.is_err());
        self.restart();
    }

    fn kernel(&mut self) -> Kernel {
        self.repairer().hands.kernel()
    }

    fn kills(&mut self) -> usize {
        self.kernel().killed.len()
    }

    fn is_frozen(&mut self) -> bool {
        self.kernel().frozen.contains_key("web")
    }
}

use RepairAction::{Freeze, Kill};

#[test]
fn a_kill_is_done_once_for_its_id_and_again_for_another() {
    let mut scene = Scene::new();
    assert_eq!(scene.apply(5, Some(spec(Kill, 1))), Ok(()));
    assert_eq!(scene.apply(5, Some(spec(Kill, 1))), Ok(()), "put back");
    scene.restart();
    assert_eq!(scene.apply(5, Some(spec(Kill, 1))), Ok(()), "from the journal");
    assert_eq!(scene.apply(0, None), Ok(()), "put back to nothing");
    assert_eq!(scene.apply(9, Some(spec(Kill, 1))), Ok(()), "ordered again with the same id");
    assert_eq!(scene.kills(), 1);
    assert_eq!(scene.apply(10, Some(spec(Kill, 2))), Ok(()));
    assert_eq!(scene.kills(), 2);
}

#[test]
fn a_kill_in_whose_midst_the_process_ended_is_told_and_not_done_again() {
    let mut scene = Scene::new();
    scene.apply_and_die(5, Some(spec(Kill, 1)), Ordered::Kill);
    assert_eq!(scene.kills(), 1);
    for _ in 0..2 {
        assert_eq!(scene.apply(5, Some(spec(Kill, 1))), Err(UNKNOWN.to_string()));
    }
    assert_eq!(scene.kills(), 1);
    assert_eq!(scene.apply(6, Some(spec(Kill, 2))), Ok(()), "ordered again");
    assert_eq!(scene.kills(), 2);
}

#[test]
fn what_failed_once_is_not_tried_again_until_it_is_ordered_again() {
    for (action, fails) in [(Kill, Ordered::Kill), (Freeze, Ordered::Freeze)] {
        let mut scene = Scene::new();
        scene.repairer().hands.fails = Some(fails);
        let refused = scene.apply(5, Some(spec(action, 1)));
        assert_eq!(refused, Err(format!("no {}", fails.name())));
        // The cgroup comes into being, and whoever runs in it was meant by nobody.
        scene.restart();
        let done = scene.kernel().done;
        assert_eq!(scene.apply(5, Some(spec(action, 1))), refused);
        assert_eq!(scene.kernel().done, done, "nothing is tried");
        assert_eq!(scene.apply(6, Some(spec(action, 2))), Ok(()));
    }
}

#[test]
fn a_freeze_holds_over_restarts_and_is_not_told_again() {
    let mut scene = Scene::new();
    scene.apply(5, Some(spec(Freeze, 1))).unwrap();
    let done = scene.kernel().done;
    scene.restart();
    assert_eq!(scene.apply(5, Some(spec(Freeze, 1))), Ok(()));
    assert_eq!(scene.kernel().done, done, "it is frozen, and the audit log is not told again");
    assert!(scene.repairer().frozen().has("web"));
    // The host began anew: it is frozen again.
    std::fs::remove_file(scene.folder.path().join("kernel.json")).unwrap();
    scene.restart();
    assert_eq!(scene.apply(5, Some(spec(Freeze, 1))), Ok(()));
    assert!(scene.is_frozen());
    assert_eq!(scene.apply(6, None), Ok(()));
    assert!(!scene.is_frozen() && !scene.repairer().frozen().has("web"));
}

#[test]
fn a_freeze_that_fails_leaves_nothing_frozen_and_one_that_cannot_be_thawed_is_told() {
    let mut scene = Scene::new();
    scene.repairer().hands.fails = Some(Ordered::Freeze);
    scene.apply(5, Some(spec(Freeze, 1))).unwrap_err();
    assert_eq!(scene.kernel().done, 2, "it is thawed");
    assert!(!scene.repairer().frozen().has("web"));
    scene.repairer().hands.fails = Some(Ordered::Thaw);
    scene.apply(6, Some(spec(Freeze, 2))).unwrap();
    assert_eq!(scene.apply(7, None), Err("no thaw".to_string()));
    scene.repairer().hands.fails = None;
    assert_eq!(scene.apply(7, None), Ok(()), "and is tried again");
    assert!(!scene.is_frozen());
}

#[test]
fn a_kill_takes_over_from_a_freeze_and_gives_back_what_it_could_not_kill() {
    let mut scene = Scene::new();
    scene.apply(5, Some(spec(Freeze, 1))).unwrap();
    scene.repairer().hands.fails = Some(Ordered::Kill);
    scene.apply(6, Some(spec(Kill, 2))).unwrap_err();
    assert_eq!(scene.kernel().frozen["web"], 5, "frozen by the order that stands");
    scene.repairer().hands.fails = None;
    scene.apply(7, Some(spec(Kill, 3))).unwrap();
    assert!(!scene.is_frozen());
    // Its place in the journal failed: what was before is put back, and it comes again.
    scene.apply(5, Some(spec(Freeze, 1))).unwrap();
    assert!(scene.is_frozen());
    assert_eq!(scene.apply(7, Some(spec(Kill, 3))), Ok(()));
    assert!(!scene.is_frozen());
    assert_eq!(scene.kills(), 1);
}

#[test]
fn what_nobody_orders_any_more_does_not_stay_frozen() {
    let mut scene = Scene::new();
    // The process ends between the freeze and its journal.
    scene.apply_and_die(5, Some(spec(Freeze, 1)), Ordered::Freeze);
    assert!(scene.is_frozen() && scene.repairer().frozen().has("web"));
    for _ in 1..UNHELD_LOOKS {
        scene.repairer().report();
    }
    assert!(scene.is_frozen(), "the controllers may send it again");
    scene.repairer().report();
    assert!(!scene.is_frozen(), "it was withdrawn meanwhile");
    // Where it is sent again it stays.
    scene.apply_and_die(7, Some(spec(Freeze, 2)), Ordered::Freeze);
    scene.apply(7, Some(spec(Freeze, 2))).unwrap();
    for _ in 0..2 * UNHELD_LOOKS {
        scene.repairer().report();
    }
    assert!(scene.is_frozen());
}

#[test]
fn what_cannot_be_written_down_is_not_done() {
    let mut scene = Scene::new();
    // What is in the way of the new file.
    std::fs::create_dir_all(scene.folder.path().join("repairs.json/full")).unwrap();
    for action in [Kill, Freeze] {
        let refused = scene.apply(5, Some(spec(action, 1))).unwrap_err();
        assert!(refused.contains("cannot be written down"), "{refused}");
    }
    assert_eq!(scene.kernel().done, 0);
    std::fs::remove_dir_all(scene.folder.path().join("repairs.json")).unwrap();
    assert_eq!(scene.apply(5, Some(spec(Kill, 1))), Ok(()), "that was no try");
}

#[test]
fn what_is_remembered_is_bounded_and_what_may_be_forgotten_is_not_done_again() {
    let mut scene = Scene::new();
    for id in 1..=weir_actuator::book::KNOWN_MAX as u64 + 1 {
        scene.apply(id, Some(spec(Kill, id))).unwrap();
    }
    let kills = scene.kills();
    let refused = scene.apply(1, Some(spec(Kill, 1))).unwrap_err();
    assert!(refused.contains("order it again"), "{refused}");
    assert_eq!(scene.kills(), kills);
    scene.repairer().apply("held", Some(&spec(Freeze, 1)), Version(1)).unwrap();
    for at in 0..CGROUPS_MAX as u64 + 9 {
        let (cgroup, version) = (format!("c{at}"), Version(100 + at));
        scene.repairer().apply(&cgroup, Some(&spec(Kill, at)), version).unwrap();
    }
    assert_eq!(scene.repairer().book.len(), CGROUPS_MAX);
    assert!(scene.repairer().known("held", &spec(Freeze, 1)).is_some(), "what is frozen is not forgotten");
    let (length, limit) =
        (std::fs::metadata(scene.folder.path().join("repairs.json")).unwrap().len(), 1 << 20);
    assert!(length < limit, "{length}");
}

/// What a monitor of a release before wrote down is what this one knows: a kill that was done is not done again.
#[test]
fn what_was_written_down_before_an_upgrade_counts() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"machines/web":{"frozen":7,"orders":[
        {"id":"a","action":"kill","version":6,"outcome":{"Ok":null}},
        {"id":"b","action":"freeze","version":7,"outcome":{"Err":"no freeze"}}],"forgotten":5}}"#;
    std::fs::write(folder.path().join(FILE), text).unwrap();
    let mut repairer = Repairer::open(folder.path(), Fake::new(folder.path())).unwrap();
    assert!(repairer.frozen().has("machines/web"));
    assert_eq!(
        repairer.known("machines/web", &spec_of(RepairAction::Kill, "a")).unwrap().outcome,
        Some(Ok(()))
    );
    let again = repairer.apply("machines/web", Some(&spec_of(RepairAction::Freeze, "b")), Version(8));
    assert_eq!(again, Err("no freeze".into()));
    let old = repairer.apply("machines/web", Some(&spec_of(RepairAction::Kill, "older")), Version(5));
    assert!(old.unwrap_err().contains("order it again"));
    assert!(repairer.hands.kernel().killed.is_empty());
}

fn spec_of(action: RepairAction, id: &str) -> Spec {
    Spec { action, id: id.into() }
}
