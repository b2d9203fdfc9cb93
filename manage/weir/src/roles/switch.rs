//! `weir switch`: the process that forwards. `weir host` and `weir gateway` start it.

use crate::cli::Failure;
use clap::Args;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_monitor::dataplane::Reader;
use weir_switch::config::SwitchConfig;
use weir_switch::engine::idle::Idle;

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
        let idle = || reader(&config);
        weir_switch::process::run_with_idle(&config, idle)
            .map_err(|error| Failure::Input(error.to_string()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The monitor's reader, if something is to be read here. What is wrong with its files is told; traffic does not depend on it.
fn reader(config: &SwitchConfig) -> Option<Box<dyn Idle>> {
    let settings = config.idle_reader.as_ref()?;
    match Reader::open(
        settings.policy.as_deref(),
        settings.ring.as_deref(),
        &weir_sensor::Directory::default(),
    ) {
        Ok(reader) => reader.map(|reader| Box::new(InIdleSlots(reader)) as Box<dyn Idle>),
        Err(error) => {
            tracing::error!(%error, "nothing is read in idle slots");
            None
        }
    }
}

struct InIdleSlots(Reader);

impl Idle for InIdleSlots {
    fn period(&self) -> Duration {
        self.0.period()
    }
    fn slot(&mut self) {
        self.0.slot();
    }
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.0.socket()
    }
    fn readable(&mut self) {
        self.0.answer();
    }
}
