//! Ethernet addresses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A unicast or group Ethernet address, six bytes in transmission order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

/// Text that is no Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an Ethernet address: use six pairs of hex digits, such as 02:00:0a:00:00:05")]
pub struct NotAMac(pub String);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether the address names one station (the group bit is clear).
    pub fn is_unicast(&self) -> bool {
        self.0[0] & 1 == 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = NotAMac;
    fn from_str(text: &str) -> Result<MacAddr, NotAMac> {
        let mut bytes = [0_u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(|| NotAMac(text.to_string()))?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAMac(text.to_string()))?;
        }
        if parts.next().is_some() { Err(NotAMac(text.to_string())) } else { Ok(MacAddr(bytes)) }
    }
}

impl Serialize for MacAddr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<MacAddr, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; 6]>::deserialize(deserializer).map(MacAddr)
        }
    }
}
