//! Resources of all kinds: those of networks, and what planes of hosts are to have.
//!
//! The kinds of networks are [`weir_model::resource`]'s. A plane's kind comes with its vocabulary ([`weir_planes`]): its resource is
//! at a host, has a name there, and a specification in the words of the plane. Nothing here knows a plane, so a plane more is a kind
//! more.
//!
//! An id names what may be there, also of a plane that this release does not have: it can be read and deleted still.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use utoipa::ToSchema;
use weir_model::Label;
use weir_model::plane::name_problem;
use weir_model::resource::{FieldError, Kind, Resource, ResourceId};
use weir_planes::{ALL, find, of_kind};

/// Names one resource: of a network by `kind`, `network` (but for networks) and `name`; of a plane by `kind`, `host` and `name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub struct AnyId {
    /// Its kind.
    #[schema(value_type = String)]
    pub kind: Label,
    /// The network it lives in.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    pub network: Option<Label>,
    /// The host or gateway whose plane has it.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Label>,
    /// Its name, unique for its kind in its network or at its host.
    pub name: String,
}

/// What an id names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A resource of networks.
    Resource(ResourceId),
    /// What a plane of a host has.
    Plane(PlaneId),
}

/// Names what a plane of a host has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaneId {
    /// The plane, by its own name.
    pub plane: Label,
    /// The host or gateway.
    pub host: Label,
    /// Under which name.
    pub name: String,
}

impl From<ResourceId> for AnyId {
    fn from(id: ResourceId) -> AnyId {
        AnyId { kind: kind_label(id.kind.as_str()), network: id.network, host: None, name: id.name.into() }
    }
}

impl From<PlaneId> for AnyId {
    fn from(id: PlaneId) -> AnyId {
        let kind = find(ALL, id.plane.as_str()).map_or(id.plane, |plane| kind_label(plane.kind));
        AnyId { kind, network: None, host: Some(id.host), name: id.name }
    }
}

impl fmt::Display for AnyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network.as_ref().or(self.host.as_ref()) {
            Some(place) => write!(f, "{}/{place}/{}", self.kind, self.name),
            None => write!(f, "{}/{}", self.kind, self.name),
        }
    }
}

impl AnyId {
    /// What it names.
    ///
    /// # Errors
    /// The field that is missing, wrong or too many.
    pub fn named(&self) -> Result<Named, FieldError> {
        let absent = |field: &str, found: &Option<Label>, what: &str| match found {
            None => Ok(()),
            Some(found) => Err(FieldError::new(field, found, format!("none for {what}"))),
        };
        if let Some(kind) = network_kind(self.kind.as_str()) {
            absent("host", &self.host, "what is of networks")?;
            let name = Label::new(self.name.clone())
                .map_err(|error| FieldError::new("name", &self.name, error.to_string()))?;
            return Ok(Named::Resource(ResourceId { kind, network: self.network.clone(), name }));
        }
        absent("network", &self.network, "what a plane of a host has")?;
        if let Some(allowed) = name_problem(&self.name) {
            return Err(FieldError::new("name", &self.name, allowed));
        }
        let host = self.host.clone();
        let host = host.ok_or_else(|| FieldError::new("host", "", "it must be given, or another kind"))?;
        Ok(Named::Plane(PlaneId { plane: plane_of(&self.kind), host, name: self.name.clone() }))
    }
}

/// A kind of this release, also in the plural.
///
/// # Errors
/// Which kinds there are.
pub fn parse_kind(text: &str) -> Result<Label, FieldError> {
    let of_plane = of_kind(ALL, text).map(|plane| plane.kind);
    match text.parse::<Kind>().ok().map(Kind::as_str).or(of_plane) {
        Some(kind) => Ok(kind_label(kind)),
        None => Err(unknown_kind(text)),
    }
}

/// Every kind of this release, by its name: those of networks in their order, then those of planes.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.iter().map(|kind| kind.as_str()).chain(ALL.iter().map(|plane| plane.kind))
}

/// The kind of networks that has exactly this name.
pub fn network_kind(kind: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|known| known.as_str() == kind)
}

