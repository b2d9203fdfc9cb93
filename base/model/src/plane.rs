//! Planes beside the switch: what is ordered of them and what they report, as bytes in their own words.
//!
//! A plane is a vocabulary, a name, and a process on hosts that acts. The loop carries what it is told without reading it: which
//! planes there are, and what their specifications may say, is in `weir-planes`, and is asked at the doors (the API before
//! something is ordered, the process before it acts). Deciding knows bounds only. So a controller of the release before decides
//! on a plane that it does not know as all others do, and a plane more changes no enum and no protocol.

use crate::{Label, Version};
use serde::{Deserialize, Serialize};

/// Longest name of something that a plane has, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a specification.
pub const SPEC_BYTES_MAX: usize = 128 * 1024;
/// Most bytes of a report.
pub const REPORT_BYTES_MAX: usize = 16 * 1024;
/// Most specifications of one plane at one host.
pub const ORDERS_MAX: usize = 1024;
/// Most names under which one plane of one host reports.
pub const REPORTS_MAX: usize = 64;

/// A plane of a host shall have something, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneOrder {
    /// The plane.
    pub plane: Label,
    /// The host or gateway.
    pub actuator: Label,
    /// Under which name; see [`name_problem`].
    pub name: String,
    /// The specification; none withdraws it.
    pub spec: Option<Vec<u8>>,
}

/// An order among other changes ([`crate::event::Apply`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderChange {
    /// What the plane is to have. To withdraw what it does not have changes nothing.
    pub order: PlaneOrder,
    /// The version that is ordered now under the name; [`Version::ZERO`]: nothing may be.
    pub expected: Option<Version>,
}

/// What a plane of a host tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneReport {
    /// The plane.
    pub plane: Label,
    /// The host or gateway.
    pub actuator: Label,
    /// Of what; see [`name_problem`].
    pub name: String,
    /// The report, at most [`REPORT_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
}

impl PlaneOrder {
    /// What is over a limit, if something is.
    pub fn problem(&self) -> Option<&'static str> {
        if self.spec.as_ref().is_some_and(|spec| spec.len() > SPEC_BYTES_MAX) {
            return Some("a specification has at most 131072 bytes");
        }
        name_problem(&self.name)
    }
}

impl PlaneReport {
    /// What is over a limit, if something is.
    pub fn problem(&self) -> Option<&'static str> {
        if self.bytes.len() > REPORT_BYTES_MAX {
            return Some("a report of a plane has at most 16384 bytes");
        }
        name_problem(&self.name)
    }
}

/// Why a name is none that a plane can have something under, if it is none.
pub fn name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Some("a name has 1 to 255 bytes");
    }
    name.chars().any(char::is_control).then_some("a name has no control characters")
}

#[cfg(test)]
mod tests;
