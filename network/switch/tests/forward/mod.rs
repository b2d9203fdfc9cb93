//! Packets between endpoints of two hosts.
use crate::lab::{CONFIG_VARIABLE, Lab, TAKE_OVER_VARIABLE, lab, sh, try_sh};
use crate::scripts::{GENEVE_OPTIONS, TCP_SINK, TCP_SOURCE, UDP_ECHO, UDP_SIZES, UDP_TRAIN};
use weir_model::resource::Encapsulation;
use weir_switch::config::SwitchConfig;
use weir_switch::process;

/// Started with settings in the environment, this test is a switch: see `Host::start`.
#[test]
fn a_switch_without_its_files_says_what_is_missing() {
    if let Some(path) = std::env::var_os(CONFIG_VARIABLE) {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
        let text = std::fs::read_to_string(path).expect("settings");
        let config: SwitchConfig = serde_json::from_str(&text).expect("settings");
        let takes_over = std::env::var_os(TAKE_OVER_VARIABLE).is_some();
        let begin = if takes_over { process::Begin::TakeOver } else { process::Begin::Start };
        match process::run_as(&config, begin, || None, || ()) {
            Ok(()) => std::process::exit(0),
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1)
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        r#"{{"name":"h1","domain":"d","role":"host","underlay":"127.0.0.1","runDir":"{0}/run",
            "stateDir":"{0}/state","trustFile":"{0}/trust.json","identityFile":"{0}/seed"}}"#,
        dir.path().display()
    );
    let config: SwitchConfig = serde_json::from_str(&text).unwrap();
    let error = process::run(&config).unwrap_err();
    assert!(error.to_string().contains("trust.json"), "{error}");
}

/// Two hosts with an endpoint each: `a` and `b`.
fn pair(name: &str, format: Encapsulation, v6: bool, mtu: u16) -> Option<Lab> {
    let mut lab = lab(name, 2, format, v6, mtu)?;
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    Some(lab)
}

fn bulk(lab: &Lab, megabytes: u32) {
    let _sink = lab.python("b", TCP_SINK, &["7001"]);
    let out = lab.run_python("a", TCP_SOURCE, &["10.0.0.2", "7001", &megabytes.to_string(), "0"]);
    assert_eq!(out.trim(), "equal");
}

fn sizes(lab: &Lab, mtu: u16) {
    let _echo = lab.python("b", UDP_ECHO, &["7002"]);
    let last = (mtu - 28).to_string();
    let out = lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7002", "1", &last, "7"]);
    assert_eq!(out.trim(), "equal");
}

#[test]
fn geneve_carries_ping_tcp_and_udp_of_every_size() {
    let Some(lab) = pair("geneve", Encapsulation::Geneve, false, 1500) else { return };
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    lab.run("a", "ping -c 2 -i 0.05 -W 5 -M do -s 1472 10.0.0.2");
    lab.run("a", "ping -c 2 -i 0.05 -W 5 -s 8000 10.0.0.2");
    bulk(&lab, 50);
    sizes(&lab, 1500);
    let counters = lab.hosts[1].counters();
    assert!(counters["engine_super_frames"] > 100, "segments were joined: {counters:?}");
    assert!(counters["engine_underlay_datagrams"] > 30_000, "a large frame was cut: {counters:?}");
    assert_eq!(lab.hosts[0].counters()["engine_segmentation_fallbacks"], 0);
}

/// Super-frames of one shape are read with gaps, those of another are closed up.
#[test]
fn super_frames_spread_for_their_headers_arrive_whole() {
    let Some(lab) = pair("spread", Encapsulation::Geneve, false, 1500) else { return };
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 50);
    let counters = lab.hosts[0].counters();
    assert!(counters["engine_spread_frames"] > 100, "{counters:?}");
    // Another connection of the same port, beside the first, has smaller segments.
    let _sinks = ["7003", "7004"].map(|port| lab.python("b", TCP_SINK, &[port]));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| lab.run_python("a", TCP_SOURCE, &["10.0.0.2", "7003", "300", "0"]));
        let spread = || lab.hosts[0].counters()["engine_spread_frames"];
        let before = spread();
        while spread() < before + 100 && !first.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        lab.run("a", "ip route change 10.0.0.0/24 dev t0 advmss 1200");
        lab.run("b", "ip route change 10.0.0.0/24 dev t0 advmss 1200");
        let second = lab.run_python("a", TCP_SOURCE, &["10.0.0.2", "7004", "100", "0"]);
        assert_eq!([first.join().unwrap().trim(), second.trim()], ["equal"; 2]);
    });
    let after = lab.hosts[0].counters();
    assert!(after["engine_gaps_closed"] > counters["engine_gaps_closed"], "{after:?}");
    assert!(after["engine_spread_frames"] > counters["engine_spread_frames"], "{after:?}");
}

