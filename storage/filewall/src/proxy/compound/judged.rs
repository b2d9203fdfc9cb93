//! Operations of a COMPOUND where policies must know their objects: names are resolved, an OPEN is judged by what it is for,
//! and the COMPOUND's one credential is chosen.
//!
//! Invariants
//! - What is judged is what is done: the server gets the handle that was judged in place of the name, where the protocol
//!   has an operation for that. An OPEN that makes a file makes it, or is asked for again; one of NFSv4.0 goes by name, but
//!   what is read and written by it is judged by handle again.
//! - Operations that need different credentials do not go together: the COMPOUND ends before the second one, and clients
//!   send the rest anew.

use super::walk::{Given, Stop, Subject, Walk};
use super::{Cursor, Edit, OpAsked, Piece, Position, Question4, Sent};
use crate::message::Probe;
use crate::places::ROOT;
use crate::policy::rbac::objects::Object;
use crate::wire::nfs3::{Handle, Op, bare};
use crate::wire::nfs4::arguments::{Argument, OpenAt};
use crate::wire::nfs4::{Op4, made, status};
use crate::wire::reply::{Results, results};
use crate::wire::xdr::{Reader, put_opaque, put_u32};

/// A handle, and whether it is that of a folder.
type Resolved = (Handle, bool);

impl Walk<'_, '_> {
    /// An operation of a COMPOUND whose objects are known.
    pub(super) fn judged(&mut self, argument: &Argument) -> Result<(), Stop> {
        match argument.op {
            Op4::PutFh | Op4::PutPubFh | Op4::PutRootFh | Op4::RestoreFh => {
                let made = self.other(argument)?;
                return self.moved(argument, made);
            }
            Op4::SaveFh => {
                self.course.saved = self.course.current.clone();
                return self.moved(argument, self.course.current.made_up);
            }
            _ => {}
        }
        let two = matches!(argument.op, Op4::Rename | Op4::Link);
        if self.course.current.made_up || two && self.course.saved.made_up {
            return self.on_made_up(argument);
        }
        if self.course.current.handle.is_none() {
            return self.fresh(argument);
        }
        if two && self.course.saved.handle.is_none() {
            let made = self.course.saved.name.is_some();
            return Err(if made { self.too_much() } else { Stop::Cut(status::NOFILEHANDLE) });
        }
        match argument.op {
            Op4::Lookup => self.lookup(argument),
            Op4::Open => self.open(argument),
            Op4::Remove => self.remove(argument),
            Op4::Lock | Op4::LockTest | Op4::Unlock => {
                let given = self.ask(argument, self.subject(argument, Op::Getattr))?;
                self.wish(given.user, true)?;
                self.push(argument, Sent::Same);
                Ok(())
            }
            _ => self.plain(argument),
        }
    }

    fn moved(&mut self, argument: &Argument, made: bool) -> Result<(), Stop> {
        let sent = if made { Sent::Made(made::result(argument.op, status::OK)) } else { Sent::Same };
        self.push(argument, sent);
        Ok(())
    }

    /// What an operation before has just made may be looked at; nobody can say yet whose it is.
    fn fresh(&mut self, argument: &Argument) -> Result<(), Stop> {
        let made = self.course.current.name.is_some();
        match argument.op {
            Op4::GetAttr | Op4::Access | Op4::GetFh if made => {
                self.push(argument, Sent::Same);
                Ok(())
            }
            // Nobody judges by whose it is.
            _ if made && !self.way.chain.judges_objects() => self.unjudged(argument),
            _ if made => Err(self.too_much()),
            _ => Err(Stop::Cut(status::NOFILEHANDLE)),
        }
    }

    fn too_much(&self) -> Stop {
        Stop::Cut(if self.way.compound.minor == 0 { status::RESOURCE } else { status::TOO_MANY_OPS })
    }

