//! Policies in the language of Cedar (<https://docs.cedarpolicy.com>), in place of the paper's XACML (4.5.1).
//!
//! - [`lexer`], [`parse`]: text to rules. - [`eval`]: what a rule says of a request.
//!
//! What is read is Cedar: effects, annotations, scopes (`==`, `in`, `is`, lists of actions), `when` and `unless` with all
//! operators, sets, records, `like`, `has`, `is`, `if`, and the functions of sets and of `ip`. Not there: templates,
//! `decimal`, `datetime`, tags and schemas; they are refused where they stand.
//!
//! Invariants
//! - A rule whose condition fails (a missing attribute, a wrong type, an overflow) does not count, as in Cedar.
//! - A request is allowed if a `permit` counts and no `forbid` does.
//! - Reading and evaluating are bounded: [`TEXT_BYTES_MAX`], [`RULES_MAX`], [`DEPTH_MAX`]; there are no loops in the language.
//!
//! Departure: `cedar-policy` itself is not linked, for it would bring 44 packages (see decision 14).

pub mod eval;
pub mod lexer;
pub mod parse;

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest text of policies, bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most rules.
pub const RULES_MAX: usize = 1024;
/// How deep expressions may nest.
pub const DEPTH_MAX: usize = 64;

/// Name of an entity: `Role::"admin"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid {
    /// Its type.
    pub kind: Arc<str>,
    /// Its name among those of its type.
    pub id: Arc<str>,
}

impl Uid {
    /// A name.
    pub fn new(kind: &str, id: &str) -> Uid {
        Uid { kind: kind.into(), id: id.into() }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Long(i64),
    /// Text.
    Text(Arc<str>),
    /// A set, without order or repetition.
    Set(Vec<Value>),
    /// Fields by name.
    Record(BTreeMap<Arc<str>, Value>),
    /// An entity.
    Entity(Uid),
    /// An address or a subnet.
    Address(IpNet),
}

impl Value {
    /// Text.
    pub fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    /// A set of texts.
    pub fn texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Value {
        Value::set(texts.into_iter().map(Value::text).collect())
    }

    /// A set.
    pub fn set(mut members: Vec<Value>) -> Value {
        members.sort();
        members.dedup();
        Value::Set(members)
    }
}

/// An entity: its name, everything that it is in, and its attributes.
#[derive(Clone, Debug)]
pub struct Entity {
    /// Its name.
    pub uid: Uid,
    /// All that it is in, near or far.
    pub within: Vec<Uid>,
    /// Its attributes.
    pub attributes: BTreeMap<Arc<str>, Value>,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Who.
    pub principal: &'r Entity,
    /// Does what.
    pub action: &'r Entity,
    /// With what.
    pub resource: &'r Entity,
    /// Further facts.
    pub context: &'r BTreeMap<Arc<str>, Value>,
}

/// Where a principal or resource must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// Anywhere.
    Any,
    /// It is this one.
    Is(Uid),
    /// It is this one or in it.
    In(Uid),
    /// It is of this type, and perhaps in that entity.
    Kind(Arc<str>, Option<Uid>),
}

/// An operator with two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binary {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Add,
    Subtract,
    Multiply,
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyph {
    /// This character.
    Exact(char),
    /// Any characters, or none.
    Any,
}

/// A variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Variable {
    Principal,
    Action,
    Resource,
    Context,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A literal.
    Literal(Value),
    /// A variable.
    Variable(Variable),
    /// `!`.
    Not(Box<Expression>),
    /// `-`.
    Negative(Box<Expression>),
    /// An operator with two sides.
    Binary(Binary, Box<Expression>, Box<Expression>),
    /// `if`.
    If(Box<[Expression; 3]>),
    /// `.name` or `["name"]`.
    Field(Box<Expression>, Arc<str>),
    /// `has`.
    Has(Box<Expression>, Arc<str>),
    /// `like`.
    Like(Box<Expression>, Vec<Glyph>),
    /// `is`, perhaps with `in`.
    Kind(Box<Expression>, Arc<str>, Option<Box<Expression>>),
    /// `[…]`.
    Set(Vec<Expression>),
    /// `{…}`.
    Record(Vec<(Arc<str>, Expression)>),
    /// `ip(…)`.
    Address(Box<Expression>),
    /// A method of the first one.
    Call(Method, Vec<Expression>),
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    Contains,
    ContainsAll,
    ContainsAny,
    IsEmpty,
    IsInRange,
    IsIpv4,
    IsIpv6,
    IsLoopback,
    IsMulticast,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `permit`, not `forbid`.
    pub permit: bool,
    /// Scope of the principal.
    pub principal: Scope,
    /// Scopes of the action: any of them.
    pub action: Vec<Scope>,
    /// Scope of the resource.
    pub resource: Scope,
    /// Conditions: `when` if true, `unless` if not.
    pub conditions: Vec<(bool, Expression)>,
    /// The line on which it begins.
    pub line: usize,
}

/// Rules in the order of their text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(pub Vec<Rule>);

impl std::str::FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Rules, String> {
        parse::rules(text)
    }
}

impl Rules {
    /// The number of the rule that decides on a request among those that `chosen` lets through: `Ok` of the first `permit`
    /// that counts, `Err` of the first `forbid` that does, or of none where no rule counts.
    ///
    /// # Errors
    /// The number of the rule that forbids it.
    pub fn decide(
        &self,
        request: &Request<'_>,
        chosen: impl Fn(&Rule) -> bool,
    ) -> Result<usize, Option<usize>> {
        let counts = |permit: bool| {
            let rules = self.0.iter().enumerate();
            rules
                .filter(|(_, rule)| rule.permit == permit && chosen(rule))
                .find(|(_, rule)| eval::counts(rule, request))
                .map(|(number, _)| number)
        };
        match counts(false) {
            Some(number) => Err(Some(number)),
            None => counts(true).ok_or(None),
        }
    }
}

#[cfg(test)]
mod tests;
