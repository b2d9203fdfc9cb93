//! Where consensus is asked and answered: adapters between commonware's simplex and the [`crate::core`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use commonware_actor::Feedback;
use commonware_codec::{Copying, Decode, DecodeExt, Encode};
use commonware_consensus::simplex::scheme::ed25519::Scheme;
use commonware_consensus::simplex::types::{Activity, Context, Finalization};
use commonware_consensus::simplex::{Plan, config};
use commonware_consensus::types::{Epoch, Round, ViewDelta};
use commonware_consensus::{Automaton, CertifiableAutomaton, Epochable, Relay, Reporter, Viewable, simplex};
use commonware_cryptography::certificate::Verifier as _;
use commonware_cryptography::ed25519::{PrivateKey, PublicKey, Signature};
use commonware_cryptography::{Signer, Verifier, sha256};
use commonware_p2p::{Blocker, Recipients};
use commonware_parallel::Sequential;
use commonware_runtime::buffer::paged::CacheRef;
use commonware_utils::channel::{mpsc, oneshot};
use commonware_utils::ordered::Set;
use commonware_utils::{NZU16, NZUsize, NonZeroDuration};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::core::Keys;
use crate::error::Error;
use crate::evidence::{Conflict, conflict_of};
use crate::group::{Payload, namespace};
use crate::members::{MEMBERS_MAX, Roster};
use crate::settings::Settings;
use crate::turns::Turns;
use crate::wire::Digest;

/// What the partitions of votes begin with; their epoch follows.
const PARTITION: &str = "votes-";

/// A member's number and secret key.
#[derive(Clone)]
pub struct Identity {
    /// Its number.
    pub id: u32,
    /// The seed of its ed25519 key.
    pub secret: [u8; 32],
}

impl Identity {
    /// The public key, for [`crate::Members`].
    pub fn public(&self) -> Result<[u8; 32], Error> {
        let key = self.key()?.public_key();
        key.as_ref().try_into().map_err(|_| Error::Members { what: "a key is not of 32 bytes".to_owned() })
    }

    pub(crate) fn key(&self) -> Result<PrivateKey, Error> {
        PrivateKey::decode(Copying(&self.secret))
            .map_err(|error| Error::Members { what: format!("the secret of member {}: {error}", self.id) })
    }
}

/// Signs with this replica's key, and checks by the keys of an epoch's members. A replica that is none of them checks only.
pub struct KeyRing {
    secret: PrivateKey,
    group: String,
    by_id: BTreeMap<u32, PublicKey>,
    by_key: BTreeMap<PublicKey, u32>,
    namespace: Vec<u8>,
    pub(crate) scheme: Scheme,
    pub(crate) epoch: Epoch,
    genesis: Digest,
    rng: ChaCha20Rng,
}

impl Clone for KeyRing {
    fn clone(&self) -> Self {
        KeyRing {
            secret: self.secret.clone(),
            group: self.group.clone(),
            by_id: self.by_id.clone(),
            by_key: self.by_key.clone(),
            namespace: self.namespace.clone(),
            scheme: self.scheme.clone(),
            epoch: self.epoch,
            genesis: self.genesis,
            rng: self.rng.clone(),
        }
    }
}

impl KeyRing {
    /// The keys of an epoch, in the hands of `identity`. `seed` is for the random weights of checks in batches.
    pub fn new(group: &str, identity: &Identity, roster: &Roster, seed: [u8; 32]) -> Result<KeyRing, Error> {
        let secret = identity.key()?;
        if let Some(member) = roster.members.get(&identity.id)
            && member.key != identity.public()?
        {
            return Err(Error::Members { what: format!("the secret is not that of member {}", identity.id) });
        }
        KeyRing::of(group, secret, roster, ChaCha20Rng::from_seed(seed))
    }

