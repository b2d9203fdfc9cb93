//! The helper that asks the server for handles of mounts. It waits for the server, so it has a thread of its own; mounts are
//! rare.

use super::Shared;
use super::worker::{Delivery, SessionKey};
use crate::policy::{Chain, Mount};
use crate::wire::build::Caller;
use crate::wire::mount;
use crate::wire::nfs3::Handle;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Most mounts that wait for the helper.
pub const JOBS_MAX: usize = 256;

/// A mount to be asked for.
#[derive(Debug)]
pub struct Job {
    /// Worker of the session.
    pub worker: usize,
    /// Session.
    pub session: SessionKey,
    /// The client's transaction number.
    pub xid: u32,
    /// What policies were told.
    pub mount: Mount,
    /// The chain that allowed it.
    pub chain: Arc<Chain>,
}

/// What the server said.
#[derive(Debug)]
pub struct Mounted {
    /// Session.
    pub session: SessionKey,
    /// The client's transaction number.
    pub xid: u32,
    /// What policies were told.
    pub mount: Mount,
    /// The chain that allowed it.
    pub chain: Arc<Chain>,
    /// The handle, or the status of the refusal.
    pub result: Result<Handle, u32>,
}

/// Works off jobs until nobody can send more.
pub fn run(jobs: &Receiver<Job>, shared: &Shared) {
    while let Ok(job) = jobs.recv() {
        let Job { worker, session, xid, mount, chain } = job;
        let caller = Caller { uid: mount.caller.uid, gid: mount.caller.gid, groups: &mount.caller.groups };
        let result = shared.server.mount_below(&mount.path, &caller).unwrap_or_else(|error| {
            tracing::warn!(%error, "the server cannot be asked for a mount");
            Err(mount::FAULT)
        });
        shared.deliver(worker, Delivery::Mounted(Mounted { session, xid, mount, chain, result }));
    }
}
