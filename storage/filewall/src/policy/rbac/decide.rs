//! From rules to bitmasks: for a session and a class of objects (their owner, their place, file or folder), all operations at
//! once (paper, Algorithm 2, lines 11 to 24; the search of the hierarchy is done when roles are compiled).
//!
//! Rules are policies in Cedar (<https://docs.cedarpolicy.com>), in place of the paper's XACML. They are checked against a schema
//! of what FileWall tells ([`SCHEMA`]) when they are loaded. A decision asks Cedar some 22 times or more; what comes of it is
//! a [`Decision`], and the calls of a client cost a look at its bits.
//!
//! Rules with the annotation `@permission("log")` say what is logged when it is allowed, those with `@permission("alarm")`
//! what raises an alarm when it is denied; all others say what is allowed (the paper's PERMS).
//!
//! Invariants
//! - A rule whose condition fails (an overflow, say) does not count, as in Cedar.
//! - Where Cedar cannot be asked, nothing is allowed.

use super::error::{RuleError, RulesError};
use super::objects::Object;
use super::sessions::{Assignment, Session};
use crate::identity::Principal;
use crate::places::{Node, Zones};
use crate::policy::ops::GROUPS;
use crate::wire::nfs3::{OPS, Op};
use cedar_policy::{
    Authorizer, Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Policy, PolicySet, Request,
    RestrictedExpression, Schema, ValidationMode, Validator,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

/// No role allows it.
pub const NO_ROLE: u8 = u8::MAX;
/// Longest text of rules, bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most rules.
pub const RULES_MAX: usize = 1024;
/// Most words and signs of a rule.
pub const WORDS_MAX: usize = 1024;
/// Deepest nesting of brackets in the text: the parser's work grows with it.
pub const DEPTH_MAX: usize = 64;

/// What rules may speak of, but for the operations and their groups.
pub const SCHEMA: &str = "
    entity Role;
    entity User in [Role] { name: String, uid: Long, machine: ipaddr };
    entity Folder in [Folder] { owner: String, ownerUid: Long, ownerRoles: Set<String>, path: String };
    entity File in [Folder] { owner: String, ownerUid: Long, ownerRoles: Set<String>, path: String };
    type Facts = { machine: ipaddr, hour: Long, minute: Long, weekday: Long, roles: Set<String> };
";

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

impl Decision {
    const NOTHING: Decision = Decision { allow: 0, forbid: 0, log: 0, alarm: 0, role: [NO_ROLE; OPS] };
}

#[derive(Debug)]
struct Kinds {
    user: EntityTypeName,
    role: EntityTypeName,
    action: EntityTypeName,
    folder: EntityTypeName,
    file: EntityTypeName,
}

impl Kinds {
    fn new() -> Result<Kinds, RulesError> {
        let kind = |name: &str| name.parse::<EntityTypeName>().map_err(cedar);
        Ok(Kinds {
            user: kind("User")?,
            role: kind("Role")?,
            action: kind("Action")?,
            folder: kind("Folder")?,
            file: kind("File")?,
        })
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// Rules, with what they speak of.
#[derive(Debug)]
pub struct Compiled {
    allow: PolicySet,
    log: PolicySet,
    alarm: PolicySet,
    authorizer: Authorizer,
    kinds: Kinds,
    actions: Vec<EntityUid>,
    /// The operations and their groups.
    operations: Entities,
    /// True if what rules say changes with the time.
    pub timed: bool,
    /// Folders that rules speak of, and their nodes.
    pub folders: Vec<Node>,
}

const PERMISSIONS: [&str; 3] = ["allow", "log", "alarm"];

fn permission(rule: &Policy) -> &str {
    rule.annotation("permission").unwrap_or("allow")
}

fn cedar(error: impl std::error::Error + Send + Sync + 'static) -> RulesError {
    RulesError::Cedar(Box::new(error))
}

fn told(text: &str, diagnostic: &dyn miette::Diagnostic) -> RulesError {
    let help = diagnostic.help().map(|help| format!(" ({help})")).unwrap_or_default();
    RulesError::Text { line: line_of(text, diagnostic), message: format!("{diagnostic}{help}") }
}

/// The line of what a diagnostic points at.
fn line_of(text: &str, diagnostic: &dyn miette::Diagnostic) -> Option<usize> {
    let label = diagnostic.labels()?.next()?;
    let before = text.get(..label.offset())?;
    Some(before.matches('\n').count() + 1)
}

/// Bounds what Cedar's parser builds, which knows no bound of its own but the stack: a chain of operators nests as brackets do.
fn check_bounds(text: &str) -> Result<(), RulesError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(RulesError::TooLong { most: TEXT_BYTES_MAX });
    }
    let (mut depth, mut words, mut line) = (0usize, 0usize, 1usize);
    let mut in_name = false;
    let mut rest = text.chars().peekable();
    while let Some(sign) = rest.next() {
        let name = sign.is_alphanumeric() || sign == '_';
        words += usize::from(!(sign.is_whitespace() || name && in_name));
        in_name = name;
        match sign {
            '\n' => line += 1,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ';' => words = 0,
            '/' if rest.peek() == Some(&'/') => while rest.next_if(|sign| *sign != '\n').is_some() {},
            '"' => {
                // To the end of the text, over what is escaped in it.
                while let Some(inner) = rest.next() {
                    match inner {
                        '\n' => line += 1,
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(RulesError::TooDeep { line, most: DEPTH_MAX });
        }
        if words > WORDS_MAX {
            return Err(RulesError::LongRule { line, most: WORDS_MAX });
        }
    }
    Ok(())
}

fn schema() -> Result<Schema, RulesError> {
    let mut text = SCHEMA.to_string();
    for (group, _) in GROUPS {
        let _ = writeln!(text, "action \"{group}\";");
    }
    for op in Op::ALL {
        let groups: Vec<String> = groups_of(op).map(|group| format!("\"{group}\"")).collect();
        let _ = writeln!(
            text,
            "action \"{}\" in [{}] appliesTo {{ principal: [User], resource: [File, Folder], context: Facts }};",
            op.name(),
            groups.join(", ")
        );
    }
    Schema::from_cedarschema_str(&text).map(|(schema, _)| schema).map_err(cedar)
}

fn groups_of(op: Op) -> impl Iterator<Item = &'static str> {
    GROUPS.iter().filter(move |(_, set)| set & op.bit() != 0).map(|(name, _)| *name)
}

impl Compiled {
    /// Checks rules against the roles; folders that they speak of are added to `zones`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(text: &str, assignment: &Assignment, zones: &mut Zones) -> Result<Compiled, RulesError> {
        check_bounds(text)?;
        let rules: PolicySet =
            text.parse().map_err(|errors: cedar_policy::ParseErrors| told(text, &errors))?;
        if rules.num_of_templates() > 0 {
            return Err(RulesError::Template);
        }
        if rules.num_of_policies() > RULES_MAX {
            return Err(RulesError::TooMany { most: RULES_MAX });
        }
        let kinds = Kinds::new()?;
        let mut folders = BTreeSet::new();
        let mut compiled = Compiled {
            allow: PolicySet::new(),
            log: PolicySet::new(),
            alarm: PolicySet::new(),
            authorizer: Authorizer::new(),
            actions: Op::ALL.into_iter().map(|op| uid(&kinds.action, op.name())).collect(),
            operations: operations(&kinds)?,
            timed: false,
            folders: Vec::new(),
            kinds,
        };
        for rule in rules.policies() {
            compiled.check(rule, text, assignment, zones, &mut folders)?;
            let set = match permission(rule) {
                "log" => &mut compiled.log,
                "alarm" => &mut compiled.alarm,
                _ => &mut compiled.allow,
            };
            set.add(rule.clone()).map_err(cedar)?;
            // Nothing but these names leads to the time; the JSON form has them without escapes.
            let plain = rule.to_json().map_err(cedar)?.to_string();
            compiled.timed |= ["hour", "minute", "weekday"].iter().any(|name| plain.contains(name));
        }
        let result = Validator::new(schema()?).validate(&rules, ValidationMode::Strict);
        if let Some(error) = result.validation_errors().next() {
            return Err(told(text, error));
        }
        compiled.folders = folders.into_iter().collect();
        Ok(compiled)
    }

    /// What Cedar does not check: names of roles and operations, folders, our annotation.
    fn check(
        &self,
        rule: &Policy,
        text: &str,
        assignment: &Assignment,
        zones: &mut Zones,
        folders: &mut BTreeSet<Node>,
    ) -> Result<(), RulesError> {
        let wrong = |why: RuleError| {
            let begin = rule.to_cedar().and_then(|own| text.find(own.trim()));
            let line = begin.map_or(1, |begin| text[..begin].matches('\n').count() + 1);
            RulesError::Rule { line, why }
        };
        if !PERMISSIONS.contains(&permission(rule)) {
            return Err(wrong(RuleError::Permission { allowed: PERMISSIONS.join(", ") }));
        }
        for named in rule.entity_literals() {
            let id: &str = named.id().unescaped();
            match named.type_name() {
                kind if *kind == self.kinds.role && assignment.lattice.number(id).is_none() => {
                    return Err(wrong(RuleError::Role(id.to_string())));
                }
                kind if *kind == self.kinds.action && self.operations.get(&named).is_none() => {
                    return Err(wrong(RuleError::Action(id.to_string())));
                }
                kind if *kind == self.kinds.folder => {
                    folders.insert(zones.add(id).map_err(|error| wrong(error.into()))?);
                }
                _ => {}
            }
        }
        Ok(())
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
        let asked = || -> Result<Decision, RulesError> {
            let resource = self.resource(object, &zones.path(node), assignment, owner_roles)?;
            let context = facts(caller, session, unix_ms, assignment)?;
            let asked = |active: u64| {
                let principal = self.principal(caller, active, assignment)?;
                let who = principal.uid();
                let entities = self.operations.clone().add_entities([principal, resource.clone()], None);
                let entities = entities.map_err(cedar)?;
                Ok::<_, RulesError>(Asked { who, what: resource.uid(), entities, context: context.clone() })
            };
            let everything = asked(session.active)?;
            let single: Vec<(usize, Asked)> = assignment
                .lattice
                .members(session.active)
                .map(|role| Ok((role, asked(1 << role)?)))
                .collect::<Result<_, RulesError>>()?;
            let mut decision = Decision::NOTHING;
            for op in Op::ALL {
                match self.says(&self.allow, &everything, op)? {
                    Said::Forbidden => decision.forbid |= op.bit(),
                    Said::Nothing => {}
                    Said::Permitted => {
                        decision.allow |= op.bit();
                        let mut role = single.last().map(|(role, _)| *role);
                        for (least, asked) in &single {
                            if self.says(&self.allow, asked, op)? == Said::Permitted {
                                role = Some(*least);
                                break;
                            }
                        }
                        decision.role[op.index()] =
                            role.and_then(|role| u8::try_from(role).ok()).unwrap_or(NO_ROLE);
                    }
                }
                for (rules, set) in [(&self.log, &mut decision.log), (&self.alarm, &mut decision.alarm)] {
                    if !rules.is_empty() && self.says(rules, &everything, op)? == Said::Permitted {
                        *set |= op.bit();
                    }
                }
            }
            Ok(decision)
        };
        asked().unwrap_or_else(|error| {
            tracing::error!(%error, "rules cannot be asked: nothing is allowed");
            Decision::NOTHING
        })
    }

    fn says(&self, rules: &PolicySet, asked: &Asked, op: Op) -> Result<Said, RulesError> {
        let (who, what) = (asked.who.clone(), asked.what.clone());
        let request = Request::new(who, self.actions[op.index()].clone(), what, asked.context.clone(), None)
            .map_err(cedar)?;
        let response = self.authorizer.is_authorized(&request, rules, &asked.entities);
        Ok(match response.decision() {
            cedar_policy::Decision::Allow => Said::Permitted,
            // A denial with a reason is a rule that forbids.
            cedar_policy::Decision::Deny if response.diagnostics().reason().next().is_some() => {
                Said::Forbidden
            }
            cedar_policy::Decision::Deny => Said::Nothing,
        })
    }

    fn principal(
        &self,
        caller: &Principal,
        active: u64,
        assignment: &Assignment,
    ) -> Result<Entity, RulesError> {
        let name = assignment.user_name(caller.uid);
        let lattice = &assignment.lattice;
        let roles = lattice.names(lattice.closed(active)).map(|role| uid(&self.kinds.role, role)).collect();
        let attributes = [
            ("name", RestrictedExpression::new_string(name.clone())),
            ("uid", RestrictedExpression::new_long(i64::from(caller.uid))),
            ("machine", RestrictedExpression::new_ip(caller.address.to_string())),
        ];
        entity(uid(&self.kinds.user, &name), attributes, roles)
    }

    fn resource(
        &self,
        object: &Object,
        path: &str,
        assignment: &Assignment,
        owner_roles: u64,
    ) -> Result<Entity, RulesError> {
        let mut within: HashSet<EntityUid> =
            path.match_indices('/').skip(1).map(|(at, _)| uid(&self.kinds.folder, &path[..at])).collect();
        within.insert(uid(&self.kinds.folder, "/"));
        within.insert(uid(&self.kinds.folder, path));
        let own = uid(if object.folder { &self.kinds.folder } else { &self.kinds.file }, path);
        // Everything is in itself anyway.
        within.remove(&own);
        let roles = assignment.lattice.names(owner_roles);
        let roles = roles.map(|role| RestrictedExpression::new_string(role.to_string()));
        let attributes = [
            ("owner", RestrictedExpression::new_string(assignment.user_name(object.uid))),
            ("ownerUid", RestrictedExpression::new_long(i64::from(object.uid))),
            ("ownerRoles", RestrictedExpression::new_set(roles)),
            ("path", RestrictedExpression::new_string(path.to_string())),
        ];
        entity(own, attributes, within)
    }
}

/// A question but for its operation.
struct Asked {
    who: EntityUid,
    what: EntityUid,
    entities: Entities,
    context: Context,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Permitted,
    Forbidden,
    Nothing,
}

fn entity<const N: usize>(
    own: EntityUid,
    attributes: [(&str, RestrictedExpression); N],
    within: HashSet<EntityUid>,
) -> Result<Entity, RulesError> {
    let attributes: HashMap<String, RestrictedExpression> =
        attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    Entity::new(own, attributes, within).map_err(cedar)
}

fn operations(kinds: &Kinds) -> Result<Entities, RulesError> {
    let groups =
        GROUPS.iter().map(|(name, _)| Entity::new_no_attrs(uid(&kinds.action, name), HashSet::new()));
    let ops = Op::ALL.into_iter().map(|op| {
        let groups = groups_of(op).map(|group| uid(&kinds.action, group)).collect();
        Entity::new_no_attrs(uid(&kinds.action, op.name()), groups)
    });
    Entities::from_entities(groups.chain(ops), None).map_err(cedar)
}

fn facts(
    caller: &Principal,
    session: &Session,
    unix_ms: u64,
    assignment: &Assignment,
) -> Result<Context, RulesError> {
    let moment = assignment.moment(unix_ms);
    let roles = assignment.lattice.names(session.active);
    let roles = roles.map(|role| RestrictedExpression::new_string(role.to_string()));
    Context::from_pairs([
        ("machine".to_string(), RestrictedExpression::new_ip(caller.address.to_string())),
        ("hour".to_string(), RestrictedExpression::new_long(i64::from(moment.minute / 60))),
        ("minute".to_string(), RestrictedExpression::new_long(i64::from(moment.minute % 60))),
        ("weekday".to_string(), RestrictedExpression::new_long(i64::from(moment.day))),
        ("roles".to_string(), RestrictedExpression::new_set(roles)),
    ])
    .map_err(cedar)
}

#[cfg(test)]
mod tests;
