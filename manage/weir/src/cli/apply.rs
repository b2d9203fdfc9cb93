//! `apply`, `delete` and `diff`: changes, shown before they are made (pain 4).

use super::input::{self, Document};
use super::output::{self, Format};
use super::{Failure, Output, consent, parse_id};
use crate::exit::Exit;
use clap::Args;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_api::any::AnyId;
use weir_api::client::Client;
use weir_api::types::{
    ApplyRequest, ApplyResponse, Effect, Expected, FieldChange, RESOURCES_MAX, ResourceChange,
};

/// Most planned entries shown without `--all`.
const ENTRIES_SHOWN: usize = 20;
/// Most resources to create or to change that are shown without `--all`. Those that go are shown all: a person must see them.
const CHANGES_SHOWN: usize = 200;
/// Longest value of a field that is shown, characters.
const VALUE_SHOWN: usize = 120;

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// YAML or JSON files or folders; '-' is the standard input
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Delete every resource that the files do not name, also what planes of hosts have
    #[arg(long)]
    replace_all: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    /// Kind of the resources
    #[arg(required_unless_present = "files")]
    kind: Option<String>,
    /// NETWORK/NAME, NAME of a network, or HOST/NAME of what a plane has
    #[arg(required_unless_present = "files")]
    names: Vec<String>,
    /// Delete what YAML or JSON files or folders name instead; '-' is the standard input
    #[arg(short, long = "file", value_name = "FILE", conflicts_with_all = ["kind", "names"])]
    files: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct How {
    /// Only show what would happen
    #[arg(long)]
    dry_run: bool,
    /// Show everything that changes, however much
    #[arg(long)]
    all: bool,
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
    #[command(flatten)]
    output: Output,
}

impl Apply {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let documents = input::read(&self.files)?;
        let request = ApplyRequest {
            resources: documents.into_iter().map(|document| document.value).collect(),
            replace_all: self.replace_all,
            ..ApplyRequest::default()
        };
        change(client, request, &self.how, self.output)
    }
}

impl Delete {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let delete = match &self.kind {
            Some(kind) => self.names.iter().map(|name| parse_id(kind, name)).collect::<Result<_, _>>()?,
            None => {
                let documents = input::read(&self.files)?;
                documents.iter().map(|document| document.resource.id()).collect()
            }
        };
        let request = ApplyRequest { delete, ..ApplyRequest::default() };
        change(client, request, &self.how, self.output)
    }
}

fn change(
    client: &Client,
    request: ApplyRequest,
    how: &How,
    Output { output }: Output,
) -> Result<ExitCode, Failure> {
    let planned = client.apply(&ApplyRequest { dry_run: true, ..request.clone() })?;
    if !request.delete.is_empty() {
        missing(&planned)?;
    }
    let nothing = planned.changes.iter().all(|change| change.effect == Effect::Unchanged);
    if how.dry_run || nothing {
        output::print(output, &planned, || show_plan(&planned, how.all))?;
        return Ok(Exit::Done.into());
    }
    if output == Format::Table {
        show_plan(&planned, how.all);
    }
    let request = match how.yes {
        true => request,
        false => {
            consent::agreed("Apply?")?;
            as_shown(request, &planned)
        }
    };
    let done = client.apply(&ApplyRequest { wait_ms: how.wait_s * 1000, ..request })?;
    let waited_s = (how.wait_s > 0).then_some(how.wait_s);
    output::print(output, &done, || {
        say!("{}", outcome(&done, waited_s));
        done.without_host.iter().for_each(|line| say!("  {line}"));
    })?;
    Ok(exit(&done, waited_s).into())
}

/// The request that does what a person was shown, and nothing else: what changed since is refused, and of a full update only what
/// was shown to go goes.
fn as_shown(request: ApplyRequest, planned: &ApplyResponse) -> ApplyRequest {
    let expected = planned
        .changes
        .iter()
        .filter_map(|change| change.version.map(|version| Expected { id: change.id.clone(), version }));
    let expected: Vec<Expected> = expected.collect();
    if !request.replace_all {
        return ApplyRequest { expected, ..request };
    }
    // By names, each with its version, and not by what is there then.
    let gone = planned.changes.iter().filter(|change| change.effect == Effect::Delete);
    let delete: Vec<AnyId> = gone.map(|change| change.id.clone()).collect();
    if request.resources.len() + delete.len() > RESOURCES_MAX {
        // More than a request may name: what goes is what is there then.
        let delete: BTreeSet<AnyId> = delete.into_iter().collect();
        let named = expected.into_iter().filter(|expected| !delete.contains(&expected.id)).collect();
        return ApplyRequest { expected: named, ..request };
    }
    ApplyRequest { expected, delete, replace_all: false, ..request }
}

