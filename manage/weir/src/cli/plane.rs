//! `weir plane`: what the planes of a host beside its switch are to have, for planes that have no command of their own.

use super::explain::Schemas;
use super::output;
use super::{Failure, Output};
use crate::exit::Exit;
use clap::{Args, Subcommand};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_api::any::{AnyId, PlaneId, PlaneResource};
use weir_api::client::Client;
use weir_api::planes::{PlaneList, PlaneRequest, PlaneResponse, PlaneView};
use weir_api::types::ResourceView;
use weir_model::Label;

/// Largest file of a specification that is read, bytes: JSON may be longer than what is sent of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Most hosts that are asked how what their planes have is.
const HOSTS_ASKED: usize = 32;

#[derive(Debug, Subcommand)]
pub(super) enum Plane {
    /// Have a plane of a host have what a file says, and wait until its process has it in force
    Push(Push),
    /// Withdraw what a plane of a host has under a name
    Withdraw(Withdraw),
    /// Show what the planes of a host are to have, what is in force, and what they report
    #[command(visible_alias = "status")]
    Show(Show),
    /// Check a specification without pushing it; needs no controller
    Check(Check),
    /// Explain the fields of a plane's specifications, as 'weir explain' does of each kind
    Explain(Explain),
}

#[derive(Debug, Args)]
pub struct At {
    /// The host or gateway
    host: String,
    /// The plane, such as filewall
    plane: String,
    /// Name of what it has
    name: String,
    /// Wait so long for it to be in force; exit code 5 when it is not, 1 when it is refused
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Push {
    #[command(flatten)]
    at: At,
    /// File with the specification, JSON or YAML
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Withdraw {
    #[command(flatten)]
    at: At,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The host or gateway
    host: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The plane, such as filewall
    plane: String,
    /// The name that the specification is to be pushed under
    name: String,
    /// File with the specification, JSON or YAML
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The plane, such as filewall
    plane: String,
}

/// The plane of a name, among those of this release.
fn of_name(name: &str) -> Result<&'static weir_planes::Kind, Failure> {
    weir_planes::find(weir_planes::ALL, name).ok_or_else(|| {
        let known: Vec<&str> = weir_planes::ALL.iter().map(|plane| plane.name).collect();
        Failure::Input(format!("'{name}' is no plane of this release: it has {}", known.join(", ")))
    })
}

impl Check {
    fn run(self) -> Result<ExitCode, Failure> {
        let plane = of_name(&self.plane)?;
        let spec = read(&self.file)?.to_string();
        let checked = (plane.check)(&self.name, spec.as_bytes());
        checked.map_err(|problem| Failure::Input(format!("{}: {problem}", self.file.display())))?;
        say!("{} '{}': {}", plane.name, self.name, (plane.describe)(&self.name, spec.as_bytes()));
        Ok(ExitCode::SUCCESS)
    }
}

impl Plane {
    pub(super) fn run(self, connect: impl FnOnce() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        match self {
            Plane::Push(Push { at, file }) => push(&connect()?, &at, read(&file)?),
            Plane::Withdraw(Withdraw { at }) => withdraw(&connect()?, &at),
            Plane::Check(command) => command.run(),
            Plane::Explain(Explain { plane }) => {
                put!("{}", Schemas::load()?.explain(of_name(&plane)?.kind)?);
                Ok(ExitCode::SUCCESS)
            }
            Plane::Show(Show { host, output }) => {
                let list = connect()?.planes(&host)?;
                output::print(output.output, &list, || table(&list))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl At {
    /// A place that a plane's own command names.
    pub(super) fn of(host: String, plane: &str, name: String, wait_s: u32, output: Output) -> At {
        At { host, plane: plane.to_string(), name, wait_s, output }
    }
}

/// Has a plane have something; ends as what became of it says.
pub(super) fn push(client: &Client, at: &At, spec: serde_json::Value) -> Result<ExitCode, Failure> {
    let request = PlaneRequest { spec, wait_ms: at.wait_s.saturating_mul(1000) };
    end(at, &client.put_plane(&at.host, &at.plane, &at.name, &request)?)
}

/// Withdraws what a plane has.
pub(super) fn withdraw(client: &Client, at: &At) -> Result<ExitCode, Failure> {
    let wait_ms = at.wait_s.saturating_mul(1000);
    end(at, &client.delete_plane(&at.host, &at.plane, &at.name, wait_ms)?)
}

fn read(file: &Path) -> Result<serde_json::Value, Failure> {
    let shown = || file.display().to_string();
    let about = std::fs::metadata(file).map_err(Failure::io(shown()))?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        return Err(Failure::Input(format!("{} is no file of at most {FILE_BYTES_MAX} bytes", shown())));
    }
    let text = std::fs::read_to_string(file).map_err(Failure::io(shown()))?;
    // JSON is YAML too.
    serde_saphyr::from_str(&text).map_err(|error| Failure::Input(format!("{}: {error}", shown())))
}

fn end(at: &At, response: &PlaneResponse) -> Result<ExitCode, Failure> {
    let (exit, text) = match (response.in_force, &response.refusal, at.wait_s) {
        (true, ..) => (Exit::Done, "it is in force".to_string()),
        (false, Some(refusal), _) => (Exit::Failed, format!("refused: {refusal}")),
        (false, None, 0) => (Exit::Done, "not waited for".to_string()),
        (false, None, wait_s) => (
            Exit::NotInForce,
            format!("not in force within {wait_s} s; 'weir plane show {}' says more", at.host),
        ),
    };
    let version = response.version;
    output::print(at.output.output, response, || {
        say!("plane {} '{}' of {}: ordered at v{version}: {text}", at.plane, at.name, at.host);
    })?;
    Ok(exit.into())
}

/// Whether something is in force, and why not.
fn state(item: &PlaneView) -> String {
    match (item.in_force, &item.refusal) {
        (true, _) => "in force".to_string(),
        (false, Some(refusal)) => format!("not in force: {refusal}"),
        (false, None) => "not in force yet".to_string(),
    }
}

/// How what planes have is; of [`HOSTS_ASKED`] hosts.
fn states(client: &Client, items: &[&PlaneResource]) -> BTreeMap<AnyId, String> {
    let hosts: BTreeSet<&Label> = items.iter().map(|item| &item.host).collect();
    let mut states = BTreeMap::new();
    for host in hosts.into_iter().take(HOSTS_ASKED) {
        let Ok(list) = client.planes(host.as_str()) else { continue };
        for view in list.items {
            let Ok(plane) = Label::new(view.plane.clone()) else { continue };
            let id = PlaneId { plane, host: host.clone(), name: view.name.clone() };
            states.insert(id.into(), state(&view));
        }
    }
    states
}

/// The resources of planes among others: a table for each kind.
pub(super) fn tables(client: &Client, items: &[ResourceView]) -> Vec<String> {
    let planes: Vec<&PlaneResource> = items.iter().filter_map(|view| view.resource.of_plane()).collect();
    let states = states(client, &planes);
    let kinds: BTreeSet<&Label> = planes.iter().map(|resource| &resource.kind).collect();
    let table_of = |kind: &Label| {
        let mut table = output::table(&[kind.as_str(), "what", "state", "version"]);
        for view in items {
            let Some(resource) = view.resource.of_plane().filter(|resource| resource.kind == *kind) else {
                continue;
            };
            let state = states.get(&view.resource.id()).cloned().unwrap_or_else(|| "-".to_string());
            let (place, version) = (format!("{}/{}", resource.host, resource.name), view.version.to_string());
            table.add_row([place, resource.describe(), state, version]);
        }
        table.to_string()
    };
    kinds.into_iter().map(table_of).collect()
}

fn table(list: &PlaneList) {
    let mut table = output::table(&["PLANE", "NAME", "VERSION", "IN FORCE", "WHAT"]);
    for item in &list.items {
        let state = match (item.in_force, &item.refusal) {
            (true, _) => "yes".to_string(),
            (false, Some(refusal)) => format!("no: {refusal}"),
            (false, None) => "not yet".to_string(),
        };
        let version = format!("v{}", item.version);
        table.add_row([&item.plane, &item.name, &version, &state, &item.description]);
    }
    say!("{table}");
    for told in &list.reports {
        say!("{} '{}' reports: {}", told.plane, told.name, told.report);
    }
}
