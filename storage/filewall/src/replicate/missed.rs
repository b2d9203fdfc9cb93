//! What a replica has missed: the names, and the bytes behind them, that must be compared before it is live again; and what was
//! written and is not durable yet, which a server that begins anew may have lost.

use super::names::Number;
use hashbrown::HashMap;

/// Most names that are remembered for a replica; then everything is compared.
pub const MISSED_MAX: usize = 65_536;

/// A folder and a name in it; the root is (0, nothing).
pub type Key = (Number, Box<[u8]>);

/// The root of the export, whose own attributes may have changed.
pub fn root() -> Key {
    (0, Box::default())
}

/// Which bytes may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first one.
    pub from: u64,
    /// One behind the last.
    pub to: u64,
}

impl Extent {
    /// All of them.
    pub const ALL: Extent = Extent { from: 0, to: u64::MAX };
    /// None: attributes may differ.
    pub const NONE: Extent = Extent { from: u64::MAX, to: 0 };

    fn with(self, other: Extent) -> Extent {
        Extent { from: self.from.min(other.from), to: self.to.max(other.to) }
    }
}

/// Names and what may differ behind them.
pub type Names = HashMap<Key, Extent>;

/// What a replica has missed.
#[derive(Debug, Default)]
pub struct Missed {
    /// Everything may differ.
    pub all: bool,
    /// A file was changed that may have several names, of which it is not known which: the tree is to be looked at as a whole, and contents
    /// wherever lengths or times differ.
    pub tree: bool,
    /// What may differ.
    pub names: Names,
    /// What nobody knows the fate of: the server may still carry it out. Looked at until the replica is live. Of what was taken: those
    /// that were looked at before and were not changed since.
    pub doubtful: Names,
    /// There was too much of that: anything may be.
    doubtful_all: bool,
}

fn add(names: &mut Names, key: &Key, extent: Extent) -> bool {
    if let Some(known) = names.get_mut(key) {
        *known = known.with(extent);
        return true;
    }
    let room = names.len() < MISSED_MAX;
    if room {
        names.insert(key.clone(), extent);
    }
    room
}

impl Missed {
    /// Everything may differ.
    pub fn everything() -> Missed {
        Missed { all: true, ..Missed::default() }
    }

    /// Adds names.
    pub fn add(&mut self, keys: &[(Key, Extent)], doubtful: bool) {
        for (key, extent) in keys {
            self.all |= !add(&mut self.names, key, *extent);
            self.doubtful_all |= doubtful && !add(&mut self.doubtful, key, *extent);
        }
    }

    /// What is to be looked at now; what comes from now on is kept apart.
    pub fn take(&mut self) -> Missed {
        let mut names = std::mem::take(&mut self.names);
        let looked_at = self.doubtful.iter().filter(|(key, _)| !names.contains_key(*key));
        let doubtful: Names = looked_at.map(|(key, extent)| (key.clone(), *extent)).collect();
        self.all |= self.doubtful_all;
        for (key, extent) in &self.doubtful {
            self.all |= !add(&mut names, key, *extent);
        }
        let (all, tree) = (std::mem::take(&mut self.all), std::mem::take(&mut self.tree));
        Missed { all, tree, names, doubtful, doubtful_all: false }
    }

    /// It could not be looked at.
    pub fn put_back(&mut self, taken: Missed) {
        self.all |= taken.all;
        self.tree |= taken.tree;
        for (key, extent) in &taken.names {
            self.all |= !add(&mut self.names, key, *extent);
        }
    }
}

/// What was written and is not durable yet.
#[derive(Debug, Default)]
pub struct Unsettled {
    objects: HashMap<Number, Extent>,
    /// There was too much: anything may be.
    pub overflown: bool,
}

impl Unsettled {
    /// Something was written.
    pub fn written(&mut self, number: Number, extent: Extent) {
        let full = self.objects.len() >= MISSED_MAX;
        match self.objects.get_mut(&number) {
            Some(known) => *known = known.with(extent),
            None if full => self.overflown = true,
            None => drop(self.objects.insert(number, extent)),
        }
    }

    /// Bytes of an object are durable.
    pub fn settled(&mut self, number: Number, extent: Extent) {
        if self.objects.get(&number).is_some_and(|known| extent.from <= known.from && known.to <= extent.to) {
            self.objects.remove(&number);
        }
    }

    /// All objects.
    pub fn objects(&self) -> impl Iterator<Item = (Number, Extent)> {
        self.objects.iter().map(|(number, extent)| (*number, *extent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: Number) -> Key {
        (number, Box::from(&b"name"[..]))
    }

    #[test]
    fn what_was_missed_is_bounded_and_what_is_doubtful_comes_again() {
        let mut missed = Missed::default();
        missed.add(&[(key(1), Extent { from: 5, to: 9 }), (key(1), Extent { from: 2, to: 3 })], false);
        missed.add(&[(key(2), Extent::NONE)], true);
        let taken = missed.take();
        assert_eq!(
            (taken.names[&key(1)], taken.names.len(), taken.all),
            (Extent { from: 2, to: 9 }, 2, false)
        );
        assert!(taken.doubtful.is_empty(), "it was not looked at before");
        let again = missed.take();
        assert_eq!((again.names.len(), again.doubtful.len()), (1, 1), "nobody knows its fate still");
        missed.put_back(Missed { tree: true, ..taken });
        assert!(missed.names.len() == 2 && missed.tree && missed.take().tree && !missed.take().tree);
        let many: Vec<(Key, Extent)> =
            (0..MISSED_MAX as u64).map(|number| (key(number), Extent::ALL)).collect();
        missed.add(&many, false);
        missed.add(&[(key(u64::MAX), Extent::ALL)], false);
        assert!(missed.all && missed.names.len() <= MISSED_MAX);
        // Too much that is doubtful is looked at each time.
        let mut missed = Missed::default();
        missed.add(&many, true);
        missed.add(&[(key(u64::MAX), Extent::ALL)], true);
        assert!(missed.take().all && missed.take().all);
    }

    #[test]
    fn only_what_was_written_is_settled() {
        let mut unsettled = Unsettled::default();
        unsettled.written(1, Extent { from: 0, to: 10 });
        unsettled.settled(1, Extent { from: 0, to: 9 });
        assert_eq!(unsettled.objects().collect::<Vec<_>>(), [(1, Extent { from: 0, to: 10 })]);
        unsettled.settled(1, Extent::ALL);
        assert_eq!(unsettled.objects().count(), 0);
    }
}
