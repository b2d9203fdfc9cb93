//! Names of controllers.

use weir_model::Label;

/// Under which name a member of a group signs its events.
pub fn member_name(id: u64) -> Label {
    match Label::new(format!("controller-{id}")) {
        Ok(label) => label,
        Err(error) => unreachable!("{error}"),
    }
}
