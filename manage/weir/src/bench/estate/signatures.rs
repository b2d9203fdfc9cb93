//! Processor time of a host for the signatures of set-ups, by each way of signing (Lembke, Fig. 3.13d): what its agent and its switch do with
//! frames that come, with their own code. A set-up is one update in a batch of its own, as it is where flows come one after the other; the group has
//! four members, of which three must sign. The switch's gate keeps a journal in memory.
//!
//! Not in it: TLS, sockets, and what the switch does with the entry, which is the same in every way.

use super::picture::{Line, Picture};
use crate::bench::completion::costs::{Group, cpu_ns, member_key};
use crate::bench::simulated::Folder;
use crate::failure::Failure;
use weir_agent::session::shares::{Combined, Shares};
use weir_base::codec::{decode, encode};
use weir_model::entry::{ControllersEntry, Vni};
use weir_model::session::ToActuator;
use weir_model::signed::{
    BatchHeader, GroupKey, GroupSignature, HeaderEndorsement, HeaderShare, MemberSignature, ProvenUpdate,
    SignedHeader, SignedUpdates, UnsignedUpdates,
};
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{GroupSigner as _, SingleSigner, Verifier, prepare_batch, sign_batch};
use weir_trust::endorsement::endorse;
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{Context, KeyPair, sign_acks};
use weir_trust::threshold::combine;

/// Controllers.
const MEMBERS: usize = 4;
/// The dealing of the group's key.
const PHASE: u64 = 1;
/// Set-ups that are made ready at once.
const CHUNK: usize = 100;

fn wrong(error: impl std::fmt::Display) -> Failure {
    Failure::Input(format!("signatures: {error}"))
}

/// A way of signing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One controller, or a key that all have.
    OneKey,
    /// Controllers put shares together.
    Shares,
    /// The agent does.
    SharesAtSwitches,
    /// The switch takes enough controllers' own signatures.
    Endorsed,
}

const WAYS: [(&str, Way); 4] = [
    ("one-key", Way::OneKey),
    ("shares", Way::Shares),
    ("shares-at-switches", Way::SharesAtSwitches),
    ("endorsed", Way::Endorsed),
];

/// The frames of controllers, and what they are made with.
struct Controllers {
    way: Way,
    domain: Label,
    host: Label,
    single: SingleSigner,
    group: Group,
}

impl Controllers {
    fn key(&self) -> GroupKey {
        match self.way {
            Way::OneKey => self.single.group_key(),
            _ => GroupKey::Threshold(self.group.public.key()),
        }
    }

    fn known(&self) -> ControllersEntry {
        let members = self.group.secrets.keys().map(|id| (*id, member_key(*id).public())).collect();
        ControllersEntry { phase: PHASE, threshold: self.group.public.threshold() as u32, members }
    }

    fn prepared(
        &self,
        version: u64,
        key: Key,
        entry: Entry,
    ) -> Result<(BatchHeader, Vec<ProvenUpdate>), Failure> {
        let (target, version) = (self.host.clone(), Version(version));
        let update = Update { target, key, version, expected: Version::ZERO, change: Change::Put(entry) };
        prepare_batch(&self.domain, 1, version, vec![update]).map_err(wrong)
    }

    fn signed(&self, header: BatchHeader, updates: Vec<ProvenUpdate>) -> Result<SignedUpdates, Failure> {
        let message = encode(&header);
        let shares = self.group.secrets.values().take(self.group.public.threshold());
        let shares: Vec<_> = shares
            .map(|secret| secret.sign(Context::Batch, &message))
            .collect::<Result<_, _>>()
            .map_err(wrong)?;
        let signature = GroupSignature::Threshold(combine(&shares).map_err(wrong)?);
        Ok(SignedUpdates { header: SignedHeader { header, signature }, updates })
    }

    /// The frames of one set-up, encoded, each with the session that it comes by.
    fn frames(&self, version: u64) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
        let (key, entry) = entry_of(version);
        if self.way == Way::OneKey {
            let (target, version) = (self.host.clone(), Version(version));
            let change = Change::Put(entry);
            let update = Update { target, key, version, expected: Version::ZERO, change };
            let signed = sign_batch(&self.single, &self.domain, 1, version, vec![update]);
            let (header, updates) = signed.map_err(wrong)?;
            return Ok(vec![(1, encode(&ToActuator::Updates(SignedUpdates { header, updates })))]);
        }
        let (header, updates) = self.prepared(version, key, entry)?;
        if self.way == Way::Shares {
            return Ok(vec![(1, encode(&ToActuator::Updates(self.signed(header, updates)?)))]);
        }
        let unsigned = UnsignedUpdates { header: header.clone(), updates };
        let mut frames = vec![(1, encode(&ToActuator::Unsigned(unsigned)))];
        let message = encode(&header);
        let threshold = self.group.public.threshold();
        for (id, secret) in self.group.secrets.iter().take(threshold) {
            let header = header.clone();
            let frame = if self.way == Way::SharesAtSwitches {
                let share = secret.sign(Context::Batch, &message).map_err(wrong)?;
                let (member, signature) = (share.member, share.signature);
                let threshold = threshold as u32;
                ToActuator::Share(HeaderShare { header, phase: PHASE, threshold, member, signature })
            } else {
                let signature = endorse(&member_key(*id), PHASE, &header);
                let by = MemberSignature { member: *id, signature };
                ToActuator::Endorsement(HeaderEndorsement { header, phase: PHASE, by })
            };
            frames.push((u64::from(*id), encode(&frame)));
        }
        Ok(frames)
    }
}

