//! Users, groups and roles, and who is calling.
//!
//! A [`Principal`] is what the paper calls a session: a user on a machine. It is made when its first call comes, under the
//! identities that are in force, and is looked up by comparing the bytes of the credentials with those of the call before.

use crate::metrics::Usage;
use hashbrown::HashMap;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most principals that are remembered at once.
pub const PRINCIPALS_MAX: usize = 65_536;
/// The user of calls without AUTH_SYS, as everywhere.
pub const NOBODY: u32 = 65_534;

/// `kind: identities`: names for numbers, and roles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct IdentitiesFile {
    /// Users by name.
    pub users: BTreeMap<String, UserFile>,
    /// Groups by name.
    pub groups: BTreeMap<String, u32>,
    /// Roles by name.
    pub roles: BTreeMap<String, RoleFile>,
    /// Sets of roles of which a user may have one (static separation of duty), inherited ones included.
    pub separate: Vec<BTreeSet<String>>,
}

/// One user.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UserFile {
    /// Number that clients send.
    pub uid: u32,
    /// Roles assigned.
    #[serde(default)]
    pub roles: BTreeSet<String>,
}

/// One role.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RoleFile {
    /// Roles whose permissions it has too.
    pub inherits: BTreeSet<String>,
}

/// Why identities are refused.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There are too many roles.
    #[error("{roles} roles; at most {ROLES_MAX} are allowed")]
    TooMany {
        /// How many there are.
        roles: usize,
    },
    /// A role that is not defined.
    #[error("{who} has the role '{role}', which is not among the roles")]
    NoRole {
        /// Who or what has it.
        who: String,
        /// The role.
        role: String,
    },
    /// A role that inherits itself.
    #[error(
        "role '{role}' inherits itself{}: take it out of the 'inherits' of one of them",
        if others.is_empty() { String::new() } else { format!(", by {}", others.join(" and ")) }
    )]
    Circle {
        /// The role.
        role: String,
        /// The others on that way.
        others: Vec<String>,
    },
    /// Two users that nobody could tell apart.
    #[error("users {} have the same uid {uid}", users.join(" and "))]
    SameUid {
        /// Their names.
        users: [String; 2],
        /// Their number.
        uid: u32,
    },
    /// A user has two roles that nobody may have both.
    #[error("user {user} has the roles {}, which are kept separate: take all but one away", roles.join(" and "))]
    Separate {
        /// The user.
        user: String,
        /// The roles.
        roles: Vec<String>,
    },
}

/// Names of roles, shared by all who have them.
pub type Roles = Arc<[Arc<str>]>;

/// Most roles: one bit each.
pub const ROLES_MAX: usize = 64;

/// Roles by number, in the order of how much they include: a role stands behind those that it inherits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lattice {
    names: Vec<Arc<str>>,
    includes: Vec<u64>,
    separate: Vec<u64>,
}

impl Lattice {
    fn compile(file: &IdentitiesFile) -> Result<Lattice, IdentityError> {
        if file.roles.len() > ROLES_MAX {
            return Err(IdentityError::TooMany { roles: file.roles.len() });
        }
        let one = |role: &String| {
            closure(file, &BTreeSet::from([role.clone()])).into_iter().map(str::to_string).collect()
        };
        let mut roles: Vec<(&String, BTreeSet<String>)> =
            file.roles.keys().map(|role| (role, one(role))).collect();
        roles.sort_by_key(|(name, included)| (included.len(), name.to_string()));
        let names: Vec<Arc<str>> = roles.iter().map(|(name, _)| Arc::from(name.as_str())).collect();
        let mut lattice = Lattice { names, ..Lattice::default() };
        lattice.includes =
            roles.iter().map(|(_, included)| lattice.bits(included.iter().map(String::as_str))).collect();
        lattice.separate =
            file.separate.iter().map(|set| lattice.bits(set.iter().map(String::as_str))).collect();
        Ok(lattice)
    }

