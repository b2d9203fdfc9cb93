//! Ctrl-c and SIGTERM as a flag: a run notices it between two steps and cleans up before it ends.
//!
//! A second signal ends the process at once, so that a hanging step cannot trap the person; the next start or
//! `lab-down` then removes what was left.

use crate::{Error, Result};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static SHIELDED: Cell<bool> = const { Cell::new(false) };
}

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handlers. Calling it again changes nothing.
pub fn install() -> Result<()> {
    if FLAG.get().is_some() {
        return Ok(());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The order matters: the shutdown must see the flag as the signals before left it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| Error::io("install signal handler", error))?;
    }
    let _ = FLAG.set(flag);
    Ok(())
}

/// Runs `work` as if no signal had come: cleaning up is what the person asked for, and must not be cut short.
pub fn shielded<T>(work: impl FnOnce() -> T) -> T {
    let before = SHIELDED.replace(true);
    let result = work();
    SHIELDED.set(before);
    result
}

/// True once a signal came.
pub fn requested() -> bool {
    !SHIELDED.get() && FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// [`Error::Interrupted`] once a signal came.
pub fn check() -> Result<()> {
    if requested() { Err(Error::Interrupted) } else { Ok(()) }
}
