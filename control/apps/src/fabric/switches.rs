//! The list of switches: who may send encapsulated packets to whom, and what of the underlay no tenant reaches.
//!
//! Every switch is told the underlay addresses of all switches of its own domain, spread over [`MEMBER_BUCKETS`] entries so that one
//! switch more costs each of the others one small entry, and then one entry more: where the other domains' switches are, by what
//! the operator granted them, and where this domain's controllers are. That one is told last, so a list that counts is whole.
//!
//! Invariants
//! - Only who can read it is told: an actuator of which a controller said, in the order, that it speaks [`SWITCHES_SINCE`] or later.
//!   So an order of before, which has no such event, is decided as it was.
//! - Receivers before senders: see [`super::depend`]. A host learns of the gateways, and of another host's place, when these have it in
//!   their lists; nobody waits for one that has no session.
//! - What is told of another domain ends with it: a domain that is forgotten is in nobody's list.
//! - Addresses are those that the actuators joined with; several may have one, as when a host was made anew under another name.
//! - Where a single controller is not believed, a protocol counts by the word of more controllers than may lie.

use super::domains;
use super::marks::readers;
use super::tables::{ACTUATORS, Member, read};
use super::work::Work;
use crate::delta::spoken;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use weir_model::domain::honest_among;
use weir_model::entry::{MEMBER_BUCKETS, UNDERLAY_PREFIXES_MAX, UnderlaysEntry, member_bucket};
use weir_model::session::SWITCHES_SINCE;
use weir_model::{Key, Label};

/// An actuator can read the list now, or no longer.
pub(super) fn mark_all(work: &mut Work<'_, '_, '_>, name: &Label) {
    for bucket in 0..MEMBER_BUCKETS {
        work.marks.key(name, Key::Switches { bucket });
    }
    work.marks.key(name, Key::Underlays);
}

/// Of how many controllers the same word counts, where one is not believed.
pub(super) fn words_needed(work: &Work<'_, '_, '_>) -> Option<usize> {
    work.settings.believes_no_controller.then(|| honest_among(domains::controllers_count(work)))
}

/// Whether an actuator can read the list.
pub(super) fn reads(work: &Work<'_, '_, '_>, name: &Label) -> bool {
    spoken(work, name) >= SWITCHES_SINCE
}

/// A switch came to an address, or left it.
pub(super) fn mark(work: &mut Work<'_, '_, '_>, address: IpAddr) {
    for reader in readers(work) {
        work.marks.key(&reader, Key::Switches { bucket: member_bucket(address) });
    }
}

/// The underlay addresses of one bucket, ascending.
pub(super) fn addresses(work: &mut Work<'_, '_, '_>, bucket: u8) -> Vec<IpAddr> {
    if work.own.switches.is_none() {
        let mut all: BTreeMap<u8, BTreeSet<IpAddr>> = BTreeMap::new();
        for (_, value) in work.view.scan(ACTUATORS, b"") {
            let facts = read::<Member>(ACTUATORS, &value).facts;
            if facts.role.has_switch() {
                all.entry(member_bucket(facts.underlay)).or_default().insert(facts.underlay);
            }
        }
        work.own.switches = Some(all);
    }
    let found = work.own.switches.as_ref().and_then(|all| all.get(&bucket));
    found.map_or_else(Vec::new, |addresses| addresses.iter().copied().collect())
}

/// Where else switches may be, and where controllers are.
pub(super) fn underlays(work: &Work<'_, '_, '_>) -> UnderlaysEntry {
    let records = domains::records(work);
    let granted = records.iter().flat_map(|record| &record.underlays);
    let switches: BTreeSet<IpNet> = granted.map(IpNet::trunc).collect();
    // A name is no address: its place is guarded by a setting of the gateway. What another domain says of its controllers is not
    // believed here, or it would choose what this domain's tenants do not reach.
    let own = domains::own_controllers(work);
    let places = own.iter().filter_map(|one| one.api.parse::<SocketAddr>().ok());
    let guarded: BTreeSet<IpNet> = places.map(|at| IpNet::from(at.ip().to_canonical())).collect();
    UnderlaysEntry {
        switches: switches.into_iter().take(UNDERLAY_PREFIXES_MAX).collect(),
        guarded: guarded.into_iter().take(UNDERLAY_PREFIXES_MAX).collect(),
    }
}
