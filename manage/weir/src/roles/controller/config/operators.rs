//! The part `operators` of a controller's settings: the people whose signed requests the domain takes from its beginning on.
//!
//! It is the same at every controller that founds the domain, as the founders' keys are: each takes requests by it from the first entry of
//! the order on. Later operators come and go by the order alone (`weir operator`), and the settings stay as they are.

use super::wrong;
use crate::failure::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use weir_model::Label;
use weir_model::join::from_hex;
use weir_model::operator::{OPERATOR_KEYS_MAX, OPERATORS_MAX, OperatorFacts, OperatorRole};
use weir_trust::said::is_key;

/// An operator, as `weir operator key` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GivenOperator {
    /// Its name.
    pub name: String,
    /// Its public key, hexadecimal.
    #[serde(default)]
    pub key: Option<String>,
    /// Several of them, one for each machine at which it works.
    #[serde(default)]
    pub keys: Vec<String>,
    /// What it may order.
    #[serde(default = "admin")]
    pub role: OperatorRole,
}

fn admin() -> OperatorRole {
    OperatorRole::Admin
}

/// The operators by name.
///
/// # Errors
/// The field, its value, and what is allowed.
pub fn check(given: &[GivenOperator]) -> Result<BTreeMap<Label, OperatorFacts>, Failure> {
    if given.len() > OPERATORS_MAX {
        return Err(wrong("operators", given.len(), format!("a domain has at most {OPERATORS_MAX}")));
    }
    let mut operators = BTreeMap::new();
    for one in given {
        let name = Label::new(one.name.clone())
            .map_err(|error| Failure::Input(format!("operators: name: {error}")))?;
        let field = format!("operators: key of '{name}'");
        let mut keys = Vec::new();
        for text in one.key.iter().chain(&one.keys) {
            let key = from_hex::<32>(text).filter(is_key).ok_or_else(|| {
                wrong(&field, text, "use the 64 hexadecimal digits that 'weir operator key' prints")
            })?;
            if keys.contains(&key)
                || operators.values().any(|known: &OperatorFacts| known.keys.contains(&key))
            {
                return Err(wrong(&field, text, "it is there twice: each operator has keys of its own"));
            }
            keys.push(key);
        }
        if keys.is_empty() || keys.len() > OPERATOR_KEYS_MAX {
            let allowed = format!("an operator has 1 to {OPERATOR_KEYS_MAX}");
            return Err(wrong(&field, format!("{} keys", keys.len()), allowed));
        }
        if operators.insert(name.clone(), OperatorFacts { role: one.role, keys }).is_some() {
            return Err(wrong("operators: name", name, "it is there twice"));
        }
    }
    if !operators.is_empty() && operators.values().all(|one| one.role != OperatorRole::Admin) {
        return Err(wrong(
            "operators",
            "no admin",
            "one at least has the role admin, or nobody could add a host",
        ));
    }
    Ok(operators)
}
