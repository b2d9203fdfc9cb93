//! `kind: access`: who may do what, where, when, from which machine.
//!
//! Rules are tried in order; the first one that fits decides on an operation. For a principal at a node of the tree of paths
//! they are compiled, when it first comes there, to one [`Decision`]: a bit for each operation. Later calls cost one
//! look-up, until the minute ends in which a window may begin or end.
//!
//! A call is allowed if all that it does is ([`does`]): whatever a rule denies, no operation of another name does it.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::time::{Moment, Window, WindowFile};
use super::{Context, Mount, Policy, Targets, Verdict, does, ops};
use crate::identity::{Identities, Principal};
use crate::message::{Call, Probe};
use crate::places::{Node, Place, ROOT, Zones};
use crate::wire::make::at;
use crate::wire::nfs3::{ALL_OPS, Handle, OPS, Op, Status, access, ftype};
use crate::wire::xdr::get_u32;
use hashbrown::HashMap;
use ipnet::IpNet;
use jiff::tz::TimeZone;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most rules of one policy.
pub const RULES_MAX: usize = 4096;
/// Most decisions that are remembered; all are forgotten when there are more.
pub const DECISIONS_MAX: usize = 65_536;

/// What tells of an object without being asked for: attributes and handles.
const TOLD: u32 = Op::Getattr.bit() | Op::Lookup.bit();
/// Rules that are about all of these or none treat a RENAME as they do what it removes.
const ASKED: u32 = Op::Rename.bit() | does::REMOVALS;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AccessFile {
    /// What holds where no rule fits.
    pub default: Default,
    /// Time zone of its windows; the system's if there is none.
    #[serde(default)]
    pub timezone: Option<String>,
    /// Rules, tried in order.
    #[serde(default)]
    pub rules: Vec<RuleFile>,
}

/// What holds where no rule fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Default {
    /// Every call goes on.
    Allow,
    /// Every call is answered with NFS3ERR_ACCES.
    Deny,
}

/// One rule: exactly one of `allow` and `deny`; every other field narrows it, and an empty one does not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RuleFile {
    /// Operations that it allows.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Operations that it denies.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Users, by name or number.
    #[serde(default)]
    pub users: Vec<String>,
    /// Groups, by name or number.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Addresses or subnets of machines.
    #[serde(default)]
    pub clients: Vec<String>,
    /// Folders below the root of the export; what is in them is meant too.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Windows.
    #[serde(default)]
    pub time: Vec<WindowFile>,
    /// What a denied call is answered with.
    #[serde(default)]
    pub answer: Option<AnswerFile>,
}

/// A status that a rule may answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerFile {
    /// Access denied.
    Acces,
    /// Only the owner may.
    Perm,
    /// The file system is read-only.
    Rofs,
    /// Try again later.
    Jukebox,
    /// The handle is known no more.
    Stale,
}

impl AnswerFile {
    /// The status.
    pub fn status(self) -> Status {
        match self {
            AnswerFile::Acces => Status::Acces,
            AnswerFile::Perm => Status::Perm,
            AnswerFile::Rofs => Status::Rofs,
            AnswerFile::Jukebox => Status::Jukebox,
            AnswerFile::Stale => Status::Stale,
        }
    }
}

#[derive(Clone, Debug)]
struct Rule {
    allow: bool,
    ops: u32,
    uids: Vec<u32>,
    gids: Vec<u32>,
    roles: Vec<String>,
    clients: Vec<IpNet>,
    nodes: Vec<Node>,
    time: Vec<Window>,
    answer: Status,
}

/// What the rules say for a principal at a node, for all operations at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Operations that are allowed, as bits.
    pub allow: u32,
    /// The rule that decides on each operation, [`NO_RULE`] for the default.
    pub rules: [u16; OPS],
    /// Until when it holds, milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
}

/// No rule fits.
pub const NO_RULE: u16 = u16::MAX;

/// The policy.
#[derive(Debug)]
pub struct Access {
    default_allow: bool,
    zone: TimeZone,
    rules: Vec<Rule>,
    needs_paths: bool,
    /// Where a RENAME is allowed a removal may be denied: it is asked what has the new name.
    asks: bool,
    decisions: Mutex<HashMap<(u64, Node), Decision, foldhash::fast::RandomState>>,
    hits: Vec<AtomicU64>,
    unknown: AtomicU64,
}

