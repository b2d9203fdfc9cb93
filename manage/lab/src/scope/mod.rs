//! A scope: everything one lab or bench makes, under one name prefix and one run directory.
//!
//! `/run/weir-lab/<name>/` holds the prefix, a `.proc` record and a `.log` for each program, and whatever the
//! programs keep there. Cleaning a scope ends the recorded programs, deletes the namespaces and links with the
//! prefix and `/etc/netns/<prefix>*`, and removes the directory. It is idempotent and is used at the start,
//! after a failure, after ctrl-c, and by `lab-down`.

use crate::process::{self, Daemon, Program, Record};
use crate::{Error, Netns, Result, interrupt, netns, system};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Where scopes keep their run directories.
const RUN_FOLDER: &str = "/run/weir-lab";
const PREFIX_RULE: &str =
    "a prefix is 3 to 24 characters of a-z, 0-9 and '-', begins with a letter and ends with '-'";
const NAME_RULE: &str =
    "a name is 1 to 32 characters of a-z, 0-9, '-' and '.', and begins with a letter or digit";

/// One lab's or bench's namespaces, links and programs.
#[derive(Debug)]
pub struct Scope {
    name: String,
    prefix: String,
    folder: PathBuf,
    /// Held for as long as this process works on the scope.
    _lock: Lock,
}

/// What a cleaning removed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Cleaned {
    /// Programs that still ran.
    pub processes: usize,
    /// Namespaces.
    pub namespaces: usize,
    /// Links in the caller's namespace.
    pub links: usize,
}

impl Scope {
    /// Takes the scope for this process, cleans what an earlier run left, and makes an empty run directory.
    /// Errors: not root, an unusable name or prefix, another process works on it.
    pub fn begin(name: &str, prefix: &str) -> Result<Self> {
        let scope = Self::take(name, Some(prefix))?;
        scope.clean()?;
        std::fs::create_dir_all(&scope.folder)
            .and_then(|()| std::fs::write(scope.folder.join("prefix"), prefix))
            .map_err(|error| Error::io(format!("make {}", scope.folder.display()), error))?;
        Ok(scope)
    }

    /// Takes a scope that an earlier command left running; `None` if there is none.
    pub fn attach(name: &str) -> Result<Option<Self>> {
        check_name(name)?;
        if !Path::new(RUN_FOLDER).join(name).join("prefix").exists() {
            return Ok(None);
        }
        Self::take(name, None).map(Some)
    }

    fn take(name: &str, prefix: Option<&str>) -> Result<Self> {
        system::require_root()?;
        check_name(name)?;
        let folder = Path::new(RUN_FOLDER).join(name);
        std::fs::create_dir_all(RUN_FOLDER)
            .map_err(|error| Error::io(format!("make {RUN_FOLDER}"), error))?;
        let lock = lock(name)?;
        let prefix = match prefix {
            Some(prefix) => prefix.to_string(),
            None => std::fs::read_to_string(folder.join("prefix"))
                .map_err(|error| Error::io(format!("read {}", folder.join("prefix").display()), error))?,
        };
        check_prefix(&prefix)?;
        Ok(Self { name: name.to_string(), prefix, folder, _lock: lock })
    }

    /// The scope's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The prefix of all its namespaces and links.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its run directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the namespace `<prefix><short>`.
    pub fn netns(&self, short: &str) -> Result<Netns> {
        check_name(short)?;
        Netns::create(format!("{}{short}", self.prefix))
    }

    /// The namespaces of this scope that exist now.
    pub fn namespaces(&self) -> Vec<Netns> {
        netns::list(&self.prefix)
    }

