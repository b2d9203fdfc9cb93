//! Inside one tenant, between hosts: reachability, names, HTTP, throughput.

use super::{Ground, Row, in_url, page};
use crate::failure::Failure;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_lab::probe::{ping, stream};
use weir_lab::system;

/// Both tenants, from `app` to the two others: each on another host.
pub fn ping_hosts(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for tenant in ["red", "blue"] {
        for v6 in [false, true] {
            let target = ground.address(tenant, "web", v6)?;
            let report = ping::run(ground.netns(tenant, "app")?, target, &ping::Options::default())?;
            let mean = report.round_trip_mean_ms.map(|ms| format!(", {ms:.2} ms")).unwrap_or_default();
            rows.push(Row::new(
                format!("{tenant}: app pings web, {}", if v6 { "IPv6" } else { "IPv4" }),
                "all answers",
                format!("{} of {}{mean}", report.received, report.sent),
                report.all(),
            ));
        }
    }
    Ok(rows)
}

fn list(set: &BTreeSet<IpAddr>) -> String {
    if set.is_empty() {
        return "nothing".to_string();
    }
    set.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The addresses that a tenant's app gets for a name, with options of its resolver.
fn looked_up(ground: &Ground, tenant: &str, name: &str, options: &str) -> Result<BTreeSet<IpAddr>, Failure> {
    let mut found = BTreeSet::new();
    for database in ["ahostsv4", "ahostsv6"] {
        let mut command = ground.netns(tenant, "app")?.command("getent");
        command.env("RES_OPTIONS", options).args([database, name]);
        let output = system::run_output(command, std::time::Duration::from_secs(20))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        found.extend(text.lines().filter_map(|line| line.split_whitespace().next()?.parse::<IpAddr>().ok()));
    }
    Ok(found)
}

/// What the resolver of an unmodified program says, against the addresses that the other guest has.
pub fn names(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let names = |tenant: &str| ["db".to_string(), format!("web.{tenant}.weir.internal")];
    // An option of the C library's resolver lets it use TCP only.
    for (how, options) in [("looks up", ""), ("looks up over TCP", "use-vc")] {
        for tenant in ["red", "blue"] {
            for name in names(tenant) {
                let short = name.split('.').next().unwrap_or_default();
                let wanted: BTreeSet<IpAddr> =
                    ground.guest(tenant, short)?.addresses()?.into_iter().collect();
                let found = looked_up(ground, tenant, &name, options)?;
                rows.push(Row::new(
                    format!("{tenant}: app {how} {name}"),
                    list(&wanted),
                    list(&found),
                    found == wanted && wanted.len() == 2,
                ));
            }
        }
    }
    Ok(rows)
}

/// By name with either IP version, and by address.
pub fn http(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for tenant in ["red", "blue"] {
        let by_v6 = format!("http://{}/", in_url(ground.address(tenant, "web", true)?));
        for url in ["http://web/".to_string(), by_v6] {
            let answer = page(ground.netns(tenant, "app")?, &url, 5)?;
            let wanted = format!("{tenant}/web");
            let holds = answer.as_ref() == Ok(&wanted);
            rows.push(Row::new(
                format!("{tenant}: app gets {url}"),
                wanted,
                answer.unwrap_or_else(|error| error),
                holds,
            ));
        }
    }
    Ok(rows)
}

/// One stream of one tenant.
pub fn throughput(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let target = ground.address("red", "web", false)?;
    let report = stream::run(ground.netns("red", "app")?, target, &stream::Options::default())?;
    Ok(vec![Row::new(
        "red: app streams to web, iperf3, 1 flow",
        "data arrives",
        format!("{:.2} Gbit/s, {} segments sent again", report.received_bits_per_s / 1e9, report.retransmits),
        report.received_bytes > 0,
    )])
}