/// Whether what was waited for came.
pub(super) fn exit(done: &ApplyResponse, waited_s: Option<u32>) -> Exit {
    let in_force = done.in_force || done.updates_total == 0;
    match waited_s {
        Some(_) if !in_force || !done.not_ready.is_empty() || !done.not_in_force.is_empty() => {
            Exit::NotInForce
        }
        _ => Exit::Done,
    }
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
    tell!("{text}");
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
    if !done.not_in_force.is_empty() {
        return format!(
            "Applied{version}, but not in force everywhere{}:\n  {}",
            waited_s.map(|waited_s| format!(" after {waited_s} s")).unwrap_or_default(),
            done.not_in_force.join("\n  ")
        );
    }
    if done.updates_total == 0 {
        return format!("Applied{version}; no switch needs to know of it yet.");
    }
    if !done.not_ready.is_empty() {
        return format!(
            "Applied{version}; in force on every switch that it concerns, but not every port carries traffic{}:\n  {}",
            waited_s.map(|waited_s| format!(" after {waited_s} s")).unwrap_or_default(),
            done.not_ready.join("\n  ")
        );
    }
    match (waited_s, done.in_force) {
        (_, true) => format!("Applied{version}; in force on every switch that it concerns."),
        (Some(waited_s), false) => format!(
            "Applied{version}, but not in force everywhere after {waited_s} s: 'weir status' shows what is waited for."
        ),
        (None, false) => format!("Applied{version}; 'weir status' shows when it is in force."),
    }
}

fn sign(effect: Effect) -> (&'static str, u8) {
    match effect {
        Effect::Create => ("+", 32),
        Effect::Update => ("~", 33),
        Effect::Delete | Effect::Unchanged => ("-", 31),
    }
}

/// A field's value on one line.
fn value_shown(value: Option<&Value>) -> String {
    let text = match value {
        None => return "(none)".to_owned(),
        Some(Value::String(text)) => text.replace('\n', "\\n"),
        Some(value) => value.to_string(),
    };
    match text.char_indices().nth(VALUE_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// The lines of a plan that say what happens to resources.
pub(super) fn changes_shown(changes: &[ResourceChange], all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut shown = 0;
    for change in changes.iter().filter(|change| change.effect != Effect::Unchanged) {
        let (sign, colour) = sign(change.effect);
        if change.effect != Effect::Delete {
            if shown >= CHANGES_SHOWN && !all {
                let what = if change.effect == Effect::Create { "to create" } else { "to change" };
                *left.entry((what, change.id.kind.as_str())).or_default() += 1;
                continue;
            }
            shown += 1;
        }
        lines.push(output::ansi(&format!("{sign} {}", change.id), colour));
        let fields = change.fields.iter().map(|field| {
            let (old, new) = (value_shown(field.old.as_ref()), value_shown(field.new.as_ref()));
            format!("    {}: {old} -> {new}", field.field)
        });
        lines.extend(fields);
    }
    if !left.is_empty() {
        let total: usize = left.values().sum();
        let kinds: Vec<String> = left
            .iter()
            .map(|((what, kind), count)| format!("{count} {} {what}", super::inspect::plural(kind, *count)))
            .collect();
        lines.push(format!("… and {total} more: {}; --all shows them", kinds.join(", ")));
    }
    lines
}

fn show_plan(plan: &ApplyResponse, all: bool) {
    let count = |effect| plan.changes.iter().filter(|change| change.effect == effect).count();
    changes_shown(&plan.changes, all).iter().for_each(|line| say!("{line}"));
    say!(
        "{} to create, {} to change, {} to delete, {} unchanged; {} updates on {} switches.",
        count(Effect::Create),
        count(Effect::Update),
        count(Effect::Delete),
        count(Effect::Unchanged),
        plan.updates_total,
        plan.switches
    );
    let limit = if all { plan.updates.len() } else { ENTRIES_SHOWN };
    for update in plan.updates.iter().take(limit) {
        say!("  {:<12} {:<7} {}", update.target, update.change, update.key);
        for after in &update.after {
            say!("  {:<12} {:<7}   after {after}", "", "");
        }
    }
    let shown = limit.min(plan.updates.len());
    if plan.updates_total > shown {
        let more = plan.updates_total - shown;
        match (shown < plan.updates.len(), plan.updates_total > plan.updates.len()) {
            (false, _) => say!("  … and {more} more"),
            (true, false) => say!("  … and {more} more: --all shows them"),
            (true, true) => say!("  … and {more} more: --all shows the first {}", plan.updates.len()),
        }
    }
}

impl Diff {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let documents = input::read(&self.files)?;
        let wanted: BTreeMap<AnyId, Document> =
            documents.into_iter().map(|document| (document.resource.id(), document)).collect();
        let request = ApplyRequest {
            resources: wanted.values().map(|document| document.value.clone()).collect(),
            replace_all: self.replace_all,
            dry_run: true,
            ..ApplyRequest::default()
        };
        let plan = client.apply(&request)?;
        let mut changed = plan.changes;
        changed.retain(|change| change.effect != Effect::Unchanged);
        output::print(self.output.output, &changed, || {
            changed.iter().for_each(|change| show_difference(change, wanted.get(&change.id)));
        })?;
        Ok(if changed.is_empty() { Exit::Done } else { Exit::No }.into())
    }
}

fn show_difference(change: &ResourceChange, wanted: Option<&Document>) {
    let (sign, colour) = sign(change.effect);
    say!("{}", output::ansi(&format!("{sign} {}", change.id), colour));
    for FieldChange { field, old, new } in &change.fields {
        if let Some(old) = old {
            say!("{}", output::ansi(&format!("  - {field}: {old}"), 31));
        }
        if let Some(new) = new {
            say!("{}", output::ansi(&format!("  + {field}: {new}"), 32));
        }
    }
    let new = wanted.filter(|_| change.effect == Effect::Create).map(|document| &document.value);
    for (field, value) in new.and_then(Value::as_object).into_iter().flatten() {
        say!("{}", output::ansi(&format!("  + {field}: {value}"), 32));
    }
}
