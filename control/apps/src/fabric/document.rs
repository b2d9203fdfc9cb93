//! Documents: JSON to a [`Resource`], with errors that name the field.

use super::DOCUMENT_BYTES_MAX;
use super::work::wrong_field;
use serde_json::Value;
use weir_model::resource::{FieldError, Resource, ResourceId};
use weir_store::Rejection;

/// Most fields of one object that are looked through for the wrong one.
const SUSPECTS_MAX: usize = 64;
/// Deepest field that is named.
const PATH_MAX: usize = 4;
/// Longest value that an error repeats, characters.
const SHOWN_MAX: usize = 80;

/// The resource that a document describes; it must be the one named.
pub(super) fn parse(id: &ResourceId, document: &str) -> Result<Resource, Rejection> {
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(Rejection::limit(
            &format!("bytes of the document of {id}"),
            document.len(),
            DOCUMENT_BYTES_MAX,
        ));
    }
    let resource = serde_json::from_str::<Resource>(document)
        .map_err(|error| wrong_field(id, explain(document, &error.to_string())))?;
    let found = resource.id();
    if found != *id {
        let field = match () {
            () if found.kind != id.kind => "kind",
            () if found.name != id.name => "name",
            () => "network",
        };
        return Err(wrong_field(id, FieldError::new(field, &found, format!("the document of {id}"))));
    }
    resource.validate().map_err(|error| wrong_field(id, error))?;
    Ok(resource)
}

fn explain(document: &str, said: &str) -> FieldError {
    let Ok(mut whole) = serde_json::from_str::<Value>(document) else {
        return FieldError::new("document", shown(document), format!("JSON; {said}"));
    };
    let Err(error) = serde_json::from_value::<Resource>(whole.clone()) else {
        return FieldError::new("document", shown(document), said);
    };
    let message = error.to_string();
    // The reader does not say where it failed inside a tagged resource. The wrong field is the one
    // without which the complaint is another.
    let mut path = Vec::new();
    while let Some(name) = suspect(&mut whole, &path, &message).filter(|_| path.len() < PATH_MAX) {
        path.push(name);
    }
    if let Some(missing) = quoted(&message, "missing field `") {
        path.push(missing.to_string());
        return FieldError::new(path.join("."), "", "it must be given");
    }
    let value = at(&mut whole, &path).map_or_else(String::new, |value| shown(&value.to_string()));
    if path.is_empty() {
        let field = quoted(&message, "unknown variant `").map_or("document", |_| "kind");
        return FieldError::new(field, value, message);
    }
    match message.split_once("`, expected ").filter(|_| message.starts_with("unknown field")) {
        Some((_, known)) => FieldError::new(path.join("."), value, format!("no such field, but {known}")),
        None => FieldError::new(path.join("."), value, message),
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
