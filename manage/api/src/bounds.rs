//! What a request may hold, in numbers: the ranges of the document at `/v1/openapi.json`, and the door that holds them ([`crate::within`]).
//!
//! Types say of what kind a field is; this table says how large, how long and how many. It is applied to the document, and the door reads the
//! document, so what is published and what is refused are one. A field of a request that the table does not know fails a test.

use serde_json::{Map, Value, json};
use weir_model::entry::VNI_MAX;
use weir_model::event::SUBJECT_BYTES_MAX;
use weir_model::filewall::{FILES_MAX, ORDER_BYTES_MAX};
use weir_model::health::CGROUP_BYTES_MAX;
use weir_model::identity::REASON_BYTES_MAX;
use weir_model::resource::{
    ADDRESSES_MAX, MEMBERS_MAX, MTU_MAX, MTU_MIN, QUEUE_PAIRS_MAX, RULE_ITEMS_MAX, SERVICES_MAX,
    SOCKET_BYTES_MAX, TAGS_MAX,
};

/// A name, as [`weir_model::Label`] takes it.
pub const LABEL: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
/// Hexadecimal digits.
pub const HEX: &str = "^[0-9a-fA-F]*$";

/// An IP address, as far as a pattern of a readable length says it.
pub const ADDRESS: &str = "^[0-9a-fA-F:.]{2,45}$";

/// Where the document says how many bytes a specification of each plane has at most.
pub const SPEC_BYTES_MAX: &str = "x-bytes-max-of-plane";

/// A pattern, and what holds it.
type Held = (&'static str, fn(&str) -> bool);

/// Patterns, and what holds them.
pub const PATTERNS: [Held; 3] = [
    (ADDRESS, |text| text.parse::<std::net::IpAddr>().is_ok()),
    (LABEL, |text| weir_model::Label::new(text).is_ok()),
    (HEX, |text| text.bytes().all(|byte| byte.is_ascii_hexdigit())),
];

/// What one field may be.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// A whole number, both ends included.
    Whole(u64, u64),
    /// A name.
    Name,
    /// Text of so many characters at most.
    Text(usize),
    /// Hexadecimal digits, so many at most.
    Digits(usize),
    /// An IP address.
    Address,
    /// So many, from and to.
    Items(usize, usize),
    /// The same, of names.
    Names(usize, usize),
    /// The same, of texts of so many characters at most.
    Texts(usize, usize, usize),
}

use Bound::{Address, Digits, Items, Name, Names, Text, Texts, Whole};

/// An address with a port, or a name with one.
const PLACE: Bound = Text(300);
/// An IP address, and one with the length of a prefix.
const ADDRESS_CHARS: usize = 45;
const PREFIX_CHARS: usize = 49;
const PORT: Bound = Whole(0, 65_535);
const PORT_USED: Bound = Whole(1, 65_535);
const RESOURCES_MAX: usize = crate::types::RESOURCES_MAX;

