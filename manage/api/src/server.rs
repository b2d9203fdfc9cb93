//! The routes.

mod operators;
mod planes;

use crate::any::{self, AnyId};
use crate::backend::{Backend, Caller, WatchStep};
use crate::bounds;
use crate::domains::{AddDomain, DomainDescription, DomainList, DomainResponse, QUESTION_BYTES_MAX};
use crate::extract::{Asked, Named, Raw, Strict};
pub use crate::extract::{BODIES_BYTES_MAX, BODY_TIMEOUT, OPEN_BODY_BYTES_MAX, parse};
use crate::guard;
pub use crate::guard::{HEAD_BYTES_MAX, HEADERS_MAX, OPEN_REQUESTS_MAX, URI_BYTES_MAX};
use crate::requests;
use crate::said;
use crate::tls::Peer;
use crate::types::{
    AddMember, ApiError, ApplyRequest, ApplyResponse, AuditPage, CaptureRequest, CapturedFrame, ClockStatus,
    ConvertRequest, ConvertResponse,
    DeviceList, FileWallRequest, FileWallResponse, GroupStatus, IdentityList, KeyChange, Problem,
    RESOURCES_MAX, RepairRequest, RepairResponse, ResourceList, ResourceView, RevokeRequest, RotateRequest,
    StatusResponse, TokenList, TokenRequest, TokenResponse, TraceRequest, TraceResponse, WatchEnd,
    WatchEvent, WatchLine,
};
use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use subtle::ConstantTimeEq;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_model::Label;
use weir_model::join::{JoinRequest, JoinResponse};
use weir_model::resource::{Kind, ResourceId};

/// Links of an answer unless asked for more or fewer.
const AUDIT_LINKS: usize = 1_000;

type Shared = State<Arc<dyn Backend>>;

/// How administrators prove who they are, besides a client certificate.
#[derive(Clone)]
pub struct Admins {
    /// SHA-256 of the bearer token.
    pub token_hash: [u8; 32],
    /// Why the certificate of a peer, by its bytes, is not taken any more.
    refuses: Option<Arc<crate::pki::Refuses>>,
}

impl std::fmt::Debug for Admins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admins")
    }
}

impl Admins {
    /// For a bearer token.
    pub fn of_token(token: &str) -> Admins {
        Admins { token_hash: Sha256::digest(token).into(), refuses: None }
    }

    /// Asks this of every request on a connection for which the peer showed a certificate: it may have been revoked since.
    pub fn refusing(self, refuses: Arc<crate::pki::Refuses>) -> Admins {
        Admins { refuses: Some(refuses), ..self }
    }

    /// Whether the certificate that a peer showed is taken still.
    ///
    /// # Errors
    /// Why not.
    pub fn takes(&self, peer: Option<&Peer>) -> Result<(), ApiError> {
        let shown = peer.and_then(|peer| peer.certificate.as_deref());
        match (&self.refuses, shown) {
            (Some(refuses), Some(shown)) => refuses(shown).map_err(ApiError::unauthorized),
            _ => Ok(()),
        }
    }

    /// Whether a peer, or what it says in the header `authorization`, is an administrator's.
    ///
    /// # Errors
    /// What would be right.
    pub fn check(&self, peer: Option<&Peer>, authorization: Option<&str>) -> Result<(), ApiError> {
        self.takes(peer)?;
        if peer.is_some_and(|peer| peer.is_admin) {
            return Ok(());
        }
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        match token {
            Some(token) if Sha256::digest(token).as_slice().ct_eq(&self.token_hash).into() => Ok(()),
            Some(_) => Err(ApiError::unauthorized(
                "the token is not this domain's: copy admin.json anew from the controller's state directory (its \
                 file admin.token holds the token alone)",
            )),
            None => Err(ApiError::unauthorized(
                "say who you are: give a token ('Authorization: Bearer …') or an administrator's client certificate",
            )),
        }
    }
}

#[derive(OpenApi)]
#[openapi(info(
    title = "Weir",
    description = "Tenant networks on a set of hosts: resources, their state, and traces of packets."
))]
struct Document;