    /// Notes whose credentials an operation needs; `must` is false where others would do as well.
    fn wish(&mut self, user: Option<(u32, u32)>, must: bool) -> Result<(), Stop> {
        match &mut self.course.user {
            Some((known, had_to)) if *known == user => *had_to |= must,
            Some((_, true)) if must => return Err(self.too_much()),
            Some((_, true)) => {}
            Some((_, false)) if !must => {}
            known => *known = Some((user, must)),
        }
        Ok(())
    }

    fn plain(&mut self, argument: &Argument) -> Result<(), Stop> {
        let Some(rule) = argument.rule else {
            self.other(argument)?;
            self.push(argument, Sent::Same);
            return Ok(());
        };
        let given = self.ask(argument, self.subject(argument, rule))?;
        if let Some(results) = &given.results {
            // A listing of the root that goes on behind the last entry, which is ours.
            self.flushed()?;
            let made = self.made(argument, &given, results)?;
            self.push(argument, Sent::Made(made));
            return Ok(());
        }
        let looks = matches!(
            argument.op,
            Op4::GetAttr | Op4::Access | Op4::Verify | Op4::NVerify | Op4::SecInfo | Op4::ReadLink
        );
        self.wish(given.user, !looks)?;
        if argument.op == Op4::Create {
            self.course.current = self.below(argument);
        }
        self.push(argument, Sent::Same);
        Ok(())
    }

    /// The folder that the current one is in. Above the export, and from its root, there is one way only.
    pub(super) fn parent(&mut self, argument: &Argument) -> Result<(), Stop> {
        let above = match self.course.current.position {
            Position::Nowhere => return Err(Stop::Cut(status::NOFILEHANDLE)),
            Position::Above(level) => Some(level),
            _ if self.course.current.made_up => return Err(Stop::Cut(status::NOTSUPP)),
            _ => {
                let handle = self.course.current.handle.ok_or_else(|| self.too_much())?;
                let root = self.root()?;
                (bare(root.as_bytes()) == bare(handle.as_bytes()))
                    .then(|| self.env.shared.server.way().count())
            }
        };
        if let Some(level) = above {
            let level = level.checked_sub(1).ok_or(Stop::Cut(status::NOENT))?;
            self.course.current = Cursor { position: Position::Above(level), ..Cursor::default() };
            self.push(argument, Sent::Same);
            return Ok(());
        }
        let Some(parent) = self.course.parent else {
            let folder = self.course.current.handle.ok_or_else(|| self.too_much())?;
            return Err(Stop::Ask(Box::new(Question4::Parent(folder))));
        };
        let handle = parent.map_err(Stop::Cut)?;
        let context = self.way.chain.context();
        let place = if context.zones.trivial() { Some(ROOT) } else { context.places.get(handle.as_bytes()) };
        let position = place.map_or(Position::Unknown, Position::Inside);
        let also = Op::Lookup.bit();
        let subject = Subject { also, ..Subject::of(Op::Getattr, Some(handle), place) };
        let user = self.ask(argument, subject)?.user;
        self.wish(user, false)?;
        self.go_to(argument, handle);
        self.course.current = Cursor { position, handle: Some(handle), ..Cursor::default() };
        self.push(argument, Sent::As(Op4::PutFh));
        Ok(())
    }

    /// Lets the server get a handle that was judged in place of the operation.
    fn go_to(&mut self, argument: &Argument, handle: Handle) {
        let range = argument.start..argument.end;
        self.course.edits.push(Edit { range, new: Piece::Bytes(put_fh(handle)) });
    }

