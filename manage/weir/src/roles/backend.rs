//! Joins the API to the controller: requests become events, tables become answers.

mod apply;
mod before;
mod convert;
mod names;
mod packets;
mod planes;
mod ports;
mod resources;
mod say;
mod status;
mod waits;

pub use resources::WATCHED;

use super::domains::Domains;
use super::doors::Doors;
use super::group::Group;
use super::own::Own;
use super::process;
use super::state::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use weir_admission::Door;
use weir_api::any::AnyId;
use weir_api::domains::{AddDomain, DomainDescription, DomainList, DomainResponse};
use weir_api::planes::{PlaneList, PlaneResponse, PlaneView};
use weir_api::types::{
    AddMember, ApplyRequest, ApplyResponse, ApprovalList, ApprovalResponse, AuditPage, CaptureRequest,
    CapturedFrame, ClockStatus, ConvertRequest, ConvertResponse, DeviceList, DeviceView, FileWallRequest,
    FileWallResponse, GroupStatus, IdentityList, KeyChange, OperatorList, OperatorRequest, RepairRequest,
    RepairResponse, ResourceList, ResourceView, RevokeRequest, RotateRequest, StatusResponse, TokenList,
    TokenRequest, TokenResponse, TraceRequest, TraceResponse,
};
use weir_api::{ApiError, Backend, Caller, Reply, WatchStep};
use weir_apps::fabric;
use weir_controller::Error;
use weir_controller::driver::{ControllerHandle, Watch};
use weir_model::approval::Needs;
use weir_model::domain::DomainEvent;
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::join::{JoinRequest, JoinResponse, from_hex, to_hex};
use weir_model::local::{Answer, Question};
use weir_model::{Label, Version};
use weir_store::Rejection;

/// Versions that may wait for a watcher.
const WATCH_QUEUE: usize = 4;
/// A watcher that takes none of them for so long is ended; it can resume.
const WATCH_WAIT: Duration = Duration::from_secs(30);
/// Most watches of resources at a time.
pub const WATCHERS_MAX: usize = 256;
/// How long being ready may take to be seen.
pub(super) const READY_BOUND: Duration = Duration::from_secs(3);
/// What was ready so long ago is.
pub(super) const READY_AGE: Duration = Duration::from_secs(1);
/// Longest wait for updates to be in force.
const WAIT_MAX_MS: u32 = 60_000;
/// Most devices told in one answer.
const DEVICES_MAX: usize = 10_000;

/// See the module.
pub struct Controlled {
    /// The controller.
    pub handle: ControllerHandle,
    /// Keys and certificates.
    pub state: Arc<State>,
    /// Life of an actuator's certificate, days.
    pub certificate_days: u32,
    /// Where people and tools reach this controller, `ADDRESS:PORT`.
    pub api_address: String,
    /// Where hosts and gateways reach it.
    pub session_address: String,
    /// The group that it is in.
    pub group: Option<Group>,
    /// Its part in what domains tell each other.
    pub domains: Arc<Domains>,
    /// This controller's own key and certificate.
    pub own: Own,
    /// Where connections come in.
    pub doors: Arc<Doors>,
    /// Places of those who watch: [`WATCHERS_MAX`].
    pub watchers: Arc<Semaphore>,
}

pub(super) fn api_error(error: Error) -> ApiError {
    let message = error.to_string();
    match error {
        Error::Rejected(Rejection::Field { resource, error }) => ApiError::field(resource, error),
        Error::Rejected(Rejection::Limit { .. }) => ApiError::too_large(message),
        Error::Rejected(_) => ApiError::conflict(message),
        Error::Unauthentic { .. } => ApiError::forbidden(message),
        Error::Overloaded { .. } => ApiError::overloaded(message),
        Error::WatchTooOld { .. } => ApiError::too_old(message),
        Error::WatchAhead { .. } => ApiError::not_reached(message),
        Error::NotConnected(_)
        | Error::NoAnswer { .. }
        | Error::Clocks
        | Error::Held(_)
        | Error::Converts => ApiError::unavailable(message),
        Error::Order(weir_order::Error::Overloaded { .. }) => ApiError::overloaded(message),
        Error::Order(
            weir_order::Error::NoQuorum
            | weir_order::Error::Fenced { .. }
            | weir_order::Error::DiskFull { .. },
        ) => ApiError::unavailable(message),
        Error::Order(error) if !error.is_definite() => ApiError::uncertain(message),
        Error::Stopped => ApiError::uncertain(message),
        _ => ApiError::internal(message),
    }
}

