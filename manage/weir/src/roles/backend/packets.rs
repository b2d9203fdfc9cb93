//! Questions about packets: which way one takes, and copies of some.

use super::Controlled;
use crate::roles::trace::{Described, follow};
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_api::ApiError;
use weir_api::types::{CaptureRequest, CapturedFrame, TraceRequest, TraceResponse};
use weir_apps::fabric::{self, Stored};
use weir_model::entry::Vni;
use weir_model::join::to_hex;
use weir_model::local::{Answer, PortName, Question, TraceFrom};
use weir_model::resource::{Kind, Resource, ResourceId};
use weir_model::{Label, MacAddr};

impl Controlled {
    pub(super) async fn follow_packet(&self, request: TraceRequest) -> Result<TraceResponse, ApiError> {
        let published = self.handle.published();
        let label = |text: &str| Label::new(text).map_err(|error| ApiError::invalid(error.to_string()));
        let (network, endpoint) = (label(&request.network)?, label(&request.endpoint)?);
        let find = |name: Label| {
            let id = ResourceId { kind: Kind::Endpoint, network: Some(network.clone()), name };
            fabric::resource(&published.store, &id).ok_or_else(|| {
                ApiError::not_found(format!("there is no {id}: 'weir get endpoints' lists them"))
            })
        };
        let sender = find(endpoint.clone())?;
        let Resource::Endpoint(placed) = &sender.resource else {
            return Err(ApiError::internal("an endpoint is kept as something else"));
        };
        let host = placed
            .host
            .clone()
            .ok_or_else(|| ApiError::conflict(format!("{network}/{endpoint} is placed on no host")))?;
        let frame = match request.frame.as_str() {
            "" => {
                let vni = fabric::vni_of(&published.store, &network)
                    .ok_or_else(|| ApiError::not_found(format!("there is no network {network}")))?;
                let destination = match request.to.parse::<IpAddr>() {
                    Ok(address) => address,
                    Err(_) => first_address(&find(label(&request.to)?)?, &sender)?,
                };
                describe(&request, &sender, vni, destination)?.frame()?
            }
            hex => frame_of(hex)?,
        };
        let switches: BTreeMap<IpAddr, Label> = fabric::actuators(&published.store)
            .map(|known| (known.facts.underlay, known.facts.name))
            .collect();
        let from = TraceFrom::Port(PortName { network, endpoint });
        let group = self.group_key();
        follow(host, from, frame, &switches, &group, |switch, question| self.ask(switch, question)).await
    }

    pub(super) async fn copy_frames(&self, request: CaptureRequest) -> Result<Vec<CapturedFrame>, ApiError> {
        let label = |text: &str| Label::new(text).map_err(|error| ApiError::invalid(error.to_string()));
        let switch = label(&request.actuator)?;
        let port = match &request.port {
            None => None,
            Some(name) => {
                let (network, endpoint) = name.split_once('/').ok_or_else(|| {
                    ApiError::invalid(format!("port: '{name}' is no port: NETWORK/ENDPOINT"))
                })?;
                Some(PortName { network: label(network)?, endpoint: label(endpoint)? })
            }
        };
        let question = Question::Capture {
            port,
            frames_max: request.frames.clamp(1, 10_000),
            duration_ms: request.duration_ms.clamp(1, 60_000),
            snap_bytes: request.snap_bytes.clamp(14, 65_535),
        };
        match self.ask(switch, question).await? {
            Answer::Captured { frames, .. } => Ok(frames
                .into_iter()
                .map(|(time_ns, length, bytes)| CapturedFrame { time_ns, length, bytes: to_hex(&bytes) })
                .collect()),
            Answer::Error(reason) => Err(ApiError::not_found(reason)),
            _ => Err(ApiError::internal("the switch answered another question")),
        }
    }
}

fn first_address(to: &Stored, sender: &Stored) -> Result<IpAddr, ApiError> {
    let has =
        |address: &IpAddr| sender.allocated.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    to.allocated
        .addresses
        .iter()
        .copied()
        .find(has)
        .ok_or_else(|| ApiError::conflict("the two endpoints have no address family in common"))
}

fn describe(request: &TraceRequest, sender: &Stored, vni: Vni, to: IpAddr) -> Result<Described, ApiError> {
    let source = sender.allocated.addresses.iter().copied().find(|own| own.is_ipv4() == to.is_ipv4());
    Ok(Described {
        macs: (sender.allocated.mac.unwrap_or(MacAddr([0; 6])), vni.router_mac()),
        source: source.ok_or_else(|| {
            ApiError::conflict(format!("the endpoint has no address of the family of {to}"))
        })?,
        destination: to,
        protocol: request.protocol.clone(),
        ports: (if request.source_port == 0 { 40_000 } else { request.source_port }, request.port),
    })
}

fn frame_of(hex: &str) -> Result<Vec<u8>, ApiError> {
    let wrong = || {
        ApiError::invalid("frame: hexadecimal digits of an Ethernet frame of 14 to 65535 bytes are wanted")
    };
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) || !(28..=131_070).contains(&hex.len()) {
        return Err(wrong());
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong()))
        .collect()
}
