//! What an event wants, in words.

use super::{UPDATES_TOLD_MAX, fingerprint, time};
use weir_controller::audit::kind_of;
use weir_model::approval::Approval;
use weir_model::event::{ActuatorFacts, EventBody, NewRule, Transaction, Wanted};
use weir_model::group::{GroupWord, Replaced};
use weir_model::identity::{IdentityEvent, TokenChange};
use weir_model::join::to_hex;
use weir_model::operator::{OperatorChange, OperatorFacts, OperatorRole};
use weir_model::plane::PlaneOrder;

/// What is ordered of a plane.
fn ordered(PlaneOrder { plane, actuator, name, spec }: &PlaneOrder) -> String {
    let what = match (spec, weir_planes::find(weir_planes::ALL, plane.as_str())) {
        (None, _) => "withdrawn".to_string(),
        (Some(spec), Some(kind)) => (kind.describe)(name, spec),
        (Some(spec), None) => format!("{} bytes", spec.len()),
    };
    format!("{plane} '{name}' at {actuator}: {what}")
}

/// What a controller says of others.
fn said_of_members(word: &GroupWord) -> String {
    match word {
        GroupWord::Suspects { member, after_ms: 0 } => format!("does not hear controller {member}"),
        GroupWord::Suspects { member, after_ms } => {
            format!("does not hear controller {member}: after {} s it is to be replaced", after_ms / 1_000)
        }
        GroupWord::Trusts { member } => format!("hears controller {member} again"),
        GroupWord::Convicts { member, key, proof } => {
            let by = if proof.is_empty() { "a proof in the order" } else { "the proof here" };
            format!("controller {member} lied, under key {}…: {by} convinces it", fingerprint(key))
        }
        GroupWord::Spare { id, address, .. } => format!("controller {id} at {address} is a spare"),
        GroupWord::NoSpare { id } => format!("controller {id} is no spare any more"),
        GroupWord::Replaced(Replaced { out, by, because, who, .. }) => {
            let became = by.map_or("removed".to_string(), |by| format!("replaced by spare {by}"));
            let who = who.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            format!("controller {out} was {became}: {}, by the word of {who}", because.as_str())
        }
    }
}

/// What becomes of resources.
fn changed(transaction: &Transaction) -> impl Iterator<Item = String> {
    transaction.mutations.iter().map(|mutation| match mutation.wanted {
        Wanted::Document(_) => mutation.id.to_string(),
        Wanted::Absent => format!("{} gone", mutation.id),
    })
}

/// The first of what is told, and how many more there are.
fn some(told: impl Iterator<Item = String>) -> String {
    let mut told: Vec<String> = told.collect();
    let more = told.len().saturating_sub(UPDATES_TOLD_MAX);
    told.truncate(UPDATES_TOLD_MAX);
    told.extend((more > 0).then(|| format!("{more} more")));
    told.join(", ")
}

/// What an operator may order, and by which keys.
fn operator(facts: &OperatorFacts) -> String {
    let role = match facts.role {
        OperatorRole::Admin => "admin",
        OperatorRole::Operator => "operator",
    };
    let keys: Vec<String> = facts.keys.iter().map(|key| format!("{}…", fingerprint(key))).collect();
    format!("{role} with key {}", keys.join(", "))
}

/// What an event wants, in a few words.
pub(super) fn wants(body: &EventBody) -> String {
    match body {
        EventBody::Intent(transaction) => some(changed(transaction)),
        EventBody::Apply(apply) => {
            let orders = apply.orders.iter().map(|change| ordered(&change.order));
            let all = apply.resources.replace_all.then(|| "all else gone".to_owned());
            some(changed(&apply.resources).chain(orders).chain(all))
        }
        EventBody::Joined(facts) => format!("{} as {:?} at {}", facts.name, facts.role, facts.underlay),
        EventBody::JoinedBy(joined) => {
            let (ActuatorFacts { name, role, underlay, .. }, token) = (&joined.facts, to_hex(&joined.token));
            format!("{name} as {role:?} at {underlay}, by join token {token}")
        }
        EventBody::Said(said) => {
            format!("{} asks: {} {}", said.author().0, kind_of(said.body()), wants(said.body()))
        }
        EventBody::Approval(about) => match &**about {
            Approval::Given(of) => format!("{} is approved", to_hex(of)),
            Approval::Refused(of) => format!("{} is refused", to_hex(of)),
            Approval::Needed(needs) => {
                let kinds = needs.kinds.iter().map(|(kind, need)| format!("{kind} needs {}", need.approvals));
                some(
                    kinds.chain(
                        needs.kinds.is_empty().then(|| "every request needs its author alone".to_owned()),
                    ),
                )
            }
        },
        EventBody::Rule(NewRule::OwnersCertificates) => {
            "certificates count by the word of their owners' keys".to_owned()
        }
        EventBody::Converted(to) if to.member == 0 => "the end of this order is taken back".to_owned(),
        EventBody::Converted(to) => {
            format!("this order ends, and goes on as controller {} of a group", to.member)
        }
        EventBody::Clock { wall_ms } => format!("wall time is {}", time(*wall_ms)),
        EventBody::Group(word) => said_of_members(word),
        EventBody::Conduct(report) => format!(
            "{} says that the controller at {} sent {}: session closed, {} times by now",
            report.actuator,
            report.controller,
            report.what.as_str(),
            report.ended
        ),
        EventBody::Speaks { name, protocol } => format!("{name} speaks protocol {protocol} of sessions"),
        EventBody::Order(order) => ordered(order),
        EventBody::Report(report) => format!("{} '{}' at {}", report.plane, report.name, report.actuator),
        EventBody::Removed { actuator } => actuator.to_string(),
        EventBody::Refused { actuator, key, version, refusal } => {
            format!("{key} {version} at {actuator}: {refusal}")
        }
        EventBody::Identity(about) => {
            let whose = about.whose().short();
            match &**about {
                IdentityEvent::Certified { key, .. } => {
                    format!("{whose} has a certificate for key {}…", &to_hex(key)[..16])
                }
                IdentityEvent::Rotated(rotation) => {
                    format!(
                        "{whose} changes from key {}… to {}…",
                        fingerprint(&rotation.old),
                        fingerprint(&rotation.new)
                    )
                }
                IdentityEvent::Settled { key, .. } => format!("{whose} uses key {}… only", fingerprint(key)),
                IdentityEvent::Revoked { reason, .. } => format!("{whose} revoked: {reason}"),
                IdentityEvent::Introduced { key, .. } => {
                    format!("{whose} introduced with key {}…", fingerprint(key))
                }
                IdentityEvent::Token { id, change, .. } => {
                    let id = to_hex(id);
                    match change {
                        TokenChange::Made { .. } | TokenChange::MadeWithKey { .. } => {
                            format!("join token {id} made for {whose}")
                        }
                        TokenChange::Used { key } => {
                            format!("join token {id} used by {whose} with key {}…", fingerprint(key))
                        }
                        TokenChange::Voided => format!("join token {id} of {whose} voided"),
                    }
                }
                IdentityEvent::Operator { change, .. } => match change {
                    OperatorChange::Added(facts) => format!("operator {whose} added, {}", operator(facts)),
                    OperatorChange::Changed(facts) => format!("operator {whose} is {}", operator(facts)),
                    OperatorChange::Removed => format!("operator {whose} removed"),
                    OperatorChange::Founded(all) => {
                        let all = all.iter().map(|(name, facts)| format!("{name} {}", operator(facts)));
                        format!("requests are signed, by operators {}", some(all))
                    }
                },
            }
        }
        _ => String::new(),
    }
}