    /// A name in the current folder: its handle, and whether it is a folder; `None` if there is none.
    fn resolve(&mut self, name: Box<[u8]>) -> Result<Option<Resolved>, Stop> {
        let handle = self.course.current.handle.ok_or(Stop::Cut(status::NOFILEHANDLE))?;
        let probe = Probe { handle, name: Some(name) };
        let (chain, seen) = (&self.way.chain, &self.course.seen);
        let Some(told) = self.course.told.iter().find(|told| told.probe == probe) else {
            let name = probe.name.as_deref().unwrap_or_default();
            if let Some(known) = chain.name_known(&handle, name).filter(|_| !self.way.unknown) {
                return Ok(Some(known));
            }
            let seen = chain.seen(&handle, name, self.env.now.steady_us);
            self.course.seen = if self.course.told.is_empty() { seen } else { self.course.seen };
            return Err(Stop::Ask(Box::new(Question4::Probe(probe))));
        };
        match (told.status, told.handle, told.attributes) {
            (status::OK, Some(handle), Some(attributes)) => {
                chain.object_seen(handle.as_bytes(), Some(&attributes), seen);
                chain.name_seen(seen, &handle);
                Ok(Some((handle, Object::of(&attributes).is_some_and(|object| object.folder))))
            }
            (status::OK, ..) => Err(Stop::Cut(status::SERVERFAULT)),
            (status::NOENT, ..) => Ok(None),
            (status, ..) => Err(Stop::Cut(status)),
        }
    }

    fn name(&self, argument: &Argument) -> Box<[u8]> {
        argument.names[0].of(self.record).into()
    }

    /// The root of the export, which is asked for once.
    pub(super) fn root(&mut self) -> Result<Handle, Stop> {
        let Some(root) = self.env.shared.four.root() else {
            return Err(Stop::Ask(Box::new(Question4::Root)));
        };
        self.way.chain.entered(&root.handle);
        Ok(root.handle)
    }

    /// The cursor at a name in the current folder that was resolved.
    fn at(&self, argument: &Argument, handle: Handle) -> Cursor {
        let cursor = Cursor { handle: Some(handle), ..self.below(argument) };
        if let (Position::Inside(place), Some((folder, name))) = (cursor.position, &cursor.name) {
            self.way.chain.learn_name(handle.as_bytes(), folder.as_ref(), place, name);
        }
        cursor
    }

    fn lookup(&mut self, argument: &Argument) -> Result<(), Stop> {
        let given = self.ask(argument, self.subject(argument, Op::Lookup))?;
        if given.results.is_some() {
            return self.enter_made_up(argument, &given);
        }
        let (handle, _) = self.resolve(self.name(argument))?.ok_or(Stop::Cut(status::NOENT))?;
        self.go_to(argument, handle);
        self.course.current = self.at(argument, handle);
        self.push(argument, Sent::As(Op4::PutFh));
        Ok(())
    }

    /// A name that leads to what a policy makes up.
    pub(super) fn enter_made_up(&mut self, argument: &Argument, given: &Given) -> Result<(), Stop> {
        let bytes = given.results.as_deref().unwrap_or_default();
        let mut found = Results::default();
        let read = results(&mut Reader::whole(bytes), given.asked.0.op, &mut found);
        let handle = read.ok().and(found.handle).and_then(|span| Handle::new(span.of(bytes)));
        let handle = handle.ok_or(Stop::Cut(status::SERVERFAULT))?;
        // Out of it again, by its parent.
        let made_up = self.way.chain.makes_up(handle.as_bytes());
        if !made_up {
            return Err(Stop::Cut(status::NOTSUPP));
        }
        let below = self.below(argument);
        self.course.current = Cursor { handle: Some(handle), made_up, ..below };
        self.push(argument, Sent::Made(made::result(argument.op, status::OK)));
        Ok(())
    }

    /// Rules tell folders from files where they speak of removing.
    fn remove(&mut self, argument: &Argument) -> Result<(), Stop> {
        let own = self.subject(argument, Op::Remove);
        let folder = match self.resolve(self.name(argument)) {
            Ok(Some((_, folder))) => folder,
            Ok(None) => false,
            Err(stop) => return Err(stop),
        };
        let rule = if folder { Op::Rmdir } else { Op::Remove };
        let given = self.ask(argument, Subject { rule, ..own })?;
        self.wish(given.user, true)?;
        self.push(argument, Sent::Same);
        Ok(())
    }

