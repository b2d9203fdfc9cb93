//! Looks at files, at a running monitor and at its audit log.

use super::top::OfMonitor;
use super::{AUDIT_FILE, failure};
use crate::cli::output::{Format, print, table};
use crate::cli::shown::Look;
use crate::exit::Exit;
use crate::failure::Failure;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_monitor::audit::{self, Entry};
use weir_monitor::controls;
use weir_monitor::explain;
use weir_monitor::status::Status;

/// `weir monitor check`
#[derive(Debug, Args)]
pub struct Check {
    /// File or folder of policies
    #[arg(long, value_name = "PATH", required_unless_present = "query")]
    policy: Option<PathBuf>,
    /// File of queries
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
}

impl Check {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        if let Some(path) = &self.policy {
            for policy in weir_monitor::policy::load(path).map_err(failure)? {
                let common = policy.common();
                let mode = if common.dry_run { "dry run" } else { "in earnest" };
                say!("policy {}: {}, {}, {mode}", common.name, policy.kind(), policy.action_name());
                // That of a service comes and goes with it.
                let named = common.cgroup.as_ref().filter(|_| policy.kind() != "service");
                if let Some(folder) =
                    named.map(|cgroup| controls::folder(cgroup)).filter(|folder| !folder.is_dir())
                {
                    say!(
                        "  its cgroup {} is not on this host: a monitor starts only when it is",
                        folder.display()
                    );
                }
            }
        }
        if let Some(path) = &self.query {
            for query in weir_monitor::query::load(path).map_err(failure)? {
                say!("query {}: {}, {} bytes", query.name, query.when.name(), query.bytes());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `weir monitor query`
#[derive(Debug, Args)]
pub struct Query {
    /// The query; all of them if it is not given
    name: Option<String>,
    #[command(flatten)]
    look: Look<OfMonitor>,
}

impl Query {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut rows = self.look.fetch::<Status>("status")?.queries;
        if let Some(name) = &self.name {
            let known: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
            rows.retain(|row| row.name == *name);
            if rows.is_empty() {
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                let text = format!(
                    "the monitor has no query '{name}' (it has {known}): queries are given at its start"
                );
                return Err(Failure::Missing(text));
            }
        }
        print(self.look.output, &rows, || {
            let mut shown = table(&["query", "kind", "fired", "value"]);
            for row in &rows {
                shown.add_row([row.name.clone(), row.kind.clone(), row.fired.to_string(), row.value.clone()]);
            }
            say!("{shown}");
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `weir monitor events`
#[derive(Debug, Args)]
pub struct Events {
    #[command(flatten)]
    look: Look<OfMonitor>,
}

impl Events {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let entries: Vec<Entry> = self.look.fetch("events")?;
        print(self.look.output, &entries, || {
            let mut shown = table(&["event", "time", "policy", "what"]);
            for entry in &entries {
                let policy = entry.policy.clone().unwrap_or_default();
                shown.add_row([entry.number.to_string(), explain::time(entry), policy, explain::line(entry)]);
            }
            say!("{shown}");
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `weir monitor explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// Number of the event
    event: u64,
    /// The audit log: no monitor needs to run
    #[arg(long, default_value = AUDIT_FILE)]
    audit: PathBuf,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl Explain {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let entries = audit::read_all(&self.audit).map_err(|error| unread(&self.audit, error))?;
        let at = entries.iter().position(|(_, entry)| entry.number == self.event).ok_or_else(|| {
            Failure::Missing(format!("{} has no event {}", self.audit.display(), self.event))
        })?;
        let entry = &entries[at].1;
        let later: Vec<&Entry> = entries[at + 1..].iter().map(|(_, entry)| entry).collect();
        print(self.output, entry, || say!("{}", explain::text(entry, &later)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// `weir monitor audit`
#[derive(Debug, Args)]
pub struct Audit {
    /// The audit log
    #[arg(long, default_value = AUDIT_FILE)]
    audit: PathBuf,
}

impl Audit {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        match audit::read_all(&self.audit) {
            Ok(entries) => {
                let newest = entries.last().map_or("none", |(hash, _)| hash.as_str());
                say!("{} entries, nothing was changed; newest hash {newest}", entries.len());
                Ok(ExitCode::SUCCESS)
            }
            Err(error @ weir_monitor::Error::Audit { .. }) => {
                say!("{error}");
                Ok(Exit::No.into())
            }
            Err(error) => Err(unread(&self.audit, error)),
        }
    }
}

/// Why a log cannot be read, and what a person can do.
fn unread(log: &Path, error: weir_monitor::Error) -> Failure {
    if log.exists() {
        return failure(error);
    }
    Failure::Missing(format!(
        "there is no audit log {}: no monitor ran here, or say its own with --audit",
        log.display()
    ))
}
