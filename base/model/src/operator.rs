//! Operators: the people whose requests a domain takes, by which keys, and what each may order. What they say is [`crate::said`].

use crate::Label;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most operators of a domain, those included that were removed a moment ago.
pub const OPERATORS_MAX: usize = 64;
/// Most keys of an operator: one for each machine that a person works at.
pub const OPERATOR_KEYS_MAX: usize = 4;

/// What an operator may order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OperatorRole {
    /// Resources, planes, repairs, policies of FileWalls.
    Operator,
    /// Everything: also who takes part, by which keys, and who the operators are.
    Admin,
}

/// An operator, as settings and events name one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorFacts {
    /// What the operator may order.
    pub role: OperatorRole,
    /// The ed25519 keys, 1 to [`OPERATOR_KEYS_MAX`], each as good as another.
    pub keys: Vec<[u8; 32]>,
}

/// The first operators of a domain, by name.
pub type Founders = BTreeMap<Label, OperatorFacts>;

/// What becomes of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorChange {
    /// There is one more.
    Added(OperatorFacts),
    /// Role or keys are these now.
    Changed(OperatorFacts),
    /// Nothing of this operator is taken any more.
    Removed,
    /// These are the first operators of the domain; the one that is named is an admin among them. From here on requests are signed.
    Founded(Founders),
}
