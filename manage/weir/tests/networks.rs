//! Networks of other kinds, and endpoints that come, move and go.

use crate::echo::{Echo, ping_all, ping_none};
use crate::extra::{Extra, Pair, configure, endpoint, ip, network, pair, wait_address, wait_carrier};
use crate::lab::{Lab, lab, text};
use crate::namespaces::wait;
use std::net::IpAddr;
use weir_lab::probe::{ping, stream};
use weir_lab::{Netns, Program, system};

/// Endpoints of the crowded host.
const CROWD: usize = 200;
/// DHCP clients that run at a time.
const CROWD_AT_A_TIME: usize = 16;

#[test]
fn an_endpoint_moves_goes_and_comes_again() {
    let Some(lab) = lab("endpoint_moves") else { return };
    let extra = Extra::begin();
    // Each host has a namespace of its own for it, as each would have a virtual machine's slot.
    let (before, after, witness) = (extra.netns("before"), extra.netns("after"), extra.netns("witness"));
    let base = network("moves", "", "v4: 10.9.0.0/24")
        + &endpoint("moves", "witness", "h3", &["10.9.0.12"], &witness);
    let placed = |host: &str, netns: &Netns| endpoint("moves", "mover", host, &["10.9.0.11"], netns);
    lab.apply(&(base + &placed("h1", &before)));
    configure(&witness, "10.9.0.12/24", "10.9.0.1");
    configure(&before, "10.9.0.11/24", "10.9.0.1");
    assert!(ping_all(&witness, ip("10.9.0.11")));

    lab.apply(&placed("h2", &after));
    configure(&after, "10.9.0.11/24", "10.9.0.1");
    wait("answers from the new host", || ping_all(&witness, ip("10.9.0.11")));
    wait("the end of the old device", || before.ip(&["link", "show", "dev", "eth0"]).is_err());
    let way = lab.ok(&["trace", "moves/witness", "mover"]);
    assert!(way.contains("at h2") && !way.contains("at h1"), "{way}");

    lab.ok(&["delete", "endpoint", "moves/mover", "--yes", "--wait-s", "30"]);
    wait("the end of the device", || after.ip(&["link", "show", "dev", "eth0"]).is_err());
    assert!(ping_none(&witness, ip("10.9.0.11")));
    let gone = lab.weir(&["trace", "moves/witness", "10.9.0.11"]);
    assert_eq!(gone.status.code(), Some(4), "{}", text(&gone.stdout));

    lab.apply(&placed("h1", &before));
    configure(&before, "10.9.0.11/24", "10.9.0.1");
    wait("answers once more", || ping_all(&witness, ip("10.9.0.11")));
}

#[test]
fn two_endpoints_without_ipv4_find_each_other() {
    let Some(lab) = lab("ipv6_only") else { return };
    let extra = Extra::begin();
    let (a, b) = (extra.netns("six-a"), extra.netns("six-b"));
    let resources = network("six", "", "v6: fd00:6::/64")
        + &endpoint("six", "a", "h1", &[], &a)
        + &endpoint("six", "b", "h2", &["fd00:6::b"], &b);
    lab.apply(&resources);
    let mut clients = Vec::new();
    for netns in [&a, &b] {
        wait_carrier(netns);
        clients.push(extra.dhcpcd(netns));
    }
    let from = wait_address(&a, true);
    assert_eq!(wait_address(&b, true), ip("fd00:6::b"));
    assert!(a.ip(&["-4", "-o", "address", "show", "dev", "eth0"]).unwrap().is_empty());
    wait("answers from b", || ping_all(&a, ip("fd00:6::b")));
    wait("a name server", || {
        std::fs::read_to_string(format!("/etc/netns/{}/resolv.conf", a.name()))
            .unwrap()
            .contains("nameserver")
    });
    assert!(a.run("getent", &["ahostsv6", "b"]).unwrap().contains("fd00:6::b"), "names come over IPv6 too");
    assert!(b.run("getent", &["ahostsv6", "a.six.weir.internal"]).unwrap().contains(&from.to_string()));
    let echo = Echo::open(&a, &b, ip("fd00:6::b"), 7000);
    echo.close();
}

/// Sizes of echo requests around a limit pass or not, whole, with both IP versions.
fn sweep(ends: &Pair, mtu: u32) {
    for (address, headers) in [(ip("10.7.0.12"), 28), (ip("fd00:7::12"), 48)] {
        let most = mtu - headers;
        for payload_bytes in [0, 1, 64, 500, 1200, most / 2, most - 1, most] {
            let options =
                ping::Options { count: 2, payload_bytes, dont_fragment: true, ..ping::Options::default() };
            let report = ping::run(&ends.a, address, &options).unwrap();
            assert!(report.all(), "{payload_bytes} bytes to {address} at MTU {mtu}: {report:?}");
        }
        let options =
            ping::Options { payload_bytes: most + 1, dont_fragment: true, ..ping::Options::default() };
        assert!(ping::run(&ends.a, address, &options).unwrap().none(), "{address} at MTU {mtu}");
    }
}

/// A guest that believes in a larger MTU is told the right one by the network (path MTU discovery).
fn too_big(ends: &Pair, mtu: u32) {
    ends.a.mtu("eth0", mtu + 500).unwrap();
    for address in [ip("10.7.0.12"), ip("fd00:7::12")] {
        let options = ping::Options { payload_bytes: mtu, dont_fragment: true, ..ping::Options::default() };
        assert!(ping::run(&ends.a, address, &options).unwrap().none(), "too big for {address} at MTU {mtu}");
        wait("the path's MTU, learnt from an ICMP error", || {
            ends.a.ip(&["route", "get", &address.to_string()]).unwrap().contains(&format!("mtu {mtu}"))
        });
    }
    let echo = Echo::open(&ends.a, &ends.b, ip("10.7.0.12"), 7000);
    echo.close();
    ends.a.mtu("eth0", mtu).unwrap();
}

