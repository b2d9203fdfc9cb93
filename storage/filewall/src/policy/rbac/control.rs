//! The virtual control namespace (paper 4.5.2): a folder in the root of the export that no server has.
//!
//! ```text
//! <control>/users/<user>/ctrl       read: active roles; write: the roles to be active (empty: those at the beginning)
//!                       /<role>     one for each role that the user may activate now: `active` or `available`
//!          /roles/<role>/ctrl       write (administrators): `assign USER`, `revoke USER`, `enable USER` (a threat no more)
//!                       /members    who is assigned, /inherits
//!          /shadow/…                mirrors the export; reading a file shows its permissions, writing changes them (its owner)
//! ```
//!
//! Calls on virtual objects are answered here; listings of shadow folders go to the server as listings of the real ones
//! (operation and attribute rewriting), so the mirror is always whole and needs no memory.
//!
//! Invariants
//! - A virtual handle carries a hash of what the object shows. When that changes, the handle is another one and the old one
//!   is stale, so a client's cache cannot show what is no more. A write may still name the one that it has read.
//! - No attribute of a virtual object can be changed; setting the length is accepted and does nothing, for shells do so before
//!   they write.
//! - What was written is on the disk before it is acknowledged.

use super::Rbac;
use super::nodes::Node;
use crate::message::Call;
use crate::policy::error::PolicyError;
use crate::policy::{Context as Core, Verdict};
use crate::wire::make::{Attributes, Made};
use crate::wire::name;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, NAME_BYTES_MAX, Op, Status, access};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::Ordering;

mod mirror;
mod shown;

use shown::Shown;

/// Beginning of virtual handles. A server whose handles begin like that has not been seen.
const MAGIC: [u8; 8] = *b"\xf1weirVCN";
const HANDLE_BYTES: usize = 8 + 1 + 8 + 2 + 4 + 4;
/// Longest text that is written at once, bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Where a listing of the root goes on behind the control folder.
const COOKIE: u64 = 0x7ff0_7765_6972_0001;
/// Room that the control folder needs in a listing of the root, besides its name, bytes.
const EXTRA_BYTES: u32 = 220;
/// Notes for the reply.
const NOTE_SHADOW: u64 = 1;
const NOTE_ROOT: u64 = 2;

/// The namespace.
#[derive(Debug)]
pub struct Control {
    name: Box<[u8]>,
    boot: u32,
    seconds: u32,
    seed: foldhash::quality::FixedState,
}

/// True for the handle of a virtual object.
pub(super) fn makes_up(handle: &[u8]) -> bool {
    handle.starts_with(&MAGIC)
}

type Answered = Result<Option<Verdict>, Verdict>;

fn refuse<T>(status: Status) -> Result<T, Verdict> {
    Err(Verdict::Answer(status))
}

fn reply(call: &mut Call<'_>, made: Made) -> Answered {
    call.results = made.0;
    Ok(Some(Verdict::Reply))
}

impl Control {
    /// Checks the folder's name.
    ///
    /// # Errors
    /// [`PolicyError::Control`].
    pub fn compile(name: &str) -> Result<Control, PolicyError> {
        name::check(name.as_bytes(), name::Use::Change)
            .map_err(|why| PolicyError::Control { name: name.to_string(), why })?;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let boot = crate::proxy::server::random();
        Ok(Control {
            name: name.as_bytes().into(),
            boot,
            seconds: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
            seed: foldhash::quality::FixedState::with_seed(u64::from(boot)),
        })
    }

    fn handle(&self, node: Node, version: u32) -> Handle {
        let (kind, number, role) = node.parts();
        let mut bytes = Vec::with_capacity(HANDLE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.push(kind);
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&role.to_be_bytes());
        bytes.extend_from_slice(&version.to_be_bytes());
        bytes.extend_from_slice(&self.boot.to_be_bytes());
        Handle::new(&bytes).unwrap_or(Handle::EMPTY)
    }

    /// Object and version of a virtual handle; `None` for a server's, `Err` for one of another process.
    fn open(&self, handle: &[u8]) -> Result<Option<(Node, u32)>, Verdict> {
        if !handle.starts_with(&MAGIC) {
            return Ok(None);
        }
        let Ok(bytes) = <[u8; HANDLE_BYTES]>::try_from(handle) else { return refuse(Status::BadHandle) };
        let number = bytes[9..17].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let role = u16::from_be_bytes([bytes[17], bytes[18]]);
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(23) != self.boot {
            return refuse(Status::Stale);
        }
        let node = Node::of(bytes[8], number, role).ok_or(Verdict::Answer(Status::BadHandle))?;
        Ok(Some((node, word(19))))
    }

