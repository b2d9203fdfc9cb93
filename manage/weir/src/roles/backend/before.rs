//! Orders of repairs and of FileWalls' policies by the requests that came before planes: `…/repairs` and `…/filewalls/{wall}`.
//!
//! At a host that knows planes they order the plane, and the answer is that of its process. At a host of a release before they order
//! the entry that its switch holds; the program that carries that out tells what became of it in a note of its host's health, whose
//! policy names the order's version. What was ordered that way before the host was upgraded is withdrawn by the order that takes its
//! place; where operators sign what they ask, a signature is over one order, and a withdrawal of its own ends it.

use super::planes::is_before_planes;
use super::{Controlled, WAIT_MAX_MS, api_error};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_api::planes::PlaneResponse;
use weir_api::types::{FileWallRequest, FileWallResponse, OrderOutcome, RepairRequest, RepairResponse};
use weir_api::{ApiError, Caller};
use weir_apps::fabric;
use weir_controller::core::scheduler::Reached;
use weir_model::event::EventBody;
use weir_model::filewall::PolicyOrder;
use weir_model::health::{RepairOrder, Severity};
use weir_model::{Label, Version};
use weir_planes::Plane;
use weir_planes::filewall::FileWall;
use weir_planes::monitor::Monitor;
use weir_store::Store;

/// Between two looks at what was told.
const LOOK: Duration = Duration::from_millis(50);

/// A plane and a name of it at a host.
struct At {
    host: Label,
    plane: Label,
    of: String,
}

/// A name for an order that has none.
fn make_id() -> Result<String, ApiError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| ApiError::internal(format!("no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

fn plane(name: &str) -> Result<Label, ApiError> {
    Label::new(name).map_err(|error| ApiError::internal(error.to_string()))
}

/// What a plane's process has done with an order, in the words of these requests; `what` names it.
fn said(response: &PlaneResponse, what: &str) -> Option<OrderOutcome> {
    let text = |said: String, done| Some(OrderOutcome { done, text: said });
    match &response.refusal {
        Some(why) => text(format!("{what} was NOT carried out: {why}"), false),
        None if response.in_force => text(format!("{what} was carried out"), true),
        None => None,
    }
}

/// What became of the order of a version, as far as its host's programs have told.
fn outcome(store: &Store, host: &Label, version: u64) -> Option<OrderOutcome> {
    let policy = format!("order v{version}");
    let notes = fabric::health(store, host)?.report.notes;
    let note = notes.into_iter().rev().find(|note| note.policy == policy)?;
    Some(OrderOutcome { done: note.severity == Severity::Info, text: note.text })
}

impl Controlled {
    /// Whether a host has what was ordered of it, and what became of that there; a withdrawal leaves nothing to be carried out.
    async fn ordered(
        &self,
        host: &Label,
        version: Version,
        wait_ms: u32,
        withdrawn: bool,
    ) -> Result<(bool, Option<OrderOutcome>), ApiError> {
        if wait_ms == 0 {
            return Ok((false, None));
        }
        let until = Instant::now() + Duration::from_millis(u64::from(wait_ms.min(WAIT_MAX_MS)));
        let left = || until.saturating_duration_since(Instant::now());
        let in_force = self.handle.wait(version, left()).await.map_err(api_error)? == Reached::All;
        if withdrawn {
            return Ok((in_force, None));
        }
        loop {
            let found = outcome(&self.handle.published().store, host, version.0);
            if found.is_some() || left().is_zero() {
                return Ok((in_force, found));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Orders a plane in the place of such an entry; none where the entry it is.
    async fn instead(
        &self,
        caller: &Caller,
        at: At,
        spec: Option<Value>,
        wait_ms: u32,
    ) -> Result<Option<PlaneResponse>, ApiError> {
        let store = self.handle.published().store.clone();
        let stands = fabric::order_of(&store, &at.host, &at.plane, &at.of).is_some();
        let is_plane = if spec.is_some() { !is_before_planes(&store, &at.host) } else { stands };
        if !is_plane {
            return Ok(None);
        }
        let At { host, plane, of } = at;
        self.order_plane(caller.clone(), host, (plane, of), spec, wait_ms).await.map(Some)
    }

    /// Orders a repair, or withdraws it.
    pub(super) async fn order_repair(
        &self,
        caller: Caller,
        host: Label,
        request: RepairRequest,
    ) -> Result<RepairResponse, ApiError> {
        self.barrier().await?;
        self.known(&host)?;
        let RepairRequest { cgroup, action, wait_ms, id } = request;
        let id = id.map_or_else(make_id, Ok)?;
        let at = At { host: host.clone(), plane: plane(Monitor::NAME)?, of: cgroup.clone() };
        let spec = action.map(|action| json!({ "action": action, "id": id }));
        let what = match action {
            Some(action) => format!("{action} of cgroup {cgroup}"),
            None => format!("the end of the repair of cgroup {cgroup}"),
        };
        let stands = fabric::repairs_of(&self.handle.published().store, &host).any(|(of, _)| of == cgroup);
        let order = |action| RepairOrder { actuator: host.clone(), cgroup: cgroup.clone(), action };
        if let Some(response) = self.instead(&caller, at, spec, wait_ms).await? {
            // What is refused takes the place of nothing.
            let end = EventBody::Repair(order(None));
            if stands && (response.in_force || action.is_none()) && !self.is_signed(&end) {
                self.say(&caller, end).await?;
            }
            let outcome = said(&response, &what);
            return Ok(RepairResponse { version: response.version, in_force: response.in_force, outcome });
        }
        let version = self.say(&caller, EventBody::Repair(order(action))).await?;
        let (in_force, outcome) = self.ordered(&host, version, wait_ms, action.is_none()).await?;
        Ok(RepairResponse { version: version.0, in_force, outcome })
    }

    /// Orders the policies of a FileWall, or withdraws them.
    pub(super) async fn order_policies(
        &self,
        caller: Caller,
        (host, wall): (Label, Label),
        request: FileWallRequest,
    ) -> Result<FileWallResponse, ApiError> {
        self.barrier().await?;
        self.known(&host)?;
        let FileWallRequest { files, wait_ms } = request;
        let at = At { host: host.clone(), plane: plane(FileWall::NAME)?, of: wall.to_string() };
        let spec = files.as_ref().map(|files| json!({ "files": files }));
        let what = match files {
            Some(_) => format!("the order for FileWall '{wall}'"),
            None => format!("the withdrawal from FileWall '{wall}'"),
        };
        let mut before = fabric::policies_of(&self.handle.published().store, &host);
        let stands = before.any(|(of, _)| of == wall.as_str());
        let withdrawn = files.is_none();
        let order = |files| PolicyOrder { actuator: host.clone(), wall: wall.clone(), files };
        if let Some(response) = self.instead(&caller, at, spec, wait_ms).await? {
            let end = EventBody::FileWall(order(None));
            if stands && (response.in_force || withdrawn) && !self.is_signed(&end) {
                self.say(&caller, end).await?;
            }
            let outcome = said(&response, &what);
            return Ok(FileWallResponse { version: response.version, in_force: response.in_force, outcome });
        }
        let version = self.say(&caller, EventBody::FileWall(order(files))).await?;
        let (in_force, outcome) = self.ordered(&host, version, wait_ms, withdrawn).await?;
        Ok(FileWallResponse { version: version.0, in_force, outcome })
    }
}
