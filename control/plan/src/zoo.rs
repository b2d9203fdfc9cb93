//! Plans on real networks (topologies/README.md), checked by samples. `make bench-plan` does more of them.

use crate::random::{FlowSettings, change_on};
use crate::{CheckSettings, PlanError, Settings, check, plan, topology};
use weir_base::world::Rng;

const ZOO: [(&str, &str, usize); 5] = [
    ("abilene", include_str!("../topologies/abilene.txt"), 11),
    ("deutschetelekom", include_str!("../topologies/deutschetelekom.txt"), 30),
    ("geant2012", include_str!("../topologies/geant2012.txt"), 40),
    ("cogentco", include_str!("../topologies/cogentco.txt"), 197),
    ("kdl", include_str!("../topologies/kdl.txt"), 754),
];

#[test]
fn plans_on_real_networks_are_safe() {
    let settings = CheckSettings { states_max: 5_000, samples: 4, ..CheckSettings::default() };
    for (name, text, switches) in ZOO {
        let network = topology::parse(text).unwrap();
        assert_eq!(network.switches().len(), switches, "{name}");
        let changes = if switches > 100 { 4 } else { 40 };
        let mut planned = 0;
        for seed in 0..changes {
            let mut rng = Rng::new(seed);
            let mut network = network.clone();
            if rng.chance(1, 2) {
                let links: Vec<_> = network.links().collect();
                for (link, state) in links {
                    network.set_link(
                        link.from,
                        link.to,
                        crate::LinkState { capacity_kbps: Some(40), ..state },
                    );
                }
            }
            let flows = FlowSettings { sources_max: 6, rate_kbps: 1 + rng.below(9) };
            let change = change_on(&mut rng, network, 3, &flows);
            let plan = match plan(&change, &Settings::default()) {
                Ok(plan) => plan,
                Err(PlanError::NoRoom { .. } | PlanError::NewOverload { .. }) => continue,
                Err(other) => panic!("{name}, seed {seed}: {other}"),
            };
            planned += 1;
            if let Err(found) = check(&change, &plan, &settings) {
                panic!("{name}, seed {seed}: {}", found.describe(&change.network));
            }
        }
        assert!(planned * 2 > changes, "{name}: {planned} of {changes} planned");
    }
}
