//! The mirror of the export: calls on its folders, and listings of real ones that become those of their mirrors.

use super::{Answered, COOKIE, Control, NOTE_ROOT, NOTE_SHADOW, refuse};
use crate::message::{Asked, Call, Extra, Reply};
use crate::places::Zones;
use crate::policy::Context as Core;
use crate::policy::rbac::nodes::Node;
use crate::policy::rbac::objects::Object;
use crate::policy::rbac::sessions::Session;
use crate::policy::rbac::{Judged, Rbac};
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Handle, Op, Status, access};

/// For replies, which do not say when their calls came.
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Control {
    /// A call on a folder of the mirror.
    pub(super) fn in_mirror(
        &self,
        rbac: &Rbac,
        call: &mut Call<'_>,
        core: &Core<'_>,
        session: &Session,
        (real, object): (Handle, Object),
    ) -> Answered {
        let now = call.now.unix_ms;
        let shown = self.shadow(rbac, &real, &object, core.zones, now);
        let attributes = self.attributes(&shown, object.fsid).bytes();
        if let Some(verdict) =
            Self::common(call, &attributes, access::READ | access::LOOKUP | access::EXECUTE)?
        {
            return Ok(Some(verdict));
        }
        match call.op() {
            Op::Readdir | Op::Readdirplus => {
                call.set_handle(0, real);
                call.note = NOTE_SHADOW;
                Ok(None)
            }
            Op::Lookup if call.name(0) == b".." && Self::is_root(rbac, real.as_bytes()) => {
                self.found_child(rbac, call, Node::Top, object.fsid)
            }
            Op::Lookup | Op::Create => {
                let node = rbac.node(core, real.as_bytes())?;
                let decision = rbac.decision(call.caller, session, &object, node, core.zones, now);
                let grants = rbac.grants(real.as_bytes());
                let judged = Judged { object, decision };
                if rbac.may(call.caller, session, &judged, grants.as_deref(), Op::Lookup).is_none() {
                    return refuse(Status::Acces);
                }
                let name = call.name(0).to_vec();
                if name == *self.name && Self::is_root(rbac, real.as_bytes()) {
                    return refuse(Status::Noent);
                }
                let Some((handle, object)) = rbac.named(call, real, &name, false)? else {
                    return refuse(Status::Noent);
                };
                let shown = self.shadow(rbac, &handle, &object, core.zones, now);
                self.found(call, shown, object.fsid)
            }
            Op::Read | Op::Write | Op::Commit => refuse(Status::Isdir),
            _ => refuse(Status::Acces),
        }
    }

    /// Changes replies to listings of the root and of mirrored folders.
    pub(in crate::policy::rbac) fn reply(
        &self,
        rbac: &Rbac,
        asked: &Asked,
        reply: &mut Reply<'_>,
        core: &Core<'_>,
    ) {
        match asked.note {
            NOTE_ROOT if reply.results.entries_end_at.is_some() => {
                let fsid = rbac.kept.objects.get(asked.handle.as_bytes(), 0).map_or(0, |object| object.fsid);
                let Ok(shown) = self.show(rbac, Node::Top, &asked.caller, unix_ms()) else { return };
                let attributes = self.attributes(&shown, fsid);
                reply.extra = Some(Box::new(Extra {
                    fileid: attributes.fileid,
                    name: self.name.clone(),
                    cookie: COOKIE,
                    attributes: attributes.bytes(),
                    handle: self.handle(Node::Top, shown.version),
                }));
            }
            NOTE_SHADOW => self.mirror(rbac, asked, reply, core.zones),
            _ => {}
        }
    }

    /// The listing of a real folder becomes that of its mirror.
    fn mirror(&self, rbac: &Rbac, asked: &Asked, reply: &mut Reply<'_>, zones: &Zones) {
        let unix_ms = unix_ms();
        if let (Some(at), Some(object)) =
            (reply.results.object, rbac.kept.objects.get(asked.handle.as_bytes(), 0))
        {
            let shown = self.shadow(rbac, &asked.handle, &object, zones, unix_ms);
            self.attributes(&shown, object.fsid).overwrite(reply.bytes_at(at, ATTRIBUTES_BYTES));
        }
        for number in 0..reply.results.entries.len() {
            let entry = reply.results.entries[number];
            let real = reply.entry_handle(number).and_then(Handle::new);
            let object = real.and_then(|real| rbac.kept.objects.get(real.as_bytes(), 0));
            let (Some(real), Some(object)) = (real, object) else { continue };
            let shown = self.shadow(rbac, &real, &object, zones, unix_ms);
            let attributes = self.attributes(&shown, object.fsid);
            if let Some(at) = entry.attributes {
                attributes.overwrite(reply.bytes_at(at, ATTRIBUTES_BYTES));
            }
            reply.bytes_at(entry.start + 4, 8).copy_from_slice(&attributes.fileid.to_be_bytes());
            reply.set_entry_handle(number, self.handle(shown.node, shown.version).as_bytes());
        }
    }
}
