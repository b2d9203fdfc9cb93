//! Join tokens: made, listed and voided by operators, and used by whoever joins.
//!
//! A token is for one name in one role, and serves one key. That it does so once is ordered, so that all controllers of a group agree. Whoever
//! joins shows that both keys are its own: the identity by the request's proof, the certificate's by the signature in its request.
//!
//! Where operators sign what they ask, a token has a key of which no controller knows the secret half, and who joins signs with it: so the
//! controllers hand a join on, and cannot make one.

use super::backend::{Controlled, api_error};
use super::identities;
use std::net::IpAddr;
use weir_api::types::{TOKEN_VALID_S, TokenKey, TokenList, TokenRequest, TokenResponse, TokenView};
use weir_api::{ApiError, Caller};
use weir_apps::fabric;
use weir_controller::Error;
use weir_controller::core::identities::Certified;
use weir_controller::core::tokens::{
    TOKEN_KEYS_TABLE, TOKEN_LIFE_MAX_S, TokenRow, TokenState, token, tokens,
};
use weir_model::Label;
use weir_model::event::{ActuatorFacts, EventBody, JoinedBy, SourceId};
use weir_model::identity::{IdentityEvent, TokenChange, TokenId};
use weir_model::join::{JOIN_REQUEST_BYTES_MAX, JoinRequest, JoinResponse, from_hex, to_hex};
use weir_model::signed::Signature;
use weir_trust::identity::verify_join;
use weir_trust::owner::verify_owner;
use weir_trust::said::{is_key, verify_joined_by};

/// Shortest life of a token, seconds.
const VALID_MIN_S: u32 = 60;

fn view((id, row): (TokenId, TokenRow), now_ms: u64) -> TokenView {
    let state = match row.state {
        TokenState::Used { .. } => "used",
        TokenState::Voided { .. } => "voided",
        TokenState::Open if now_ms / 1_000 > row.until_s => "over",
        TokenState::Open => "open",
    };
    TokenView {
        id: to_hex(&id),
        name: row.whose.short().to_owned(),
        role: row.role,
        made_ms: row.made_ms,
        until_s: row.until_s,
        state: state.to_owned(),
        underlay: row.underlay.map(|prefix| prefix.to_string()),
    }
}

/// A signature, as requests have it.
fn signature_of(text: &str) -> Option<Signature> {
    let bytes: [u8; 64] = from_hex(text)?;
    let (mut r, mut s) = ([0; 32], [0; 32]);
    r.copy_from_slice(&bytes[..32]);
    s.copy_from_slice(&bytes[32..]);
    Some(Signature { r, s })
}

/// The asker has the key that it names as its identity.
fn has_its_key(identity: &[u8; 32], fingerprint: &str, request: &JoinRequest) -> Result<(), ApiError> {
    let missing = || {
        ApiError::unauthorized(
            "proof: it must be the signature of 'identity' over what is asked (a release before this one gives none: install this one there)",
        )
    };
    let proof = signature_of(&request.proof).ok_or_else(missing)?;
    verify_join(identity, fingerprint, request, &proof).map_err(|_| missing())
}

/// The certificate that was made carries the word of the asker's identity: else no controller takes it.
fn is_owners(
    domain: &Label,
    name: &Label,
    identity: &[u8; 32],
    certified: &Certified,
) -> Result<(), ApiError> {
    let source = SourceId::of_actuator(name);
    let owns = |word| verify_owner(identity, domain, &source, &certified.key, &word).is_ok();
    match certified.owner.is_some_and(owns) {
        true => Ok(()),
        false => Err(ApiError::unauthorized(
            "csr_pem: in this domain the identity of who joins says in its request for a certificate that the key is its own: have this release on \
             the host",
        )),
    }
}

/// The token is for who asks, from where it asks.
fn is_for(row: &TokenRow, request: &JoinRequest, from: IpAddr) -> Result<(), ApiError> {
    let name = row.whose.short();
    if row.name().as_ref() != Some(&request.name) || row.role != request.role {
        return Err(ApiError::unauthorized(format!(
            "the join token is for the {} '{name}', and serves nobody else: make one for the {} '{}' with 'weir token'",
            row.role.as_str(),
            request.role.as_str(),
            request.name
        )));
    }
    let may = match row.underlay {
        Some(prefix) => prefix.contains(&request.underlay),
        None => request.underlay.to_canonical() == from,
    };
    if may {
        return Ok(());
    }
    let allowed = row.underlay.map_or_else(|| from.to_string(), |prefix| prefix.to_string());
    Err(ApiError::unauthorized(format!(
        "underlay: '{0}' is not allowed for '{name}': {allowed}; where it is right, make a token with 'weir token --name {name} --underlay {0}'",
        request.underlay
    )))
}

