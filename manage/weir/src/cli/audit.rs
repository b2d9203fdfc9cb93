//! `weir audit`: who said, decided and signed what.
//!
//! Controllers give the links of their chains as bytes; everything is read and checked here, by whoever asks.

mod chain;
mod compare;
mod custody;
mod faults;
mod wants;

use super::output::{self, paint};
use super::written::Force;
use super::{Failure, Output};
use crate::exit::Exit;
use chain::Chain;
use clap::{Args, Subcommand};
use comfy_table::{Cell, Color};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use wants::wants;
use weir_api::client::Client;
use weir_bft::{Conflict, Convicted, Evidence};
use weir_controller::audit::{Auditor, Checked, Contradiction, Ended, Record, SeenFault, Trusted};
use weir_model::Change;
use weir_model::join::{from_hex, to_hex};
use weir_model::signed::GroupKey;

/// Most records listed.
const RECORDS_MAX: usize = 10_000;
/// Most updates of a batch told in a line.
const UPDATES_TOLD_MAX: usize = 3;

#[derive(Debug, Subcommand)]
pub(super) enum Audit {
    /// List records, the newest last
    List(List),
    /// Show who signed a rule of a switch, from which event it came, and when the switch acknowledged it
    Rule(custody::Rule),
    /// Show faults that controllers found at each other, at hosts and gateways, and which are proven
    Faults(faults::Faults),
    /// Verify the chain and every signature in it (exit code 4 if something is wrong)
    Verify(Verify),
    /// Compare the controllers' chains (exit code 4 if they differ)
    Compare(compare::Compare),
    /// Export the chain to a file, to keep it elsewhere or to verify it offline
    Export(Export),
}

/// Which chain.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct Whose {
    /// The controller whose audit it is: its address for tools; without it, the one that the context names first
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "file")]
    controller: Option<String>,
    /// A file that 'weir audit export' wrote, instead of a controller
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    whose: Whose,
    /// Only these kinds: began, event, repair, batch, signed, acks, keys, fault, contradiction, misdeed, reached, took-over, set-aside, left-out
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only what names this: a source, a host, a resource, a key of a switch, a subject
    #[arg(long, value_name = "TEXT")]
    about: Option<String>,
    /// How many, at most, the newest
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=RECORDS_MAX as i64))]
    last: u32,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    whose: Whose,
    /// The group's public key, from elsewhere than the controller that is examined ('weir status' shows it)
    #[arg(long, value_name = "HEX")]
    group_key: Option<String>,
    /// What an earlier check printed as the chain's head: the chain must still have it
    #[arg(long, value_name = "NUMBER:HASH")]
    noted: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Export {
    /// The controller whose audit it is
    #[arg(long, value_name = "ADDRESS:PORT")]
    controller: Option<String>,
    /// The file to write, a line of JSON for each link; '-' is the standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
}

/// A record in words.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    link: u64,
    time: String,
    kind: &'static str,
    what: String,
}

impl Audit {
    pub(super) fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        match self {
            Audit::List(list) => list.run(connect),
            Audit::Rule(rule) => rule.run(connect),
            Audit::Faults(faults) => faults.run(connect),
            Audit::Verify(verify) => verify.run(connect),
            Audit::Compare(compare) => compare.run(connect()?),
            Audit::Export(export) => export.run(&connect()?),
        }
    }
}

fn print_lines(lines: &VecDeque<Line>) {
    let mut table = output::table(&["link", "time", "what", ""]);
    for line in lines {
        let kind = match line.kind {
            "fault" => paint(line.kind, Color::Red),
            kind => Cell::new(kind),
        };
        table.add_row(vec![Cell::new(line.link), Cell::new(&line.time), kind, Cell::new(&line.what)]);
    }
    say!("{table}");
}

impl List {
    fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        if let Some(unknown) = self.kind.iter().find(|kind| !Record::KINDS.contains(&kind.as_str())) {
            let known = Record::KINDS.join(", ");
            return Err(Failure::Input(format!("--kind: '{unknown}' is none: use {known}")));
        }
        let mut lines: VecDeque<Line> = VecDeque::new();
        let mut chain = Chain::of(&self.whose, connect)?;
        while let Some((number, link)) = chain.next_link()? {
            for record in &link.records {
                let kind = record.kind();
                if !self.kind.is_empty() && !self.kind.iter().any(|wanted| wanted == kind) {
                    continue;
                }
                let what = describe(record);
                let named = |about: &String| what.contains(about.as_str()) || names(record, about);
                if self.about.as_ref().is_some_and(|about| !named(about)) {
                    continue;
                }
                if lines.len() == self.last as usize {
                    lines.pop_front();
                }
                lines.push_back(Line { link: number, time: time(link.wall_ms), kind, what });
            }
        }
        output::print(self.output.output, &lines, || print_lines(&lines))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether a record names something that its line leaves out.
fn names(record: &Record, about: &str) -> bool {
    match record {
        Record::Batch { updates, .. } => updates
            .iter()
            .any(|update| update.target.as_str().contains(about) || update.key.to_string().contains(about)),
        _ => false,
    }
}

/// What a check found, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verified {
    controller: String,
    first: u64,
    last: u64,
    head: String,
    links: u64,
    events: u64,
    events_unchecked: u64,
    batches: u64,
    signatures: u64,
    acks: u64,
    acks_unchecked: u64,
    faults_proven: u64,
    faults_seen: u64,
    misdeeds: u64,
    gaps: u64,
    group_key_given: bool,
    problems: u64,
    findings: Vec<String>,
}

