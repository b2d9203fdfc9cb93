//! A scope: the part of the tree that one policy looks at, and how many of its living processes were born lately.

/// Most scopes.
pub const SCOPES_MAX: usize = 16;
/// Most cgroups of a scope.
pub const CGROUPS_MAX: usize = 256;
/// Parts that a window is counted in.
const PARTS: u64 = 8;

/// Which processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Members {
    /// None.
    #[default]
    Nobody,
    /// All of the host.
    Host,
    /// Those of cgroups, by number, sorted.
    Cgroups(Vec<u64>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    number: u64,
    living: u32,
    forks: u32,
}

/// A scope.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    members: Members,
    part_ns: u64,
    /// One part more than the window, because the newest is not full.
    parts: [Part; PARTS as usize + 1],
    newest: u64,
    /// All that live in it, however old.
    all_living: u64,
}

impl Scope {
    /// A scope that counts births of the last `window_ns`.
    pub fn new(mut members: Members, window_ns: u64) -> Scope {
        if let Members::Cgroups(cgroups) = &mut members {
            cgroups.sort_unstable();
            cgroups.dedup();
            cgroups.truncate(CGROUPS_MAX);
            // Later changes must not allocate.
            cgroups.reserve_exact(CGROUPS_MAX - cgroups.len());
        }
        Scope {
            members,
            part_ns: (window_ns / PARTS).max(1),
            parts: Default::default(),
            newest: 0,
            all_living: 0,
        }
    }

    /// Replaces the cgroups, sorted and at most [`CGROUPS_MAX`], of a scope that has them. Returns whether that changed
    /// anything.
    pub(super) fn set_cgroups(&mut self, cgroups: &[u64]) -> bool {
        let Members::Cgroups(own) = &mut self.members else { return false };
        let new = &cgroups[..cgroups.len().min(CGROUPS_MAX)];
        if own == new {
            return false;
        }
        own.clear();
        own.extend_from_slice(new);
        true
    }

    /// Whether processes of this cgroup belong to it.
    pub fn holds(&self, cgroup: u64) -> bool {
        match &self.members {
            Members::Nobody => false,
            Members::Host => true,
            Members::Cgroups(cgroups) => cgroups.binary_search(&cgroup).is_ok(),
        }
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.parts.len() as u64) as usize
    }

    pub(super) fn born(&mut self, born_ns: u64) {
        self.all_living += 1;
        if born_ns == 0 || self.part_ns == 0 {
            return;
        }
        let number = born_ns / self.part_ns;
        let slot = self.slot(number);
        if self.parts[slot].number < number {
            self.parts[slot] = Part { number, living: 0, forks: 0 };
        }
        if self.parts[slot].number == number {
            self.parts[slot].living += 1;
            self.parts[slot].forks += 1;
        }
        self.newest = self.newest.max(number);
    }

    pub(super) fn gone(&mut self, born_ns: u64) {
        self.all_living = self.all_living.saturating_sub(1);
        if born_ns == 0 || self.part_ns == 0 {
            return;
        }
        let number = born_ns / self.part_ns;
        let slot = self.slot(number);
        if self.parts[slot].number == number {
            self.parts[slot].living = self.parts[slot].living.saturating_sub(1);
        }
    }

    /// Forks up to now count no more; the living do.
    pub(super) fn forgive(&mut self) {
        for part in &mut self.parts {
            part.forks = 0;
        }
    }

    fn sum(&self, now_ns: u64, of: impl Fn(&Part) -> u32) -> u64 {
        let newest = now_ns.checked_div(self.part_ns).unwrap_or(0);
        let counts = |part: &&Part| part.number + PARTS >= newest && part.number <= newest.max(self.newest);
        self.parts.iter().filter(counts).map(|part| u64::from(of(part))).sum()
    }

    /// All living processes, also those that were there before the monitor.
    pub fn all_living(&self) -> u64 {
        self.all_living
    }

    /// Living processes that were born in the window before `now_ns`.
    pub fn living(&self, now_ns: u64) -> u64 {
        self.sum(now_ns, |part| part.living)
    }

    /// Processes that were forked in the window before `now_ns`.
    pub fn forks(&self, now_ns: u64) -> u64 {
        self.sum(now_ns, |part| part.forks)
    }

    /// Where the window begins, ns.
    pub fn since(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.part_ns * PARTS)
    }
}
