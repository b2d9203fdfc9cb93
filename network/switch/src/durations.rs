//! How long things took, as a histogram.

use std::time::Duration;

/// Upper bounds of its parts but the last, microseconds.
pub const BOUNDS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000];

/// Durations of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Durations {
    /// Takes one in.
    pub fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// As counters: the sum in microseconds under `name`, and how many were in each part.
    pub fn counters(&self, name: &str) -> Vec<(String, u64)> {
        let bounds = BOUNDS_US.iter().map(u64::to_string).chain(["more".to_string()]);
        let parts =
            bounds.zip(self.counts).map(|(bound, count)| (format!("{name}_part{{us=\"{bound}\"}}"), count));
        std::iter::once((name.to_string(), self.sum_us)).chain(parts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_part_of_its_bound() {
        let mut durations = Durations::default();
        for us in [0, 50, 51, 1_000, 5_000_000, 5_000_001] {
            durations.add(Duration::from_micros(us));
        }
        let counters = durations.counters("update_us");
        assert_eq!(counters[0], ("update_us".into(), 10_001_102));
        let of = |us: &str| {
            counters.iter().find(|(name, _)| *name == format!("update_us_part{{us=\"{us}\"}}")).unwrap().1
        };
        assert_eq!([of("50"), of("100"), of("1000"), of("5000000"), of("more")], [2, 1, 1, 1, 1]);
    }
}
