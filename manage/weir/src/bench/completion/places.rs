//! Where flows go (row C8): Facebook's pods of 40 racks and 4 edge switches, two pods behind spine switches, and data
//! centres of four pods at the places of Deutsche Telekom's network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use weir_base::world::Rng;

/// Racks of a pod.
pub const RACKS: u32 = 40;
/// Edge switches of a pod, and spine switches of a data centre.
pub const EDGES: u32 = 4;
/// Pods of a data centre of the wide network.
pub const PODS_WIDE: u32 = 4;
/// How long a packet takes over a link of a data centre, nanoseconds: some metres, and a switch.
pub const LINK_NS: u64 = 5_000;
/// Nanoseconds that light in a fibre takes for a kilometre, and how much longer than the straight line a fibre is.
const FIBRE_NS_PER_KM: f64 = 4_900.0 * 1.3;
const EARTH_RADIUS_KM: f64 = 6_371.0;

/// A network of the Internet Topology Zoo: its name, its places with latitude and longitude, its links; see `topologies/README.md` of the planner.
#[derive(Clone, Copy, Debug)]
pub struct Zoo {
    /// Its name.
    pub word: &'static str,
    places: &'static str,
    links: &'static str,
}

macro_rules! zoo {
    ($name:literal) => {
        Zoo {
            word: $name,
            places: include_str!(concat!("../../../../../control/plan/topologies/", $name, "-places.txt")),
            links: include_str!(concat!("../../../../../control/plan/topologies/", $name, ".txt")),
        }
    };
}

/// The networks that are simulated, the paper's first.
pub const ZOO: [Zoo; 5] =
    [zoo!("deutschetelekom"), zoo!("abilene"), zoo!("geant2012"), zoo!("cogentco"), zoo!("kdl")];

/// A rack, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rack {
    /// Number of its data centre.
    pub centre: u32,
    /// Number of its pod there.
    pub pod: u32,
    /// Its number in the pod.
    pub rack: u32,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Switch {
    /// Top of a rack: data centre, pod, rack.
    Top(u32, u32, u32),
    /// Edge of a pod: data centre, pod, number.
    Edge(u32, u32, u32),
    /// Spine of a data centre: data centre, number.
    Spine(u32, u32),
    /// A data centre's way to others.
    Border(u32),
}

impl Switch {
    /// Its data centre.
    pub fn centre(self) -> u32 {
        match self {
            Switch::Top(centre, ..) | Switch::Edge(centre, ..) => centre,
            Switch::Spine(centre, _) | Switch::Border(centre) => centre,
        }
    }

    /// Its pod; none where it joins pods.
    pub fn pod(self) -> Option<(u32, u32)> {
        match self {
            Switch::Top(centre, pod, _) | Switch::Edge(centre, pod, _) => Some((centre, pod)),
            Switch::Spine(..) | Switch::Border(_) => None,
        }
    }
}

/// A network of pods.
#[derive(Clone, Debug)]
pub struct Places {
    pods: u32,
    /// How long from each data centre to each other, nanoseconds, and by which next one.
    ways: Vec<Vec<(u64, u32)>>,
}

impl Places {
    /// So many pods in one data centre.
    pub fn pods_of_one(pods: u32) -> Places {
        Places { pods, ways: vec![vec![(0, 0)]] }
    }

