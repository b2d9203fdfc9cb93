//! What a decision does: to one resource, and for one other domain.

use super::tables::Stored;
use std::rc::Rc;
use weir_model::Label;
use weir_model::domain::StatementBody;
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

/// One statement more for a domain.
pub(super) struct Told {
    pub to: Label,
    pub sequence: u64,
    pub after: u64,
    pub body: StatementBody,
}
