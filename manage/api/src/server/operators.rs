//! Paths of operators: the people whose signed requests are taken.

use super::{Shared, label};
use crate::extract::{Named, Strict};
use crate::types::{OperatorList, OperatorRequest, Problem};
use crate::{ApiError, Caller};
use axum::http::StatusCode;
use axum::{Extension, Json};

/// List the operators whose requests are taken, and whether requests must be signed here.
#[utoipa::path(get, path = "/v1/operators",
    responses((status = 200, body = OperatorList), (status = "4XX", body = Problem)))]
pub(super) async fn operators(backend: Shared) -> Result<Json<OperatorList>, ApiError> {
    backend.operators().await.map(Json)
}

/// Make an operator known, or known by another role or other keys. The first one of a domain is an admin, and from then on requests
/// must be signed.
#[utoipa::path(put, path = "/v1/operators/{name}", params(("name" = String, Path)), request_body = OperatorRequest,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn put_operator(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(request): Strict<OperatorRequest>,
) -> Result<StatusCode, ApiError> {
    backend.put_operator(caller, label(name)?, request).await.map(|()| StatusCode::NO_CONTENT)
}

/// Take nothing of an operator any more. The last admin stays.
#[utoipa::path(delete, path = "/v1/operators/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(super) async fn remove_operator(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<StatusCode, ApiError> {
    backend.remove_operator(caller, label(name)?).await.map(|()| StatusCode::NO_CONTENT)
}
