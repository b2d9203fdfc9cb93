//! The seeds of a simulation or an oracle, for tests: those that once failed, and then as many more as somebody wants.
//!
//! A seed that fails is written to `seeds/NAME.txt` in the crate of the test, one a line, and runs first from then on: it belongs into the
//! same change as the mend. A line may have words behind a `#`: what the seed found.
//!
//! `PREFIX_SEED` runs one seed; `PREFIX_SEEDS`, else `WEIR_SEEDS`, says how many; else it is what the test usually takes.

use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    file: PathBuf,
    all: Vec<u64>,
}

impl Seeds {
    /// The seeds of the test `name` in the crate whose folder this is (`CARGO_MANIFEST_DIR`): the kept ones, and `usual` from 0 on.
    pub fn of(folder: &str, name: &str, prefix: &str, usual: u64) -> Seeds {
        let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
        let wanted = number(&format!("{prefix}_SEEDS")).or_else(|| number("WEIR_SEEDS"));
        let one = number(&format!("{prefix}_SEED"));
        Seeds::chosen(Path::new(folder), name, one, wanted.unwrap_or(usual))
    }

    fn chosen(folder: &Path, name: &str, one: Option<u64>, count: u64) -> Seeds {
        let file = folder.join("seeds").join(format!("{name}.txt"));
        if let Some(one) = one {
            return Seeds { file, all: vec![one] };
        }
        let mut all = kept(&file);
        let others: Vec<u64> = (0..count).filter(|seed| !all.contains(seed)).collect();
        all.extend(others);
        Seeds { file, all }
    }

    /// All of them, in the order in which they are to run.
    pub fn all(&self) -> &[u64] {
        &self.all
    }

    /// Keeps a seed that failed. That it cannot be written is said, and no more: the test has failed anyway.
    pub fn keep(&self, seed: u64) {
        if kept(&self.file).contains(&seed) {
            return;
        }
        let written = || {
            fs::create_dir_all(self.file.parent().unwrap_or(Path::new(".")))?;
            let mut file = fs::File::options().append(true).create(true).open(&self.file)?;
            writeln!(file, "{seed}")
        };
        match written() {
            Ok(()) => println!("seed {seed} is kept in {}", self.file.display()),
            Err(error) => println!("seed {seed} could not be kept in {}: {error}", self.file.display()),
        }
    }

    /// Runs a test with each; the first that panics is kept, and panics on.
    pub fn each(&self, mut test: impl FnMut(u64)) {
        for &seed in &self.all {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
                self.keep(seed);
                resume_unwind(panic);
            }
        }
    }
}

/// What a file has kept; nothing where it is not, or a line is no number.
fn kept(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let number = |line: &str| line.split('#').next().unwrap_or_default().trim().parse().ok();
    text.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_seed_that_fails_runs_first_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let seeds = |count| Seeds::chosen(folder.path(), "worlds", None, count);
        assert_eq!(seeds(3).all(), [0, 1, 2]);
        let mut ran = Vec::new();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            seeds(10).each(|seed| {
                ran.push(seed);
                assert!(seed != 7, "the seventh world ends");
            });
        }));
        assert_eq!(*failed.unwrap_err().downcast::<&str>().unwrap(), "the seventh world ends");
        assert_eq!(ran, (0..=7).collect::<Vec<_>>(), "those behind it do not run");
        assert_eq!(seeds(3).all(), [7, 0, 1, 2]);
        assert_eq!(seeds(8).all(), [7, 0, 1, 2, 3, 4, 5, 6], "none runs twice");
        // It is kept once, and words behind it are for people.
        let file = folder.path().join("seeds/worlds.txt");
        fs::write(&file, "# found by chance\n7 # a lost write\n\n12\n").unwrap();
        seeds(0).keep(7);
        assert_eq!(seeds(1).all(), [7, 12, 0]);
        assert_eq!(Seeds::chosen(folder.path(), "worlds", Some(5), 3).all(), [5]);
    }
}
