//! The tables of the fabric: names, layout of keys, values.
//!
//! How keys are made of names, and the tables of the engine and of orders, are in [`crate::delta::tables`] and [`crate::orders::tables`].
//!
//! In the layouts below `vni` is four bytes big-endian, `address` is a family byte (4 or 6) and the
//! octets, `prefix` is an address and a length byte, a name in the middle of a key ends with a zero
//! byte, and a name at the end has no terminator. Values are postcard unless said otherwise.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::resource::{Kind, Resource, ResourceId};
use weir_model::{Label, MacAddr, Version};
use weir_store::TableName;

pub(super) use crate::delta::tables::{
    ACTUATORS, COUNTERS, Member, counter_key, is_tombstone, joined, label, name0, read, read_desired,
    split_desired,
};

/// `network 0 kind name` -> JSON [`Stored`]. The network of a network is itself.
pub const RESOURCES: TableName = "resource";
/// `vni` -> name of the network.
pub const VNIS: TableName = "vni";
/// `vni address` -> name of the endpoint that has it.
pub const ADDRESSES: TableName = "address";
/// `vni mac` -> name of the endpoint that has it.
pub const MACS: TableName = "mac";
/// `host 0 netns 0 device` -> (network, endpoint) that has it.
pub const DEVICES: TableName = "device";
/// `host 0 vni endpoint` -> nothing: the endpoints placed on a host, joined or not.
pub const PLACED: TableName = "placed";
/// `vni host` -> number of endpoints of the network placed there.
pub const NETWORK_HOSTS: TableName = "network-host";
/// `vni subnet 0 endpoint` -> nothing: the endpoints of a subnet.
pub const SUBNET_USERS: TableName = "subnet-user";
/// `vni tag 0 bucket address` -> nothing: the addresses of a tag.
pub const TAGGED: TableName = "tagged";
/// `vni tag 0 rule` -> nothing: the rules that select their peers by a tag.
pub const TAG_USERS: TableName = "tag-user";
/// `vni endpoint 0 route` -> nothing: the routes that lead to an endpoint.
pub const ROUTE_USERS: TableName = "route-user";
/// `vni prefix route` -> nothing: the routes of a prefix.
pub const PREFIX_ROUTES: TableName = "prefix-route";
/// `vni subnet 0 family chunk` -> raw bitmap of taken addresses; see the pool.
pub const POOLS: TableName = "pool";
/// `name` -> nothing: the actuators that are gateways.
pub const GATEWAYS: TableName = "gateway";
/// `vni address host` -> ordered time of last use, milliseconds.
pub const OFFLOADS: TableName = "offload";
/// `host 0 vni address` -> nothing: the same by host.
pub const HOST_OFFLOADS: TableName = "host-offload";

/// Switch (8 bytes: the VNI), Ethernet address -> place (4 bytes): where an endpoint of a learned network was heard, as
/// the learning switch keeps it.
pub const LEARNED: TableName = "learned";
/// A byte, then: 0 `host` -> its place; 1 place (4 bytes) -> `host`; 2 -> the last place given; 3 `vni` -> when those who
/// wait were looked through.
pub const PLACES: TableName = "place";
/// `vni address host` -> ordered time, milliseconds: a host that asked for an endpoint that was not heard yet.
pub const WAITING: TableName = "waiting";
/// `vni address` -> nothing: an address that the host of its endpoint is asked about.
pub const SOUGHT: TableName = "sought";
/// `vni` number (8 bytes) -> columns: a device of a learned network, as the device manager keeps it.
pub const DEVICES_SEEN: TableName = "seen-device";
/// `vni mac` -> number of the device.
pub const DEVICE_MACS: TableName = "seen-mac";
/// `vni` IPv4 address -> numbers of the devices that used it, oldest first.
pub const DEVICE_ADDRESSES: TableName = "seen-address";
/// `vni` name -> eight bytes: the last number given.
pub const DEVICE_COUNTERS: TableName = "seen-counter";
/// `vni mac` -> ordered time, milliseconds, when the device was seen first.
pub const DEVICE_FIRST: TableName = "seen-first";