    fn of(group: &str, secret: PrivateKey, roster: &Roster, rng: ChaCha20Rng) -> Result<KeyRing, Error> {
        let wrong = |what: String| Error::Members { what };
        let count = roster.members.len();
        if count > MEMBERS_MAX {
            return Err(wrong(format!("they are {count} and may be {MEMBERS_MAX}")));
        }
        let mut by_id = BTreeMap::new();
        for (id, member) in &roster.members {
            let key = PublicKey::decode(Copying(&member.key))
                .map_err(|error| wrong(format!("the key of member {id}: {error}")))?;
            by_id.insert(*id, key);
        }
        let by_key: BTreeMap<PublicKey, u32> = by_id.iter().map(|(id, key)| (key.clone(), *id)).collect();
        if by_key.len() != count {
            return Err(wrong("two have the same key; each needs its own".to_owned()));
        }
        let set = Set::from_iter_dedup(by_id.values().cloned());
        let votes = roster.namespace(group);
        let scheme = Scheme::signer(&votes, set.clone(), secret.clone());
        let scheme = scheme.unwrap_or_else(|| Scheme::verifier(&votes, set));
        let (group, namespace) = (group.to_owned(), namespace(group));
        let (epoch, genesis) = (Epoch::new(roster.epoch), roster.genesis);
        Ok(KeyRing { secret, group, by_id, by_key, namespace, scheme, epoch, genesis, rng })
    }

    /// The members' numbers.
    pub fn ids(&self) -> Vec<u32> {
        self.by_id.keys().copied().collect()
    }

    /// The member with this key.
    pub fn id_of(&self, key: &PublicKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// The key of a member.
    pub fn key_of(&self, id: u32) -> Option<&PublicKey> {
        self.by_id.get(&id)
    }

    /// Signs and checks votes.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// What the epoch's first block has as its parent.
    pub fn genesis(&self) -> Digest {
        self.genesis
    }
}

impl Keys for KeyRing {
    fn sign(&self, digest: &Digest) -> [u8; 64] {
        let signature = self.secret.sign(&self.namespace, digest);
        let mut out = [0; 64];
        out.copy_from_slice(signature.as_ref());
        out
    }

    fn is_right(&self, origin: u32, digest: &Digest, signature: &[u8; 64]) -> bool {
        let Some(key) = self.by_id.get(&origin) else { return false };
        Signature::decode(Copying(signature))
            .is_ok_and(|signature| key.verify(&self.namespace, digest, &signature))
    }

    fn certified(&mut self, certificate: &Bytes) -> Option<(u64, Digest)> {
        let config = self.scheme.certificate_codec_config();
        let finalization = Finalization::<Scheme, Payload>::decode_cfg(certificate.clone(), &config).ok()?;
        let right = finalization.epoch() == self.epoch
            && finalization.verify(&mut self.rng, &self.scheme, &Sequential);
        right.then(|| (finalization.view().get(), finalization.proposal.payload.0))
    }

    fn of_epoch(&self, roster: &Roster) -> Option<Box<dyn Keys>> {
        let ring = KeyRing::of(&self.group, self.secret.clone(), roster, self.rng.clone());
        ring.ok().map(|ring| Box::new(ring) as Box<dyn Keys>)
    }
}

/// What consensus asks or says.
pub(crate) enum Question {
    Propose {
        parent: Digest,
        answer: oneshot::Sender<Payload>,
    },
    Verify {
        leader: PublicKey,
        parent: Digest,
        payload: Digest,
        answer: oneshot::Sender<bool>,
    },
    Certify {
        payload: Digest,
        answer: oneshot::Sender<bool>,
    },
    Relay {
        payload: Digest,
        to: Recipients<PublicKey>,
    },
    Final {
        view: u64,
        payload: Digest,
        certificate: Bytes,
    },
    /// A member signed two things that exclude each other.
    Fault {
        conflict: Conflict,
        votes: Bytes,
    },
}

/// Hands questions over. Consensus asks a bounded number of them at a time.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub questions: mpsc::UnboundedSender<Question>,
    pub view: std::sync::Arc<AtomicU64>,
    pub turns: Turns,
}

impl Mailbox {
    fn ask(&self, question: Question) -> Feedback {
        match self.questions.send(question) {
            Ok(()) => Feedback::Ok,
            Err(_) => Feedback::Closed,
        }
    }
}

impl Automaton for Mailbox {
    type Context = Context<Payload, PublicKey>;
    type Digest = Payload;

