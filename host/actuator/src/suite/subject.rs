//! What the suite drives: any actuator that takes signed updates. A plane's is a [`Subject`], which says what may be ordered of it; the
//! switch, whose machine is its own, is a [`Driver`].

use crate::machine::JOURNAL_FILE;
use crate::{Actuator, Identity, Machine};
use std::io;
use std::path::{Path, PathBuf};
use weir_model::plane::{NAME_BYTES_MAX, SPEC_BYTES_MAX};
use weir_model::signed::{SignedAcks, SignedUpdates};
use weir_model::{Entry, Key, Label, Version};
use weir_planes::Plane;
use weir_trust::kept::Write;

/// Asked around each write of a journal.
pub type Watch = Box<dyn FnMut(Write) -> io::Result<()> + Send>;

/// A machine that is tried.
pub trait Tried {
    /// Takes a frame; the signed answers, if there are any.
    fn take(&mut self, frame: &SignedUpdates) -> Option<SignedAcks>;

    /// What it tells that it has in force, deleted keys whose version is remembered included.
    fn state(&mut self) -> Vec<(Key, Version)>;

    /// See [`weir_trust::kept::Kept::watch_writes`].
    fn watch_writes(&mut self, watch: Watch);

    /// Updates that were applied and kept since it was opened.
    fn applied(&mut self) -> u64;

    /// What it kept and could not put in force, and why.
    fn problems(&mut self) -> Vec<String>;
}

/// Makes a machine, and says what may be ordered of it.
pub trait Driver {
    /// The machine.
    type Machine: Tried;

    /// Starts it on a folder with what it keeps, which may be empty. [`Identity::read_key`] gives the key of [`super::HOST_SEED`].
    ///
    /// # Errors
    /// Why it cannot.
    fn open(&self, identity: Identity, folder: &Path) -> Result<Self::Machine, String>;

    /// The file in which its gate keeps what is in force.
    fn journal(&self, folder: &Path) -> PathBuf;

    /// Two keys that it takes; the second has nothing in force unless it was ordered.
    ///
    /// # Errors
    /// A name is none.
    fn keys(&self) -> Result<[Key; 2], String>;

    /// What it takes under both keys; for each number another one.
    fn entry(&self, number: u32) -> Entry;

    /// What has the right form and it refuses.
    fn refused(&self) -> Entry;

    /// What is in force under a key, if something is.
    fn in_force(&self, machine: &mut Self::Machine, key: &Key) -> Option<Entry>;

    /// Whether what is withdrawn, or cannot be kept, stays as it is, as nobody's.
    fn keeps_withdrawn(&self) -> bool {
        false
    }

    /// What is another's, or is nothing at all, and what is said of it.
    ///
    /// # Errors
    /// A name is none.
    fn strange(&self) -> Result<Vec<(Key, Entry, &'static str)>, String>;

    /// The largest that it takes under the first key.
    fn largest(&self) -> Entry;

    /// What is refused before anything reads it.
    ///
    /// # Errors
    /// A name is none.
    fn misfits(&self) -> Result<Vec<(Key, Entry)>, String>;
}

/// An actuator of a plane to be tried.
pub trait Subject {
    /// It.
    type Actuator: Actuator;

    /// Makes it, with this folder for what it keeps itself. It is made again in the same folder after a crash.
    fn make(&self, folder: &Path) -> Self::Actuator;

    /// Two names that it takes.
    fn names(&self) -> [String; 2];

    /// A specification that it takes; for each number another one.
    fn spec(&self, number: u32) -> Vec<u8>;

    /// A specification that the vocabulary allows and the actuator refuses.
    fn refused(&self) -> Vec<u8>;

    /// The specification in force under a name, if one is.
    fn in_force(&self, actuator: &mut Self::Actuator, name: &str) -> Option<Vec<u8>>;

