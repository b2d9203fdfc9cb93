//! From shares of a signature to the group's (row C4): whom to send a share, who combines, and what happens when that one
//! is silent or lies.
//!
//! - Every member sends its share to the aggregator; the aggregator sends the signature to all.
//! - The member that leads checks a signature at once, because it sends it on. The others check theirs when there is
//!   time, that is after [`QUIET_MS`] without anything to do, or when one waits for [`CLAIM_MS`], and then all at once for
//!   about the price of one: until then they are claims. A check in between would stand in the way of the next change.
//! - Where actuators put signatures together, or take endorsements, members put them together when there is time as well.
//! - A batch without a signature after [`PATIENCE_MS`] is taken to the next member round the ring, and everybody is asked
//!   for its signature: that is how a member which slept or restarted gets old ones.
//! - Batches that nobody holds any more are forgotten, also unsigned ones.

use super::{Common, Output, PeerMessage, Way};
use crate::audit::BadShare;
use crate::audit::record::statement;
use crate::core::{BatchName, DecidedHeader};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use weir_base::codec::encode;
use weir_model::signed::{
    BatchHeader, BlsSignature, HeaderEndorsement, HeaderShare, MemberSignature, Signature,
};
use weir_trust::endorsement::endorse;
use weir_trust::identity::Context;
use weir_trust::threshold::{Collector, Fault, FaultKind, GroupVerifier, MemberSecret, ShareSignature};

/// A batch has its signature after so long, or another aggregator is asked, milliseconds. Twice as long each time, up to
/// [`PATIENCE_MAX_MS`].
pub const PATIENCE_MS: u64 = 100;
/// The longest patience, milliseconds.
pub const PATIENCE_MAX_MS: u64 = 3_200;
/// Batches for which one member may have begun to collect shares here.
const COLLECTING_MAX: usize = 8_192;
/// Signatures of batches that are not decided here yet.
const EARLY_MAX: usize = 8_192;
/// Batches taken to the next aggregator at one tick.
const PASSED_ON_MAX: usize = 256;
/// Nothing to do for so long is time for what is not urgent, milliseconds.
const QUIET_MS: u64 = 100;
/// A claim is checked after so long whatever else there is to do, milliseconds; so is a share sent that only members want.
const CLAIM_MS: u64 = 500;
/// Claims checked at one tick: some milliseconds, when all are right.
pub(super) const CHECKED_MAX: usize = 64;

/// A batch whose signature is not there.
struct Wanted {
    header: Weak<DecidedHeader>,
    /// Who was asked last.
    asked: Option<u32>,
    since_ms: u64,
    tries: u32,
    /// A signature that was not checked, and whose it is.
    claim: Option<(u32, BlsSignature)>,
    /// Actuators have this member's share or endorsement; members get its share when there is time.
    at_actuators: bool,
}

/// Phase and encoding of a header.
type Collecting = (u64, Vec<u8>);
/// A share with the statement of its member.
type Stated = (ShareSignature, Signature);

/// Shares of a header that come together, and what their members said of them.
struct Collected {
    collector: Collector,
    stated: BTreeMap<u32, Stated>,
}

/// See the module.
#[derive(Default)]
pub struct Shares {
    wanted: BTreeMap<BatchName, Wanted>,
    signed: BTreeMap<BatchName, Weak<DecidedHeader>>,
    signed_after_look: usize,
    collecting: BTreeMap<Collecting, Collected>,
    /// What each member was the first to send a share of, oldest first.
    opened: BTreeMap<u32, VecDeque<Collecting>>,
    early: BTreeMap<BatchName, (u32, BlsSignature)>,
    early_order: VecDeque<BatchName>,
    /// Members that are not asked, and whether because they lied.
    passed_over: BTreeMap<u32, bool>,
    /// When something came last that somebody waits for.
    busy_ms: u64,
    phase: u64,
    verifier: Option<GroupVerifier>,
}

