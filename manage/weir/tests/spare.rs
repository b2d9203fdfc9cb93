//! Controllers that are gone, hang, are cut off or lie are replaced by spares while traffic and changes go on, and come back as spares by command.

use crate::byzantine::{addition, wait_ended};
use crate::echo::Echo;
use crate::extra::Extra;
use crate::group::{Writer, connection, link, newcomer, wait_whole};
use crate::lab::{Lab, byzantine_lab, group_lab, text};
use crate::liar;
use crate::namespaces::wait;
use std::process::Stdio;
use weir_api::client::{Client, Context};
use weir_api::types::GroupStatus;
use weir_lab::process::Signal;

/// After how long a silent controller is replaced.
const AFTER_SECONDS: u64 = 6;

fn seen_by(lab: &Lab, controller: &str) -> Option<GroupStatus> {
    let context = Context { others: vec![], ..lab.context_of(controller) };
    Client::new(context).ok()?.group().ok()
}

fn with(group: &GroupStatus, spare: bool) -> Vec<u64> {
    let all = group.members.iter().filter(|member| member.spare == spare && (spare || member.voter));
    all.map(|member| member.id).collect()
}

/// These controllers know these voters and spares, and how far the spares are.
fn wait_so(lab: &Lab, at: &[&str], voters: &[u64], spares: &[u64]) {
    wait(&format!("voters {voters:?} and spares {spares:?}"), || {
        at.iter().all(|one| {
            seen_by(lab, one)
                .is_some_and(|group| with(&group, false) == voters && with(&group, true) == spares)
        })
    });
}

/// Every controller is started again with a wait after which silent ones are replaced.
fn replaces(lab: &Lab) {
    std::fs::write(lab.folder().join("replace-after"), AFTER_SECONDS.to_string()).unwrap();
    for one in lab.controllers() {
        lab.kill(one);
        lab.start(one);
        wait(&format!("{one} to be there"), || seen_by(lab, one).is_some());
    }
    wait_whole(lab);
}

