//! Planes whose specifications are ordered as they are: the newest order for each name stands until it is withdrawn or its host is
//! forgotten, and of what a plane reports the newest is kept.
//!
//! Nothing here knows a plane. Which there are and what a specification may say is asked where an order is given and where it is
//! carried out ([`weir_model::plane`]); here only bounds count, so that a release with a plane more decides as one without it.
//!
//! They come one by one ([`weir_model::event::EventBody::Order`]), or as resources with others ([`Apply`]): the tables are the same.
//!
//! Invariants
//! - Only who can read it is told: an actuator of which the order says that it speaks [`PLANES_SINCE`] or later. An order for one that
//!   does not yet stands, and is given when it does.
//! - A host reports of at most [`PLANES_MAX`] planes, each under [`REPORTS_MAX`] names. So what the order remembers of a host's own
//!   numbers is bounded, whatever the host says.

use super::tables::{ORDERS, REPORTS};
use crate::delta::tables::{joined, name0, read};
use crate::delta::{Desk, reference, spoken, wrong_field};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::codec::encode;
use weir_model::event::{Apply, MUTATIONS_MAX};
use weir_model::plane::{ORDERS_MAX, PlaneOrder, PlaneReport, REPORTS_MAX};
use weir_model::resource::FieldError;
use weir_model::session::PLANES_SINCE;
use weir_model::{Entry, Key, Label, Version};
use weir_store::{Rejection, Store};

/// Most planes of which one host reports, and most for which it has orders.
pub const PLANES_MAX: usize = 16;

/// What is ordered of a plane under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// When it was ordered.
    pub version: Version,
    /// The specification.
    pub spec: Vec<u8>,
}

/// What a plane told under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// The report.
    pub bytes: Vec<u8>,
    /// When it was ordered, milliseconds of the Unix epoch.
    pub told_ms: u64,
}

/// Orders a specification, or withdraws it.
pub(super) fn order(desk: &mut Desk<'_, '_>, order: &PlaneOrder) -> Result<(), Rejection> {
    let PlaneOrder { plane, actuator, name, spec } = order;
    let id = || format!("order of {plane}/{name} at actuator/{actuator}");
    if desk.member(actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(allowed) = order.problem() {
        return Err(wrong_field(id(), FieldError::new("name", name, allowed)));
    }
    match spec {
        Some(spec) => put(desk, &At { actuator, plane, name }, spec),
        None if desk.has(ORDERS, &row_key(actuator, plane, name)) => {
            withdraw(desk, &At { actuator, plane, name });
            Ok(())
        }
        None => Err(reference(id(), "nothing is ordered under this name")),
    }
}

/// Which order: that of a plane of an actuator under a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct At<'a> {
    actuator: &'a Label,
    plane: &'a Label,
    name: &'a str,
}

impl At<'_> {
    /// As resources are named: kind, where, name.
    fn id(&self) -> String {
        format!("{}/{}/{}", self.plane, self.actuator, self.name)
    }

    fn row(&self) -> Vec<u8> {
        row_key(self.actuator, self.plane, self.name)
    }
}

fn put(desk: &mut Desk<'_, '_>, at: &At<'_>, spec: &[u8]) -> Result<(), Rejection> {
    let At { actuator, plane, name } = *at;
    let key = at.row();
    if !desk.has(ORDERS, &key) {
        let what = || format!("orders of {plane} at {actuator}");
        bounded(desk, ORDERS, (actuator, plane), ORDERS_MAX, &what)?;
    }
    let ordered = Ordered { version: desk.version, spec: spec.to_vec() };
    desk.view.put(ORDERS, &key, encode(&ordered))?;
    desk.marks.key(actuator, Key::Plane { plane: plane.clone(), name: name.to_owned() });
    Ok(())
}

fn withdraw(desk: &mut Desk<'_, '_>, at: &At<'_>) {
    desk.view.delete(ORDERS, &at.row());
    desk.marks.key(at.actuator, Key::Plane { plane: at.plane.clone(), name: at.name.to_owned() });
}

