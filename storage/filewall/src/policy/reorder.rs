//! `kind: reorder`: looks and short reads go before long writes of the same client (paper 4.2.3, message flow: reordering).
//!
//! On one connection everything waits behind what was sent before, so a directory listing stands behind megabytes that a copy
//! writes. This policy has WRITEs of at least some length set aside for a short time, while calls that depend on none of
//! them pass (see [`crate::proxy`], `aside`). It delays nobody when the client sends nothing else.
//!
//! Invariants
//! - The order of calls on one file is kept, and that of all calls that change something.
//! - A WRITE waits for at most the window.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict};
use crate::message::Call;
use crate::wire::nfs3::Op;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest window, µs.
pub const WINDOW_US_MAX: u64 = 100_000;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReorderFile {
    /// WRITEs of at least so many bytes are set aside.
    #[serde(default = "long")]
    pub long_bytes: u32,
    /// For how long at most, µs.
    #[serde(default = "window")]
    pub window_us: u64,
}

fn long() -> u32 {
    32 << 10
}

fn window() -> u64 {
    5_000
}

/// The policy.
#[derive(Debug)]
pub struct Reorder {
    long_bytes: u32,
    window_us: u64,
    long: AtomicU64,
}

impl Reorder {
    /// Checks a file.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &ReorderFile) -> Result<Reorder, PolicyError> {
        PolicyError::between("window-us", file.window_us, 1, WINDOW_US_MAX)?;
        if file.long_bytes == 0 {
            return Err(PolicyError::NoLength);
        }
        Ok(Reorder { long_bytes: file.long_bytes, window_us: file.window_us, long: AtomicU64::new(0) })
    }
}

impl Policy for Reorder {
    fn kind(&self) -> &'static str {
        "reorder"
    }

    fn ops(&self) -> u32 {
        Op::Write.bit()
    }

    fn reorders(&self) -> bool {
        true
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        if call.compound.is_none() && call.arguments.count >= self.long_bytes {
            self.long.fetch_add(1, Ordering::Relaxed);
            call.aside_us = self.window_us;
        }
        Verdict::Forward
    }

    fn details(&self) -> BTreeMap<String, u64> {
        [("long_writes".to_string(), self.long.load(Ordering::Relaxed))].into()
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        match question.op {
            Op::Write => Step::forward("looks and reads of other files may go before it, if it is long"),
            _ => Step::silent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_lengths_have_limits() {
        let compile = |text: &str| {
            let file: ReorderFile = weir_document::read(text).map_err(|error| error.to_string())?;
            let policy = Reorder::compile(&file).map_err(|error| error.to_string())?;
            Ok::<_, String>((policy.long_bytes, policy.window_us))
        };
        assert_eq!(compile("{}"), Ok((32 << 10, 5_000)));
        assert_eq!(compile("{long-bytes: 1000, window-us: 50}"), Ok((1000, 50)));
        for wrong in ["{window-us: 0}", "{window-us: 100001}", "{long-bytes: 0}", "{windows: 1}"] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
    }
}
