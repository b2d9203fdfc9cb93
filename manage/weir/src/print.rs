//! Standard output and standard error of commands. Whatever is behind them, a full disk or a reader that went away, is no
//! reason to panic: what cannot be written is told once, in a line on standard error, and the command ends with
//! [`Exit::Failed`](crate::exit::Exit::Failed).
//!
//! A command that only reads and prints, or that has shown what it is about to do, ends where it cannot print: what nobody can
//! see is not done. One that has to clean up goes on silently, and says it at its end.

use crate::exit::Exit;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the process ends when standard output fails.
static ENDS: AtomicBool = AtomicBool::new(false);
static BROKEN: AtomicBool = AtomicBool::new(false);
static WHY: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line, as `println!` does.
macro_rules! say {
    () => { $crate::print::text(format_args!("\n")) };
    ($($part:tt)*) => { $crate::print::line(format_args!($($part)*)) };
}

/// Prints, as `print!` does.
macro_rules! put {
    ($($part:tt)*) => { $crate::print::text(format_args!($($part)*)) };
}

/// Tells on standard error, as `eprintln!` does.
macro_rules! tell {
    ($($part:tt)*) => { $crate::print::complain(format_args!($($part)*)) };
}

/// From now on the process ends when standard output fails.
pub fn end_when_broken() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Whether standard output has failed: nothing more is printed.
pub fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

pub fn line(text: Arguments<'_>) {
    bytes(format!("{text}\n").as_bytes());
}

pub fn text(text: Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

/// Prints bytes as they are.
pub fn bytes(bytes: &[u8]) {
    if !is_broken()
        && let Err(error) = io::stdout().lock().write_all(bytes)
    {
        failed(error);
    }
}

/// Prints what was begun, such as a question without an end of line.
pub fn flush() {
    if !is_broken()
        && let Err(error) = io::stdout().lock().flush()
    {
        failed(error);
    }
}

/// A line on standard error; when that fails too, there is nobody left to tell.
pub fn complain(text: Arguments<'_>) {
    let _nobody = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

fn failed(error: io::Error) {
    BROKEN.store(true, Ordering::Relaxed);
    *WHY.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
    if ENDS.load(Ordering::Relaxed) {
        std::process::exit(i32::from(finish(Exit::Failed.into()).1));
    }
}

/// The end of a command: what is still to be printed is, and a failure is told. Gives the exit code.
pub fn finish(code: ExitCode) -> (ExitCode, u8) {
    // The end itself ends nothing.
    ENDS.store(false, Ordering::Relaxed);
    flush();
    let why = WHY.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    match why {
        None => (code, 0),
        Some(error) => {
            complain(format_args!("weir: standard output: {error}"));
            (Exit::Failed.into(), Exit::Failed as u8)
        }
    }
}

/// Standard output, for what wants a writer.
pub struct Out;

impl Write for Out {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        io::stdout().lock().write(buffer)
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}
