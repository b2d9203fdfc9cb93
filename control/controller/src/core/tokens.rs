//! Join tokens as the order knows them: made for one name in one role, used by one key, voided.
//!
//! What a token proves is checked at the door, by whoever has the domain's secret. That it serves once is decided here, in the order,
//! so that a group agrees whichever of its members is asked. No secret of a token is here.
//!
//! Invariants
//! - A token goes from open to used or voided, and from used to voided; never back.
//! - Used by a key, it serves that key again, as who joins may not have heard the answer; it serves no other key.
//! - Who is revoked or forgotten leaves no token of its name that is taken.

use super::clock::wall_ms;
use super::since::Rule;
use super::sources::Unauthentic;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_base::codec::{decode, encode};
use weir_model::Label;
use weir_model::event::{ActuatorFacts, Role, SourceId};
use weir_model::identity::{TokenChange, TokenId};
use weir_model::said::JoinedBy;
use weir_store::{Rejection, Store, View};
use weir_trust::said::{is_key, verify_joined_by};

/// Table of the tokens; the watch feed leaves it out.
pub const TOKENS_TABLE: &str = "tokens";
/// Table of the keys of those that have one; the watch feed leaves it out.
pub const TOKEN_KEYS_TABLE: &str = "token-keys";
/// Most tokens that are known, those that are over included until room is needed.
pub const TOKENS_MAX: usize = 4_096;
/// Longest life of a token, seconds.
pub const TOKEN_LIFE_MAX_S: u64 = 604_800;
/// How far the clock of who makes a token may be from the order's, seconds.
const CLOCKS_APART_S: u64 = 3_600;

/// How far a token is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenState {
    /// Nobody has used it.
    Open,
    /// This key has.
    Used {
        /// The ed25519 key.
        key: [u8; 32],
        /// Ordered time, milliseconds of the Unix epoch.
        at_ms: u64,
    },
    /// It is not taken.
    Voided {
        /// Ordered time, milliseconds of the Unix epoch.
        at_ms: u64,
    },
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// For whom it is.
    pub whose: SourceId,
    /// The role in which its bearer joins.
    pub role: Role,
    /// When it is over, seconds of the Unix epoch.
    pub until_s: u64,
    /// Where its bearer's address on the underlay may be; nothing means where it speaks from.
    pub underlay: Option<IpNet>,
    /// Ordered time at which it was made, milliseconds of the Unix epoch.
    pub made_ms: u64,
    /// How far it is.
    pub state: TokenState,
}

impl TokenRow {
    /// The name that its bearer gets.
    pub fn name(&self) -> Option<Label> {
        self.whose.actuator().and_then(|name| Label::new(name).ok())
    }

    /// Whether a key may join by it at this time, milliseconds of the Unix epoch.
    ///
    /// # Errors
    /// Why not.
    pub fn takes(&self, key: &[u8; 32], now_ms: u64) -> Result<(), &'static str> {
        match &self.state {
            TokenState::Voided { .. } => Err("the join token was voided: make a new one with 'weir token'"),
            TokenState::Used { key: used, .. } if used != key => {
                Err("the join token was used already, and serves once: make a new one with 'weir token'")
            }
            _ if now_ms / 1_000 > self.until_s => {
                Err("the join token is over: make a new one with 'weir token'")
            }
            _ => Ok(()),
        }
    }
}

/// The tokens of a store, by what names them.
pub fn tokens(store: &Store) -> impl Iterator<Item = (TokenId, TokenRow)> + '_ {
    store.range(TOKENS_TABLE, b"").filter_map(|(key, cell)| {
        let id: &[u8] = key;
        Some((id.try_into().ok()?, decode::<TokenRow>(&cell.value).ok()?))
    })
}

/// One token.
pub fn token(store: &Store, id: &TokenId) -> Option<TokenRow> {
    decode(&store.get(TOKENS_TABLE, id)?.value).ok()
}

fn refused(whose: &SourceId, problem: &str) -> Rejection {
    Rejection::Reference { resource: whose.0.clone(), problem: problem.to_owned() }
}

fn row(view: &View<'_>, id: &TokenId) -> Option<TokenRow> {
    view.get(TOKENS_TABLE, id).and_then(|cell| decode(&cell).ok())
}