fn routes() -> OpenApiRouter<Arc<dyn Backend>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(apply))
        .routes(routes!(list))
        .routes(routes!(devices))
        .routes(routes!(get_network))
        .routes(routes!(get_resource))
        .routes(routes!(watch))
        .routes(routes!(status))
        .routes(routes!(group))
        .routes(routes!(audit))
        .routes(routes!(add_member))
        .routes(routes!(remove_member))
        .routes(routes!(convert))
        .routes(routes!(refresh_group))
        .routes(routes!(clock, set_clock))
        .routes(routes!(identities))
        .routes(routes!(operators::operators))
        .routes(routes!(operators::put_operator, operators::remove_operator))
        .routes(routes!(rotate))
        .routes(routes!(revoke))
        .routes(routes!(order_key_change))
        .routes(routes!(next_key))
        .routes(routes!(use_next_key))
        .routes(routes!(trace))
        .routes(routes!(capture))
        .routes(routes!(token, tokens))
        .routes(routes!(void_token))
        .routes(routes!(remove_actuator))
        .routes(routes!(repair))
        .routes(routes!(filewall))
        .routes(routes!(planes::planes))
        .routes(routes!(planes::plane, planes::put_plane, planes::delete_plane))
        .routes(routes!(domain))
        .routes(routes!(domains, add_domain))
        .routes(routes!(forget_domain))
        .routes(routes!(counters))
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

fn open_routes() -> OpenApiRouter<Arc<dyn Backend>> {
    OpenApiRouter::new()
        .routes(routes!(join))
        .routes(routes!(statements))
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
        .with_state(backend)
}

/// A service with what belongs around all of it, also around what was merged into it.
pub fn finished(service: axum::Router) -> axum::Router {
    service.layer(middleware::from_fn(guard::head)).layer(middleware::from_fn(requests::count))
}

/// Change resources, all or nothing.
#[utoipa::path(post, path = "/v1/apply", request_body = ApplyRequest,
    responses((status = 200, body = ApplyResponse), (status = "4XX", body = Problem)))]
async fn apply(
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
struct Selection {
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
async fn list(backend: Shared, Asked(selection): Asked<Selection>) -> Result<Json<ResourceList>, ApiError> {
    let kind = selection.kind.as_deref().map(parse_kind).transpose()?;
    let network = selection.network.map(label).transpose()?;
    backend.list(kind, network, selection.stale.unwrap_or_default()).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct OfNetwork {
    /// Only of this network.
    network: Option<String>,
}

/// List the devices that learned networks have seen.
#[utoipa::path(get, path = "/v1/devices", params(OfNetwork),
    responses((status = 200, body = DeviceList), (status = "4XX", body = Problem)))]
async fn devices(backend: Shared, Asked(of): Asked<OfNetwork>) -> Result<Json<DeviceList>, ApiError> {
    backend.devices(of.network.map(label).transpose()?).await.map(Json)
}

fn parse_kind(text: &str) -> Result<Label, ApiError> {
    any::parse_kind(text).map_err(|error| ApiError::field("request", error))
}

fn label(text: String) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid(error.to_string()))
}

/// Read a network.
#[utoipa::path(get, path = "/v1/resources/network/{name}", params(("name" = String, Path)),
    responses((status = 200, body = ResourceView), (status = "4XX", body = Problem)))]
async fn get_network(backend: Shared, Named(name): Named<String>) -> Result<Json<ResourceView>, ApiError> {
    let id = ResourceId { kind: Kind::Network, network: None, name: label(name)? };
    backend.get(id.into()).await.map(Json)
}

/// Read a resource of a network, or of a plane of a host: `place` is the network, or the host.
#[utoipa::path(get, path = "/v1/resources/{kind}/{place}/{of}",
    params(("kind" = String, Path), ("place" = String, Path), ("of" = String, Path)),
    responses((status = 200, body = ResourceView), (status = "4XX", body = Problem)))]