    /// Number of a role.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| **known == *name)
    }

    /// Name of a role.
    pub fn name(&self, number: usize) -> &Arc<str> {
        &self.names[number]
    }

    /// Number of roles.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// A set of roles as bits; unknown ones are left out.
    pub fn bits<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> u64 {
        names.into_iter().filter_map(|name| self.number(name)).fold(0, |set, number| set | 1 << number)
    }

    /// Numbers of the roles of a set, the least privileged one first.
    pub fn members(&self, set: u64) -> impl Iterator<Item = usize> + use<> {
        (0..self.names.len()).filter(move |number| set & 1 << number != 0)
    }

    /// Names of the roles of a set.
    pub fn names(&self, set: u64) -> impl Iterator<Item = &str> {
        self.members(set).map(|number| &*self.names[number])
    }

    /// The roles of a set and all that they inherit.
    pub fn closed(&self, set: u64) -> u64 {
        self.members(set).fold(0, |all, number| all | self.includes[number])
    }

    /// A set of roles of which nobody may have two, if this one breaks it (static separation of duty).
    pub fn separated(&self, set: u64) -> Option<u64> {
        self.separate.iter().copied().find(|separate| (separate & set).count_ones() > 1)
    }
}

/// Identities, checked and closed over inheritance.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    users: HashMap<u32, (Arc<str>, Roles)>,
    uids: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
    roles: BTreeSet<Arc<str>>,
    lattice: Lattice,
}

impl Identities {
    /// Checks and compiles a file.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &IdentitiesFile) -> Result<Identities, IdentityError> {
        let mut identities = Identities { groups: file.groups.clone(), ..Identities::default() };
        identities.roles = file.roles.keys().map(|name| Arc::from(name.as_str())).collect();
        for (role, body) in &file.roles {
            known_roles(file, &format!("role {role}"), &body.inherits)?;
        }
        for (role, body) in &file.roles {
            if closure(file, &body.inherits).contains(role.as_str()) {
                return Err(circle(file, role));
            }
        }
        for set in &file.separate {
            known_roles(file, "separate", set)?;
        }
        for (name, user) in &file.users {
            known_roles(file, &format!("user {name}"), &user.roles)?;
            separated(file, name, &closure(file, &user.roles))?;
            let roles: Roles = closure(file, &user.roles).into_iter().map(Arc::from).collect();
            if let Some((other, _)) = identities.users.insert(user.uid, (Arc::from(name.as_str()), roles)) {
                return Err(IdentityError::SameUid {
                    users: [other.to_string(), name.clone()],
                    uid: user.uid,
                });
            }
            identities.uids.insert(name.clone(), user.uid);
        }
        identities.lattice = Lattice::compile(file)?;
        Ok(identities)
    }

    /// True if they name anybody or anything.
    pub fn any(&self) -> bool {
        !(self.users.is_empty() && self.groups.is_empty() && self.roles.is_empty())
    }

    /// Roles by number.
    pub fn lattice(&self) -> &Lattice {
        &self.lattice
    }

    /// Names of the users.
    pub fn users(&self) -> impl Iterator<Item = (&str, u32)> {
        self.uids.iter().map(|(name, uid)| (name.as_str(), *uid))
    }

    /// Names of the groups.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// The number of a user that is written by name or number.
    pub fn uid(&self, text: &str) -> Option<u32> {
        self.uids.get(text).copied().or_else(|| text.parse().ok())
    }

    /// The number of a group that is written by name or number.
    pub fn gid(&self, text: &str) -> Option<u32> {
        self.groups.get(text).copied().or_else(|| text.parse().ok())
    }

    /// True if there is such a role.
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.contains(name)
    }

    /// Name and roles of a user, with the roles that they inherit.
    pub fn user(&self, uid: u32) -> Option<(&Arc<str>, &Roles)> {
        self.users.get(&uid).map(|(name, roles)| (name, roles))
    }
}

fn known_roles(file: &IdentitiesFile, who: &str, roles: &BTreeSet<String>) -> Result<(), IdentityError> {
    match roles.iter().find(|role| !file.roles.contains_key(*role)) {
        Some(role) => Err(IdentityError::NoRole { who: who.to_string(), role: role.clone() }),
        None => Ok(()),
    }
}

/// What is said of a role that inherits itself, with the others on that way.
fn circle(file: &IdentitiesFile, role: &str) -> IdentityError {
    let inherited = |other: &str| file.roles.get(other).map(|body| closure(file, &body.inherits));
    let others = inherited(role)
        .into_iter()
        .flatten()
        .filter(|other| *other != role && inherited(other).is_some_and(|all| all.contains(role)))
        .map(str::to_string)
        .collect();
    IdentityError::Circle { role: role.to_string(), others }
}

