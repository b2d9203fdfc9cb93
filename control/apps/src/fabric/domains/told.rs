//! What this domain tells others.

use super::super::change::Told;
use super::super::marks::mark_underlays;
use super::super::tables::{
    ADDRESSES, DOMAINS, OWN_CONTROLLERS, Parts, SHARED, TOLD, address_bytes, joined, label, name0, read,
    vni_key,
};
use super::super::work::{Count, Work};
use super::{controllers_count, id, lane_of, list_problem, own_controllers, put_lane, record_of};
use crate::delta::reference;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_base::codec::{decode, encode};
use weir_model::domain::{
    DomainController, NUMBER_MAX, SignedFetch, Statement, StatementBody, WORD_AGE_MAX_MS, honest_among,
};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::event::{CLOCK_TABLE, Event, SourceId};
use weir_model::session::CONTROLLERS_MAX;
use weir_model::{Change, Entry, Key, Label, PlannedUpdate, Update, Version};
use weir_store::Rejection;
use weir_trust::identity::verify_fetch;

/// What a domain was told of an address.
#[derive(Serialize, Deserialize)]
struct ToldOf {
    network: Label,
    at: LocationEntry,
}

fn told_key(domain: &Label, vni: Vni, address: IpAddr) -> Vec<u8> {
    joined(name0(domain.as_str()), &vni_key(vni, &address_bytes(address)))
}

/// The addresses of which a domain was told, of one network or of all.
fn told_of(work: &Work<'_, '_, '_>, domain: &Label, vni: Option<Vni>) -> Vec<(Vni, IpAddr)> {
    let own = name0(domain.as_str());
    let prefix = vni.map_or_else(|| own.clone(), |vni| joined(own.clone(), &vni_key(vni, b"")));
    let found = work.view.scan(TOLD, &prefix);
    let parts = |(key, _): (Vec<u8>, _)| {
        let mut parts = Parts(&key[own.len()..]);
        (parts.vni(), parts.address())
    };
    found.into_iter().map(parts).collect()
}

/// All addresses that endpoints of a network have here.
fn local_addresses(work: &Work<'_, '_, '_>, vni: Vni) -> Vec<IpAddr> {
    let found = work.view.scan(ADDRESSES, &vni_key(vni, b""));
    found.into_iter().map(|(key, _)| Parts(&key[4..]).address()).collect()
}

/// The networks that are in a domain too.
fn networks_with(work: &Work<'_, '_, '_>, domain: &Label) -> Vec<Vni> {
    let all = work.view.scan(SHARED, b"");
    all.into_iter()
        .filter(|(key, _)| key[4..] == *domain.as_str().as_bytes())
        .map(|(key, _)| Parts(&key).vni())
        .collect()
}

/// Tells each domain what this decision changed for it.
pub(in super::super) fn tell(work: &mut Work<'_, '_, '_>) -> Result<Vec<PlannedUpdate>, Rejection> {
    let shares = std::mem::take(&mut work.own.shares);
    if work.count(Count::Domains, b"") > 0 {
        let mut concerned: BTreeSet<(Label, Vni, IpAddr)> = BTreeSet::new();
        for (domain, vni) in shares {
            let addresses = local_addresses(work, vni).into_iter();
            concerned.extend(addresses.map(|address| (domain.clone(), vni, address)));
            let before = told_of(work, &domain, Some(vni)).into_iter();
            concerned.extend(before.map(|(vni, address)| (domain.clone(), vni, address)));
        }
        let places: Vec<(Vni, IpAddr)> = work.own.broad.locations.iter().copied().collect();
        let mut last: Option<(Vni, Vec<Label>)> = None;
        for (vni, address) in places {
            if last.as_ref().is_none_or(|(of, _)| *of != vni) {
                let found = work.view.scan(SHARED, &vni_key(vni, b""));
                last = Some((vni, found.into_iter().map(|(key, _)| label(&key[4..])).collect()));
            }
            let domains = last.iter().flat_map(|(_, domains)| domains);
            concerned.extend(domains.map(|domain| (domain.clone(), vni, address)));
        }
        for (domain, vni, address) in concerned {
            tell_of(work, &domain, vni, address)?;
        }
    }
    Ok(std::mem::take(&mut work.own.told).into_iter().map(|told| planned(work.version, told)).collect())
}

