//! Pauses between tries: short while a group may be electing, longer where nobody has answered for a while, and never in step with other
//! clients that lost the same server.

use std::time::Duration;
use weir_base::world::{Rng, random_u64};

/// The first pause, and the longest while a group may be electing: a tenth of what it takes to have another leader.
const FIRST: Duration = Duration::from_millis(3);
const ELECTING: Duration = Duration::from_millis(30);
/// So many tries are made as if somebody were about to lead: a second or two.
const TRIES: u32 = 64;
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Pause {
    rng: Rng,
    /// Without success.
    tries: u32,
}

impl Pause {
    pub fn new() -> Pause {
        Pause::seeded(random_u64())
    }

    fn seeded(seed: u64) -> Pause {
        Pause { rng: Rng::new(seed), tries: 0 }
    }

    /// Somebody answered.
    pub fn over(&mut self) {
        self.tries = 0;
    }

    /// How long to wait before the next try: between half and all of what it is by the number of tries.
    pub fn next(&mut self) -> Duration {
        let most = match self.tries {
            tries if tries < TRIES => FIRST.saturating_mul(1 << tries.min(8)).min(ELECTING),
            tries => ELECTING.saturating_mul(1 << (tries - TRIES).min(8)).min(LONGEST),
        };
        self.tries = self.tries.saturating_add(1);
        let most_us = most.as_micros() as u64;
        Duration::from_micros(most_us / 2 + self.rng.below(most_us / 2 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_have_a_limit_and_differ_between_clients() {
        let (mut one, mut other) = (Pause::seeded(1), Pause::seeded(2));
        let mut differ = 0;
        for tries in 0..200 {
            let (pause, another) = (one.next(), other.next());
            differ += u32::from(pause != another);
            let most = if tries < TRIES { ELECTING } else { LONGEST };
            assert!(pause <= most && pause >= FIRST / 2, "{tries}: {pause:?}");
        }
        assert!(differ > 190, "{differ}");
        assert!(one.next() >= LONGEST / 2, "nobody has answered for long");
        one.over();
        assert!(one.next() <= FIRST);
    }
}
