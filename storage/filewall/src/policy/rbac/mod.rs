//! `kind: rbac`: access control by roles (paper 4.5, the case study; Algorithm 2).
//!
//! - [`sessions`]: a user on a machine and its active roles; assignment, delegation, separation of duty, threats.
//! - [`decide`]: rules in Cedar, compiled to bitmasks for a session and a class of objects.
//! - [`objects`]: owners and modes, learnt from replies. - [`names`]: what names lead to, likewise; `learning`: from which calls and replies. - [`context`]: what must outlive FileWall.
//! - `file`: what is written of it; `enforce`: what is done with a call. - [`control`]: the virtual control namespace; [`nodes`]: its objects; `orders`: what is written to it. - [`record`]: the log of LOG and ALARM.
//!
//! A call that is allowed goes to the server as its object's owner (Algorithm 2, line 19), so the server's own permission bits
//! for the owner hold. Calls on names (REMOVE, RENAME) are judged by the object that is named, and go as the owner of the
//! folder.
//!
//! Invariants
//! - Nothing is decided about an object whose owner is not known: the server is asked first ([`crate::message::Probe`]).
//! - What is taken away (REMOVE, RMDIR, RENAME) is judged by what the server has answered to this call, or by what no call that passed
//!   FileWall since can have changed; where others change the server too (`known-s`), always by the former.
//! - A rule that forbids holds whatever a file's own permissions say.
//!
//! Departures: what is made (CREATE, MKDIR, …) stays the caller's where the server lets the caller write in that folder, and
//! belongs to the folder's owner otherwise (unless that is root); the paper gives everything to the folder's owner. An administrator who is root stays
//! root, else nobody could change owners.

pub mod context;
pub mod control;
pub mod decide;
mod enforce;
pub mod error;
mod file;
mod learning;
pub mod names;
pub mod nodes;
pub mod objects;
mod orders;
pub mod record;
pub mod sessions;

pub use file::{DelegationFile, RbacFile, ThreatFile};

use super::explain::{Question, Step};
use super::{Context as Core, Mount, Policy, Verdict};
use crate::identity::{Identities, Principal};
use crate::message::{Asked, Call, Probe, Reply, Seen};
use crate::places::{Node, ROOT, Zones};
use crate::policy::error::PolicyError;
use crate::policy::home::Home;
use crate::wire::nfs3::{ALL_OPS, ATTRIBUTES_BYTES, Handle, Op, Status, bare};
use arc_swap::ArcSwapOption;
use context::{Change, Context, Grant, Grants, hexadecimal};
use control::Control;
use decide::{Compiled, Decision, NO_ROLE};
use hashbrown::HashMap;
use names::{Leads, Names};
use objects::{Object, Objects};
use record::Record;
use sessions::{Assignment, Session, Sessions};
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most decisions that are remembered; all are forgotten when there are more.
pub const DECISIONS_MAX: usize = 65_536;

/// What survives a reload.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    pub(crate) context: Context,
    pub(crate) sessions: Sessions,
    pub(crate) objects: Objects,
    names: Names,
    pub(crate) shadows: nodes::Shadows,
    /// The root of the export in NFSv4.
    root4: ArcSwapOption<Handle>,
    record: Option<Record>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    logged: AtomicU64,
    alarms: AtomicU64,
    probes: AtomicU64,
    unasked: AtomicU64,
    rewritten: AtomicU64,
    control: AtomicU64,
    activated: AtomicU64,
    refused: AtomicU64,
}

/// Session, owner, node, folder.
type Class = (u64, u32, Node, bool);

/// The policy.
#[derive(Debug)]
pub struct Rbac {
    pub(crate) assignment: Assignment,
    compiled: Compiled,
    pub(crate) control: Option<Control>,
    pub(crate) kept: Arc<Kept>,
    decisions: Mutex<HashMap<Class, (u64, Decision), foldhash::fast::RandomState>>,
    needs_places: bool,
    /// How long owners are believed, µs; `None` where nobody else changes the server.
    known_us: Option<u64>,
}

/// What an object is to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub object: Object,
    pub decision: Decision,
}

