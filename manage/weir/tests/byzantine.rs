//! A group of four controllers of which one may do whatever it likes: one after the other dies, stops and is cut off while changes go on.
//! Members come and go, and are killed meanwhile. Each time no write that was acknowledged is lost, traffic goes on, new endpoints come up, and no switch is programmed
//! differently. Any three order, decide and sign.

use crate::extra::Extra;
use crate::flooder::{self, Flood};
use crate::group::{Callers, Writer, connection, leader, link, newcomer, same_state, wait_known, wait_whole};
use crate::lab::{Lab, byzantine_lab};
use crate::liar;
use crate::namespaces::wait;
use std::process::Stdio;
use weir_api::client::{Client, Context};
use weir_lab::Netns;
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

/// How a controller speaks with others: by its second address, or as before.
struct Speaks {
    netns: Netns,
    network: String,
    usual: String,
    other: String,
}

impl Speaks {
    fn of(lab: &Lab, controller: &str) -> Speaks {
        let netns = lab.netns(controller);
        let routes = netns.ip(&["-o", "-4", "route", "show", "dev", "eth0"]).unwrap();
        let route = routes.lines().find(|line| line.contains(" src ")).unwrap();
        let words: Vec<&str> = route.split_whitespace().collect();
        let usual = words[words.iter().position(|word| *word == "src").unwrap() + 1].to_owned();
        let (rest, number) = usual.rsplit_once('.').unwrap();
        let other = format!("{rest}.{}", number.parse::<u8>().unwrap() + 100);
        Speaks { network: words[0].to_owned(), usual, other, netns }
    }

    fn by(&self, address: &str) {
        self.netns.ip(&["route", "replace", &self.network, "dev", "eth0", "src", address]).unwrap();
    }

    /// The own addresses of links that it opened to the others' replicas.
    fn links(&self) -> Vec<String> {
        let mut ss = self.netns.command("ss");
        let said = ss.args(["-tnH", "state", "established", "( dport = :7445 )"]).output().unwrap();
        let own = |line: &str| Some(line.split_whitespace().nth(2)?.rsplit_once(':')?.0.to_owned());
        crate::lab::text(&said.stdout).lines().filter_map(own).collect()
    }
}

#[test]
fn members_that_speak_from_another_address_than_they_are_listed_at_are_known_by_their_keys() {
    let Some(lab) = byzantine_lab("byzantine_source") else { return };
    wait_whole(&lab);
    let writer = Writer::begin(&lab, "source");
    let all: Vec<Speaks> = lab.controllers().iter().map(|one| Speaks::of(&lab, one)).collect();
    for (one, speaks) in lab.controllers().iter().zip(&all) {
        speaks.netns.ip(&["address", "add", &format!("{}/32", speaks.other), "dev", "eth0"]).unwrap();
        speaks.by(&speaks.other);
        lab.kill(one);
        lab.start(one);
        wait_whole(&lab);
    }
    writer.goes_on();
    let links: Vec<String> = all.iter().flat_map(Speaks::links).collect();
    assert!(links.len() >= all.len() - 1, "{links:?}");
    assert!(links.iter().all(|own| all.iter().any(|speaks| speaks.other == *own)), "{links:?}");
    // Each of the others is needed now.
    lab.kill("c1");
    writer.goes_on();
    lab.start("c1");
    wait_whole(&lab);
    for (one, speaks) in lab.controllers().iter().zip(&all) {
        speaks.by(&speaks.usual);
        lab.kill(one);
        speaks.netns.ip(&["address", "del", &format!("{}/32", speaks.other), "dev", "eth0"]).unwrap();
        lab.start(one);
        wait_whole(&lab);
    }
    writer.ends();
    same_state(&lab);
}

#[test]
fn every_member_takes_what_is_asked_and_three_are_too_few() {
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
    let refused = lab.weir(&["group", "remove", "4", "--yes"]);
    let said = crate::lab::text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("3 controllers would be left"), "{said}");
}

/// The members that a controller knows; none while it does not answer.
pub fn members_at(lab: &Lab, controller: &str) -> Vec<u64> {
    let group = seen_by(lab, controller);
    group.map(|group| group.members.iter().map(|member| member.id).collect()).unwrap_or_default()
}

/// The group's key, as soon as a controller that answers knows it.
fn group_key(lab: &Lab) -> String {
    let mut key = None;
    wait("the group's key", || {
        key = lab.client().group().ok().and_then(|group| group.signing?.key);
        key.is_some()
    });
    key.unwrap()
}

