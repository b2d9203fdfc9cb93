//! `weir plan`: an order for a change of forwarding rules, and why it is so (rows C1, C2). Needs no
//! controller; what a file says is in `docs/operate/plan.md`.

use super::{Failure, Output, input, output};
use crate::exit::Exit;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_plan::document::Document;
use weir_plan::{Change, CheckSettings, Mode, Plan, PlanError, Settings, check, plan};

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

#[derive(Debug, Args)]
pub struct PlanCommand {
    /// The change, YAML or JSON; `-` is the standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show each step with what it waits for and why
    #[arg(long)]
    explain: bool,
    /// How much of the order to keep
    #[arg(long, value_enum, default_value_t = OrderMode::Dependent)]
    mode: OrderMode,
    /// Packets cannot carry versions: never plan in two phases
    #[arg(long)]
    no_versions: bool,
    /// Look through the interleavings that the plan allows (exit code 4 when one does harm)
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderMode {
    /// What the analysis says; all else in parallel
    Dependent,
    /// One step at a time
    Linear,
    /// No order: to see with --check what it is for
    None,
}

impl PlanCommand {
    /// Prints the plan.
    ///
    /// # Errors
    /// [`Failure::Input`] when the file is wrong or its new policy faulty.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (change, names) = read(&self.file)?;
        let settings = Settings { versions: !self.no_versions, ..Settings::default() };
        let plan = match plan(&change, &settings) {
            Ok(plan) => plan.with_mode(self.mode.into()),
            Err(error @ (PlanError::NoOrder { .. } | PlanError::NoRoom { .. })) => {
                let words = format!("no plan: {error}");
                output::done(self.output.output, json!({"plan": null, "reason": error.to_string()}), &words)?;
                return Ok(Exit::No.into());
            }
            Err(error) => return Err(Failure::Input(error.to_string())),
        };
        let name = |flow: weir_plan::Flow| names.get(flow.0 as usize).cloned().unwrap_or_default();
        let text = plan.explain(&change.network, &name);
        let shown: Vec<&str> = text.lines().filter(|line| self.explain || !line.starts_with(' ')).collect();
        let (exit, found) = if self.check { checked(&change, &plan) } else { (Exit::Done, None) };
        output::print(self.output.output, &json!({"plan": shown, "checked": found}), || {
            shown.iter().for_each(|line| say!("{line}"));
            found.iter().for_each(|found| say!("{found}"));
        })?;
        Ok(exit.into())
    }
}

impl From<OrderMode> for Mode {
    fn from(mode: OrderMode) -> Mode {
        match mode {
            OrderMode::Dependent => Mode::Dependent,
            OrderMode::Linear => Mode::Linear,
            OrderMode::None => Mode::None,
        }
    }
}

fn checked(change: &Change, plan: &Plan) -> (Exit, Option<String>) {
    match check(change, plan, &CheckSettings::default()) {
        Ok(checked) => {
            let how = if checked.is_complete() { "all interleavings" } else { "sampled interleavings" };
            (Exit::Done, Some(format!("checked: {how} are safe, {} states", checked.states)))
        }
        Err(found) => (Exit::No, Some(format!("unsafe: {}", found.describe(&change.network)))),
    }
}

fn read(path: &Path) -> Result<(Change, Vec<String>), Failure> {
    let name = path.display().to_string();
    let text = input::whole(path, FILE_BYTES_MAX).map_err(Failure::io(name.clone()))?;
    parse(&text).map_err(|reason| Failure::Input(format!("{name}: {reason}")))
}

fn parse(text: &str) -> Result<(Change, Vec<String>), String> {
    let document: Document = weir_document::read(text).map_err(|error| error.to_string())?;
    document.change().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_document_says_what_is_wrong() {
        assert!(parse("links: [a b]").unwrap_err().contains("flows"));
        let unknown = parse("links: [a b]\nflows: {}\nextra: 1").unwrap_err();
        assert!(unknown.contains("extra"), "{unknown}");
    }
}
