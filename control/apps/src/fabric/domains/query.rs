//! Questions about other domains.

use super::super::tables::{DOMAINS, LANES, OWN_CONTROLLERS, TAKEN, label, read};
use super::{Lane, Taken};
use weir_model::Label;
use weir_model::domain::{DomainController, DomainRecord};
use weir_model::event::SourceId;
use weir_store::Store;

/// Another domain, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// What it is, with its controllers as it told them last.
    pub record: DomainRecord,
    /// What it is told.
    pub told: Lane,
    /// What it told.
    pub taken: Taken,
}

/// What another domain is.
pub fn record(store: &Store, name: &Label) -> Option<DomainRecord> {
    store.get(DOMAINS, name.as_str().as_bytes()).map(|cell| read(DOMAINS, &cell.value))
}

/// How far a domain is with what it is told.
pub fn told_domain(store: &Store, name: &Label) -> Option<Lane> {
    store.get(LANES, name.as_str().as_bytes()).map(|cell| read(LANES, &cell.value))
}

/// Another domain.
pub fn domain(store: &Store, name: &Label) -> Option<DomainStatus> {
    let key = name.as_str().as_bytes();
    let taken = store.get(TAKEN, key).map_or_else(Taken::default, |cell| read(TAKEN, &cell.value));
    Some(DomainStatus { record: record(store, name)?, told: told_domain(store, name)?, taken })
}

/// All other domains, by name.
pub fn domains(store: &Store) -> impl Iterator<Item = DomainStatus> + '_ {
    store.scan(DOMAINS, b"").filter_map(|(key, _)| domain(store, &label(key)))
}

/// Who the controllers of this domain are by the word of one of them, as long as that waits for others' words.
pub fn word(store: &Store, source: &SourceId) -> Option<Vec<DomainController>> {
    store.get(OWN_CONTROLLERS, source.0.as_bytes()).map(|cell| read(OWN_CONTROLLERS, &cell.value))
}

/// The controllers of this domain, as it tells others; empty before they have said who they are.
pub fn controllers(store: &Store) -> Vec<DomainController> {
    store.get(OWN_CONTROLLERS, b"").map_or_else(Vec::new, |cell| read(OWN_CONTROLLERS, &cell.value))
}
