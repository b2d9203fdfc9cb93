//! Paths of resources: what shall be, what is, and its changes as they come.

use super::{Shared, label, parse_kind};
use crate::any::{self, AnyId};
use crate::backend::{Caller, WatchStep};
use crate::extract::{Asked, Named, Strict};
use crate::types::{
    ApiError, ApplyRequest, ApplyResponse, DeviceList, Problem, RESOURCES_MAX, ResourceList, ResourceView,
    WatchEnd, WatchEvent, WatchLine,
};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use utoipa::IntoParams;
use weir_model::Label;
use weir_model::resource::{Kind, ResourceId};

/// Change resources, all or nothing.
#[utoipa::path(post, path = "/v1/apply", request_body = ApplyRequest,
    responses((status = 200, body = ApplyResponse), (status = "4XX", body = Problem)))]
pub(super) async fn apply(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<ApplyRequest>,
) -> Result<Json<ApplyResponse>, ApiError> {
    let count = request.resources.len() + request.delete.len();
    if count > RESOURCES_MAX {
        return Err(ApiError::too_large(format!(
            "{count} resources are over the limit of {RESOURCES_MAX} a request"
        )));
    }
    backend.apply(caller, request).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    /// Only this kind.
    kind: Option<String>,
    /// Only of this network.
    network: Option<String>,
    /// Of the controller that is asked, also when another leads: it may lack what was done last.
    stale: Option<bool>,
}

/// List resources.
#[utoipa::path(get, path = "/v1/resources", params(Selection),
    responses((status = 200, body = ResourceList), (status = "4XX", body = Problem)))]
pub(super) async fn list(
    backend: Shared,
    Asked(selection): Asked<Selection>,
) -> Result<Json<ResourceList>, ApiError> {
    let kind = selection.kind.as_deref().map(parse_kind).transpose()?;
    let network = selection.network.map(label).transpose()?;
    backend.list(kind, network, selection.stale.unwrap_or_default()).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OfNetwork {
    /// Only of this network.
    network: Option<String>,
}

/// List the devices that learned networks have seen.
#[utoipa::path(get, path = "/v1/devices", params(OfNetwork),
    responses((status = 200, body = DeviceList), (status = "4XX", body = Problem)))]
pub(super) async fn devices(
    backend: Shared,
    Asked(of): Asked<OfNetwork>,
) -> Result<Json<DeviceList>, ApiError> {
    backend.devices(of.network.map(label).transpose()?).await.map(Json)
}

/// Read a network.
#[utoipa::path(get, path = "/v1/resources/network/{name}", params(("name" = String, Path)),
    responses((status = 200, body = ResourceView), (status = "4XX", body = Problem)))]
pub(super) async fn get_network(
    backend: Shared,
    Named(name): Named<String>,
) -> Result<Json<ResourceView>, ApiError> {
    let id = ResourceId { kind: Kind::Network, network: None, name: label(name)? };
    backend.get(id.into()).await.map(Json)
}

/// Read a resource of a network, or of a plane of a host: `place` is the network, or the host.
#[utoipa::path(get, path = "/v1/resources/{kind}/{place}/{of}",
    params(("kind" = String, Path), ("place" = String, Path), ("of" = String, Path)),
    responses((status = 200, body = ResourceView), (status = "4XX", body = Problem)))]
pub(super) async fn get_resource(
    backend: Shared,
    Named((kind, place, name)): Named<(String, String, String)>,
) -> Result<Json<ResourceView>, ApiError> {
    // What a plane of a release that is gone has can be read still.
    let kind = match parse_kind(&kind) {
        Ok(kind) => kind,
        Err(unknown) => Label::new(kind).map_err(|_| unknown)?,
    };
    let (network, host) = match any::network_kind(kind.as_str()) {
        Some(_) => (Some(label(place)?), None),
        None => (None, Some(label(place)?)),
    };
    let id = AnyId { kind, network, host, name };
    id.named().map_err(|error| ApiError::field("request", error))?;
    backend.get(id).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    /// Version after which changes are told; absent means from now on.
    from: Option<u64>,
}

/// Follow changes of resources: one JSON document a line, until the client ends it. Versions are told whole: where `more` says that one goes
/// on, the last whole one is where to resume. The controller says in a last line why it ends a watch, and from where to go on.
#[utoipa::path(get, path = "/v1/watch", params(From),
    responses((status = 200, body = WatchLine, content_type = "application/x-ndjson"),
              (status = 410, body = Problem), (status = "4XX", body = Problem)))]
pub(super) async fn watch(backend: Shared, Asked(from): Asked<From>) -> Result<Response, ApiError> {
    let from = match from.from {
        Some(from) => from,
        None => backend.list(Some(parse_kind(Kind::Network.as_str())?), None, true).await?.version,
    };
    let header = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((header, Body::from_stream(lines(backend.watch(from)?, from))).into_response())
}

/// The lines of a watch: each version whole, and at its end a line that says why and from where to go on.
fn lines(
    steps: mpsc::Receiver<WatchStep>,
    from: u64,
) -> impl Stream<Item = Result<Vec<u8>, serde_json::Error>> + Send {
    let told = Arc::new(AtomicU64::new(from));
    let last = told.clone();
    // What ends a watch by being too slow cannot be put behind what it did not take.
    let slow = || {
        let message = "what was told was not taken in time: go on at 'from', and take it quicker";
        WatchStep::End(*ApiError::too_slow(message).problem)
    };
    let ended = Arc::new(AtomicBool::new(false));
    let has_ended = ended.clone();
    let rest =
        tokio_stream::iter(std::iter::once_with(move || (!has_ended.load(Ordering::SeqCst)).then(slow)));
    ReceiverStream::new(steps).map(Some).chain(rest).filter_map(|step| step).map(move |step| match step {
        WatchStep::Version(version, events) => {
            let count = events.len();
            let mut lines = Vec::new();
            for (index, event) in events.into_iter().enumerate() {
                let line = WatchEvent { more: index + 1 < count, ..event };
                serde_json::to_writer(&mut lines, &line)?;
                lines.push(b'\n');
            }
            told.store(version, Ordering::SeqCst);
            Ok(lines)
        }
        WatchStep::End(problem) => {
            ended.store(true, Ordering::SeqCst);
            let end = WatchEnd { ended: problem, from: last.load(Ordering::SeqCst) };
            let mut line = serde_json::to_vec(&end)?;
            line.push(b'\n');
            Ok(line)
        }
    })
}
