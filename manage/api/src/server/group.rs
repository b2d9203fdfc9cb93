//! Paths of the group of controllers: members, clocks, audit.

use super::Shared;
use crate::backend::Caller;
use crate::extract::{Asked, Named, Strict};
use crate::types::{
    AddMember, ApiError, AuditPage, ClockStatus, ConvertRequest, ConvertResponse, GroupStatus, Problem,
};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

/// Links of an answer unless asked for more or fewer.
const AUDIT_LINKS: usize = 1_000;

/// The group of controllers.
#[utoipa::path(get, path = "/v1/group",
    responses((status = 200, body = GroupStatus), (status = "4XX", body = Problem)))]
pub(super) async fn group(backend: Shared) -> Result<Json<GroupStatus>, ApiError> {
    backend.group().map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct Links {
    /// Number of the first link; one that is gone stands for the oldest that is left.
    #[serde(default)]
    from: u64,
    /// How many, at most.
    limit: Option<usize>,
}

/// Read the audit of the controller that is asked: links of its chain of hashes.
#[utoipa::path(get, path = "/v1/audit", params(Links),
    responses((status = 200, body = AuditPage), (status = "4XX", body = Problem)))]
pub(super) async fn audit(backend: Shared, Asked(links): Asked<Links>) -> Result<Json<AuditPage>, ApiError> {
    backend.audit(links.from, links.limit.unwrap_or(AUDIT_LINKS)).await.map(Json)
}

/// Add a controller to the group, once it runs: answers when it has caught up and votes.
#[utoipa::path(post, path = "/v1/group/members", request_body = AddMember,
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn add_member(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(member): Strict<AddMember>,
) -> Result<StatusCode, ApiError> {
    backend.add_member(caller, member).await.map(|()| StatusCode::NO_CONTENT)
}

/// Make the controller that is alone the first member of a group. Answers when the last entry of its order is decided; it starts again as a
/// member at once, and the others are added then.
#[utoipa::path(post, path = "/v1/group/convert", request_body = ConvertRequest,
    responses((status = 200, body = ConvertResponse), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn convert(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<ConvertRequest>,
) -> Result<Json<ConvertResponse>, ApiError> {
    backend.convert(caller, request).await.map(Json)
}

/// Remove a controller from the group.
#[utoipa::path(delete, path = "/v1/group/members/{id}", params(("id" = u64, Path)),
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn remove_member(backend: Shared, Named(id): Named<u64>) -> Result<StatusCode, ApiError> {
    backend.remove_member(id).await.map(|()| StatusCode::NO_CONTENT)
}

/// Deal new shares of the group's key to its members: shares that were stolen before are worth nothing after it. Answers
/// when they are in force; the key stays the same.
#[utoipa::path(post, path = "/v1/group/refresh",
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn refresh_group(backend: Shared) -> Result<StatusCode, ApiError> {
    backend.refresh_group().await.map(|()| StatusCode::NO_CONTENT)
}

/// Read the controllers' clocks, as the one that is asked knows them.
#[utoipa::path(get, path = "/v1/clock",
    responses((status = 200, body = ClockStatus), (status = "4XX", body = Problem)))]
pub(super) async fn clock(backend: Shared) -> Json<ClockStatus> {
    Json(backend.clock())
}

/// Say that wall time is what the clocks of a majority say. Ordered time goes on as it is, so whatever has a life keeps what is left
/// of it.
#[utoipa::path(post, path = "/v1/clock",
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
pub(super) async fn set_clock(
    backend: Shared,
    Extension(caller): Extension<Caller>,
) -> Result<StatusCode, ApiError> {
    backend.set_clock(caller).await.map(|()| StatusCode::NO_CONTENT)
}
