//! Calls that order something: signed by the client's operator, where it has one and the domain wants it ([`crate::said`]).

use super::{Client, ClientError, plane_path};
use crate::any::PlaneId;
use crate::asked::Asked;
use crate::domains::{AddDomain, DomainResponse};
use crate::planes::{PlaneRequest, PlaneResponse};
use crate::said::{SIGN_AGAIN, TO_SIGN, Word};
use crate::types::{
    AddMember, ApiError, ApplyRequest, ApplyResponse, ApprovalRequest, ApprovalResponse, FileWallRequest,
    FileWallResponse, NeedsRequest, OperatorRequest, RepairRequest, RepairResponse, RevokeRequest,
    TokenRequest, TokenResponse,
};
use axum::http::Method;
use serde::{Serialize, de::DeserializeOwned};
use weir_model::Label;
use weir_model::approval::Approval;
use weir_model::domain::DomainEvent;
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::join::{from_hex, to_hex};
use weir_model::operator::OperatorChange;

/// How often a call is signed whose event was another one when it came.
const SIGN_TRIES: usize = 4;
/// No body.
const NOTHING: Option<&()> = None;

/// A name that goes into a path.
fn label(name: &str) -> Result<Label, ClientError> {
    Label::new(name).map_err(|error| ClientError::Refused(ApiError::invalid(error.to_string())))
}

fn odd(message: String) -> ClientError {
    ClientError::Refused(ApiError::invalid(message))
}

fn plane_id(actuator: &str, plane: &str, of: &str) -> Result<PlaneId, ClientError> {
    Ok(PlaneId { plane: label(plane)?, host: label(actuator)?, name: of.to_owned() })
}

