//! One decision of networks in the making: the desk of all deciders, and what was looked up or marked here.

use super::FabricSettings;
use super::broad::Broad;
use super::change::Told;
use super::tables::{GATEWAYS, RESOURCES, Stored, VNIS, kind_prefix, label, resource_key, vni_key};
use crate::delta::Desk;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use weir_model::Label;
use weir_model::entry::Vni;
use weir_model::resource::{Kind, ResourceId};
use weir_store::Rejection;

/// What is counted, in [`super::tables::COUNTERS`]. The byte is stable for ever; 9 is the engine's.
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
    Gateways = 10,
    TagRules = 11,
    LastVni = 12,
    Waiting = 13,
    Balancers = 14,
    HostTurns = 15,
    Domains = 16,
    Told = 17,
}

impl From<Count> for u8 {
    fn from(count: Count) -> u8 {
        count as u8
    }
}

/// What a decision keeps beside the desk.
#[derive(Default)]
pub(super) struct Own {
    pub broad: Broad,
    /// The actuator that just joined and gets everything it shall have.
    pub fresh: Option<Label>,
    /// Networks that came to be shared with a domain, or ceased to be.
    pub shares: BTreeSet<(Label, Vni)>,
    /// What other domains are told.
    pub told: Vec<Told>,
    /// Underlay addresses of all switches by bucket, once they were looked up. Only when actuators change no more in this decision.
    pub switches: Option<BTreeMap<u8, BTreeSet<IpAddr>>>,
    stored: BTreeMap<Vec<u8>, Option<Rc<Stored>>>,
    vnis: BTreeMap<Label, Vni>,
}

/// See the module. Whatever the desk has it has too.
pub(super) struct Work<'w, 'v, 's> {
    pub desk: &'w mut Desk<'v, 's>,
    pub settings: &'w FabricSettings,
    pub own: &'w mut Own,
}

impl<'v, 's> Deref for Work<'_, 'v, 's> {
    type Target = Desk<'v, 's>;

    fn deref(&self) -> &Desk<'v, 's> {
        self.desk
    }
}

impl<'v, 's> DerefMut for Work<'_, 'v, 's> {
    fn deref_mut(&mut self) -> &mut Desk<'v, 's> {
        self.desk
    }
}

impl Work<'_, '_, '_> {
    /// A resource as it is now.
    pub(super) fn stored(&mut self, id: &ResourceId) -> Option<Rc<Stored>> {
        self.stored_at(resource_key(id))
    }

    pub(super) fn stored_at(&mut self, key: Vec<u8>) -> Option<Rc<Stored>> {
        if let Some(found) = self.own.stored.get(&key) {
            return found.clone();
        }
        let found = self.view.get(RESOURCES, &key).map(|bytes| Rc::new(Stored::from_json(&bytes)));
        self.own.stored.insert(key, found.clone());
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
        self.own.stored.insert(key, Some(Rc::new(stored)));
        Ok(())
    }

    pub(super) fn delete_stored(&mut self, id: &ResourceId) {
        let key = resource_key(id);
        self.view.delete(RESOURCES, &key);
        self.own.stored.insert(key, None);
    }

    /// All resources of a kind in a network, by name.
    pub(super) fn all_of(&mut self, network: &Label, kind: Kind) -> Vec<Rc<Stored>> {
        let keys = self.view.scan(RESOURCES, &kind_prefix(network, kind));
        keys.into_iter().filter_map(|(key, _)| self.stored_at(key)).collect()
    }

    /// Names of the gateways, ascending.
    pub(super) fn gateways(&self) -> Vec<Label> {
        self.view.scan(GATEWAYS, b"").into_iter().map(|(key, _)| label(&key)).collect()
    }

    /// The VNI of a network; known until the end of the decision that deletes the network.
    pub(super) fn vni(&mut self, network: &Label) -> Option<Vni> {
        if let Some(vni) = self.own.vnis.get(network) {
            return Some(*vni);
        }
        let vni = self.named(network, Kind::Network, network)?.allocated.vni?;
        self.own.vnis.insert(network.clone(), vni);
        Some(vni)
    }

    /// The network of a VNI; `None` when it is gone.
    pub(super) fn network_name(&self, vni: Vni) -> Option<Label> {
        self.view.get(VNIS, &vni_key(vni, b"")).map(|name| label(&name))
    }
}