/// A share as actuators want it.
fn share_of(common: &Common, phase: u64, header: &BatchHeader, share: &ShareSignature) -> HeaderShare {
    let threshold = common.keys.group().map_or(0, |group| group.threshold() as u32);
    HeaderShare { header: header.clone(), phase, threshold, member: share.member, signature: share.signature }
}

/// This member's own word for a batch, as actuators want it.
fn endorsement_of(common: &Common, phase: u64, header: &BatchHeader) -> HeaderEndorsement {
    let signature = endorse(&common.me.identity, phase, header);
    let by = MemberSignature { member: common.me.id, signature };
    HeaderEndorsement { header: header.clone(), phase, by }
}

/// Whether actuators get this member's own proof of a batch. What says whose endorsements count is proven by the key only.
fn goes_to_actuators(common: &Common, header: &DecidedHeader) -> bool {
    let way = match common.me.way {
        Way::Aggregated => false,
        Way::SharesAtActuators => true,
        Way::Endorsed => common.keys.endorses(),
    };
    way && !header.by_key && !header.targets.is_empty()
}

impl Shares {
    /// Who puts signatures together: the lowest member that is neither silent nor a liar, else the lowest.
    pub(super) fn aggregator(&self, common: &Common) -> Option<u32> {
        let group = common.keys.group()?;
        let members = || group.members().iter().copied().filter(|id| common.voters.contains(id));
        let live = members().find(|member| !self.passed_over.contains_key(member));
        live.or_else(|| members().find(|member| self.passed_over.get(member) != Some(&true)))
            .or_else(|| members().next())
    }

    /// The member behind `asked` round the ring, liars left out.
    fn next(&self, common: &Common, asked: u32) -> Option<u32> {
        let group = common.keys.group()?;
        let mut fit: Vec<u32> = group.members().iter().copied().collect();
        fit.retain(|id| common.voters.contains(id) && self.passed_over.get(id) != Some(&true));
        fit.iter().copied().find(|member| *member > asked).or_else(|| fit.first().copied())
    }

    pub(super) fn passed_over(&self) -> &BTreeMap<u32, bool> {
        &self.passed_over
    }

    pub(super) fn waiting(&self) -> usize {
        self.wanted.len()
    }

    /// A member spoke, so it is not silent.
    pub(super) fn heard_of(&mut self, member: u32) {
        if self.passed_over.get(&member) == Some(&false) {
            self.passed_over.remove(&member);
        }
    }

    /// A member does not answer: it is not asked, and what it was asked for is taken to the next one.
    pub(super) fn failed(&mut self, member: u32) {
        self.passed_over.entry(member).or_insert(false);
        for wanted in self.wanted.values_mut().filter(|wanted| wanted.asked == Some(member)) {
            wanted.since_ms = 0;
        }
    }

    /// The core decided a batch, or took over a state that holds it.
    pub(super) fn decided(
        &mut self,
        common: &mut Common,
        weak: Weak<DecidedHeader>,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        // Replaced before its turn came: a replay makes many of these.
        let Some(header) = weak.upgrade() else { return };
        let name = header.name();
        if header.signature().is_some() {
            self.remember(name, weak);
            return;
        }
        self.busy_ms = common.now_ms;
        let claim = self.early.remove(&name);
        let own = claim.is_some_and(|(from, _)| from == common.me.id);
        let since_ms = common.now_ms;
        let known = claim.is_some();
        let new = Wanted { header: weak, asked: None, since_ms, tries: 0, claim, at_actuators: false };
        self.wanted.insert(name, new);
        if own {
            self.accept(name, out);
        } else if known {
            if common.leads() {
                self.check(common, name, share, out);
            }
        } else {
            self.ask(common, name, &header, self.aggregator(common), share, out);
        }
    }

