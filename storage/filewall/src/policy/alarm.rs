//! `kind: alarm`: a user whose writes look like those of ransomware is reported, and stopped if that is wanted (row F: threat role
//! by behaviour).
//!
//! What such programs do to each file: read it, overwrite it (or a new file) with bytes that look random, and give it a
//! name with a suffix added, or let the original go. So three kinds of events are noted for a user on a machine:
//!
//! - a file that he has read and into which he writes noise, wherever;
//! - a name that gets a suffix (`report.txt` to `report.txt.locked`);
//! - noise in another file, together with an original that goes: each pair counts once. An original goes when it is removed, when its
//!   length is set to next to nothing, and when a file is made anew under its name: the server is asked whether there was one;
//! - an original whose name is given to a file that noise was written into: the server is asked for both names, where there is noise.
//!
//! The same is noted for each machine, whoever its users say that they are: it raises the alarm at `machine-files`; and for each folder,
//! whoever writes there and from where: at `folder-files`.
//!
//! When they concern more than `files` files within `window-s`, the alarm is raised: it is logged and counted, and with
//! `act: freeze` changes are answered with `NFS3ERR_ACCES` for `freeze-s`: the user's from that machine, all from that machine, or all in
//! that folder. Reading goes on.
//!
//! A WRITE names no folder: it is the one that the file was found in last, by a LOOKUP, a READDIRPLUS, or by being made. It is not known of
//! files whose handle a client has from before FileWall's start, until it is looked up again, and of what was mounted: those
//! count for user and machine only.
//!
//! Noise is told by the entropy of the first bytes of a WRITE. Compressed files look alike, which is why
//! writing alone raises no alarm: unpacking photographs reads and removes nothing.
//!
//! Departures from the paper: it names a threat role and leaves its rules open.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict};
use crate::identity::Principal;
use crate::message::{Call, Probe};
use crate::places::{Directory, Places};
use crate::wire::nfs3::{CHANGES, Handle, Op, Status};
use hashbrown::HashMap;
use serde::Deserialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most principals that are watched, and folders; those who have been quiet are forgotten first.
pub const WATCHED_MAX: usize = 8192;
/// Most files of one principal that are remembered within a window; then they are forgotten, and what was counted is not.
pub const FILES_MAX: usize = 4096;
/// Bytes of a WRITE that are looked at.
const SAMPLE_BYTES: usize = 1024;
/// Files of a machine for each one of a user, where it is not said.
const MACHINE_FACTOR: usize = 4;
/// Fewer bytes say nothing.
const SAMPLE_BYTES_MIN: usize = 256;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlarmFile {
    /// Files that must be concerned.
    pub files: usize,
    /// Files that must be concerned on a machine, whoever its users are; four times `files` if it is not said.
    #[serde(default)]
    pub machine_files: Option<usize>,
    /// Files that must be concerned in one folder, whoever writes there; as many as on a machine if it is not said.
    #[serde(default)]
    pub folder_files: Option<usize>,
    /// Within how long, seconds.
    pub window_s: u64,
    /// What is done.
    #[serde(default)]
    pub act: Act,
    /// For how long a user is stopped, seconds; 3600 if it is not said.
    #[serde(default)]
    pub freeze_s: Option<u64>,
    /// Roles that are not watched, such as that of a backup.
    #[serde(default)]
    pub exempt_roles: Vec<String>,
}

/// What is done when the alarm is raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// It is logged and counted.
    #[default]
    Log,
    /// The user changes nothing any more from that machine, for a while.
    Freeze,
}

/// What was seen of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    read: bool,
    noise: bool,
    gone: bool,
}

/// What a principal did, or was done in a folder, in the window.
#[derive(Debug, Default)]
struct Watched {
    begin_us: u64,
    files: HashMap<u64, Seen, foldhash::fast::RandomState>,
    overwritten: usize,
    suffixed: usize,
    noisy: usize,
    removed: usize,
    frozen_until_us: u64,
}

impl Watched {
    fn concerned(&self) -> usize {
        self.overwritten.max(self.suffixed) + self.noisy.min(self.removed)
    }

    fn renew(&mut self, now_us: u64) {
        *self = Watched { begin_us: now_us, frozen_until_us: self.frozen_until_us, ..Watched::default() };
    }

