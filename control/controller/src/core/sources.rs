//! The keys of sources that are registered by configuration, and why an event of one is dropped.

use std::collections::BTreeMap;
use weir_model::event::SourceId;

/// Keys of sources that are registered by configuration.
pub type SourceKeys = BTreeMap<SourceId, [u8; 32]>;

/// Why an event is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthentic {
    /// Nobody of this name is registered.
    #[error("its source is not registered here: an actuator must join first")]
    UnknownSource,
    /// The signature is not that of the source's key over this event in this domain.
    #[error("it does not carry the signature of its source's key for this domain")]
    BadSignature,
    /// The source may not say this.
    #[error("its source may not say this: an actuator tells of itself only, and nobody else of it")]
    NotItsOwn,
    /// The source was revoked.
    #[error("it was revoked: 'weir identity list' says why")]
    Revoked,
    /// The key was replaced by another one.
    #[error("this key was replaced by a newer one")]
    Replaced,
    /// A controller orders what is an operator's to order.
    #[error("this is an operator's to order, and no operator signed it")]
    Unsigned,
    /// The author of a request is no operator here, or is one no longer.
    #[error("its author is not an operator here: 'weir operator list' shows them")]
    NoOperator,
    /// A request, or a join by a token, is not signed by who is said to say it.
    #[error("it is not signed by who is said to say it, in this domain")]
    Forged,
    /// The author's role may not order this.
    #[error("its author's role may not order this: an admin may")]
    BeyondRole,
    /// A request is over, or is good for too long, or its author's clock is ahead.
    #[error(
        "it is not in time: a request is good for 10 minutes at most, and a clock may be 2 minutes ahead"
    )]
    NotInTime,
    /// A certificate without the word of its owner's key, or a controller that tells one.
    #[error(
        "the certificate does not carry the word of its owner's key, as the order knows that: the host makes another one by 'weir identity rotate', or joins \
         with a new token; a host of an older release is upgraded first"
    )]
    Unowned,
    /// The author used the number of a request for another one, or for one that was rejected.
    #[error("its number was used, by another request or by one that was rejected: sign it anew")]
    NumberUsed,
}
