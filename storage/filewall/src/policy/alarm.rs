//! `kind: alarm`: a user whose writes look like those of ransomware is reported, and stopped if that is wanted (row F: threat role
//! by behaviour).
//!
//! What such programs do to each file: read it, overwrite it (or a new file) with bytes that look random, and give it a
//! name with a suffix added, or let the original go. So three kinds of events are noted for a user on a machine:
//!
//! - a file that he has read and into which he writes noise, wherever;
//! - a name that gets a suffix (`report.txt` to `report.txt.locked`);
//! - noise in another file, together with an original that goes: each pair counts once. An original goes when it is removed, when its
//!   length is set to 0, and when another file is given its name (over NFSv3, where the server is asked whether there was one).
//!
//! The same is noted for each machine, whoever its users say that they are: it raises the alarm at `machine-files`.
//!
//! When they concern more than `files` files within `window-s`, the alarm is raised: it is logged and counted, and with
//! `act: freeze` the user's (or all) changes from that machine are answered with `NFS3ERR_ACCES` for `freeze-s`. Reading goes on.
//!
//! Noise is told by the entropy of the first bytes of a WRITE. Compressed files look alike, which is why
//! writing alone raises no alarm: unpacking photographs reads and removes nothing.
//!
//! Departures from the paper: it names a threat role and leaves its rules open.

use super::explain::{Question, Step};
use super::{Context, Policy, Verdict};
use crate::identity::Principal;
use crate::message::{Call, Probe};
use crate::wire::nfs3::{CHANGES, Handle, Op, Status};
use hashbrown::HashMap;
use serde::Deserialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most principals that are watched; those who have been quiet are forgotten first.
pub const WATCHED_MAX: usize = 8192;
/// Most files of one principal that are remembered within a window; then a new one begins.
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
    cut: bool,
}

/// What a principal did in the window.
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
}

/// The dynamic context.
#[derive(Debug, Default)]
struct Memory {
    seed: RandomState,
    all: Mutex<HashMap<u64, Watched, foldhash::fast::RandomState>>,
}

