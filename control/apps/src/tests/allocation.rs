//! Addresses, Ethernet addresses and devices.

use super::*;

fn asks(name: &str, addresses: &[&str]) -> Value {
    with(endpoint("red", name, "h1"), json!({"addresses": addresses}))
}

#[test]
fn the_lowest_free_address_is_given_and_kept() {
    let mut cloud = Cloud::new();
    cloud.apply(red());
    cloud.apply(json!([endpoint("red", "b", "h1"), endpoint("red", "a", "h1"), asks("c", &["10.0.0.3"])]));
    assert_eq!(cloud.addresses("endpoint/red/a"), ["10.0.0.2"]);
    assert_eq!(cloud.addresses("endpoint/red/b"), ["10.0.0.4"]);
    // One that goes leaves a hole; one that changes keeps what it has.
    cloud.try_delete(&["endpoint/red/a"]).unwrap();
    cloud.apply(json!([
        with(endpoint("red", "b", "h2"), json!({"tags": ["web"]})),
        endpoint("red", "d", "h1")
    ]));
    assert_eq!(cloud.addresses("endpoint/red/b"), ["10.0.0.4"]);
    assert_eq!(cloud.addresses("endpoint/red/d"), ["10.0.0.2"]);
    // One that no longer asks for its address keeps it too.
    cloud.apply(json!([endpoint("red", "c", "h1")]));
    assert_eq!(cloud.addresses("endpoint/red/c"), ["10.0.0.3"]);
}

#[test]
fn a_subnet_gives_both_families_and_runs_out() {
    let mut cloud = Cloud::new();
    cloud.apply(json!([network("red"), with(subnet("red", "10.0.0.0/29"), json!({"v6": "fd00::/64"}))]));
    for name in ["a", "b", "c", "d", "e"] {
        cloud.apply(json!([endpoint("red", name, "h1")]));
    }
    assert_eq!(cloud.addresses("endpoint/red/a"), ["10.0.0.2", "fd00::2"]);
    assert_eq!(cloud.addresses("endpoint/red/e"), ["10.0.0.6", "fd00::6"]);
    let error = cloud.rejected(json!([endpoint("red", "f", "h1")]));
    assert!(error.contains("subnet 'main' has no free address in 10.0.0.0/29"), "{error}");
}

#[test]
fn addresses_that_may_not_be_asked_for() {
    let mut cloud = Cloud::new();
    cloud.apply(json!([network("red"), with(subnet("red", "10.0.0.0/24"), json!({"v6": "fd00::/64"}))]));
    cloud.apply(json!([asks("a", &["10.0.0.5"])]));
    for (address, problem) in [
        ("10.0.1.5", "an address of 10.0.0.0/24, the prefix of subnet 'main'"),
        ("10.0.0.0", "any address of 10.0.0.0/24 but the network's own address"),
        ("10.0.0.1", "but the router's address"),
        ("10.0.0.255", "but the broadcast address"),
        ("fd00::", "but the routers' anycast address"),
        ("fd00::1", "but the router's address"),
        ("10.0.0.5", "address 10.0.0.5 is that of endpoint 'a'"),
    ] {
        let error = cloud.rejected(json!([asks("b", &[address])]));
        assert!(error.contains(problem), "{address}: {error}");
    }
}

#[test]
fn addresses_can_be_swapped_and_taken_over_in_one_change() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(red());
    cloud.apply(json!([asks("a", &["10.0.0.5"]), asks("b", &["10.0.0.6"])]));
    cloud.apply(json!([asks("a", &["10.0.0.6"]), asks("b", &["10.0.0.5"])]));
    assert_eq!(cloud.addresses("endpoint/red/a"), ["10.0.0.6"]);
    cloud.apply(json!([endpoint("red", "a", "h1"), asks("b", &["10.0.0.6"])]));
    assert_eq!(cloud.addresses("endpoint/red/a"), ["10.0.0.2"]);
    assert_eq!(cloud.addresses("endpoint/red/b"), ["10.0.0.6"]);
}

#[test]
fn what_was_chosen_for_one_is_not_given_to_another_who_asks_for_it() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(red());
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let changed = with(endpoint("red", "a", "h1"), json!({"state": "down"}));
    let error = cloud.rejected(json!([changed, asks("b", &["10.0.0.2"])]));
    assert!(error.starts_with("endpoint/red/b: address 10.0.0.2 is that of endpoint 'a'"), "{error}");
}