    fn hash(&self, parts: &[&[u8]]) -> u32 {
        let mut hasher = self.seed.build_hasher();
        parts.iter().for_each(|part| {
            hasher.write_usize(part.len());
            hasher.write(part);
        });
        hasher.finish() as u32
    }

    /// Deals with a call if it is about the namespace.
    pub(super) fn request(&self, rbac: &Rbac, call: &mut Call<'_>, core: &Core<'_>) -> Answered {
        if call.handle(1).starts_with(&MAGIC) {
            return refuse(Status::Xdev);
        }
        if let Some((node, version)) = self.open(call.handle(0))? {
            return self.inside(rbac, call, core, node, version);
        }
        self.at_root(rbac, call)
    }

    fn is_root(rbac: &Rbac, handle: &[u8]) -> bool {
        [false, true].into_iter().any(|four| {
            rbac.root(four).is_some_and(|root| {
                crate::wire::nfs3::bare(root.as_bytes()) == crate::wire::nfs3::bare(handle)
            })
        })
    }

    /// Calls on the root of the export, which has one entry more than the server knows.
    fn at_root(&self, rbac: &Rbac, call: &mut Call<'_>) -> Answered {
        let names = 0..call.arguments.name_count;
        let named = names.into_iter().any(|number| {
            // The name of a LINK belongs to its second handle.
            let folder = if call.op() == Op::Link { 1 } else { number };
            call.name(number) == &*self.name && Self::is_root(rbac, call.handle(folder))
        });
        let listing = matches!(call.op(), Op::Readdir | Op::Readdirplus);
        let listing = listing && Self::is_root(rbac, call.handle(0));
        if !named && !listing {
            return Ok(None);
        }
        if listing {
            if call.cookie() == COOKIE {
                return reply(call, Made::ok().after(None).u64(0).u32(0).u32(1));
            }
            call.leave_room(EXTRA_BYTES + self.name.len() as u32);
            call.note = NOTE_ROOT;
            return Ok(None);
        }
        if call.op() != Op::Lookup {
            return refuse(Status::Acces);
        }
        let root = Handle::new(call.handle(0)).ok_or(Verdict::Answer(Status::BadHandle))?;
        let object = rbac.object(call, root)?;
        let top = self.show(rbac, Node::Top, call.caller, call.now.unix_ms)?;
        self.found(call, top, object.fsid)
    }

    fn fileid(&self, node: Node, version: u32) -> u64 {
        let (kind, number, role) = node.parts();
        self.seed.hash_one((kind, number, role, version)) | 1 << 63
    }

    fn attributes(&self, shown: &Shown, fsid: u64) -> Attributes {
        Attributes {
            folder: shown.folder,
            mode: shown.mode,
            uid: shown.owner,
            gid: shown.group,
            size: if shown.folder { 4096 } else { shown.text.len() as u64 },
            fsid,
            fileid: self.fileid(shown.node, shown.version),
            time: (self.seconds, shown.version % 1_000_000_000),
        }
    }

    fn found(&self, call: &mut Call<'_>, shown: Shown, fsid: u64) -> Answered {
        let attributes = self.attributes(&shown, fsid).bytes();
        let handle = self.handle(shown.node, shown.version);
        if call.op() == Op::Create {
            let made = Made::ok().u32(1).opaque(handle.as_bytes()).after(Some(&attributes));
            return reply(call, made.u32(0).u32(0));
        }
        reply(call, Made::ok().opaque(handle.as_bytes()).after(Some(&attributes)).after(None))
    }

    /// A call on a virtual object.
    fn inside(
        &self,
        rbac: &Rbac,
        call: &mut Call<'_>,
        core: &Core<'_>,
        node: Node,
        version: u32,
    ) -> Answered {
        let now = call.now.unix_ms;
        let session = rbac.session(call.caller, now);
        if session.threat {
            return refuse(Status::Acces);
        }
        if let Node::Shadow(number) = node {
            let real = rbac.kept.shadows.real(number).ok_or(Verdict::Answer(Status::Stale))?;
            let object = rbac.object(call, real)?;
            if object.folder {
                return self.in_mirror(rbac, call, core, &session, (real, object));
            }
            let shown = self.shadow(rbac, &real, &object, core.zones, now);
            let administrator = session.active & rbac.assignment.administrators != 0;
            let writer = administrator || call.caller.uid == object.uid;
            return self.on_file(rbac, call, (shown, version), object.fsid, writer, |rbac, text| {
                rbac.write_shadow(&real, text)
            });
        }
        let shown = self.show(rbac, node, call.caller, now)?;
        let root = rbac.root(call.compound.is_some()).ok_or(Verdict::Answer(Status::Stale))?;
        let fsid = rbac.object(call, root)?.fsid;
        if shown.folder {
            return self.on_folder(rbac, call, (shown, version), fsid);
        }
        let administrator = session.active & rbac.assignment.administrators != 0;
        let caller = call.caller.clone();
        let (reader, writer) = match node {
            Node::UserControl(uid) | Node::UserRole(uid, _) if uid != caller.uid => {
                (administrator, administrator)
            }
            Node::UserControl(_) => (true, true),
            Node::RoleControl(_) => (true, administrator),
            _ => (true, false),
        };
        if !reader && call.op() == Op::Read {
            return refuse(Status::Acces);
        }
        self.on_file(rbac, call, (shown, version), fsid, writer, |rbac, text| match node {
            Node::UserControl(uid) if uid == caller.uid => rbac.write_session(&caller, text, now),
            Node::UserControl(uid) => rbac.write_user(uid, text),
            Node::RoleControl(role) => rbac.write_role(usize::from(role), text),
            _ => Err(Status::Acces),
        })
    }

