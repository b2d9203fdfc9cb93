//! Flows that arrive: sizes of the workloads, arrivals of Poisson, and who sends to whom (row C8).

use super::places::{Places, Rack};
use weir_base::world::Rng;

/// Nanoseconds of a second.
pub const SECOND_NS: f64 = 1e9;

/// Which traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Hadoop MapReduce.
    Hadoop,
    /// Web servers.
    Web,
}

/// How many flows, of a hundred thousand, leave the pod of their sender: to another of the same data centre, and to another
/// data centre.
#[derive(Clone, Copy, Debug)]
pub struct Locality {
    /// Between pods of a data centre.
    pub pods: u64,
    /// Between data centres.
    pub centres: u64,
}

impl Workload {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Workload::Hadoop => "hadoop",
            Workload::Web => "web",
        }
    }

    /// Sizes in bytes, and how many of a hundred flows are no larger.
    fn sizes(self) -> &'static [(f64, f64)] {
        match self {
            Workload::Hadoop => &[
                (100.0, 1.0),
                (200.0, 2.0),
                (300.0, 5.0),
                (350.0, 15.0),
                (400.0, 20.0),
                (500.0, 30.0),
                (600.0, 40.0),
                (700.0, 50.0),
                (1e3, 60.0),
                (2e3, 67.0),
                (7e3, 70.0),
                (30e3, 72.0),
                (50e3, 82.0),
                (80e3, 87.0),
                (120e3, 90.0),
                (300e3, 95.0),
                (1e6, 97.5),
                (2e6, 99.0),
                (10e6, 100.0),
            ],
            Workload::Web => &[
                (10e3, 15.0),
                (20e3, 20.0),
                (30e3, 30.0),
                (50e3, 40.0),
                (80e3, 53.0),
                (200e3, 60.0),
                (1e6, 70.0),
                (2e6, 80.0),
                (5e6, 90.0),
                (10e6, 97.0),
                (30e6, 100.0),
            ],
        }
    }

    /// Where its flows go (row C8): of Hadoop 3.3 % and 2.5 %, of web 15.7 % and 15.9 %.
    pub fn locality(self) -> Locality {
        match self {
            Workload::Hadoop => Locality { pods: 3_300, centres: 2_500 },
            Workload::Web => Locality { pods: 15_700, centres: 15_900 },
        }
    }

    /// Bytes of a flow: the distribution above, straight between its points.
    pub fn size(self, rng: &mut Rng) -> f64 {
        let percent = unit(rng) * 100.0;
        let mut last = (1.0, 0.0);
        for point in self.sizes() {
            if percent <= point.1 {
                return last.0 + (point.0 - last.0) * (percent - last.1) / (point.1 - last.1);
            }
            last = *point;
        }
        last.0
    }

    /// Mean bytes of a flow.
    pub fn mean_bytes(self) -> f64 {
        let mut last = (1.0, 0.0);
        let mut sum = 0.0;
        for point in self.sizes() {
            sum += (last.0 + point.0) / 2.0 * (point.1 - last.1) / 100.0;
            last = *point;
        }
        sum
    }
}

/// Evenly from 0 to below 1.
fn unit(rng: &mut Rng) -> f64 {
    const STEPS: u64 = 1 << 53;
    rng.below(STEPS) as f64 / STEPS as f64
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// When its first packet comes, nanoseconds.
    pub at_ns: u64,
    /// Its bytes.
    pub bytes: f64,
    /// Where it begins.
    pub from: Rack,
    /// Where it ends.
    pub to: Rack,
    /// By which of equal paths it goes.
    pub hash: u64,
}

/// Flows of a workload over places, so many a second.
pub fn flows(workload: Workload, places: &Places, count: usize, per_second: f64, seed: u64) -> Vec<Flow> {
    let mut rng = Rng::new(seed);
    let mut at_ns = 0.0;
    let mut one = |_| {
        at_ns += -(1.0 - unit(&mut rng)).ln() / per_second * SECOND_NS;
        let from = places.any_rack(&mut rng);
        let to = receiver(workload.locality(), places, from, &mut rng);
        Flow { at_ns: at_ns as u64, bytes: workload.size(&mut rng), from, to, hash: rng.below(u64::MAX) }
    };
    (0..count).map(&mut one).collect()
}

fn receiver(locality: Locality, places: &Places, from: Rack, rng: &mut Rng) -> Rack {
    let die = rng.below(100_000);
    let far = die < locality.centres && places.centres() > 1;
    let near = !far && die < locality.centres + locality.pods && places.pods() > 1;
    loop {
        let to = places.any_rack(rng);
        let (centre, pod) = (to.centre == from.centre, to.pod == from.pod);
        let fits = match (far, near) {
            (true, _) => !centre,
            (_, true) => centre && !pod,
            _ => centre && pod && to.rack != from.rack,
        };
        if fits {
            return to;
        }
    }
}
