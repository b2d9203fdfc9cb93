//! Policies and the chain that they form (paper 4.2.3, 4.3; row F: chains, static and dynamic context).
//!
//! - [`file`]: the files that administrators write; loading, checking, and what a wrong file says.
//! - [`chain`]: policies in order, their contexts, and what core and policies know of paths.
//! - The policies: [`statistics`], [`handles`], [`access`], [`freeze`], [`remap`], [`rate`], [`reorder`], [`rbac`], [`quota`], [`machines`], [`module`], [`alarm`], [`audit`].
//! - [`error`]: what can be wrong with a policy. - [`does`]: what an operation does besides what it is called. - [`time`]: windows of the day and week. - [`explain`]: which policy decides on a call that nobody has made.
//!
//! A policy sees a call before the server does and may change it ([`Call`]), let it go on, answer it, or delay it. It sees the
//! reply if, and only if, it let the call go on. Its static context is its compiled file; its dynamic context is its own,
//! behind its own lock, and survives a reload of the files when the policy keeps its name and kind.
//!
//! Departures: the paper's policies are C++ made from a macro language (FWL); ours are declarations that are compiled to tables
//! when they are loaded, so that a wrong one can be refused as a whole. Policies do not wait in buffers between each other.

pub mod access;
pub mod alarm;
pub mod audit;
pub mod chain;
pub mod does;
pub mod error;
pub mod explain;
pub mod file;
pub mod freeze;
pub mod handles;
pub mod home;
pub mod machines;
pub mod module;
pub mod ops;
pub mod quota;
pub mod rate;
pub mod rbac;
pub mod remap;
pub mod reorder;
pub mod statistics;
pub mod time;

pub use chain::{Chain, Outcome};
pub use file::{load, look};

use crate::identity::Principal;
use crate::message::{Asked, Call, Now, Reply, Seen};
use crate::places::{Place, Places, ROOT, Zones};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{File, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// A handle of NFSv4 as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHandle {
    /// The handle.
    pub handle: Handle,
    /// True if it is that of a folder above the export, which leads to the export and nowhere else.
    pub above: bool,
}

/// What a policy wants to be done with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next policy, at last to the server.
    Forward,
    /// Back to the client with this status.
    Answer(Status),
    /// Kept, and shown to this policy again after that time, µs.
    Wait(u64),
    /// Kept, until the server has answered what [`Call::probe`] asks; then shown to this policy again.
    Ask,
    /// Back to the client with the results that the policy has put into [`Call::results`].
    Reply,
}

/// What core knows and policies may ask.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The tree of the paths that policies speak of.
    pub zones: &'a Zones,
    /// Places of handles.
    pub places: &'a Places,
}

/// The places that a call is about: the object itself, or the names in directories. The second one is the target of a
/// RENAME or LINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// First.
    pub first: Place,
    /// Second.
    pub second: Option<Place>,
}

impl Context<'_> {
    /// The places that a call is about; `None` if one is not known. The handles must be the server's.
    pub fn targets(&self, call: &Call<'_>) -> Option<Targets> {
        if self.zones.trivial() || call.op() == Op::Null {
            return Some(Targets { first: ROOT, second: None });
        }
        let arguments = &call.arguments;
        let place = |number: usize| match call.places {
            Some(places) => places[number],
            None => self.places.get(call.handle(number)),
        };
        let named = |handle: usize, name: usize| {
            let directory = place(handle)?;
            match call.name(name) {
                // Above the root of the export there is nothing for clients ([`Chain`]).
                b".." => Some(self.zones.above(directory).unwrap_or(directory)),
                name => self.zones.step(directory, name),
            }
        };
        Some(match (arguments.op, arguments.name_count) {
            (Op::Link, _) => Targets { first: place(0)?, second: Some(named(1, 0)?) },
            (Op::Rename, _) => Targets { first: named(0, 0)?, second: Some(named(1, 1)?) },
            (_, 0) => Targets { first: place(0)?, second: None },
            _ => Targets { first: named(0, 0)?, second: None },
        })
    }
}

/// A mount that a client asks for.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Who asks.
    pub caller: Arc<Principal>,
    /// Path below the root of the export.
    pub path: Vec<u8>,
    /// Place of that path.
    pub place: Place,
    /// When.
    pub now: Now,
}

/// One policy of a chain.
pub trait Policy: Send + Sync + Debug {
    /// Kind, as in its file.
    fn kind(&self) -> &'static str;

    /// Operations whose calls and replies it wants to see, as bits: all calls that do one of them ([`does`]).
    fn ops(&self) -> u32;

    /// True if it looks at the server's handles or at paths, so that a policy that replaces handles must come first.
    fn needs_handles(&self) -> bool {
        false
    }

    /// True if names must be kept, for people to read.
    fn needs_names(&self) -> bool {
        false
    }

    /// True if it must know which file a call is about, and in which folder that is: what replies say of that is learnt, and COMPOUNDs
    /// that find a file and change it at once are resolved before it is asked.
    fn knows_files(&self) -> bool {
        false
    }

