//! Settings of a controller: a YAML file, options of the command line over it, defaults below it.
//!
//! ```yaml
//! domain: prod                          # name of the domain; cannot change later
//! stateDir: /var/lib/weir/controller    # log, keys and certificates
//! api: 0.0.0.0:7443                     # where people and tools connect
//! session: 0.0.0.0:7444                 # where hosts and gateways connect
//! advertise: 192.0.2.10                 # address under which they reach this machine
//! certificateDays: 90                   # life of a host's certificate; it renews by itself
//! consistency: dependent                # dependent, linear or none: what an update of a switch waits for
//! auditMebibytes: 1024                  # how much of the audit is kept; 0: none
//! operators:                            # whose signed requests are taken, the same on all that found the domain; absent: nobody need sign
//!   - { name: alice, key: "9f…", role: admin }   # what 'weir operator key' prints; role: admin or operator
//! group:                                # absent: this controller is alone
//!   id: 1                               # its number in the group, from 1
//!   listen: 192.0.2.10:7445             # where the other controllers connect
//!   keys: /etc/weir/domain-keys.json    # the domain's secrets, the same for all ('weir group keys')
//!   wide: false                         # true: the controllers are in different places
//!   order: raft                         # raft: some may crash; bft: some may lie, and each founder has a key
//!   batch: { events: 512, bytes: 524288, wait: 0ms }   # what goes into one entry of the order, at most, and how long for it to fill
//!   signatures: shares                  # how changes are signed: shares, shares-at-switches, endorsed or shared-key; the same on all
//!   founders:                           # the same on all that found it; absent on one that is added later
//!     - { id: 1, replica: "192.0.2.10:7445", api: "192.0.2.10:7443", session: "192.0.2.10:7444" }
//!     - { id: 2, replica: "192.0.2.11:7445", api: "192.0.2.11:7443", session: "192.0.2.11:7444" }
//!     - { id: 3, replica: "192.0.2.12:7445", api: "192.0.2.12:7443", session: "192.0.2.12:7444" }
//!   replaceAfterSeconds: 600            # a controller that most others have not heard of for so long is replaced by a spare; absent: none is
//!   spares:                             # controllers that follow without a vote, the same on all; or 'weir group add --spare'
//!     - { id: 4, replica: "192.0.2.13:7445", api: "192.0.2.13:7443", session: "192.0.2.13:7444" }
//! ```
//!
//! With `order: bft` there are 4 founders or more, and each has its identity beside its addresses, as `weir group identity`
//! prints it: `key: "9f…"`. One that is added later has the same list, and is not in it.
//!
//! An unknown field is an error, and each error names field, value and what is allowed.

mod batch;
mod operators;

pub use batch::{Batch, GivenBatch};
pub use operators::GivenOperator;

use crate::failure::Failure;
use crate::roles::group::{MEMBER_NUMBER_MAX, MemberAddress};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use weir_controller::core::group::Spare;
use weir_model::Label;
use weir_model::group::SPARES_MAX;
use weir_model::join::from_hex;
use weir_model::operator::OperatorFacts;
use weir_model::session::CONTROLLERS_MAX as MEMBERS_MAX;
use weir_raft::Timers;

/// Lives of certificates that are allowed, days.
const CERTIFICATE_DAYS: std::ops::RangeInclusive<u32> = 1..=3650;
/// Life of a host's certificate unless told otherwise, days.
const CERTIFICATE_DAYS_DEFAULT: u32 = 90;

/// Waits before a silent member is replaced that are allowed, seconds. One that is right is minutes: a machine restarts in less.
const REPLACE_AFTER_SECONDS: std::ops::RangeInclusive<u64> = 5..=2_592_000;

/// Sizes of the audit that are allowed, MiB; 0, for none, beside them.
const AUDIT_MEBIBYTES: std::ops::RangeInclusive<u64> = 32..=1 << 20;
/// Size of the audit unless told otherwise, MiB.
const AUDIT_MEBIBYTES_DEFAULT: u64 = 1024;

