use super::*;
use std::collections::BTreeSet;

#[test]
fn the_resources_are_sound_and_both_tenants_have_the_same_names_and_ranges() {
    let (resources, values) = resources_of(Place::new(Kind::TwoTenants, 0)).unwrap();
    assert_eq!(resources.len(), values.len());
    let of = |network: &str| -> Vec<String> {
        let ids = resources.iter().map(Resource::id);
        ids.filter(|id| id.network.as_ref().is_some_and(|name| name.as_str() == network))
            .map(|id| format!("{}/{}", id.kind, id.name))
            .collect()
    };
    assert!(!of("red").is_empty());
    assert_eq!(of("red"), of("blue"));
    let subnets: Vec<_> = resources
        .iter()
        .filter_map(|resource| match resource {
            Resource::Subnet(subnet) => Some((subnet.v4, subnet.v6)),
            _ => None,
        })
        .collect();
    assert_eq!(subnets.len(), 2);
    assert_eq!(subnets[0], subnets[1]);
}

#[test]
fn every_guest_has_a_namespace_of_the_instance_and_no_two_share_one() {
    for instance in [0, 3] {
        let place = Place::new(Kind::TwoTenants, instance);
        let guests = guests_of(place).unwrap();
        assert_eq!(guests.len(), 6);
        assert!(guests.iter().all(|guest| guest.netns.name().starts_with(&place.prefix())));
        let names: BTreeSet<&str> = guests.iter().map(|guest| guest.netns.name()).collect();
        assert_eq!(names.len(), 6);
    }
}

#[test]
fn instances_share_no_name_and_no_address() {
    let places: Vec<Place> = Kind::ALL
        .into_iter()
        .flat_map(|kind| (0..=place::INSTANCE_MAX).map(move |number| Place::new(kind, number)))
        .collect();
    for (index, one) in places.iter().enumerate() {
        for other in &places[index + 1..] {
            assert_ne!(one.name(), other.name());
            assert!(!one.prefix().starts_with(&other.prefix()) && !other.prefix().starts_with(&one.prefix()));
            assert_ne!(one.v4(1), other.v4(1));
            assert_ne!(one.v6(1), other.v6(1));
        }
    }
}

#[test]
fn names_of_programs_are_unique() {
    let names = programs::names(
        Place::new(Kind::TwoTenants, 0),
        &guests_of(Place::new(Kind::TwoTenants, 0)).unwrap(),
    );
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}
