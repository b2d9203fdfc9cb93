//! What the server needs of a controller.

use crate::any::AnyId;
use crate::domains::{AddDomain, DomainDescription, DomainList, DomainResponse};
use crate::planes::{PlaneList, PlaneResponse, PlaneView};
use crate::said::Word;
use crate::types::{
    AddMember, ApiError, ApplyRequest, ApplyResponse, ApprovalList, ApprovalResponse, AuditPage,
    CaptureRequest, CapturedFrame, ClockStatus, ConvertRequest, ConvertResponse, DeviceList, FileWallRequest,
    FileWallResponse, GroupStatus, IdentityList, KeyChange, OperatorList, OperatorRequest, Problem,
    RepairRequest, RepairResponse, ResourceList, ResourceView, RevokeRequest, RotateRequest, StatusResponse,
    TokenList, TokenRequest, TokenResponse, TraceRequest, TraceResponse, WatchEvent,
};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use tokio::sync::mpsc;
use weir_model::Label;
use weir_model::approval::Needs;
use weir_model::join::{JoinRequest, JoinResponse};

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who was authenticated: the name in a client's certificate, or [`TOKEN_CALLER`]. It is signed and ordered with what the caller
    /// changes.
    pub subject: String,
    /// What the call says of its signature, which is what counts where requests are signed.
    pub word: Word,
}

impl Caller {
    /// Somebody who signs nothing.
    pub fn of(subject: impl Into<String>) -> Caller {
        Caller { subject: subject.into(), word: Word::None }
    }
}

/// Who comes with the administrators' token.
pub const TOKEN_CALLER: &str = "admin-token";

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum WatchStep {
    /// All that changed at a version.
    Version(u64, Vec<WatchEvent>),
    /// Nothing more comes, and why.
    End(Problem),
}

