//! The lab's programs: Weir's own roles, and unmodified programs of Debian in the guests. Each has a name by which it
//! can be ended and started again.

use super::guest;
use super::place::{
    API_PORT, EXTERNAL_V4, EXTERNAL_V6, GATEWAY, HOSTS, METRICS_ADDRESS, Member, Place, REPLICA_PORT,
    SESSION_PORT, make_folder,
};
use super::topology::DEVICE;
use crate::failure::Failure;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_api::client::{Client, Context};
use weir_api::types::TokenRequest;
use weir_lab::process::{Daemon, Record};
use weir_lab::{Error, Program, Scope, system};
use weir_model::event::Role;
use weir_model::join::to_hex;

/// How long the controllers may take to answer.
const CONTROLLER_BOUND: Duration = Duration::from_secs(20);
/// How long hosts and gateway may take to join.
const JOIN_BOUND: Duration = Duration::from_secs(30);
/// Name of the lab's operator.
const OPERATOR: &str = "lab";
/// How long a join token of the lab is good for, seconds.
const TOKEN_VALID_S: u32 = 3600;

/// Where a member keeps its state.
pub fn state(scope: &Scope, member: &Member) -> PathBuf {
    scope.folder().join(member.name).join("state")
}

/// Where a host or gateway keeps sockets and pid files.
pub fn run(scope: &Scope, member: &Member) -> PathBuf {
    scope.folder().join(member.name).join("run")
}

/// The context for the command line: the one that the first controller writes, which in a group names the others too; where operators sign,
/// the lab's own, which has the key of its operator as well.
pub fn context_path(scope: &Scope, place: Place) -> PathBuf {
    match place.byzantine() {
        true => scope.folder().join("admin.json"),
        false => state(scope, &place.founders()[0]).join("admin.json"),
    }
}

/// The file of the key of the lab's operator, who signs what is ordered in a group of which some may lie.
fn operator_path(scope: &Scope) -> PathBuf {
    scope.folder().join("operator.key")
}

/// Writes the lab's own context: that of the first controller, with the operator's key, which no controller has.
fn write_context(scope: &Scope, place: Place) -> Result<(), Failure> {
    let path = state(scope, &place.founders()[0]).join("admin.json");
    let mut context = context_of(&path)?;
    context.operator = Some(crate::cli::operator::read(&operator_path(scope))?);
    let text = serde_json::to_string_pretty(&context).map_err(|error| Failure::Input(error.to_string()))?;
    let path = context_path(scope, place);
    let written = weir_base::file::replace(&path, text.as_bytes(), 0o600);
    Ok(written.map_err(|error| Error::io(format!("write {}", path.display()), error))?)
}

/// A client of the lab's controllers.
pub fn client(scope: &Scope, place: Place) -> Result<Client, Failure> {
    client_of(&context_path(scope, place))
}

fn context_of(path: &Path) -> Result<Context, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::io(format!("read {}", path.display()), error))?;
    Ok(serde_json::from_str(&text).map_err(|error| Error::io(path.display().to_string(), error))?)
}

fn client_of(path: &Path) -> Result<Client, Failure> {
    Ok(Client::new(context_of(path)?)?)
}

/// This binary.
fn own() -> Result<OsString, Error> {
    std::env::current_exe().map(Into::into).map_err(|error| Error::io("find this program's path", error))
}

fn controller(scope: &Scope, place: Place, one: &Member, join: bool) -> Result<Program, Failure> {
    let address = place.v4(one.number);
    let mut program = Program::new(own()?)
        .args(["controller", "--domain", "lab", "--state"])
        .arg(state(scope, one))
        .args(["--api".to_string(), format!("{address}:{API_PORT}")])
        .args(["--session".to_string(), format!("{address}:{SESSION_PORT}")])
        .netns(&place.netns(one.netns));
    let mut given = consistency_settings(scope);
    if place.grouped() {
        given += &group_settings(scope, place, one)?;
    }
    if !given.is_empty() {
        let settings = settings_path(scope, one);
        std::fs::write(&settings, given)
            .map_err(|error| Error::io(format!("write {}", settings.display()), error))?;
        program = program.arg("--config").arg(settings);
    }
    if place.grouped() && (join || !place.founders().contains(one)) {
        program = program.arg("--join-group");
    }
    Ok(program)
}

