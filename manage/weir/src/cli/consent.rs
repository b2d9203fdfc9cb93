//! Asking before something is done that cannot be taken back, or that changes what is there.

use super::Failure;
use clap::Args;
use std::io::{BufRead, IsTerminal, Read};

/// Longest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 1024;

/// `--yes` and `--dry-run` of a command that changes something for ever.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Consent {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Consent {
    /// Whether to go ahead. Says what would be done, and asks unless it was told not to.
    ///
    /// # Errors
    /// [`Failure::Input`] without a terminal to ask on, [`Failure::Declined`].
    pub(super) fn given(self, what: &str) -> Result<bool, Failure> {
        if self.dry_run {
            say!("Would be done: {what}");
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        say!("{what}");
        agreed("Go ahead?").map(|()| true)
    }
}

/// Asks on the terminal.
///
/// # Errors
/// [`Failure::Input`] when there is none, [`Failure::Declined`].
pub(super) fn agreed(question: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Input("there is no terminal to ask on: say --yes to go ahead".to_string()));
    }
    put!("{question} [y/N] ");
    crate::print::flush();
    if crate::print::is_broken() {
        return Err(Failure::Declined);
    }
    let mut line = String::new();
    let mut input = std::io::stdin().lock().take(ANSWER_BYTES_MAX);
    input.read_line(&mut line).map_err(Failure::io("standard input"))?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}
