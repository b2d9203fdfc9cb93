//! What the API answers when it does not do what it is asked.

use crate::statement::{SIGN_AGAIN, Statement, TO_SIGN, UNSIGNED, WAITS};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_model::resource::FieldError;

/// Code of the problem that another controller leads.
pub const NOT_LEADER: &str = "not-leader";

/// What went wrong, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A stable word: `invalid`, `not-found`, `conflict`, `unauthorized`, `overloaded`, `too-old`, `not-reached` (ask again in a moment),
    /// `unavailable`, `too-large`, `not-leader` (nothing was done; ask `leader`), `uncertain` (it may or may not be
    /// done), `to-sign` and `sign-again` (nothing was done; sign `statement` and ask again), `unsigned` (calls are signed here), `waits-for-approval`
    /// (it is ordered, and done when others have approved it), `forbidden` (by somebody who may), `internal`.
    pub code: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// The resource, if one is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The field, if one is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<FieldError>,
    /// With `not-leader`: base address of the controller that leads, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// With `to-sign` and `sign-again`: what is to be signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<Box<Statement>>,
}

/// An error of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// Its body.
    pub problem: Box<Problem>,
}

impl ApiError {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> ApiError {
        let message = message.into();
        let code = code.to_string();
        let problem = Problem { code, message, resource: None, field: None, leader: None, statement: None };
        ApiError { status, problem: Box::new(problem) }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", message)
    }
    /// A field of a resource is wrong.
    pub fn field(resource: impl Into<String>, error: FieldError) -> ApiError {
        let resource = resource.into();
        let mut api =
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{resource}: {error}"));
        api.problem.resource = Some(resource);
        api.problem.field = Some(error);
        api
    }
    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not-found", message)
    }
    /// It fights with what is there.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "conflict", message)
    }
    /// Who are you?
    pub fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }
    /// What is asked is not for who asks.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "forbidden", message)
    }
    /// It must be signed by an operator, and is not.
    pub fn unsigned(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, UNSIGNED, message)
    }
    /// This is to be signed. Nothing was done.
    pub fn to_sign(statement: Statement) -> ApiError {
        let message = "nothing is done yet: this is what an operator signs";
        let mut api = ApiError::new(StatusCode::CONFLICT, TO_SIGN, message);
        api.problem.statement = Some(Box::new(statement));
        api
    }
    /// The signature is not over what the call becomes. Nothing was done.
    pub fn sign_again(why: impl std::fmt::Display, statement: Statement) -> ApiError {
        let message = format!("nothing is done: {why}; sign what the call becomes now, and make it again");
        let mut api = ApiError::new(StatusCode::CONFLICT, SIGN_AGAIN, message);
        api.problem.statement = Some(Box::new(statement));
        api
    }
    /// It is ordered, and done when enough operators have approved it.
    pub fn waits(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, WAITS, message)
    }
    /// Too much at once: try again later.
    pub fn overloaded(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }
    /// The resume token is too old: read everything again.
    pub fn too_old(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::GONE, "too-old", message)
    }
    /// A watcher does not take what is told it.
    pub fn too_slow(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "too-slow", message)
    }
    /// Somebody who should answer does not.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_GATEWAY, "unavailable", message)
    }
    /// Another controller of the group leads. Nothing was done.
    pub fn not_leader(leader: Option<String>) -> ApiError {
        let message = match &leader {
            Some(leader) => format!("another controller leads the group: ask {leader}"),
            None => "no controller leads the group at the moment: ask again in a second".to_string(),
        };
        let mut api = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, NOT_LEADER, message);
        api.problem.leader = leader;
        api
    }
    /// It may or may not be done.
    pub fn uncertain(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_GATEWAY, "uncertain", message)
    }
    /// More than a limit.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
    }
    /// The path has another method.
    pub fn method(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", message)
    }
    /// It did not come in time.
    pub fn late(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid", message)
    }
    /// The path is too long.
    pub fn long_uri(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::URI_TOO_LONG, "too-large", message)
    }
    /// The head is too large.
    pub fn large_head(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too-large", message)
    }
    /// The body is of another kind.
    pub fn media_type(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", message)
    }
    /// The version to go on from has not been reached here.
    pub fn not_reached(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-reached", message)
    }
    /// The controller cannot do its work now.
    pub fn unready(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }
    /// Our fault.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(*self.problem)).into_response()
    }
}
