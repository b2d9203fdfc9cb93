//! Resources of all kinds, as the tables have them: those of networks, and what planes of hosts are to have.

use std::collections::BTreeMap;
use weir_api::ApiError;
use weir_api::any::{AnyId, AnyResource, Named, PlaneId, PlaneResource, network_kind, parse_kind, plane_of};
use weir_api::types::{KindCount, ResourceView, WatchEvent};
use weir_apps::fabric::{self, Ordered, Stored};
use weir_controller::core::CommittedChange;
use weir_model::Label;
use weir_store::Store;

/// The tables whose changes a watch of resources tells: [`changed`] knows each. They have a history of their own.
pub const WATCHED: &[&str] = &[fabric::tables::RESOURCES, weir_apps::orders::tables::ORDERS];

fn view(stored: Stored) -> ResourceView {
    let allocated = serde_json::to_value(&stored.allocated).unwrap_or_default();
    ResourceView { resource: stored.resource.into(), version: stored.version.0, allocated }
}

fn plane_view(id: PlaneId, ordered: &Ordered) -> ResourceView {
    let resource = AnyResource::Plane(PlaneResource::of(id, &ordered.spec));
    // Nothing is chosen for it.
    let allocated = serde_json::Value::Object(serde_json::Map::new());
    ResourceView { resource, version: ordered.version.0, allocated }
}

/// What planes of hosts are to have: of one of them, or of all; in the order of kinds, hosts and names.
pub(super) fn of_planes(store: &Store, plane: Option<&Label>) -> Vec<(PlaneId, Ordered)> {
    let all = fabric::all_orders(store).into_iter();
    let wanted = all.filter(|(_, found, ..)| plane.is_none_or(|plane| plane == found));
    let mut found: Vec<(PlaneId, Ordered)> =
        wanted.map(|(host, plane, name, ordered)| (PlaneId { plane, host, name }, ordered)).collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// Resources of one kind, of one network, or all.
pub(super) fn list(store: &Store, kind: Option<&Label>, network: Option<&Label>) -> Vec<ResourceView> {
    let of_networks = match kind.map(|kind| network_kind(kind.as_str())) {
        None => Some(None),
        Some(Some(kind)) => Some(Some(kind)),
        Some(None) => None,
    };
    let mut items: Vec<ResourceView> =
        of_networks.into_iter().flat_map(|kind| fabric::resources(store, kind, network)).map(view).collect();
    let is_of_networks = kind.is_some_and(|kind| network_kind(kind.as_str()).is_some());
    if network.is_none() && !is_of_networks {
        let plane = kind.map(plane_of);
        items.extend(
            of_planes(store, plane.as_ref()).into_iter().map(|(id, ordered)| plane_view(id, &ordered)),
        );
    }
    items
}

/// How many there are of each kind that there is any of: those of networks in their order, then those of planes.
pub(super) fn counts(store: &Store) -> Vec<KindCount> {
    let of_networks = fabric::resource_counts(store).into_iter();
    let of_networks = of_networks.filter_map(|(kind, count)| Some((parse_kind(kind.as_str()).ok()?, count)));
    let mut planes: BTreeMap<Label, usize> = BTreeMap::new();
    for (id, _) in of_planes(store, None) {
        *planes.entry(AnyId::from(id).kind).or_default() += 1;
    }
    of_networks.chain(planes).map(|(kind, count)| KindCount { kind, count }).collect()
}

/// One resource.
pub(super) fn one(store: &Store, id: &AnyId) -> Result<ResourceView, ApiError> {
    let named = id.named().map_err(|error| ApiError::field(id.to_string(), error))?;
    let found = match named {
        Named::Resource(id) => fabric::resource(store, &id).map(view),
        Named::Plane(at) => {
            fabric::order_of(store, &at.host, &at.plane, &at.name).map(|ordered| plane_view(at, &ordered))
        }
    };
    found.ok_or_else(|| ApiError::not_found(format!("there is no {id}: 'weir get {}s' lists them", id.kind)))
}

/// What a change did to resources.
pub(super) fn changed(change: &CommittedChange) -> Vec<WatchEvent> {
    let event = |id: AnyId, item| WatchEvent { version: change.version.0, more: false, id, item };
    let changes = change.writes.iter().filter_map(|write| match &*write.table {
        fabric::tables::RESOURCES => {
            let stored = write.value.as_deref().and_then(|row| serde_json::from_slice::<Stored>(row).ok());
            let item = stored.map(view);
            let id = match &item {
                Some(item) => item.resource.id(),
                None => fabric::tables::resource_id(&write.key)?.into(),
            };
            Some(event(id, item))
        }
        weir_apps::orders::tables::ORDERS => {
            let (host, plane, name) = fabric::order_id(&write.key)?;
            let id = PlaneId { plane, host, name };
            let ordered = write.value.as_deref().and_then(fabric::ordered);
            Some(event(id.clone().into(), ordered.map(|ordered| plane_view(id, &ordered))))
        }
        _ => None,
    });
    changes.collect()
}
