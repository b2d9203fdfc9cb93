//! Paths of packets: traces, captures, counters.

use super::{Shared, label};
use crate::extract::{Named, Strict};
use crate::types::{ApiError, CaptureRequest, CapturedFrame, Problem, TraceRequest, TraceResponse};
use axum::Json;

/// Follow a packet through the real tables of every switch on its way.
#[utoipa::path(post, path = "/v1/trace", request_body = TraceRequest,
    responses((status = 200, body = TraceResponse), (status = "4XX", body = Problem)))]
pub(super) async fn trace(
    backend: Shared,
    Strict(request): Strict<TraceRequest>,
) -> Result<Json<TraceResponse>, ApiError> {
    backend.trace(request).await.map(Json)
}

/// Copy frames of a port or of an underlay.
#[utoipa::path(post, path = "/v1/capture", request_body = CaptureRequest,
    responses((status = 200, body = Vec<CapturedFrame>), (status = "4XX", body = Problem)))]
pub(super) async fn capture(
    backend: Shared,
    Strict(request): Strict<CaptureRequest>,
) -> Result<Json<Vec<CapturedFrame>>, ApiError> {
    backend.capture(request).await.map(Json)
}

/// Counters of a host's or gateway's switch.
#[utoipa::path(get, path = "/v1/actuators/{name}/counters", params(("name" = String, Path)),
    responses((status = 200, body = std::collections::BTreeMap<String, u64>), (status = "4XX", body = Problem)))]
pub(super) async fn counters(
    backend: Shared,
    Named(name): Named<String>,
) -> Result<Json<std::collections::BTreeMap<String, u64>>, ApiError> {
    Ok(Json(backend.counters(label(name)?).await?.into_iter().collect()))
}
