//! An operator's key, as a client has it: what signs calls that order something (row R1).
//!
//! The key is for one domain: a controller of another one cannot have something signed for it. No controller has a say in the numbers:
//! they are of this machine's clock, told apart by chance and ascending within the process.
//!
//! The key is in a file, or in an ssh agent ([`agent`]): then the file says which of the agent's keys it is, and is no secret.

pub mod agent;

use crate::asked::{Asked, in_words};
use crate::said::{Signed, Statement, Word};
use crate::types::{TOKEN_VALID_S, TokenKey, TokenRequest};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_model::Label;
use weir_model::event::{Event, EventBody, SourceId};
use weir_model::identity::{IdentityEvent, TokenChange};
use weir_model::join::{JOIN_TOKEN_PREFIX, JoinToken, from_hex, to_hex};
use weir_model::said::{NUMBER_TIME_BITS, Said};
use weir_model::signed::Signature;
use weir_trust::identity::KeyPair;
use weir_trust::said::{is_key, sign_said, to_sign, verify_said};

/// For how long a signature is taken, milliseconds: a request that is held back for longer dies.
pub const SIGNED_FOR_MS: u64 = 120_000;
/// By how much the clock of this machine may be away from the domain's, milliseconds.
const CLOCKS_APART_MS: u64 = 60_000;

/// The last number that was used here.
static LAST: Mutex<u64> = Mutex::new(0);

/// The file of an operator's key, JSON or YAML, which is its owner's alone; also the part `operator` of a context.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorKey {
    /// The operator's name.
    pub name: Label,
    /// The domain in which it signs.
    pub domain: Label,
    /// The seed of the ed25519 key, 64 hexadecimal digits. It is a secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub seed: String,
    /// Instead of it, where the key is in an ssh agent: its public half, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl fmt::Debug for OperatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorKey")
            .field("name", &self.name)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl OperatorKey {
    /// A new one.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn make(name: Label, domain: Label) -> Result<OperatorKey, String> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| format!("the system gives no randomness: {error}"))?;
        Ok(OperatorKey { name, domain, seed: to_hex(&seed), agent: None })
    }

    /// One that is in an ssh agent.
    pub fn in_agent(name: Label, domain: Label, public: &[u8; 32]) -> OperatorKey {
        OperatorKey { name, domain, seed: String::new(), agent: Some(to_hex(public)) }
    }

    /// The public half.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn public(&self) -> Result<[u8; 32], String> {
        match &self.agent {
            None => self.key().map(|key| key.public()),
            Some(_) if !self.seed.is_empty() => Err("seed, agent: the key is in one of them".to_owned()),
            Some(public) => from_hex::<32>(public).filter(is_key).ok_or_else(|| {
                "agent: the 64 hexadecimal digits of an ed25519 public key are wanted, as 'weir operator key --agent' writes them".to_owned()
            }),
        }
    }

    /// The key.
    ///
    /// # Errors
    /// The seed is none.
    pub fn key(&self) -> Result<KeyPair, String> {
        if self.agent.is_some() {
            return Err("the key is in an ssh agent, and this takes one in a file only".to_owned());
        }
        let seed = from_hex::<32>(&self.seed);
        let seed =
            seed.ok_or("seed: 64 hexadecimal digits are wanted, as 'weir operator key' writes them")?;
        Ok(KeyPair::from_seed(&seed))
    }
}

/// A join token that is asked for.
#[derive(Clone, Debug)]
pub struct TokenAsked {
    /// What the request says of it.
    pub named: TokenKey,
    /// What is ordered.
    pub event: EventBody,
}

/// Who signs.
#[derive(Clone)]
pub struct Operator {
    name: Label,
    domain: Label,
    key: Signs,
}

/// What signs.
#[derive(Clone)]
enum Signs {
    Key(Arc<KeyPair>),
    Agent { socket: Arc<Path>, public: [u8; 32] },
}

impl Signs {
    fn said(&self, domain: &Label, event: Event, times: (u64, u64)) -> Result<Said, String> {
        let (socket, public) = match self {
            Signs::Key(key) => return Ok(sign_said(key, domain, event, times)),
            Signs::Agent { socket, public } => (socket, public),
        };
        let signature = Signature { r: [0; 32], s: [0; 32] };
        let mut said = Said { event, made_ms: times.0, until_ms: times.1, signature };
        let bytes = agent::sign(socket, public, &to_sign(domain, &said))?;
        said.signature.r.copy_from_slice(&bytes[..32]);
        said.signature.s.copy_from_slice(&bytes[32..]);
        verify_said(public, domain, &said)
            .map_err(|_| "the ssh agent's signature is not that of the key: nothing was asked".to_owned())?;
        Ok(said)
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.name)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Wall time by this machine, milliseconds of the Unix epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A number that is used once, and the time of which it is, which is now or some moments later.
fn number() -> Result<(u64, u64), String> {
    let mut chance = [0; 8];
    getrandom::fill(&mut chance).map_err(|error| format!("the system gives no randomness: {error}"))?;
    let chance = u64::from_le_bytes(chance) & ((1 << NUMBER_TIME_BITS) - 1);
    let now_ms = now_ms();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = (Said::number_at(now_ms) | chance).max(last.saturating_add(1));
    Ok((*last, now_ms.max(*last >> NUMBER_TIME_BITS)))
}

impl Operator {
    /// With a key.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(key: &OperatorKey) -> Result<Operator, String> {
        if key.agent.is_some() {
            return Operator::with_agent(key, &agent::socket()?);
        }
        let made = Signs::Key(Arc::new(key.key()?));
        Ok(Operator { name: key.name.clone(), domain: key.domain.clone(), key: made })
    }