    /// Sends this member's share of a signature.
    fn ask(
        &mut self,
        common: &mut Common,
        name: BatchName,
        header: &DecidedHeader,
        aggregator: Option<u32>,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        let Some(wanted) = self.wanted.get_mut(&name) else { return };
        wanted.since_ms = common.now_ms;
        let (Some(aggregator), Some((phase, secret))) = (aggregator, share) else { return };
        if phase != common.keys.phase() {
            return;
        }
        let to_actuators = !wanted.at_actuators && goes_to_actuators(common, header);
        if !to_actuators {
            wanted.asked = Some(aggregator);
        }
        wanted.at_actuators |= to_actuators;
        if to_actuators && common.me.way == Way::Endorsed {
            common.counters.endorsed += 1;
            let endorsement = Box::new(endorsement_of(common, phase, &header.header));
            out.push(Output::Endorsement { targets: header.targets.clone(), endorsement });
            return;
        }
        match secret.sign(Context::Batch, &encode(&header.header)) {
            Ok(share) => {
                common.counters.shares_made += 1;
                if to_actuators {
                    let share = share_of(common, phase, &header.header, &share);
                    out.push(Output::Share { targets: header.targets.clone(), share: Box::new(share) });
                    return;
                }
                let header = header.header.clone();
                let said = statement(phase, &header, &share);
                let statement = common.me.identity.sign(Context::Share, &said);
                common.tell(aggregator, PeerMessage::Share { phase, header, share, statement }, out);
            }
            Err(error) => tracing::error!(%error, "this member's share signs nothing"),
        }
    }

    /// A member's share of a signature came.
    pub(super) fn share(
        &mut self,
        common: &mut Common,
        phase: u64,
        header: BatchHeader,
        (share, statement): Stated,
        out: &mut Vec<Output>,
    ) {
        let keys = common.keys.clone();
        let name = (header.index, header.root);
        let Some(group) = keys.group().filter(|_| keys.phase() == phase) else {
            // It is behind, or this member is; it sends the share again.
            common.counters.dropped += 1;
            return;
        };
        if self.signed.contains_key(&name) || self.early.contains_key(&name) {
            return;
        }
        common.counters.shares_taken += 1;
        let message = encode(&header);
        let key = (phase, message);
        if !self.collecting.contains_key(&key) {
            self.open(common, share.member, &key);
        }
        let Some(collecting) = self.collecting.get_mut(&key) else { return };
        let before = collecting.collector.checks;
        // The first counts, as with the collector.
        let stated = (share.clone(), statement);
        collecting.stated.entry(share.member).or_insert(stated);
        let collected = collecting.collector.add(group, &share);
        common.counters.checks += collecting.collector.checks - before;
        for fault in collected.faults {
            self.passed_over.insert(fault.member, true);
            let stated = collecting.stated.get(&fault.member).cloned();
            let proof =
                stated.map(|(share, statement)| BadShare { header: header.clone(), share, statement });
            // Only what convinces is kept as a proof; the check is the one that others make.
            let members = keys.made_by().map(|made_by| made_by.round().players());
            let proof = proof.filter(|proof| {
                members.is_some_and(|members| proof.convinces(phase, fault.member, members, group))
            });
            common.fault(fault, proof);
        }
        let Some(signature) = collected.signature else { return };
        self.collecting.remove(&key);
        common.counters.aggregated += 1;
        let own = common.me.id;
        for to in common.voters.clone().into_iter().filter(|to| *to != own) {
            out.push(Output::Tell { to, message: PeerMessage::Signature { batch: name, signature } });
        }
        match self.wanted.get_mut(&name) {
            Some(wanted) => {
                wanted.claim = Some((own, signature));
                self.accept(name, out);
            }
            None => self.come_early(common, name, own, signature),
        }
    }

    fn open(&mut self, common: &mut Common, member: u32, key: &Collecting) {
        let opened = self.opened.entry(member).or_default();
        while opened.len() >= COLLECTING_MAX {
            let Some(oldest) = opened.pop_front() else { break };
            common.counters.dropped += u64::from(self.collecting.remove(&oldest).is_some());
        }
        opened.push_back(key.clone());
        let collector = Collector::new(Context::Batch, key.1.clone());
        self.collecting.insert(key.clone(), Collected { collector, stated: BTreeMap::new() });
    }

