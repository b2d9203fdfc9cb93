//! The switch of a host and of a gateway: a process that forwards between ports, the underlay and
//! the outside, and goes on when every controller and the host's agent are gone.
//!
//! Paper: Andromeda (rows A9, A11, A14, A16 to A18, A22 to A24, A27, A29 in a first form).
//!
//! Three threads, three rooms (and a fourth, [`underlay`], where the underlay is to go by AF_XDP):
//! - `engine`: moves packets. It looks each up in the flow table ([`flow`]) and does what the
//!   action says; it never writes the table, takes no lock and asks nobody. What it does not know
//!   it hands to the slow path.
//! - `slow`: owns what is in force, resolves misses ([`flow::Resolver`], implemented by `tables`),
//!   tracks connections, answers ARP and ND, and publishes flows by swapping shadow tables.
//! - `control`: the local socket to the agent and to tools.
//!
//! A process of the switch can be replaced by another under traffic: [`handover`].

pub mod answer;
pub mod capture;
pub mod config;
pub mod conntrack;
pub mod control;
pub mod counters;
pub mod durations;
pub mod engine;
pub mod flow;
pub mod flowtable;
pub mod fragments;
pub mod handover;
pub mod mark;
pub mod nat;
pub mod policy;
pub mod ports;
pub mod process;
pub mod resolve;
pub mod slow;
pub mod tables;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod underlay;
