//! What other domains tell, and what of it is believed.

use super::super::tables::{FOREIGN, Parts, joined, name0, read};
use super::super::work::{Count, Work};
use super::{
    Foreign, Taken, Unowned, domain_of, foreign_key, id, list_problem, put_record, put_taken, record_of,
    taken_of,
};
use crate::delta::reference;
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::domain::{
    BATCHES_MAX, DomainRecord, NUMBER_MAX, STATEMENTS_MAX, Statement, StatementBody, statement_of,
};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::signed::{ProvenUpdate, SignedUpdates};
use weir_store::Rejection;
use weir_trust::batch::Verifier;

/// The addresses that a domain told of, of one network or of all, with the identifier that it told.
pub(super) fn told_by(
    work: &Work<'_, '_, '_>,
    domain: &Label,
    network: Option<&Label>,
) -> Vec<(Vni, IpAddr)> {
    let own = name0(domain.as_str());
    let prefix = network.map_or_else(|| own.clone(), |network| joined(own.clone(), &name0(network.as_str())));
    let found = work.view.scan(FOREIGN, &prefix);
    let parts = |(key, value): (Vec<u8>, std::sync::Arc<[u8]>)| {
        let mut parts = Parts(&key[own.len()..]);
        parts.name();
        (read::<Foreign>(FOREIGN, &value).vni, parts.address())
    };
    found.into_iter().map(parts).collect()
}

/// Forgets all that a domain told.
pub(super) fn forget_all(work: &mut Work<'_, '_, '_>, domain: &Label) {
    for (key, value) in work.view.scan(FOREIGN, &name0(domain.as_str())) {
        void(work, domain, &key, &value);
    }
}

fn void(work: &mut Work<'_, '_, '_>, domain: &Label, key: &[u8], value: &[u8]) {
    let mut parts = Parts(&key[name0(domain.as_str()).len()..]);
    parts.name();
    let address = parts.address();
    work.view.delete(FOREIGN, key);
    work.own.broad.locations.insert((read::<Foreign>(FOREIGN, value).vni, address));
}

/// Takes statements in turn, each once.
///
/// # Errors
/// When they are not under the signature of the origin's group, or do not follow what was taken: then none is taken.
pub(super) fn forwarded(
    work: &mut Work<'_, '_, '_>,
    origin: &Label,
    batches: &[SignedUpdates],
) -> Result<(), Rejection> {
    let Some(mut record) = record_of(work, origin) else {
        return Err(reference(id(origin), "it is not known here: its operator must make it known"));
    };
    let count = batches.iter().map(|batch| batch.updates.len()).sum::<usize>();
    if batches.len() > BATCHES_MAX {
        return Err(Rejection::limit("batches of a forwarded event", batches.len(), BATCHES_MAX));
    }
    if count > STATEMENTS_MAX {
        return Err(Rejection::limit("statements of a forwarded event", count, STATEMENTS_MAX));
    }
    let before = taken_of(work, origin);
    let mut taken = before.clone();
    let mut verifier = Verifier::new(origin.clone(), record.group_key.clone());
    for batch in batches {
        for proven in &batch.updates {
            let (sequence, statement) = addressed(work, origin, proven)?;
            // Whoever hands it over and whoever orders it: a number is taken once.
            if sequence <= taken.through {
                continue;
            }
            if statement.after != 0 && statement.after != taken.through {
                let problem = format!(
                    "statement {sequence} follows {}, and {} was taken last",
                    statement.after, taken.through
                );
                return Err(reference(id(origin), problem));
            }
            let signed = verifier.verify_header(&batch.header);
            signed
                .and_then(|()| verifier.verify_path(&batch.header.header, proven))
                .map_err(|error| reference(id(origin), format!("statement {sequence}: {error}")))?;
            taken.through = sequence;
            taken.anew &= statement.after != 0;
            take(work, &mut record, &mut taken, sequence, statement)?;
        }
    }
    if taken == before { Ok(()) } else { put_taken(work, origin, &taken) }
}

