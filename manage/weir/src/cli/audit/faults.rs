//! `weir audit faults`: what controllers, hosts and gateways were found to have done, as all controllers saw it.
//!
//! Evidence is not passed on among controllers, and one of them may have got what the others did not, or may lie itself. So each is asked,
//! what is proven is proven from the bytes here, and who saw something stands beside it.
//!
//! What the chains show together, and no record says: acks, signed by a switch, of versions that were never decided, and numbers of
//! a switch's events that were never ordered, which somebody between the switch and the order dropped.

use super::chain::{Chain, server_of};
use super::{Whose, contradiction_text, fault_text, time};
use crate::cli::output::{self, paint};
use crate::cli::{Failure, Output};
use clap::Args;
use comfy_table::{Cell, Color};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::rc::Rc;
use weir_api::client::{Client, ClientError};
use weir_controller::audit::{Ended, Misdeed, Record, Wrong};
use weir_model::event::SourceId;
use weir_model::{Label, Version};

/// A gap in a source's numbers that is wider is no gap: a switch that starts again leaves out the rest of those that it had reserved.
const GAP_MAX: u64 = 64;
/// Behind so many later numbers one that did not come does not come any more.
const LATER_MIN: usize = 16;
/// Numbers of gaps told.
const GAPS_TOLD_MAX: usize = 8;
/// Versions acknowledged ahead that are remembered of each switch.
const AHEAD_MAX: usize = 64;

#[derive(Debug, Args)]
pub(in crate::cli) struct Faults {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    output: Output,
}

/// A fault, and who saw it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fault {
    /// When it was seen first.
    time: String,
    /// Who did it.
    who: String,
    what: String,
    /// What convinces whoever asks: nothing where only the controllers' word stands for it.
    proven: bool,
    /// How often, as far as that is counted.
    count: u64,
    /// The controllers that saw it.
    seen_by: BTreeSet<String>,
}

/// What was found so far, by who and what.
#[derive(Default)]
struct Found(BTreeMap<(String, String), Fault>);

impl Found {
    fn add(&mut self, seen_by: &str, time: String, (who, what): (String, String), proven: bool, count: u64) {
        let new = || Fault {
            time: time.clone(),
            who: who.clone(),
            what: what.clone(),
            proven,
            count: 0,
            seen_by: BTreeSet::new(),
        };
        let fault = self.0.entry((who.clone(), what.clone())).or_insert_with(new);
        fault.proven |= proven;
        fault.count = fault.count.max(count);
        fault.time = fault.time.clone().min(time.clone());
        fault.seen_by.insert(seen_by.to_owned());
    }
}

/// What a misdeed is, in words; without how often.
fn wrong_text(wrong: &Wrong) -> String {
    match wrong {
        Wrong::ForgedAcks(reason) => {
            format!(
                "acks came in its session that are not its own ({reason}): who has its certificate forged them"
            )
        }
        Wrong::PassedOver { .. } => {
            "did not propose events of switches when it was its turn: it drops them, or did not hear of them"
                .to_owned()
        }
        Wrong::CutOff => {
            "sent what no honest controller sends, such as votes that exclude each other, and was cut off"
                .to_owned()
        }
        Wrong::Ordered { .. } => {
            "ordered what is an operator's to order, and no operator signed it: it was dropped".to_owned()
        }
    }
}

/// A misdeed as `weir audit list` tells it.
pub(super) fn misdeed_text(misdeed: &Misdeed) -> String {
    let which = match &misdeed.what {
        Wrong::ForgedAcks(_) | Wrong::CutOff => String::new(),
        Wrong::PassedOver { source, sequence } => format!("; now number {sequence} of {}", source.0),
        Wrong::Ordered { kind, sequence, reason } => format!("; now {kind}, its number {sequence}: {reason}"),
    };
    format!("{}: {}; {} times{which}", misdeed.who.0, wrong_text(&misdeed.what), misdeed.count)
}

