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
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_base::codec::{decode, encode};
use weir_model::Label;
use weir_model::event::{Role, SourceId};
use weir_model::identity::{TokenChange, TokenId};
use weir_store::{Rejection, Store, View};

/// Table of the tokens; the watch feed leaves it out.
pub const TOKENS_TABLE: &str = "tokens";
/// Table of rules that are in force from some entry of the order on, so that those before it are decided as they were.
pub(super) const RULES_TABLE: &str = "rules";
/// The rule that a joined actuator has an address of its own.
const UNDERLAYS_APART: &[u8] = b"underlays-apart";
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
    let state = match (change, known) {
        (TokenChange::Made { role, until_s, underlay }, None) => {
            let made = TokenRow {
                whose: whose.clone(),
                role: *role,
                until_s: *until_s,
                underlay: *underlay,
                made_ms: now_ms,
                state: TokenState::Open,
            };
            return make(view, id, &made);
        }
        (TokenChange::Made { .. }, Some(_)) => {
            return Err(refused(whose, "there is such a join token already"));
        }
        (_, None) => return Err(refused(whose, "there is no such join token: 'weir token list' shows them")),
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
                count -= 1;
            }
        }
    }
    if count >= TOKENS_MAX {
        return Err(Rejection::limit("join tokens", count + 1, TOKENS_MAX));
    }
    // Whoever makes tokens of this kind runs a release that keeps the rule.
    if view.get(RULES_TABLE, UNDERLAYS_APART).is_none() {
        view.put(RULES_TABLE, UNDERLAYS_APART, vec![1])?;
    }
    view.put(TOKENS_TABLE, id, encode(made))
}

/// Whether every actuator that joins must have an address of its own.
pub(super) fn underlays_are_apart(view: &View<'_>) -> bool {
    view.get(RULES_TABLE, UNDERLAYS_APART).is_some()
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
