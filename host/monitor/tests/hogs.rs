//! Memory hogs in a cage.

use crate::cage::{Cage, Watched, until};
use weir_monitor::audit::What;

#[test]
fn the_tree_that_holds_the_memory_goes_and_innocents_live() {
    const NAME: &str = "the_tree_that_holds_the_memory_goes_and_innocents_live";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut innocent = cage.start("while :; do sleep 0.05; done");
    cage.wait_for(1);
    let text = format!(
        "kind: memory-hog\nname: cage\ncgroup: {}\nmemory: {}\ndry-run: false\nwhen: {{ used-percent: 50 }}\n",
        cage.folder.display(),
        cage.memory().display()
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    // A controller with three hogs of 50 MiB: only together do they pass the limit, so none of them holds half of it
    // when the alarm comes, however unequally they ran.
    let hog = "head -c 50M /dev/zero | tail -c 50M | sleep 1000 &";
    let mut hogs = cage.start(&format!("{hog} {hog} {hog} wait"));
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("memory-used-bytes", "acted"), "{alarm:?}");
    assert!(alarm.found >= alarm.limit && alarm.limit <= 128 << 20, "{alarm:?}");
    let culprit = alarm.culprit.as_ref().map(|culprit| culprit.process);
    assert_eq!(culprit, Some(hogs.id()), "the controller: {alarm:?}");
    assert!(alarm.signalled >= 4, "the controller and its three: {alarm:?}");
    watched.wait_for("the end of the hogs", |entry| matches!(entry.what, What::Settled { .. }));
    hogs.wait().unwrap();
    until("the innocent alone", || cage.processes().len() <= 2);
    assert!(innocent.try_wait().unwrap().is_none(), "the innocent process was killed");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[test]
fn a_whitelisted_hog_is_left_alone() {
    const NAME: &str = "a_whitelisted_hog_is_left_alone";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let text = format!(
        "kind: memory-hog\nname: cage\ncgroup: {}\nmemory: {}\ndry-run: false\nwhitelist: [tail]\n\
         when: {{ used-bytes: 67108864 }}\n",
        cage.folder.display(),
        cage.memory().display()
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut hog = cage.start("head -c 100M /dev/zero | tail -c 100M | sleep 1000");
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.outcome.as_str(), alarm.signalled), ("nobody-to-blame", 0), "{alarm:?}");
    assert!(hog.try_wait().unwrap().is_none());
    drop(cage);
    hog.wait().unwrap();
}
