//! What handlers take from a request, with errors in our own words: a body, a query, a path.
//!
//! Whoever comes here has been let in by the head of its request; see [`crate::guard`]. Bodies that are read at a time are bounded in
//! sum ([`BODIES_BYTES_MAX`]) and each in time ([`BODY_TIMEOUT`]).

use crate::types::{ApiError, BODY_BYTES_MAX};
use crate::{within, words};
use axum::body::{Bytes, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use utoipa::ToSchema;

/// Most bytes of all bodies that are read at a time.
pub const BODIES_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
/// A body comes whole within this.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// So many bytes are one permit.
const UNIT: usize = 1024;

static BODIES: Semaphore = Semaphore::const_new(BODIES_BYTES_MAX / UNIT);

/// How long a body may be here, if it is not as long as usual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit(pub usize);

/// JSON whose errors name the field.
pub(crate) struct Strict<T>(pub T);

/// Bytes of a body.
pub(crate) struct Raw(pub Bytes);

/// What a query asks.
pub(crate) struct Asked<T>(pub T);

/// What a path names.
pub(crate) struct Named<T>(pub T);

/// Whether a body is JSON, as far as its head says.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

fn room(length: usize) -> Result<SemaphorePermit<'static>, ApiError> {
    let units = u32::try_from(length.div_ceil(UNIT)).unwrap_or(u32::MAX);
    BODIES.try_acquire_many(units).map_err(|_| {
        ApiError::overloaded(format!(
            "bodies of requests take {BODIES_BYTES_MAX} bytes at a time, and no more are read now: try again in a second"
        ))
    })
}

/// The whole body, judged by its head before any of it is read.
async fn whole(request: Request) -> Result<Bytes, ApiError> {
    let limit = request.extensions().get::<BodyLimit>().map_or(BODY_BYTES_MAX, |limit| limit.0);
    let too_large = || ApiError::too_large(format!("a body has at most {limit} bytes here"));
    let hint = request.body().size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large());
    }
    let announced = hint.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(limit).min(limit);
    let _room = room(announced)?;
    let read = axum::body::to_bytes(request.into_body(), limit);
    match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(Ok(bytes)) => Ok(bytes),
        // It is longer than it may be, or its connection broke and nobody hears this.
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(ApiError::late(format!("a body comes within {} s", BODY_TIMEOUT.as_secs()))),
    }
}

impl<T: DeserializeOwned + ToSchema, S: Send + Sync> FromRequest<S> for Strict<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            return Err(ApiError::media_type(
                "a body is JSON here: say so with 'Content-Type: application/json'",
            ));
        }
        let schemas = request.extensions().get::<within::Schemas>().copied();
        let body = whole(request).await?;
        let parsed = parse(&body)?;
        let schemas = schemas.ok_or_else(|| ApiError::internal("the door has no document"))?;
        schemas.check(&T::name(), &body)?;
        Ok(Strict(parsed))
    }
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        whole(request).await.map(Raw)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked
            .map(|Query(asked)| Asked(asked))
            .map_err(|error| ApiError::invalid(format!("the query: {}", words::plain(&innermost(&error)))))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        named.map(|Path(named)| Named(named)).map_err(|error| {
            ApiError::invalid(format!(
                "the path '{}': {}",
                parts.uri.path(),
                words::plain(&innermost(&error))
            ))
        })
    }
}

/// The reason at the end of a chain of them, which those before it wrap.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// Parses a body.
///
/// # Errors
/// `invalid`, with the path of the field.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    within::count(bytes)?;
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        ApiError::invalid(format!("{place}{}", words::plain(&error.inner().to_string())))
    })?;
    json.end().map_err(|_| {
        ApiError::invalid("behind the document is something more: a body is one JSON document")
    })?;
    Ok(value)
}