impl Rbac {
    /// Checks and compiles a file; folders of its rules are added to `zones`. The state is opened, unless the policy before
    /// has it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &RbacFile,
        home: Home<'_>,
        identities: &Identities,
        zones: &mut Zones,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Rbac, PolicyError> {
        let assignment = Assignment::compile(file, identities)?;
        let compiled = Compiled::compile(&file.rules, &assignment, zones)?;
        let control = file.control.as_deref().map(Control::compile).transpose()?;
        let path = home.folder.join(&file.state_file);
        let log_file = file.log_file.as_ref().filter(|_| home.keeps);
        let before =
            before.and_then(|before| before.downcast::<Kept>().ok()).filter(|kept| kept.path == path);
        let kept = match before {
            Some(kept) => {
                kept.sessions.clear();
                kept
            }
            None => Arc::new(Kept {
                context: if home.keeps { Context::open(&path)? } else { Context::look(&path)? },
                path,
                sessions: Sessions::default(),
                objects: Objects::default(),
                names: Names::default(),
                shadows: nodes::Shadows::default(),
                root4: ArcSwapOption::empty(),
                record: log_file.map(|log| Record::open(&home.folder.join(log))).transpose()?,
                counts: Counts::default(),
            }),
        };
        let needs_places = !compiled.folders.is_empty();
        let known_us = file.known_s.map(|known_s| known_s.saturating_mul(1_000_000));
        Ok(Rbac { assignment, compiled, control, kept, decisions: Mutex::default(), needs_places, known_us })
    }

    pub(crate) fn session(&self, caller: &Principal, unix_ms: u64) -> Session {
        self.kept.sessions.get(caller, unix_ms, &self.assignment, &self.kept.context)
    }

