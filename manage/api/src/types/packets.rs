//! Traces and captures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to trace: a described packet, or a whole frame.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceRequest {
    /// The network.
    pub network: String,
    /// The endpoint that sends.
    pub endpoint: String,
    /// Destination: an address, or the name of an endpoint of the network.
    #[serde(default)]
    pub to: String,
    /// `tcp`, `udp` or `icmp`. Default `icmp`.
    #[serde(default)]
    pub protocol: String,
    /// Source port. Default 40000.
    #[serde(default)]
    pub source_port: u16,
    /// Destination port.
    #[serde(default)]
    pub port: u16,
    /// A whole Ethernet frame in hexadecimal, instead of the description.
    #[serde(default)]
    pub frame: String,
}

/// One step of a trace.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceLine {
    /// The switch.
    pub switch: String,
    /// The stage.
    pub stage: String,
    /// What it found.
    pub detail: String,
    /// The rule or route that decided.
    pub rule: Option<String>,
    /// The entry looked at.
    pub entry: Option<String>,
    /// Its version.
    pub version: Option<u64>,
    /// Who signed it: domain, epoch and index of the batch, and the group's key.
    pub signed_by: Option<String>,
}

/// A packet's way.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TraceResponse {
    /// Each step of each switch.
    pub steps: Vec<TraceLine>,
    /// How it ends.
    pub verdict: String,
    /// Whether the packet reaches an endpoint, the outside, or a service that answers it. An error
    /// message to its sender is no arrival.
    pub delivered: bool,
}

/// Frames of a port.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaptureRequest {
    /// The host or gateway.
    pub actuator: String,
    /// `network/endpoint`; absent means the underlay.
    #[serde(default)]
    pub port: Option<String>,
    /// Stop after so many frames; at most 10000.
    pub frames: u32,
    /// Stop after so long, milliseconds; at most 60000.
    pub duration_ms: u32,
    /// Bytes kept of each frame.
    pub snap_bytes: u32,
}

/// A captured frame.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturedFrame {
    /// Nanoseconds of the Unix epoch.
    pub time_ns: u64,
    /// Length on the wire, bytes.
    pub length: u32,
    /// The bytes kept, hexadecimal.
    pub bytes: String,
}
