//! A group of four whose controllers begin to endorse changes while it runs: switches take enough endorsements, changes go on while one
//! endorses with a key that is not its own, and the agents name it; then the controllers cease to.
//!
//! The one that lies is a real controller whose identity was exchanged on its disk: its share of the group's key is right, its
//! endorsements are not.

use crate::extra::Extra;
use crate::group::{connection, newcomer, wait_known, wait_whole};
use crate::lab::{Lab, byzantine_lab, text};
use crate::namespaces::wait;
use std::cell::Cell;

/// The host of the newcomers.
const HOST: &str = "h1";
/// Number of the first newcomer.
const FIRST: u8 = 1;

fn counter(lab: &Lab, name: &str) -> u64 {
    let counters = lab.counters(HOST);
    counters.iter().filter(|(counter, _)| counter.ends_with(name)).map(|(_, count)| count).sum()
}

/// Starts all controllers anew, one after the other.
fn restart(lab: &Lab) {
    for one in lab.controllers() {
        lab.kill(one);
        lab.start(one);
        wait_whole(lab);
    }
}

fn log(lab: &Lab) -> String {
    std::fs::read_to_string(lab.log(HOST)).unwrap()
}

#[test]
fn switches_take_endorsements_and_one_that_endorses_wrongly_is_named_and_stops_nothing() {
    let Some(lab) = byzantine_lab("endorsed") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    // The settings of a controller are written when it starts.
    let settings = lab.folder().join("signatures");
    std::fs::write(&settings, "endorsed").unwrap();
    restart(&lab);
    wait_known(&lab);
    let number = Cell::new(FIRST);
    let change = || {
        newcomer(&lab, &extra, number.get());
        number.set(number.get() + 1);
    };
    change();
    wait("a switch to take endorsements", || {
        if counter(&lab, "updates_endorsed") == 0 {
            change();
        }
        counter(&lab, "updates_endorsed") > 0
    });
    // What a packet to or from a newcomer meets is shown with who signed it.
    let traced = |from: &str, to: &str| lab.weir(&["trace", from, to, "--protocol", "tcp", "--port", "5432"]);
    let shown = (FIRST..number.get()).any(|number| {
        let late = format!("late-{number}");
        let both = [traced(&format!("red/{late}"), "db"), traced("red/app", &late)];
        both.iter().any(|output| text(&output.stdout).contains("endorsed by c"))
    });
    assert!(shown, "a trace names who endorsed");

    // Its share is right and its endorsements are not.
    let identity = lab.folder().join("c4/state/quorum/identity");
    let own = std::fs::read(&identity).unwrap();
    lab.kill("c4");
    let exchange = |with: &[u8]| {
        std::fs::write(&identity, with).unwrap();
        // Its own manifest would refuse another identity.
        let state = lab.folder().join("c4/state").display().to_string();
        let taken = lab.weir(&["state", "accept", "--state", &state, "--yes"]);
        assert!(taken.status.success(), "{}", text(&taken.stderr));
    };
    exchange("5".repeat(64).as_bytes());
    let told = log(&lab).len();
    lab.start("c4");
    wait_whole(&lab);
    // A switch looks only at as many endorsements as it needs, and the liar's may never be among them while all others
    // endorse: one of those rests meanwhile.
    lab.kill("c3");
    wait("the liar to be named", || {
        change();
        log(&lab)[told..].contains("its endorsement, is bad")
    });
    lab.start("c3");
    wait_whole(&lab);
    let before = counter(&lab, "updates_endorsed");
    // From then on the others' are taken.
    change();
    change();
    assert!(counter(&lab, "updates_endorsed") > before);
    let address = lab.v4("c4").to_string();
    let named = log(&lab)[told..].to_string();
    let mut named = named.lines().filter(|line| line.contains("its endorsement, is bad"));
    assert!(named.all(|line| line.contains(&address)), "only {address} lied");

    lab.kill("c4");
    exchange(&own);
    lab.start("c4");
    wait_whole(&lab);
    std::fs::remove_file(&settings).unwrap();
    restart(&lab);
    let before = counter(&lab, "updates_endorsed");
    change();
    assert_eq!(counter(&lab, "updates_endorsed"), before, "they do not endorse any more");
    assert!(echo.close() > 0, "traffic went on");
}
