//! The smallest actuator there can be, of the plane `echo`: see [`weir_planes::echo`].

use super::subject::Subject;
use crate::Actuator;
use std::collections::BTreeMap;
use weir_model::Version;
use weir_planes::echo::{Echo as EchoPlane, Spec};

/// What acts on a host.
#[derive(Debug, Default)]
pub struct Echo {
    /// What is in force.
    pub texts: BTreeMap<String, String>,
}

impl Actuator for Echo {
    type Plane = EchoPlane;

    fn apply(&mut self, name: &str, spec: Option<&Spec>, _version: Version) -> Result<(), String> {
        match spec {
            Some(spec) if spec.text == "refuse" => return Err("this word is not said".into()),
            // Not before it did half of its work.
            Some(spec) if spec.text == "panic" => {
                self.texts.remove(name);
                panic!("a fault of the toy")
            }
            Some(spec) => drop(self.texts.insert(name.into(), spec.text.clone())),
            None => drop(self.texts.remove(name)),
        }
        Ok(())
    }

    fn report(&mut self) -> BTreeMap<String, String> {
        self.texts.clone()
    }
}

/// The toy as the suite tries it.
#[derive(Clone, Copy, Debug)]
pub struct Toy;

impl Subject for Toy {
    type Actuator = Echo;

    fn make(&self, _folder: &std::path::Path) -> Echo {
        Echo::default()
    }

    fn names(&self) -> [String; 2] {
        ["one".into(), "two words".into()]
    }

    fn spec(&self, number: u32) -> Vec<u8> {
        format!(r#"{{"text":"{number}"}}"#).into_bytes()
    }

    fn refused(&self) -> Vec<u8> {
        br#"{"text":"refuse"}"#.to_vec()
    }

    fn in_force(&self, echo: &mut Echo, name: &str) -> Option<Vec<u8>> {
        echo.texts.get(name).map(|text| format!(r#"{{"text":"{text}"}}"#).into_bytes())
    }
}
