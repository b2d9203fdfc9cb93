//! The controller as a whole: its core under simulated faults, and its runtime on real sockets.

mod app;
mod frames;
mod simulation;