    /// What holds for a session and a class of objects, remembered until the minute ends where rules speak of the time.
    pub(crate) fn decision(
        &self,
        caller: &Principal,
        session: &Session,
        object: &Object,
        node: Node,
        zones: &Zones,
        unix_ms: u64,
    ) -> Decision {
        let class = (session.number, object.uid, node, object.folder);
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, decision)) = decisions.get(&class).filter(|(until, _)| unix_ms < *until) {
            return *decision;
        }
        if decisions.len() >= DECISIONS_MAX {
            decisions.clear();
        }
        let owner_roles = self.assignment.assigned(object.uid, &self.kept.context);
        let owner = (&self.assignment, owner_roles);
        let decision = self.compiled.decide(caller, session, object, (node, zones), unix_ms, owner);
        let until_unix_ms =
            if self.compiled.timed { self.assignment.moment(unix_ms).until_unix_ms } else { u64::MAX };
        decisions.insert(class, (until_unix_ms, decision));
        decision
    }

    /// Forgets all decisions: what users are assigned has changed.
    pub(crate) fn forget_decisions(&self) {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// From when on what was learnt of objects is believed, µs.
    fn since_us(&self, now_us: u64) -> u64 {
        self.known_us.map_or(0, |known_us| now_us.saturating_sub(known_us))
    }

    /// The object of a handle, as far as it is known; otherwise `Err` says what to do.
    pub(crate) fn object(&self, call: &mut Call<'_>, handle: Handle) -> Result<Object, Verdict> {
        let known = self.kept.objects.get(handle.as_bytes(), self.since_us(call.now.steady_us));
        // What was learnt from NFSv4 lacks the file system's number of NFSv3, which the control folder shows there.
        if let Some(object) = known.filter(|known| call.compound.is_some() || known.fsid != 0) {
            return Ok(object);
        }
        self.asked_object(call, handle)
    }

    /// The object of a handle, as the server says for this call.
    fn asked_object(&self, call: &mut Call<'_>, handle: Handle) -> Result<Object, Verdict> {
        let probe = Probe { handle, name: None };
        match call.told.iter().find(|told| told.probe == probe) {
            Some(told) => match told.attributes {
                Some(attributes) if told.status == 0 => {
                    self.kept.objects.learn(handle.as_bytes(), &attributes, &call.seen);
                    Object::of(&attributes).ok_or(Verdict::Answer(Status::ServerFault))
                }
                _ => Err(Verdict::Answer(Status::of(told.status))),
            },
            None => Err(self.ask(call, probe)),
        }
    }

    fn ask(&self, call: &mut Call<'_>, probe: Probe) -> Verdict {
        self.kept.counts.probes.fetch_add(1, Ordering::Relaxed);
        call.probe = Some(Box::new(probe));
        Verdict::Ask
    }

    /// The handle and object of a name in a folder; `None` if there is none. With `absent` it is believed without a question
    /// that there is none: not where that alone would be the answer, since a question then costs nothing that matters, and
    /// finds what somebody made past FileWall.
    pub(crate) fn named(
        &self,
        call: &mut Call<'_>,
        folder: Handle,
        name: &[u8],
        absent: bool,
    ) -> Result<Option<(Handle, Object)>, Verdict> {
        let probe = Probe { handle: folder, name: Some(name.into()) };
        let told = call.told.iter().find(|told| told.probe == probe);
        let (handle, attributes) = match told {
            None => {
                if let Some(known) = self.known_name(call, folder, name)
                    && (absent || known.is_some())
                {
                    self.kept.counts.unasked.fetch_add(1, Ordering::Relaxed);
                    return Ok(known);
                }
                return Err(self.ask(call, probe));
            }
            Some(told) if told.status == Status::Noent.number() => return Ok(None),
            Some(told) if told.status != 0 => return Err(Verdict::Answer(Status::of(told.status))),
            Some(told) => (told.handle, told.attributes),
        };
        let handle = handle.ok_or(Verdict::Answer(Status::ServerFault))?;
        let Some(attributes) = attributes else {
            return Ok(Some((handle, self.asked_object(call, handle)?)));
        };
        self.kept.objects.learn(handle.as_bytes(), &attributes, &call.seen);
        let object = Object::of(&attributes).ok_or(Verdict::Answer(Status::ServerFault))?;
        Ok(Some((handle, object)))
    }

    fn root_is(&self, handle: &Handle) {
        let change = Change::Root { handle: hexadecimal(handle.as_bytes()) };
        if let Err(error) = self.kept.context.commit(&[change]) {
            tracing::error!(%error, "the root of the export cannot be written down");
        }
    }

    /// The handle of the export's root in the version of NFS that is meant.
    fn root(&self, four: bool) -> Option<Handle> {
        let root4 = if four { self.kept.root4.load().as_deref().copied() } else { None };
        root4.or(self.kept.context.tables().root)
    }

    pub(crate) fn grants(&self, handle: &[u8]) -> Option<Arc<Grants>> {
        let tables = self.kept.context.tables();
        if tables.files.is_empty() { None } else { tables.files.get(bare(handle)).cloned() }
    }

    /// Whether a session may do an operation on an object (Algorithm 2, lines 14 to 24), and as which role.
    pub(crate) fn may(
        &self,
        caller: &Principal,
        session: &Session,
        judged: &Judged,
        grants: Option<&Grants>,
        op: Op,
    ) -> Option<u8> {
        let Judged { object, decision } = judged;
        if decision.forbid & op.bit() != 0 {
            return None;
        }
        let lattice = &self.assignment.lattice;
        let administrator = session.active & self.assignment.administrators;
        let highest = || lattice.members(session.active).last().and_then(|role| u8::try_from(role).ok());
        match grants.map_or(&Grant::Policy, |grants| &grants[op.index()]) {
            Grant::Policy => (decision.allow & op.bit() != 0).then_some(decision.role[op.index()]),
            Grant::Nobody => None,
            Grant::Owner => {
                let owner = caller.uid == object.uid && session.active != 0 && !session.threat;
                if owner || administrator != 0 { highest() } else { None }
            }
            Grant::Role(role) => {
                let number = lattice.number(role)?;
                let has = |active: &usize| lattice.closed(1 << active) & 1 << number != 0;
                lattice.members(session.active).find(has).and_then(|role| u8::try_from(role).ok())
            }
        }
    }
}

