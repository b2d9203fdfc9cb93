//! Marks of many keys, or at many actuators, until they are spread: see [`super::marks`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_model::entry::{Vni, member_bucket};
use weir_model::{Key, Label};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Broad {
    /// Network, policy, route and virtual keys: at every host of the network, and where they concern them at gateways.
    pub networks: BTreeSet<Key>,
    /// Buckets of members, if a rule uses their tag.
    pub members: BTreeSet<(Vni, Label, u8)>,
    /// Tags whose use by rules may have begun or ended.
    pub tags: BTreeSet<(Vni, Label)>,
    /// Addresses whose location may have changed: at gateways and at hosts that hold it.
    pub locations: BTreeSet<(Vni, IpAddr)>,
    /// Networks that may have come to a host or left it, or are on a host that just joined.
    pub pairs: BTreeSet<(Label, Vni)>,
}

impl Broad {
    pub(super) fn tagged(&mut self, vni: Vni, tags: &[Label], addresses: &[IpAddr]) {
        for tag in tags {
            self.members.extend(addresses.iter().map(|a| (vni, tag.clone(), member_bucket(*a))));
        }
    }
}