fn stream_passes(lab: &Extra, ends: &Pair, name: &str) {
    let mut server = stream::server(lab.scope(), name, &ends.b, None).unwrap();
    for address in [ip("10.7.0.12"), ip("fd00:7::12")] {
        let options = stream::Options { duration_s: 1, ..stream::Options::default() };
        let report = stream::run(&ends.a, address, &options).unwrap();
        println!("MEASURED {name} {address}: {:.2} Gbit/s", report.received_bits_per_s / 1e9);
        assert!(report.received_bytes > 1_000_000, "{name}: {report:?}");
    }
    server.stop().unwrap();
}

#[test]
fn tiny_packets_pass_whole_and_larger_ones_are_told_the_limit() {
    let Some(lab) = lab("mtu_1280") else { return };
    let extra = Extra::begin();
    let ends = pair(&lab, &extra, "tiny", "mtu: 1280");
    sweep(&ends, 1280);
    too_big(&ends, 1280);
    stream_passes(&extra, &ends, "mtu-1280");
}

#[test]
fn jumbo_packets_pass_whole_and_larger_ones_are_told_the_limit() {
    let Some(lab) = lab("mtu_8900") else { return };
    let extra = Extra::begin();
    let ends = pair(&lab, &extra, "jumbo", "mtu: 8900");
    sweep(&ends, 8900);
    too_big(&ends, 8900);
    stream_passes(&extra, &ends, "mtu-8900");
}

#[test]
fn a_network_may_cross_the_underlay_as_vxlan() {
    let Some(lab) = lab("vxlan") else { return };
    let extra = Extra::begin();
    let ends = pair(&lab, &extra, "vx", "encapsulation: vxlan");
    let underlay = lab.netns("h1");
    let file = extra.file("underlay.pcap");
    let capture = Program::new("tcpdump").args([
        "-U",
        "-ni",
        "eth0",
        "--immediate-mode",
        "-w",
        &file,
        "udp",
        "port",
        "4789",
    ]);
    let mut capture = extra.start("tcpdump", &capture.netns(&underlay));
    // The file begins when the capture does.
    wait("the capture", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    for address in ["10.7.0.12", "fd00:7::12"] {
        wait("answers", || ping_all(&ends.a, ip(address)));
    }
    capture.stop().unwrap();
    // Told what it reads: by itself it takes some source ports for those of other protocols.
    let seen = system::run("tcpdump", &["-T", "vxlan", "-nr", &file]).unwrap();
    assert!(seen.contains("VXLAN") && seen.contains("10.7.0.11 > 10.7.0.12"), "{seen}");
    stream_passes(&extra, &ends, "vxlan");
}

/// Addresses, one for each number below 250.
fn crowd_address(number: usize) -> IpAddr {
    ip(&format!("10.20.0.{}", number + 2))
}

fn crowd(lab: &Lab, extra: &Extra) -> Vec<Netns> {
    let guests: Vec<Netns> = (0..CROWD).map(|number| extra.netns(&format!("c{number}"))).collect();
    let mut resources = network("crowd", "", "v4: 10.20.0.0/24");
    for (number, guest) in guests.iter().enumerate() {
        let address = crowd_address(number).to_string();
        resources += &endpoint("crowd", &format!("c{number}"), "h1", &[&address], guest);
    }
    lab.apply(&resources);
    guests
}

/// Gets a lease by `udhcpc`; whether the address is the one that the endpoint shall have.
fn lease(guest: &Netns, wanted: IpAddr) -> Result<(), String> {
    let arguments = ["-i", "eth0", "-f", "-q", "-n", "-t", "10", "-T", "1"];
    let said = guest.run("udhcpc", &arguments).map_err(|error| error.to_string())?;
    let addresses =
        guest.ip(&["-4", "-o", "address", "show", "dev", "eth0"]).map_err(|error| error.to_string())?;
    if addresses.contains(&format!("{wanted}/24")) {
        Ok(())
    } else {
        Err(format!("{}: {addresses:?} is not {wanted}: {said}", guest.name()))
    }
}

#[test]
fn a_host_serves_two_hundred_endpoints() {
    let Some(lab) = lab("crowd") else { return };
    let extra = Extra::begin();
    let guests = crowd(&lab, &extra);
    for guest in &guests {
        wait_carrier(guest);
    }
    let numbered: Vec<(usize, &Netns)> = guests.iter().enumerate().collect();
    for some in numbered.chunks(CROWD_AT_A_TIME) {
        std::thread::scope(|scope| {
            let all: Vec<_> = some
                .iter()
                .map(|(number, guest)| scope.spawn(move || lease(guest, crowd_address(*number))))
                .collect();
            for one in all {
                assert_eq!(one.join().unwrap(), Ok(()));
            }
        });
    }
    for (from, to) in [(0, 199), (199, 0), (17, 101), (150, 50)] {
        assert!(ping_all(&guests[from], crowd_address(to)), "{from} to {to}");
    }
    let echo = Echo::open(&guests[3], &guests[180], crowd_address(180), 7000);
    echo.close();
}
