//! Changes of resources: from a request to an event, and what became of it.

use super::names::Names;
use super::waits::Waits;
use super::{Controlled, WAIT_MAX_MS, api_error, planes, ports, resources};
use crate::roles::placing;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_api::any::{AnyId, AnyResource, Difference, Named, PlaneId, PlaneResource};
use weir_api::types::{ApplyRequest, ApplyResponse, Effect, FieldChange, PlannedEntry, ResourceChange};
use weir_api::{ApiError, Caller};
use weir_apps::fabric;
use weir_controller::core::scheduler::Reached;
use weir_model::event::{Apply, EventBody, Mutation, Transaction, Wanted};
use weir_model::plane::{OrderChange, PlaneOrder};
use weir_model::resource::{FieldError, Resource};
use weir_model::{Change, Label, Plan, Version};
use weir_store::Store;

/// Most planned updates told in one answer.
const UPDATES_TOLD_MAX: usize = 1000;
/// Most endpoints without a host told in one answer.
const ENDPOINTS_TOLD_MAX: usize = 100;

/// What a request asks for, as it is ordered: of what says the same as what is there, what is there.
fn wanted(store: &Store, request: &ApplyRequest) -> Result<Apply, ApiError> {
    let mut expected: BTreeMap<AnyId, Version> =
        request.expected.iter().map(|expected| (expected.id.clone(), Version(expected.version))).collect();
    let mut apply = Apply::default();
    apply.resources.replace_all = request.replace_all;
    for (number, document) in request.resources.iter().enumerate() {
        let wrong = |error| ApiError::field(format!("resources[{number}]"), error);
        let resource = AnyResource::from_document(document).map_err(wrong)?;
        let expected = expected.remove(&resource.id());
        match resource {
            AnyResource::Network(resource) => {
                let text = text_of(store, &resource, document)?.map_err(wrong)?;
                let wanted = Wanted::Document(text);
                apply.resources.mutations.push(Mutation { id: resource.id(), expected, wanted });
            }
            AnyResource::Plane(resource) => {
                let spec = Some(planes::spec_of(store, &resource));
                let order = order_of(resource.id(), spec);
                apply.orders.push(OrderChange { order, expected });
            }
        }
    }
    for id in &request.delete {
        let expected = expected.remove(id);
        match id.named().map_err(|error| ApiError::field(id.to_string(), error))? {
            Named::Resource(id) => {
                apply.resources.mutations.push(Mutation { id, expected, wanted: Wanted::Absent });
            }
            Named::Plane(at) => apply.orders.push(OrderChange { order: order_of(at, None), expected }),
        }
    }
    match expected.into_keys().next() {
        Some(id) => Err(ApiError::invalid(format!("expected: {id} is not changed by this request"))),
        None => Ok(apply),
    }
}

fn order_of(PlaneId { plane, host, name }: PlaneId, spec: Option<Vec<u8>>) -> PlaneOrder {
    PlaneOrder { plane, actuator: host, name, spec }
}

fn id_of(order: &PlaneOrder) -> PlaneId {
    PlaneId { plane: order.plane.clone(), host: order.actuator.clone(), name: order.name.clone() }
}

/// What planes are to have by a change.
fn puts_of(apply: &Apply) -> Vec<PlaneId> {
    let orders = apply.orders.iter().map(|change| &change.order);
    orders.filter(|order| order.spec.is_some()).map(id_of).collect()
}

/// The document that is ordered of a resource of networks.
fn text_of(
    store: &Store,
    resource: &Resource,
    document: &Value,
) -> Result<Result<String, FieldError>, ApiError> {
    // What says the same in another order is no change: it is ordered as it stands.
    let old = fabric::resource(store, &resource.id()).map(|stored| stored.resource);
    match old.filter(|old| old.says_the_same(resource)) {
        Some(old) => {
            serde_json::to_string(&old).map(Ok).map_err(|error| ApiError::internal(error.to_string()))
        }
        None => Ok(resource.admit(document).map(|()| document.to_string())),
    }
}