/// Decides on the orders of what is applied together, beside its resources: what goes goes first, so that it makes room. What is
/// ordered already as it is wanted stays as it is, with its version.
pub(super) fn change(desk: &mut Desk<'_, '_>, apply: &Apply) -> Result<(), Rejection> {
    let count = apply.orders.len() + apply.resources.mutations.len();
    if count > MUTATIONS_MAX {
        return Err(Rejection::limit("changes of a request", count, MUTATIONS_MAX));
    }
    let mut wanted: BTreeMap<At<'_>, Option<&[u8]>> = BTreeMap::new();
    for change in &apply.orders {
        let PlaneOrder { plane, actuator, name, spec } = &change.order;
        let at = At { actuator, plane, name };
        if let Some(allowed) = change.order.problem() {
            return Err(wrong_field(at.id(), FieldError::new("name", name, allowed)));
        }
        let found = standing(desk, &at);
        let version = found.as_ref().map_or(Version::ZERO, |ordered| ordered.version);
        if let Some(expected) = change.expected.filter(|expected| *expected != version) {
            return Err(Rejection::Version { resource: at.id(), expected, found: version });
        }
        if spec.is_some() && desk.member(actuator).is_none() {
            let problem = format!("no host or gateway '{actuator}' has joined: it must be there first");
            return Err(reference(at.id(), problem));
        }
        if wanted.insert(at, spec.as_deref()).is_some() {
            return Err(reference(at.id(), "it is named twice: name it once"));
        }
    }
    if apply.resources.replace_all {
        for (key, _) in desk.view.scan(ORDERS, b"") {
            let Some((actuator, plane, name)) = order_id(&key) else { continue };
            let at = At { actuator: &actuator, plane: &plane, name: &name };
            if !wanted.contains_key(&at) {
                withdraw(desk, &at);
            }
        }
    }
    for (at, _) in wanted.iter().filter(|(_, spec)| spec.is_none()) {
        if desk.has(ORDERS, &at.row()) {
            withdraw(desk, at);
        }
    }
    for (at, spec) in wanted {
        let Some(spec) = spec else { continue };
        if standing(desk, &at).is_none_or(|ordered| ordered.spec != spec) {
            put(desk, &at, spec)?;
        }
    }
    Ok(())
}

fn standing(desk: &Desk<'_, '_>, at: &At<'_>) -> Option<Ordered> {
    desk.view.get(ORDERS, &at.row()).map(|row| read(ORDERS, &row))
}

