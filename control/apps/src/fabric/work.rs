//! One decision in the making: the view, what was looked up already, and the marks.

use super::FabricSettings;
use super::domains::Told;
use super::marks::Marks;
use super::switches::Addresses;
use super::tables::{
    ACTUATORS, COUNTERS, GATEWAYS, LOADS, Load, Member, RESOURCES, Stored, VNIS, kind_prefix, label, read,
    resource_key, vni_key,
};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::Role;
use weir_model::resource::{FieldError, Kind, ResourceId};
use weir_model::{Label, Version};
use weir_store::{Rejection, TableName, View};

/// What is counted, in [`COUNTERS`]. The byte is stable for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Networks = 0,
    Subnets = 1,
    Endpoints = 2,
    Routes = 3,
    Rules = 4,
    Addresses = 5,
    HostEndpoints = 6,
    HostOffloads = 7,
    RuleTags = 8,
    Actuators = 9,
    Gateways = 10,
    TagRules = 11,
    LastVni = 12,
    Waiting = 13,
    Balancers = 14,
    HostTurns = 15,
    Domains = 16,
    Told = 17,
}

/// See the module.
pub(super) struct Work<'v, 's> {
    pub view: &'v mut View<'s>,
    pub version: Version,
    pub settings: &'v FabricSettings,
    pub marks: Marks,
    /// The actuator that just joined and gets everything it shall have.
    pub fresh: Option<Label>,
    /// Networks that came to be shared with a domain, or ceased to be.
    pub shares: BTreeSet<(Label, Vni)>,
    /// What other domains are told.
    pub told: Vec<Told>,
    /// Keys that are issued again though the actuator shall have just that.
    pub again: bool,
    /// Where switches are, once that was looked up. Only when actuators change no more in this decision.
    pub switches: Option<Addresses>,
    stored: BTreeMap<Vec<u8>, Option<Rc<Stored>>>,
    members: BTreeMap<Label, Option<Rc<Member>>>,
    vnis: BTreeMap<Label, Vni>,
    loads: BTreeMap<Label, Load>,
}

impl<'v, 's> Work<'v, 's> {
    pub(super) fn new(
        view: &'v mut View<'s>,
        version: Version,
        settings: &'v FabricSettings,
    ) -> Work<'v, 's> {
        Work {
            view,
            version,
            settings,
            marks: Marks::default(),
            fresh: None,
            again: false,
            switches: None,
            shares: BTreeSet::new(),
            told: Vec::new(),
            stored: BTreeMap::new(),
            members: BTreeMap::new(),
            vnis: BTreeMap::new(),
            loads: BTreeMap::new(),
        }
    }

    /// A resource as it is now.
    pub(super) fn stored(&mut self, id: &ResourceId) -> Option<Rc<Stored>> {
        self.stored_at(resource_key(id))
    }

    pub(super) fn stored_at(&mut self, key: Vec<u8>) -> Option<Rc<Stored>> {
        if let Some(found) = self.stored.get(&key) {
            return found.clone();
        }
        let found = self.view.get(RESOURCES, &key).map(|bytes| Rc::new(Stored::from_json(&bytes)));
        self.stored.insert(key, found.clone());
        found
    }

    pub(super) fn named(&mut self, network: &Label, kind: Kind, name: &Label) -> Option<Rc<Stored>> {
        let mut key = kind_prefix(network, kind);
        key.extend_from_slice(name.as_str().as_bytes());
        self.stored_at(key)
    }

    pub(super) fn put_stored(&mut self, stored: Stored) -> Result<(), Rejection> {
        let key = resource_key(&stored.resource.id());
        self.view.put(RESOURCES, &key, stored.to_json())?;
        self.stored.insert(key, Some(Rc::new(stored)));
        Ok(())
    }

    pub(super) fn delete_stored(&mut self, id: &ResourceId) {
        let key = resource_key(id);
        self.view.delete(RESOURCES, &key);
        self.stored.insert(key, None);
    }

    /// All resources of a kind in a network, by name.
    pub(super) fn all_of(&mut self, network: &Label, kind: Kind) -> Vec<Rc<Stored>> {
        let keys = self.view.scan(RESOURCES, &kind_prefix(network, kind));
        keys.into_iter().filter_map(|(key, _)| self.stored_at(key)).collect()
    }

    /// An actuator that joined.
    pub(super) fn member(&mut self, name: &Label) -> Option<Rc<Member>> {
        if let Some(found) = self.members.get(name) {
            return found.clone();
        }
        let bytes = self.view.get(ACTUATORS, name.as_str().as_bytes());
        let found = bytes.map(|bytes| Rc::new(read(ACTUATORS, &bytes)));
        self.members.insert(name.clone(), found.clone());
        found
    }

