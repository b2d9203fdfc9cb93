//! `weir group`: the controllers of a domain, who leads them, and who is one.

use super::consent::Consent;
use super::convert::Convert;
use super::output::{self, paint};
use super::set_aside::SetAside;
use super::written::{Force, Readers, is_stdout};
use super::{Failure, Output};
use crate::roles::keys::Keys as DomainKeys;
use clap::{Args, Subcommand};
use comfy_table::{Cell, Color};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_api::client::{Client, ClientError};
use weir_api::types::{AddMember, GroupMember, GroupReplaced, GroupSigning, GroupStatus, GroupSuspicion};
use weir_model::Label;

/// Most lines told of one kind.
const LINES_TOLD_MAX: usize = 8;

#[derive(Debug, Subcommand)]
pub(super) enum Group {
    /// List the controllers of the group, and show who leads
    List(List),
    /// Add a controller that runs with --join-group; returns when it has caught up and votes
    Add(Add),
    /// Make the controller that is alone the first member of a group, and add the others; traffic and writes go on
    Convert(Convert),
    /// Remove a controller
    Remove(Remove),
    /// Reshare the group's key: old shares become useless, the public key stays the same
    Refresh(Refresh),
    /// Write the domain's secrets to a file, for the settings group.keys of every controller
    Keys(Keys),
    /// Print a controller's public key, for group.founders with group.order: bft; makes it if there is none
    Identity(Identity),
    /// Set an entry of the order aside that ends the controllers' processes, so that nothing of it is done: on the machine of a controller
    /// that waits before it, and says which it is. It goes on without the entry when as many controllers as decide have promised the same
    SetAside(SetAside),
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// Its number: group.id in its settings
    id: u64,
    /// Where the other controllers reach it
    #[arg(long, value_name = "ADDRESS:PORT")]
    replica: String,
    /// Where people and tools reach it
    #[arg(long, value_name = "ADDRESS:PORT")]
    api: String,
    /// Where hosts and gateways reach it
    #[arg(long, value_name = "ADDRESS:PORT")]
    session: String,
    /// The key by which the others know it, in a group with order: bft: what 'weir group identity' prints on its machine
    #[arg(long, value_name = "HEX")]
    key: Option<String>,
    /// Keep it as a spare: it follows without a vote, and takes the place of a controller that is gone or was proven to lie
    #[arg(long)]
    spare: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Its number
    id: u64,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Refresh {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Keys {
    /// State directory of a controller of the domain; made, for a new domain, when it is not there
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// Name of the domain
    #[arg(long, default_value = "weir")]
    domain: String,
    /// The file to write, '-' for the standard output. Whoever has it is a controller of the domain
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
}

#[derive(Debug, Args)]
pub(super) struct Identity {
    /// State directory of the controller; made when it is not there
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Identity {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let key = crate::roles::group::identity(&self.state)?.to_string();
        output::done(self.output.output, json!({"key": key}), &key)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Group {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self {
            Group::List(list) => {
                let group = client.group()?;
                output::print(list.output.output, &group, || say!("{}", text(&group)))?;
            }
            Group::Add(add) => {
                let Add { id, replica, api, session, key, spare, output } = add;
                let member = AddMember { id, replica, api, session, key, spare };
                ask_members(client, |_| true, |client| client.add_member(&member))?;
                let words = match spare {
                    true => format!("Controller {id} is a spare of the group, and has caught up."),
                    false => format!("Controller {id} is in the group, has caught up, and votes."),
                };
                output::done(output.output, json!({"added": id}), &words)?;
            }
            Group::Convert(convert) => return convert.run(client),
            Group::Remove(remove) => {
                let group = client.group()?;
                let Some(member) = group.members.iter().find(|member| member.id == remove.id) else {
                    let text = format!(
                        "no controller {} is in the group: 'weir group list' shows who is",
                        remove.id
                    );
                    return Err(Failure::Missing(text));
                };
                let what = format!(
                    "Controller {} ({}) leaves the group of {}: it votes and signs no more, and comes back only as a new one.",
                    remove.id,
                    member.api,
                    group.members.len()
                );
                if !remove.consent.given(&what)? {
                    return Ok(ExitCode::SUCCESS);
                }
                ask_members(client, |_| true, |client| client.remove_member(remove.id))?;
                let words = format!("Controller {} is in the group no more: stop it.", remove.id);
                output::done(remove.output.output, json!({"removed": remove.id}), &words)?;
            }
            Group::Refresh(refresh) => {
                client.refresh_group()?;
                let words = "Every controller has a new share; the group's key is the same.";
                output::done(refresh.output.output, json!({"refreshed": true}), words)?;
            }
            Group::Keys(keys) => return keys.run(),
            Group::Identity(identity) => return identity.run(),
            Group::SetAside(aside) => return aside.run(None),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks members until one of them answers: for what carries an operator's word, whoever hands it on.
pub(super) fn ask_one(
    client: &Client,
    whom: impl Fn(&GroupMember) -> bool,
    ask: impl Fn(&Client) -> Result<(), ClientError>,
) -> Result<(), Failure> {
    let group = client.group()?;
    if group.order != "bft" {
        return Ok(ask(client)?);
    }
    let mut failed = None;
    for member in group.members.iter().filter(|member| whom(member)) {
        match client.alone(&member.api).and_then(|one| ask(&one)) {
            Err(
                error @ (ClientError::Unreachable { may_be_done: false, .. } | ClientError::Clock { .. }),
            ) => {
                failed = Some(error);
            }
            answer => return Ok(answer?),
        }
    }
    let nobody = || ClientError::Answer("the group has no other controller".to_owned());
    Err(failed.unwrap_or_else(nobody).into())
}

/// Asks the one that leads; or, where none is believed, every member by itself. It is done when more of them say so than may lie.
pub(super) fn ask_members(
    client: &Client,
    whom: impl Fn(&GroupMember) -> bool,
    ask: impl Fn(&Client) -> Result<(), ClientError> + Sync,
) -> Result<(), Failure> {
    let group = client.group()?;
    if group.order != "bft" {
        return Ok(ask(client)?);
    }
    let answers: Vec<Result<(), ClientError>> = std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = group
            .members
            .iter()
            .filter(|member| member.voter && whom(member))
            .map(|member| scope.spawn(move || client.alone(&member.api).and_then(|one| ask(&one))))
            .collect();
        // A thread that panicked has said why.
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // One more than may lie, so that one of them at least tells the truth.
    let count = group.members.iter().filter(|member| member.voter).count();
    let needed = count.saturating_sub(1) / 3 + 1;
    let said = answers.iter().filter(|answer| answer.is_ok()).count();
    if said >= needed {
        return Ok(());
    }
    if said > 0 {
        let text = format!(
            "{said} of {count} controllers say that it is done, and {needed} must, as some may lie: see 'weir group list' at others, or ask again"
        );
        return Err(Failure::Refused(text));
    }
    // A refusal tells more than a silence.
    let (refused, silent): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .filter_map(Result::err)
        .partition(|error| matches!(error, ClientError::Refused(_)));
    match refused.into_iter().chain(silent).next() {
        Some(error) => Err(error.into()),
        None => Err(Failure::Refused("the group has no members".to_string())),
    }
}

impl Keys {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let domain = Label::new(self.domain).map_err(|error| Failure::Input(format!("domain: {error}")))?;
        let wrong = |error: crate::roles::state::StateError| Failure::Refused(error.to_string());
        self.force.write(&self.out, Readers::Owner, |out| {
            let text = DomainKeys::of(&self.state, &domain).map_err(wrong)?.to_text().map_err(wrong)?;
            out.write_all(text.as_bytes()).map_err(Failure::io(self.out.display().to_string()))
        })?;
        if !is_stdout(&self.out) {
            say!(
                "Written to {}. It is secret: copy it to the machine of each controller by a safe way, and delete it when \
                 every controller has started once.",
                self.out.display()
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The group in words, as `weir status` and `weir group list` show it.
pub(super) fn text(group: &GroupStatus) -> String {
    let leader = group.leader.map_or("nobody".to_string(), |leader| format!("controller {leader}"));
    let count = group.members.iter().filter(|member| !member.spare).count();
    let term = group.term;
    let who = match group.order.as_str() {
        "bft" => format!(
            "{} may lie; each takes changes; {leader} sends to switches; view {term}",
            (count.max(1) - 1) / 3
        ),
        _ => format!("{leader} leads in term {term}"),
    };
    let mut text = format!(
        "Group of {count} controllers; {who}. Controller {} answers: {}, {} batches applied.",
        group.id, group.role, group.applied
    );
    for (what, reason) in [
        ("fenced", &group.fenced),
        ("stopped", &group.failure),
        ("full, and takes nothing new", &group.full),
        ("cut off, and shows what it knew last", &group.cut_off),
    ] {
        if let Some(reason) = reason {
            text.push_str(&format!("\nController {} is {what}: {reason}", group.id));
        }
    }
    let mut table = output::table(&["controller", "role", "behind", "api", "session", "replica"]);
    for member in &group.members {
        let role = match (group.leader == Some(member.id), member.voter) {
            (true, _) => paint("leader", Color::Green),
            (false, true) => Cell::new("follower"),
            (false, false) if member.spare => Cell::new("spare"),
            (false, false) => Cell::new("no vote yet"),
        };
        let leads = group.leader == Some(member.id);
        let behind = match (member.lag, member.silent_ms) {
            _ if leads || member.id == group.id => Cell::new(""),
            (_, Some(silent_ms)) => paint(format!("silent for {} s", silent_ms / 1_000), Color::Red),
            (Some(lag), _) => Cell::new(format!("{lag} entries")),
            (None, None) if member.unreached.is_some() => paint("not reached", Color::Red),
            (None, None) => Cell::new("?"),
        };
        table.add_row(vec![
            Cell::new(member.id),
            role,
            behind,
            Cell::new(&member.api),
            Cell::new(&member.session),
            Cell::new(&member.replica),
        ]);
    }
    let signing = group.signing.as_ref().map(signing).unwrap_or_default();
    let unreached = group.members.iter().filter_map(|member| Some((member.id, member.unreached.as_ref()?)));
    let unreached: String = unreached
        .map(|(id, why)| format!("\nController {} does not reach controller {id}: {why}", group.id))
        .collect();
    format!("{text}\n{table}{unreached}{}{signing}", said_of(group))
}

/// What the controllers say of each other, in words.
fn said_of(group: &GroupStatus) -> String {
    let list = |who: &[u64]| who.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    for GroupSuspicion { member, lied, by, for_ms, due_in_ms, .. } in &group.suspicions {
        let (by, is_spare) = (list(by), group.members.iter().any(|known| known.id == *member && known.spare));
        text.push_str(&match (lied, due_in_ms) {
            (true, _) => format!("\nController {member} is proven to have lied: {by} have checked it"),
            (false, None) => format!("\nController {member} is suspected by {by}, for {} s", for_ms / 1_000),
            (false, Some(due_ms)) => format!(
                "\nController {member} is suspected by {by}, for {} s: it may be replaced by a spare in {} s",
                for_ms / 1_000,
                due_ms.div_ceil(1_000)
            ),
        });
        if is_spare {
            text.push_str("; it is a spare, and takes no place meanwhile");
        }
    }
    for GroupReplaced { member, spare, because, by, ago_ms, .. } in &group.replaced {
        let became = spare.map_or("removed".to_string(), |spare| format!("replaced by spare {spare}"));
        let why = if because == "lied" { "it was proven to have lied" } else { "it was not heard" };
        let by = list(by);
        text.push_str(&format!(
            "\nController {member} was {became} {} s ago: {why}, by the word of {by}",
            ago_ms / 1_000
        ));
    }
    text
}

/// How the group signs, in words.
fn signing(signing: &GroupSigning) -> String {
    let list = |members: &[u32]| members.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut text = match &signing.key {
        None => "\nThe controllers have not made the group's key yet: all that found the group must run."
            .to_string(),
        Some(key) => format!(
            "\nSigned by any {} of controllers {} with shares of key {}… (dealing {}).",
            signing.threshold,
            list(&signing.members),
            &key[..key.len().min(16)],
            signing.phase
        ),
    };
    if let Some(dealing) = signing.dealing {
        text.push_str(&format!(" Dealing {dealing} goes on."));
    }
    if signing.key.is_some() && signing.own_share != signing.phase {
        text.push_str(" The controller that answers has no share of it yet.");
    }
    if let Some(aggregator) = signing.aggregator {
        text.push_str(&format!(" Controller {aggregator} puts signatures together."));
    }
    if signing.waiting > 0 {
        text.push_str(&format!(" {} batches wait for a signature.", signing.waiting));
    }
    for (what, lines) in [("Passed over", &signing.passed_over), ("Found", &signing.faults)] {
        for line in lines.iter().rev().take(LINES_TOLD_MAX) {
            text.push_str(&format!("\n{what}: {line}"));
        }
        let more = lines.len().saturating_sub(LINES_TOLD_MAX);
        if more > 0 {
            text.push_str(&format!("\n{what}: … and {more} more before"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    //! Tests of what is said of a group.

    use super::*;

    #[test]
    fn who_is_not_heard_is_shown_so_and_never_as_up_to_date() {
        let member = |id: u64, told: serde_json::Value| {
            let mut member =
                json!({"id": id, "voter": true, "replica": "r", "api": "a", "session": "s", "lag": null});
            member.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
            member
        };
        let group: GroupStatus = serde_json::from_value(json!({
            "id": 1, "order": "raft", "role": "leader", "leader": 1, "term": 3, "applied": 9, "fenced": null, "failure": null,
            "members": [
                member(1, json!({})),
                member(2, json!({"lag": 0})),
                member(3, json!({"lag": 0, "silentMs": 61_500})),
                member(4, json!({"unreached": "connection refused"})),
            ],
        }))
        .unwrap();
        let said = text(&group);
        let row = |id: u64| {
            let found = said.lines().find(|line| line.contains(&format!(" {id} ")) && line.contains(" r "));
            found.unwrap_or_else(|| panic!("{said}")).to_string()
        };
        assert!(row(2).contains("0 entries"), "{said}");
        assert!(row(3).contains("silent for 61 s") && !row(3).contains("entries"), "{said}");
        assert!(
            row(4).contains("not reached") && said.contains("controller 4: connection refused"),
            "{said}"
        );
    }
}