impl Controlled {
    pub(super) async fn make_token(
        &self,
        caller: Caller,
        request: TokenRequest,
    ) -> Result<TokenResponse, ApiError> {
        let now_s = self.now_ms() / 1_000;
        let over = |until_s: u64| u32::try_from(until_s.saturating_sub(now_s)).unwrap_or(u32::MAX);
        let valid_s = match &request.key {
            // Its maker's clock need not be the group's to the second.
            Some(key) => over(key.until_s).clamp(VALID_MIN_S, u32::MAX),
            None => request.valid_s.unwrap_or(TOKEN_VALID_S),
        };
        if valid_s < VALID_MIN_S || u64::from(valid_s) > TOKEN_LIFE_MAX_S {
            return Err(ApiError::invalid(format!(
                "validS: '{valid_s}' is not allowed: {VALID_MIN_S} to {TOKEN_LIFE_MAX_S} seconds"
            )));
        }
        let (role, underlay) = (request.role, request.underlay()?);
        let (id, change) = match &request.key {
            Some(TokenKey { id, key, until_s }) => {
                let wrong = |field: &str, digits: usize| {
                    ApiError::invalid(format!("key.{field}: {digits} hexadecimal digits are wanted"))
                };
                let id: TokenId = from_hex(id).ok_or_else(|| wrong("id", 32))?;
                let key = from_hex::<32>(key).filter(is_key).ok_or_else(|| wrong("key", 64))?;
                (id, TokenChange::MadeWithKey { role, until_s: *until_s, underlay, key })
            }
            None => {
                let mut id: TokenId = [0; 16];
                getrandom::fill(&mut id).map_err(|error| ApiError::internal(error.to_string()))?;
                let until_s = now_s + u64::from(valid_s);
                (id, TokenChange::Made { role, until_s, underlay })
            }
        };
        let (id, change, until_s) = self.as_wanted(id, change)?;
        self.about_token(caller, &request.name, id, change).await?;
        let token = self.state.join_token(&id, self.api_addresses());
        let token = token.map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(TokenResponse { token, id: to_hex(&id), until_s })
    }

    /// What is ordered of a token: with its key where requests are signed, and without where they are not, so that a host of the release
    /// before may join by it.
    fn as_wanted(&self, id: TokenId, change: TokenChange) -> Result<(TokenId, TokenChange, u64), ApiError> {
        let signed = self.is_signing();
        match change {
            TokenChange::Made { .. } if signed => Err(ApiError::unsigned(
                "key: in this domain who makes a token gives it a key and signs it: use 'weir token' with an operator's key",
            )),
            TokenChange::MadeWithKey { role, until_s, underlay, .. } if !signed => {
                Ok((id, TokenChange::Made { role, until_s, underlay }, until_s))
            }
            TokenChange::Made { until_s, .. } | TokenChange::MadeWithKey { until_s, .. } => {
                Ok((id, change, until_s))
            }
            TokenChange::Used { .. } | TokenChange::Voided => Err(ApiError::internal("no token is made so")),
        }
    }

    async fn about_token(
        &self,
        caller: Caller,
        name: &Label,
        id: TokenId,
        change: TokenChange,
    ) -> Result<(), ApiError> {
        let about = IdentityEvent::Token { whose: SourceId::of_actuator(name), id, change };
        self.say(&caller, EventBody::Identity(Box::new(about))).await.map(drop)
    }

    /// Wall time as the group has it: this controller's own clock may be wrong.
    fn now_ms(&self) -> u64 {
        self.handle.time().wall_ms()
    }

    pub(super) async fn list_tokens(&self) -> Result<TokenList, ApiError> {
        self.barrier().await?;
        let now_ms = self.now_ms();
        let mut items: Vec<TokenView> =
            tokens(&self.handle.published().store).map(|token| view(token, now_ms)).collect();
        items.sort_by(|one, other| (other.made_ms, &other.id).cmp(&(one.made_ms, &one.id)));
        Ok(TokenList { items })
    }

    pub(super) async fn void(&self, caller: Caller, id: &str) -> Result<(), ApiError> {
        let unknown =
            || ApiError::not_found(format!("there is no join token '{id}': 'weir token list' shows them"));
        let named: TokenId = from_hex(id).ok_or_else(unknown)?;
        self.barrier().await?;
        let row = token(&self.handle.published().store, &named).ok_or_else(unknown)?;
        let name = row.name().ok_or_else(unknown)?;
        self.about_token(caller, &name, named, TokenChange::Voided).await
    }

    /// The join that the asker's token signed. Seen here already: what would be dropped behind the order would be taken for this controller's
    /// own making.
    fn by_its_token(
        &self,
        request: &JoinRequest,
        (token, identity, authority): (TokenId, [u8; 32], [u8; 32]),
    ) -> Result<JoinedBy, ApiError> {
        let facts = ActuatorFacts {
            name: request.name.clone(),
            role: request.role,
            identity,
            underlay: request.underlay,
        };
        let store = self.handle.store();
        let key = store.get(TOKEN_KEYS_TABLE, &token);
        let key = key.and_then(|cell| <[u8; 32]>::try_from(&*cell.value).ok());
        let signed = |signature| JoinedBy { facts, token, authority, signature };
        let joined = signature_of(&request.by_token).map(signed);
        let holds = |joined: &JoinedBy| {
            key.is_some_and(|key| verify_joined_by(&key, self.handle.domain(), joined).is_ok())
        };
        joined.filter(holds).ok_or_else(|| {
            ApiError::unauthorized(
                "by_token: in this domain who joins signs with the key in its token: make the token with 'weir token' and an operator's \
                 key, and have this release on the host",
            )
        })
    }