    /// Notes what was done to a file; `read` if somebody else knows that it was read. True if it was read.
    fn note(&mut self, file: u64, event: Event, read: bool) -> bool {
        let seen = match event {
            Event::Suffixed => {
                self.suffixed += 1;
                return false;
            }
            Event::Other => return false,
            Event::Replaced(by) => {
                // Its noise is no other original's.
                let noise = |seen: &mut Seen| std::mem::take(&mut seen.noise) && !seen.read;
                if self.files.get_mut(&by).is_some_and(noise) {
                    self.noisy = self.noisy.saturating_sub(1);
                }
                if !std::mem::replace(&mut self.files.entry(file).or_default().gone, true) {
                    self.overwritten += 1;
                }
                return false;
            }
            _ => self.files.entry(file).or_default(),
        };
        seen.read |= read || event == Event::Read;
        match event {
            Event::Noise if !std::mem::replace(&mut seen.noise, true) => {
                *(if seen.read { &mut self.overwritten } else { &mut self.noisy }) += 1;
            }
            Event::Gone if !std::mem::replace(&mut seen.gone, true) => self.removed += 1,
            _ => {}
        }
        seen.read
    }
}

type Table = Mutex<HashMap<u64, Watched, foldhash::fast::RandomState>>;

/// The dynamic context.
#[derive(Debug, Default)]
struct Memory {
    seed: RandomState,
    all: Table,
    /// Folders have places of their own, so that who goes through many of them is not forgotten for it.
    folders: Table,
    /// Files that have no handle yet: an operation before in the same COMPOUND has made them.
    unnamed: AtomicU64,
}

/// The policy.
#[derive(Debug)]
pub struct Alarm {
    files: usize,
    machine_files: usize,
    folder_files: usize,
    window_us: u64,
    act: Act,
    freeze_us: u64,
    exempt_roles: Vec<String>,
    memory: Arc<Memory>,
    raised: AtomicU64,
}