impl Access {
    /// Checks and compiles a file; its paths are added to `zones`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &AccessFile,
        identities: &Identities,
        zones: &mut Zones,
    ) -> Result<Access, PolicyError> {
        if file.rules.len() > RULES_MAX {
            return Err(PolicyError::TooMany { count: file.rules.len(), what: "rules", most: RULES_MAX });
        }
        let compile = |(number, rule): (usize, &RuleFile)| {
            let compiled = Rule::compile(rule, identities, zones);
            compiled.map_err(|why| PolicyError::Rule { number: number + 1, why: Box::new(why) })
        };
        let rules: Vec<Rule> = file.rules.iter().enumerate().map(compile).collect::<Result<_, _>>()?;
        Ok(Access {
            default_allow: file.default == Default::Allow,
            zone: super::time::zone(file.timezone.as_deref())?,
            needs_paths: rules.iter().any(|rule| rule.nodes.iter().any(|node| *node != ROOT.node)),
            asks: rules.iter().any(|rule| !matches!(rule.ops & ASKED, 0 | ASKED)),
            hits: (0..rules.len()).map(|_| AtomicU64::new(0)).collect(),
            rules,
            decisions: Mutex::default(),
            unknown: AtomicU64::new(0),
        })
    }

    /// What the rules say at a moment, without the memory.
    pub fn decide(&self, principal: &Principal, node: Node, zones: &Zones, unix_ms: u64) -> Decision {
        let moment = Moment::at(unix_ms, &self.zone);
        let mut decision = Decision {
            allow: if self.default_allow { ALL_OPS } else { Op::Null.bit() },
            rules: [NO_RULE; OPS],
            until_unix_ms: moment.until_unix_ms,
        };
        let mut open = ALL_OPS;
        for (number, rule) in self.rules.iter().enumerate() {
            let decided = rule.ops & open;
            if decided == 0 || !rule.fits(principal, node, zones, &moment) {
                continue;
            }
            open &= !decided;
            decision.allow = if rule.allow { decision.allow | decided } else { decision.allow & !decided };
            for op in Op::ALL.iter().filter(|op| decided & op.bit() != 0) {
                decision.rules[op.index()] = u16::try_from(number).unwrap_or(NO_RULE);
            }
        }
        decision
    }

    fn remembered(&self, principal: &Principal, node: Node, zones: &Zones, unix_ms: u64) -> Decision {
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (principal.id, node);
        if let Some(decision) = decisions.get(&key).filter(|decision| unix_ms < decision.until_unix_ms) {
            return *decision;
        }
        if decisions.len() >= DECISIONS_MAX {
            decisions.clear();
        }
        let decision = self.decide(principal, node, zones, unix_ms);
        decisions.insert(key, decision);
        decision
    }

    /// What a call that does all of these, as bits, is answered with; `None` if it is allowed.
    fn refusal(&self, decision: &Decision, does: u32) -> Option<Status> {
        let denied = does::each(does & !decision.allow).next()?;
        let rule = self.rules.get(usize::from(decision.rules[denied.index()]));
        Some(rule.map_or(Status::Acces, |rule| rule.answer))
    }

    /// Like [`Access::refusal`], and counts it for the rule.
    fn refuses(&self, decision: &Decision, does: u32) -> Result<(), Verdict> {
        let Some(status) = self.refusal(decision, does) else { return Ok(()) };
        let denied = does::each(does & !decision.allow).next();
        let hits = denied.and_then(|op| self.hits.get(usize::from(decision.rules[op.index()])));
        if let Some(hits) = hits {
            hits.fetch_add(1, Ordering::Relaxed);
        }
        Err(Verdict::Answer(status))
    }

    fn judge(
        &self,
        call: &mut Call<'_>,
        targets: &Targets,
        context: &Context<'_>,
    ) -> Result<Decision, Verdict> {
        let (caller, unix_ms, does) = (call.caller, call.now.unix_ms, call.does());
        let at = |place: Place| self.remembered(caller, place.node, context.zones, unix_ms);
        let decision = at(targets.first);
        self.refuses(&decision, does)?;
        let second = targets.second.map(at);
        if let Some(second) = &second {
            self.refuses(second, does)?;
        }
        if call.op() == Op::Rename {
            self.replaces(call, second.as_ref().unwrap_or(&decision))?;
        }
        Ok(decision)
    }

    /// A RENAME removes what had the new name: where a removal is denied, the server is asked whether there is something, and what.
    fn replaces(&self, call: &mut Call<'_>, decision: &Decision) -> Result<(), Verdict> {
        if does::REMOVALS & !decision.allow == 0 {
            return Ok(());
        }
        let handle = Handle::new(call.handle(1)).filter(|handle| !handle.as_bytes().is_empty());
        // In a folder that the COMPOUND has found or made itself, nobody knows.
        let Some(handle) = handle else { return self.refuses(decision, does::REMOVALS) };
        let probe = Probe { handle, name: Some(call.name(1).into()) };
        let Some(told) = call.told.iter().find(|told| told.probe == probe) else {
            call.probe = Some(Box::new(probe));
            return Err(Verdict::Ask);
        };
        let kind = told.attributes.as_ref().map(|attributes| get_u32(attributes, at::KIND));
        match (Status::of(told.status), kind) {
            (Status::Noent, _) => Ok(()),
            (Status::Ok, Some(ftype::DIRECTORY)) => self.refuses(decision, Op::Rmdir.bit()),
            (Status::Ok, Some(_)) => self.refuses(decision, Op::Remove.bit()),
            (Status::Ok, None) => self.refuses(decision, does::REMOVALS),
            (status, _) => Err(Verdict::Answer(status)),
        }
    }
}

