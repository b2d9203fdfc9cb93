//! What is written to files of the control namespace, and what shadow files show.

use super::Rbac;
use super::context::{Change, Grant, Grants, shadow_changes};
use super::objects::Object;
use super::sessions::Session;
use crate::identity::Principal;
use crate::places::{ROOT, Zones};
use crate::wire::nfs3::{Handle, Op, Status};
use std::sync::atomic::Ordering;

impl Rbac {
    /// What a shadow file shows: owner, mode, and who may do what.
    pub(super) fn shadow_text(
        &self,
        object: &Object,
        grants: Option<&Grants>,
        zones: &Zones,
        unix_ms: u64,
    ) -> String {
        let mut text = format!("owner {}\nmode {:04o}\n", self.assignment.user_name(object.uid), object.mode);
        let lattice = &self.assignment.lattice;
        let hypothetical = |role: usize, uid: u32| {
            // Numbers that no session has: bit 63, then role and whether it is the owner.
            let number = 1 << 63 | (role as u64) << 1 | u64::from(uid == object.uid);
            let session = Session { number, active: 1 << role, threat: false, until_unix_ms: 0 };
            let caller = Principal::nobody(uid);
            self.decision(&caller, &session, object, ROOT.node, zones, unix_ms)
        };
        let others: Vec<_> = (0..lattice.len()).map(|role| (role, hypothetical(role, u32::MAX))).collect();
        let owners: Vec<_> = (0..lattice.len()).map(|role| (role, hypothetical(role, object.uid))).collect();
        for op in Op::ALL.into_iter().filter(|op| *op != Op::Null) {
            let allows = |(_, decision): &&(usize, super::Decision)| decision.allow & op.bit() != 0;
            let grant = grants.map_or(&Grant::Policy, |grants| &grants[op.index()]);
            let owner = owners.iter().any(|one| allows(&one)).then_some("OWNER");
            let role = others.iter().find(allows).map(|(role, _)| &**lattice.name(*role));
            let by_policy: Vec<&str> = owner.into_iter().chain(role).collect();
            let by_policy = if by_policy.is_empty() { "nobody".to_string() } else { by_policy.join(" ") };
            // The server refuses what the owner's bits do not allow.
            let missing = match op {
                Op::Read | Op::Readdir | Op::Readdirplus => object.mode & 0o400 == 0,
                Op::Write => object.mode & 0o200 == 0,
                _ => false,
            };
            let note = match grant {
                Grant::Policy => format!(" # {by_policy}"),
                _ => String::new(),
            };
            let mode = if missing { " # not by mode" } else { "" };
            text.push_str(&format!("{} {}{note}{mode}\n", op.name(), grant.text()));
        }
        text
    }

    pub(super) fn write_shadow(&self, real: &Handle, text: &str) -> Result<(), Status> {
        let changes =
            shadow_changes(real.as_bytes(), text, |role| self.assignment.lattice.number(role).is_some());
        let changes = changes.map_err(|reason| {
            tracing::info!(%reason, "permissions are refused");
            Status::Inval
        })?;
        self.commit(&changes)
    }

    fn commit(&self, changes: &[Change]) -> Result<(), Status> {
        self.kept.context.commit(changes).map_err(|error| {
            tracing::error!(%error, "a change cannot be written down");
            Status::Nospc
        })
    }

    pub(super) fn write_session(&self, caller: &Principal, text: &str, unix_ms: u64) -> Result<(), Status> {
        let lattice = &self.assignment.lattice;
        let mut wanted = 0;
        for word in text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()) {
            let Some(number) = lattice.number(word) else { return Err(Status::Inval) };
            wanted |= 1 << number;
        }
        let counts = &self.kept.counts;
        let sessions = &self.kept.sessions;
        match sessions.activate(caller, wanted, unix_ms, &self.assignment, &self.kept.context) {
            Ok(()) => {
                counts.activated.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(reason) => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(user = caller.label(), client = %caller.address, ?reason, text, "roles are not activated");
                Err(Status::Acces)
            }
        }
    }

    /// An administrator writes to the control file of another user.
    pub(super) fn write_user(&self, uid: u32, text: &str) -> Result<(), Status> {
        match text.trim() {
            "enable" => self.enable(uid),
            "end" => {
                self.kept.sessions.end(uid);
                Ok(())
            }
            _ => Err(Status::Inval),
        }
    }

    fn enable(&self, uid: u32) -> Result<(), Status> {
        self.commit(&[Change::Threat { uid, threat: false }])?;
        self.kept.sessions.forgive(uid);
        self.kept.sessions.end(uid);
        Ok(())
    }

    pub(super) fn write_role(&self, role: usize, text: &str) -> Result<(), Status> {
        let lattice = &self.assignment.lattice;
        if role >= lattice.len() {
            return Err(Status::Stale);
        }
        let mut changes = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (verb, user) = line.split_once(' ').ok_or(Status::Inval)?;
            let uid = self.assignment.uid(user.trim()).ok_or(Status::Inval)?;
            let assigned = match verb {
                "assign" => true,
                "revoke" => false,
                _ => return Err(Status::Inval),
            };
            let would = self.assignment.assigned(uid, &self.kept.context) | lattice.closed(1 << role);
            if assigned && lattice.separated(would).is_some() {
                return Err(Status::Perm);
            }
            changes.push((uid, Change::Assign { uid, role: lattice.name(role).to_string(), assigned }));
        }
        let only: Vec<Change> = changes.iter().map(|(_, change)| change.clone()).collect();
        self.commit(&only)?;
        changes.iter().for_each(|(uid, _)| self.kept.sessions.end(*uid));
        self.forget_decisions();
        Ok(())
    }
}
