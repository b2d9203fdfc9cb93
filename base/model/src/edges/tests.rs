use super::*;
use crate::entry::MEMBER_BUCKETS;
use crate::{Label, Version};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn keys(vni: u32) -> [Key; 3] {
    let vni = Vni(vni);
    [Key::Network { vni }, Key::Policy { vni }, Key::Port { vni, endpoint: label("a") }]
}

#[test]
fn ports_go_before_what_is_of_their_own_network() {
    let [network, policy, port] = keys(1);
    let [other_network, other_policy, _] = keys(2);
    assert!(outlives(&network, &port) && outlives(&policy, &port));
    assert!(!outlives(&other_network, &port) && !outlives(&other_policy, &port));
    assert!(!outlives(&port, &network) && !outlives(&network, &policy));
    // A repair orders these alone: what it orders is what it always ordered.
    assert_eq!([&network, &policy, &port].map(whole), [None, None, Some(network.clone())]);
    for key in keys(1) {
        let asked = keys(1).iter().any(|other| outlives(&key, other));
        assert_eq!(may_outlive(&key), asked, "{key}");
    }
}

#[test]
fn no_key_is_before_the_first() {
    let all = [Key::Underlays, Key::Controllers, Key::Switches { bucket: MEMBER_BUCKETS - 1 }];
    assert!(keys(0).iter().chain(&all).all(|key| FIRST < *key));
    assert!(FIRST <= Key::Gateways);
}

#[test]
fn only_ports_claim_and_a_deleted_one_claims_nothing() {
    let [network, _, port] = keys(1);
    assert!(can_claim(&port) && !can_claim(&network));
    assert_eq!((claimant(&port), claimant(&network)), (Some("a"), None));
    let update = |key| Update {
        target: label("h1"),
        key,
        version: Version(1),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    assert_eq!(claims(&update(port)), []);
}
