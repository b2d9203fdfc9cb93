//! The hook that a guest exports (Bohra, 3.5.2): a program in it that was started before anything went wrong, and does on
//! the spot what its monitor asks for over a port of the machine. The monitor names the culprit, which it knows from the
//! guest's memory; so the guest needs no detection of its own, and nothing that could be starved but the program itself.
//!
//! One line each way: `repair NUMBER MEASURE PROCESS PROGRAM`, and `done NUMBER` or `failed NUMBER`. What the guest says
//! is believed only as far as the outcome that is shown; lines that are no answer (a terminal echoes) are skipped.

use crate::error::{Error, Result};
use crate::kernel::{Comm, comm_text};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most bytes that are read for one answer.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Tells its answer from those to earlier questions.
    pub number: u64,
    /// What was measured.
    pub measure: &'static str,
    /// Whose tree is to be ended, as the guest numbers it; 0 if nobody in particular is behind it.
    pub process: u32,
    /// Its program.
    pub program: Comm,
}

impl Asked {
    /// As it is sent. A guest chooses the names of its programs: nothing in one may end the line.
    fn line(&self) -> String {
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        let program: String = comm_text(&self.program).chars().map(plain).collect();
        format!("repair {} {} {} {program}\n", self.number, self.measure, self.process)
    }
}

/// Asks for a repair and waits until it is done.
///
/// # Errors
/// [`Error::Guest`] when the guest says that it failed, or does not answer in time.
pub(super) fn ask(path: &Path, asked: &Asked, limit: Duration) -> Result<()> {
    let failed = |error: std::io::Error| Error::Guest(format!("its hook at {}: {error}", path.display()));
    let late = || Error::Guest(format!("its hook at {} does not answer", path.display()));
    let until = Instant::now() + limit;
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_write_timeout(Some(limit)).map_err(failed)?;
    stream.write_all(asked.line().as_bytes()).map_err(failed)?;
    let mut said = Vec::new();
    loop {
        if let Some(done) = answer(&said, asked.number) {
            let refused = || Error::Guest(format!("its hook at {} says that it failed", path.display()));
            return if done { Ok(()) } else { Err(refused()) };
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || said.len() >= ANSWER_BYTES_MAX {
            return Err(late());
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        let mut bytes = [0; 512];
        match stream.read(&mut bytes) {
            Ok(0) => return Err(Error::Guest(format!("its hook at {} was closed", path.display()))),
            Ok(length) => said.extend_from_slice(&bytes[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Whether a whole line answers the question of this number, and how.
fn answer(said: &[u8], number: u64) -> Option<bool> {
    let whole = said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let mut lines = whole.filter_map(|line| std::str::from_utf8(line).ok());
    lines.find_map(|line| match line.trim().split_once(' ') {
        Some(("done", of)) if of.parse() == Ok(number) => Some(true),
        Some(("failed", of)) if of.parse() == Ok(number) => Some(false),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