fn settings_path(scope: &Scope, one: &Member) -> PathBuf {
    scope.folder().join(one.name).join("controller.yaml")
}

fn keys_path(scope: &Scope) -> PathBuf {
    scope.folder().join("domain-keys.json")
}

/// How the group signs, where it was said: for controllers that start later, too.
fn signatures_path(scope: &Scope) -> PathBuf {
    scope.folder().join("signatures")
}

/// After how long a silent controller is replaced by a spare, where somebody has said it: a number of seconds, for controllers that start later.
fn replace_after_path(scope: &Scope) -> PathBuf {
    scope.folder().join("replace-after")
}

/// Remembers how the group of a lab signs.
pub fn sign_by(scope: &Scope, signatures: &str) -> Result<(), Error> {
    remember(&signatures_path(scope), signatures)
}

/// What an update of a switch waits for, where it was said: for controllers that start later, too.
fn consistency_path(scope: &Scope) -> PathBuf {
    scope.folder().join("consistency")
}

/// Remembers what an update of a switch waits for in a lab.
pub fn consistent_by(scope: &Scope, consistency: &str) -> Result<(), Error> {
    remember(&consistency_path(scope), consistency)
}

fn remember(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// The field `consistency` of a controller's settings, where the lab has one: a line of YAML.
fn consistency_settings(scope: &Scope) -> String {
    let said = std::fs::read_to_string(consistency_path(scope));
    said.map(|said| format!("consistency: {}\n", said.trim())).unwrap_or_default()
}

/// The part `operators` of a controller's settings, where the lab has one: a line of YAML.
fn operators_settings(scope: &Scope) -> Result<String, Failure> {
    let path = operator_path(scope);
    if !path.exists() {
        return Ok(String::new());
    }
    let key = crate::cli::operator::read(&path)?;
    let public = to_hex(&key.key().map_err(Failure::Input)?.public());
    Ok(format!("operators:\n  - {{ name: {}, key: \"{public}\", role: admin }}\n", key.name))
}

/// The parts `group` and `operators` of a controller's settings: a few lines of YAML.
fn group_settings(scope: &Scope, place: Place, one: &Member) -> Result<String, Failure> {
    let at = |member: &Member, port: u16| format!("{}:{port}", place.v4(member.number));
    let mut text = operators_settings(scope)?;
    text += &format!(
        "group:\n  id: {}\n  listen: {}\n  keys: {}\n",
        one.number,
        at(one, REPLICA_PORT),
        keys_path(scope).display()
    );
    if place.byzantine() {
        text.push_str("  order: bft\n");
    }
    if let Ok(signatures) = std::fs::read_to_string(signatures_path(scope)) {
        text.push_str(&format!("  signatures: {signatures}\n"));
    }
    if let Ok(seconds) = std::fs::read_to_string(replace_after_path(scope)) {
        text.push_str(&format!("  replaceAfterSeconds: {}\n", seconds.trim()));
    }
    if place.founders().contains(one) || place.byzantine() {
        text.push_str("  founders:\n");
        for member in place.founders() {
            let key = if place.byzantine() {
                format!(", key: \"{}\"", identity(scope, member)?)
            } else {
                String::new()
            };
            text.push_str(&format!(
                "    - {{ id: {}, replica: \"{}\", api: \"{}\", session: \"{}\"{key} }}\n",
                member.number,
                at(member, REPLICA_PORT),
                at(member, API_PORT),
                at(member, SESSION_PORT)
            ));
        }
    }
    Ok(text)
}

/// The key by which a controller is known, as a person would ask for it on its machine.
fn identity(scope: &Scope, member: &Member) -> Result<String, Error> {
    let mut command = Command::new(own()?);
    command.args(["group", "identity", "--state"]).arg(state(scope, member));
    let output = system::run_ok(command, CONTROLLER_BOUND)?;
    Ok(output.trim().to_string())
}

/// The host of a lab that runs a monitor.
const MONITORED: &str = "h1";

/// The folder of the policies of a member's monitor.
fn policies(scope: &Scope, member: &Member) -> PathBuf {
    scope.folder().join(member.name).join("policies")
}

/// A host or a gateway. A joined one needs no token.
fn member(scope: &Scope, place: Place, member: &Member, token: Option<String>) -> Result<Program, Error> {
    let is_gateway = *member == GATEWAY;
    let mut program = Program::new(own()?)
        .args([if is_gateway { "gateway" } else { "host" }, "--name", member.name, "--underlay", DEVICE])
        .arg("--state")
        .arg(state(scope, member))
        .arg("--run")
        .arg(run(scope, member))
        .args(["--metrics", METRICS_ADDRESS])
        // One machine needs one monitor; that of the first host is it, with the policies that a scenario gives it.
        .args(["--monitor", if member.name == MONITORED { "on" } else { "off" }])
        .arg("--monitor-policy")
        .arg(policies(scope, member))
        .netns(&place.netns(member.netns));
    if is_gateway {
        program = program.args(["--external-address".to_string(), EXTERNAL_V4.to_string()]);
        program = program.args(["--external-address".to_string(), EXTERNAL_V6.to_string()]);
    }
    // By environment, since every user of the machine may read command lines.
    Ok(match token {
        Some(token) => program.env("WEIR_JOIN_TOKEN", token),
        None => program,
    })
}

/// The hosts and the gateway.
pub fn members() -> impl Iterator<Item = &'static Member> {
    HOSTS.iter().chain([&GATEWAY])
}

