//! What is done with a call: whose it is, what it is about, what the roles say of that, and as whom it goes on (Algorithm 2).

use super::context::hexadecimal;
use super::decide::NO_ROLE;
use super::objects::Object;
use super::sessions::Session;
use super::{Core, Judged, Rbac, record};
use crate::identity::Principal;
use crate::message::Call;
use crate::places::{Node, ROOT};
use crate::policy::access::access_bits;
use crate::policy::{Verdict, does};
use crate::wire::nfs3::{Handle, Op, Status};
use std::sync::atomic::Ordering;

impl Rbac {
    /// Judges an operation on an object: `Ok` if it is allowed.
    pub(super) fn judge(
        &self,
        call: &Call<'_>,
        session: &Session,
        (handle, object): (Handle, Object),
        node: Node,
        op: Op,
        core: &Core<'_>,
    ) -> Result<Judged, Verdict> {
        let now = call.now.unix_ms;
        let decision = self.decision(call.caller, session, &object, node, core.zones, now);
        let judged = Judged { object, decision };
        let grants = self.grants(handle.as_bytes());
        match self.may(call.caller, session, &judged, grants.as_deref(), op) {
            Some(role) => {
                if decision.log & op.bit() != 0 {
                    self.note(call, session, Some(role), "log");
                }
                Ok(judged)
            }
            None => {
                if decision.alarm & op.bit() != 0 || session.active == 0 {
                    self.note(call, session, None, "alarm");
                }
                self.kept.sessions.denied(call.caller, now, &self.assignment, &self.kept.context);
                Err(Verdict::Answer(Status::Acces))
            }
        }
    }

    pub(super) fn note(&self, call: &Call<'_>, session: &Session, role: Option<u8>, what: &'static str) {
        let counts = &self.kept.counts;
        if what == "alarm" {
            counts.alarms.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(user = call.caller.label(), client = %call.caller.address, op = %call.op(), "alarm");
        } else {
            counts.logged.fetch_add(1, Ordering::Relaxed);
        }
        let lattice = &self.assignment.lattice;
        let role =
            role.filter(|role| *role != NO_ROLE).map(|role| lattice.name(usize::from(role)).to_string());
        if let Some(record) = &self.kept.record {
            record.put(&record::Line {
                unix_ms: call.now.unix_ms,
                permission: what,
                client: call.caller.address.to_string(),
                user: self.assignment.user_name(call.caller.uid),
                roles: lattice.names(session.active).map(str::to_string).collect(),
                role,
                op: call.op().name(),
                file: hexadecimal(call.handle(0)),
                name: (call.arguments.name_count > 0)
                    .then(|| String::from_utf8_lossy(call.name(0)).into_owned()),
            });
        }
    }

    pub(super) fn node(&self, core: &Core<'_>, handle: &[u8]) -> Result<Node, Verdict> {
        if !self.needs_places {
            return Ok(ROOT.node);
        }
        core.places.get(handle).map(|place| place.node).ok_or(Verdict::Answer(core.places.unknown()))
    }

    pub(super) fn node_of_name(&self, core: &Core<'_>, folder: &[u8], name: &[u8]) -> Result<Node, Verdict> {
        if !self.needs_places {
            return Ok(ROOT.node);
        }
        let place = core.places.get(folder).ok_or(Verdict::Answer(core.places.unknown()))?;
        Ok(core.zones.step(place, name).unwrap_or(place).node)
    }

    pub(super) fn handle_of(call: &Call<'_>, number: usize) -> Result<Handle, Verdict> {
        Handle::new(call.handle(number)).ok_or(Verdict::Answer(Status::BadHandle))
    }

    /// Algorithm 2 for objects of the server.
    pub(super) fn enforce(&self, call: &mut Call<'_>, core: &Core<'_>) -> Result<Verdict, Verdict> {
        let session = self.session(call.caller, call.now.unix_ms);
        let op = call.op();
        let handle = Self::handle_of(call, 0)?;
        let object = self.object(call, handle)?;
        let node = self.node(core, call.handle(0))?;
        let mut folder = object;
        let judged = match op {
            Op::Remove | Op::Rmdir | Op::Rename => {
                let name = call.name(0).to_vec();
                // As servers do: a name that there cannot be is told before one that there is not.
                if op == Op::Rename && call.name(1).is_empty() {
                    return Ok(Verdict::Answer(Status::Inval));
                }
                let Some(named) = self.named(call, handle, &name, false)? else {
                    if call.unknown {
                        // Perhaps it is gone because this call has happened.
                        call.unless = Some(Status::Noent);
                        return Ok(Verdict::Forward);
                    }
                    return Ok(Verdict::Answer(Status::Noent));
                };
                let inner = self.node_of_name(core, handle.as_bytes(), &name)?;
                if op == Op::Rename {
                    self.target(call, &session, core)?;
                }
                self.judge(call, &session, named, inner, op, core)?
            }
            Op::Link => {
                folder = self.target(call, &session, core)?;
                self.judge(call, &session, (handle, object), node, op, core)?
            }
            _ => {
                let judged = self.judge(call, &session, (handle, object), node, op, core)?;
                // What else it does to the object, or in the folder.
                let of_another = if op == Op::Create { Op::Setattr.bit() | Op::Write.bit() } else { 0 };
                for other in does::each(call.does() & !op.bit() & !of_another) {
                    self.judge(call, &session, (handle, object), node, other, core)?;
                }
                self.takes(call, &session, handle, core)?;
                self.gives_away(call, &session)?;
                judged
            }
        };
        if let Some(at) = call.arguments.access_at {
            let grants = self.grants(handle.as_bytes());
            let allowed = Op::ALL
                .into_iter()
                .filter(|op| self.may(call.caller, &session, &judged, grants.as_deref(), *op).is_some())
                .fold(0, |set, op| set | op.bit());
            let asked = call.word(at);
            call.set_word(at, asked & access_bits(allowed));
        }
        self.rewrite(call, &session, &folder);
        Ok(Verdict::Forward)
    }