/// Settings that may be absent, from the file or from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Given {
    /// Name of the domain.
    pub domain: Option<String>,
    /// Directory of the log, keys and certificates.
    pub state_dir: Option<PathBuf>,
    /// Where the API listens.
    pub api: Option<String>,
    /// Where sessions listen.
    pub session: Option<String>,
    /// Address under which hosts reach this machine.
    pub advertise: Option<String>,
    /// Life of a host's certificate, days.
    pub certificate_days: Option<u32>,
    /// What an update of a switch waits for.
    pub consistency: Option<Consistency>,
    /// Size of the audit on disk, MiB.
    pub audit_mebibytes: Option<u64>,
    /// The people whose signed requests are taken.
    pub operators: Option<Vec<GivenOperator>>,
    /// The group that it is in.
    pub group: Option<GivenGroup>,
}

/// The part `group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GivenGroup {
    /// Number of this controller.
    pub id: u64,
    /// Where the other controllers connect.
    pub listen: String,
    /// The domain's secrets.
    #[serde(default)]
    pub keys: Option<PathBuf>,
    /// Whether the controllers are in different places.
    #[serde(default)]
    pub wide: bool,
    /// How decided batches are signed.
    #[serde(default)]
    pub signatures: Signatures,
    /// What the order survives.
    #[serde(default)]
    pub order: Ordering,
    /// What goes into one entry of the order.
    #[serde(default)]
    pub batch: GivenBatch,
    /// Those who found the group.
    #[serde(default)]
    pub founders: Vec<GivenFounder>,
    /// Controllers that follow without a vote, and take the place of one that is gone.
    #[serde(default)]
    pub spares: Vec<GivenFounder>,
    /// After how long a member that is not heard is replaced by a spare, seconds.
    #[serde(default)]
    pub replace_after_seconds: Option<u64>,
    /// Whether it begins without being a member: an option of the command line.
    #[serde(skip)]
    pub joins: bool,
}

/// What an update of a switch waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// For what must come before it, by its plan; all else goes in parallel.
    #[default]
    Dependent,
    /// For every update that was decided before it, anywhere: one at a time.
    Linear,
    /// For nothing. Intermediate states may be wrong: to measure, not to use.
    None,
}

/// How a group signs what it decides. All its controllers must be set the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signatures {
    /// Each controller has a share of a key, and several must sign.
    #[default]
    Shares,
    /// The same, and switches put the shares together instead of a controller.
    SharesAtSwitches,
    /// The same, and switches take signatures of several controllers' own keys until there is one of shares.
    Endorsed,
    /// All have the same key, and each can sign alone: the group survives crashes only.
    SharedKey,
}

/// What a group's order survives. All its controllers must be set the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// That f of 2f+1 controllers crash.
    #[default]
    Raft,
    /// That f of 3f+1 controllers do whatever they like.
    Bft,
}

/// One who founds the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GivenFounder {
    /// Its number.
    pub id: u64,
    /// Where the other controllers reach it.
    pub replica: String,
    /// Where people and tools reach it.
    pub api: String,
    /// Where hosts and gateways reach it.
    pub session: String,
    /// Its identity, hexadecimal; with `order: bft`.
    #[serde(default)]
    pub key: Option<String>,
}

/// The group that a controller is in, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Number of this controller.
    pub id: u64,
    /// Where the other controllers connect.
    pub listen: SocketAddr,
    /// The domain's secrets.
    pub keys: Option<PathBuf>,
    /// How fast the loss of the leader is noticed.
    pub timers: Timers,
    /// Whether the controllers are in different places.
    pub wide: bool,
    /// How decided batches are signed.
    pub signatures: Signatures,
    /// What the order survives.
    pub order: Ordering,
    /// What goes into one entry of the order.
    pub batch: Batch,
    /// Identities of the founders, where the order survives lies.
    pub founder_keys: BTreeMap<u64, [u8; 32]>,
    /// Whether it begins without being a member, and waits to be added.
    pub joins: bool,
    /// Those who found the group; empty: it waits to be added.
    pub founders: BTreeMap<u64, MemberAddress>,
    /// Controllers that follow without a vote.
    pub spares: BTreeMap<u64, Spare>,
    /// After how long a member that is not heard is replaced by a spare, milliseconds; 0: never.
    pub replace_after_ms: u64,
    /// Where this controller is reached.
    pub own: MemberAddress,
}