    pub(super) async fn let_join(
        &self,
        request: JoinRequest,
        from: IpAddr,
    ) -> Result<JoinResponse, ApiError> {
        // What costs little first: a stranger gets no further than this.
        let id = self
            .state
            .check_join(&request.secret)
            .map_err(|error| ApiError::unauthorized(error.to_string()))?;
        let identity: [u8; 32] = from_hex(&request.identity).ok_or_else(|| {
            ApiError::invalid("identity: 64 hex digits of an ed25519 public key are wanted")
        })?;
        if request.csr_pem.len() > JOIN_REQUEST_BYTES_MAX {
            return Err(ApiError::too_large(format!(
                "csr_pem: at most {JOIN_REQUEST_BYTES_MAX} bytes are taken"
            )));
        }
        let fingerprint =
            self.state.authority.fingerprint().map_err(|error| ApiError::internal(error.to_string()))?;
        has_its_key(&identity, &fingerprint, &request)?;
        self.barrier().await?;
        let published = self.handle.published();
        let row = token(&published.store, &id).ok_or_else(|| {
            ApiError::unauthorized("the join token is not known here any more: make one with 'weir token'")
        })?;
        is_for(&row, &request, from)?;
        row.takes(&identity, self.now_ms()).map_err(ApiError::unauthorized)?;
        let authority =
            from_hex(&fingerprint).ok_or_else(|| ApiError::internal("the authority has no hash"))?;
        let by_token = match self.is_signing() {
            true => Some(self.by_its_token(&request, (id, identity, authority))?),
            false => None,
        };
        let group_key = self.handle.group_key().ok_or_else(|| {
            ApiError::unavailable(
                "the controllers have not made the group's key yet: all that found the group must run",
            )
        })?;
        let known = fabric::actuator(&published.store, &request.name);
        let revoked = self.handle.keys_of(&SourceId::of_actuator(&request.name)).is_err();
        if known.is_some_and(|known| known.facts.identity != identity && !revoked) {
            return Err(ApiError::conflict(format!(
                "'{0}' has joined with another key: choose another name, or 'weir forget {0}' first",
                request.name
            )));
        }
        // What would be refused behind the token's use must not use it up.
        let is_good = |key: &[u8; 32]| match published.identities.refused_of(key) {
            Some(of) => Err(ApiError::conflict(format!(
                "'{}': this key was revoked, as one of {}: begin with an empty state directory and a new token",
                request.name, of.0
            ))),
            None => Ok(()),
        };
        is_good(&identity)?;
        // Its signature is the word of the key that gets the certificate.
        let certificate_pem = self
            .state
            .authority
            .actuator(&request.name, &request.csr_pem, self.certificate_days, self.handle.time().by_clocks())
            .map_err(|error| ApiError::invalid(format!("csr_pem: {error}")))?;
        let certified = identities::key_of_certificate(&certificate_pem)?;
        is_good(&certified.key)?;
        if by_token.is_some() {
            is_owners(self.handle.domain(), &request.name, &identity, &certified)?;
        }
        let name = request.name.clone();
        let facts =
            ActuatorFacts { name: request.name, role: request.role, identity, underlay: request.underlay };
        self.handle.may_have(&facts).map_err(ApiError::conflict)?;
        match by_token {
            // The word of who made the token counts, and no controller's.
            Some(joined) => {
                self.handle.joined_by(joined).await.map_err(|error| self.failed(error))?;
            }
            None => {
                let caller = Caller::of(SourceId::of_actuator(&name).0);
                self.about_token(caller, &name, id, TokenChange::Used { key: identity }).await?;
                self.handle.joined(facts).await.map_err(|error| self.failed(error))?;
            }
        }
        identities::certified(&self.handle, &name, &certificate_pem).await?;
        Ok(JoinResponse {
            certificate_pem,
            ca_pem: self.state.authority.certificate_pem().to_string(),
            domain: self.state.domain.clone(),
            epoch: self.handle.published().epoch,
            group_key: group_key.to_hex(),
            dataplane_secret: to_hex(&self.state.dataplane_secret),
            controllers: self.session_addresses(),
        })
    }

    /// See [`weir_api::Backend::ready`].
    pub(super) async fn is_ready(&self) -> Result<(), ApiError> {
        if let Some(full) = self.group.as_ref().and_then(super::group::Group::full) {
            return Err(ApiError::unready(full));
        }
        let fresh = tokio::time::timeout(
            super::backend::READY_BOUND,
            self.handle.barrier_within(super::backend::READY_AGE),
        );
        match fresh.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Error::Order(weir_order::Error::NotLeader { .. }))) if self.follows() => Ok(()),
            Ok(Err(error)) => Err(ApiError::unready(api_error(error).problem.message)),
            Err(_) => Err(ApiError::unready(
                "the order stands still: too few controllers of the group reach each other, or the disk does not write",
            )),
        }
    }
}
