use super::*;
use crate::testing::{VNI, label, location, network, port_entry};
use proptest::prelude::*;

fn location_key(address: &str) -> Key {
    Key::Location { vni: VNI, address: address.parse().unwrap() }
}

#[test]
fn names_follow_their_addresses() {
    let mut mirror = Mirror::default();
    mirror.apply(&Key::Network { vni: VNI }, Version(1), Some(&Entry::Network(network("red"))));
    mirror.apply(&location_key("10.0.0.9"), Version(2), Some(&Entry::Location(location("db"))));
    mirror.apply(&location_key("fd00:a::9"), Version(3), Some(&Entry::Location(location("db"))));
    assert_eq!(mirror.network_named("red").unwrap().0, VNI);
    assert_eq!(mirror.addresses(VNI, "db").unwrap().0.len(), 2);
    mirror.apply(&location_key("10.0.0.9"), Version(4), Some(&Entry::Location(location("cache"))));
    assert_eq!(mirror.addresses(VNI, "db").unwrap().0, ["fd00:a::9".parse::<IpAddr>().unwrap()]);
    assert_eq!(mirror.endpoint_at(VNI, "10.0.0.9".parse().unwrap()), Some(&label("cache")));
    mirror.apply(&location_key("10.0.0.9"), Version(5), None);
    assert_eq!(mirror.addresses(VNI, "cache"), None);
    assert_eq!(mirror.addresses(Vni(8), "db"), None, "another network's names are not seen");
    assert_eq!(mirror.len(), 2);
}

#[test]
fn a_port_knows_all_addresses_and_is_found_by_each() {
    let mut mirror = Mirror::default();
    let key = Key::Port { vni: VNI, endpoint: label("web") };
    mirror.apply(&key, Version(2), Some(&Entry::Port(port_entry(&["10.0.0.5", "fd00:a::5"]))));
    assert!(mirror.port(VNI, &label("web")).is_none(), "a port without its network is no context");
    mirror.apply(&Key::Network { vni: VNI }, Version(1), Some(&Entry::Network(network("red"))));
    assert_eq!(mirror.ports().count(), 1);
    assert_eq!(mirror.addresses(VNI, "web").unwrap().1, Known::Whole);
    assert_eq!(mirror.endpoint_at(VNI, "fd00:a::5".parse().unwrap()), Some(&label("web")));
}

#[test]
fn what_does_not_fit_or_is_older_changes_nothing() {
    let mut mirror = Mirror::default();
    let key = Key::Network { vni: VNI };
    mirror.apply(&key, Version(5), Some(&Entry::Network(network("red"))));
    assert_eq!(mirror.apply(&key, Version(4), Some(&Entry::Network(network("old")))), Touched::default());
    assert_eq!(mirror.apply(&key, Version(4), None), Touched::default());
    assert_eq!(mirror.apply(&key, Version(6), Some(&Entry::Gateways(vec![]))), Touched::default());
    assert_eq!(mirror.network(VNI).unwrap().name, label("red"));
}

#[test]
fn a_renamed_network_is_found_by_its_new_name_only() {
    let mut mirror = Mirror::default();
    mirror.apply(&Key::Network { vni: VNI }, Version(1), Some(&Entry::Network(network("red"))));
    mirror.apply(&Key::Network { vni: VNI }, Version(2), Some(&Entry::Network(network("blue"))));
    assert!(mirror.network_named("red").is_none());
    assert!(mirror.network_named("blue").is_some());
}

#[test]
fn a_deletion_during_the_reading_wins_over_a_later_page() {
    let mut reading = Reading::default();
    let key = location_key("10.0.0.9");
    reading.change(&key, Version(8), None);
    reading.page_entry(&key, Version(7), &Entry::Location(location("db")));
    assert!(reading.finish().is_empty());
}

proptest! {
    /// Pages in any order with changes between them end where the changes alone end.
    #[test]
    fn a_reading_is_what_the_changes_say(steps in proptest::collection::vec((0_u8..4, any::<bool>(), any::<bool>()), 0..40)) {
        let mut truth: HashMap<Key, (Version, Option<Entry>)> = HashMap::new();
        let mut reading = Reading::default();
        let mut paged = false;
        for (number, (slot, put, page)) in steps.iter().enumerate() {
            let key = location_key(&format!("10.0.0.{slot}"));
            let version = Version(number as u64 + 1);
            let entry = put.then(|| Entry::Location(location(&format!("e{number}"))));
            truth.insert(key.clone(), (version, entry.clone()));
            // Before the page is read, changes may come or not: the page has them all.
            if paged || *page {
                reading.change(&key, version, entry.as_ref());
            }
            if *page && !paged {
                paged = true;
                for (key, (version, entry)) in &truth {
                    if let Some(entry) = entry {
                        reading.page_entry(key, *version, entry);
                    }
                }
            }
        }
        if !paged {
            for (key, (version, entry)) in &truth {
                if let Some(entry) = entry {
                    reading.page_entry(key, *version, entry);
                }
            }
        }
        let mirror = reading.finish();
        for (key, (_, entry)) in &truth {
            let Key::Location { vni, address } = key else { unreachable!() };
            let expected = entry.as_ref().map(|entry| match entry {
                Entry::Location(location) => location.endpoint.clone(),
                _ => unreachable!(),
            });
            prop_assert_eq!(mirror.endpoint_at(*vni, *address).cloned(), expected);
        }
    }
}
