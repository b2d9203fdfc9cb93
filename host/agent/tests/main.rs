//! The agent as a whole: joining, sessions, and real DHCP and DNS clients in namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod clients;
mod fake_switch;
mod joining;
mod pki;
mod planes;
mod toy;
mod units;
mod whole;