/// What a request does, seen from the tables.
#[derive(Default)]
struct Seen {
    /// To each resource.
    changes: Vec<ResourceChange>,
    /// Which of its endpoints are placed where no port can be.
    without_host: Vec<String>,
}

fn seen(store: &Store, request: &Apply) -> Seen {
    let mut seen = Seen::default();
    let mut named = BTreeSet::new();
    let mut untold = 0;
    for mutation in &request.resources.mutations {
        named.insert(AnyId::from(mutation.id.clone()));
        let (change, new) = change_of(store, mutation);
        seen.changes.push(change);
        if let Some(Resource::Endpoint(endpoint)) = &new
            && let Some(host) = &endpoint.host
            && let Some(problem) = placing::problem_at(store, host)
        {
            match seen.without_host.len() < ENDPOINTS_TOLD_MAX {
                true => seen.without_host.push(format!("{}/{}: {problem}", endpoint.network, endpoint.name)),
                false => untold += 1,
            }
        }
    }
    seen.without_host.extend((untold > 0).then(|| format!("… and {untold} more")));
    for change in &request.orders {
        named.insert(id_of(&change.order).into());
        seen.changes.push(change_of_order(store, &change.order));
    }
    if request.resources.replace_all {
        let networks = fabric::resources(store, None, None);
        let networks = networks.map(|stored| (stored.resource.id().into(), stored.version));
        let planes = resources::of_planes(store, None).into_iter();
        let rest = networks.chain(planes.map(|(id, ordered)| (id.into(), ordered.version)));
        seen.changes.extend(rest.filter(|(id, _)| !named.contains(id)).map(|(id, version)| ResourceChange {
            id,
            effect: Effect::Delete,
            version: Some(version.0),
            fields: Vec::new(),
        }));
    }
    seen
}

/// What a mutation does to a resource of networks, and what that is then.
fn change_of(store: &Store, mutation: &Mutation) -> (ResourceChange, Option<Resource>) {
    let stored = fabric::resource(store, &mutation.id);
    let version = Some(stored.as_ref().map_or(0, |stored| stored.version.0));
    let old = stored.map(|stored| stored.resource);
    let new = match &mutation.wanted {
        Wanted::Document(text) => serde_json::from_str::<Resource>(text).ok(),
        Wanted::Absent => None,
    };
    let mut fields = Vec::new();
    let effect = match (&mutation.wanted, old) {
        (Wanted::Document(_), Some(old)) if new.as_ref() == Some(&old) => Effect::Unchanged,
        (Wanted::Document(_), Some(old)) => {
            let differ = new.as_ref().map(|new| old.differences(new)).unwrap_or_default();
            fields = field_changes(differ);
            Effect::Update
        }
        (Wanted::Document(_), None) => Effect::Create,
        (Wanted::Absent, Some(_)) => Effect::Delete,
        (Wanted::Absent, None) => Effect::Unchanged,
    };
    (ResourceChange { id: mutation.id.clone().into(), effect, version, fields }, new)
}

/// What an order does to what a plane has.
fn change_of_order(store: &Store, order: &PlaneOrder) -> ResourceChange {
    let id = id_of(order);
    let old = fabric::order_of(store, &id.host, &id.plane, &id.name);
    let version = Some(old.as_ref().map_or(0, |old| old.version.0));
    let mut fields = Vec::new();
    let effect = match (&order.spec, old) {
        (Some(spec), Some(old)) if old.spec == *spec => Effect::Unchanged,
        (Some(spec), Some(old)) => {
            let [old, new] = [&old.spec, spec].map(|spec| PlaneResource::of(id.clone(), spec));
            fields = field_changes(old.differences(&new));
            Effect::Update
        }
        (Some(_), None) => Effect::Create,
        (None, Some(_)) => Effect::Delete,
        (None, None) => Effect::Unchanged,
    };
    ResourceChange { id: id.into(), effect, version, fields }
}

