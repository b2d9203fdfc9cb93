//! The integration tests of the raft engine.

mod suite {
    mod membership;
    pub mod node;
    mod process;
    mod repair;
    mod sim;
    mod simulation;
}
