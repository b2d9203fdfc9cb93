//! Who sends events, and what an actuator is.

use crate::Label;
use serde::{Deserialize, Serialize};

/// Who sends events: an actuator, a controller; and who asks for something by their hand: an operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceId(pub String);

/// First part of the names of actuators as sources.
const ACTUATOR: &str = "actuator/";

/// First part of the names of controllers as sources.
const CONTROLLER: &str = "controller/";

/// First part of the names of operators, the people whose requests are taken, as authors.
const OPERATOR: &str = "operator/";

impl SourceId {
    /// An actuator as a source.
    pub fn of_actuator(name: &Label) -> SourceId {
        SourceId(format!("{ACTUATOR}{name}"))
    }

    /// A plane of an actuator as a source. It signs with the actuator's key and has numbers of its own, because it is a process of
    /// its own; it says nothing but [`EventBody::Report`] of itself.
    pub fn of_plane(actuator: &Label, plane: &Label) -> SourceId {
        SourceId(format!("{ACTUATOR}{actuator}/{plane}"))
    }

    /// The actuator and the plane that it names, if it names a plane.
    pub fn plane(&self) -> Option<(Label, Label)> {
        let (actuator, plane) = self.actuator()?.split_once('/')?;
        Some((Label::new(actuator).ok()?, Label::new(plane).ok()?))
    }

    /// A controller as a source.
    pub fn of_controller(name: &Label) -> SourceId {
        SourceId(format!("{CONTROLLER}{name}"))
    }

    /// An operator as an author.
    pub fn of_operator(name: &Label) -> SourceId {
        SourceId(format!("{OPERATOR}{name}"))
    }

    /// The operator that it names, if it names one.
    pub fn operator(&self) -> Option<Label> {
        Label::new(self.0.strip_prefix(OPERATOR)?).ok()
    }

    /// What the names of controllers begin with.
    pub const CONTROLLERS: &'static str = CONTROLLER;

    /// Whether it names a controller.
    pub fn is_controller(&self) -> bool {
        self.0.starts_with(CONTROLLER)
    }

    /// What a person calls it: `h1` of an actuator, `h1/filewall` of a plane there, `controller-2` of a controller.
    pub fn short(&self) -> &str {
        if let Some(actuator) = self.actuator() {
            return actuator;
        }
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The actuator that it names, if it names one; of a plane `actuator/plane`, which is no actuator's name.
    pub fn actuator(&self) -> Option<&str> {
        self.0.strip_prefix(ACTUATOR)
    }
}

/// What an actuator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Carries endpoints.
    Host,
    /// Knows every network.
    Gateway,
    /// Has planes, and no switch: it is in no network.
    Planes,
}

impl Role {
    /// As people write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Host => "host",
            Role::Gateway => "gateway",
            Role::Planes => "planes",
        }
    }

    /// Whether it has a switch.
    pub fn has_switch(self) -> bool {
        self != Role::Planes
    }
}
