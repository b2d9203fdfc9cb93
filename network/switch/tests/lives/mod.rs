//! What must hold when processes and devices come and go, and when policy changes.
mod crash;
mod store;

use crate::lab::{Lab, lab, label, sh, try_sh, wait_for};
use crate::scripts::{TCP_SINK, TCP_SOURCE};
use std::io::Write;
use weir_base::codec::{encode_frame, read_frame, write_frame};
use weir_model::entry::{GatewayEntry, PolicyEntry, Rule, Vni};
use weir_model::event::{EventBody, Role};
use weir_model::local::{Answer, FromSwitch, PortName, Question, ToSwitch};
use weir_model::resource::{Action, Direction, Encapsulation, Protocol};
use weir_model::{Change, Entry, Key, Version};
use weir_switch::config::ExternalConfig;
use weir_trust::identity::{KeyPair, verify_event};

fn pair(name: &str) -> Option<Lab> {
    let mut lab = lab(name, 2, Encapsulation::Geneve, false, 1500)?;
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    Some(lab)
}

#[test]
fn a_connection_survives_kill_9_of_both_switches() {
    let Some(mut lab) = pair("kill -9") else { return };
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    let source = lab.spawn("a", &["python3", "-c", TCP_SOURCE, "10.0.0.2", "7001", "40", "0.05"]);
    for round in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let host = &mut lab.hosts[round % 2];
        host.kill();
        host.start();
    }
    let output = source.wait_with_output().unwrap();
    lab.print_counters();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "equal");
    assert!(lab.hosts[0].terminate(), "SIGTERM is a clean end");
    lab.hosts[0].start();
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

#[test]
fn a_second_switch_in_the_same_directory_is_refused() {
    let Some(mut lab) = lab("lock", 1, Encapsulation::Geneve, false, 1500) else { return };
    lab.start_all();
    let error = weir_switch::process::run(&lab.hosts[0].config).unwrap_err();
    assert!(error.to_string().contains("another switch runs"), "{error}");
}

