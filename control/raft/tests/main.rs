//! The integration tests of the raft engine.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod suite {
    mod full_disk;
    mod large;
    mod lost;
    mod membership;
    pub mod node;
    mod process;
    mod repair;
    mod seed;
    mod sim;
    mod simulation;
}
