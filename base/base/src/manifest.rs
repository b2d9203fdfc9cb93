//! What must be in a directory, so that a part of it that is lost, damaged or of another time shows.
//!
//! A manifest says of which domain a directory is, which files must be there, and of those that seldom change also what is in them.
//! It is kept twice, each copy whole with a checksum, written aside, synced and renamed one after the other; the one of the higher
//! generation counts. So a crash or a damaged copy leaves the other.
//!
//! Format: lines of text. `weir-state 1`, `domain NAME`, `generation NUMBER`, then ascending by name `there NAME` or
//! `holds NAME LENGTH:CRC ...` with each content that is right, and last `crc VALUE`, the CRC-32C of all lines before.
//!
//! Invariants
//! - [`Manifest::write`] returns when both copies are durable.
//! - A file that is about to get another content is said to hold either before ([`Manifest::will_hold`]), so a crash between
//!   the two is no damage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The copies, beside what they are about.
pub const FILES: [&str; 2] = ["state.manifest", "state.manifest.2"];
const HEAD: &str = "weir-state 1";
/// Most bytes of a manifest.
const BYTES_MAX: u64 = 256 * 1024;
/// Most bytes of a file whose content is checked.
const HELD_BYTES_MAX: u64 = 4 << 20;
/// Most contents that one file may have.
const CONTENTS_MAX: usize = 4;

/// Length and CRC-32C of a content.
type Content = (u64, u32);

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is there.
    There,
    /// It holds one of these.
    Holds(BTreeSet<Content>),
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is not there.
    Missing,
    /// It holds something else.
    Changed,
}

/// What is wrong with files, in words.
pub fn in_words(found: Vec<(String, Wrong)>) -> Vec<String> {
    let words = |(name, wrong): (String, Wrong)| match wrong {
        Wrong::Missing => format!("'{name}' is missing"),
        Wrong::Changed => format!("'{name}' is damaged, or of another time or place"),
    };
    found.into_iter().map(words).collect()
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The system refused something.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
    /// Both copies are damaged, or one is and the other is missing.
    #[error("{} and its copy are damaged: nobody can tell what must be there", path.display())]
    Damaged {
        /// The first copy.
        path: PathBuf,
    },
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Of which domain.
    pub domain: String,
    /// Rises with each change.
    pub generation: u64,
    /// What must be there, by its path below the directory.
    pub files: BTreeMap<String, Expected>,
}

/// Which files of a directory are written down.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// Files whose content is known.
    pub held: &'static [&'static str],
    /// Files that change as it goes: only that they are there is.
    pub there: &'static [&'static str],
}

impl Watched {
    /// Writes down what is there now, besides what was known before, which `anew` forgets. `made` is for a directory without a manifest;
    /// none where there is nothing to lose.
    ///
    /// # Errors
    /// [`ManifestError`]: what is known cannot be read (unless `anew`), or the new one not written.
    pub fn record(
        &self,
        dir: &Path,
        anew: bool,
        made: impl FnOnce() -> Option<Manifest>,
    ) -> Result<Option<Manifest>, ManifestError> {
        let known = Manifest::read(dir);
        let known = if anew { known.ok().flatten() } else { known? };
        let is_new = known.is_none();
        let Some(mut manifest) = known.or_else(made) else { return Ok(None) };
        if anew {
            manifest.files.clear();
        }
        let mut changed = is_new || anew;
        for name in self.held {
            changed |= manifest.holds(dir, name)?;
        }
        for name in self.there {
            changed |= manifest.is_there(dir, name);
        }
        if changed {
            manifest.write(dir)?;
        }
        Ok(Some(manifest))
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ManifestError {
    let path = path.to_path_buf();
    move |error| ManifestError::Io { path, error }
}

fn content_of(path: &Path) -> io::Result<Option<Content>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(HELD_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(Some((bytes.len() as u64, crc32c::crc32c(&bytes))))
}

impl Manifest {
    /// One that says nothing yet.
    pub fn new(domain: &str) -> Manifest {
        Manifest { domain: domain.to_owned(), generation: 0, files: BTreeMap::new() }
    }

    /// The manifest of a directory; none when neither copy is there. A copy that is damaged or missing is made again.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(dir: &Path) -> Result<Option<Manifest>, ManifestError> {
        let mut copies = Vec::new();
        for name in FILES {
            let path = dir.join(name);
            let mut bytes = Vec::new();
            match fs::File::open(&path) {
                Ok(file) => {
                    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error(&path))?;
                    copies.push(Some(parse(&bytes)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => copies.push(None),
                Err(error) => return Err(ManifestError::Io { path, error }),
            }
        }
        if copies.iter().all(Option::is_none) {
            return Ok(None);
        }
        let good = copies.iter().flatten().flatten().max_by_key(|manifest| manifest.generation);
        let damaged = || ManifestError::Damaged { path: dir.join(FILES[0]) };
        let good = good.ok_or_else(damaged)?.clone();
        for (name, copy) in FILES.into_iter().zip(&copies) {
            if !matches!(copy, Some(Some(same)) if *same == good) {
                write_copy(dir, name, &good.to_text())?;
            }
        }
        Ok(Some(good))
    }

    /// What is not as it must be, by name.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn check(&self, dir: &Path) -> Result<Vec<(String, Wrong)>, ManifestError> {
        let mut wrong = Vec::new();
        for (name, expected) in &self.files {
            let path = dir.join(name);
            let found = match expected {
                Expected::There if path.exists() => continue,
                Expected::There => Wrong::Missing,
                Expected::Holds(contents) => match content_of(&path).map_err(io_error(&path))? {
                    Some(found) if contents.contains(&found) => continue,
                    Some(_) => Wrong::Changed,
                    None => Wrong::Missing,
                },
            };
            wrong.push((name.clone(), found));
        }
        Ok(wrong)
    }

    /// From now on a file must be there, if it is now. Says whether that is new.
    pub fn is_there(&mut self, dir: &Path, name: &str) -> bool {
        let known = self.files.contains_key(name);
        if !known && dir.join(name).exists() {
            self.files.insert(name.to_owned(), Expected::There);
            return true;
        }
        false
    }

    /// From now on a file must hold what it holds now, if it is there and not another one than it may be. Says whether that is
    /// new.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn holds(&mut self, dir: &Path, name: &str) -> Result<bool, ManifestError> {
        let path = dir.join(name);
        let Some(found) = content_of(&path).map_err(io_error(&path))? else { return Ok(false) };
        match self.files.get(name) {
            Some(Expected::Holds(contents)) if contents.len() == 1 || !contents.contains(&found) => {
                return Ok(false);
            }
            _ => {}
        }
        self.files.insert(name.to_owned(), Expected::Holds(BTreeSet::from([found])));
        Ok(true)
    }

    /// A file is about to hold this; until it does, what it holds is right too.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn will_hold(&mut self, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), ManifestError> {
        let path = dir.join(name);
        let mut contents = BTreeSet::from([(bytes.len() as u64, crc32c::crc32c(bytes))]);
        contents.extend(content_of(&path).map_err(io_error(&path))?);
        self.files.insert(name.to_owned(), Expected::Holds(contents));
        Ok(())
    }