    /// Sees a call, may change it, and decides.
    fn request(&self, call: &mut Call<'_>, context: &Context<'_>) -> Verdict;

    /// Sees the reply to a call that it let go on, and may change it.
    fn reply(&self, _asked: &Asked, _reply: &mut Reply<'_>, _latency_us: u64, _context: &Context<'_>) {}

    /// True if it can do with COMPOUNDs of NFSv4 what it does with calls of NFSv3.
    fn serves_nfs4(&self) -> bool {
        true
    }

    /// True if it has calls set aside so that others go first.
    fn reorders(&self) -> bool {
        false
    }

    /// True if it must know the object of every operation: names in COMPOUNDs are resolved before it is asked.
    fn judges_objects(&self) -> bool {
        false
    }

    /// True if it does not treat the removal of a file and that of a folder alike: NFSv4 has one operation for both, and the server is asked
    /// what a name is.
    fn tells_removals(&self) -> bool {
        false
    }

    /// True if an operation counts once for it, where a COMPOUND's is shown as several.
    fn counts_operations(&self) -> bool {
        false
    }

    /// True if there is a caller from whom it hides something ([`Policy::hides`]).
    fn may_hide(&self) -> bool {
        false
    }

    /// True if a caller may not do one of these operations, as bits, with what is at a place: what they tell is left out of listings and of
    /// replies to others.
    fn hides(
        &self,
        _caller: &Principal,
        _place: Place,
        _ops: u32,
        _unix_ms: u64,
        _context: &Context<'_>,
    ) -> bool {
        false
    }

    /// Hears the handle of the export's root in NFSv4, which has no MOUNT.
    fn entered(&self, _root: &Handle) {}

    /// True if a handle is that of an object that it makes up.
    fn makes_up(&self, _handle: &[u8]) -> bool {
        false
    }

    /// Hears the attributes of an object of NFSv4, as those of NFSv3; `None` if they have changed and are not known. `seen` was noted
    /// before the server was asked for them.
    fn object_seen(&self, _handle: &[u8], _attributes: Option<&[u8; ATTRIBUTES_BYTES]>, _seen: &Seen) {}

    /// What is to be noted before the server is asked for a name in NFSv4.
    fn seen(&self, _folder: &[u8], _name: &[u8], _now_us: u64) -> Seen {
        Seen::default()
    }

    /// Hears what a name of NFSv4 leads to; `seen` was noted before the server was asked for it.
    fn name_seen(&self, _seen: &Seen, _handle: &Handle) {}

    /// What a name of NFSv4 leads to, and whether that is a folder, where it is known for sure.
    fn name_known(&self, _folder: &[u8], _name: &[u8]) -> Option<(Handle, bool)> {
        None
    }

    /// Hears that a call of NFSv4 goes to the server that may make a name which it was not shown as making it.
    fn makes_unseen(&self, _now_us: u64) {}

    /// Hears that a call which it has let go on goes to the server: it sees the reply, or hears that it was not carried out.
    fn forwarded(&self, _call: &mut Call<'_>) {}

    /// Hears that a call, or an operation of a COMPOUND, that it let go on was not carried out: the server did not get it, or not get to it.
    fn undone(&self, _asked: &Asked) {}

    /// The handle that stands behind one that a client of NFSv4 uses; `Err` is the status to refuse with.
    fn open_handle(&self, handle: OpenHandle, _client: IpAddr) -> Result<OpenHandle, Status> {
        Ok(handle)
    }

    /// The handle that a client of NFSv4 gets for another.
    fn seal_handle(&self, handle: OpenHandle, _client: IpAddr) -> Handle {
        handle.handle
    }

    /// Says whether a client may mount; `Err` is the status to refuse with.
    fn mount(&self, _mount: &Mount, _context: &Context<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Sees the handle of a mount, and may replace it.
    fn mounted(&self, _mount: &Mount, _handle: &mut Handle) {}

    /// Hears that a policy of the chain has answered a call in place of the server; `passed` if this one had let it go on.
    fn answered(&self, _call: &Call<'_>, _by: &str, _status: Status, _passed: bool, _context: &Context<'_>) {}

    /// Its dynamic context, to be taken over by the policy of the same name and kind after a reload.
    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Figures of its own, to be shown.
    fn details(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Why it decides as it does on a call, for people; empty if it has nothing to say.
    fn explain(&self, _question: &explain::Question, _context: &Context<'_>) -> explain::Step {
        explain::Step::silent()
    }
}

/// Opens the log of a policy, or makes it. It says who did what with which file: it is its owner's alone, and one that an earlier release made is
/// closed to others.
pub(crate) fn log_file(path: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).append(true).mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        // Another's file, or a pipe to a reader, cannot be closed, and need not be.
        let _closed = file.set_permissions(Permissions::from_mode(mode & 0o700));
    }
    Ok(file)
}

#[cfg(test)]
pub(crate) mod tests;