async fn get_resource(
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
struct From {
    /// Version after which changes are told; absent means from now on.
    from: Option<u64>,
}

/// Follow changes of resources: one JSON document a line, until the client ends it. Versions are told whole: where `more` says that one goes
/// on, the last whole one is where to resume. The controller says in a last line why it ends a watch, and from where to go on.
#[utoipa::path(get, path = "/v1/watch", params(From),
    responses((status = 200, body = WatchLine, content_type = "application/x-ndjson"),
              (status = 410, body = Problem), (status = "4XX", body = Problem)))]
async fn watch(backend: Shared, Asked(from): Asked<From>) -> Result<Response, ApiError> {
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

/// State of the domain.
#[utoipa::path(get, path = "/v1/status",
    responses((status = 200, body = StatusResponse), (status = "4XX", body = Problem)))]
async fn status(backend: Shared) -> Result<Json<StatusResponse>, ApiError> {
    backend.status().await.map(Json)
}

/// The group of controllers.
#[utoipa::path(get, path = "/v1/group",
    responses((status = 200, body = GroupStatus), (status = "4XX", body = Problem)))]
async fn group(backend: Shared) -> Result<Json<GroupStatus>, ApiError> {
    backend.group().map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct Links {
    /// Number of the first link; one that is gone stands for the oldest that is left.
    #[serde(default)]
    from: u64,
    /// How many, at most.
    limit: Option<usize>,
}

/// Read the audit of the controller that is asked: links of its chain of hashes.
#[utoipa::path(get, path = "/v1/audit", params(Links),
    responses((status = 200, body = AuditPage), (status = "4XX", body = Problem)))]
async fn audit(backend: Shared, Asked(links): Asked<Links>) -> Result<Json<AuditPage>, ApiError> {
    backend.audit(links.from, links.limit.unwrap_or(AUDIT_LINKS)).await.map(Json)
}

/// Add a controller to the group, once it runs: answers when it has caught up and votes.
#[utoipa::path(post, path = "/v1/group/members", request_body = AddMember,
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn add_member(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(member): Strict<AddMember>,
) -> Result<StatusCode, ApiError> {
    backend.add_member(caller, member).await.map(|()| StatusCode::NO_CONTENT)
}

/// Make the controller that is alone the first member of a group. Answers when the last entry of its order is decided; it starts again as a member at
/// once, and the others are added then.
#[utoipa::path(post, path = "/v1/group/convert", request_body = ConvertRequest,
    responses((status = 200, body = ConvertResponse), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn convert(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<ConvertRequest>,
) -> Result<Json<ConvertResponse>, ApiError> {
    backend.convert(caller, request).await.map(Json)
}

/// Remove a controller from the group.
#[utoipa::path(delete, path = "/v1/group/members/{id}", params(("id" = u64, Path)),
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn remove_member(backend: Shared, Named(id): Named<u64>) -> Result<StatusCode, ApiError> {
    backend.remove_member(id).await.map(|()| StatusCode::NO_CONTENT)
}

/// Deal new shares of the group's key to its members: shares that were stolen before are worth nothing after it. Answers
/// when they are in force; the key stays the same.
#[utoipa::path(post, path = "/v1/group/refresh",
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn refresh_group(backend: Shared) -> Result<StatusCode, ApiError> {
    backend.refresh_group().await.map(|()| StatusCode::NO_CONTENT)
}

/// Read the controllers' clocks, as the one that is asked knows them.
#[utoipa::path(get, path = "/v1/clock",
    responses((status = 200, body = ClockStatus), (status = "4XX", body = Problem)))]
async fn clock(backend: Shared) -> Json<ClockStatus> {
    Json(backend.clock())
}

/// Say that wall time is what the clocks of a majority say. Ordered time goes on as it is, so whatever has a life keeps what is left
/// of it.
#[utoipa::path(post, path = "/v1/clock",
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn set_clock(backend: Shared, Extension(caller): Extension<Caller>) -> Result<StatusCode, ApiError> {
    backend.set_clock(caller).await.map(|()| StatusCode::NO_CONTENT)
}

