//! What the monitors of hosts told, and what they are ordered to do, for the API.
//!
//! A monitor reports as a plane of its host ([`super::monitor`]). Those of releases before told it their switch: of both the newer
//! counts.

use weir_api::types::{HealthView, RepairView};
use weir_apps::fabric;
use weir_model::Label;
use weir_planes::Plane;
use weir_planes::monitor::{HEALTH, Monitor, Report, Spec};
use weir_store::Store;

/// Where the policies of a host's monitor are, unless told otherwise.
pub const POLICIES: &str = "/etc/weir/monitor";

/// What the monitor of an actuator told, and what it is ordered to do.
pub fn view(store: &Store, name: &Label) -> Option<HealthView> {
    let before = fabric::repairs_of(store, name).map(|(cgroup, entry)| RepairView {
        cgroup,
        action: entry.action,
        version: entry.version.0,
    });
    let ordered = fabric::orders_of(store, name).into_iter().filter_map(|(plane, cgroup, ordered)| {
        let spec: Spec = is_monitor(&plane).then(|| serde_json::from_slice(&ordered.spec).ok())??;
        Some(RepairView { cgroup, action: spec.action, version: ordered.version.0 })
    });
    let repairs: Vec<RepairView> = before.chain(ordered).collect();
    let (told_ms, report) = match told(store, name) {
        Some(told) => told,
        None if repairs.is_empty() => return None,
        None => (0, Report::default()),
    };
    let Report { kernel, alarms, notes } = report;
    Some(HealthView { kernel, alarms, told_ms, notes, repairs })
}

/// What stands of releases before planes, in lines: repairs that were ordered of the host's switch, and what that told for its monitor.
pub fn before(store: &Store, name: &Label) -> Option<(Vec<String>, Vec<String>)> {
    let repairs = fabric::repairs_of(store, name);
    let ordered: Vec<String> = repairs
        .map(|(cgroup, entry)| format!("{cgroup}: {} cgroup {cgroup} (v{})", entry.action, entry.version.0))
        .collect();
    let told = by_switch(store, name).map(|(_, report)| Monitor::tell(&report)).unwrap_or_default();
    (!ordered.is_empty() || !told.is_empty()).then_some((ordered, told))
}

fn by_switch(store: &Store, name: &Label) -> Option<(u64, Report)> {
    let health = fabric::health(store, name)?;
    let report = health.report;
    Some((health.told_ms, Report { kernel: report.kernel, alarms: report.alarms, notes: report.notes }))
}

fn is_monitor(plane: &Label) -> bool {
    plane.as_str() == Monitor::NAME
}

/// The newest report, and when it was ordered.
fn told(store: &Store, name: &Label) -> Option<(u64, Report)> {
    let reports = fabric::reports_of(store, name).into_iter();
    let own =
        reports.filter(|(plane, of, _)| is_monitor(plane) && of == HEALTH).find_map(|(.., reported)| {
            Some((reported.told_ms, serde_json::from_slice::<Report>(&reported.bytes).ok()?))
        });
    own.into_iter().chain(by_switch(store, name)).max_by_key(|(told_ms, _)| *told_ms)
}

/// Why no monitor can run on this machine, if none can.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root");
    }
    weir_monitor::controls::mount().is_none().then_some("no cgroups of version 2 are mounted")
}