/// A user must not have two roles of a set that is kept separate.
fn separated(file: &IdentitiesFile, user: &str, roles: &BTreeSet<&str>) -> Result<(), IdentityError> {
    for set in &file.separate {
        let had: Vec<String> = set.iter().filter(|role| roles.contains(role.as_str())).cloned().collect();
        if had.len() > 1 {
            return Err(IdentityError::Separate { user: user.to_string(), roles: had });
        }
    }
    Ok(())
}

/// Roles and all that they inherit; a role is walked over once, so that circles, which are refused, end here.
fn closure<'f>(file: &'f IdentitiesFile, roles: &'f BTreeSet<String>) -> BTreeSet<&'f str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = roles.iter().map(String::as_str).collect();
    while let Some(role) = open.pop() {
        if found.insert(role) {
            open.extend(file.roles.get(role).into_iter().flat_map(|body| &body.inherits).map(String::as_str));
        }
    }
    found
}

/// A user on a machine.
#[derive(Debug)]
pub struct Principal {
    /// A number that no other principal of this process has.
    pub id: u64,
    /// Address of the machine.
    pub address: IpAddr,
    /// User as the client states it; [`NOBODY`] without AUTH_SYS.
    pub uid: u32,
    /// Group as the client states it.
    pub gid: u32,
    /// Further groups as the client states them.
    pub groups: Box<[u32]>,
    /// Name of the user, if the identities have one.
    pub name: Option<Arc<str>>,
    /// Roles, with those that they inherit.
    pub roles: Roles,
    /// What it has done; goes on counting when identities change.
    pub usage: Arc<Usage>,
}

impl Principal {
    /// Somebody who does not call: for questions.
    pub fn nobody(uid: u32) -> Principal {
        Principal {
            id: 0,
            address: IpAddr::from([0, 0, 0, 0]),
            uid,
            gid: NOBODY,
            groups: Box::default(),
            name: None,
            roles: Arc::from([]),
            usage: Arc::default(),
        }
    }

    /// Name, or number where there is no name.
    pub fn label(&self) -> String {
        self.name.as_ref().map_or_else(|| self.uid.to_string(), ToString::to_string)
    }

    /// True if it is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Numbers by which a principal is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: IpAddr,
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
}

/// All principals under one set of identities.
#[derive(Debug, Default)]
pub struct Principals {
    known: Mutex<HashMap<Key, Arc<Principal>, foldhash::fast::RandomState>>,
    usages: HashMap<Key, Arc<Usage>>,
    /// Principals forgotten because there were too many.
    pub forgotten: AtomicU64,
}

/// Next number of a principal: never reused, so that what is cached under it never meets another.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Principals {
    /// Nobody yet, but whoever was known to `before` keeps his counters: for new identities.
    pub fn after(before: &Principals) -> Principals {
        let known = before.known.lock().unwrap_or_else(PoisonError::into_inner);
        let usages = known.iter().map(|(key, principal)| (key.clone(), principal.usage.clone())).collect();
        Principals { usages, ..Principals::default() }
    }

    /// The principal of these numbers, made if it is new. When there are [`PRINCIPALS_MAX`], all are forgotten: their
    /// counters begin again, and sessions that hold one keep it.
    pub fn get(
        &self,
        identities: &Identities,
        address: IpAddr,
        uid: u32,
        gid: u32,
        groups: &[u32],
    ) -> Arc<Principal> {
        let key = Key { address, uid, gid, groups: groups.into() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(principal) = known.get(&key) {
            return principal.clone();
        }
        if known.len() >= PRINCIPALS_MAX {
            self.forgotten.fetch_add(known.len() as u64, Ordering::Relaxed);
            known.clear();
        }
        let (name, roles) = match identities.user(uid) {
            Some((name, roles)) => (Some(name.clone()), roles.clone()),
            None => (None, Arc::from([])),
        };
        let principal = Arc::new(Principal {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            address,
            uid,
            gid,
            groups: groups.into(),
            name,
            roles,
            usage: self.usages.get(&key).cloned().unwrap_or_default(),
        });
        known.insert(key, principal.clone());
        principal
    }

    /// All that are known now.
    pub fn all(&self) -> Vec<Arc<Principal>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
