//! Paths of requests that wait for the approval of several operators.

use super::Shared;
use crate::extract::{Named, Strict};
use crate::types::{ApprovalList, ApprovalRequest, ApprovalResponse, NeedsRequest, Problem};
use crate::{ApiError, Caller};
use axum::http::StatusCode;
use axum::{Extension, Json};
use weir_model::join::from_hex;

/// List the requests that wait for approvals, with all that their authors signed, and what needs approvals here.
#[utoipa::path(get, path = "/v1/approvals",
    responses((status = 200, body = ApprovalList), (status = "4XX", body = Problem)))]
pub(super) async fn approvals(backend: Shared) -> Result<Json<ApprovalList>, ApiError> {
    backend.approvals().await.map(Json)
}

/// Approve or refuse a request that waits, by its id. The last approval that it needs is answered when it is decided.
#[utoipa::path(post, path = "/v1/approvals/{id}", params(("id" = String, Path)), request_body = ApprovalRequest,
    responses((status = 200, body = ApprovalResponse), (status = "4XX", body = Problem)))]
pub(super) async fn approve(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(id): Named<String>,
    Strict(request): Strict<ApprovalRequest>,
) -> Result<Json<ApprovalResponse>, ApiError> {
    let digest = from_hex(&id).ok_or_else(|| {
        ApiError::not_found(format!(
            "no request '{id}' waits: the 64 hexadecimal digits of one are wanted ('weir approvals list')"
        ))
    })?;
    backend.approve(caller, digest, request.approve).await.map(Json)
}

/// Say which kinds of requests need the approval of several operators.
#[utoipa::path(put, path = "/v1/approvals", request_body = NeedsRequest,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn need_approvals(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<NeedsRequest>,
) -> Result<StatusCode, ApiError> {
    backend.need_approvals(caller, request.needs()?).await.map(|()| StatusCode::NO_CONTENT)
}
