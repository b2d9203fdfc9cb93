//! Memory hogs (Bohra, 3.5.2): when memory is short, the tree that holds most of it.

use super::Engine;
use crate::controls;
use crate::error::{Error, Result};
use crate::incident::Reason;
use crate::kernel::proc::number64;
use crate::policy::{MemoryHog, Policy};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::path::{Path, PathBuf};

/// The file that says how much is used, open.
#[derive(Debug)]
pub struct Usage {
    file: OwnedFd,
    limit: Limit,
    trend: Trend,
}

/// How fast the limit comes nearer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trend {
    time_ns: u64,
    left_bytes: u64,
    /// Bytes a millisecond that the room to the limit became smaller lately; half of it is as old as the last look.
    shrinks_per_ms: u64,
}

impl Trend {
    /// Takes the room that is left to the limit.
    pub(super) fn take(&mut self, now_ns: u64, left_bytes: u64) {
        let took_ns = now_ns.saturating_sub(self.time_ns);
        if self.time_ns != 0 && took_ns > 0 {
            let shrunk = u128::from(self.left_bytes.saturating_sub(left_bytes));
            let per_ms = shrunk * 1_000_000 / u128::from(took_ns);
            self.shrinks_per_ms =
                (self.shrinks_per_ms / 2).saturating_add(u64::try_from(per_ms / 2).unwrap_or(u64::MAX));
        }
        (self.time_ns, self.left_bytes) = (now_ns, left_bytes);
    }

    /// When nothing is left at this slope, ns from the last look; nothing while the room does not shrink.
    pub(super) fn short_in_ns(&self) -> Option<u64> {
        self.left_bytes.checked_div(self.shrinks_per_ms).map(|ms| ms.saturating_mul(1_000_000))
    }
}

#[derive(Debug)]
enum Limit {
    /// The file holds one number, of bytes used, that must stay below.
    Used(u64),
    /// The same, of the limit that this file says now, so many percent. While that says no number there is no limit.
    Part(OwnedFd, u64),
    /// The file is `/proc/meminfo`, whose bytes available must stay above.
    Available(u64),
}

impl Usage {
    pub(super) fn open(hog: &MemoryHog) -> Result<Usage> {
        let open = |path: &Path| {
            openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
                Error::io(format!("policy '{}': {}", hog.common.name, path.display()), error)
            })
        };
        if let Some(bytes) = hog.when.available_bytes {
            return Ok(Usage {
                file: open(Path::new("/proc/meminfo"))?,
                limit: Limit::Available(bytes),
                trend: Trend::default(),
            });
        }
        let folder: PathBuf = match (&hog.memory, &hog.common.cgroup) {
            (Some(memory), _) => memory.clone(),
            (None, Some(cgroup)) => controls::folder(cgroup),
            (None, None) => PathBuf::new(),
        };
        let version_2 = folder.join("memory.current");
        let (current, max) = if version_2.exists() {
            (version_2, folder.join("memory.max"))
        } else {
            (folder.join("memory.usage_in_bytes"), folder.join("memory.limit_in_bytes"))
        };
        let limit = match (hog.when.used_bytes, hog.when.used_percent) {
            (Some(bytes), _) => Limit::Used(bytes),
            (None, percent) => Limit::Part(open(&max)?, percent.unwrap_or(100)),
        };
        Ok(Usage { file: open(&current)?, limit, trend: Trend::default() })
    }

    /// Why memory is short now, if it is.
    fn look(&mut self, now_ns: u64) -> Option<Reason> {
        let mut buffer = [0; 512];
        let length = rustix::io::pread(&self.file, &mut buffer[..], 0).ok()?;
        let text = &buffer[..length];
        let used = |trend: &mut Trend, limit: u64| {
            let found = number64(text)?;
            trend.take(now_ns, limit.saturating_sub(found));
            (found >= limit).then_some(Reason::MemoryUsed { found, limit })
        };
        match &self.limit {
            Limit::Used(limit) => used(&mut self.trend, *limit),
            Limit::Part(max, percent) => {
                let mut said = [0; 32];
                let length = rustix::io::pread(max, &mut said[..], 0).ok()?;
                // It may be set, changed and taken away at any time; "max" is none.
                let limit = number64(&said[..length])?;
                used(&mut self.trend, limit / 100 * percent)
            }
            Limit::Available(limit) => {
                let limit = *limit;
                let found = available_bytes(text)?;
                self.trend.take(now_ns, found.saturating_sub(limit));
                (found < limit).then_some(Reason::MemoryLeft { found, limit })
            }
        }
    }
}

