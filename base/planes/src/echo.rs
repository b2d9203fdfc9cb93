//! The smallest plane there can be, for tests and as an example: it has texts, and says them back. Released programs do not list it.
//! `docs/adding-a-plane.md` walks through it.

use crate::{Plane, Problem};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug)]
pub struct Echo;

/// A text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What is to be said.
    pub text: String,
}

impl Plane for Echo {
    const NAME: &'static str = "echo";
    const ABOUT: &'static str = "texts that are said back";
    const ORDERS_MAX: usize = 8;
    type Spec = Spec;
    /// The text that is said.
    type Report = String;

    fn check(_name: &str, spec: &Spec) -> Result<(), Problem> {
        match spec.text.is_empty() {
            true => Err(Problem::new("spec.text", "a text that is not empty")),
            false => Ok(()),
        }
    }

    fn describe(_name: &str, spec: &Spec) -> String {
        format!("say '{}'", spec.text)
    }
}
