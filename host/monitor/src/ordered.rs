//! Repairs that somebody above the host orders, beside those by policy: the controllers of a domain, in an update that their
//! group has signed and a gate has verified: that of [`crate::plane`], or the switch's for orders of releases before.
//!
//! They name a cgroup of version 2 by its path below the mount. A cgroup that the monitor itself is in is refused.

use crate::levers::{self, Levers};
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

/// Carries an order out.
///
/// # Errors
/// Why that cannot be done, in words.
pub fn carry_out(cgroup: &str, what: Ordered) -> Result<(), String> {
    if cgroup.is_empty() || Path::new(cgroup).is_absolute() || !crate::policy::is_plain(Path::new(cgroup)) {
        return Err(format!(
            "'{cgroup}' is no path of a cgroup below the mount: one without '..' or a '/' in front is right"
        ));
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    if holds_own(&own, cgroup) {
        return Err("the monitor itself is in that cgroup".into());
    }
    let mount = levers::mount().ok_or("no cgroups of version 2 are mounted")?;
    let folder = mount.join(Path::new(cgroup));
    if what == Ordered::Thaw
        && folder.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        // What is gone is not frozen.
        return Ok(());
    }
    let levers = Levers::open(&folder).map_err(|error| error.to_string())?;
    let done = match what {
        Ordered::Freeze => {
            let until = Instant::now() + FREEZE_WAIT;
            levers.freeze() || (levers.can_freeze() && frozen_until(&levers, until))
        }
        Ordered::Thaw => levers.thaw(),
        Ordered::Kill => levers.kill(),
    };
    if done { Ok(()) } else { Err(format!("the cgroup does not {}", what.name())) }
}

/// Whether a cgroup is frozen.
pub fn is_frozen(cgroup: &str) -> bool {
    let levers = levers::mount().and_then(|mount| Levers::open(&mount.join(Path::new(cgroup))).ok());
    levers.is_some_and(|levers| levers.frozen())
}

/// Busy processes freeze when they next run; the order stands meanwhile.
fn frozen_until(levers: &Levers, until: Instant) -> bool {
    while Instant::now() < until {
        if levers.frozen() {
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
            let error = carry_out(path, Ordered::Freeze).unwrap_err();
            assert!(error.contains("is no path of a cgroup"), "{path}: {error}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = carry_out("weir-no-such-cgroup", Ordered::Kill).unwrap_err();
        assert!(error.contains("weir-no-such-cgroup") || error.contains("no cgroups"), "{error}");
        // To thaw what is gone is no failure: whoever froze it would hold it for ever.
        let thawed = carry_out("weir-no-such-cgroup", Ordered::Thaw);
        assert!(thawed.is_ok() || error.contains("no cgroups"), "{thawed:?}");
        assert!(!is_frozen("weir-no-such-cgroup"));
    }
}