/// The plane whose resources are of a kind; one that this release does not have is named as its kind.
pub fn plane_of(kind: &Label) -> Label {
    let known = ALL.iter().find(|plane| plane.kind == kind.as_str());
    known.map_or_else(|| kind.clone(), |plane| kind_label(plane.name))
}

fn unknown_kind(text: &str) -> FieldError {
    FieldError::new("kind", text, kinds().collect::<Vec<_>>().join(", "))
}

/// Tests hold that the kinds of this release are names.
fn kind_label(kind: &str) -> Label {
    match Label::new(kind) {
        Ok(kind) => kind,
        Err(error) => unreachable!("a kind of this release: {error}"),
    }
}

/// What a plane of a host is to have under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaneResource {
    /// The plane's kind.
    #[schema(value_type = String)]
    pub kind: Label,
    /// The host or gateway; it has joined.
    #[schema(value_type = String)]
    pub host: Label,
    /// Its name, unique for its kind at its host.
    pub name: String,
    /// What it is to have, in the words of the plane.
    #[schema(value_type = Object)]
    pub spec: Value,
}

impl PlaneResource {
    /// What a plane has, as the tables have it.
    pub fn of(id: PlaneId, spec: &[u8]) -> PlaneResource {
        let AnyId { kind, name, .. } = AnyId::from(id.clone());
        PlaneResource { kind, host: id.host, name, spec: serde_json::from_slice(spec).unwrap_or_default() }
    }

    /// Its identity.
    pub fn id(&self) -> PlaneId {
        PlaneId { plane: plane_of(&self.kind), host: self.host.clone(), name: self.name.clone() }
    }

    /// The specification, as it is ordered.
    pub fn bytes(&self) -> Vec<u8> {
        self.spec.to_string().into_bytes()
    }

    /// In a few words, for people.
    pub fn describe(&self) -> String {
        match find(ALL, self.id().plane.as_str()) {
            Some(plane) => (plane.describe)(&self.name, &self.bytes()),
            None => "of a plane that this release does not have".to_owned(),
        }
    }

    /// Whether the other one asks for the same, also where it leaves out what is meant without it.
    pub fn says_the_same(&self, other: &PlaneResource) -> bool {
        self.id() == other.id() && self.whole() == other.whole()
    }

    /// The specification with what it leaves out, where this release can read it.
    fn whole(&self) -> Value {
        let plane = find(ALL, self.id().plane.as_str());
        let whole = plane.and_then(|plane| (plane.normal)(&self.name, &self.bytes()));
        whole.unwrap_or_else(|| self.spec.clone())
    }

    /// The fields of the specification in which another resource of this id differs, as [`Resource::differences`] tells them. Of lists
    /// whose members have names, the members are compared.
    pub fn differences(&self, other: &PlaneResource) -> Vec<Difference> {
        let mut found = Vec::new();
        compare("spec".to_owned(), Some(&self.whole()), Some(&other.whole()), &mut found);
        found
    }

    fn read(document: &Value) -> Result<PlaneResource, FieldError> {
        let fields = document.as_object();
        let known = ["kind", "host", "name", "spec"];
        let odd = fields.into_iter().flatten().find(|(field, _)| !known.contains(&field.as_str()));
        if let Some((field, value)) = odd {
            return Err(FieldError::new(field, value, "there is no such field, but host, name and spec"));
        }
        let text = |field: &str| match document.get(field) {
            Some(Value::String(text)) => Ok(text.clone()),
            None | Some(Value::Null) => Err(FieldError::new(field, "", "it must be given")),
            Some(other) => Err(FieldError::new(
                field,
                other,
                "a text; one that looks like a number, 'true' or 'null' goes in quotes",
            )),
        };
        let label = |field: &str| {
            let text = text(field)?;
            let wrong = || {
                FieldError::new(
                    field,
                    &text,
                    "1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
                )
            };
            Label::new(text.clone()).map_err(|_| wrong())
        };
        let (kind, host, name) = (label("kind")?, label("host")?, text("name")?);
        let spec = document.get("spec").cloned().unwrap_or_else(|| Value::Object(Map::new()));
        let resource = PlaneResource { kind, host, name, spec };
        let plane =
            find(ALL, resource.id().plane.as_str()).ok_or_else(|| unknown_kind(resource.kind.as_str()))?;
        (plane.check)(&resource.name, &resource.bytes()).map_err(|problem| {
            let found = if problem.field == "name" { resource.name.as_str() } else { "" };
            FieldError::new(problem.field, found, problem.allowed)
        })?;
        Ok(resource)
    }
}

