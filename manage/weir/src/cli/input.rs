//! Files of resources: YAML or JSON, many documents a file, lists allowed.

use crate::failure::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use weir_api::any::AnyResource;
use weir_base::file::read_text;

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A document and where it was found.
#[derive(Clone, Debug)]
pub struct Document {
    /// The resource as JSON.
    pub value: Value,
    /// The resource, checked by itself.
    pub resource: AnyResource,
}

/// Reads files; `-` is the standard input, a folder means its `*.yaml`, `*.yml` and `*.json`.
///
/// # Errors
/// [`Failure`] that names file, document, field, value and what is allowed.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut inside: Vec<PathBuf> = std::fs::read_dir(path)
                .map_err(Failure::io(path.display().to_string()))?
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json"))
                .collect();
            inside.sort();
            for path in inside {
                documents.extend(read_one(&path)?);
            }
        } else {
            documents.extend(read_one(path)?);
        }
    }
    if documents.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::Input(format!(
            "{}: no resource is in there; a folder's files end in .yaml, .yml or .json, and 'weir delete' deletes",
            names.join(", ")
        )));
    }
    Ok(documents)
}

/// The text of a file, or of the standard input for '-': all of it, or an error.
///
/// # Errors
/// As [`weir_base::file::read_text`].
pub fn whole(path: &Path, bytes_max: u64) -> std::io::Result<String> {
    match path.as_os_str() == "-" {
        true => read_text(std::io::stdin().lock(), bytes_max),
        false => read_text(std::fs::File::open(path)?, bytes_max),
    }
}

fn read_one(path: &Path) -> Result<Vec<Document>, Failure> {
    let name = path.display().to_string();
    let text = whole(path, FILE_BYTES_MAX).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let allowed = "name a file, a folder of them, or '-' for the standard input";
            return Failure::Missing(format!("{name}: there is no such file; {allowed}"));
        }
        Failure::io(name.clone())(error)
    })?;
    parse(&name, &text)
}

/// Parses the text of a file.
///
/// # Errors
/// [`Failure::Input`].
pub fn parse(name: &str, text: &str) -> Result<Vec<Document>, Failure> {
    let values = weir_document::values(text).map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    let flat = values.into_iter().flat_map(documents_of);
    flat.enumerate()
        .map(|(number, value)| {
            let place = || match value.get("name").and_then(Value::as_str) {
                Some(resource) => format!("{name}, document {} ({resource})", number + 1),
                None => format!("{name}, document {}", number + 1),
            };
            let resource = AnyResource::from_document(&value)
                .map_err(|error| Failure::Input(format!("{}: {error}", place())))?;
            Ok(Document { value, resource })
        })
        .collect()
}

/// The documents in what was read: one, a list of them, or what `weir get -o json` prints.
fn documents_of(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.into_iter().map(resource_of).collect(),
        Value::Null => Vec::new(),
        Value::Object(mut fields) if !fields.contains_key("kind") && fields.contains_key("items") => {
            fields.remove("items").map_or_else(Vec::new, documents_of)
        }
        other => vec![resource_of(other)],
    }
}

/// The resource of what the API shows of one: what was asked for, its version and what was allocated.
fn resource_of(value: Value) -> Value {
    match value {
        Value::Object(mut fields) if !fields.contains_key("kind") && fields.contains_key("allocated") => {
            fields.remove("resource").unwrap_or(Value::Null)
        }
        other => other,
    }
}
