//! Documents that people write, in YAML or JSON: settings, policies, descriptions.
//!
//! Invariants
//! - An error names the field, its value and what is allowed, in words of documents, not of the program that reads them.
//! - `true` and `false` are booleans and nothing else is: `y`, `no` and `off` are names like others.
//! - A field that is given twice is an error, and so is one that there is not.
//!
//! What is no YAML is said by its reader, with the line.

#[cfg(test)]
mod tests;
mod words;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Most documents, and things in them, of a text: more than fit into what anybody reads.
const MOST: usize = 1 << 27;

/// Why a text is not the document that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

/// The documents of a text, as they stand; an empty one is left out, or is [`Value::Null`].
///
/// # Errors
/// The text is no YAML.
pub fn values(text: &str) -> Result<Vec<Value>, Wrong> {
    // Whoever reads the text bounds its size. The reader's own limits of how many things there are would refuse large, honest files; those
    // of depth and of what is repeated by name stay.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_documents: MOST, max_events: MOST, max_nodes: MOST },
        strict_booleans: true,
    };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Wrong(words::plain(&error.to_string())))
}

/// Reads a text of one document.
///
/// # Errors
/// The field, its value, and what is allowed.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    let mut documents = values(text)?;
    documents.retain(|document| !document.is_null());
    match documents.len() {
        0 => of(&Value::Object(serde_json::Map::new())),
        1 => of(&documents[0]),
        count => Err(Wrong(format!(
            "it has {count} documents, and should have one: take out what stands behind '---'"
        ))),
    }
}

/// Reads a document that was taken apart.
///
/// # Errors
/// As [`read`].
pub fn of<T: DeserializeOwned>(document: &Value) -> Result<T, Wrong> {
    // A list would be taken as the values of the fields in their order.
    if !document.is_object() {
        return Err(Wrong("a document is fields with values, such as 'name: web'".to_owned()));
    }
    serde_path_to_error::deserialize(document)
        .map_err(|error| Wrong(words::wrong(error.path(), &error.inner().to_string(), document)))
}
