//! `weir`: the one binary. Roles that run for ever (`controller`, `host`, `gateway`, …), the
//! operator's commands, and the labs and benches.
//!
//! Exit codes, for scripts, are in [`exit`].

#[macro_use]
mod print;
mod bench;
mod cli;
mod exit;
mod failure;
mod lab;
mod roles;

use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is logged unless asked otherwise. The consensus library makes spans for each of its steps at `info`, which cost it a
/// twentieth of its time.
const LOGGED: &str = "info,openraft=error,commonware=warn";

/// Logs go to standard error; `WEIR_LOG` says which (`debug`, `weir_switch=trace`, …) and
/// `WEIR_LOG_FORMAT=json` how.
fn log() {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new(LOGGED));
    // A log that nobody reads any more (of a daemon whose starter is gone) must not end who writes it, by a panic about that.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    if std::env::var("WEIR_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().init();
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

fn main() -> ExitCode {
    weir_base::contain::end_on_others();
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(told) => return told_by_the_reader(&told),
    };
    log();
    if arguments.ends_quietly() {
        sigpipe::reset();
        print::end_when_broken();
    }
    let code = match cli::run(arguments) {
        Ok(code) => code,
        Err(failure) => {
            tell!("weir: {failure}");
            failure.exit().into()
        }
    };
    print::finish(code).0
}

/// Help, the version, or what is wrong with the command line.
fn told_by_the_reader(told: &clap::Error) -> ExitCode {
    let code = if told.use_stderr() { exit::Exit::Usage } else { exit::Exit::Done };
    match told.print() {
        Ok(()) => print::finish(code.into()).0,
        Err(error) => {
            tell!("weir: standard output: {error}");
            exit::Exit::Failed.into()
        }
    }
}
