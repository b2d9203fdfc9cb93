//! A process of a plane of this machine's host: whose it is, whom it believes, and where it is found.

use super::node::SwitchSection;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use weir_actuator::{ActuatorError, Folders, Identity};
use weir_agent::config::NodeConfig;
use weir_agent::join;
use weir_switch::process::running_settings;

/// The host that this machine is.
#[derive(Clone, Debug)]
pub struct OfHost {
    /// Its state directory; nothing where its switch is asked.
    state: Option<PathBuf>,
    run: PathBuf,
}

/// An error of an actuator as a failure of a command.
pub fn failure(error: ActuatorError) -> Failure {
    match error {
        ActuatorError::Io { what, source } => Failure::Io { what, error: source },
        other => Failure::Input(other.to_string()),
    }
}

impl OfHost {
    /// That of a file of settings: the one that 'weir host' was given, or `node.json` in its state directory.
    ///
    /// # Errors
    /// [`Failure::Input`].
    pub fn read(config: &Path) -> Result<OfHost, Failure> {
        let config = NodeConfig::<SwitchSection>::read(config);
        let config = config.map_err(|error| Failure::Input(error.to_string()))?;
        Ok(OfHost { state: Some(config.state_dir), run: config.run_dir })
    }

    /// That of a run directory, for the options of releases before: where its state is its switch has written down.
    pub fn at(run: PathBuf) -> OfHost {
        OfHost { state: None, run }
    }

    /// Its run directory.
    pub fn run(&self) -> &Path {
        &self.run
    }

    fn state(&self) -> Result<PathBuf, Failure> {
        let by_switch = || running_settings(&self.run).map(|settings| settings.state_dir);
        self.state.clone().or_else(by_switch).ok_or_else(|| {
            let run = self.run.display();
            Failure::Missing(format!(
                "{run}: no switch has run here, so where the host's state is is not known: give its settings by --host-config"
            ))
        })
    }

    /// Who it is, and whom it believes.
    ///
    /// # Errors
    /// [`Failure`]: it has not joined.
    pub fn identity(&self) -> Result<Identity, Failure> {
        let wrong = |error: weir_agent::AgentError| Failure::Input(error.to_string());
        let state = self.state()?;
        let joined = join::membership(&state).map_err(wrong)?;
        let (Some(member), Some(group)) = (joined, join::group_key(&state)) else {
            let state = state.display();
            return Err(Failure::Missing(format!(
                "{state}: this host has not joined; 'weir host' joins it first"
            )));
        };
        let read_key = Box::new(move || join::identity(&state).map_err(|error| error.to_string()));
        Ok(Identity { actuator: member.name, domain: member.domain, group, read_key })
    }

    /// Where a process keeps what it has, by its own name, and where it is found.
    ///
    /// # Errors
    /// [`Failure::Missing`]: where the host's state is is not known.
    pub fn folders(&self, process: &str) -> Result<Folders, Failure> {
        Ok(Folders { state: self.state()?.join("planes").join(process), run: self.run.clone() })
    }
}
