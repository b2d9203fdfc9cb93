//! The choice of a gateway: rendezvous hashing, so that a gateway that comes or goes moves only its
//! own share of the conversations.

use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use weir_model::entry::GatewayEntry;

/// The gateway for the conversation of two addresses of a network; the same at every switch and after
/// every restart. The order of the two addresses does not matter.
pub fn choose(gateways: &[GatewayEntry], vni: u32, a: IpAddr, b: IpAddr) -> Option<&GatewayEntry> {
    let pair = (a.min(b), a.max(b));
    gateways.iter().max_by_key(|gateway| {
        let mut hasher = SipHasher13::new();
        (vni, pair, gateway.underlay).hash(&mut hasher);
        (hasher.finish(), gateway.underlay)
    })
}
