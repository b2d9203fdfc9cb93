//! Entries of switches in the words of people: a network by its name, not by its number.

use std::collections::BTreeMap;
use weir_apps::fabric;
use weir_model::entry::Vni;
use weir_model::{Change, Entry, Key, Label, Plan};
use weir_store::Store;

/// Names of networks by their numbers.
pub(super) struct Names<'s> {
    store: &'s Store,
    /// Those that a plan makes.
    planned: BTreeMap<Vni, Label>,
}

impl<'s> Names<'s> {
    pub(super) fn of(store: &'s Store) -> Names<'s> {
        Names { store, planned: BTreeMap::new() }
    }

    pub(super) fn with(store: &'s Store, plan: &Plan) -> Names<'s> {
        let named =
            plan.updates.iter().filter_map(|planned| match (&planned.update.key, &planned.update.change) {
                (Key::Network { vni }, Change::Put(Entry::Network(network))) => {
                    Some((*vni, network.name.clone()))
                }
                _ => None,
            });
        Names { store, planned: named.collect() }
    }

    fn network(&self, vni: Vni) -> Option<Label> {
        self.planned.get(&vni).cloned().or_else(|| fabric::network_of(self.store, vni))
    }

    /// An entry, such as `port/red/web`.
    pub(super) fn key(&self, key: &Key) -> String {
        let text = key.to_string();
        let Some((vni, network)) = key.vni().and_then(|vni| Some((vni, self.network(vni)?))) else {
            return text;
        };
        // Every key of a network is a word and the network's number, and what else it has.
        let (word, rest) = text.split_once('/').unwrap_or((&text, ""));
        match rest.strip_prefix(&vni.to_string()) {
            Some(rest) => format!("{word}/{network}{rest}"),
            None => text,
        }
    }
}