impl Alarm {
    /// Checks and compiles a file; `before` is the dynamic context of the policy that it replaces.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &AlarmFile,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Alarm, PolicyError> {
        PolicyError::between("files", file.files as u64, 2, FILES_MAX as u64 / 2)?;
        PolicyError::between("window-s", file.window_s, 1, 86_400)?;
        let freeze_s = file.freeze_s.unwrap_or(3600);
        PolicyError::between("freeze-s", freeze_s, 1, 31_536_000)?;
        let machine_files = file.machine_files.unwrap_or(file.files.saturating_mul(MACHINE_FACTOR));
        let machine_files = machine_files.min(FILES_MAX / 2);
        if machine_files < file.files {
            return Err(PolicyError::Less {
                field: "machine-files",
                value: machine_files as u64,
                other: "files",
                least: file.files as u64,
            });
        }
        let folder_files = file.folder_files.unwrap_or(machine_files);
        if !(file.files..=FILES_MAX / 2).contains(&folder_files) {
            return Err(PolicyError::FolderFiles {
                value: folder_files as u64,
                files: file.files as u64,
                most: FILES_MAX as u64 / 2,
            });
        }
        Ok(Alarm {
            files: file.files,
            machine_files,
            folder_files,
            window_us: file.window_s * 1_000_000,
            act: file.act,
            freeze_us: freeze_s * 1_000_000,
            exempt_roles: file.exempt_roles.clone(),
            memory: before.and_then(|before| before.downcast().ok()).unwrap_or_default(),
            raised: AtomicU64::new(0),
        })
    }

    fn exempt(&self, caller: &Principal) -> bool {
        self.exempt_roles.iter().any(|role| caller.roles.iter().any(|own| **own == **role))
    }

    /// What is watched of a call: the machine, the user there, whatever groups he says that he is in, and the folder of the file, whoever
    /// writes into it, where that is known.
    fn watches(&self, call: &Call<'_>, folder: Option<Directory>) -> [Option<Watch<'_>>; 3] {
        let Memory { seed, all, .. } = &*self.memory;
        let Principal { address, uid, .. } = **call.caller;
        let user = seed.hash_one((address, Some(uid)));
        let machine = seed.hash_one((address, None::<u32>));
        [
            Some(Watch { table: all, key: machine, files: self.machine_files, of: "machine" }),
            Some(Watch { table: all, key: user, files: self.files, of: "user" }),
            folder.map(|folder| self.folder(folder)),
        ]
    }

    fn folder(&self, folder: Directory) -> Watch<'_> {
        let Memory { seed, folders, .. } = &*self.memory;
        Watch { table: folders, key: seed.hash_one(folder), files: self.folder_files, of: "folder" }
    }

    fn with<T>(&self, watch: &Watch<'_>, now_us: u64, work: impl FnOnce(&mut Watched) -> T) -> T {
        let mut all = watch.table.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= WATCHED_MAX && !all.contains_key(&watch.key) {
            let quiet = |watched: &Watched| {
                now_us >= watched.frozen_until_us && now_us.saturating_sub(watched.begin_us) > self.window_us
            };
            all.retain(|_, watched| !quiet(watched));
            if all.len() >= WATCHED_MAX {
                all.retain(|_, watched| now_us < watched.frozen_until_us);
            }
        }
        let watched =
            all.entry(watch.key).or_insert_with(|| Watched { begin_us: now_us, ..Watched::default() });
        if now_us.saturating_sub(watched.begin_us) > self.window_us {
            watched.renew(now_us);
        }
        if watched.files.len() >= FILES_MAX {
            // What was counted stays: else whoever reads enough files in between would never be seen.
            watched.files.clear();
        }
        work(watched)
    }

    /// True if something is known of it: nobody is remembered for being looked at.
    fn is_watched(&self, watch: &Watch<'_>) -> bool {
        watch.table.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&watch.key)
    }

    /// The file that a call is about, and its folder where that is known. Of two names it is the second.
    fn file(&self, call: &Call<'_>, places: &Places) -> (u64, Option<Directory>) {
        let seed = &self.memory.seed;
        let last = usize::from(call.op() == Op::Rename);
        let handle = call.handle(usize::from(matches!(call.op(), Op::Rename | Op::Link)));
        if call.arguments.name_count > 0 {
            let folder = (!handle.is_empty()).then(|| places.directory(handle));
            return (seed.hash_one((folder, call.name(last))), folder);
        }
        if handle.is_empty() {
            return (self.memory.unnamed.fetch_add(1, Ordering::Relaxed), None);
        }
        (seed.hash_one(places.directory(handle)), places.folder(handle))
    }

    /// What a call is, of what is looked for. `Err` if the server must be asked first.
    fn event(
        &self,
        call: &Call<'_>,
        (watches, noisy): (&[Option<Watch<'_>>], bool),
        places: &Places,
    ) -> Result<Event, Box<Probe>> {
        let cut = call.arguments.set.size.is_some_and(|size| size < SAMPLE_BYTES_MIN as u64);
        let named = call.arguments.name_count > 0;
        Ok(match call.op() {
            // An OPEN is judged as what it is for, under its name.
            Op::Read | Op::Setattr if named => Event::Other,
            Op::Read if call.arguments.count > 0 && !call.handle(0).is_empty() => Event::Read,
            Op::Write if is_noise(call.payload(SAMPLE_BYTES)) => Event::Noise,
            Op::Remove => Event::Gone,
            Op::Setattr if cut => Event::Gone,
            Op::Create if cut && call.arguments.takes => match self.there(call, 0)? {
                Some(_) => Event::Gone,
                None => Event::Other,
            },
            Op::Rename if is_suffixed(call.name(0), call.name(1)) => Event::Suffixed,
            // Only where there is noise that an original may go for.
            Op::Rename if noisy => self.replaced(call, watches, places)?,
            _ => Event::Other,
        })
    }

    /// What a name leads to; `None` if there is nothing, or nobody can say. The server knows.
    fn there(&self, call: &Call<'_>, number: usize) -> Result<Option<Handle>, Box<Probe>> {
        let handle = Handle::new(call.handle(number)).filter(|handle| !handle.as_bytes().is_empty());
        let Some(handle) = handle else { return Ok(None) };
        let probe = Probe { handle, name: Some(call.name(number).into()) };
        match call.told.iter().find(|told| told.probe == probe) {
            None => Err(Box::new(probe)),
            Some(told) if told.status == 0 => Ok(Some(told.handle.unwrap_or(Handle::EMPTY))),
            Some(_) => Ok(None),
        }
    }

    /// A RENAME replaces an original if it is of a file that noise was written into, and its new name was somebody's.
    fn replaced(
        &self,
        call: &Call<'_>,
        watches: &[Option<Watch<'_>>],
        places: &Places,
    ) -> Result<Event, Box<Probe>> {
        let Some(from) = self.there(call, 0)? else { return Ok(Event::Other) };
        let from = self.memory.seed.hash_one(places.directory(from.as_bytes()));
        let noise = watches.iter().flatten().any(|watch| {
            let all = watch.table.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&watch.key).and_then(|watched| watched.files.get(&from)).is_some_and(|seen| seen.noise)
        });
        Ok(if noise && self.there(call, 1)?.is_some() { Event::Replaced(from) } else { Event::Other })
    }

    /// Notes a call that goes on; the watches at which it raises the alarm, and how many files are concerned.
    fn note(
        &self,
        watches: &[Option<Watch<'_>>],
        (file, event, now_us): (u64, Event, u64),
    ) -> Vec<(&'static str, usize)> {
        let (mut raised, mut read) = (Vec::new(), false);
        for watch in watches.iter().flatten() {
            if event == Event::Read && watch.of == "folder" {
                continue;
            }
            self.with(watch, now_us, |watched| {
                let before = watched.concerned();
                read |= watched.note(file, event, read);
                let concerned = watched.concerned();
                if before < watch.files && concerned >= watch.files {
                    raised.push((watch.of, concerned));
                    if self.act == Act::Freeze {
                        watched.frozen_until_us = now_us + self.freeze_us;
                        watched.renew(now_us);
                    }
                }
            });
        }
        raised
    }
}

/// What is counted together.
#[derive(Debug)]
struct Watch<'m> {
    table: &'m Table,
    key: u64,
    files: usize,
    of: &'static str,
}

/// What a call is, of what is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It reads.
    Read,
    /// It writes noise.
    Noise,
    /// A name gets a suffix.
    Suffixed,
    /// A file takes an original's name: the one that noise was written into.
    Replaced(u64),
    /// An original goes.
    Gone,
    /// Something else.
    Other,
}