/// Starts the controllers, and waits until they answer and, in a group, one of them leads.
pub fn start_controllers(scope: &Scope, place: Place) -> Result<Client, Failure> {
    if place.grouped() {
        let made = state(scope, &place.founders()[0]);
        let mut command = Command::new(own()?);
        command.args(["group", "keys", "--domain", "lab", "--state"]).arg(made);
        command.arg("--out").arg(keys_path(scope));
        system::run_ok(command, CONTROLLER_BOUND)?;
    }
    if place.byzantine() {
        let mut command = Command::new(own()?);
        command.args(["operator", "key", OPERATOR, "--domain", "lab", "--out"]).arg(operator_path(scope));
        system::run_ok(command, CONTROLLER_BOUND)?;
    }
    let mut daemons = Vec::new();
    for one in place.founders() {
        daemons.push(begin_controller(scope, place, one, false)?);
    }
    for (daemon, one) in daemons.iter().zip(place.founders()) {
        wait_for_controller(scope, daemon, one)?;
    }
    if place.byzantine() {
        write_context(scope, place)?;
    }
    let client = client(scope, place)?;
    if place.grouped() {
        daemons[0].wait_until(
            "a leader of the group, its key and its operators",
            CONTROLLER_BOUND,
            || {
                let ready = |group: weir_api::types::GroupStatus| {
                    group.leader.is_some() && group.signing.is_none_or(|signing| signing.key.is_some())
                };
                let heard = !place.byzantine() || client.operators().is_ok_and(|list| list.signed);
                Ok(heard && client.list(None, None).is_ok() && client.group().is_ok_and(ready))
            },
        )?;
    }
    Ok(client)
}

/// Starts one controller and waits until it answers.
fn start_controller(scope: &Scope, place: Place, one: &Member, join: bool) -> Result<(), Failure> {
    let daemon = begin_controller(scope, place, one, join)?;
    wait_for_controller(scope, &daemon, one)
}

fn begin_controller(scope: &Scope, place: Place, one: &Member, join: bool) -> Result<Daemon, Failure> {
    make_folder(&state(scope, one))?;
    Ok(scope.start(one.name, &controller(scope, place, one, join)?)?)
}

fn wait_for_controller(scope: &Scope, daemon: &Daemon, one: &Member) -> Result<(), Failure> {
    let context = state(scope, one).join("admin.json");
    Ok(daemon.wait_until(one.name, CONTROLLER_BOUND, || {
        Ok(client_of(&context).is_ok_and(|client| client.status_here().is_ok()))
    })?)
}

