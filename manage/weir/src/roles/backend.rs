//! Joins the API to the controller: requests become events, tables become answers.

use super::domains::Domains;
use super::group::Group;
use super::health;
use super::identities::{self, Own};
use super::state::State;
use super::trace::{Described, follow};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use weir_api::domains::{AddDomain, DomainDescription, DomainList, DomainResponse};
use weir_api::types::{
    ActuatorStatus, AddMember, ApplyRequest, ApplyResponse, AuditPage, CaptureRequest, CapturedFrame,
    DeviceList, DeviceView, Effect, FileWallRequest, FileWallResponse, GroupStatus, IdentityList, KeyChange,
    KindCount, PlannedEntry, RepairRequest, RepairResponse, ResourceChange, ResourceList, ResourceView,
    RevokeRequest, RotateRequest, StatusResponse, TokenRequest, TokenResponse, TraceRequest, TraceResponse,
    WatchEvent,
};
use weir_api::{ApiError, Backend, Caller, Reply};
use weir_apps::fabric::{self, Stored};
use weir_controller::Error;
use weir_controller::core::scheduler::{Reached, TargetStatus, WaitState, Waiting};
use weir_controller::driver::{ControllerHandle, Published};
use weir_model::domain::DomainEvent;
use weir_model::entry::Vni;
use weir_model::event::{ActuatorFacts, Mutation, SourceId, Transaction, Wanted};
use weir_model::filewall::PolicyOrder;
use weir_model::health::RepairOrder;
use weir_model::identity::IdentityEvent;
use weir_model::join::{JoinRequest, JoinResponse, from_hex, to_hex};
use weir_model::local::{Answer, PortName, Question, TraceFrom};
use weir_model::resource::{Kind, Resource, ResourceId};
use weir_model::{Change, Label, MacAddr, Plan, Version};
use weir_store::Rejection;

/// Most planned updates told in one answer.
const UPDATES_TOLD_MAX: usize = 1000;
/// Longest wait for updates to be in force.
const WAIT_MAX_MS: u32 = 60_000;
/// Changes that may wait for a slow watcher before it is cut off; it can resume.
const WATCH_QUEUE: usize = 1024;
/// Most devices told in one answer.
const DEVICES_MAX: usize = 10_000;
/// Most waiting updates looked at for the status.
const WAITING_READ_MAX: usize = 10_000;
/// Most waiting or refused lines told for a switch.
const LINES_TOLD_MAX: usize = 20;

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
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(super) fn api_error(error: Error) -> ApiError {
    let message = error.to_string();
    match error {
        Error::Rejected(Rejection::Field { resource, error }) => ApiError::field(resource, error),
        Error::Rejected(Rejection::Limit { .. }) => ApiError::too_large(message),
        Error::Rejected(_) => ApiError::conflict(message),
        Error::Overloaded { .. } => ApiError::overloaded(message),
        Error::WatchTooOld { .. } | Error::WatchAhead { .. } => ApiError::too_old(message),
        Error::NotConnected(_) | Error::NoAnswer { .. } => ApiError::unavailable(message),
        Error::Order(weir_order::Error::Overloaded { .. }) => ApiError::overloaded(message),
        Error::Order(weir_order::Error::NoQuorum | weir_order::Error::Fenced { .. }) => {
            ApiError::unavailable(message)
        }
        Error::Order(error) if !error.is_definite() => ApiError::uncertain(message),
        Error::Stopped => ApiError::uncertain(message),
        _ => ApiError::internal(message),
    }
}

fn view(stored: Stored) -> ResourceView {
    let allocated = serde_json::to_value(&stored.allocated).unwrap_or_default();
    ResourceView { resource: stored.resource, version: stored.version.0, allocated }
}

