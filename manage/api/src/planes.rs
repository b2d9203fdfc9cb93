//! What is ordered of the planes of a host beside its switch, and what they tell.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Have a plane of a host or gateway have something under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlaneRequest {
    /// The specification, in the words of the plane.
    #[schema(value_type = Object)]
    pub spec: serde_json::Value,
    /// Wait for the plane's process to have it in force for so long, milliseconds.
    #[serde(default)]
    pub wait_ms: u32,
}

/// Something was ordered of a plane, or withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaneResponse {
    /// The version at which it was decided.
    pub version: u64,
    /// Whether the plane's process said within `waitMs` that it is in force.
    pub in_force: bool,
    /// Why the process refuses it, or why none takes it, if that was said within `waitMs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// What a plane told of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaneReportView {
    /// The plane.
    pub plane: String,
    /// Of what.
    pub name: String,
    /// The report, in the words of the plane.
    #[schema(value_type = Object)]
    pub report: serde_json::Value,
    /// When it came, milliseconds of the Unix epoch.
    pub told_ms: u64,
}

/// Something that a plane of a host is to have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaneView {
    /// The plane.
    pub plane: String,
    /// The name.
    pub name: String,
    /// The version at which it was decided.
    pub version: u64,
    /// The specification.
    #[schema(value_type = Object)]
    pub spec: serde_json::Value,
    /// The specification in a few words.
    pub description: String,
    /// Whether the plane's process has said that it is in force.
    pub in_force: bool,
    /// Why the process refuses it, or why none takes it, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// What the planes of a host or gateway are to have, and what they told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaneList {
    /// What they are to have, in the order of plane and name.
    pub items: Vec<PlaneView>,
    /// What they told, in the order of plane and name.
    pub reports: Vec<PlaneReportView>,
}