/// What TCP of `a` to `b` and back makes the two hosts put into their Geneve headers: a line each with address and
/// options. Checks that no endpoint met a wrong checksum.
fn options_of_bulk(lab: &Lab) -> Vec<String> {
    // Each has heard the other by then, if it has something to say.
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    let watch = lab.python_with_input("h0", GENEVE_OPTIONS, &["u0"]);
    bulk(lab, 20);
    let _sink = lab.python("a", TCP_SINK, &["7003"]);
    assert_eq!(lab.run_python("b", TCP_SOURCE, &["10.0.0.1", "7003", "20", "0"]).trim(), "equal");
    for endpoint in ["a", "b"] {
        let statistics = lab.run(endpoint, "cat /proc/net/snmp");
        let mut rows = statistics.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
        let named = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "InCsumErrors");
        assert_eq!(named, Some(("InCsumErrors", "0")), "{endpoint}: {statistics}");
    }
    for host in &lab.hosts {
        assert!(host.counters()["engine_super_frames"] > 100, "{}: segments were joined", host.name);
    }
    watch.finish()
}

#[test]
fn switches_that_both_take_partial_checksums_send_them() {
    let Some(lab) = pair("partial checksums", Encapsulation::Geneve, false, 1500) else { return };
    let options = options_of_bulk(&lab);
    // Whether some packet had a full checksum, and so option 02, is up to the endpoints.
    assert!(options.len() == 2 && options.iter().all(|line| line.ends_with(" 83")), "{options:?}");
}

/// Who announces nothing gets full checksums, and they are right: a switch joins only what it has verified.
#[test]
fn a_switch_without_partial_checksums_gets_and_sends_full_ones() {
    let Some(mut lab) = lab("full checksums", 2, Encapsulation::Geneve, false, 1500) else { return };
    lab.hosts[1].config.engine.partial_checksums = false;
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(1, "b", "10.0.0.2/24");
    assert_eq!(options_of_bulk(&lab), ["192.0.2.1 01 02", "192.0.2.2 01"]);
}

#[test]
fn a_segmented_udp_send_arrives_in_its_pieces() {
    let Some(lab) = pair("uso", Encapsulation::Geneve, false, 1500) else { return };
    let _echo = lab.python("b", UDP_ECHO, &["7002"]);
    let out = lab.run_python("a", UDP_TRAIN, &["10.0.0.2", "7002", "900", "60", "3"]);
    assert_eq!(out.trim(), "equal");
    let before = &lab.hosts[0].counters();
    let reads = before["engine_port_reads"];
    assert!(reads < 60, "the train came as one frame: {reads}");
}

/// A device without checksum offload cannot segment: the kernel or we must do it.
#[test]
fn an_underlay_without_offloads_carries_tcp_and_udp() {
    let Some(lab) = pair("no offloads", Encapsulation::Geneve, false, 1500) else { return };
    for host in &lab.hosts {
        sh(&format!("ip netns exec {} ethtool -K u0 tx off rx off gro off", host.netns));
    }
    bulk(&lab, 20);
    sizes(&lab, 1500);
}

#[test]
fn an_underlay_with_too_small_an_mtu_is_counted() {
    let Some(lab) = pair("small underlay", Encapsulation::Geneve, false, 1500) else { return };
    sh(&format!("ip -n {} link set u0 mtu 1400", lab.hosts[0].netns));
    lab.run("a", "ping -c 1 -W 5 10.0.0.2");
    let ping = format!("ip netns exec {}a ping -c 2 -i 0.05 -W 1 -s 1472 10.0.0.2", lab.prefix);
    assert!(!try_sh(&ping).status.success());
    assert_eq!(lab.hosts[0].counters()["drops{reason=\"underlay-too-big\"}"], 2);
}

#[test]
fn vxlan_carries_tcp_and_udp() {
    let Some(lab) = pair("vxlan", Encapsulation::Vxlan, false, 1500) else { return };
    bulk(&lab, 20);
    sizes(&lab, 1500);
}