/// List hosts, gateways and controllers with the keys and certificates that are taken of them.
#[utoipa::path(get, path = "/v1/identities", params(OfWhom),
    responses((status = 200, body = IdentityList), (status = "4XX", body = Problem)))]
async fn identities(backend: Shared, Asked(of): Asked<OfWhom>) -> Result<Json<IdentityList>, ApiError> {
    backend.identities(of.stale.unwrap_or_default()).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct OfWhom {
    /// As the controller that is asked knows it, also when another leads: it may lack what was done last.
    stale: Option<bool>,
}

/// Have a host or gateway change its keys: answers when only the new ones are taken.
#[utoipa::path(post, path = "/v1/identities/rotate", request_body = RotateRequest,
    responses((status = 204), (status = "4XX", body = Problem), (status = 503, body = Problem)))]
async fn rotate(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<RotateRequest>,
) -> Result<StatusCode, ApiError> {
    backend.rotate(caller, request).await.map(|()| StatusCode::NO_CONTENT)
}

/// Take nothing of somebody any more. In a group of which some may lie, as many controllers must be asked to revoke another one as
/// cannot all lie.
#[utoipa::path(post, path = "/v1/identities/revoke", request_body = RevokeRequest,
    responses((status = 204), (status = "4XX", body = Problem)))]
async fn revoke(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<RevokeRequest>,
) -> Result<StatusCode, ApiError> {
    backend.revoke(caller, request).await.map(|()| StatusCode::NO_CONTENT)
}

/// Order a change of a controller's key: what that controller gave.
#[utoipa::path(post, path = "/v1/identities/change", request_body = KeyChange,
    responses((status = 204), (status = "4XX", body = Problem)))]
async fn order_key_change(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(change): Strict<KeyChange>,
) -> Result<StatusCode, ApiError> {
    backend.order_key_change(caller, change).await.map(|()| StatusCode::NO_CONTENT)
}

/// Make the next key of the controller that is asked, and give the change to it, which another request orders.
#[utoipa::path(post, path = "/v1/identities/own/next",
    responses((status = 200, body = KeyChange), (status = "4XX", body = Problem)))]
async fn next_key(backend: Shared) -> Result<Json<KeyChange>, ApiError> {
    backend.next_key().await.map(Json)
}

/// Use the next key of the controller that is asked, once it is known, and give what drops the one before.
#[utoipa::path(post, path = "/v1/identities/own/use",
    responses((status = 200, body = KeyChange), (status = "4XX", body = Problem)))]
async fn use_next_key(backend: Shared) -> Result<Json<KeyChange>, ApiError> {
    backend.use_next_key().await.map(Json)
}

/// Follow a packet through the real tables of every switch on its way.
#[utoipa::path(post, path = "/v1/trace", request_body = TraceRequest,
    responses((status = 200, body = TraceResponse), (status = "4XX", body = Problem)))]
async fn trace(
    backend: Shared,
    Strict(request): Strict<TraceRequest>,
) -> Result<Json<TraceResponse>, ApiError> {
    backend.trace(request).await.map(Json)
}

/// Copy frames of a port or of an underlay.
#[utoipa::path(post, path = "/v1/capture", request_body = CaptureRequest,
    responses((status = 200, body = Vec<CapturedFrame>), (status = "4XX", body = Problem)))]
async fn capture(
    backend: Shared,
    Strict(request): Strict<CaptureRequest>,
) -> Result<Json<Vec<CapturedFrame>>, ApiError> {
    backend.capture(request).await.map(Json)
}

/// Make a join token, for one name in one role; it is good once.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest,
    responses((status = 200, body = TokenResponse), (status = "4XX", body = Problem)))]
async fn token(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<TokenRequest>,
) -> Result<Json<TokenResponse>, ApiError> {
    backend.token(caller, request).await.map(Json)
}

/// List the join tokens that were made.
#[utoipa::path(get, path = "/v1/tokens",
    responses((status = 200, body = TokenList), (status = "4XX", body = Problem)))]
async fn tokens(backend: Shared) -> Result<Json<TokenList>, ApiError> {
    backend.tokens().await.map(Json)
}