/// An operator repeats a command until it has succeeded and these controllers know these members; `meanwhile` happens once, while the first
/// try is under way.
pub fn change(lab: &Lab, arguments: &[&str], members: &[u64], at: &[&str], meanwhile: impl FnOnce()) {
    let begin = || lab.command().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut running = begin();
    meanwhile();
    let mut done = false;
    wait(&format!("weir {} to be in force", arguments.join(" ")), || {
        if !done && let Ok(Some(status)) = running.try_wait() {
            done = status.success();
            if !done {
                running = begin();
            }
        }
        done && at.iter().all(|one| members_at(lab, one) == members)
    });
}

pub fn addition(lab: &Lab, id: u64) -> Vec<String> {
    let state = lab.folder().join(format!("c{id}/state"));
    let key = lab.ok(&["group", "identity", "--state", &state.display().to_string()]).trim().to_owned();
    // The underlay of the ninth instance, behind the twenty of the other kinds.
    let address = |port: u16| format!("198.18.{}.{id}:{port}", 77 + 20 + 9);
    let (replica, api, session) = (address(7445), address(7443), address(7444));
    let text = ["group", "add", &id.to_string(), "--replica", &replica, "--api", &api, "--session", &session];
    text.into_iter().map(str::to_owned).chain(["--key".to_owned(), key]).collect()
}

pub fn add(lab: &Lab, id: u64, members: &[u64], at: &[&str], meanwhile: impl FnOnce()) {
    let arguments = addition(lab, id);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    change(lab, &arguments, members, at, meanwhile);
}

/// A program ends by itself, and its log says why.
pub fn wait_ended(lab: &Lab, program: &str, why: &str) {
    wait(&format!("{program} to end by itself"), || lab.program(program).is_none_or(|one| !one.alive()));
    wait(&format!("the log of {program} to say why"), || {
        std::fs::read_to_string(lab.log(program)).is_ok_and(|log| log.contains(why))
    });
}

/// One controller is a program that lies: changes and traffic go on, and no switch is programmed differently. Who votes for two things is convicted
/// by its own votes, and then goes as soon as the others are enough: that is in the labs of spares and of seven.
fn one_lies(lab: &Lab, extra: &Extra, writer: &Writer) {
    let echo = connection(lab);
    wait_known(lab);
    let before = lab.programmed();
    lab.kill("c4");
    wait_passed_over(lab, "c4");
    let kinds = liar::KINDS.into_iter().filter(|kind| *kind != liar::EQUIVOCATES);
    for (number, kind) in (40..).zip(kinds) {
        let lying = liar::begin(lab, COME_AND_GO, kind, liar::OF_FOUR);
        writer.goes_on();
        newcomer(lab, extra, number);
        drop(lying);
        echo.goes_on();
    }
    assert!(echo.close() > 0);
    let after = lab.programmed();
    for (switch, entries) in before {
        assert!(entries.iter().all(|(key, version)| after[switch].get(key) == Some(version)), "{switch}");
    }
    // The others cut it off as long as they run: started again, one after the other, they take it back. Until then three are all there are.
    lab.start("c4");
    for one in ["c1", "c2", "c3"] {
        lab.kill(one);
        lab.start(one);
        wait(&format!("{one} to be there"), || seen_by(lab, one).is_some());
        writer.goes_on();
    }
    wait_whole(lab);
    lab.start("nginx-red-db");
}

const COME_AND_GO: &str = "byzantine::one_lies_and_members_come_and_go_under_load_and_are_killed_meanwhile";

