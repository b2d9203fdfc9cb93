//! What travels over the API, by resource.

mod apply;
mod approvals;
mod group;
mod identities;
mod operators;
mod orders;
mod packets;
mod resources;
mod status;
mod tokens;

pub use crate::any::{AnyId, AnyResource, PlaneResource};
pub use crate::problem::{ApiError, NOT_LEADER, Problem};
pub use apply::{ApplyRequest, ApplyResponse, Effect, Expected, FieldChange, PlannedEntry, ResourceChange};
pub use approvals::{ApprovalList, ApprovalRequest, ApprovalResponse, NeedOf, NeedsRequest, WaitingView};
pub use group::{
    AddMember, AuditPage, ClockOf, ClockStatus, ConvertRequest, ConvertResponse, GroupMember, GroupReplaced,
    GroupSigning, GroupStatus, GroupSuspicion,
};
pub use identities::{
    CertificateView, IdentityList, IdentityView, KeyChange, RevokeRequest, RevokedView, RotateRequest,
};
pub use operators::{OperatorList, OperatorRequest, OperatorView};
pub use orders::{FileWallRequest, FileWallResponse, OrderOutcome, RepairRequest, RepairResponse};
pub use packets::{CaptureRequest, CapturedFrame, TraceLine, TraceRequest, TraceResponse};
pub use resources::{DeviceList, DeviceView, ResourceList, ResourceView, WatchEnd, WatchEvent, WatchLine};
pub use status::{
    ActuatorStatus, ConductView, HealthView, KindCount, LineView, PlaneStatus, PortDown, RepairView,
    StatusResponse,
};
pub use tokens::{TOKEN_VALID_S, TokenKey, TokenList, TokenRequest, TokenResponse, TokenView};

/// Most resources of one request.
pub const RESOURCES_MAX: usize = weir_model::event::MUTATIONS_MAX;
/// Largest body of a request, bytes.
pub const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Longest body of a request that needs no administrator, bytes.
pub const OPEN_BODY_BYTES_MAX: usize = 8 * 1024;