impl Usage {
    /// When memory will be short at its present slope, ns from the last look.
    pub(super) fn short_in_ns(&self) -> Option<u64> {
        self.trend.short_in_ns()
    }
}

/// `MemAvailable` of `/proc/meminfo`, bytes.
pub(super) fn available_bytes(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"MemAvailable:"))?;
    number64(line.strip_suffix(b"kB")?)?.checked_mul(1024)
}

impl Engine {
    pub(super) fn judge_hog(&mut self, at: usize, now: u64) {
        let armed = &mut self.armed[at];
        let short = armed.usage.as_mut().and_then(|usage| usage.look(now));
        if now < armed.quiet_until_ns || armed.following.is_some() {
            return;
        }
        if let Some(reason) = short {
            self.repair(at, now, reason, None);
        }
    }

    /// Weighs the living processes of a scope: resident pages that are theirs alone, or, where these are not the larger
    /// part (the hog shares its memory), all resident pages.
    pub(super) fn weigh_memory(&mut self, at: usize) {
        for shared_too in [false, true] {
            let (proc, pages) = (&self.proc, &mut self.pages);
            let (mut own, mut all) = (0_u64, 0_u64);
            self.tree.for_each_living(|place, node| {
                let mut weight = 0;
                if node.scopes >> at & 1 == 1
                    && let Some(resident) = proc.resident_pages(node.process)
                {
                    let private = resident.all.saturating_sub(resident.shared);
                    own += private;
                    all += resident.all;
                    weight = if shared_too { resident.all } else { private };
                }
                pages[place.at as usize] = u32::try_from(weight).unwrap_or(u32::MAX);
            });
            if own >= all / 2 {
                return;
            }
        }
    }

    /// Whether a policy looks at memory.
    pub(super) fn is_hog(&self, at: usize) -> bool {
        matches!(self.armed[at].policy, Policy::MemoryHog(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_limit_follows_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.current", "900\n");
        write("memory.max", "max\n");
        let policy = format!(
            "kind: memory-hog\nname: a\nmemory: {}\nwhen: {{ used-percent: 50 }}\n",
            folder.path().display()
        );
        write("policy.yaml", &policy);
        let policies = crate::policy::load(&folder.path().join("policy.yaml")).unwrap();
        let Policy::MemoryHog(hog) = &policies[0] else { panic!("{policies:?}") };
        let mut usage = Usage::open(hog).expect("no limit yet stops no policy");
        assert_eq!(usage.look(1), None);
        for (max, limit) in [("1000\n", 500), ("1600\n", 800)] {
            write("memory.max", max);
            assert_eq!(usage.look(2), Some(Reason::MemoryUsed { found: 900, limit }), "{max}");
        }
        for max in ["4000\n", "max\n"] {
            write("memory.max", max);
            assert_eq!(usage.look(3), None, "{max}");
        }
    }

    #[test]
    fn the_time_to_the_limit_follows_the_slope() {
        const MS: u64 = 1_000_000;
        let mut trend = Trend::default();
        trend.take(10 * MS, 1000);
        assert_eq!(trend.short_in_ns(), None, "one look is no slope");
        trend.take(20 * MS, 1000);
        assert_eq!(trend.short_in_ns(), None, "it does not shrink");
        for step in 3..20 {
            trend.take(step * 10 * MS, 100_000 - step * 1000);
        }
        let short = trend.short_in_ns().unwrap();
        assert!((800 * MS..=900 * MS).contains(&short), "81,000 left at 100 a ms: {short}");
        for step in 20..40 {
            trend.take(step * 10 * MS, 200_000);
        }
        assert_eq!(trend.short_in_ns(), None, "it was given back");
    }
}
