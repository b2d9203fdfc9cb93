//! Changes of resources: from a request to an event, and what became of it.

use super::names::Names;
use super::waits::Waits;
use super::{Controlled, WAIT_MAX_MS, api_error, ports};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_api::types::{ApplyRequest, ApplyResponse, Effect, FieldChange, PlannedEntry, ResourceChange};
use weir_api::{ApiError, Caller};
use weir_apps::fabric;
use weir_controller::core::scheduler::Reached;
use weir_controller::driver::Published;
use weir_model::event::{Mutation, Transaction, Wanted};
use weir_model::resource::{Resource, ResourceId};
use weir_model::{Change, Label, Plan, Version};
use weir_store::Store;

/// Most planned updates told in one answer.
const UPDATES_TOLD_MAX: usize = 1000;
/// Most endpoints without a host told in one answer.
const ENDPOINTS_TOLD_MAX: usize = 100;

fn transaction(store: &Store, request: &ApplyRequest) -> Result<Transaction, ApiError> {
    let mut expected: BTreeMap<ResourceId, Version> =
        request.expected.iter().map(|expected| (expected.id.clone(), Version(expected.version))).collect();
    let mut mutations = Vec::with_capacity(request.resources.len() + request.delete.len());
    for (number, document) in request.resources.iter().enumerate() {
        let wrong = |error| ApiError::field(format!("resources[{number}]"), error);
        let resource = Resource::from_document(document).map_err(wrong)?;
        let id = resource.id();
        let expected = expected.remove(&id);
        // What says the same in another order is no change: it is ordered as it stands.
        let old = fabric::resource(store, &id).map(|stored| stored.resource);
        let text = match old.filter(|old| old.says_the_same(&resource)) {
            Some(old) => {
                serde_json::to_string(&old).map_err(|error| ApiError::internal(error.to_string()))?
            }
            None => {
                resource.admit(document).map_err(wrong)?;
                document.to_string()
            }
        };
        mutations.push(Mutation { id, expected, wanted: Wanted::Document(text) });
    }
    for id in &request.delete {
        mutations.push(Mutation { id: id.clone(), expected: expected.remove(id), wanted: Wanted::Absent });
    }
    match expected.into_keys().next() {
        Some(id) => Err(ApiError::invalid(format!("expected: {id} is not changed by this request"))),
        None => Ok(Transaction { mutations, replace_all: request.replace_all }),
    }
}

/// What the request does to each resource, seen from the tables, and which of its endpoints are placed on a host that has not
/// joined.
fn changes(published: &Published, request: &Transaction) -> (Vec<ResourceChange>, Vec<String>) {
    let mut named = BTreeSet::new();
    let mut changes = Vec::new();
    let mut without_host = Vec::new();
    let mut untold = 0;
    for mutation in &request.mutations {
        named.insert(mutation.id.clone());
        let stored = fabric::resource(&published.store, &mutation.id);
        let version = Some(stored.as_ref().map_or(0, |stored| stored.version.0));
        let old = stored.map(|stored| stored.resource);
        let new = match &mutation.wanted {
            Wanted::Document(text) => serde_json::from_str::<Resource>(text).ok(),
            Wanted::Absent => None,
        };
        if let Some(Resource::Endpoint(endpoint)) = &new
            && let Some(host) = &endpoint.host
            && fabric::actuator(&published.store, host).is_none()
        {
            match without_host.len() < ENDPOINTS_TOLD_MAX {
                true => without_host
                    .push(format!("{}/{}: no host '{host}' has joined", endpoint.network, endpoint.name)),
                false => untold += 1,
            }
        }
        let mut fields = Vec::new();
        let effect = match (&mutation.wanted, old) {
            (Wanted::Document(_), Some(old)) if new.as_ref() == Some(&old) => Effect::Unchanged,
            (Wanted::Document(_), Some(old)) => {
                let differ = new.map(|new| old.differences(&new)).unwrap_or_default();
                fields.extend(differ.into_iter().map(|(field, old, new)| FieldChange { field, old, new }));
                Effect::Update
            }
            (Wanted::Document(_), None) => Effect::Create,
            (Wanted::Absent, Some(_)) => Effect::Delete,
            (Wanted::Absent, None) => Effect::Unchanged,
        };
        changes.push(ResourceChange { id: mutation.id.clone(), effect, version, fields });
    }
    without_host.extend((untold > 0).then(|| format!("… and {untold} more")));
    if request.replace_all {
        let rest = fabric::resources(&published.store, None, None);
        let rest = rest.map(|stored| (stored.resource.id(), Some(stored.version.0)));
        changes.extend(rest.filter(|(id, _)| !named.contains(id)).map(|(id, version)| ResourceChange {
            id,
            effect: Effect::Delete,
            version,
            fields: Vec::new(),
        }));
    }
    (changes, without_host)
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
            let transaction = transaction(&published.store, &request)?;
            let (changes, without_host) = changes(&published, &transaction);
            Ok::<_, ApiError>((transaction, changes, without_host))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (transaction, changes, without_host) =
            read.map_err(|_| ApiError::unavailable("the controller is stopping"))??;
        let plan = self.handle.dry_run(transaction.clone()).await.map_err(api_error)?;
        let published = self.handle.published();
        let (updates, updates_total, switches) = planned(&published.store, &plan);
        let joined = fabric::actuators(&published.store).count();
        let mut response = ApplyResponse {
            version: None,
            changes,
            updates,
            updates_total,
            switches,
            joined,
            in_force: false,
            not_ready: Vec::new(),
            without_host,
        };
        if dry_run {
            return Ok(response);
        }
        let proposed = self.handle.propose_for(Some(caller.0), transaction).await;
        let version = proposed.map_err(|error| self.failed(error))?;
        response.version = Some(version.0);
        if wait_ms > 0 {
            let wait = Duration::from_millis(u64::from(wait_ms.min(WAIT_MAX_MS)));
            let until = tokio::time::Instant::now() + wait;
            response.in_force = self.handle.wait(version, wait).await.map_err(api_error)? == Reached::All;
            if response.in_force {
                response.not_ready = self.wait_for_devices(&ports::placed(&plan), until).await;
            }
        }
        Ok(response)
    }
}
