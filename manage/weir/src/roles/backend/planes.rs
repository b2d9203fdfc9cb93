//! Planes: what is ordered of them, whether it is in force, and what they told. Here is the door: which planes there are and what their
//! specifications may say is asked before anything is ordered.

use super::{Controlled, WAIT_MAX_MS, api_error};
use crate::roles::health;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weir_api::any::{AnyId, PlaneId, PlaneResource};
use weir_api::planes::{PlaneList, PlaneReportView, PlaneResponse, PlaneView};
use weir_api::types::PlaneStatus;
use weir_api::{ApiError, Caller};
use weir_apps::fabric::{self, Ordered};
use weir_base::codec::decode;
use weir_controller::core::scheduler::KeyStatus;
use weir_model::event::{Apply, EventBody, SPEAKS_TABLE};
use weir_model::plane::PlaneOrder;
use weir_model::resource::FieldError;
use weir_model::session::PLANES_SINCE;
use weir_model::{Key, Label, Version};
use weir_planes::monitor::{HEALTH, Monitor};
use weir_planes::{ALL, Kind, Plane, Problem, find, unknown};
use weir_store::Store;

/// Most lines of each kind that the status has of a plane.
const LINES_TOLD_MAX: usize = 20;
/// Between two looks at what became of an order.
const LOOK: Duration = Duration::from_millis(100);
/// Most of what is not in force that is told in one answer.
const MISSING_TOLD_MAX: usize = 100;
/// Most keys of planes that one host has.
const KEYS_MAX: usize = fabric::PLANES_MAX * weir_model::plane::ORDERS_MAX;

fn refused(what: &str, given: &str, problem: Problem) -> ApiError {
    ApiError::field(what, FieldError::new(problem.field, given, problem.allowed))
}

fn is_in_force(status: &KeyStatus) -> bool {
    !status.deleted && status.acked == Some(status.desired)
}

/// The specification that is ordered of a resource: what is there, where that says the same.
pub(super) fn spec_of(store: &Store, resource: &PlaneResource) -> Vec<u8> {
    let id = resource.id();
    let old = fabric::order_of(store, &id.host, &id.plane, &id.name);
    let same = |old: &Ordered| PlaneResource::of(id.clone(), &old.spec).says_the_same(resource);
    old.filter(same).map_or_else(|| resource.bytes(), |old| old.spec)
}

/// Whether the planes have room for the names that a change adds.
pub(super) fn have_room(store: &Store, apply: &Apply) -> Result<(), ApiError> {
    let mut names: BTreeMap<(&Label, &Label), (BTreeSet<String>, bool)> = BTreeMap::new();
    for PlaneOrder { plane, actuator, name, spec } in apply.orders.iter().map(|change| &change.order) {
        let (of_plane, adds) = names.entry((plane, actuator)).or_insert_with(|| {
            let standing = fabric::orders_of(store, actuator).into_iter();
            let standing = standing.filter(|(found, ..)| found == plane && !apply.resources.replace_all);
            (standing.map(|(_, name, _)| name).collect(), false)
        });
        match spec {
            Some(_) => *adds |= of_plane.insert(name.clone()),
            None => drop(of_plane.remove(name)),
        }
    }
    for ((plane, actuator), (names, adds)) in names {
        let Some(kind) = find(ALL, plane.as_str()) else { continue };
        let (count, most) = (names.len(), kind.orders_max);
        if adds && count > most {
            let kind = kind.kind;
            return Err(ApiError::conflict(format!(
                "{actuator} would have {count} resources of kind {kind}, and has at most {most}"
            )));
        }
    }
    Ok(())
}

/// Whether an actuator has a release from before planes. Until a controller has heard it, nobody knows, and it has none.
pub(super) fn is_before_planes(store: &Store, name: &Label) -> bool {
    let cell = store.get(SPEAKS_TABLE, name.as_str().as_bytes());
    let spoken = cell.and_then(|cell| decode::<u32>(&cell.value).ok());
    spoken.is_some_and(|spoken| spoken < PLANES_SINCE)
}