fn transaction(request: &ApplyRequest) -> Result<Transaction, ApiError> {
    let mut expected: BTreeMap<ResourceId, Version> =
        request.expected.iter().map(|expected| (expected.id.clone(), Version(expected.version))).collect();
    let mut mutations = Vec::with_capacity(request.resources.len() + request.delete.len());
    for (number, document) in request.resources.iter().enumerate() {
        let resource = Resource::from_document(document)
            .map_err(|error| ApiError::field(format!("resources[{number}]"), error))?;
        let id = resource.id();
        let expected = expected.remove(&id);
        mutations.push(Mutation { id, expected, wanted: Wanted::Document(document.to_string()) });
    }
    for id in &request.delete {
        mutations.push(Mutation { id: id.clone(), expected: expected.remove(id), wanted: Wanted::Absent });
    }
    match expected.into_keys().next() {
        Some(id) => Err(ApiError::invalid(format!("expected: {id} is not changed by this request"))),
        None => Ok(Transaction { mutations, replace_all: request.replace_all }),
    }
}

/// What the request does to each resource, seen from the tables.
fn changes(published: &Published, request: &Transaction) -> Vec<ResourceChange> {
    let mut named = BTreeSet::new();
    let mut changes = Vec::new();
    for mutation in &request.mutations {
        named.insert(mutation.id.clone());
        let old = fabric::resource(&published.store, &mutation.id).map(|stored| stored.resource);
        let effect = match (&mutation.wanted, old) {
            (Wanted::Document(text), Some(old))
                if serde_json::from_str::<Resource>(text).is_ok_and(|new| new == old) =>
            {
                Effect::Unchanged
            }
            (Wanted::Document(_), Some(_)) => Effect::Update,
            (Wanted::Document(_), None) => Effect::Create,
            (Wanted::Absent, Some(_)) => Effect::Delete,
            (Wanted::Absent, None) => Effect::Unchanged,
        };
        changes.push(ResourceChange { id: mutation.id.clone(), effect });
    }
    if request.replace_all {
        let rest = fabric::resources(&published.store, None, None).map(|stored| stored.resource.id());
        changes.extend(
            rest.filter(|id| !named.contains(id)).map(|id| ResourceChange { id, effect: Effect::Delete }),
        );
    }
    changes
}

