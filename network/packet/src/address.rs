//! Addresses in one fixed form: an IPv4 address is kept as `::ffff:a.b.c.d`.
//!
//! The mapping is one to one because [`crate::parse`] refuses mapped addresses on the wire.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet address as on the wire.
pub type Mac = [u8; 6];

/// The Ethernet broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

const MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// An IPv4 or IPv6 address in 16 bytes. Default is `::`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct IpAddress(pub [u8; 16]);

impl IpAddress {
    /// The mapped form of an IPv4 address.
    #[inline]
    pub const fn v4(address: [u8; 4]) -> Self {
        // In one piece: what is written byte by byte is slow to read as a word soon after, as a flow's key is.
        let mapped = (u32::from_le_bytes(address) as u128) << 96 | 0xffff << 80;
        Self(mapped.to_le_bytes())
    }

    /// An IPv6 address.
    #[inline]
    pub const fn v6(address: [u8; 16]) -> Self {
        Self(address)
    }

    /// Whether this is an IPv4 address.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.0[..12] == MAPPED_PREFIX
    }

    /// The four bytes of an IPv4 address.
    #[inline]
    pub fn as_v4(&self) -> Option<[u8; 4]> {
        self.is_v4().then(|| self.tail())
    }

    /// The last four bytes: the IPv4 address, where the caller knows that it is one.
    #[inline]
    pub(crate) fn tail(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// The address as it stands in a packet: 4 or 16 bytes.
    #[inline]
    pub fn wire(&self) -> &[u8] {
        if self.is_v4() { &self.0[12..] } else { &self.0 }
    }

    /// 224.0.0.0/4 or ff00::/8.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        if self.is_v4() { self.0[12] >> 4 == 14 } else { self.0[0] == 0xff }
    }

    /// 255.255.255.255.
    #[inline]
    pub fn is_broadcast(&self) -> bool {
        self.is_v4() && self.tail() == [255; 4]
    }

    /// 0.0.0.0 or `::`.
    #[inline]
    pub fn is_unspecified(&self) -> bool {
        if self.is_v4() { self.tail() == [0; 4] } else { self.0 == [0; 16] }
    }
}

impl From<Ipv4Addr> for IpAddress {
    fn from(address: Ipv4Addr) -> Self {
        Self::v4(address.octets())
    }
}

impl From<Ipv6Addr> for IpAddress {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for IpAddress {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<IpAddress> for IpAddr {
    fn from(address: IpAddress) -> Self {
        match address.as_v4() {
            Some(v4) => IpAddr::V4(v4.into()),
            None => IpAddr::V6(address.0.into()),
        }
    }
}

impl fmt::Display for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
