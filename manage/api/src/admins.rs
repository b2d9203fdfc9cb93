//! Who is an administrator.

use crate::pki::Refuses;
use crate::problem::ApiError;
use crate::tls::Peer;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// How administrators prove who they are, besides a client certificate.
#[derive(Clone)]
pub struct Admins {
    /// SHA-256 of the bearer token.
    pub token_hash: [u8; 32],
    /// Why the certificate of a peer, by its bytes, is not taken any more.
    refuses: Option<Arc<Refuses>>,
}

impl std::fmt::Debug for Admins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admins")
    }
}

impl Admins {
    /// For a bearer token.
    pub fn of_token(token: &str) -> Admins {
        Admins { token_hash: Sha256::digest(token).into(), refuses: None }
    }

    /// Asks this of every request on a connection for which the peer showed a certificate: it may have been revoked since.
    pub fn refusing(self, refuses: Arc<Refuses>) -> Admins {
        Admins { refuses: Some(refuses), ..self }
    }

    /// Whether the certificate that a peer showed is taken still.
    ///
    /// # Errors
    /// Why not.
    pub fn takes(&self, peer: Option<&Peer>) -> Result<(), ApiError> {
        let shown = peer.and_then(|peer| peer.certificate.as_deref());
        match (&self.refuses, shown) {
            (Some(refuses), Some(shown)) => refuses(shown).map_err(ApiError::unauthorized),
            _ => Ok(()),
        }
    }

    /// Whether a peer, or what it says in the header `authorization`, is an administrator's.
    ///
    /// # Errors
    /// What would be right.
    pub fn check(&self, peer: Option<&Peer>, authorization: Option<&str>) -> Result<(), ApiError> {
        self.takes(peer)?;
        if peer.is_some_and(|peer| peer.is_admin) {
            return Ok(());
        }
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        match token {
            Some(token) if Sha256::digest(token).as_slice().ct_eq(&self.token_hash).into() => Ok(()),
            Some(_) => Err(ApiError::unauthorized(
                "the token is not this domain's: copy admin.json anew from the controller's state directory (its \
                 file admin.token holds the token alone)",
            )),
            None => Err(ApiError::unauthorized(
                "say who you are: give a token ('Authorization: Bearer …') or an administrator's client certificate",
            )),
        }
    }
}