/// A field, its value here, and there; absent where there is none.
pub type Difference = (String, Option<Value>, Option<Value>);

fn compare(path: String, here: Option<&Value>, there: Option<&Value>, found: &mut Vec<Difference>) {
    if here == there {
        return;
    }
    match (here.and_then(members), there.and_then(members)) {
        (Some(a), Some(b)) => {
            let names: BTreeSet<&str> = a.keys().chain(b.keys()).copied().collect();
            for name in names {
                compare(format!("{path}.{name}"), a.get(name).copied(), b.get(name).copied(), found);
            }
        }
        _ => found.push((path, here.cloned(), there.cloned())),
    }
}

/// The fields of an object, and the members of a list by their names where all have one of their own and stand in its order.
fn members(value: &Value) -> Option<BTreeMap<&str, &Value>> {
    match value {
        Value::Object(fields) => Some(fields.iter().map(|(name, value)| (name.as_str(), value)).collect()),
        Value::Array(items) => {
            let names: Vec<&str> = items.iter().map_while(|item| item.get("name")?.as_str()).collect();
            let in_order = names.len() == items.len() && names.is_sorted_by(|a, b| a < b);
            (in_order && !items.is_empty()).then(|| names.into_iter().zip(items).collect())
        }
        _ => None,
    }
}

/// One resource of any kind.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyResource {
    /// Of networks.
    Network(Box<Resource>),
    /// What a plane of a host is to have.
    Plane(PlaneResource),
}

impl<'de> Deserialize<'de> for AnyResource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<AnyResource, D::Error> {
        use serde::de::Error;
        let value = Value::deserialize(deserializer)?;
        // One of a plane that this release does not have has the same form.
        match value.get("kind").and_then(Value::as_str).is_none_or(|kind| network_kind(kind).is_some()) {
            true => serde_json::from_value(value).map(AnyResource::Network).map_err(D::Error::custom),
            false => serde_json::from_value(value).map(AnyResource::Plane).map_err(D::Error::custom),
        }
    }
}

impl From<Resource> for AnyResource {
    fn from(resource: Resource) -> AnyResource {
        AnyResource::Network(Box::new(resource))
    }
}

impl AnyResource {
    /// Reads a document and checks it by itself: of a plane by what the plane takes.
    ///
    /// # Errors
    /// The first wrong field, its value, and what is allowed.
    pub fn from_document(document: &Value) -> Result<AnyResource, FieldError> {
        match document.get("kind").and_then(Value::as_str) {
            Some(kind) if ALL.iter().any(|plane| plane.kind == kind) => {
                PlaneResource::read(document).map(AnyResource::Plane)
            }
            Some(kind) if network_kind(kind).is_none() => Err(unknown_kind(kind)),
            _ => Resource::from_document(document).map(AnyResource::from),
        }
    }

    /// Its identity.
    pub fn id(&self) -> AnyId {
        match self {
            AnyResource::Network(resource) => resource.id().into(),
            AnyResource::Plane(resource) => resource.id().into(),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Label {
        self.id().kind
    }

    /// The resource of networks that it is.
    pub fn of_networks(&self) -> Option<&Resource> {
        match self {
            AnyResource::Network(resource) => Some(resource),
            AnyResource::Plane(_) => None,
        }
    }

    /// The resource of a plane that it is.
    pub fn of_plane(&self) -> Option<&PlaneResource> {
        match self {
            AnyResource::Network(_) => None,
            AnyResource::Plane(resource) => Some(resource),
        }
    }
}

#[cfg(test)]
mod tests;
