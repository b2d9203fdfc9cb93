//! Real processes in cages: cgroups that bound how many processes and how much memory a fault can take.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed step ends a test; helpers are no #[test] that clippy knows
#![allow(clippy::zombie_processes)] // an early return is a NOT RUN; the cage ends what is in it

mod allocation;
mod blame;
mod bombs;
mod cage;
mod exhaust;
mod guests;
mod hogs;
mod loads;
mod locked;
mod oracle;
mod ring;
mod services;
mod stalls;
mod vm;
mod waiting;
mod webhook;
