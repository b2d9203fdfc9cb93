//! `weir fs doctor`: prints what `weir_userfs::doctor` finds.

use crate::cli::{Failure, Output, output};
use crate::exit::Exit;
use comfy_table::Color;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_userfs::doctor::{self, Finding, Verdict};

fn show(findings: &[Finding]) {
    let mut table = output::table(&["", "WHAT", "FOUND", "RIGHT"]);
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Good => output::paint("ok", Color::Green),
            Verdict::Note => output::paint("note", Color::Yellow),
            Verdict::Wrong => output::paint("wrong", Color::Red),
        };
        let right = finding.right.as_deref().unwrap_or_default();
        table.add_row([mark, (&finding.what).into(), (&finding.found).into(), right.into()]);
    }
    say!("{table}");
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when it cannot be printed.
pub fn run(output: Output, state: &Path, programs: &[PathBuf]) -> Result<ExitCode, Failure> {
    let findings = doctor::examine(state, programs);
    output::print(output.output, &findings, || show(&findings))?;
    Ok(if doctor::is_well(&findings) { ExitCode::SUCCESS } else { Exit::No.into() })
}