/// An answer that takes time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// A controller, as the API sees it. Every method may be called from many requests at once.
pub trait Backend: Send + Sync + 'static {
    /// Changes resources for a caller, or tells what would happen.
    fn apply(&self, caller: Caller, request: ApplyRequest) -> Reply<'_, ApplyResponse>;
    /// Lists resources, of one kind of this release or of all. A stale list may lack what was done last; else it has all that was acknowledged before.
    fn list(&self, kind: Option<Label>, network: Option<Label>, stale: bool) -> Reply<'_, ResourceList>;
    /// Devices that learned networks have seen, of one or of all.
    fn devices(&self, network: Option<Label>) -> Reply<'_, DeviceList>;
    /// One resource, with all that was acknowledged before.
    fn get(&self, id: AnyId) -> Reply<'_, ResourceView>;
    /// Changes after a version, as they happen, each version whole. The receiver ends without a [`WatchStep::End`] when it did not take
    /// one in time.
    ///
    /// # Errors
    /// `too-old` or `not-reached`.
    fn watch(&self, from: u64) -> Result<mpsc::Receiver<WatchStep>, ApiError>;
    /// Whether this controller can do its work now: its log takes entries, and in a group one leads that it follows.
    fn ready(&self) -> Reply<'_, ()>;
    /// State of the domain, as this controller knows it.
    fn status(&self) -> Reply<'_, StatusResponse>;
    /// The group of controllers, as this one knows it.
    ///
    /// # Errors
    /// `not-found`: this controller is alone.
    fn group(&self) -> Result<GroupStatus, ApiError>;
    /// Links of this controller's audit from a number on, at most `limit`.
    fn audit(&self, from: u64, limit: usize) -> Reply<'_, AuditPage>;
    /// Adds a controller to the group, for a caller; returns when it has caught up and votes.
    fn add_member(&self, caller: Caller, member: AddMember) -> Reply<'_, ()>;
    /// Makes the controller that is alone the first member of a group, for a caller.
    fn convert(&self, caller: Caller, request: ConvertRequest) -> Reply<'_, ConvertResponse>;
    /// Removes a controller from the group.
    fn remove_member(&self, id: u64) -> Reply<'_, ()>;
    /// Deals new shares of the group's key to its members; returns when they are in force.
    fn refresh_group(&self) -> Reply<'_, ()>;
    /// The controllers' clocks, as this one knows them.
    fn clock(&self) -> ClockStatus;
    /// Orders that wall time is what the clocks of a majority say, for a caller.
    fn set_clock(&self, caller: Caller) -> Reply<'_, ()>;
    /// Hosts, gateways and controllers, with keys and certificates. A stale list may lack what was done last.
    fn identities(&self, stale: bool) -> Reply<'_, IdentityList>;
    /// The operators whose requests are taken, and whether requests are signed here.
    fn operators(&self) -> Reply<'_, OperatorList>;
    /// The requests that wait for approvals, and what needs them.
    fn approvals(&self) -> Reply<'_, ApprovalList>;
    /// Approves or refuses a request that waits, for a caller.
    fn approve(&self, caller: Caller, id: [u8; 32], approve: bool) -> Reply<'_, ApprovalResponse>;
    /// Changes what needs approvals, for a caller.
    fn need_approvals(&self, caller: Caller, needs: Needs) -> Reply<'_, ()>;
    /// Makes an operator known, or known by another role or other keys, for a caller.
    fn put_operator(&self, caller: Caller, name: Label, request: OperatorRequest) -> Reply<'_, ()>;
    /// Takes nothing of an operator any more, for a caller.
    fn remove_operator(&self, caller: Caller, name: Label) -> Reply<'_, ()>;
    /// Has a host or gateway change its keys, for a caller; returns when only the new ones are taken.
    fn rotate(&self, caller: Caller, request: RotateRequest) -> Reply<'_, ()>;
    /// Takes nothing of somebody any more, for a caller.
    fn revoke(&self, caller: Caller, request: RevokeRequest) -> Reply<'_, ()>;
    /// Orders a change of a controller's key, which carries its own signatures, for a caller.
    fn order_key_change(&self, caller: Caller, change: KeyChange) -> Reply<'_, ()>;
    /// Makes the next key of the controller that is asked, and the change to it.
    fn next_key(&self) -> Reply<'_, KeyChange>;
    /// Uses that key, once it is known; gives what drops the one before.
    fn use_next_key(&self) -> Reply<'_, KeyChange>;
    /// Follows a packet through the real tables.
    fn trace(&self, request: TraceRequest) -> Reply<'_, TraceResponse>;
    /// Copies frames of a port.
    fn capture(&self, request: CaptureRequest) -> Reply<'_, Vec<CapturedFrame>>;
    /// Makes a join token, for a caller.
    fn token(&self, caller: Caller, request: TokenRequest) -> Reply<'_, TokenResponse>;
    /// Join tokens that were made.
    fn tokens(&self) -> Reply<'_, TokenList>;
    /// Has a join token, by what it is called, not taken any more, for a caller.
    fn void_token(&self, caller: Caller, id: String) -> Reply<'_, ()>;
    /// Lets an actuator join that speaks from an address. The caller is not authenticated: the request's secret and its keys are.
    fn join(&self, request: JoinRequest, from: IpAddr) -> Reply<'_, JoinResponse>;
    /// Forgets an actuator for a caller.
    fn remove_actuator(&self, caller: Caller, name: Label) -> Reply<'_, ()>;
    /// Orders the monitor of an actuator to repair something, for a caller.
    fn repair(&self, caller: Caller, name: Label, request: RepairRequest) -> Reply<'_, RepairResponse>;

    /// Orders the policies of a FileWall, or the end of such an order, for a caller.
    fn filewall(
        &self,
        caller: Caller,
        name: Label,
        wall: Label,
        request: FileWallRequest,
    ) -> Reply<'_, FileWallResponse>;
    /// What the planes of an actuator are to have, and what they told.
    fn planes(&self, name: Label) -> Reply<'_, PlaneList>;
    /// What one plane of an actuator is to have under a name.
    fn plane(&self, name: Label, plane: Label, of: String) -> Reply<'_, PlaneView>;
    /// Orders something of a plane of an actuator under a name, or withdraws it, for a caller.
    fn order(
        &self,
        caller: Caller,
        name: Label,
        of: (Label, String),
        spec: Option<serde_json::Value>,
        wait_ms: u32,
    ) -> Reply<'_, PlaneResponse>;
    /// What this domain's operator brings to the operators of others.
    fn domain(&self) -> Reply<'_, DomainDescription>;
    /// The other domains that are known.
    fn domains(&self) -> Reply<'_, DomainList>;
    /// Makes another domain known, or known by other facts, for a caller.
    fn add_domain(&self, caller: Caller, request: AddDomain) -> Reply<'_, DomainResponse>;
    /// Lets a domain be unknown, for a caller: what it told is void.
    fn forget_domain(&self, caller: Caller, name: Label) -> Reply<'_, DomainResponse>;
    /// Answers a controller of another domain, which is authenticated by the signature in what it asks.
    fn statements(&self, question: Vec<u8>) -> Reply<'_, Vec<u8>>;
    /// Counters of an actuator's switch, by name with labels.
    fn counters(&self, name: Label) -> Reply<'_, Vec<(String, u64)>>;
    /// Metrics of the controller, Prometheus text.
    fn metrics(&self) -> String;
}