/// The policy.
#[derive(Debug)]
pub struct Alarm {
    files: usize,
    machine_files: usize,
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
    /// What is wrong, as text.
    pub fn compile(file: &AlarmFile, before: Option<Arc<dyn Any + Send + Sync>>) -> Result<Alarm, String> {
        if !(2..=FILES_MAX / 2).contains(&file.files) {
            return Err(format!("files {} is not between 2 and {}", file.files, FILES_MAX / 2));
        }
        if !(1..=86_400).contains(&file.window_s) {
            return Err(format!("window-s {} is not between 1 and 86400", file.window_s));
        }
        let freeze_s = file.freeze_s.unwrap_or(3600);
        if !(1..=31_536_000).contains(&freeze_s) {
            return Err(format!("freeze-s {freeze_s} is not between 1 and 31536000"));
        }
        let machine_files = file.machine_files.unwrap_or(file.files.saturating_mul(MACHINE_FACTOR));
        let machine_files = machine_files.min(FILES_MAX / 2);
        if machine_files < file.files {
            return Err(format!("machine-files {machine_files} is less than files {}", file.files));
        }
        Ok(Alarm {
            files: file.files,
            machine_files,
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

    /// What is watched of a caller: the machine, and the user there, whatever groups he says that he is in.
    fn watches(&self, caller: &Principal) -> [(u64, usize); 2] {
        let seed = &self.memory.seed;
        let user = seed.hash_one((caller.address, Some(caller.uid)));
        let machine = seed.hash_one((caller.address, None::<u32>));
        [(machine, self.machine_files), (user, self.files)]
    }

    fn with<T>(&self, key: u64, now_us: u64, work: impl FnOnce(&mut Watched) -> T) -> T {
        let mut all = self.memory.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= WATCHED_MAX && !all.contains_key(&key) {
            let quiet = |watched: &Watched| {
                now_us >= watched.frozen_until_us && now_us.saturating_sub(watched.begin_us) > self.window_us
            };
            all.retain(|_, watched| !quiet(watched));
            if all.len() >= WATCHED_MAX {
                all.retain(|_, watched| now_us < watched.frozen_until_us);
            }
        }
        let watched = all.entry(key).or_insert_with(|| Watched { begin_us: now_us, ..Watched::default() });
        if now_us.saturating_sub(watched.begin_us) > self.window_us || watched.files.len() >= FILES_MAX {
            watched.renew(now_us);
        }
        work(watched)
    }

    /// Notes a call that goes on; true if it raises the alarm.
    fn note(&self, call: &Call<'_>, watched: &mut Watched, event: Event, files: usize) -> bool {
        let before = watched.concerned();
        match call.op() {
            Op::Read => {
                watched.files.entry(self.memory.seed.hash_one(call.handle(0))).or_default().read = true;
            }
            Op::Write if event == Event::Noise => {
                let seen = watched.files.entry(self.memory.seed.hash_one(call.handle(0))).or_default();
                if !std::mem::replace(&mut seen.noise, true) {
                    if seen.read {
                        watched.overwritten += 1;
                    } else {
                        watched.noisy += 1;
                    }
                }
            }
            Op::Rename if is_suffixed(call.name(0), call.name(1)) => watched.suffixed += 1,
            Op::Setattr if event == Event::Gone => {
                let seen = watched.files.entry(self.memory.seed.hash_one(call.handle(0))).or_default();
                if !std::mem::replace(&mut seen.cut, true) {
                    watched.removed += 1;
                }
            }
            _ if event == Event::Gone => watched.removed += 1,
            _ => {}
        }
        before < files && watched.concerned() >= files
    }

    /// What a call is, of what is looked for. `Err` if the server must be asked first.
    fn event(&self, call: &Call<'_>, noisy: bool) -> Result<Event, Box<Probe>> {
        let sized = call.arguments.set.size;
        Ok(match call.op() {
            Op::Write if is_noise(call.payload(SAMPLE_BYTES)) => Event::Noise,
            Op::Remove => Event::Gone,
            Op::Setattr if sized == Some(0) => Event::Gone,
            Op::Create if sized == Some(0) && call.arguments.unchecked => Event::Gone,
            // Only where there is noise that an original may go for.
            Op::Rename if noisy && call.compound.is_none() && !is_suffixed(call.name(0), call.name(1)) => {
                let handle = Handle::new(call.handle(1)).unwrap_or(Handle::EMPTY);
                let probe = Probe { handle, name: Some(call.name(1).into()) };
                match call.told.iter().find(|told| told.probe == probe) {
                    None => return Err(Box::new(probe)),
                    Some(told) if told.status == 0 => Event::Gone,
                    Some(_) => Event::Other,
                }
            }
            _ => Event::Other,
        })
    }
}

/// What a call is, of what is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It writes noise.
    Noise,
    /// An original goes.
    Gone,
    /// Something else.
    Other,
}

/// True if a name is another one with a suffix.
fn is_suffixed(old: &[u8], new: &[u8]) -> bool {
    new.len() > old.len() + 1 && new.starts_with(old) && new[old.len()] == b'.'
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

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        if self.exempt(call.caller) {
            return Verdict::Forward;
        }
        let now_us = call.now.steady_us;
        let watches = self.watches(call.caller);
        let (mut frozen, mut noisy) = (false, false);
        for (key, _) in watches {
            self.with(key, now_us, |watched| {
                frozen |= now_us < watched.frozen_until_us;
                noisy |= watched.noisy > watched.removed;
            });
        }
        if frozen {
            // COMMIT goes on, so that what was written before becomes durable.
            let stopped = call.op().changes() && call.op() != Op::Commit;
            return if stopped { Verdict::Answer(Status::Acces) } else { Verdict::Forward };
        }
        let event = match self.event(call, noisy) {
            Ok(event) => event,
            Err(probe) => {
                call.probe = Some(probe);
                return Verdict::Ask;
            }
        };
        let mut stopped = false;
        for (key, files) in watches {
            let raised = self.with(key, now_us, |watched| {
                if !self.note(call, watched, event, files) {
                    return None;
                }
                let concerned = watched.concerned();
                if self.act == Act::Freeze {
                    watched.frozen_until_us = now_us + self.freeze_us;
                    watched.renew(now_us);
                }
                Some(concerned)
            });
            let Some(concerned) = raised else { continue };
            self.raised.fetch_add(1, Ordering::Relaxed);
            stopped |= self.act == Act::Freeze;
            tracing::warn!(
                client = %call.caller.address,
                user = call.caller.label(),
                whole_machine = key == watches[0].0,
                files = concerned,
                stopped,
                "ALARM: these writes look like those of ransomware"
            );
        }
        if stopped { Verdict::Answer(Status::Acces) } else { Verdict::Forward }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.memory.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let all = self.memory.all.lock().unwrap_or_else(PoisonError::into_inner);
        [
            ("raised".to_string(), self.raised.load(Ordering::Relaxed)),
            ("watched".to_string(), all.len() as u64),
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