/// The statement in an update, if it is one for this domain.
fn addressed<'p>(
    work: &Work<'_, '_, '_>,
    origin: &Label,
    proven: &'p ProvenUpdate,
) -> Result<(u64, &'p Statement), Rejection> {
    let statement = statement_of(&proven.update);
    let own = statement.filter(|(to, ..)| work.settings.domain.as_ref() == Some(to));
    let own = own.map(|(_, sequence, statement)| (sequence, statement));
    let own = own.filter(|(sequence, _)| *sequence <= NUMBER_MAX);
    own.ok_or_else(|| reference(id(origin), "an update that is no statement for this domain"))
}

fn take(
    work: &mut Work<'_, '_, '_>,
    record: &mut DomainRecord,
    taken: &mut Taken,
    sequence: u64,
    statement: &Statement,
) -> Result<(), Rejection> {
    let refused = match &statement.body {
        StatementBody::Controllers(list) => match list_problem(list) {
            Some(_) => Some(Unowned::NoControllers),
            None => {
                record.controllers.clone_from(list);
                put_record(work, record)?;
                None
            }
        },
        StatementBody::Location { network, vni, address, at } => {
            place(work, record, taken, (network, *vni, *address), sequence, at.as_ref())?
        }
        StatementBody::Complete { since } => {
            complete(work, &record.name, taken, *since);
            None
        }
    };
    match refused {
        None => taken.taken += 1,
        Some(why) => {
            for (count, _) in taken.refused.iter_mut().zip(Unowned::ALL).filter(|(_, known)| *known == why) {
                *count += 1;
            }
            let what = match &statement.body {
                StatementBody::Location { network, address, .. } => format!("{address} of network {network}"),
                _ => "controllers".to_string(),
            };
            taken.last_refused = Some(format!("statement {sequence}, {what}: {}", why.word()));
        }
    }
    Ok(())
}

/// Keeps a location, or tells why not. One of a network or subnet that is not here yet waits for it.
fn place(
    work: &mut Work<'_, '_, '_>,
    record: &DomainRecord,
    taken: &mut Taken,
    (network, vni, address): (&Label, Vni, IpAddr),
    sequence: u64,
    at: Option<&LocationEntry>,
) -> Result<Option<Unowned>, Rejection> {
    let key = foreign_key(&record.name, network, address);
    let before = work.view.get(FOREIGN, &key);
    let Some(at) = at else {
        if let Some(before) = before {
            void(work, &record.name, &key, &before);
            taken.locations = taken.locations.saturating_sub(1);
        }
        return Ok(None);
    };
    if let Some(why) = unowned(work, record, (network, vni, address), at) {
        return Ok(Some(why));
    }
    if before.is_none() && taken.locations >= work.settings.foreign_per_domain_max as u64 {
        return Ok(Some(Unowned::TooMany));
    }
    taken.locations += u64::from(before.is_none());
    work.view.put(FOREIGN, &key, encode(&Foreign { sequence, vni, at: at.clone() }))?;
    work.own.broad.locations.insert((vni, address));
    Ok(None)
}

/// Whether a domain may say where an address is, and that it is there.
fn unowned(
    work: &mut Work<'_, '_, '_>,
    record: &DomainRecord,
    (network, vni, address): (&Label, Vni, IpAddr),
    at: &LocationEntry,
) -> Option<Unowned> {
    let host =
        |address: IpAddr| !(address.is_multicast() || address.is_unspecified() || address.is_loopback());
    if !host(address) || !host(at.underlay) || !at.mac.is_unicast() || at.mac == vni.router_mac() {
        return Some(Unowned::NoEndpoint);
    }
    if !record.underlays.iter().any(|prefix| prefix.contains(&at.underlay)) {
        return Some(Unowned::NotItsUnderlay);
    }
    if work.vni(network).is_some_and(|own| own != vni) {
        return Some(Unowned::OtherNetwork);
    }
    match domain_of(work, network, address) {
        Some(Ok(domain)) if domain == record.name => None,
        Some(_) => Some(Unowned::NotItsSubnet),
        None => None,
    }
}

/// What was told before a number and not again is void.
fn complete(work: &mut Work<'_, '_, '_>, origin: &Label, taken: &mut Taken, since: u64) {
    for (key, value) in work.view.scan(FOREIGN, &name0(origin.as_str())) {
        if read::<Foreign>(FOREIGN, &value).sequence < since {
            void(work, origin, &key, &value);
            taken.locations = taken.locations.saturating_sub(1);
        }
    }
    debug_assert!(work.count(Count::Domains, b"") > 0, "a domain that is known is counted");
}
