//! What is to be signed of a call, as its answer has it: see [`crate::said`].

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::event::EventBody;

/// Code of the problem that has the statement to sign.
pub const TO_SIGN: &str = "to-sign";
/// Code of the problem that the signature is not over what the call becomes now; it has the statement to sign.
pub const SIGN_AGAIN: &str = "sign-again";
/// Code of the problem that a call must be signed, and is not.
pub const UNSIGNED: &str = "unsigned";

/// Code of the problem that a request is ordered, and waits for the approval of others.
pub const WAITS: &str = "waits-for-approval";

/// What is to be signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Statement {
    /// The domain in which it is said.
    pub domain: String,
    /// Who says it: `operator/NAME`.
    pub author: String,
    /// Ordered time, milliseconds of the Unix epoch: a signature that is made for a time far from it is not taken.
    pub now_ms: u64,
    /// The event, in the encoding of the order: base64.
    pub body: String,
}

impl Statement {
    /// With an event.
    pub fn new(domain: &Label, author: String, now_ms: u64, body: &EventBody) -> Statement {
        let body = BASE64_STANDARD.encode(weir_base::codec::encode(body));
        Statement { domain: domain.to_string(), author, now_ms, body }
    }

    /// The event.
    ///
    /// # Errors
    /// Why it is none that this release knows.
    pub fn body(&self) -> Result<EventBody, String> {
        let odd = |error: &dyn fmt::Display| format!("the statement to sign cannot be read: {error}");
        let bytes = BASE64_STANDARD.decode(&self.body).map_err(|error| odd(&error))?;
        weir_base::codec::decode(&bytes).map_err(|error| odd(&error))
    }
}
