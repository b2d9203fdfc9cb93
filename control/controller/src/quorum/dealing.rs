//! A member's part in making the group's key and in resharing it (rows C3, C5).
//!
//! The member that leads proposes rounds: the first when it knows the identities of all members; later ones when the
//! members of the order are others than those of the key, when a member has no share (its disk is new), and on command
//! (proactive refresh). What is proposed is judged by the order alone, so a leader that fails or lies costs time only.
//!
//! It also proposes that members endorse batches, or cease to, when the order has it otherwise than its settings.
//!
//! A round that does not end in [`ROUND_PATIENCE_MS`], twice as long each time, is begun anew with the members of then.

use super::kept::{Kept, KeptRound, KeptShare, Seed};
use super::{Common, Output, PeerMessage, RandomnessSource, Way};
use crate::core::keys::KeyStep;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io;
use weir_model::signed::Digest;
use weir_trust::TrustError;
use weir_trust::threshold::{Deal, DealAck, DealLog, Dealer, MemberSecret, Members, Player, Round};

/// How often a member says who it is, milliseconds.
const ANNOUNCE_MS: u64 = 1_000;
/// How often deals and logs are sent again, milliseconds.
const AGAIN_MS: u64 = 200;
/// A dealer waits so long for acks before it reveals the shares of those that are missing, milliseconds.
const REVEAL_MS: u64 = 2_000;
/// A round may take so long, milliseconds.
pub const ROUND_PATIENCE_MS: u64 = 10_000;
/// A round may take so long after others have failed, milliseconds.
const ROUND_PATIENCE_MAX_MS: u64 = 300_000;
/// A member may be without a share for so long, milliseconds.
const SHARE_PATIENCE_MS: u64 = 2_000;

/// What a member says of itself.
struct Identity {
    key: [u8; 32],
    /// Phase of its share.
    phase: u64,
}

/// This member's part in the round that goes on.
struct Part {
    id: Digest,
    since_ms: u64,
    kept: KeptRound,
    dealer: Option<Dealer>,
    player: Option<Player>,
    deals_sent_ms: u64,
    log: Option<DealLog>,
    log_sent_ms: u64,
}

/// See the module.
pub struct Dealing {
    kept: Kept,
    randomness: Box<RandomnessSource>,
    share: Option<(u64, MemberSecret)>,
    identities: BTreeMap<u32, Identity>,
    part: Option<Part>,
    announced_ms: Option<u64>,
    refresh: bool,
    proposed_ms: Option<u64>,
    /// The last round seen, and since when.
    open: Option<(Digest, u64)>,
    /// Since when the group in force is.
    phase_since: (u64, u64),
    attempts: u32,
}

/// Secret bytes from a seed, without end.
fn stream(seed: &Seed) -> impl FnMut(&mut [u8]) + use<> {
    let seed = seed.clone();
    let mut counter: u64 = 0;
    move |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            let mut hash = Sha256::new();
            hash.update(b"weir/deal-seed/1\0");
            hash.update(seed.0);
            hash.update(counter.to_le_bytes());
            counter += 1;
            chunk.copy_from_slice(&hash.finalize()[..chunk.len()]);
        }
    }
}

impl Dealing {
    pub(super) fn new(kept: Kept, randomness: Box<RandomnessSource>) -> Dealing {
        Dealing {
            kept,
            randomness,
            share: None,
            identities: BTreeMap::new(),
            part: None,
            announced_ms: None,
            refresh: false,
            proposed_ms: None,
            open: None,
            phase_since: (0, 0),
            attempts: 0,
        }
    }

    /// This member's share, and its phase.
    pub(super) fn share(&self) -> Option<(u64, &MemberSecret)> {
        self.share.as_ref().map(|(phase, secret)| (*phase, secret))
    }

    /// The order brought the key further.
    pub(super) fn keys_changed(&mut self, common: &mut Common, out: &mut Vec<Output>) -> io::Result<()> {
        let keys = common.keys.clone();
        if self.phase_since.0 != keys.phase() {
            self.phase_since = (keys.phase(), common.now_ms);
            (self.refresh, self.attempts) = (false, 0);
            self.take_share(common)?;
            self.announced_ms = None;
        }
        let open = keys.open().map(|open| open.round().clone());
        let id = open.as_ref().map(Round::id);
        if self.part.as_ref().map(|part| part.id) != id {
            self.part = None;
        }
        if self.open.map(|(id, _)| id) != id {
            self.open = id.map(|id| (id, common.now_ms));
            self.proposed_ms = None;
            if let Some(round) = open {
                self.begin(common, round, out)?;
            }
        }
        Ok(())
    }