fn planned(plan: &Plan) -> (Vec<PlannedEntry>, usize, usize) {
    let switches: BTreeSet<&Label> = plan.updates.iter().map(|planned| &planned.update.target).collect();
    let entries = plan.updates.iter().take(UPDATES_TOLD_MAX).map(|planned| PlannedEntry {
        target: planned.update.target.to_string(),
        key: planned.update.key.to_string(),
        change: match planned.update.change {
            Change::Put(_) => "put".to_string(),
            Change::Delete => "delete".to_string(),
        },
        after: planned
            .after
            .iter()
            .map(|after| format!("{} at {}: {}", after.key, after.target, after.reason))
            .collect(),
    });
    (entries.collect(), plan.updates.len(), switches.len())
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

    async fn change(&self, caller: Caller, request: ApplyRequest) -> Result<ApplyResponse, ApiError> {
        self.barrier().await?;
        let published = self.handle.published();
        let (dry_run, wait_ms) = (request.dry_run, request.wait_ms);
        // A large request is work for a good part of a second, and this thread serves others too.
        let read = move || {
            let transaction = transaction(&request)?;
            let changes = changes(&published, &transaction);
            Ok::<_, ApiError>((transaction, changes))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (transaction, changes) =
            read.map_err(|_| ApiError::unavailable("the controller is stopping"))??;
        let plan = self.handle.dry_run(transaction.clone()).await.map_err(api_error)?;
        let (updates, updates_total, switches) = planned(&plan);
        let joined = fabric::actuators(&self.handle.published().store).count();
        let mut response = ApplyResponse {
            version: None,
            changes,
            updates,
            updates_total,
            switches,
            joined,
            in_force: false,
        };
        if dry_run {
            return Ok(response);
        }
        let proposed = self.handle.propose_for(Some(caller.0), transaction).await;
        let version = proposed.map_err(|error| self.failed(error))?;
        response.version = Some(version.0);
        if wait_ms > 0 {
            let wait = Duration::from_millis(u64::from(wait_ms.min(WAIT_MAX_MS)));
            response.in_force = self.handle.wait(version, wait).await.map_err(api_error)? == Reached::All;
        }
        Ok(response)
    }

    async fn state_of_domain(&self) -> Result<StatusResponse, ApiError> {
        let published = self.handle.published();
        let status = self.handle.status().await.map_err(api_error)?;
        let looked = self.handle.waiting_of_each(LINES_TOLD_MAX, WAITING_READ_MAX);
        let waiting = looked.await.map_err(api_error)?;
        let seen: BTreeMap<&Label, &TargetStatus> =
            status.actuators.iter().map(|seen| (&seen.target.target, &seen.target)).collect();
        let actuators = fabric::actuators(&published.store)
            .map(|known| {
                let name = known.facts.name.clone();
                let seen = seen.get(&name);
                let refused =
                    known.refusals.iter().rev().take(LINES_TOLD_MAX).map(|refused| {
                        format!("{} at {}: {}", refused.key, refused.version, refused.refusal)
                    });
                let waiting = waiting.get(&name).into_iter().flatten();
                ActuatorStatus {
                    role: known.facts.role,
                    underlay: known.facts.underlay.to_string(),
                    connected: seen.is_some_and(|seen| seen.connected),
                    desired_entries: seen.map_or(0, |seen| seen.keys),
                    desired_version: seen.map_or(0, |seen| seen.desired.0),
                    acked_entries: seen.map_or(0, |seen| seen.keys.saturating_sub(seen.lag)),
                    acked_version: seen.map_or(0, |seen| seen.acked.0),
                    // While its state is compared nobody knows what is in force there.
                    in_force_version: seen
                        .filter(|seen| seen.connected && seen.synced)
                        .map(|seen| seen.acked.0),
                    waiting: waiting.map(explain).collect(),
                    refused: refused.collect(),
                    health: health::view(&published.store, &name),
                    name: name.to_string(),
                }
            })
            .collect();
        let resources = fabric::resource_counts(&published.store);
        Ok(StatusResponse {
            domain: self.state.domain.to_string(),
            version: published.store.version().0,
            digest: format!("{:032x}", published.store.digest()),
            software: env!("CARGO_PKG_VERSION").to_string(),
            group_key: self.group_key(),
            epoch: published.epoch,
            resources: resources.into_iter().map(|(kind, count)| KindCount { kind, count }).collect(),
            actuators,
            group: self.group.as_ref().map(|group| self.status_of(group)),
        })
    }

    async fn about_domains(&self, caller: Caller, about: DomainEvent) -> Result<DomainResponse, ApiError> {
        let ordered = self.handle.about_domains(about, Some(caller.0)).await;
        ordered.map(|version| DomainResponse { version: version.0 }).map_err(|error| self.failed(error))
    }

    fn session_addresses(&self) -> Vec<String> {
        self.group.as_ref().map_or_else(|| vec![self.session_address.clone()], Group::sessions)
    }

    fn api_addresses(&self) -> Vec<String> {
        let addresses = self.group.as_ref().map_or_else(|| vec![self.api_address.clone()], Group::apis);
        addresses.into_iter().map(|address| format!("https://{address}")).collect()
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

    async fn follow_packet(&self, request: TraceRequest) -> Result<TraceResponse, ApiError> {
        let published = self.handle.published();
        let label = |text: &str| Label::new(text).map_err(|error| ApiError::invalid(error.to_string()));
        let (network, endpoint) = (label(&request.network)?, label(&request.endpoint)?);
        let find = |name: Label| {
            let id = ResourceId { kind: Kind::Endpoint, network: Some(network.clone()), name };
            fabric::resource(&published.store, &id).ok_or_else(|| {
                ApiError::not_found(format!("there is no {id}: 'weir get endpoints' lists them"))
            })
        };
        let sender = find(endpoint.clone())?;
        let Resource::Endpoint(placed) = &sender.resource else {
            return Err(ApiError::internal("an endpoint is kept as something else"));
        };
        let host = placed
            .host
            .clone()
            .ok_or_else(|| ApiError::conflict(format!("{network}/{endpoint} is placed on no host")))?;
        let frame = match request.frame.as_str() {
            "" => {
                let vni = fabric::vni_of(&published.store, &network)
                    .ok_or_else(|| ApiError::not_found(format!("there is no network {network}")))?;
                let destination = match request.to.parse::<IpAddr>() {
                    Ok(address) => address,
                    Err(_) => first_address(&find(label(&request.to)?)?, &sender)?,
                };
                describe(&request, &sender, vni, destination)?.frame()?
            }
            hex => frame_of(hex)?,
        };
        let switches: BTreeMap<IpAddr, Label> = fabric::actuators(&published.store)
            .map(|known| (known.facts.underlay, known.facts.name))
            .collect();
        let from = TraceFrom::Port(PortName { network, endpoint });
        let group = self.group_key();
        follow(host, from, frame, &switches, &group, |switch, question| self.ask(switch, question)).await
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

    async fn copy_frames(&self, request: CaptureRequest) -> Result<Vec<CapturedFrame>, ApiError> {
        let label = |text: &str| Label::new(text).map_err(|error| ApiError::invalid(error.to_string()));
        let switch = label(&request.actuator)?;
        let port = match &request.port {
            None => None,
            Some(name) => {
                let (network, endpoint) = name.split_once('/').ok_or_else(|| {
                    ApiError::invalid(format!("port: '{name}' is no port: NETWORK/ENDPOINT"))
                })?;
                Some(PortName { network: label(network)?, endpoint: label(endpoint)? })
            }
        };
        let question = Question::Capture {
            port,
            frames_max: request.frames.clamp(1, 10_000),
            duration_ms: request.duration_ms.clamp(1, 60_000),
            snap_bytes: request.snap_bytes.clamp(14, 65_535),
        };
        match self.ask(switch, question).await? {
            Answer::Captured { frames, .. } => Ok(frames
                .into_iter()
                .map(|(time_ns, length, bytes)| CapturedFrame { time_ns, length, bytes: to_hex(&bytes) })
                .collect()),
            Answer::Error(reason) => Err(ApiError::not_found(reason)),
            _ => Err(ApiError::internal("the switch answered another question")),
        }
    }

    async fn let_join(&self, request: JoinRequest) -> Result<JoinResponse, ApiError> {
        self.state
            .check_join(&request.secret, now_s())
            .map_err(|error| ApiError::unauthorized(error.to_string()))?;
        let identity: [u8; 32] = from_hex(&request.identity).ok_or_else(|| {
            ApiError::invalid("identity: 64 hex digits of an ed25519 public key are wanted")
        })?;
        self.barrier().await?;
        let group_key = self.handle.group_key().ok_or_else(|| {
            ApiError::unavailable(
                "the controllers have not made the group's key yet: all that found the group must run",
            )
        })?;
        let known = fabric::actuator(&self.handle.published().store, &request.name);
        let revoked = self.handle.keys_of(&SourceId::of_actuator(&request.name)).is_err();
        if known.is_some_and(|known| known.facts.identity != identity && !revoked) {
            return Err(ApiError::conflict(format!(
                "'{0}' has joined with another key: choose another name, or 'weir forget {0}' first",
                request.name
            )));
        }
        let certificate_pem = self
            .state
            .authority
            .actuator(&request.name, &request.csr_pem, self.certificate_days)
            .map_err(|error| ApiError::invalid(format!("csr_pem: {error}")))?;
        let facts =
            ActuatorFacts { name: request.name, role: request.role, identity, underlay: request.underlay };
        let name = facts.name.clone();
        self.handle.joined(facts).await.map_err(|error| self.failed(error))?;
        identities::certified(&self.handle, &name, &certificate_pem).await?;
        Ok(JoinResponse {
            certificate_pem,
            ca_pem: self.state.authority.certificate_pem().to_string(),
            domain: self.state.domain.clone(),
            epoch: self.handle.published().epoch,
            group_key: group_key.to_hex(),
            dataplane_secret: to_hex(&self.state.dataplane_secret),
            controllers: self.session_addresses(),
        })
    }
}

fn first_address(to: &Stored, sender: &Stored) -> Result<IpAddr, ApiError> {
    let has =
        |address: &IpAddr| sender.allocated.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    to.allocated
        .addresses
        .iter()
        .copied()
        .find(has)
        .ok_or_else(|| ApiError::conflict("the two endpoints have no address family in common"))
}

fn describe(request: &TraceRequest, sender: &Stored, vni: Vni, to: IpAddr) -> Result<Described, ApiError> {
    let source = sender.allocated.addresses.iter().copied().find(|own| own.is_ipv4() == to.is_ipv4());
    Ok(Described {
        macs: (sender.allocated.mac.unwrap_or(MacAddr([0; 6])), vni.router_mac()),
        source: source.ok_or_else(|| {
            ApiError::conflict(format!("the endpoint has no address of the family of {to}"))
        })?,
        destination: to,
        protocol: request.protocol.clone(),
        ports: (if request.source_port == 0 { 40_000 } else { request.source_port }, request.port),
    })
}

fn frame_of(hex: &str) -> Result<Vec<u8>, ApiError> {
    let wrong = || {
        ApiError::invalid("frame: hexadecimal digits of an Ethernet frame of 14 to 65535 bytes are wanted")
    };
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) || !(28..=131_070).contains(&hex.len()) {
        return Err(wrong());
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong()))
        .collect()
}

impl Backend for Controlled {
    fn apply(&self, caller: Caller, request: ApplyRequest) -> Reply<'_, ApplyResponse> {
        Box::pin(self.change(caller, request))
    }

    fn list(&self, kind: Option<Kind>, network: Option<Label>, stale: bool) -> Reply<'_, ResourceList> {
        Box::pin(async move {
            if !stale {
                self.barrier().await?;
            }
            let published = self.handle.published();
            let items = fabric::resources(&published.store, kind, network.as_ref()).map(view).collect();
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
            let seen = fabric::devices_seen(store, vni, DEVICES_MAX).into_iter().map(|seen| DeviceView {
                network: fabric::network_of(store, seen.vni).map(|name| name.to_string()).unwrap_or_default(),
                id: seen.device.id,
                mac: seen.device.mac.to_string(),
                addresses: seen.device.addresses.iter().map(ToString::to_string).collect(),
                host: seen.host.map(|host| host.to_string()),
                first_ms: seen.first_ms,
                seen_ms: seen.device.seen_ms,
            });
            Ok(DeviceList { items: seen.collect() })
        })
    }

    fn get(&self, id: ResourceId) -> Reply<'_, ResourceView> {
        Box::pin(async move {
            self.barrier().await?;
            fabric::resource(&self.handle.published().store, &id).map(view).ok_or_else(|| {
                ApiError::not_found(format!("there is no {id}: 'weir get {}s' lists them", id.kind))
            })
        })
    }

    fn watch(&self, from: u64) -> Result<mpsc::Receiver<WatchEvent>, ApiError> {
        let mut watch = self.handle.watch(Version(from)).map_err(api_error)?;
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(async move {
            while let Ok(changes) = watch.next().await {
                for change in changes {
                    for event in watch_events(&change) {
                        // A watcher that is too slow is cut off and resumes where it was.
                        if sender.try_send(event).is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(receiver)
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

    fn add_member(&self, member: AddMember) -> Reply<'_, ()> {
        Box::pin(async move {
            let group = self.in_group()?;
            let key = member.key.as_deref().and_then(from_hex::<32>);
            let whose = SourceId::of_controller(&super::controller::member_name(member.id));
            group.add(member).await?;
            if let Some(key) = key.filter(|_| self.handle.orders_everywhere()) {
                // What it says is taken when as many members say so as cannot all lie; each is asked to add it.
                let about = IdentityEvent::Introduced { whose, key };
                self.handle.about_identity(about, None).await.map_err(|error| self.failed(error))?;
            }
            group.shares_dealt(&self.handle, 0).await
        })
    }

    fn remove_member(&self, id: u64) -> Reply<'_, ()> {
        Box::pin(async move {
            let group = self.in_group()?;
            let own = group.status().id == id;
            group.remove(id).await?;
            // Who has removed itself hears nothing more of the others.
            if own { Ok(()) } else { group.shares_dealt(&self.handle, 0).await }
        })
    }

    fn refresh_group(&self) -> Reply<'_, ()> {
        Box::pin(async move { self.in_group()?.refresh(&self.handle).await })
    }

    fn identities(&self, stale: bool) -> Reply<'_, IdentityList> {
        Box::pin(self.list_identities(stale))
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

    fn token(&self, request: TokenRequest) -> Result<TokenResponse, ApiError> {
        let valid_s = if request.valid_s == 0 { 3600 } else { request.valid_s };
        if !(60..=604_800).contains(&valid_s) {
            return Err(ApiError::invalid(format!(
                "validS: '{valid_s}' is not allowed: 60 to 604800 seconds"
            )));
        }
        let token = self
            .state
            .join_token(now_s() + u64::from(valid_s), self.api_addresses())
            .map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(TokenResponse { token })
    }

    fn join(&self, request: JoinRequest) -> Reply<'_, JoinResponse> {
        Box::pin(self.let_join(request))
    }

    fn remove_actuator(&self, caller: Caller, name: Label) -> Reply<'_, ()> {
        Box::pin(async move {
            self.barrier().await?;
            self.known(&name)?;
            self.handle.remove(name, Some(caller.0)).await.map(|_| ()).map_err(|error| self.failed(error))
        })
    }

    fn repair(&self, caller: Caller, name: Label, request: RepairRequest) -> Reply<'_, RepairResponse> {
        Box::pin(async move {
            self.barrier().await?;
            self.known(&name)?;
            let order = RepairOrder { actuator: name, cgroup: request.cgroup, action: request.action };
            let ordered = self.handle.repair(order, Some(caller.0)).await;
            let version = ordered.map_err(|error| self.failed(error))?;
            let mut in_force = false;
            if request.wait_ms > 0 {
                let wait = Duration::from_millis(u64::from(request.wait_ms.min(WAIT_MAX_MS)));
                in_force = self.handle.wait(version, wait).await.map_err(api_error)? == Reached::All;
            }
            Ok(RepairResponse { version: version.0, in_force })
        })
    }

    fn filewall(
        &self,
        caller: Caller,
        name: Label,
        wall: Label,
        request: FileWallRequest,
    ) -> Reply<'_, FileWallResponse> {
        Box::pin(async move {
            self.barrier().await?;
            self.known(&name)?;
            let order = PolicyOrder { actuator: name, wall, files: request.files };
            let ordered = self.handle.filewall(order, Some(caller.0)).await;
            let version = ordered.map_err(|error| self.failed(error))?;
            let mut in_force = false;
            if request.wait_ms > 0 {
                let wait = Duration::from_millis(u64::from(request.wait_ms.min(WAIT_MAX_MS)));
                in_force = self.handle.wait(version, wait).await.map_err(api_error)? == Reached::All;
            }
            Ok(FileWallResponse { version: version.0, in_force })
        })
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
        self.handle.metrics_text() + &self.domains.metrics_text()
    }
}

