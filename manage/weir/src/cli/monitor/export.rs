//! Sends metrics to an OpenTelemetry collector: OTLP over HTTP with JSON, made from the same text that Prometheus reads, so that
//! both show the same.

use crate::failure::Failure;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_monitor::otlp;
use weir_monitor::service::Monitor;

/// How long one sending takes at most.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Where a collector takes metrics.
const PATH: &str = "/v1/metrics";

/// Starts a thread that sends for as long as the monitor runs.
///
/// # Errors
/// [`Failure::Io`].
pub(super) fn start(monitor: &Arc<Monitor>, url: &str, every: Duration) -> Result<(), Failure> {
    let url = format!("{}{PATH}", url.trim_end_matches('/').trim_end_matches(PATH));
    let monitor = Arc::downgrade(monitor);
    let thread = std::thread::Builder::new().name("monitor-otlp".into());
    thread.spawn(move || send(&monitor, &url, every)).map(drop).map_err(Failure::io("starting the export"))
}

fn send(monitor: &Weak<Monitor>, url: &str, every: Duration) {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build();
    let agent = ureq::Agent::new_with_config(config);
    let started_ns = otlp::unix_ns();
    let mut complained = false;
    while let Some(status) = monitor.upgrade().map(|monitor| monitor.status()) {
        let body = otlp::message(&status.prometheus(), started_ns, otlp::unix_ns());
        match agent.post(url).send_json(&body) {
            Ok(_) => complained = false,
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(%error, url, "metrics are not sent; trying again");
            }
            Err(_) => {}
        }
        std::thread::sleep(every);
    }
}