    /// The share of the group in force: from disk, or from what was dealt.
    fn take_share(&mut self, common: &Common) -> io::Result<()> {
        let (keys, me) = (&common.keys, common.me.id);
        let (Some(group), Some(made_by)) = (keys.group(), keys.made_by()) else { return Ok(()) };
        self.share = None;
        let on_disk = self.kept.share()?;
        if on_disk.as_ref().is_some_and(|kept| kept.phase > keys.phase()) {
            // A replay of the order: the phase of the share on disk is to come.
            return Ok(());
        }
        if !group.members().contains(&me) {
            self.kept.forget_share()?;
            return Ok(());
        }
        if let Some(kept) = on_disk.filter(|kept| kept.phase == keys.phase()) {
            match MemberSecret::from_bytes(group, me, &kept.secret) {
                Ok(secret) => self.share = Some((kept.phase, secret)),
                Err(error) => tracing::error!(%error, "the share on disk is not this member's"),
            }
            return Ok(());
        }
        let finished =
            self.played(common, made_by.round())?.and_then(|player| player.finish(made_by.ledger()));
        match finished {
            Ok((_, secret)) => {
                self.kept.keep_share(&KeptShare { phase: keys.phase(), secret: *secret.to_bytes() })?;
                self.kept.forget_round()?;
                tracing::info!(phase = keys.phase(), "share of the group key installed");
                self.share = Some((keys.phase(), secret));
            }
            Err(error) => {
                tracing::warn!(%error, phase = keys.phase(), "no share of the group key: waiting for the next resharing");
            }
        }
        Ok(())
    }

    /// The player of a round with the deals that are on disk.
    fn played(&self, common: &Common, round: &Round) -> io::Result<Result<Player, TrustError>> {
        let mut player = match Player::new(round.clone(), common.me.id) {
            Ok(player) => player,
            Err(error) => return Ok(Err(error)),
        };
        let kept = self.kept.round()?.filter(|kept| kept.round == round.id());
        for deal in kept.iter().flat_map(|kept| &kept.deals) {
            if let Err(fault) = player.take(deal, &common.me.identity) {
                tracing::error!(%fault, "invalid deal on disk");
            }
        }
        Ok(Ok(player))
    }

    /// Takes part in a round.
    fn begin(&mut self, common: &mut Common, round: Round, out: &mut Vec<Output>) -> io::Result<()> {
        let me = common.me.id;
        let own_key = common.me.identity.public();
        let kept = self.kept.round()?;
        let later = |phase: u64| phase > round.phase();
        let replayed = kept.as_ref().is_some_and(|kept| later(kept.phase))
            || self.kept.share()?.is_some_and(|share| later(share.phase) || share.phase == round.phase());
        let concerned = round.players().contains_key(&me) || round.dealers().contains_key(&me);
        if replayed || !concerned {
            return Ok(());
        }
        if round.players().get(&me).is_some_and(|key| *key != own_key) {
            // A replay of a life before this member had lost its disk, or the leader has not heard of its new identity.
            tracing::info!(
                phase = round.phase(),
                "a round knows this member by another identity: passed over"
            );
            return Ok(());
        }
        let others = round.players().iter().chain(round.dealers());
        let right = |(member, key): (&u32, &[u8; 32])| match self.identities.get(member) {
            _ if *member == me => *key == own_key,
            Some(known) => known.key == *key,
            None => true,
        };
        if !others.into_iter().all(right) {
            tracing::error!(
                phase = round.phase(),
                "a round names members by keys that are not theirs: refused"
            );
            return Ok(());
        }
        let id = round.id();
        let kept = match kept.filter(|kept| kept.round == id) {
            Some(kept) => kept,
            None => {
                let mut seed = Seed([0; 32]);
                (self.randomness)(&mut seed.0);
                KeptRound { round: id, phase: round.phase(), seed, deals: Vec::new() }
            }
        };
        self.kept.keep_round(&kept)?;
        let share = self.share.as_ref().filter(|_| round.previous().is_some()).map(|(_, share)| share);
        let deals = round.dealers().contains_key(&me) && (round.previous().is_none() || share.is_some());
        let dealer = deals.then(|| Dealer::new(round.clone(), me, share, &mut stream(&kept.seed)));
        let dealer = dealer.transpose().unwrap_or_else(|error| {
            tracing::error!(%error, "this member cannot deal");
            None
        });
        let player = self.played(common, &round)?.ok();
        let (since_ms, phase) = (common.now_ms, round.phase());
        tracing::info!(phase, deals = dealer.is_some(), plays = player.is_some(), "resharing round");
        let (deals_sent_ms, log_sent_ms) = (0, 0);
        self.part = Some(Part { id, since_ms, kept, dealer, player, deals_sent_ms, log: None, log_sent_ms });
        self.send_deals(common, out);
        Ok(())
    }

