//! Machines that are broken on purpose: the same checker must catch them, or it checks nothing.

use super::machine::{Broken, Life};

fn caught(broken: Broken, lives: u64, rot_newest: bool) -> Option<String> {
    (0..lives).find_map(|seed| {
        let mut life = Life::new(seed, broken);
        life.run(60).err().or_else(|| if rot_newest { life.rot_newest_snapshot().err() } else { None })
    })
}

#[test]
fn answering_before_the_sync_is_caught() {
    let what = caught(Broken::AnswersBeforeSync, 200, false).expect("nobody noticed");
    assert!(what.contains("was settled as proposal"), "{what}");
}

#[test]
fn going_on_after_a_failed_sync_is_caught() {
    let what = caught(Broken::IgnoresFailedSync, 400, false).expect("nobody noticed");
    assert!(what.contains("was settled as proposal") || what.contains("damaged"), "{what}");
}

#[test]
fn keeping_too_little_log_is_caught_when_the_newest_snapshot_rots() {
    let what = caught(Broken::TruncatesBelowNewest, 400, true).expect("nobody noticed");
    assert!(what.contains("the log holds"), "{what}");
}

#[test]
fn a_sound_machine_survives_a_rotten_newest_snapshot() {
    assert_eq!(caught(Broken::No, 400, true), None);
}
