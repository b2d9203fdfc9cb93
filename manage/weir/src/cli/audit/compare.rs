//! `weir audit compare`: the chains of all controllers beside each other. What was ordered must be the same in all.

use super::chain::{Chain, server_of};
use crate::cli::output::{self};
use crate::cli::{Failure, Output};
use crate::exit::Exit;
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::rc::Rc;
use weir_api::client::Client;
use weir_base::codec::encode;
use weir_controller::audit::Record;
use weir_model::signed::Digest;

/// Differences told, the first.
const TOLD_MAX: usize = 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct Compare {
    #[command(flatten)]
    output: Output,
}

/// What a chain says of the order: a digest for each place, and from where on it is without gaps.
struct Said {
    controller: String,
    whole_from: u64,
    last: u64,
    places: BTreeMap<u64, Digest>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared {
    controllers: Vec<String>,
    unreachable: Vec<String>,
    /// Whether two or more have a place in common.
    comparable: bool,
    /// Places that two or more have, with something decided.
    places: u64,
    from: u64,
    to: u64,
    /// Who has only a part of these places.
    partly: Vec<String>,
    differences: Vec<String>,
    differences_total: u64,
}

fn place(record: &Record) -> Option<u64> {
    match record {
        Record::Event(event) => Some(event.index),
        Record::Repair { index, .. } | Record::Batch { index, .. } => Some(*index),
        Record::LeftOut(left_out) => Some(left_out.index),
        _ => None,
    }
}

/// What all must say the same of. Whose promises each has of those who agreed to leave an entry out may differ.
fn compared_bytes(record: &Record) -> Vec<u8> {
    match record {
        Record::LeftOut(left_out) => encode(&("left-out", left_out.index, left_out.sha256)),
        record => encode(record),
    }
}

fn read(mut chain: Chain) -> Result<Said, Failure> {
    let mut said = Said { controller: String::new(), whole_from: 0, last: 0, places: BTreeMap::new() };
    let mut records: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let mut first = true;
    while let Some((number, link)) = chain.next_link()? {
        for record in &link.records {
            match record {
                Record::Reached { index } => said.last = said.last.max(*index),
                Record::TookOver { index, .. } => {
                    (said.whole_from, said.last) = (*index + 1, said.last.max(*index));
                }
                _ => {}
            }
            let Some(index) = place(record) else { continue };
            if first && number > 1 {
                // The oldest place that is left may have lost its first links.
                said.whole_from = index + 1;
            }
            first = false;
            said.last = said.last.max(index);
            let bytes = compared_bytes(record);
            let known = records.entry(index).or_default();
            // A decision of which a crash kept a part comes again, whole.
            if !known.contains(&bytes) {
                known.push(bytes);
            }
        }
    }
    said.controller = chain.controller().to_owned();
    said.places = records
        .into_iter()
        .map(|(index, records)| {
            let mut hash = Sha256::new();
            records.iter().for_each(|record| hash.update(record));
            (index, hash.finalize().into())
        })
        .collect();
    Ok(said)
}

impl Compare {
    pub(super) fn run(self, client: Client) -> Result<ExitCode, Failure> {
        let client = Rc::new(client);
        let (mut chains, mut unreachable) = (Vec::new(), Vec::new());
        for server in client.servers() {
            let chain = Chain::of_controller(client.clone(), server_of(&client, Some(&server)));
            match read(chain) {
                Ok(said) => chains.push(said),
                Err(Failure::Client(error)) => unreachable.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        if chains.len() < 2 {
            let why = unreachable.first().map_or(String::new(), |error| format!(": {error}"));
            return Err(Failure::Input(format!(
                "comparing needs the audits of two controllers or more{why}"
            )));
        }
        let compared = compare(&chains, unreachable);
        output::print(self.output.output, &compared, || {
            say!(
                "{} controllers ({}), places {} to {} of the order, {} with something decided",
                chains.len(),
                compared.controllers.join(", "),
                compared.from,
                compared.to,
                compared.places
            );
            for error in &compared.unreachable {
                say!("not compared: {error}");
            }
            for late in &compared.partly {
                say!("{}", output::ansi(late, 33));
            }
            for difference in &compared.differences {
                say!("{}", output::ansi(difference, 31));
            }
            match compared.differences_total {
                0 if !compared.comparable => {
                    say!("{}", output::ansi("Nothing was compared: no two audits have the same places.", 31));
                }
                0 if compared.partly.is_empty() => say!("{}", output::ansi("All say the same.", 32)),
                0 => say!("{}", output::ansi("All say the same of what two or more have.", 32)),
                total => say!("{}", output::ansi(&format!("They differ at {total} places."), 31)),
            }
        })?;
        let agree = compared.differences_total == 0 && compared.comparable;
        Ok(if agree { ExitCode::SUCCESS } else { Exit::No.into() })
    }
}

impl Said {
    /// Whether it has all that was decided at a place.
    fn has(&self, index: u64) -> bool {
        (self.whole_from..=self.last).contains(&index)
    }
}

/// The first and the last place that two chains or more have; nothing where there is none.
fn common(chains: &[Said]) -> Option<(u64, u64)> {
    let has_two = |index: &u64| chains.iter().filter(|said| said.has(*index)).count() >= 2;
    // What begins or ends the common part is where a chain begins or ends.
    let from = chains.iter().map(|said| said.whole_from).filter(has_two).min()?;
    let to = chains.iter().map(|said| said.last).filter(has_two).max()?;
    Some((from, to))
}

/// Each place is compared among those that have it, so that one that began late keeps nobody else from being compared.
fn compare(chains: &[Said], unreachable: Vec<String>) -> Compared {
    let common = common(chains);
    let (from, to) = common.unwrap_or_default();
    let mut compared = Compared {
        controllers: chains.iter().map(|said| said.controller.clone()).collect(),
        unreachable,
        comparable: common.is_some(),
        places: 0,
        from,
        to,
        partly: Vec::new(),
        differences: Vec::new(),
        differences_total: 0,
    };
    let all: BTreeSet<u64> = chains.iter().flat_map(|said| said.places.keys().copied()).collect();
    let mut left_out: BTreeMap<&str, u64> = BTreeMap::new();
    for index in all {
        let (with, without): (Vec<&Said>, Vec<&Said>) = chains.iter().partition(|said| said.has(index));
        if with.len() < 2 {
            continue;
        }
        compared.places += 1;
        without.into_iter().for_each(|said| *left_out.entry(&said.controller).or_default() += 1);
        let mut votes: BTreeMap<Option<&Digest>, Vec<&str>> = BTreeMap::new();
        for said in with {
            votes.entry(said.places.get(&index)).or_default().push(&said.controller);
        }
        if votes.len() == 1 {
            continue;
        }
        compared.differences_total += 1;
        if compared.differences.len() < TOLD_MAX {
            let mut groups: Vec<String> = votes.into_values().map(|who| who.join(" and ")).collect();
            groups.sort_by_key(String::len);
            let what =
                format!("place {index} of the order: {} do not say the same", groups.join(" against "));
            compared.differences.push(what);
        }
    }
    for said in chains {
        let (from, to) = (said.whole_from, said.last);
        if let Some(places) = left_out.get(said.controller.as_str()) {
            compared.partly.push(format!(
                "{}: its audit has places {from} to {to} whole; {places} others were compared without it",
                said.controller
            ));
        } else if from > compared.to || to < compared.from {
            compared.partly.push(format!(
                "{}: its audit has places {from} to {to} whole, none of which another one has",
                said.controller
            ));
        }
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, whole_from: u64, last: u64, places: &[(u64, u8)]) -> Said {
        let places = places.iter().map(|(index, digest)| (*index, [*digest; 32])).collect();
        Said { controller: name.into(), whole_from, last, places }
    }

    #[test]
    fn the_one_that_differs_is_named_where_all_are_whole() {
        let chains = [
            said("a", 0, 9, &[(1, 1), (3, 3), (7, 7)]),
            said("b", 2, 8, &[(3, 3), (7, 7)]),
            said("c", 0, 7, &[(1, 9), (3, 4), (7, 7)]),
        ];
        let compared = compare(&chains, Vec::new());
        assert_eq!((compared.from, compared.to, compared.places), (0, 8, 3));
        assert_eq!(
            compared.differences,
            [
                "place 1 of the order: a against c do not say the same",
                "place 3 of the order: c against a and b do not say the same"
            ]
        );
        assert_eq!(
            compared.partly,
            ["b: its audit has places 2 to 8 whole; 1 others were compared without it"]
        );
    }

    #[test]
    fn what_one_leaves_out_is_a_difference() {
        let chains = [said("a", 0, 9, &[(4, 1)]), said("b", 0, 9, &[])];
        assert_eq!(compare(&chains, Vec::new()).differences_total, 1);
    }

    #[test]
    fn chains_without_a_common_place_have_nothing_to_compare() {
        let chains = [said("a", 8, 9, &[(8, 1)]), said("b", 0, 3, &[(2, 2)])];
        let compared = compare(&chains, Vec::new());
        assert_eq!((compared.places, compared.differences_total), (0, 0));
        assert!(!compared.comparable, "that is no agreement");
        assert!(compare(&[said("a", 0, 3, &[]), said("b", 0, 3, &[])], Vec::new()).comparable);
    }

    #[test]
    fn one_that_began_late_keeps_nobody_else_from_being_compared() {
        let chains = [
            said("a", 0, 9, &[(2, 2), (5, 5)]),
            said("b", 0, 9, &[(2, 2), (5, 6)]),
            said("late", 90, 95, &[(90, 1)]),
        ];
        let compared = compare(&chains, Vec::new());
        assert_eq!((compared.from, compared.to, compared.places), (0, 9, 2));
        assert_eq!(compared.differences, ["place 5 of the order: a against b do not say the same"]);
        assert_eq!(compared.partly.len(), 1, "{:?}", compared.partly);
        assert!(compared.partly[0].starts_with("late: its audit has places 90 to 95 whole"));
    }
}
