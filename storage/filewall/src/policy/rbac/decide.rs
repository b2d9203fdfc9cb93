//! From rules to bitmasks: for a session and a class of objects (their owner, their place, file or folder), all operations at
//! once (paper, Algorithm 2, lines 11 to 24; the search of the hierarchy is done when roles are compiled).
//!
//! Rules with the annotation `@permission("log")` say what is logged when it is allowed, those with `@permission("alarm")`
//! what raises an alarm when it is denied; all others say what is allowed (the paper's PERMS).

use super::objects::Object;
use super::sessions::{Assignment, Session};
use crate::cedar::{Entity, Request, Rule, Rules, Scope, Uid, Value};
use crate::identity::Principal;
use crate::places::{Node, Zones};
use crate::policy::ops::GROUPS;
use crate::wire::nfs3::{OPS, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// No role allows it.
pub const NO_ROLE: u8 = u8::MAX;

/// What holds for a session and a class of objects, for all operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Allowed operations, as bits.
    pub allow: u32,
    /// Operations that are forbidden, whatever a file's own permissions say.
    pub forbid: u32,
    /// Operations that are logged when they are allowed.
    pub log: u32,
    /// Operations that raise an alarm when they are denied.
    pub alarm: u32,
    /// The least privileged role that allows each operation (least privilege), [`NO_ROLE`] if none does.
    pub role: [u8; OPS],
}

/// Rules, with what they speak of.
#[derive(Debug)]
pub struct Compiled {
    rules: Rules,
    actions: Vec<Entity>,
    /// Folders that rules speak of, and their nodes.
    pub folders: Vec<Node>,
}

const PERMISSIONS: [&str; 3] = ["allow", "log", "alarm"];

fn permission(rule: &Rule) -> &str {
    rule.annotations.get("permission").map_or("allow", String::as_str)
}

impl Compiled {
    /// Checks rules against the roles; folders that they speak of are added to `zones`.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn compile(text: &str, assignment: &Assignment, zones: &mut Zones) -> Result<Compiled, String> {
        let rules: Rules = text.parse()?;
        let actions: Vec<Entity> = Op::ALL.into_iter().map(action).collect();
        let mut folders = BTreeSet::new();
        for rule in &rules.0 {
            let wrong = |reason: String| format!("the rule of line {}: {reason}", rule.line);
            if !PERMISSIONS.contains(&permission(rule)) {
                return Err(wrong(format!("@permission is one of {}", PERMISSIONS.join(", "))));
            }
            for uid in mentioned(rule) {
                match &*uid.kind {
                    "Role" if assignment.lattice.number(&uid.id).is_none() => {
                        return Err(wrong(format!("Role::\"{}\" is none of the roles", uid.id)));
                    }
                    "Action"
                        if !actions.iter().any(|known| known.uid == *uid || known.within.contains(uid)) =>
                    {
                        return Err(wrong(format!("Action::\"{}\" is no operation and no group", uid.id)));
                    }
                    "Folder" => drop(folders.insert(zones.add(&uid.id).map_err(wrong)?)),
                    "Role" | "Action" | "User" => {}
                    other => {
                        return Err(wrong(format!(
                            "there are User, Role, Action, Folder and File, no '{other}'"
                        )));
                    }
                }
            }
        }
        Ok(Compiled { rules, actions, folders: folders.into_iter().collect() })
    }

    /// What holds for a session and an object at a place, whose owner has these roles.
    pub fn decide(
        &self,
        caller: &Principal,
        session: &Session,
        object: &Object,
        (node, zones): (Node, &Zones),
        unix_ms: u64,
        (assignment, owner_roles): (&Assignment, u64),
    ) -> Decision {
        let asked = Asked {
            resource: resource(object, node, zones, assignment, owner_roles),
            context: facts(caller, session, unix_ms, assignment),
        };
        let everything = principal(caller, session.active, assignment);
        let mut decision = Decision { allow: 0, forbid: 0, log: 0, alarm: 0, role: [NO_ROLE; OPS] };
        let single: Vec<(usize, Entity)> = assignment
            .lattice
            .members(session.active)
            .map(|role| (role, principal(caller, 1 << role, assignment)))
            .collect();
        for op in Op::ALL {
            let says = |who: &Entity, what: &str| {
                let request = Request {
                    principal: who,
                    action: &self.actions[op.index()],
                    resource: &asked.resource,
                    context: &asked.context,
                };
                self.rules.decide(&request, |rule| permission(rule) == what)
            };
            match says(&everything, "allow") {
                Err(Some(_)) => decision.forbid |= op.bit(),
                Err(None) => {}
                Ok(_) => {
                    decision.allow |= op.bit();
                    let least = single.iter().find(|(_, who)| says(who, "allow").is_ok());
                    let highest = single.last().map(|(role, _)| *role);
                    let role = least.map(|(role, _)| *role).or(highest);
                    decision.role[op.index()] =
                        role.and_then(|role| u8::try_from(role).ok()).unwrap_or(NO_ROLE);
                }
            }
            for (what, set) in [("log", &mut decision.log), ("alarm", &mut decision.alarm)] {
                if says(&everything, what).is_ok() {
                    *set |= op.bit();
                }
            }
        }
        decision
    }
}