impl Verified {
    fn new(controller: &str, checked: Checked) -> Verified {
        let finding =
            |finding: &weir_controller::audit::Finding| format!("link {}: {}", finding.link, finding.what);
        Verified {
            controller: controller.to_owned(),
            first: checked.first,
            last: checked.last,
            head: to_hex(&checked.head),
            links: checked.links,
            events: checked.events,
            events_unchecked: checked.events_unchecked,
            batches: checked.batches,
            signatures: checked.signatures,
            acks: checked.acks,
            acks_unchecked: checked.acks_unchecked,
            faults_proven: checked.faults_proven,
            faults_seen: checked.faults_seen,
            misdeeds: checked.misdeeds,
            gaps: checked.gaps,
            group_key_given: checked.key_given,
            problems: checked.findings_total,
            findings: checked.findings.iter().map(finding).collect(),
        }
    }

    fn print(&self) {
        say!(
            "Chain of {}: links {} to {}, head {}:{}",
            self.controller,
            self.first,
            self.last,
            self.last,
            self.head
        );
        say!(
            "  {} events with their sources' signatures ({} of sources that the chain does not know)",
            self.events,
            self.events_unchecked
        );
        say!(
            "  {} batches under the root that the group signs, {} signatures of the group",
            self.batches,
            self.signatures
        );
        say!(
            "  {} frames of acks with their switches' signatures ({} not checked)",
            self.acks,
            self.acks_unchecked
        );
        say!(
            "  {} faults of members proven, {} seen by this controller only; {} misdeeds of controllers, hosts and gateways",
            self.faults_proven,
            self.faults_seen,
            self.misdeeds
        );
        if self.gaps > 0 {
            say!(
                "  {} times a state was taken over: what was ordered before is in other controllers' chains",
                self.gaps
            );
        }
        if !self.group_key_given {
            say!(
                "  The group's key was taken from the chain: give --group-key to check under one that you know."
            );
        }
        for finding in &self.findings {
            say!("{}", output::ansi(finding, 31));
        }
        match self.problems {
            0 => say!("{}", output::ansi("Nothing is wrong.", 32)),
            problems => say!("{}", output::ansi(&format!("{problems} things are wrong."), 31)),
        }
    }
}

impl Verify {
    fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let group_key = self.group_key.as_deref().map(|text| {
            GroupKey::from_hex(text).ok_or_else(|| {
                Failure::Input(format!("--group-key: '{text}' is no key: 64 or 192 hexadecimal digits"))
            })
        });
        let noted = self.noted.as_deref().map(|text| {
            let parts = text.split_once(':');
            let parsed = parts.and_then(|(number, hash)| Some((number.parse().ok()?, from_hex::<32>(hash)?)));
            parsed.ok_or_else(|| {
                Failure::Input(format!(
                    "--noted: '{text}' is no head: NUMBER:HASH, as an earlier check printed it"
                ))
            })
        });
        let convicts: fn(&[u8]) -> Option<u32> = |evidence| Some(convicted(evidence)?.member);
        let trusted = Trusted {
            group_key: group_key.transpose()?,
            noted: noted.transpose()?,
            convicts: Some(convicts),
        };
        let mut auditor = Auditor::new(trusted);
        let mut chain = Chain::of(&self.whose, connect)?;
        while let Some((number, bytes)) = chain.next_bytes()? {
            // A link that cannot be read is a finding.
            let _link = auditor.take(number, &bytes);
        }
        let verified = Verified::new(chain.controller(), auditor.finish());
        output::print(self.output.output, &verified, || verified.print())?;
        Ok(if verified.problems == 0 { ExitCode::SUCCESS } else { Exit::No.into() })
    }
}

