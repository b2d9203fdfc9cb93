use super::*;
use weir_base::codec::{decode, encode};

#[test]
fn entries_survive_the_wire() {
    let rule = Rule {
        name: Label::new("web").unwrap(),
        version: Version(9),
        direction: Direction::Ingress,
        priority: 10,
        action: Action::Allow,
        protocol: Protocol::TCP,
        ports: vec![PortRange { first: 80, last: 90 }],
        peers: vec![Peer::Prefix("10.0.0.0/8".parse().unwrap()), Peer::Tag(Label::new("a").unwrap())],
        targets: vec![],
        stateful: true,
    };
    let entry = Entry::Policy(PolicyEntry {
        default_ingress: Action::Deny,
        default_egress: Action::Allow,
        rules: vec![rule],
    });
    assert_eq!(decode::<Entry>(&encode(&entry)).unwrap(), entry);
    let key = Key::Route { vni: Vni(7), prefix: "fd00::/64".parse().unwrap() };
    assert_eq!(decode::<Key>(&encode(&key)).unwrap(), key);
    assert!(!entry.fits(&key));
}

#[test]
fn the_bucket_of_an_address_never_changes() {
    assert_eq!(member_bucket("10.0.0.5".parse().unwrap()), 59);
    assert_eq!(member_bucket("fd00::5".parse().unwrap()), 40);
}

#[test]
fn fuzz_decoding_an_entry() {
    bolero::check!().with_iterations(10_000).for_each(|bytes: &[u8]| {
        if let Ok(entry) = decode::<Entry>(bytes) {
            assert_eq!(decode::<Entry>(&encode(&entry)).unwrap(), entry);
        }
    });
}