/// Have a join token not taken any more.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(("id" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
async fn void_token(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(id): Named<String>,
) -> Result<StatusCode, ApiError> {
    backend.void_token(caller, id).await.map(|()| StatusCode::NO_CONTENT)
}

/// Forget a host or gateway that is gone for good.
#[utoipa::path(delete, path = "/v1/actuators/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem)))]
async fn remove_actuator(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<StatusCode, ApiError> {
    backend.remove_actuator(caller, label(name)?).await.map(|()| StatusCode::NO_CONTENT)
}

/// Order the monitor of a host or gateway to repair something, by an update that the group signs.
#[utoipa::path(post, path = "/v1/actuators/{name}/repairs", params(("name" = String, Path)),
    request_body = RepairRequest,
    responses((status = 200, body = RepairResponse), (status = "4XX", body = Problem)))]
async fn repair(
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
async fn filewall(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Named((name, wall)): Named<(String, String)>,
    Strict(request): Strict<FileWallRequest>,
) -> Result<Json<FileWallResponse>, ApiError> {
    backend.filewall(caller, label(name)?, label(wall)?, request).await.map(Json)
}

/// This domain, as the operators of others make it known there: nothing in it is secret.
#[utoipa::path(get, path = "/v1/domain",
    responses((status = 200, body = DomainDescription), (status = "4XX", body = Problem)))]
async fn domain(backend: Shared) -> Result<Json<DomainDescription>, ApiError> {
    backend.domain().await.map(Json)
}

/// List the other domains that are known.
#[utoipa::path(get, path = "/v1/domains",
    responses((status = 200, body = DomainList), (status = "4XX", body = Problem)))]
async fn domains(backend: Shared) -> Result<Json<DomainList>, ApiError> {
    backend.domains().await.map(Json)
}

/// Make another domain known, or known by other controllers, another authority or other prefixes: everything is told anew then.
#[utoipa::path(post, path = "/v1/domains", request_body = AddDomain,
    responses((status = 200, body = DomainResponse), (status = "4XX", body = Problem)))]
async fn add_domain(
    backend: Shared,
    Extension(caller): Extension<Caller>,
    Strict(request): Strict<AddDomain>,
) -> Result<Json<DomainResponse>, ApiError> {
    backend.add_domain(caller, request).await.map(Json)
}

/// Let another domain be unknown: what it told is void.
#[utoipa::path(delete, path = "/v1/domains/{name}", params(("name" = String, Path)),
    responses((status = 200, body = DomainResponse), (status = "4XX", body = Problem)))]
async fn forget_domain(
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
async fn statements(backend: Shared, Raw(question): Raw) -> Result<Response, ApiError> {
    if question.len() > QUESTION_BYTES_MAX {
        return Err(ApiError::too_large(format!("a question has at most {QUESTION_BYTES_MAX} bytes")));
    }
    let told = backend.statements(question.into()).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], told).into_response())
}

/// Counters of a host's or gateway's switch.
#[utoipa::path(get, path = "/v1/actuators/{name}/counters", params(("name" = String, Path)),
    responses((status = 200, body = std::collections::BTreeMap<String, u64>), (status = "4XX", body = Problem)))]
async fn counters(
    backend: Shared,
    Named(name): Named<String>,
) -> Result<Json<std::collections::BTreeMap<String, u64>>, ApiError> {
    Ok(Json(backend.counters(label(name)?).await?.into_iter().collect()))
}

/// Metrics of the controller.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(backend: Shared) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], backend.metrics() + &requests::metrics_text())
        .into_response()
}

/// Join the domain: called by `weir host` and `weir gateway` with a token.
#[utoipa::path(post, path = "/v1/join", request_body = JoinRequest,
    responses((status = 200, body = JoinResponse), (status = "4XX", body = Problem)))]
async fn join(
    backend: Shared,
    Extension(ConnectInfo(peer)): Extension<ConnectInfo<Peer>>,
    Strict(request): Strict<JoinRequest>,
) -> Result<Json<JoinResponse>, ApiError> {
    backend.join(request, peer.address.ip().to_canonical()).await.map(Json)
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
