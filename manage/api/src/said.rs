//! What an operator signs, as the API carries it (row R1): the header by which a call is signed, and the statement that it signs.
//!
//! Under the rule that requests are signed no controller is believed what an operator orders, so whoever calls signs the event that the
//! call becomes ([`weir_model::said`]). A controller makes that event, as it knows the tables; the caller must see it before it signs. So a
//! call is made twice:
//!
//! 1. with `Weir-Signature: prepare; operator=NAME`: nothing is ordered, and the answer is the problem [`TO_SIGN`] with a [`Statement`];
//! 2. with `Weir-Signature: operator=NAME; number=…; made=…; until=…; signature=…`: the same call becomes the same event, which is ordered under
//!    the signature. Where the tables have changed meanwhile it becomes another one: the answer is [`SIGN_AGAIN`] with the new statement.
//!
//! Whoever signs decodes the statement and looks whether it is what was asked ([`crate::asked`]): the controller that made it may lie.
//!
//! A call that becomes no event of that kind, and every call of a domain without the rule, is done at once, whatever the header says.

use crate::problem::ApiError;
pub use crate::statement::{SIGN_AGAIN, Statement, TO_SIGN, UNSIGNED, WAITS};
use axum::http::{HeaderMap, HeaderName};
use serde_json::{Value, json};
use std::fmt;
use weir_model::Label;
use weir_model::join::{from_hex, to_hex};
use weir_model::signed::Signature;

/// The header's name.
pub const HEADER: HeaderName = HeaderName::from_static("weir-signature");
/// Longest value of the header, bytes.
pub const HEADER_BYTES_MAX: usize = 512;
/// Paths and methods of calls that become an operator's event.
const ORDER: [(&str, &str); 16] = [
    ("/v1/apply", "post"),
    ("/v1/actuators/{name}", "delete"),
    ("/v1/actuators/{name}/filewalls/{wall}", "post"),
    ("/v1/actuators/{name}/planes/{plane}/{of}", "put"),
    ("/v1/actuators/{name}/planes/{plane}/{of}", "delete"),
    ("/v1/actuators/{name}/repairs", "post"),
    ("/v1/approvals", "put"),
    ("/v1/approvals/{id}", "post"),
    ("/v1/domains", "post"),
    ("/v1/domains/{name}", "delete"),
    ("/v1/group/members", "post"),
    ("/v1/identities/revoke", "post"),
    ("/v1/operators/{name}", "put"),
    ("/v1/operators/{name}", "delete"),
    ("/v1/tokens", "post"),
    ("/v1/tokens/{id}", "delete"),
];

/// Puts the header, and what it is answered with, into the document.
pub fn describe(document: &mut Value) {
    for (path, method) in ORDER {
        let operation = &mut document["paths"][path][method];
        let Some(operation) = operation.as_object_mut() else { continue };
        let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
        if let Some(parameters) = parameters.as_array_mut() {
            parameters.push(json!({
                "name": "Weir-Signature",
                "in": "header",
                "required": false,
                "description": "Where requests are signed: 'prepare; operator=NAME' orders nothing and is answered with the problem \
                    'to-sign' (409), whose statement has the event; 'operator=NAME; number=N; made=MS; until=MS; signature=HEX' orders it \
                    under this signature, or is answered with 'sign-again' (409) and another statement. Without it the answer is \
                    'unsigned' (403).",
                "schema": {"type": "string", "maxLength": HEADER_BYTES_MAX},
            }));
        }
    }
}

/// A signature of a call.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed {
    /// Who signs.
    pub operator: Label,
    /// The operator's number for it, never used twice.
    pub number: u64,
    /// When it was made, milliseconds of the Unix epoch.
    pub made_ms: u64,
    /// Until when it is taken.
    pub until_ms: u64,
    /// Over all of that, the domain, and the event.
    pub signature: Signature,
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").field("operator", &self.operator).field("number", &self.number).finish()
    }
}

/// What a call says of its signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// Nothing.
    #[default]
    None,
    /// It is to be told what to sign.
    Prepare {
        /// Who will.
        operator: Label,
    },
    /// It is signed.
    Signed(Box<Signed>),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::None => Ok(()),
            Word::Prepare { operator } => write!(f, "prepare; operator={operator}"),
            Word::Signed(signed) => {
                let Signed { operator, number, made_ms, until_ms, signature } = &**signed;
                let signature = [to_hex(&signature.r), to_hex(&signature.s)].concat();
                write!(
                    f,
                    "operator={operator}; number={number}; made={made_ms}; until={until_ms}; signature={signature}"
                )
            }
        }
    }
}

