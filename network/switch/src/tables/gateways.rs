//! The choice of a gateway (row A11): rendezvous hashing, so that a gateway that comes or goes moves only its
//! own share of the conversations, and every switch finds by itself which those are ([`is_taken`]).

use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use weir_model::entry::GatewayEntry;

/// The gateway for the conversation of two addresses of a network; the same at every switch and after
/// every restart. The order of the two addresses does not matter.
pub fn choose(gateways: &[GatewayEntry], vni: u32, a: IpAddr, b: IpAddr) -> Option<&GatewayEntry> {
    let pair = (a.min(b), a.max(b));
    gateways.iter().max_by_key(|gateway| weight(vni, pair, gateway.underlay))
}

/// Whether one of the gateways that came takes a conversation from the gateway that has it.
pub fn is_taken(come: &[IpAddr], from: IpAddr, vni: u32, a: IpAddr, b: IpAddr) -> bool {
    let pair = (a.min(b), a.max(b));
    let had = weight(vni, pair, from);
    come.iter().any(|gateway| weight(vni, pair, *gateway) > had)
}

fn weight(vni: u32, pair: (IpAddr, IpAddr), underlay: IpAddr) -> (u64, IpAddr) {
    let mut hasher = SipHasher13::new();
    (vni, pair, underlay).hash(&mut hasher);
    (hasher.finish(), underlay)
}
