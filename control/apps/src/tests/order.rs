//! What waits for what, and why.

use super::*;

fn rule(name: &str, more: Value) -> Value {
    let base = json!({"kind": "firewall-rule", "network": "red", "name": name, "direction": "ingress", "action": "allow"});
    with(base, more)
}

fn tagged(name: &str, host: &str, tags: &[&str]) -> Value {
    with(endpoint("red", name, host), json!({"tags": tags}))
}

fn cloud_with_red() -> Cloud {
    let mut cloud = Cloud::with_switches();
    cloud.apply(red());
    cloud
}

#[test]
fn members_come_before_the_policy_that_selects_them_and_that_before_the_port() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([rule("from-web", json!({"peers": [{"tag": "web"}]}))]));
    let plan = cloud.apply(json!([tagged("a", "h1", &["web"])]));
    let members = format!("members/1/web/{}", weir_model::entry::member_bucket([10, 0, 0, 2].into()));
    assert_eq!(after(&plan, "+h1 policy/1"), [format!("h1 {members} @8")]);
    assert_eq!(
        after(&plan, "+h1 port/1/a"),
        [format!("h1 {members} @8"), "h1 network/1 @8".into(), "h1 policy/1 @8".into()]
    );
    let reasons: Vec<Reason> = plan.updates.iter().flat_map(|p| p.after.iter().map(|d| d.reason)).collect();
    for wanted in [
        Reason::NetworkBeforePort,
        Reason::PolicyBeforePort,
        Reason::MembersBeforePolicy,
        Reason::PortBeforeLocation,
    ] {
        assert!(reasons.contains(&wanted), "{wanted:?}");
    }
    // The rule goes: its policy changes first, its members go then.
    let plan = cloud.try_delete(&["firewall-rule/red/from-web"]).unwrap();
    assert_eq!(lines(&plan), ["+h1 policy/1".to_string(), format!("-h1 {members}")]);
    assert_eq!(after(&plan, &format!("-h1 {members}")), ["h1 policy/1 @9"]);
}

#[test]
fn tags_that_no_rule_uses_cost_nothing() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([tagged("a", "h1", &["web"]), tagged("b", "h2", &["db"])]));
    let plan = cloud.apply(json!([tagged("b", "h2", &["db", "cache"])]));
    assert_eq!(lines(&plan), ["+h2 port/1/b"]);
    let plan = cloud.apply(json!([rule("r", json!({"peers": [{"tag": "db"}], "targets": ["web"]}))]));
    assert_eq!(plan.updates.len(), 4, "{:?}", lines(&plan));
    assert!(lines(&plan).iter().all(|line| !line.contains("web") && !line.contains("cache")));
}

#[test]
fn rules_are_in_the_order_in_which_they_decide() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([
        rule("z", json!({"priority": 5})),
        rule("b", json!({"priority": 10})),
        rule("a", json!({"priority": 10})),
        rule("y", json!({"priority": 10, "action": "deny"})),
        endpoint("red", "e", "h1"),
    ]));
    let Some(Entry::Policy(policy)) = cloud.entry("h1", Key::Policy { vni: Vni(1) }) else { panic!() };
    let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["z", "y", "a", "b"]);
}

#[test]
fn a_port_waits_for_its_policy_and_is_left_alone_when_that_changes() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let bound = |cloud: &Cloud, name: &str| {
        let key = Key::Port { vni: Vni(1), endpoint: label(name) };
        let Some(Entry::Port(port)) = cloud.entry("h1", key) else { panic!() };
        port.policy_min
    };
    assert_eq!(bound(&cloud, "a"), Version(7));
    let plan = cloud.apply(json!([rule("r", json!({}))]));
    assert_eq!(lines(&plan), ["+h1 policy/1"]);
    assert_eq!(bound(&cloud, "a"), Version(7));
    // Issued again because of a refusal, it still waits for no more than before.
    let key = Key::Port { vni: Vni(1), endpoint: label("a") };
    let refusal = Refusal::Stale { in_force: Version(8) };
    let again = EventBody::Refused { actuator: label("h1"), key, version: Version(7), refusal };
    assert_eq!(lines(&cloud.decide(again).unwrap()), ["+h1 port/1/a"]);
    assert_eq!(bound(&cloud, "a"), Version(7));
    cloud.apply(json!([endpoint("red", "b", "h1")]));
    assert_eq!((bound(&cloud, "a"), bound(&cloud, "b")), (Version(7), Version(8)));
}

#[test]
fn a_move_goes_new_port_then_locations_then_old_port_then_its_network() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let plan = cloud.apply(json!([endpoint("red", "a", "h2")]));
    assert_eq!(after(&plan, "+g1 location/1/10.0.0.2"), ["h2 port/1/a @8"]);
    assert_eq!(after(&plan, "-h1 port/1/a"), ["g1 location/1/10.0.0.2 @8", "g2 location/1/10.0.0.2 @8"]);
    assert_eq!(after(&plan, "-h1 policy/1"), ["h1 port/1/a @8"]);
    assert_eq!(after(&plan, "-h1 network/1"), ["h1 policy/1 @8"]);
}

