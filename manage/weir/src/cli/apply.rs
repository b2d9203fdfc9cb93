//! `apply`, `delete` and `diff`: changes, shown before they are made (pain 4).

use super::input::{self, Document};
use super::output::{self, Format};
use super::{Failure, NO, Output, parse_id};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_api::client::{Client, ClientError};
use weir_api::types::{ApplyRequest, ApplyResponse, Effect};
use weir_model::resource::ResourceId;

/// Most planned entries shown.
const ENTRIES_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// YAML or JSON files or folders; '-' is the standard input
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Delete every resource that the files do not name
    #[arg(long)]
    replace_all: bool,
    /// Only show what would happen
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    /// Kind of the resources
    kind: String,
    /// NETWORK/NAME, or NAME of a network
    #[arg(required = true)]
    names: Vec<String>,
    /// Only show what would happen
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Consent {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Wait until every switch has applied it, up to so many seconds; 0 does not wait
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
}

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// YAML or JSON files or folders; '-' is the standard input
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Count every resource that the files do not name as to be deleted
    #[arg(long)]
    replace_all: bool,
}

impl Apply {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let documents = input::read(&self.files)?;
        let request = ApplyRequest {
            resources: documents.into_iter().map(|document| document.value).collect(),
            replace_all: self.replace_all,
            ..ApplyRequest::default()
        };
        change(client, request, self.dry_run, &self.consent, self.output)
    }
}

impl Delete {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let delete =
            self.names.iter().map(|name| parse_id(&self.kind, name)).collect::<Result<Vec<_>, Failure>>()?;
        let request = ApplyRequest { delete, ..ApplyRequest::default() };
        change(client, request, self.dry_run, &self.consent, self.output)
    }
}

fn change(
    client: &Client,
    request: ApplyRequest,
    dry_run: bool,
    consent: &Consent,
    Output { output }: Output,
) -> Result<ExitCode, Failure> {
    let planned = client.apply(&ApplyRequest { dry_run: true, ..request.clone() })?;
    if !request.delete.is_empty() {
        missing(&planned)?;
    }
    let nothing = planned.changes.iter().all(|change| change.effect == Effect::Unchanged);
    if dry_run || nothing {
        output::print(output, &planned, || show_plan(&planned))?;
        return Ok(ExitCode::SUCCESS);
    }
    if output == Format::Table {
        show_plan(&planned);
    }
    if !consent.yes && !ask("Apply?")? {
        return Err(Failure::Input("nothing was changed".to_string()));
    }
    let done = client.apply(&ApplyRequest { wait_ms: consent.wait_s * 1000, ..request })?;
    let waited = consent.wait_s > 0;
    output::print(output, &done, || println!("{}", outcome(&done, waited.then_some(consent.wait_s))))?;
    Ok(ExitCode::SUCCESS)
}

/// Names what is to be deleted and is not there; an error when nothing is.
fn missing(planned: &ApplyResponse) -> Result<(), Failure> {
    let gone = planned.changes.iter().filter(|change| change.effect == Effect::Unchanged);
    let gone: Vec<String> = gone.map(|change| change.id.to_string()).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let text = format!("{}: there is no such resource; 'weir get all' shows what there is", gone.join(", "));
    if gone.len() == planned.changes.len() {
        return Err(Failure::Missing(text));
    }
    eprintln!("{text}");
    Ok(())
}

/// What became of a change, in words.
pub(super) fn outcome(done: &ApplyResponse, waited_s: Option<u32>) -> String {
    let version = done.version.map(|version| format!(" at v{version}")).unwrap_or_default();
    if done.joined == 0 {
        return format!(
            "Applied{version}, and in force nowhere: no host has joined yet. 'weir token --name NAME' makes a token \
             for 'weir host'."
        );
    }
    if done.updates_total == 0 {
        return format!("Applied{version}; no switch needs to know of it yet.");
    }
    match (waited_s, done.in_force) {
        (_, true) => format!("Applied{version}; in force on every switch that it concerns."),
        (Some(waited_s), false) => format!(
            "Applied{version}, but not in force everywhere after {waited_s} s: 'weir status' shows what is waited for."
        ),
        (None, false) => format!("Applied{version}; 'weir status' shows when it is in force."),
    }
}