/// Starts hosts and gateway with a token, and waits until all have a session.
pub fn start_members(scope: &Scope, place: Place, client: &Client) -> Result<(), Failure> {
    let mut daemons = Vec::new();
    for one in members() {
        make_folder(&state(scope, one))?;
        make_folder(&run(scope, one))?;
        make_folder(&policies(scope, one))?;
        let name = one.name.parse().map_err(|error| Failure::Input(format!("{error}")))?;
        let role = if *one == GATEWAY { Role::Gateway } else { Role::Host };
        let request = TokenRequest { name, role, valid_s: Some(TOKEN_VALID_S), underlay: None, key: None };
        let token = client.token(&request)?.token;
        daemons.push(scope.start(one.name, &member(scope, place, one, Some(token))?)?);
    }
    for daemon in &daemons {
        daemon.wait_until(&format!("the session of {}", daemon.name()), JOIN_BOUND, || {
            let connected = |status: weir_api::types::StatusResponse| {
                status.actuators.iter().any(|one| one.connected && one.name == daemon.name())
            };
            Ok(client.status().is_ok_and(connected))
        })?;
    }
    Ok(())
}

/// Every program of the lab by name, in the order in which they start.
pub fn names(place: Place, guests: &[guest::Guest]) -> Vec<String> {
    let mut names: Vec<String> = place.controllers().iter().map(|one| one.name.to_string()).collect();
    names.extend(members().map(|member| member.name.to_string()));
    names.push(guest::OUTSIDE_SERVER.to_string());
    for guest in guests {
        names.extend([guest.dhcp_name(), guest.server_name()]);
    }
    names.extend(guests.iter().filter(|guest| guest.streams()).map(guest::Guest::stream_name));
    names
}

/// Starts a program that was ended again.
pub fn start_again(
    scope: &Scope,
    place: Place,
    guests: &[guest::Guest],
    name: &str,
    join_group: bool,
) -> Result<(), Failure> {
    if let Some(one) = place.controllers().iter().find(|one| one.name == name) {
        return start_controller(scope, place, one, join_group);
    }
    if let Some(one) = members().find(|member| member.name == name) {
        scope.start(name, &member(scope, place, one, None)?)?;
        return Ok(());
    }
    let program = if name == guest::OUTSIDE_SERVER {
        Some(guest::outside_server(scope, place)?)
    } else {
        guest::program(scope, guests, name)?
    };
    match program {
        Some(program) => scope.start(name, &program).map(drop).map_err(Failure::from),
        None => Err(Failure::Input(format!(
            "the lab has no program '{name}': it has {}",
            names(place, guests).join(", ")
        ))),
    }
}

/// Ends agents and switches that outlived their supervisor, as a switch is made to: those whose command line names a
/// folder of this lab.
/// Returns how many there were.
pub fn end_orphans(scope: &Scope) -> Result<usize, Error> {
    let mut ended = 0;
    for one in members() {
        for role in ["agent", "switch", "monitor"] {
            if let Some(record) = child(scope, one, role) {
                ended += usize::from(record.stop(|| ())?);
            }
        }
    }
    Ok(ended)
}

/// The agent or switch of a member, if one runs.
pub fn child(scope: &Scope, member: &Member, role: &str) -> Option<Record> {
    let folder = run(scope, member);
    let pid = std::fs::read_to_string(folder.join(format!("{role}.pid"))).ok()?.trim().parse().ok()?;
    let record = Record::of(pid, format!("{role} of {}", member.name)).ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let ours = scope.folder().join(member.name);
    let named = line
        .split(|byte| *byte == 0)
        .any(|word| Path::new(&*String::from_utf8_lossy(word)).starts_with(&ours));
    (named && record.alive()).then_some(record)
}

/// Waits until every switch has all that it shall have.
pub fn wait_in_step(client: &Client, bound: Duration) -> Result<(), Failure> {
    let mut behind = String::new();
    let waited = system::wait_for("every switch in sync", bound, || {
        let Ok(status) = client.status() else { return Ok(false) };
        behind = status
            .actuators
            .iter()
            .filter(|one| !in_step(one))
            .map(|one| &one.name[..])
            .collect::<Vec<_>>()
            .join(", ");
        Ok(behind.is_empty())
    });
    match waited {
        Err(Error::Timeout { what, after_ms, .. }) => {
            let hint = format!(": {behind} is behind, see 'weir status'");
            Err(Error::Timeout { what, after_ms, hint }.into())
        }
        other => Ok(other?),
    }
}

/// Whether a switch has in force all that it shall have.
pub fn in_step(actuator: &weir_api::types::ActuatorStatus) -> bool {
    actuator.connected
        && actuator.refused.is_empty()
        && actuator.acked_entries == actuator.desired_entries
        && actuator.in_force_version >= Some(actuator.desired_version)
}
