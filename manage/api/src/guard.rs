//! What is asked of a request before its handler: judged by the head alone, before a byte of the body is read.

use crate::admins::Admins;
use crate::backend::{Caller, TOKEN_CALLER};
use crate::extract::BodyLimit;
use crate::said::Word;
use crate::tls::{ADMINISTRATOR, Peer};
use crate::types::{ApiError, OPEN_BODY_BYTES_MAX};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use weir_admission::Place;

/// Longest path with its query, bytes.
pub const URI_BYTES_MAX: usize = 8 * 1024;
/// Most fields of a head.
pub const HEADERS_MAX: usize = 100;
/// Most bytes of a head's fields.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most requests at a time for which nobody needs to be known.
pub const OPEN_REQUESTS_MAX: usize = 64;

static OPEN: Semaphore = Semaphore::const_new(OPEN_REQUESTS_MAX);

fn judge_head(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let length = uri.path_and_query().map_or(0, |whole| whole.as_str().len());
    if length > URI_BYTES_MAX {
        return Err(ApiError::long_uri(format!(
            "the path and its query have {length} bytes, and at most {URI_BYTES_MAX} are taken"
        )));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers.len() > HEADERS_MAX || bytes > HEAD_BYTES_MAX {
        return Err(ApiError::large_head(format!(
            "the head has {} fields of {bytes} bytes, and at most {HEADERS_MAX} of {HEAD_BYTES_MAX} bytes are taken",
            headers.len()
        )));
    }
    Ok(())
}

/// Refuses a request with too large a head.
pub(crate) async fn head(request: Request, next: Next) -> Response {
    match judge_head(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Who asks, when it is an administrator; its connection is a known one's from now on.
fn administrator(admins: &Admins, request: &Request) -> Result<Caller, ApiError> {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|info| &info.0);
    let authorization = request.headers().get(header::AUTHORIZATION);
    admins.check(peer, authorization.and_then(|value| value.to_str().ok()))?;
    if let Some(place) = request.extensions().get::<Place>() {
        place.admit(ADMINISTRATOR).map_err(|full| ApiError::overloaded(full.to_string()))?;
    }
    let name = peer.filter(|peer| peer.is_admin).and_then(|peer| peer.name.clone());
    let word = Word::of(request.headers())?;
    Ok(Caller { subject: name.unwrap_or_else(|| TOKEN_CALLER.to_string()), word })
}

/// Lets administrators through.
pub(crate) async fn administrators(admins: Admins, mut request: Request, next: Next) -> Response {
    match administrator(&admins, &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Lets everybody through, few at a time and with short bodies.
pub(crate) async fn everybody(mut request: Request, next: Next) -> Response {
    let Ok(_place) = OPEN.try_acquire() else {
        return ApiError::overloaded(format!(
            "{OPEN_REQUESTS_MAX} requests of who is not known are answered at a time: try again in a second"
        ))
        .into_response();
    };
    request.extensions_mut().insert(BodyLimit(OPEN_BODY_BYTES_MAX));
    next.run(request).await
}