impl Rule {
    fn compile(file: &RuleFile, identities: &Identities, zones: &mut Zones) -> Result<Rule, PolicyError> {
        let (allow, words) = match (file.allow.is_empty(), file.deny.is_empty()) {
            (false, true) => (true, &file.allow),
            (true, false) => (false, &file.deny),
            _ => return Err(PolicyError::AllowOrDeny),
        };
        if allow && file.answer.is_some() {
            return Err(PolicyError::Answer);
        }
        if let Some(role) = file.roles.iter().find(|role| !identities.has_role(role)) {
            return Err(PolicyError::NoIdentity(role.clone()));
        }
        let number = |text: &String, number: Option<u32>, what: &'static str| {
            number.ok_or_else(|| PolicyError::Nobody { what, name: text.clone() })
        };
        Ok(Rule {
            allow,
            ops: ops::parse(words)?,
            uids: file
                .users
                .iter()
                .map(|user| number(user, identities.uid(user), "user"))
                .collect::<Result<_, _>>()?,
            gids: file
                .groups
                .iter()
                .map(|group| number(group, identities.gid(group), "group"))
                .collect::<Result<_, _>>()?,
            roles: file.roles.clone(),
            clients: file.clients.iter().map(|text| subnet(text)).collect::<Result<_, _>>()?,
            nodes: file.paths.iter().map(|path| zones.add(path)).collect::<Result<_, _>>()?,
            time: file.time.iter().map(Window::compile).collect::<Result<_, _>>()?,
            answer: file.answer.map_or(Status::Acces, AnswerFile::status),
        })
    }

    fn fits(&self, principal: &Principal, node: Node, zones: &Zones, moment: &Moment) -> bool {
        let any = |empty: bool, found: bool| empty || found;
        any(self.uids.is_empty(), self.uids.contains(&principal.uid))
            && any(self.gids.is_empty(), self.gids.iter().any(|gid| principal.in_group(*gid)))
            && any(
                self.roles.is_empty(),
                self.roles.iter().any(|role| principal.roles.iter().any(|r| **r == **role)),
            )
            && any(self.clients.is_empty(), self.clients.iter().any(|net| net.contains(&principal.address)))
            && any(self.nodes.is_empty(), self.nodes.iter().any(|above| zones.within(node, *above)))
            && any(self.time.is_empty(), self.time.iter().any(|window| window.holds(moment)))
    }
}

/// An address, or a subnet.
///
/// # Errors
/// [`PolicyError::Subnet`].
pub fn subnet(text: &str) -> Result<IpNet, PolicyError> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| PolicyError::Subnet(text.to_string()))
}

