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
//! - [`names`]: numbers of objects. - [`server`]: one server. - [`asked`]: a call. - [`change`]: fan-out. - [`said`]: what was answered. - [`locks`]: order.
//! - [`serve`]: calls. - [`listing`]: folders. - [`missed`]: what a replica has missed. - [`rebuild`], [`same`]: what it needs.
//! - [`book`]: which of them have everything, over restarts. - [`doubt`]: what a server may still carry out.
//!
//! Which servers there are is a policy (`kind: replication`) among the others: replicas come and go while FileWall runs.
//!
//! Invariants
//! - Changes of one object or folder reach all live replicas in the same order.
//! - A live replica has the same tree as every other one, byte for byte, after the last change that was acknowledged: names, kinds, targets of
//!   links, names of one file, contents, modes, owners, device numbers. Times are each server's own until clients set them, and
//!   extended attributes do not exist in NFSv3: neither is compared.
//! - A replica that did not answer a change, or has done something else than what counts ([`said`]), is behind: nothing is read from it until
//!   it was compared with a live one ([`rebuild`]), also when FileWall begins anew. What cannot be made the same keeps it behind,
//!   and is said. The last live replica is never given up.
//! - A change that only those have answered who are behind is not acknowledged.
//! - A reply that a change may have overtaken teaches nothing ([`locks`]).
//! - What was written and not committed is committed by FileWall when changes rest, so that a server which has lost it is found out; it is written again by clients when no replica is left that has it for sure: the verifier that
//!   they see is FileWall's own.
//! - At the first start what `--server` has counts; the others are behind until they were compared with it.
//! - After FileWall was killed in the middle of changes, one replica counts and the others are compared with it.
//! - A redirected folder cannot be removed or renamed, and nothing moves between groups (`NFS3ERR_XDEV`).
//!
//! Departures: one call of a connection is carried out at a time, and NFSv4 is not served, for its state belongs to one server.
//! The two names of a hard link are two objects with two numbers. What a server carries out later than the bound of [`doubt`] is not seen
//! before the next change that it does otherwise.

pub mod asked;
pub mod book;
pub mod change;
pub mod doubt;
pub mod listing;
mod locks;
pub mod missed;
pub mod names;
pub mod rebuild;
pub mod said;
mod same;
pub mod serve;
pub mod server;

use crate::error::{Error, Result};
use crate::proxy::server::Server;
use crate::wire::name;
use arc_swap::ArcSwap;
use book::{Book, Page};
use hashbrown::HashMap;
use locks::{Locks, NameChanges};
use missed::{Missed, Unsettled};
use names::{Names, Number};
use serde::Deserialize;
use server::{Member, State};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Most groups.
pub const GROUPS_MAX: usize = 64;
/// Most replicas in a group.
pub const REPLICAS_MAX: usize = 8;
/// Most connections that are served at once.
pub const CONNECTIONS_MAX: usize = 4096;

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
    /// How long a server may take to answer a call of the router's; [`server::TIMEOUT`] if it is not said.
    pub answer_within: Option<Duration>,
}

/// The file of `kind: replication`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReplicationFile {
    /// Servers that have what `--server` has.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// Folders of the export, and the servers that they lead to.
    #[serde(default)]
    pub redirects: BTreeMap<String, String>,
}

/// Why servers are refused.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// A server that is none.
    #[error(transparent)]
    Server(#[from] Error),
    /// A replica is given twice.
    #[error("replicas: '{0}' is there twice")]
    Twice(String),
    /// There are too many.
    #[error("more than {REPLICAS_MAX} replicas, or {GROUPS_MAX} folders elsewhere")]
    TooMany,
    /// A part of a folder's path is no name.
    #[error("'{path}' has a part {part:?}: {why}")]
    Part {
        /// The path.
        path: String,
        /// The part.
        part: String,
        /// Why it is none.
        why: name::Misnamed,
    },
    /// A path that is none of a folder below the export.
    #[error("'{0}' is no folder below the export; write one such as /projects")]
    NoFolder(String),
    /// What cannot change while FileWall runs.
    #[error("folders are redirected elsewhere only when FileWall begins anew")]
    Redirects,
    /// Nobody would have everything.
    #[error("no replica that has everything would be left")]
    NoneLeft,
    /// Nobody has everything.
    #[error("none of the servers that had everything is named ({live})")]
    NoneWhole {
        /// Those that had.
        live: String,
    },
    /// Which replicas have everything cannot be written down.
    #[error(transparent)]
    Book(#[from] std::io::Error),
}

/// The servers that a policy names besides the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// Further replicas of the export.
    pub replicas: Vec<Server>,
    /// Folders of the export that other servers serve.
    pub redirects: Vec<(String, Server)>,
}

