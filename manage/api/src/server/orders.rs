//! Paths of short forms: repairs of a monitor, policies of a FileWall.

use super::{Shared, label};
use crate::backend::Caller;
use crate::extract::{Named, Strict};
use crate::types::{ApiError, FileWallRequest, FileWallResponse, Problem, RepairRequest, RepairResponse};
use axum::{Extension, Json};

/// Order the monitor of a host or gateway to repair something, by an update that the group signs.
#[utoipa::path(post, path = "/v1/actuators/{name}/repairs", params(("name" = String, Path)),
    request_body = RepairRequest,
    responses((status = 200, body = RepairResponse), (status = "4XX", body = Problem)))]
pub(super) async fn repair(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(request): Strict<RepairRequest>,
) -> Result<Json<RepairResponse>, ApiError> {
    backend.repair(caller, label(name)?, request).await.map(Json)
}

/// Order the policies of a FileWall on a host or gateway, by an update that the group signs.
#[utoipa::path(post, path = "/v1/actuators/{name}/filewalls/{wall}",
    params(("name" = String, Path), ("wall" = String, Path)), request_body = FileWallRequest,
    responses((status = 200, body = FileWallResponse), (status = "4XX", body = Problem)))]
pub(super) async fn filewall(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named((name, wall)): Named<(String, String)>,
    Strict(request): Strict<FileWallRequest>,
) -> Result<Json<FileWallResponse>, ApiError> {
    backend.filewall(caller, label(name)?, label(wall)?, request).await.map(Json)
}