#[test]
fn a_port_comes_back_when_its_device_is_made_anew() {
    let Some(lab) = pair("device") else { return };
    lab.run("a", "ping -c 1 -W 5 10.0.0.2");
    let netns = format!("{}a", lab.prefix);
    sh(&format!("ip -n {netns} link del t0"));
    let port = || match lab.hosts[0].question(Question::Ports) {
        Answer::Ports(ports) => ports[0].clone(),
        other => panic!("{other:?}"),
    };
    wait_for("the port to go down", || !port().up);
    wait_for("the reason", || port().reason.contains("t0"));
    lab.make_device(0, "a", "10.0.0.1/24");
    wait_for("the port to come back", || port().up);
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

/// Its descriptor works on in the other namespace, so nothing fails: whoever made the device anew says so.
#[test]
fn a_port_takes_its_new_device_when_the_old_one_was_moved_or_renamed() {
    let Some(lab) = pair("moved") else { return };
    lab.run("a", "ping -c 1 -W 5 10.0.0.2");
    let netns = format!("{}a", lab.prefix);
    let key = Key::Port { vni: Vni(7), endpoint: label("a") };
    for lose in [format!("set t0 netns {}u", lab.prefix), "set t0 name old0".to_string()] {
        if lose.contains("name") {
            sh(&format!("ip -n {netns} link set t0 down"));
        }
        sh(&format!("ip -n {netns} link {lose}"));
        lab.make_device(0, "a", "10.0.0.1/24");
        let mut stream = lab.hosts[0].connect().unwrap();
        write_frame(&mut stream, &ToSwitch::Attach { key: key.clone() }).unwrap();
        lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    }
}

#[test]
fn a_revoked_rule_stops_an_established_connection() {
    let Some(mut lab) = lab("revoke", 2, Encapsulation::Geneve, false, 1500) else { return };
    lab.policy.default_ingress = Action::Deny;
    lab.policy.rules = vec![Rule {
        name: label("web"),
        version: Version(1),
        direction: Direction::Ingress,
        priority: 1,
        action: Action::Allow,
        protocol: Protocol::Number(6),
        ports: vec![],
        peers: vec![],
        targets: vec![],
        stateful: true,
    }];
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    let mut source = lab.spawn("a", &["python3", "-c", TCP_SOURCE, "10.0.0.2", "7001", "1000", "0.01"]);
    let sent = || lab.hosts[1].counters()["port_tx_bytes{network=\"red\",endpoint=\"b\"}"];
    let set = |policy: &PolicyEntry| {
        lab.put(1, vec![(Key::Policy { vni: Vni(7) }, Entry::Policy(policy.clone()))]);
    };
    let (allowing, denying) = (lab.policy.clone(), PolicyEntry { rules: vec![], ..lab.policy.clone() });
    for round in 0..5 {
        let before = sent();
        wait_for("traffic", || sent() > before + 2_000_000);
        let start = std::time::Instant::now();
        set(&denying);
        println!("round {round}: revoked and acked after {} us", start.elapsed().as_micros());
        let after_ack = sent();
        std::thread::sleep(std::time::Duration::from_millis(100));
        // The router may have advertised itself, which is less than one segment.
        assert!(sent() < after_ack + 500, "no segment after the ack: {} bytes", sent() - after_ack);
        set(&allowing);
    }
    source.kill().unwrap();
    source.wait().unwrap();
    let ping = try_sh(&format!("ip netns exec {}a ping -c 1 -W 1 10.0.0.2", lab.prefix));
    assert!(!ping.status.success(), "ICMP is denied");
}

#[test]
fn captures_show_ports_and_the_underlay() {
    let Some(lab) = pair("capture") else { return };
    lab.run("a", "ping -c 1 -W 5 10.0.0.2");
    let capture = |port: Option<PortName>| {
        let mut stream = lab.hosts[0].connect().unwrap();
        let question = Question::Capture { port, frames_max: 4, duration_ms: 20_000, snap_bytes: 2000 };
        write_frame(&mut stream, &ToSwitch::Ask { id: 9, question }).unwrap();
        stream
    };
    let port = PortName { network: label("red"), endpoint: label("a") };
    let mut streams = [capture(Some(port)), capture(None)];
    // Until both run, nothing is caught: ping until they are done.
    let ping = lab.spawn("a", &["ping", "-c", "100", "-i", "0.02", "-s", "100", "10.0.0.2"]);
    let mut caught = [vec![], vec![]];
    for (stream, caught) in streams.iter_mut().zip(&mut caught) {
        loop {
            match read_frame::<FromSwitch>(stream).unwrap() {
                FromSwitch::Answer { id: 9, answer: Answer::Captured { frames, last } } => {
                    caught.extend(frames);
                    if last {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    ping.wait_with_output().unwrap();
    let [port, underlay] = caught;
    assert_eq!((port.len(), underlay.len()), (4, 4));
    let inner = port.iter().find(|(_, length, _)| *length == 142).expect("an echo of 100 bytes");
    assert_eq!(weir_packet::parse(&inner.2).unwrap().protocol, 1);
    let outer = underlay.iter().find(|(_, length, _)| *length == 142 + 24 + 42).expect("it, encapsulated");
    assert_eq!(weir_packet::parse(&outer.2).unwrap().destination_port, 6081);
}

#[test]
fn nonsense_on_the_control_socket_harms_nobody() {
    let Some(lab) = pair("nonsense") else { return };
    let garbage: [&[u8]; 4] = [&[0xff; 64], &[3, 0, 0, 0, 0xff, 0xff, 0xff], &[1, 0, 0, 0], &[]];
    for bytes in garbage {
        let mut stream = lab.hosts[0].connect().unwrap();
        stream.write_all(bytes).unwrap();
    }
    // A client that asks and never reads is dropped, not waited for.
    let mut lazy = lab.hosts[0].connect().unwrap();
    lazy.set_nonblocking(true).unwrap();
    let ask = encode_frame(&ToSwitch::Ask { id: 1, question: Question::Counters }).unwrap();
    for _ in 0..20_000 {
        if lazy.write(&ask).is_err() {
            std::thread::yield_now();
        }
    }
    wait_for("the counter", || lab.hosts[0].counters()["clients_malformed"] >= 2);
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
}

/// A gateway with an outside namespace behind it: `o`, 198.51.100.2, routed by the gateway's kernel.
fn with_gateway(name: &str) -> Option<Lab> {
    let mut lab = lab(name, 3, Encapsulation::Geneve, false, 1500)?;
    let (prefix, netns) = (lab.prefix.clone(), lab.hosts[2].netns.clone());
    lab.hosts[2].config.role = Role::Gateway;
    lab.hosts[2].config.external = Some(ExternalConfig {
        device: "wext0".into(),
        mtu: 1500,
        addresses: vec!["203.0.113.7".parse().unwrap()],
        first_port: 20_000,
        last_port: 30_000,
        guarded: Vec::new(),
        reachable: Vec::new(),
    });
    sh(&format!(
        "ip netns add {prefix}o && ip -n {prefix}o link set lo up && \
         ip -n {netns} link add o0 type veth peer name o0 netns {prefix}o && \
         ip -n {netns} addr add 198.51.100.1/24 dev o0 && ip -n {netns} link set o0 up && \
         ip -n {prefix}o addr add 198.51.100.2/24 dev o0 && ip -n {prefix}o link set o0 up && \
         ip -n {prefix}o route add 203.0.113.0/24 via 198.51.100.1 && \
         ip netns exec {netns} sysctl -qw net.ipv4.ip_forward=1"
    ));
    lab.start_all();
    let gateway = GatewayEntry { name: label("h2"), underlay: lab.hosts[2].underlay };
    for host in 0..2 {
        lab.put(host, vec![(Key::Gateways, Entry::Gateways(vec![gateway.clone()]))]);
    }
    Some(lab)
}

#[test]
fn an_endpoint_reaches_the_outside_by_translation() {
    let Some(mut lab) = with_gateway("outside") else { return };
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    sh(&format!("ip -n {}a route add default via 10.0.0.254", lab.prefix));
    lab.run("a", "ping -c 3 -i 0.05 -W 5 198.51.100.2");
    let _sink = lab.python("o", TCP_SINK, &["7001"]);
    assert_eq!(lab.run_python("a", TCP_SOURCE, &["198.51.100.2", "7001", "20", "0"]).trim(), "equal");
    match lab.hosts[2].question(Question::Connections { limit: 100 }) {
        Answer::Connections(all) => {
            let translated = all.iter().filter_map(|c| c.translated).collect::<Vec<_>>();
            assert!(
                translated.iter().all(|(ip, port)| {
                    ip.to_string() == "203.0.113.7" && (20_000..=30_000).contains(port)
                })
            );
            assert!(!translated.is_empty());
        }
        other => panic!("{other:?}"),
    }
}

/// A connection whose answer was lost goes on with a packet from outside: it must not wait for one from inside.
#[test]
fn a_gateway_that_restarts_takes_first_what_comes_from_outside() {
    let Some(mut lab) = with_gateway("outside first") else { return };
    let device = format!("ip -n {} -o link show dev wext0", lab.hosts[2].netns);
    let mac = || sh(&device).split("link/ether ").nth(1).map(|rest| rest[..17].to_string());
    let before = mac();
    assert!(before.is_some());
    lab.run("o", "ping -c 1 -W 5 203.0.113.7");
    lab.hosts[2].kill();
    assert_eq!(mac(), before, "the device stays");
    let route = sh(&format!("ip -n {} route get 203.0.113.7", lab.hosts[2].netns));
    assert!(route.contains("dev wext0"), "no packet goes back to where it came from: {route}");
    lab.hosts[2].start();
    assert_eq!(mac(), before);
    lab.run("o", "ping -c 1 -W 5 203.0.113.7");
}

#[test]
fn a_gateway_stands_in_until_the_pair_is_programmed() {
    let Some(mut lab) = with_gateway("hoverboard") else { return };
    // Only the gateway knows where the endpoints are.
    lab.add_endpoint_to(&[0, 2], 0, "a", "10.0.0.1/24");
    lab.add_endpoint_to(&[1, 2], 1, "b", "10.0.0.2/24");
    let mut subscriber = lab.hosts[0].connect().unwrap();
    write_frame(&mut subscriber, &ToSwitch::Subscribe).unwrap();
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    assert_eq!(lab.run_python("a", TCP_SOURCE, &["10.0.0.2", "7001", "20", "0"]).trim(), "equal");
    let mut bytes = 0;
    while bytes < 20_000_000 {
        if let FromSwitch::Event(signed) = read_frame::<FromSwitch>(&mut subscriber).unwrap() {
            // The seed that the lab gave the first host.
            verify_event(&KeyPair::from_seed(&[1; 32]).public(), &label("lab"), &signed).unwrap();
            let EventBody::Usage(report) = signed.event.body else { panic!("no usage report") };
            for usage in &report.through_gateway {
                assert_eq!((usage.vni, usage.address.to_string()), (Vni(7), "10.0.0.2".to_string()));
                bytes += usage.bytes;
            }
            assert!(report.direct.is_empty(), "{report:?}");
        }
    }
    let relayed = lab.hosts[2].counters()["engine_underlay_segments"];
    assert!(relayed > 10_000, "{relayed}");
    lab.put_location(0, "b", "10.0.0.2", &lab.mac(1, "10.0.0.2"), 1);
    lab.put_location(1, "a", "10.0.0.1", &lab.mac(0, "10.0.0.1"), 0);
    let before = lab.hosts[2].counters()["engine_underlay_segments"];
    assert_eq!(lab.run_python("a", TCP_SOURCE, &["10.0.0.2", "7001", "20", "0"]).trim(), "equal");
    assert!(lab.hosts[2].counters()["engine_underlay_segments"] < before + 100, "the pair talks directly");
}

#[test]
fn what_is_in_force_can_be_read() {
    let Some(lab) = pair("entries") else { return };
    let keys = |answer: Answer| match answer {
        Answer::Entries { entries, last } => {
            assert!(last);
            entries.into_iter().map(|(key, ..)| key).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let all = keys(lab.hosts[0].question(Question::Entries { after: None }));
    assert_eq!(all.len(), 4, "network, policy, port, location: {all:?}");
    let behind = keys(lab.hosts[0].question(Question::Entries { after: Some(all[1].clone()) }));
    assert_eq!(behind, all[2..]);
    match lab.hosts[0].ask(&ToSwitch::SendState) {
        FromSwitch::State { entries, last, .. } => assert!(last && entries.len() == 4),
        other => panic!("{other:?}"),
    }
    let location = all.iter().find(|key| matches!(key, Key::Location { .. })).unwrap().clone();
    lab.change(0, vec![(location, Change::Delete)]);
    assert_eq!(keys(lab.hosts[0].question(Question::Entries { after: None })).len(), 3);
}