/// Settings of a controller, whole and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Name of the domain.
    pub domain: Label,
    /// Directory of the log, keys and certificates.
    pub state_dir: PathBuf,
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where sessions listen.
    pub session: SocketAddr,
    /// Address under which hosts reach this machine.
    pub advertise: IpAddr,
    /// Life of a host's certificate, days.
    pub certificate_days: u32,
    /// What an update of a switch waits for.
    pub consistency: Consistency,
    /// Size of the audit on disk, bytes, at most; 0: none is kept.
    pub audit_bytes: u64,
    /// The people whose signed requests are taken from the domain's beginning on; none: nobody need sign.
    pub operators: BTreeMap<Label, OperatorFacts>,
    /// The group that it is in; `None`: it is alone.
    pub group: Option<GroupConfig>,
}

fn wrong(field: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Failure {
    Failure::Input(format!("{field}: '{value}' is not allowed: {allowed}"))
}

fn address_of(field: &str, text: &str) -> Result<SocketAddr, Failure> {
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    address.ok_or_else(|| wrong(field, text, "use ADDRESS:PORT, such as 0.0.0.0:7443 or [::]:7443"))
}

impl GivenGroup {
    /// Whole and checked.
    ///
    /// # Errors
    /// The field, its value, and what is allowed.
    pub fn check(
        &self,
        advertise: IpAddr,
        api: SocketAddr,
        session: SocketAddr,
    ) -> Result<GroupConfig, Failure> {
        if !(1..=MEMBER_NUMBER_MAX).contains(&self.id) {
            return Err(wrong("group.id", self.id, format!("use 1 to {MEMBER_NUMBER_MAX}")));
        }
        let listen = address_of("group.listen", &self.listen)?;
        let at = |port: u16| SocketAddr::new(advertise, port).to_string();
        let own =
            MemberAddress { replica: at(listen.port()), api: at(api.port()), session: at(session.port()) };
        let mut founders = BTreeMap::new();
        for one in &self.founders {
            let (replica, api, session) = (one.replica.clone(), one.api.clone(), one.session.clone());
            let address = MemberAddress { replica, api, session };
            address
                .check()
                .map_err(|error| Failure::Input(format!("group.founders: controller {}: {error}", one.id)))?;
            if !(1..=MEMBER_NUMBER_MAX).contains(&one.id) || founders.insert(one.id, address).is_some() {
                return Err(wrong("group.founders", one.id, "each has a number of its own, 1 to 255"));
            }
        }
        if founders.len() > MEMBERS_MAX {
            let allowed = format!("a group has at most {MEMBERS_MAX} controllers");
            return Err(wrong("group.founders", founders.len(), &allowed));
        }
        match founders.get(&self.id) {
            Some(listed) if *listed != own => {
                return Err(Failure::Input(format!(
                    "group.founders: controller {} is listed at {listed}, and by advertise, api, session and \
                     group.listen it is at {own}: they must agree",
                    self.id
                )));
            }
            None if !founders.is_empty() && self.order == Ordering::Raft => {
                let allowed = "the list must have this controller too; one that is added later has no list";
                return Err(wrong("group.id", self.id, allowed));
            }
            _ => {}
        }
        let timers = if self.wide { Timers::WAN } else { Timers::LAN };
        let founder_keys = match self.order {
            Ordering::Raft => BTreeMap::new(),
            Ordering::Bft => self.identities()?,
        };
        let (id, keys, signatures) = (self.id, self.keys.clone(), self.signatures);
        let (wide, order) = (self.wide, self.order);
        let batch = self.batch.check()?;
        let joins = self.joins;
        let spares = self.named_spares(&founders)?;
        let after = self.replace_after_seconds;
        if let Some(seconds) = after.filter(|seconds| !REPLACE_AFTER_SECONDS.contains(seconds)) {
            return Err(wrong(
                "group.replaceAfterSeconds",
                seconds,
                "use 5 to 2592000 seconds; leave it out for never",
            ));
        }
        let replace_after_ms = 1_000 * after.unwrap_or_default();
        Ok(GroupConfig {
            id,
            listen,
            keys,
            timers,
            wide,
            signatures,
            order,
            batch,
            founder_keys,
            joins,
            founders,
            spares,
            replace_after_ms,
            own,
        })
    }

    /// The spares that are named, each at an address of its own.
    fn named_spares(&self, founders: &BTreeMap<u64, MemberAddress>) -> Result<BTreeMap<u64, Spare>, Failure> {
        let mut spares = BTreeMap::new();
        for one in &self.spares {
            let field = format!("group.spares: controller {}", one.id);
            let (replica, api, session) = (one.replica.clone(), one.api.clone(), one.session.clone());
            let address = MemberAddress { replica, api, session };
            address.check().map_err(|error| Failure::Input(format!("{field}: {error}")))?;
            if founders.contains_key(&one.id)
                || founders.values().any(|known| known.replica == address.replica)
            {
                return Err(Failure::Input(format!(
                    "{field}: it is a founder, or at the address of one: a spare is another controller"
                )));
            }
            let key = match self.order {
                Ordering::Raft => None,
                Ordering::Bft => {
                    let text = one.key.clone().unwrap_or_default();
                    let allowed = "use the 64 hexadecimal digits that 'weir group identity --state DIRECTORY' prints on its machine";
                    Some(
                        from_hex::<32>(&text)
                            .ok_or_else(|| wrong(&format!("{field}: key"), &text, allowed))?,
                    )
                }
            };
            let spare = Spare { key, address: address.to_string() };
            if !(1..=MEMBER_NUMBER_MAX).contains(&one.id) || spares.insert(one.id, spare).is_some() {
                return Err(wrong("group.spares", one.id, "each has a number of its own, 1 to 255"));
            }
        }
        if spares.len() > SPARES_MAX {
            return Err(wrong(
                "group.spares",
                spares.len(),
                format!("a group has at most {SPARES_MAX} spares"),
            ));
        }
        Ok(spares)
    }

    /// What a group that survives lies must have beside: enough members, each with a key of its own.
    fn identities(&self) -> Result<BTreeMap<u64, [u8; 32]>, Failure> {
        let count = self.founders.len();
        if count < 4 {
            let allowed = "with order: bft a group has 4 controllers or more, of which fewer than a third may lie: list 4 to 16, the \
                           same on all, also on one that is added later";
            return Err(wrong("group.founders", format!("{count} controllers"), allowed));
        }
        if self.signatures == Signatures::SharedKey {
            let allowed =
                "with order: bft no controller may sign alone: use shares, shares-at-switches or endorsed";
            return Err(wrong("group.signatures", "shared-key", allowed));
        }
        let mut keys = BTreeMap::new();
        for one in &self.founders {
            let field = format!("group.founders: key of controller {}", one.id);
            let allowed = "use the 64 hexadecimal digits that 'weir group identity --state DIRECTORY' prints on its machine";
            let text = one.key.clone().unwrap_or_default();
            let key = from_hex::<32>(&text).ok_or_else(|| wrong(&field, &text, allowed))?;
            if keys.values().any(|known| *known == key) {
                return Err(wrong(&field, &text, "another controller has it: each makes its own"));
            }
            keys.insert(one.id, key);
        }
        Ok(keys)
    }
}

impl Given {
    /// Reads a file.
    ///
    /// # Errors
    /// The file, the field, its value, and what is allowed.
    pub fn read(path: &Path) -> Result<Given, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::Missing(format!(
                "{name}: there is no such file; packaging/examples/controller.yaml is one to begin with"
            )),
            _ => Failure::io(name.clone())(error),
        })?;
        let in_file = |error: String| Failure::Input(format!("{name}: {error}"));
        let given: Given = weir_document::read(&text).map_err(|error| in_file(error.to_string()))?;
        // What is wrong in the file is told with the file, also where an option stands over it.
        given.fields().map_err(|error| in_file(error.to_string()))?;
        Ok(given)
    }

    /// These settings, and `below` where they are absent.
    pub fn over(self, below: Given) -> Given {
        Given {
            domain: self.domain.or(below.domain),
            state_dir: self.state_dir.or(below.state_dir),
            api: self.api.or(below.api),
            session: self.session.or(below.session),
            advertise: self.advertise.or(below.advertise),
            certificate_days: self.certificate_days.or(below.certificate_days),
            consistency: self.consistency.or(below.consistency),
            audit_mebibytes: self.audit_mebibytes.or(below.audit_mebibytes),
            operators: self.operators.or(below.operators),
            group: self.group.or(below.group),
        }
    }

    /// With the defaults, and without a check that spans several fields.
    fn fields(&self) -> Result<(ControllerConfig, bool), Failure> {
        let listen = |field: &str, text: &Option<String>, default: &str| {
            address_of(field, text.as_deref().unwrap_or(default))
        };
        let domain = self.domain.clone().unwrap_or_else(|| "weir".to_string());
        let domain = Label::new(domain).map_err(|error| Failure::Input(format!("domain: {error}")))?;
        let state_dir = self.state_dir.clone().unwrap_or_else(|| "/var/lib/weir/controller".into());
        let api = listen("api", &self.api, "0.0.0.0:7443")?;
        let session = listen("session", &self.session, "0.0.0.0:7444")?;
        let advertise = match &self.advertise {
            None => api.ip(),
            Some(text) => {
                text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()).ok_or_else(|| {
                    wrong("advertise", text, "use the one address under which hosts reach this machine")
                })?
            }
        };
        let certificate_days = self.certificate_days.unwrap_or(CERTIFICATE_DAYS_DEFAULT);
        if !CERTIFICATE_DAYS.contains(&certificate_days) {
            return Err(wrong("certificateDays", certificate_days, "use 1 to 3650 days"));
        }
        let consistency = self.consistency.unwrap_or_default();
        let audit = self.audit_mebibytes.unwrap_or(AUDIT_MEBIBYTES_DEFAULT);
        if audit != 0 && !AUDIT_MEBIBYTES.contains(&audit) {
            return Err(wrong("auditMebibytes", audit, "use 32 to 1048576 MiB, or 0 to keep no audit"));
        }
        let config = ControllerConfig {
            domain,
            state_dir,
            api,
            session,
            advertise,
            certificate_days,
            consistency,
            audit_bytes: audit << 20,
            operators: operators::check(self.operators.as_deref().unwrap_or_default())?,
            group: None,
        };
        Ok((config, self.advertise.is_some()))
    }

    /// The settings, with defaults for what is absent.
    ///
    /// # Errors
    /// The field, its value, and what is allowed.
    pub fn check(&self) -> Result<ControllerConfig, Failure> {
        let (mut config, advertised) = self.fields()?;
        if !advertised && config.api.ip().is_unspecified() {
            return Err(Failure::Input(format!(
                "api: {} listens on every address: say with --advertise, or 'advertise' in the file, under \
                 which one hosts reach this machine",
                config.api
            )));
        }
        let group = self.group.as_ref();
        config.group =
            group.map(|group| group.check(config.advertise, config.api, config.session)).transpose()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
