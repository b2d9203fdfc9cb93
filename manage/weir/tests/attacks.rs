//! Attacks on the underlay, from a tenant with external access and from a stranger who has an address on it: every switch, every port,
//! both encapsulations. Nothing arrives, and everything is counted. Then one address is opened by the setting, and closed again.
//!
//! ```text
//!   red-app ── h1 ─┐                       ┌─ g1 ── out (192.0.2.2)
//!   vx/victim ─ h2 ┼── underlay 198.18.86.0/24, fd77:9::/64 ─┼─ controller
//!                  └─ stranger .66         └─ this machine .254
//! ```
//!
//! That the packets are such as would do harm is seen by two of their kind that arrive: the same VXLAN packet from a switch of the list, and
//! the same datagram of the tenant to the address that is opened.

use crate::extra::{Extra, configure, endpoint, ip, network};
use crate::lab::{Lab, lab};
use crate::namespaces::{wait, within};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use weir_lab::{Daemon, Netns, Program, system};

/// The ports of the underlay: SSH, DNS, VXLAN, Geneve, API, sessions, replicas, metrics, and one where somebody listens.
const PORTS: [u16; 9] = [22, 53, 4789, 6081, 7443, 7444, 7445, 9471, LISTENED];
const LISTENED: u16 = 9_777;
/// Where the victim listens.
const VICTIM: (&str, u16) = ("10.31.0.20", 9_999);
const VICTIM_MAC: [u8; 6] = [2, 0, 0, 0, 7, 0x20];
/// Identifier of the victim's network.
const VNI: u32 = 7_777;
const STRANGER: u8 = 66;

fn v4(number: u8) -> IpAddr {
    IpAddr::from([198, 18, 86, number])
}

fn v6(number: u8) -> IpAddr {
    ip(&format!("fd77:9::{number:x}"))
}

/// Every address that tenants must not reach: controller, hosts, gateway, this machine, all in both versions, the gateway's on the other
/// side, one of the underlay that nobody has, and what is no host's.
fn guarded() -> Vec<IpAddr> {
    let numbers = [1, 11, 12, 13, 21, 99, 254];
    let mut all: Vec<IpAddr> = numbers.into_iter().flat_map(|number| [v4(number), v6(number)]).collect();
    all.extend(["192.0.2.1", "2001:db8:2::1", "127.0.0.1", "169.254.169.254", "240.0.0.1"].map(ip));
    all
}

/// Packets of the gateway's external addresses towards the underlay or the gateway itself.
struct Watched {
    capture: Daemon,
    file: String,
}