impl Servers {
    /// Checks a file.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &ReplicationFile) -> std::result::Result<Servers, ServersError> {
        let server = |text: &String| text.parse::<Server>();
        let mut servers = Servers::default();
        for text in &file.replicas {
            let replica = server(text)?;
            if servers.replicas.contains(&replica) {
                return Err(ServersError::Twice(text.clone()));
            }
            servers.replicas.push(replica);
        }
        for (path, text) in &file.redirects {
            folder_of(path)?;
            servers.redirects.push((path.clone(), server(text)?));
        }
        if servers.replicas.len() >= REPLICAS_MAX || servers.redirects.len() >= GROUPS_MAX {
            return Err(ServersError::TooMany);
        }
        Ok(servers)
    }
}

/// The parts of a path below the export, and its last one.
fn folder_of(path: &str) -> std::result::Result<(Vec<&str>, &str), ServersError> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for part in &parts {
        name::check(part.as_bytes(), name::Use::Change).map_err(|why| ServersError::Part {
            path: path.to_string(),
            part: part.to_string(),
            why,
        })?;
    }
    match parts.pop().filter(|_| path.starts_with('/')) {
        Some(last) => Ok((parts, last)),
        None => Err(ServersError::NoFolder(path.to_string())),
    }
}

impl Plan {
    /// True if there is one server only.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty() && self.redirects.is_empty()
    }
}

/// Servers that have the same.
#[derive(Debug)]
pub struct Group(ArcSwap<Vec<Arc<Member>>>);

impl Group {
    fn new(members: Vec<Member>) -> Group {
        Group(ArcSwap::from_pointee(members.into_iter().map(Arc::new).collect()))
    }

    /// Servers.
    pub fn members(&self) -> Arc<Vec<Arc<Member>>> {
        self.0.load_full()
    }
}

/// The router.
#[derive(Debug)]
pub struct Router {
    groups: Vec<Group>,
    names: Names,
    redirects: HashMap<(Number, Box<[u8]>), usize>,
    locks: Locks,
    name_changes: NameChanges,
    /// Held where it is said who is behind.
    decision: Mutex<()>,
    unsettled: Mutex<Unsettled>,
    /// What clients see as the verifier of WRITE and COMMIT.
    verifier: AtomicU64,
    /// Held by changes together, and by the end of a rebuild alone.
    changes: RwLock<()>,
    connections: AtomicUsize,
    stop: AtomicBool,
    /// The server that is always there.
    first: Server,
    folders: Vec<(String, Server)>,
    /// The next server's number.
    next: AtomicUsize,
    timeout: Duration,
    book: Mutex<Book>,
    /// Changes may be under way, and that is written down.
    changing: AtomicBool,
    /// Changes so far.
    changed: AtomicU64,
}