/// Schema, field, what it may be.
const FIELDS: &[(&str, &str, Bound)] = &[
    ("ApplyRequest", "resources", Items(0, RESOURCES_MAX)),
    ("ApplyRequest", "delete", Items(0, RESOURCES_MAX)),
    ("ApplyRequest", "expected", Items(0, RESOURCES_MAX)),
    ("AnyId", "kind", Name),
    ("AnyId", "network", Name),
    ("AnyId", "host", Name),
    ("AnyId", "name", Text(weir_model::plane::NAME_BYTES_MAX)),
    ("PlaneResource", "kind", Name),
    ("PlaneResource", "host", Name),
    ("PlaneResource", "name", Text(weir_model::plane::NAME_BYTES_MAX)),
    ("Network", "name", Name),
    ("Network", "mtu", Whole(MTU_MIN as u64, MTU_MAX as u64)),
    ("Network", "vni", Whole(1, VNI_MAX as u64)),
    ("Subnet", "network", Name),
    ("Subnet", "name", Name),
    ("Subnet", "v4", Text(18)),
    ("Subnet", "v6", Text(PREFIX_CHARS)),
    ("Subnet", "domain", Name),
    ("DhcpOptions", "leaseS", Whole(60, 86_400 * 30)),
    ("DhcpOptions", "dnsServers", Texts(0, 4, ADDRESS_CHARS)),
    ("DhcpOptions", "ntpServers", Texts(0, 4, ADDRESS_CHARS)),
    ("DhcpOptions", "search", Texts(0, 6, 253)),
    ("Endpoint", "network", Name),
    ("Endpoint", "name", Name),
    ("Endpoint", "subnet", Name),
    ("Endpoint", "host", Name),
    ("Endpoint", "mac", Text(17)),
    ("Endpoint", "addresses", Texts(0, ADDRESSES_MAX, ADDRESS_CHARS)),
    ("Endpoint", "tags", Names(0, TAGS_MAX)),
    ("Attachment", "netns", Text(64)),
    ("Attachment", "device", Text(15)),
    ("Attachment", "socket", Text(SOCKET_BYTES_MAX)),
    ("Attachment", "queuePairs", Whole(1, QUEUE_PAIRS_MAX as u64)),
    ("Route", "network", Name),
    ("Route", "name", Name),
    ("Route", "prefix", Text(PREFIX_CHARS)),
    ("Route", "priority", PORT),
    ("NextHop", "endpoint", Name),
    ("Peer", "prefix", Text(PREFIX_CHARS)),
    ("Peer", "tag", Name),
    ("FirewallRule", "network", Name),
    ("FirewallRule", "name", Name),
    ("FirewallRule", "priority", PORT),
    ("FirewallRule", "protocol", Text(4)),
    ("FirewallRule", "ports", Texts(0, RULE_ITEMS_MAX, 11)),
    ("FirewallRule", "peers", Items(0, RULE_ITEMS_MAX)),
    ("FirewallRule", "targets", Names(0, TAGS_MAX)),
    ("Balancer", "network", Name),
    ("Balancer", "name", Name),
    ("Balancer", "address", Text(ADDRESS_CHARS)),
    ("Balancer", "services", Items(1, SERVICES_MAX)),
    ("Balancer", "members", Names(0, MEMBERS_MAX)),
    ("BalancerService", "protocol", Text(4)),
    ("BalancerService", "port", PORT_USED),
    ("BalancerService", "targetPort", PORT_USED),
    ("RepairRequest", "cgroup", Text(CGROUP_BYTES_MAX)),
    ("RepairRequest", "id", Text(64)),
    ("FileWallRequest", "files", Items(0, FILES_MAX)),
    ("PolicyFile", "name", Text(weir_model::filewall::NAME_BYTES_MAX)),
    ("PolicyFile", "text", Text(ORDER_BYTES_MAX)),
    ("ConvertRequest", "order", Text(8)),
    ("ConvertRequest", "listen", PLACE),
    ("ConvertRequest", "members", Items(1, 255)),
    ("AddMember", "replica", PLACE),
    ("AddMember", "api", PLACE),
    ("AddMember", "session", PLACE),
    ("AddMember", "key", Digits(64)),
    ("RevokeRequest", "source", Text(SUBJECT_BYTES_MAX)),
    ("RevokeRequest", "reason", Text(REASON_BYTES_MAX)),
    ("RotateRequest", "name", Text(SUBJECT_BYTES_MAX)),
    ("KeyChange", "event", Text(64 * 1024)),
    ("TraceRequest", "network", Text(63)),
    ("TraceRequest", "endpoint", Text(63)),
    ("TraceRequest", "to", Text(253)),
    ("TraceRequest", "protocol", Text(16)),
    ("TraceRequest", "sourcePort", PORT),
    ("TraceRequest", "port", PORT),
    ("TraceRequest", "frame", Text(256 * 1024)),
    ("CaptureRequest", "actuator", Text(63)),
    ("CaptureRequest", "port", Text(253)),
    ("TokenRequest", "name", Name),
    ("TokenRequest", "underlay", Text(ADDRESS_CHARS)),
    ("TokenKey", "id", Digits(32)),
    ("TokenKey", "key", Digits(64)),
    ("OperatorRequest", "keys", Texts(1, weir_model::operator::OPERATOR_KEYS_MAX, 64)),
    ("NeedsRequest", "kinds", Items(0, weir_model::approval::RequestKind::ALL.len())),
    (
        "NeedsRequest",
        "waitS",
        Whole(weir_model::approval::WAIT_MIN_S as u64, weir_model::approval::WAIT_MAX_S as u64),
    ),
    ("NeedOf", "approvals", Whole(2, weir_model::approval::APPROVALS_MAX as u64)),
    ("AddDomain", "underlays", Texts(0, weir_model::domain::UNDERLAYS_MAX, PREFIX_CHARS)),
    ("DomainDescription", "name", Text(63)),
    ("DomainDescription", "groupKey", Digits(512)),
    ("DomainDescription", "authority", Text(weir_model::domain::AUTHORITY_BYTES_MAX)),
    ("DomainDescription", "controllers", Items(0, weir_model::session::CONTROLLERS_MAX)),
    ("DomainMember", "key", Digits(512)),
    ("DomainMember", "api", PLACE),
    ("JoinRequest", "name", Name),
    ("JoinRequest", "csr_pem", Text(crate::types::OPEN_BODY_BYTES_MAX)),
    ("JoinRequest", "identity", Digits(512)),
    ("JoinRequest", "underlay", Address),
    ("JoinRequest", "secret", Text(1024)),
    ("JoinRequest", "proof", Text(1024)),
    ("JoinRequest", "by_token", Text(1024)),
];

