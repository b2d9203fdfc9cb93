//! `weir identity`: by which keys and certificates those who take part are known, and how these are changed and revoked.

use super::consent::Consent;
use super::output::{self, paint};
use super::{Failure, Output};
use clap::{Args, Subcommand};
use comfy_table::{Cell, Color};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_api::client::{Client, ClientError};
use weir_api::types::{CertificateView, GroupMember, IdentityView, RevokeRequest, RotateRequest};

/// How long a controller may take to hear what was ordered.
const KNOWN_BOUND: Duration = Duration::from_secs(20);
/// Between two looks.
const KNOWN_LOOK: Duration = Duration::from_millis(100);
/// From when a controller signs with its new key until the old one is dropped: what it signed before is ordered by then.
const GRACE: Duration = Duration::from_secs(3);
/// Digits of a fingerprint in a table.
const DIGITS: usize = 16;

#[derive(Debug, Subcommand)]
pub(super) enum Identity {
    /// List keys and certificates of hosts, gateways and controllers, with fingerprints and expiry
    List(List),
    /// Rotate the keys of a host, gateway or controller without downtime
    Rotate(Rotate),
    /// Revoke a host, gateway or controller: its keys are rejected from now on, for good
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// Its name, as 'weir identity list' shows it: h1, controller-2
    name: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// Its name, as 'weir identity list' shows it: h1, controller-2
    name: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

/// What is listed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(flatten)]
    identity: IdentityView,
    /// The certificate that a controller shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    shown: Option<CertificateView>,
}