    fn granted(call: &Call<'_>, bits: u32) -> u32 {
        call.arguments.access_at.map_or(0, |at| call.word(at)) & bits
    }

    /// Operations that every virtual object answers alike; `None` for others.
    fn common(call: &mut Call<'_>, attributes: &[u8; ATTRIBUTES_BYTES], bits: u32) -> Answered {
        let made = match call.op() {
            Op::Getattr => Made::ok().attributes(attributes),
            Op::Access => Made::ok().after(Some(attributes)).u32(Self::granted(call, bits)),
            Op::Fsstat => (0..6).fold(Made::ok().after(Some(attributes)), |made, _| made.u64(0)).u32(0),
            Op::Fsinfo => {
                let text = TEXT_BYTES_MAX as u32;
                let sizes = [text, text, 1, text, text, 1, text];
                let made = sizes.into_iter().fold(Made::ok().after(Some(attributes)), Made::u32);
                made.u64(TEXT_BYTES_MAX as u64).u32(0).u32(1).u32(0x1b)
            }
            Op::Pathconf => {
                let made = Made::ok().after(Some(attributes)).u32(1).u32(NAME_BYTES_MAX as u32);
                [1, 1, 0, 1].into_iter().fold(made, Made::u32)
            }
            _ => return Ok(None),
        };
        reply(call, made)
    }

    fn on_folder(
        &self,
        rbac: &Rbac,
        call: &mut Call<'_>,
        (shown, version): (Shown, u32),
        fsid: u64,
    ) -> Answered {
        let now = call.now.unix_ms;
        if version != shown.version && !matches!(call.op(), Op::Lookup | Op::Create) {
            return refuse(Status::Stale);
        }
        let attributes = self.attributes(&shown, fsid).bytes();
        if let Some(verdict) =
            Self::common(call, &attributes, access::READ | access::LOOKUP | access::EXECUTE)?
        {
            return Ok(Some(verdict));
        }
        match call.op() {
            // Making a file that is there opens it.
            Op::Lookup | Op::Create => match call.name(0) {
                b"." => self.found(call, shown, fsid),
                b".." => self.above(rbac, call, shown.node, fsid),
                name => {
                    let name = String::from_utf8_lossy(name).into_owned();
                    let children = self.children(rbac, shown.node, now, call.compound.is_some())?;
                    let Some((_, child)) = children.into_iter().find(|(known, _)| *known == name) else {
                        return refuse(if call.op() == Op::Create { Status::Acces } else { Status::Noent });
                    };
                    self.found_child(rbac, call, child, fsid)
                }
            },
            Op::Readdir | Op::Readdirplus => self.list(rbac, call, &shown, fsid),
            Op::Read | Op::Write | Op::Commit => refuse(Status::Isdir),
            _ => refuse(Status::Acces),
        }
    }

    fn found_child(&self, rbac: &Rbac, call: &mut Call<'_>, child: Node, fsid: u64) -> Answered {
        let now = call.now.unix_ms;
        let shown = match child {
            // Only the root of the mirror is reached like this.
            Node::Shadow(_) => Shown {
                node: child,
                text: Vec::new(),
                owner: 0,
                group: 0,
                mode: 0o555,
                folder: true,
                version: 0,
            },
            child => self.show(rbac, child, call.caller, now)?,
        };
        self.found(call, shown, fsid)
    }

    fn above(&self, rbac: &Rbac, call: &mut Call<'_>, node: Node, fsid: u64) -> Answered {
        let parent = match node {
            Node::Top => {
                let root = rbac.kept.context.tables().root.ok_or(Verdict::Answer(Status::Stale))?;
                return reply(call, Made::ok().opaque(root.as_bytes()).after(None).after(None));
            }
            Node::User(_) => Node::Users,
            Node::Role(_) => Node::Roles,
            _ => Node::Top,
        };
        self.found_child(rbac, call, parent, fsid)
    }