fn wrong(why: impl fmt::Display) -> ApiError {
    ApiError::invalid(format!(
        "the header Weir-Signature: {why}; it is 'prepare; operator=NAME', or 'operator=NAME; number=…; made=…; until=…; \
         signature=…' with 128 hexadecimal digits"
    ))
}

/// The value of one field.
fn number(name: &str, value: Option<&str>) -> Result<u64, ApiError> {
    let value = value.ok_or_else(|| wrong(format_args!("there is no {name}")))?;
    value.parse().map_err(|_| wrong(format_args!("{name}: '{value}' is no whole number")))
}

impl Word {
    /// What the head of a call says.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn of(headers: &HeaderMap) -> Result<Word, ApiError> {
        let mut all = headers.get_all(HEADER).iter();
        match (all.next(), all.next()) {
            (None, _) => Ok(Word::None),
            (Some(value), None) => match value.to_str() {
                Ok(text) => Word::parse(text),
                Err(_) => Err(wrong("it is no text")),
            },
            (Some(_), Some(_)) => Err(wrong("it is there twice")),
        }
    }

    /// What the value of the header says.
    ///
    /// # Errors
    /// As [`Word::of`].
    pub fn parse(text: &str) -> Result<Word, ApiError> {
        if text.len() > HEADER_BYTES_MAX {
            return Err(wrong(format_args!("it has at most {HEADER_BYTES_MAX} bytes")));
        }
        let mut fields: [(&str, Option<&str>); 5] =
            ["operator", "number", "made", "until", "signature"].map(|name| (name, None));
        let mut prepare = false;
        for part in text.split(';').map(str::trim) {
            if part == "prepare" && !prepare {
                prepare = true;
                continue;
            }
            let (name, value) = part.split_once('=').ok_or_else(|| wrong(format_args!("'{part}'")))?;
            let field = fields.iter_mut().find(|(known, _)| *known == name);
            let field = field.ok_or_else(|| wrong(format_args!("there is no field '{name}'")))?;
            if field.1.replace(value).is_some() {
                return Err(wrong(format_args!("{name} is there twice")));
            }
        }
        let [operator, count, made, until, signature] = fields.map(|(_, value)| value);
        let operator = operator.ok_or_else(|| wrong("there is no operator"))?;
        let operator = Label::new(operator).map_err(|error| wrong(format_args!("operator: {error}")))?;
        if prepare {
            if count.or(made).or(until).or(signature).is_some() {
                return Err(wrong("what is to be prepared has no signature yet"));
            }
            return Ok(Word::Prepare { operator });
        }
        let bytes = signature.and_then(from_hex::<64>).ok_or_else(|| wrong("signature"))?;
        let (mut r, mut s) = ([0; 32], [0; 32]);
        r.copy_from_slice(&bytes[..32]);
        s.copy_from_slice(&bytes[32..]);
        Ok(Word::Signed(Box::new(Signed {
            operator,
            number: number("number", count)?,
            made_ms: number("made", made)?,
            until_ms: number("until", until)?,
            signature: Signature { r, s },
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let signed = Signed {
            operator: Label::new("alice").unwrap(),
            number: u64::MAX,
            made_ms: 1,
            until_ms: 2,
            signature: Signature { r: [7; 32], s: [0xfe; 32] },
        };
        for word in [Word::Prepare { operator: Label::new("bob").unwrap() }, Word::Signed(Box::new(signed))] {
            let text = word.to_string();
            assert!(text.len() <= HEADER_BYTES_MAX);
            assert_eq!(Word::parse(&text), Ok(word));
        }
    }

    #[test]
    fn what_is_no_signature_is_refused_with_what_would_be_right() {
        let hex = "07".repeat(64);
        for text in [
            "",
            "prepare",
            "prepare; prepare; operator=bob",
            "operator=Bob!; prepare",
            "prepare; operator=bob; number=1",
            "operator=bob",
            "operator=bob; operator=eve; prepare",
            "operator=bob; number=1; made=1; until=2; signature=07",
            &format!("operator=bob; number=-1; made=1; until=2; signature={hex}"),
            &format!("operator=bob; number=1; made=1; signature={hex}"),
            &format!("operator=bob; number=1; made=1; until=2; role=admin; signature={hex}"),
            &"a".repeat(HEADER_BYTES_MAX + 1),
        ] {
            let error = Word::parse(text).unwrap_err();
            assert!(error.problem.message.contains("prepare; operator=NAME"), "{text}: {error}");
        }
    }

    #[test]
    fn any_value_is_read_without_harm() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(text) = std::str::from_utf8(bytes)
                && let Ok(word) = Word::parse(text)
            {
                assert_eq!(Word::parse(&word.to_string()), Ok(word));
            }
        });
    }
}
