//! What objects of the namespace show, and which names its folders have.

use super::{Control, refuse};
use crate::identity::Principal;
use crate::places::Zones;
use crate::policy::Verdict;
use crate::policy::rbac::Rbac;
use crate::policy::rbac::nodes::Node;
use crate::policy::rbac::objects::Object;
use crate::policy::rbac::sessions::Session;
use crate::wire::nfs3::{Handle, Status};

/// What an object shows.
pub(super) struct Shown {
    pub(super) node: Node,
    /// Empty for a folder.
    pub(super) text: Vec<u8>,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) mode: u32,
    pub(super) folder: bool,
    pub(super) version: u32,
}

impl Control {
    pub(super) fn shown_folder(&self, node: Node, names: &str) -> Shown {
        let version = self.hash(&[names.as_bytes()]);
        Shown { node, text: Vec::new(), owner: 0, group: 0, mode: 0o555, folder: true, version }
    }

    /// What a virtual object other than a mirrored one shows to a caller.
    pub(super) fn show(
        &self,
        rbac: &Rbac,
        node: Node,
        caller: &Principal,
        unix_ms: u64,
    ) -> Result<Shown, Verdict> {
        let (assignment, context) = (&rbac.assignment, &rbac.kept.context);
        let lattice = &assignment.lattice;
        let moment = assignment.moment(unix_ms);
        let file = |text: String, owner: u32, mode: u32| {
            let version = self.hash(&[text.as_bytes()]);
            Shown { node, text: text.into_bytes(), owner, group: 0, mode, folder: false, version }
        };
        let lines =
            |names: &mut dyn Iterator<Item = &str>| names.map(|name| format!("{name}\n")).collect::<String>();
        let role = |role: u16| {
            if usize::from(role) < lattice.len() { Ok(usize::from(role)) } else { refuse(Status::Stale) }
        };
        Ok(match node {
            Node::UserControl(uid) if uid == caller.uid => {
                let session = rbac.session(caller, unix_ms);
                file(lines(&mut lattice.names(session.active)), uid, 0o600)
            }
            Node::UserControl(uid) => {
                let line = |(address, session): (std::net::IpAddr, Session)| {
                    let names: Vec<&str> = lattice.names(session.active).collect();
                    format!("{address} {}\n", names.join(" "))
                };
                file(rbac.kept.sessions.of(uid).into_iter().map(line).collect(), uid, 0o600)
            }
            Node::UserRole(uid, number) => {
                let active =
                    uid == caller.uid && rbac.session(caller, unix_ms).active & 1 << role(number)? != 0;
                if assignment.available(uid, context, &moment) & 1 << role(number)? == 0 {
                    return refuse(Status::Stale);
                }
                file(if active { "active\n" } else { "available\n" }.to_string(), uid, 0o444)
            }
            Node::RoleControl(_) => file(String::new(), 0, 0o600),
            Node::RoleMembers(number) => {
                let number = role(number)?;
                let mut names: Vec<&str> = assignment
                    .users()
                    .filter(|(uid, _)| assignment.assigned(*uid, context) & 1 << number != 0)
                    .map(|(_, name)| name)
                    .collect();
                names.sort_unstable();
                file(lines(&mut names.into_iter()), 0, 0o444)
            }
            Node::RoleInherits(number) => {
                let number = role(number)?;
                let set = lattice.closed(1 << number) & !(1 << number);
                file(lines(&mut lattice.names(set)), 0, 0o444)
            }
            folder => {
                let names: Vec<String> =
                    self.children(rbac, folder, unix_ms, false)?.into_iter().map(|(name, _)| name).collect();
                self.shown_folder(folder, &names.join("/"))
            }
        })
    }

    /// Names in a virtual folder other than a mirrored one.
    pub(super) fn children(
        &self,
        rbac: &Rbac,
        node: Node,
        unix_ms: u64,
        four: bool,
    ) -> Result<Vec<(String, Node)>, Verdict> {
        let assignment = &rbac.assignment;
        let lattice = &assignment.lattice;
        let number = |role: usize| u16::try_from(role).unwrap_or(u16::MAX);
        Ok(match node {
            Node::Top => {
                let mut all = vec![("users".to_string(), Node::Users), ("roles".to_string(), Node::Roles)];
                if let Some(root) = rbac.root(four) {
                    all.push(("shadow".to_string(), Node::Shadow(rbac.kept.shadows.number(&root))));
                }
                all
            }
            Node::Users => {
                let mut users: Vec<_> =
                    assignment.users().map(|(uid, name)| (name.to_string(), Node::User(uid))).collect();
                users.sort_by(|a, b| a.0.cmp(&b.0));
                users
            }
            Node::User(uid) => {
                let set = assignment.available(uid, &rbac.kept.context, &assignment.moment(unix_ms));
                let roles = lattice
                    .members(set)
                    .map(|role| (lattice.name(role).to_string(), Node::UserRole(uid, number(role))));
                std::iter::once(("ctrl".to_string(), Node::UserControl(uid))).chain(roles).collect()
            }
            Node::Roles => (0..lattice.len())
                .map(|role| (lattice.name(role).to_string(), Node::Role(number(role))))
                .collect(),
            Node::Role(role) => vec![
                ("ctrl".to_string(), Node::RoleControl(role)),
                ("members".to_string(), Node::RoleMembers(role)),
                ("inherits".to_string(), Node::RoleInherits(role)),
            ],
            _ => return refuse(Status::Notdir),
        })
    }

    /// What the mirror of an object shows.
    pub(super) fn shadow(
        &self,
        rbac: &Rbac,
        real: &Handle,
        object: &Object,
        zones: &Zones,
        unix_ms: u64,
    ) -> Shown {
        let node = Node::Shadow(rbac.kept.shadows.number(real));
        if object.folder {
            return Shown {
                node,
                text: Vec::new(),
                owner: object.uid,
                group: object.gid,
                mode: 0o555,
                folder: true,
                version: 0,
            };
        }
        let grants = rbac.grants(real.as_bytes());
        let text = rbac.shadow_text(object, grants.as_deref(), zones, unix_ms).into_bytes();
        let version = self.hash(&[&text]);
        Shown { node, text, owner: object.uid, group: object.gid, mode: 0o644, folder: false, version }
    }
}