impl Controlled {
    /// An error of the order, with the address of the controller that leads where another does.
    pub(super) fn failed(&self, error: Error) -> ApiError {
        match (&error, &self.group) {
            (Error::Order(weir_order::Error::NotLeader { leader }), Some(group)) => group.not_leader(*leader),
            _ => api_error(error),
        }
    }

    /// Returns when what is published has all that was acknowledged before.
    pub(super) async fn barrier(&self) -> Result<(), ApiError> {
        self.handle.barrier().await.map_err(|error| self.failed(error))
    }

    /// Whether a controller may come into the group under a number and with a key: neither was revoked.
    fn may_come(&self, whose: &SourceId, id: u64, key: Option<&[u8; 32]>) -> Result<(), ApiError> {
        let published = self.handle.published();
        if published.identities.row(whose).is_some_and(|row| row.revoked.is_some()) {
            return Err(ApiError::conflict(format!(
                "id: controller {id} was revoked, and does not come back under its number: give the new one another"
            )));
        }
        match key.and_then(|key| published.identities.refused_of(key)) {
            Some(of) => Err(ApiError::conflict(format!(
                "key: this key was revoked, as one of {}: begin controller {id} with an empty state directory, and give the key that \
                 'weir group identity' makes there",
                of.0
            ))),
            None => Ok(()),
        }
    }

    async fn about_domains(&self, caller: Caller, about: DomainEvent) -> Result<DomainResponse, ApiError> {
        let version = self.say(&caller, EventBody::Domain(Box::new(about))).await?;
        Ok(DomainResponse { version: version.0 })
    }

    pub(super) fn session_addresses(&self) -> Vec<String> {
        self.group.as_ref().map_or_else(|| vec![self.session_address.clone()], Group::sessions)
    }

    pub(super) fn api_addresses(&self) -> Vec<String> {
        let addresses = self.group.as_ref().map_or_else(|| vec![self.api_address.clone()], Group::apis);
        addresses.into_iter().map(|address| format!("https://{address}")).collect()
    }

    /// Whether it is of a group of which it knows who leads.
    pub(super) fn follows(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.status().leader.is_some())
    }

    fn in_group(&self) -> Result<&Group, ApiError> {
        self.group.as_ref().ok_or_else(|| {
            ApiError::not_found(
                "this controller is alone: a group is made by the part 'group' of its settings",
            )
        })
    }

    fn status_of(&self, group: &Group) -> GroupStatus {
        GroupStatus { signing: group.signing(&self.handle), ..group.status() }
    }

    /// Empty before the controllers of a group have made it.
    fn group_key(&self) -> String {
        self.handle.group_key().map(|key| key.to_hex()).unwrap_or_default()
    }

    async fn ask(&self, switch: Label, question: Question) -> Result<Answer, ApiError> {
        self.known(&switch)?;
        self.handle.ask(&switch, question).await.map_err(|error| match error {
            Error::NotConnected(name) => ApiError::unavailable(format!(
                "'{name}' has no session now: 'weir status' shows when it is back, its log why it is not"
            )),
            other => api_error(other),
        })
    }

    /// Whether a host or gateway is a member.
    pub(super) fn known(&self, name: &Label) -> Result<(), ApiError> {
        match fabric::actuator(&self.handle.published().store, name) {
            Some(_) => Ok(()),
            None => Err(ApiError::not_found(format!(
                "no host or gateway is named '{name}': 'weir status' lists them"
            ))),
        }
    }
}