/// Numbers of a source that came, and the newest.
#[derive(Default)]
struct Numbers {
    seen: BTreeSet<u64>,
}

impl Numbers {
    /// Those between others that never came, with many later ones behind them.
    fn gaps(&self) -> Vec<u64> {
        let mut gaps = Vec::new();
        let last = self.seen.iter().rev().nth(LATER_MIN).copied().unwrap_or(0);
        for (before, after) in self.seen.iter().zip(self.seen.iter().skip(1)) {
            if *after <= last && after - before <= GAP_MAX {
                gaps.extend(before + 1..*after);
            }
        }
        gaps
    }
}

/// What one chain shows.
#[derive(Default)]
struct Reading {
    phases: BTreeMap<u64, Box<weir_controller::audit::KeysRecord>>,
    numbers: BTreeMap<SourceId, Numbers>,
    /// The highest version that was decided.
    decided: Version,
    /// Acks of versions that were not decided when they came, with when.
    ahead: BTreeMap<Label, BTreeMap<(Version, String), String>>,
}

impl Reading {
    fn record(&mut self, record: Record, time: &str, found: &mut Found, controller: &str) {
        let at = || time.to_owned();
        match record {
            Record::Keys(keys) => drop(self.phases.insert(keys.phase, keys)),
            Record::Fault(fault) => {
                let phase = self.phases.get(&fault.phase);
                let proven = fault.proof.as_ref().zip(phase).is_some_and(|(proof, keys)| {
                    proof.convinces(fault.phase, fault.member, &keys.members, &keys.group)
                });
                let proof = if proven {
                    " (proven: it signed the share, and the share does not verify under its key)"
                } else {
                    ""
                };
                let named =
                    (format!("controller-{}", fault.member), format!("{}{proof}", fault_text(&fault)));
                found.add(controller, at(), named, proven, 1);
            }
            Record::Contradiction(votes) => {
                let what = contradiction_text(&votes);
                let proven = what.contains("proven");
                found.add(controller, at(), (format!("controller-{}", votes.member), what), proven, 1);
            }
            Record::Misdeed(misdeed) => {
                let named = (misdeed.who.short().to_owned(), wrong_text(&misdeed.what));
                found.add(controller, at(), named, false, misdeed.count);
            }
            Record::Event(event) => {
                if let Ended::Decided(version) = event.ended {
                    self.decided = self.decided.max(version);
                }
                if event.source.actuator().is_some() && !matches!(event.ended, Ended::Unauthentic(_)) {
                    self.numbers.entry(event.source.clone()).or_default().seen.insert(event.sequence);
                }
            }
            Record::Repair { version, .. } | Record::TookOver { version, .. } => {
                self.decided = self.decided.max(version);
                if matches!(record, Record::TookOver { .. }) {
                    // What was ordered between is not here.
                    self.numbers.clear();
                }
            }
            Record::Batch { header, .. } => self.decided = self.decided.max(header.index),
            Record::Acks(acks) => {
                let ahead = acks.acks.iter().filter(|ack| ack.result.is_ok() && ack.version > self.decided);
                for ack in ahead {
                    let of = self.ahead.entry(acks.actuator.clone()).or_default();
                    of.entry((ack.version, ack.key.to_string())).or_insert_with(at);
                    if of.len() > AHEAD_MAX {
                        // Those of the highest versions stay.
                        of.pop_first();
                    }
                }
            }
            _ => {}
        }
    }

