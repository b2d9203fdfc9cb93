//! A group of four controllers of which one may do whatever it likes: one after the other dies, stops and is cut off while changes go on.
//! Each time no write that was acknowledged is lost, traffic goes on, new endpoints come up, and no switch is programmed
//! differently. Any three order, decide and sign.

use crate::extra::Extra;
use crate::group::{Callers, Writer, connection, leader, link, newcomer, same_state, wait_known, wait_whole};
use crate::lab::{Lab, byzantine_lab};
use crate::namespaces::wait;
use weir_api::client::{Client, Context};
use weir_lab::process::Signal;

/// One of the others.
fn another(lab: &Lab, than: &str) -> &'static str {
    lab.controllers().iter().copied().find(|one| *one != than).unwrap()
}

/// A client that asks one controller only.
fn alone(lab: &Lab, controller: &str) -> Client {
    Client::new(Context { others: vec![], ..lab.context_of(controller) }).unwrap()
}

/// How a controller sees its group; nothing while it does not answer.
fn seen_by(lab: &Lab, controller: &str) -> Option<weir_api::types::GroupStatus> {
    alone(lab, controller).status_here().ok()?.group
}

/// Every controller that runs takes somebody else for the one that sends.
fn wait_passed_over(lab: &Lab, gone: &str) {
    wait(&format!("{gone} to be passed over"), || {
        let others = lab.controllers().iter().filter(|one| **one != gone);
        others.into_iter().all(|one| {
            seen_by(lab, one).is_some_and(|group| group.leader.is_some_and(|id| format!("c{id}") != gone))
        })
    });
}

#[test]
fn any_one_may_be_killed_and_stopped_while_changes_go_on() {
    let Some(lab) = byzantine_lab("byzantine_killed") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    wait_known(&lab);
    let before = lab.programmed();
    let writer = Writer::begin(&lab, "killed");
    let callers = Callers::begin(&lab, "killed");

    // The one that sends dies, then another one.
    let first = leader(&lab, "");
    for (number, victim) in [(31, first.as_str()), (32, another(&lab, &first))] {
        lab.kill(victim);
        echo.goes_on();
        wait_passed_over(&lab, victim);
        writer.goes_on();
        newcomer(&lab, &extra, number);
        lab.start(victim);
        wait_whole(&lab);
    }

    // And stops.
    let first = leader(&lab, "");
    for (number, victim) in [(33, first.as_str()), (34, another(&lab, &first))] {
        let stopped = lab.program(victim).unwrap();
        assert!(stopped.signal(Signal::STOP).unwrap());
        wait_passed_over(&lab, victim);
        writer.goes_on();
        newcomer(&lab, &extra, number);
        assert!(stopped.signal(Signal::CONT).unwrap());
        wait_whole(&lab);
    }

    echo.goes_on();
    callers.ends();
    writer.ends();
    same_state(&lab);
    let after = lab.programmed();
    for (switch, entries) in before {
        assert!(entries.iter().all(|(key, version)| after[switch].get(key) == Some(version)), "{switch}");
    }
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}

#[test]
fn any_one_may_be_cut_off_while_changes_go_on() {
    let Some(lab) = byzantine_lab("byzantine_cut") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let writer = Writer::begin(&lab, "cut");
    let callers = Callers::begin(&lab, "cut");
    let first = leader(&lab, "");
    for (number, victim) in [(35, first.as_str()), (36, another(&lab, &first))] {
        link(&lab, victim, "down");
        wait("the others to go on", || {
            lab.controllers().iter().filter(|one| **one != victim).all(|one| {
                seen_by(&lab, one)
                    .is_some_and(|group| group.leader.is_some_and(|id| format!("c{id}") != victim))
            })
        });
        writer.goes_on();
        newcomer(&lab, &extra, number);
        link(&lab, victim, "up");
        wait_whole(&lab);
    }
    callers.ends();
    writer.ends();
    same_state(&lab);
}

#[test]
fn every_member_takes_what_is_asked_and_none_joins() {
    let Some(lab) = byzantine_lab("byzantine_members") else { return };
    wait_whole(&lab);
    for one in lab.controllers() {
        let file = lab.folder().join(format!("{one}-alone.json"));
        let context = Context { others: vec![], ..lab.context_of(one) };
        std::fs::write(&file, serde_json::to_string(&context).unwrap()).unwrap();
        let (file, table) = (file.display().to_string(), format!("test/at-{one}"));
        lab.ok(&["store", "create", &table, "--context", &file]);
        lab.ok(&["store", "put", &table, "k", one, "--context", &file]);
        // What one took every other shows at once.
        for other in lab.controllers() {
            let other = lab.folder().join(other).join("state/admin.json").display().to_string();
            assert_eq!(lab.ok(&["store", "get", &table, "k", "--raw", "--context", &other]), *one);
        }
    }
    assert!(lab.ok(&["group", "list"]).contains("Group of 4 controllers; 1 may lie"));
    let refused = lab.weir(&["group", "remove", "4"]);
    let said = crate::lab::text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("do not join or leave the group"), "{said}");
}
