//! Sessions: a user on a machine, and the roles that are active there (paper 4.5.1, session management).
//!
//! The roles of a session are fixed. Whoever wants others ends it and begins a new one; each has a number of its own, under
//! which decisions are remembered, so nothing that was decided for one session holds in another.

use super::context::{Change, Context};
use super::error::StateError;
use super::file::RbacFile;
use crate::identity::{Identities, Lattice, Principal};
use crate::policy::access::subnet;
use crate::policy::error::PolicyError;
use crate::policy::time::{Moment, Window};
use hashbrown::HashMap;
use ipnet::IpNet;
use jiff::tz::TimeZone;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most sessions; all begin anew when there are more.
pub const SESSIONS_MAX: usize = 65_536;

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// A number that no other session of this process has.
    pub number: u64,
    /// Active roles, as bits.
    pub active: u64,
    /// True if its user is a threat.
    pub threat: bool,
    /// Until when its roles need not be looked at again, milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
}

/// Sessions by machine and user, and how often users were denied; survives a reload.
#[derive(Debug, Default)]
pub struct Sessions {
    table: Mutex<HashMap<(IpAddr, u32), Session, foldhash::fast::RandomState>>,
    denials: Mutex<HashMap<u32, (u64, u32)>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Debug)]
struct Delegation {
    role: u64,
    to: u64,
    time: Vec<Window>,
}

#[derive(Clone, Debug)]
struct Threat {
    role: u64,
    escalation: u64,
    denials: Option<u32>,
    window_ms: u64,
}

/// Who may have which roles when.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Roles.
    pub lattice: Lattice,
    users: HashMap<u32, (String, u64)>,
    initial: u64,
    /// Roles of administrators.
    pub administrators: u64,
    exclusive: Vec<u64>,
    delegations: Vec<Delegation>,
    threat: Option<Threat>,
    machines: HashMap<u32, Vec<IpNet>>,
    zone: TimeZone,
}

/// Why roles are not activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Some of them are not available to the user now.
    Unavailable,
    /// They exclude each other.
    Exclusive,
    /// The user has become a threat by asking.
    Threat,
}

impl Assignment {
    /// Checks and compiles.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &RbacFile, identities: &Identities) -> Result<Assignment, PolicyError> {
        let lattice = identities.lattice().clone();
        let set = |field: &'static str, names: &mut dyn Iterator<Item = &String>| {
            let mut set = 0u64;
            for name in names {
                let number = lattice.number(name);
                set |= 1 << number.ok_or_else(|| PolicyError::NoRole { field, name: name.clone() })?;
            }
            Ok::<_, PolicyError>(set)
        };
        let delegations = file.delegations.iter().map(|delegation| {
            Ok(Delegation {
                role: set("delegations", &mut std::iter::once(&delegation.role))?,
                to: set("delegations", &mut delegation.to.iter())?,
                time: delegation.time.iter().map(Window::compile).collect::<Result<_, _>>()?,
            })
        });
        let threat = file.threat.as_ref().map(|threat| {
            Ok::<_, PolicyError>(Threat {
                role: set("threat", &mut std::iter::once(&threat.role))?,
                escalation: set("threat", &mut threat.escalation.iter())?,
                denials: threat.denials,
                window_ms: threat.window_s.saturating_mul(1000),
            })
        });
        let mut machines = HashMap::new();
        for (user, nets) in &file.machines {
            let uid = identities.uid(user).ok_or_else(|| PolicyError::NoUser(user.clone()))?;
            machines.insert(uid, nets.iter().map(|text| subnet(text)).collect::<Result<_, _>>()?);
        }
        let users = identities.users().map(|(name, uid)| {
            let roles =
                identities.user(uid).map_or(0, |(_, roles)| lattice.bits(roles.iter().map(|role| &**role)));
            (uid, (name.to_string(), roles))
        });
        Ok(Assignment {
            users: users.collect(),
            initial: set("initial", &mut file.initial.iter())?,
            administrators: set("administrators", &mut file.administrators.iter())?,
            exclusive: file
                .exclusive
                .iter()
                .map(|roles| set("exclusive", &mut roles.iter()))
                .collect::<Result<_, _>>()?,
            delegations: delegations.collect::<Result<_, PolicyError>>()?,
            threat: threat.transpose()?,
            machines,
            zone: crate::policy::time::zone(file.timezone.as_deref())?,
            lattice,
        })
    }

    /// The moment of a time, where windows are meant.
    pub fn moment(&self, unix_ms: u64) -> Moment {
        Moment::at(unix_ms, &self.zone)
    }

    /// Users, by number.
    pub fn users(&self) -> impl Iterator<Item = (u32, &str)> {
        self.users.iter().map(|(uid, (name, _))| (*uid, name.as_str()))
    }

    /// Name of a user, or the number.
    pub fn user_name(&self, uid: u32) -> String {
        self.users.get(&uid).map_or_else(|| uid.to_string(), |(name, _)| name.clone())
    }

    /// Number of a user by name.
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.users().find(|(_, known)| *known == name).map(|(uid, _)| uid)
    }

    /// Roles that a user is assigned, with those that they inherit.
    pub fn assigned(&self, uid: u32, context: &Context) -> u64 {
        let mut set = self.users.get(&uid).map_or(0, |(_, roles)| *roles);
        let tables = context.tables();
        for ((_, role), assigned) in
            tables.assigned.range((uid, String::new())..=(uid, "\u{10ffff}".to_string()))
        {
            let bits = self.lattice.bits([role.as_str()]);
            set = if *assigned { set | self.lattice.closed(bits) } else { set & !bits };
        }
        set
    }

    /// Roles that a user may activate now: those assigned, and those that are delegated.
    pub fn available(&self, uid: u32, context: &Context, moment: &Moment) -> u64 {
        let assigned = self.assigned(uid, context);
        let open = self.delegations.iter().filter(|delegation| {
            delegation.to & assigned != 0
                && (delegation.time.is_empty() || delegation.time.iter().any(|window| window.holds(moment)))
        });
        open.fold(assigned, |set, delegation| set | delegation.role)
    }

    /// Roles that a user may activate at some time.
    fn ever(&self, uid: u32, context: &Context) -> u64 {
        let assigned = self.assigned(uid, context);
        let open = self.delegations.iter().filter(|delegation| delegation.to & assigned != 0);
        open.fold(assigned, |set, delegation| set | delegation.role)
    }

    fn is_at_home(&self, uid: u32, address: IpAddr) -> bool {
        self.machines.get(&uid).is_none_or(|nets| nets.iter().any(|net| net.contains(&address)))
    }

    fn begin(&self, uid: u32, address: IpAddr, context: &Context, moment: &Moment) -> Session {
        let threat = context.tables().threats.contains(&uid);
        let roles = match (&self.threat, threat) {
            (Some(rule), true) => rule.role,
            (None, true) => 0,
            _ if !self.is_at_home(uid, address) => 0,
            _ => self.initial & self.assigned(uid, context),
        };
        Session {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            active: roles,
            threat,
            until_unix_ms: moment.until_unix_ms,
        }
    }

    /// Makes a user a threat: its sessions end.
    ///
    /// # Errors
    /// What is wrong with the disk.
    pub fn make_threat(&self, uid: u32, sessions: &Sessions, context: &Context) -> Result<(), StateError> {
        if self.threat.is_none() || context.tables().threats.contains(&uid) {
            return Ok(());
        }
        tracing::warn!(user = self.user_name(uid), "a user is a threat from now on");
        context.commit(&[Change::Threat { uid, threat: true }])?;
        sessions.end(uid);
        Ok(())
    }
}