impl Backend for Controlled {
    fn apply(&self, caller: Caller, request: ApplyRequest) -> Reply<'_, ApplyResponse> {
        Box::pin(self.change(caller, request))
    }

    fn list(&self, kind: Option<Label>, network: Option<Label>, stale: bool) -> Reply<'_, ResourceList> {
        Box::pin(async move {
            if !stale {
                self.barrier().await?;
            }
            let published = self.handle.published();
            let items = resources::list(&published.store, kind.as_ref(), network.as_ref());
            Ok(ResourceList { items, version: published.store.version().0 })
        })
    }

    fn devices(&self, network: Option<Label>) -> Reply<'_, DeviceList> {
        Box::pin(async move {
            self.barrier().await?;
            let store = &self.handle.published().store;
            let vni = match network {
                None => None,
                Some(network) => Some(fabric::vni_of(store, &network).ok_or_else(|| {
                    ApiError::not_found(format!(
                        "there is no network '{network}': 'weir get networks' lists them"
                    ))
                })?),
            };
            // One more than is told says whether there are more.
            let seen = fabric::devices_seen(store, vni, DEVICES_MAX + 1);
            let more = seen.len() > DEVICES_MAX;
            let seen = seen.into_iter().take(DEVICES_MAX).map(|seen| DeviceView {
                network: fabric::network_of(store, seen.vni).map(|name| name.to_string()).unwrap_or_default(),
                id: seen.device.id,
                mac: seen.device.mac.to_string(),
                addresses: seen.device.addresses.iter().map(ToString::to_string).collect(),
                host: seen.host.map(|host| host.to_string()),
                first_ms: seen.first_ms,
                seen_ms: seen.device.seen_ms,
            });
            Ok(DeviceList { items: seen.collect(), more })
        })
    }

    fn get(&self, id: AnyId) -> Reply<'_, ResourceView> {
        Box::pin(async move {
            self.barrier().await?;
            resources::one(&self.handle.published().store, &id)
        })
    }

    fn watch(&self, from: u64) -> Result<mpsc::Receiver<WatchStep>, ApiError> {
        let watch = self.handle.watch_first(Version(from)).map_err(api_error)?;
        let place = self.watchers.clone().try_acquire_owned().map_err(|_| {
            ApiError::overloaded(format!(
                "{WATCHERS_MAX} watches are open here: end some, or ask another controller"
            ))
        })?;
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(async move {
            follow(watch, &sender).await;
            drop(place);
        });
        Ok(receiver)
    }

    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(self.is_ready())
    }

    fn status(&self) -> Reply<'_, StatusResponse> {
        Box::pin(self.state_of_domain())
    }

    fn group(&self) -> Result<GroupStatus, ApiError> {
        self.in_group().map(|group| self.status_of(group))
    }

    fn audit(&self, from: u64, limit: usize) -> Reply<'_, AuditPage> {
        Box::pin(async move {
            let read = self.handle.audit(from, limit).await.map_err(api_error)?;
            let (page, status) = read.ok_or_else(|| {
                ApiError::not_found("this controller keeps no audit: 'auditMebibytes' in its settings is 0")
            })?;
            Ok(AuditPage {
                controller: self.handle.source().0.clone(),
                from: page.from,
                links: page.links.iter().map(|link| BASE64_STANDARD.encode(link)).collect(),
                first: status.first,
                last: status.last,
                head: to_hex(&status.head),
                failed: status.failed,
            })
        })
    }

    fn add_member(&self, caller: Caller, member: AddMember) -> Reply<'_, ()> {
        Box::pin(async move {
            let group = self.in_group()?;
            let key = member.key.as_deref().and_then(from_hex::<32>);
            // One that is behind may not know yet whom it must refuse.
            self.barrier().await?;
            let id = member.id;
            let whose = SourceId::of_controller(&super::names::member_name(id));
            self.may_come(&whose, id, key.as_ref())?;
            // What it says is taken when as many members say so as cannot all lie, each of which is asked to add it; or an operator.
            // A spare is known by its key as soon as so many name it.
            let is_spare = member.spare;
            let introduced = key.filter(|_| self.handle.orders_everywhere() && !is_spare);
            let introduced = introduced.map(|key| IdentityEvent::Introduced { whose, key });
            let introduced = introduced.map(|about| EventBody::Identity(Box::new(about)));
            if let Some(body) = &introduced {
                self.foresee(&caller, body)?;
            }
            group.add(member).await?;
            match introduced {
                Some(body) if self.is_signed(&body) => drop(self.say(&caller, body).await?),
                // A controller says it for itself.
                Some(body) => {
                    let said = self.handle.submit_own(body, None).await;
                    said.map_err(|error| self.failed(error))?;
                }
                None => {}
            }
            if is_spare { Ok(()) } else { group.shares_dealt(&self.handle, 0).await }
        })
    }

    fn convert(&self, caller: Caller, request: ConvertRequest) -> Reply<'_, ConvertResponse> {
        Box::pin(self.become_member(caller, request))
    }

    fn remove_member(&self, id: u64) -> Reply<'_, ()> {
        Box::pin(async move {
            let group = self.in_group()?;
            let (own, is_spare) = (group.status().id == id, group.is_spare(id));
            group.remove(id).await?;
            if is_spare {
                return Ok(());
            }
            // Who has removed itself hears nothing more of the others.
            if own { Ok(()) } else { group.shares_dealt(&self.handle, 0).await }
        })
    }

    fn refresh_group(&self) -> Reply<'_, ()> {
        Box::pin(async move { self.in_group()?.refresh(&self.handle).await })
    }

    fn clock(&self) -> ClockStatus {
        self.clocks()
    }

    fn set_clock(&self, caller: Caller) -> Reply<'_, ()> {
        Box::pin(async move {
            let set = self.handle.set_clock(Some(caller.subject)).await;
            set.map(drop).map_err(|error| self.failed(error))
        })
    }

    fn identities(&self, stale: bool) -> Reply<'_, IdentityList> {
        Box::pin(self.list_identities(stale))
    }

    fn operators(&self) -> Reply<'_, OperatorList> {
        Box::pin(self.list_operators())
    }

    fn approvals(&self) -> Reply<'_, ApprovalList> {
        Box::pin(self.list_approvals())
    }

    fn approve(&self, caller: Caller, id: [u8; 32], approve: bool) -> Reply<'_, ApprovalResponse> {
        Box::pin(async move { self.say_of_waiting(&caller, id, approve).await })
    }

    fn need_approvals(&self, caller: Caller, needs: Needs) -> Reply<'_, ()> {
        Box::pin(async move { self.change_needs(&caller, needs).await })
    }

    fn put_operator(&self, caller: Caller, name: Label, request: OperatorRequest) -> Reply<'_, ()> {
        Box::pin(async move { self.change_operator(&caller, &name, &request).await })
    }

    fn remove_operator(&self, caller: Caller, name: Label) -> Reply<'_, ()> {
        Box::pin(async move { self.end_operator(&caller, &name).await })
    }

    fn rotate(&self, _caller: Caller, request: RotateRequest) -> Reply<'_, ()> {
        Box::pin(async move { self.rotate_actuator(&request.name).await })
    }

    fn revoke(&self, caller: Caller, request: RevokeRequest) -> Reply<'_, ()> {
        Box::pin(self.revoke_source(caller, request))
    }

    fn order_key_change(&self, caller: Caller, change: KeyChange) -> Reply<'_, ()> {
        Box::pin(self.order_change(caller, change))
    }

    fn next_key(&self) -> Reply<'_, KeyChange> {
        Box::pin(self.make_next_key())
    }

    fn use_next_key(&self) -> Reply<'_, KeyChange> {
        Box::pin(self.take_next_key())
    }

    fn trace(&self, request: TraceRequest) -> Reply<'_, TraceResponse> {
        Box::pin(self.follow_packet(request))
    }

    fn capture(&self, request: CaptureRequest) -> Reply<'_, Vec<CapturedFrame>> {
        Box::pin(self.copy_frames(request))
    }

    fn token(&self, caller: Caller, request: TokenRequest) -> Reply<'_, TokenResponse> {
        Box::pin(self.make_token(caller, request))
    }

    fn tokens(&self) -> Reply<'_, TokenList> {
        Box::pin(self.list_tokens())
    }

    fn void_token(&self, caller: Caller, id: String) -> Reply<'_, ()> {
        Box::pin(async move { self.void(caller, &id).await })
    }

    fn join(&self, request: JoinRequest, from: IpAddr) -> Reply<'_, JoinResponse> {
        Box::pin(self.let_join(request, from))
    }

    fn remove_actuator(&self, caller: Caller, name: Label) -> Reply<'_, ()> {
        Box::pin(async move {
            self.barrier().await?;
            self.known(&name)?;
            self.say(&caller, EventBody::Removed { actuator: name }).await.map(drop)
        })
    }

    fn repair(&self, caller: Caller, name: Label, request: RepairRequest) -> Reply<'_, RepairResponse> {
        Box::pin(self.order_repair(caller, name, request))
    }

    fn filewall(
        &self,
        caller: Caller,
        name: Label,
        wall: Label,
        request: FileWallRequest,
    ) -> Reply<'_, FileWallResponse> {
        Box::pin(self.order_policies(caller, (name, wall), request))
    }

    fn planes(&self, name: Label) -> Reply<'_, PlaneList> {
        Box::pin(self.list_planes(name))
    }

    fn plane(&self, name: Label, plane: Label, of: String) -> Reply<'_, PlaneView> {
        Box::pin(self.show_plane(name, plane, of))
    }

    fn order(
        &self,
        caller: Caller,
        name: Label,
        of: (Label, String),
        spec: Option<serde_json::Value>,
        wait_ms: u32,
    ) -> Reply<'_, PlaneResponse> {
        Box::pin(self.order_plane(caller, name, of, spec, wait_ms))
    }

    fn domain(&self) -> Reply<'_, DomainDescription> {
        Box::pin(async { self.domains.description() })
    }

    fn domains(&self) -> Reply<'_, DomainList> {
        Box::pin(async {
            self.barrier().await?;
            Ok(self.domains.list())
        })
    }

    fn add_domain(&self, caller: Caller, request: AddDomain) -> Reply<'_, DomainResponse> {
        Box::pin(async move { self.about_domains(caller, Domains::known(request)?).await })
    }

    fn forget_domain(&self, caller: Caller, name: Label) -> Reply<'_, DomainResponse> {
        Box::pin(async move {
            self.barrier().await?;
            self.about_domains(caller, self.domains.forgotten(name)?).await
        })
    }

    fn statements(&self, question: Vec<u8>) -> Reply<'_, Vec<u8>> {
        Box::pin(async move { self.domains.answer(&question).await })
    }

    fn counters(&self, name: Label) -> Reply<'_, Vec<(String, u64)>> {
        Box::pin(async move {
            match self.ask(name, Question::Counters).await? {
                Answer::Counters(counters) => Ok(counters),
                Answer::Error(reason) => Err(ApiError::unavailable(reason)),
                _ => Err(ApiError::internal("the switch answered another question")),
            }
        })
    }

    fn metrics(&self) -> String {
        self.handle.metrics_text()
            + &self.domains.metrics_text()
            + &Door::metrics_text(&self.doors.all())
            + &process::metrics_text()
    }
}

/// Tells a watcher what happens, version by version; ends when it does not take one in time.
async fn follow(mut watch: Watch, to: &mpsc::Sender<WatchStep>) {
    loop {
        let next = tokio::select! {
            next = watch.next() => next,
            () = to.closed() => return,
        };
        let steps: Vec<WatchStep> = match next {
            Ok(changes) => changes.iter().filter_map(|change| watch_step(change)).collect(),
            Err(error) => vec![WatchStep::End(*api_error(error).problem)],
        };
        for step in steps {
            let ends = matches!(step, WatchStep::End(_));
            // Whoever reads hears at its end that it was too slow.
            let sent = to.send_timeout(step, WATCH_WAIT).await;
            if ends || sent.is_err() {
                return;
            }
        }
    }
}

fn watch_step(change: &weir_controller::core::CommittedChange) -> Option<WatchStep> {
    let events = resources::changed(change);
    (!events.is_empty()).then(|| WatchStep::Version(change.version.0, events))
}
