//! Names of objects that are the same on all replicas: numbers, each with its folder and its name there.
//!
//! A server's handle is good on that server only, so clients get handles that hold a number. What it stands for on a server is
//! found by looking names up from the root, once; handles found are remembered.
//!
//! Invariants
//! - A number is given out only after it was written down, so it means the same after a restart.
//! - What was removed keeps its number, which leads nowhere; a new object of the same name gets another.

use crate::wire::nfs3::Handle;
use hashbrown::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use weir_base::journal::Journal;

/// Most objects that have a number; the journal is written anew without those that were removed when it is opened.
pub const NUMBERS_MAX: usize = 4 << 20;
/// Beginning of handles.
const MAGIC: [u8; 8] = *b"weirname";

/// Number of an object.
pub type Number = u64;

#[derive(Clone, Debug)]
struct Named {
    folder: Number,
    name: Box<[u8]>,
}

#[derive(Debug)]
struct Tables {
    journal: Journal,
    objects: HashMap<Number, Named>,
    numbers: HashMap<(Number, Box<[u8]>), Number>,
    handles: HashMap<(Number, usize), Handle>,
    next: Number,
}

/// The table.
#[derive(Debug)]
pub struct Names {
    tables: Mutex<Tables>,
    roots: Number,
}

/// A record: kind, number, folder, name.
fn record(kind: u8, number: Number, folder: Number, name: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&folder.to_be_bytes());
    bytes.extend_from_slice(name);
    bytes
}

const IS_AT: u8 = 1;
const IS_GONE: u8 = 2;

impl Tables {
    fn apply(&mut self, bytes: &[u8]) -> Option<()> {
        let (head, name) = bytes.split_at_checked(17)?;
        let number = u64::from_be_bytes(head[1..9].try_into().ok()?);
        let folder = u64::from_be_bytes(head[9..17].try_into().ok()?);
        self.remove(number);
        if head[0] == IS_AT {
            self.numbers.insert((folder, name.into()), number);
            self.objects.insert(number, Named { folder, name: name.into() });
        }
        self.next = self.next.max(number + 1);
        Some(())
    }

    fn learn(&mut self, number: Number, server: usize, handle: Handle) {
        if self.handles.len() >= NUMBERS_MAX {
            self.handles.clear();
        }
        self.handles.insert((number, server), handle);
    }

    fn remove(&mut self, number: Number) {
        if let Some(Named { folder, name }) = self.objects.remove(&number)
            && self.numbers.get(&(folder, name.clone())) == Some(&number)
        {
            self.numbers.remove(&(folder, name));
        }
    }
}

impl Names {
    /// Opens the table, or makes it. The numbers below `roots` are those of roots of exports.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, roots: Number) -> std::io::Result<Names> {
        let (journal, records) = Journal::open(path)?;
        let mut tables = Tables {
            journal,
            objects: HashMap::new(),
            numbers: HashMap::new(),
            handles: HashMap::new(),
            next: roots.max(1024),
        };
        for bytes in &records {
            // A record that is too short was written by something else; what follows may still be good.
            let _ = tables.apply(bytes);
        }
        if records.len() > 2 * tables.objects.len() + 1024 {
            let mut kept: Vec<Vec<u8>> = tables
                .objects
                .iter()
                .map(|(number, named)| record(IS_AT, *number, named.folder, &named.name))
                .collect();
            // Numbers are never given out again.
            kept.push(record(IS_GONE, tables.next - 1, 0, b""));
            tables.journal.rewrite(kept.iter().map(Vec::as_slice))?;
        }
        Ok(Names { tables: Mutex::new(tables), roots })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        work(&mut self.tables.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client's handle of a number.
    pub fn handle(number: Number) -> Handle {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        Handle::new(&bytes).unwrap_or(Handle::EMPTY)
    }

    /// The number in a client's handle.
    pub fn number(handle: &[u8]) -> Option<Number> {
        let number = handle.strip_prefix(&MAGIC)?;
        Some(u64::from_be_bytes(number.try_into().ok()?))
    }

    /// True for the root of an export.
    pub fn is_root(&self, number: Number) -> bool {
        number < self.roots
    }

    /// Folder and name of an object; `None` for roots, and what was removed.
    pub fn at(&self, number: Number) -> Option<(Number, Box<[u8]>)> {
        self.with(|tables| tables.objects.get(&number).map(|named| (named.folder, named.name.clone())))
    }

    /// The number of a name in a folder, given out if it is new.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(&self, folder: Number, name: &[u8]) -> std::io::Result<Number> {
        self.with(|tables| {
            if let Some(number) = tables.numbers.get(&(folder, Box::from(name))) {
                return Ok(*number);
            }
            if tables.objects.len() >= NUMBERS_MAX {
                return Err(std::io::Error::other(format!("more than {NUMBERS_MAX} objects have a number")));
            }
            let number = tables.next;
            let bytes = record(IS_AT, number, folder, name);
            tables.journal.append(std::slice::from_ref(&bytes))?;
            let _ = tables.apply(&bytes);
            Ok(number)
        })
    }

