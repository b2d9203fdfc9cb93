//! Whether a guest's emulator was given a processor. One that was not cannot move, and that is no failure of the guest: on a host with
//! too much to do it would be a false alarm. So the time in which progress must come after a stimulus begins anew while the emulator waits
//! for a processor, at most [`GRANTS_MAX`] times; a guest that hangs does not wait: it spins, or sleeps, or its emulator is stopped.

use std::fs;

/// So often in a row the time begins anew.
pub(super) const GRANTS_MAX: u32 = 8;
/// Most threads of an emulator that are looked at.
const THREADS_MAX: usize = 512;

/// What an emulator's threads had of the processors, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Time on a processor, ns.
    ran_ns: u64,
    /// Time of waiting for one that has ended, ns.
    waited_ns: u64,
    /// Whether one of them is ready to run, or runs.
    ready: bool,
}

impl Share {
    /// That of a process up to now; nothing where the kernel does not say.
    pub(super) fn of(process: u32) -> Option<Share> {
        let mut share = Share::default();
        let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
        for thread in threads.flatten().take(THREADS_MAX) {
            // A thread that ends meanwhile has had its share.
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).ok();
            let Some((ran_ns, waited_ns)) = read("schedstat").as_deref().and_then(times) else { continue };
            share.ran_ns += ran_ns;
            share.waited_ns += waited_ns;
            share.ready |= read("stat").as_deref().and_then(super::state) == Some('R');
        }
        (share.ran_ns > 0).then_some(share)
    }

    /// Whether since `before`, `watch_ns` ago, it waited for most of that time; or waits still, and hardly ran.
    pub(super) fn is_starved(self, before: Share, watch_ns: u64) -> bool {
        let ran_ns = self.ran_ns.saturating_sub(before.ran_ns);
        let waited_ns = self.waited_ns.saturating_sub(before.waited_ns);
        waited_ns >= watch_ns / 2 || (self.ready && ran_ns < watch_ns / 4)
    }
}

/// The first two numbers of `schedstat`: time on a processor and time of waiting for one, ns.
fn times(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_waits_is_starved_and_who_hangs_is_not() {
        let before = Share { ran_ns: 1000 * MS, waited_ns: 500 * MS, ready: false };
        let after = |ran_ms: u64, waited_ms: u64, ready: bool| {
            let now = Share {
                ran_ns: before.ran_ns + ran_ms * MS,
                waited_ns: before.waited_ns + waited_ms * MS,
                ready,
            };
            now.is_starved(before, 200 * MS)
        };
        assert!(after(0, 0, true), "it waits since the stimulus, which is not counted before it ends");
        assert!(after(5, 150, false), "it had waited, and ran only now");
        assert!(!after(0, 0, false), "it sleeps, or is stopped");
        assert!(!after(190, 5, true), "it spins");
        assert!(!after(60, 60, true), "it had a fair part");
    }

    #[test]
    fn the_share_of_this_process_grows() {
        let Some(before) = Share::of(std::process::id()) else {
            return println!("NOT RUN the_share_of_this_process_grows: the kernel has no schedstat");
        };
        let mut sum = 0_u64;
        while Share::of(std::process::id()).unwrap().ran_ns < before.ran_ns + MS {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(Share::of(std::process::id()).unwrap().ready);
        assert_eq!(Share::of(u32::MAX), None);
        assert_eq!(times("12 34 5\n"), Some((12, 34)));
        assert_eq!(times("12"), None);
    }
}