#[test]
fn a_network_waits_for_ports_that_left_earlier_too() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([endpoint("red", "a", "h1"), endpoint("red", "b", "h1")]));
    cloud.try_delete(&["endpoint/red/a"]).unwrap();
    let plan = cloud.try_delete(&["endpoint/red/b"]).unwrap();
    assert_eq!(after(&plan, "-h1 policy/1"), ["h1 port/1/a @8", "h1 port/1/b @9"]);
}

#[test]
fn an_address_is_forgotten_before_its_port_loses_it() {
    let mut cloud = cloud_with_red();
    let asks = |address: &str| json!([with(endpoint("red", "a", "h1"), json!({"addresses": [address]}))]);
    cloud.apply(asks("10.0.0.5"));
    let plan = cloud.apply(asks("10.0.0.6"));
    assert_eq!(
        after(&plan, "+h1 port/1/a"),
        ["g1 location/1/10.0.0.5 @8", "g2 location/1/10.0.0.5 @8", "h1 network/1 @7", "h1 policy/1 @7"]
    );
    assert_eq!(after(&plan, "-g1 location/1/10.0.0.5"), Vec::<String>::new());
}

#[test]
fn hosts_use_a_gateway_when_it_is_filled() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let plan = cloud.join("g3", Role::Gateway, 103);
    assert_eq!(
        lines(&plan),
        [
            "+g3 gateways",
            "+g3 location/1/10.0.0.2",
            "+g3 network/1",
            "+h1 gateways",
            "+h2 gateways",
            "+h3 gateways"
        ]
    );
    assert_eq!(after(&plan, "+g3 gateways"), ["g3 location/1/10.0.0.2 @8", "g3 network/1 @8"]);
    assert_eq!(after(&plan, "+h1 gateways"), ["g1 gateways @1", "g2 gateways @2", "g3 gateways @8"]);
    assert_eq!(cloud.entry("g3", Key::Gateways), Some(Entry::Gateways(vec![])));
    let plan = cloud.decide(EventBody::Removed { actuator: label("g3") }).unwrap();
    assert_eq!(lines(&plan), ["+h1 gateways", "+h2 gateways", "+h3 gateways"]);
}

#[test]
fn the_route_of_a_prefix_is_the_highest_then_the_first_by_name() {
    let mut cloud = cloud_with_red();
    let route = |name: &str, priority: u16, hop: Value| json!({"kind": "route", "network": "red", "name": name, "prefix": "192.168.0.0/16", "priority": priority, "nextHop": hop});
    cloud.apply(json!([endpoint("red", "a", "h1"), route("b", 5, json!("external"))]));
    let plan = cloud.apply(json!([route("a", 5, json!({"endpoint": "a"}))]));
    assert_eq!(
        lines(&plan),
        ["+g1 route/1/192.168.0.0/16", "+g2 route/1/192.168.0.0/16", "+h1 route/1/192.168.0.0/16"]
    );
    let key = Key::Route { vni: Vni(1), prefix: "192.168.0.0/16".parse().unwrap() };
    let hop = |cloud: &Cloud| match cloud.entry("h1", key.clone()) {
        Some(Entry::Route(route)) => format!("{} {:?}", route.name, route.next_hop),
        other => panic!("{other:?}"),
    };
    assert_eq!(hop(&cloud), "a Address(10.0.0.2)");
    // The endpoint gets another address; the route follows.
    cloud.apply(json!([with(endpoint("red", "a", "h1"), json!({"addresses": ["10.0.0.9"]}))]));
    assert_eq!(hop(&cloud), "a Address(10.0.0.9)");
    cloud.apply(json!([route("c", 6, json!("drop"))]));
    assert_eq!(hop(&cloud), "c Drop");
    let error = cloud.rejected(json!([{"kind": "route", "network": "red", "name": "six", "prefix": "fd00::/8", "nextHop": {"endpoint": "a"}}]));
    assert!(error.contains("no address of the prefix's family"), "{error}");
}

#[test]
fn dhcp_options_and_mtu_reach_who_needs_them() {
    let mut cloud = cloud_with_red();
    cloud.apply(json!([endpoint("red", "a", "h1"), endpoint("red", "b", "h2")]));
    let plan = cloud.apply(json!([with(subnet("red", "10.0.0.0/24"), json!({"dhcp": {"leaseS": 600}}))]));
    assert_eq!(lines(&plan), ["+h1 port/1/a", "+h2 port/1/b"]);
    let plan = cloud.apply(json!([with(network("red"), json!({"mtu": 9000}))]));
    assert_eq!(lines(&plan), ["+g1 network/1", "+g2 network/1", "+h1 network/1", "+h2 network/1"]);
    let plan = cloud.apply(json!([with(network("red"), json!({"mtu": 9000, "ingress": "allow"}))]));
    assert_eq!(lines(&plan), ["+h1 policy/1", "+h2 policy/1"]);
}
