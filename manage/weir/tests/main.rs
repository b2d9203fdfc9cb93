//! Scenarios on a whole lab: real processes, real kernel namespaces, real packets. Root; without it each prints
//! `NOT RUN`.
//!
//! One instance of `weir lab two-tenants` (the ninth, so that a person's own lab is left alone), and one of `weir lab
//! three-controllers`, of `weir lab four-controllers` and of `weir lab seven-controllers`, is brought up by the first scenario that wants it and shared. Scenarios take turns. Each finds the lab whole: every program runs, and the resources are
//! those of `net.yaml`. What a scenario adds has its own prefix and goes with it. The lab goes when this process ends,
//! however it ends.

#![allow(clippy::unwrap_used)] // a failed step of a scenario ends it; helpers are no #[test] that clippy knows

mod attacks;
mod audit;
mod balanced;
mod byzantine;
mod chaos;
/// The checker of histories, shared with the store's own tests.
#[path = "../../../control/rpc/tests/suite/checker.rs"]
mod checker;
mod cli;
mod clocks;
mod consistency;
mod convert;
mod crashes;
mod domains;
mod doors;
mod echo;
mod endorsed;
mod estate;
mod extra;
mod filewall;
/// A member that floods hosts, shared with the bench of attacks.
mod flooder;
mod fragments;
mod group;
/// Callers whose histories are checked, shared with the store's own tests.
#[path = "../../../control/rpc/tests/suite/history.rs"]
mod history;
mod identities;
mod lab;
mod learned;
mod liar;
mod members;
mod monitor;
mod namespaces;
mod networks;
mod nfs_guest;
mod planes;
mod policy;
mod quorum;
mod revoked;
mod rot;
mod set_aside;
mod seven;
mod spare;
mod store;
mod tools;
/// A member that betrays its group, shared with the order's own tests.
#[path = "../../../control/bft/tests/suite/traitor.rs"]
mod traitor;
mod traitor_orders;
mod upgrades;