#[test]
fn networks_share_nothing() {
    let mut cloud = Cloud::with_switches();
    for name in ["red", "blue"] {
        let end = with(endpoint(name, "web", "h1"), json!({"attachment": {"device": "eth0", "netns": name}}));
        cloud.apply(json!([network(name), subnet(name, "10.0.0.0/24"), end]));
    }
    assert_eq!(cloud.addresses("endpoint/red/web"), cloud.addresses("endpoint/blue/web"));
    let macs = ["red", "blue"].map(|n| cloud.stored(&format!("endpoint/{n}/web")).allocated.mac);
    assert_ne!(macs[0], macs[1]);
}

#[test]
fn ethernet_addresses_are_unique_in_a_network() {
    let mut cloud = Cloud::new();
    cloud.apply(red());
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let mac = cloud.stored("endpoint/red/a").allocated.mac.unwrap();
    let error = cloud.rejected(json!([with(endpoint("red", "b", "h2"), json!({"mac": mac}))]));
    assert!(error.contains("is that of endpoint 'a'"), "{error}");
    let router = Vni(1).router_mac();
    let error = cloud.rejected(json!([with(endpoint("red", "b", "h2"), json!({"mac": router}))]));
    assert!(error.contains("network's router"), "{error}");
    // Another takes the address that `a` would be given; so `a`, made anew, gets the next.
    cloud.try_delete(&["endpoint/red/a"]).unwrap();
    cloud.apply(json!([with(endpoint("red", "b", "h2"), json!({"mac": mac})), endpoint("red", "a", "h1")]));
    assert_ne!(cloud.stored("endpoint/red/a").allocated.mac, Some(mac));
}

#[test]
fn devices_are_unique_on_a_host() {
    let mut cloud = Cloud::new();
    cloud.apply(red());
    cloud.apply(json!([network("blue"), subnet("blue", "10.0.0.0/24"), endpoint("red", "web", "h1")]));
    let error = cloud.rejected(json!([endpoint("blue", "web", "h1")]));
    assert!(error.contains("device 'web' on host 'h1' is that of endpoint/red/web"), "{error}");
    cloud.apply(json!([endpoint("blue", "web", "h2")]));
    let long = "a-name-that-no-device-may-have";
    cloud.apply(json!([endpoint("red", long, "h1")]));
    let device = cloud.stored(&format!("endpoint/red/{long}")).allocated.device.unwrap();
    assert!(device.starts_with("a-name-t-") && device.len() == 15, "{device}");
}

#[test]
fn subnets_of_a_network_do_not_overlap() {
    let mut cloud = Cloud::new();
    cloud.apply(red());
    let second = |v4: &str| json!([{"kind": "subnet", "network": "red", "name": "second", "v4": v4}]);
    let error = cloud.rejected(second("10.0.0.128/25"));
    assert!(error.contains("10.0.0.128/25 overlaps 10.0.0.0/24 of subnet/red/main"), "{error}");
    assert!(cloud.rejected(second("10.0.0.0/16")).contains("overlaps"));
    cloud.apply(second("10.0.1.0/24"));
}

#[test]
fn a_prefix_changes_only_without_endpoints() {
    let mut cloud = Cloud::new();
    cloud.apply(red());
    cloud.apply(json!([subnet("red", "10.5.0.0/24")]));
    cloud.apply(json!([endpoint("red", "a", "h1")]));
    let error = cloud.rejected(json!([subnet("red", "10.6.0.0/24")]));
    assert!(error.contains("endpoint 'a' has addresses of it"), "{error}");
    // Away and back in one change is fine for others that come.
    let away = Mutation { id: id("endpoint/red/a"), expected: None, wanted: Wanted::Absent };
    let changes = [subnet("red", "10.6.0.0/24"), endpoint("red", "b", "h1")];
    cloud.mutate(changes.iter().map(mutation).chain([away]).collect()).unwrap();
    assert_eq!(cloud.addresses("endpoint/red/b"), ["10.6.0.2"]);
}

#[test]
fn a_large_pool_finds_holes_without_looking_at_each_address() {
    let mut cloud = Cloud::new();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/16")]));
    let all: Vec<Value> = (0..5000)
        .map(|n| json!({"kind": "endpoint", "network": "red", "name": format!("e{n:04}"), "subnet": "main"}))
        .collect();
    cloud.apply(all.into());
    assert_eq!(cloud.addresses("endpoint/red/e4999"), ["10.0.19.137"]);
    cloud.try_delete(&["endpoint/red/e0100", "endpoint/red/e4500"]).unwrap();
    cloud.apply(json!([endpoint("red", "x", "h1"), endpoint("red", "y", "h1"), endpoint("red", "z", "h1")]));
    let found = ["x", "y", "z"].map(|n| cloud.addresses(&format!("endpoint/red/{n}")).remove(0));
    assert_eq!(found, ["10.0.0.102", "10.0.17.150", "10.0.19.138"]);
}
