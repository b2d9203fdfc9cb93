//! Real clients in a namespace of their own: udhcpc, dhcpcd and dig get answers of a real agent.
//!
//! ```text
//!   namespace wxagent-…                      this process
//!   udhcpc, dhcpcd, dig ── eth0 (TAP) ── pump ── punt.sock ── agent
//!                                        (plays the switch: ARP, ND, punts)
//! ```
//! Needs root, `/dev/net/tun`, ip, busybox with udhcpc, dhcpcd and dig.
#![allow(unsafe_code)]

use crate::fake_switch::FakeSwitch;
use crate::pki::Authority;
use crate::whole::{VNI, config, label, let_in, network, until};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::sync::watch;
use weir_agent::agent::Agent;
use weir_base::codec::{decode, encode};
use weir_model::entry::{LocationEntry, PortEntry};
use weir_model::local::{PUNT_AGENT_SOCKET, PUNT_SOCKET, Punt};
use weir_model::resource::{DhcpOptions, PortState};
use weir_model::{Entry, Key, MacAddr, Version};

const MAC: [u8; 6] = [2, 0, 0x0a, 0, 0, 5];
/// Bytes of a virtio-net header.
const VIRTIO_BYTES: usize = 10;

/// A named namespace that goes away with this.
struct Netns(String);

impl Netns {
    fn new(test: &str) -> Option<Netns> {
        let not_run = |reason: &str| {
            println!("NOT RUN {test}: {reason}");
            None
        };
        for tool in [
            "/usr/sbin/udhcpc",
            "/usr/sbin/dhcpcd",
            "/usr/bin/dig",
            "/usr/bin/python3",
            "/usr/sbin/ip",
            "/var/lib/dhcpcd",
            "/dev/net/tun",
        ] {
            if !Path::new(tool).exists() {
                return not_run(&format!("{tool} is missing"));
            }
        }
        let name = format!("wxagent-clients-{}", std::process::id());
        match Command::new("ip").args(["netns", "add", &name]).output() {
            Ok(output) if output.status.success() => Some(Netns(name)),
            Ok(output) => not_run(String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => not_run(&error.to_string()),
        }
    }

    /// Runs a program in the namespace; its output, errors included.
    async fn run(&self, program: &str, arguments: &[&str]) -> String {
        let run = tokio::process::Command::new("ip")
            .args(["netns", "exec", &self.0, "timeout", "30", program])
            .args(arguments)
            .output();
        let output = run.await.unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Opens the device that the agent made, as the switch does.
fn open_tap(netns: &str, device: &str) -> File {
    let (netns, device) = (netns.to_string(), device.to_string());
    let open = move || {
        let namespace = File::open(format!("/run/netns/{netns}")).unwrap();
        // SAFETY: the descriptor is open, and only this short-lived thread changes its namespace.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        // SAFETY: an all-zero ifreq is a valid value of that plain C structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which lives until the call returns.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        // Checksums are left to the device, as a switch would want it.
        // SAFETY: TUNSETOFFLOAD takes an integer by value.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::TUN_F_CSUM) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        file
    };
    std::thread::spawn(open).join().unwrap()
}

/// What the switch would answer itself: ARP for the router.
fn arp_reply(frame: &[u8]) -> Option<Vec<u8>> {
    if frame.get(12..14)? != [8, 6] || frame.get(20..22)? != [0, 1] || frame.get(38..42)? != [10, 0, 0, 1] {
        return None;
    }
    let router = VNI.router_mac().0;
    let mut reply = [&frame[6..12], &router, &frame[12..20], &[0, 2], &router, &frame[38..42]].concat();
    reply.extend_from_slice(&frame[22..32]);
    Some(reply)
}

fn is_for_the_agent(frame: &[u8]) -> bool {
    let port = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    match frame.get(12..14) {
        Some([8, 0]) => matches!((frame.get(23), port(36)), (Some(17), Some(53 | 67)) | (Some(6), Some(53))),
        Some([0x86, 0xdd]) => {
            matches!((frame.get(20), port(56)), (Some(17), Some(53 | 547)) | (Some(6), Some(53)))
        }
        _ => false,
    }
}

/// Moves frames between device and agent until the device or the socket goes away.
fn pump(tap: &File, run_dir: &Path) {
    let socket = UnixDatagram::bind(run_dir.join(PUNT_SOCKET)).unwrap();
    let agent = run_dir.join(PUNT_AGENT_SOCKET);
    let (mut from_device, mut to_device) = (tap.try_clone().unwrap(), tap.try_clone().unwrap());
    let answers = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 10_000];
        while let Ok(length) = answers.recv(&mut buffer) {
            if length == 0 {
                continue;
            }
            let punt: Punt = decode(&buffer[..length]).unwrap();
            if to_device.write_all(&[&[0; VIRTIO_BYTES], &punt.frame[..]].concat()).is_err() {
                return;
            }
        }
    });
    let mut device = tap.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        while let Ok(length) = from_device.read(&mut buffer) {
            let frame = &buffer[VIRTIO_BYTES.min(length)..length];
            if let Some(reply) = arp_reply(frame) {
                let _ = device.write_all(&[&[0; VIRTIO_BYTES], &reply[..]].concat());
            } else if is_for_the_agent(frame) {
                let punt = Punt { key: port_key(), frame: frame.to_vec() };
                let _ = socket.send_to(&encode(&punt), &agent);
            }
        }
    });
}

