//! Policies of FileWalls that are ordered (row F): the newest order for each FileWall of a host stands until it is withdrawn or
//! the host is forgotten.

use super::tables::FILEWALLS;
use crate::delta::tables::{joined, name0, read};
use crate::delta::{Desk, reference, wrong_field};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::entry::Key;
use weir_model::filewall::{PolicyOrder, PolicySet, WALLS_MAX, files_problem};
use weir_model::resource::FieldError;
use weir_store::{Rejection, Store};

/// Orders policies, or withdraws them.
pub(super) fn order(desk: &mut Desk<'_, '_>, order: &PolicyOrder) -> Result<(), Rejection> {
    let PolicyOrder { actuator, wall, files } = order;
    let id = || format!("policies of filewall/{actuator}/{wall}");
    if desk.member(actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    let key = wall_key(actuator, wall);
    match files {
        Some(files) => {
            if let Some(allowed) = files_problem(files) {
                return Err(wrong_field(id(), FieldError::new("files", "", allowed)));
            }
            let standing = desk.view.scan(FILEWALLS, &name0(actuator.as_str())).len();
            if standing >= WALLS_MAX && !desk.has(FILEWALLS, &key) {
                return Err(Rejection::limit(&format!("FileWalls of {actuator}"), standing + 1, WALLS_MAX));
            }
            let set = PolicySet { version: desk.version, files: files.clone() };
            desk.view.put(FILEWALLS, &key, encode(&set))?;
        }
        None if desk.has(FILEWALLS, &key) => desk.view.delete(FILEWALLS, &key),
        None => return Err(reference(id(), "none are ordered")),
    }
    desk.marks.key(actuator, Key::FileWall { host: actuator.clone(), wall: wall.clone() });
    Ok(())
}

/// Forgets all orders for an actuator.
pub(super) fn forget(desk: &mut Desk<'_, '_>, actuator: &Label) {
    for (key, _) in desk.view.scan(FILEWALLS, &name0(actuator.as_str())) {
        desk.view.delete(FILEWALLS, &key);
    }
}

fn wall_key(actuator: &Label, wall: &Label) -> Vec<u8> {
    joined(name0(actuator.as_str()), wall.as_str().as_bytes())
}

/// The policies that are ordered for a FileWall.
pub(super) fn entry(desk: &Desk<'_, '_>, host: &Label, wall: &Label) -> Option<PolicySet> {
    desk.view.get(FILEWALLS, &wall_key(host, wall)).map(|bytes| read(FILEWALLS, &bytes))
}

/// The policies that are ordered for the FileWalls of an actuator: the FileWall, and which.
pub fn policies_of(store: &Store, actuator: &Label) -> impl Iterator<Item = (String, PolicySet)> + use<> {
    let prefix = name0(actuator.as_str());
    // Collected because the store's scan borrows the prefix; there are few.
    let found: Vec<(String, PolicySet)> = store
        .scan(FILEWALLS, &prefix)
        .map(|(key, cell)| {
            (String::from_utf8_lossy(&key[prefix.len()..]).into_owned(), read(FILEWALLS, &cell.value))
        })
        .collect();
    found.into_iter()
}
