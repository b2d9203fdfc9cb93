//! How owners, modes and names are learnt from calls and replies that pass, and when not: what [`objects`] and [`names`] know is
//! brought there, and what a call may change is forgotten, from here.
//!
//! [`objects`]: super::objects
//! [`names`]: super::names

use super::names::Leads;
use super::{Core, Object, Rbac};
use crate::message::{Asked, Call, Reply, Seen};
use crate::wire::nfs3::{Handle, Op, Status};

/// What a call changes, as bits of [`Seen::begun`]: it takes its first or second name away, it makes it, it changes the owner of
/// its object.
const BEGUN_NAME: [u8; 2] = [1, 2];
const BEGUN_MAKING: [u8; 2] = [4, 8];
const BEGUN_OWNER: u8 = 16;

impl Rbac {
    /// What a name leads to, where that is known for sure.
    pub(super) fn known_name(
        &self,
        call: &Call<'_>,
        folder: Handle,
        name: &[u8],
    ) -> Option<Option<(Handle, Object)>> {
        if self.known_us.is_some() || call.unknown || call.seen.asks {
            return None;
        }
        let key = self.kept.names.name_key(folder.as_bytes(), name)?;
        Some(match self.kept.names.get(key)? {
            Leads::To(handle, _) => Some((handle, self.kept.objects.get(handle.as_bytes(), 0)?)),
            Leads::Nowhere => None,
        })
    }

    /// What a call takes along to its reply: see [`names`] and [`objects`].
    pub(super) fn note_seen(&self, call: &mut Call<'_>, core: &Core<'_>) {
        let names = &self.kept.names;
        let four = call.compound.is_some();
        names.settle(call.now.steady_us);
        self.kept.objects.settle(call.now.steady_us);
        let mut seen = Seen {
            names_elsewhere: names.changes_by(!four),
            owners: self.kept.objects.changes(),
            four,
            asks: core.places.ambiguous(),
            at_us: call.now.steady_us,
            ..Seen::default()
        };
        match call.op() {
            Op::Readdirplus => seen.names = names.changes_in(names.folder(call.handle(0))),
            Op::Lookup | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => {
                seen.keys[0] = names.name_key(call.handle(0), call.name(0));
                seen.names = seen.keys[0].map_or(0, |key| names.changes(key));
            }
            _ => {}
        }
        // What was asked for this call was asked when it came first.
        let first = call.seen;
        if !call.told.is_empty() && first.owners != [0; 2] {
            (seen.owners, seen.names_elsewhere, seen.at_us) =
                (first.owners, first.names_elsewhere, first.at_us);
            if seen.keys == first.keys {
                seen.names = first.names;
            } else {
                seen.keys = [None; 2];
            }
        }
        call.seen = seen;
    }

    /// A reply came.
    pub(super) fn learn(&self, asked: &Asked, reply: &Reply<'_>) {
        let (objects, names, seen) = (&self.kept.objects, &self.kept.names, &asked.seen);
        let named = matches!(asked.op, Op::Lookup | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod);
        if let Some(at) = reply.results.object {
            let handle = if named { reply.handle() } else { Some(asked.handle.as_bytes()) };
            if let Some(handle) = handle {
                objects.learn(handle, reply.attributes_at(at), seen);
            }
        }
        match (named && self.known_us.is_none(), reply.handle()) {
            (true, Some(handle)) => names.learn(seen, handle, seen.begun & BEGUN_MAKING[0] != 0),
            (true, None) if asked.op == Op::Lookup && reply.results.status == Status::Noent.number() => {
                names.learn_absent(seen);
            }
            _ => {}
        }
        // Where what is known grows old, a listing that says what it has said before makes it young again.
        let again = reply.learnt && self.known_us.is_none();
        let entries = if again { 0 } else { reply.results.entries.len() };
        let folder = asked.handle.as_bytes();
        let folder = (folder, if entries > 0 { names.folder(folder) } else { 0 });
        for number in 0..entries {
            let Some(handle) = reply.entry_handle(number) else { continue };
            if let Some(attributes) = reply.entry_attributes(number) {
                objects.learn(handle, attributes, seen);
            }
            if self.known_us.is_none() {
                names.learn_listed(seen, folder, reply.entry_name(number), handle);
            }
        }
    }

    /// A call that was forwarded is over.
    pub(super) fn ended(&self, asked: &Asked) {
        let seen = &asked.seen;
        for number in 0..2 {
            let Some(key) = seen.keys[number] else { continue };
            if seen.begun & BEGUN_NAME[number] != 0 {
                self.kept.names.end((key, seen.folders[number]), seen.four);
            }
            if seen.begun & BEGUN_MAKING[number] != 0 {
                self.kept.names.end_making(key);
            }
        }
        if seen.begun & BEGUN_OWNER != 0 {
            self.kept.objects.end(asked.handle.as_bytes(), seen.four);
        }
    }

    /// A call goes to the server: what it may change is not believed until its reply has come.
    pub(super) fn begun(&self, call: &mut Call<'_>) {
        let made = match call.op() {
            Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => Some((0, 0)),
            Op::Link => Some((1, 0)),
            _ => None,
        };
        if let Some((handle, name)) = made
            && let Some(key) = self.kept.names.name_key(call.handle(handle), call.name(name))
        {
            call.seen.keys[handle] = Some(key);
            call.seen.begun |= BEGUN_MAKING[handle];
            call.seen.names = self.kept.names.begin_making(key, call.seen.four, call.now.steady_us);
        }
        let names: &[usize] = match call.op() {
            Op::Remove | Op::Rmdir => &[0],
            Op::Rename => &[0, 1],
            _ => &[],
        };
        for number in names.iter().copied() {
            let Some(known) = self.kept.names.key(call.handle(number), call.name(number)) else { continue };
            (call.seen.keys[number], call.seen.folders[number]) = (Some(known.0), known.1);
            call.seen.begun |= BEGUN_NAME[number];
            self.kept.names.begin(known, call.seen.four, call.now.steady_us);
        }
        let set = &call.arguments.set;
        if set.uid_at.or(set.gid_at).is_some() && call.op() == Op::Setattr {
            call.seen.begun |= BEGUN_OWNER;
            self.kept.objects.begin(call.handle(0), call.seen.four, call.now.steady_us);
        }
    }

    /// A name of NFSv4 leads to a handle.
    pub(super) fn leads(&self, seen: &Seen, handle: &Handle) {
        if self.known_us.is_none() {
            self.kept.names.learn(seen, handle.as_bytes(), seen.begun & BEGUN_MAKING[0] != 0);
        }
    }
}