    /// A data centre of four pods at each place of a network; nothing where its texts are damaged.
    pub fn zoo(zoo: Zoo) -> Option<Places> {
        let mut at = BTreeMap::new();
        for line in zoo.places.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (name, latitude, longitude) = (words.next()?, words.next()?, words.next()?);
            at.insert(name, (latitude.parse::<f64>().ok()?, longitude.parse::<f64>().ok()?));
        }
        let numbers: BTreeMap<&str, u32> = at.keys().zip(0..).map(|(name, number)| (*name, number)).collect();
        let mut links: Vec<Vec<(u32, u64)>> = vec![Vec::new(); numbers.len()];
        for line in zoo.links.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (one, other) = (words.next()?, words.next()?);
            let ns = (distance_km(*at.get(one)?, *at.get(other)?) * FIBRE_NS_PER_KM) as u64;
            let (one, other) = (*numbers.get(one)?, *numbers.get(other)?);
            links.get_mut(one as usize)?.push((other, ns));
            links.get_mut(other as usize)?.push((one, ns));
        }
        let ways = (0..numbers.len() as u32).map(|to| shortest(&links, to)).collect();
        Some(Places { pods: PODS_WIDE, ways })
    }

    /// How many data centres.
    pub fn centres(&self) -> u32 {
        self.ways.len() as u32
    }

    /// How many pods each has.
    pub fn pods(&self) -> u32 {
        self.pods
    }

    /// A rack.
    pub fn any_rack(&self, rng: &mut Rng) -> Rack {
        let mut below = |count: u32| rng.below(u64::from(count)) as u32;
        Rack { centre: below(self.centres()), pod: below(self.pods), rack: below(RACKS) }
    }

    /// How long a packet takes from one data centre to another, nanoseconds.
    pub fn between_ns(&self, one: u32, other: u32) -> u64 {
        self.ways[other as usize][one as usize].0
    }

    /// The data centre from which the farthest is nearest.
    pub fn middle(&self) -> u32 {
        let farthest = |one: &u32| (0..self.centres()).map(|other| self.between_ns(*one, other)).max();
        (0..self.centres()).min_by_key(farthest).unwrap_or(0)
    }

    /// The switches that a flow passes, in its direction.
    pub fn path(&self, from: Rack, to: Rack, hash: u64) -> Vec<Switch> {
        let choice = (hash % u64::from(EDGES)) as u32;
        let mut path =
            vec![Switch::Top(from.centre, from.pod, from.rack), Switch::Edge(from.centre, from.pod, choice)];
        if (from.centre, from.pod) != (to.centre, to.pod) {
            path.push(Switch::Spine(from.centre, choice));
            if from.centre != to.centre {
                let mut at = from.centre;
                path.push(Switch::Border(at));
                while at != to.centre {
                    at = self.ways[to.centre as usize][at as usize].1;
                    path.push(Switch::Border(at));
                }
                path.push(Switch::Spine(to.centre, choice));
            }
            path.push(Switch::Edge(to.centre, to.pod, choice));
        }
        path.push(Switch::Top(to.centre, to.pod, to.rack));
        path
    }

    /// How long a packet takes over a path, nanoseconds.
    pub fn path_ns(&self, path: &[Switch]) -> u64 {
        let hop = |pair: &[Switch]| LINK_NS + self.between_ns(pair[0].centre(), pair[1].centre());
        path.windows(2).map(hop).sum()
    }
}

/// The straight line over the ground, by the haversine.
fn distance_km(one: (f64, f64), other: (f64, f64)) -> f64 {
    let (one, other) =
        ((one.0.to_radians(), one.1.to_radians()), (other.0.to_radians(), other.1.to_radians()));
    let half = |a: f64, b: f64| ((a - b) / 2.0).sin().powi(2);
    let inner = half(one.0, other.0) + one.0.cos() * other.0.cos() * half(one.1, other.1);
    2.0 * EARTH_RADIUS_KM * inner.sqrt().asin()
}

/// From each to one: how long, and by which next (Dijkstra).
fn shortest(links: &[Vec<(u32, u64)>], to: u32) -> Vec<(u64, u32)> {
    let mut found = vec![(u64::MAX, to); links.len()];
    let mut heap = BinaryHeap::from([Reverse((0, to, to))]);
    while let Some(Reverse((ns, at, next))) = heap.pop() {
        if found[at as usize].0 <= ns {
            continue;
        }
        found[at as usize] = (ns, next);
        for (neighbour, more) in &links[at as usize] {
            heap.push(Reverse((ns + more, *neighbour, at)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_from_rack_to_rack_over_links_that_are_there() {
        let sizes = ZOO.map(|zoo| Places::zoo(zoo).unwrap().centres());
        assert_eq!(sizes, [30, 11, 40, 197, 754]);
        let places = Places::zoo(ZOO[0]).unwrap();
        let mut rng = Rng::new(1);
        for _ in 0..1_000 {
            let (from, to) = (places.any_rack(&mut rng), places.any_rack(&mut rng));
            let path = places.path(from, to, rng.below(1 << 20));
            assert_eq!(path[0], Switch::Top(from.centre, from.pod, from.rack));
            assert_eq!(path[path.len() - 1], Switch::Top(to.centre, to.pod, to.rack));
            let far = places.between_ns(from.centre, to.centre);
            assert_eq!(places.path_ns(&path), far + LINK_NS * (path.len() as u64 - 1));
            assert_eq!(far, places.between_ns(to.centre, from.centre));
        }
        // London and New York: 5,570 km, so some 35 ms by a fibre that is no straight line.
        let longest = (0..30).map(|one| places.between_ns(0, one)).max().unwrap();
        assert!((20_000_000..200_000_000).contains(&longest), "{longest}");
    }

    #[test]
    fn within_a_pod_a_flow_passes_three_switches() {
        let places = Places::pods_of_one(2);
        let rack = |pod, rack| Rack { centre: 0, pod, rack };
        let near = places.path(rack(0, 1), rack(0, 2), 6);
        assert_eq!(near, [Switch::Top(0, 0, 1), Switch::Edge(0, 0, 2), Switch::Top(0, 0, 2)]);
        assert_eq!(places.path(rack(0, 1), rack(1, 2), 6).len(), 5);
    }
}