    fn send_deals(&mut self, common: &mut Common, out: &mut Vec<Output>) {
        let Some(part) = &mut self.part else { return };
        let Some(dealer) = part.dealer.as_ref().filter(|_| part.log.is_none()) else { return };
        part.deals_sent_ms = common.now_ms;
        for player in dealer.missing().collect::<Vec<u32>>() {
            if let Some(deal) = dealer.deal(player) {
                common.tell(player, PeerMessage::Deal(Box::new(deal)), out);
            }
        }
    }

    /// A deal for this member.
    pub(super) fn dealt(&mut self, common: &mut Common, deal: Deal, out: &mut Vec<Output>) -> io::Result<()> {
        // Of a round that the order has not brought yet: it is sent again.
        let Some(part) = self.part.as_mut().filter(|part| part.id == deal.round) else { return Ok(()) };
        let Some(player) = &mut part.player else { return Ok(()) };
        match player.take(&deal, &common.me.identity) {
            Ok(ack) => {
                if !part.kept.deals.iter().any(|kept| kept.dealer == deal.dealer) {
                    part.kept.deals.push(deal);
                    self.kept.keep_round(&part.kept)?;
                }
                common.tell(ack.dealer, PeerMessage::DealAck(ack), out);
            }
            Err(fault) => common.fault(fault, None),
        }
        Ok(())
    }

    /// A player has what this member dealt.
    pub(super) fn acked(&mut self, common: &mut Common, ack: &DealAck, out: &mut Vec<Output>) {
        let Some(part) = self.part.as_mut().filter(|part| part.id == ack.round) else { return };
        let Some(dealer) = &mut part.dealer else { return };
        if let Err(fault) = dealer.take_ack(ack) {
            common.fault(fault, None);
        } else if dealer.missing().next().is_none() {
            self.publish(common, out);
        }
    }

    /// Sends this dealer's log to the leader, to be ordered; also again.
    fn publish(&mut self, common: &mut Common, out: &mut Vec<Output>) {
        let Some(part) = &mut self.part else { return };
        if part.log.is_none() {
            part.log = part.dealer.as_ref().and_then(|dealer| dealer.log(&common.me.identity));
        }
        if let (Some(log), Some(leader)) = (&part.log, common.leader) {
            part.log_sent_ms = common.now_ms;
            common.tell(leader, PeerMessage::DealLog(Box::new(log.clone())), out);
        }
    }

    /// A member says who it is.
    pub(super) fn identity(
        &mut self,
        common: &mut Common,
        from: u32,
        (key, phase): ([u8; 32], u64),
        out: &mut Vec<Output>,
    ) {
        self.identities.insert(from, Identity { key, phase });
        self.identities.retain(|member, _| *member == from || common.voters.contains(member));
        self.plan(common, out);
    }

    /// Who leads or who is in the group may have changed.
    pub(super) fn group_changed(&mut self, common: &mut Common, out: &mut Vec<Output>) {
        self.plan(common, out);
    }

    /// New shares are wanted.
    pub(super) fn refresh(&mut self, common: &mut Common, out: &mut Vec<Output>) {
        self.refresh = true;
        self.plan(common, out);
    }

