//! FileWall in front of a server that the tests play themselves, over loopback: what no real server does on demand.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed step ends a test; helpers are no #[test] that clippy knows

mod alarm;
mod careless;
mod careless4;
mod compound;
mod disk;
mod doors;
mod files;
mod known;
mod operations;
mod oracle;
mod oracle4;
mod owners;
mod played;
mod policies;
mod proxy;
mod real;
mod reorder;
mod replicas;
mod replicated;
mod roles4;
