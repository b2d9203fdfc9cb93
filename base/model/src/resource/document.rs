//! JSON documents to resources, with errors that name the field.

use super::{FieldError, Kind, Resource, words};
use serde_json::Value;

/// Most fields of one object that are looked through for the wrong one.
const SUSPECTS_MAX: usize = 64;
/// Deepest field that is named.
const PATH_MAX: usize = 4;
/// Longest value that an error repeats, characters.
const SHOWN_MAX: usize = 80;

impl Resource {
    /// Reads a document of JSON text and checks it by itself.
    ///
    /// # Errors
    /// The first wrong field, its value, and what is allowed; field `document` when it is no JSON.
    pub fn from_text(text: &str) -> Result<Resource, FieldError> {
        let error = match serde_json::from_str::<Resource>(text) {
            Ok(resource) => return resource.validate().map(|()| resource),
            Err(error) => error.to_string(),
        };
        let Ok(value) = serde_json::from_str::<Value>(text) else {
            return Err(FieldError::new("document", shown(text), format!("JSON; {error}")));
        };
        // What is well as a value, such as with one of two fields of a name, is no document for that.
        Resource::from_document(&value).and(Err(FieldError::new("document", shown(text), error)))
    }

    /// Reads a document and checks it by itself.
    ///
    /// # Errors
    /// The first wrong field, its value, and what is allowed.
    pub fn from_document(document: &Value) -> Result<Resource, FieldError> {
        let resource = serde_json::from_value::<Resource>(document.clone())
            .map_err(|error| explain(document.clone(), &error.to_string()))?;
        resource.validate()?;
        Ok(resource)
    }
}

fn explain(mut whole: Value, message: &str) -> FieldError {
    // The reader does not say where it failed inside a tagged resource. The wrong field is the one
    // without which the complaint is another.
    let mut path = Vec::new();
    while let Some(name) = suspect(&mut whole, &path, message).filter(|_| path.len() < PATH_MAX) {
        path.push(name);
    }
    if let Some(missing) = quoted(message, "missing field `") {
        path.push(missing.to_string());
        return FieldError::new(path.join("."), "", "it must be given");
    }
    let value = at(&mut whole, &path).map_or_else(String::new, |value| match value {
        Value::String(text) => shown(text),
        value => shown(&value.to_string()),
    });
    if !whole.is_object() {
        return FieldError::new(
            "document",
            value,
            "fields of a resource, such as 'kind: network' and 'name: red'",
        );
    }
    if path.is_empty()
        && let Some(kind) = quoted(message, "unknown variant `")
    {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        return FieldError::new("kind", kind, kinds.join(", "));
    }
    if path.is_empty() {
        return FieldError::new("document", value, words::allowed(message));
    }
    match message.split_once("`, expected ").filter(|_| message.starts_with("unknown field")) {
        Some((_, known)) => FieldError::new(
            path.join("."),
            value,
            format!("there is no such field, but {}", words::listed(known)),
        ),
        None => FieldError::new(path.join("."), value, without_value(message)),
    }
}

/// What is allowed, where a text's own reader says the whole: field, value and that.
fn without_value(message: &str) -> String {
    match message.split_once("' is not allowed: ").or_else(|| message.split_once("' is not a name: ")) {
        Some((_, allowed)) => allowed.to_owned(),
        None => words::allowed(message),
    }
}

/// A field of the object at `path` whose removal makes the complaint go away.
fn suspect(whole: &mut Value, path: &[String], message: &str) -> Option<String> {
    let names: Vec<String> = match at(whole, path)? {
        Value::Object(fields) => fields.keys().take(SUSPECTS_MAX).cloned().collect(),
        _ => return None,
    };
    names.into_iter().filter(|name| !path.is_empty() || name != "kind").find(|name| {
        let Some(Value::Object(fields)) = at(whole, path) else { return false };
        let Some(removed) = fields.remove(name) else { return false };
        let gone = match serde_json::from_value::<Resource>(whole.clone()) {
            Ok(_) => true,
            Err(error) => !message.starts_with("missing field") && error.to_string() != message,
        };
        if let Some(Value::Object(fields)) = at(whole, path) {
            fields.insert(name.clone(), removed);
        }
        gone
    })
}

fn at<'a>(whole: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(whole, |value, name| value.get_mut(name))
}

fn quoted<'a>(message: &'a str, before: &str) -> Option<&'a str> {
    message.strip_prefix(before)?.split('`').next()
}

fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}
