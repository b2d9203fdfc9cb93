//! Paths of planes.

use super::{Shared, label};
use crate::extract::{Asked, Named, Strict};
use crate::planes::{PlaneList, PlaneRequest, PlaneResponse, PlaneView};
use crate::types::Problem;
use crate::{ApiError, Caller};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

/// List what the planes of a host or gateway are to have, and what they told.
#[utoipa::path(get, path = "/v1/actuators/{name}/planes", params(("name" = String, Path)),
    responses((status = 200, body = PlaneList), (status = "4XX", body = Problem)))]
pub(super) async fn planes(backend: Shared, Named(name): Named<String>) -> Result<Json<PlaneList>, ApiError> {
    backend.planes(label(name)?).await.map(Json)
}

/// A name that a plane can have something under.
fn plane_name(name: String) -> Result<String, ApiError> {
    match weir_model::plane::name_problem(&name) {
        Some(problem) => Err(ApiError::invalid(format!("of: {problem}"))),
        None => Ok(name),
    }
}

/// Show what a plane of a host or gateway is to have under a name.
#[utoipa::path(get, path = "/v1/actuators/{name}/planes/{plane}/{of}",
    params(("name" = String, Path), ("plane" = String, Path), ("of" = String, Path)),
    responses((status = 200, body = PlaneView), (status = "4XX", body = Problem)))]
pub(super) async fn plane(
    backend: Shared,
    Named((name, plane, of)): Named<(String, String, String)>,
) -> Result<Json<PlaneView>, ApiError> {
    backend.plane(label(name)?, label(plane)?, plane_name(of)?).await.map(Json)
}

/// Have a plane of a host or gateway have something under a name, by an update that the group signs and the plane's process acks.
#[utoipa::path(put, path = "/v1/actuators/{name}/planes/{plane}/{of}",
    params(("name" = String, Path), ("plane" = String, Path), ("of" = String, Path)), request_body = PlaneRequest,
    responses((status = 200, body = PlaneResponse), (status = "4XX", body = Problem)))]
pub(super) async fn put_plane(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named((name, plane, of)): Named<(String, String, String)>,
    Strict(request): Strict<PlaneRequest>,
) -> Result<Json<PlaneResponse>, ApiError> {
    let of = (label(plane)?, plane_name(of)?);
    backend.order(caller, label(name)?, of, Some(request.spec), request.wait_ms).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Wait {
    /// Wait for it to be in force for so long, milliseconds.
    wait_ms: Option<u32>,
}

/// Withdraw what a plane of a host or gateway has under a name.
#[utoipa::path(delete, path = "/v1/actuators/{name}/planes/{plane}/{of}",
    params(("name" = String, Path), ("plane" = String, Path), ("of" = String, Path), Wait),
    responses((status = 200, body = PlaneResponse), (status = "4XX", body = Problem)))]
pub(super) async fn delete_plane(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named((name, plane, of)): Named<(String, String, String)>,
    Asked(wait): Asked<Wait>,
) -> Result<Json<PlaneResponse>, ApiError> {
    let of = (label(plane)?, plane_name(of)?);
    backend.order(caller, label(name)?, of, None, wait.wait_ms.unwrap_or(0)).await.map(Json)
}
