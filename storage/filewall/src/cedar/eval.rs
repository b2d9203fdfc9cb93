//! What a rule says of a request.

use super::{Binary, Entity, Expression, Glyph, Method, Request, Rule, Scope, Uid, Value, Variable};
use ipnet::IpNet;
use std::net::IpAddr;

/// An evaluation failed: the rule does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

type Found = Result<Value, Failed>;

/// True if a rule counts for a request.
pub fn counts(rule: &Rule, request: &Request<'_>) -> bool {
    fits(&rule.principal, request.principal)
        && rule.action.iter().any(|scope| fits(scope, request.action))
        && fits(&rule.resource, request.resource)
        && rule.conditions.iter().all(|(when, condition)| value(condition, request) == Ok(Value::Bool(*when)))
}

fn fits(scope: &Scope, entity: &Entity) -> bool {
    match scope {
        Scope::Any => true,
        Scope::Is(uid) => entity.uid == *uid,
        Scope::In(uid) => within(entity, uid),
        Scope::Kind(kind, uid) => {
            entity.uid.kind == *kind && uid.as_ref().is_none_or(|uid| within(entity, uid))
        }
    }
}

fn within(entity: &Entity, uid: &Uid) -> bool {
    entity.uid == *uid || entity.within.contains(uid)
}

fn known<'r>(uid: &Uid, request: &Request<'r>) -> Option<&'r Entity> {
    [request.principal, request.action, request.resource].into_iter().find(|entity| entity.uid == *uid)
}

fn truth(expression: &Expression, request: &Request<'_>) -> Result<bool, Failed> {
    match value(expression, request)? {
        Value::Bool(truth) => Ok(truth),
        _ => Err(Failed),
    }
}

fn long(expression: &Expression, request: &Request<'_>) -> Result<i64, Failed> {
    match value(expression, request)? {
        Value::Long(long) => Ok(long),
        _ => Err(Failed),
    }
}

fn members(expression: &Expression, request: &Request<'_>) -> Result<Vec<Value>, Failed> {
    match value(expression, request)? {
        Value::Set(members) => Ok(members),
        _ => Err(Failed),
    }
}

fn address(expression: &Expression, request: &Request<'_>) -> Result<IpNet, Failed> {
    match value(expression, request)? {
        Value::Address(address) => Ok(address),
        _ => Err(Failed),
    }
}

/// The value of an expression.
///
/// # Errors
/// [`Failed`].
pub fn value(expression: &Expression, request: &Request<'_>) -> Found {
    match expression {
        Expression::Literal(value) => Ok(value.clone()),
        Expression::Variable(variable) => Ok(match variable {
            Variable::Principal => Value::Entity(request.principal.uid.clone()),
            Variable::Action => Value::Entity(request.action.uid.clone()),
            Variable::Resource => Value::Entity(request.resource.uid.clone()),
            Variable::Context => Value::Record(request.context.clone()),
        }),
        Expression::Not(inner) => Ok(Value::Bool(!truth(inner, request)?)),
        Expression::Negative(inner) => long(inner, request)?.checked_neg().map(Value::Long).ok_or(Failed),
        Expression::Binary(operator, left, right) => binary(*operator, left, right, request),
        Expression::If(parts) => {
            let [condition, then, other] = parts.as_ref();
            if truth(condition, request)? { value(then, request) } else { value(other, request) }
        }
        Expression::Field(inner, name) => field(inner, name, request)?.ok_or(Failed),
        Expression::Has(inner, name) => Ok(Value::Bool(field(inner, name, request)?.is_some())),
        Expression::Like(inner, pattern) => match value(inner, request)? {
            Value::Text(text) => Ok(Value::Bool(like(&text, pattern))),
            _ => Err(Failed),
        },
        Expression::Kind(inner, kind, parent) => {
            let Value::Entity(uid) = value(inner, request)? else { return Err(Failed) };
            let inside = match parent {
                Some(parent) if uid.kind == *kind => is_in(&uid, value(parent, request)?, request)?,
                _ => true,
            };
            Ok(Value::Bool(uid.kind == *kind && inside))
        }
        Expression::Set(all) => {
            all.iter().map(|member| value(member, request)).collect::<Result<_, _>>().map(Value::set)
        }
        Expression::Record(fields) => fields
            .iter()
            .map(|(name, field)| Ok((name.clone(), value(field, request)?)))
            .collect::<Result<_, _>>()
            .map(Value::Record),
        Expression::Address(inner) => match value(inner, request)? {
            Value::Text(text) => text
                .parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map(Value::Address)
                .map_err(|_| Failed),
            _ => Err(Failed),
        },
        Expression::Call(method, arguments) => call(*method, arguments, request).map(Value::Bool),
    }
}