/// Decides on what becomes of a token.
pub(super) fn decide(
    view: &mut View<'_>,
    now_ms: u64,
    whose: &SourceId,
    id: &TokenId,
    change: &TokenChange,
) -> Result<(), Rejection> {
    // Tokens end by wall time, which who makes and shows them reads.
    let now_ms = wall_ms(view, now_ms);
    let known = row(view, id);
    if known.as_ref().is_some_and(|known| known.whose != *whose) {
        return Err(refused(whose, "the join token is for another name"));
    }
    let made = |role, until_s, underlay| TokenRow {
        whose: whose.clone(),
        role,
        until_s,
        underlay,
        made_ms: now_ms,
        state: TokenState::Open,
    };
    let state = match (change, known) {
        (TokenChange::Made { .. }, None) if Rule::SignedRequests.holds(view) => {
            return Err(refused(whose, "in a domain whose operators sign, a join token has a key"));
        }
        (TokenChange::Made { role, until_s, underlay }, None) => {
            return make(view, id, &made(*role, *until_s, *underlay));
        }
        (TokenChange::MadeWithKey { role, until_s, underlay, key }, None) => {
            if !is_key(key) {
                return Err(refused(whose, "the join token's key is not that of an ed25519 key pair"));
            }
            make(view, id, &made(*role, *until_s, *underlay))?;
            return view.put(TOKEN_KEYS_TABLE, id, key.to_vec());
        }
        (TokenChange::Made { .. } | TokenChange::MadeWithKey { .. }, Some(_)) => {
            return Err(refused(whose, "there is such a join token already"));
        }
        (_, None) => return Err(refused(whose, "there is no such join token: 'weir token list' shows them")),
        (TokenChange::Used { .. }, Some(_)) if view.get(TOKEN_KEYS_TABLE, id).is_some() => {
            return Err(refused(whose, "who joins by this token signs with its key"));
        }
        (TokenChange::Used { key }, Some(known)) => {
            known.takes(key, now_ms).map_err(|why| refused(whose, why))?;
            if known.state != TokenState::Open {
                return Ok(());
            }
            TokenRow { state: TokenState::Used { key: *key, at_ms: now_ms }, ..known }
        }
        (TokenChange::Voided, Some(known)) => void(known, now_ms),
    };
    view.put(TOKENS_TABLE, id, encode(&state))
}

/// Whether a join carries the signature of its token's key.
///
/// # Errors
/// [`Unauthentic::Forged`].
pub(super) fn admits(store: &Store, domain: &Label, by: &JoinedBy) -> Result<(), Unauthentic> {
    let key = store.get(TOKEN_KEYS_TABLE, &by.token).and_then(|cell| <[u8; 32]>::try_from(&*cell.value).ok());
    match key.is_some_and(|key| verify_joined_by(&key, domain, by).is_ok()) {
        true => Ok(()),
        false => Err(Unauthentic::Forged),
    }
}

/// Uses a token whose key signed a join. `known` is what the actuator told when it joined before.
///
/// A used token says nothing new: else whoever keeps a copy of a join could bring back what an actuator told once.
pub(super) fn join(
    view: &mut View<'_>,
    known: Option<&ActuatorFacts>,
    now_ms: u64,
    by: &JoinedBy,
) -> Result<(), Rejection> {
    let (facts, now_ms) = (&by.facts, wall_ms(view, now_ms));
    let whose = SourceId::of_actuator(&facts.name);
    let token = row(view, &by.token);
    let token =
        token.ok_or_else(|| refused(&whose, "there is no such join token: 'weir token list' shows them"))?;
    if token.whose != whose || token.role != facts.role {
        return Err(refused(&whose, "the join token is for another name, or for the other role"));
    }
    if token.underlay.is_some_and(|prefix| !prefix.contains(&facts.underlay)) {
        return Err(refused(&whose, "the join token does not allow this address on the underlay"));
    }
    token.takes(&facts.identity, now_ms).map_err(|why| refused(&whose, why))?;
    match token.state {
        TokenState::Open => {
            let state = TokenState::Used { key: facts.identity, at_ms: now_ms };
            view.put(TOKENS_TABLE, &by.token, encode(&TokenRow { state, ..token }))
        }
        _ if known == Some(facts) => Ok(()),
        _ => Err(refused(
            &whose,
            "the join token was used already, and serves once: make a new one with 'weir token'",
        )),
    }
}

fn void(known: TokenRow, now_ms: u64) -> TokenRow {
    match known.state {
        TokenState::Voided { .. } => known,
        _ => TokenRow { state: TokenState::Voided { at_ms: now_ms }, ..known },
    }
}

fn make(view: &mut View<'_>, id: &TokenId, made: &TokenRow) -> Result<(), Rejection> {
    if made.name().is_none() {
        return Err(refused(&made.whose, "join tokens are for hosts and gateways"));
    }
    let now_s = made.made_ms / 1_000;
    // A group that has just begun may not know the time yet; the door has looked at the life that was asked for.
    if now_s > 0 && made.until_s > now_s.saturating_add(TOKEN_LIFE_MAX_S + CLOCKS_APART_S) {
        return Err(refused(&made.whose, "a join token is good for 604800 seconds at most"));
    }
    let known = view.scan(TOKENS_TABLE, b"");
    let mut count = known.len();
    // Those that are over are kept to be listed, as long as there is room.
    if count >= TOKENS_MAX {
        for (key, value) in known {
            if decode::<TokenRow>(&value).is_ok_and(|row| row.until_s < now_s) {
                view.delete(TOKENS_TABLE, &key);
                view.delete(TOKEN_KEYS_TABLE, &key);
                count -= 1;
            }
        }
    }
    if count >= TOKENS_MAX {
        return Err(Rejection::limit("join tokens", count + 1, TOKENS_MAX));
    }
    // Whoever makes tokens of this kind runs a release that keeps the rule.
    Rule::UnderlaysApart.put(view)?;
    view.put(TOKENS_TABLE, id, encode(made))
}

/// Voids all tokens of a name.
pub(super) fn void_all(view: &mut View<'_>, now_ms: u64, whose: &SourceId) -> Result<(), Rejection> {
    for (key, value) in view.scan(TOKENS_TABLE, b"") {
        let Ok(known) = decode::<TokenRow>(&value) else { continue };
        if known.whose == *whose && !matches!(known.state, TokenState::Voided { .. }) {
            view.put(TOKENS_TABLE, &key, encode(&void(known, now_ms)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
