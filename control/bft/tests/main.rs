//! Groups of replicas: simulated from a seed, and as real processes.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod suite {
    mod admission;
    mod counted;
    mod full_disk;
    mod idle;
    mod node;
    mod process;
    mod sim;
    mod simulation;
    mod spares;
    mod strangers;
    mod traitor;
    mod wire;
}
