//! The command line against the real controller: results, errors, exit codes, streams.

use crate::echo::ping_all;
use crate::extra::Extra;
use crate::lab::{Lab, lab, text};
use crate::namespaces::wait;
use pcap_file::pcap::PcapReader;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use weir_base::exposition::check;
use weir_lab::system;

#[test]
fn the_lab_holds_what_it_checks() {
    let Some(lab) = lab("checks") else { return };
    let output = lab.run_checks();
    let said = text(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains(" 0 failed") && !said.contains("FAILED"));
}

/// The commands of the README's first tour do what it says of them.
#[test]
fn the_tour_of_the_readme_works() {
    let Some(lab) = lab("readme_tour") else { return };
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let tour = readme.split("## A first tour").nth(1).unwrap().split("```").nth(1).unwrap();
    let resources = lab.folder().join("net.yaml").display().to_string();
    let mut commands = 0;
    for line in tour.lines().filter(|line| line.starts_with("weir ")) {
        let (command, _says) = line.split_once('#').unwrap_or((line, ""));
        let command = command.replace("labs/two-tenants/net.yaml", &resources);
        let mut words: Vec<&str> = command.split('|').next().unwrap().split_whitespace().skip(1).collect();
        if matches!(words[0], "apply" | "delete") {
            words.push("--yes");
        }
        commands += 1;
        if words[0] == "capture" {
            // It ends by itself; frames come meanwhile.
            let mut capture = lab.command();
            let mut child =
                capture.args(&words).args(["--frames", "4"]).stdout(Stdio::piped()).spawn().unwrap();
            wait("the end of the capture", || {
                assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")));
                child.try_wait().unwrap().is_some()
            });
            let mut frames = PcapReader::new(child.stdout.take().unwrap()).unwrap();
            assert!(frames.next_packet().unwrap().is_ok(), "{line}");
            continue;
        }
        let output = lab.weir(&words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        assert!(!said.is_empty(), "{line} says nothing");
    }
    assert!(commands >= 7, "the tour was not found");
    lab.restore();
    lab.wait_in_step();
}

/// What a command answers: exit code, and all that it says.
fn answer(lab: &Lab, arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let output = lab.weir_with_input(arguments, input);
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn wrong_resources_get_the_field_the_value_and_what_is_allowed() {
    let Some(lab) = lab("wrong_resources") else { return };
    let before = lab.ok(&["get", "all"]);
    let endpoint = "kind: endpoint\nnetwork: red\nname: new\nsubnet: main\n";
    let cases: [(&str, &[&str], i32); 11] = [
        ("kind: network\nname: green\nmtu: 100\n", &["mtu", "100", "1280"], 2),
        ("kind: network\nname: green\ncolour: 1\n", &["colour", "mtu"], 2),
        ("kind: network\nname: Green\n", &["Green", "a-z"], 2),
        ("kind: cloud\nname: green\n", &["kind: 'cloud'", "network, subnet"], 2),
        ("kind: [\n", &["-"], 2),
        (&(endpoint.to_string() + "addresses: [10.1.0.300]\n"), &["10.1.0.300", "addresses"], 2),
        (&(endpoint.to_string() + "addresses: [10.99.0.1]\n"), &["addresses", "10.99.0.1", "10.1.0.0/24"], 1),
        (&(endpoint.to_string() + "addresses: [10.1.0.10]\n"), &["10.1.0.10", "web"], 1),
        (&endpoint.replace("main", "other"), &["subnet", "other"], 1),
        (&endpoint.replace("red", "green"), &["network", "green"], 1),
        ("kind: subnet\nnetwork: red\nname: again\nv4: 10.1.0.0/25\n", &["10.1.0.0/25", "main"], 1),
    ];
    for (yaml, words, code) in cases {
        let (status, said) = answer(&lab, &["apply", "-f", "-", "--yes"], yaml);
        assert_eq!(status, Some(code), "{yaml}{said}");
        for word in words {
            assert!(said.contains(word), "'{word}' is not in: {said}");
        }
    }
    // All or nothing: the first is right, the second is not.
    let mixed = "kind: network\nname: green\n---\nkind: subnet\nnetwork: teal\nname: a\nv4: 10.3.0.0/24\n";
    assert_eq!(answer(&lab, &["apply", "-f", "-", "--yes"], mixed).0, Some(1));
    assert_eq!(answer(&lab, &["get", "network", "green"], "").0, Some(1));
    assert_eq!(lab.ok(&["get", "all"]), before, "nothing was changed");
}

#[test]
fn commands_have_the_documented_exit_codes() {
    let Some(lab) = lab("exit_codes") else { return };
    let green = "kind: network\nname: green\n";
    let cases: [(&[&str], &str, i32, &str); 14] = [
        (&["apply"], "", 2, "--file"),
        (&["get", "cloud"], "", 2, "firewall-rule"),
        (&["get", "endpoint", "web"], "", 2, "NETWORK/web"),
        (&["get", "endpoint", "red/nobody"], "", 1, "nobody"),
        (&["diff", "-f", "-"], green, 4, "green"),
        (&["apply", "-f", "-", "--dry-run"], green, 0, "+ network/green"),
        (&["apply", "-f", "-"], green, 2, "--yes"),
        (&["delete", "network", "red", "--yes"], "", 1, "red"),
        (&["delete", "endpoint", "red/nobody", "--yes"], "", 1, "endpoint/red/nobody: there is no such"),
        (&["counters", "h1", "no-such"], "", 1, "no counter of h1 has 'no-such'"),
        (&["counters", "h9"], "", 1, "'h9': 'weir status' lists them"),
        (&["forget", "h9"], "", 1, "'h9': 'weir status' lists them"),
        (&["apply", "-f", "/nowhere.yaml"], "", 1, "there is no such file"),
        (&["trace", "red/nobody", "web"], "", 1, "nobody"),
    ];
    for (arguments, input, code, word) in cases {
        let (status, said) = answer(&lab, arguments, input);
        assert_eq!(status, Some(code), "weir {}: {said}", arguments.join(" "));
        assert!(said.contains(word), "weir {}: '{word}' is not in: {said}", arguments.join(" "));
    }
    assert_eq!(answer(&lab, &["get", "network", "green"], "").0, Some(1), "no dry run changed anything");
    let no_one = ["--context", "/nonexistent.json", "status"];
    assert_eq!(answer(&lab, &no_one, "").0, Some(1));
}

#[test]
fn what_is_shown_is_what_is_there_in_every_format() {
    let Some(lab) = lab("formats") else { return };
    let json: serde_json::Value = serde_json::from_str(&lab.ok(&["get", "all", "-o", "json"])).unwrap();
    assert_eq!(json["items"].as_array().unwrap().len(), 18, "2 networks with 8 resources each");
    let yaml = lab.ok(&["get", "endpoint", "red/web", "-o", "yaml"]);
    assert!(yaml.contains("10.1.0.10"), "{yaml}");
    assert!(lab.ok(&["get", "endpoints", "-n", "blue"]).contains("blue/db"));
    assert!(lab.ok(&["describe", "endpoint", "red/web"]).contains("no-admin"));
    let status = lab.ok(&["status"]);
    for switch in crate::lab::SWITCHES {
        assert!(
            status.lines().any(|line| line.trim_start().starts_with(switch) && line.contains("in sync")),
            "{status}"
        );
    }
    let diff = lab.weir(&["diff", "--replace-all", "-f", "/run/weir-lab/two-tenants-9/net.yaml"]);
    assert_eq!(diff.status.code(), Some(0), "{}", text(&diff.stdout));
    assert!(lab.ok(&["completions", "bash"]).contains("weir"));
}

#[test]
fn a_trace_tells_the_rule_its_version_and_who_signed_it() {
    let Some(lab) = lab("trace") else { return };
    let denied = lab.weir(&["trace", "red/app", "web", "-p", "tcp", "--port", "8080"]);
    let said = text(&denied.stdout);
    assert_eq!(denied.status.code(), Some(4), "{said}");
    assert!(said.contains("no-admin") && said.contains("signed by"), "{said}");
    let allowed = lab.ok(&["trace", "red/app", "web", "-p", "tcp", "--port", "80"]);
    assert!(allowed.contains("at h2") && allowed.contains("at h1"), "both hosts: {allowed}");
    assert!(lab.ok(&["trace", "red/app", "192.0.2.2"]).contains("at g1"), "north-south goes by the gateway");
}

#[test]
fn a_capture_is_a_valid_pcap_and_its_frames_can_be_traced() {
    let Some(lab) = lab("capture") else { return };
    let extra = Extra::begin();
    let file = extra.file("port.pcap");
    let mut capture = lab.command();
    // Room for late segments of connections that were before: the echo and its reply must be among them.
    capture.args(["capture", "h2", "--port", "red/app", "-w", &file, "--frames", "30", "--seconds", "60"]);
    let mut capture = capture.stderr(Stdio::null()).spawn().unwrap();
    let web = lab.v4("red-web");
    wait("the end of the capture", || {
        assert!(ping_all(&lab.netns("red-app"), web));
        capture.try_wait().unwrap().is_some()
    });
    assert!(capture.wait().unwrap().success());
    let mut reader = PcapReader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    assert_eq!(frames.len(), 30);
    let seen = system::run("tcpdump", &["-nr", &file]).unwrap();
    assert!(seen.contains("echo request") && seen.contains("echo reply"), "{seen}");
    let request = seen.lines().position(|line| line.contains("echo request")).unwrap() + 1;
    lab.ok(&["trace", "red/app", "--pcap", &file, "--frame", &request.to_string()]);
    let underlay = extra.file("underlay.pcap");
    let mut capture = lab.command();
    capture.args(["capture", "h2", "-w", &underlay, "--frames", "2", "--seconds", "30"]);
    let mut capture = capture.stderr(Stdio::null()).spawn().unwrap();
    wait("the end of the capture", || {
        assert!(ping_all(&lab.netns("red-app"), web));
        capture.try_wait().unwrap().is_some()
    });
    assert!(system::run("tcpdump", &["-nr", &underlay]).unwrap().contains("Geneve"));
}

#[test]
fn a_watch_resumes_over_a_restart_of_the_controller_without_loss_or_repeat() {
    let Some(lab) = lab("watch") else { return };
    let from = lab.client().status().unwrap().version;
    let mut watch = lab.command();
    watch.args(["watch", "--from", &from.to_string(), "--count", "4", "-o", "json"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let (lines, output) = (Arc::clone(&lines), watch.stdout.take().unwrap());
        move || {
            for line in BufReader::new(output).lines() {
                lines.lock().unwrap().push(line.unwrap());
            }
        }
    });
    let network = |name: &str| lab.apply(&format!("kind: network\nname: {name}\n"));
    network("w1");
    wait("the first change", || lines.lock().unwrap().len() == 1);
    lab.kill("controller");
    lab.start("controller");
    network("w2");
    network("w3");
    lab.ok(&["delete", "network", "w1", "--yes"]);
    wait("the end of the watch", || watch.try_wait().unwrap().is_some());
    reader.join().unwrap();
    let events: Vec<serde_json::Value> =
        lines.lock().unwrap().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<(String, bool)> = events
        .iter()
        .map(|event| (event["id"]["name"].as_str().unwrap().to_string(), event["item"].is_null()))
        .collect();
    let wanted = [("w1", false), ("w2", false), ("w3", false), ("w1", true)];
    assert_eq!(names, wanted.map(|(name, gone)| (name.to_string(), gone)));
    let versions: Vec<u64> = events.iter().map(|event| event["version"].as_u64().unwrap()).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
}

/// Names of the metrics in a text for Prometheus.
fn families(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[test]
fn every_process_answers_for_its_metrics_and_each_is_documented() {
    let Some(lab) = lab("metrics") else { return };
    let documented = include_str!("../../../docs/operate/metrics.md");
    let context: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(lab.context()).unwrap()).unwrap();
    let token = format!("Authorization: Bearer {}", context["token"].as_str().unwrap());
    let url = format!("{}/metrics", context["server"].as_str().unwrap());
    let mut controller = String::new();
    // It shows the state of the last second.
    wait("h1 in the controller's metrics", || {
        controller = system::run("curl", &["-sk", "-H", &token, &url]).unwrap();
        controller.contains("weir_controller_actuator_connected{actuator=\"h1\"} 1\n")
    });
    let agent =
        |member: &str| lab.netns(member).run("curl", &["-s", "http://127.0.0.1:9471/metrics"]).unwrap();
    let (host, gateway) = (agent("h1"), agent("gw"));
    for text in [&host, &gateway] {
        assert!(text.contains("weir_agent_session_up 1\n"), "{text}");
        assert!(text.contains("weir_switch_up 1\n") && text.contains("weir_switch_flows "), "{text}");
    }
    for text in [&controller, &host, &gateway] {
        // The name is Prometheus' own.
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("process_max_fds")).collect();
        let problems: Vec<String> = check(&lines.join("\n")).iter().map(ToString::to_string).collect();
        assert!(problems.is_empty(), "{problems:?}");
    }
    let mut missing: Vec<&str> = [&controller, &host, &gateway]
        .into_iter()
        .flat_map(|text| families(text))
        .filter(|name| {
            let packets = name.replace("_bytes_total", "_total");
            ![*name, &packets].iter().any(|name| documented.contains(&format!("`{name}`")))
        })
        .collect();
    missing.sort_unstable();
    missing.dedup();
    assert!(missing.is_empty(), "not in docs/operate/metrics.md: {missing:?}");
}

/// An endpoint whose device cannot be made is told by all who show it, with the reason that its host has.
#[test]
fn an_endpoint_without_a_device_is_told_with_the_reason() {
    let Some(lab) = lab("no_device") else { return };
    let endpoint = |name: &str, host: &str| {
        format!(
            "kind: endpoint\nnetwork: red\nname: {name}\nsubnet: main\nhost: {host}\n\
             attachment: {{netns: wlx-not-there, device: {name}}}\n"
        )
    };
    let (status, said) =
        answer(&lab, &["apply", "-f", "-", "--yes", "--wait-s", "2"], &endpoint("lost", "h1"));
    assert_eq!(status, Some(5), "{said}");
    assert!(said.contains("red/lost at h1: ") && said.contains("wlx-not-there"), "{said}");
    wait("the status to tell", || {
        let (_, said) = answer(&lab, &["status"], "");
        said.contains("h1: no traffic: port red/lost: ") && said.contains("wlx-not-there")
    });
    let (_, said) = answer(&lab, &["get", "endpoint", "red/lost"], "");
    assert!(said.contains("but no traffic: ") && said.contains("wlx-not-there"), "{said}");
    // One that is placed where nobody is waits for nobody, and is told.
    let (status, said) = answer(&lab, &["apply", "-f", "-", "--yes"], &endpoint("far", "h99"));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("red/far: no host 'h99' has joined"), "{said}");
    let (_, said) = answer(&lab, &["get", "endpoint", "red/far"], "");
    assert!(said.contains("no host 'h99' has joined"), "{said}");
}
