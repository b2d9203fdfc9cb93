//! Resources and devices as they are, and how a watch tells their changes.

use crate::any::{AnyId, AnyResource};
use crate::problem::Problem;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A resource as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceView {
    /// What was asked for.
    pub resource: AnyResource,
    /// Version of its last change.
    pub version: u64,
    /// What Weir chose for it: `vni`, `mac`, `addresses`.
    #[schema(value_type = Object)]
    pub allocated: serde_json::Value,
}

/// A list of resources.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResourceList {
    /// In order of their ids.
    pub items: Vec<ResourceView>,
    /// Version of the store that was read: watch from here on.
    pub version: u64,
}

/// A device that a learned network has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceView {
    /// Its network.
    pub network: String,
    /// Its number in the network: it never changes.
    pub id: u64,
    /// Its Ethernet address.
    pub mac: String,
    /// IPv4 addresses that it used, ascending.
    pub addresses: Vec<String>,
    /// The host where it was seen last; absent when that host is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When it was seen first, milliseconds of the Unix epoch.
    pub first_ms: u64,
    /// When it was seen last, milliseconds of the Unix epoch.
    pub seen_ms: u64,
}

/// Devices that learned networks have seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceList {
    /// In order of networks and numbers.
    pub items: Vec<DeviceView>,
    /// Whether there are more than these.
    #[serde(default)]
    pub more: bool,
}

/// One change, as a watch tells it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WatchEvent {
    /// Where it was decided. Where nothing more follows of it, give it as `from` to resume after it.
    pub version: u64,
    /// Whether more of the same version follows: it is decided whole, and there is no place inside it to resume from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The resource.
    pub id: AnyId,
    /// What it is now; absent when it is gone.
    pub item: Option<ResourceView>,
}

/// The last line of a watch that the controller ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchEnd {
    /// Why: `too-slow`, `unavailable` (go on at `from`, here or at another controller) or `too-old` (read everything again).
    pub ended: Problem,
    /// All up to this version was told: give it as `from` to go on.
    pub from: u64,
}

/// A line of a watch.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum WatchLine {
    /// It ends here.
    End(WatchEnd),
    /// A resource changed.
    Change(WatchEvent),
}