/// Keeps a report.
pub(super) fn note(desk: &mut Desk<'_, '_>, report: &PlaneReport, now_ms: u64) -> Result<(), Rejection> {
    let PlaneReport { plane, actuator, name, bytes } = report;
    let id = || format!("report of {plane}/{name} at actuator/{actuator}");
    if desk.member(actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(problem) = report.problem() {
        return Err(reference(id(), problem));
    }
    let key = row_key(actuator, plane, name);
    if !desk.has(REPORTS, &key) {
        let what = || format!("names of {plane} that {actuator} reports of");
        bounded(desk, REPORTS, (actuator, plane), REPORTS_MAX, &what)?;
    }
    let reported = Reported { bytes: bytes.clone(), told_ms: now_ms };
    desk.view.put(REPORTS, &key, encode(&reported))
}

/// Whether one more row of a plane has room.
fn bounded(
    desk: &Desk<'_, '_>,
    table: weir_store::TableName,
    (actuator, plane): (&Label, &Label),
    rows_max: usize,
    what: &dyn Fn() -> String,
) -> Result<(), Rejection> {
    let of_host = name0(actuator.as_str());
    let rows = desk.view.scan(table, &plane_prefix(actuator, plane)).len();
    if rows >= rows_max {
        return Err(Rejection::limit(&what(), rows + 1, rows_max));
    }
    if rows == 0 {
        let all = desk.view.scan(table, &of_host);
        let planes: BTreeSet<&[u8]> =
            all.iter().filter_map(|(key, _)| key[of_host.len()..].split(|byte| *byte == 0).next()).collect();
        if planes.len() >= PLANES_MAX {
            return Err(Rejection::limit(&format!("planes of {actuator}"), planes.len() + 1, PLANES_MAX));
        }
    }
    Ok(())
}

/// Forgets all about an actuator.
pub(super) fn forget(desk: &mut Desk<'_, '_>, actuator: &Label) {
    for table in [ORDERS, REPORTS] {
        for (key, _) in desk.view.scan(table, &name0(actuator.as_str())) {
            desk.view.delete(table, &key);
        }
    }
}

/// An actuator speaks another protocol: what it was not told before it is told, or the reverse.
pub(super) fn mark_all(desk: &mut Desk<'_, '_>, actuator: &Label) {
    let prefix = name0(actuator.as_str());
    for (key, _) in desk.view.scan(ORDERS, &prefix) {
        if let Some((plane, name)) = names(&key[prefix.len()..]) {
            desk.marks.key(actuator, Key::Plane { plane, name });
        }
    }
}

fn plane_prefix(actuator: &Label, plane: &Label) -> Vec<u8> {
    joined(name0(actuator.as_str()), &name0(plane.as_str()))
}

fn row_key(actuator: &Label, plane: &Label, name: &str) -> Vec<u8> {
    joined(plane_prefix(actuator, plane), name.as_bytes())
}

/// The plane and the name at the end of a key.
fn names(key: &[u8]) -> Option<(Label, String)> {
    let end = key.iter().position(|byte| *byte == 0)?;
    let plane = Label::new(std::str::from_utf8(&key[..end]).ok()?).ok()?;
    Some((plane, String::from_utf8(key[end + 1..].to_vec()).ok()?))
}

/// What a plane of an actuator is to have under a name; nothing where it cannot read it.
pub(super) fn entry(desk: &Desk<'_, '_>, actuator: &Label, plane: &Label, name: &str) -> Option<Entry> {
    let readable = spoken(desk, actuator) >= PLANES_SINCE;
    let row = desk.view.get(ORDERS, &row_key(actuator, plane, name)).filter(|_| readable)?;
    Some(Entry::Plane(read::<Ordered>(ORDERS, &row).spec))
}

/// What a key of [`ORDERS`] names: actuator, plane and name; `None` when it is no such key.
pub fn order_id(key: &[u8]) -> Option<(Label, Label, String)> {
    let end = key.iter().position(|byte| *byte == 0)?;
    let actuator = Label::new(std::str::from_utf8(&key[..end]).ok()?).ok()?;
    let (plane, name) = names(&key[end + 1..])?;
    Some((actuator, plane, name))
}

/// What is ordered, as a row of [`ORDERS`] has it; `None` when it is none.
pub fn ordered(row: &[u8]) -> Option<Ordered> {
    weir_base::codec::decode(row).ok()
}

/// What is ordered at all actuators: actuator, plane, name, and what. In the order of these.
pub fn all_orders(store: &Store) -> Vec<(Label, Label, String, Ordered)> {
    let row = |(key, cell): (&[u8], &weir_store::Cell)| {
        let (actuator, plane, name) = order_id(key)?;
        Some((actuator, plane, name, read(ORDERS, &cell.value)))
    };
    store.scan(ORDERS, b"").filter_map(row).collect()
}

/// Whether anything is ordered.
pub fn has_orders(store: &Store) -> bool {
    store.scan(ORDERS, b"").next().is_some()
}

fn rows<T: serde::de::DeserializeOwned>(
    store: &Store,
    table: weir_store::TableName,
    actuator: &Label,
) -> Vec<(Label, String, T)> {
    let prefix = name0(actuator.as_str());
    let row = |(key, cell): (&[u8], &weir_store::Cell)| {
        let (plane, name) = names(&key[prefix.len()..])?;
        Some((plane, name, read(table, &cell.value)))
    };
    store.scan(table, &prefix).filter_map(row).collect()
}

/// What is ordered at an actuator: plane, name, and what. In the order of these.
pub fn orders_of(store: &Store, actuator: &Label) -> Vec<(Label, String, Ordered)> {
    rows(store, ORDERS, actuator)
}

/// What is ordered of a plane of an actuator under a name.
pub fn order_of(store: &Store, actuator: &Label, plane: &Label, name: &str) -> Option<Ordered> {
    store.get(ORDERS, &row_key(actuator, plane, name)).map(|cell| read(ORDERS, &cell.value))
}

/// What the planes of an actuator told: plane, name, and what. In the order of these.
pub fn reports_of(store: &Store, actuator: &Label) -> Vec<(Label, String, Reported)> {
    rows(store, REPORTS, actuator)
}