fn field_changes(differ: Vec<Difference>) -> Vec<FieldChange> {
    differ.into_iter().map(|(field, old, new)| FieldChange { field, old, new }).collect()
}

fn planned(store: &Store, plan: &Plan) -> (Vec<PlannedEntry>, usize, usize) {
    let names = Names::with(store, plan);
    let waits = Waits::of(store, plan);
    let switches: BTreeSet<&Label> = plan.updates.iter().map(|planned| &planned.update.target).collect();
    let entries = plan.updates.iter().take(UPDATES_TOLD_MAX).map(|planned| PlannedEntry {
        target: planned.update.target.to_string(),
        key: names.key(&planned.update.key),
        change: match planned.update.change {
            Change::Put(_) => "put".to_string(),
            Change::Delete => "delete".to_string(),
        },
        after: waits.of_update(planned, &names),
    });
    (entries.collect(), plan.updates.len(), switches.len())
}

impl Controlled {
    pub(super) async fn change(
        &self,
        caller: Caller,
        request: ApplyRequest,
    ) -> Result<ApplyResponse, ApiError> {
        self.barrier().await?;
        let published = self.handle.published();
        let (dry_run, wait_ms) = (request.dry_run, request.wait_ms);
        // A large request is work for a good part of a second, and this thread serves others too.
        let read = move || {
            let apply = wanted(&published.store, &request)?;
            planes::have_room(&published.store, &apply)?;
            let seen = seen(&published.store, &apply);
            Ok::<_, ApiError>((apply, seen))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (apply, seen) = read.map_err(|_| ApiError::unavailable("the controller is stopping"))??;
        let apply = self.body_of(apply);
        let plan = match apply.clone() {
            Body::Resources(transaction) => self.handle.dry_run(transaction).await,
            Body::All(apply) => self.handle.dry_run_apply(apply).await,
        };
        let plan = plan.map_err(api_error)?;
        let published = self.handle.published();
        let (updates, updates_total, switches) = planned(&published.store, &plan);
        let joined = fabric::actuators(&published.store).count();
        let mut response = ApplyResponse {
            version: None,
            changes: seen.changes,
            updates,
            updates_total,
            switches,
            joined,
            in_force: false,
            not_ready: Vec::new(),
            without_host: seen.without_host,
            not_in_force: Vec::new(),
        };
        if dry_run {
            return Ok(response);
        }
        let puts = match &apply {
            Body::Resources(_) => Vec::new(),
            Body::All(apply) => puts_of(apply),
        };
        let body = match apply {
            Body::Resources(transaction) => EventBody::Intent(transaction),
            Body::All(apply) => EventBody::Apply(apply),
        };
        let version = self.say(&caller, body).await?;
        response.version = Some(version.0);
        if wait_ms > 0 {
            let wait = Duration::from_millis(u64::from(wait_ms.min(WAIT_MAX_MS)));
            let until = tokio::time::Instant::now() + wait;
            response.in_force = self.handle.wait(version, wait).await.map_err(api_error)? == Reached::All;
            response.not_in_force = self.not_in_force(puts).await?;
            response.in_force &= response.not_in_force.is_empty();
            if response.in_force {
                response.not_ready = self.wait_for_devices(&ports::placed(&plan), until).await;
            }
        }
        Ok(response)
    }

    /// What is ordered of a request. One of resources of networks is what every release knows, and so it is where no plane is ordered
    /// anything, also when all is replaced: a controller of the release before stops at what it does not know.
    fn body_of(&self, apply: Apply) -> Body {
        let of_planes = !apply.orders.is_empty()
            || apply.resources.replace_all && fabric::has_orders(&self.handle.published().store);
        match of_planes {
            true => Body::All(apply),
            false => Body::Resources(apply.resources),
        }
    }
}

/// What is ordered of a request.
#[derive(Clone)]
enum Body {
    /// Resources of networks alone.
    Resources(Transaction),
    /// All.
    All(Apply),
}
