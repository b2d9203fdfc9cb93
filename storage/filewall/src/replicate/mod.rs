//! Several servers as one: replication and federation (paper 4.2.3 and 4.4.4, flow coordination: fan-out and fan-in).
//!
//! ```text
//!  FileWall ──► router ──► changes: all live replicas, one reply        group 0: the export
//!                     └──► looks: any live replica                       group 1: what is below a redirected folder
//! ```
//!
//! The router is a server of NFSv3 on the loopback, behind the chain of policies. It knows objects by numbers ([`names`]), so a
//! client's handles, and the numbers of files that it sees, are the same whichever replica answers: when one is lost, another
//! takes over in the middle of a listing or a file, and clients notice nothing.
//!
//! - [`names`]: numbers of objects. - [`server`]: one server. - [`change`]: fan-out. - [`serve`]: calls. - [`listing`]: folders.
//! - [`rebuild`]: what a replica needs that has missed something.
//!
//! Invariants
//! - Changes of one object or folder reach all live replicas in the same order.
//! - A replica that did not answer a change, or answered otherwise than the first one, is behind: nothing is read from it until
//!   it was rebuilt. The last live replica is never given up.
//! - A redirected folder cannot be removed or renamed, and nothing moves between groups (`NFS3ERR_XDEV`).
//!
//! Departures: one call of a connection is carried out at a time, and NFSv4 is not served, for its state belongs to one server.
//! The two names of a hard link are two objects with two numbers.

pub mod change;
pub mod listing;
pub mod names;
pub mod rebuild;
pub mod serve;
pub mod server;

use crate::error::{Error, Result};
use crate::proxy::Server;
use hashbrown::HashMap;
use names::{Names, Number};
use server::Member;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Most groups.
pub const GROUPS_MAX: usize = 64;
/// Most replicas in a group.
pub const REPLICAS_MAX: usize = 8;
/// Most connections that are served at once.
pub const CONNECTIONS_MAX: usize = 4096;
const STRIPES: usize = 256;

/// Servers and what they serve, and what outlives the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Further replicas of the export.
    pub replicas: Vec<Server>,
    /// Folders of the export that other servers serve.
    pub redirects: Vec<(String, Server)>,
    /// Where numbers of objects are kept.
    pub state_file: PathBuf,
    /// Folder of what a second FileWall takes over; without it, what happens once is remembered in memory only.
    pub context: Option<PathBuf>,
    /// Wait until the FileWall that has the context ends.
    pub standby: bool,
}

impl Plan {
    /// True if there is one server only.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty() && self.redirects.is_empty()
    }
}

/// Servers that have the same.
#[derive(Debug)]
pub struct Group {
    /// Servers.
    pub members: Vec<Member>,
}

/// The router.
#[derive(Debug)]
pub struct Router {
    groups: Vec<Group>,
    names: Names,
    redirects: HashMap<(Number, Box<[u8]>), usize>,
    stripes: Vec<Mutex<()>>,
    /// Held by changes together, and by a rebuild alone.
    changes: RwLock<()>,
    connections: AtomicUsize,
    stop: AtomicBool,
    path: String,
}

impl Router {
    /// Begins to serve on the loopback.
    ///
    /// # Errors
    /// [`Error`]: the plan is wrong, or the system refuses something.
    pub fn start(first: &Server, plan: &Plan) -> Result<(Arc<Router>, SocketAddr)> {
        let wrong = |reason: String| Error::Server { text: first.path.clone(), reason };
        if plan.replicas.len() >= REPLICAS_MAX || plan.redirects.len() >= GROUPS_MAX {
            return Err(wrong(format!(
                "more than {REPLICAS_MAX} replicas, or {GROUPS_MAX} folders elsewhere"
            )));
        }
        let mut number = 0;
        let mut member = |server: &Server| {
            number += 1;
            Member::new(number - 1, server.clone())
        };
        let export = std::iter::once(first).chain(&plan.replicas).map(&mut member).collect();
        let mut groups = vec![Group { members: export }];
        groups.extend(plan.redirects.iter().map(|(_, server)| Group { members: vec![member(server)] }));
        let roots = groups.len() as Number + 1;
        let names = Names::open(&plan.state_file, roots)
            .map_err(|error| Error::io(format!("open {}", plan.state_file.display()), error))?;
        let mut redirects = HashMap::new();
        for (at, (path, _)) in plan.redirects.iter().enumerate() {
            let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            let Some(last) = parts.pop().filter(|_| path.starts_with('/')) else {
                return Err(wrong(format!(
                    "'{path}' is no folder below the export; write one such as /projects"
                )));
            };
            let folder = parts.into_iter().try_fold(1, |folder, part| names.of(folder, part.as_bytes()));
            let folder = folder.map_err(|error| Error::io("write a number", error))?;
            redirects.insert((folder, last.as_bytes().into()), at + 1);
        }
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(|error| Error::io("listen on the loopback", error))?;
        let address = listener.local_addr().map_err(|error| Error::io("own address", error))?;
        let router = Arc::new(Router {
            groups,
            names,
            redirects,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            changes: RwLock::default(),
            connections: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            path: first.path.clone(),
        });
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_string()).spawn(work).map(drop)
        };
        let (serving, watching) = (router.clone(), router.clone());
        spawn("filewall-router", Box::new(move || serve::accept(&serving, &listener)))
            .and_then(|()| spawn("filewall-rebuild", Box::new(move || rebuild::watch(&watching))))
            .map_err(|error| Error::io("start a thread", error))?;
        Ok((router, address))
    }

    /// Ends it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Each replica, and whether it is live.
    pub fn members(&self) -> Vec<(String, bool)> {
        let all = self.groups.iter().flat_map(|group| &group.members);
        all.map(|member| {
            (format!("{}{}", member.server.nfs(), member.server.path), member.state() == server::State::Live)
        })
        .collect()
    }

    /// The root of a group.
    fn root(group: usize) -> Number {
        group as Number + 1
    }

    /// The group that an object is in; `None` for one that is gone.
    fn group_of(&self, number: Number) -> Option<usize> {
        let mut at = number;
        for _ in 0..listing::DEPTH_MAX {
            if self.names.is_root(at) {
                return usize::try_from(at).ok()?.checked_sub(1).filter(|group| *group < self.groups.len());
            }
            at = self.names.at(at)?.0;
        }
        None
    }
}

#[cfg(test)]
mod tests;