    /// The number of a name in a folder, if it has one.
    pub fn peek(&self, folder: Number, name: &[u8]) -> Option<Number> {
        self.with(|tables| tables.numbers.get(&(folder, Box::from(name))).copied())
    }

    /// Notes the handle that a server has for a number, if it is still at that name, and `sound` says that nothing has overtaken
    /// the reply which told so; false if it was not noted.
    pub fn learn_at(
        &self,
        number: Number,
        (folder, name): (Number, &[u8]),
        server: usize,
        handle: &Handle,
        sound: impl FnOnce() -> bool,
    ) -> bool {
        self.with(|tables| {
            let there = tables.objects.get(&number);
            let there = there.is_some_and(|named| named.folder == folder && *named.name == *name);
            let learns = there && sound();
            if learns {
                tables.learn(number, server, *handle);
            }
            learns
        })
    }

    /// Notes that the object of a name was removed, or, with `to`, that it has another name now.
    ///
    /// # Errors
    /// What the system says.
    pub fn moved(&self, from: (Number, &[u8]), to: Option<(Number, &[u8])>) -> std::io::Result<()> {
        self.with(|tables| {
            let known = |tables: &Tables, (folder, name): (Number, &[u8])| {
                tables.numbers.get(&(folder, Box::from(name))).copied()
            };
            let mut records = Vec::new();
            let moving = known(tables, from);
            if let Some(replaced) =
                to.and_then(|to| known(tables, to)).filter(|replaced| Some(*replaced) != moving)
            {
                records.push(record(IS_GONE, replaced, 0, b""));
            }
            if let Some(number) = moving {
                records.push(match to {
                    Some((folder, name)) => record(IS_AT, number, folder, name),
                    None => record(IS_GONE, number, 0, b""),
                });
            }
            tables.journal.append(&records)?;
            for bytes in &records {
                let _ = tables.apply(bytes);
            }
            Ok(())
        })
    }

    /// The handle that a server has for a number, if it is known.
    pub fn known(&self, number: Number, server: usize) -> Option<Handle> {
        self.with(|tables| tables.handles.get(&(number, server)).copied())
    }

    /// Notes it.
    pub fn learn(&self, number: Number, server: usize, handle: &[u8]) {
        if let Some(handle) = Handle::new(handle) {
            self.with(|tables| tables.learn(number, server, handle));
        }
    }

    /// Forgets what a server's handles are: of one number, or all.
    pub fn forget(&self, number: Option<Number>, server: usize) {
        self.with(|tables| match number {
            Some(number) => drop(tables.handles.remove(&(number, server))),
            None => tables.handles.retain(|(_, other), _| *other != server),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_the_same_after_a_restart_and_are_not_used_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        let names = Names::open(&path, 2).unwrap();
        let (a, b) = (names.of(1, b"a").unwrap(), names.of(1, b"b").unwrap());
        let inside = names.of(a, b"inside").unwrap();
        names.moved((1, b"a"), Some((1, b"c"))).unwrap();
        names.moved((1, b"b"), None).unwrap();
        drop(names);
        let names = Names::open(&path, 2).unwrap();
        assert_eq!((names.of(1, b"c").unwrap(), names.at(inside).unwrap().0, names.at(b)), (a, a, None));
        let again = names.of(1, b"b").unwrap();
        assert!(again > inside);
        // Over another object: that one is gone.
        names.moved((1, b"b"), Some((1, b"c"))).unwrap();
        assert_eq!((names.at(a), names.of(1, b"c").unwrap()), (None, again));
        assert_eq!(Names::number(Names::handle(again).as_bytes()), Some(again));
        assert_eq!(Names::number(b"weirnamexx"), None);
    }
}