/// True if a name is another one with a suffix.
fn is_suffixed(old: &[u8], new: &[u8]) -> bool {
    let Some(rest) = new.strip_prefix(old) else { return false };
    // Logs that are rotated get numbers.
    rest.len() > 1 && rest[0] == b'.' && !rest[1..].iter().all(u8::is_ascii_digit)
}

/// True if bytes look random: their entropy is nearly what random bytes of that number have.
fn is_noise(bytes: &[u8]) -> bool {
    if bytes.len() < SAMPLE_BYTES_MIN {
        return false;
    }
    let mut counts = [0u16; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let all = bytes.len() as f32;
    let entropy: f32 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f32::from(*count) / all;
            -share * share.log2()
        })
        .sum();
    // Random bytes lose about 128 / (n ln 2) bits of the 8 because the sample is short: 0.75 of 256, 0.18 of 1024.
    entropy > 8.0 - 185.0 / all - 0.25
}

impl Policy for Alarm {
    fn kind(&self) -> &'static str {
        "alarm"
    }

    fn ops(&self) -> u32 {
        CHANGES | Op::Read.bit()
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn knows_files(&self) -> bool {
        true
    }

    fn request(&self, call: &mut Call<'_>, context: &Context<'_>) -> Verdict {
        if self.exempt(call.caller) {
            return Verdict::Forward;
        }
        let now_us = call.now.steady_us;
        let (file, folder) = self.file(call, context.places);
        let watches = self.watches(call, folder);
        // What is taken out of a folder is changed there too.
        let from = (call.op() == Op::Rename && !call.handle(0).is_empty())
            .then(|| self.folder(context.places.directory(call.handle(0))));
        let (mut frozen, mut noisy) = (false, false);
        for watch in watches.iter().chain([&from]).flatten().filter(|watch| self.is_watched(watch)) {
            self.with(watch, now_us, |watched| {
                frozen |= now_us < watched.frozen_until_us;
                noisy |= watched.noisy > 0;
            });
        }
        if frozen {
            // COMMIT goes on, so that what was written before becomes durable.
            let stopped = call.op().changes() && call.op() != Op::Commit;
            return if stopped { Verdict::Answer(Status::Acces) } else { Verdict::Forward };
        }
        let event = match self.event(call, (&watches, noisy), context.places) {
            Ok(Event::Other) => return Verdict::Forward,
            Ok(event) => event,
            Err(probe) => {
                call.probe = Some(probe);
                return Verdict::Ask;
            }
        };
        let stops = self.act == Act::Freeze;
        let raised = self.note(&watches, (file, event, now_us));
        for (of, files) in &raised {
            self.raised.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                client = %call.caller.address,
                user = call.caller.label(),
                counted_by = of,
                files,
                stopped = stops,
                "ALARM: these writes look like those of ransomware"
            );
        }
        if stops && !raised.is_empty() { Verdict::Answer(Status::Acces) } else { Verdict::Forward }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.memory.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let folders = self.memory.folders.lock().unwrap_or_else(PoisonError::into_inner).len();
        let all = self.memory.all.lock().unwrap_or_else(PoisonError::into_inner);
        [
            ("raised".to_string(), self.raised.load(Ordering::Relaxed)),
            ("watched".to_string(), all.len() as u64),
            ("folders".to_string(), folders as u64),
            ("stopped_ever".to_string(), all.values().filter(|one| one.frozen_until_us > 0).count() as u64),
        ]
        .into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        if self.ops() & question.op.bit() == 0 || self.exempt(&question.caller) {
            return Step::silent();
        }
        Step::forward(format!(
            "as long as less than {} files in {} s look encrypted",
            self.files,
            self.window_us / 1_000_000
        ))
    }
}

#[cfg(test)]
mod tests;