fn port_key() -> Key {
    Key::Port { vni: VNI, endpoint: label("web") }
}

fn entries(netns: &str) -> Vec<(Key, Entry)> {
    let port = PortEntry {
        mac: MacAddr(MAC),
        addresses: vec!["10.0.0.5".parse().unwrap(), "fd00:a::5".parse().unwrap()],
        tags: vec![],
        state: PortState::Up,
        netns: Some(netns.to_string()),
        device: "eth0".into(),
        kind: weir_model::resource::AttachmentKind::Tap,
        queue_pairs: 1,
        subnet: label("front"),
        dhcp: DhcpOptions::default(),
        policy_min: Version::ZERO,
    };
    let location = LocationEntry {
        endpoint: label("db"),
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
        host: label("host-2"),
        underlay: "192.0.2.2".parse().unwrap(),
    };
    vec![
        (Key::Gateways, Entry::Gateways(vec![])),
        (Key::Network { vni: VNI }, Entry::Network(network())),
        (port_key(), Entry::Port(port)),
        (Key::Location { vni: VNI, address: "10.0.0.9".parse().unwrap() }, Entry::Location(location)),
    ]
}

fn script(directory: &Path, name: &str, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_clients_get_address_and_names() {
    let Some(netns) = Netns::new("real_clients_get_address_and_names") else { return };
    let directory = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::new());
    let_in(directory.path(), &authority, vec!["127.0.0.1:9".into()]).await;
    let switch = FakeSwitch::start(directory.path(), entries(&netns.0));
    let agent = Agent::new(config(directory.path())).unwrap();
    let shared = agent.shared();
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(agent.run(stopping));
    until("the switch is told of the device", || switch.state.lock().unwrap().attached.contains(&port_key()))
        .await;
    let tap = open_tap(&netns.0, "eth0");
    pump(&tap, directory.path());

    udhcpc(&netns, directory.path()).await;
    names(&netns).await;
    dhcpcd(&netns, directory.path()).await;

    stop.send(true).unwrap();
    task.await.unwrap().unwrap();
    let metrics = &shared.metrics;
    assert!(metrics.dhcp4_answered.get() >= 2 && metrics.dhcp6_answered.get() >= 1);
    let bad =
        [&metrics.dhcp4_malformed, &metrics.dhcp6_malformed, &metrics.punt_malformed, &metrics.dns_malformed];
    assert_eq!(bad.map(|number| number.get()), [0; 4]);
    assert!(netns.run("ip", &["link"]).await.contains("eth0"), "the device outlives the agent");
}

