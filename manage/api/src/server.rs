//! The routes; each room has those of one resource.

mod approvals;
mod domains;
mod group;
mod identities;
mod operators;
mod orders;
mod packets;
mod planes;
mod resources;

pub use crate::admins::Admins;
pub use crate::extract::{BODIES_BYTES_MAX, BODY_TIMEOUT, parse};
pub use crate::guard::{HEAD_BYTES_MAX, HEADERS_MAX, OPEN_REQUESTS_MAX, URI_BYTES_MAX};
pub use crate::types::OPEN_BODY_BYTES_MAX;

use crate::backend::Backend;
use crate::types::{ApiError, Problem, StatusResponse};
use crate::within::Schemas;
use crate::{any, bounds, guard, requests, said};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::{Arc, OnceLock};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_model::Label;

type Shared = State<Arc<dyn Backend>>;

#[derive(OpenApi)]
#[openapi(info(
    title = "Weir",
    description = "Tenant networks on a set of hosts: resources, their state, and traces of packets."
))]
struct Document;

fn routes() -> OpenApiRouter<Arc<dyn Backend>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(resources::apply))
        .routes(routes!(resources::list))
        .routes(routes!(resources::devices))
        .routes(routes!(resources::get_network))
        .routes(routes!(resources::get_resource))
        .routes(routes!(resources::watch))
        .routes(routes!(status))
        .routes(routes!(group::group))
        .routes(routes!(group::audit))
        .routes(routes!(group::add_member))
        .routes(routes!(group::remove_member))
        .routes(routes!(group::convert))
        .routes(routes!(group::refresh_group))
        .routes(routes!(group::clock, group::set_clock))
        .routes(routes!(identities::identities))
        .routes(routes!(approvals::approvals, approvals::need_approvals))
        .routes(routes!(approvals::approve))
        .routes(routes!(operators::operators))
        .routes(routes!(operators::put_operator, operators::remove_operator))
        .routes(routes!(identities::rotate))
        .routes(routes!(identities::revoke))
        .routes(routes!(identities::order_key_change))
        .routes(routes!(identities::next_key))
        .routes(routes!(identities::use_next_key))
        .routes(routes!(packets::trace))
        .routes(routes!(packets::capture))
        .routes(routes!(identities::token, identities::tokens))
        .routes(routes!(identities::void_token))
        .routes(routes!(identities::remove_actuator))
        .routes(routes!(orders::repair))
        .routes(routes!(orders::filewall))
        .routes(routes!(planes::planes))
        .routes(routes!(planes::plane, planes::put_plane, planes::delete_plane))
        .routes(routes!(domains::domain))
        .routes(routes!(domains::domains, domains::add_domain))
        .routes(routes!(domains::forget_domain))
        .routes(routes!(packets::counters))
        .routes(routes!(metrics))
}

/// The OpenAPI 3.1 document, with the bounds of what requests hold.
pub fn openapi() -> serde_json::Value {
    // It is made of this program's own types.
    let made = serde_json::to_value(routes().merge(open_routes()).into_openapi());
    let mut document = made.unwrap_or_default();
    bounds::apply(&mut document);
    said::describe(&mut document);
    document
}

/// What the door compares bodies with: made once, for its handlers are what it is made of.
fn schemas() -> Schemas {
    static DOCUMENT: OnceLock<serde_json::Value> = OnceLock::new();
    Schemas(DOCUMENT.get_or_init(openapi))
}

fn open_routes() -> OpenApiRouter<Arc<dyn Backend>> {
    OpenApiRouter::new()
        .routes(routes!(identities::join))
        .routes(routes!(domains::statements))
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(document))
}

/// The whole service.
pub fn router(backend: Arc<dyn Backend>, admins: Admins) -> axum::Router {
    let (guarded, _) = routes().split_for_parts();
    let (open, _) = open_routes().split_for_parts();
    let guarded = guarded.layer(middleware::from_fn(move |request: Request, next: Next| {
        guard::administrators(admins.clone(), request, next)
    }));
    guarded
        .merge(open.layer(middleware::from_fn(guard::everybody)))
        .method_not_allowed_fallback(|| async {
            ApiError::method(
                "this path takes other methods: they are in the field 'Allow', and in /v1/openapi.json",
            )
        })
        .fallback(|| async { ApiError::not_found("there is no such path: see /v1/openapi.json") })
        // Extractors have limits of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(Extension(schemas()))
        .with_state(backend)
}

/// A service with what belongs around all of it, also around what was merged into it.
pub fn finished(service: axum::Router) -> axum::Router {
    service.layer(middleware::from_fn(guard::head)).layer(middleware::from_fn(requests::count))
}

fn parse_kind(text: &str) -> Result<Label, ApiError> {
    any::parse_kind(text).map_err(|error| ApiError::field("request", error))
}

fn label(text: String) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid(error.to_string()))
}

/// State of the domain.
#[utoipa::path(get, path = "/v1/status",
    responses((status = 200, body = StatusResponse), (status = "4XX", body = Problem)))]
async fn status(backend: Shared) -> Result<Json<StatusResponse>, ApiError> {
    backend.status().await.map(Json)
}

/// Metrics of the controller.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(backend: Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], backend.metrics() + &requests::metrics_text())
        .into_response()
}

/// Whether the process answers.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the controller can do its work: its log takes entries, and in a group one leads that it follows.
#[utoipa::path(get, path = "/readyz",
    responses((status = 200, body = String), (status = "5XX", body = Problem)))]
async fn readyz(backend: Shared) -> Result<&'static str, ApiError> {
    backend.ready().await.map(|()| "ready\n")
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, body = String)))]
async fn document() -> Json<serde_json::Value> {
    Json(openapi())
}

#[cfg(test)]
mod tests;