    /// Says what a file of a directory is about to hold, where that has a manifest.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn announce(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), ManifestError> {
        let Some(mut manifest) = Manifest::read(dir)? else { return Ok(()) };
        manifest.will_hold(dir, name, bytes)?;
        manifest.write(dir)
    }

    /// Writes both copies, as the next generation.
    ///
    /// # Errors
    /// [`ManifestError::Io`].
    pub fn write(&mut self, dir: &Path) -> Result<(), ManifestError> {
        self.generation += 1;
        let text = self.to_text();
        FILES.into_iter().try_for_each(|name| write_copy(dir, name, &text))
    }

    fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\ndomain {}\ngeneration {}\n", self.domain, self.generation);
        for (name, expected) in &self.files {
            match expected {
                Expected::There => text.push_str(&format!("there {name}\n")),
                Expected::Holds(contents) => {
                    let contents = contents.iter().map(|(length, crc)| format!(" {length}:{crc:08x}"));
                    text.push_str(&format!("holds {name}{}\n", contents.collect::<String>()));
                }
            }
        }
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("crc {crc:08x}\n"));
        text
    }
}

fn write_copy(dir: &Path, name: &str, text: &str) -> Result<(), ManifestError> {
    let path = dir.join(name);
    crate::file::replace(&path, text.as_bytes(), 0o600).map_err(io_error(&path))
}

fn parse(bytes: &[u8]) -> Option<Manifest> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (body, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let body = &text[..body.len() + 1];
    let crc = u32::from_str_radix(crc.strip_prefix("crc ")?, 16).ok()?;
    if crc != crc32c::crc32c(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let domain = lines.next()?.strip_prefix("domain ")?.to_owned();
    let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
    let mut files = BTreeMap::new();
    for line in lines {
        let (kind, rest) = line.split_once(' ')?;
        let mut words = rest.split(' ');
        let name = words.next().filter(|name| is_below(name))?.to_owned();
        let expected = match kind {
            "there" => Expected::There,
            "holds" => {
                Expected::Holds(words.by_ref().take(CONTENTS_MAX).map(content).collect::<Option<_>>()?)
            }
            _ => return None,
        };
        if words.next().is_some() || files.insert(name, expected).is_some() {
            return None;
        }
    }
    let manifest = Manifest { domain, generation, files };
    (manifest.to_text() == text).then_some(manifest)
}

fn content(word: &str) -> Option<Content> {
    let (length, crc) = word.split_once(':')?;
    Some((length.parse().ok()?, u32::from_str_radix(crc, 16).ok()?))
}

/// Whether it is a path that stays below a directory.
fn is_below(name: &str) -> bool {
    !name.is_empty() && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests;
