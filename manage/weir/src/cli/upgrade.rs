//! `weir upgrade`: the switch of a host or gateway is replaced by another program under traffic.

use super::{Failure, Output, output};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_agent::supervise::upgrade::{FromSupervisor, ask};

/// Replace the switch of this host or gateway under traffic: connections go on.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// Run directory of the host or gateway: runDir of its settings
    #[arg(long, default_value = "/run/weir")]
    run: PathBuf,
    /// The program to run; unless told, the one that the host was started with, as it is on disk now. An older one is as good
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

impl Upgrade {
    /// Runs it. Exit code 1 when the old process goes on.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let binary = match &self.binary {
            Some(path) => Some(std::fs::canonicalize(path).map_err(Failure::io(path.display().to_string()))?),
            None => None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("starting the runtime"))?;
        let answer = runtime.block_on(ask(&self.run, binary.as_deref()));
        match answer.map_err(|error| Failure::Missing(format!("no supervisor answers: {error}")))? {
            FromSupervisor::Upgraded { pid, took_ms } => {
                let words = format!("upgraded: process {pid} serves, after {took_ms} ms");
                output::done(self.output.output, json!({"pid": pid, "tookMs": took_ms}), &words)?;
                Ok(ExitCode::SUCCESS)
            }
            FromSupervisor::Failed(reason) => Err(Failure::Missing(format!("not upgraded: {reason}"))),
        }
    }
}