impl Export {
    fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let count = chain::export(client, self.controller.as_deref(), &self.out, self.force)?;
        tell!("{count} links written to {}.", self.out.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// A time as people write it, in UTC.
pub(super) fn time(wall_ms: u64) -> String {
    let time = i64::try_from(wall_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{wall_ms} ms"), |time| time.to_string())
}

/// Whom votes convict.
fn convicted(evidence: &[u8]) -> Option<Convicted> {
    Evidence::decode(evidence.to_vec().into()).ok()?.convicts()
}

fn contradiction_text(votes: &Contradiction) -> String {
    let Some(convicted) = convicted(&votes.evidence) else {
        return format!("controller {}: votes that prove nothing", votes.member);
    };
    let did = match convicted.conflict {
        Conflict::TwoNotarized => "voted for two different blocks",
        Conflict::TwoFinalized => "finalized two different blocks",
        Conflict::FinalizedAndNullified => "finalized a block, and voted that there is none",
    };
    format!(
        "controller {} {did} in view {} of epoch {} (proven: both votes verify under its key {})",
        convicted.member,
        convicted.view,
        convicted.epoch,
        to_hex(&convicted.key)
    )
}

fn fault_text(fault: &SeenFault) -> String {
    format!("controller {} in phase {}: {}", fault.member, fault.phase, fault.what)
}

/// The beginning of a key's fingerprint, as `weir identity list` shows it.
fn fingerprint(key: &[u8; 32]) -> String {
    to_hex(&Sha256::digest(key)[..8])
}

/// A record in words.
fn describe(record: &Record) -> String {
    match record {
        Record::Began { controller, software, .. } => format!("{} with software {software}", controller.0),
        Record::Event(event) => {
            let what = match &event.body {
                weir_controller::audit::Body::Whole(body) => wants(body),
                weir_controller::audit::Body::Digest { bytes, .. } => format!("{bytes} bytes"),
            };
            let subject = event.subject.as_ref().map_or(String::new(), |subject| format!(" for {subject}"));
            let ended = match &event.ended {
                Ended::Decided(version) => format!("decided as {version}"),
                Ended::Duplicate(version) => format!("decided before, as {version}"),
                Ended::TooOld => "too old to say whether it was decided before".to_owned(),
                Ended::Rejected(why) => format!("rejected: {why}"),
                Ended::Unauthentic(why) => format!("dropped: {why}"),
            };
            let (source, sequence, kind) = (&event.source.0, event.sequence, event.body.kind());
            format!("{kind} {what}; number {sequence} of {source}{subject}; {ended}")
        }
        Record::Repair { actuator, version, keys, .. } => {
            format!("{keys} keys of {actuator} decided anew as {version}")
        }
        Record::Batch { header, first_leaf, updates, .. } => {
            let mut parts: Vec<String> = updates
                .iter()
                .take(UPDATES_TOLD_MAX)
                .map(|update| match update.change {
                    Change::Put(_) => format!("{} at {}", update.key, update.target),
                    Change::Delete => format!("{} gone at {}", update.key, update.target),
                })
                .collect();
            let more = (header.count as usize).saturating_sub(*first_leaf as usize + parts.len());
            if more > 0 {
                parts.push(format!("{more} more"));
            }
            format!("{}: {} updates: {}", header.index, header.count, parts.join(", "))
        }
        Record::Signed { header, phase, .. } => {
            let by = if *phase == 0 {
                "the group's one key".to_owned()
            } else {
                format!("shares of phase {phase}")
            };
            format!("{} by {by}; root {}", header.index, &to_hex(&header.root)[..16])
        }
        Record::Acks(acks) => {
            let highest = acks.acks.iter().map(|ack| ack.version).max().unwrap_or_default();
            format!("{} keys by {}, up to {highest}", acks.acks.len(), acks.actuator)
        }
        Record::Keys(keys) => {
            let members: Vec<String> = keys.members.keys().map(u32::to_string).collect();
            format!(
                "phase {}: controllers {} have shares, {} must sign",
                keys.phase,
                members.join(", "),
                keys.group.threshold()
            )
        }
        Record::Fault(fault) => fault_text(fault),
        Record::Contradiction(votes) => contradiction_text(votes),
        Record::Misdeed(misdeed) => faults::misdeed_text(misdeed),
        Record::SetAside { index, sha256 } => {
            format!("entry {index} ({}) was set aside by an operator: nothing of it was done", to_hex(sha256))
        }
        Record::LeftOut(left_out) => {
            let members: Vec<String> =
                left_out.promises.iter().map(|(member, ..)| member.to_string()).collect();
            let by = left_out
                .word
                .as_ref()
                .map(|word| format!(", as {} said", word.operator.0))
                .unwrap_or_default();
            format!(
                "entry {} ({}) is left out{by}: nothing of it was done; promised by controllers {}",
                left_out.index,
                to_hex(&left_out.sha256),
                members.join(", ")
            )
        }
        Record::TooLarge { kind, bytes, .. } => format!("{kind} of {bytes} bytes: only its digest is kept"),
        Record::Reached { index } => format!("the order was followed up to {index}"),
        Record::TookOver { after, index, version } => {
            format!(
                "the state after {index} was taken over, at {version}; what came behind {after} is not here"
            )
        }
    }
}
