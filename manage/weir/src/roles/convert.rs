//! A controller that is alone becomes the first member of a group, in its own directory (`weir group convert`; decision 0053).
//!
//! | step | what is on disk then | what a start does |
//! |---|---|---|
//! | the last entry is ordered | the entry, in `log` | what follows |
//! | seeded | `group.new`: the state as a snapshot, and a log that begins behind it, all synced | makes it anew |
//! | named | `group.new` is `group` | makes it anew |
//! | marked | `converted`: the member's number, its address, the epoch, and what the state was | starts the member |
//!
//! Before the last entry is durable the controller is what it was. From then on its order carries nothing out, so it cannot serve again as it was;
//! and the group's log is used by nobody before the mark is there, so until then it can be made anew from `log`, to the same bytes. The mark alone says
//! what the directory is. `log` stays as it was left; nothing writes there any more.
//!
//! `state.manifest` has `converted` and what it holds from the member's first start on.

use super::controller::config::{ControllerConfig, GivenGroup, GroupConfig, Ordering};
use super::manifest;
use super::state::StateError;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::sync::Arc;
use weir_base::world::{Disk, RealDisk};
use weir_controller::driver::Ended;
use weir_model::join::to_hex;
use weir_order::log::LogSettings;

/// Says that the directory is a member's.
const MARK_FILE: &str = "converted";
/// Says that the end of the order in `log` is taken back.
const BACK_FILE: &str = "converted.back";
/// What the group's folder is called before it is whole.
const NEW_FOLDER: &str = "group.new";
/// The group's folder.
const GROUP_FOLDER: &str = "group";
/// This controller's own key, once it was changed: a member is known by another name, and begins with the key of that.
const OWN_KEYS: [&str; 2] = ["event.identity", "event.identity.next"];
const FORMAT: u32 = 1;

/// The mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Mark {
    format: u32,
    /// `raft`.
    order: String,
    /// The member's number.
    id: u64,
    /// Where the other controllers connect.
    listen: String,
    /// Whether the controllers are in different places.
    wide: bool,
    /// The epoch in which it goes on.
    epoch: u64,
    /// The last place of the order before.
    index: u64,
    /// SHA-256 of the state that it began with.
    state: String,
}

fn damaged(dir: &Path, reason: impl std::fmt::Display) -> Failure {
    let path = dir.join(MARK_FILE);
    Failure::Input(StateError::Damaged { path, reason: reason.to_string() }.to_string())
}

fn read(dir: &Path) -> Result<Option<Mark>, Failure> {
    let path = dir.join(MARK_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::io(path.display().to_string())(error)),
    };
    let mark: Mark = serde_json::from_str(&text).map_err(|error| damaged(dir, error))?;
    match mark.format {
        FORMAT => Ok(Some(mark)),
        other => Err(damaged(dir, format!("it has format {other}, this release reads {FORMAT}"))),
    }
}

impl Mark {
    /// The settings of the member, where the file of settings has none.
    fn group(&self, config: &ControllerConfig) -> Result<GroupConfig, Failure> {
        let (id, listen, wide) = (self.id, self.listen.clone(), self.wide);
        let given = GivenGroup { id, listen, wide, ..GivenGroup::default() };
        given.check(config.advertise, config.api, config.session)
    }
}

/// A directory that was converted is a member's, also where the settings have no part `group` yet.
///
/// # Errors
/// [`Failure::Input`]: the settings say otherwise, or the mark is damaged.
pub fn adopt(config: &mut ControllerConfig) -> Result<(), Failure> {
    if config.state_dir.join(BACK_FILE).exists() {
        return clear(&config.state_dir);
    }
    let Some(mark) = read(&config.state_dir)? else { return Ok(()) };
    match &config.group {
        None => config.group = Some(mark.group(config)?),
        Some(group) if group.id == mark.id && group.order == Ordering::Raft => {}
        Some(group) => {
            return Err(Failure::Input(format!(
                "group.id, group.order: {} became controller {} of a group with order: raft, and the settings say controller {} and {:?}",
                config.state_dir.display(),
                mark.id,
                group.id,
                group.order
            )));
        }
    }
    Ok(())
}