    /// Whether what is withdrawn stays as it is, as nobody's.
    const KEEPS_WITHDRAWN: bool = false;
}

impl<A: Actuator> Tried for Machine<A> {
    fn take(&mut self, frame: &SignedUpdates) -> Option<SignedAcks> {
        Machine::take(self, frame)
    }

    fn state(&mut self) -> Vec<(Key, Version)> {
        Machine::state(self)
    }

    fn watch_writes(&mut self, watch: Watch) {
        Machine::watch_writes(self, watch);
    }

    fn applied(&mut self) -> u64 {
        self.counters().applied
    }

    fn problems(&mut self) -> Vec<String> {
        Machine::problems(self).iter().map(|(key, why)| format!("{key}: {why}")).collect()
    }
}

fn key_of<S: Subject>(name: &str) -> Result<Key, String> {
    let plane = Label::new(<S::Actuator as Actuator>::Plane::NAME).map_err(|error| error.to_string())?;
    Ok(Key::Plane { plane, name: name.into() })
}

/// A specification of so many bytes: JSON may have spaces at its end.
fn padded<S: Subject>(subject: &S, bytes: usize) -> Entry {
    let mut spec = subject.spec(1);
    spec.resize(bytes, b' ');
    Entry::Plane(spec)
}

impl<S: Subject> Driver for S {
    type Machine = Machine<S::Actuator>;

    fn open(&self, identity: Identity, folder: &Path) -> Result<Self::Machine, String> {
        let own = folder.join("own");
        std::fs::create_dir_all(&own).map_err(|error| error.to_string())?;
        let machine = Machine::open(identity, &folder.join("state"), self.make(&own));
        machine.map_err(|error| error.to_string())
    }

    fn journal(&self, folder: &Path) -> PathBuf {
        folder.join("state").join(JOURNAL_FILE)
    }

    fn keys(&self) -> Result<[Key; 2], String> {
        let [first, second] = self.names();
        Ok([key_of::<S>(&first)?, key_of::<S>(&second)?])
    }

    fn entry(&self, number: u32) -> Entry {
        Entry::Plane(self.spec(number))
    }

    fn refused(&self) -> Entry {
        Entry::Plane(Subject::refused(self))
    }

    fn in_force(&self, machine: &mut Self::Machine, key: &Key) -> Option<Entry> {
        let Key::Plane { name, .. } = key else { return None };
        Subject::in_force(self, machine.actuator(), name).map(Entry::Plane)
    }

    fn keeps_withdrawn(&self) -> bool {
        S::KEEPS_WITHDRAWN
    }

    fn strange(&self) -> Result<Vec<(Key, Entry, &'static str)>, String> {
        let [name, _] = self.names();
        let plane = Label::new("nobody").map_err(|error| error.to_string())?;
        let own = <S::Actuator as Actuator>::Plane::NAME;
        let most = <<S::Actuator as Actuator>::Plane as Plane>::SPEC_BYTES_MAX;
        let mut strange = vec![
            (Key::Plane { plane, name: name.clone() }, Entry::Plane(self.spec(1)), own),
            (Key::Gateways, Entry::Gateways(Vec::new()), own),
            (key_of::<S>(&name)?, Entry::Plane(b"\xffno specification".to_vec()), "spec"),
        ];
        if most < SPEC_BYTES_MAX {
            // The loop carries more than the plane takes.
            strange.push((key_of::<S>(&name)?, padded(self, most + 1), "at most"));
        }
        Ok(strange)
    }

    fn largest(&self) -> Entry {
        padded(self, <<S::Actuator as Actuator>::Plane as Plane>::SPEC_BYTES_MAX)
    }

    fn misfits(&self) -> Result<Vec<(Key, Entry)>, String> {
        let [name, _] = self.names();
        let mut misfits = vec![(key_of::<S>(&name)?, padded(self, SPEC_BYTES_MAX + 1))];
        for name in ["x".repeat(NAME_BYTES_MAX + 1), String::new(), "a\nb".into()] {
            misfits.push((key_of::<S>(&name)?, self.entry(1)));
        }
        Ok(misfits)
    }
}