#[test]
fn one_lies_and_members_come_and_go_under_load_and_are_killed_meanwhile() {
    if liar::lies() {
        return;
    }
    let Some(lab) = byzantine_lab("byzantine_come_and_go") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let key = group_key(&lab);
    let writer = Writer::begin(&lab, "come-and-go");
    let callers = Callers::begin(&lab, "come-and-go");

    // Before any change of members: the liar knows the founders only.
    one_lies(&lab, &extra, &writer);

    // A fifth.
    lab.start("c5");
    add(&lab, 5, &[1, 2, 3, 4, 5], &["c1", "c2", "c3", "c4", "c5"], || {});
    writer.goes_on();
    newcomer(&lab, &extra, 37);
    // What it orders itself is taken by all: the others have introduced its key.
    wait("the key of the fifth to be known", || {
        let listed = lab.weir(&["identity", "list", "-o", "json"]);
        let listed: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        listed.iter().any(|one| one["source"] == "controller/controller-5" && !one["key"].is_null())
    });
    let fifth = lab.folder().join("c5-alone.json");
    let context = Context { others: vec![], ..lab.context_of("c5") };
    std::fs::write(&fifth, serde_json::to_string(&context).unwrap()).unwrap();
    let fifth = fifth.display().to_string();
    let arguments = ["apply", "-f", "-", "--yes", "--wait-s", "30", "--context", &fifth];
    let said = lab.weir_with_input(&arguments, "kind: network\nname: said-by-five\n");
    assert!(said.status.success(), "{}", crate::lab::text(&said.stderr));
    assert!(lab.ok(&["get", "networks"]).contains("said-by-five"));

    // One less; another one dies meanwhile.
    change(&lab, &["group", "remove", "3", "--yes"], &[1, 2, 4, 5], &["c1", "c4", "c5"], || lab.kill("c2"));
    writer.goes_on();
    wait_ended(&lab, "c3", "no member of the group any more");
    lab.start("c2");
    wait("c2 to follow into the epoch that it missed", || members_at(&lab, "c2") == [1, 2, 4, 5]);
    newcomer(&lab, &extra, 38);

    // Who was removed comes back with all that it has; another one dies meanwhile.
    lab.ok(&["lab", "start", "c3", "four-controllers", "--instance", "9", "--join-group"]);
    add(&lab, 3, &[1, 2, 3, 4, 5], &["c1", "c2", "c3", "c5"], || lab.kill("c4"));
    writer.goes_on();
    lab.start("c4");
    wait("c4 to follow into the epoch that it missed", || members_at(&lab, "c4") == [1, 2, 3, 4, 5]);

    // And the fifth goes.
    change(&lab, &["group", "remove", "5", "--yes"], &[1, 2, 3, 4], &["c1", "c2", "c3", "c4"], || {});
    wait_ended(&lab, "c5", "no member of the group any more");
    wait_whole(&lab);
    newcomer(&lab, &extra, 39);
    callers.ends();
    writer.ends();
    same_state(&lab);
    assert_eq!(group_key(&lab), key, "the group's key is what it was");
    let metrics = alone(&lab, "c1").metrics().unwrap_or_default();
    assert!(metrics.contains("weir_controller_log_seconds_total{what=\"epoch_pause\"}"), "{metrics}");
}

const FLOODED: &str = "byzantine::hosts_that_a_member_floods_go_on_and_leave_it_alone";

/// A number of all hosts' agents together.
fn of_agents(lab: &Lab, metric: &str) -> u64 {
    ["h1", "h2", "h3"].iter().map(|host| crate::clocks::of_agent(lab, host, metric)).sum()
}

#[test]
fn hosts_that_a_member_floods_go_on_and_leave_it_alone() {
    if flooder::floods() {
        return;
    }
    let Some(lab) = byzantine_lab("byzantine_floods") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let echo = connection(&lab);
    wait_known(&lab);
    let before = lab.programmed();
    let writer = Writer::begin(&lab, "floods");
    lab.kill("c4");
    for (number, flood) in (20..).zip(flooder::FLOODS) {
        let name = match flood {
            Flood::Asks => "weir_agent_session_questions_refused_total",
            _ => "weir_agent_session_bad_conduct_total",
        };
        let counted = of_agents(&lab, name);
        let flooding = flooder::begin(&lab, FLOODED, flood);
        wait(&format!("hosts to have enough of {flood:?}"), || of_agents(&lab, name) > counted);
        writer.goes_on();
        newcomer(&lab, &extra, number);
        echo.goes_on();
        drop(flooding);
    }
    // Who did it is named, by the word of each host, to whoever asks any controller; and the audit has that word with the host's signature.
    wait("hosts to have told of the fourth", || {
        let status = alone(&lab, "c1").status_here();
        let told =
            |one: &weir_api::types::ActuatorStatus| one.conduct.iter().any(|one| one.member == Some(4));
        status.is_ok_and(|status| status.actuators.iter().filter(|one| told(one)).count() >= 3)
    });
    let said = lab.ok(&["status"]);
    assert!(said.contains("h1: says: controller 4 sent"), "{said}");
    assert!(!said.contains("says: controller 1 "), "{said}");
    let listed = lab.ok(&["audit", "list", "--kind", "event", "--last", "2000"]);
    assert!(
        listed.contains("h1 says that the controller at") && listed.contains("actuator/h1/agent"),
        "{listed}"
    );
    lab.ok(&["audit", "verify"]);
    // And it comes back when it is honest: what it did is forgiven in time.
    lab.start("c4");
    wait_whole(&lab);
    writer.ends();
    same_state(&lab);
    let after = lab.programmed();
    for (switch, entries) in before {
        assert!(entries.iter().all(|(key, version)| after[switch].get(key) == Some(version)), "{switch}");
    }
    assert!(echo.close() > 0);
    lab.start("nginx-red-db");
}