    fn list(&self, rbac: &Rbac, call: &mut Call<'_>, shown: &Shown, fsid: u64) -> Answered {
        let now = call.now.unix_ms;
        let plus = call.op() == Op::Readdirplus;
        let mut names = vec![(".".to_string(), shown.node), ("..".to_string(), shown.node)];
        names.extend(self.children(rbac, shown.node, now, call.compound.is_some())?);
        let from = usize::try_from(call.cookie()).unwrap_or(usize::MAX).min(names.len());
        let limit = (call.listing_bytes() as usize).clamp(1024, TEXT_BYTES_MAX * 4);
        let attributes = self.attributes(shown, fsid).bytes();
        let mut made = Made::ok().after(Some(&attributes)).u64(u64::from(shown.version));
        let mut ends = true;
        for (number, (name, node)) in names.iter().enumerate().skip(from) {
            let (handle, attributes) = match node {
                Node::Shadow(_) => (self.handle(*node, 0), None),
                node => {
                    let child = self.show(rbac, *node, call.caller, now)?;
                    (self.handle(*node, child.version), Some(self.attributes(&child, fsid)))
                }
            };
            if made.0.len() + name.len() + 220 > limit && number > from {
                ends = false;
                break;
            }
            let fileid = attributes.as_ref().map_or(u64::MAX, |attributes| attributes.fileid);
            made = made.u32(1).u64(fileid).opaque(name.as_bytes()).u64(number as u64 + 1);
            if plus {
                let bytes = attributes.map(|attributes| attributes.bytes());
                made = made.after(bytes.as_ref()).u32(1).opaque(handle.as_bytes());
            }
        }
        reply(call, made.u32(0).u32(u32::from(ends)))
    }

    /// A call on a virtual file; `write` takes what is written to it.
    fn on_file(
        &self,
        rbac: &Rbac,
        call: &mut Call<'_>,
        (shown, version): (Shown, u32),
        fsid: u64,
        writer: bool,
        write: impl FnOnce(&Rbac, &str) -> Result<(), Status>,
    ) -> Answered {
        let op = call.op();
        let open = call.compound.is_some_and(|compound| compound.open);
        if version != shown.version && !open && !matches!(op, Op::Write | Op::Commit | Op::Setattr) {
            return refuse(Status::Stale);
        }
        let mut attributes = self.attributes(&shown, fsid);
        if open {
            // It stays the file that the client has opened until it closes it.
            attributes.fileid = self.fileid(shown.node, version);
        }
        let attributes = attributes.bytes();
        let bits = access::READ | if writer { access::MODIFY | access::EXTEND } else { 0 };
        if let Some(verdict) = Self::common(call, &attributes, bits)? {
            return Ok(Some(verdict));
        }
        match op {
            Op::Read => {
                let from = usize::try_from(call.arguments.offset).unwrap_or(usize::MAX).min(shown.text.len());
                let bytes = (call.arguments.count as usize).min(shown.text.len() - from);
                let ends = u32::from(from + bytes == shown.text.len());
                let made = Made::ok().after(Some(&attributes)).u32(bytes as u32).u32(ends);
                reply(call, made.opaque(&shown.text[from..from + bytes]))
            }
            Op::Setattr => {
                let set = call.arguments.set;
                if set.mode_at.or(set.uid_at).or(set.gid_at).is_some() {
                    return refuse(Status::Perm);
                }
                if !writer {
                    return refuse(Status::Acces);
                }
                reply(call, Made::ok().change(&attributes))
            }
            Op::Write => {
                if !writer {
                    rbac.kept.counts.refused.fetch_add(1, Ordering::Relaxed);
                    return refuse(Status::Acces);
                }
                let count = call.arguments.count;
                if count as usize > TEXT_BYTES_MAX || call.payload(count as usize).len() < count as usize {
                    return refuse(if count as usize > TEXT_BYTES_MAX {
                        Status::Inval
                    } else {
                        Status::Jukebox
                    });
                }
                let text = String::from_utf8(call.payload(count as usize).to_vec());
                let text = text.map_err(|_| Verdict::Answer(Status::Inval))?;
                write(rbac, &text).map_err(Verdict::Answer)?;
                reply(call, Made::ok().change(&attributes).u32(count).u32(2).u64(0))
            }
            Op::Commit => reply(call, Made::ok().change(&attributes).u64(0)),
            Op::Lookup | Op::Readdir | Op::Readdirplus => refuse(Status::Notdir),
            _ => refuse(Status::Acces),
        }
    }
}