/// `vni address` -> name of the balancer whose virtual address it is.
pub const VIRTUALS: TableName = "virtual";
/// `vni endpoint 0 balancer` -> nothing: the balancers that have an endpoint as a member.
pub const MEMBER_OF: TableName = "balancer-member";
/// `vni balancer 0` -> columns: its pool, as the load balancer keeps it.
pub const BALANCED_POOLS: TableName = "balanced-pool";
/// `vni balancer 0` number (8 bytes) -> columns: a member of the pool.
pub const BALANCED_MEMBERS: TableName = "balanced-member";
/// `vni client address` -> `Turn`: who serves a client of a virtual address.
pub const TURNS: TableName = "turn";
/// `vni endpoint 0 client address` -> nothing: the same by the endpoint that serves.
pub const MEMBER_TURNS: TableName = "member-turn";
/// `host 0 vni client address` -> nothing: the same by the client's host.
pub const HOST_TURNS: TableName = "host-turn";

/// `name` -> `DomainRecord`: another domain.
pub const DOMAINS: TableName = "domain";
/// `name` -> `Lane`: how far another domain is with what it is told.
pub const LANES: TableName = "domain-told";
/// `name` -> `Taken`: how far this one is with what another domain tells.
pub const TAKEN: TableName = "domain-taken";
/// `vni domain` -> number of subnets of the network that are another domain's.
pub const SHARED: TableName = "shared";
/// `domain 0 vni address` -> `ToldOf`: what another domain was told.
pub const TOLD: TableName = "told";
/// `domain 0 network 0 address` -> `Foreign`: what another domain told.
pub const FOREIGN: TableName = "foreign";
/// `name` -> `u64`: the last number of a statement to a domain that was forgotten.
pub const NUMBERED: TableName = "domain-numbered";
/// Nothing -> list of this domain's controllers; `source` -> the list by the word of one of them.
pub const OWN_CONTROLLERS: TableName = "controllers";

/// Every table of networks.
pub const ALL: [TableName; 40] = [
    RESOURCES,
    VNIS,
    ADDRESSES,
    MACS,
    DEVICES,
    PLACED,
    NETWORK_HOSTS,
    SUBNET_USERS,
    TAGGED,
    TAG_USERS,
    ROUTE_USERS,
    PREFIX_ROUTES,
    POOLS,
    GATEWAYS,
    OFFLOADS,
    HOST_OFFLOADS,
    LEARNED,
    PLACES,
    WAITING,
    SOUGHT,
    DEVICES_SEEN,
    DEVICE_MACS,
    DEVICE_ADDRESSES,
    DEVICE_COUNTERS,
    DEVICE_FIRST,
    VIRTUALS,
    MEMBER_OF,
    BALANCED_POOLS,
    BALANCED_MEMBERS,
    TURNS,
    MEMBER_TURNS,
    HOST_TURNS,
    DOMAINS,
    LANES,
    TAKEN,
    SHARED,
    TOLD,
    FOREIGN,
    NUMBERED,
    OWN_CONTROLLERS,
];

/// A resource as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// What was asked for.
    pub resource: Resource,
    /// When it last changed.
    pub version: Version,
    /// When it was created.
    pub created: Version,
    /// What was given to it.
    #[serde(default)]
    pub allocated: Allocated,
}

/// What the fabric chose for a resource. It stays as long as the resource asks for nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocated {
    /// Of a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// Of an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Of an endpoint, in its own order: asked for, then chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Name of an endpoint's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Stored {
    pub(super) fn from_json(bytes: &[u8]) -> Stored {
        match serde_json::from_slice(bytes) {
            Ok(stored) => stored,
            Err(error) => unreachable!("a stored resource cannot be read by this release: {error}"),
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        match serde_json::to_vec(self) {
            Ok(bytes) => bytes,
            Err(error) => unreachable!("a resource has no JSON: {error}"),
        }
    }
}

