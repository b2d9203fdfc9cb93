//! What joining gave, kept in the state directory.

use crate::AgentError;
use serde::{Deserialize, Serialize};
use std::path::Path;
use weir_model::Label;
use weir_model::event::Role;

/// File of what the agent learned by joining, in the state directory.
pub const MEMBERSHIP_FILE: &str = "membership.json";

/// What the agent learned by joining.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Name of the actuator.
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// The domain.
    pub domain: Label,
    /// Session addresses of the controllers.
    pub controllers: Vec<String>,
}

/// What was learned by joining, if this actuator has joined.
///
/// # Errors
/// The file is there and is not what it should be.
pub fn membership(state_dir: &Path) -> Result<Option<Membership>, AgentError> {
    let path = state_dir.join(MEMBERSHIP_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| AgentError::Material {
            what: path.display().to_string(),
            reason: error.to_string(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AgentError::file(path, error)),
    }
}