    fn come_early(&mut self, common: &mut Common, name: BatchName, from: u32, signature: BlsSignature) {
        if self.early_order.len() >= EARLY_MAX
            && let Some(oldest) = self.early_order.pop_front()
        {
            common.counters.dropped += u64::from(self.early.remove(&oldest).is_some());
        }
        self.early.insert(name, (from, signature));
        self.early_order.push_back(name);
    }

    /// A signature came that another member put together.
    pub(super) fn signature(
        &mut self,
        common: &mut Common,
        (from, share): (u32, Option<(u64, &MemberSecret)>),
        (name, signature): (BatchName, BlsSignature),
        out: &mut Vec<Output>,
    ) {
        if self.passed_over.get(&from) == Some(&true) || self.signed.contains_key(&name) {
            return;
        }
        common.counters.received += 1;
        self.busy_ms = common.now_ms;
        match self.wanted.get_mut(&name) {
            None => self.come_early(common, name, from, signature),
            Some(wanted) if wanted.claim.is_some() => {}
            Some(wanted) => {
                wanted.claim = Some((from, signature));
                if common.leads() {
                    self.check(common, name, share, out);
                }
            }
        }
    }

    /// A member wants a signature.
    pub(super) fn want(&self, common: &mut Common, from: u32, batch: BatchName, out: &mut Vec<Output>) {
        let header = self.signed.get(&batch).and_then(Weak::upgrade);
        if let Some(weir_model::signed::GroupSignature::Threshold(signature)) =
            header.as_ref().and_then(|header| header.signature())
        {
            common.tell(from, PeerMessage::Signature { batch, signature: *signature }, out);
        }
    }

    /// Checks a claim; a wrong one names its sender.
    fn check(
        &mut self,
        common: &mut Common,
        name: BatchName,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        let Some(wanted) = self.wanted.get_mut(&name) else { return };
        let (Some(header), Some((from, signature)), Some(verifier)) =
            (wanted.header.upgrade(), wanted.claim, &self.verifier)
        else {
            return;
        };
        common.counters.checks += 1;
        if verifier.verify(Context::Batch, &encode(&header.header), &signature).is_ok() {
            self.accept(name, out);
            return;
        }
        wanted.claim = None;
        self.passed_over.insert(from, true);
        common.fault(Fault { member: from, what: FaultKind::BadGroupSignature }, None);
        let aggregator = self.aggregator(common);
        self.ask(common, name, &header, aggregator, share, out);
    }

    /// Takes over a claim that is right.
    fn accept(&mut self, name: BatchName, out: &mut Vec<Output>) {
        let Some(wanted) = self.wanted.remove(&name) else { return };
        if let Some((_, signature)) = wanted.claim {
            out.push(Output::Signed { batch: name, signature });
            self.remember(name, wanted.header);
        }
    }

    fn remember(&mut self, name: BatchName, header: Weak<DecidedHeader>) {
        if self.signed.len() >= 1024.max(2 * self.signed_after_look) {
            self.signed.retain(|_, header| header.strong_count() > 0);
            self.signed_after_look = self.signed.len();
        }
        self.signed.insert(name, header);
    }

    /// Checks claims, at most so many.
    pub(super) fn check_claims(
        &mut self,
        common: &mut Common,
        share: Option<(u64, &MemberSecret)>,
        limit: usize,
        out: &mut Vec<Output>,
    ) {
        let claimed = self.wanted.iter().filter_map(|(name, wanted)| {
            let (header, (_, signature)) = (wanted.header.upgrade()?, wanted.claim?);
            Some((*name, (encode(&header.header), signature)))
        });
        let (names, signed): (Vec<BatchName>, Vec<_>) = claimed.take(limit).unzip();
        if let Some(verifier) = self.verifier.as_ref().filter(|_| names.len() > 1) {
            common.counters.checks += 1;
            if verifier.verify_all(Context::Batch, &signed).is_ok() {
                names.into_iter().for_each(|name| self.accept(name, out));
                return;
            }
        }
        // One by one: a wrong one names its sender.
        for name in names {
            self.check(common, name, share, out);
        }
    }

