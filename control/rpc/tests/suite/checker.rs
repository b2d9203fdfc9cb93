//! Whether a history of one register is linearizable (Wing and Gong, with Lowe's memory of what was tried).
//!
//! An operation whose outcome is not known may have taken effect at any time after its call, or never.

use std::collections::HashSet;

/// What an operation did, as its caller knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Put(u64),
    /// What was read; 0: nothing is there.
    Get(u64),
    /// From, to, and whether it took effect; `None`: not known.
    Swap(u64, u64, Option<bool>),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub called: u64,
    /// `u64::MAX`: the outcome is not known.
    pub returned: u64,
    pub deed: Deed,
}

/// The register after a deed; `None` when the deed cannot have been.
fn step(register: u64, deed: &Deed) -> Option<u64> {
    match *deed {
        Deed::Put(value) => Some(value),
        Deed::Get(value) => (register == value).then_some(register),
        Deed::Swap(from, to, took) => match (register == from, took) {
            (true, Some(true) | None) => Some(to),
            (false, Some(false) | None) => Some(register),
            _ => None,
        },
    }
}

pub fn is_linearizable(history: &[Event]) -> bool {
    let mut events: Vec<Event> = history.to_vec();
    events.sort_by_key(|event| event.called);
    let mut tried: HashSet<(Vec<u64>, u64)> = HashSet::new();
    let words = events.len().div_ceil(64);
    let mut stack = vec![(vec![0_u64; words], 0_u64)];
    while let Some((done, register)) = stack.pop() {
        let is_done = |n: usize| done[n / 64] >> (n % 64) & 1 == 1;
        let open = || (0..events.len()).filter(|n| !is_done(*n));
        let first_return = open().map(|n| events[n].returned).min().unwrap_or(u64::MAX);
        if first_return == u64::MAX {
            return true;
        }
        for n in open().take_while(|n| events[*n].called <= first_return) {
            if let Some(register) = step(register, &events[n].deed) {
                let mut done = done.clone();
                done[n / 64] |= 1 << (n % 64);
                if tried.insert((done.clone(), register)) {
                    stack.push((done, register));
                }
            }
        }
    }
    false
}

#[test]
fn the_checker_knows_good_from_bad() {
    let event = |called, returned, deed| Event { called, returned, deed };
    let put = |value| Deed::Put(value);
    let get = |value| Deed::Get(value);
    let unknown = u64::MAX;
    assert!(is_linearizable(&[event(0, 1, put(1)), event(2, 3, get(1))]));
    assert!(!is_linearizable(&[event(0, 1, put(1)), event(2, 3, get(0))]), "a stale read");
    assert!(is_linearizable(&[event(0, 5, put(1)), event(2, 3, get(0)), event(2, 4, get(1))]));
    assert!(
        !is_linearizable(&[event(0, 9, put(1)), event(2, 3, get(1)), event(4, 5, get(0))]),
        "back in time"
    );
    assert!(
        !is_linearizable(&[event(0, 1, put(1)), event(2, 3, put(2)), event(4, 5, get(1))]),
        "a lost write"
    );
    let swap = |from, to, took| Deed::Swap(from, to, took);
    let both =
        [event(0, 1, put(1)), event(2, 5, swap(1, 2, Some(true))), event(2, 5, swap(1, 3, Some(true)))];
    assert!(!is_linearizable(&both), "two swaps of one value");
    // What is not known may have been, later, or never.
    assert!(is_linearizable(&[event(0, unknown, put(1)), event(2, 3, get(0)), event(4, 5, get(1))]));
    assert!(is_linearizable(&[event(0, unknown, put(1)), event(2, 3, get(0))]));
    assert!(!is_linearizable(&[event(0, unknown, put(1)), event(2, 3, get(1)), event(4, 5, get(0))]));
    assert!(is_linearizable(&[event(0, unknown, swap(0, 4, None)), event(2, 3, get(4))]));
}