/// What the planes of an actuator are to have, and what they told, in lines.
pub(super) fn statuses_of(store: &Store, name: &Label) -> Vec<PlaneStatus> {
    let mut lines: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for (plane, of, ordered) in fabric::orders_of(store, name) {
        let known = find(ALL, plane.as_str());
        let said = known.map(|kind| (kind.describe)(&of, &ordered.spec));
        let said = said.unwrap_or_else(|| "of a plane that this release does not have".to_owned());
        let line = format!("{of}: {said} (v{})", ordered.version.0);
        lines.entry(plane.to_string()).or_default().0.push(line);
    }
    for (plane, of, reported) in fabric::reports_of(store, name) {
        let told = find(ALL, plane.as_str()).map(|kind| (kind.tell)(&reported.bytes)).unwrap_or_default();
        // Of a host's only one it need not be said which.
        let one = of == plane.as_str() || of == HEALTH;
        let told = told.into_iter().map(|line| if one { line } else { format!("{of}: {line}") });
        lines.entry(plane.to_string()).or_default().1.extend(told);
    }
    if let Some((ordered, told)) = health::before(store, name) {
        let of_monitor = lines.entry(Monitor::NAME.to_owned()).or_default();
        of_monitor.0.extend(ordered);
        if of_monitor.1.is_empty() {
            of_monitor.1 = told;
        }
    }
    let status = |(plane, (mut ordered, mut told)): (String, (Vec<String>, Vec<String>))| {
        let (ordered_total, told_total) = (ordered.len(), told.len());
        ordered.truncate(LINES_TOLD_MAX);
        told.truncate(LINES_TOLD_MAX);
        PlaneStatus { plane, ordered, ordered_total, told, told_total }
    };
    lines.into_iter().map(status).collect()
}

impl Controlled {
    /// Of what planes are to have, what their processes do not have in force, and why, where that was said.
    pub(super) async fn not_in_force(&self, wanted: Vec<PlaneId>) -> Result<Vec<String>, ApiError> {
        let mut by_host: BTreeMap<Label, Vec<PlaneId>> = BTreeMap::new();
        for id in wanted {
            by_host.entry(id.host.clone()).or_default().push(id);
        }
        let mut missing = Vec::new();
        for (host, ids) in by_host {
            let statuses = self.statuses(&host).await?;
            for id in ids {
                let key = Key::Plane { plane: id.plane.clone(), name: id.name.clone() };
                let status = statuses.get(&key);
                if status.is_some_and(is_in_force) {
                    continue;
                }
                if missing.len() >= MISSING_TOLD_MAX {
                    missing.push("… and more: 'weir plane show' tells of each host".to_owned());
                    return Ok(missing);
                }
                let why = self.refusal(&host, &key, status, true);
                let why = why.map_or_else(|| "not in force yet".to_owned(), |why| format!("refused: {why}"));
                missing.push(format!("{}: {why}", AnyId::from(id)));
            }
        }
        Ok(missing)
    }

    /// Has the plane of an actuator have something, or no longer; tells what the plane's process says of it in time.
    pub(super) async fn order_plane(
        &self,
        caller: Caller,
        name: Label,
        (plane, of): (Label, String),
        spec: Option<Value>,
        wait_ms: u32,
    ) -> Result<PlaneResponse, ApiError> {
        self.barrier().await?;
        self.known(&name)?;
        let what = format!("plane/{plane}/{of}");
        let spec = match spec {
            Some(spec) => {
                let kind = find(ALL, plane.as_str());
                let kind =
                    kind.ok_or_else(|| refused(&what, plane.as_str(), unknown(ALL, plane.as_str())))?;
                let bytes =
                    serde_json::to_vec(&spec).map_err(|error| ApiError::invalid(error.to_string()))?;
                (kind.check)(&of, &bytes).map_err(|problem| refused(&what, "", problem))?;
                self.has_room(kind, &name, &of)?;
                Some(bytes)
            }
            // What nobody knows any more can be withdrawn still.
            None => None,
        };
        let is_put = spec.is_some();
        let order = PlaneOrder { plane: plane.clone(), actuator: name.clone(), name: of.clone(), spec };
        let version = self.say(&caller, EventBody::Order(order)).await?;
        let until = Instant::now() + Duration::from_millis(u64::from(wait_ms.min(WAIT_MAX_MS)));
        let key = Key::Plane { plane, name: of };
        self.became(&name, &key, is_put, (version, until)).await
    }

    /// Whether a plane has room for one name more, where it is more.
    fn has_room(&self, kind: &Kind, name: &Label, of: &str) -> Result<(), ApiError> {
        let ordered = fabric::orders_of(&self.handle.published().store, name);
        let mut of_plane = ordered.iter().filter(|(plane, ..)| plane.as_str() == kind.name);
        if of_plane.clone().count() < kind.orders_max || of_plane.any(|(_, known, _)| known == of) {
            return Ok(());
        }
        let (plane, most) = (kind.name, kind.orders_max);
        Err(ApiError::conflict(format!(
            "plane {plane} of {name} has {most} names already, which is the most"
        )))
    }

