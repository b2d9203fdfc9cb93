//! What signing costs, four ways, over the same updates in one interleaved run: `make bench-trust`.
//!
//! - Weir: each controller signs the Merkle root of a batch with its share, an aggregator makes one
//!   signature of 2f+1 of them, an actuator checks that once a batch and a path an update.
//! - Endorsed: each controller signs the root with its own ed25519 key, an actuator checks 2f+1 of them once a
//!   batch and a path an update; nobody aggregates.
//! - Cicero: the same threshold signature, but over each update.
//! - RoSCo: each controller signs each update with its own ed25519 key, an actuator checks 2f+1 of them.
//!
//! Figures are CPU time of one process, medians of nine rounds: of one controller, of the aggregator and of
//! one actuator. Then what it costs all members together to make a key, and to reshare it.
//!
//! First, what a request of an operator costs each replica beside its event: `trust_cost requests` measures nothing else.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_base::world::Rng;
use weir_model::entry::{ControllersEntry, Vni};
use weir_model::event::{Event, EventBody, Mutation, SourceId, Transaction, Wanted};
use weir_model::resource::{Kind, ResourceId};
use weir_model::signed::{GroupKey, GroupSignature, MemberSignature, Signature, SignedHeader};
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{Verifier, prepare_batch};
use weir_trust::endorsement::endorse;
use weir_trust::identity::{Context, KeyPair, verify};
use weir_trust::said::{digest, is_signed_by, sign_said};
use weir_trust::threshold::{
    Dealer, GroupPublic, GroupVerifier, Ledger, MemberSecret, Player, Round, ShareSignature, combine,
    threshold,
};

const ROUNDS: usize = 9;
type Failure = Box<dyn std::error::Error>;

fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// What was measured, by metric and by who.
#[derive(Default)]
struct Figures(BTreeMap<(String, &'static str), Vec<f64>>);

impl Figures {
    fn time<T>(&mut self, metric: &str, who: &'static str, work: impl FnOnce() -> T) -> T {
        let start = cpu_us();
        let value = work();
        let spent = cpu_us() - start;
        self.0.entry((metric.to_string(), who)).or_default().push(spent);
        value
    }

    fn median(&self, metric: &str, who: &'static str) -> f64 {
        let mut values = self.0.get(&(metric.to_string(), who)).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn print(&self, metric: &str, name: &str, divide_by: f64) {
        let weir = self.median(metric, "weir") / divide_by;
        for peer in ["endorsed", "cicero", "rosco"] {
            let other = self.median(metric, peer) / divide_by;
            if other.is_finite() {
                println!(
                    "RESULT trust {name} weir={weir:.1}us {peer}={other:.1}us ratio={:.3}",
                    weir / other
                );
            }
        }
    }
}

struct Group {
    public: GroupPublic,
    secrets: BTreeMap<u32, MemberSecret>,
    identities: BTreeMap<u32, KeyPair>,
}

fn identities(count: u32) -> BTreeMap<u32, KeyPair> {
    (1..=count).map(|id| (id, KeyPair::from_seed(&[id as u8; 32]))).collect()
}

fn public_keys(identities: &BTreeMap<u32, KeyPair>) -> BTreeMap<u32, [u8; 32]> {
    identities.iter().map(|(id, key)| (*id, key.public())).collect()
}

/// All members deal, answer and publish.
fn deal(
    round: &Round,
    identities: &BTreeMap<u32, KeyPair>,
    shares: Option<&BTreeMap<u32, MemberSecret>>,
    rng: &mut Rng,
) -> Result<(GroupPublic, BTreeMap<u32, MemberSecret>), Failure> {
    let mut players = BTreeMap::new();
    for id in identities.keys() {
        players.insert(*id, Player::new(round.clone(), *id)?);
    }
    let mut ledger = Ledger::new(round.clone());
    for (id, key) in identities {
        let share = shares.and_then(|shares| shares.get(id));
        let mut dealer = Dealer::new(round.clone(), *id, share, &mut |bytes| rng.fill(bytes))?;
        for (player, state) in &mut players {
            let deal = dealer.deal(*player).ok_or("no such player")?;
            dealer.take_ack(&state.take(&deal, &identities[player])?)?;
        }
        ledger.add(&dealer.log(key).ok_or("players are missing")?)?;
    }
    let mut secrets = BTreeMap::new();
    for (id, player) in &players {
        secrets.insert(*id, player.finish(&ledger)?.1);
    }
    Ok((ledger.outcome()?, secrets))
}

fn updates(count: usize, round: usize) -> Vec<Update> {
    let update = |at: usize| Update {
        target: label(),
        key: Key::Members { vni: Vni(1), tag: label(), bucket: (at % 64) as u8 },
        version: Version((round * 1000 + at) as u64 + 1),
        expected: Version::ZERO,
        change: Change::Put(Entry::Members(vec![[10, 0, (at / 256) as u8, at as u8].into()])),
    };
    (0..count).map(update).collect()
}

fn label() -> Label {
    // A literal that is a label.
    Label::new("prod").unwrap_or_else(|_| unreachable!())
}

fn sign_shares(group: &Group, message: &[u8]) -> Result<Vec<ShareSignature>, Failure> {
    let secrets = group.secrets.values().take(group.public.threshold());
    Ok(secrets.map(|secret| secret.sign(Context::Batch, message)).collect::<Result<_, _>>()?)
}

/// One batch under a signature over its root.
fn by_root(group: &Group, updates: Vec<Update>, figures: &mut Figures, tag: &str) -> Result<(), Failure> {
    let member = group.secrets.values().next().ok_or("no member")?;
    let (header, proven) = figures.time(&format!("sign {tag}"), "weir", || {
        let prepared = prepare_batch(&label(), 1, Version(u64::MAX), updates)?;
        member.sign(Context::Batch, &encode(&prepared.0))?;
        Ok::<_, weir_trust::TrustError>(prepared)
    })?;
    let message = encode(&header);
    let shares = sign_shares(group, &message)?;
    let key = GroupVerifier::new(&group.public.key())?;
    let signature = figures.time(&format!("aggregate {tag}"), "weir", || {
        let signature = combine(&shares)?;
        key.verify(Context::Batch, &message, &signature)?;
        Ok::<_, weir_trust::TrustError>(signature)
    })?;
    let signed = SignedHeader { header, signature: GroupSignature::Threshold(signature) };
    let mut verifier = Verifier::new(label(), GroupKey::Threshold(group.public.key()));
    figures.time(&format!("verify {tag}"), "weir", || {
        for update in &proven {
            verifier.verify_header(&signed)?;
            verifier.verify_path(&signed.header, update)?;
        }
        Ok::<_, weir_trust::TrustError>(())
    })?;
    Ok(())
}

/// One batch under signatures of as many members as the threshold over its root.
fn endorsed(group: &Group, updates: Vec<Update>, figures: &mut Figures, tag: &str) -> Result<(), Failure> {
    let threshold = group.public.threshold();
    let (first, identity) = group.identities.first_key_value().ok_or("no member")?;
    let (header, proven, signature) = figures.time(&format!("sign {tag}"), "endorsed", || {
        let (header, proven) = prepare_batch(&label(), 1, Version(u64::MAX), updates)?;
        let signature = endorse(identity, 1, &header);
        Ok::<_, weir_trust::TrustError>((header, proven, signature))
    })?;
    let mut signatures = vec![MemberSignature { member: *first, signature }];
    for (member, identity) in group.identities.iter().skip(1).take(threshold - 1) {
        signatures.push(MemberSignature { member: *member, signature: endorse(identity, 1, &header) });
    }
    let signed = SignedHeader { header, signature: GroupSignature::Members { phase: 1, signatures } };
    let members = public_keys(&group.identities);
    let known = ControllersEntry { phase: 1, threshold: threshold as u32, members };
    let mut verifier = Verifier::new(label(), GroupKey::Threshold(group.public.key()));
    figures.time(&format!("verify {tag}"), "endorsed", || {
        for update in &proven {
            verifier.verify_header_by(&signed, Some(&known))?;
            verifier.verify_path(&signed.header, update)?;
        }
        Ok::<_, weir_trust::TrustError>(())
    })?;
    Ok(())
}

/// Each update under a threshold signature of its own.
fn each_by_group(group: &Group, updates: &[Update], figures: &mut Figures, tag: &str) -> Result<(), Failure> {
    let member = group.secrets.values().next().ok_or("no member")?;
    let messages: Vec<Vec<u8>> = updates.iter().map(encode).collect();
    figures.time(&format!("sign {tag}"), "cicero", || {
        messages.iter().try_for_each(|message| member.sign(Context::Batch, message).map(drop))
    })?;
    let shares: Vec<Vec<ShareSignature>> =
        messages.iter().map(|message| sign_shares(group, message)).collect::<Result<_, _>>()?;
    let key = GroupVerifier::new(&group.public.key())?;
    let signatures = figures.time(&format!("aggregate {tag}"), "cicero", || {
        let one = |(shares, message): (&Vec<ShareSignature>, &Vec<u8>)| {
            let signature = combine(shares)?;
            key.verify(Context::Batch, message, &signature)?;
            Ok::<_, weir_trust::TrustError>(signature)
        };
        shares.iter().zip(&messages).map(one).collect::<Result<Vec<_>, _>>()
    })?;
    figures.time(&format!("verify {tag}"), "cicero", || {
        let mut both = messages.iter().zip(&signatures);
        both.try_for_each(|(message, signature)| key.verify(Context::Batch, message, signature))
    })?;
    Ok(())
}

/// Each update under as many signatures as the threshold.
fn each_by_members(
    group: &Group,
    updates: &[Update],
    figures: &mut Figures,
    tag: &str,
) -> Result<(), Failure> {
    let messages: Vec<Vec<u8>> = updates.iter().map(encode).collect();
    let signers: Vec<&KeyPair> = group.identities.values().take(group.public.threshold()).collect();
    let first = *signers.first().ok_or("no member")?;
    figures.time(&format!("sign {tag}"), "rosco", || {
        messages.iter().map(|message| first.sign(Context::Batch, message)).collect::<Vec<Signature>>()
    });
    let signatures: Vec<Vec<Signature>> = messages
        .iter()
        .map(|message| signers.iter().map(|signer| signer.sign(Context::Batch, message)).collect())
        .collect();
    let keys: Vec<[u8; 32]> = signers.iter().map(|signer| signer.public()).collect();
    figures.time(&format!("verify {tag}"), "rosco", || {
        messages.iter().zip(&signatures).try_for_each(|(message, signatures)| {
            let mut both = keys.iter().zip(signatures);
            both.try_for_each(|(key, signature)| verify(key, Context::Batch, message, signature))
        })
    })?;
    Ok(())
}

fn make_group(count: u32, figures: &mut Figures, rng: &mut Rng) -> Result<Group, Failure> {
    let identities = identities(count);
    let keys = public_keys(&identities);
    let mut last = None;
    for phase in 0..ROUNDS as u64 {
        let round = Round::fresh(label(), 2 * phase, keys.clone())?;
        let (public, secrets) =
            figures.time(&format!("make n{count}"), "weir", || deal(&round, &identities, None, rng))?;
        let again = Round::reshare(label(), 2 * phase + 1, public, keys.clone(), keys.clone())?;
        last =
            Some(figures.time(&format!("reshare n{count}"), "weir", || {
                deal(&again, &identities, Some(&secrets), rng)
            })?);
    }
    let (public, secrets) = last.ok_or("no round")?;
    Ok(Group { public, secrets, identities })
}

/// The check of an operator's request that changes so many resources, and the digest by which a copy is known.
fn requests(figures: &mut Figures) -> Result<(), Failure> {
    const CHECKS: usize = 100;
    let key = KeyPair::from_seed(&[7; 32]);
    let source = SourceId::of_operator(&label());
    for resources in [1, 100] {
        let id = ResourceId { kind: Kind::Endpoint, network: Some(label()), name: label() };
        let mutation = Mutation { id, expected: None, wanted: Wanted::Document("x".repeat(300)) };
        let transaction = Transaction { mutations: vec![mutation; resources], replace_all: false };
        let event = Event { source: source.clone(), sequence: 1, body: EventBody::Intent(transaction) };
        let said = sign_said(&key, &label(), event, (1, 2));
        let metric = format!("request {resources}");
        for _ in 0..ROUNDS {
            let check =
                || is_signed_by(&[key.public()], &label(), &said) && digest(&label(), &said) != [0; 32];
            if !figures.time(&metric, "weir", || (0..CHECKS).all(|_| check())) {
                return Err("a signature does not verify".into());
            }
        }
        let us = figures.median(&metric, "weir") / CHECKS as f64;
        println!("RESULT trust request_check_resources{resources} weir={us:.1}us");
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut figures = Figures::default();
    requests(&mut figures)?;
    if std::env::args().nth(1).as_deref() == Some("requests") {
        return Ok(());
    }
    let mut rng = Rng::new(1);
    let mut groups = Vec::new();
    for count in [4, 7, 10] {
        groups.push((count, make_group(count, &mut figures, &mut rng)?));
    }
    let batches = [1_usize, 16, 256];
    for round in 0..ROUNDS {
        for (count, group) in &groups {
            for batch in batches {
                let tag = format!("n{count}_batch{batch}");
                let updates = updates(batch, round);
                each_by_members(group, &updates, &mut figures, &tag)?;
                each_by_group(group, &updates, &mut figures, &tag)?;
                endorsed(group, updates.clone(), &mut figures, &tag)?;
                by_root(group, updates, &mut figures, &tag)?;
            }
        }
    }
    for (count, _) in &groups {
        println!("# {count} controllers, {} shares make a signature", threshold(*count as usize));
        for batch in batches {
            let tag = format!("n{count}_batch{batch}");
            for part in ["sign", "aggregate", "verify"] {
                figures.print(&format!("{part} {tag}"), &format!("{part}_per_update_{tag}"), batch as f64);
            }
        }
        for part in ["make", "reshare"] {
            let all_ms = figures.median(&format!("{part} n{count}"), "weir") / 1e3;
            println!("RESULT trust {part}_key_all_members_n{count} weir={all_ms:.1}ms");
        }
    }
    Ok(())
}
