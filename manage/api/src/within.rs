//! Whether a body is within what the document says: before it is parsed, how deep and how many; then each field.
//!
//! - A reader of JSON that is given a body of 32 MiB of brackets makes a value of each, some fifty times as large. So nesting and values are
//!   counted first, in one pass over the bytes that keeps nothing ([`DEPTH_MAX`], [`VALUES_MAX`]).
//! - Fields are compared with the schema of the document ([`crate::bounds`]). Types and names of fields are for the parser, which says more about
//!   them; resources are for the controller, which names the resource.

use crate::bounds::{PATTERNS, is_of};
use crate::types::ApiError;
use serde_json::Value;
use weir_model::resource::FieldError;

/// Deepest nesting of a body.
pub const DEPTH_MAX: usize = 32;
/// Most values of a body: fields, members of lists, lists and objects.
pub const VALUES_MAX: usize = 2_000_000;
/// What a refusal says of a value, at most.
const SHOWN_CHARS_MAX: usize = 64;
/// Of these the controller says more.
const JUDGED_BY_CONTROLLER: [(&str, &str); 1] = [("ApplyRequest", "resources")];

/// Counts what a body holds, before it is parsed. What is no JSON is for the parser.
///
/// # Errors
/// It is nested too deep, or holds too much.
pub fn count(body: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut values, mut in_text, mut escaped) = (0_usize, 1_usize, false, false);
    for byte in body {
        if in_text {
            (in_text, escaped) = (escaped || *byte != b'"', !escaped && *byte == b'\\');
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                depth += 1;
                values += 1;
                if depth > DEPTH_MAX {
                    return Err(ApiError::invalid(format!(
                        "lists and fields are nested too deep: {DEPTH_MAX} levels are taken"
                    )));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
    }
    if values > VALUES_MAX {
        return Err(ApiError::too_large(format!(
            "{values} values are over the limit of {VALUES_MAX} a body"
        )));
    }
    Ok(())
}

/// The schemas of a document, with the bounds of each field.
#[derive(Clone, Copy, Debug)]
pub struct Schemas(pub &'static Value);

/// What is outside.
enum Wrong {
    Field(FieldError),
    Many(String),
}

impl Schemas {
    /// Compares a body with the schema of a name.
    ///
    /// # Errors
    /// The first field that is outside, its value, and what is allowed.
    pub fn check(self, schema: &str, body: &[u8]) -> Result<(), ApiError> {
        // What cannot be parsed was refused before.
        let Ok(value) = serde_json::from_slice::<Value>(body) else { return Ok(()) };
        let mut path = Vec::new();
        self.named(schema, &value, &mut path).map_err(|wrong| match wrong {
            Wrong::Many(text) => ApiError::too_large(text),
            Wrong::Field(error) => ApiError::field("request", error),
        })
    }

    fn named(self, schema: &str, value: &Value, path: &mut Vec<String>) -> Result<(), Wrong> {
        let found = &self.0["components"]["schemas"][schema];
        match value.as_object() {
            Some(fields) if found.get("properties").is_some() => {
                for (name, value) in fields {
                    if JUDGED_BY_CONTROLLER.contains(&(schema, name)) {
                        continue;
                    }
                    path.push(name.clone());
                    self.inside(&found["properties"][name], value, path)?;
                    path.pop();
                }
                Ok(())
            }
            // A parser takes the fields of a list in their order, too, which nobody means.
            None if found.get("properties").is_some() && value.is_array() => {
                let field = if path.is_empty() { "body".to_string() } else { path.join(".") };
                Err(Wrong::Field(FieldError::new(field, "a list", "fields with values")))
            }
            _ => self.inside(found, value, path),
        }
    }

    /// A part of a document is not much deeper than a body.
    fn inside(self, schema: &Value, value: &Value, path: &mut Vec<String>) -> Result<(), Wrong> {
        if let Some(name) = schema["$ref"].as_str().and_then(|place| place.rsplit('/').next()) {
            return self.named(name, value, path);
        }
        if let Some(all) = schema["allOf"].as_array() {
            return all.iter().try_for_each(|one| self.inside(one, value, path));
        }
        if let Some(one_of) = schema["oneOf"].as_array() {
            // A list of words, null, or what it is if it is not: with one of the fields that the value has.
            let has = |schema: &&Value| {
                let fields = value.as_object();
                schema.get("$ref").is_some()
                    || fields.is_some_and(|fields| {
                        fields.keys().any(|name| schema["properties"].get(name).is_some())
                    })
            };
            return one_of.iter().filter(has).try_for_each(|one| self.inside(one, value, path));
        }
        let wrong = |path: &[String], shown: String, allowed: String| {
            let shown: String = shown.chars().take(SHOWN_CHARS_MAX).collect();
            Err(Wrong::Field(FieldError::new(path.join("."), shown, allowed)))
        };
        match value {
            Value::Number(number) if is_of(schema, "integer") => {
                let number = number.as_i128();
                let end = |name: &str| schema[name].as_number().and_then(serde_json::Number::as_i128);
                let (least, most) = (end("minimum"), end("maximum"));
                let outside = |number: i128| {
                    least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most)
                };
                match number.filter(|number| outside(*number)) {
                    Some(number) => {
                        let allowed = format!(
                            "a whole number from {} to {}",
                            least.map_or(String::new(), |least| least.to_string()),
                            most.map_or(String::new(), |most| most.to_string())
                        );
                        wrong(path, number.to_string(), allowed)
                    }
                    None => Ok(()),
                }
            }
            Value::String(text) => {
                let chars = text.chars().count() as u64;
                let end = |name: &str| schema[name].as_u64();
                if let Some(most) = end("maxLength").filter(|most| chars > *most) {
                    return wrong(path, text.clone(), format!("at most {most} characters, not {chars}"));
                }
                let pattern = schema["pattern"].as_str();
                let holds = PATTERNS.iter().find(|(known, _)| pattern == Some(known)).map(|(_, holds)| holds);
                match (pattern, holds) {
                    (Some(pattern), Some(holds)) if !holds(text) => {
                        wrong(path, text.clone(), format!("text of the form {pattern}"))
                    }
                    _ => Ok(()),
                }
            }
            Value::Array(items) => {
                if let Some(most) = schema["maxItems"].as_u64().filter(|most| items.len() as u64 > *most) {
                    let place = path.join(".");
                    return Err(Wrong::Many(format!(
                        "{place}: {} of them are over the limit of {most}",
                        items.len()
                    )));
                }
                if let Some(least) = schema["minItems"].as_u64().filter(|least| (items.len() as u64) < *least)
                {
                    return wrong(path, format!("{} of them", items.len()), format!("at least {least}"));
                }
                for (at, item) in items.iter().enumerate() {
                    path.push(at.to_string());
                    self.inside(&schema["items"], item, path)?;
                    path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &[u8]) -> String {
        count(body).unwrap_err().problem.message.clone()
    }

    #[test]
    fn bodies_are_counted_before_they_are_parsed() {
        let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
        count(nested(DEPTH_MAX).as_bytes()).unwrap();
        assert!(refused(nested(DEPTH_MAX + 1).as_bytes()).contains("too deep"));
        assert!(refused("[".repeat(100_000).as_bytes()).contains("too deep"));
        assert!(refused(format!("[{}1]", "1,".repeat(VALUES_MAX)).as_bytes()).contains("over the limit"));
        // What stands in text is none.
        count(format!("[\"{}\\\"{}\"]", "[".repeat(1000), ",".repeat(VALUES_MAX)).as_bytes()).unwrap();
        assert!(refused(format!("\"a\\\\\"{}", "[".repeat(1000)).as_bytes()).contains("too deep"));
        count(b"}}}}]]]]").unwrap();
    }
}