/// In builds for tests: the process ends, as by kill -9, at the step that the file `convert-dies` of the state directory names.
fn may_die(dir: &Path, step: &str) {
    #[cfg(debug_assertions)]
    {
        let file = dir.join("convert-dies");
        if std::fs::read_to_string(&file).is_ok_and(|named| named.trim() == step) {
            let _gone = std::fs::remove_file(&file);
            tracing::warn!(step, "this process dies, as the file convert-dies told");
            let own = rustix::process::getpid();
            let _dead = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
    #[cfg(not(debug_assertions))]
    let _never = (dir, step);
}

/// The order of this controller has ended: makes the member's part of the directory, and says so in the settings of now.
///
/// # Errors
/// [`Failure`]: then the next start does it.
pub fn go_on(config: &mut ControllerConfig, ended: &Ended) -> Result<(), Failure> {
    let dir = config.state_dir.clone();
    let io = |path: &Path| Failure::io(path.display().to_string());
    may_die(&dir, "ordered");
    if dir.join("member").exists() {
        return Err(Failure::Input(format!(
            "{}: the order in 'log' has ended with a conversion, and 'member' says that this is a group's member already: it has no mark '{MARK_FILE}'. \
             Bring that back from a backup of the whole directory",
            dir.display()
        )));
    }
    let conversion = &ended.conversion;
    let mark = Mark {
        format: FORMAT,
        order: "raft".to_string(),
        id: conversion.member,
        listen: conversion.listen.clone(),
        wide: conversion.wide,
        epoch: ended.epoch,
        index: ended.at.index,
        state: to_hex(&Sha256::digest(&ended.state)),
    };
    let group = mark.group(config)?;
    let (new, named) = (dir.join(NEW_FOLDER), dir.join(GROUP_FOLDER));
    for left in [&new, &named] {
        match std::fs::remove_dir_all(left) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(left)(error)),
            _ => {}
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&new).map_err(io(&new))?);
    let wrong = |error: weir_order::Error| Failure::Input(error.to_string());
    let settings = LogSettings { batch_bytes_max: super::group::BATCH_BYTES_MAX, ..LogSettings::default() };
    let at = (conversion.member, group.own.to_string());
    let info = weir_raft::seed(disk, settings, at, ended.at, &mut &ended.state[..]).map_err(wrong)?;
    tracing::info!(
        index = info.at.index,
        bytes = ended.state.len(),
        "the group's log begins with this state"
    );
    may_die(&dir, "seeded");
    std::fs::rename(&new, &named).map_err(io(&named))?;
    weir_base::file::sync_folder_of(&named).map_err(io(&named))?;
    may_die(&dir, "named");
    for name in OWN_KEYS {
        manifest::put_aside(&dir, name).map_err(|error| Failure::Input(error.to_string()))?;
    }
    let text = serde_json::to_string_pretty(&mark).map_err(|error| damaged(&dir, error))?;
    let path = dir.join(MARK_FILE);
    weir_base::file::replace(&path, text.as_bytes(), 0o600).map_err(io(&path))?;
    may_die(&dir, "marked");
    config.group = Some(group);
    Ok(())
}

/// What a member needs is put aside: the controller goes on alone. Every part of it may be done already.
fn clear(dir: &Path) -> Result<(), Failure> {
    let wrong = |error: StateError| Failure::Input(error.to_string());
    if !manifest::of_member(dir).is_empty() {
        manifest::rejoin(dir).map_err(wrong)?;
    }
    manifest::put_aside(dir, MARK_FILE).map_err(wrong)?;
    for name in OWN_KEYS {
        let (aside, path) = (dir.join(format!("{name}.before")), dir.join(name));
        if aside.exists() && !path.exists() {
            std::fs::rename(&aside, &path).map_err(Failure::io(path.display().to_string()))?;
        }
    }
    Ok(())
}

/// Whether the end of this controller's order is to be taken back.
pub fn takes_back(dir: &Path) -> bool {
    dir.join(BACK_FILE).exists()
}

/// The end was taken back, in the order.
///
/// # Errors
/// [`Failure`]: then the next start finds that it was.
pub fn taken_back(dir: &Path) -> Result<(), Failure> {
    let path = dir.join(BACK_FILE);
    let named = || Failure::io(path.display().to_string());
    std::fs::remove_file(&path).map_err(named())?;
    weir_base::file::sync_folder_of(&path).map_err(named())
}

/// Has the next start take back the end of the order, while no controller runs here.
///
/// # Errors
/// [`Failure`]: it was never converted, or the group has ordered something; nothing is changed.
pub fn go_back(dir: &Path) -> Result<(), Failure> {
    let (path, log) = (dir.join(BACK_FILE), dir.join(GROUP_FOLDER));
    let Some(mark) = read(dir)? else {
        return Err(Failure::Refused(format!(
            "{}: this controller was not converted: it has no file '{MARK_FILE}'",
            dir.display()
        )));
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?);
    let settings = LogSettings { batch_bytes_max: super::group::BATCH_BYTES_MAX, ..LogSettings::default() };
    let unused = weir_raft::is_as_seeded(&disk, settings, mark.index);
    if !unused.map_err(|error| Failure::Refused(error.to_string()))? {
        return Err(Failure::Refused(format!(
            "{}: the group has ordered something since, or has other members: there is no way back from it",
            dir.display()
        )));
    }
    weir_base::file::replace(&path, b"1\n", 0o600).map_err(Failure::io(path.display().to_string()))
}

/// Becomes what is started by the same command: nothing of the process before is left.
///
/// # Errors
/// [`Failure`]: it could not be started; whoever watches over the process starts it.
pub fn start_again() -> Failure {
    use std::os::unix::process::CommandExt;
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    Failure::io("starting again as a member of the group".to_string())(error)
}

#[cfg(test)]
mod tests;
