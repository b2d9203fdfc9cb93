//! `weir switch`: the process that forwards. `weir host` and `weir gateway` start it.

use crate::cli::Failure;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_switch::config::SwitchConfig;

#[derive(Debug, Args)]
pub struct SwitchArguments {
    /// Settings (YAML): the agent writes them when the host joins
    #[arg(long)]
    config: PathBuf,
}

impl SwitchArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let name = self.config.display().to_string();
        let text = std::fs::read_to_string(&self.config).map_err(Failure::io(name.clone()))?;
        let config: SwitchConfig =
            serde_saphyr::from_str(&text).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
        let _pid = super::node::PidFile::write(&config.run_dir, "switch")?;
        weir_switch::process::run(&config).map_err(|error| Failure::Input(error.to_string()))?;
        Ok(ExitCode::SUCCESS)
    }
}