impl Watched {
    fn begin(extra: &Extra, netns: &Netns, name: &str) -> Watched {
        let file = extra.file(&format!("{name}.pcap"));
        let filter = "(src host 203.0.113.10 or src host 2001:db8:77::10) and not dst host 192.0.2.2 and not dst host 2001:db8:2::2";
        let program =
            Program::new("tcpdump").args(["-U", "-ni", "any", "--immediate-mode", "-w", &file, filter]);
        let capture = extra.start(name, &program.netns(netns));
        wait("the capture", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
        Watched { capture, file }
    }

    fn end(mut self) -> String {
        self.capture.stop().unwrap();
        system::run("tcpdump", &["-nr", &self.file]).unwrap()
    }
}

/// A counter of a switch: the sum of all whose name has this in it.
fn counted(lab: &Lab, switch: &str, name: &str) -> u64 {
    lab.counters(switch).iter().filter(|(known, _)| known.contains(name)).map(|(_, count)| count).sum()
}

/// Sends to every guarded address and port by UDP and TCP; how many datagrams went.
fn tenant_attacks(from: &Netns) -> u64 {
    within(from, || {
        let mut sent = 0;
        for address in guarded() {
            let any: IpAddr = if address.is_ipv4() { ip("0.0.0.0") } else { ip("::") };
            let socket = UdpSocket::bind((any, 0)).unwrap();
            for port in PORTS {
                // Its own kernel sends some of them nowhere.
                sent += u64::from(socket.send_to(&vxlan_packet("10.31.0.9"), (address, port)).is_ok());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for address in [v4(1), v4(12), v4(21), v6(1), v6(12), v6(21), ip("192.0.2.1")] {
            for port in [22, 53, 7443, 7444, LISTENED] {
                let to = SocketAddr::new(address, port);
                let opened = TcpStream::connect_timeout(&to, Duration::from_millis(100));
                assert!(opened.is_err(), "a tenant has a connection to {to}");
            }
        }
        sent
    })
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A datagram for the victim in an Ethernet frame, as its host would get it.
fn inner(source: &str) -> Vec<u8> {
    let address = |text: &str| match ip(text) {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => panic!("{text} is IPv6"),
    };
    let payload = b"by another tenant";
    let mut udp = [4444_u16, VICTIM.1, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat();
    udp.extend_from_slice(payload);
    let length = (20 + udp.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(&[0, 7, 0, 0, 64, 17, 0, 0]);
    header.extend_from_slice(&address(source));
    header.extend_from_slice(&address(VICTIM.0));
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [&VICTIM_MAC[..], &[2, 0, 0, 0, 0, 1, 8, 0], &header, &udp].concat()
}

fn vxlan(vni: u32, source: &str) -> Vec<u8> {
    [&0x0800_0000_u32.to_be_bytes()[..], &(vni << 8).to_be_bytes(), &inner(source)].concat()
}

fn vxlan_packet(source: &str) -> Vec<u8> {
    vxlan(VNI, source)
}

/// Without and with an option of the length of a token.
fn geneve(vni: u32, source: &str, with_token: bool) -> Vec<u8> {
    let option: &[u8] = if with_token { &[0xff, 0x57, 0x81, 0x02, 1, 2, 3, 4, 5, 6, 7, 8] } else { &[] };
    let first = [(option.len() / 4) as u8, 0, 0x65, 0x58];
    [&first[..], &(vni << 8).to_be_bytes(), option, &inner(source)].concat()
}

/// Sends forged packets of every kind to every switch; how many.
fn stranger_attacks(from: &Netns) -> u64 {
    within(from, || {
        let sockets = [UdpSocket::bind("0.0.0.0:0").unwrap(), UdpSocket::bind("[::]:0").unwrap()];
        let mut sent = 0;
        for number in [11, 12, 13, 21] {
            for (socket, address) in sockets.iter().zip([v4(number), v6(number)]) {
                for vni in (0..=32).chain([VNI, 1 << 20, (1 << 24) - 1]) {
                    // An inner source that is nobody's, the victim's own, another's, the router's, and one of outside.
                    for source in ["10.31.0.77", VICTIM.0, "10.1.0.10", "10.31.0.1", "8.8.8.8"] {
                        let packets = [
                            (4789, vxlan(vni, source)),
                            (6081, geneve(vni, source, false)),
                            (6081, geneve(vni, source, true)),
                        ];
                        for (port, packet) in packets {
                            sent += u64::from(socket.send_to(&packet, (address, port)).is_ok());
                        }
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Not whole, and no packet at all.
                for packet in [&[][..], &[0x08], &vxlan_packet(VICTIM.0)[..20], &[0xff; 64]] {
                    for port in [4789, 6081] {
                        let _ = socket.send_to(packet, (address, port));
                    }
                }
            }
        }
        sent
    })
}

/// What the victim hears within a time.
fn heard(socket: &UdpSocket, at_most: Duration) -> usize {
    socket.set_read_timeout(Some(at_most)).unwrap();
    let mut bytes = [0; 2048];
    let mut count = 0;
    while socket.recv_from(&mut bytes).is_ok() {
        count += 1;
    }
    count
}

/// The gateway with one more setting, started in the lab's place.
fn reopened(lab: &Lab, extra: &Extra, reachable: &IpAddr) -> Daemon {
    lab.kill("g1");
    let file = lab.folder().join("g1/state/node.json");
    let mut settings: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    settings["switch"]["external"]["reachable"] = serde_json::json!([format!("{reachable}/32")]);
    std::fs::write(&file, settings.to_string()).unwrap();
    let program = Program::new(env!("CARGO_BIN_EXE_weir"))
        .args(["gateway", "--config"])
        .arg(&file)
        .netns(&lab.netns("gw"));
    extra.start("g1-open", &program)
}

#[test]
fn every_address_and_port_of_the_underlay_is_silent_to_tenants_and_strangers() {
    let Some(lab) = lab("attacks") else { return };
    let extra = Extra::begin();
    let told = |switch: &str| counted(&lab, switch, "switches_list_told") == 1;
    wait("the lists of switches", || ["h1", "h2", "h3", "g1"].iter().all(|switch| told(switch)));
    let victim = extra.netns("victim");
    let stranger = extra.netns("stranger");
    let settings = format!("encapsulation: vxlan\nvni: {VNI}\nmtu: 1400\negress: allow");
    lab.apply(
        &(network("vx", &settings, "v4: 10.31.0.0/24")
            + &endpoint("vx", "victim", "h2", &[VICTIM.0], &victim)
            + "mac: \"02:00:00:00:07:20\"\n"),
    );
    configure(&victim, &format!("{}/24", VICTIM.0), "10.31.0.1");
    let underlay = lab.netns("net");
    stranger.veth("eth0", &underlay, "stranger").unwrap();
    stranger.mtu("eth0", 9_200).unwrap();
    underlay.mtu("stranger", 9_200).unwrap();
    underlay.attach("stranger", "underlay").unwrap();
    for (netns, link) in [(&stranger, "eth0"), (&underlay, "stranger")] {
        netns.up(link).unwrap();
    }
    stranger.address("eth0", format!("{}/24", v4(STRANGER))).unwrap();
    stranger.address("eth0", format!("{}/64", v6(STRANGER))).unwrap();

    let ears = within(&victim, || UdpSocket::bind(("0.0.0.0", VICTIM.1)).unwrap());
    // A switch of the list sends the very packet: it is such as would arrive.
    let real = within(&lab.netns("h1"), || UdpSocket::bind("0.0.0.0:0").unwrap());
    wait("a packet of a switch of the list", || {
        real.send_to(&vxlan_packet("10.31.0.77"), (v4(12), 4789)).unwrap();
        heard(&ears, Duration::from_millis(100)) > 0
    });
    while heard(&ears, Duration::from_millis(300)) > 0 {}

    let before: Vec<u64> = ["h1", "h2", "h3", "g1"].map(|switch| counted(&lab, switch, "drops{")).to_vec();
    let unknown = counted(&lab, "h2", "drops{reason=\"unknown-sender\"}");
    let sent = stranger_attacks(&stranger);
    assert!(sent > 4_000, "{sent} packets went");
    assert_eq!(heard(&ears, Duration::from_secs(1)), 0, "a stranger's packet is with the victim");
    for (switch, before) in ["h1", "h2", "h3", "g1"].into_iter().zip(before) {
        wait(&format!("the drops of {switch} to be counted"), || {
            counted(&lab, switch, "drops{") > before + 100
        });
    }
    assert!(counted(&lab, "h2", "drops{reason=\"unknown-sender\"}") >= unknown + 10, "by their reason");

    let (tenant, gateway) = (lab.netns("red-app"), lab.netns("gw"));
    let listener = within(&lab.netns("h2"), || UdpSocket::bind(("0.0.0.0", LISTENED)).unwrap());
    let watched = [("gw", &gateway), ("net", &underlay)]
        .map(|(name, netns)| Watched::begin(&extra, netns, &format!("watch-{name}")));
    let before = counted(&lab, "g1", "drops{reason=\"guarded\"}");
    let sent = tenant_attacks(&tenant);
    assert!(sent > 100, "{sent} datagrams went");
    assert_eq!(heard(&ears, Duration::from_millis(500)), 0, "a tenant's packet is in another's network");
    assert_eq!(heard(&listener, Duration::from_millis(100)), 0);
    wait("the guarded packets to be counted", || {
        counted(&lab, "g1", "drops{reason=\"guarded\"}") >= before + PORTS.len() as u64 * 7
    });
    for watched in watched {
        let seen = watched.end();
        assert_eq!(seen.trim(), "", "packets of a tenant on the underlay");
    }
    let traced = lab.weir(&["trace", "red/app", &v4(12).to_string(), "-p", "udp", "--port", "4789"]);
    let said = crate::lab::text(&traced.stdout);
    assert!(traced.status.code() == Some(4) && said.contains("guard"), "{said}");

    // The setting opens one, and no other.
    let knock = |to: IpAddr| {
        within(&tenant, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"knock", (to, LISTENED)).is_ok()
        })
    };
    let other = within(&lab.netns("h3"), || UdpSocket::bind(("0.0.0.0", LISTENED)).unwrap());
    let mut open = reopened(&lab, &extra, &v4(12));
    wait("a datagram to the address that is opened", || {
        knock(v4(12));
        heard(&listener, Duration::from_millis(200)) > 0
    });
    for _ in 0..5 {
        knock(v4(13));
    }
    assert_eq!(heard(&other, Duration::from_millis(500)), 0, "the address beside it");
    open.kill().unwrap();
    lab.start("g1");
    wait("the end of datagrams to it", || {
        while heard(&listener, Duration::from_millis(200)) > 0 {}
        knock(v4(12));
        heard(&listener, Duration::from_millis(500)) == 0
    });
    let before = counted(&lab, "g1", "drops{reason=\"guarded\"}");
    for _ in 0..5 {
        knock(v4(12));
    }
    wait("them to be counted", || counted(&lab, "g1", "drops{reason=\"guarded\"}") > before);
    assert_eq!(heard(&listener, Duration::from_millis(300)), 0, "it is closed again");
}
