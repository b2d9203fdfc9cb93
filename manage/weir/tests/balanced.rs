//! A load balancer in a real lab: clients of a virtual address are given its members in turns (rows B10 and A25,
//! decision 0024).

use crate::echo::Echo;
use crate::extra::{Extra, configure, endpoint, ip, network, wait_carrier};
use crate::lab::{Lab, lab, text};
use crate::namespaces::{enter, wait, within};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_lab::Netns;

/// The client's addresses: each is a client to the balancer.
const CLIENTS: u8 = 12;
const NAMES: [&str; 3] = ["m1", "m2", "m3"];

/// Answers datagrams with a name until it is dropped.
struct Named {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Named {
    fn begin(netns: &Netns, port: u16, name: &'static str) -> Named {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, netns) = (Arc::clone(&stop), netns.clone());
        let thread = std::thread::spawn(move || {
            enter(&netns);
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let mut bytes = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut bytes) {
                    let _lost = socket.send_to(name.as_bytes(), from);
                }
            }
        });
        Named { stop, thread: Some(thread) }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Who answers a datagram from an address; none when nobody does for a while.
fn asks(client: &Netns, from: IpAddr, to: SocketAddr) -> Option<String> {
    within(client, || {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        socket.connect(to).ok()?;
        socket.send(b"who").ok()?;
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).ok()?;
        Some(text(&bytes[..count]))
    })
}

fn answer(client: &Netns, from: IpAddr, to: SocketAddr) -> String {
    let mut found = None;
    wait(&format!("an answer of {to} to {from}"), || {
        found = asks(client, from, to);
        found.is_some()
    });
    found.unwrap()
}

fn shop(net: &str, members: &[&str]) -> String {
    let document = |name: &str, address: &str| {
        format!(
            "---\nkind: balancer\nnetwork: {net}\nname: {name}\naddress: \"{address}\"\nservices:\n\
             - {{protocol: udp, port: 7000, targetPort: 7001}}\n- {{protocol: tcp, port: 8080}}\n\
             members: [{}]\n",
            members.join(", ")
        )
    };
    document("shop", "10.30.0.100") + &document("six", "fd00:30::100")
}

/// The client `c` on h1 with its addresses, and a member on each host.
struct Stage {
    client: Netns,
    members: Vec<Netns>,
    servers: Vec<Named>,
}

fn stage(lab: &Lab, extra: &Extra, net: &str, settings: &str) -> Stage {
    let client = extra.netns(&format!("{net}-c"));
    let members: Vec<Netns> = NAMES.iter().map(|name| extra.netns(&format!("{net}-{name}"))).collect();
    let mut of_client: Vec<String> = (0..CLIENTS).map(|number| format!("10.30.0.{}", 21 + number)).collect();
    of_client.push("fd00:30::21".to_string());
    let of_client: Vec<&str> = of_client.iter().map(String::as_str).collect();
    let mut documents = network(net, settings, "v4: 10.30.0.0/24\nv6: fd00:30::/64");
    documents += &endpoint(net, "c", "h1", &of_client, &client);
    for (number, (name, netns)) in NAMES.iter().zip(&members).enumerate() {
        let (v4, v6) = (format!("10.30.0.{}", 11 + number), format!("fd00:30::{}", 11 + number));
        documents += &endpoint(net, name, &format!("h{}", number + 1), &[&v4, &v6], netns);
    }
    documents += &shop(net, &NAMES);
    lab.apply(&documents);
    configure(&client, "10.30.0.21/24", "10.30.0.1");
    for address in &of_client[1..] {
        let length = if address.contains(':') { 64 } else { 24 };
        client.address("eth0", format!("{address}/{length}")).unwrap();
    }
    for (number, netns) in members.iter().enumerate() {
        wait_carrier(netns);
        configure(netns, &format!("10.30.0.{}/24", 11 + number), "10.30.0.1");
        netns.address("eth0", format!("fd00:30::{}/64", 11 + number)).unwrap();
    }
    let servers = members.iter().zip(NAMES).map(|(netns, name)| Named::begin(netns, 7001, name)).collect();
    Stage { client, members, servers }
}

