//! `weir switch`: the process that forwards. `weir host` and `weir gateway` start it.

use crate::failure::Failure;
use clap::Args;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weir_monitor::dataplane::{Pulse, Reader};
use weir_switch::config::SwitchConfig;
use weir_switch::engine::idle::Idle;
use weir_switch::process::Begin;

#[derive(Debug, Args)]
pub struct SwitchArguments {
    /// Settings (YAML): the agent writes them when the host joins
    #[arg(long)]
    config: PathBuf,
    /// Take over under traffic from the process that serves in the same run directory; start from the checkpoint if none does
    #[arg(long)]
    take_over: bool,
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
            weir_document::read(&text).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
        let idle = || {
            Some(Box::new(InIdleSlots { pulse: pulse(&config), reader: reader(&config) }) as Box<dyn Idle>)
        };
        let begin = if self.take_over { Begin::TakeOver } else { Begin::Start };
        let mut pid = None;
        let serving = || match super::node::PidFile::write(&config.run_dir, "switch") {
            Ok(file) => pid = Some(file),
            Err(error) => tracing::warn!(%error, "no file says which process the switch is"),
        };
        let result = weir_switch::process::run_as(&config, begin, idle, serving);
        drop(pid);
        result.map_err(|error| Failure::Input(error.to_string()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where this host's boxes are: two hosts of one machine, as in a lab, do not see each other's.
fn sensors(config: &SwitchConfig) -> weir_sensor::Directory {
    weir_sensor::Directory::new(config.run_dir.join(super::node::SENSORS_FOLDER))
}

/// The counter by which a monitor sees that packets move. Traffic does not depend on it either.
fn pulse(config: &SwitchConfig) -> Option<Pulse> {
    Pulse::new(config.name.as_str(), &sensors(config))
        .inspect_err(|error| tracing::warn!(%error, "no monitor sees whether the packet core stands still"))
        .ok()
}

/// The monitor's reader, if something is to be read here. What is wrong with its files is told; traffic does not depend on it.
fn reader(config: &SwitchConfig) -> Option<Reader> {
    let settings = config.idle_reader.as_ref()?;
    Reader::open(settings.policy.as_deref(), settings.ring.as_deref(), &sensors(config)).unwrap_or_else(
        |error| {
            tracing::error!(%error, "nothing is read in idle slots");
            None
        },
    )
}

/// What the packet core does when no packet waits.
struct InIdleSlots {
    pulse: Option<Pulse>,
    reader: Option<Reader>,
}

impl Idle for InIdleSlots {
    fn period(&self) -> Duration {
        self.reader.as_ref().map_or(Pulse::PERIOD, Reader::period)
    }
    fn slot(&mut self) {
        if let Some(pulse) = &self.pulse {
            pulse.beat();
        }
        if let Some(reader) = &mut self.reader {
            reader.slot();
        }
    }
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().and_then(Reader::socket)
    }
    fn readable(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.answer();
        }
    }
}
