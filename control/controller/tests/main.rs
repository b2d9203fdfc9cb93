//! The controller as a whole: its core under simulated faults, and its runtime on real sockets.

#[cfg(test)]
mod suite;