/// A waiting update in words.
fn explain(waiting: &Waiting) -> String {
    let why = match &waiting.state {
        WaitState::Dependencies(missing) => {
            let missing: Vec<String> = missing
                .iter()
                .map(|after| {
                    format!("{} {} at {} ({})", after.key, after.version, after.target, after.reason)
                })
                .collect();
            format!("after {}", missing.join(", "))
        }
        WaitState::Disconnected => "it is not connected".to_string(),
        WaitState::Comparing => "its state is being compared".to_string(),
        WaitState::Unsigned => {
            "the group has not signed it yet: 'weir group list' shows whose share is missing".to_string()
        }
        WaitState::Queued => "it is in the queue".to_string(),
        WaitState::Sent { for_ms } => format!("sent {for_ms} ms ago"),
        WaitState::Refused(refusal) => format!("refused: {refusal}"),
    };
    format!("{} {}: {why}", waiting.key, waiting.version)
}

fn watch_events(change: &weir_controller::core::CommittedChange) -> Vec<WatchEvent> {
    let resources = change.writes.iter().filter(|write| &*write.table == fabric::tables::RESOURCES);
    resources
        .filter_map(|write| {
            let item = write
                .value
                .as_deref()
                .and_then(|bytes| serde_json::from_slice::<Stored>(bytes).ok())
                .map(view);
            let id = match &item {
                Some(item) => item.resource.id(),
                None => fabric::tables::resource_id(&write.key)?,
            };
            Some(WatchEvent { version: change.version.0, id, item })
        })
        .collect()
}
