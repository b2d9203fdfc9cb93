//! What consensus cuts a member off for is remembered: evidence is not always left of it, and whoever looks must learn of it.

use std::sync::Arc;

use commonware_actor::Feedback;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::{BlockedSubscription, Blocker};

use super::Inner;
use crate::lock::locked;

/// `B`, whose cuts are remembered.
pub(super) struct Cutting<B> {
    inner: B,
    replica: Arc<Inner>,
}

impl<B: Clone> Clone for Cutting<B> {
    fn clone(&self) -> Cutting<B> {
        Cutting { inner: self.inner.clone(), replica: self.replica.clone() }
    }
}

impl<B> Cutting<B> {
    pub fn new(inner: B, replica: Arc<Inner>) -> Cutting<B> {
        Cutting { inner, replica }
    }
}

impl<B: Blocker<PublicKey = PublicKey>> Blocker for Cutting<B> {
    type PublicKey = PublicKey;

    #[allow(clippy::disallowed_methods, reason = "whoever asked has told why")]
    fn block(&mut self, peer: PublicKey) -> Feedback {
        {
            let mut seen = locked(&self.replica.seen);
            let bytes: &[u8] = peer.as_ref();
            let member = seen.status.roster.members.iter().find(|(_, member)| member.key == bytes);
            let member = member.map(|(id, _)| *id);
            seen.status.cut_off.extend(member);
        }
        self.inner.block(peer)
    }

    fn blocked(&mut self) -> BlockedSubscription<PublicKey> {
        self.inner.blocked()
    }
}