    /// The group in force may be another, or this member's share of it came: what waits is signed anew.
    pub(super) fn phase(
        &mut self,
        common: &mut Common,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        let Some(group) = common.keys.group() else { return };
        let phase = share.map_or(0, |(phase, _)| phase);
        if self.verifier.is_none() {
            self.verifier = GroupVerifier::new(&group.key()).ok();
        }
        if phase == self.phase || phase != common.keys.phase() {
            return;
        }
        self.phase = phase;
        self.collecting.clear();
        self.opened.clear();
        self.passed_over.clear();
        let aggregator = self.aggregator(common);
        for (name, header) in self.unclaimed(|_| true, usize::MAX) {
            self.ask(common, name, &header, aggregator, share, out);
        }
    }

    fn unclaimed(
        &self,
        which: impl Fn(&Wanted) -> bool,
        limit: usize,
    ) -> Vec<(BatchName, Arc<DecidedHeader>)> {
        let wanted = self.wanted.iter().filter(|(_, wanted)| wanted.claim.is_none() && which(wanted));
        wanted.filter_map(|(name, wanted)| Some((*name, wanted.header.upgrade()?))).take(limit).collect()
    }

    /// Time passed.
    pub(super) fn tick(
        &mut self,
        common: &mut Common,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        self.wanted.retain(|_, wanted| wanted.header.strong_count() > 0);
        let now_ms = common.now_ms;
        let quiet = now_ms >= self.busy_ms + QUIET_MS;
        let rests = |wanted: &Wanted| wanted.at_actuators && wanted.asked.is_none();
        let late = |wanted: &Wanted| {
            let patience_ms = (PATIENCE_MS << wanted.tries.min(16)).min(PATIENCE_MAX_MS);
            !rests(wanted) && now_ms >= wanted.since_ms + patience_ms
        };
        let due = |wanted: &Wanted| rests(wanted) && (quiet || now_ms >= wanted.since_ms + CLAIM_MS);
        let aggregator = self.aggregator(common);
        for (name, header) in self.unclaimed(due, PASSED_ON_MAX) {
            self.ask(common, name, &header, aggregator, share, out);
        }
        for (name, header) in self.unclaimed(late, PASSED_ON_MAX) {
            self.pass_on(common, name, &header, share, out);
        }
        let waits = |wanted: &Wanted| wanted.claim.is_some() && now_ms >= wanted.since_ms + CLAIM_MS;
        if quiet || common.leads() || self.wanted.values().any(waits) {
            self.check_claims(common, share, CHECKED_MAX, out);
        }
    }

    /// Goes to the next aggregator with a batch, and asks everybody for its signature.
    fn pass_on(
        &mut self,
        common: &mut Common,
        name: BatchName,
        header: &DecidedHeader,
        share: Option<(u64, &MemberSecret)>,
        out: &mut Vec<Output>,
    ) {
        let Some(wanted) = self.wanted.get_mut(&name) else { return };
        wanted.tries = wanted.tries.saturating_add(1);
        let asked = wanted.asked;
        common.counters.passed_on += 1;
        let own = common.me.id;
        if let Some(silent) = asked.filter(|asked| *asked != own) {
            self.passed_over.entry(silent).or_insert(false);
        }
        for to in common.voters.clone().into_iter().filter(|to| *to != own) {
            out.push(Output::Tell { to, message: PeerMessage::Want { batch: name } });
        }
        let next = match asked {
            Some(asked) => self.next(common, asked),
            None => self.aggregator(common),
        };
        self.ask(common, name, header, next, share, out);
    }
}
