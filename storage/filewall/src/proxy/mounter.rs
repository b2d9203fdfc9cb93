//! The helper that asks the server for handles of mounts. It waits for the server, so it has a thread of its own; mounts are
//! rare.

use super::inbox::{Delivery, Mounted};
use super::names::SessionKey;
use super::{Server, Shared};
use crate::policy::{Chain, Mount};
use crate::wire::build::Caller;
use crate::wire::mount;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

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

/// How often the server is asked for the export's root until it answers.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Works off jobs until nobody can send more.
pub fn run(jobs: &Receiver<Job>, shared: &Shared) {
    let mut settled = shared.chain.load().context().places.is_settled();
    loop {
        let job = if settled {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            jobs.recv_timeout(ASK_EVERY)
        };
        match job {
            Ok(job) => work_off(job, shared),
            Err(RecvTimeoutError::Timeout) => settled = find_root(&shared.server, &shared.chain.load()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn work_off(Job { worker, session, xid, mount, chain }: Job, shared: &Shared) {
    let caller = Caller { uid: mount.caller.uid, gid: mount.caller.gid, groups: &mount.caller.groups };
    let result = shared.server.mount_below(&mount.path, &caller).unwrap_or_else(|error| {
        tracing::warn!(%error, "the server cannot be asked for a mount");
        Err(mount::FAULT)
    });
    shared.deliver(worker, Delivery::Mounted(Mounted { session, xid, mount, chain, result }));
}

/// Asks the server for the export's root, which clients have mounted before this process began; false if there is no server now.
pub fn find_root(server: &Server, chain: &Chain) -> bool {
    match server.mount(server.path.as_bytes(), &Caller { uid: 0, gid: 0, groups: &[] }) {
        Ok(Ok(root)) => {
            chain.knows_mount(&root, b"");
        }
        Ok(Err(status)) => tracing::warn!(status, "the server does not let FileWall mount the export"),
        // One that serves NFSv4 alone has no MOUNT.
        Err(_) if TcpStream::connect_timeout(&server.nfs(), ASK_EVERY).is_ok() => {}
        Err(_) => return false,
    }
    chain.context().places.settle();
    true
}
