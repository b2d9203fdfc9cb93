//! What was done by order, for actuators that do what is no state: a kill, a start, a move. It is on the disk, by the order's name, what it
//! is and its id, which the specification has.
//!
//! The contract applies what is kept again, after a restart and after faults; what is done once must not be. So an actuator writes here
//! that it begins before it does something ([`Book::begin`], [`Book::keep`]), and what came of it afterwards ([`Book::end`]). What comes
//! again is found ([`Book::find`]): with its outcome, or as one that was begun and of which nobody knows more.
//!
//! The journal of the plane has what is in force; this has what was begun, also what was refused, replaced or withdrawn since. It is
//! bounded: of a name the newest [`KNOWN_MAX`] orders, and so many names, of which those that an order holds in a state ([`Book::mark`])
//! stay.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Most orders that are remembered of one name.
pub const KNOWN_MAX: usize = 16;
/// Longest reason that is kept, characters.
const REASON_CHARS_MAX: usize = 240;

/// Which order: its id, and what it does.
pub type Which<'o, W> = (&'o str, &'o W);

/// An order that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known<W> {
    id: String,
    /// By the name that it has in the files of monitors.
    #[serde(rename = "action")]
    what: W,
    version: u64,
    /// What came of it; nothing while that is not known.
    pub outcome: Option<Result<(), String>>,
}

/// What is known of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Name<W> {
    /// The version of the order that holds it in a state, if one does; `frozen` in the files of monitors.
    #[serde(rename = "frozen")]
    held: Option<u64>,
    /// Oldest first.
    orders: VecDeque<Known<W>>,
    /// The newest version that is not remembered any more.
    forgotten: u64,
}

impl<W> Name<W> {
    fn newest(&self) -> u64 {
        self.orders.iter().map(|known| known.version).fold(self.forgotten, u64::max)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Book<W> {
    path: PathBuf,
    names_max: usize,
    names: BTreeMap<String, Name<W>>,
}

impl<W: Clone + PartialEq + Serialize + DeserializeOwned> Book<W> {
    /// That of a file in a folder, which is made when it is missing, of so many names.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(folder: &Path, file: &str, names_max: usize) -> io::Result<Book<W>> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(file);
        let names = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Book { path, names_max, names })
    }

    /// Writes it; it is there when this returns.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn keep(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.names).map_err(io::Error::other)?;
        weir_base::file::replace(&self.path, &text, 0o600)
    }

    /// Names of which something is remembered.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Those that orders hold in a state.
    pub fn held(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|(_, name)| name.held.is_some()).map(|(name, _)| name.as_str())
    }

    /// The version of the order that holds it, if one does.
    pub fn held_by(&self, name: &str) -> Option<u64> {
        self.names.get(name)?.held
    }

    /// The order of a version holds it, or none does.
    pub fn mark(&mut self, name: &str, by: Option<u64>) {
        if by.is_some() || self.names.contains_key(name) {
            self.make_room(name);
            self.of(name).held = by;
        }
    }

    /// What is known of an order.
    pub fn find(&self, name: &str, which: Which<'_, W>) -> Option<&Known<W>> {
        self.names.get(name)?.orders.iter().find(|known| known.is(which))
    }

    /// Whether an order is so old that it may have been forgotten.
    pub fn is_too_old(&self, name: &str, version: u64) -> bool {
        self.names.get(name).is_some_and(|name| version <= name.forgotten)
    }

    /// An order is begun.
    pub fn begin(&mut self, name: &str, which: Which<'_, W>, version: u64) {
        self.make_room(name);
        let of = self.of(name);
        of.orders.retain(|known| !known.is(which));
        if of.orders.len() >= KNOWN_MAX
            && let Some(oldest) = of.orders.pop_front()
        {
            of.forgotten = of.forgotten.max(oldest.version);
        }
        let (id, what) = which;
        of.orders.push_back(Known { id: id.into(), what: what.clone(), version, outcome: None });
    }

    /// What came of it.
    pub fn end(&mut self, name: &str, which: Which<'_, W>, outcome: Result<(), String>) {
        let outcome = outcome.map_err(|reason| reason.chars().take(REASON_CHARS_MAX).collect());
        if let Some(known) = self.of(name).orders.iter_mut().find(|known| known.is(which)) {
            known.outcome = Some(outcome);
        }
    }

    /// It was not begun after all.
    pub fn forget(&mut self, name: &str, which: Which<'_, W>) {
        self.of(name).orders.retain(|known| !known.is(which));
    }

    fn of(&mut self, name: &str) -> &mut Name<W> {
        let none = || Name { held: None, orders: VecDeque::new(), forgotten: 0 };
        self.names.entry(name.to_string()).or_insert_with(none)
    }

    /// Forgets the name whose newest order is the oldest, where there is no room for one more.
    fn make_room(&mut self, name: &str) {
        if self.names.len() < self.names_max || self.names.contains_key(name) {
            return;
        }
        let idle = self.names.iter().filter(|(_, known)| known.held.is_none());
        if let Some(oldest) = idle.min_by_key(|(_, known)| known.newest()).map(|(name, _)| name.clone()) {
            self.names.remove(&oldest);
        }
    }
}

impl<W: PartialEq> Known<W> {
    fn is(&self, (id, what): Which<'_, W>) -> bool {
        self.what == *what && self.id == id
    }
}
