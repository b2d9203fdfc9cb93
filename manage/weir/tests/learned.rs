//! A learned network in a real lab: places come from packets (rows B10 and C8, decision 0019).

use crate::extra::{Extra, Pair, configure, endpoint, ip, network, pair, wait_carrier};
use crate::lab::{Lab, lab, text};
use crate::namespaces::wait;
use std::net::IpAddr;
use std::process::Stdio;
use weir_lab::Netns;
use weir_lab::probe::ping;

/// Destinations of the flood: many more than a port may ask for at once.
const FLOOD: u64 = 16 * 250;

/// Whether most echo requests come back: the first of a flow may wait longer than a probe does.
fn answers(from: &Netns, to: IpAddr) -> bool {
    let options = ping::Options { count: 3, ..ping::Options::default() };
    ping::run(from, to, &options).is_ok_and(|report| report.all())
}

/// A counter of a switch; 0 while the controller does not answer or nothing was counted.
fn counter(lab: &Lab, switch: &str, name: &str) -> u64 {
    lab.client().counters(switch).ok().and_then(|all| all.get(name).copied()).unwrap_or_default()
}

fn devices(lab: &Lab, network: &str) -> Vec<(String, Option<String>)> {
    let seen = lab.client().devices(Some(network)).map(|list| list.items).unwrap_or_default();
    seen.into_iter().map(|device| (device.addresses.join(","), device.host)).collect()
}

fn learned_pair(lab: &Lab, extra: &Extra, name: &str) -> Pair {
    pair(lab, extra, name, "forwarding: learned")
}

#[test]
fn places_are_learned_from_packets_and_known_flows_go_on_without_a_controller() {
    let Some(lab) = lab("learned_pings") else { return };
    let extra = Extra::begin();
    let ends = learned_pair(&lab, &extra, "lea");
    wait("answers of b", || answers(&ends.a, ip("10.7.0.12")));
    wait("answers of a over IPv6", || answers(&ends.b, ip("fd00:7::11")));
    wait("both devices where they are", || {
        let seen = devices(&lab, "lea");
        let at = |address: &str, host: &str| {
            seen.iter().any(|(addresses, at)| {
                addresses.split(',').any(|one| one == address) && at.as_deref() == Some(host)
            })
        };
        at("10.7.0.11", "h1") && at("10.7.0.12", "h2")
    });
    wait("the devices as people see them", || {
        let shown = text(&lab.weir(&["get", "devices", "lea"]).stdout);
        shown.contains("10.7.0.11") && shown.contains("h2")
    });
    wait("counters of the questions", || {
        counter(&lab, "h1", "questions_answered") > 0 && counter(&lab, "h2", "questions_answered") > 0
    });
    lab.kill("controller");
    // It stays dead: nobody could learn anything meanwhile.
    wait("known flows without a controller", || {
        answers(&ends.a, ip("10.7.0.12")) && answers(&ends.b, ip("10.7.0.11"))
    });
    lab.start("controller");
    wait("every switch connected", || {
        let switches = lab.switches();
        !switches.is_empty() && switches.iter().all(|one| one.connected)
    });
    wait("answers as before", || answers(&ends.a, ip("10.7.0.12")));
    // It remembers what it had learned.
    wait("the devices", || devices(&lab, "lea").len() == 2);
}

#[test]
fn an_endpoint_that_moves_is_found_at_its_new_place() {
    let Some(lab) = lab("learned_move") else { return };
    let extra = Extra::begin();
    let (before, after, witness) = (extra.netns("lm-old"), extra.netns("lm-new"), extra.netns("lm-wit"));
    let base = network("leamove", "forwarding: learned", "v4: 10.9.0.0/24")
        + &endpoint("leamove", "witness", "h3", &["10.9.0.12"], &witness);
    let placed = |host: &str, netns: &Netns| endpoint("leamove", "mover", host, &["10.9.0.11"], netns);
    lab.apply(&(base + &placed("h1", &before)));
    configure(&witness, "10.9.0.12/24", "10.9.0.1");
    configure(&before, "10.9.0.11/24", "10.9.0.1");
    wait("answers from the old place", || answers(&witness, ip("10.9.0.11")));
    lab.apply(&placed("h2", &after));
    configure(&after, "10.9.0.11/24", "10.9.0.1");
    wait("answers from the new place", || answers(&witness, ip("10.9.0.11")));
    wait("the device at its new place", || {
        devices(&lab, "leamove").contains(&("10.9.0.11".to_string(), Some("h2".to_string())))
    });
}