/// Starts a controller that waits to be added, and makes it a spare by command.
fn spare(lab: &Lab, id: u64, arguments: &[String]) {
    let name = format!("c{id}");
    if lab.program(&name).is_none_or(|one| !one.alive()) {
        lab.start(&name);
    }
    let begin = || {
        let mut command = lab.command();
        command.args(arguments).arg("--spare").stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let (mut running, mut done) = (begin(), false);
    wait(&format!("controller {id} to be a spare"), || {
        if !done && let Ok(Some(status)) = running.try_wait() {
            done = status.success();
            if !done {
                running = begin();
            }
        }
        done
    });
    let listed = lab.ok(&["group", "list"]);
    assert!(
        listed.lines().any(|line| line.contains(&format!(" {id} ")) && line.contains("spare")),
        "{listed}"
    );
}

/// A command that all who are left agree on says so, and the audit has why.
fn told(lab: &Lab, words: &str, audit: &str) {
    wait(&format!("'{words}' to be listed"), || text(&lab.weir(&["group", "list"]).stdout).contains(words));
    let events = lab.weir(&["audit", "list", "--kind", "event", "--last", "2000"]);
    let said = text(&events.stdout);
    assert!(said.contains(audit), "{said} {}", text(&events.stderr));
}

/// Writes and a connection go on at four of which some may lie, with one spare.
fn of_four(lab: &Lab, scenario: &str, extra: &Extra) -> (Writer, Echo) {
    wait_whole(lab);
    replaces(lab);
    spare(lab, 5, &addition(lab, 5));
    wait_so(lab, &["c1", "c2", "c3", "c4"], &[1, 2, 3, 4], &[5]);
    let held = (Writer::with(lab.context_of("c1"), scenario), connection(lab));
    newcomer(lab, extra, 11);
    held
}

const LIES: &str = "spare::one_that_lies_is_replaced_at_once";

#[test]
fn one_that_lies_is_replaced_at_once() {
    if liar::lies() {
        return;
    }
    let Some(lab) = byzantine_lab("byzantine_spare") else { return };
    let extra = Extra::begin();
    let (writer, echo) = of_four(&lab, "lies", &extra);
    // It votes for two things: whoever has both votes proves it, and the others check that.
    lab.kill("c4");
    let lying = liar::begin(&lab, LIES, liar::EQUIVOCATES, liar::OF_FOUR);
    wait_so(&lab, &["c1", "c2", "c3"], &[1, 2, 3, 5], &[]);
    drop(lying);
    told(&lab, "Controller 4 was replaced by spare 5", "controller 4 lied");
    writer.goes_on();
    echo.goes_on();
    newcomer(&lab, &extra, 12);
    writer.ends();
    assert!(echo.close() > 0);
    lab.spent();
}

#[test]
fn one_that_hangs_is_replaced_after_its_time_once_an_hour_and_comes_back_as_a_spare() {
    let Some(lab) = byzantine_lab("byzantine_spare_hangs") else { return };
    let extra = Extra::begin();
    let (writer, echo) = of_four(&lab, "hangs", &extra);
    let hangs = lab.program("c3").unwrap();
    assert!(hangs.signal(Signal::STOP).unwrap());
    wait_so(&lab, &["c1", "c2", "c4", "c5"], &[1, 2, 4, 5], &[]);
    writer.goes_on();
    newcomer(&lab, &extra, 13);
    told(
        &lab,
        "Controller 3 was replaced by spare 5",
        "does not hear controller 3: after 6 s it is to be replaced",
    );
    // It finds that out when it goes on, and comes back as a spare, with all that it has.
    assert!(hangs.signal(Signal::CONT).unwrap());
    wait_ended(&lab, "c3", "no member of the group any more");
    lab.ok(&["lab", "start", "c3", "four-controllers", "--instance", "9", "--join-group"]);
    spare(&lab, 3, &addition(&lab, 3));
    // It takes no place in the same hour, whoever is gone.
    lab.kill("c2");
    writer.goes_on();
    wait("the suspicion to be listed", || {
        let listed = text(&lab.weir(&["group", "list"]).stdout);
        listed.contains("Controller 2 is suspected by 1, 4, 5")
    });
    std::thread::sleep(std::time::Duration::from_secs(2 * AFTER_SECONDS));
    wait_so(&lab, &["c1", "c4", "c5"], &[1, 2, 4, 5], &[3]);
    lab.start("c2");
    newcomer(&lab, &extra, 14);
    writer.ends();
    assert!(echo.close() > 0);
    lab.spent();
}

/// Three of which one goes in some way, and one spare.
fn of_three(scenario: &str, goes: impl Fn(&Lab), back: impl Fn(&Lab)) {
    let Some(lab) = group_lab(scenario) else { return };
    wait_whole(&lab);
    replaces(&lab);
    let extra = Extra::begin();
    let at = |port: u16| format!("198.18.{}.4:{port}", 77 + 10 + 9);
    let (replica, api, session) = (at(7445), at(7443), at(7444));
    let words = ["group", "add", "4", "--replica", &replica, "--api", &api, "--session", &session];
    let arguments: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
    spare(&lab, 4, &arguments);
    wait_so(&lab, &["c1", "c2", "c3"], &[1, 2, 3], &[4]);
    let (writer, echo) = (Writer::with(lab.context_of("c1"), scenario), connection(&lab));
    goes(&lab);
    wait_so(&lab, &["c1", "c2"], &[1, 2, 4], &[]);
    writer.goes_on();
    echo.goes_on();
    told(
        &lab,
        "Controller 3 was replaced by spare 4",
        "does not hear controller 3: after 6 s it is to be replaced",
    );
    newcomer(&lab, &extra, 21);
    // The spare decides now: two of the three are enough.
    lab.kill("c2");
    writer.goes_on();
    lab.start("c2");
    back(&lab);
    newcomer(&lab, &extra, 22);
    writer.ends();
    assert!(echo.close() > 0);
    lab.spent();
}

#[test]
fn one_that_is_killed_is_replaced_and_comes_back_as_a_spare() {
    of_three(
        "group_spare",
        |lab| lab.kill("c3"),
        |lab| {
            let state = lab.folder().join("c3/state").display().to_string();
            lab.ok(&["state", "rejoin", "--yes", "--state", &state]);
            lab.ok(&["lab", "start", "c3", "three-controllers", "--instance", "9", "--join-group"]);
            let at = |port: u16| format!("198.18.{}.3:{port}", 77 + 10 + 9);
            let (replica, api, session) = (at(7445), at(7443), at(7444));
            let words = ["group", "add", "3", "--replica", &replica, "--api", &api, "--session", &session];
            let arguments: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
            spare(lab, 3, &arguments);
            wait_so(lab, &["c1", "c2", "c4"], &[1, 2, 4], &[3]);
        },
    );
}

#[test]
fn one_that_is_cut_off_is_replaced_and_disturbs_nobody_when_it_is_back() {
    of_three(
        "group_spare_cut_off",
        |lab| link(lab, "c3", "down"),
        |lab| {
            link(lab, "c3", "up");
            std::thread::sleep(std::time::Duration::from_secs(5));
            wait_so(lab, &["c1", "c4"], &[1, 2, 4], &[]);
            lab.kill("c3");
        },
    );
}
