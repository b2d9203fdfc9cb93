//! The people whose signed requests are taken.

use crate::problem::ApiError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_model::join::from_hex;
use weir_model::operator::{OperatorFacts, OperatorRole};
use weir_trust::said::is_key;

/// An operator, as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorRequest {
    /// What it may order.
    pub role: OperatorRole,
    /// Its ed25519 public keys, 64 hexadecimal digits each: all that are taken.
    pub keys: Vec<String>,
}

impl OperatorRequest {
    /// What is ordered of it.
    ///
    /// # Errors
    /// Which key is none.
    pub fn facts(&self) -> Result<OperatorFacts, ApiError> {
        let wrong = |key: &String| {
            ApiError::invalid(format!(
                "keys: '{key}' is not allowed: 64 hexadecimal digits of an ed25519 key, as 'weir operator key' prints them"
            ))
        };
        let key = |text: &String| from_hex::<32>(text).filter(is_key).ok_or_else(|| wrong(text));
        Ok(OperatorFacts { role: self.role, keys: self.keys.iter().map(key).collect::<Result<_, _>>()? })
    }
}

/// An operator whose requests are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorView {
    /// Its name.
    pub name: String,
    /// What it may order.
    pub role: OperatorRole,
    /// Its ed25519 public keys, hexadecimal.
    pub keys: Vec<String>,
}

/// The operators of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorList {
    /// Whether what operators order must be signed here.
    pub signed: bool,
    /// By name.
    pub items: Vec<OperatorView>,
}
