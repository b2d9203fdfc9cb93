//! A process of a plane of this machine's host: whose it is, whom it believes, and where it is found.

use super::node::SwitchSection;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use weir_actuator::{ActuatorError, Folders, Identity};
use weir_agent::config::NodeConfig;
use weir_agent::join;

/// The host that this machine is.
#[derive(Debug)]
pub struct OfHost {
    state: PathBuf,
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
        Ok(OfHost { state: config.state_dir, run: config.run_dir })
    }

    /// Who it is, and whom it believes.
    ///
    /// # Errors
    /// [`Failure`]: it has not joined.
    pub fn identity(&self) -> Result<Identity, Failure> {
        let wrong = |error: weir_agent::AgentError| Failure::Input(error.to_string());
        let joined = join::membership(&self.state).map_err(wrong)?;
        let (Some(member), Some(group)) = (joined, join::group_key(&self.state)) else {
            let state = self.state.display();
            return Err(Failure::Missing(format!(
                "{state}: this host has not joined; 'weir host' joins it first"
            )));
        };
        let state = self.state.clone();
        let read_key = Box::new(move || join::identity(&state).map_err(|error| error.to_string()));
        Ok(Identity { actuator: member.name, domain: member.domain, group, read_key })
    }

    /// Where a process keeps what it has, by its own name, and where it is found.
    pub fn folders(&self, process: &str) -> Folders {
        Folders { state: self.state.join("planes").join(process), run: self.run.clone() }
    }
}
