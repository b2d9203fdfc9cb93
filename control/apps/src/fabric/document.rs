//! Documents: the JSON of a [`Resource`] that a change wants.

use super::DOCUMENT_BYTES_MAX;
use crate::delta::wrong_field;
use weir_model::resource::{FieldError, Resource, ResourceId};
use weir_store::Rejection;

/// The resource that a document describes; it must be the one named.
pub(super) fn parse(id: &ResourceId, document: &str) -> Result<Resource, Rejection> {
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(Rejection::limit(
            &format!("bytes of the document of {id}"),
            document.len(),
            DOCUMENT_BYTES_MAX,
        ));
    }
    let resource = Resource::from_text(document).map_err(|error| wrong_field(id, error))?;
    let found = resource.id();
    if found != *id {
        let field = match () {
            () if found.kind != id.kind => "kind",
            () if found.name != id.name => "name",
            () => "network",
        };
        return Err(wrong_field(id, FieldError::new(field, &found, format!("the document of {id}"))));
    }
    Ok(resource)
}
