//! The roles that run for ever.

pub mod approvals;
mod backend;
pub mod controller;
pub mod convert;
pub mod domains;
pub mod doors;
pub mod filewall;
pub mod group;
pub mod health;
pub mod identities;
pub mod keys;
pub mod manifest;
pub mod monitor;
pub mod names;
pub mod node;
mod operators;
pub mod own;
pub mod placing;
pub mod plane;
pub mod process;
pub mod state;
mod store;
pub mod switch;
mod tokens;
pub mod trace;

use tokio::signal::unix::{SignalKind, signal};
use weir_model::Label;

/// A name that is written in the program.
fn label(text: &'static str) -> Label {
    match Label::new(text) {
        Ok(label) => label,
        Err(error) => unreachable!("{error}"),
    }
}

/// Returns when the process is told to end, by SIGTERM or SIGINT.
async fn stopped() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals end the process, which is a normal event too.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
