//! The integration tests of the raft engine.

mod suite {
    mod membership;
    mod process;
    mod repair;
    mod sim;
    mod simulation;
}
