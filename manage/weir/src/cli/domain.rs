//! `weir domain`: other domains, each with controllers, order and key of its own, with which this one has networks together.

use super::consent::Consent;
use super::output::{self, paint};
use super::{Failure, Output, input};
use clap::{Args, Subcommand};
use comfy_table::{Cell, Color};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::domains::{AddDomain, DomainDescription, DomainView};

/// Largest file of a domain, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Digits of a key that are shown to people.
const KEY_DIGITS: usize = 16;

#[derive(Debug, Subcommand)]
pub(super) enum Domain {
    /// Show this domain's description for the operator of a peer ('-o yaml' writes the file), or show a peer domain
    Show(Show),
    /// Add a peer domain from its operator's description file. This establishes trust: verify the file
    Add(Add),
    /// List peer domains and how far each is in sync
    List(List),
    /// Remove a peer domain: withdraw what it advertised, and stop advertising to it
    #[command(alias = "forget")]
    Remove(Remove),
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Another domain
    name: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// What 'weir domain show -o yaml' printed there; '-' is the standard input
    file: PathBuf,
    /// Prefix of the underlay in which its hosts are; it may tell of no other places. Several times for several
    #[arg(long = "underlay", value_name = "PREFIX", required = true)]
    underlays: Vec<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Its name
    name: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

impl Domain {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self {
            Domain::Show(Show { name: None, output }) => {
                let own = client.domain()?;
                output::print(output.output, &own, || say!("{}", own_text(&own)))?;
            }
            Domain::Show(Show { name: Some(name), output }) => {
                let found = client.domains()?.items.into_iter().find(|one| one.domain.name == name);
                let other = found.ok_or_else(|| unknown(&name))?;
                output::print(output.output, &other, || say!("{}", other_text(&other)))?;
            }
            Domain::Add(add) => add.run(client)?,
            Domain::List(list) => {
                let domains = client.domains()?;
                output::print(list.output.output, &domains, || say!("{}", list_text(&domains.items)))?;
            }
            Domain::Remove(remove) => remove.run(client)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Remove {
    fn run(self, client: &Client) -> Result<(), Failure> {
        let name = self.name;
        let found = client.domains()?.items.into_iter().find(|one| one.domain.name == name);
        let other = found.ok_or_else(|| unknown(&name))?;
        let what = format!(
            "Domain '{name}' is removed: the {} locations that it advertised are withdrawn, and nothing more is advertised to it.",
            other.taken.locations
        );
        if !self.consent.given(&what)? {
            return Ok(());
        }
        let done = client.forget_domain(&name)?;
        let words = format!(
            "Domain '{name}' is removed as of v{}: what it advertised is withdrawn. Remove this one there, too.",
            done.version
        );
        output::done(self.output.output, json!({"removed": name, "version": done.version}), &words)
    }
}

fn unknown(name: &str) -> Failure {
    Failure::Missing(format!("no other domain is known here as '{name}': 'weir domain list' lists them"))
}

/// Reads what another domain's operator brought.
pub(super) fn read(name: &str, text: &str) -> Result<DomainDescription, Failure> {
    weir_document::read(text).map_err(|error| {
        Failure::Input(format!(
            "{name}: {error}; it should be what 'weir domain show -o yaml' prints at the other domain"
        ))
    })
}

impl Add {
    fn run(self, client: &Client) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let text = input::whole(&self.file, FILE_BYTES_MAX).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::Missing(format!(
                "{name}: there is no such file; 'weir domain show -o yaml' at the other domain makes it"
            )),
            _ => Failure::io(name.clone())(error),
        })?;
        let domain = read(&name, &text)?;
        let (other, digits) = (domain.name.clone(), shortened(&domain.group_key));
        let controllers = domain.controllers.len();
        let underlays = self.underlays.join(", ");
        let done = client.add_domain(&AddDomain { domain, underlays: self.underlays })?;
        let words = format!(
            "Domain '{other}' is known here as of v{}: {controllers} controllers, key {digits}, hosts in {underlays}. Compare the key \
             with what 'weir domain show' says there, and make this domain known there as well.",
            done.version
        );
        output::done(self.output.output, json!({"added": other, "version": done.version}), &words)
    }
}

fn shortened(key: &str) -> String {
    if key.len() > KEY_DIGITS { format!("{}…", &key[..KEY_DIGITS]) } else { key.to_owned() }
}

fn controllers(domain: &DomainDescription) -> String {
    let mut table = output::table(&["controller", "api", "key"]);
    for one in &domain.controllers {
        table.add_row(vec![Cell::new(one.id), Cell::new(&one.api), Cell::new(shortened(&one.key))]);
    }
    table.to_string()
}

fn own_text(own: &DomainDescription) -> String {
    format!(
        "Domain '{0}', key {1}.\n{2}\nFor the operator of another domain: 'weir domain show -o yaml > {0}.yaml', and there 'weir domain \
         add {0}.yaml --underlay PREFIX'. Nothing in it is secret.",
        own.name,
        shortened(&own.group_key),
        controllers(own)
    )
}

/// How a domain gets on, in words, and whether that is well.
fn state(one: &DomainView) -> (String, bool) {
    match (&one.problem, one.told.cut) {
        (_, true) => {
            ("cut off: it did not take what it was told, and is told all anew when it asks".into(), false)
        }
        (Some(problem), _) => (problem.clone(), false),
        (None, false) => ("in touch".into(), true),
    }
}

fn list_text(domains: &[DomainView]) -> String {
    if domains.is_empty() {
        return "No other domain is known here: 'weir domain add' makes one known.".to_owned();
    }
    let mut table =
        output::table(&["domain", "controllers", "told", "not taken", "heard", "refused", "state"]);
    for one in domains {
        let (words, well) = state(one);
        table.add_row(vec![
            Cell::new(&one.domain.name),
            Cell::new(one.domain.controllers.len()),
            Cell::new(one.told.last),
            Cell::new(one.told.last.saturating_sub(one.told.acked)),
            Cell::new(one.taken.through),
            Cell::new(one.taken.refused.values().sum::<u64>()),
            paint(words, if well { Color::Green } else { Color::Yellow }),
        ]);
    }
    table.to_string()
}

fn other_text(one: &DomainView) -> String {
    let (told, taken) = (&one.told, &one.taken);
    let mut text = format!(
        "Domain '{}', key {}, hosts in {}: {}.\n{}\nTold {} statements, of which it has taken all up to {}; everything anew {} times.\n\
         Heard all up to {}: {} taken, {} locations kept.",
        one.domain.name,
        shortened(&one.domain.group_key),
        one.underlays.join(", "),
        state(one).0,
        controllers(&one.domain),
        told.last,
        told.acked,
        told.begun,
        taken.through,
        taken.taken,
        taken.locations,
    );
    for (why, count) in &taken.refused {
        text.push_str(&format!("\nRefused {count}: {why}"));
    }
    if let Some(last) = &taken.last_refused {
        text.push_str(&format!("\nLast refused: {last}"));
    }
    text
}
