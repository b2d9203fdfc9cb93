//! Processes that die, stop and lose their link in a random order from a seed: after each blow every session comes
//! back, and nothing is programmed differently. `WEIR_CHAOS_SEED` and `WEIR_CHAOS_ROUNDS` make it another or a longer one.

use crate::echo::{connects, ping_all};
use crate::lab::{Lab, SWITCHES, lab};
use crate::namespaces::{BOUND, wait};
use std::time::Duration;
use weir_base::world::Rng;
use weir_lab::process::{Record, Signal};

/// Rounds of a usual run, each of one to three blows.
const ROUNDS: u64 = 12;
/// Seed of a usual run.
const SEED: u64 = 7;
/// Longest that a process is stopped in a round, milliseconds: under and over what a peer waits for a sign of life.
const STOPPED_MS_MAX: u64 = 12_000;

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn controller(lab: &Lab) -> Record {
    lab.program("controller").unwrap()
}

/// Every session is there in both directions: each switch answers a question that goes by it.
fn wait_whole(lab: &Lab) {
    lab.wait_in_step();
    for switch in SWITCHES {
        wait(&format!("an answer of {switch}"), || lab.client().counters(switch).is_ok());
    }
}

/// Stops a process for a while.
fn stop_for(record: &Record, wait_ms: u64) {
    assert!(record.signal(Signal::STOP).unwrap(), "{} runs", record.command);
    std::thread::sleep(Duration::from_millis(wait_ms));
    assert!(record.signal(Signal::CONT).unwrap(), "{} runs", record.command);
}

/// One blow; in words.
fn strike(lab: &Lab, rng: &mut Rng) -> String {
    let member = SWITCHES[rng.below(SWITCHES.len() as u64) as usize];
    // An earlier blow of the round may have left it on its way back.
    for role in ["agent", "switch"] {
        wait(&format!("{role} of {member}"), || lab.child(member, role).is_some_and(|one| one.alive()));
    }
    match rng.below(10) {
        0..=2 => {
            lab.crash(member, "agent");
            format!("agent of {member} killed")
        }
        3..=5 => {
            lab.crash(member, "switch");
            format!("switch of {member} killed")
        }
        6 => {
            lab.kill(member);
            lab.start(member);
            format!("supervisor of {member} killed")
        }
        7 => {
            let (agent, wait_ms) = (lab.child(member, "agent").unwrap(), rng.below(STOPPED_MS_MAX));
            stop_for(&agent, wait_ms);
            format!("agent of {member} stopped for {wait_ms} ms")
        }
        8 => {
            let wait_ms = rng.below(STOPPED_MS_MAX);
            stop_for(&controller(lab), wait_ms);
            format!("controller stopped for {wait_ms} ms")
        }
        _ => {
            lab.kill("controller");
            std::thread::sleep(Duration::from_millis(rng.below(3000)));
            lab.start("controller");
            "controller killed".to_string()
        }
    }
}

#[test]
fn whatever_dies_or_stops_every_session_comes_back() {
    let Some(lab) = lab("chaos") else { return };
    let (seed, rounds) = (setting("WEIR_CHAOS_SEED", SEED), setting("WEIR_CHAOS_ROUNDS", ROUNDS));
    let mut rng = Rng::new(seed);
    let before = lab.programmed();
    for round in 1..=rounds {
        let blows: Vec<String> = (0..=rng.below(3)).map(|_| strike(&lab, &mut rng)).collect();
        println!("seed {seed}, round {round} of {rounds}: {}", blows.join("; "));
        wait_whole(&lab);
    }
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    for tenant in ["red", "blue"] {
        let (app, web) = (lab.netns(&format!("{tenant}-app")), lab.v4(&format!("{tenant}-web")));
        wait("traffic", || connects(&app, web, 80, Duration::from_secs(5)));
    }
}

#[test]
fn a_supervisor_that_died_leaves_no_second_agent() {
    let Some(lab) = lab("supervisor_crash") else { return };
    let before = lab.programmed();
    let (agent, switch) = (lab.child("h2", "agent").unwrap(), lab.child("h2", "switch").unwrap());
    lab.kill("h2");
    assert!(agent.alive() && switch.alive(), "they need no supervisor");
    lab.start("h2");
    wait("the end of the agent that was left", || !agent.alive());
    wait_whole(&lab);
    assert!(switch.alive(), "the switch is adopted");
    // A second supervisor would start a second agent, and the two would take the session from each other.
    let again = lab.command_in("h2").output().unwrap();
    let said = crate::lab::text(&again.stderr);
    assert!(!again.status.success() && said.contains("another supervisor runs"), "{said}");
    assert_eq!(lab.programmed(), before);
}

#[test]
fn processes_that_stop_for_long_come_back_without_being_started_again() {
    let Some(lab) = lab("stopped") else { return };
    let before = lab.programmed();
    let agents = SWITCHES.map(|member| lab.child(member, "agent").unwrap().pid);
    stop_for(&controller(&lab), STOPPED_MS_MAX);
    wait_whole(&lab);

    let agent = lab.child("h2", "agent").unwrap();
    assert!(agent.signal(Signal::STOP).unwrap());
    wait("the controller to give up h2", || {
        lab.switches().iter().any(|switch| switch.name == "h2" && !switch.connected)
    });
    assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")), "traffic needs no agent");
    assert!(agent.signal(Signal::CONT).unwrap());
    wait_whole(&lab);
    assert_eq!(SWITCHES.map(|member| lab.child(member, "agent").unwrap().pid), agents);
    assert_eq!(lab.programmed(), before);
}

#[test]
fn a_host_whose_link_was_cut_comes_back_when_the_link_does() {
    let Some(lab) = lab("cut_link") else { return };
    let before = lab.programmed();
    let host = lab.netns("h2");
    let log = || std::fs::read_to_string(lab.log("h2")).unwrap();
    let seen = log().len();
    // The address on the underlay stays, as on a machine whose configuration somebody keeps.
    host.sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1").unwrap();
    host.ip(&["link", "set", "dev", "eth0", "down"]).unwrap();
    wait("the controller to give up h2", || {
        lab.switches().iter().any(|switch| switch.name == "h2" && !switch.connected)
    });
    wait("the agent of h2 to give up the session", || log()[seen..].contains("no session with"));
    host.ip(&["link", "set", "dev", "eth0", "up"]).unwrap();
    wait_whole(&lab);
    assert!(connects(&lab.netns("red-app"), lab.v4("red-web"), 80, BOUND));
    assert_eq!(lab.programmed(), before);
}
