//! Paths of domains: this one, its peers, and what they ask.

use super::{Shared, label};
use crate::backend::Caller;
use crate::domains::{AddDomain, DomainDescription, DomainList, DomainResponse, QUESTION_BYTES_MAX};
use crate::extract::{Named, Raw, Strict};
use crate::types::{ApiError, Problem};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

/// This domain, as the operators of others make it known there: nothing in it is secret.
#[utoipa::path(get, path = "/v1/domain",
    responses((status = 200, body = DomainDescription), (status = "4XX", body = Problem)))]
pub(super) async fn domain(backend: Shared) -> Result<Json<DomainDescription>, ApiError> {
    backend.domain().await.map(Json)
}

/// List the other domains that are known.
#[utoipa::path(get, path = "/v1/domains",
    responses((status = 200, body = DomainList), (status = "4XX", body = Problem)))]
pub(super) async fn domains(backend: Shared) -> Result<Json<DomainList>, ApiError> {
    backend.domains().await.map(Json)
}

/// Make another domain known, or known by other controllers, another authority or other prefixes: everything is told anew then.
#[utoipa::path(post, path = "/v1/domains", request_body = AddDomain,
    responses((status = 200, body = DomainResponse), (status = "4XX", body = Problem)))]
pub(super) async fn add_domain(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<AddDomain>,
) -> Result<Json<DomainResponse>, ApiError> {
    backend.add_domain(caller, request).await.map(Json)
}

/// Let another domain be unknown: what it told is void.
#[utoipa::path(delete, path = "/v1/domains/{name}", params(("name" = String, Path)),
    responses((status = 200, body = DomainResponse), (status = "4XX", body = Problem)))]
pub(super) async fn forget_domain(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<Json<DomainResponse>, ApiError> {
    backend.forget_domain(caller, label(name)?).await.map(Json)
}

/// Ask for what this domain tells another one: by a controller of that one, with its signature.
#[utoipa::path(post, path = "/v1/domain/statements",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
              (status = "4XX", body = Problem)))]
pub(super) async fn statements(backend: Shared, Raw(question): Raw) -> Result<Response, ApiError> {
    if question.len() > QUESTION_BYTES_MAX {
        return Err(ApiError::too_large(format!("a question has at most {QUESTION_BYTES_MAX} bytes")));
    }
    let told = backend.statements(question.into()).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], told).into_response())
}
