//! What the journal of connections holds.

use super::{Connection, State};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_packet::key::{FlowKey, NO_VLAN};

/// A change of what must survive a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionRecord {
    /// Nothing of what was told before holds.
    Reset,
    /// A connection is as said here, new or changed.
    Open {
        /// Its key.
        key: RecordKey,
        /// How far it is.
        state: State,
        /// Outside address and port of its source, or address and port of the member, if translated.
        external: Option<(IpAddr, u16)>,
    },
    /// A connection is over.
    Closed {
        /// Its key.
        key: RecordKey,
    },
}

/// The key of a connection in a form to keep: fields as in [`FlowKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordKey {
    /// The network.
    pub vni: u32,
    /// IP protocol.
    pub protocol: u8,
    /// Flags of the flow key.
    pub flags: u8,
    /// Source.
    pub source: (IpAddr, u16),
    /// Destination.
    pub destination: (IpAddr, u16),
}

impl From<&FlowKey> for RecordKey {
    fn from(key: &FlowKey) -> RecordKey {
        RecordKey {
            vni: key.zone,
            protocol: key.protocol,
            flags: key.flags,
            source: (key.source.into(), key.source_port),
            destination: (key.destination.into(), key.destination_port),
        }
    }
}

impl From<&RecordKey> for FlowKey {
    fn from(key: &RecordKey) -> FlowKey {
        FlowKey {
            source: key.source.0.into(),
            destination: key.destination.0.into(),
            zone: key.vni,
            source_port: key.source.1,
            destination_port: key.destination.1,
            vlan: NO_VLAN,
            protocol: key.protocol,
            flags: key.flags,
        }
    }
}

impl ConnectionRecord {
    pub(super) fn open(connection: &Connection) -> ConnectionRecord {
        ConnectionRecord::Open {
            key: (&connection.key).into(),
            state: connection.state,
            external: connection.binding.map(|binding| binding.external),
        }
    }

    pub(super) fn closed(key: &FlowKey) -> ConnectionRecord {
        ConnectionRecord::Closed { key: key.into() }
    }
}
