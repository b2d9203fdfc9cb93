//! `weir`: the one binary. Roles that run for ever (`controller`, `host`, `gateway`, …), the
//! operator's commands, and the labs and benches.
//!
//! Exit codes, for scripts: 0 done; 1 refused or failed; 2 wrong usage; 3 the controller cannot be
//! reached; 4 the answer is no (`diff` found differences, `trace` does not arrive).

mod cli;
mod lab;
mod roles;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    match cli::run(arguments) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("weir: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