impl Identity {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self {
            Identity::List(list) => {
                let listed = listed(client)?;
                output::print(list.output.output, &listed, || print(&listed))?;
            }
            Identity::Rotate(rotate) => {
                let found = find(client, &rotate.name)?;
                match found.kind.as_str() {
                    "controller" => rotate_controller(client, &found)?,
                    _ => rotate_actuator(client, &found)?,
                }
                let words = format!("{} has new keys, and the old ones are rejected.", rotate.name);
                output::done(rotate.output.output, json!({"rotated": rotate.name}), &words)?;
            }
            Identity::Revoke(revoke) => {
                revoke_one(client, revoke)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Has a host or gateway change its keys, and tells how far it is meanwhile.
fn rotate_actuator(client: &Client, found: &IdentityView) -> Result<(), Failure> {
    let request = RotateRequest { name: short(&found.source).to_string() };
    let ended = AtomicBool::new(false);
    let rotated = std::thread::scope(|scope| {
        scope.spawn(|| tell_progress(client, found, &ended));
        let rotated = client.rotate(&request);
        ended.store(true, Ordering::Release);
        rotated
    });
    Ok(rotated?)
}

/// Says once when the new key is known. What cannot be asked is not told: the command itself says how it ended.
fn tell_progress(client: &Client, before: &IdentityView, ended: &AtomicBool) {
    let name = short(&before.source);
    tell!("{name} is asked to make new keys");
    while !ended.load(Ordering::Acquire) {
        std::thread::sleep(KNOWN_LOOK);
        let listed = client.identities().map(|list| list.items).unwrap_or_default();
        let now = listed.into_iter().find(|one| one.source == before.source);
        if now.is_some_and(|now| now.key != before.key && now.previous.is_some()) {
            return tell!(
                "{name} has its new key; the old one is taken for some seconds more, for what it has signed"
            );
        }
    }
}

fn revoke_one(client: &Client, revoke: Revoke) -> Result<(), Failure> {
    let found = find(client, &revoke.name)?;
    let what = format!(
        "Of {} {} nothing is taken any more, and none of its keys ever again ({}).",
        found.kind, revoke.name, revoke.reason
    );
    if !revoke.consent.given(&what)? {
        return Ok(());
    }
    let request = RevokeRequest { source: found.source.clone(), reason: revoke.reason };
    let words = if found.kind == "controller" {
        let others = |member: &GroupMember| format!("controller/controller-{}", member.id) != found.source;
        match client.operators()?.signed {
            // An operator's word counts whoever hands it on.
            true => super::group::ask_one(client, others, |client| client.revoke(&request))?,
            false => super::group::ask_members(client, others, |client| client.revoke(&request))?,
        }
        format!(
            "{} is revoked: nothing that it says is taken. It votes and signs until 'weir group remove {}' has taken it out of \
             the group.",
            revoke.name,
            found.source.rsplit('-').next().unwrap_or_default()
        )
    } else {
        client.revoke(&request)?;
        format!(
            "{0} is revoked: nothing of it is taken. Its endpoints stay placed on it until they move, or until 'weir forget \
             {0}'; with a new token and an empty state directory it may join again.",
            revoke.name
        )
    };
    output::done(revoke.output.output, json!({"revoked": revoke.name}), &words)
}

/// The last part of a source's name.
fn short(source: &str) -> &str {
    source.rsplit('/').next().unwrap_or(source)
}

fn find(client: &Client, name: &str) -> Result<IdentityView, Failure> {
    let mut found: Vec<IdentityView> = client.identities()?.items;
    found.retain(|one| one.source == name || short(&one.source) == name);
    match (found.pop(), found.pop()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(Failure::Input(format!(
            "'{name}' is the name of more than one: say which, such as actuator/{name} or controller/{name}"
        ))),
        (None, _) => Err(Failure::Missing(format!(
            "nobody is named '{name}': 'weir identity list' shows who takes part"
        ))),
    }
}

/// Where people and tools reach the controllers, with their names; none but the one that is asked when it is alone.
fn controllers(client: &Client) -> Result<Vec<(String, String)>, Failure> {
    match client.group() {
        Ok(group) => {
            let named = |member: GroupMember| (format!("controller/controller-{}", member.id), member.api);
            Ok(group.members.into_iter().map(named).collect())
        }
        Err(ClientError::Refused(_)) => {
            Ok(vec![("controller/controller".into(), client.server().replace("https://", ""))])
        }
        Err(error) => Err(error.into()),
    }
}

fn listed(client: &Client) -> Result<Vec<Listed>, Failure> {
    let items = client.identities()?.items;
    let controllers = controllers(client)?;
    // One that cannot be reached shows nothing.
    let shown = |source: &String| {
        let (_, api) = controllers.iter().find(|(name, _)| name == source)?;
        Some(client.alone(api).ok()?.own_certificate().ok()?.own)
    };
    let with = |identity: IdentityView| Listed { shown: shown(&identity.source), identity };
    Ok(items.into_iter().map(with).collect())
}

fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "?".into(), |time| time.strftime("%Y-%m-%d").to_string())
}

fn cut(fingerprint: &str) -> &str {
    &fingerprint[..fingerprint.len().min(DIGITS)]
}

fn print(listed: &[Listed]) {
    let mut table = output::table(&["name", "kind", "state", "key", "certificate", "until"]);
    for Listed { identity, shown } in listed {
        let state = match (&identity.revoked, &identity.previous) {
            (Some(revoked), _) => paint(format!("revoked: {}", revoked.reason), Color::Red),
            (None, Some(previous)) => paint(format!("changes from {}", cut(previous)), Color::Yellow),
            (None, None) => paint("in force", Color::Green),
        };
        let certificates = identity.certificates.iter().chain(shown);
        let (keys, until): (Vec<&str>, Vec<String>) =
            certificates.map(|one| (cut(&one.key), date(one.until_s))).unzip();
        table.add_row(vec![
            Cell::new(short(&identity.source)),
            Cell::new(&identity.kind),
            state,
            Cell::new(identity.key.as_deref().map_or("", cut)),
            Cell::new(keys.join("\n")),
            Cell::new(until.join("\n")),
        ]);
    }
    say!("{table}");
}

/// Carries the steps of a controller's change from it to one that orders, and back. Given again it goes on where it was.
fn rotate_controller(client: &Client, found: &IdentityView) -> Result<(), Failure> {
    let controllers = controllers(client)?;
    let (_, api) = controllers.iter().find(|(name, _)| *name == found.source).ok_or_else(|| {
        Failure::Missing(format!("{} is not in the group: 'weir group list' shows who is", found.source))
    })?;
    let own = client.alone(api)?;
    client.order_key_change(&own.next_key()?)?;
    let until = Instant::now() + KNOWN_BOUND;
    let settled = loop {
        match own.use_next_key() {
            Ok(settled) => break settled,
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(KNOWN_LOOK),
        }
    };
    std::thread::sleep(GRACE);
    Ok(client.order_key_change(&settled)?)
}