/// What names in paths and queries may be.
const PARAMETERS: &[(&str, Bound)] = &[
    ("name", Name),
    ("network", Name),
    ("place", Name),
    ("wall", Name),
    ("plane", Name),
    ("of", Text(weir_model::plane::NAME_BYTES_MAX)),
    ("kind", Text(weir_base::limits::LABEL_BYTES_MAX)),
    ("id", Text(64)),
];

fn put(field: &mut Map<String, Value>, bound: Bound) {
    let mut set = |name: &str, value: Value| drop(field.insert(name.to_string(), value));
    let of_items = |field: &mut Map<String, Value>, item: Bound| {
        if let Some(items) = field.get_mut("items").and_then(Value::as_object_mut) {
            put(items, item);
        }
    };
    match bound {
        Whole(least, most) => {
            set("minimum", json!(least));
            set("maximum", json!(most));
        }
        Name => {
            set("pattern", json!(LABEL));
            set("minLength", json!(1));
            set("maxLength", json!(weir_base::limits::LABEL_BYTES_MAX));
        }
        Text(most) => set("maxLength", json!(most)),
        Digits(most) => {
            set("pattern", json!(HEX));
            set("maxLength", json!(most));
        }
        Address => {
            set("pattern", json!(ADDRESS));
            set("minLength", json!(2));
            set("maxLength", json!(ADDRESS_CHARS));
        }
        Items(least, most) => {
            set("minItems", json!(least));
            set("maxItems", json!(most));
        }
        Names(least, most) => {
            put(field, Items(least, most));
            of_items(field, Name);
        }
        Texts(least, most, chars) => {
            put(field, Items(least, most));
            of_items(field, Text(chars));
        }
    }
}

/// Whether a schema is of a type, or of that and null.
pub fn is_of(schema: &Value, kind: &str) -> bool {
    match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(some) => some.iter().any(|one| one == kind),
        _ => false,
    }
}

/// The ends of a whole number that nobody else has given: those of its type.
fn whole(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(whole);
            if is_of(schema, "integer") {
                let signed = schema.get("minimum").is_none();
                let (least, most) = match (schema["format"].as_str(), signed) {
                    (Some("int32"), false) => (json!(0), json!(u32::MAX)),
                    (Some("int32"), true) => (json!(i32::MIN), json!(i32::MAX)),
                    (_, true) => (json!(i64::MIN), json!(i64::MAX)),
                    (_, false) => (json!(0), json!(u64::MAX)),
                };
                for (name, end) in [("minimum", least), ("maximum", most)] {
                    if schema.get(name).is_none() {
                        schema[name] = end;
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole),
        _ => {}
    }
}

/// The field of a schema, wherever in its variants it is.
fn field<'a>(schema: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    if schema["properties"].get(name).is_some() {
        return schema["properties"][name].as_object_mut();
    }
    let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut)?;
    let variant = variants.iter_mut().find(|variant| variant["properties"].get(name).is_some())?;
    variant["properties"][name].as_object_mut()
}

/// Puts the bounds into the document.
pub fn apply(document: &mut Value) {
    for (schema, name, bound) in FIELDS {
        if let Some(field) = field(&mut document["components"]["schemas"][*schema], name) {
            put(field, *bound);
        }
    }
    // A specification is a plane's own, and so is how long it may be.
    for schema in ["PlaneResource", "PlaneRequest"] {
        if let Some(spec) = field(&mut document["components"]["schemas"][schema], "spec") {
            spec.insert(
                SPEC_BYTES_MAX.into(),
                weir_planes::ALL.iter().map(|plane| (plane.name, plane.spec_bytes_max)).collect(),
            );
        }
    }
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    let parameters = operations.filter_map(|one| one.get_mut("parameters").and_then(Value::as_array_mut));
    for parameter in parameters.flatten() {
        let bound = PARAMETERS.iter().find(|(name, _)| parameter["name"] == *name).map(|(_, bound)| *bound);
        if is_of(&parameter["schema"], "string")
            && let (Some(bound), Some(schema)) = (bound, parameter["schema"].as_object_mut())
        {
            put(schema, bound);
        }
    }
    whole(document);
}

/// The rows of the table that name nothing in a document.
#[cfg(test)]
pub(crate) fn stale(document: &mut Value) -> Vec<String> {
    let schemas = &mut document["components"]["schemas"];
    let missing = |(schema, name, _): &&(&str, &str, Bound)| field(&mut schemas[*schema], name).is_none();
    FIELDS.iter().filter(missing).map(|(schema, name, _)| format!("{schema}.{name}")).collect()
}
