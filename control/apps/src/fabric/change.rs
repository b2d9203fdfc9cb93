//! What a transaction does to one resource.

use super::tables::Stored;
use std::rc::Rc;
use weir_model::resource::{Resource, ResourceId};

/// A resource that becomes another, comes or goes.
pub(super) struct Change {
    pub id: ResourceId,
    pub old: Option<Rc<Stored>>,
    pub new: Option<Resource>,
}

impl Change {
    pub fn old_resource(&self) -> Option<&Resource> {
        self.old.as_ref().map(|old| &old.resource)
    }
}
