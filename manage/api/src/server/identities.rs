//! Paths of those who take part: their keys and certificates, join tokens, and who joins.

use super::{Shared, label};
use crate::backend::Caller;
use crate::extract::{Asked, Named, Strict};
use crate::tls::Peer;
use crate::types::{
    ApiError, IdentityList, KeyChange, Problem, RevokeRequest, RotateRequest, TokenList, TokenRequest,
    TokenResponse,
};
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;
use weir_model::join::{JoinRequest, JoinResponse};

/// List hosts, gateways and controllers with the keys and certificates that are taken of them.
#[utoipa::path(get, path = "/v1/identities", params(OfWhom),
    responses((status = 200, body = IdentityList), (status = "4XX", body = Problem)))]
pub(super) async fn identities(
    backend: Shared,
    Asked(of): Asked<OfWhom>,
) -> Result<Json<IdentityList>, ApiError> {
    backend.identities(of.stale.unwrap_or_default()).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OfWhom {
    /// As the controller that is asked knows it, also when another leads: it may lack what was done last.
    stale: Option<bool>,
}

/// Have a host or gateway change its keys: answers when only the new ones are taken.
#[utoipa::path(post, path = "/v1/identities/rotate", request_body = RotateRequest,
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn rotate(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<RotateRequest>,
) -> Result<StatusCode, ApiError> {
    backend.rotate(caller, request).await.map(|()| StatusCode::NO_CONTENT)
}

/// Take nothing of somebody any more. In a group of which some may lie, as many controllers must be asked to revoke another one as
/// cannot all lie.
#[utoipa::path(post, path = "/v1/identities/revoke", request_body = RevokeRequest,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn revoke(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<RevokeRequest>,
) -> Result<StatusCode, ApiError> {
    backend.revoke(caller, request).await.map(|()| StatusCode::NO_CONTENT)
}

/// Order a change of a controller's key: what that controller gave.
#[utoipa::path(post, path = "/v1/identities/change", request_body = KeyChange,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn order_key_change(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(change): Strict<KeyChange>,
) -> Result<StatusCode, ApiError> {
    backend.order_key_change(caller, change).await.map(|()| StatusCode::NO_CONTENT)
}

/// Make the next key of the controller that is asked, and give the change to it, which another request orders.
#[utoipa::path(post, path = "/v1/identities/own/next",
    responses((status = 200, body = KeyChange), (status = "4XX", body = Problem)))]
pub(super) async fn next_key(backend: Shared) -> Result<Json<KeyChange>, ApiError> {
    backend.next_key().await.map(Json)
}

/// Use the next key of the controller that is asked, once it is known, and give what drops the one before.
#[utoipa::path(post, path = "/v1/identities/own/use",
    responses((status = 200, body = KeyChange), (status = "4XX", body = Problem)))]
pub(super) async fn use_next_key(backend: Shared) -> Result<Json<KeyChange>, ApiError> {
    backend.use_next_key().await.map(Json)
}

/// Make a join token, for one name in one role; it is good once.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest,
    responses((status = 200, body = TokenResponse), (status = "4XX", body = Problem)))]
pub(super) async fn token(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<TokenRequest>,
) -> Result<Json<TokenResponse>, ApiError> {
    backend.token(caller, request).await.map(Json)
}

/// List the join tokens that were made.
#[utoipa::path(get, path = "/v1/tokens",
    responses((status = 200, body = TokenList), (status = "4XX", body = Problem)))]
pub(super) async fn tokens(backend: Shared) -> Result<Json<TokenList>, ApiError> {
    backend.tokens().await.map(Json)
}

/// Have a join token not taken any more.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(("id" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn void_token(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(id): Named<String>,
) -> Result<StatusCode, ApiError> {
    backend.void_token(caller, id).await.map(|()| StatusCode::NO_CONTENT)
}

/// Forget a host or gateway that is gone for good.
#[utoipa::path(delete, path = "/v1/actuators/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn remove_actuator(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<StatusCode, ApiError> {
    backend.remove_actuator(caller, label(name)?).await.map(|()| StatusCode::NO_CONTENT)
}

/// Join the domain: called by `weir host` and `weir gateway` with a token.
#[utoipa::path(post, path = "/v1/join", request_body = JoinRequest,
    responses((status = 200, body = JoinResponse), (status = "4XX", body = Problem)))]
pub(super) async fn join(
    backend: Shared,
    Extension(ConnectInfo(peer)): Extension<ConnectInfo<Peer>>,
    Strict(request): Strict<JoinRequest>,
) -> Result<Json<JoinResponse>, ApiError> {
    backend.join(request, peer.address.ip().to_canonical()).await.map(Json)
}
