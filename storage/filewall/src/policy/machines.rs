//! `kind: machines`: from how many machines at once a user may work (paper 4.1: what neither a firewall nor a file server
//! can say alone).
//!
//! A machine counts as long as the user has called from it in the last `idle-s` seconds. Calls from one machine more are
//! answered with `NFS3ERR_ACCES`, until another has been idle.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict};
use crate::message::Call;
use crate::wire::nfs3::{ALL_OPS, Op, Status};
use hashbrown::HashMap;
use serde::Deserialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Most users whose machines are remembered; those who have been idle are forgotten first.
pub const USERS_MAX: usize = 65_536;
/// Most machines that a policy may allow.
const LIMIT_MAX: usize = 64;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachinesFile {
    /// Most machines of a user at once.
    pub limit: usize,
    /// After how long without a call a machine counts no more, seconds.
    pub idle_s: u64,
}

type Seen = Mutex<HashMap<u32, Vec<(IpAddr, u64)>, foldhash::fast::RandomState>>;

/// The policy.
#[derive(Debug)]
pub struct Machines {
    limit: usize,
    idle_us: u64,
    seen: Arc<Seen>,
}

impl Machines {
    /// Checks and compiles a file; `before` is the dynamic context of the policy that it replaces.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &MachinesFile,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Machines, PolicyError> {
        PolicyError::between("limit", file.limit as u64, 1, LIMIT_MAX as u64)?;
        PolicyError::between("idle-s", file.idle_s, 1, 86_400)?;
        let seen = before.and_then(|before| before.downcast().ok()).unwrap_or_default();
        Ok(Machines { limit: file.limit, idle_us: file.idle_s * 1_000_000, seen })
    }

    fn admits(&self, uid: u32, address: IpAddr, now_us: u64) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= USERS_MAX && !seen.contains_key(&uid) {
            let idle_us = self.idle_us;
            seen.retain(|_, machines| machines.iter().any(|(_, at)| now_us.saturating_sub(*at) < idle_us));
            if seen.len() >= USERS_MAX {
                return false;
            }
        }
        let machines = seen.entry(uid).or_default();
        if let Some(machine) = machines.iter_mut().find(|(known, _)| *known == address) {
            machine.1 = machine.1.max(now_us);
            return true;
        }
        machines.retain(|(_, at)| now_us.saturating_sub(*at) < self.idle_us);
        if machines.len() >= self.limit {
            return false;
        }
        machines.push((address, now_us));
        true
    }
}

impl Policy for Machines {
    fn kind(&self) -> &'static str {
        "machines"
    }

    fn ops(&self) -> u32 {
        // What a client asks when it mounts comes from root on every machine, and says nothing about a user.
        ALL_OPS & !(Op::Null.bit() | Op::Fsinfo.bit() | Op::Pathconf.bit() | Op::Fsstat.bit())
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        if self.admits(call.caller.uid, call.caller.address, call.now.steady_us) {
            Verdict::Forward
        } else {
            Verdict::Answer(Status::Acces)
        }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.seen.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let users = self.seen.lock().unwrap_or_else(PoisonError::into_inner).len();
        [("users".to_string(), users as u64)].into()
    }

    fn explain(&self, _question: &Question, _context: &Context<'_>) -> Step {
        Step::forward(format!("as long as the user works from at most {} machines", self.limit))
    }
}

#[cfg(test)]
mod tests;
