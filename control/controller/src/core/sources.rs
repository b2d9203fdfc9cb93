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
    #[error("its source may not say this: an actuator tells of itself only")]
    NotItsOwn,
    /// The source was revoked.
    #[error("it was revoked: 'weir identity list' says why")]
    Revoked,
    /// The key was replaced by another one.
    #[error("this key was replaced by a newer one")]
    Replaced,
}