    /// Name servers for programs in a namespace of this scope: they see this as `/etc/resolv.conf`.
    pub fn resolv_conf(&self, netns: &Netns, text: &str) -> Result<()> {
        self.owns(netns)?;
        let folder = Path::new("/etc/netns").join(netns.name());
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(folder.join("resolv.conf"), text))
            .map_err(|error| Error::io(format!("write {}/resolv.conf", folder.display()), error))
    }

    /// Starts a program that stays; its output goes to `<name>.log` in the run directory.
    pub fn start(&self, name: &str, program: &Program) -> Result<Daemon> {
        check_name(name)?;
        Daemon::start(&self.folder, name, program)
    }

    /// The recorded programs by name, also those of an earlier command.
    pub fn programs(&self) -> Vec<(String, process::Record)> {
        records(&self.folder)
            .into_iter()
            .filter_map(|path| {
                let name = path.file_stem()?.to_string_lossy().into_owned();
                Some((name, process::read_record(&path).ok()?))
            })
            .collect()
    }

    /// Ends and deletes everything of this scope. Goes on after a failure and returns the first one. Ctrl-c does
    /// not cut it short.
    pub fn clean(&self) -> Result<Cleaned> {
        interrupt::shielded(|| self.clean_all())
    }

    fn clean_all(&self) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        let mut errors = Vec::new();
        for (_, record) in self.programs() {
            match record.stop(|| reap(record.pid)) {
                Ok(was_there) => cleaned.processes += usize::from(was_there),
                Err(error) => errors.push(error),
            }
        }
        for netns in self.namespaces() {
            // Programs that were not started here: what ours started and left behind, or what a person runs there.
            for pid in netns.processes() {
                let Ok(record) = Record::of(pid, format!("process {pid} in {}", netns.name())) else {
                    continue;
                };
                match record.stop(|| reap(pid)) {
                    Ok(was_there) => cleaned.processes += usize::from(was_there),
                    Err(error) => errors.push(error),
                }
            }
            match system::run("ip", &["netns", "delete", netns.name()]) {
                Ok(_) => cleaned.namespaces += 1,
                Err(error) => errors.push(error),
            }
        }
        for link in links(&self.prefix) {
            // The other end of a pair goes with the first, and one goes with the namespace of the other, when the kernel comes
            // to it.
            let is_there = || Path::new("/sys/class/net").join(&link).exists();
            if is_there() {
                match system::run("ip", &["link", "delete", "dev", &link]) {
                    Ok(_) => cleaned.links += 1,
                    Err(_) if !is_there() => {}
                    Err(error) => errors.push(error),
                }
            }
        }
        remove_resolvers(&self.prefix).unwrap_or_else(|error| errors.push(error));
        // The records stay while something could not be ended, so that the next cleaning tries again.
        if errors.is_empty() && self.folder.exists() {
            std::fs::remove_dir_all(&self.folder).unwrap_or_else(|error| {
                errors.push(Error::io(format!("remove {}", self.folder.display()), error))
            });
        }
        match errors.into_iter().next() {
            None => Ok(cleaned),
            Some(error) => Err(error),
        }
    }

    fn owns(&self, netns: &Netns) -> Result<()> {
        if netns.name().starts_with(&self.prefix) {
            return Ok(());
        }
        Err(Error::Name {
            name: netns.name().to_string(),
            rule: "it does not begin with the prefix of this scope",
        })
    }
}

/// A scope that is cleaned when it is dropped, for runs that leave nothing behind: also after an error or a panic.
#[derive(Debug)]
pub struct CleanOnDrop(Scope);

impl Scope {
    /// Ties everything of this scope to the returned value's life.
    pub fn clean_on_drop(self) -> CleanOnDrop {
        CleanOnDrop(self)
    }
}

impl std::ops::Deref for CleanOnDrop {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.0
    }
}

impl Drop for CleanOnDrop {
    fn drop(&mut self) {
        if let Err(error) = self.0.clean() {
            tracing::warn!(scope = self.0.name, %error, "cleaning failed; the next start or lab-down tries again");
        }
    }
}

/// The names of the scopes that have a run directory.
pub fn list() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(RUN_FOLDER) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("prefix").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// A scope's lock, as long as this lives. A child that is forked meanwhile has the file too until it execs, so to close it would not be enough.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // It goes with the last copy of the file in any case.
        let _unlocked = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(name: &str) -> Result<Lock> {
    let path = Path::new(RUN_FOLDER).join(format!("{name}.lock"));
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| Error::io(format!("open {}", path.display()), error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Busy { name: name.to_string(), path }),
        Err(error) => Err(Error::io(format!("lock {}", path.display()), error)),
    }
}

/// Collects the exit status where the process is our own child; nothing happens where it is not.
fn reap(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "proc"))
        .collect();
    paths.sort();
    paths
}

fn links(prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn remove_resolvers(prefix: &str) -> Result<()> {
    let Ok(entries) = std::fs::read_dir("/etc/netns") else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            std::fs::remove_dir_all(entry.path())
                .map_err(|error| Error::io(format!("remove {}", entry.path().display()), error))?;
        }
    }
    Ok(())
}

fn check_prefix(prefix: &str) -> Result<()> {
    let fits = (3..=24).contains(&prefix.len())
        && prefix.ends_with('-')
        && prefix.starts_with(|c: char| c.is_ascii_lowercase())
        && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if fits { Ok(()) } else { Err(Error::Name { name: prefix.to_string(), rule: PREFIX_RULE }) }
}

fn check_name(name: &str) -> Result<()> {
    let fits = (1..=32).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.');
    if fits { Ok(()) } else { Err(Error::Name { name: name.to_string(), rule: NAME_RULE }) }
}