    /// Time passed.
    pub(super) fn tick(&mut self, common: &mut Common, out: &mut Vec<Output>) -> io::Result<()> {
        let now_ms = common.now_ms;
        if self.announced_ms.is_none_or(|at_ms| now_ms >= at_ms + ANNOUNCE_MS) {
            self.announced_ms = Some(now_ms);
            let (key, phase) = (common.me.identity.public(), self.share().map_or(0, |(phase, _)| phase));
            for to in common.voters.clone() {
                common.tell(to, PeerMessage::Identity { key, phase }, out);
            }
        }
        if let Some(part) = &self.part {
            let published = common.keys.open().is_some_and(|open| open.has(common.me.id));
            let due = |at_ms: u64| now_ms >= at_ms + AGAIN_MS;
            if part.log.is_some() {
                if !published && due(part.log_sent_ms) {
                    self.publish(common, out);
                }
            } else if now_ms >= part.since_ms + REVEAL_MS {
                if due(part.deals_sent_ms) {
                    self.send_deals(common, out);
                }
                self.publish(common, out);
            } else if due(part.deals_sent_ms) {
                self.send_deals(common, out);
            }
        }
        self.plan(common, out);
        Ok(())
    }

    /// Proposes a round, when this member leads and one is wanted.
    fn plan(&mut self, common: &mut Common, out: &mut Vec<Output>) {
        let (keys, now_ms) = (common.keys.clone(), common.now_ms);
        if !common.leads() || self.proposed_ms.is_some_and(|at_ms| now_ms < at_ms + ANNOUNCE_MS) {
            return;
        }
        let endorses = common.me.way == Way::Endorsed;
        if keys.group().is_some() && keys.endorses() != endorses {
            self.proposed_ms = Some(now_ms);
            out.push(Output::Propose(KeyStep::Endorse(endorses)));
            return;
        }
        if let (Some(open), Some((_, since_ms))) = (keys.open(), self.open) {
            let patience_ms = (ROUND_PATIENCE_MS << self.attempts.min(16)).min(ROUND_PATIENCE_MAX_MS);
            if open.round().players().keys().eq(&common.voters) && now_ms < since_ms + patience_ms {
                return;
            }
        } else if !self.wants_round(common) {
            return;
        }
        match self.round(common) {
            Some(Ok(round)) => {
                self.proposed_ms = Some(now_ms);
                self.attempts += 1;
                tracing::info!(phase = round.phase(), players = ?round.players().keys(), "proposing a resharing round");
                out.push(Output::Propose(KeyStep::Begin(round)));
            }
            Some(Err(error)) => tracing::warn!(%error, "cannot reshare the group key now"),
            // Not everybody has said who it is.
            None => {}
        }
    }

    fn wants_round(&self, common: &Common) -> bool {
        let keys = &common.keys;
        let Some(group) = keys.group() else { return true };
        let waited = common.now_ms >= self.phase_since.1 + SHARE_PATIENCE_MS;
        let lacks =
            |member: &u32| self.identities.get(member).is_some_and(|known| known.phase < keys.phase());
        self.refresh || *group.members() != common.voters || (waited && common.voters.iter().any(lacks))
    }

    /// The round for the members of now; nothing while somebody's key is not known.
    fn round(&self, common: &Common) -> Option<Result<Round, TrustError>> {
        let keys = &common.keys;
        let made = keys.made_by().map(|made| made.round().players());
        let key_of = |member: &u32| {
            let said = self.identities.get(member).map(|known| known.key);
            said.or_else(|| made.and_then(|made| made.get(member)).copied())
        };
        if common.voters.is_empty() || (keys.group().is_none() && common.voters.len() < keys.first_of()) {
            return None;
        }
        let named = |member: &u32| Some((*member, key_of(member)?));
        let players: Members = common.voters.iter().map(named).collect::<Option<_>>()?;
        let (domain, phase) = (common.me.domain.clone(), keys.next_phase());
        let Some(group) = keys.group() else { return Some(Round::fresh(domain, phase, players)) };
        let staying = group.members().iter().filter(|member| common.voters.contains(member));
        let mut dealers: Members = staying.filter_map(named).collect();
        if dealers.len() < group.threshold() {
            dealers = group.members().iter().filter_map(named).collect();
        }
        Some(Round::reshare(domain, phase, group.clone(), dealers, players))
    }
}