fn planned(version: Version, told: Told) -> PlannedUpdate {
    let Told { to, sequence, after, body } = told;
    let key = Key::Statement { to: to.clone(), sequence };
    let change = Change::Put(Entry::Statement(Box::new(Statement { after, body })));
    let update = Update { target: to, key, version, expected: Version::ZERO, change };
    PlannedUpdate { update, after: Vec::new() }
}

/// Tells a domain where an address is, if it was told something else.
fn tell_of(work: &mut Work<'_, '_, '_>, domain: &Label, vni: Vni, address: IpAddr) -> Result<(), Rejection> {
    if lane_of(work, domain).is_none_or(|lane| lane.cut) {
        return Ok(());
    }
    let shared = work.has(SHARED, &vni_key(vni, domain.as_str().as_bytes()));
    let at = if shared { work.own_location(vni, address) } else { None };
    let key = told_key(domain, vni, address);
    let before: Option<ToldOf> = work.view.get(TOLD, &key).map(|bytes| read(TOLD, &bytes));
    if before.as_ref().map(|before| &before.at) == at.as_ref() {
        return Ok(());
    }
    let of = domain.as_str().as_bytes();
    let Some(network) =
        work.network_name(vni).or_else(|| before.as_ref().map(|before| before.network.clone()))
    else {
        return Ok(());
    };
    match &at {
        Some(at) => {
            if before.is_none() {
                let limit = work.settings.told_per_domain_max;
                work.count_up(Count::Told, of, limit, || format!("locations told to domain {domain}"))?;
            }
            work.view.put(TOLD, &key, encode(&ToldOf { network: network.clone(), at: at.clone() }))?;
        }
        None => {
            work.view.delete(TOLD, &key);
            work.count_down(Count::Told, of)?;
        }
    }
    issue(work, domain, StatementBody::Location { network, vni, address, at })
}

/// Numbers a statement. A domain that has too many not taken is cut off, and told nothing until it is heard again.
fn issue(work: &mut Work<'_, '_, '_>, domain: &Label, body: StatementBody) -> Result<(), Rejection> {
    let Some(mut lane) = lane_of(work, domain) else { return Ok(()) };
    if lane.cut {
        return Ok(());
    }
    if lane.last - lane.acked >= work.settings.statements_waiting_max as u64 {
        lane.cut = true;
        return put_lane(work, domain, &lane);
    }
    let after = if lane.fresh { 0 } else { lane.last };
    lane.last += 1;
    lane.fresh = false;
    put_lane(work, domain, &lane)?;
    work.own.told.push(Told { to: domain.clone(), sequence: lane.last, after, body });
    Ok(())
}

/// Tells a domain everything anew.
pub(super) fn begin(work: &mut Work<'_, '_, '_>, domain: &Label, now_ms: u64) -> Result<(), Rejection> {
    forget_all(work, domain)?;
    let Some(mut lane) = lane_of(work, domain) else { return Ok(()) };
    let since = lane.last + 1;
    (lane.acked, lane.cut, lane.fresh) = (lane.last, false, true);
    (lane.begun, lane.begun_ms) = (lane.begun + 1, now_ms);
    put_lane(work, domain, &lane)?;
    // What was numbered before in this very decision is told anew as well.
    work.own.told.retain(|told| told.to != *domain);
    let controllers = own_controllers(work);
    if !controllers.is_empty() {
        issue(work, domain, StatementBody::Controllers(controllers))?;
    }
    for vni in networks_with(work, domain) {
        for address in local_addresses(work, vni) {
            tell_of(work, domain, vni, address)?;
        }
    }
    issue(work, domain, StatementBody::Complete { since })
}

/// Forgets what a domain was told.
pub(super) fn forget_all(work: &mut Work<'_, '_, '_>, domain: &Label) -> Result<(), Rejection> {
    for (vni, address) in told_of(work, domain, None) {
        work.view.delete(TOLD, &told_key(domain, vni, address));
        work.count_down(Count::Told, domain.as_str().as_bytes())?;
    }
    Ok(())
}

