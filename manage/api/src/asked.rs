//! Whether a statement to sign is what was asked: looked at before an operator's key signs it (row R1).
//!
//! The controller that makes the statement ([`crate::said`]) may lie: it may put a rule of its own among those that were asked for, forget
//! what must not have changed, or give another event altogether. So each call has its [`Asked`], and [`Asked::check`] takes the event only
//! where it says that and nothing else. What the call leaves to the controller is in the documentation of its variant.

use crate::any::{AnyId, AnyResource, Named, PlaneId, PlaneResource};
use crate::types::{ApplyRequest, FileWallRequest, RepairRequest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_model::approval::Approval;
use weir_model::domain::DomainEvent;
use weir_model::event::{Apply, EventBody, Mutation, Transaction, Wanted};
use weir_model::identity::{IdentityEvent, TokenChange, TokenId};
use weir_model::join::to_hex;
use weir_model::plane::{OrderChange, PlaneOrder};
use weir_model::resource::{Resource, ResourceId};
use weir_model::{Label, Version};
use weir_planes::Plane;
use weir_planes::filewall::FileWall;
use weir_planes::monitor::Monitor;

/// What a call asks for.
#[derive(Clone, Debug)]
pub enum Asked<'a> {
    /// Exactly this.
    Event(Box<EventBody>),
    /// Resources shall change. Left to the controller is how what says the same as before is written.
    Apply(&'a ApplyRequest),
    /// A plane of a host shall have something, or no longer.
    Plane {
        /// The plane, the host or gateway, and under which name.
        id: PlaneId,
        /// What; none withdraws it.
        spec: Option<&'a Value>,
    },
    /// A monitor shall repair something. Left to the controller is whether its host knows planes, and the order's name where none is given.
    Repair(Label, &'a RepairRequest),
    /// A FileWall shall have policies. Left to the controller is whether its host knows planes.
    FileWall(Label, Label, &'a FileWallRequest),
    /// A join token shall not be taken any more. Left to the controller is whose it is.
    VoidToken(TokenId),
}

impl Asked<'_> {
    /// Exactly this.
    pub fn event(body: EventBody) -> Self {
        Asked::Event(Box::new(body))
    }

    /// Exactly this about an identity.
    pub fn identity(about: IdentityEvent) -> Self {
        Asked::event(EventBody::Identity(Box::new(about)))
    }

    /// Whether an event is what this asks for, and nothing else.
    ///
    /// # Errors
    /// In what it differs, for a person.
    pub fn check(&self, body: &EventBody) -> Result<(), String> {
        self.differs(body).map_err(|what| {
            format!(
                "the controller wants something signed that was not asked: {what}. Nothing was signed: ask another controller, and compare \
                 their audits ('weir audit compare')"
            )
        })
    }

    fn differs(&self, body: &EventBody) -> Result<(), String> {
        match (self, body) {
            (Asked::Event(asked), _) if **asked == *body => Ok(()),
            (Asked::Apply(request), EventBody::Intent(resources)) => applied(request, resources, &[]),
            (Asked::Apply(request), EventBody::Apply(Apply { resources, orders })) => {
                applied(request, resources, orders)
            }
            (Asked::Plane { id, spec }, EventBody::Order(order)) => ordered(order, id, *spec),
            (Asked::Repair(host, request), _) => repaired(host, request, body),
            (Asked::FileWall(host, wall, request), _) => policies(host, wall, request, body),
            (Asked::VoidToken(asked), EventBody::Identity(about)) => match &**about {
                IdentityEvent::Token { id, change: TokenChange::Voided, .. } if id == asked => Ok(()),
                _ => Err(in_words(body)),
            },
            _ => Err(in_words(body)),
        }
    }
}

/// An event in a few words.
pub fn in_words(body: &EventBody) -> String {
    let many = |what: &str, count: usize| format!("{what} of {count} resources");
    match body {
        EventBody::Intent(transaction) => many("a change", transaction.mutations.len()),
        EventBody::Apply(apply) => many("a change", apply.resources.mutations.len() + apply.orders.len()),
        EventBody::Removed { actuator } => format!("the removal of '{actuator}'"),
        EventBody::Repair(order) => format!("a repair at '{}'", order.actuator),
        EventBody::FileWall(order) => {
            format!("policies of FileWall '{}' at '{}'", order.wall, order.actuator)
        }
        EventBody::Order(order) => {
            format!("an order of plane {} at '{}', '{}'", order.plane, order.actuator, order.name)
        }
        EventBody::Domain(about) => match &**about {
            DomainEvent::Known(record) => format!("that domain '{}' is known", record.name),
            DomainEvent::Forgotten { domain } => format!("that domain '{domain}' is forgotten"),
            _ => "what domains tell each other".to_owned(),
        },
        EventBody::Identity(about) => format!("something about the identity of '{}'", about.whose().0),
        EventBody::Approval(about) => match &**about {
            Approval::Given(of) => format!("the approval of request {}", to_hex(of)),
            Approval::Refused(of) => format!("the end of request {}", to_hex(of)),
            Approval::Needed(_) => "a change of what needs approvals".to_owned(),
        },
        EventBody::Clock { wall_ms } => format!("that wall time is {wall_ms} ms"),
        _ => "what no operator orders".to_owned(),
    }
}

/// What a request wants of each resource.
#[derive(Default)]
struct Wants {
    expected: BTreeMap<AnyId, Version>,
    resources: BTreeMap<ResourceId, Option<Resource>>,
    planes: BTreeMap<PlaneId, Option<PlaneResource>>,
}

impl Wants {
    fn of(request: &ApplyRequest) -> Result<Wants, String> {
        let mut wants = Wants::default();
        for expected in &request.expected {
            wants.expected.insert(expected.id.clone(), Version(expected.version));
        }
        for document in &request.resources {
            match AnyResource::from_document(document).map_err(|error| error.to_string())? {
                AnyResource::Network(resource) => {
                    wants.resources.insert(resource.id(), Some(*resource));
                }
                AnyResource::Plane(resource) => {
                    wants.planes.insert(resource.id(), Some(resource));
                }
            }
        }
        for id in &request.delete {
            match id.named().map_err(|error| error.to_string())? {
                Named::Resource(id) => drop(wants.resources.insert(id, None)),
                Named::Plane(id) => drop(wants.planes.insert(id, None)),
            }
        }
        Ok(wants)
    }

    fn version(&self, id: AnyId, expected: Option<Version>) -> Result<(), String> {
        if self.expected.get(&id).copied() == expected {
            return Ok(());
        }
        Err(format!("{id} with another version expected"))
    }

    /// Takes out what is asked of a resource.
    fn resource(&mut self, mutation: &Mutation) -> Result<(), String> {
        let Mutation { id, expected, wanted } = mutation;
        self.version(id.clone().into(), *expected)?;
        match (self.resources.remove(id), wanted) {
            (Some(None), Wanted::Absent) => Ok(()),
            (Some(Some(asked)), Wanted::Document(text)) => match Resource::from_text(text) {
                Ok(made) if made.says_the_same(&asked) => Ok(()),
                _ => Err(format!("{id} with other fields")),
            },
            (_, Wanted::Absent) => Err(format!("the end of {id}")),
            (_, Wanted::Document(_)) => Err(id.to_string()),
        }
    }

    /// Takes out what is asked of a plane.
    fn plane(&mut self, change: &OrderChange) -> Result<(), String> {
        let PlaneOrder { plane, actuator, name, spec } = &change.order;
        let id = PlaneId { plane: plane.clone(), host: actuator.clone(), name: name.clone() };
        let shown = AnyId::from(id.clone());
        self.version(shown.clone(), change.expected)?;
        match (self.planes.remove(&id), spec) {
            (Some(None), None) => Ok(()),
            (Some(Some(asked)), Some(spec)) if PlaneResource::of(id, spec).says_the_same(&asked) => Ok(()),
            (_, None) => Err(format!("the end of {shown}")),
            (_, Some(_)) => Err(format!("{shown} with another specification")),
        }
    }
}

fn applied(request: &ApplyRequest, made: &Transaction, orders: &[OrderChange]) -> Result<(), String> {
    let mut wants = Wants::of(request)?;
    if made.replace_all && !request.replace_all {
        return Err("the end of all that was not named".to_owned());
    }
    made.mutations.iter().try_for_each(|mutation| wants.resource(mutation))?;
    orders.iter().try_for_each(|change| wants.plane(change))?;
    let left = wants.resources.into_keys().map(AnyId::from).chain(wants.planes.into_keys().map(AnyId::from));
    match (left.into_iter().next(), made.replace_all == request.replace_all) {
        (None, true) => Ok(()),
        (Some(id), _) => Err(format!("a change without {id}")),
        (None, false) => Err("a change that leaves what was not named".to_owned()),
    }
}

fn ordered(order: &PlaneOrder, id: &PlaneId, spec: Option<&Value>) -> Result<(), String> {
    let made = order.spec.as_ref().map(|spec| serde_json::from_slice::<Value>(spec));
    let same = match (&made, spec) {
        (None, None) => true,
        (Some(Ok(made)), Some(asked)) => made == asked,
        _ => false,
    };
    if (&order.plane, &order.actuator, &order.name) != (&id.plane, &id.host, &id.name) {
        return Err(in_words(&EventBody::Order(order.clone())));
    }
    if same { Ok(()) } else { Err(format!("{} with another specification", AnyId::from(id.clone()))) }
}

/// What a plane of this release has at a host.
fn at<P: Plane>(host: &Label, of: &str) -> Result<PlaneId, String> {
    let plane = Label::new(P::NAME).map_err(|error| error.to_string())?;
    Ok(PlaneId { plane, host: host.clone(), name: of.to_owned() })
}

fn repaired(host: &Label, request: &RepairRequest, body: &EventBody) -> Result<(), String> {
    match body {
        EventBody::Repair(order) => {
            let same = (&order.actuator, &order.cgroup, order.action);
            if same == (host, &request.cgroup, request.action) { Ok(()) } else { Err(in_words(body)) }
        }
        EventBody::Order(order) => {
            let named = |spec: &Vec<u8>| {
                let spec = serde_json::from_slice::<Value>(spec).unwrap_or_default();
                spec["id"].as_str().map(str::to_owned)
            };
            let id = request.id.clone().or_else(|| order.spec.as_ref().and_then(named));
            let spec = request.action.map(|action| json!({ "action": action, "id": id }));
            ordered(order, &at::<Monitor>(host, &request.cgroup)?, spec.as_ref())
        }
        _ => Err(in_words(body)),
    }
}

fn policies(host: &Label, wall: &Label, request: &FileWallRequest, body: &EventBody) -> Result<(), String> {
    match body {
        EventBody::FileWall(order) => {
            let same = (&order.actuator, &order.wall, &order.files) == (host, wall, &request.files);
            if same { Ok(()) } else { Err(in_words(body)) }
        }
        EventBody::Order(order) => {
            let spec = request.files.as_ref().map(|files| json!({ "files": files }));
            ordered(order, &at::<FileWall>(host, wall.as_str())?, spec.as_ref())
        }
        _ => Err(in_words(body)),
    }
}

#[cfg(test)]
mod tests;