    pub(super) fn member_as(&mut self, name: &Label, role: Role) -> Option<Rc<Member>> {
        self.member(name).filter(|member| member.facts.role == role)
    }

    pub(super) fn put_member(&mut self, member: Member) -> Result<(), Rejection> {
        let name = member.facts.name.clone();
        self.view.put(ACTUATORS, name.as_str().as_bytes(), encode(&member))?;
        self.members.insert(name, Some(Rc::new(member)));
        Ok(())
    }

    pub(super) fn delete_member(&mut self, name: &Label) {
        self.view.delete(ACTUATORS, name.as_str().as_bytes());
        self.members.insert(name.clone(), None);
    }

    /// Names of the gateways, ascending.
    pub(super) fn gateways(&self) -> Vec<Label> {
        self.view.scan(GATEWAYS, b"").into_iter().map(|(key, _)| label(&key)).collect()
    }

    /// The VNI of a network; known until the end of the decision that deletes the network.
    pub(super) fn vni(&mut self, network: &Label) -> Option<Vni> {
        if let Some(vni) = self.vnis.get(network) {
            return Some(*vni);
        }
        let vni = self.named(network, Kind::Network, network)?.allocated.vni?;
        self.vnis.insert(network.clone(), vni);
        Some(vni)
    }

    /// The network of a VNI; `None` when it is gone.
    pub(super) fn network_name(&self, vni: Vni) -> Option<Label> {
        self.view.get(VNIS, &vni_key(vni, b"")).map(|name| label(&name))
    }

    pub(super) fn flag(&mut self, table: TableName, key: &[u8]) -> Result<(), Rejection> {
        self.view.put(table, key, Vec::new())
    }

    pub(super) fn has(&self, table: TableName, key: &[u8]) -> bool {
        self.view.get(table, key).is_some()
    }

    pub(super) fn count(&self, what: Count, of: &[u8]) -> u64 {
        let bytes = self.view.get(COUNTERS, &counter_key(what, of));
        bytes.map_or(0, |bytes| read(COUNTERS, &bytes))
    }

    /// Counts one more.
    ///
    /// # Errors
    /// When it would pass the limit; `whose` says of what, such as ` of network red`.
    pub(super) fn count_up(
        &mut self,
        what: Count,
        of: &[u8],
        limit: usize,
        whose: impl FnOnce() -> String,
    ) -> Result<(), Rejection> {
        let count = self.count(what, of) + 1;
        if count > limit as u64 {
            return Err(Rejection::limit(&whose(), count as usize, limit));
        }
        self.set_count(what, of, count)
    }

    pub(super) fn count_down(&mut self, what: Count, of: &[u8]) -> Result<(), Rejection> {
        let count = self.count(what, of);
        assert!(count > 0, "{what:?} is counted below zero");
        if count == 1 {
            self.view.delete(COUNTERS, &counter_key(what, of));
            return Ok(());
        }
        self.set_count(what, of, count - 1)
    }

    pub(super) fn set_count(&mut self, what: Count, of: &[u8], count: u64) -> Result<(), Rejection> {
        self.view.put(COUNTERS, &counter_key(what, of), encode(&count))
    }

    pub(super) fn load(&mut self, actuator: &Label) -> &mut Load {
        let view = &*self.view;
        self.loads.entry(actuator.clone()).or_insert_with(|| {
            let bytes = view.get(LOADS, actuator.as_str().as_bytes());
            bytes.map_or_else(Load::default, |bytes| read(LOADS, &bytes))
        })
    }

    /// Takes the loads that were looked at, to be checked and written.
    pub(super) fn take_loads(&mut self) -> BTreeMap<Label, Load> {
        std::mem::take(&mut self.loads)
    }
}

/// Key of a number in [`COUNTERS`]; with an empty `of`, what the keys of all of `what` begin with.
pub(super) fn counter_key(what: Count, of: &[u8]) -> Vec<u8> {
    let mut key = vec![what as u8];
    key.extend_from_slice(of);
    key
}

pub(super) fn reference(resource: impl ToString, problem: impl Into<String>) -> Rejection {
    Rejection::Reference { resource: resource.to_string(), problem: problem.into() }
}

pub(super) fn wrong_field(resource: impl ToString, error: FieldError) -> Rejection {
    Rejection::Field { resource: resource.to_string(), error }
}