impl Sessions {
    /// The session of a caller; one that has run out of a delegated role begins anew without it.
    pub fn get(
        &self,
        caller: &Principal,
        unix_ms: u64,
        assignment: &Assignment,
        context: &Context,
    ) -> Session {
        let key = (caller.address, caller.uid);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.get(&key).copied();
        if let Some(session) = known.filter(|session| unix_ms < session.until_unix_ms) {
            return session;
        }
        let moment = assignment.moment(unix_ms);
        let mut session = match known {
            Some(session) => session,
            None => assignment.begin(caller.uid, caller.address, context, &moment),
        };
        session.until_unix_ms = moment.until_unix_ms;
        if !session.threat && session.active & !assignment.available(caller.uid, context, &moment) != 0 {
            session = assignment.begin(caller.uid, caller.address, context, &moment);
        }
        if table.len() >= SESSIONS_MAX {
            table.clear();
        }
        table.insert(key, session);
        session
    }

    /// Ends the session of a caller and begins one with these roles; none means those at the beginning.
    ///
    /// # Errors
    /// [`Refused`]: the session stays as it is, unless its user has become a threat.
    pub fn activate(
        &self,
        caller: &Principal,
        wanted: u64,
        unix_ms: u64,
        assignment: &Assignment,
        context: &Context,
    ) -> Result<(), Refused> {
        let moment = assignment.moment(unix_ms);
        if context.tables().threats.contains(&caller.uid)
            || !assignment.is_at_home(caller.uid, caller.address)
        {
            return Err(Refused::Unavailable);
        }
        if wanted & !assignment.available(caller.uid, context, &moment) != 0 {
            let never = wanted & !assignment.ever(caller.uid, context);
            let escalates = assignment.threat.as_ref().is_some_and(|threat| threat.escalation & never != 0);
            if escalates && assignment.make_threat(caller.uid, self, context).is_ok() {
                return Err(Refused::Threat);
            }
            return Err(Refused::Unavailable);
        }
        if assignment.exclusive.iter().any(|set| (set & wanted).count_ones() > 1) {
            return Err(Refused::Exclusive);
        }
        let fresh = assignment.begin(caller.uid, caller.address, context, &moment);
        let session = if wanted == 0 { fresh } else { Session { active: wanted, ..fresh } };
        self.table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((caller.address, caller.uid), session);
        Ok(())
    }

    /// Ends all sessions of a user.
    pub fn end(&self, uid: u32) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, other), _| *other != uid);
    }

    /// Ends all sessions.
    pub fn clear(&self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Sessions of a user.
    pub fn of(&self, uid: u32) -> Vec<(IpAddr, Session)> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = table
            .iter()
            .filter(|((_, other), _)| *other == uid)
            .map(|((address, _), session)| (*address, *session))
            .collect();
        all.sort_by_key(|(address, _)| *address);
        all
    }

    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Counts that a user was denied something; too often makes it a threat.
    pub fn denied(&self, caller: &Principal, unix_ms: u64, assignment: &Assignment, context: &Context) {
        let Some(Threat { denials: Some(limit), window_ms, .. }) = &assignment.threat else { return };
        let count = {
            let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
            if denials.len() >= SESSIONS_MAX {
                denials.clear();
            }
            let (begin, count) = denials.entry(caller.uid).or_insert((unix_ms, 0));
            if unix_ms.saturating_sub(*begin) > *window_ms {
                (*begin, *count) = (unix_ms, 0);
            }
            *count += 1;
            *count
        };
        if count >= *limit
            && let Err(error) = assignment.make_threat(caller.uid, self, context)
        {
            tracing::error!(%error, "a threat cannot be written down");
        }
    }

    /// Forgets how often a user was denied something.
    pub fn forgive(&self, uid: u32) {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    }
}
