//! Who is not to blame, although the tree says that all of it is below him (Bohra, 3.5.2: the culprit, and nobody else).
//!
//! - Programs that start others for a living (a service manager, `sshd`, a container's shim) are behind everything, and never the
//!   culprit: those of [`MANAGERS`] that belong to root and are old, or that such a one has forked. Anybody can take such a name,
//!   but not root's number, nor such a parent.
//! - Of a fork bomb: a process much older than the burst that did not fork most of it itself, such as the shell in which it was
//!   typed. Then what is young below it goes. What is as old as that process does not go with a culprit either.
//! - Of memory: a process much older than the branches that hold it, which holds little itself. Then its heaviest branch goes, and
//!   only when it replaces that by another one it is the culprit: it is a respawner.

use crate::kernel::Comm;
use crate::tree::{Node, Place, YOUNG_NS};

/// Programs that start others for a living, as the kernel cuts their names.
const MANAGERS: [&str; 30] = [
    "systemd",
    "init",
    "(sd-pam)",
    "sshd",
    "sshd-session",
    "sshd-auth",
    "login",
    "agetty",
    "cron",
    "crond",
    "atd",
    "su",
    "sudo",
    "containerd",
    "containerd-shim",
    "dockerd",
    "conmon",
    "crio",
    "kubelet",
    "supervisord",
    "runsvdir",
    "runsv",
    "s6-svscan",
    "s6-supervise",
    "dumb-init",
    "tini",
    "catatonit",
    "tmux: server",
    "screen",
    "weir",
];

/// After a hog's branch was killed, one that takes its place within this time was put there, ns.
pub(super) const RESPAWN_NS: u64 = 30_000_000_000;

/// Which part of a culprit's tree goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Whether the process on top goes.
    pub(super) top: bool,
    /// Of those below it, who was born since, ns.
    pub(super) since_ns: u64,
}

impl Extent {
    /// All of it.
    pub(super) const WHOLE: Extent = Extent { top: true, since_ns: 0 };

    /// Whether a node of the tree of `top` is in it.
    pub(super) fn holds(self, top: Place, place: Place, node: &Node) -> bool {
        if place == top { self.top } else { node.born_ns >= self.since_ns }
    }
}

/// A culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blamed {
    pub(super) place: Place,
    /// What its tree weighs.
    pub(super) weight: u64,
    pub(super) extent: Extent,
}

fn is_listed(comm: &Comm) -> bool {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    MANAGERS.iter().any(|name| name.as_bytes() == &comm[..end])
}

/// Whether a process is a manager: `below_one` says whether such a one has forked it.
pub(super) fn is_manager(node: &Node, old_ns: u64, below_one: bool) -> bool {
    node.user == 0 && is_listed(&node.comm) && (node.born_ns < old_ns || below_one)
}

/// Who was born before is old beside a burst that was noticed `now`, and whose window began at `since`, ns.
pub(super) fn old_ns(now: u64, since: u64) -> u64 {
    now.saturating_sub((now.saturating_sub(since) * 4).max(YOUNG_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Event, What};
    use crate::tree::ForkTree;

    const S: u64 = 1_000_000_000;

    fn named(name: &str) -> Comm {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        comm
    }

    #[test]
    fn a_name_alone_makes_no_manager() {
        let mut tree = ForkTree::new(16);
        let mut add = |process: u32, name: &str, user: u32, time_ns: u64| {
            let what = What::Fork { parent: 1 };
            let event = Event { time_ns, what, process, user, cgroup: 1, comm: named(name) };
            let place = tree.apply(&event).unwrap();
            *tree.get(place).unwrap()
        };
        let old = old_ns(1000 * S, 999 * S);
        assert_eq!(old, 990 * S);
        assert!(is_manager(&add(10, "sshd", 0, S), old, false));
        assert!(is_manager(&add(11, "containerd-shim", 0, S), old, false));
        assert!(is_manager(&add(12, "sshd-session", 0, 999 * S), old, true), "forked by one just now");
        assert!(!is_manager(&add(13, "sshd", 0, 999 * S), old, false), "young, and not by one");
        assert!(!is_manager(&add(14, "sshd", 1000, S), old, true), "not root's");
        assert!(!is_manager(&add(15, "bash", 0, S), old, true));
    }

    #[test]
    fn an_extent_spares_the_top_or_the_old() {
        let mut tree = ForkTree::new(16);
        tree.seed(1, 0, named("sh"), 1, S);
        tree.seed(2, 1, named("vim"), 1, 2 * S);
        tree.seed(3, 1, named("bomb"), 1, 99 * S);
        let top = tree.find(1).unwrap();
        let held = |extent: Extent| {
            let mut all = Vec::new();
            tree.below(top, |place, node| {
                if extent.holds(top, place, node) {
                    all.push(node.process);
                }
            });
            all.sort_unstable();
            all
        };
        assert_eq!(held(Extent::WHOLE), [1, 2, 3]);
        assert_eq!(held(Extent { top: false, since_ns: 90 * S }), [3]);
        assert_eq!(held(Extent { top: true, since_ns: 90 * S }), [1, 3]);
    }
}
