//! The whole path on this machine: client, gRPC, order, store.

#![allow(clippy::unwrap_used)] // helpers are no #[test] that clippy knows

mod suite;