    async fn propose(&mut self, context: Self::Context) -> oneshot::Receiver<Payload> {
        let (answer, answered) = oneshot::channel();
        self.view.fetch_max(context.round.view().get(), Ordering::Relaxed);
        self.ask(Question::Propose { parent: context.parent.1.0, answer });
        answered
    }

    async fn verify(&mut self, context: Self::Context, payload: Payload) -> oneshot::Receiver<bool> {
        let (answer, answered) = oneshot::channel();
        let Context { leader, parent, .. } = context;
        self.ask(Question::Verify { leader, parent: parent.1.0, payload: payload.0, answer });
        answered
    }
}

impl CertifiableAutomaton for Mailbox {
    async fn certify(&mut self, _round: Round, payload: Payload) -> oneshot::Receiver<bool> {
        let (answer, answered) = oneshot::channel();
        self.ask(Question::Certify { payload: payload.0, answer });
        answered
    }
}

impl Relay for Mailbox {
    type Digest = Payload;
    type Plan = Plan<PublicKey>;
    type PublicKey = PublicKey;

    fn broadcast(&mut self, payload: Payload, plan: Plan<PublicKey>) -> Feedback {
        let to = match plan {
            // Comes again as a proposal.
            Plan::Prepare { .. } => return Feedback::Ok,
            Plan::Propose { .. } => Recipients::All,
            Plan::Forward { recipients, .. } => recipients,
        };
        self.ask(Question::Relay { payload: payload.0, to })
    }
}

impl Reporter for Mailbox {
    type Activity = Activity<Scheme, Payload>;

    fn report(&mut self, activity: Self::Activity) -> Feedback {
        self.turns.reported(&activity);
        match activity {
            Activity::Finalization(finalization) => {
                let view = finalization.view().get();
                self.view.fetch_max(view, Ordering::Relaxed);
                let (payload, certificate) = (finalization.proposal.payload.0, finalization.encode());
                self.ask(Question::Final { view, payload, certificate })
            }
            other => match conflict_of(&other) {
                Some((conflict, votes)) => self.ask(Question::Fault { conflict, votes }),
                None => Feedback::Ok,
            },
        }
    }
}

/// Where the votes of an epoch are kept.
fn partition_of(epoch: u64) -> String {
    format!("{PARTITION}{epoch}")
}

/// The epoch of a partition of votes.
pub(crate) fn epoch_of(partition: &str) -> Option<u64> {
    partition.strip_prefix(PARTITION)?.parse().ok()
}

/// What consensus is given.
pub(crate) fn config<B: Blocker<PublicKey = PublicKey>>(
    settings: &Settings,
    keys: &KeyRing,
    mailbox: Mailbox,
    blocker: B,
) -> config::Config<Scheme, simplex::elector::RoundRobin, B, Payload, Mailbox, Mailbox, Mailbox, Sequential> {
    let timers = &settings.timers;
    config::Config {
        scheme: keys.scheme.clone(),
        // Every view has another leader: a stable one cut small batches when it was measured.
        elector: simplex::elector::RoundRobin::default(),
        blocker,
        automaton: mailbox.clone(),
        relay: mailbox.clone(),
        reporter: mailbox,
        track_historical_votes: false,
        strategy: Sequential,
        partition: partition_of(keys.epoch.get()),
        mailbox_size: NZUsize!(1024),
        epoch: keys.epoch,
        floor: config::Floor::Genesis(sha256::Digest(keys.genesis())),
        replay_buffer: NZUsize!(1 << 20),
        write_buffer: NZUsize!(1 << 16),
        // A sync writes whole pages, and a view has less than one of 4 KiB to keep.
        page_cache: CacheRef::new(NZU16!(500), NZUsize!(64)),
        leader_timeout: timers.leader,
        certification_timeout: timers.certification,
        timeout_retry: timers.certification,
        view_retention: ViewDelta::new(64),
        skip: config::SkipPolicy::Enabled { timeout: timers.skip, budget: config::SkipBudget::Participants },
        fetch_timeout: NonZeroDuration::new_panic(timers.ask),
        fetch_retry_delay: timers.ask / 10,
        forward: config::ForwardPolicy::SilentLeader,
    }
}