async fn udhcpc(netns: &Netns, directory: &Path) {
    let told = directory.join("v4");
    let apply = script(
        directory,
        "udhcpc-script",
        &format!(
            "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\nset > {}\nip addr add $ip/$mask dev $interface\n\
             ip route add default via $router\n",
            told.display()
        ),
    );
    let log = netns
        .run(
            "udhcpc",
            &[
                "-i", "eth0", "-f", "-q", "-n", "-t", "5", "-T", "1", "-s", &apply, "-O", "mtu", "-O",
                "search",
            ],
        )
        .await;
    assert!(log.contains("lease of 10.0.0.5 obtained from 10.0.0.1"), "{log}");
    let told = std::fs::read_to_string(told).unwrap();
    for line in [
        "ip='10.0.0.5'",
        "mask='24'",
        "router='10.0.0.1'",
        "dns='10.0.0.1'",
        "domain='red.weir.internal'",
        "hostname='web'",
        "mtu='1400'",
        "lease='3600'",
        "search='red.weir.internal'",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}

async fn names(netns: &Netns) {
    let dig = async |arguments: &str| {
        let arguments: Vec<&str> =
            "@10.0.0.1 +tries=3 +time=2".split(' ').chain(arguments.split(' ')).collect();
        netns.run("dig", &arguments).await
    };
    assert_eq!(dig("+short web.red.weir.internal A").await, "10.0.0.5\n");
    assert_eq!(dig("+short web.red.weir.internal AAAA").await, "fd00:a::5\n");
    assert_eq!(dig("+short +domain=red.weir.internal db A").await, "10.0.0.9\n", "by the search domain");
    assert_eq!(dig("+short -x 10.0.0.9").await, "db.red.weir.internal.\n");
    assert!(dig("x.blue.weir.internal A").await.contains("status: NXDOMAIN"));
    assert!(dig("example.com A").await.contains("status: REFUSED"));
    let unknown = dig("nobody.red.weir.internal A").await;
    assert!(unknown.contains("status: SERVFAIL"), "there is no gateway to know: {unknown}");
    let whole = dig("web.red.weir.internal A").await;
    assert!(whole.contains("EDNS: version: 0") && whole.contains("udp: 1232"), "{whole}");
    assert!(!whole.contains("WARNING"), "{whole}");
    names_over_tcp(netns, &dig).await;
}

/// The kernel's TCP against the agent's: one query, several on one connection, and idle connections.
async fn names_over_tcp(netns: &Netns, dig: &impl AsyncFn(&str) -> String) {
    assert_eq!(dig("+tcp +short web.red.weir.internal A").await, "10.0.0.5\n");
    let several =
        "+tcp +keepopen +short web.red.weir.internal A db.red.weir.internal A x.red.weir.internal AAAA";
    let answers = dig(several).await;
    assert!(answers.starts_with("10.0.0.5\n10.0.0.9\n"), "{answers}");
    assert!(dig("+tcp example.com A").await.contains("status: REFUSED"));
    let pipelined = "import socket,struct,sys\n\
        q=lambda n,name: struct.pack('>HHHHHH',n,0x100,1,0,0,0)+b''.join(bytes([len(p)])+p for p in name)+bytes([0,0,1,0,1])\n\
        s=socket.create_connection(('10.0.0.1',53),10)\n\
        names=[[b'web',b'red',b'weir',b'internal']]*5\n\
        data=b''.join(struct.pack('>H',len(m))+m for m in (q(i,n) for i,n in enumerate(names)))\n\
        [s.sendall(data[i:i+7]) for i in range(0,len(data),7)]\n\
        f=s.makefile('rb')\n\
        got=[f.read(struct.unpack('>H',f.read(2))[0]) for _ in names]\n\
        print(sorted(struct.unpack('>H',g[:2])[0] for g in got), all(g.endswith(bytes([10,0,0,5])) for g in got))\n\
        s.shutdown(socket.SHUT_WR)\n\
        print(f.read()==b'')";
    let told = netns.run("python3", &["-c", pipelined]).await;
    assert_eq!(told, "[0, 1, 2, 3, 4] True\nTrue\n");
}

async fn dhcpcd(netns: &Netns, directory: &Path) {
    let told = directory.join("v6");
    let hook = script(
        directory,
        "dhcpcd-script",
        &format!("#!/bin/sh\ncase \"$reason\" in BOUND6|REBOOT6) env >> {} ;; esac\n", told.display()),
    );
    let settings = directory.join("dhcpcd.conf");
    std::fs::write(
        &settings,
        "duid\nipv6only\nnoipv6rs\nnoarp\noption dhcp6_name_servers, dhcp6_domain_search\ninterface eth0\nia_na 1\n",
    )
    .unwrap();
    // Twice over one store of leases, which nobody else sees: the second time it confirms the first.
    let once = format!("dhcpcd -f {} -c {hook} -1 -B -d -t 20 eth0", settings.display());
    let both = format!(
        "mount -t tmpfs none /var/lib/dhcpcd && {once} && ip -6 addr flush dev eth0 scope global && {once}"
    );
    let log = netns.run("sh", &["-c", &both]).await;
    let told = std::fs::read_to_string(told).unwrap_or_else(|error| panic!("{error}: {log}"));
    for reason in ["reason=BOUND6", "reason=REBOOT6"] {
        assert!(told.contains(reason), "{reason} is not in {told}\n{log}");
    }
    for part in ["fd00:a::5", "fd00:a::1", "red.weir.internal"] {
        assert!(told.contains(part), "{part} is not in {told}\n{log}");
    }
}
