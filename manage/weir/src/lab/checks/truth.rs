//! What Weir says of itself, against what packets do.

use super::super::place::OUTSIDE_V4;
use super::super::programs;
use super::{Ground, Row, in_url};
use crate::failure::Failure;
use std::net::IpAddr;
use std::time::Duration;
use weir_api::types::TraceRequest;
use weir_lab::probe::http::{self, Outcome};

/// How long the last usage reports may take to be acted upon.
const IN_STEP_BOUND: Duration = Duration::from_secs(15);

/// For some connections the verdict of the trace, beside the fate of a real one.
pub fn traces(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let web = ground.address("red", "web", false)?;
    let foreign = ground.address("blue", "db", false)?;
    let cases = [
        ("app", web, 80_u16),
        ("app", web, 8080),
        ("app", foreign, 80),
        ("app", IpAddr::V4(OUTSIDE_V4), 80),
        ("db", ground.address("red", "app", false)?, 80),
        ("app", ground.address("red", "db", true)?, 5432),
    ];
    let mut rows = Vec::new();
    for (from, to, port) in cases {
        let request = TraceRequest {
            network: "red".to_string(),
            endpoint: from.to_string(),
            to: to.to_string(),
            protocol: "tcp".to_string(),
            source_port: 40_000,
            port,
            frame: String::new(),
        };
        let traced = ground.client.trace(&request)?;
        let url = format!("http://{}:{port}/", in_url(to));
        let passed = matches!(http::run(ground.netns("red", from)?, &url, 1)?, Outcome::Answered { .. });
        let fate = if passed { "arrives" } else { "does not arrive" };
        let verdict = if traced.delivered { "arrives" } else { "does not arrive" };
        rows.push(Row::new(
            format!("trace red/{from} {to} tcp {port}"),
            format!("{fate}, as curl"),
            format!("{verdict}: {}", traced.verdict),
            passed == traced.delivered,
        ));
    }
    Ok(rows)
}

/// Desired, acked and in force.
pub fn status(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let waited = programs::wait_in_step(ground.client, IN_STEP_BOUND);
    let status = ground.client.status()?;
    let rows = status.actuators.iter().map(|one| {
        let version = one.in_force_version.map_or("nothing".to_string(), |version| format!("v{version}"));
        Row::new(
            format!("status of {}", one.name),
            format!("{} entries, v{}", one.desired_entries, one.desired_version),
            format!("{} acked, {version} in force", one.acked_entries),
            waited.is_ok() && programs::in_step(one),
        )
    });
    Ok(rows.collect())
}