    fn end(self, found: &mut Found, controller: &str, now: &str) {
        for (actuator, ahead) in self.ahead {
            let never: Vec<_> = ahead.iter().filter(|((version, _), _)| *version > self.decided).collect();
            if let Some(((version, key), time)) = never.last() {
                let what = format!(
                    "acknowledged {version} of {key}, and {} is the last that was decided (proven: it signed the ack)",
                    self.decided
                );
                found.add(
                    controller,
                    (*time).clone(),
                    (actuator.to_string(), what),
                    true,
                    never.len() as u64,
                );
            }
        }
        for (source, numbers) in self.numbers {
            let gaps = numbers.gaps();
            if gaps.is_empty() {
                continue;
            }
            let told: Vec<String> = gaps.iter().take(GAPS_TOLD_MAX).map(u64::to_string).collect();
            let more = if gaps.len() > GAPS_TOLD_MAX { " …" } else { "" };
            let what = format!(
                "events of its switch were never ordered (numbers {}{more}): its agent dropped them, or had no session",
                told.join(", ")
            );
            found.add(
                controller,
                now.to_owned(),
                (source.short().to_owned(), what),
                false,
                gaps.len() as u64,
            );
        }
    }
}

fn read(mut chain: Chain, found: &mut Found) -> Result<(), Failure> {
    let (mut reading, mut last) = (Reading::default(), String::new());
    while let Some((_, link)) = chain.next_link()? {
        last = time(link.wall_ms);
        let controller = chain.controller().rsplit('/').next().unwrap_or_default().to_owned();
        for record in link.records {
            reading.record(record, &last, found, &controller);
        }
    }
    let controller = chain.controller().rsplit('/').next().unwrap_or_default().to_owned();
    reading.end(found, &controller, &last);
    Ok(())
}

/// The addresses of all controllers.
fn everybody(client: &Client) -> Vec<String> {
    match client.group() {
        Ok(group) => group.members.iter().map(|member| format!("https://{}", member.api)).collect(),
        Err(_) => client.servers(),
    }
}

impl Faults {
    pub(super) fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let mut found = Found::default();
        if self.whose.file.is_some() {
            read(Chain::of(&self.whose, connect)?, &mut found)?;
        } else {
            let client = Rc::new(connect()?);
            let servers = match &self.whose.controller {
                Some(one) => vec![server_of(&client, Some(one))],
                None => everybody(&client),
            };
            let mut failed = None;
            let mut asked = 0;
            for server in servers {
                match read(Chain::of_controller(client.clone(), server.clone()), &mut found) {
                    Ok(()) => asked += 1,
                    Err(
                        error @ Failure::Client(ClientError::Unreachable { .. } | ClientError::Clock { .. }),
                    ) => {
                        tell!("{server} cannot be asked: {error}");
                        failed = failed.or(Some(error));
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = failed.filter(|_| asked == 0) {
                return Err(error);
            }
        }
        let mut faults: Vec<Fault> = found.0.into_values().collect();
        faults.sort_by(|one, other| one.time.cmp(&other.time));
        if faults.is_empty() {
            tell!("Nobody was found to have lied.");
        }
        output::print(self.output.output, &faults, || {
            if !faults.is_empty() {
                print(&faults);
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn print(faults: &[Fault]) {
    let mut table = output::table(&["since", "who", "what", "times", "seen by"]);
    for fault in faults {
        let seen_by: Vec<&str> = fault.seen_by.iter().map(String::as_str).collect();
        let who = if fault.proven { paint(&fault.who, Color::Red) } else { Cell::new(&fault.who) };
        let count = if fault.count > 1 { fault.count.to_string() } else { String::new() };
        table.add_row(vec![
            Cell::new(&fault.time),
            who,
            Cell::new(&fault.what),
            Cell::new(count),
            Cell::new(seen_by.join(", ")),
        ]);
    }
    say!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_never_came_is_a_gap_and_what_a_restart_leaves_out_is_none() {
        let mut numbers = Numbers { seen: (100..140).chain(60_000..60_040).collect() };
        assert_eq!(numbers.gaps(), Vec::<u64>::new());
        for gone in [110, 111, 139, 60_030] {
            numbers.seen.remove(&gone);
        }
        // Number 139 is before the restart: nobody knows. Number 60030 may come yet.
        assert_eq!(numbers.gaps(), [110, 111]);
    }
}