/// The bits of ACCESS that the allowed operations leave.
pub fn access_bits(allow: u32) -> u32 {
    let may = |ops: &[Op]| ops.iter().any(|op| allow & op.bit() != 0);
    let mut bits = 0;
    for (bit, ops) in [
        (access::READ, &[Op::Read, Op::Readdir, Op::Readdirplus][..]),
        (access::LOOKUP, &[Op::Lookup]),
        (access::MODIFY, &[Op::Write, Op::Setattr, Op::Rename, Op::Remove]),
        (access::EXTEND, &[Op::Write, Op::Create, Op::Mkdir, Op::Symlink, Op::Mknod, Op::Link]),
        (access::DELETE, &[Op::Remove, Op::Rmdir, Op::Rename]),
        (access::EXECUTE, &[Op::Read]),
    ] {
        if may(ops) {
            bits |= bit;
        }
    }
    bits
}

impl Policy for Access {
    fn kind(&self) -> &'static str {
        "access"
    }

    fn ops(&self) -> u32 {
        ALL_OPS & !Op::Null.bit()
    }

    fn needs_handles(&self) -> bool {
        self.needs_paths || self.asks
    }

    fn request(&self, call: &mut Call<'_>, context: &Context<'_>) -> Verdict {
        let targets = if self.needs_paths {
            context.targets(call)
        } else {
            Some(Targets { first: ROOT, second: None })
        };
        let Some(targets) = targets else {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            return Verdict::Answer(context.places.unknown());
        };
        match self.judge(call, &targets, context) {
            Err(verdict) => verdict,
            Ok(decision) => {
                if let Some(at) = call.arguments.access_at {
                    let asked = call.word(at);
                    call.set_word(at, asked & access_bits(decision.allow));
                }
                Verdict::Forward
            }
        }
    }

    fn tells_removals(&self) -> bool {
        self.rules.iter().any(|rule| !matches!(rule.ops & does::REMOVALS, 0 | does::REMOVALS))
    }

    fn may_hide(&self) -> bool {
        !self.default_allow || self.rules.iter().any(|rule| !rule.allow && rule.ops & TOLD != 0)
    }

    fn hides(&self, caller: &Principal, place: Place, ops: u32, unix_ms: u64, context: &Context<'_>) -> bool {
        let node = if self.needs_paths { place.node } else { ROOT.node };
        ops & !self.remembered(caller, node, context.zones, unix_ms).allow != 0
    }

    fn mount(&self, mount: &Mount, context: &Context<'_>) -> Result<(), Status> {
        let decision = self.remembered(&mount.caller, mount.place.node, context.zones, mount.now.unix_ms);
        // Who may look at nothing at all may not mount either; a folder below the root is looked up for it.
        let below = mount.path.iter().any(|byte| *byte != b'/');
        let denied = TOLD & !decision.allow;
        if denied == TOLD || below && denied & Op::Lookup.bit() != 0 { Err(Status::Acces) } else { Ok(()) }
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let mut details: BTreeMap<String, u64> = self
            .hits
            .iter()
            .enumerate()
            .filter(|(_, hits)| hits.load(Ordering::Relaxed) > 0)
            .map(|(number, hits)| (format!("rule_{}_denied", number + 1), hits.load(Ordering::Relaxed)))
            .collect();
        details.insert("unknown_place".to_string(), self.unknown.load(Ordering::Relaxed));
        details
    }

    fn explain(&self, question: &Question, context: &Context<'_>) -> Step {
        let node = if self.needs_paths { question.place.node } else { ROOT.node };
        let decision = self.decide(&question.caller, node, context.zones, question.unix_ms);
        let does = does::always(question.op);
        let decides = does::each(does & !decision.allow).next().unwrap_or(question.op);
        let rule = decision.rules[decides.index()];
        let reason = match self.rules.get(usize::from(rule)) {
            Some(_) => format!("rule {}", rule + 1),
            None => "no rule fits: the default".to_string(),
        };
        match self.refusal(&decision, does) {
            Some(status) => Step::answer(status, reason),
            None => Step::forward(reason),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