/// A controller says who this domain's controllers are. Where some may lie it is so when enough say the same.
pub(super) fn controllers(
    work: &mut Work<'_, '_, '_>,
    event: &Event,
    list: &[DomainController],
) -> Result<(), Rejection> {
    let source = &event.source;
    let wrong = |problem: &str| Err(reference(format!("the controllers, by {}", source.0), problem));
    if !source.is_controller() {
        return wrong("only controllers say who they are");
    }
    if let Some(problem) = list_problem(list) {
        return wrong(problem);
    }
    let now = own_controllers(work);
    let among = controllers_count(work);
    let needed = if work.settings.believes_no_controller { honest_among(among) } else { 1 };
    work.view.put(OWN_CONTROLLERS, source.0.as_bytes(), encode(&list))?;
    let words = work.view.scan(OWN_CONTROLLERS, SourceId::CONTROLLERS.as_bytes());
    let same = words.iter().filter(|(_, word)| read::<Vec<DomainController>>(OWN_CONTROLLERS, word) == list);
    if same.count() < needed {
        return Ok(());
    }
    // Else words of who is gone would count one day.
    for (said_by, _) in &words {
        work.view.delete(OWN_CONTROLLERS, said_by);
    }
    if now == list {
        return Ok(());
    }
    work.view.put(OWN_CONTROLLERS, b"", encode(&list))?;
    mark_underlays(work);
    let domains: Vec<Label> = work.view.scan(DOMAINS, b"").into_iter().map(|(key, _)| label(&key)).collect();
    for domain in domains {
        issue(work, &domain, StatementBody::Controllers(list.to_vec()))?;
    }
    Ok(())
}

/// Controllers of another domain say how far it is.
pub(super) fn heard(
    work: &mut Work<'_, '_, '_>,
    domain: &Label,
    (through, begin): (u64, bool),
    words: &[SignedFetch],
    now_ms: u64,
) -> Result<(), Rejection> {
    let wrong = |problem: &str| Err(reference(id(domain), problem));
    let (Some(record), Some(mut lane)) = (record_of(work, domain), lane_of(work, domain)) else {
        return wrong("it is not known here");
    };
    if words.len() > CONTROLLERS_MAX {
        return Err(Rejection::limit("words of controllers", words.len(), CONTROLLERS_MAX));
    }
    let own = work.settings.domain.clone();
    let ahead_ms =
        work.view.get(CLOCK_TABLE, b"").map_or(0, |value| decode::<i64>(&value).unwrap_or_default());
    // Others say what their clocks say.
    let wall_ms = now_ms.saturating_add_signed(ahead_ms);
    let counts = |word: &&SignedFetch| {
        let fetch = &word.fetch;
        let key = record.controllers.iter().find(|one| one.id == fetch.controller).map(|one| &one.key);
        fetch.domain == *domain
            && Some(&fetch.of) == own.as_ref()
            && fetch.through >= through
            && fetch.begin == begin
            && fetch.now_ms.abs_diff(wall_ms) <= WORD_AGE_MAX_MS
            && key.is_some_and(|key| verify_fetch(key, word).is_ok())
    };
    let counting: Vec<&SignedFetch> = words.iter().filter(counts).collect();
    let said: BTreeSet<u64> = counting.iter().map(|word| word.fetch.controller).collect();
    // No liar among them makes it later.
    let said_ms = counting.iter().map(|word| word.fetch.now_ms).min().unwrap_or_default();
    if said.len() < honest_among(record.controllers.len()) {
        return wrong("too few of its controllers say so");
    }
    if through > NUMBER_MAX {
        return wrong("no statement has such a number");
    }
    if through > lane.last && !begin {
        return wrong("it was not told so much");
    }
    if begin && lane.begun_word_ms > 0 && said_ms < lane.begun_word_ms + work.settings.begin_again_ms {
        return wrong("it was told everything since it said so");
    }
    lane.last = lane.last.max(through);
    lane.acked = lane.acked.max(through);
    put_lane(work, domain, &lane)?;
    if !begin && !lane.cut {
        return Ok(());
    }
    if now_ms.saturating_sub(lane.begun_ms) < work.settings.begin_again_ms {
        // It asks again.
        return if begin { wrong("it was told everything a moment ago") } else { Ok(()) };
    }
    lane.begun_word_ms = lane.begun_word_ms.max(said_ms);
    put_lane(work, domain, &lane)?;
    self::begin(work, domain, now_ms)
}