    /// OPEN is what it is for: reading, writing, emptying, or making a file.
    fn open(&mut self, argument: &Argument) -> Result<(), Stop> {
        let open = argument.open.ok_or(Stop::Cut(status::BADXDR))?;
        if argument.name_count == 0 {
            let user = self.uses(argument, &open, self.course.current.clone())?;
            self.wish(user, true)?;
            self.push(argument, Sent::Same);
            return Ok(());
        }
        let given = self.ask(argument, self.subject(argument, Op::Lookup))?;
        if given.results.is_some() {
            return Err(Stop::Cut(status::ISDIR));
        }
        let found = self.resolve(self.name(argument))?;
        match found {
            // Not asked from the server: by then the name may be free, or another's, and nobody was asked about that.
            Some(_) if open.how_at.is_some() && open.how == 1 => return Err(Stop::Cut(status::EXIST)),
            Some((_, true)) => return Err(Stop::Cut(status::ISDIR)),
            Some((handle, _)) => {
                let file = self.at(argument, handle);
                let user = self.uses(argument, &open, file.clone())?;
                self.wish(user, true)?;
                if open.how_at.is_some() {
                    // It makes the file where there is none any more.
                    self.way.chain.makes_unseen(self.env.now.steady_us);
                }
                if open.how_at.is_none() && self.way.compound.minor > 0 {
                    self.by_handle(argument, &open, handle);
                }
                self.course.current = file;
                self.push(argument, Sent::Same);
            }
            None if open.how_at.is_none() => self.push(argument, Sent::Same),
            None => {
                // It makes one.
                let own = self.subject(argument, Op::Create);
                let given = self.ask(argument, Subject { takes: false, ..own })?;
                self.wish(given.user, true)?;
                let mut sent = Sent::Same;
                if let (Some(at), 0) = (open.how_at, open.how) {
                    let guarded = Piece::Bytes(1u32.to_be_bytes().to_vec());
                    self.course.edits.push(Edit { range: at..at + 4, new: guarded });
                    sent = Sent::Guarded;
                }
                self.course.current = self.below(argument);
                self.push(argument, sent);
            }
        }
        Ok(())
    }

    /// Asks for all that an OPEN of a file that is there is for; whose credentials it needs.
    fn uses(&mut self, argument: &Argument, open: &OpenAt, file: Cursor) -> Result<Option<(u32, u32)>, Stop> {
        let reads = open.access & 1 != 0;
        let writes = open.access & 2 != 0;
        let wanted = [(reads, Op::Read), (writes, Op::Write), (open.empties(), Op::Setattr)];
        let mut user = None;
        for (_, rule) in wanted.into_iter().filter(|(wanted, _)| *wanted) {
            let subject = Subject::of(rule, file.handle, file.position.place());
            user = self.ask(argument, subject)?.user;
        }
        Ok(user)
    }

    /// Lets the server open the file that was judged, whatever has its name then.
    fn by_handle(&mut self, argument: &Argument, open: &OpenAt, handle: Handle) {
        let edits = &mut self.course.edits;
        edits.push(Edit { range: argument.start..argument.start, new: Piece::Bytes(put_fh(handle)) });
        let claim = Piece::Bytes(4u32.to_be_bytes().to_vec());
        edits.push(Edit { range: open.claim_at..argument.end, new: claim });
        let hidden = OpAsked {
            op: Op4::PutFh,
            asked: Vec::new(),
            sent: Sent::Hidden,
            cursor: None,
            maxcount: 0,
            wanted: Box::default(),
        };
        self.course.ops.push(hidden);
    }
}

/// The operation that makes a handle the current one.
fn put_fh(handle: Handle) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + handle.as_bytes().len());
    put_u32(&mut bytes, Op4::PutFh.number());
    put_opaque(&mut bytes, handle.as_bytes());
    bytes
}
