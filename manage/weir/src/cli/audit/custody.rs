//! `weir audit rule`: from an entry of a switch back to the event that caused it, and who signed on the way.

use super::chain::Chain;
use super::{Whose, describe, time};
use crate::cli::output::{self};
use crate::cli::{Failure, Output};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use weir_api::client::Client;
use weir_controller::audit::{Ended, Record};
use weir_model::join::to_hex;
use weir_model::signed::Digest;
use weir_model::{Change, Label, Version};

/// Versions told of one rule, the newest.
const VERSIONS_MAX: usize = 100;

#[derive(Debug, Args)]
pub(in crate::cli) struct Rule {
    /// The host or gateway
    switch: Label,
    /// The key of the entry, as 'weir trace' and 'weir audit list' show it, such as policy/100
    key: String,
    #[command(flatten)]
    whose: Whose,
    /// Also the versions before the newest
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: Output,
}

/// One version of a rule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Custody {
    version: u64,
    change: String,
    decided: String,
    event: Option<String>,
    root: String,
    signed: Option<String>,
    acknowledged: Option<String>,
    #[serde(skip)]
    batch: (Version, Digest),
}

impl Rule {
    pub(super) fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let mut found: Vec<Custody> = Vec::new();
        let mut events: std::collections::BTreeMap<u64, String> = std::collections::BTreeMap::new();
        let mut chain = Chain::of(&self.whose, connect)?;
        while let Some((_, link)) = chain.next_link()? {
            let at = time(link.wall_ms);
            for record in &link.records {
                match record {
                    Record::Event(event) => {
                        if let Ended::Decided(version) = event.ended {
                            events.insert(version.0, describe(record));
                            // Only what this link and the batch behind it may name.
                            while events.len() > 65_536 {
                                events.pop_first();
                            }
                        }
                    }
                    Record::Repair { version, .. } => drop(events.insert(version.0, describe(record))),
                    Record::Batch { header, updates, .. } => {
                        let fits = |update: &&weir_model::Update| {
                            update.target == self.switch && update.key.to_string() == self.key
                        };
                        for update in updates.iter().filter(fits) {
                            // A decision may come again after a crash.
                            found.retain(|known| known.version != update.version.0);
                            found.push(Custody {
                                version: update.version.0,
                                change: match &update.change {
                                    Change::Put(entry) => format!("{entry:?}"),
                                    Change::Delete => "deleted".to_owned(),
                                },
                                decided: at.clone(),
                                event: events.get(&update.version.0).cloned(),
                                root: to_hex(&header.root),
                                signed: None,
                                acknowledged: None,
                                batch: (header.index, header.root),
                            });
                            if found.len() > VERSIONS_MAX {
                                found.remove(0);
                            }
                        }
                    }
                    Record::Signed { header, .. } => {
                        let batch = (header.index, header.root);
                        for custody in found.iter_mut().filter(|custody| custody.batch == batch) {
                            custody.signed.get_or_insert_with(|| format!("{at}: {}", describe(record)));
                        }
                    }
                    Record::Acks(acks) if acks.actuator == self.switch => {
                        for ack in acks.acks.iter().filter(|ack| ack.key.to_string() == self.key) {
                            let outcome = match &ack.result {
                                Err(refusal) => format!("refused: {refusal}"),
                                Ok(()) => "in force".to_owned(),
                            };
                            for custody in found.iter_mut().filter(|custody| custody.version == ack.version.0)
                            {
                                custody.acknowledged.get_or_insert_with(|| format!("{at}: {outcome}"));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        if !self.all {
            found = found.pop().into_iter().collect();
        }
        if found.is_empty() {
            return Err(Failure::Missing(format!(
                "the audit has no entry {} of {}: 'weir audit list --kind batch --about {}' lists keys",
                self.key, self.switch, self.switch
            )));
        }
        output::print(self.output.output, &found, || {
            for custody in &found {
                let or = |text: &Option<String>, none: &str| text.clone().unwrap_or_else(|| none.to_owned());
                say!(
                    "{}",
                    output::ansi(&format!("{} at {}, v{}", self.key, self.switch, custody.version), 1)
                );
                say!("  {:<13}{}", "value", custody.change);
                say!("  {:<13}{}", "event", or(&custody.event, "older than this audit"));
                say!("  {:<13}{}; root {}", "decided", custody.decided, &custody.root[..16]);
                say!("  {:<13}{}", "signed", or(&custody.signed, "not yet, or nobody needed it"));
                say!(
                    "  {:<13}{}",
                    "acknowledged",
                    or(&custody.acknowledged, "not yet, or by an ack for a later version")
                );
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
