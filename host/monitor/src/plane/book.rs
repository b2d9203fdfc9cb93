//! What was done by order, and what came of it, on the disk: by cgroup and by the order's id.
//!
//! The journal of the plane has what is in force; this has what was begun, also what was refused, replaced or withdrawn since. It is
//! bounded: of a cgroup the newest [`KNOWN_MAX`] orders, and [`CGROUPS_MAX`] cgroups, of which those that are frozen stay.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use weir_model::health::{REPAIRS_MAX, RepairAction};
use weir_planes::monitor::Spec;

/// Most orders that are remembered of one cgroup.
pub const KNOWN_MAX: usize = 16;
/// Most cgroups of which orders are remembered.
pub const CGROUPS_MAX: usize = 4 * REPAIRS_MAX;
/// The file in the folder of the plane.
const FILE: &str = "repairs.json";
/// Longest reason that is kept, characters.
const REASON_CHARS_MAX: usize = 240;

/// An order that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    id: String,
    action: RepairAction,
    version: u64,
    /// What came of it; nothing while that is not known.
    pub outcome: Option<Result<(), String>>,
}

/// What is known of a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Cgroup {
    /// The version of the order that holds it frozen, if one does.
    frozen: Option<u64>,
    /// Oldest first.
    orders: VecDeque<Known>,
    /// The newest version that is not remembered any more.
    forgotten: u64,
}

impl Cgroup {
    fn newest(&self) -> u64 {
        self.orders.iter().map(|known| known.version).fold(self.forgotten, u64::max)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Book {
    path: PathBuf,
    cgroups: BTreeMap<String, Cgroup>,
}

impl Book {
    /// That of a folder, which is made when it is missing.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(folder: &Path) -> io::Result<Book> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(FILE);
        let cgroups = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Book { path, cgroups })
    }

    /// Writes it; it is there when this returns.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn keep(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.cgroups).map_err(io::Error::other)?;
        weir_base::file::replace(&self.path, &text, 0o600)
    }

    /// Cgroups of which something is remembered.
    pub fn len(&self) -> usize {
        self.cgroups.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// Those that orders hold frozen.
    pub fn frozen(&self) -> impl Iterator<Item = &str> {
        self.cgroups.iter().filter(|(_, cgroup)| cgroup.frozen.is_some()).map(|(name, _)| name.as_str())
    }

    /// The version of the order that holds it frozen, if one does.
    pub fn frozen_by(&self, cgroup: &str) -> Option<u64> {
        self.cgroups.get(cgroup)?.frozen
    }

    /// The order of a version holds it frozen, or none does.
    pub fn mark(&mut self, cgroup: &str, by: Option<u64>) {
        if by.is_some() || self.cgroups.contains_key(cgroup) {
            self.make_room(cgroup);
            self.of(cgroup).frozen = by;
        }
    }

    /// What is known of an order.
    pub fn find(&self, cgroup: &str, spec: &Spec) -> Option<&Known> {
        self.cgroups.get(cgroup)?.orders.iter().find(|known| known.is(spec))
    }

    /// Whether an order is so old that it may have been forgotten.
    pub fn is_too_old(&self, cgroup: &str, version: u64) -> bool {
        self.cgroups.get(cgroup).is_some_and(|cgroup| version <= cgroup.forgotten)
    }

    /// An order is begun.
    pub fn begin(&mut self, cgroup: &str, spec: &Spec, version: u64) {
        self.make_room(cgroup);
        let of = self.of(cgroup);
        of.orders.retain(|known| !known.is(spec));
        if of.orders.len() >= KNOWN_MAX
            && let Some(oldest) = of.orders.pop_front()
        {
            of.forgotten = of.forgotten.max(oldest.version);
        }
        of.orders.push_back(Known { id: spec.id.clone(), action: spec.action, version, outcome: None });
    }

    /// What came of it.
    pub fn end(&mut self, cgroup: &str, spec: &Spec, outcome: Result<(), String>) {
        let outcome = outcome.map_err(|reason| reason.chars().take(REASON_CHARS_MAX).collect());
        if let Some(known) = self.of(cgroup).orders.iter_mut().find(|known| known.is(spec)) {
            known.outcome = Some(outcome);
        }
    }

    /// It was not begun after all.
    pub fn forget(&mut self, cgroup: &str, spec: &Spec) {
        self.of(cgroup).orders.retain(|known| !known.is(spec));
    }

    fn of(&mut self, cgroup: &str) -> &mut Cgroup {
        self.cgroups.entry(cgroup.to_string()).or_default()
    }

    /// Forgets the cgroup whose newest order is the oldest, where there is no room for one more.
    fn make_room(&mut self, cgroup: &str) {
        if self.cgroups.len() < CGROUPS_MAX || self.cgroups.contains_key(cgroup) {
            return;
        }
        let idle = self.cgroups.iter().filter(|(_, known)| known.frozen.is_none());
        if let Some(oldest) = idle.min_by_key(|(_, known)| known.newest()).map(|(name, _)| name.clone()) {
            self.cgroups.remove(&oldest);
        }
    }
}

impl Known {
    fn is(&self, spec: &Spec) -> bool {
        self.action == spec.action && self.id == spec.id
    }
}