fn ask(question: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Input("there is no terminal to ask on: say --yes to go ahead".to_string()));
    }
    print!("{question} [y/N] ");
    std::io::stdout().flush().map_err(Failure::io("standard output"))?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::io("standard input"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn show_plan(plan: &ApplyResponse) {
    let count = |effect| plan.changes.iter().filter(|change| change.effect == effect).count();
    for change in plan.changes.iter().filter(|change| change.effect != Effect::Unchanged).take(200) {
        let (sign, colour) = match change.effect {
            Effect::Create => ("+", 32),
            Effect::Update => ("~", 33),
            Effect::Delete | Effect::Unchanged => ("-", 31),
        };
        println!("{}", output::ansi(&format!("{sign} {}", change.id), colour));
    }
    println!(
        "{} to create, {} to change, {} to delete, {} unchanged; {} updates on {} switches.",
        count(Effect::Create),
        count(Effect::Update),
        count(Effect::Delete),
        count(Effect::Unchanged),
        plan.updates_total,
        plan.switches
    );
    for update in plan.updates.iter().take(ENTRIES_SHOWN) {
        println!("  {:<12} {:<7} {}", update.target, update.change, update.key);
        for after in &update.after {
            println!("  {:<12} {:<7}   after {after}", "", "");
        }
    }
    if plan.updates_total > ENTRIES_SHOWN {
        println!(
            "  … and {} more: -o json shows them",
            plan.updates_total - ENTRIES_SHOWN.min(plan.updates.len())
        );
    }
}

impl Diff {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let documents = input::read(&self.files)?;
        let wanted: BTreeMap<ResourceId, Document> =
            documents.into_iter().map(|document| (document.resource.id(), document)).collect();
        let request = ApplyRequest {
            resources: wanted.values().map(|document| document.value.clone()).collect(),
            replace_all: self.replace_all,
            dry_run: true,
            ..ApplyRequest::default()
        };
        let plan = client.apply(&request)?;
        let mut differs = false;
        for change in plan.changes.iter().filter(|change| change.effect != Effect::Unchanged) {
            differs = true;
            let new = wanted.get(&change.id).map(|document| to_json(&document.resource));
            let old = match client.resource(&change.id) {
                Ok(view) => Some(to_json(&view.resource)),
                Err(ClientError::Refused(error)) if error.problem.code == "not-found" => None,
                Err(error) => return Err(error.into()),
            };
            show_difference(&change.id, old.as_ref(), new.as_ref());
        }
        Ok(if differs { ExitCode::from(NO) } else { ExitCode::SUCCESS })
    }
}

fn to_json(resource: &weir_model::resource::Resource) -> Value {
    serde_json::to_value(resource).unwrap_or(Value::Null)
}

fn show_difference(id: &ResourceId, old: Option<&Value>, new: Option<&Value>) {
    println!("{id}");
    for (path, old, new) in differences(old, new) {
        if let Some(old) = old {
            println!("{}", output::ansi(&format!("  - {path}: {old}"), 31));
        }
        if let Some(new) = new {
            println!("{}", output::ansi(&format!("  + {path}: {new}"), 32));
        }
    }
}

/// The top-level fields in which two documents differ: path, old and new value.
pub(super) fn differences(
    old: Option<&Value>,
    new: Option<&Value>,
) -> Vec<(String, Option<Value>, Option<Value>)> {
    let fields = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
    let (old, new) = (fields(old), fields(new));
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| (name.clone(), old.get(name).cloned(), new.get(name).cloned()))
        .collect()
}
