//! Datagrams larger than any link, in fragments: they pass where their first fragment may, and nowhere else.

use crate::extra::{Extra, Pair, configure, endpoint, ip, network, pair};
use crate::lab::{Lab, lab};
use crate::namespaces::{wait, within};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use weir_lab::Netns;
use weir_lab::probe::ping;

/// Payload of a ping, and of a datagram: 3 and 14 fragments at an MTU of 1500.
const PING_BYTES: u32 = 4000;
const DATAGRAM_BYTES: usize = 20_000;

/// The outside of the lab.
const OUTSIDE: [&str; 2] = ["192.0.2.2", "2001:db8:2::2"];

/// Nothing but echo and one port.
const RULES: &str = "---
kind: network
name: pieces
ingress: deny
---
kind: firewall-rule
network: pieces
name: ping
direction: ingress
action: allow
protocol: icmp
---
kind: firewall-rule
network: pieces
name: one-port
direction: ingress
action: allow
protocol: udp
ports: [\"7001\"]
---
kind: firewall-rule
network: pieces
name: not-the-other
direction: ingress
priority: 10
action: deny
protocol: udp
ports: [\"7002\"]
";

/// A socket in a namespace, for both IP versions, that waits but shortly.
fn socket(netns: &Netns, port: u16) -> UdpSocket {
    let socket = within(netns, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket
}

fn large_pings(from: &Netns, to: IpAddr) {
    let options = ping::Options { payload_bytes: PING_BYTES, ..ping::Options::default() };
    wait(&format!("answers to large pings of {to}"), || ping::run(from, to, &options).unwrap().all());
}

/// A datagram goes there and back, whole.
fn there_and_back(from: &UdpSocket, to: SocketAddr, server: &UdpSocket) {
    let sent: Vec<u8> = (0..DATAGRAM_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut there, mut back) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    wait(&format!("a large datagram to {to}, and back"), || {
        // While the way is new it may have no MTU yet, or no neighbour.
        if from.send_to(&sent, to).is_err() {
            return false;
        }
        let Ok((count, caller)) = server.recv_from(&mut there) else { return false };
        assert_eq!(there[..count], sent);
        if server.send_to(&there[..count], caller).is_err() {
            return false;
        }
        let Ok((count, _)) = from.recv_from(&mut back) else { return false };
        assert_eq!(back[..count], sent);
        true
    });
}

/// Packets that a switch dropped by the rule against the port.
fn denied_packets(lab: &Lab, switch: &str) -> u64 {
    let name = "drops{reason=\"rule\",network=\"pieces\",rule=\"not-the-other\"}";
    lab.counters(switch).get(name).copied().unwrap_or_default()
}

#[test]
fn large_datagrams_cross_hosts_where_their_port_is_allowed() {
    let Some(lab) = lab("fragments") else { return };
    let extra = Extra::begin();
    let ends: Pair = pair(&lab, &extra, "pieces", "");
    lab.apply(RULES);
    for address in [ip("10.7.0.12"), ip("fd00:7::12")] {
        large_pings(&ends.a, address);
        let (client, open, denied) = (socket(&ends.a, 0), socket(&ends.b, 7001), socket(&ends.b, 7002));
        // To an IPv4 address from a socket for both.
        let target = |port| match address {
            IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), port),
            IpAddr::V6(_) => SocketAddr::new(address, port),
        };
        there_and_back(&client, target(7001), &open);
        let before = denied_packets(&lab, "h2");
        wait("fragments counted under the rule", || {
            client.send_to(&[7; DATAGRAM_BYTES], target(7002)).unwrap();
            denied_packets(&lab, "h2") >= before + 5 * 14
        });
        there_and_back(&client, target(7001), &open);
        assert!(denied.recv(&mut [0; 1 << 16]).is_err(), "nothing of the denied datagrams, to {address}");
    }
}

#[test]
fn large_datagrams_are_translated_on_their_way_outside() {
    let Some(lab) = lab("fragments_outside") else { return };
    let extra = Extra::begin();
    let inside = extra.netns("inside");
    let resources = network("pieces", "externalAccess: true", "v4: 10.7.0.0/24\nv6: fd00:7::/64")
        + &endpoint("pieces", "inside", "h1", &["10.7.0.11", "fd00:7::11"], &inside);
    lab.apply(&resources);
    configure(&inside, "10.7.0.11/24", "10.7.0.1");
    inside.address("eth0", "fd00:7::11/64").unwrap();
    inside.route("default", ip("fd00:7::1")).unwrap();
    let outside = lab.netns("out");
    let server = socket(&outside, 7001);
    for address in OUTSIDE.map(ip) {
        large_pings(&inside, address);
        let target = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            IpAddr::V6(_) => address,
        };
        there_and_back(&socket(&inside, 0), SocketAddr::new(target, 7001), &server);
    }
}
