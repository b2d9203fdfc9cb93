//! Those who lie: one controller of a domain whose others are honest, and a domain all of whose controllers lie and which has its
//! group's key.

use super::order::{Domain, RED, VNI, identity, label, list, number, signer};
use std::net::IpAddr;
use weir_base::world::Rng;
use weir_controller::core::OutboxPage;
use weir_model::domain::{DomainEvent, Fetch, SignedFetch, Statement, StatementBody};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::signed::SignedUpdates;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{SingleSigner, sign_batch};
use weir_trust::identity::sign_fetch;

/// Numbers of controllers of the domain that lies as a whole.
pub const LIARS: usize = 4;

fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

/// Anything that can be told: true or not, its own or another's.
fn body(rng: &mut Rng, by: &Label) -> StatementBody {
    let own = number(by);
    match rng.below(12) {
        0 => StatementBody::Complete { since: pick(rng, &[0, 1, 5, 1_000_000, u64::MAX]) },
        1 => StatementBody::Controllers(list(by, rng.below(6) as usize, rng.below(3))),
        _ => {
            let subnet = pick(rng, &[own, own, 1, 2, 200]);
            let host = pick(rng, &[own, own, 1, 2, 77]);
            let address: IpAddr = match rng.below(8) {
                0 => [224, 0, 0, 1].into(),
                _ => [10, subnet, 0, 10 + rng.below(8) as u8].into(),
            };
            let at = LocationEntry {
                endpoint: label("lie"),
                mac: "02:00:00:00:00:66".parse().unwrap(),
                host: label("h1"),
                underlay: [10, 100 + host, 0, 11].into(),
            };
            StatementBody::Location {
                network: label(pick(rng, &[RED, RED, RED, "own", "none"])),
                vni: Vni(pick(rng, &[VNI, VNI, VNI, 5, 9])),
                address,
                at: (!rng.chance(1, 4)).then_some(at),
            }
        }
    }
}

fn update(to: &Label, sequence: u64, after: u64, body: StatementBody) -> Update {
    Update {
        target: to.clone(),
        key: Key::Statement { to: to.clone(), sequence },
        version: Version(9),
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(Statement { after, body }))),
    }
}

fn signed(by: &SingleSigner, domain: &Label, updates: Vec<Update>) -> SignedUpdates {
    let (header, updates) = sign_batch(by, domain, 1, Version(9), updates).unwrap();
    SignedUpdates { header, updates }
}

/// What the lying domain answers. It is of its group's key, so what it says of its own must be taken.
pub fn answer(rng: &mut Rng, liar: &Label, fetch: &Fetch) -> OutboxPage {
    if rng.chance(3, 4) {
        return OutboxPage { statements: Vec::new(), behind: rng.chance(1, 4) };
    }
    let to = if rng.chance(1, 12) { label("a") } else { fetch.domain.clone() };
    let mut through = fetch.through;
    let count = 1 + rng.below(5);
    let updates = (0..count).map(|_| {
        let after = pick(rng, &[through, through, through, through, 0]);
        let number = through.saturating_add(pick(rng, &[1, 1, 1, 1, 7, 1 << 40]));
        let number = if rng.chance(1, 24) { u64::MAX } else { number };
        through = number;
        update(&to, number, after, body(rng, liar))
    });
    let updates = updates.collect();
    let by = if rng.chance(1, 12) { identity(liar, 1) } else { signer(liar).0 };
    let domain = if rng.chance(1, 12) { label("a") } else { liar.clone() };
    OutboxPage { statements: vec![signed(&SingleSigner(by), &domain, updates)], behind: false }
}

/// A word of a controller that lies, of how far its domain is.
pub fn word(rng: &mut Rng, domain: &Label, id: u64, of: &Label, now_ms: u64) -> SignedFetch {
    let through = pick(rng, &[0, 1, 5, 40, 1_000_000, (1 << 62) - 1, u64::MAX]);
    let (domain, of) = (domain.clone(), of.clone());
    let fetch = Fetch { domain, controller: id, of, through, begin: rng.chance(1, 2), now_ms };
    let signer = identity(&fetch.domain, fetch.controller);
    sign_fetch(&signer, fetch)
}

/// What one controller of an honest domain answers in place of the truth.
pub fn distorted(rng: &mut Rng, own: &Label, id: u64, fetch: &Fetch, mut truth: OutboxPage) -> OutboxPage {
    match rng.below(6) {
        0 => OutboxPage::default(),
        1 => OutboxPage { statements: Vec::new(), behind: true },
        2 => {
            // It keeps the first one back.
            if let Some(batch) = truth.statements.first_mut().filter(|batch| batch.updates.len() > 1) {
                batch.updates.remove(0);
            } else if !truth.statements.is_empty() {
                truth.statements.remove(0);
            }
            truth
        }
        3 => {
            for proven in truth.statements.iter_mut().flat_map(|batch| &mut batch.updates) {
                if let Change::Put(Entry::Statement(statement)) = &mut proven.update.change {
                    statement.body = body(rng, own);
                }
            }
            truth
        }
        4 => {
            let next = update(&fetch.domain, fetch.through + 1, fetch.through, body(rng, own));
            let alone = SingleSigner(identity(own, id));
            OutboxPage { statements: vec![signed(&alone, own, vec![next])], behind: false }
        }
        _ => truth,
    }
}

/// What one controller proposes to its own domain's order.
pub fn proposal(
    rng: &mut Rng,
    domain: &Domain,
    replica: usize,
    others: &[Label],
    now_ms: u64,
) -> DomainEvent {
    let (own, id) = (&domain.name, domain.replicas[replica].id);
    let other = pick(rng, others);
    match rng.below(4) {
        0 => DomainEvent::Controllers(list(own, rng.below(6) as usize, 66)),
        1 => {
            let of = 1 + rng.below(4);
            let mine = word(rng, &other, of, own, now_ms);
            let (through, begin) = (mine.fetch.through, mine.fetch.begin);
            // Nobody's words: the fetch is signed anew by the one who lies.
            let forged = sign_fetch(&identity(own, id), mine.fetch);
            DomainEvent::Heard { domain: other, through, begin, words: vec![forged.clone(), forged] }
        }
        _ => {
            let through = domain.taking_through(replica, &other);
            let next = update(own, through + 1 + rng.below(3), through, body(rng, &other));
            let by = SingleSigner(identity(own, id));
            DomainEvent::Forwarded {
                origin: other.clone(),
                statements: vec![signed(&by, &other, vec![next])],
            }
        }
    }
}