/// An entry of the kind that a set-up brings: small, and each time of another key of a few.
fn entry_of(version: u64) -> (Key, Entry) {
    let tag = Label::new("t").unwrap_or_else(|_| unreachable!("it is a label"));
    let member = [10, 0, (version >> 8) as u8, version as u8].into();
    let key = Key::Members { vni: Vni(1), tag, bucket: (version % 64) as u8 };
    (key, Entry::Members(vec![member]))
}

/// A host's agent and switch, and what each has used, nanoseconds.
struct Host {
    name: Label,
    key: KeyPair,
    known: ControllersEntry,
    shares: Shares,
    gate: Gate,
    agent_ns: f64,
    switch_ns: f64,
}

impl Host {
    fn switch(&mut self, updates: &SignedUpdates) -> Result<Vec<weir_model::Ack>, Failure> {
        let begun = cpu_ns();
        let acks = take(&mut self.gate, updates, |_| Ok(())).map_err(Failure::io("a gate"))?;
        let signed = sign_acks(&self.key, &self.name, acks);
        self.switch_ns += cpu_ns() - begun;
        match signed.acks.iter().all(|ack| ack.result.is_ok()) {
            true => Ok(signed.acks),
            false => Err(wrong(format!("a gate refused: {:?}", signed.acks))),
        }
    }

    /// Takes one frame of a session, and gives how many updates came into force.
    fn take(&mut self, session: u64, frame: &[u8]) -> Result<usize, Failure> {
        let begun = cpu_ns();
        let frame: ToActuator = decode(frame).map_err(wrong)?;
        let combined = match frame {
            ToActuator::Updates(updates) => Combined { updates: vec![updates], ..Combined::default() },
            ToActuator::Unsigned(updates) => self.shares.unsigned(session, updates),
            ToActuator::Share(share) => self.shares.share(session, share),
            ToActuator::Endorsement(one) => self.shares.endorsement(session, one, Some(&self.known)),
            _ => Combined::default(),
        };
        self.agent_ns += cpu_ns() - begun;
        let mut count = 0;
        for updates in combined.updates {
            let acks = self.switch(&updates)?;
            let begun = cpu_ns();
            // What is right goes on to the controllers.
            let _goes_on = self.shares.acked(&acks, Some(&self.known));
            self.agent_ns += cpu_ns() - begun;
            count += acks.len();
        }
        Ok(count)
    }
}

/// So many set-ups in each way.
///
/// # Errors
/// [`Failure`].
pub fn measure(setups: usize) -> Result<Picture, Failure> {
    let mut lines = Vec::new();
    for (word, way) in WAYS {
        let label = |text: &str| Label::new(text).map_err(wrong);
        let controllers = Controllers {
            way,
            domain: label("bench")?,
            host: label("h1")?,
            single: SingleSigner(KeyPair::from_seed(&[1; 32])),
            group: Group::make(MEMBERS)?,
        };
        let folder = Folder::new("estate-signatures")?;
        let verifier = Verifier::new(controllers.domain.clone(), controllers.key());
        let gate = Gate::open(controllers.host.clone(), verifier, &folder.path().join("gate"));
        let mut host = Host {
            name: controllers.host.clone(),
            key: KeyPair::from_seed(&[2; 32]),
            known: controllers.known(),
            shares: Shares::new(Some(&controllers.key())),
            gate: gate.map_err(Failure::io(folder.path().display().to_string()))?,
            agent_ns: 0.0,
            switch_ns: 0.0,
        };
        if way == Way::Endorsed {
            // Whose endorsements count, the group's key says.
            let (header, updates) =
                controllers.prepared(1, Key::Controllers, Entry::Controllers(controllers.known()))?;
            host.switch(&controllers.signed(header, updates)?)?;
            host.switch_ns = 0.0;
        }
        let (mut points, mut in_force) = (vec![(0.0, 0.0)], 0);
        while in_force < setups {
            let chunk = CHUNK.min(setups - in_force);
            // The group's signatures are made by controllers, whose time is not counted.
            let frames: Vec<Vec<(u64, Vec<u8>)>> = (0..chunk)
                .map(|at| controllers.frames((in_force + at) as u64 + 2))
                .collect::<Result<_, _>>()?;
            for (session, frame) in frames.iter().flatten() {
                in_force += host.take(*session, frame)?;
            }
            points.push((in_force as f64, (host.agent_ns + host.switch_ns) / 1e9));
        }
        if in_force != setups {
            return Err(wrong(format!("{in_force} updates came into force of {setups} set-ups")));
        }
        say!(
            "RESULT estate signatures-{word} weir={:.3}s agent={:.3}s switch={:.3}s setups={setups} each={:.0}us",
            (host.agent_ns + host.switch_ns) / 1e9,
            host.agent_ns / 1e9,
            host.switch_ns / 1e9,
            (host.agent_ns + host.switch_ns) / 1e3 / setups as f64
        );
        lines.push(Line { name: word.to_string(), points });
    }
    Ok(Picture {
        title: "Processor time of agent and switch for the signatures of set-ups".into(),
        across: "set-ups".into(),
        up: "s".into(),
        logarithmic: (false, false),
        lines,
    })
}