struct Asked {
    resource: Entity,
    context: BTreeMap<Arc<str>, Value>,
}

/// Entities that the scopes of a rule, and `in` in its conditions, name.
fn mentioned(rule: &Rule) -> Vec<&Uid> {
    let mut found = Vec::new();
    for scope in rule.action.iter().chain([&rule.principal, &rule.resource]) {
        match scope {
            Scope::Is(uid) | Scope::In(uid) | Scope::Kind(_, Some(uid)) => found.push(uid),
            Scope::Any | Scope::Kind(_, None) => {}
        }
    }
    rule.conditions.iter().for_each(|(_, condition)| literals(condition, &mut found));
    found
}

fn literals<'e>(expression: &'e crate::cedar::Expression, found: &mut Vec<&'e Uid>) {
    use crate::cedar::Expression as E;
    match expression {
        E::Literal(Value::Entity(uid)) => found.push(uid),
        E::Literal(_) | E::Variable(_) => {}
        E::Not(inner)
        | E::Negative(inner)
        | E::Field(inner, _)
        | E::Has(inner, _)
        | E::Like(inner, _)
        | E::Address(inner) => {
            literals(inner, found);
        }
        E::Binary(_, left, right) => {
            literals(left, found);
            literals(right, found);
        }
        E::If(parts) => parts.iter().for_each(|part| literals(part, found)),
        E::Kind(inner, _, parent) => {
            literals(inner, found);
            parent.iter().for_each(|parent| literals(parent, found));
        }
        E::Set(all) | E::Call(_, all) => all.iter().for_each(|one| literals(one, found)),
        E::Record(fields) => fields.iter().for_each(|(_, field)| literals(field, found)),
    }
}

fn action(op: Op) -> Entity {
    let groups = GROUPS.iter().filter(|(_, set)| set & op.bit() != 0);
    Entity {
        uid: Uid::new("Action", op.name()),
        within: groups.map(|(name, _)| Uid::new("Action", name)).collect(),
        attributes: BTreeMap::new(),
    }
}

fn principal(caller: &Principal, active: u64, assignment: &Assignment) -> Entity {
    let name = assignment.user_name(caller.uid);
    let lattice = &assignment.lattice;
    Entity {
        uid: Uid::new("User", &name),
        within: lattice.names(lattice.closed(active)).map(|role| Uid::new("Role", role)).collect(),
        attributes: [
            ("name".into(), Value::text(&name)),
            ("uid".into(), Value::Long(i64::from(caller.uid))),
            ("machine".into(), Value::Address(caller.address.into())),
        ]
        .into(),
    }
}

fn resource(object: &Object, node: Node, zones: &Zones, assignment: &Assignment, owner_roles: u64) -> Entity {
    let path = zones.path(node);
    let mut within = vec![Uid::new("Folder", "/")];
    for (at, _) in path.match_indices('/').skip(1) {
        within.push(Uid::new("Folder", &path[..at]));
    }
    within.push(Uid::new("Folder", &path));
    Entity {
        uid: Uid::new(if object.folder { "Folder" } else { "File" }, &path),
        within,
        attributes: [
            ("owner".into(), Value::text(&assignment.user_name(object.uid))),
            ("ownerUid".into(), Value::Long(i64::from(object.uid))),
            ("ownerRoles".into(), Value::texts(assignment.lattice.names(owner_roles))),
            ("path".into(), Value::text(&path)),
        ]
        .into(),
    }
}

fn facts(
    caller: &Principal,
    session: &Session,
    unix_ms: u64,
    assignment: &Assignment,
) -> BTreeMap<Arc<str>, Value> {
    let moment = assignment.moment(unix_ms);
    [
        ("machine".into(), Value::Address(caller.address.into())),
        ("hour".into(), Value::Long(i64::from(moment.minute / 60))),
        ("minute".into(), Value::Long(i64::from(moment.minute % 60))),
        ("weekday".into(), Value::Long(i64::from(moment.day))),
        ("roles".into(), Value::texts(assignment.lattice.names(session.active))),
    ]
    .into()
}
