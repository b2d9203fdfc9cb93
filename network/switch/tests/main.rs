//! The switch as a process between network namespaces. Needs root; see `lab::missing`.
#![allow(clippy::expect_used, clippy::unwrap_used)]
mod forward;
mod gateways;
mod guests;
mod interop;
mod lab;
mod lives;
mod scripts;
mod underlay;
mod upgrade;
mod veth;
