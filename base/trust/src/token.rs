//! The security token of a packet (row A18): proof that the sender is a switch of the domain and
//! speaks for the network that it names.
//!
//! token = SipHash-2-4 under the domain's dataplane secret of (network, sender's underlay address).
//! The secret is given to a switch when it joins, over a mutually authenticated stream, and is
//! in no log, no store and no update. The receiver checks the token once a flow, on its miss path.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::net::IpAddr;
use zeroize::Zeroizing;

/// The domain's dataplane secret.
pub struct TokenKey(Zeroizing<[u8; 16]>);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(secret)")
    }
}

impl TokenKey {
    /// From 16 secret random bytes.
    pub fn new(secret: [u8; 16]) -> TokenKey {
        TokenKey(Zeroizing::new(secret))
    }

    /// The token of packets that a switch sends for a network.
    pub fn token(&self, vni: u32, sender: IpAddr) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&vni.to_be_bytes());
        let sender = match sender {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        hasher.write(&sender.octets());
        hasher.finish()
    }

    /// Whether a received token is right, in constant time.
    pub fn check(&self, vni: u32, sender: IpAddr, token: u64) -> bool {
        use subtle::ConstantTimeEq;
        self.token(vni, sender).ct_eq(&token).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_network_and_one_sender() {
        let key = TokenKey::new([7; 16]);
        let sender: IpAddr = "192.0.2.1".parse().unwrap();
        let token = key.token(5, sender);
        assert!(key.check(5, sender, token));
        assert!(!key.check(6, sender, token));
        assert!(!key.check(5, "192.0.2.2".parse().unwrap(), token));
        assert!(!TokenKey::new([8; 16]).check(5, sender, token));
    }
}