    /// Waits until an order is in force, or is refused. What is ordered again as it is has the version that it had.
    async fn became(
        &self,
        name: &Label,
        key: &Key,
        is_put: bool,
        (version, until): (Version, Instant),
    ) -> Result<PlaneResponse, ApiError> {
        loop {
            let statuses = self.statuses(name).await?;
            let status = statuses.get(key);
            let in_force = match is_put {
                true => status.is_some_and(is_in_force),
                false => status.is_none_or(|status| status.deleted && status.acked == Some(status.desired)),
            };
            let refusal = if in_force { None } else { self.refusal(name, key, status, is_put) };
            let left = until.saturating_duration_since(Instant::now());
            if in_force || refusal.is_some() || left.is_zero() {
                return Ok(PlaneResponse { version: version.0, in_force, refusal });
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Why a key is not in force, as far as somebody said so.
    fn refusal(&self, name: &Label, key: &Key, status: Option<&KeyStatus>, is_put: bool) -> Option<String> {
        let Some(status) = status else {
            let is_before = is_put && is_before_planes(&self.handle.published().store, name);
            return is_before.then(|| {
                format!("{name} has a release that does not know planes: it is told when that is upgraded")
            });
        };
        let known = fabric::actuator(&self.handle.published().store, name)?;
        let refused =
            known.refusals.into_iter().find(|one| one.key == *key && one.version >= status.desired)?;
        Some(refused.refusal.to_string())
    }

    /// How the keys of planes at an actuator are.
    async fn statuses(&self, name: &Label) -> Result<BTreeMap<Key, KeyStatus>, ApiError> {
        // They are behind all others.
        let keys = self.handle.keys(name.clone(), Some(Key::Underlays), KEYS_MAX).await.map_err(api_error)?;
        Ok(keys.into_iter().map(|one| (one.key.clone(), one)).collect())
    }

    fn plane_view(
        &self,
        name: &Label,
        (plane, of): (Label, String),
        ordered: Ordered,
        statuses: &BTreeMap<Key, KeyStatus>,
    ) -> PlaneView {
        let key = Key::Plane { plane: plane.clone(), name: of.clone() };
        let status = statuses.get(&key);
        let in_force = status.is_some_and(is_in_force);
        let refusal = if in_force { None } else { self.refusal(name, &key, status, true) };
        let description = match find(ALL, plane.as_str()) {
            Some(kind) => (kind.describe)(&of, &ordered.spec),
            None => "of a plane that this release does not have".to_string(),
        };
        PlaneView {
            plane: plane.to_string(),
            name: of,
            version: ordered.version.0,
            spec: serde_json::from_slice(&ordered.spec).unwrap_or_default(),
            description,
            in_force,
            refusal,
        }
    }

    /// What the planes of an actuator are to have, and what they told.
    pub(super) async fn list_planes(&self, name: Label) -> Result<PlaneList, ApiError> {
        self.barrier().await?;
        self.known(&name)?;
        let statuses = self.statuses(&name).await?;
        let store = self.handle.published().store.clone();
        let ordered = fabric::orders_of(&store, &name).into_iter();
        let items = ordered
            .map(|(plane, of, ordered)| self.plane_view(&name, (plane, of), ordered, &statuses))
            .collect();
        let told = fabric::reports_of(&store, &name).into_iter();
        let reports = told.map(|(plane, name, reported)| PlaneReportView {
            plane: plane.to_string(),
            name,
            report: serde_json::from_slice(&reported.bytes).unwrap_or_default(),
            told_ms: reported.told_ms,
        });
        Ok(PlaneList { items, reports: reports.collect() })
    }

    /// What a plane of an actuator is to have under a name.
    pub(super) async fn show_plane(
        &self,
        name: Label,
        plane: Label,
        of: String,
    ) -> Result<PlaneView, ApiError> {
        self.barrier().await?;
        self.known(&name)?;
        let statuses = self.statuses(&name).await?;
        let store = self.handle.published().store.clone();
        match fabric::order_of(&store, &name, &plane, &of) {
            Some(ordered) => Ok(self.plane_view(&name, (plane, of), ordered, &statuses)),
            None => Err(ApiError::not_found(format!(
                "nothing is ordered of plane {plane} of {name} under '{of}'"
            ))),
        }
    }
}