#[test]
fn a_flood_of_unknown_destinations_is_bounded_and_others_do_not_feel_it() {
    let Some(lab) = lab("learned_flood") else { return };
    let extra = Extra::begin();
    let flooder = extra.netns("lf-x");
    let text_of = network("leaflood", "forwarding: learned", "v4: 10.20.0.0/16")
        + &endpoint("leaflood", "x", "h1", &["10.20.0.11"], &flooder);
    lab.apply(&text_of);
    configure(&flooder, "10.20.0.11/16", "10.20.0.1");
    wait_carrier(&flooder);
    let ends = learned_pair(&lab, &extra, "leacalm");
    let asked = counter(&lab, "h1", "questions_asked");
    // By the router, so that the flood is not one of the guest's own ARP.
    flooder.ip(&["route", "replace", "10.20.64.0/18", "via", "10.20.0.1"]).unwrap();
    let script =
        "for net in {64..79}; do for host in {1..250}; do echo x >/dev/udp/10.20.$net.$host/9; done; done";
    flooder.run("bash", &["-c", script]).unwrap();
    // Neighbours on the same host talk as if nothing were.
    wait("answers beside the flood", || answers(&ends.a, ip("10.7.0.12")));
    let dropped = |reason: &str| counter(&lab, "h1", &format!("question_drops{{reason=\"{reason}\"}}"));
    wait("drops by their reasons", || dropped("port-questions") + dropped("rate") > 0);
    let mut questions = 0;
    wait("the questions that were asked", || {
        questions = counter(&lab, "h1", "questions_asked").saturating_sub(asked);
        questions > 0
    });
    assert!(questions < FLOOD / 2, "{questions} questions of {FLOOD} destinations");
    // Nobody has these addresses, so nothing of the flood stays.
    wait("no question left", || {
        let counters = lab.client().counters("h1").unwrap_or_default();
        let of = |name: &str| counters.get(name).copied();
        of("questions_open") == Some(0) && of("questions_held_frames") == Some(0)
    });
    wait("a trace that ends with a question", || {
        let nobody = lab.weir(&["trace", "leaflood/x", "10.20.64.9"]);
        (text(&nobody.stdout) + &text(&nobody.stderr)).contains("controllers")
    });
}

#[test]
fn a_captured_trace_is_decided_alike_in_every_form_of_the_apps() {
    let Some(lab) = lab("learned_trace") else { return };
    let extra = Extra::begin();
    let ends = learned_pair(&lab, &extra, "leatrace");
    let file = extra.file("learned.pcap");
    let mut capture = lab.command();
    capture.args(["capture", "h1", "--port", "leatrace/a", "-w", &file, "--frames", "12", "--seconds", "60"]);
    let mut capture = capture.stderr(Stdio::null()).spawn().unwrap();
    wait("the end of the capture", || {
        // A new conversation each time: another identifier, and now and then ARP.
        let _answered = answers(&ends.a, ip("10.7.0.12"));
        capture.try_wait().is_ok_and(|ended| ended.is_some())
    });
    assert!(capture.wait().unwrap().success());
    let mut said = String::new();
    wait("a group that decides on the trace", || {
        let output = lab.weir(&["bench", "flows", "--pcap", &file, "--rounds", "1"]);
        said = text(&output.stdout) + &text(&output.stderr);
        // A group that does not come about on a busy machine is tried again; forms that differ are a fault.
        assert!(!said.contains("decided on packet"), "{said}");
        output.status.success()
    });
    assert!(said.contains("12 frames") && said.contains("the same decisions in every form"), "{said}");
    for form in ["init", "cref", "vers", "cols", "micro", "cache"] {
        assert!(said.contains(&format!("RESULT flows trace-{form}-throughput")), "{said}");
    }
    let none = lab.weir(&["bench", "flows", "--pcap", "/nowhere/at/all.pcap"]);
    assert!(text(&none.stderr).contains("/nowhere/at/all.pcap"), "{}", text(&none.stderr));
}
