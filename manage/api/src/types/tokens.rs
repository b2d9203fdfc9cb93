//! Join tokens.

use crate::problem::ApiError;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::event::Role;

/// A join token to make: for one name in one role, good once.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// Name that its bearer gets.
    #[schema(value_type = String, pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    pub name: Label,
    /// What its bearer is.
    pub role: Role,
    /// How long it is good for, seconds. Default one hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 60, maximum = 604_800)]
    pub valid_s: Option<u32>,
    /// Where the bearer's address on the underlay may be, an address or a prefix; absent means only where it speaks from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<String>,
    /// What its maker gives it, who has the other half of its key: wanted where requests are signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TokenKey>,
}

/// Life of a token unless another one is asked for, seconds.
pub const TOKEN_VALID_S: u32 = 3_600;

impl TokenRequest {
    /// Where its bearer's address on the underlay may be.
    ///
    /// # Errors
    /// It is no address and no prefix.
    pub fn underlay(&self) -> Result<Option<IpNet>, ApiError> {
        let read = |text: &String| {
            let address = || text.parse::<IpAddr>().map(Into::into);
            text.parse().or_else(|_| address()).map_err(|_| {
                ApiError::invalid(format!(
                    "underlay: '{text}' is not allowed: an address or a prefix, such as 192.0.2.7 or 192.0.2.0/24"
                ))
            })
        };
        self.underlay.as_ref().map(read).transpose()
    }
}

/// The key of a join token, whose seed only its bearer has: who joins by it signs with that, so that no controller can let somebody join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenKey {
    /// What the token is called, 32 hexadecimal digits by chance.
    pub id: String,
    /// The ed25519 public key, 64 hexadecimal digits.
    pub key: String,
    /// When the token is over, seconds of the Unix epoch; it takes the place of `validS`.
    pub until_s: u64,
}

/// A join token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenResponse {
    /// Give it to `weir host` or `weir gateway` as `WEIR_JOIN_TOKEN`. It is a secret.
    pub token: String,
    /// What it is called: no secret.
    pub id: String,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
}

/// A join token that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// What it is called.
    pub id: String,
    /// Name that its bearer gets.
    pub name: String,
    /// What its bearer is.
    pub role: Role,
    /// When it was made, milliseconds of the Unix epoch.
    pub made_ms: u64,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
    /// `open`, `used`, `voided` or `over`.
    pub state: String,
    /// Where the bearer's address on the underlay may be, if not only where it speaks from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<String>,
}

/// Join tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Newest first.
    pub items: Vec<TokenView>,
}
