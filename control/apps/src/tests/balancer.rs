//! Virtual addresses: documents, turns, and what takes turns away.

use super::*;
use crate::flows::tests::turns_of_the_procedure;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_model::entry::ServiceEntry;
use weir_model::event::TurnUse;
use weir_model::packet_in::{PacketIn, PacketInReport, Why};

const VIRTUAL: &str = "10.0.0.100";

fn shop(members: &[&str]) -> Value {
    json!({"kind": "balancer", "network": "red", "name": "shop", "address": VIRTUAL, "members": members,
        "services": [{"protocol": "tcp", "port": 80, "targetPort": 8080}, {"protocol": "udp", "port": 53}]})
}

/// Clients c1 to c3 (.2 to .4) on h1 to h3, members m1 to m3 (.5 to .7) on h1 to h3.
fn cloud(network: Value) -> Cloud {
    let mut cloud = Cloud::with_switches();
    cloud.apply(json!([network, subnet("red", "10.0.0.0/24")]));
    for name in ["c1", "c2", "c3", "m1", "m2", "m3"] {
        cloud.apply(json!([endpoint("red", name, &format!("h{}", &name[1..]))]));
    }
    cloud
}

fn cloud_with_shop() -> Cloud {
    let mut cloud = cloud(network("red"));
    cloud.apply(json!([shop(&["m1", "m2", "m3"])]));
    cloud
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Cloud {
    fn question(&self, client: &str, to: &str) -> PacketIn {
        let allocated = self.stored(&format!("endpoint/red/{client}")).allocated;
        PacketIn {
            endpoint: label(client),
            why: Why::Balanced,
            source_mac: allocated.mac.unwrap(),
            source: Some(allocated.addresses[0]),
            destination: Some(ip(to)),
            protocol: 6,
            ports: (40_000, 80),
        }
    }

    fn told(&mut self, host: &str, packets: Vec<PacketIn>) -> Result<Plan, Rejection> {
        self.decide(EventBody::PacketIn(PacketInReport { actuator: label(host), vni: Vni(1), packets }))
    }

    /// A client on its host connects to the virtual address.
    fn connects(&mut self, client: &str) -> Plan {
        let question = self.question(client, VIRTUAL);
        self.told(&format!("h{}", &client[1..]), vec![question]).unwrap()
    }

    /// Who serves a client, by the entry at its host.
    fn turn(&self, client: &str) -> Option<String> {
        let address = self.stored(&format!("endpoint/red/{client}")).allocated.addresses[0];
        let key = Key::Turn { vni: Vni(1), client: address, address: ip(VIRTUAL) };
        match self.entry(&format!("h{}", &client[1..]), key)? {
            Entry::Turn(turn) => Some(turn.endpoint.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn shop_at(&self, host: &str) -> Option<Vec<String>> {
        match self.entry(host, Key::Virtual { vni: Vni(1), address: ip(VIRTUAL) })? {
            Entry::Virtual(entry) => Some(entry.members.iter().map(ToString::to_string).collect()),
            other => panic!("{other:?}"),
        }
    }

    fn uses(&mut self, host: &str, turns: Vec<TurnUse>) -> Plan {
        let (through_gateway, direct) = (Vec::new(), Vec::new());
        let report = UsageReport { actuator: label(host), window_ms: 1000, through_gateway, direct, turns };
        self.decide(EventBody::Usage(report)).unwrap()
    }
}

#[test]
fn a_virtual_address_is_told_to_the_hosts_of_its_network_alone() {
    let mut cloud = cloud(network("red"));
    cloud.apply(json!([network("blue"), subnet("blue", "10.0.0.0/24"), endpoint("blue", "x", "h1")]));
    let plan = cloud.apply(json!([shop(&["m1", "m2"])]));
    let of = |host: &str| format!("+{host} virtual/1/{VIRTUAL}");
    assert_eq!(lines(&plan), [of("h1"), of("h2"), of("h3")]);
    let key = Key::Virtual { vni: Vni(1), address: ip(VIRTUAL) };
    let Some(Entry::Virtual(entry)) = cloud.entry("h2", key) else { panic!() };
    assert_eq!(entry.name, label("shop"));
    assert_eq!(entry.services[0], ServiceEntry { protocol: 6, port: 80, target_port: 8080 });
    assert_eq!(entry.services[1], ServiceEntry { protocol: 17, port: 53, target_port: 53 });
    assert_eq!(entry.members, [ip("10.0.0.5"), ip("10.0.0.6")]);
    // A host that the network comes to has it with the rest, and one that it leaves forgets it.
    cloud.join("h4", Role::Host, 4);
    assert!(lines(&cloud.apply(json!([endpoint("red", "late", "h4")]))).contains(&of("h4")));
    let gone = lines(&cloud.try_delete(&["endpoint/red/late"]).unwrap());
    assert!(gone.contains(&format!("-h4 virtual/1/{VIRTUAL}")), "{gone:?}");
    let gone = lines(&cloud.try_delete(&["balancer/red/shop"]).unwrap());
    assert_eq!(gone, ["h1", "h2", "h3"].map(|host| format!("-{host} virtual/1/{VIRTUAL}")));
}

#[test]
fn clients_are_given_the_members_in_turns_and_keep_them() {
    let mut cloud = cloud_with_shop();
    let plan = cloud.connects("c1");
    assert_eq!(lines(&plan), [format!("+h1 turn/1/10.0.0.2/{VIRTUAL}")]);
    let waits = after(&plan, &lines(&plan)[0]);
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert!(waits[0].starts_with("h1 port/1/m1 @") && waits[1].starts_with("h1 virtual/1/10.0.0.100 @"));
    cloud.connects("c2");
    assert_eq!((cloud.turn("c1"), cloud.turn("c2")), (Some("m1".into()), Some("m2".into())));
    // Asked again, on the way or by another connection, it is the same one's.
    assert_eq!(cloud.connects("c1"), Plan::default());
    cloud.connects("c3");
    assert_eq!(cloud.turn("c3"), Some("m3".into()));
    // A client that is a member itself is never given itself.
    cloud.connects("m1");
    assert_eq!(cloud.turn("m1"), Some("m2".into()));
    cloud.connects("m3");
    assert_eq!(cloud.turn("m3"), Some("m1".into()), "m3's own turn passed over it");
}

#[test]
fn a_turn_goes_with_its_member_and_the_next_question_takes_another() {
    let mut cloud = cloud_with_shop();
    for client in ["c1", "c2", "c3"] {
        cloud.connects(client);
    }
    let plan = cloud.apply(json!([shop(&["m2", "m3"])]));
    assert!(lines(&plan).contains(&format!("-h1 turn/1/10.0.0.2/{VIRTUAL}")));
    assert_eq!(cloud.turn("c1"), None);
    assert_eq!(cloud.turn("c2"), Some("m2".into()), "others keep theirs");
    assert_eq!(cloud.shop_at("h1").unwrap(), ["10.0.0.6", "10.0.0.7"]);
    cloud.connects("c1");
    assert_eq!(cloud.turn("c1"), Some("m2".into()), "m1 had the turn, m2 is the next that is left");
    // A port that is wanted down cannot serve, nor one without a host, nor one whose host is gone.
    cloud.apply(json!([with(endpoint("red", "m2", "h2"), json!({"state": "down"}))]));
    assert_eq!((cloud.turn("c1"), cloud.turn("c2")), (None, None));
    assert_eq!(cloud.shop_at("h1").unwrap(), ["10.0.0.7"]);
    cloud.connects("c1");
    assert_eq!(cloud.turn("c1"), Some("m3".into()));
    cloud.decide(EventBody::Removed { actuator: label("h3") }).unwrap();
    assert_eq!(cloud.turn("c1"), None);
    assert_eq!(cloud.shop_at("h1").unwrap(), Vec::<String>::new());
    assert_eq!(cloud.connects("c1"), Plan::default(), "nobody can serve");
    let plan = cloud.apply(json!([endpoint("red", "m2", "h2")]));
    assert!(lines(&plan).contains(&format!("+h1 virtual/1/{VIRTUAL}")));
    cloud.connects("c1");
    assert_eq!(cloud.turn("c1"), Some("m2".into()));
}

#[test]
fn a_turn_goes_with_its_client() {
    let mut cloud = cloud_with_shop();
    cloud.connects("c1");
    let plan = cloud.apply(json!([endpoint("red", "c1", "h2")]));
    assert!(lines(&plan).contains(&format!("-h1 turn/1/10.0.0.2/{VIRTUAL}")), "{:?}", lines(&plan));
    // Its new host asks, the old one is not believed.
    let question = cloud.question("c1", VIRTUAL);
    assert!(cloud.told("h1", vec![question.clone()]).is_err());
    assert_eq!(lines(&cloud.told("h2", vec![question]).unwrap()), [format!("+h2 turn/1/10.0.0.2/{VIRTUAL}")]);
    let plan = cloud.try_delete(&["endpoint/red/c1"]).unwrap();
    assert!(lines(&plan).contains(&format!("-h2 turn/1/10.0.0.2/{VIRTUAL}")));
    for table in [tables::TURNS, tables::HOST_TURNS, tables::MEMBER_TURNS] {
        assert_eq!(cloud.store.count(table), 0, "{table}");
    }
}

#[test]
fn a_turn_that_is_not_used_goes_and_one_that_is_used_stays() {
    let mut cloud = cloud_with_shop();
    cloud.connects("c1");
    cloud.connects("m1");
    let used = |client: &str| TurnUse { vni: Vni(1), client: ip(client), address: ip(VIRTUAL) };
    for _ in 0..8 {
        cloud.now_ms += 20_000;
        // Of another host's client nothing is believed.
        cloud.uses("h1", vec![used("10.0.0.2")]);
        cloud.uses("h2", vec![used("10.0.0.5")]);
    }
    assert_eq!((cloud.turn("c1"), cloud.turn("m1")), (Some("m1".into()), None));
    cloud.connects("m1");
    assert_eq!(cloud.turn("m1"), Some("m3".into()), "it is given the next turn");
    cloud.now_ms += 60_000;
    assert_eq!(lines(&cloud.uses("h1", Vec::new())).len(), 2);
    assert_eq!(cloud.store.count(tables::TURNS), 0);
}

#[test]
fn a_host_asks_only_for_its_own_and_learned_networks_learn_besides() {
    let mut cloud = cloud_with_shop();
    let before = cloud.store.digest();
    let stolen = cloud.question("c2", VIRTUAL);
    let text = cloud.told("h1", vec![stolen]).unwrap_err().to_string();
    assert!(text.contains("endpoint c2 is not on that host"), "{text}");
    let heard = PacketIn { why: Why::Heard, ..cloud.question("c1", VIRTUAL) };
    let text = cloud.told("h1", vec![heard]).unwrap_err().to_string();
    assert!(text.contains("no learned network"), "{text}");
    let nobodys = cloud.question("c1", "10.0.0.77");
    assert_eq!(cloud.told("h1", vec![nobodys]).unwrap(), Plan::default());
    let nameless = PacketIn { source: None, ..cloud.question("c1", VIRTUAL) };
    assert!(cloud.told("h1", vec![nameless]).is_err());
    assert_eq!(cloud.store.digest(), before);

    let mut learned = cloud_of_learned();
    let plan = learned.connects("c1");
    assert_eq!(
        lines(&plan),
        [
            "+g1 location/1/10.0.0.2".to_string(),
            "+g2 location/1/10.0.0.2".into(),
            format!("+h1 turn/1/10.0.0.2/{VIRTUAL}")
        ]
    );
}

fn cloud_of_learned() -> Cloud {
    let mut cloud = cloud(with(network("red"), json!({"forwarding": "learned"})));
    cloud.apply(json!([shop(&["m1", "m2", "m3"])]));
    cloud
}

#[test]
fn addresses_of_endpoints_and_virtual_ones_are_never_the_same() {
    let mut cloud = cloud_with_shop();
    let at = |address: &str| with(shop(&[]), json!({"name": "other", "address": address}));
    let text = cloud.rejected(json!([at("10.0.0.2")]));
    assert!(text.contains("10.0.0.2 is that of endpoint 'c1'"), "{text}");
    let text = cloud.rejected(json!([at(VIRTUAL)]));
    assert!(text.contains("virtual one of balancer 'shop'"), "{text}");
    let text = cloud.rejected(json!([at("10.9.0.2")]));
    assert!(text.contains("one of the subnets of network 'red'"), "{text}");
    let text = cloud.rejected(json!([at("10.0.0.1")]));
    assert!(text.contains("the router's address"), "{text}");
    let greedy = with(endpoint("red", "greedy", "h1"), json!({"addresses": [VIRTUAL]}));
    let text = cloud.rejected(json!([greedy]));
    assert!(text.contains("virtual one of balancer 'shop'"), "{text}");
    // What is chosen passes over it.
    cloud.apply(json!([at("10.0.0.8"), endpoint("red", "next", "h1")]));
    assert_eq!(cloud.addresses("endpoint/red/next"), ["10.0.0.9"]);
    cloud.try_delete(&["balancer/red/other"]).unwrap();
    cloud.apply(json!([endpoint("red", "after", "h1")]));
    assert_eq!(cloud.addresses("endpoint/red/after"), ["10.0.0.8"]);
}

#[test]
fn what_a_balancer_needs_stays() {
    let mut cloud = cloud_with_shop();
    let text = cloud.rejected(json!([shop(&["m1", "nobody"])]));
    assert!(text.contains("endpoint 'nobody', does not exist"), "{text}");
    let text = cloud.try_delete(&["endpoint/red/m1"]).unwrap_err().to_string();
    assert!(text.contains("balancer/red/shop has it as a member"), "{text}");
    let grown = json!({"kind": "subnet", "network": "red", "name": "main", "v4": "10.0.0.0/23"});
    assert!(cloud.rejected(json!([grown])).contains("balancer 'shop' has an address of it"));
    let text = cloud.try_delete(&["subnet/red/main"]).unwrap_err().to_string();
    assert!(text.contains("balancer 'shop'"), "{text}");
    // Together they may go, in any order.
    let mut gone = vec![mutation(&shop(&["m2"]))];
    gone.push(Mutation { id: id("endpoint/red/m1"), expected: None, wanted: Wanted::Absent });
    cloud.mutate(gone).unwrap();
    let six = json!({"kind": "balancer", "network": "red", "name": "six", "address": "fd00::9", "services":
        [{"protocol": "tcp", "port": 1}]});
    assert!(cloud.rejected(json!([six])).contains("one of the subnets"));
    let services = json!({"services": [{"protocol": "icmp", "port": 1}]});
    assert!(cloud.rejected(json!([with(shop(&[]), services)])).contains("tcp or udp"));
    let text = cloud.rejected(json!([shop(&["m2", "m2"])]));
    assert!(text.contains("each endpoint once"), "{text}");
}

#[test]
fn virtual_addresses_and_turns_have_limits() {
    let mut cloud = cloud(network("red"));
    cloud.app = Deciders::new(FabricSettings {
        balancers_per_network_max: 1,
        turns_per_host_max: 1,
        ..FabricSettings::default()
    });
    cloud.apply(json!([shop(&["m1", "m2"])]));
    let second = with(shop(&[]), json!({"name": "second", "address": "10.0.0.101"}));
    assert!(cloud.rejected(json!([second])).contains("balancers of network red"));
    cloud.connects("c1");
    let question = cloud.question("m1", VIRTUAL);
    let text = cloud.told("h1", vec![question]).unwrap_err().to_string();
    assert!(text.contains("turns of virtual addresses of host h1"), "{text}");
    cloud.connects("c2");
    assert_eq!(cloud.turn("c2"), Some("m2".into()), "another host has its own");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whoever asks for the first time is given whom the store's procedure would give; later questions change nothing.
    #[test]
    fn the_fabric_takes_turns_as_the_procedure_does(
        members in 1_usize..5,
        questions in prop::collection::vec(0_usize..12, 1..40),
    ) {
        let mut cloud = Cloud::with_switches();
        cloud.apply(red());
        let clients: Vec<String> = (0..12).map(|number| format!("c{number}")).collect();
        cloud.apply(Value::Array(clients.iter().map(|name| endpoint("red", name, "h1")).collect()));
        let names: Vec<String> = (0..members).map(|number| format!("m{number}")).collect();
        cloud.apply(Value::Array(names.iter().map(|name| endpoint("red", name, "h2")).collect()));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        cloud.apply(json!([shop(&names)]));
        let wanted = turns_of_the_procedure(members as u64, 12);
        let mut given: BTreeMap<usize, String> = BTreeMap::new();
        for client in questions {
            let question = cloud.question(&clients[client], VIRTUAL);
            let source = question.source.unwrap();
            cloud.told("h1", vec![question]).unwrap();
            let member = format!("m{}", wanted[given.len().min(11)]);
            let member = given.entry(client).or_insert(member).clone();
            let key = Key::Turn { vni: Vni(1), client: source, address: ip(VIRTUAL) };
            let Some(Entry::Turn(turn)) = cloud.entry("h1", key) else { panic!("no turn") };
            prop_assert_eq!(turn.endpoint.to_string(), member);
        }
    }
}