    /// With a key in the agent at a socket.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn with_agent(key: &OperatorKey, socket: &Path) -> Result<Operator, String> {
        let made = Signs::Agent { socket: socket.into(), public: key.public()? };
        Ok(Operator { name: key.name.clone(), domain: key.domain.clone(), key: made })
    }

    /// The domain in which it signs.
    pub fn domain(&self) -> &Label {
        &self.domain
    }

    /// Asks what is to be signed.
    pub fn prepare(&self) -> Word {
        Word::Prepare { operator: self.name.clone() }
    }

    /// A key for a join token, what is ordered of the token, and the seed of the key, which its bearer gets.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn token(&self, request: &TokenRequest) -> Result<(TokenAsked, String), String> {
        let mut chance = [0; 48];
        getrandom::fill(&mut chance).map_err(|error| format!("the system gives no randomness: {error}"))?;
        let (mut id, mut seed) = ([0; 16], [0; 32]);
        id.copy_from_slice(&chance[..16]);
        seed.copy_from_slice(&chance[16..]);
        let key = KeyPair::from_seed(&seed).public();
        let valid_s = request.valid_s.unwrap_or(TOKEN_VALID_S);
        let until_s = now_ms() / 1_000 + u64::from(valid_s);
        let underlay = request.underlay().map_err(|error| error.to_string())?;
        let change = TokenChange::MadeWithKey { role: request.role, until_s, underlay, key };
        let about = IdentityEvent::Token { whose: SourceId::of_actuator(&request.name), id, change };
        let named = TokenKey { id: to_hex(&id), key: to_hex(&key), until_s };
        Ok((TokenAsked { named, event: EventBody::Identity(Box::new(about)) }, to_hex(&seed)))
    }

    /// A join token, with the seed of its key.
    ///
    /// # Errors
    /// The controller gave none.
    pub fn with_key(&self, token: &str, seed: &str) -> Result<String, String> {
        let odd = |why: String| format!("the join token that the controller gave: {why}");
        let text = token.strip_prefix(JOIN_TOKEN_PREFIX).ok_or_else(|| odd("it is none".to_owned()))?;
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|error| odd(error.to_string()))?;
        let token: JoinToken = serde_json::from_slice(&json).map_err(|error| odd(error.to_string()))?;
        let token = JoinToken { domain: Some(self.domain.clone()), key: Some(seed.to_owned()), ..token };
        let json = serde_json::to_vec(&token).map_err(|error| odd(error.to_string()))?;
        Ok(format!("{JOIN_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json)))
    }

    /// Signs a statement, once it is found to be what was asked.
    ///
    /// # Errors
    /// What it says that was not asked.
    pub fn sign(&self, statement: &Statement, asked: &Asked<'_>) -> Result<Word, String> {
        let author = SourceId::of_operator(&self.name);
        if statement.domain != self.domain.as_str() || statement.author != author.0 {
            return Err(format!(
                "the controller wants it signed by {} in domain '{}', and this is the key of {} in domain '{}': take the context and the key \
                 of one domain",
                statement.author, statement.domain, author.0, self.domain
            ));
        }
        let body = statement.body()?;
        asked.check(&body)?;
        let (number, made_ms) = number()?;
        let apart_s = made_ms.abs_diff(statement.now_ms) / 1_000;
        if apart_s * 1_000 > CLOCKS_APART_MS {
            return Err(format!(
                "{}: nothing was signed, for the clock of this machine is {apart_s} s {} that of the domain: set this clock right",
                in_words(&body),
                if made_ms < statement.now_ms { "behind" } else { "ahead of" }
            ));
        }
        let until_ms = made_ms.saturating_add(SIGNED_FOR_MS);
        let event = Event { source: author, sequence: number, body };
        let signature = self.key.said(&self.domain, event, (made_ms, until_ms))?.signature;
        Ok(Word::Signed(Box::new(Signed {
            operator: self.name.clone(),
            number,
            made_ms,
            until_ms,
            signature,
        })))
    }
}

#[cfg(test)]
mod tests;