impl Stage {
    /// Who serves each address of the client.
    fn served(&self) -> BTreeMap<u8, String> {
        let to = SocketAddr::new(ip("10.30.0.100"), 7000);
        let of = |last: u8| (last, answer(&self.client, IpAddr::from([10, 30, 0, last]), to));
        (21..21 + CLIENTS).map(of).collect()
    }
}

fn check_spread(served: &BTreeMap<u8, String>) {
    let mut counts: BTreeMap<&str, u8> = BTreeMap::new();
    served.values().for_each(|name| *counts.entry(name).or_default() += 1);
    let wanted: BTreeMap<&str, u8> = NAMES.iter().map(|name| (*name, CLIENTS / 3)).collect();
    assert_eq!(counts, wanted, "{served:?}");
}

#[test]
fn clients_are_spread_evenly_and_connections_outlive_the_switch_and_other_members() {
    let Some(lab) = lab("balanced") else { return };
    let extra = Extra::begin();
    let stage = stage(&lab, &extra, "bal", "");
    let served = stage.served();
    check_spread(&served);
    assert_eq!(stage.served(), served, "each keeps its member");
    let six = answer(&stage.client, ip("fd00:30::21"), SocketAddr::new(ip("fd00:30::100"), 7000));
    assert!(NAMES.contains(&six.as_str()), "{six}");
    let mut traced = String::new();
    wait("a trace with the turn, and who signed it", || {
        let output = lab.weir(&["trace", "bal/c", "10.30.0.100", "--protocol", "udp", "--port", "7000"]);
        traced = text(&output.stdout) + &text(&output.stderr);
        traced.contains("balancer") && traced.contains("turn/")
    });
    wait("the balancer as people see it", || {
        let shown = text(&lab.weir(&["get", "balancers", "--network", "bal"]).stdout);
        shown.contains("10.30.0.100") && shown.contains("udp/7000:7001") && shown.contains("m1,m2,m3")
    });
    let refused = lab.weir(&["delete", "endpoint", "bal/m3", "--yes"]);
    let said = text(&refused.stdout) + &text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("has it as a member"), "{said}");

    // A connection of the client's first address, through restarts of its switch and of its member's.
    let own = NAMES.iter().position(|name| *name == served[&21]).unwrap();
    let echo = Echo::open(&stage.client, &stage.members[own], ip("10.30.0.100"), 8080);
    for host in BTreeSet::from(["h1".to_string(), format!("h{}", own + 1)]) {
        lab.crash(&host, "switch");
        echo.goes_on();
    }
    // Another member goes: its clients are served elsewhere, and the connection does not feel it.
    let gone = NAMES.iter().position(|name| *name != served[&21] && *name != "m1").unwrap();
    let left: Vec<&str> = NAMES.into_iter().filter(|name| *name != NAMES[gone]).collect();
    lab.apply(&shop("bal", &left));
    lab.ok(&["delete", "endpoint", &format!("bal/{}", NAMES[gone]), "--yes", "--wait-s", "60"]);
    wait("every client served by who is left", || {
        stage.served().values().all(|name| left.contains(&name.as_str()))
    });
    let after = stage.served();
    let kept = |last: &u8| served[last] == NAMES[gone] || after[last] == served[last];
    assert!(after.keys().all(kept), "{served:?} {after:?}");
    echo.goes_on();
    assert!(echo.close() > 0);
    assert_eq!(stage.servers.len(), NAMES.len());
}

#[test]
fn a_learned_network_spreads_its_clients_too() {
    let Some(lab) = lab("balanced_learned") else { return };
    let extra = Extra::begin();
    let stage = stage(&lab, &extra, "ballea", "forwarding: learned");
    check_spread(&stage.served());
    let six = answer(&stage.client, ip("fd00:30::21"), SocketAddr::new(ip("fd00:30::100"), 7000));
    assert!(NAMES.contains(&six.as_str()), "{six}");
    wait("counters of the questions", || {
        let counters = lab.client().counters("h1").unwrap_or_default();
        let of = |name: &str| counters.get(name).copied().unwrap_or_default();
        of("questions_answered") >= u64::from(CLIENTS) && of("turns") > 0
    });
}