impl Client {
    /// Makes a call that orders something: signed, where this client's operator signs and the domain wants it.
    fn order<'a, B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        asked: impl FnOnce() -> Result<Asked<'a>, ClientError>,
    ) -> Result<T, ClientError> {
        let call = |word: &Word| self.at_leader(|| self.send(method.clone(), path, word, body));
        let Some(operator) = &self.operator else { return call(&Word::None) };
        let asked = asked()?;
        let mut answer = call(&operator.prepare());
        for _ in 0..SIGN_TRIES {
            let statement = match &answer {
                Err(ClientError::Refused(error))
                    if [TO_SIGN, SIGN_AGAIN].contains(&error.problem.code.as_str()) =>
                {
                    error.problem.statement.as_ref()
                }
                _ => return answer,
            };
            let missing = || ClientError::Answer("it has no statement to sign".to_owned());
            let word =
                operator.sign(statement.ok_or_else(missing)?, &asked).map_err(ClientError::NotSigned)?;
            answer = call(&word);
        }
        answer
    }

    /// The same with nothing in the answer.
    fn order_only<'a, B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        asked: impl FnOnce() -> Result<Asked<'a>, ClientError>,
    ) -> Result<(), ClientError> {
        self.order::<B, Option<()>>(method, path, body, asked).map(drop)
    }

    /// `POST /v1/apply`.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub fn apply(&self, request: &ApplyRequest) -> Result<ApplyResponse, ClientError> {
        match request.dry_run {
            true => self.post("/v1/apply", request),
            false => self.order(Method::POST, "/v1/apply", Some(request), || Ok(Asked::Apply(request))),
        }
    }

    /// `POST /v1/tokens`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn token(&self, request: &TokenRequest) -> Result<TokenResponse, ClientError> {
        let Some(operator) = &self.operator else { return self.post("/v1/tokens", request) };
        let (key, seed) = operator.token(request).map_err(ClientError::NotSigned)?;
        let request = TokenRequest { key: Some(key.named), ..request.clone() };
        let asked = || Ok(Asked::event(key.event));
        let made: TokenResponse = self.order(Method::POST, "/v1/tokens", Some(&request), asked)?;
        let token = operator.with_key(&made.token, &seed).map_err(ClientError::Answer)?;
        Ok(TokenResponse { token, ..made })
    }

    /// `DELETE /v1/tokens/ID`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn void_token(&self, id: &str) -> Result<(), ClientError> {
        let asked = || match from_hex(id) {
            Some(id) => Ok(Asked::VoidToken(id)),
            None => Err(odd(format!("there is no join token '{id}': 'weir token list' shows them"))),
        };
        self.order_only(Method::DELETE, &format!("/v1/tokens/{id}"), NOTHING, asked)
    }

    /// `POST /v1/actuators/{name}/repairs`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn repair(&self, actuator: &str, request: &RepairRequest) -> Result<RepairResponse, ClientError> {
        let path = format!("/v1/actuators/{actuator}/repairs");
        self.order(Method::POST, &path, Some(request), || Ok(Asked::Repair(label(actuator)?, request)))
    }

    /// `POST /v1/actuators/{name}/filewalls/{wall}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn filewall(
        &self,
        actuator: &str,
        wall: &str,
        request: &FileWallRequest,
    ) -> Result<FileWallResponse, ClientError> {
        let path = format!("/v1/actuators/{actuator}/filewalls/{wall}");
        let asked = || Ok(Asked::FileWall(label(actuator)?, label(wall)?, request));
        self.order(Method::POST, &path, Some(request), asked)
    }

    /// `PUT /v1/actuators/{name}/planes/{plane}/{of}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put_plane(
        &self,
        actuator: &str,
        plane: &str,
        of: &str,
        request: &PlaneRequest,
    ) -> Result<PlaneResponse, ClientError> {
        let asked = || Ok(Asked::Plane { id: plane_id(actuator, plane, of)?, spec: Some(&request.spec) });
        self.order(Method::PUT, &plane_path(actuator, plane, of), Some(request), asked)
    }

    /// `DELETE /v1/actuators/{name}/planes/{plane}/{of}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete_plane(
        &self,
        actuator: &str,
        plane: &str,
        of: &str,
        wait_ms: u32,
    ) -> Result<PlaneResponse, ClientError> {
        let path = format!("{}?waitMs={wait_ms}", plane_path(actuator, plane, of));
        let asked = || Ok(Asked::Plane { id: plane_id(actuator, plane, of)?, spec: None });
        self.order(Method::DELETE, &path, NOTHING, asked)
    }

    /// `POST /v1/domains`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn add_domain(&self, request: &AddDomain) -> Result<DomainResponse, ClientError> {
        let asked = || {
            let record = request.clone().record().map_err(ClientError::Refused)?;
            Ok(Asked::event(EventBody::Domain(Box::new(DomainEvent::Known(record)))))
        };
        self.order(Method::POST, "/v1/domains", Some(request), asked)
    }

    /// `DELETE /v1/domains/{name}`.
    ///
    /// # Errors
    /// [`ClientError`]; `not-found` when no such domain is known.
    pub fn forget_domain(&self, name: &str) -> Result<DomainResponse, ClientError> {
        let asked = || {
            let about = DomainEvent::Forgotten { domain: label(name)? };
            Ok(Asked::event(EventBody::Domain(Box::new(about))))
        };
        self.order(Method::DELETE, &format!("/v1/domains/{name}"), NOTHING, asked)
    }

    /// `DELETE /v1/actuators/{name}`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove_actuator(&self, actuator: &str) -> Result<(), ClientError> {
        let asked = || Ok(Asked::event(EventBody::Removed { actuator: label(actuator)? }));
        self.order_only(Method::DELETE, &format!("/v1/actuators/{actuator}"), NOTHING, asked)
    }

    /// `POST /v1/group/members`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn add_member(&self, member: &AddMember) -> Result<(), ClientError> {
        let asked = || {
            let whose = SourceId::of_controller(&label(&format!("controller-{}", member.id))?);
            let key = member.key.as_deref().and_then(from_hex);
            let key = key.ok_or_else(|| odd("key: 64 hexadecimal digits are wanted".to_owned()))?;
            Ok(Asked::identity(IdentityEvent::Introduced { whose, key }))
        };
        self.order_only(Method::POST, "/v1/group/members", Some(member), asked)
    }

    /// `PUT /v1/operators/NAME`. `added`: whether there is none of the name yet.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put_operator(
        &self,
        name: &Label,
        request: &OperatorRequest,
        added: bool,
    ) -> Result<(), ClientError> {
        let asked = || {
            let facts = request.facts().map_err(ClientError::Refused)?;
            let change = if added { OperatorChange::Added(facts) } else { OperatorChange::Changed(facts) };
            Ok(Asked::identity(IdentityEvent::Operator { whose: SourceId::of_operator(name), change }))
        };
        self.order_only(Method::PUT, &format!("/v1/operators/{name}"), Some(request), asked)
    }

    /// `DELETE /v1/operators/NAME`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove_operator(&self, name: &Label) -> Result<(), ClientError> {
        let (whose, change) = (SourceId::of_operator(name), OperatorChange::Removed);
        let asked = || Ok(Asked::identity(IdentityEvent::Operator { whose, change }));
        self.order_only(Method::DELETE, &format!("/v1/operators/{name}"), NOTHING, asked)
    }

    /// `POST /v1/approvals/ID`: of the request with this digest.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn approve(&self, of: &[u8; 32], approve: bool) -> Result<ApprovalResponse, ClientError> {
        let said = if approve { Approval::Given(*of) } else { Approval::Refused(*of) };
        let asked = || Ok(Asked::event(EventBody::Approval(Box::new(said))));
        let path = format!("/v1/approvals/{}", to_hex(of));
        self.order(Method::POST, &path, Some(&ApprovalRequest { approve }), asked)
    }

    /// `PUT /v1/approvals`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn need_approvals(&self, request: &NeedsRequest) -> Result<(), ClientError> {
        let asked = || {
            let needs = request.needs().map_err(ClientError::Refused)?;
            Ok(Asked::event(EventBody::Approval(Box::new(Approval::Needed(needs)))))
        };
        self.order_only(Method::PUT, "/v1/approvals", Some(request), asked)
    }

    /// `POST /v1/identities/revoke`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn revoke(&self, request: &RevokeRequest) -> Result<(), ClientError> {
        let (whose, reason) = (SourceId(request.source.clone()), request.reason.clone());
        let asked = || Ok(Asked::identity(IdentityEvent::Revoked { whose, reason }));
        self.order_only(Method::POST, "/v1/identities/revoke", Some(request), asked)
    }
}