fn field(inner: &Expression, name: &str, request: &Request<'_>) -> Result<Option<Value>, Failed> {
    match inner {
        Expression::Variable(Variable::Context) => Ok(request.context.get(name).cloned()),
        _ => match value(inner, request)? {
            Value::Entity(uid) => {
                Ok(known(&uid, request).and_then(|entity| entity.attributes.get(name).cloned()))
            }
            Value::Record(record) => Ok(record.get(name).cloned()),
            _ => Err(Failed),
        },
    }
}

fn binary(operator: Binary, left: &Expression, right: &Expression, request: &Request<'_>) -> Found {
    let numbers = || Ok((long(left, request)?, long(right, request)?));
    let sum = |number: Option<i64>| number.map(Value::Long).ok_or(Failed);
    Ok(Value::Bool(match operator {
        Binary::Or => truth(left, request)? || truth(right, request)?,
        Binary::And => truth(left, request)? && truth(right, request)?,
        Binary::Equal => value(left, request)? == value(right, request)?,
        Binary::Unequal => value(left, request)? != value(right, request)?,
        Binary::Less => numbers().map(|(a, b)| a < b)?,
        Binary::LessEqual => numbers().map(|(a, b)| a <= b)?,
        Binary::Greater => numbers().map(|(a, b)| a > b)?,
        Binary::GreaterEqual => numbers().map(|(a, b)| a >= b)?,
        Binary::In => {
            let Value::Entity(uid) = value(left, request)? else { return Err(Failed) };
            is_in(&uid, value(right, request)?, request)?
        }
        Binary::Add => return numbers().and_then(|(a, b)| sum(a.checked_add(b))),
        Binary::Subtract => return numbers().and_then(|(a, b)| sum(a.checked_sub(b))),
        Binary::Multiply => return numbers().and_then(|(a, b)| sum(a.checked_mul(b))),
    }))
}

/// Whether an entity is in another, or in one of a set.
fn is_in(uid: &Uid, whole: Value, request: &Request<'_>) -> Result<bool, Failed> {
    let one =
        |other: &Uid| uid == other || known(uid, request).is_some_and(|entity| entity.within.contains(other));
    match whole {
        Value::Entity(other) => Ok(one(&other)),
        Value::Set(members) => {
            let mut found = false;
            for member in members {
                let Value::Entity(other) = member else { return Err(Failed) };
                found |= one(&other);
            }
            Ok(found)
        }
        _ => Err(Failed),
    }
}

/// Whether a text fits a pattern. Each star is extended only when what follows it does not fit, so the work is bounded by
/// the product of their lengths.
fn like(text: &str, pattern: &[Glyph]) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut next) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(next) {
            Some(Glyph::Exact(exact)) if *exact == text[at] => (at, next) = (at + 1, next + 1),
            Some(Glyph::Any) => {
                star = Some((next, at));
                next += 1;
            }
            _ => match &mut star {
                Some((begin, from)) => {
                    *from += 1;
                    (at, next) = (*from, *begin + 1);
                }
                None => return false,
            },
        }
    }
    pattern[next..].iter().all(|glyph| *glyph == Glyph::Any)
}

fn call(method: Method, arguments: &[Expression], request: &Request<'_>) -> Result<bool, Failed> {
    let object = &arguments[0];
    Ok(match method {
        Method::Contains => {
            let member = value(&arguments[1], request);
            members(object, request)?.contains(&member?)
        }
        Method::ContainsAll => {
            let all = members(object, request)?;
            members(&arguments[1], request)?.iter().all(|member| all.contains(member))
        }
        Method::ContainsAny => {
            let all = members(object, request)?;
            members(&arguments[1], request)?.iter().any(|member| all.contains(member))
        }
        Method::IsEmpty => members(object, request)?.is_empty(),
        Method::IsInRange => match (address(object, request)?, address(&arguments[1], request)?) {
            (IpNet::V4(inner), IpNet::V4(outer)) => outer.contains(&inner),
            (IpNet::V6(inner), IpNet::V6(outer)) => outer.contains(&inner),
            _ => false,
        },
        Method::IsIpv4 => matches!(address(object, request)?, IpNet::V4(_)),
        Method::IsIpv6 => matches!(address(object, request)?, IpNet::V6(_)),
        Method::IsLoopback => address(object, request)?.addr().is_loopback(),
        Method::IsMulticast => address(object, request)?.addr().is_multicast(),
    })
}