impl Router {
    /// Begins to serve on the loopback.
    ///
    /// # Errors
    /// [`Error`]: the plan is wrong, or the system refuses something.
    pub fn start(first: &Server, plan: &Plan) -> Result<(Arc<Router>, SocketAddr)> {
        let wrong = |reason: String| Error::Server { text: first.path.clone(), reason };
        if plan.replicas.len() >= REPLICAS_MAX || plan.redirects.len() >= GROUPS_MAX {
            return Err(wrong(ServersError::TooMany.to_string()));
        }
        let timeout = plan.answer_within.unwrap_or(server::TIMEOUT);
        let mut number = 0;
        let mut member = |server: &Server| {
            number += 1;
            Member::new(number - 1, server.clone(), timeout)
        };
        let export: Vec<Member> = std::iter::once(first).chain(&plan.replicas).map(&mut member).collect();
        let path = plan.state_file.with_extension("live");
        let (book, page) =
            Book::open(&path).map_err(|error| Error::io(format!("open {}", path.display()), error))?;
        match page {
            Some(page) => remember(&export, &page).map_err(|reason| {
                wrong(format!("{reason}; delete {} to begin with what --server has", path.display()))
            })?,
            None => export.iter().skip(1).for_each(|member| never_compared(member, "it is new")),
        }
        let mut groups = vec![Group::new(export)];
        groups.extend(plan.redirects.iter().map(|(_, server)| Group::new(vec![member(server)])));
        let roots = groups.len() as Number + 1;
        let names = Names::open(&plan.state_file, roots)
            .map_err(|error| Error::io(format!("open {}", plan.state_file.display()), error))?;
        let mut redirects = HashMap::new();
        for (at, (path, _)) in plan.redirects.iter().enumerate() {
            let (parts, last) = folder_of(path).map_err(|error| wrong(error.to_string()))?;
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
            locks: Locks::default(),
            name_changes: NameChanges::default(),
            decision: Mutex::default(),
            unsettled: Mutex::default(),
            verifier: AtomicU64::new(fresh()),
            changes: RwLock::default(),
            connections: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            first: first.clone(),
            folders: plan.redirects.clone(),
            next: AtomicUsize::new(number),
            timeout,
            book: Mutex::new(book),
            changing: AtomicBool::new(false),
            changed: AtomicU64::new(0),
        });
        router.write_book(false).map_err(|error| Error::io(format!("write {}", path.display()), error))?;
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
        let all = self.groups.iter().flat_map(|group| group.members().to_vec());
        all.map(|member| (member.name(), member.state() == State::Live)).collect()
    }

    /// Other replicas are named: those that are new are behind, and get what the others have; those that are named no more are
    /// dropped.
    ///
    /// # Errors
    /// What cannot be; nothing has changed then.
    pub fn apply(&self, servers: &Servers) -> std::result::Result<(), ServersError> {
        if servers.redirects != self.folders {
            return Err(ServersError::Redirects);
        }
        // No change may be under way to some of the old ones and none of the new ones.
        let _alone = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let _one = self.decision.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.groups[0].members();
        let after: Vec<Arc<Member>> = std::iter::once(&self.first)
            .chain(&servers.replicas)
            .map(|server| {
                let known = before.iter().find(|member| member.server == *server);
                known.cloned().unwrap_or_else(|| {
                    let member =
                        Member::new(self.next.fetch_add(1, Ordering::Relaxed), server.clone(), self.timeout);
                    never_compared(&member, "it is new");
                    Arc::new(member)
                })
            })
            .collect();
        if after.iter().all(|member| member.state() == State::Behind) {
            return Err(ServersError::NoneLeft);
        }
        self.groups[0].0.store(Arc::new(after));
        Ok(self.note_states()?)
    }

    /// Why replicas are behind.
    pub fn behind(&self) -> BTreeMap<String, String> {
        let all = self.groups[0].members();
        let behind = all.iter().filter(|member| member.state() == State::Behind);
        behind.map(|member| (member.name(), member.why())).collect()
    }

    /// The verifier that clients see.
    fn verifier(&self) -> u64 {
        self.verifier.load(Ordering::SeqCst)
    }

    /// What was not committed may be lost.
    fn new_verifier(&self) {
        self.verifier.store(fresh(), Ordering::SeqCst);
    }

    /// True for an object that replicas have.
    fn replicated(&self, number: Number) -> bool {
        self.groups[0].members().len() > 1 && self.group_of(number) == Some(0)
    }

    /// Writes down which replicas have everything.
    fn note_states(&self) -> std::io::Result<()> {
        self.write_book(self.changing.load(Ordering::SeqCst))
    }

    fn write_book(&self, changing: bool) -> std::io::Result<()> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let members = self.groups[0].members();
        let live = members.iter().filter(|member| member.state() == State::Live);
        book.write(Page { live: live.map(|member| member.name()).collect(), changing })
    }

    /// A change goes out: that it may be under way is written down, once for as long as changes go on.
    fn begins(&self) -> std::io::Result<()> {
        self.changed.fetch_add(1, Ordering::SeqCst);
        if self.changing.load(Ordering::SeqCst) || self.groups[0].members().len() == 1 {
            return Ok(());
        }
        self.write_book(true)?;
        self.changing.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Writes down that no change is under way, where there was none since there were `seen`. Returns how many there are.
    fn rests(&self, seen: u64) -> u64 {
        let changed = self.changed.load(Ordering::SeqCst);
        if changed != seen || !self.changing.load(Ordering::SeqCst) {
            return changed;
        }
        if let Ok(_alone) = self.changes.try_write()
            && self.changed.load(Ordering::SeqCst) == seen
            && self.write_book(false).is_ok()
        {
            self.changing.store(false, Ordering::SeqCst);
        }
        changed
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

/// Which replicas are behind, as it was written down.
///
/// # Errors
/// [`ServersError::NoneWhole`]: none of them has everything.
fn remember(members: &[Member], page: &Page) -> std::result::Result<(), ServersError> {
    let live: Vec<&Member> = members.iter().filter(|member| page.live.contains(&member.name())).collect();
    let Some(first) = live.first() else {
        return Err(ServersError::NoneWhole { live: page.live.join(", ") });
    };
    // In the middle of changes each has something that others may not have: one of them counts, the first that answers.
    let counts = if page.changing && live.len() > 1 {
        let answers = |member: &&&Member| member.mount().and_then(|root| member.look(&root, None)).is_ok();
        Some(live.iter().find(answers).unwrap_or(first).number)
    } else {
        None
    };
    for member in members {
        if !page.live.contains(&member.name()) || counts.is_some_and(|counts| counts != member.number) {
            never_compared(member, "it was behind, or changes were under way, when FileWall ended");
            member.doubt().unknown(Instant::now());
        }
        if page.changing {
            // Also the one that counts may still carry out what it was asked then.
            member.doubt().unknown(Instant::now());
        }
    }
    Ok(())
}

/// A replica of which nothing is known.
fn never_compared(member: &Member, why: &str) {
    *member.missed() = Missed::everything();
    member.set_behind(&format!("{why}: it was not compared yet"));
}

/// A verifier that was not there before.
fn fresh() -> u64 {
    u64::from(crate::proxy::server::random()) << 32 | u64::from(crate::proxy::server::random())
}

#[cfg(test)]
mod tests;
