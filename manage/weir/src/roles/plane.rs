//! A process of a plane of this machine's host: whose it is, whom it believes, and where it is found. Every one begins by
//! [`OfHost::serve`].

use super::node::SwitchSection;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use weir_actuator::{Actuator, ActuatorError, Folders, Identity, Made, Service};
use weir_agent::config::NodeConfig;
use weir_agent::join;
use weir_model::Label;
use weir_planes::Plane;
use weir_switch::process::running_settings;

/// The host that this machine is.
#[derive(Clone, Debug)]
pub struct OfHost {
    /// Its state directory; nothing where its switch is asked.
    state: Option<PathBuf>,
    run: PathBuf,
    has_switch: bool,
}

/// An error of an actuator as a failure of a command.
fn failure(error: ActuatorError) -> Failure {
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
        let has_switch = config.role.has_switch();
        Ok(OfHost { state: Some(config.state_dir), run: config.run_dir, has_switch })
    }

    /// That of a run directory, for the options of releases before: where its state is its switch has written down.
    pub fn at(run: PathBuf) -> OfHost {
        OfHost { state: None, run, has_switch: true }
    }

    /// Its run directory.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Whether it has a switch.
    pub fn has_switch(&self) -> bool {
        self.has_switch
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
    fn identity(&self) -> Result<Identity, Failure> {
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

    /// Serves a plane as soon as this host has joined. `place` says where it keeps what it has, `make` makes what acts, given that
    /// folder.
    ///
    /// # Errors
    /// [`Failure::Io`] when there are no threads.
    pub fn serve<A: Actuator>(
        self,
        place: Place,
        mut make: impl FnMut(&Path) -> Result<A, Failure> + Send + 'static,
    ) -> Result<Service<A>, Failure> {
        let mut made = move || -> Result<Made<A>, Failure> {
            let identity = self.identity()?;
            let (state, instance) = match &place {
                Place::OfHost(instance) => {
                    let process = format!("{}-{instance}", A::Plane::NAME);
                    (self.state()?.join("planes").join(process), Some(instance.clone()))
                }
                Place::At(folder) => (folder.clone(), None),
            };
            let actuator = make(&state)?;
            let folders = Folders { state, run: self.run.clone() };
            Ok(Made { identity, folders, instance, actuator })
        };
        let make = Box::new(move || made().map_err(|failure| failure.to_string()));
        Service::start(make).map_err(failure)
    }
}

/// Where a process keeps what its plane has.
#[derive(Clone, Debug)]
pub enum Place {
    /// In the host's state directory, by a name that tells several of one plane apart.
    OfHost(Label),
    /// In this folder, where its unit may write; it is its host's only one of its plane.
    At(PathBuf),
}