/// Stable for ever: it is in stored keys.
fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::Network => 0,
        Kind::Subnet => 1,
        Kind::Endpoint => 2,
        Kind::Route => 3,
        Kind::FirewallRule => 4,
        Kind::Balancer => 5,
    }
}

pub(super) fn resource_key(id: &ResourceId) -> Vec<u8> {
    let mut key = kind_prefix(id.network.as_ref().unwrap_or(&id.name), id.kind);
    key.extend_from_slice(id.name.as_str().as_bytes());
    key
}

/// The resource that a key of [`RESOURCES`] names; `None` when it is no such key.
pub fn resource_id(key: &[u8]) -> Option<ResourceId> {
    let end = key.iter().position(|byte| *byte == 0)?;
    let network = Label::new(std::str::from_utf8(&key[..end]).ok()?).ok()?;
    let (code, name) = key[end + 1..].split_first()?;
    let kind = Kind::ALL.into_iter().find(|kind| kind_code(*kind) == *code)?;
    let name = Label::new(std::str::from_utf8(name).ok()?).ok()?;
    Some(ResourceId { kind, network: (kind != Kind::Network).then_some(network), name })
}

pub(super) fn kind_prefix(network: &Label, kind: Kind) -> Vec<u8> {
    let mut key = name0(network.as_str());
    key.push(kind_code(kind));
    key
}

pub(super) fn vni_key(vni: Vni, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + rest.len());
    key.extend_from_slice(&vni.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

pub(super) fn vni_name0(vni: Vni, name: &Label) -> Vec<u8> {
    vni_key(vni, &name0(name.as_str()))
}

pub(super) fn vni_name0_name(vni: Vni, first: &Label, second: &Label) -> Vec<u8> {
    joined(vni_name0(vni, first), second.as_str().as_bytes())
}

pub(super) fn host_vni(host: &Label, vni: Vni) -> Vec<u8> {
    joined(name0(host.as_str()), &vni.0.to_be_bytes())
}

pub(super) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => joined(vec![4], &v4.octets()),
        IpAddr::V6(v6) => joined(vec![6], &v6.octets()),
    }
}

pub(super) fn prefix_bytes(prefix: IpNet) -> Vec<u8> {
    joined(address_bytes(prefix.addr()), &[prefix.prefix_len()])
}

pub(super) fn tagged_key(vni: Vni, tag: &Label, bucket: u8, address: IpAddr) -> Vec<u8> {
    let mut key = vni_name0(vni, tag);
    key.push(bucket);
    joined(key, &address_bytes(address))
}

/// Which kind of a network's entries; the number is the place of the key's variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Network = 1,
    Policy = 2,
    Members = 3,
    Route = 4,
    Port = 5,
    Location = 6,
    Virtual = 10,
    Turn = 11,
}

/// What the encoding of the keys of one kind and network begins with: a variant and its first field.
pub(super) fn family_prefix(family: Family, vni: Vni) -> Vec<u8> {
    encode(&(family as u32, vni))
}

/// Takes a key apart, piece by piece.
pub(super) struct Parts<'a>(pub &'a [u8]);

impl Parts<'_> {
    fn take(&mut self, length: usize) -> &[u8] {
        assert!(self.0.len() >= length, "a stored key is too short");
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        head
    }

    pub(super) fn vni(&mut self) -> Vni {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4));
        Vni(u32::from_be_bytes(bytes))
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    pub(super) fn address(&mut self) -> IpAddr {
        if self.byte() == 4 {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(self.take(4));
            IpAddr::V4(Ipv4Addr::from(bytes))
        } else {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(self.take(16));
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
    }

    pub(super) fn prefix(&mut self) -> IpNet {
        let address = self.address();
        let length = self.byte();
        match IpNet::new(address, length) {
            Ok(prefix) => prefix,
            Err(error) => unreachable!("a stored prefix is wrong: {error}"),
        }
    }

    /// A name up to its zero byte, or to the end.
    pub(super) fn name(&mut self) -> Label {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        let name = label(self.take(end));
        if !self.0.is_empty() {
            self.take(1);
        }
        name
    }
}