#[test]
fn an_ipv6_underlay_carries_tcp_and_udp() {
    let Some(lab) = pair("v6 underlay", Encapsulation::Geneve, true, 1500) else { return };
    bulk(&lab, 20);
    sizes(&lab, 1500);
}

#[test]
fn endpoints_may_have_ipv6_only() {
    let Some(mut lab) = lab("v6 endpoints", 2, Encapsulation::Geneve, false, 1500) else { return };
    lab.start_all();
    lab.add_endpoint(0, "a", "fd10::1/64");
    lab.add_endpoint(1, "b", "fd10::2/64");
    lab.run("a", "ping -c 3 -i 0.05 -W 5 fd10::2");
    let _sink = lab.python("b", TCP_SINK, &["7001", "6"]);
    assert_eq!(lab.run_python("a", TCP_SOURCE, &["fd10::2", "7001", "20", "0"]).trim(), "equal");
    let _echo = lab.python("b", UDP_ECHO, &["7002", "6"]);
    let out = lab.run_python("a", UDP_SIZES, &["fd10::2", "7002", "1", "1452", "50"]);
    assert_eq!(out.trim(), "equal");
}

#[test]
fn jumbo_and_tiny_mtus_work() {
    for mtu in [1280, 9000] {
        let Some(lab) = pair("mtus", Encapsulation::Geneve, false, mtu) else { return };
        bulk(&lab, 10);
        lab.run("a", &format!("ping -c 2 -i 0.05 -W 5 -M do -s {} 10.0.0.2", mtu - 28));
    }
}

/// Endpoints may set their own devices lower than the network allows, down to the least of IPv4.
#[test]
fn endpoints_with_mtus_from_68_to_9000_understand_each_other() {
    let Some(lab) = pair("mtu sweep", Encapsulation::Geneve, false, 9000) else { return };
    let _echo = lab.python("b", UDP_ECHO, &["7002"]);
    for mtu in [68, 69, 127, 296, 552, 576, 1006, 1280, 1499, 1500, 1501, 2048, 4096, 8191, 8999, 9000] {
        for endpoint in ["a", "b"] {
            lab.run(endpoint, &format!("ip link set t0 mtu {mtu}"));
        }
        lab.run("a", &format!("ping -c 1 -W 5 -M do -s {} 10.0.0.2", mtu - 28));
        // One byte more goes in fragments.
        lab.run("a", &format!("ping -c 1 -W 5 -s {} 10.0.0.2", mtu - 27));
        let (from, to) = ((mtu - 40).to_string(), (mtu + 40).to_string());
        let out = lab.run_python("a", UDP_SIZES, &["10.0.0.2", "7002", &from, &to, "1"]);
        assert_eq!(out.trim(), "equal", "UDP, MTU {mtu}");
        // TCP goes no lower.
        if mtu >= 576 {
            bulk(&lab, 2);
        }
    }
}

#[test]
fn two_endpoints_of_one_host_exchange_whole_super_frames() {
    let Some(mut lab) = lab("local", 1, Encapsulation::Geneve, false, 1500) else { return };
    lab.start_all();
    lab.add_endpoint(0, "a", "10.0.0.1/24");
    lab.add_endpoint(0, "b", "10.0.0.2/24");
    bulk(&lab, 20);
    sizes(&lab, 1500);
    let counters = lab.hosts[0].counters();
    assert_eq!(counters["engine_underlay_segments"], 0);
    assert!(counters["engine_port_writes"] < 20_000, "{counters:?}");
}

#[test]
fn the_kernels_vxlan_understands_ours() {
    let Some(mut lab) = lab("kernel vxlan", 2, Encapsulation::Vxlan, false, 1500) else { return };
    let is_there = lab.kernel_vxlan_peer(|lab| {
        lab.hosts[0].start();
        lab.add_endpoint_to(&[0], 0, "a", "10.0.0.1/24");
    });
    if !is_there {
        println!("NOT RUN the_kernels_vxlan_understands_ours: this kernel has no VXLAN device");
        return;
    }
    lab.run("a", "ping -c 3 -i 0.05 -W 5 10.0.0.2");
    bulk(&lab, 20);
    let _sink = lab.python("a", TCP_SINK, &["7003"]);
    assert_eq!(lab.run_python("b", TCP_SOURCE, &["10.0.0.1", "7003", "20", "0"]).trim(), "equal");
}
