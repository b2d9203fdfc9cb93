//! What is wrong with user-space file systems on this machine, and what would be right: `weir fs doctor`.
//!
//! - `machine`: what mounting and intercepting need of the machine, tried out where it can be.
//! - `mounts`: what daemons, mounts and shared memory there are, whether they belong together, and whether daemons are of this version.
//! - `programs`: which programs are not accelerated, and why.
//!
//! It only looks: nothing is unmounted, removed or ended.

mod machine;
mod mounts;
mod programs;

pub(crate) use mounts::mount_points;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a [`Finding`] means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Something does without, and works otherwise.
    Note,
    /// Something does not work that should.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it means.
    pub verdict: Verdict,
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub found: String,
    /// What would be right, or how to get there; nothing where it is.
    pub right: Option<String>,
}

impl Finding {
    fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Good, what: what.into(), found: found.into(), right: None }
    }

    fn note(what: impl Into<String>, found: impl Into<String>, right: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Note, what: what.into(), found: found.into(), right: Some(right.into()) }
    }

    fn wrong(what: impl Into<String>, found: impl Into<String>, right: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Wrong, what: what.into(), found: found.into(), right: Some(right.into()) }
    }
}

/// Looks at the machine, at all mounts whose daemons have their sockets in `state`, and at the files of `programs`.
pub fn examine(state: &Path, programs: &[PathBuf]) -> Vec<Finding> {
    let mut findings = machine::findings();
    let answered = crate::control::all(state);
    findings.extend(mounts::findings(state, &answered));
    findings.extend(answered.iter().flat_map(programs::of_mount));
    findings.extend(programs.iter().map(|program| programs::of_file(program)));
    findings
}

/// Whether nothing is wrong.
pub fn is_well(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Wrong)
}
