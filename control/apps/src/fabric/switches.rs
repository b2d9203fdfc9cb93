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
use super::tables::{ACTUATORS, Member, joined, label, name0, read};
use super::work::{Work, reference};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use weir_base::codec::encode;
use weir_model::domain::honest_among;
use weir_model::entry::{MEMBER_BUCKETS, UNDERLAY_PREFIXES_MAX, UnderlaysEntry, member_bucket};
use weir_model::event::{Event, SPEAKS_TABLE};
use weir_model::session::{PROTOCOL_MIN, SWITCHES_SINCE};
use weir_model::{Key, Label};
use weir_store::Rejection;

/// The addresses of all switches by bucket, made once a decision and only if it is asked for.
pub(super) type Addresses = BTreeMap<u8, BTreeSet<IpAddr>>;

/// A controller says which protocol an actuator speaks.
pub(super) fn speaks(
    work: &mut Work<'_, '_>,
    event: &Event,
    name: &Label,
    protocol: u32,
) -> Result<(), Rejection> {
    let source = &event.source;
    if !source.is_controller() {
        return Err(reference(format!("actuator/{name}"), "only controllers say what it speaks"));
    }
    if work.member(name).is_none() {
        return Err(reference(format!("actuator/{name}"), "it has not joined, or was forgotten"));
    }
    if work.settings.believes_no_controller {
        let word = joined(name0(name.as_str()), source.0.as_bytes());
        work.view.put(SPEAKS_TABLE, &word, encode(&protocol))?;
        let words = work.view.scan(SPEAKS_TABLE, &name0(name.as_str()));
        let same = words.iter().filter(|(_, word)| read::<u32>(SPEAKS_TABLE, word) == protocol).count();
        if same < honest_among(domains::controllers_count(work)) {
            return Ok(());
        }
        // Else words of who is gone would count one day.
        for (word, _) in words {
            work.view.delete(SPEAKS_TABLE, &word);
        }
    }
    if spoken(work, name) == protocol {
        return Ok(());
    }
    work.view.put(SPEAKS_TABLE, name.as_str().as_bytes(), encode(&protocol))?;
    for bucket in 0..MEMBER_BUCKETS {
        work.marks.key(name, Key::Switches { bucket });
    }
    work.marks.key(name, Key::Underlays);
    super::orders::mark_all(work, name);
    Ok(())
}

/// Which protocol an actuator speaks, as far as is known.
pub(super) fn spoken(work: &Work<'_, '_>, name: &Label) -> u32 {
    let bytes = work.view.get(SPEAKS_TABLE, name.as_str().as_bytes());
    bytes.map_or(PROTOCOL_MIN, |bytes| read(SPEAKS_TABLE, &bytes))
}

/// Whether an actuator can read the list.
pub(super) fn reads(work: &Work<'_, '_>, name: &Label) -> bool {
    spoken(work, name) >= SWITCHES_SINCE
}

/// Forgets what a forgotten actuator spoke.
pub(super) fn forget(work: &mut Work<'_, '_>, name: &Label) {
    for (word, _) in work.view.scan(SPEAKS_TABLE, &name0(name.as_str())) {
        work.view.delete(SPEAKS_TABLE, &word);
    }
    work.view.delete(SPEAKS_TABLE, name.as_str().as_bytes());
}

/// Everybody who can read the list.
fn readers(work: &Work<'_, '_>) -> Vec<Label> {
    let rows = work.view.scan(SPEAKS_TABLE, b"");
    let reads = |value: &[u8]| read::<u32>(SPEAKS_TABLE, value) >= SWITCHES_SINCE;
    rows.iter().filter(|(key, value)| !key.contains(&0) && reads(value)).map(|(key, _)| label(key)).collect()
}

/// A switch came to an address, or left it.
pub(super) fn mark(work: &mut Work<'_, '_>, address: IpAddr) {
    for reader in readers(work) {
        work.marks.key(&reader, Key::Switches { bucket: member_bucket(address) });
    }
}

/// What is known of other domains, or of this one's controllers, changed.
pub(super) fn mark_underlays(work: &mut Work<'_, '_>) {
    for reader in readers(work) {
        work.marks.key(&reader, Key::Underlays);
    }
}

/// The underlay addresses of one bucket, ascending.
pub(super) fn addresses(work: &mut Work<'_, '_>, bucket: u8) -> Vec<IpAddr> {
    if work.switches.is_none() {
        let mut all = Addresses::new();
        for (_, value) in work.view.scan(ACTUATORS, b"") {
            let facts = read::<Member>(ACTUATORS, &value).facts;
            if facts.role.has_switch() {
                all.entry(member_bucket(facts.underlay)).or_default().insert(facts.underlay);
            }
        }
        work.switches = Some(all);
    }
    let found = work.switches.as_ref().and_then(|all| all.get(&bucket));
    found.map_or_else(Vec::new, |addresses| addresses.iter().copied().collect())
}

/// Where else switches may be, and where controllers are.
pub(super) fn underlays(work: &Work<'_, '_>) -> UnderlaysEntry {
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
