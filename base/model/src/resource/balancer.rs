//! Load balancers (Botelho et al. §VI-C; rows B10 and A25; decision 0024): a virtual address whose connections the
//! members take in turns.

use super::{FieldError, Protocol};
use crate::Label;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Most services of one balancer.
pub const SERVICES_MAX: usize = 64;
/// Most members of one balancer.
pub const MEMBERS_MAX: usize = 256;

/// A virtual address: each client that connects to it is given the member whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Balancer {
    /// The network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub network: Label,
    /// Name, unique in the network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// The virtual address, in one of the network's subnets; no endpoint has it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: IpAddr,
    /// What is offered there, 1 to 64.
    pub services: Vec<BalancerService>,
    /// Endpoints of the network that serve, in the order of their turns; each has an address of the virtual one's
    /// family. At most 256.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub members: Vec<Label>,
}

/// A port of a virtual address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BalancerService {
    /// `tcp` or `udp`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub protocol: Protocol,
    /// The port that clients connect to.
    pub port: u16,
    /// The members' port; absent means the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port: Option<u16>,
}

impl BalancerService {
    /// The port of the members.
    pub fn target(&self) -> u16 {
        self.target_port.unwrap_or(self.port)
    }
}

pub(super) fn validate(balancer: &Balancer) -> Result<(), FieldError> {
    let address = balancer.address;
    let host = !address.is_multicast() && !address.is_unspecified() && !address.is_loopback();
    if !host || matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.is_link_local()) {
        return Err(FieldError::new("address", address, "a unicast address of one of the network's subnets"));
    }
    let services = balancer.services.len();
    if !(1..=SERVICES_MAX).contains(&services) {
        return Err(FieldError::new("services", services, "1 to 64 services"));
    }
    let mut seen = BTreeSet::new();
    for service in &balancer.services {
        let number = match service.protocol {
            Protocol::TCP => 6_u8,
            Protocol::UDP => 17,
            other => return Err(FieldError::new("services.protocol", other, "tcp or udp")),
        };
        if service.port == 0 {
            return Err(FieldError::new("services.port", 0, "1 to 65535"));
        }
        if service.target_port == Some(0) {
            return Err(FieldError::new("services.targetPort", 0, "1 to 65535, or none for the same port"));
        }
        if !seen.insert((number, service.port)) {
            let value = format!("{} {}", service.protocol, service.port);
            return Err(FieldError::new("services.port", value, "each port of a protocol once"));
        }
    }
    if balancer.members.len() > MEMBERS_MAX {
        return Err(FieldError::new("members", balancer.members.len(), "at most 256 members"));
    }
    let mut seen = BTreeSet::new();
    match balancer.members.iter().find(|member| !seen.insert(*member)) {
        Some(twice) => Err(FieldError::new("members", twice, "each endpoint once")),
        None => Ok(()),
    }
}