    /// A CREATE of NFSv3 that takes a file which is there changes it: it is judged as SETATTR of that file. Where there is none it must
    /// make one. An OPEN is asked for by what it is for.
    pub(super) fn takes(
        &self,
        call: &mut Call<'_>,
        session: &Session,
        folder: Handle,
        core: &Core<'_>,
    ) -> Result<(), Verdict> {
        let set = call.arguments.set;
        let changes =
            set.size.is_some() || set.mode_at.is_some() || set.uid_at.is_some() || set.gid_at.is_some();
        if call.op() != Op::Create || !call.arguments.takes || !changes || call.compound.is_some() {
            return Ok(());
        }
        let name = call.name(0).to_vec();
        match self.named(call, folder, &name, false)? {
            Some(there) => {
                let inner = self.node_of_name(core, folder.as_bytes(), &name)?;
                self.judge(call, session, there, inner, Op::Setattr, core)?;
                if set.size.is_some() {
                    self.judge(call, session, there, inner, Op::Write, core)?;
                }
                Ok(())
            }
            None => {
                let at = call.arguments.names[0].padded_end();
                call.set_word(at, GUARDED);
                Ok(())
            }
        }
    }

    /// What is made belongs to who makes it; only administrators give it to others.
    pub(super) fn gives_away(&self, call: &Call<'_>, session: &Session) -> Result<(), Verdict> {
        let Some(at) = call.arguments.set.uid_at.filter(|_| call.op().makes()) else { return Ok(()) };
        let own = call.compound.is_none() && call.word(at) == call.caller.uid;
        let may = own || session.active & self.assignment.administrators != 0;
        if may { Ok(()) } else { Err(Verdict::Answer(Status::Perm)) }
    }

    /// Judges what a RENAME or LINK does where it leads to. Returns that folder.
    pub(super) fn target(
        &self,
        call: &mut Call<'_>,
        session: &Session,
        core: &Core<'_>,
    ) -> Result<Object, Verdict> {
        let handle = Self::handle_of(call, 1)?;
        let folder = self.object(call, handle)?;
        let name = call.name(if call.op() == Op::Link { 0 } else { 1 }).to_vec();
        let node = self.node(core, handle.as_bytes())?;
        self.judge(call, session, (handle, folder), node, Op::Create, core)?;
        if call.op() == Op::Rename
            && let Some(replaced) = self.named(call, handle, &name, true)?
        {
            let inner = self.node_of_name(core, handle.as_bytes(), &name)?;
            let op = if replaced.1.folder { Op::Rmdir } else { Op::Remove };
            self.judge(call, session, replaced, inner, op, core)?;
        }
        Ok(folder)
    }

    /// The call goes on as the owner (Algorithm 2, line 19).
    pub(super) fn rewrite(&self, call: &mut Call<'_>, session: &Session, owner: &Object) {
        let caller = call.caller;
        if caller.uid == owner.uid || caller.uid == 0 && session.active & self.assignment.administrators != 0
        {
            return;
        }
        let makes = matches!(call.op(), Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod | Op::Link);
        // Never as root: the policy says who may make something, not that it may belong to root.
        if makes && (owner.uid == 0 || may_write(caller, owner)) {
            return;
        }
        self.kept.counts.rewritten.fetch_add(1, Ordering::Relaxed);
        call.set_user(owner.uid, owner.gid);
    }
}

/// How a CREATE makes a file only where there is none.
pub(super) const GUARDED: u32 = 1;

/// Whether the server would let the caller write into a folder.
fn may_write(caller: &Principal, folder: &Object) -> bool {
    let shift = match () {
        () if caller.uid == folder.uid => 6,
        () if caller.in_group(folder.gid) => 3,
        () => 0,
    };
    folder.mode >> shift & 0o3 == 0o3
}
