use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn on() -> impl Strategy<Value = On> {
    let address = || (0..4_u8).prop_map(|last| IpAddress::v4([10, 0, 0, last]));
    prop_oneof![
        (0..3_u16).prop_map(On::Port),
        (0..3_u32).prop_map(On::Zone),
        address().prop_map(On::Gateway),
        (1..3_u32, address()).prop_map(|(vni, address)| On::Address(vni, address)),
        (1..3_u32).prop_map(On::Any),
    ]
}

fn rows() -> impl Strategy<Value = Vec<(u32, Option<Row>)>> {
    let row =
        (proptest::array::uniform11(prop::option::of(on())), any::<bool>()).prop_map(|(mut row, plain)| {
            if plain {
                row[ALWAYS..].fill(None);
            }
            row
        });
    proptest::collection::vec((0..12_u32, prop::option::of(row)), 1..80)
}

proptest! {
    /// What is found is what a walk over all rows finds, and nothing is left when all are gone.
    #[test]
    fn lists_are_those_of_a_walk(changes in rows()) {
        let (mut dependents, mut model) = (Dependents::default(), BTreeMap::<u32, Row>::new());
        for (slot, row) in changes {
            if model.remove(&slot).is_some() {
                dependents.take(slot);
            }
            if let Some(row) = row {
                dependents.put(slot, &row);
                model.insert(slot, row);
                prop_assert_eq!(dependents.row(slot), row);
            }
            let all: BTreeSet<String> = model.values().flatten().flatten().map(|on| format!("{on:?}")).collect();
            let mut addresses = BTreeSet::new();
            for on in model.values().flatten().flatten() {
                let mut walked: Vec<(u32, usize)> = model.iter()
                    .flat_map(|(slot, row)| (0..LINKS).filter(|place| row[*place] == Some(*on)).map(|place| (*slot, place)))
                    .collect();
                let mut found: Vec<(u32, usize)> = dependents.of(on).collect();
                walked.sort_unstable();
                found.sort_unstable();
                prop_assert_eq!(&found, &walked, "{:?} of {:?}", on, all);
                if let On::Address(vni, address) = on {
                    addresses.insert((*vni, *address));
                }
            }
            let networks: Vec<u32> = addresses.iter().map(|(vni, _)| *vni).collect::<BTreeSet<_>>().into_iter().collect();
            prop_assert_eq!(dependents.networks().collect::<Vec<_>>(), networks);
            let middle = IpAddress::v4([10, 0, 0, 1])..=IpAddress::v4([10, 0, 0, 2]);
            let within: Vec<IpAddress> = addresses.iter().filter(|(vni, address)| *vni == 1 && middle.contains(address))
                .map(|(_, address)| *address).collect();
            prop_assert_eq!(dependents.addresses(1, middle.clone()).collect::<Vec<_>>(), within);
        }
        for slot in model.keys() {
            dependents.take(*slot);
        }
        prop_assert_eq!(dependents.free.len(), dependents.nodes.len());
        prop_assert_eq!(dependents.seldom_free.len(), dependents.seldom.len());
        prop_assert!(dependents.by_on.is_empty() && dependents.addresses.is_empty() && dependents.gateways.is_empty());
    }
}