impl Policy for Rbac {
    fn kind(&self) -> &'static str {
        "rbac"
    }

    fn ops(&self) -> u32 {
        ALL_OPS & !Op::Null.bit()
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn judges_objects(&self) -> bool {
        true
    }

    fn entered(&self, root: &Handle) {
        if self.kept.root4.load().as_deref() == Some(root) {
            return;
        }
        self.kept.root4.store(Some(Arc::new(*root)));
        if self.kept.context.tables().root.is_none() {
            self.root_is(root);
        }
    }

    fn makes_up(&self, handle: &[u8]) -> bool {
        self.control.is_some() && control::makes_up(handle)
    }

    fn object_seen(&self, handle: &[u8], attributes: Option<&[u8; ATTRIBUTES_BYTES]>, seen: &Seen) {
        match attributes {
            Some(attributes) => self.kept.objects.learn(handle, attributes, seen),
            None => self.kept.objects.forget(handle),
        }
    }

    fn seen(&self, folder: &[u8], name: &[u8], now_us: u64) -> Seen {
        let key = self.kept.names.name_key(folder, name);
        Seen {
            keys: [key, None],
            names: key.map_or(0, |key| self.kept.names.changes(key)),
            names_elsewhere: self.kept.names.changes_by(false),
            owners: self.kept.objects.changes(),
            four: true,
            at_us: now_us,
            ..Seen::default()
        }
    }

    fn name_seen(&self, seen: &Seen, handle: &Handle) {
        self.leads(seen, handle);
    }

    fn name_known(&self, folder: &[u8], name: &[u8]) -> Option<(Handle, bool)> {
        let names = &self.kept.names;
        let key = self.known_us.is_none().then(|| names.name_key(folder, name))??;
        // Where it leads nowhere NFSv4 asks.
        let Leads::To(handle, true) = names.get(key)? else { return None };
        let object = self.kept.objects.get(handle.as_bytes(), 0)?;
        self.kept.counts.unasked.fetch_add(1, Ordering::Relaxed);
        Some((handle, object.folder))
    }

    fn makes_unseen(&self, now_us: u64) {
        self.kept.names.makes_unseen(now_us);
    }

    fn forwarded(&self, call: &mut Call<'_>) {
        self.begun(call);
    }

    fn undone(&self, asked: &Asked) {
        self.ended(asked);
    }

    fn request(&self, call: &mut Call<'_>, core: &Core<'_>) -> Verdict {
        self.note_seen(call, core);
        let virtual_call = match &self.control {
            Some(control) => control.request(self, call, core),
            None => Ok(None),
        };
        match virtual_call {
            Ok(Some(verdict)) | Err(verdict) => {
                self.kept.counts.control.fetch_add(1, Ordering::Relaxed);
                return verdict;
            }
            Ok(None) => {}
        }
        self.enforce(call, core).unwrap_or_else(|verdict| verdict)
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, _latency_us: u64, core: &Core<'_>) {
        self.learn(asked, reply);
        self.ended(asked);
        if let Some(control) = &self.control {
            control.reply(self, asked, reply, core);
        }
    }

    fn mounted(&self, mount: &Mount, handle: &mut Handle) {
        let tables = self.kept.context.tables();
        if mount.place == ROOT && mount.path.iter().all(|byte| *byte == b'/') && tables.root != Some(*handle)
        {
            self.root_is(handle);
        }
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.kept.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let counts = &self.kept.counts;
        let tables = self.kept.context.tables();
        let mut details: BTreeMap<String, u64> = [
            ("logged", &counts.logged),
            ("alarms", &counts.alarms),
            ("probes", &counts.probes),
            ("names_not_asked", &counts.unasked),
            ("sent_as_owner", &counts.rewritten),
            ("control_calls", &counts.control),
            ("activations", &counts.activated),
            ("activations_refused", &counts.refused),
        ]
        .into_iter()
        .map(|(name, count)| (name.to_string(), count.load(Ordering::Relaxed)))
        .collect();
        details.insert("names_known".to_string(), self.kept.names.known() as u64);
        details.insert("sessions".to_string(), self.kept.sessions.count() as u64);
        details.insert("threats".to_string(), tables.threats.len() as u64);
        details.insert("files_with_permissions".to_string(), tables.files.len() as u64);
        details
    }

    fn explain(&self, question: &Question, core: &Core<'_>) -> Step {
        let caller = &question.caller;
        let session = self.session(caller, question.unix_ms);
        let says = |uid: u32| {
            let object = Object { uid, gid: 0, mode: 0, folder: false, fsid: 0 };
            let decision =
                self.decision(caller, &session, &object, question.place.node, core.zones, question.unix_ms);
            (decision.allow & question.op.bit() != 0).then(|| decision.role[question.op.index()])
        };
        let lattice = &self.assignment.lattice;
        let roles: Vec<&str> = lattice.names(session.active).collect();
        let active = format!("with the roles {}", roles.join(", "));
        let role = |role: u8| if role == NO_ROLE { "" } else { &**lattice.name(usize::from(role)) };
        // Nobody has this number.
        match (says(caller.uid), says(u32::MAX)) {
            (_, Some(least)) => Step::forward(format!("as {}, {active}, whoever owns it", role(least))),
            (Some(least), None) => {
                Step::forward(format!("as {}, {active}, on files of one's own", role(least)))
            }
            (None, None) => Step::answer(Status::Acces, format!("no rule allows it {active}")),
        }
    }
}

#[cfg(test)]
mod tests;
