//! `weir bench estate`: what consistency, the order, the size of the estate, batches, domains and ways of signing cost (rows R1 to R3, R9,
//! C3, C4, C6; Lembke, Figs 2.7a to c, 3.13d and 3.14b).
//!
//! | part | what | beside |
//! |---|---|---|
//! | `consistency` | events in force a second, and their latency, over 1 to 64 simulated switches, with one and with all of these an event, for each consistency and each order | Fig. 2.7c |
//! | `batches` | events that a group orders a second, and their latency, by the bound of a batch | Figs 2.7a, b |
//! | `signatures` | processor time of agent and switch for the signatures of 5,000 set-ups, by each way of signing | Fig. 3.13d |
//! | `domains` | events that each control plane of a pod orders of 5,000 flows, by the number of its domains: counted, nothing runs | Fig. 3.14b |
//!
//! Controllers are processes on loopback with their state on one disk; switches are simulated up to the gate ([`super::simulated`]). All share
//! this machine's processors. An event is a change of one network, asked for over the API and answered when it is in force.
//!
//! `--quick` does a little of each part, so that a test can see that all of it works; its figures say nothing.

mod consistency;
mod drive;
mod picture;
mod signatures;

use super::completion::places::{Places, RACKS};
use super::completion::traffic::{Workload, flows};
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use picture::{Line, Picture};
use std::path::PathBuf;
use std::process::ExitCode;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Consistency, order and switches
    Consistency,
    /// Bounds of a batch
    Batches,
    /// Ways of signing
    Signatures,
    /// Domains of a pod
    Domains,
}

#[derive(Debug, Args)]
pub struct Estate {
    /// Only these parts
    #[arg(long)]
    only: Vec<Part>,
    /// A little of everything, to see that it works
    #[arg(long)]
    quick: bool,
    /// How long a cell is measured, milliseconds
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    /// Where the state of controllers is
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// Folder for the pictures
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

/// Set-ups of the paper's runs.
const SETUPS: usize = 5_000;
/// New flows a second.
const FLOWS_PER_SECOND: f64 = 250.0;

impl Estate {
    /// With the usual options.
    pub fn usual() -> Estate {
        Estate {
            only: Vec::new(),
            quick: false,
            window_ms: 1_000,
            folder: "/var/tmp".into(),
            results: "bench-results".into(),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        std::fs::create_dir_all(&self.results).map_err(Failure::io(self.results.display().to_string()))?;
        if cfg!(debug_assertions) {
            say!("# by a build that is not a release: figures are larger than those of one");
        }
        let wanted = |part: Part| self.only.is_empty() || self.only.contains(&part);
        if wanted(Part::Domains) {
            self.draw("estate-domains", &domains())?;
        }
        if wanted(Part::Signatures) {
            let setups = if self.quick { SETUPS / 100 } else { SETUPS };
            self.draw("estate-signatures", &signatures::measure(setups)?)?;
        }
        if wanted(Part::Batches) {
            for (name, picture) in consistency::batches(&self)? {
                self.draw(&name, &picture)?;
            }
        }
        if wanted(Part::Consistency) {
            for (name, picture) in consistency::measure(&self)? {
                self.draw(&name, &picture)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn draw(&self, name: &str, picture: &Picture) -> Result<(), Failure> {
        let path = self.results.join(format!("{name}.svg"));
        std::fs::write(&path, picture.svg()).map_err(Failure::io(path.display().to_string()))?;
        say!("# picture {}", path.display());
        Ok(())
    }

    fn window_ms(&self) -> u64 {
        if self.quick { 200 } else { self.window_ms }
    }
}

/// Events that each domain of a pod orders: those of its own racks, and those of others whose flow ends there.
fn domains() -> Picture {
    let mut lines = Vec::new();
    for workload in [Workload::Hadoop, Workload::Web] {
        let all = flows(workload, &Places::pods_of_one(1), SETUPS, FLOWS_PER_SECOND, 1);
        let mut points = Vec::new();
        for count in 1..=10_u32 {
            let domain = |rack: u32| (rack * count / RACKS) as usize;
            let mut ordered = vec![0_u32; count as usize];
            for flow in &all {
                let (from, to) = (domain(flow.from.rack), domain(flow.to.rack));
                ordered[from] += 1;
                if to != from {
                    ordered[to] += 1;
                }
            }
            let mean = f64::from(ordered.iter().sum::<u32>()) / f64::from(count);
            let most = ordered.iter().max().copied().unwrap_or_default();
            say!(
                "RESULT estate domains-{}-{count} weir={mean:.0}events most={most} one-domain={SETUPS} ratio={:.2}",
                workload.word(),
                mean / SETUPS as f64
            );
            points.push((f64::from(count), mean));
        }
        lines.push(Line { name: workload.word().to_string(), points });
    }
    Picture {
        title: format!("Events that a control plane of a pod orders, of {SETUPS} flows"),
        across: "domains".into(),
        up: "events".into(),
        logarithmic: (false, false),
        lines,
    }
}
