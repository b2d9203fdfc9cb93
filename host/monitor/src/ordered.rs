//! Repairs that somebody above the host orders, beside those by policy: the controllers of a domain, in an update that their
//! group has signed and a gate has verified: that of [`crate::plane`], or the switch's for orders of releases before.
//!
//! They name a cgroup of version 2 by its path below the mount. A cgroup that the monitor itself is in is refused.

use crate::controls::{self, Controls};
use crate::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for a cgroup to be frozen.
const FREEZE_WAIT: Duration = Duration::from_secs(2);

/// What is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// Freeze a cgroup.
    Freeze,
    /// Thaw it.
    Thaw,
    /// Kill all of it.
    Kill,
}

impl Ordered {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Ordered::Freeze => "freeze",
            Ordered::Thaw => "thaw",
            Ordered::Kill => "kill",
        }
    }
}

/// Why an order is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The path leads elsewhere.
    #[error("'{cgroup}' is no path of a cgroup below the mount: one without '..' or a '/' in front is right")]
    Path {
        /// As it was ordered.
        cgroup: String,
    },
    /// It would act on itself.
    #[error("the monitor itself is in that cgroup")]
    Own,
    /// In which cgroup the monitor itself is cannot be read.
    #[error(transparent)]
    Proc(#[from] std::io::Error),
    /// The machine has none.
    #[error("no cgroups of version 2 are mounted")]
    NoMount,
    /// The cgroup cannot be opened.
    #[error(transparent)]
    Cgroup(#[from] Error),
    /// The kernel was told, and it is not done.
    #[error("the cgroup does not {}", what.name())]
    Undone {
        /// What was ordered.
        what: Ordered,
    },
}

/// Carries an order out.
///
/// # Errors
/// Why that cannot be done.
pub fn carry_out(cgroup: &str, what: Ordered) -> Result<(), OrderError> {
    if cgroup.is_empty() || Path::new(cgroup).is_absolute() || !crate::policy::is_plain(Path::new(cgroup)) {
        return Err(OrderError::Path { cgroup: cgroup.to_string() });
    }
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    if holds_own(&own, cgroup) {
        return Err(OrderError::Own);
    }
    let mount = controls::mount().ok_or(OrderError::NoMount)?;
    let folder = mount.join(Path::new(cgroup));
    if what == Ordered::Thaw
        && folder.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        // What is gone is not frozen.
        return Ok(());
    }
    let controls = Controls::open(&folder)?;
    let done = match what {
        Ordered::Freeze => {
            let until = Instant::now() + FREEZE_WAIT;
            controls.freeze() || (controls.can_freeze() && frozen_until(&controls, until))
        }
        Ordered::Thaw => controls.thaw(),
        Ordered::Kill => controls.kill(),
    };
    if done { Ok(()) } else { Err(OrderError::Undone { what }) }
}

/// Whether a cgroup is frozen.
pub fn is_frozen(cgroup: &str) -> bool {
    let controls = controls::mount().and_then(|mount| Controls::open(&mount.join(Path::new(cgroup))).ok());
    controls.is_some_and(|controls| controls.frozen())
}

/// Busy processes freeze when they next run; the order stands meanwhile.
fn frozen_until(controls: &Controls, until: Instant) -> bool {
    while Instant::now() < until {
        if controls.frozen() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Whether a process whose `/proc/self/cgroup` this is is in the cgroup or below it.
fn holds_own(own: &str, cgroup: &str) -> bool {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    path == cgroup || path.strip_prefix(cgroup).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitors_own_cgroup_and_those_above_it_are_refused() {
        let own = "12:pids:/x\n0::/system.slice/weir-monitor.service\n";
        assert!(holds_own(own, "system.slice"));
        assert!(holds_own(own, "system.slice/weir-monitor.service"));
        assert!(!holds_own(own, "system"));
        assert!(!holds_own(own, "system.slice/weir"));
        assert!(!holds_own("0::/\n", "machines"));
    }

    #[test]
    fn an_order_stays_below_the_mount() {
        for path in ["../../../etc", "a/../../b", "..", "/etc", ""] {
            let error = carry_out(path, Ordered::Freeze).unwrap_err().to_string();
            assert!(error.contains("is no path of a cgroup"), "{path}: {error}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = carry_out("weir-no-such-cgroup", Ordered::Kill).unwrap_err().to_string();
        assert!(error.contains("weir-no-such-cgroup") || error.contains("no cgroups"), "{error}");
        // To thaw what is gone is no failure: whoever froze it would hold it for ever.
        let thawed = carry_out("weir-no-such-cgroup", Ordered::Thaw);
        assert!(thawed.is_ok() || error.contains("no cgroups"), "{thawed:?}");
        assert!(!is_frozen("weir-no-such-cgroup"));
    }
}
